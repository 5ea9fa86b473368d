"""Listwise losses by likelihood: softmax, listnet, listmle, listap, neuralsort_ce."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankgrad.kernels import KernelCall
from rankgrad.lists import Lists, Randomness, Reduction, divide, log_softmax, splitmix
from rankgrad.losses.base import Loss, has_relevant, losses
from rankgrad.options import check_choice, check_positive
from rankgrad.sorting import Exact, NeuralSort, Schedule


class ListwiseLoss(Loss):
    """A loss of whole lists, without a cutoff; defined from two items on."""

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)


@losses.register("softmax")
class Softmax(ListwiseLoss):
    """``-Σ_i y_i log softmax(s)_i`` (lambdaloss_at_k eq. 7), labels as they are.

    >>> Softmax()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    name: ClassVar[str] = "softmax"

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        terms = lists.labels * log_softmax(lists.scores, lists.mask)
        return -lists.weighted(terms).sum(-1), has_relevant(lists)

    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("cross_entropy", ("label",))


@losses.register("listnet")
class ListNet(ListwiseLoss):
    """``-Σ_i softmax(y)_i log softmax(s)_i`` (Cao et al. 2007, top-one probabilities).

    >>> ListNet()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    name: ClassVar[str] = "listnet"

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        target = log_softmax(lists.labels, lists.mask).exp()
        terms = target * log_softmax(lists.scores, lists.mask)
        return -lists.weighted(terms).sum(-1), lists.lengths > 1

    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("cross_entropy", ("softmax",))


@losses.register("listmle")
class ListMLE(ListwiseLoss):
    """``-Σ_r [s_(r) - log Σ_{l>=r} exp(s_(l))]``, items by descending label (Xia et al. 2008).

    One sort and one reversed cumulative log-sum-exp.

    Args:
        ties: equal labels are ordered at random each time (``"shuffle"``), or as they came
            (``"stable"``), which leaks the order of files sorted by label.
        seed: of the shuffle, a number or a ``torch.Generator``; None for PyTorch's own.
        reduction: over lists.

    >>> ListMLE()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    name: ClassVar[str] = "listmle"

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

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        order = self._order(lists)
        inside = lists.mask.gather(-1, order)
        ranked = lists.scores.gather(-1, order)
        # Padding comes last; a finite floor keeps the backward pass of the sums free of NaN.
        tail = torch.where(inside, ranked, -1e30).flip(-1).logcumsumexp(-1).flip(-1)
        terms = torch.where(inside, tail - ranked, 0.0)
        if lists.item_weights is not None:
            terms = terms * lists.item_weights.gather(-1, order)
        return terms.sum(-1), lists.lengths > 1

    def kernel(self, lists: Lists) -> KernelCall | None:
        seed = None
        if self.ties == "shuffle":  # drawn on the device, so that a CUDA graph draws anew, too
            seed = self._random.draw_seed(lists.flat.scores.device)
        return KernelCall("listmle", (seed,))

    def _order(self, lists: Lists) -> Tensor:
        keys = lists.labels.masked_fill(~lists.mask, -1.0)
        if self.ties == "stable":
            return keys.argsort(dim=-1, descending=True, stable=True)
        places = lists.mask.cumsum(-1) - 1
        drawn = splitmix(self._random.draw_seed(keys.device), places + 1)
        numbers = ((drawn >> 32) & 0xFFFFFFFF).masked_fill(~lists.mask, -1)
        shuffled = numbers.argsort(dim=-1, descending=True, stable=True)
        by_label = keys.gather(-1, shuffled).argsort(dim=-1, descending=True, stable=True)
        order: Tensor = shuffled.gather(-1, by_label)
        return order


@losses.register("listap")
class ListAP(ListwiseLoss):
    """``1 - AP`` over histograms of the scores' sigmoids (Revaud et al. 2019).

    An item at x counts ``max(0, 1 - |x - c_m| / Δ)`` in the bin with centre ``c_m``; precision is
    cumulative over the bins from the top, recall the part of the relevant items in each.

    Args:
        bins: how many, evenly spaced over [0, 1]. An even number keeps a score of 0, where networks
            start, off the bin centres, which have no derivative.
        threshold: the label from which an item is relevant.
        reduction: over lists.

    >>> ListAP()(torch.tensor([9.0, -9.0]), torch.tensor([1, 0]))
    tensor(0.)
    """

    name: ClassVar[str] = "listap"

    def __init__(
        self, *, bins: int = 20, threshold: float = 1.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:
            raise ValueError(f"bins must be a whole number of at least 2, found {bins!r}")
        check_positive("threshold", threshold)
        self.bins = bins
        self.threshold = threshold

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        centres = torch.arange(self.bins - 1, -1, -1, device=lists.scores.device).to(lists.scores)
        places = lists.scores.sigmoid()[:, :, None] * (self.bins - 1)
        member = (1 - (places - centres).abs()).clamp(min=0.0) * lists.mask[:, :, None]
        relevance = (lists.labels >= self.threshold) * lists.mask
        relevant = (member * relevance[:, :, None]).sum(1)
        weighted = (member * lists.weighted(relevance.to(member.dtype))[:, :, None]).sum(1)
        precision = divide(relevant.cumsum(-1), member.sum(1).cumsum(-1))
        average = divide((precision * weighted).sum(-1), weighted.sum(-1))
        return 1 - average, has_relevant(lists, self.threshold)


@losses.register("neuralsort_ce")
class NeuralSortCE(Loss):
    """Cross-entropy of the label's permutation matrix and NeuralSort's (pirank §4.1's baseline).

    ``-(1 / n) Σ_r Σ_j P*_rj log P_rj``. Items of equal label share their ranks in ``P*`` equally.

    Args:
        k: only the first k ranks.
        temperature: of NeuralSort, or a schedule.
        reduction: over lists.

    >>> NeuralSortCE()(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.6931)
    """

    name: ClassVar[str] = "neuralsort_ce"

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

    def per_list(self, lists: Lists) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
        n = lists.mask.shape[-1]
        k = n if self.k is None else min(self.k, n)
        target = Exact().permutation(lists.labels, lists.mask, k)
        relaxation = self.relaxation.at(self.progress)
        terms = target * relaxation.log_permutation(lists.scores, lists.mask, k)
        total = -lists.weighted(terms.sum(1)).sum(-1)
        return total / lists.lengths.clamp(min=1, max=k), lists.lengths > 1
