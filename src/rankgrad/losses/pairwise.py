"""Pairwise losses: sums over pairs of items.

ranknet and hinge sum over the pairs with unequal labels, margin_mse over all pairs. The lambda
losses (:mod:`rankgrad.losses.lambdaloss`) derive from :class:`PairwiseLoss`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from rankgrad._autograd import differentiable_once
from rankgrad._padded import hard_ranks, has_pairs, tiles
from rankgrad._shapes import Float, ItemMask, ItemValues, ListMask, ListValues
from rankgrad._validation import as_temperature, check_choice, check_positive
from rankgrad.kernels import KernelCall, _pair_derivatives
from rankgrad.kernels.arguments import PairOptions
from rankgrad.kernels.declared import declaration_applies
from rankgrad.lists import Lists
from rankgrad.losses._base import Loss, LossWithoutCutoff, Reduction, losses
from rankgrad.losses._newton import LEAST_CURVATURE, sigmoid_derivative
from rankgrad.sorting import Schedule

__all__ = [
    "GradientMap",
    "Hinge",
    "LogisticPairs",
    "MarginMSE",
    "PairWeights",
    "PairwiseLoss",
    "RankNet",
    "preferred",
    "restrict_to_top",
]

#: The weights of pairs (i, j), by tile: a slice of items i gives ``[b, rows, n]``.
PairWeights = Callable[[slice], Tensor]
#: φ and its derivative at score differences.
_PairTerm = Callable[[Tensor], tuple[Tensor, Tensor]]
#: A function of per-item gradients, ``[b, n]`` to ``[b, n]``.
GradientMap = Callable[[Tensor], Tensor]


class PairwiseLoss(Loss):
    """``Σ_{i,j} weight_ij φ(s_i - s_j)``, computed in tiles: O(n²) time, O(n) memory.

    A subclass defines ``term``, φ with its derivative, and may define ``pair_weights``. The weights
    are not differentiated. The weight of an item multiplies the pairs in which it is preferred.
    """

    #: Whether :meth:`newton_kernel` computes what this class computes; see ``kernel_applies``.
    newton_kernel_applies: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.newton_kernel_applies = declaration_applies(cls, frozenset({"newton_kernel"}))

    def term(self, differences: Tensor) -> tuple[Tensor, Tensor]:
        """φ and its derivative at the score differences.

        Args:
            differences: ``s_i - s_j``, of any shape.

        Returns:
            φ and its derivative, of the same shape.

        Raises:
            TypeError: the class does not define its value per pair.
        """
        raise TypeError(f"{type(self).__name__} does not say its value per pair")

    def pair_weights(self, lists: Lists) -> PairWeights:
        """A function that gives the weights of the pairs of a tile, ``[b, rows, n]``.

        Args:
            lists: the lists.

        Returns:
            The function, from a slice of items i to the weights of their pairs with all items.
        """
        in_top = self._in_top(lists)

        def weigh(rows: slice) -> Tensor:
            return restrict_to_top(preferred(lists, rows), in_top, rows)

        return weigh

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        weights = lists.item_weights
        if weights is not None and weights.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{self.name} is not differentiable with respect to item weights: give "
                "weights.detach(), or one weight per list"
            )
        weigh, average = self._item_weighted_pairs(lists), self.average_duplicates(lists)
        values: Tensor = _PairSum.apply(lists.scores, weigh, self.term, average)[0]
        return values, has_pairs(lists.labels, lists.mask)

    def _item_weighted_pairs(self, lists: Lists) -> PairWeights:
        """:meth:`pair_weights` times the item weight of the first item of each pair."""
        weigh, weights = self.pair_weights(lists), lists.item_weights
        return weigh if weights is None else lambda rows: weigh(rows) * weights[:, rows, None]

    def average_duplicates(self, lists: Lists) -> GradientMap:
        """A function that averages a gradient over duplicates; see :func:`_duplicate_average`.

        Args:
            lists: the lists.

        Returns:
            The function, from ``[b, n]`` to ``[b, n]``.
        """
        return _duplicate_average(lists)

    def curvature(self, differences: Tensor) -> Tensor:
        """φ'' at the score differences, or a positive bound of it; here ``|φ'|``.

        Args:
            differences: ``s_i - s_j``, of any shape.

        Returns:
            The values, of the same shape.
        """
        return self.term(differences)[1].abs()

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """``g_i = Σ_j ±weight_ij φ'`` and ``h_i = Σ_j weight_ij φ''`` over the pairs of an item.

        The sign is + in pairs of which i is the first item, and - where it is the second. The
        weights of pairs are held constant, as in the gradient. For logistic pairs
        ``φ'' = σ² p (1 - p)``, and the Hessian diagonal is exact.

        Args:
            lists: the lists.

        Returns:
            Gradient ``[b, n]``, Hessian diagonal ``[b, n]``, and ``[b]``, True for lists on which
            the loss is defined.
        """
        weigh, scores = self._item_weighted_pairs(lists), lists.scores
        gradient, hessian = torch.zeros_like(scores), torch.zeros_like(scores)
        for rows in tiles(scores.numel(), scores.shape[-1]):
            differences, weights = scores[:, rows, None] - scores[:, None, :], weigh(rows)
            first = weights * self.term(differences)[1]
            second = weights * self.curvature(differences).clamp(min=LEAST_CURVATURE)
            gradient[:, rows] += first.sum(-1)
            gradient -= first.sum(-2)
            hessian[:, rows] += second.sum(-1)
            hessian += second.sum(-2)
        average = self.average_duplicates(lists)
        return average(gradient), average(hessian), has_pairs(lists.labels, lists.mask)

    @override
    def derivatives_of_flat(self, lists: Lists) -> tuple[Tensor, Tensor]:
        options = self.newton_kernel() if self.newton_kernel_applies else None
        if options is None or lists.large or not _pair_derivatives.usable(lists.flat, options):
            return super().derivatives_of_flat(lists)
        self.check_labels(lists.flat.labels, None)
        return _pair_derivatives.compute(lists.flat, options)

    def newton_kernel(self) -> PairOptions | None:
        """The options of the kernel of gradient and Hessian; None where there is no kernel.

        As with :meth:`kernel`, a subclass that overrides a method of the formula, such as ``term``,
        does not use it.

        Returns:
            The options, or None.

        >>> class Steeper(RankNet):
        ...     def term(self, differences):
        ...         return super().term(3 * differences)
        >>> RankNet.newton_kernel_applies, Steeper.newton_kernel_applies
        (True, False)
        """
        return None

    def _in_top(self, lists: Lists) -> ItemMask | None:
        """Which items are in the current top k; None without a cutoff."""
        if self.k is None:
            return None
        return self._ranks(lists) <= self.k

    def _ranks(self, lists: Lists) -> ItemValues:
        """Current ranks; tied scores are ranked with the less relevant item first."""
        return hard_ranks(lists.scores, lists.mask, lists.labels)


def preferred(lists: Lists, rows: slice) -> Float[Tensor, "b r n"]:
    """``1[y_i > y_j]`` for the real items i of a tile and all real items j.

    Args:
        lists: ``[b, n]``.
        rows: the items i of the tile.

    Returns:
        ``[b, rows, n]``, 0 or 1 in the type of the scores.
    """
    higher = lists.labels[:, rows, None] > lists.labels[:, None, :]
    real = lists.mask[:, rows, None] & lists.mask[:, None, :]
    return (higher & real).to(lists.scores.dtype)


def restrict_to_top(
    weights: Float[Tensor, "b r n"], in_top: ItemMask | None, rows: slice
) -> Float[Tensor, "b r n"]:
    """The weights of a tile's pairs, 0 for pairs without an item in the top k.

    Args:
        weights: ``[b, rows, n]``.
        in_top: ``[b, n]``, which items are in the top k; None if all pairs count.
        rows: the items i of the tile.

    Returns:
        ``[b, rows, n]``.
    """
    if in_top is None:
        return weights
    return weights * (in_top[:, rows, None] | in_top[:, None, :])


class LogisticPairs(PairwiseLoss):
    """Base class: ``φ(d) = log(1 + exp(-σ d))``, stable at any difference d; it needs ``sigma``."""

    sigma: float | Schedule

    @override
    def term(self, differences: Tensor) -> tuple[Tensor, Tensor]:
        sigma = self.now(self.sigma)
        return F.softplus(-sigma * differences), -sigma * torch.sigmoid(-sigma * differences)

    @override
    def curvature(self, differences: Tensor) -> Tensor:
        sigma = self.now(self.sigma)
        return sigma**2 * sigmoid_derivative(sigma * differences)


@losses.register("ranknet")
class RankNet(LogisticPairs):
    """``Σ_{y_i > y_j} log(1 + exp(-σ (s_i - s_j)))`` (Jagerman et al. eq. 6, Swezey et al. eq. 2).

    Args:
        k: only pairs with at least one item in the current top k.
        sigma: σ, or a schedule.
        ties: ``"half"`` adds the pairs of equal labels with a target of one half, as Tang et al.
            train it (§4.1); ``"skip"`` leaves them out.
        reduction: over lists.

    >>> RankNet()(torch.tensor([1.0, 0.0]), torch.tensor([1, 0]))
    tensor(0.3133)
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        sigma: float | Schedule = 1.0,
        ties: Literal["skip", "half"] = "skip",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_choice("ties", ties, ("skip", "half"))
        self.sigma = as_temperature("sigma", sigma)
        self.ties = ties

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pairs", self._pair_options())

    @override
    def newton_kernel(self) -> PairOptions | None:
        return self._pair_options()

    def _pair_options(self) -> PairOptions:
        """The options of both kernels, that of the loss and that of its derivatives."""
        half = self.ties == "half"
        return PairOptions("ranknet", self.k or 0, self.now(self.sigma), half=half)

    @override
    def pair_weights(self, lists: Lists) -> PairWeights:
        weigh = super().pair_weights(lists)
        if self.ties == "skip":
            return weigh
        in_top = self._in_top(lists)

        def weigh_with_ties(rows: slice) -> Tensor:
            tied = lists.labels[:, rows, None] == lists.labels[:, None, :]
            tied &= lists.mask[:, rows, None] & lists.mask[:, None, :]
            items = torch.arange(lists.mask.shape[-1], device=tied.device)
            tied &= items[rows, None] != items
            return weigh(rows) + restrict_to_top(0.5 * tied, in_top, rows)

        return weigh_with_ties


@losses.register("hinge")
class Hinge(PairwiseLoss):
    """``Σ_{y_i > y_j} max(0, margin - (s_i - s_j))`` (the pairwise baseline of SmoothI's paper).

    Args:
        k: only pairs with at least one item in the current top k.
        margin: how far apart the scores should be.
        reduction: over lists.

    >>> Hinge()(torch.tensor([0.5, 0.0]), torch.tensor([1, 0]))
    tensor(0.5000)
    """

    def __init__(
        self, k: int | None = None, *, margin: float = 1.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(k, reduction=reduction)
        check_positive("margin", margin)
        self.margin = margin

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pairs", self._pair_options())

    @override
    def term(self, differences: Tensor) -> tuple[Tensor, Tensor]:
        values = (self.margin - differences).clamp(min=0.0)
        return values, -(values > 0).to(differences.dtype)

    def curvature(self, differences: Tensor) -> Tensor:
        """The second derivative of a quadratic bound, as that of the hinge itself is 0.

        With ``t = margin - d`` at the difference d, the hinge is ``max(0, t) = (t + |t|) / 2``. The
        bound ``|t| <= t² / 2|t₀| + |t₀| / 2`` (de Leeuw and Lange 2009) touches it at the present
        ``t₀``; its second derivative is ``1 / 2|t₀|``, where ``|t₀|`` is taken as at least the
        margin. Pairs that are far enough apart have curvature too, which limits the steps of their
        items.
        """
        return 0.5 / (self.margin - differences).abs().clamp(min=self.margin)

    @override
    def newton_kernel(self) -> PairOptions | None:
        return self._pair_options()

    def _pair_options(self) -> PairOptions:
        return PairOptions("hinge", self.k or 0, self.margin)


@losses.register("margin_mse")
class MarginMSE(LossWithoutCutoff):
    """``(2 / (n (n - 1))) Σ_{i<j} ((s_i - s_j) - (y_i - y_j))²`` (Hofstätter et al. 2020).

    The labels are a teacher's scores, and the scores learn the differences between them, the
    teacher's margins. So adding a constant to the scores or labels of a list changes nothing. All
    pairs count, those of equal labels too. The weight of a pair is the mean of its items' weights.

    The sum over pairs is a sum over items: with ``e = s - y``, ``Σ_j (e_i - e_j)² = n (e_i - ē)² +
    Σ_j (e_j - ē)²``. So time and memory are O(n).

    Args:
        reduction: over lists.

    >>> MarginMSE()(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0]))
    tensor(4.)
    """

    linear_memory: ClassVar[bool] = True

    capturable: ClassVar[bool] = True

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        n = lists.lengths.clamp(min=2).to(lists.scores)[:, None]
        errors = lists.scores - lists.labels
        errors = torch.where(lists.mask, errors - errors.sum(-1, keepdim=True) / n, 0.0)
        squares = errors.square()
        terms = (n * squares + squares.sum(-1, keepdim=True)) * lists.mask
        return (lists.weighted(terms) / (n * (n - 1))).sum(-1), lists.lengths > 1

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("margin_mse", ())

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """The loss is quadratic: ``h_i = 2 Σ_{j ≠ i} (w_i + w_j) / (n (n - 1))``, exactly."""
        gradient, _, defined = super().derivatives(lists)
        n = lists.lengths.clamp(min=2).to(gradient)[:, None]
        weights = lists.weighted(lists.mask.to(gradient))
        pair_sums = (n - 2) * weights + weights.sum(-1, keepdim=True)  # Σ_{j ≠ i} (w_i + w_j)
        return gradient, 2 * pair_sums / (n * (n - 1)), defined


class _PairSum(torch.autograd.Function):
    """The sum over pairs ``[b]`` and its gradient ``[b, n]``, in one pass.

    Only the gradient is saved for the backward pass.
    """

    @staticmethod
    def forward(
        scores: Tensor, weigh: PairWeights, term: _PairTerm, average: GradientMap
    ) -> tuple[Tensor, Tensor]:
        total, grad_scores = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
        for rows in tiles(scores.numel(), scores.shape[-1]):
            values, derivative = term(scores[:, rows, None] - scores[:, None, :])
            weights = weigh(rows)
            total += (weights * values).sum((-2, -1))
            derivative = derivative * weights
            grad_scores[:, rows] += derivative.sum(-1)
            grad_scores -= derivative.sum(-2)
        return total, average(grad_scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        (grad_scores,) = ctx.saved_tensors
        return grad[:, None] * grad_scores, None, None, None


def _duplicate_average(lists: Lists) -> GradientMap:
    """A function that averages a gradient over duplicates.

    Duplicates are items of a list with equal score, label and weight. Pair weights depend on ranks,
    and which of two duplicates is ranked first depends on input order alone; the average does not.
    """
    keys = [lists.labels, lists.weighted(torch.ones_like(lists.labels)), lists.scores]
    # Padding last; then a stable sort by each key brings duplicates together.
    order = (~lists.mask).to(torch.int8).argsort(dim=-1, stable=True)
    for key in keys:
        order = order.gather(-1, key.detach().gather(-1, order).argsort(dim=-1, stable=True))
    # Whether an item differs from the one before it in this order.
    differs = torch.stack([key.gather(-1, order).diff(dim=-1) != 0 for key in keys]).any(0)
    differs |= lists.mask.gather(-1, order).diff(dim=-1)
    group_starts = torch.cat([torch.ones_like(lists.mask[:, :1]), differs], -1)
    group = group_starts.cumsum(-1) - 1

    def average(grad_scores: Tensor) -> Tensor:
        ordered = grad_scores.gather(-1, order)
        sums = torch.zeros_like(ordered).scatter_add(-1, group, ordered)
        sizes = torch.zeros_like(ordered).scatter_add(-1, group, torch.ones_like(ordered))
        return torch.zeros_like(grad_scores).scatter(-1, order, (sums / sizes).gather(-1, group))

    return average
