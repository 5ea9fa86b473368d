"""Normalized discounted cumulative gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankgrad._shapes import ItemMask, ItemValues, ListValues
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearGradedMetric


@metrics.register("ndcg")
@dataclass(frozen=True, kw_only=True)
class NDCG(LinearGradedMetric):
    """``DCG@k`` over the largest possible (Pobrotyn and Białobrzeski eq. 2, Jagerman et al. eq. 5).

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        gain: ``"exponential"``, ``2^y - 1``, or ``"linear"``, y.

    >>> NDCG(2)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.2754])
    """

    kernel: ClassVar[str | None] = "ndcg"

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        return self.ideal(gains)

    def ideal(self, gains: ItemValues) -> ListValues:
        """The largest DCG@k: gains in descending order.

        Args:
            gains: ``[b, n]``, 0 on padding.

        Returns:
            ``[b]``.
        """
        k = self.cutoff(gains.shape[-1])
        best = gains.sort(dim=-1, descending=True).values[:, :k]
        ranks = best.new_ones(k).cumsum(0)
        return (best * self.discount(ranks)).sum(-1)
