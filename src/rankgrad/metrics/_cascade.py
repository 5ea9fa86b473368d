"""The base classes of err, rr and hits: a user reads down the list until an item satisfies.

The cascade model of Craswell et al. 2008: ``Σ_r discount(r) stop_r Π_{l<r} (1 - stop_l)``, where
``stop_r`` is the probability that the item at rank r satisfies the user. The metrics themselves are
in ``err.py``, ``rr.py`` and ``hits.py``. With item weights, each term of the sum is multiplied by
the weight of the item at rank r.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankgrad._padded import divide, sums_ahead
from rankgrad._shapes import ItemValues, ListValues
from rankgrad.lists import Lists
from rankgrad.metrics._base import BinaryMetric, Expectation, Metric, Ranked, SortRelaxation
from rankgrad.metrics.linear import clamp_ranks, soft_inside


@dataclass(frozen=True, kw_only=True)
class CascadeMetric(Metric):
    """A cascade of graded relevance, where items satisfy with a probability.

    A subclass may override ``discount`` and ``stops`` (which are the gains), and ``misses`` where
    ``1 - stops`` loses precision.
    """

    def discount(self, ranks: Tensor) -> Tensor:
        """The discount of stopping at a rank.

        Args:
            ranks: from 1, of any shape.

        Returns:
            The discounts, of the same shape.
        """
        return 1 / ranks

    def stops(self, labels: ItemValues) -> ItemValues:
        """The probability that an item satisfies, by its label.

        Args:
            labels: ``[b, n]``.

        Returns:
            ``[b, n]``.
        """
        return self.gains(labels)

    def misses(self, labels: ItemValues) -> ItemValues:
        """The probability that an item does not satisfy, by its label.

        Only :meth:`_through_ranks` calls this: it takes the logarithm, where the rounding of a
        probability near 0 matters. In the products of the other methods it does not.

        Args:
            labels: ``[b, n]``.

        Returns:
            ``[b, n]``.
        """
        return 1 - self.stops(labels)

    def _exact(self, ranked: Ranked) -> ListValues:
        k = self.cutoff(ranked.mask.shape[-1])
        return (self._stop_weights(ranked) * self.discount(ranked.ranks))[:, :k].sum(-1)

    def _stop_weights(self, ranked: Ranked) -> ItemValues:
        """The probability of stopping at each position times the weight w of the item there.

        It is the mean over the orders of tied items. Within a tie group, let E_j be the mean of
        ``Π (1 - stop)`` over its subsets of j items, and G_j, for j from 1, the mean of ``w stop``
        of the j-th item times that product over the j - 1 items before it.
        When an m-th item with (miss, hit) = (1 - stop, w stop) joins the group, they become

            E_j ← ((m - j) E_j + j miss E_{j-1}) / m
            G_j ← ((m - j) G_j + (j - 1) miss G_{j-1} + hit E_{j-1}) / m
        """
        stops = self.stops(ranked.labels) * ranked.retrieved
        misses, hits = 1 - stops, stops * ranked.weights
        size = ranked.end - ranked.start
        j = torch.arange(1, stops.shape[-1] + 1, device=size.device) - ranked.start
        e, g = torch.ones_like(stops), torch.zeros_like(stops)
        # Padding and items that were not retrieved are tie groups, too; no user stops in them.
        retrieved_size = size.where(ranked.retrieved, 0)
        for m in range(1, int(retrieved_size.max()) + 1 if size.numel() else 1):
            joining = (ranked.start + m - 1).clamp(max=stops.shape[-1] - 1)
            miss, hit = misses.gather(-1, joining), hits.gather(-1, joining)
            e_before = torch.where(j == 1, 1.0, e.roll(1, -1))
            g_before = torch.where(j == 1, 0.0, g.roll(1, -1))
            grows = (j <= m) & (m <= size)
            g_grown = ((m - j) * g + (j - 1) * miss * g_before + hit * e_before) / m
            g = torch.where(grows, g_grown, g)
            e = torch.where(grows, ((m - j) * e + j * miss * e_before) / m, e)
        # The probability of passing all groups before: the products of their last E.
        group_misses = torch.where(j == size, e, 1.0)
        passed = torch.nn.functional.pad(group_misses.cumprod(-1), (1, 0), value=1.0)
        return g * passed.gather(-1, ranked.start)

    def _through_permutation(
        self, relaxation: SortRelaxation, lists: Lists, expect: Expectation
    ) -> ListValues:
        """The cascade of the stops that the relaxation expects at each rank up to the cutoff.

        Args:
            relaxation: sorts the stops.
            lists: the lists.
            expect: only ``"gain"``; ``"label"`` is an error.
        """
        stops = self.stops(lists.labels) * lists.mask
        # ``at_rank`` is [b, channels, ranks] and ends at the cutoff. Channel 0 has the stops; the
        # last has them times the item weights, if there are weights.
        at_rank = self._weighted_at_ranks(relaxation, lists, stops, expect)
        misses = 1 - at_rank[:, 0].clamp(max=1.0)
        passed = torch.cat([torch.ones_like(misses[:, :1]), misses[:, :-1]], -1).cumprod(-1)
        ranks = torch.arange(1, at_rank.shape[-1] + 1, device=stops.device)
        return (at_rank[:, -1] * passed * self.discount(ranks.to(stops))).sum(-1)

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        """``Σ_i 1[rank_i <= k] w_i discount(rank_i) stop_i exp(Σ_{j≠i} 1[rank_j < rank_i] log_j)``.

        Here ``log_j = log(1 - stop_j)``, w are the item weights, and both indicators are relaxed
        with sharpness ``beta``.
        """
        stops = self.stops(lists.labels) * lists.mask
        # log(0), for an item that surely satisfies, becomes a finite number below all others.
        misses = self.misses(lists.labels).clamp(min=torch.finfo(stops.dtype).tiny)
        # log(1 - stop): log1p is precise for small stops, the log of ``misses`` for those near 1.
        logs = torch.where(stops < 0.5, torch.log1p(-stops.clamp(max=0.5)), misses.log())
        # sums_ahead counts one half of an item in its own sum; the formula leaves it out.
        log_passed = sums_ahead(logs, ranks, beta) - 0.5 * logs
        stopped = lists.weighted(stops) * torch.exp(log_passed)
        discount = self.discount(torch.where(lists.mask, clamp_ranks(ranks, self.k), 1.0))
        return (stopped * discount * soft_inside(ranks, lists, self.k, beta)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class BinaryCascadeMetric(CascadeMetric, BinaryMetric):
    """A cascade of binary relevance: the user surely stops at the first relevant item."""

    def _stop_weights(self, ranked: Ranked) -> ItemValues:
        """As in the base class, in closed form.

        In a tie group of m items, R of them relevant, a user who reads the j-th item, having met
        none relevant before, goes on with probability ``(m - j + 1 - R) / (m - j + 1)``. These
        probabilities multiply. A user who stops does so at a relevant item, any of them equally
        likely: the weight is the mean weight of the group's relevant items.
        """
        relevance = self.gains(ranked.labels) * ranked.retrieved
        n_relevant = ranked.group_sums(relevance)  # R
        positions = torch.arange(relevance.shape[-1], device=relevance.device)
        remaining = (ranked.end - positions).to(relevance.dtype)  # m - j + 1
        misses = ((remaining - n_relevant) / remaining).clamp(min=0.0)
        passed = torch.cat([torch.ones_like(misses[:, :1]), misses[:, :-1]], -1).cumprod(-1)
        mean_weights = divide(ranked.group_sums(relevance * ranked.weights), n_relevant)
        return passed * (1 - misses) * mean_weights

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        """The discount of the first relevant rank: the minimum becomes a softmax of ``-beta r``.

        Weights and the cutoff are as in the base class.
        """
        relevant = (self.gains(lists.labels) > 0) & lists.mask
        logits = (-beta * ranks).masked_fill(~relevant, float("-inf"))
        # A softmax of -inf alone would be NaN.
        logits = torch.where(relevant.any(-1, keepdim=True), logits, 0.0)
        first_weights = lists.weighted(logits.softmax(-1) * relevant)
        discount = self.discount(torch.where(lists.mask, clamp_ranks(ranks, self.k), 1.0))
        return (first_weights * discount * soft_inside(ranks, lists, self.k, beta)).sum(-1)
