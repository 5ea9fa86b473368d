"""Pointwise losses, as in regression: mse, rmse, bce, ordinal.

Each is the mean over a list of a term per item, which depends on the score and label of that item.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F
from typing_extensions import override

from rankgrad._padded import divide
from rankgrad._shapes import ItemValues, ListMask, ListValues
from rankgrad._validation import check_positive, check_whole
from rankgrad.kernels import KernelCall
from rankgrad.lists import Lists
from rankgrad.losses._base import LossWithoutCutoff, Reduction, item_mean, item_mean_terms, losses
from rankgrad.losses._newton import LEAST_CURVATURE, sigmoid_derivative

__all__ = ["BCE", "MSE", "RMSE", "Ordinal", "PointwiseLoss"]


class PointwiseLoss(LossWithoutCutoff):
    """The mean over the items of a list; defined on every list that has an item."""

    linear_memory: ClassVar[bool] = True

    def terms(self, scores: ItemValues, labels: ItemValues) -> ItemValues:
        """The loss of each item.

        Args:
            scores: ``[b, n]``.
            labels: ``[b, n]``.

        Returns:
            ``[b, n]``.

        Raises:
            TypeError: the class does not define its value per item.
        """
        raise TypeError(f"{type(self).__name__} does not say its value per item")

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        return item_mean(lists, self.terms(lists.scores, lists.labels)), lists.lengths > 0

    def term_curvature(self, scores: ItemValues, labels: ItemValues) -> ItemValues | None:
        """The second derivative of each item's term, or a bound of it; None if it is not known.

        Args:
            scores: ``[b, n]``.
            labels: ``[b, n]``.

        Returns:
            ``[b, n]``, or None.
        """
        return None

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """Gradient and diagonal Hessian of each list, exact if ``term_curvature`` is exact.

        Args:
            lists: the lists.

        Returns:
            Gradient ``[b, n]``, Hessian diagonal ``[b, n]``, and ``[b]``, True for lists on which
            the loss is defined.
        """
        gradient, bound, defined = super().derivatives(lists)
        curvature = self.term_curvature(lists.scores, lists.labels)
        if curvature is None:
            return gradient, bound, defined
        return gradient, item_mean_terms(lists, curvature.clamp(min=LEAST_CURVATURE)), defined


@losses.register("mse")
class MSE(PointwiseLoss):
    """``(1 / n) Σ_i (s_i - y_i)²`` (Swezey et al. eq. 1, Tang et al. eq. 1).

    Args:
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> MSE()(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    tensor(0.5000)
    """

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pointwise", ("mse", 0.0))  # mse ignores the number

    @override
    def terms(self, scores: ItemValues, labels: ItemValues) -> ItemValues:
        return (scores - labels).square()

    @override
    def term_curvature(self, scores: ItemValues, labels: ItemValues) -> ItemValues | None:
        return torch.full_like(scores, 2.0)


@losses.register("rmse")
class RMSE(PointwiseLoss):
    """``sqrt((1 / n) Σ_i (levels · sigmoid(s_i) - y_i)²)`` (Pobrotyn and Białobrzeski §5.4).

    Args:
        levels: the number of relevance levels, 5 for labels 0 to 4.
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> RMSE()(torch.tensor([0.0, 0.0]), torch.tensor([2.5, 2.5]))
    tensor(0.)
    """

    def __init__(self, *, levels: int = 5, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        check_positive("levels", levels)
        self.levels = levels

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pointwise", ("rmse", float(self.levels)))

    @override
    def terms(self, scores: ItemValues, labels: ItemValues) -> ItemValues:
        return (self.levels * scores.sigmoid() - labels).square()

    @override
    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        mean_squares, defined = super().per_list(lists)
        # The derivative of the root is infinite at 0. A list without error gets a gradient of 0.
        positive = mean_squares > 0
        return torch.where(positive, torch.where(positive, mean_squares, 1.0).sqrt(), 0.0), defined

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """The Hessian in Gauss-Newton form.

        With residuals ``r_i = levels σ(s_i) - y_i``, the loss is ``L = sqrt(Σ r² / n)``. The root
        is concave and bounded by its tangent, which gives ``h_i = r_i'² / (n L)``. The second
        derivative itself is negative where one item has most of the error.
        """
        gradient, _, defined = super().derivatives(lists)
        values, _ = self.per_list(lists)
        sigmoid = lists.scores.sigmoid()
        residual_derivatives = self.levels * sigmoid * (1 - sigmoid)
        squares = residual_derivatives.square().clamp(min=LEAST_CURVATURE)
        return gradient, divide(item_mean_terms(lists, squares), values[:, None]), defined


@losses.register("bce")
class BCE(PointwiseLoss):
    """``-(1 / n) Σ_i [t_i log σ(s_i) + (1 - t_i) log σ(-s_i)]`` with ``t = 1[y >= threshold]``.

    Args:
        threshold: the label from which an item is relevant.
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> BCE()(torch.tensor([0.0, 0.0]), torch.tensor([2.0, 0.0]))
    tensor(0.6931)
    """

    def __init__(self, *, threshold: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        check_positive("threshold", threshold)
        self.threshold = threshold

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pointwise", ("bce", self.threshold))

    @override
    def terms(self, scores: ItemValues, labels: ItemValues) -> ItemValues:
        targets = (labels >= self.threshold).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, targets, reduction="none")

    @override
    def term_curvature(self, scores: ItemValues, labels: ItemValues) -> ItemValues | None:
        return sigmoid_derivative(scores)


@losses.register("ordinal")
class Ordinal(PointwiseLoss):
    """Cross-entropies of "is the label at least l?" for every level l, from one score.

    ``(1 / n) Σ_i Σ_{l=1}^{levels-1} BCE(σ(s_i - θ_l), 1[y_i >= l])`` with evenly spaced
    thresholds ``θ_l = l - levels / 2``: a proportional-odds model of the label.

    Args:
        levels: the number of relevance levels, 5 for labels 0 to 4.
        reduction: over lists, ``"mean"``, ``"sum"`` or ``"none"``.

    >>> Ordinal(levels=2)(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor(0.6931)
    """

    def __init__(self, *, levels: int = 5, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.levels = check_whole("levels", levels, least=2)

    @override
    def kernel(self, lists: Lists) -> KernelCall | None:
        return KernelCall("pointwise", ("ordinal", float(self.levels)))

    @override
    def terms(self, scores: ItemValues, labels: ItemValues) -> ItemValues:
        level = torch.arange(1, self.levels, device=scores.device).to(scores)
        logits = scores[:, :, None] - (level - self.levels / 2)
        targets = (labels[:, :, None] >= level).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)

    @override
    def term_curvature(self, scores: ItemValues, labels: ItemValues) -> ItemValues | None:
        level = torch.arange(1, self.levels, device=scores.device).to(scores)
        return sigmoid_derivative(scores[:, :, None] - (level - self.levels / 2)).sum(-1)
