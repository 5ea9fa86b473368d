"""The base class of opa, kendall_tau and spearman, and the counts of pairs of the first two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankgrad._padded import has_pairs, tiles
from rankgrad._shapes import ItemValues, ListMask, ListValues
from rankgrad.lists import Lists
from rankgrad.metrics._base import Metric, Ranked, weighted_items


@dataclass(frozen=True, kw_only=True)
class PairMetric(Metric):
    """A metric of the order of items with unequal labels; it has no cutoff."""

    has_cutoff: ClassVar[bool] = False

    def relevant(self, lists: Lists | Ranked) -> ListMask:
        """Whether a list has two items of positive weight with unequal labels."""
        return has_pairs(lists.labels, weighted_items(lists))


def count_pairs(
    ranked: Ranked, first: ItemValues, second: ItemValues
) -> tuple[ListValues, ListValues, ListValues]:
    """Sums over each list of the weights of pairs, computed in tiles.

    Args:
        ranked: the lists.
        first: weights of items: that of the pair of items i and j is ``first_i second_j``.
        second: the same.

    Returns:
        ``[b]`` each: pairs with the higher label ranked above, minus pairs with it ranked below;
        pairs with unequal labels; and pairs with unequal scores.
    """
    agree, unequal, untied = (first.new_zeros(len(first)) for _ in range(3))
    second = second[:, None, :]
    for rows in tiles(first.numel(), first.shape[-1]):
        # 1 if item i is ranked above item j, -1 if below, 0 if they tie.
        above = (ranked.start[:, None, :] - ranked.start[:, rows, None]).sign().to(first.dtype)
        higher = (ranked.labels[:, rows, None] > ranked.labels[:, None, :]).to(first.dtype)
        weight = first[:, rows, None]
        agree += (second @ (higher * above).mT @ weight).flatten()
        unequal += (second @ higher.mT @ weight).flatten()
        untied += (second @ above.abs().mT @ weight).flatten() / 2
    return agree, unequal, untied
