"""Spearman's rank correlation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rankgrad._padded import descending, divide, hard_ranks, invert, tie_groups
from rankgrad._shapes import ItemMask, ItemValues, ListValues
from rankgrad.lists import Lists
from rankgrad.metrics._base import Ranked, metrics
from rankgrad.metrics._pair_counts import PairMetric


@metrics.register("spearman")
@dataclass(frozen=True, kw_only=True)
class Spearman(PairMetric):
    """The correlation of the ranks by score with the ranks by label (Spearman 1904).

    ``ρ = cov(r, q) / (σ_r σ_q)``, with ranks r by score and q by label; tied items have the mean of
    their ranks. Means and covariances are weighted by the item weights. It has no cutoff.

    Its relaxed form goes through ranks. There r are the relaxed ranks, and σ_r is that of ranks
    without ties, so that tied scores have a gradient. Through LapSum it costs O(n log n).

    Args:
        k: None; it has no cutoff.
        empty: the value of lists without two unequal labels, 0, 1 or ``"skip"``; see
            :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.

    >>> Spearman()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([-0.5000])
    """

    kernel: ClassVar[str | None] = "spearman"
    capturable: ClassVar[bool] = True

    def _exact(self, ranked: Ranked) -> ListValues:
        end = torch.minimum(ranked.end, ranked.mask.sum(-1, keepdim=True))  # without padding
        ranks = (ranked.start + end + 1).to(ranked.weights) / 2
        by_label = _mean_ranks(ranked.labels, ranked.mask)
        return _correlation(ranks, ranks, by_label, ranked.weights)

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        weights = lists.weighted(lists.mask.to(ranks.dtype))
        by_label = _mean_ranks(lists.labels, lists.mask)
        exact = hard_ranks(lists.scores, lists.mask)
        return _correlation(ranks, exact, by_label, weights)


def _mean_ranks(labels: ItemValues, mask: ItemMask) -> ItemValues:
    """Ranks by descending label; tied items have the mean of their ranks."""
    order = descending(labels, mask)
    sorted_labels = labels.detach().gather(-1, order)
    inside = mask.gather(-1, order)
    start, end = tie_groups(sorted_labels.masked_fill(~inside, float("-inf")))
    return ((start + end + 1).to(labels.dtype) / 2).gather(-1, invert(order))


def _correlation(
    ranks: ItemValues, exact: ItemValues, by_label: ItemValues, weights: ItemValues
) -> ListValues:
    """The correlation of ranks by score with ranks by label; σ_r is that of ``exact``.

    ``exact`` are ranks by score that are not relaxed.
    """
    variances = _covariance(exact, exact, weights) * _covariance(by_label, by_label, weights)
    return divide(_covariance(ranks, by_label, weights), variances.sqrt())


def _covariance(first: ItemValues, second: ItemValues, weights: ItemValues) -> ListValues:
    """The weighted covariance within each list."""
    total = weights.sum(-1, keepdim=True)
    first = first - divide((weights * first).sum(-1, keepdim=True), total)
    second = second - divide((weights * second).sum(-1, keepdim=True), total)
    return divide((weights * first * second).sum(-1), total.squeeze(-1))
