"""PiRank's divide and conquer: a relaxed, truncated multi-way merge sort (Swezey et al. §3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rankgrad._padded import descending, invert
from rankgrad._shapes import Channels, Float, Int, ItemMask, ItemValues, RankValues
from rankgrad._validation import check_temperature, check_whole
from rankgrad.lists import is_unchecked
from rankgrad.sorting._base import Relaxation, as_base, relaxations
from rankgrad.sorting.neuralsort import NeuralSort

# Subtracted from roots before they are rounded up: 3125^(1/5) is 5, computed as 5.000000000000001.
_ROUNDING = 1e-9


@relaxations.register("tree")
@dataclass(frozen=True)
class Tree(Relaxation):
    """Sort small blocks, keep the top of each, merge, repeat (Swezey et al. eqs. 13-17).

    At every node the base relaxation sorts the scores that its children keep; the product of the
    relaxed permutations from the leaves to the root is the result. Depth 1 is the base itself. At
    temperature → 0 the top k are exact. The tree of a list depends on its own length alone, and its
    items are assigned to leaves in the order of their scores, so the result depends neither on
    padding nor on the order of the input.

    Args:
        base: the relaxation that sorts at each node.
        depth: the number of levels, each merging about ``n^(1/depth)`` children; 2 if neither depth
            nor branching is given.
        branching: the number of children per level from the leaves up, instead of ``depth``; the
            last level merges all nodes that remain.
        keep: how many items each node of a level keeps, at least k; by default k.
        temperatures: of the base at each level, from the leaves up, in ascending order.

    >>> scores = torch.tensor([0.2, 0.5, 0.3, 0.4, 0.1, 0.7])
    >>> Tree(NeuralSort(0.01), branching=[3, 2])(scores, k=2).round(decimals=3)
    tensor([[0., 0., 0., 0., 0., 1.],
            [0., 1., 0., 0., 0., 0.]])
    """

    limit: ClassVar[dict[str, Any]] = {"base": NeuralSort(temperature=1e-5), "depth": 2}

    base: Relaxation = NeuralSort()
    depth: int | None = None
    branching: Sequence[int] | None = None
    keep: Sequence[int] | None = None
    temperatures: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base))
        self.base._check_form("permutation")
        if self.depth is not None and self.branching is not None:
            raise ValueError("give either depth or branching, not both")
        if self.depth is not None:
            object.__setattr__(self, "depth", check_whole("depth", self.depth))
        for name in ("branching", "keep", "temperatures"):
            self._check_levels(name)
        if self.temperatures is not None:
            if not hasattr(self.base, "temperature"):
                raise ValueError(f"{self.base} has no temperature to set per level")
            if list(self.temperatures) != sorted(self.temperatures):
                raise ValueError(f"temperatures must not fall, found {list(self.temperatures)}")

    def _check_levels(self, name: str) -> None:
        """Check that an option has one positive number per level, whole unless a temperature."""
        values = getattr(self, name)
        if values is None:
            return
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{name} must be a list of numbers, one per level; found {values!r}")
        check = check_temperature if name == "temperatures" else check_whole
        for value in values:
            check(name, value)
        object.__setattr__(self, name, tuple(values))
        if name != "branching" and len(values) != self.levels:
            raise ValueError(f"{name} must have one value per level, {self.levels}; found {values}")

    @property
    def levels(self) -> int:
        """The number of levels."""
        return len(self.branching) if self.branching is not None else self.depth or 2

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        if len(scores) == 0:
            return scores.new_zeros(0, k, scores.shape[-1])
        widths, leaf = self._leaves(scores, mask)
        merges = self._merge(widths, leaf, scores, mask, k)
        product = merges[0]  # [nodes, kept, leaves below the node]
        for width, merge in zip(widths[1:], merges[1:], strict=True):
            # [n, b, m, x]: node, child, item that the child keeps, leaf below the child
            children = product.reshape(-1, width, *product.shape[1:])
            # [n, l, b, m]: l is an item that the node keeps
            rows = merge.reshape(len(merge), merge.shape[1], width, -1)
            product = torch.einsum("nlbm,nbmx->nlbx", rows, children).flatten(2)
        index = leaf[:, None, :].expand(len(scores), product.shape[1], -1)
        return _pad_rows(product.gather(-1, index) * mask[:, None, :], k)

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        b, channels, _ = values.shape
        if b == 0:
            return values.new_zeros(0, channels, k)
        widths, leaf = self._leaves(scores, mask)
        merges = self._merge(widths, leaf, scores, mask, k)
        index = leaf[:, None, :].expand_as(values)
        leaves = values.new_zeros(b, channels, math.prod(widths))
        leaves = leaves.scatter_add(-1, index, values * mask[:, None, :])
        top_values = leaves.reshape(b, channels, -1, 1)
        for width, merge in zip(widths, merges, strict=True):
            # [b, c, t, m]: list, channel, node, item of the node's children
            nodes = top_values.reshape(b, channels, -1, width * top_values.shape[-1])
            rows = merge.reshape(b, -1, *merge.shape[1:])  # [b, t, l, m]: l is an item it keeps
            top_values = torch.einsum("btlm,bctm->bctl", rows, nodes)
        return _pad_rows(top_values.squeeze(2).mT, k).mT

    def _leaves(self, scores: Tensor, mask: Tensor) -> tuple[list[int], Int[Tensor, "b n"]]:
        """The widths: children of a node per level, leaves first; and each item's leaf (eq. 13).

        A width is the largest branching of any list of the batch, so that all trees fit in.
        """
        length = mask.sum(-1, keepdim=True)
        factors = self._factors(length)
        if is_unchecked(scores):
            widths = self._largest_widths(mask.shape[-1])
        else:
            widths = [max(1, int(factor.max())) if len(factor) else 1 for factor in factors]
        position = invert(descending(scores, mask))
        leaf, stride = torch.zeros_like(position), 1
        for factor, width in zip(factors, widths, strict=True):
            leaf = leaf + position.remainder(factor) * stride
            position = position.div(factor, rounding_mode="floor")
            stride *= width
        return widths, torch.where(mask, leaf, 0)

    def _factors(self, length: Int[Tensor, "b 1"]) -> list[Int[Tensor, "b 1"]]:
        """The branching of each list per level: as given, or about ``n^(1/depth)``."""
        factors, rest = [], length.clamp(min=1)
        for level in range(self.levels - 1):
            if self.branching is not None:
                factor = torch.full_like(rest, int(self.branching[level]))
            else:
                root = length.clamp(min=1).double() ** (1.0 / self.levels)
                factor = (root - _ROUNDING).ceil().long()
            factor = torch.minimum(factor, rest)
            factors.append(factor)
            rest = -(-rest // factor)
        return [*factors, rest]

    def _largest_widths(self, n: int) -> list[int]:
        """The widths in which the trees of lists of any length up to n fit."""
        widths = [1] * self.levels
        for length in range(1, n + 1):
            rest = length
            for level in range(self.levels - 1):
                if self.branching is not None:
                    factor = int(self.branching[level])
                else:
                    factor = math.ceil(length ** (1.0 / self.levels) - _ROUNDING)
                factor = min(factor, rest)
                widths[level] = max(widths[level], factor)
                rest = -(-rest // factor)
            widths[-1] = max(widths[-1], rest)
        return widths

    def _merge(
        self, widths: list[int], leaf: Tensor, scores: Tensor, mask: Tensor, k: int
    ) -> list[Float[Tensor, "nodes l m"]]:
        """The relaxed permutations of the nodes, level by level (eqs. 14-15).

        On each level they are ``[nodes of all lists, items kept, items of the children]``.
        """
        leaves = scores.new_zeros(len(scores), math.prod(widths))
        top_scores = leaves.scatter_add(-1, leaf, scores * mask)[:, :, None]
        real = leaves.scatter_add(-1, leaf, mask.to(leaves.dtype))[:, :, None] > 0
        merges = []
        for level, width in enumerate(widths):
            nodes = top_scores.reshape(-1, width * top_scores.shape[-1])
            inside = real.reshape(nodes.shape)
            last = level == len(widths) - 1
            n_rows = k if last or self.keep is None else max(k, int(self.keep[level]))
            n_rows = min(n_rows, nodes.shape[-1])
            base: Any = self.base
            if self.temperatures is not None:
                base = replace(base, temperature=self.temperatures[level])
            merge = base._permutation(nodes, inside, n_rows)
            merges.append(merge)
            top_scores = (merge @ nodes[:, :, None]).squeeze(-1)
            real = torch.arange(n_rows, device=scores.device) < inside.sum(-1, keepdim=True)
        return merges


def _pad_rows(rows: Float[Tensor, "b m n"], k: int) -> Float[Tensor, "b k n"]:
    """Append rows of zeros if there are fewer than k."""
    missing = k - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
