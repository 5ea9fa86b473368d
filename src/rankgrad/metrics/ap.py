"""Average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rankgrad._padded import divide, sums_ahead
from rankgrad._shapes import ItemValues, ListValues
from rankgrad.lists import Lists
from rankgrad.metrics._base import BinaryMetric, Expectation, Ranked, SortRelaxation, metrics
from rankgrad.metrics.linear import clamp_ranks, soft_inside


@metrics.register("ap")
@dataclass(frozen=True, kw_only=True)
class AP(BinaryMetric):
    """``Σ_{r<=k} rel_r P@r / Σ_i rel_i`` (Thonet et al. eq. 2).

    With a cutoff it still divides by the number of all relevant items. Item weights multiply the
    terms of the relevant items and count in their number, but do not change the precision.

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.

    >>> AP()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.8333])
    """

    kernel: ClassVar[str | None] = "ap"

    def _exact(self, ranked: Ranked) -> ListValues:
        """The expectation over the orders of tied items (McSherry and Najork 2008).

        Let a tie group have m items, R of them relevant, and ``before`` relevant items above it.
        Its position j is relevant with probability R / m. If it is, the mean number of relevant
        items up to position j is ``before + 1 + (j - 1)(R - 1) / (m - 1)``.
        """
        all_relevance = self.gains(ranked.labels) * ranked.mask
        relevance = all_relevance * ranked.retrieved
        size = (ranked.end - ranked.start).to(relevance.dtype)  # m
        position = torch.arange(relevance.shape[-1], device=size.device) - ranked.start  # j - 1
        group_relevant = ranked.group_sums(relevance)  # R
        counts_above = torch.nn.functional.pad(relevance.cumsum(-1), (1, 0))  # [b, n + 1]
        before = counts_above.gather(-1, ranked.start)
        count = before + 1 + position * (group_relevant - 1) / (size - 1).clamp(min=1)
        # R / m, with each relevant item counted by its weight.
        weighted_probability = ranked.group_means(relevance * ranked.weights)
        k = self.cutoff(relevance.shape[-1])
        total = (weighted_probability * count / ranked.ranks)[:, :k].sum(-1)
        return divide(total, (all_relevance * ranked.weights).sum(-1))

    def _through_permutation(
        self, relaxation: SortRelaxation, lists: Lists, expect: Expectation
    ) -> ListValues:
        relevance = self.gains(lists.labels) * lists.mask
        # [b, c, k]: channel 0 is the relevance, the last that times the item weights, if any.
        at_rank = self._weighted_at_ranks(relaxation, lists, relevance, expect)
        ranks = torch.arange(1, at_rank.shape[-1] + 1, device=relevance.device)
        precision = at_rank[:, 0].cumsum(-1) / ranks
        return divide((at_rank[:, -1] * precision).sum(-1), lists.weighted(relevance).sum(-1))

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        """``Σ_i rel_i (1 + Σ_{j≠i} rel_j 1[rank_j < rank_i]) / rank_i``, over ``Σ_i rel_i``.

        The indicator is relaxed to a sigmoid (Qin et al. 2010).
        """
        relevance = self.gains(lists.labels) * lists.mask
        weighted = lists.weighted(relevance) * soft_inside(ranks, lists, self.k, beta)
        # sums_ahead counts an item as half ahead of itself.
        count = 1 + sums_ahead(relevance, ranks, beta) - 0.5 * relevance
        ranks = torch.where(lists.mask, clamp_ranks(ranks, self.k), 1.0)
        return divide((weighted * count / ranks).sum(-1), lists.weighted(relevance).sum(-1))
