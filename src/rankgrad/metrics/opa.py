"""Ordered pair accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from rankgrad._padded import divide
from rankgrad._shapes import ListMask, ListValues
from rankgrad.lists import Lists
from rankgrad.metrics._base import Ranked, metrics, weighted_items
from rankgrad.metrics._pair_counts import PairMetric, count_pairs


@metrics.register("opa")
@dataclass(frozen=True, kw_only=True)
class OPA(PairMetric):
    """The proportion of the pairs ``y_i > y_j`` that have ``s_i > s_j`` (Swezey et al. §4.1).

    Tied scores count half. The weight of a pair is that of its item with the higher label.

    Args:
        k: None; it has no cutoff.
        empty: the value of lists without two unequal labels, 0, 1 or ``"skip"``; see
            :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.

    >>> OPA()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.3333])
    """

    def relevant(self, lists: Lists | Ranked) -> ListMask:
        """Whether a list has a pair whose item with the higher label has a positive weight."""
        lowest = lists.labels.masked_fill(~lists.mask, float("inf")).amin(-1, keepdim=True)
        return ((lists.labels > lowest) & weighted_items(lists)).any(-1)

    def _exact(self, ranked: Ranked) -> ListValues:
        agree, unequal, _ = count_pairs(ranked, ranked.weights, ranked.mask.to(ranked.weights))
        return (1 + divide(agree, unequal)) / 2
