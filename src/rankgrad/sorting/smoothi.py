"""SmoothI (Thonet et al. 2022): smooth rank indicators, one softmax after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._shapes import Float, ItemMask, ItemValues
from rankgrad._validation import Schedule, check_between, check_flag, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Relaxation, relaxations


@relaxations.register("smoothi")
@dataclass(frozen=True)
class SmoothI(Relaxation):
    """``I^r = softmax(α S Π_{l<r} (1 - I^l - δ))``, the smooth indicator of rank r.

    Thonet et al. eq. 4. S are the scores minus the lowest of the list, so none is negative. At α →
    ∞ it is the exact sort. At α = 1 and δ = 0.1, on long lists, the indicators are nearly uniform
    from about rank 30 on.

    Args:
        alpha: inverse temperature α > 0, or a schedule.
        delta: δ in (0, 0.5); how far an item is pushed down after the rank it took.
        stop_gradient: treat the product as a constant in the backward pass, as the paper does in
            practice; False for the full gradient of eq. 4.

    >>> SmoothI(alpha=5.0)(torch.tensor([0.2, 0.9, 0.5]), k=2)
    tensor([[0.0259, 0.8580, 0.1161],
            [0.1852, 0.2146, 0.6002]])
    """

    limit: ClassVar[dict[str, Any]] = {"alpha": 1e8}

    alpha: float | Schedule = 1.0
    delta: float = 0.1
    stop_gradient: bool = True

    def __post_init__(self) -> None:
        set_temperature(self, "alpha")
        check_between("delta", self.delta, 0, 0.5)
        check_flag("stop_gradient", self.stop_gradient)

    @override
    def kernel(self) -> KernelCall | None:
        if not self.stop_gradient:
            return None
        return KernelCall("smoothi", (initial_value(self.alpha), self.delta))

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        lowest = scores.masked_fill(~mask, float("inf")).amin(-1, keepdim=True)
        scaled = torch.where(mask, scores - lowest, 0.0) * initial_value(self.alpha)
        rank_exists = torch.arange(k, device=scores.device) < mask.sum(-1, keepdim=True)
        if self.stop_gradient:
            indicators: Tensor = _Indicators.apply(scaled, mask, k, self.delta)
        else:
            indicators = torch.stack(_indicators(scaled, mask, k, self.delta), 1)
        return indicators * rank_exists[:, :, None]


def _indicators(scaled: Tensor, mask: Tensor, k: int, delta: float) -> list[Tensor]:
    """The indicators of the first k ranks, ``[b, n]`` each; ``scaled`` is ``α S``, ``[b, n]``."""
    rows = []
    product = torch.ones_like(scaled)
    # Added to the logits. It stays 0 in lists without items, whose softmax would be NaN.
    padding = torch.where(mask, 0.0, float("-inf"))
    padding = torch.where(mask.any(-1, keepdim=True), padding, 0.0).to(scaled.dtype)
    for _ in range(k):
        row = (scaled * product + padding).softmax(-1)
        product = product * (1 - row - delta)
        rows.append(row)
    return rows


class _Indicators(ListFunction):
    """The indicators ``[b, k, n]``, differentiated with the products ``Π (1 - I - δ)`` constant.

    So the indicators of all ranks (``rows``) can be differentiated at once, and nothing else has to
    be saved: the products are computed from them again.
    """

    @staticmethod
    def forward(scaled: Tensor, mask: Tensor, k: int, delta: float) -> Tensor:
        return torch.stack(_indicators(scaled, mask, k, delta), 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.delta = inputs[-1]
        ctx.save_for_backward(output)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        grad_logits = grad * rows
        grad_logits.addcmul_(rows, grad_logits.sum(-1, keepdim=True), value=-1.0)
        factors = torch.cat([torch.ones_like(rows[:, :1]), 1 - rows[:, :-1] - ctx.delta], 1)
        return (grad_logits * factors.cumprod(1)).sum(1), None, None, None
