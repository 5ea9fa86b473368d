"""Listwise losses outside the grid of relaxations and metrics: each is one formula over a list.

Cross-entropies of a softmax (softmax, listnet, ndcg_bound), the likelihoods of label levels
(ordered_logit) and of a permutation (listmle), AP over histograms (listap), and the cross-entropy
of NeuralSort's matrix (neuralsort_ce). :class:`rankgrad.losses.Loss` calls ``per_list`` or the
kernel that ``kernel`` names, and ``derivatives`` for gradient boosting. It explains the class
attributes ``linear_memory`` and ``capturable``.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from rankgrad._padded import Randomness, divide, log_softmax, splitmix
from rankgrad._shapes import Bool, Float, ItemMask, ItemValues, Labels, ListMask, ListValues, Mask
from rankgrad._validation import check_choice, check_positive, check_whole, initial_value
from rankgrad.kernels import KernelCall, ready
from rankgrad.lists import Lists, is_unchecked
from rankgrad.losses._base import Loss, LossWithoutCutoff, Reduction, has_relevant, losses
from rankgrad.losses._newton import LEAST_CURVATURE
from rankgrad.metrics import NDCG
from rankgrad.metrics._base import Gain
from rankgrad.sorting import NeuralSort, Schedule

__all__ = [
    "CrossEntropy",
    "ListAP",
    "ListMLE",
    "ListNet",
    "NDCGBound",
    "NeuralSortCE",
    "OrderedLogit",
    "Softmax",
]


class CrossEntropy(Loss):
    """``-Σ_i t_i log softmax(s)_i``; a subclass defines the targets t."""

    linear_memory: ClassVar[bool] = True

    def targets(self, lists: Lists) -> ItemValues:
        """The target of each item, ``[b, n]``, without its weight; of any value on padding.

        Args:
            lists: the lists.

        Returns:
            ``[b, n]``.

        Raises:
            TypeError: the class does not define its targets.
        """
        raise TypeError(f"{type(self).__name__} does not say its targets")

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """The gradient and Hessian diagonal ``[b, n]``, and which lists ``[b]`` have a loss.

        They are ``g = T p - t`` and ``h = T p (1 - p)``, with ``p = softmax(s)``, weighted targets
        t and ``T = Σ t``: exact where the targets do not depend on the scores; for others see
        :meth:`NDCGBound.targets`. Only, ``p (1 - p)`` is clamped to at least
        :data:`LEAST_CURVATURE`, and where p is near 1, it has the rounding error of p.
        """
        targets = lists.weighted(self.targets(lists)).where(lists.mask, 0.0)
        total = targets.sum(-1, keepdim=True)
        p = log_softmax(lists.scores, lists.mask).exp().where(lists.mask, 0.0)
        others = p.sum(-1, keepdim=True) - p  # 1 - p, but never negative by rounding
        curvature = (p * others).clamp(min=LEAST_CURVATURE)
        return total * p - targets, total * curvature, self.per_list(lists)[1]


@losses.register("softmax")
class Softmax(CrossEntropy, LossWithoutCutoff):
    """``-Σ_i y_i log softmax(s)_i`` (Jagerman et al. 2022, eq. 7), labels as they are.

    Args:
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> Softmax()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    @override
    def targets(self, lists: Lists) -> ItemValues:
        return lists.labels

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        terms = lists.labels * log_softmax(lists.scores, lists.mask)  # log_softmax: 0 on padding
        return -lists.weighted(terms).sum(-1), has_relevant(lists)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("cross_entropy", ("label",))


@losses.register("listnet")
class ListNet(CrossEntropy, LossWithoutCutoff):
    """``-Σ_i softmax(y)_i log softmax(s)_i`` (Cao et al. 2007, top-one probabilities).

    Args:
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> ListNet()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    @override
    def targets(self, lists: Lists) -> ItemValues:
        """``softmax(y)``, ``[b, n]``; 1 on padding."""
        return log_softmax(lists.labels, lists.mask).exp()

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        terms = self.targets(lists) * log_softmax(lists.scores, lists.mask)  # 0 on padding
        return -lists.weighted(terms).sum(-1), lists.lengths > 1

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("cross_entropy", ("softmax",))


@losses.register("ndcg_bound")
class NDCGBound(CrossEntropy):
    """``Σ_i G_i φ(r_i) / ideal DCG@k``, ``r_i = 1 / softmax(s)_i``: upper bound of ``1 - NDCG@k``.

    It is a bound as ``Σ G`` is at least the ideal DCG@k, ``r_i = Σ_j exp(s_j - s_i)`` at least the
    rank of item i, and φ(r) at least what NDCG@k loses at rank r: ``1 - 1 / log2(1 + r)`` at ranks
    up to k, and 1 at later ranks. (The last holds for φ = log if k is at least 2, for loglog if k
    is at least 5; for smaller k up to a factor.) Bruch et al. 2019 prove the bound with φ = log for
    binary labels. XE-NDCG (Bruch 2021, LightGBM's ``rank_xendcg``) is the same cross-entropy with
    randomized gains that are divided by their sum, not by the ideal DCG. O(n log n) for the ideal
    DCG, O(n) for the rest, without pairs.

    Args:
        k: the cutoff of the ideal DCG.
        penalty: φ. ``"log"``: log r, which makes it a cross-entropy and convex. ``"loglog"``:
            log(1 + log r), which gives items far down the list less weight.
        gain: G, ``"exponential"``, ``2^y - 1``, or ``"linear"``, y.
        reduction: over lists.

    >>> NDCGBound()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    capturable: ClassVar[bool] = True

    def __init__(
        self,
        k: int | None = None,
        *,
        penalty: Literal["log", "loglog"] = "log",
        gain: Gain = "exponential",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("penalty", penalty, ("log", "loglog"))
        check_choice("gain", gain, ("exponential", "linear"))
        self.penalty: Literal["log", "loglog"] = penalty
        self.gain: Gain = gain

    @override
    def check_labels(self, labels: Labels, mask: Mask | None) -> Labels:
        return NDCG(gain=self.gain).check_labels(labels, mask)

    @override
    def targets(self, lists: Lists) -> ItemValues:
        """The targets ``G_i r_i φ'(r_i) / ideal DCG@k``.

        The cross-entropy with these targets has the gradient of the loss. φ is concave in log r, so
        this cross-entropy plus a constant is an upper bound of the loss, and its curvature is an
        upper bound of the loss's curvature.
        """
        targets = self._normalized_gains(lists)
        if self.penalty == "log":
            return targets
        return targets / (1 - log_softmax(lists.scores, lists.mask))

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        penalties = -log_softmax(lists.scores, lists.mask)
        if self.penalty == "loglog":
            penalties = torch.log1p(penalties)
        terms = lists.weighted(self._normalized_gains(lists) * penalties)
        return terms.sum(-1), has_relevant(lists)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        if self.penalty != "log":
            return None  # the eager form
        return KernelCall("ndcg_bound", (self.k or 0, self.gain))

    def _normalized_gains(self, lists: Lists) -> ItemValues:
        """Gains over the ideal DCG@k of the weighted gains, as in NDCG@k; 0 on padding."""
        metric = NDCG(self.k, gain=self.gain)
        gains = metric.gains(lists.labels.where(lists.mask, 0.0))
        return divide(gains, metric.ideal(lists.weighted(gains))[:, None])


@losses.register("ordered_logit")
class OrderedLogit(LossWithoutCutoff):
    """``Σ_{l=1}^{levels-1} min_c Σ_i w_i BCE(σ(s_i - c), 1[y_i >= l])``: a likelihood of grades.

    It is a logistic regression for each label level l, whose intercept c is fitted in each list: an
    ordered logit model with fixed effects of lists (Baetschmann et al. 2015, there conditional on
    how many items reach a level; for long lists both likelihoods are nearly the same). The gradient
    is ``Σ_l w_i (σ(s_i - c_l) - 1[y_i >= l])``, and sums to 0 at each level. The loss is convex and
    needs no pairs. softmax of whole labels is the same likelihood for items drawn with replacement,
    where the relevant items of a list compete with each other. A level that all items of a list
    reach, or none, adds nothing. w are the weights of items, 1 without any.

    Args:
        levels: the number of relevance levels, 5 for labels 0 to 4, at most 1,000. A higher label
            counts as the highest level.
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> OrderedLogit()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(1.3863)
    """

    linear_memory: ClassVar[bool] = True
    capturable: ClassVar[bool] = True

    def __init__(self, *, levels: int = 5, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.levels = check_whole("levels", levels, least=2, most=_MAX_LEVELS)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("ordered_logit", (self.levels,))

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        levels = _Levels.of(lists, self.levels)
        intercepts = levels.fit_intercepts()
        # The derivative of the intercept by the scores. It does not change the gradient, as the
        # loss is at its minimum in c, but second derivatives.
        excess, slope = levels.excess(intercepts)
        intercepts = intercepts + divide(excess - excess.detach(), slope.detach())
        terms = -levels.weights * F.logsigmoid(-levels.logits(intercepts))
        return (terms.sum(-1) * levels.splits).sum(-1), levels.splits.any(-1)

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """The gradient and Hessian diagonal ``[b, n]``, and which lists ``[b]`` have a loss.

        With ``p = σ(s - c_l)`` and ``a = w p (1 - p)``, they are sums over levels of
        ``w (p - 1[y >= l])`` and ``a (1 - a / Σ a)``, where ``a² / Σ a`` is what the intercept
        takes off. Each term of the Hessian is clamped to at least ``LEAST_CURVATURE w``.
        """
        levels = _Levels.of(lists, self.levels)
        logits = levels.logits(levels.fit_intercepts())
        curvature = levels.weights * logits.sigmoid() * (-logits).sigmoid()
        total = curvature.sum(-1, keepdim=True)
        curvature = curvature * divide((total - curvature).clamp(min=0.0), total)
        curvature = torch.maximum(curvature, LEAST_CURVATURE * levels.weights)
        gradient, hessian = (
            (terms * levels.splits[..., None]).sum(1)
            for terms in (levels.weights * levels.signs * logits.sigmoid(), curvature)
        )
        return gradient, hessian, levels.splits.any(-1)


class _Levels(NamedTuple):
    """The logistic regressions of all label levels l of a batch, for :class:`OrderedLogit`.

    With the signs, the probability of an error is ``e = σ(sign (s - c))``, and no term cancels,
    however unequal the two sides of a level are.

    Attributes:
        scores: ``[b, 1, n]``.
        weights: of the items, 0 on padding, ``[b, 1, n]``.
        signs: -1 for items at or above a level, 1 below, ``[b, l, n]``.
        splits: whether some items of the list reach the level, and some do not, ``[b, l]``.
    """

    scores: Float[Tensor, "b 1 n"]
    weights: Float[Tensor, "b 1 n"]
    signs: Float[Tensor, "b l n"]
    splits: Bool[Tensor, "b l"]

    @classmethod
    def of(cls, lists: Lists, levels: int) -> _Levels:
        """The regressions of lists at the levels 1 to ``levels - 1``."""
        weights = lists.weighted(lists.mask.to(lists.scores))[:, None]
        level = torch.arange(1, levels, device=lists.scores.device)[:, None]
        is_above, counts = lists.labels[:, None] >= level, weights > 0
        splits = (is_above & counts).any(-1) & (~is_above & counts).any(-1)
        signs = 1 - 2 * is_above.to(lists.scores)
        return cls(lists.scores[:, None], weights, signs, splits)

    def logits(self, intercepts: Float[Tensor, "b l"]) -> Float[Tensor, "b l n"]:
        """``sign (s - c)``, the logits of errors: above 0 on the wrong side of an intercept."""
        return self.signs * (self.scores - intercepts[..., None])

    def excess(
        self, intercepts: Float[Tensor, "b l"]
    ) -> tuple[Float[Tensor, "b l"], Float[Tensor, "b l"]]:
        """``Σ w sign e``, which decreases in c, and minus its derivative, ``Σ w e (1 - e)``."""
        logits = self.logits(intercepts)
        errors = self.weights * logits.sigmoid()
        return (self.signs * errors).sum(-1), (errors * (-logits).sigmoid()).sum(-1)

    def fit_intercepts(self) -> Float[Tensor, "b l"]:
        """The c at which the errors of both sides have equal weight; 0 without a split.

        It is between the least and the largest score, both less the log odds of the weights.
        Bisection, then Newton's method: the slope of the excess changes by less than a factor of
        ``exp(w)`` in an interval of width w, so that Newton's method converges in a narrow one.
        """
        with torch.no_grad():
            above, below = ((self.weights * (self.signs == sign)).sum(-1) for sign in (-1, 1))
            shift = (above.log() - below.log()).where(self.splits, 0.0)
            counts = self.weights > 0
            least = self.scores.masked_fill(~counts, torch.inf).amin(-1)
            most = self.scores.masked_fill(~counts, -torch.inf).amax(-1)
            low, high = ((bound - shift).where(self.splits, 0.0) for bound in (least, most))
            # On a GPU, to look at values would wait, and a CUDA graph has a fixed number of steps.
            may_stop = not self.scores.is_cuda and not is_unchecked(self.scores, self.signs)
            for _ in range(_BISECTIONS):
                if may_stop and bool((high - low <= _NEWTON_WIDTH).all()):
                    break
                intercepts = (low + high) / 2
                is_below = self.excess(intercepts)[0] > 0
                low, high = intercepts.where(is_below, low), high.where(is_below, intercepts)
            intercepts = (low + high) / 2
            for _ in range(_NEWTON_STEPS):
                excess, slope = self.excess(intercepts)
                newton = (intercepts + excess / slope).clamp(low, high)
                intercepts = newton.where(slope > 0, intercepts)
            return intercepts


_MAX_LEVELS = 1000
#: Of the search for intercepts, where scores are up to 4e6 apart. From an error of half the width,
#: five Newton steps reach the precision of float64.
_BISECTIONS, _NEWTON_WIDTH, _NEWTON_STEPS = 24, 0.25, 5


@losses.register("listmle")
class ListMLE(LossWithoutCutoff):
    """``-Σ_r [s_(r) - log Σ_{l>=r} exp(s_(l))]``, items by descending label (Xia et al. 2008).

    One sort and one reversed cumulative log-sum-exp.

    Args:
        ties: equal labels are ordered at random at each call (``"shuffle"``), or in input order
            (``"stable"``), which leaks the order of files that are sorted by label.
        seed: of the shuffle, a number or a ``torch.Generator``; None for PyTorch's own.
        reduction: over lists.

    >>> ListMLE()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    linear_memory: ClassVar[bool] = True

    def __init__(
        self,
        *,
        ties: Literal["shuffle", "stable"] = "shuffle",
        seed: int | torch.Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        check_choice("ties", ties, ("shuffle", "stable"))
        self.ties = ties
        self._random = Randomness(seed)
        self.seed = self._random.seed

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        order, inside, scores, tail = self._by_label(lists)
        terms = torch.where(inside, tail - scores, 0.0)
        if lists.item_weights is not None:
            terms = terms * lists.item_weights.gather(-1, order)
        return terms.sum(-1), lists.lengths > 1

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """The gradient and Hessian diagonal ``[b, n]``, and which lists ``[b]`` have a loss.

        They are ``g_m = Σ_{r<=m} w_r q_rm - w_m`` and ``h_m = Σ_{r<=m} w_r q_rm (1 - q_rm)``. Items
        are in descending order of label, and ``q_rm = exp(s_m) / Σ_{l>=r} exp(s_l)`` is the
        probability that item m is drawn at step r. With ``T_r = Σ_{l>=r} exp(s_l)`` and
        ``Q_m = Σ_{r<=m} w_r / T_r²``, the Hessian is a sum without cancellation::

            h_m = exp(s_m) (T_{m+1} Q_m + Σ_{l<m} exp(s_l) Q_l)

        It is clamped to at least ``LEAST_CURVATURE Σ_{r<=m} w_r``. All sums are cumulative
        log-sum-exps.
        """
        order, inside, scores, tail = self._by_label(lists)
        weights = lists.weighted(lists.mask.to(scores)).gather(-1, order)
        log_weights = torch.where(inside, weights.log(), float("-inf"))
        steps = (log_weights - tail).where(inside, float("-inf"))  # log(w_r / T_r)
        expected = (scores + steps.logcumsumexp(-1)).exp().where(inside, 0.0)  # Σ_{r<=m} w_r q_rm
        gradient = torch.zeros_like(scores).scatter(-1, order, expected - weights)
        squares = (log_weights - 2 * tail).where(inside, float("-inf")).logcumsumexp(-1)  # log Q_m
        before = (scores + squares).where(inside, float("-inf")).logcumsumexp(-1).roll(1, -1)
        after = tail.roll(-1, -1)  # log T_{m+1}
        before[:, 0] = after[:, -1] = float("-inf")
        curvature = (scores + torch.logaddexp(after + squares, before)).exp()
        least = LEAST_CURVATURE * weights.cumsum(-1)
        curvature = torch.maximum(curvature, least).where(inside, 0.0)
        hessian = torch.zeros_like(scores).scatter(-1, order, curvature)
        return gradient, hessian, lists.lengths > 1

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        if not ready("listmle", lists.flat.scores):
            return None  # do not draw a seed here: the eager form draws its own
        seed = None
        if self.ties == "shuffle":  # on the device, so that each replay of a CUDA graph draws anew
            seed = self._random.draw_seed(lists.flat.scores.device)
        return KernelCall("listmle", (seed,))

    def _by_label(self, lists: Lists) -> tuple[Tensor, ItemMask, ItemValues, ItemValues]:
        """The lists ordered by descending label, padding last; all ``[b, n]``.

        Returns:
            The item at each position; whether it is real; its score; and the tail of position r,
            ``log Σ_{l>=r} exp(s_(l))`` over the items from r on.
        """
        order = self._order(lists)
        inside = lists.mask.gather(-1, order)
        scores = lists.scores.gather(-1, order)
        # Padding comes last. There, -1e30 adds nothing to the sums of real items; as it is finite,
        # unlike -inf, the backward pass of the sums is free of NaN.
        tail = torch.where(inside, scores, -1e30).flip(-1).logcumsumexp(-1).flip(-1)
        return order, inside, scores, tail

    def _order(self, lists: Lists) -> Tensor:
        """The items by descending label, padding last, ``[b, n]``; ``ties`` orders equal labels."""
        keys = lists.labels.masked_fill(~lists.mask, -1.0)  # labels are at least 0
        if self.ties == "stable":
            return keys.argsort(dim=-1, descending=True, stable=True)
        # Shuffle as the kernel does: by the upper 32 bits of a hash of the seed and of the item's
        # position among the real items. Then a stable sort by label keeps ties in this order.
        hashes = splitmix(self._random.draw_seed(keys.device), lists.mask.cumsum(-1))
        numbers = ((hashes >> 32) & 0xFFFFFFFF).masked_fill(~lists.mask, -1)
        shuffled = numbers.argsort(dim=-1, descending=True, stable=True)
        by_label = keys.gather(-1, shuffled).argsort(dim=-1, descending=True, stable=True)
        order: Tensor = shuffled.gather(-1, by_label)
        return order


@losses.register("listap")
class ListAP(LossWithoutCutoff):
    """``1 - AP`` over histograms of the scores' sigmoids (Revaud et al. 2019).

    An item at ``x = sigmoid(s)`` counts ``max(0, 1 - |x - c_m| / Δ)`` in the bin with center
    ``c_m``, where Δ is the distance of neighboring centers. Precision is cumulative over the bins
    from the top; each bin counts with its share of the relevant items.

    Args:
        bins: how many, evenly spaced over [0, 1]. An even number keeps a score of 0, where networks
            start, off the bin centers, which have no derivative.
        threshold: the label from which an item is relevant.
        reduction: over lists.

    >>> ListAP()(torch.tensor([9.0, -9.0]), torch.tensor([1, 0]))
    tensor(0.)
    """

    capturable: ClassVar[bool] = True

    def __init__(
        self, *, bins: int = 20, threshold: float = 1.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        check_positive("threshold", threshold)
        self.bins = check_whole("bins", bins, least=2)
        self.threshold = threshold

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        # Positions [b, n, 1] and bin centers [bins], the top bin first, are in units of Δ.
        centers = torch.arange(self.bins - 1, -1, -1, device=lists.scores.device).to(lists.scores)
        positions = lists.scores.sigmoid()[:, :, None] * (self.bins - 1)
        # How much each item counts in each bin, [b, n, bins]
        counts = (1 - (positions - centers).abs()).clamp(min=0.0) * lists.mask[:, :, None]
        relevance = (lists.labels >= self.threshold) * lists.mask
        # The relevant items in each bin, [b, bins]; then the same with weights
        relevant = (counts * relevance[:, :, None]).sum(1)
        weighted = (counts * lists.weighted(relevance.to(counts.dtype))[:, :, None]).sum(1)
        precision = divide(relevant.cumsum(-1), counts.sum(1).cumsum(-1))
        average = divide((precision * weighted).sum(-1), weighted.sum(-1))
        return 1 - average, has_relevant(lists, self.threshold)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("listap", (self.bins, self.threshold))


@losses.register("neuralsort_ce")
class NeuralSortCE(Loss):
    """Cross-entropy of the label's permutation matrix and NeuralSort's (Swezey et al. 2021).

    ``-(1 / n) Σ_r Σ_j P*_rj log P_rj`` (§4.1) with the list's length n. Items of equal label share
    their ranks in ``P*`` equally.

    Args:
        k: only the first k ranks are summed, and ``min(k, n)`` replaces n; None for all.
        temperature: of NeuralSort, or a schedule.
        reduction: over lists.

    >>> NeuralSortCE()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    capturable: ClassVar[bool] = True

    def __init__(
        self,
        k: int | None = None,
        *,
        temperature: float | Schedule = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        self.relaxation = NeuralSort(temperature)
        self.temperature = self.relaxation.temperature

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        width = lists.mask.shape[-1]  # of padded lists
        k = width if self.k is None else min(self.k, width)
        relaxation = self.relaxation.at(self.progress)
        item_terms = relaxation.cross_entropy(lists.scores, lists.labels, lists.mask, k)
        total = lists.weighted(item_terms).sum(-1)
        return total / lists.lengths.clamp(min=1, max=k), lists.lengths > 1

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        relaxation = self.relaxation.at(self.progress)
        call = relaxation.kernel() if relaxation.kernel_applies else None
        if call is None or call.name != "neuralsort":
            return None
        return KernelCall("neuralsort_ce", (self.k or 0, *call.options))

    @property
    @override
    def score_scale(self) -> float:
        return initial_value(self.relaxation.at(self.progress).temperature)
