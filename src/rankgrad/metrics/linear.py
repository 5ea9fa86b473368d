"""Metrics that are sums over items of gain × discount of the rank.

dcg, ndcg, precision, recall, rbp and arp derive from :class:`LinearMetric`. The other relaxed
metrics use :func:`soft_inside` and :func:`clamp_ranks`, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import divide, exponential_gains
from rankgrad._shapes import Float, ItemMask, ItemValues, Labels, ListValues, Mask
from rankgrad._validation import check_choice
from rankgrad.inputs import check_exponents
from rankgrad.lists import Lists
from rankgrad.metrics._base import BinaryMetric, Expectation, Gain, Metric, Ranked, SortRelaxation

__all__ = ["LinearBinaryMetric", "LinearGradedMetric", "LinearMetric", "clamp_ranks", "soft_inside"]


@dataclass(frozen=True, kw_only=True)
class LinearMetric(Metric):
    """``Σ_i w_i gain_i discount(rank_i) / norm``.

    A subclass defines ``gains``, ``discount`` and ``_norm``. As the metric is linear in the
    discounts, its mean over the orders of tied items needs only their mean discount.
    """

    def discount(self, ranks: Tensor) -> Tensor:
        """The discount of a rank, whole or relaxed.

        Args:
            ranks: from 1, of any shape.

        Returns:
            The discounts, of the same shape.

        Raises:
            TypeError: the class does not define its discount.
        """
        raise TypeError(f"{type(self).__name__} does not say its discount")

    def _beyond(self, length: Float[Tensor, "b 1"]) -> Float[Tensor, "b 1"]:
        """The discount of every rank past the cutoff, from the lists' numbers of ranked items."""
        return torch.zeros_like(length)

    def _unretrieved(self) -> float:
        """The discount of an item that was not retrieved."""
        return 0.0

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        """The divisor of the sum, from the weighted gains and the mask of items with a rank."""
        raise TypeError(f"{type(self).__name__} does not say its norm")

    def _exact(self, ranked: Ranked) -> ListValues:
        gains = self.gains(ranked.labels) * ranked.weights
        inside = self._within(ranked.retrieved)
        length = ranked.retrieved.sum(-1, keepdim=True).to(gains.dtype)
        discounts = torch.where(inside, self.discount(ranked.ranks), self._beyond(length))
        discounts = ranked.group_means(discounts)
        if ranked.retrieved is not ranked.mask and bool((ranked.mask & ~ranked.retrieved).any()):
            discounts = torch.where(ranked.retrieved, discounts, self._unretrieved())
        return divide((gains * discounts).sum(-1), self._norm(gains, ranked.retrieved))

    def _through_permutation(
        self, relaxation: SortRelaxation, lists: Lists, expect: Expectation
    ) -> ListValues:
        gains = lists.weighted(self.gains(lists.labels) * lists.mask)
        at_rank = self._gains_at_ranks(relaxation, lists, gains, expect)
        k = at_rank.shape[-1]
        length = lists.lengths[:, None].to(gains.dtype)
        beyond = self._beyond(length)
        inside = self._within(lists.mask)[:, :k]
        # The total is the sum of all gains times the discount past the cutoff, plus, for ranks
        # inside the cutoff, the gain times the difference of discounts.
        discount = self.discount(torch.arange(1, k + 1, device=gains.device).to(gains)) - beyond
        total = (at_rank * torch.where(inside, discount, 0.0)).sum(-1)
        return divide(total + beyond.squeeze(-1) * gains.sum(-1), self._norm(gains, lists.mask))

    def _gains_at_ranks(
        self, relaxation: SortRelaxation, lists: Lists, gains: ItemValues, expect: Expectation
    ) -> Float[Tensor, "b k"]:
        """The relaxed gain at each rank up to the cutoff."""
        if expect == "label":
            raise ValueError(f'expect="label" is for dcg and ndcg, not for {self.name}')
        k = self.cutoff(gains.shape[-1])
        return relaxation.sort(gains[:, None], lists.scores, lists.mask, k).squeeze(1)

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        gains = lists.weighted(self.gains(lists.labels) * lists.mask)
        inside = soft_inside(ranks, lists, self.k, beta)
        beyond = self._beyond(lists.lengths[:, None].to(gains.dtype))
        # Padding has rank 0 and gain 0; rank 1 in its place keeps every discount finite.
        discount = self.discount(torch.where(lists.mask, clamp_ranks(ranks, self.k), 1.0))
        total = (gains * (inside * discount + (1 - inside) * beyond)).sum(-1)
        return divide(total, self._norm(gains, lists.mask))

    def _within(self, mask: ItemMask) -> ItemMask:
        """Which positions count: up to the cutoff and the list's end."""
        position = torch.arange(mask.shape[-1], device=mask.device)
        return (position < self.cutoff(mask.shape[-1])) & (position < mask.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class LinearBinaryMetric(LinearMetric, BinaryMetric):
    """A linear metric of binary relevance; by default all ranks up to the cutoff count equally."""

    @override
    def discount(self, ranks: Tensor) -> Tensor:
        return torch.ones_like(ranks)


@dataclass(frozen=True, kw_only=True)
class LinearGradedMetric(LinearMetric):
    """A linear metric of graded relevance, discounted by ``1 / log2(1 + rank)``.

    Args:
        gain: ``"exponential"``, ``2^y - 1``, or ``"linear"``, y, as in trec_eval.
    """

    gain: Gain = "exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gain", self.gain, ("exponential", "linear"))

    @override
    def gains(self, labels: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return labels if self.gain == "linear" else exponential_gains(self.check_labels(labels))

    @override
    def check_labels(self, labels: Labels, mask: Mask | None = None) -> Labels:
        return labels if self.gain == "linear" else check_exponents(labels, mask)

    @override
    def discount(self, ranks: Tensor) -> Tensor:
        return 1 / torch.log2(1 + ranks)

    def _gains_at_ranks(
        self, relaxation: SortRelaxation, lists: Lists, gains: ItemValues, expect: Expectation
    ) -> Float[Tensor, "b k"]:
        if expect == "gain":
            return super()._gains_at_ranks(relaxation, lists, gains, expect)
        weights, k = lists.item_weights, self.cutoff(gains.shape[-1])
        values = [lists.labels] if weights is None else [lists.labels, weights]
        at_rank = relaxation.sort(torch.stack(values, 1), lists.scores, lists.mask, k)
        expected = self.gains(at_rank[:, 0])
        return expected if weights is None else expected * at_rank[:, 1]


def clamp_ranks(ranks: ItemValues, k: int | None) -> ItemValues:
    """The ranks at which discounts are taken: past the cutoff, the rank of the cutoff.

    Past the cutoff, only :func:`soft_inside` depends on the rank of an item. If the discount went
    on falling there, the item would have almost no gradient; if it went on rising, as that of ARP,
    the gradient would push the item down. The bound is ``k + 3/4``, which is not the mean rank of
    any group of tied items, so that its kink does not meet them.

    Args:
        ranks: relaxed, ``[b, n]``.
        k: the cutoff; None for none.

    Returns:
        ``[b, n]``.
    """
    return ranks if k is None else ranks.clamp(max=k + 0.75)


def soft_inside(ranks: ItemValues, lists: Lists, k: int | None, beta: float) -> ItemValues:
    """``1[rank <= k]``, relaxed; 1 for lists that end before the cutoff.

    With ``d = rank - k - 1/2`` it is ``sigmoid(-beta d)`` inside the cutoff, as in Qin et al. 2010.
    Past the cutoff it is ``(1 + d / 4)^(-2 beta) / 2``. There a sigmoid would have almost no
    gradient, and items can all be there: n tied items all have a rank of about n / 2. At d = 0
    both are 1/2 and have the derivative ``-beta / 4``; both tend to the indicator as beta grows.

    Args:
        ranks: relaxed, ``[b, n]``.
        lists: the lists of the same items.
        k: the cutoff; None for none, with 1 for all items.
        beta: the sharpness.

    Returns:
        ``[b, n]``, from 0 to 1.
    """
    if k is None:
        return torch.ones_like(ranks)
    short = (lists.lengths <= k)[:, None]
    d = ranks - (k + 0.5)
    past = 0.5 * (1 + d.clamp(min=0.0) / 4) ** (-2 * beta)
    inside = torch.where(d <= 0, torch.sigmoid(-beta * d), past)
    return torch.where(short, 1.0, inside)
