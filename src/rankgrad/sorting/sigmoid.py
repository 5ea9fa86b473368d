"""Sigmoid ranks (Qin et al. 2010), the relaxation under ApproxNDCG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._padded import tiles
from rankgrad._shapes import ItemMask, ItemValues
from rankgrad._validation import Schedule, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Form, Relaxation, relaxations


@relaxations.register("sigmoid")
@dataclass(frozen=True)
class SigmoidRanks(Relaxation):
    """``rank_i = 1 + Σ_{j ≠ i} sigmoid(α (s_j - s_i))`` (Tang et al. eq. 5, Jagerman et al. eq. 8).

    Eq. 8 of Jagerman et al. includes j = i in its sum, which adds 1/2 to every rank. Ranks take
    O(n²) time and, computed in tiles, O(n) memory. As α → ∞ they become the exact ranks.

    Args:
        alpha: inverse temperature α > 0, or a schedule.

    >>> SigmoidRanks(alpha=10.0)(torch.tensor([0.2, 0.9, 0.5]))
    tensor([2.9517, 1.0189, 2.0294])
    """

    limit: ClassVar[dict[str, Any]] = {"alpha": 1e5}
    forms: ClassVar[tuple[Form, ...]] = ("ranks",)

    alpha: float | Schedule = 1.0

    def __post_init__(self) -> None:
        set_temperature(self, "alpha")

    @override
    def kernel(self) -> KernelCall | None:
        return KernelCall("sigmoid", (initial_value(self.alpha),))

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        sums: Tensor = _SigmoidSums.apply(scores * initial_value(self.alpha), mask)
        return torch.where(mask, sums + 0.5, 0.0)  # 1 minus the 1/2 of the item itself


class _SigmoidSums(ListFunction):
    """``Σ_j sigmoid(s_j - s_i)`` over the real items j, including i itself, which adds 1/2.

    From scores ``[b, n]`` and mask ``[b, n]`` to ``[b, n]``.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor) -> Tensor:
        sums = torch.empty_like(scores)
        for rows, sigmoids in _sigmoids(scores, mask):
            sums[:, rows] = sigmoids.sum(-1)
        return sums

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scores, mask = ctx.saved_tensors
        grad = torch.where(mask, grad, 0.0)
        # The derivative σ' of the term (i, j) enters with + at s_j and with - at s_i.
        grad_others, derivative_sums = torch.zeros_like(grad), torch.empty_like(grad)
        for rows, sigmoids in _sigmoids(scores, mask):
            derivatives = sigmoids.addcmul_(sigmoids, sigmoids, value=-1.0)
            derivative_sums[:, rows] = derivatives.sum(-1)
            grad_others = grad_others + (derivatives * grad[:, rows, None]).sum(1)
        return grad_others - grad * derivative_sums, None


def _sigmoids(scores: Tensor, mask: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Tiles of ``sigmoid(s_j - s_i)``, ``[b, rows, n]``: a few items i, all j, 0 for padding j."""
    real = mask[:, None, :].to(scores.dtype)
    for rows in tiles(scores.numel(), scores.shape[-1]):
        yield rows, (scores[:, None, :] - scores[:, rows, None]).sigmoid_().mul_(real)
