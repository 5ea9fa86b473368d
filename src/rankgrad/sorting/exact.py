"""The exact sort as a relaxation without gradient, and with the gradient of another relaxation.

The first is what relaxations tend to at zero temperature; tests compare them with it. The second is
the straight-through estimator (Bengio et al. 2013), an option of PiRank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import descending, invert, tie_groups
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, RankValues
from rankgrad.sorting._base import Form, Relaxation, as_base, relaxations
from rankgrad.sorting.neuralsort import NeuralSort


@relaxations.register("exact")
@dataclass(frozen=True)
class Exact(Relaxation):
    """The permutation matrix of the exact sort; tied items share their ranks equally. No gradient.

    >>> Exact()(torch.tensor([0.2, 0.9, 0.9]), k=2)
    tensor([[0.0000, 0.5000, 0.5000],
            [0.0000, 0.5000, 0.5000]])
    """

    limit: ClassVar[dict[str, Any]] = {}  # none needed: its values are those of the exact sort

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        order, inside, start, end = _sorted(scores, mask)
        group = torch.where(inside, start, -1)  # the tie group of each rank, by its first rank
        item_group = group.gather(-1, invert(order))
        same = group[:, :k, None] == item_group[:, None, :]
        real = inside[:, :k, None] & mask[:, None, :]
        return (same & real).to(scores.dtype) / (end - start)[:, :k, None]

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        order, inside, start, end = _sorted(scores, mask)
        # The mean of the 1-based ranks start + 1 to end.
        ranks = torch.where(inside, (start + end + 1) / 2, 0.0)
        return ranks.gather(-1, invert(order)).to(scores.dtype)

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        order, inside, start, end = (x[:, None, :].expand_as(values) for x in _sorted(scores, mask))
        sorted_values = torch.where(inside, values.gather(-1, order), 0.0)
        sums = torch.zeros_like(sorted_values).scatter_add(-1, start, sorted_values)
        return (sums.gather(-1, start) / (end - start) * inside)[:, :, :k]


@relaxations.register("straight_through")
@dataclass(frozen=True)
class StraightThrough(Relaxation):
    """The exact sort in the forward pass, the gradient of a relaxation in the backward pass.

    Args:
        base: the relaxation that gives the gradient.

    >>> StraightThrough(NeuralSort())(torch.tensor([0.2, 0.9, 0.5]), k=1)
    tensor([[0., 1., 0.]])
    """

    limit: ClassVar[dict[str, Any]] = {}  # none needed: its values are those of the exact sort

    base: Relaxation = NeuralSort()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base))

    @property
    @override
    def forms(self) -> tuple[Form, ...]:
        return self.base.forms

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        soft = self.base._permutation(scores, mask, k)
        return Exact()._permutation(scores, mask, k) + (soft - soft.detach())

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        soft = self.base._ranks(scores, mask)
        return Exact()._ranks(scores, mask) + (soft - soft.detach())

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        soft = self.base._sort(values, scores, mask, k)
        return Exact()._sort(values, scores, mask, k) + (soft - soft.detach())


def _sorted(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The lists in descending order of score; all ``[b, n]``, one entry per rank.

    Returns:
        The item at each rank; whether it is real, as padding comes last; and where the tie group of
        the rank starts, from 0, and ends, exclusive.
    """
    order = descending(scores, mask)
    inside = mask.gather(-1, order)
    ranked = scores.detach().gather(-1, order).masked_fill(~inside, float("-inf"))
    return order, inside, *tie_groups(ranked)
