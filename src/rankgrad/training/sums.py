"""What a step makes of scores and of the losses of its lists, in few operations each way.

A small network's step takes a GPU less time than the host needs to ask for it, so each operation
here counts. Autograd would record several where one will do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Finite(torch.autograd.Function):
    """Scores, with 0 in place of those that are not finite; gradients pass as they are.

    >>> Finite.apply(torch.tensor([1.0, torch.inf, torch.nan])).tolist()
    [1.0, 0.0, 0.0]
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return scores.nan_to_num(0.0, 0.0, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Total(torch.autograd.Function):
    """The sum of lists' losses; and it, the number of those with a loss, and ``flaw``, as one.

    All are divided by the number of members that scored each list; only the first is
    differentiated.

    >>> losses, defined = torch.tensor([0.5, 2.0, 9.0]), torch.tensor([True, True, False])
    >>> total, sums = Total.apply(losses, defined, torch.tensor(0.0), 1)
    >>> total.item(), sums.tolist()
    (2.5, [2.5, 2.0, 0.0])
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, defined: Tensor, flaw: Tensor, members: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(defined)
        ctx.dtype, ctx.members = values.dtype, members
        sums = torch.stack(
            [
                torch.where(defined, values, 0.0).sum(dtype=torch.float64),
                defined.sum(dtype=torch.float64),
                flaw.double(),
            ]
        )
        if members > 1:
            sums /= members
        ctx.mark_non_differentiable(sums)
        return sums[0].clone(), sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (defined,) = ctx.saved_tensors
        return defined * (gradients[0] / ctx.members).to(ctx.dtype), None, None, None
