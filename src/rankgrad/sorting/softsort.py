"""SoftSort (Prillo and Eisenschlos 2020): one softmax of distances to the sorted scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._padded import descending, invert, tie_groups
from rankgrad._shapes import Float, ItemMask, ItemValues
from rankgrad._validation import Schedule, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.lists import is_unchecked
from rankgrad.sorting._base import Relaxation, relaxations


@relaxations.register("softsort")
@dataclass(frozen=True)
class SoftSort(Relaxation):
    """``P[r] = softmax(-|s_(r) - s| / τ)`` with ``s_(r)`` the r-th largest score.

    At τ → 0 it is the exact sort. Where scores tie, ``|·|`` has no derivative and the usual choice
    of 0 would stop all learning from a constant score; here the gradient is the mean over the
    orders in which the tied items can stand, which is not 0.

    Args:
        temperature: τ > 0, or a schedule.

    >>> SoftSort(temperature=0.5)(torch.tensor([0.2, 0.9, 0.5]), k=1)
    tensor([[0.1454, 0.5896, 0.2649]])
    """

    limit: ClassVar[dict[str, Any]] = {"temperature": 1e-5}

    temperature: float | Schedule = 1.0

    def __post_init__(self) -> None:
        set_temperature(self, "temperature")

    @override
    def kernel(self) -> KernelCall | None:
        return KernelCall("softsort", (initial_value(self.temperature),))

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        distances: Tensor = _Distances.apply(scores, mask, k)
        logits = -distances / initial_value(self.temperature)
        # Entries that would be denormal numbers are 0: they slow everything that follows.
        negligible = logits < (-69.0 if scores.dtype == torch.float32 else -690.0)
        logits = logits.masked_fill(negligible | ~mask[:, None, :], float("-inf"))
        real = torch.arange(k, device=scores.device) < mask.sum(-1, keepdim=True)
        rows = torch.where(real[:, :, None], logits, 0.0).softmax(-1)
        return rows * real[:, :, None]


class _Distances(ListFunction):
    """``|s_(r) - s_j|`` for the first k ranks r, with the mean gradient over tie orders.

    Let r stand in a group of m tied items at ranks a..b. Over random orders of the group, item j of
    it is below rank r with frequency (b - r) / m and above with (r - a) / m, so the mean derivative
    is ``c_r (mean_{l ≠ j} ds_l - ds_j)`` with ``c_r = ((b - r) - (r - a)) / m``, l over the group.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor, k: int) -> Tensor:
        ranked = scores.gather(-1, descending(scores, mask)[:, :k])
        return (ranked[:, :, None] - scores[:, None, :]).abs()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, mask, ctx.k = inputs
        ctx.save_for_backward(scores, mask)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scores, mask = ctx.saved_tensors
        order = descending(scores, mask)
        back = invert(order)
        inside = mask.gather(-1, order)
        start, end = tie_groups(scores.gather(-1, order).masked_fill(~inside, float("-inf")))
        size = (end - start).to(grad.dtype)
        grad = grad * mask[:, None, :] * inside[:, : ctx.k, None]

        def per_group(rows: Tensor) -> Tensor:
            """The sum over the ranks of a group, for each of its items."""
            sums = torch.zeros_like(scores).scatter_add(-1, start[:, : ctx.k], rows)
            return sums.gather(-1, start).gather(-1, back)

        size_of, others = size.gather(-1, back), (size - 1).clamp(min=1).gather(-1, back)
        # Items of other groups: the sign is sure, and any item of the group may hold the rank.
        ranked = scores.gather(-1, order[:, : ctx.k])
        apart = grad * (ranked[:, :, None] - scores[:, None, :]).sign()
        result = per_group(apart.sum(-1)) / size_of - apart.sum(1)
        if not is_unchecked(size) and not bool((size > 1).any()):
            return result, None, None
        # Items of the rank's own group.
        position = torch.arange(scores.shape[-1], device=scores.device)
        tilt = ((end - 1 - position) - (position - start)) / size
        same = start[:, : ctx.k, None] == start.gather(-1, back)[:, None, :]
        tied = grad * same * tilt[:, : ctx.k, None]
        result += (per_group(tied.sum(-1)) - tied.sum(1)) / others - tied.sum(1)
        return result, None, None
