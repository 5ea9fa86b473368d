"""Lambda losses: RankNet's pairs, weighted by how much a swap of the two items changes a metric.

:class:`LambdaRank` (Burges 2010) weights them so; :class:`LambdaLoss` (Wang et al. 2018) by a bound
of the metric. Equation numbers are those of Jagerman et al. 2022, *On Optimizing Top-K Metrics for
Neural Ranking Models*.

The base class :class:`rankgrad.losses.pairwise.PairwiseLoss` sums ``weight_ij φ(s_i - s_j)`` over
pairs (i, j). It does so by tiles: a slice ``rows`` of r items i, with all n items j. This module
gives it φ (``term``, and its second derivative, ``curvature``) and the weights (``pair_weights``),
as a function from rows to ``[b, r, n]`` (``PairWeights``). From the base class come the current
ranks (``_ranks``), which items are among the first k (``_in_top``), and ``average_duplicates``,
which averages the gradient over items of equal score, label and weight. Two methods name kernels
that compute the same: ``kernel`` that of the loss, and ``newton_kernel`` that of the gradient and
Hessian for gradient boosting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import divide, hard_ranks, tiles
from rankgrad._shapes import Float, ItemValues, Labels, ListValues, Mask
from rankgrad._validation import as_temperature, check_choice, check_positive
from rankgrad.kernels import KernelCall
from rankgrad.kernels.arguments import PairOptions
from rankgrad.lists import Lists
from rankgrad.losses._base import Reduction, losses
from rankgrad.losses.pairwise import (
    GradientMap,
    LogisticPairs,
    PairWeights,
    preferred,
    restrict_to_top,
)
from rankgrad.metrics import NDCG
from rankgrad.metrics._base import Gain
from rankgrad.sorting import Schedule

__all__ = ["LambdaLoss", "LambdaPairs", "LambdaRank"]

_LambdaMetric = Literal["ndcg", "precision", "recall", "ap", "rr", "arp"]
_Scheme = Literal["ndcg_loss1", "ndcg_loss2", "ndcg_loss2++"]
_Truncation = Literal["corrected", "heuristic"]


@dataclass(frozen=True)
class _CurrentRanking:
    """The ranks of the items by the current scores, and their gains; never differentiated.

    Attributes:
        ranks: ``[b, n]``, by descending score; ``_ranks`` of the loss says how ties are ranked.
        gains: ``[b, n]``, by label.
        norm: ``[b]``, the divisor of the metric, such as the ideal DCG.
    """

    ranks: ItemValues
    gains: ItemValues
    norm: ListValues

    def gain_differences(self, rows: slice) -> Float[Tensor, "b r n"]:
        """``|G_i - G_j| / norm`` for the pairs of a tile."""
        first, second = _tile(self.gains, rows)
        return (first - second).abs() / self.norm[:, None, None]


def _tile(values: ItemValues, rows: slice) -> tuple[Tensor, Tensor]:
    """The values ``[b, n]`` of the items of a tile's pairs: first items ``rows``, second all.

    Returns:
        The values of the first items, ``[b, r, 1]``, and of the second items, ``[b, 1, n]``.
    """
    return values[:, rows, None], values[:, None, :]


class LambdaPairs(LogisticPairs):
    """Base class: logistic pairs with weights (lambdas) from the current ranking and a metric.

    A subclass defines ``lambdas``.
    """

    def __init__(
        self,
        k: int | None,
        metric: _LambdaMetric,
        sigma: float | Schedule,
        gain: Gain,
        threshold: float,
        reduction: Reduction,
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("metric", metric, get_args(_LambdaMetric))
        check_choice("gain", gain, ("exponential", "linear"))
        check_positive("threshold", threshold)
        self.metric = metric
        self.sigma = as_temperature("sigma", sigma)
        self.gain = gain
        self.threshold = threshold

    @override
    def check_labels(self, labels: Labels, mask: Mask | None) -> Labels:
        return NDCG(gain=self.gain).check_labels(labels, mask) if self.metric == "ndcg" else labels

    @override
    def pair_weights(self, lists: Lists) -> PairWeights:
        with torch.no_grad():
            weigh = self.lambdas(self._current_ranking(lists))

        def weigh_preferred(rows: slice) -> Tensor:
            return torch.where(preferred(lists, rows) > 0, weigh(rows), 0.0)

        return weigh_preferred

    def _pair_options(self, kind: str, truncation: str = "", mu: float = 0.0) -> PairOptions:
        """The options of kernels for a loss of this kind, with the metric's options."""
        return PairOptions(
            kind,
            self.k or 0,
            self.now(self.sigma),
            gain=self.gain,
            truncation=truncation,
            mu=mu,
            metric=self.metric,
            threshold=self.threshold,
        )

    def lambdas(self, ranking: _CurrentRanking) -> PairWeights:
        """A function from a tile's rows to its pair weights, ``[b, r, n]``.

        Weights of pairs (i, j) without ``y_i > y_j`` are not used.

        Args:
            ranking: the current ranks, with the gains and the divisor of the metric.

        Returns:
            The function.

        Raises:
            TypeError: the class does not define it.
        """
        raise TypeError(f"{type(self).__name__} must implement lambdas")

    def _current_ranking(self, lists: Lists) -> _CurrentRanking:
        """The current ranks, with the gains and the divisor of the metric."""
        ranks = self._ranks(lists)
        if self.metric == "ndcg":
            ndcg = NDCG(self.k, gain=self.gain)
            gains = ndcg.gains(lists.labels) * lists.mask
            norm = ndcg.ideal(gains)
        elif self.metric == "arp":
            gains = lists.labels
            norm = gains.sum(-1)
        else:
            gains = ((lists.labels >= self.threshold) & lists.mask).to(ranks.dtype)
            norm = gains.sum(-1)
            if self.metric == "precision":
                norm = torch.full_like(norm, float(self.k or ranks.shape[-1]))
        return _CurrentRanking(ranks, gains, torch.where(norm > 0, norm, 1.0))

    def _swap_changes(self, ranking: _CurrentRanking) -> PairWeights:
        """``|Δmetric_ij|``: by how much the metric changes if i and j swap places."""
        if self.metric == "ap":
            return _ap_swaps(ranking, self.k)
        if self.metric == "rr":
            return _rr_swaps(ranking, self.k)
        discount = self._discount(ranking.ranks)

        def weigh(rows: slice) -> Tensor:
            first, second = _tile(discount, rows)
            return ranking.gain_differences(rows) * (first - second).abs()

        return weigh

    def _discount(self, ranks: ItemValues) -> ItemValues:
        """The discount of a rank under a metric that is a sum of gain × discount."""
        k = float("inf") if self.k is None else float(self.k)
        if self.metric == "arp":
            return ranks.clamp(max=k + 1)
        discount = 1 / torch.log2(1 + ranks) if self.metric == "ndcg" else torch.ones_like(ranks)
        return torch.where(ranks <= k, discount, 0.0)


@losses.register("lambdarank")
class LambdaRank(LambdaPairs):
    """``Σ_{y_i > y_j} |Δmetric@k_ij| log(1 + exp(-σ (s_i - s_j)))`` (Jagerman et al. eqs. 11-12).

    ``Δ_ij`` is the change of the metric when i and j swap places; for NDCG
    ``|G_i - G_j| |1[π_i <= k] / D(π_i) - 1[π_j <= k] / D(π_j)|`` over the ideal DCG@k.

    Args:
        k: the metric's cutoff. A pair counts when at least one of its items is inside.
        metric: ``"ndcg"``, ``"precision"``, ``"recall"``, ``"ap"``, ``"rr"`` or ``"arp"``. Without
            k no swap changes precision or recall, so the loss is 0.
        sigma: σ, or a schedule.
        gain: of NDCG, ``"exponential"`` or ``"linear"``.
        threshold: the label from which an item is relevant, for binary metrics.
        norm: as LightGBM (``lambdarank_norm``) and XGBoost (``lambdarank_normalization``) have it.
            Pairs without an item in the first k are left out; for NDCG, the weights of all others
            have discounts that are not cut at k. Unless all scores are equal, pair weights are
            divided by ``0.01 + |s_i - s_j|``. The pair weights of a list are multiplied by
            ``log2(1 + Λ) / Λ``, with Λ twice the sum of the absolute derivatives of its pairs. Tied
            scores are ranked in input order, and gradients are not averaged over duplicates (items
            of equal score, label and weight). With k = 30 this is LightGBM's default objective,
            with k = 32 XGBoost's.
        reduction: over lists.

    >>> LambdaRank(1)(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))
    tensor(1.3133)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        metric: _LambdaMetric = "ndcg",
        sigma: float | Schedule = 1.0,
        gain: Gain = "exponential",
        threshold: float = 1.0,
        norm: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k, metric, sigma, gain, threshold, reduction)
        check_choice("norm", norm, (True, False))
        self.norm = norm

    @override
    def lambdas(self, ranking: _CurrentRanking) -> PairWeights:
        return self._swap_changes(ranking)

    @override
    def pair_weights(self, lists: Lists) -> PairWeights:
        weigh = super().pair_weights(lists)
        return self._normalized(lists, weigh) if self.norm else weigh

    def _normalized(self, lists: Lists, weigh: PairWeights) -> PairWeights:
        """The weights with the option ``norm`` (see the class); its factors are constants."""
        scores, mask = lists.scores.detach(), lists.mask
        in_top = self._in_top(lists)
        highest = scores.masked_fill(~mask, float("-inf")).amax(-1)
        scores_differ = highest > scores.masked_fill(~mask, float("inf")).amin(-1)

        def weigh_by_difference(rows: slice) -> Tensor:
            differences = (scores[:, rows, None] - scores[:, None, :]).abs()
            divisors = torch.where(scores_differ[:, None, None], 0.01 + differences, 1.0)
            return restrict_to_top(weigh(rows) / divisors, in_top, rows)

        total = torch.zeros_like(highest)  # Λ
        with torch.no_grad():
            for rows in tiles(scores.numel(), scores.shape[-1]):
                derivative = self.term(scores[:, rows, None] - scores[:, None, :])[1]
                total += 2 * (weigh_by_difference(rows) * derivative.abs()).sum((-2, -1))
        factor = torch.where(total > 0, divide(torch.log2(1 + total), total), 1.0)
        return lambda rows: weigh_by_difference(rows) * factor[:, None, None]

    @override
    def average_duplicates(self, lists: Lists) -> GradientMap:
        return (lambda grad_scores: grad_scores) if self.norm else super().average_duplicates(lists)

    def _ranks(self, lists: Lists) -> ItemValues:
        """Current ranks; with ``norm``, tied scores are ranked in input order."""
        return hard_ranks(lists.scores, lists.mask) if self.norm else super()._ranks(lists)

    def _discount(self, ranks: ItemValues) -> ItemValues:
        """The discount of a rank; with ``norm``, NDCG's is not cut at k."""
        if self.norm and self.metric == "ndcg":
            return 1 / torch.log2(1 + ranks)
        return super()._discount(ranks)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        # The operation ``pairs`` has no kind for ``norm``, which boosted trees use: they take the
        # gradient and Hessian, which newton_kernel computes.
        return None if self.norm else KernelCall("pairs", self._pair_options("lambdarank"))

    @override
    def newton_kernel(self) -> PairOptions | None:
        if self.metric != "ndcg":  # the GPU kernel, and for ``norm`` the CPU kernel, have NDCG only
            return None
        return self._pair_options("lambdarank_norm" if self.norm else "lambdarank")


@losses.register("lambdaloss")
class LambdaLoss(LambdaPairs):
    """``Σ_{y_i > y_j} λ_ij log(1 + exp(-σ (s_i - s_j)))`` (Jagerman et al. eqs. 13, 16, 17).

    For NDCG, ``λ_ij = |G_i - G_j| δ_ij / ideal DCG@k`` with
    ``δ_ij = 1 / D(|π_i - π_j|) - 1 / D(|π_i - π_j| + 1)``, times
    ``μ_ij = 1 / (1 - 1 / D(max(π_i, π_j)))`` where at least one of the items is past the cutoff: G
    is the gain, π_i the current rank of item i, and ``D(r) = log2(1 + r)``. (The option ``mu`` is
    another number.)

    Beyond the paper, the same argument bounds precision@k and recall@k. Their cost is the gain if
    ``π_i > k`` and else 0, so the weight of a pair is 0 if both items are in the first k, and else
    ``δ μ``. For ARP ``δ = 1`` (Wang et al. 2018, ARP-Loss2). AP and RR are not sums over items;
    their pairs are weighted as in LambdaRank, by the change that a swap makes.

    Args:
        k: the metric's cutoff. Pairs with both items past it count, unless ``truncation`` is
            ``"heuristic"`` or the metric AP or RR.
        metric: ``"ndcg"``, ``"precision"``, ``"recall"``, ``"ap"``, ``"rr"`` or ``"arp"``. Without
            k, all weights of precision and recall are 0, and so is the loss. ARP ignores k and
            ``truncation``; AP and RR ignore ``truncation``.
        scheme: for NDCG; other metrics ignore it. ``"ndcg_loss2"``; ``"ndcg_loss1"``, with weights
            ``G_i / D(π_i)``; or ``"ndcg_loss2++"``, LambdaRank's weights plus ``mu`` times those of
            ndcg_loss2 (Wang et al. 2018).
        truncation: ``"corrected"``: weights are multiplied by ``μ_ij``; or ``"heuristic"``, eq. 15:
            instead, pairs with both items past the cutoff are dropped.
        mu: the factor of ndcg_loss2 in ndcg_loss2++, unrelated to ``μ_ij``.
        sigma: σ, or a schedule.
        gain: of NDCG, ``"exponential"`` or ``"linear"``.
        threshold: the label from which an item is relevant, for binary metrics.
        reduction: over lists.

    >>> LambdaLoss()(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))
    tensor(0.4847)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        metric: _LambdaMetric = "ndcg",
        scheme: _Scheme = "ndcg_loss2",
        truncation: _Truncation = "corrected",
        mu: float = 10.0,
        sigma: float | Schedule = 1.0,
        gain: Gain = "exponential",
        threshold: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k, metric, sigma, gain, threshold, reduction)
        check_choice("scheme", scheme, get_args(_Scheme))
        check_choice("truncation", truncation, get_args(_Truncation))
        check_positive("mu", mu)
        self.scheme = scheme
        self.truncation = truncation
        self.mu = mu

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        # Other metrics have no schemes: for them, "ndcg_loss2" says LambdaLoss to the kernels.
        kind = self.scheme if self.metric == "ndcg" else "ndcg_loss2"
        return KernelCall("pairs", self._pair_options(kind, self.truncation, self.mu))

    @override
    def newton_kernel(self) -> PairOptions | None:
        if self.metric != "ndcg":  # the GPU kernel has NDCG only
            return None
        return self._pair_options(self.scheme, self.truncation, self.mu)

    @override
    def lambdas(self, ranking: _CurrentRanking) -> PairWeights:
        if self.metric in ("ap", "rr"):
            return self._swap_changes(ranking)
        if self.metric == "arp":
            return ranking.gain_differences
        if self.metric == "ndcg" and self.scheme == "ndcg_loss1":
            return self._loss1_weights(ranking)
        swap_changes = self._swap_changes(ranking)  # used by ndcg_loss2++ only

        def weigh(rows: slice) -> Tensor:
            first, second = _tile(ranking.ranks, rows)
            delta = _delta(first, second) * self._truncation_factor(first, second)
            if self.metric != "ndcg":  # precision or recall
                inside = torch.maximum(first, second) <= (self.k or float("inf"))
                delta = torch.where(inside, 0.0, delta)
            weights = ranking.gain_differences(rows) * delta
            if self.metric == "ndcg" and self.scheme == "ndcg_loss2++":
                return self.mu * weights + self._lambdarank_part(ranking, swap_changes, rows)
            return weights

        return weigh

    def _loss1_weights(self, ranking: _CurrentRanking) -> PairWeights:
        """The weights of ndcg_loss1: ``G_i / D(π_i)`` over the ideal DCG@k."""
        item_weights = ranking.gains / torch.log2(1 + ranking.ranks) / ranking.norm[:, None]

        def weigh(rows: slice) -> Tensor:
            first, second = _tile(ranking.ranks, rows)
            return item_weights[:, rows, None] * self._truncation_factor(first, second)

        return weigh

    def _lambdarank_part(
        self, ranking: _CurrentRanking, swap_changes: PairWeights, rows: slice
    ) -> Float[Tensor, "b r n"]:
        """The LambdaRank part of ndcg_loss2++: by how much a swap changes the metric.

        "corrected": NDCG@k, whose discounts are 0 past the cutoff (eq. 12). "heuristic": NDCG
        without a cutoff (eq. 11), but pairs with both items past k are dropped, as in eq. 15.
        """
        if self.truncation == "corrected" or self.k is None:
            return swap_changes(rows)
        first, second = _tile(ranking.ranks, rows)
        discounts = (1 / torch.log2(1 + first) - 1 / torch.log2(1 + second)).abs()
        return ranking.gain_differences(rows) * discounts * self._truncation_factor(first, second)

    def _truncation_factor(self, first: Tensor, second: Tensor) -> Tensor:
        """The factor of pair weights that a cutoff makes.

        "corrected": ``μ_ij`` of eqs. 16-17, which is 1 if both items are in the first k.
        "heuristic": 0 if both items are past the cutoff, and else 1 (eq. 15).

        Args:
            first: the ranks of the first items, ``[b, r, 1]``.
            second: the ranks of the second items, ``[b, 1, n]``.

        Returns:
            ``[b, r, n]``, or ones ``[b, r, 1]`` without a cutoff.
        """
        if self.k is None:
            return torch.ones_like(first)
        if self.truncation == "heuristic":
            return (torch.minimum(first, second) <= self.k).to(first.dtype)
        # The larger rank is 1 only where an item is paired with itself; there μ would be infinite.
        larger_rank = torch.maximum(first, second).clamp(min=2.0)
        return torch.where(larger_rank > self.k, 1 / (1 - 1 / torch.log2(1 + larger_rank)), 1.0)


def _delta(first: Tensor, second: Tensor) -> Tensor:
    """``δ_ij = 1 / D(|π_i - π_j|) - 1 / D(|π_i - π_j| + 1)`` (eq. 13), 0.369 for neighbors."""
    # The distance is 0 only where an item is paired with itself; D(0) is 0.
    distance = (first - second).abs().clamp(min=1.0)
    return 1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)


def _ap_swaps(ranking: _CurrentRanking, k: int | None) -> PairWeights:
    """The change of AP when two items swap places.

    Let a relevant item and one that is not swap, at ranks a < b. AP changes by (1 / R) times
    ``c / a - C_b / b + Σ_{a<r<b} rel_r / r``, where R counts all relevant items, C_r those up to
    rank r, and c is C_a, plus 1 if the item at a is not relevant. Terms past the cutoff are 0.
    The sum is a difference of two prefix sums, so the change is a term of the upper item plus one
    of the lower item.
    """
    ranks, relevance = ranking.ranks, ranking.gains
    order = ranks.argsort(dim=-1)

    def sum_through_rank(values: Tensor) -> Tensor:
        """For each item, the sum over the items up to its rank."""
        sums = values.gather(-1, order).cumsum(-1)
        return torch.empty_like(sums).scatter_(-1, order, sums)

    inside = (ranks <= (k or float("inf"))).to(ranks.dtype)
    prefix_sums = sum_through_rank(relevance * inside / ranks)
    counts = sum_through_rank(relevance)
    upper_terms = (counts + 1 - relevance) / ranks * inside - prefix_sums
    lower_terms = -counts / ranks * inside + prefix_sums - relevance * inside / ranks

    def weigh(rows: slice) -> Tensor:
        first_rank, second_rank = _tile(ranks, rows)
        first_upper, second_upper = _tile(upper_terms, rows)
        first_lower, second_lower = _tile(lower_terms, rows)
        change = torch.where(
            first_rank < second_rank, first_upper + second_lower, second_upper + first_lower
        )
        return ranking.gain_differences(rows) * change.abs()

    return weigh


def _rr_swaps(ranking: _CurrentRanking, k: int | None) -> PairWeights:
    """The change of RR when a relevant item i and another item j swap places.

    It depends on the first relevant rank. If j is above i, i moves up to the rank of j, which may
    become the first relevant one. If j is below i, the first relevant rank changes only if it is
    that of i: it becomes the rank of j or the second relevant one, whichever is higher in the list.
    """
    ranks, relevance = ranking.ranks, ranking.gains
    no_rank = ranks.shape[-1] + 1.0  # stands for "there is no relevant item"
    relevant_ranks = torch.where(relevance > 0, ranks, no_rank)
    best = relevant_ranks.amin(-1, keepdim=True)
    next_best = torch.where(relevant_ranks > best, relevant_ranks, no_rank).amin(-1, keepdim=True)
    best, next_best = best[:, :, None], next_best[:, :, None]

    def reciprocal(rank: Tensor) -> Tensor:
        return torch.where((rank <= (k or no_rank)) & (rank < no_rank), 1 / rank, 0.0)

    def weigh(rows: slice) -> Tensor:
        rank_i, rank_j = _tile(ranks, rows)
        upward = reciprocal(torch.minimum(rank_j, best)) - reciprocal(best)
        downward = reciprocal(best) - reciprocal(torch.minimum(rank_j, next_best))
        downward = torch.where(rank_i == best, downward, 0.0)
        change = torch.where(rank_i > rank_j, upward, downward)
        # RR is not divided by the norm: multiplying undoes the division in gain_differences.
        return ranking.gain_differences(rows) * ranking.norm[:, None, None] * change.abs()

    return weigh
