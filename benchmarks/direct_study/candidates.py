"""Losses of the study that are not in the library; registered, so that specs name them.

Every loss of scores has a gradient that is a sum over pairs of items. ``pair_field`` takes the two
factors of each pair apart: a weight, which says what the pair matters to the metric, and the slope
of a function of the score gap, which says how a pair in the wrong order differs from one in the
right order. Relaxed metrics, LambdaRank and LambdaLoss are cells of that table.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad._autograd import differentiable_once
from rankgrad._padded import hard_ranks, has_pairs, log_softmax
from rankgrad._validation import check_choice
from rankgrad.kernels import KernelCall
from rankgrad.lists import Lists
from rankgrad.losses import Loss, losses
from rankgrad.losses._base import reduce
from rankgrad.metrics import NDCG
from rankgrad.sorting import relaxations

WEIGHTS = ("none", "swap", "distance", "tangent")
_LOG2 = math.log(2)
SLOPES = ("logistic", "sigmoid")
_CAPTURED = KernelCall("pair_field", ())  # tells training that a CUDA graph can be made of it


class StudyLoss(Loss):
    """A loss that says ``values``; training can make a CUDA graph of it."""

    def per_list(self, lists: Lists) -> tuple[Tensor, Tensor]:
        return self.values(lists)

    def _reduced(self, lists: Lists, call: KernelCall | None) -> Tensor:
        return reduce(*self.values(lists), lists, self.reduction)

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        return _CAPTURED if lists.flat.scores.is_cuda else None


@losses.register("pair_field")
class PairField(StudyLoss):
    """``Σ_{y_i > y_j} w_ij φ(s_i - s_j)`` with weights that are not differentiated.

    Args:
        k: the cutoff of NDCG.
        weights: ``swap``: the change of NDCG@k when i and j swap, ``|G_i - G_j| |D_i - D_j|``, as
            in LambdaRank. ``distance``: LambdaLoss's, by the distance of the ranks. ``tangent``:
            the derivative of NDCG@k by the rank of i, ``G_i |D'(π_i)|``, on the pairs of i with all
            other items: the weights in the gradient of approx_ndcg. ``none``: 1, as in RankNet.
        slope: ``logistic``: φ = log(1 + exp(-gap)), convex. ``sigmoid``: φ = 1 / (1 + exp(gap)), as
            in relaxed ranks; the gradient of a confident mistake vanishes.
        relaxation: whose ranks or permutation give the discounts D of ``swap`` and ``tangent``;
            empty for the exact ranks.
        gain: ``exponential`` or ``linear``.
        reduction: over lists.
    """

    name: ClassVar[str] = "pair_field"

    def __init__(
        self,
        k: int | None = None,
        *,
        weights: str = "swap",
        slope: str = "logistic",
        relaxation: str = "",
        gain: Literal["exponential", "linear"] = "exponential",
        reduction: Any = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("weights", weights, WEIGHTS)
        check_choice("slope", slope, SLOPES)
        self.weights, self.slope, self.relaxation, self.gain = weights, slope, relaxation, gain
        self._relaxed = relaxations.get(relaxation) if relaxation else None

    def values(self, lists: Lists) -> tuple[Tensor, Tensor]:
        found: Tensor = _FieldSum.apply(lists.scores, self, lists)
        return found, has_pairs(lists.labels, lists.mask)

    def items(self, lists: Lists) -> Tensor:
        """Per item, ``[6, b, n]``: label, gain over the ideal DCG, discount or tangent, rank,
        LambdaLoss's factor past the cutoff, and 1 on real items.
        """
        scores, mask, labels = lists.scores.detach(), lists.mask, lists.labels
        ndcg = NDCG(self.k, gain=self.gain)
        raw = (torch.exp2(labels) - 1 if self.gain == "exponential" else labels) * mask
        ideal = ndcg.ideal(raw)
        gains = raw / torch.where(ideal > 0, ideal, 1.0)[:, None]
        ranks = hard_ranks(scores, mask, labels)
        last = ranks.clamp(min=2.0)
        past = torch.ones_like(ranks)
        if self.k is not None:
            past = torch.where(last > self.k, 1 / (1 - 1 / torch.log2(1 + last)), 1.0)
        second = self._tangents(ranks, scores, mask) * gains
        if self.weights != "tangent":
            second = self._discounts(ranks, scores, mask)
        return torch.stack([labels, gains, second, ranks, past, mask.to(scores.dtype)])

    def _discounts(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        if self._relaxed is not None and self._relaxed.forms[0] == "permutation":
            k = min(self.k or ranks.shape[-1], ranks.shape[-1])
            rows = self._relaxed._permutation(scores, mask, k)
            discounts = 1 / torch.log2(1 + torch.arange(1, k + 1, device=ranks.device))
            return torch.where(mask, discounts.to(rows) @ rows, 0.0)
        ranks = self._soft(ranks, scores, mask)
        discounts = 1 / torch.log2(1 + ranks)
        if self.k is None:
            return discounts
        # A cutoff over soft ranks is soft as well, with a width of one rank.
        return (
            discounts * torch.sigmoid(4 * (self.k + 0.5 - ranks))
            if self._relaxed
            else (torch.where(ranks <= self.k, discounts, 0.0))
        )

    def _tangents(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """``|D'(π)|``; past a cutoff, as at the cutoff times (k / π)²."""
        ranks = self._soft(ranks, scores, mask)
        inside = ranks if self.k is None else ranks.clamp(max=self.k)
        slope = 1 / ((1 + inside) * _LOG2 * torch.log2(1 + inside) ** 2)
        return torch.where(mask, slope * (inside / ranks) ** 2, 0.0)

    def _soft(self, ranks: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        if self._relaxed is None:
            return ranks
        return torch.where(mask, self._relaxed.rank(scores, mask), 1.0).clamp(min=1.0)


class _FieldSum(torch.autograd.Function):
    """The sum over pairs; its gradient is found on the way forward."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, loss: PairField, lists: Lists) -> Tensor:
        items = loss.items(lists)
        if scores.is_cuda:
            from pair_kernel import sum_pairs

            values, gradient = sum_pairs(scores, items, loss.weights, loss.slope)
        else:
            values, gradient = sum_pairs_eager(scores, items, loss.weights, loss.slope)
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None] * gradient, None, None


def sum_pairs_eager(
    scores: Tensor, items: Tensor, weights: str, slope: str
) -> tuple[Tensor, Tensor]:
    """Values ``[b]`` and gradients ``[b, n]`` in plain PyTorch: what the kernel computes."""
    labels, gains, second, ranks, past, real = items
    gaps = scores[:, :, None] - scores[:, None, :]
    pairs = real[:, :, None] * real[:, None, :]
    preferred = pairs * (labels[:, :, None] > labels[:, None, :])
    if weights == "tangent":
        eye = torch.eye(scores.shape[-1], device=scores.device)
        found = second[:, :, None] * pairs * (1 - eye)
    elif weights == "none":
        found = preferred
    else:
        found = preferred * (gains[:, :, None] - gains[:, None, :]).abs()
        if weights == "swap":
            found = found * (second[:, :, None] - second[:, None, :]).abs()
        else:
            apart = (ranks[:, :, None] - ranks[:, None, :]).abs().clamp(min=1.0)
            found = found * (1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart))
            lower = ranks[:, :, None] > ranks[:, None, :]
            found = found * torch.where(lower, past[:, :, None], past[:, None, :])
    chance = torch.sigmoid(-gaps)
    term = F.softplus(-gaps) if slope == "logistic" else chance
    steep = found * (chance if slope == "logistic" else chance * (1 - chance))
    return (found * term).sum((-2, -1)), steep.sum(-2) - steep.sum(-1)


@losses.register("mixed")
class Mixed(StudyLoss):
    """``first + weight × second``.

    Args:
        first: a loss, or its spec.
        second: another.
        weight: of the second.
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
        (one, here), (two, there) = (part.values(lists) for part in self.parts)
        return one.where(here, 0.0) + self.weight * two.where(there, 0.0), here & there

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        calls = [part.kernel_call(lists) for part in self.parts]
        return None if None in calls else _CAPTURED

    @property
    def is_stationary(self) -> bool:
        return all(part.is_stationary for part in self.parts)


@losses.register("by_member")
class ByMember(StudyLoss):
    """One loss for the first half of a batch's lists, another for the rest.

    In training, the lists of an ensemble stand member after member: half of the members are trained
    on one loss, half on the other.

    Args:
        first: a loss, or its spec.
        second: another.
        scale: of the second.
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
        found = []
        for part, own in zip(self.parts, (slice(half), slice(half, None)), strict=True):
            arrays = (lists.scores[own], lists.labels[own], lists.mask[own])
            found.append(part.values(Lists.from_padded(*arrays, None)))
        (one, here), (two, there) = found
        return torch.cat([one, self.scale * two]), torch.cat([here, there])

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        calls = [part.kernel_call(lists) for part in self.parts]
        return None if None in calls else _CAPTURED

    @property
    def is_stationary(self) -> bool:
        return all(part.is_stationary for part in self.parts)


@losses.register("rank_bound")
class RankBound(StudyLoss):
    """``Σ_i G_i f(1 / p_i) / ideal DCG@k`` with ``p = softmax(s)``.

    ``1 / p_i = Σ_j exp(s_j - s_i)`` bounds the rank of i from above, so that with f = 1 - D it is a
    bound of 1 - NDCG; with f = log it is the cross-entropy of softmax with gains as targets. Past a
    confident mistake of gap d, the gradient falls as 1 / d² for NDCG's D, where that of a sigmoid
    falls as exp(-d), and not at all for the logarithm.

    Args:
        k: the cutoff of the ideal DCG.
        of: f of the rank r: ``power``, with the derivative ``(1 + log r)^-p`` by log r, or
            ``ndcg``: 1 - D.
        p: of ``power``. With 0, f is the logarithm; with 1, ``log(1 + log r)``; with 2 it bends as
            much as NDCG's.
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
        terms = gains * self._of_rank(-log_softmax(lists.scores, lists.mask))
        values = terms.where(lists.mask, 0.0).sum(-1)
        if self.ideal:
            ideal = NDCG(self.k).ideal(gains)
            values = values / torch.where(ideal > 0, ideal, 1.0)
        return values, has_pairs(lists.labels, lists.mask)

    def _of_rank(self, log_rank: Tensor) -> Tensor:
        if self.of == "ndcg":  # log2(1 + r) = log2(r) + log2(1 + 1 / r), for any size of r
            return 1 - _LOG2 / (log_rank + torch.log1p(torch.exp(-log_rank)))
        if self.p == 1:
            return torch.log1p(log_rank)
        return ((1 + log_rank) ** (1 - self.p) - 1) / (1 - self.p)


@losses.register("standardized")
class Standardized(StudyLoss):
    """A loss of scores brought to mean 0 and a deviation of ``scale`` within each list.

    Args:
        loss: or its spec.
        scale: the deviation.
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
        apart = (lists.scores - mean) * mask
        variance = apart.square().sum(-1, keepdim=True) / count
        scores = self.scale * apart / (variance + 1e-6).sqrt()
        own = Lists.from_padded(scores, lists.labels, mask, lists.item_weights)
        return self.inner.values(own)

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
