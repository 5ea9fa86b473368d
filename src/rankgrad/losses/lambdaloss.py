"""Lambda losses: RankNet's pairs weighed by what swapping them does to a metric."""

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
    PairWeights,
    PairwiseLoss,
    logistic,
    logistic_curvature,
    preferred,
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

    Ranks are by descending score; tied scores are ranked with the less relevant item first, so that
    a constant score has something to learn.
    """

    ranks: ItemValues
    gains: ItemValues
    norm: ListValues

    def tile(self, values: ItemValues, rows: slice) -> tuple[Tensor, Tensor]:
        """A per-item quantity for the first and the second item of each pair of the tile."""
        return values[:, rows, None], values[:, None, :]

    def gain_differences(self, rows: slice) -> Float[Tensor, "b r n"]:
        """``|G_i - G_j| / norm``."""
        first, second = self.tile(self.gains, rows)
        return (first - second).abs() / self.norm[:, None, None]


class LambdaPairs(PairwiseLoss):
    """Logistic pairs of a lambda loss, with the metric whose change they are weighed by."""

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
    def term(self, differences: Tensor) -> tuple[Tensor, Tensor]:
        return logistic(differences, self.now(self.sigma))

    @override
    def curvature(self, differences: Tensor) -> Tensor:
        return logistic_curvature(differences, self.now(self.sigma))

    @override
    def check_labels(self, labels: Labels, mask: Mask | None) -> Labels:
        return NDCG(gain=self.gain).check_labels(labels, mask) if self.metric == "ndcg" else labels

    @override
    def pair_weights(self, lists: Lists) -> PairWeights:
        with torch.no_grad():
            weigh = self.lambdas(self._current_ranking(lists))

        def weigh_preferred(rows: slice) -> Tensor:
            pairs = preferred(lists, rows)
            return torch.where(pairs > 0, weigh(rows), 0.0)

        return weigh_preferred

    def _pair_options(self, kind: str, truncation: str = "", mu: float = 0.0) -> PairOptions:
        """The options of kernels for a loss of this kind, with the metric's options."""
        return PairOptions(
            kind,
            self.k or 0,
            self.sigma if isinstance(self.sigma, float) else self.now(self.sigma),
            gain=self.gain,
            truncation=truncation,
            mu=mu,
            metric=self.metric,
            threshold=self.threshold,
        )

    def lambdas(self, ranking: _CurrentRanking) -> PairWeights:
        """The weight of each pair."""
        raise TypeError(f"{type(self).__name__} must implement lambdas")

    def _current_ranking(self, lists: Lists) -> _CurrentRanking:
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

    def _swap_costs(self, ranking: _CurrentRanking) -> PairWeights:
        """``|metric after swapping i and j - metric before|``."""
        if self.metric == "ap":
            return _ap_swaps(ranking, self.k)
        if self.metric == "rr":
            return _rr_swaps(ranking, self.k)
        discount = self._discount(ranking.ranks)

        def weigh(rows: slice) -> Tensor:
            first, second = ranking.tile(discount, rows)
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
        metric: ``"ndcg"``, ``"precision"``, ``"recall"``, ``"ap"``, ``"rr"`` or ``"arp"``.
        sigma: σ, or a schedule.
        gain: of NDCG, ``"exponential"`` or ``"linear"``.
        threshold: the label from which an item is relevant, for binary metrics.
        norm: as LightGBM (``lambdarank_norm``) and XGBoost (``lambdarank_normalization``) have it.
            Pairs of which no item is among the first k are left out, and all others weigh with the
            discounts of both ranks; unless all scores are equal they are divided by
            ``0.01 + |s_i - s_j|``; the pairs of a list are multiplied by ``log2(1 + Λ) / Λ``, with
            Λ twice the sum of its pairs' derivatives; tied scores are ranked in input order, and
            gradients are not averaged over duplicates. With k = 30 this is LightGBM's default
            objective, with k = 32 XGBoost's.
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
        return self._swap_costs(ranking)

    @override
    def pair_weights(self, lists: Lists) -> PairWeights:
        weigh = super().pair_weights(lists)
        return self._normalized(lists, weigh) if self.norm else weigh

    def _normalized(self, lists: Lists, weigh: PairWeights) -> PairWeights:
        """``norm``: see the class. Neither factor is differentiated."""
        scores, mask = lists.scores.detach(), lists.mask
        near = self._in_top(lists)
        best = scores.masked_fill(~mask, float("-inf")).amax(-1)
        differ = best > scores.masked_fill(~mask, float("inf")).amin(-1)

        def regularized(rows: slice) -> Tensor:
            differences = (scores[:, rows, None] - scores[:, None, :]).abs()
            tile = weigh(rows) / torch.where(differ[:, None, None], 0.01 + differences, 1.0)
            return tile if near is None else tile * (near[:, rows, None] | near[:, None, :])

        total = torch.zeros_like(best)
        with torch.no_grad():
            for rows in tiles(scores.numel(), scores.shape[-1]):
                derivative = self.term(scores[:, rows, None] - scores[:, None, :])[1]
                total += 2 * (regularized(rows) * derivative.abs()).sum((-2, -1))
        factor = torch.where(total > 0, divide(torch.log2(1 + total), total), 1.0)
        return lambda rows: regularized(rows) * factor[:, None, None]

    @override
    def average_duplicates(self, lists: Lists) -> GradientMap:
        return (lambda grad_scores: grad_scores) if self.norm else super().average_duplicates(lists)

    def _ranks(self, lists: Lists) -> ItemValues:
        return hard_ranks(lists.scores, lists.mask) if self.norm else super()._ranks(lists)

    def _discount(self, ranks: ItemValues) -> ItemValues:
        if self.norm and self.metric == "ndcg":
            return 1 / torch.log2(1 + ranks)
        return super()._discount(ranks)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return None if self.norm else KernelCall("pairs", self._pair_options("lambdarank"))

    @override
    def newton_kernel(self) -> PairOptions | None:
        if self.metric != "ndcg":
            return None
        return self._pair_options("lambdarank_norm" if self.norm else "lambdarank")


@losses.register("lambdaloss")
class LambdaLoss(LambdaPairs):
    """``Σ_{y_i > y_j} λ_ij log(1 + exp(-σ (s_i - s_j)))`` (Jagerman et al. eqs. 13, 16, 17).

    For NDCG, ``λ_ij = |G_i - G_j| δ_ij / ideal DCG@k`` with
    ``δ_ij = 1 / D(|π_i - π_j|) - 1 / D(|π_i - π_j| + 1)``, times
    ``μ_ij = 1 / (1 - 1 / D(max(π_i, π_j)))`` where one of the items is past the cutoff: G is
    the gain, π_i the current rank of item i, and ``D(r) = log2(1 + r)``.

    Beyond the paper, the same argument bounds precision@k and recall@k: their cost is the gain if
    ``π_i > k`` and else 0, so pairs with both items inside weigh nothing and the others ``δ μ``.
    For ARP ``δ = 1`` (Wang et al. 2018, ARP-Loss2). AP and RR are not sums over items; their pairs
    weigh by the swap cost, as in LambdaRank.

    Args:
        k: the metric's cutoff; all pairs count.
        metric: ``"ndcg"``, ``"precision"``, ``"recall"``, ``"ap"``, ``"rr"`` or ``"arp"``.
        scheme: for NDCG, ``"ndcg_loss2"``; ``"ndcg_loss1"``, with weights ``G_i / D(π_i)``; or
            ``"ndcg_loss2++"``, LambdaRank's weights plus ``mu`` times those of ndcg_loss2
            (Wang et al. 2018).
        truncation: ``"corrected"``, or ``"heuristic"``, eq. 15: pairs past the cutoff are dropped.
        mu: of ndcg_loss2++.
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
        check_choice("scheme", scheme, ("ndcg_loss1", "ndcg_loss2", "ndcg_loss2++"))
        check_choice("truncation", truncation, ("corrected", "heuristic"))
        check_positive("mu", mu)
        self.scheme = scheme
        self.truncation = truncation
        self.mu = mu

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        kind = self.scheme if self.metric == "ndcg" else "ndcg_loss2"
        return KernelCall("pairs", self._pair_options(kind, self.truncation, self.mu))

    @override
    def newton_kernel(self) -> PairOptions | None:
        if self.metric != "ndcg":
            return None
        return self._pair_options(self.scheme, self.truncation, self.mu)

    @override
    def lambdas(self, ranking: _CurrentRanking) -> PairWeights:
        if self.metric in ("ap", "rr"):
            return self._swap_costs(ranking)
        if self.metric == "arp":
            return ranking.gain_differences
        if self.metric == "ndcg" and self.scheme == "ndcg_loss1":
            return self._first_scheme(ranking)
        swaps = self._swap_costs(ranking)

        def weigh(rows: slice) -> Tensor:
            first, second = ranking.tile(ranking.ranks, rows)
            delta = _delta(first, second) * self._truncate(first, second)
            if self.metric != "ndcg":
                inside = torch.maximum(first, second) <= (self.k or float("inf"))
                delta = torch.where(inside, 0.0, delta)
            weights = ranking.gain_differences(rows) * delta
            if self.metric == "ndcg" and self.scheme == "ndcg_loss2++":
                return self.mu * weights + self._rank_part(ranking, swaps, rows)
            return weights

        return weigh

    def _first_scheme(self, ranking: _CurrentRanking) -> PairWeights:
        item_weights = ranking.gains / torch.log2(1 + ranking.ranks) / ranking.norm[:, None]

        def weigh(rows: slice) -> Tensor:
            first, second = ranking.tile(ranking.ranks, rows)
            return item_weights[:, rows, None] * self._truncate(first, second)

        return weigh

    def _rank_part(self, ranking: _CurrentRanking, swaps: PairWeights, rows: slice) -> Tensor:
        """The LambdaRank part of ndcg_loss2++: eq. 12, or eq. 11 masked as eq. 15."""
        if self.truncation == "corrected" or self.k is None:
            return swaps(rows)
        first, second = ranking.tile(ranking.ranks, rows)
        differences = (1 / torch.log2(1 + first) - 1 / torch.log2(1 + second)).abs()
        return ranking.gain_differences(rows) * differences * self._truncate(first, second)

    def _truncate(self, first: Tensor, second: Tensor) -> Tensor:
        """The factor on a pair at these ranks: eqs. 16-17, or eq. 15."""
        if self.k is None:
            return torch.ones_like(first)
        if self.truncation == "heuristic":
            return (torch.minimum(first, second) <= self.k).to(first.dtype)
        last = torch.maximum(first, second).clamp(min=2.0)
        return torch.where(last > self.k, 1 / (1 - 1 / torch.log2(1 + last)), 1.0)


def _delta(first: Tensor, second: Tensor) -> Tensor:
    """``|1 / D(|π_i - π_j|) - 1 / D(|π_i - π_j| + 1)|`` (eq. 13), 0.369 for neighbors."""
    distance = (first - second).abs().clamp(min=1.0)
    return 1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)


def _ap_swaps(ranking: _CurrentRanking, k: int | None) -> PairWeights:
    """The change of AP when two items swap places.

    Swapping a relevant item and another, at ranks a < b, changes AP by (1 / R) times
    ``c / a - C_b / b + Σ_{a<r<b} rel_r / r``: C_r counts relevant items up to r, and c those up to
    a if the one at a is relevant. Terms past the cutoff drop out.
    """
    ranks, relevance = ranking.ranks, ranking.gains
    order = ranks.argsort(dim=-1)
    inside = (ranks <= (k or float("inf"))).to(ranks.dtype)
    steps = (relevance * inside / ranks).gather(-1, order).cumsum(-1)
    through = torch.empty_like(steps).scatter_(-1, order, steps)
    counts = relevance.gather(-1, order).cumsum(-1)
    count = torch.empty_like(counts).scatter_(-1, order, counts)
    upper = (count + 1 - relevance) / ranks * inside - through
    lower = -count / ranks * inside + through - relevance * inside / ranks

    def weigh(rows: slice) -> Tensor:
        first, second = ranking.tile(ranks, rows)
        up, up_ = ranking.tile(upper, rows)
        low, low_ = ranking.tile(lower, rows)
        change = torch.where(first < second, up + low_, up_ + low)
        return ranking.gain_differences(rows) * change.abs()

    return weigh


def _rr_swaps(ranking: _CurrentRanking, k: int | None) -> PairWeights:
    """The change of RR when two items swap places.

    A swap changes RR only if it moves the first relevant item: up to rank j, if j is before all
    relevant ones; or, if i is the first, down to j or to the second relevant one.
    """
    ranks, relevance = ranking.ranks, ranking.gains
    far = ranks.shape[-1] + 1.0
    relevant = torch.where(relevance > 0, ranks, far)
    first_rank = relevant.amin(-1, keepdim=True)
    second_rank = torch.where(relevant > first_rank, relevant, far).amin(-1, keepdim=True)

    def value(rank: Tensor) -> Tensor:
        return torch.where((rank <= (k or far)) & (rank < far), 1 / rank, 0.0)

    def weigh(rows: slice) -> Tensor:
        first, second = ranking.tile(ranks, rows)
        top, next_ = first_rank[:, :, None], second_rank[:, :, None]
        up = value(torch.minimum(second, top)) - value(top)
        down = value(top) - value(torch.minimum(second, next_))
        change = torch.where(first > second, up, torch.where(first == top, down, 0.0))
        return ranking.gain_differences(rows) * ranking.norm[:, None, None] * change.abs()

    return weigh
