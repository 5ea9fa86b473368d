"""Kendall's rank correlation."""

from __future__ import annotations

from dataclasses import dataclass

from rankgrad._padded import divide
from rankgrad._shapes import ListValues
from rankgrad.metrics._base import Ranked, metrics
from rankgrad.metrics._pair_counts import PairMetric, count_pairs


@metrics.register("kendall_tau")
@dataclass(frozen=True, kw_only=True)
class KendallTau(PairMetric):
    """Tau-b of scores and labels: ``(C - D) / sqrt(untied in scores × untied in labels)``.

    C and D count concordant and discordant pairs; the divisor counts pairs that are not tied. Tau-b
    has its own rule for tied scores; ``ties="stable"`` first breaks them in input order. The weight
    of a pair is the product of its item weights.

    Args:
        k: None; it has no cutoff.
        empty: the value of lists without two unequal labels, 0, 1 or ``"skip"``; see
            :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.

    >>> KendallTau()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([-0.3333])
    """

    def _exact(self, ranked: Ranked) -> ListValues:
        agree, unequal, untied = count_pairs(ranked, ranked.weights, ranked.weights)
        return divide(agree, (unequal * untied).sqrt())
