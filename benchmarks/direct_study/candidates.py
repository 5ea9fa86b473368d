"""Losses of the study that are not in the library; they are registered, so that specs name them.

The gradient of a loss of scores is a sum over pairs of items. ``pair_field`` separates the two
factors of each pair: a weight, which says how much the pair matters to the metric, and the
derivative of a surrogate of the score gap, such as the logistic loss, which says how a pair in the
wrong order differs from one in the right order. Relaxed metrics, LambdaRank and LambdaLoss are
combinations of these two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._padded import hard_ranks, has_pairs, log_softmax, tiles
from rankgrad._validation import check_choice
from rankgrad.data import synthetic
from rankgrad.kernels import KernelCall
from rankgrad.lists import Lists
from rankgrad.losses import Loss, losses
from rankgrad.losses._base import reduce
from rankgrad.metrics import NDCG
from rankgrad.sorting import Relaxation, relaxations
from rankgrad.sorting._base import Form

WEIGHTS = ("none", "swap", "distance", "tangent")
SURROGATES = ("logistic", "sigmoid")
_LOG2 = math.log(2)
#: A loss that has a kernel call can be captured in a CUDA graph; training asks only for that.
_CAPTURED = KernelCall("pair_field", ())


class StudyLoss(Loss):
    """A loss that defines ``values``: the value of each list, and on which lists it is defined.

    Training can capture it in a CUDA graph.
    """

    def per_list(self, lists: Lists) -> tuple[Tensor, Tensor]:
        return self.values(lists)

    def _reduced(self, lists: Lists, call: KernelCall | None) -> Tensor:
        return reduce(*self.values(lists), lists, self.reduction)

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        return _CAPTURED if lists.flat.scores.is_cuda else None


@losses.register("pair_field")
class PairField(StudyLoss):
    """``Σ_{y_i > y_j} w_ij φ(s_i - s_j)`` with weights w that are not differentiated.

    Args:
        k: the cutoff of NDCG.
        weights: ``swap``: the change of NDCG@k when i and j swap, ``|G_i - G_j| |D_i - D_j|``, as
            in LambdaRank. ``distance``: LambdaLoss's, by the distance of the ranks. ``tangent``:
            the derivative of NDCG@k by the rank of i, ``G_i |D'(π_i)|``, on the pairs of i with all
            other items: the weights in the gradient of approx_ndcg. ``none``: 1, as in RankNet.
        surrogate: the function φ of the score gap. ``logistic``: log(1 + exp(-gap)), convex.
            ``sigmoid``: 1 / (1 + exp(gap)), as in relaxed ranks; the gradient of a confident
            mistake vanishes.
        relaxation: the relaxation whose ranks or permutation give the discounts D of ``swap`` and
            ``tangent``; empty for the exact ranks.
        gain: ``exponential`` or ``linear``.
        reduction: over lists.
    """

    name: ClassVar[str] = "pair_field"

    def __init__(
        self,
        k: int | None = None,
        *,
        weights: str = "swap",
        surrogate: str = "logistic",
        relaxation: str = "",
        gain: Literal["exponential", "linear"] = "exponential",
        reduction: Any = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("weights", weights, WEIGHTS)
        check_choice("surrogate", surrogate, SURROGATES)
        self.weights, self.surrogate = weights, surrogate
        self.relaxation, self.gain = relaxation, gain
        self._relaxed = relaxations.get(relaxation) if relaxation else None

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        values: Tensor = _PairSum.apply(lists.scores, self, lists)
        return values, has_pairs(lists.labels, lists.mask)

    def items(self, lists: Lists) -> Tensor:
        """What the weights of pairs are computed from, ``[6, b, n]``.

        Per item: its label; its gain over the ideal DCG; its discount or tangent; its rank;
        LambdaLoss's factor past the cutoff; and 1 on real items.
        """
        scores, mask, labels = lists.scores.detach(), lists.mask, lists.labels
        ndcg = NDCG(self.k, gain=self.gain)
        gains = (torch.exp2(labels) - 1 if self.gain == "exponential" else labels) * mask
        ideal = ndcg.ideal(gains)
        gains = gains / torch.where(ideal > 0, ideal, 1.0)[:, None]
        ranks = hard_ranks(scores, mask, labels)
        past_cutoff = torch.ones_like(ranks)
        if self.k is not None:
            rank = ranks.clamp(min=2.0)
            past_cutoff = torch.where(rank > self.k, 1 / (1 - 1 / torch.log2(1 + rank)), 1.0)
        if self.weights == "tangent":
            discounts = self._tangents(ranks, scores, mask) * gains
        else:
            discounts = self._discounts(ranks, scores, mask)
        return torch.stack([labels, gains, discounts, ranks, past_cutoff, mask.to(scores.dtype)])

    def _discounts(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """The discount of each item by its exact or relaxed rank, ``[b, n]``."""
        if self._relaxed is not None and self._relaxed.forms[0] == "permutation":
            k = min(self.k or ranks.shape[-1], ranks.shape[-1])
            rows = self._relaxed._permutation(scores, mask, k)
            discounts = 1 / torch.log2(1 + torch.arange(1, k + 1, device=ranks.device))
            return torch.where(mask, discounts.to(rows) @ rows, 0.0)
        ranks = self._relax_ranks(ranks, scores, mask)
        discounts = 1 / torch.log2(1 + ranks)
        if self.k is None:
            return discounts
        if self._relaxed:  # the cutoff is soft as well, with a width of one rank
            return discounts * torch.sigmoid(4 * (self.k + 0.5 - ranks))
        return torch.where(ranks <= self.k, discounts, 0.0)

    def _tangents(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """``|D'(π)|`` of each item, ``[b, n]``; past the cutoff k, ``|D'(k)| (k / π)²``."""
        ranks = self._relax_ranks(ranks, scores, mask)
        up_to_k = ranks if self.k is None else ranks.clamp(max=self.k)
        derivative = 1 / ((1 + up_to_k) * _LOG2 * torch.log2(1 + up_to_k) ** 2)
        return torch.where(mask, derivative * (up_to_k / ranks) ** 2, 0.0)

    def _relax_ranks(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """The relaxed ranks ``[b, n]``, or the exact ones without a relaxation."""
        if self._relaxed is None:
            return ranks
        return torch.where(mask, self._relaxed.rank(scores, mask), 1.0).clamp(min=1.0)


class _PairSum(torch.autograd.Function):
    """The sum over pairs, ``[b]``; the forward pass also computes the gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, loss: PairField, lists: Lists) -> Tensor:
        items = loss.items(lists)
        if scores.is_cuda:
            from pair_kernel import sum_pairs

            values, gradient = sum_pairs(scores, items, loss.weights, loss.surrogate)
        else:
            values, gradient = sum_pairs_eager(scores, items, loss.weights, loss.surrogate)
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None] * gradient, None, None


def sum_pairs_eager(
    scores: Tensor, items: Tensor, weights: str, surrogate: str
) -> tuple[Tensor, Tensor]:
    """Values ``[b]`` and gradients ``[b, n]`` in plain PyTorch: what the kernel computes.

    Args:
        scores: ``[b, n]``.
        items: :meth:`PairField.items`, ``[6, b, n]``.
        weights: as in :class:`PairField`.
        surrogate: as in :class:`PairField`.
    """
    labels, gains, discounts, ranks, past_cutoff, real = items
    gaps = scores[:, :, None] - scores[:, None, :]
    pairs = real[:, :, None] * real[:, None, :]
    preferred = pairs * (labels[:, :, None] > labels[:, None, :])
    if weights == "tangent":
        eye = torch.eye(scores.shape[-1], device=scores.device)
        pair_weights = discounts[:, :, None] * pairs * (1 - eye)
    elif weights == "none":
        pair_weights = preferred
    else:
        pair_weights = preferred * (gains[:, :, None] - gains[:, None, :]).abs()
        if weights == "swap":
            pair_weights = pair_weights * (discounts[:, :, None] - discounts[:, None, :]).abs()
        else:
            distance = (ranks[:, :, None] - ranks[:, None, :]).abs().clamp(min=1.0)
            pair_weights = pair_weights * (
                1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)
            )
            lower = ranks[:, :, None] > ranks[:, None, :]
            pair_weights = pair_weights * torch.where(
                lower, past_cutoff[:, :, None], past_cutoff[:, None, :]
            )
    probability = torch.sigmoid(-gaps)  # of the wrong order
    if surrogate == "logistic":
        terms, derivatives = F.softplus(-gaps), probability
    else:
        terms, derivatives = probability, probability * (1 - probability)
    pulls = pair_weights * derivatives
    return (pair_weights * terms).sum((-2, -1)), pulls.sum(-2) - pulls.sum(-1)


@losses.register("mixed")
class Mixed(StudyLoss):
    """``first + weight × second``.

    Args:
        first: the spec of a loss.
        second: the spec of another.
        weight: the weight of the second.
        reduction: over lists.
    """

    name: ClassVar[str] = "mixed"

    def __init__(
        self, *, first: str = "softmax", second: str = "lambdaloss@10", weight: float = 1.0,
        reduction: Any = "mean",
    ) -> None:  # fmt: skip
        super().__init__(reduction=reduction)
        self.first, self.second, self.weight = first, second, weight
        self.parts = (losses.get(first), losses.get(second))

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        for part in self.parts:
            part.progress = self.progress
        (first, first_defined), (second, second_defined) = (
            part.values(lists) for part in self.parts
        )
        first, second = first.where(first_defined, 0.0), second.where(second_defined, 0.0)
        return first + self.weight * second, first_defined & second_defined

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        calls = [part.kernel_call(lists) for part in self.parts]
        return None if None in calls else _CAPTURED

    @property
    def is_stationary(self) -> bool:
        return all(part.is_stationary for part in self.parts)


@losses.register("by_member")
class ByMember(StudyLoss):
    """One loss for the first half of the lists of a batch, another for the rest.

    A batch of an ensemble has the lists of one member after those of another, so half of the
    members are trained on one loss and half on the other.

    Args:
        first: the spec of a loss.
        second: the spec of another.
        scale: the factor of the second.
        reduction: over lists.
    """

    name: ClassVar[str] = "by_member"

    def __init__(
        self,
        *,
        first: str = "rank_bound@10",
        second: str = "lambdaloss@10",
        scale: float = 1.0,
        reduction: Any = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.first, self.second, self.scale = first, second, scale
        self.parts = (losses.get(first), losses.get(second))

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        half = (len(lists.scores) + 1) // 2
        results = []
        for part, rows in zip(self.parts, (slice(half), slice(half, None)), strict=True):
            tensors = (lists.scores[rows], lists.labels[rows], lists.mask[rows])
            results.append(part.values(Lists.from_padded(*tensors, None)))
        (first, first_defined), (second, second_defined) = results
        values = torch.cat([first, self.scale * second])
        return values, torch.cat([first_defined, second_defined])

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        calls = [part.kernel_call(lists) for part in self.parts]
        return None if None in calls else _CAPTURED

    @property
    def is_stationary(self) -> bool:
        return all(part.is_stationary for part in self.parts)


@losses.register("rank_bound")
class RankBound(StudyLoss):
    """``Σ_i G_i f(1 / p_i) / ideal DCG@k`` with ``p = softmax(s)``.

    ``1 / p_i = Σ_j exp(s_j - s_i)`` bounds the rank of i from above. So with f = 1 - D the loss
    bounds 1 - NDCG; with f = log it is the cross-entropy of softmax with gains as targets. For a
    mistake with a score gap d, the gradient falls as 1 / d² with f = 1 - D and not at all with the
    logarithm, while that of a sigmoid falls as exp(-d).

    Args:
        k: the cutoff of the ideal DCG.
        of: the function f of the rank r: ``power``, whose derivative by log r is
            ``(1 + log r)^-p``, or ``ndcg``: 1 - D.
        p: the exponent of ``power``. With 0, f is the logarithm; with 1, ``log(1 + log r)``; with 2
            it is about as concave as 1 - D.
        gain: ``exponential``, ``linear`` or ``power`` (``1.5^y - 1``).
        ideal: whether to divide by the ideal DCG.
        reduction: over lists.
    """

    name: ClassVar[str] = "rank_bound"

    def __init__(
        self,
        k: int | None = None,
        *,
        of: str = "power",
        p: float = 0.0,
        gain: str = "exponential",
        ideal: bool = True,
        reduction: Any = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("of", of, ("power", "ndcg"))
        check_choice("gain", gain, ("exponential", "linear", "power"))
        self.of, self.p, self.gain, self.ideal = of, p, gain, ideal

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        base = {"exponential": 2.0, "power": 1.5, "linear": 1.0}[self.gain]
        gains = lists.labels if base == 1 else base**lists.labels - 1
        gains = gains * lists.mask
        terms = gains * self._penalty(-log_softmax(lists.scores, lists.mask))
        values = terms.where(lists.mask, 0.0).sum(-1)
        if self.ideal:
            ideal = NDCG(self.k).ideal(gains)
            values = values / torch.where(ideal > 0, ideal, 1.0)
        return values, has_pairs(lists.labels, lists.mask)

    def _penalty(self, log_rank: Tensor) -> Tensor:
        """``f(r)`` by the logarithm of r."""
        if self.of == "ndcg":  # log2(1 + r) = log2(r) + log2(1 + 1 / r), for any size of r
            return 1 - _LOG2 / (log_rank + torch.log1p(torch.exp(-log_rank)))
        if self.p == 1:
            return torch.log1p(log_rank)
        return ((1 + log_rank) ** (1 - self.p) - 1) / (1 - self.p)


@losses.register("standardized")
class Standardized(StudyLoss):
    """A loss of scores that are standardized to mean 0 and deviation ``scale`` within each list.

    Args:
        loss: the spec of the loss.
        scale: the standard deviation.
        reduction: over lists.
    """

    name: ClassVar[str] = "standardized"

    def __init__(
        self, *, loss: str = "approx_ndcg", scale: float = 1.0, reduction: Any = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.loss, self.scale = loss, scale
        self.inner = losses.get(loss)

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        self.inner.progress = self.progress
        mask = lists.mask
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = (lists.scores * mask).sum(-1, keepdim=True) / count
        centered = (lists.scores - mean) * mask
        variance = centered.square().sum(-1, keepdim=True) / count
        scores = self.scale * centered / (variance + 1e-6).sqrt()
        standardized = Lists.from_padded(scores, lists.labels, mask, lists.item_weights)
        return self.inner.values(standardized)

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        return self.inner.kernel_call(lists) and _CAPTURED

    @property
    def is_stationary(self) -> bool:
        return self.inner.is_stationary


@losses.register("gain_softmax")
class GainSoftmax(StudyLoss):
    """``-Σ_i t_i log softmax(s)_i`` with gains ``2^y - 1`` for targets: XE-NDCG without noise.

    Bruch 2021, "An alternative cross entropy loss for learning-to-rank", eq. 4, γ = 1.

    Args:
        normalized: whether the targets of a list have a sum of 1, so that all lists count the same.
        reduction: over lists.
    """

    name: ClassVar[str] = "gain_softmax"

    def __init__(self, *, normalized: bool = True, reduction: Any = "mean") -> None:
        super().__init__(reduction=reduction)
        self.normalized = normalized

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        gains = (torch.exp2(lists.labels) - 1) * lists.mask
        total = gains.sum(-1, keepdim=True)
        if self.normalized:
            gains = gains / torch.where(total > 0, total, 1.0)
        terms = gains * log_softmax(lists.scores, lists.mask)
        return -terms.where(lists.mask, 0.0).sum(-1), total[..., 0] > 0


@losses.register("level_likelihood")
class LevelLikelihood(StudyLoss):
    """``Σ_l w_l min_c Σ_i BCE(s_i - c, y_i >= l)``: a logistic regression at each label level l.

    The intercept c is fitted in each list: ``Σ_i σ(s_i - c)`` is then the number m of items at or
    above the level. For long lists this is the conditional likelihood of which m items these are,
    given m (conditional logistic regression). The sum over levels of softmax's cross-entropies,
    ``Σ_l Σ_{y_i >= l} -log softmax(s)_i``, which is the softmax loss of integer labels, is the same
    likelihood for draws with replacement (Breslow's approximation in Cox regression): there the
    items above a level compete with each other. It is convex, and its gradient ``σ(s_i - c) -
    [y_i >= l]`` is a relaxed membership in the first m items less the true one.

    Args:
        k: the cutoff of the ideal DCG, with ``weights="gain"``.
        weights: w_l. ``one``: 1. ``gain``: the gain of the level, ``2^l - 2^(l - 1)``, over the
            ideal DCG. ``size``: 1 / m, so that each level counts the same.
        levels: labels are compared with 1, 2, ..., levels.
        reduction: over lists.
    """

    name: ClassVar[str] = "level_likelihood"

    def __init__(
        self,
        k: int | None = None,
        *,
        weights: str = "one",
        levels: int = 4,
        reduction: Any = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("weights", weights, ("one", "gain", "size"))
        self.weights, self.levels = weights, levels

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        scores, mask = lists.scores, lists.mask
        levels = torch.arange(1, self.levels + 1, device=scores.device)[:, None]
        above = (lists.labels[:, None] >= levels) & mask[:, None]  # [b, levels, n]
        size, length = above.sum(-1), mask.sum(-1, keepdim=True)
        splits = (size > 0) & (size < length)
        intercepts = _intercepts(scores.detach(), mask, size.clamp(min=1), length)
        logits = scores[:, None] - intercepts[..., None]
        terms = F.binary_cross_entropy_with_logits(logits, above.to(scores), reduction="none")
        values = (terms * mask[:, None]).sum(-1)
        weights = splits.to(scores)
        if self.weights == "size":
            weights = weights / size.clamp(min=1)
        elif self.weights == "gain":
            gains = (torch.exp2(lists.labels) - 1) * mask
            ideal = NDCG(self.k).ideal(gains)[:, None]
            weights = weights * torch.exp2(levels[:, 0] - 1.0) / torch.where(ideal > 0, ideal, 1.0)
        return (values * weights).sum(-1), has_pairs(lists.labels, mask)


@losses.register("top_likelihood")
class TopLikelihood(StudyLoss):
    """``Σ_l w_l Σ_{r<=k} (D_r - D_{r+1}) Σ_i BCE(s_i - c_r, t_ri)``: a convex surrogate of DCG@k.

    DCG@k is a sum over label levels and over r: how many of the first r items are at or above the
    level l, weighted by ``w_l (D_r - D_{r+1})``. ``σ(s_i - c_r)``, whose sum over the list is r, is
    a relaxed membership in the first r items, and t is that of the best order: with m items at or
    above the level, ``min(1, r / m)`` for these, the rest of r for the others. So the gradient is
    the relaxed discount of an item less its ideal one (a Fenchel-Young loss, Blondel et al. 2020),
    and does not vanish for confident mistakes. r = 1 alone is nearly softmax's cross-entropy.

    Args:
        k: the cutoff; 10 without one.
        levels: labels are compared with 1, 2, ..., levels.
        reduction: over lists.
    """

    name: ClassVar[str] = "top_likelihood"

    def __init__(self, k: int | None = None, *, levels: int = 4, reduction: Any = "mean") -> None:
        super().__init__(k, reduction=reduction)
        self.levels = levels

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        scores, mask, k = lists.scores, lists.mask, self.k or 10
        length = mask.sum(-1, keepdim=True)
        ranks = torch.arange(1, k + 1, device=scores.device)
        discounts = torch.cat([1 / torch.log2(1.0 + ranks), torch.zeros_like(scores[0, :1])])
        steps = (discounts[:-1] - discounts[1:]) * (ranks < length)  # [b, k]
        gains = (torch.exp2(lists.labels) - 1) * mask
        ideal = NDCG(k).ideal(gains)[:, None]
        ideal = torch.where(ideal > 0, ideal, 1.0)
        mass, targets = torch.zeros_like(ideal), torch.zeros_like(scores)
        for level in range(1, self.levels + 1):
            above = (lists.labels >= level) & mask
            size = above.sum(-1, keepdim=True)
            weight = 2.0 ** (level - 1) / ideal * ((size > 0) & (size < length))
            inside = (steps * (ranks / size.clamp(min=1)).clamp(max=1.0)).sum(-1, keepdim=True)
            rest = (length - size).clamp(min=1)
            outside = (steps * ((ranks - size) / rest).clamp(min=0.0)).sum(-1, keepdim=True)
            targets = targets + weight * torch.where(above, inside, outside)
            mass = mass + weight
        size = ranks.expand(len(scores), -1).minimum(length.clamp(min=1))
        intercepts = _intercepts(scores.detach(), mask, size, length)
        logits = scores[:, None] - intercepts[..., None]  # [b, k, n]
        potentials = (F.softplus(logits) * mask[:, None]).sum(-1) + size * intercepts
        values = mass[:, 0] * (steps * potentials).sum(-1) - (targets * scores * mask).sum(-1)
        return values, has_pairs(lists.labels, mask)


@losses.register("simulator_likelihood")
class SimulatorLikelihood(StudyLoss):
    """``min_c -Σ_i log P(y_i | s_i + c)``: the likelihood of the simulator's own rule of labels.

    A label is the number of thresholds below ``s_i + c + noise``, with normal noise, known
    thresholds and a generosity c of the list that is fitted (an ordered probit model with an
    intercept of the list). No other loss of the labels estimates scores more precisely from many
    lists, so it says what is left to gain. It knows the simulator and is not for other data.

    Args:
        reduction: over lists.
    """

    name: ClassVar[str] = "simulator_likelihood"

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        scores, mask = lists.scores, lists.mask
        inner = torch.from_numpy(synthetic._THRESHOLDS).to(scores)
        edge = inner.new_tensor([math.inf])
        thresholds = torch.cat([-edge, inner, edge])
        levels = lists.labels.long()
        low, high = thresholds[levels], thresholds[levels + 1]

        def likelihood(scores: Tensor) -> Tensor:
            upper, lower = ((edge - scores) / synthetic._NOISE for edge in (high, low))
            probability = torch.special.ndtr(upper) - torch.special.ndtr(lower)
            return -(probability.clamp(min=1e-30).log() * mask).sum(-1)

        least = torch.full_like(scores[:, :1], -12.0)
        most = -least
        for _ in range(40):  # the likelihood is log-concave in c: bisection of its derivative
            c = ((least + most) / 2).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(likelihood(scores.detach() + c).sum(), c)
            c = c.detach()
            least, most = c.where(gradient < 0, least), c.where(gradient >= 0, most)
        return likelihood(scores + (least + most) / 2), has_pairs(lists.labels, mask)


@relaxations.register("tempered")
@dataclass(frozen=True)
class TemperedRanks(Relaxation):
    """``rank_i = 1 + Σ_{j ≠ i} σ_2(α (s_j - s_i))``: ranks whose derivative has a heavy tail.

    ``σ_2(d) = 1/2 + x / (2 (1 + √(1 + x²)))`` with x = d / 2 is the probability of two classes
    by the tempered softmax of Amid et al. 2019, "Robust bi-tempered logistic loss", eq. 4, with
    t_2 = 2. For a mistake with a score gap d its derivative falls as 1 / d², that of a sigmoid as
    exp(-d).

    Args:
        alpha: inverse temperature α > 0.
    """

    limit: ClassVar[dict[str, Any]] = {"alpha": 1e5}
    forms: ClassVar[tuple[Form, ...]] = ("ranks",)

    alpha: float = 1.0

    def _ranks(self, scores: Tensor, mask: Tensor) -> Tensor:
        sums: Tensor = _TemperedSums.apply(scores * self.alpha, mask)
        return torch.where(mask, sums + 0.5, 0.0)  # 1 minus the 1/2 of the item itself


class _TemperedSums(ListFunction):
    """``Σ_j σ_2(s_j - s_i)`` over the real items j, including i itself, which adds 1/2."""

    @staticmethod
    def forward(scores: Tensor, mask: Tensor) -> Tensor:
        sums = torch.empty_like(scores)
        for rows in tiles(scores.numel(), scores.shape[-1]):
            half = (scores[:, None, :] - scores[:, rows, None]) / 2
            root = (1 + half * half).sqrt_()
            sums[:, rows] = ((0.5 + half / (2 * (1 + root))) * mask[:, None, :]).sum(-1)
        return sums

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scores, mask = ctx.saved_tensors
        grad = torch.where(mask, grad, 0.0)
        result = torch.zeros_like(grad)
        for rows in tiles(scores.numel(), scores.shape[-1]):
            half = (scores[:, None, :] - scores[:, rows, None]) / 2
            root = (1 + half * half).sqrt_()
            derivatives = mask[:, None, :] / (4 * root * (1 + root))
            result[:, rows] -= grad[:, rows] * derivatives.sum(-1)
            result += (derivatives * grad[:, rows, None]).sum(1)
        return result, None


def _intercepts(scores: Tensor, mask: Tensor, size: Tensor, length: Tensor) -> Tensor:
    """The c with ``Σ_i σ(s_i - c) = size``, ``[b, levels]``, by bisection and two Newton steps."""
    rate = (size / length.clamp(min=1)).clamp(1e-4, 1 - 1e-4)
    shift = torch.logit(rate)
    low = scores.masked_fill(~mask, float("inf")).amin(-1, keepdim=True) - shift
    high = scores.masked_fill(~mask, float("-inf")).amax(-1, keepdim=True) - shift
    low, high = low.where(length > 0, 0.0), high.where(length > 0, 0.0)
    for step in range(12):
        middle = (low + high) / 2
        inside = torch.sigmoid(scores[:, None] - middle[..., None]) * mask[:, None]
        excess = inside.sum(-1) - size
        if step >= 10:
            curvature = (inside * (1 - inside)).sum(-1).clamp(min=1e-6)
            newton = (middle + excess / curvature).clamp(low, high)
            low = high = newton
        else:
            low, high = low.where(excess <= 0, middle), high.where(excess > 0, middle)
    return high
