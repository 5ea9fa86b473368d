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

    At τ → 0 it is the exact sort. Where scores tie, ``|·|`` has no derivative. With the usual
    choice of 0, constant scores would have no gradient; here the gradient is the mean over all
    orders of the tied items, which is not 0.

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
        # Entries below e^-69 = 1e-30, or e^-690 = 1e-300 in float64, become 0, well before they
        # would be denormal numbers: arithmetic with denormals is slow.
        negligible = logits < (-69.0 if scores.dtype == torch.float32 else -690.0)
        logits = logits.masked_fill(negligible | ~mask[:, None, :], float("-inf"))
        real = torch.arange(k, device=scores.device) < mask.sum(-1, keepdim=True)
        rows = torch.where(real[:, :, None], logits, 0.0).softmax(-1)
        return rows * real[:, :, None]


class _Distances(ListFunction):
    """``|s_(r) - s_j|``, ``[b, k, n]``, with the mean gradient over all orders of ties.

    Rank r runs over the first k, item j over all n.

    Let rank r belong to a group of m tied items at the ranks a..b. In a random order of the group,
    its item j is below rank r with probability (b - r) / m and above it with (r - a) / m. So the
    mean derivative is ``c_r (mean_{l ≠ j} ds_l - ds_j)``, where l runs over the group and
    ``c_r = ((b - r) - (r - a)) / m``.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor, k: int) -> Tensor:
        ranked = scores.gather(-1, descending(scores, mask)[:, :k])
        return (ranked[:, :, None] - scores[:, None, :]).abs()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (scores, mask), (k,) = ctx.saved_tensors, ctx.options
        order = descending(scores, mask)
        rank_index = invert(order)
        inside = mask.gather(-1, order)
        start, end = tie_groups(scores.gather(-1, order).masked_fill(~inside, float("-inf")))
        size = (end - start).to(grad.dtype)
        grad = grad * mask[:, None, :] * inside[:, :k, None]

        def sum_over_ranks(values: Tensor) -> Tensor:
            """Values of ranks ``[b, k]``, summed over the tie group of each item: ``[b, n]``."""
            sums = torch.zeros_like(scores).scatter_add(-1, start[:, :k], values)
            return sums.gather(-1, start).gather(-1, rank_index)

        item_size = size.gather(-1, rank_index)
        others = (size - 1).clamp(min=1).gather(-1, rank_index)
        # Items j of other groups: the sign is known, and each item of the group may have rank r.
        ranked = scores.gather(-1, order[:, :k])
        signed = grad * (ranked[:, :, None] - scores[:, None, :]).sign()
        result = sum_over_ranks(signed.sum(-1)) / item_size - signed.sum(1)
        if not is_unchecked(size) and not bool((size > 1).any()):
            return result, None, None
        # Items j of the group of rank r.
        position = torch.arange(scores.shape[-1], device=scores.device)
        c = ((end - 1 - position) - (position - start)) / size
        same = start[:, :k, None] == start.gather(-1, rank_index)[:, None, :]
        tied = grad * same * c[:, :k, None]
        result += (sum_over_ranks(tied.sum(-1)) - tied.sum(1)) / others - tied.sum(1)
        return result, None, None
