"""The base class of losses: lists in, a scalar to minimize out.

Users call :meth:`Loss.forward`, and gradient boosting :meth:`Loss.gradient_and_hessian`. The other
modules of this package define the losses: each says its value per list in plain PyTorch (the eager
form), and may name a backend kernel that computes the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from rankgrad._padded import Randomness
from rankgrad._shapes import Float, ItemValues, Labels, ListMask, ListValues, Mask
from rankgrad._validation import check_choice, check_cutoff
from rankgrad.inputs import as_lists, check_finite, check_values
from rankgrad.kernels import DeclaresKernel, KernelCall, ops
from rankgrad.lists import FlatLists, Lists, is_unchecked, make_lists
from rankgrad.losses._newton import derivatives_of_lists, expand_lists
from rankgrad.metrics._base import Metric
from rankgrad.sorting import Relaxation, Schedule
from rankgrad.specs import HasSpec, Registry, Spec, spec_of

losses: Registry[Loss] = Registry("loss")

Reduction = Literal["mean", "sum", "none"]


class Loss(HasSpec, DeclaresKernel, nn.Module):
    """The mean over lists of a value per list; lists on which it is undefined are left out.

    A subclass defines ``per_list``: the value of each list, finite everywhere, and on which lists
    it is defined. A batch in which it is defined nowhere gives 0 with a zero gradient.

    Args:
        k: a rank cutoff, for losses that have one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per list.

    >>> loss = losses.get("ranknet")
    >>> loss(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[1, 0], [0, 0]]))
    tensor(0.3133)
    """

    #: Whether the memory of the eager form grows with a list's items, and not with their pairs.
    linear_memory: ClassVar[bool] = False

    #: Whether the eager form never waits for a GPU, so that a CUDA graph can capture it. It holds
    #: for the class that declares it; subclasses do not inherit it (:func:`declares_capturable`).
    capturable: ClassVar[bool] = False

    def __init__(self, k: int | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, get_args(Reduction))
        self.k = check_cutoff(k)
        self.reduction: Reduction = reduction
        self.progress = 0.0  # of training, from 0 to 1; temperature schedules depend on it

    def forward(
        self,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        lengths: Any = None,
        qid: Any = None,
        weights: Any = None,
    ) -> Float[Tensor, "*out"]:
        """The loss of the lists.

        Args:
            scores: ``[..., n]`` padded, or ``[N]`` flat.
            labels: of the same shape, not negative.
            mask: padded lists: True on real items.
            offsets: flat lists: ``[B + 1]``, where each begins and ends.
            lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
            qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
            weights: one per list (a weighted mean), or one per item (on its gain or loss term).

        Returns:
            A scalar, or with ``reduction="none"`` one value per list.

        Raises:
            ValueError: shapes do not agree, a score is not finite, or a label is negative; the
                message names the argument and the item.
        """
        fused = self.kernel_applies and self.kernel_reduces
        lists = make_lists(
            scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
        )
        # Most calls end here: one kernel checks the values, computes the loss and reduces it. The
        # conditions are those of kernel_call, written out to save small calls a function.
        if fused and lists.readable and not lists.learned:
            call = self.kernel(lists)
            if call is not None and ops.ready(call.name, lists.flat.scores):
                try:
                    return ops.reduced_loss(
                        call, lists.flat, self.reduction, lists.list_weights, "unknown"
                    )
                except ops.InvalidValuesError:
                    # check_values raises and names the item, unless only kernels refuse the value
                    # (a large label): then the eager form computes the loss.
                    pass
        # Values cannot be read in compiled code or while a CUDA graph is captured.
        if lists.readable:
            lists = check_values(lists)
        return self._reduced(lists, self.kernel_call(lists))

    def of(self, lists: Lists) -> Float[Tensor, "*out"]:
        """The loss of lists that :func:`rankgrad.inputs.as_lists` made.

        Args:
            lists: the lists.

        Returns:
            A scalar, or with ``reduction="none"`` one value per list.
        """
        return self._reduced(lists, self.kernel_call(lists))

    def values(self, lists: Lists) -> tuple[ListValues, ListMask]:
        """The loss of each list and whether it is defined, by a kernel where there is one.

        Args:
            lists: the lists.

        Returns:
            The values ``[b]``, and ``[b]``, True for lists on which the loss is defined.
        """
        check_finite(lists)
        return self._values(lists, self.kernel_call(lists))

    def kernel_call(self, lists: Lists) -> KernelCall | None:
        """The kernel to use on these lists; None for the eager form.

        Large labels go to the eager form, which names the one that is too large. So do lists with
        labels or weights that require a gradient, as kernels do not compute it.

        Args:
            lists: the lists.

        Returns:
            The kernel with its options, or None.
        """
        if not self.kernel_applies or lists.large or lists.learned:
            return None
        call = self.kernel(lists)
        return call if call is not None and ops.ready(call.name, lists.flat.scores) else None

    def never_waits(self, lists: Lists) -> bool:
        """Whether a CUDA graph can capture the loss of these lists, by a kernel or the eager form.

        Training captures such losses. Outside of graphs, an eager form may still wait for a GPU to
        check the labels.

        Args:
            lists: the lists.

        Returns:
            True or False.
        """
        return self.kernel_call(lists) is not None or declares_capturable(self)

    def _reduced(self, lists: Lists, call: KernelCall | None) -> Float[Tensor, "*out"]:
        """The loss of the lists after its reduction, by this kernel or by the eager form."""
        if not lists.finite:
            check_finite(lists)
        if call is not None and self.kernel_reduces:
            flat, validity = self._kernel_lists(lists)
            return ops.reduced_loss(call, flat, self.reduction, lists.list_weights, validity)
        with torch.autocast(lists.flat.scores.device.type, enabled=False):
            return reduce(*self._values(lists, call), lists, self.reduction)

    def _values(self, lists: Lists, call: KernelCall | None) -> tuple[ListValues, ListMask]:
        """:meth:`values` by this kernel or by the eager form."""
        if call is not None:
            return ops.loss(call, *self._kernel_lists(lists))
        values, defined = self.per_list(lists)
        # A value that does not depend on the scores must still be attached to their graph.
        return values + 0.0 * lists.scores.sum(-1), defined

    def _kernel_lists(self, lists: Lists) -> tuple[FlatLists, ops.Validity]:
        """The lists as a kernel takes them, and what is known of their values.

        Where values cannot be read now, :meth:`check_labels` makes labels infinite that are too
        large, so that the loss of their list is NaN.
        """
        flat = lists.flat
        if not is_unchecked(flat.scores, flat.labels):
            return flat, "valid"
        return flat._replace(labels=self.check_labels(flat.labels, flat.mask)), "unreadable"

    @property
    def kernel_reduces(self) -> bool:
        """Whether kernels also compute the mean or sum over lists."""
        return self.reduction != "none"

    def check_labels(self, labels: Labels, mask: Mask | None) -> Labels:
        """The labels; an error if one is too large, or infinity if values cannot be read now.

        Args:
            labels: of the items.
            mask: True on items, of the same shape; None if there is no padding.

        Returns:
            The labels, of the same shape.
        """
        return labels

    def kernel(self, lists: Lists) -> KernelCall | None:
        """The kernel that computes :meth:`per_list` of these lists, or None where there is none.

        It holds for the class that defines it. A subclass that overrides another method without
        defining this one gets the eager form.

        Args:
            lists: the lists.

        Returns:
            The kernel with its options, or None.
        """
        return None

    def per_list(self, lists: Lists) -> tuple[ListValues, ListMask]:
        """The loss of each list, and whether it is defined there.

        Args:
            lists: the lists.

        Returns:
            The values ``[b]``, and ``[b]``, True for lists on which the loss is defined.

        Raises:
            TypeError: the class does not define its value per list.
        """
        raise TypeError(f"{type(self).__name__} does not say its value per list")

    def gradient_and_hessian(
        self,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        lengths: Any = None,
        qid: Any = None,
        weights: Any = None,
    ) -> tuple[Float[Tensor, "*items"], Float[Tensor, "*items"]]:
        """Gradient and Hessian diagonal of the *sum* over lists, as gradient boosting takes them.

        The diagonal is never negative, and above 0 where the gradient is not 0. It is exact for
        pointwise, logistic, quadratic and likelihood losses. Where the second derivative is 0 or
        negative, as for hinge, rmse and relaxed metrics, it is a bound or the Gauss-Newton form.
        Lists are added up whatever ``reduction`` is: in a mean over lists, Hessians would be
        smaller than the least Hessian that tree libraries ask of a leaf.

        Args:
            scores: ``[..., n]`` padded, or ``[N]`` flat.
            labels: of the same shape, not negative.
            mask: padded lists: True on real items.
            offsets: flat lists: ``[B + 1]``, where each begins and ends.
            lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
            qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
            weights: one per list, or one per item.

        Returns:
            Two tensors of the shape of the scores, 0 on padding and on lists where the loss is
            undefined.

        >>> loss = losses.get("ranknet")
        >>> loss.gradient_and_hessian(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]))
        (tensor([-0.5000,  0.5000]), tensor([0.2500, 0.2500]))
        """
        lists = as_lists(
            scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
        )
        check_finite(lists)
        with torch.no_grad():
            unpadded = _without_padding(lists)
            gradient, hessian = self.derivatives_of_flat(unpadded)
            if lists.list_weights is not None:
                list_weight_of_item = expand_lists(lists.list_weights, unpadded.flat.offsets)
                gradient, hessian = gradient * list_weight_of_item, hessian * list_weight_of_item
            if lists.ragged:
                return gradient, hessian
            shape = torch.as_tensor(scores).shape
            zeros = torch.zeros_like(lists.scores)
            if shape.numel() == 0:
                return zeros.new_zeros(shape), zeros.new_zeros(shape)
            return (
                zeros.masked_scatter(lists.mask, gradient).reshape(shape),
                zeros.masked_scatter(lists.mask, hessian).reshape(shape),
            )

    def derivatives_of_flat(self, lists: Lists) -> tuple[Tensor, Tensor]:
        """:meth:`gradient_and_hessian` of flat lists, ``[items]``, without the list weights.

        Args:
            lists: the lists, without padding.

        Returns:
            Gradient and Hessian diagonal, ``[items]`` each.
        """
        self.check_labels(lists.flat.labels, None)
        quadratic_memory = not self.linear_memory and self.kernel_call(lists) is None
        return derivatives_of_lists(lists, self._defined_derivatives, quadratic_memory)

    def _defined_derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues]:
        """:meth:`derivatives`, 0 on padding and on lists where the loss is undefined."""
        gradient, hessian, defined = self.derivatives(lists)
        keep = defined[:, None] & lists.mask
        return gradient.where(keep, 0.0), hessian.where(keep, 0.0)

    def derivatives(self, lists: Lists) -> tuple[ItemValues, ItemValues, ListMask]:
        """Gradient and Hessian diagonal of each list's value, and whether it is defined.

        This default is for losses whose second derivative has no fixed sign: ``h_i = |g_i| / c``
        with ``c`` = :attr:`score_scale`. Relaxations of sorting are functions of ``s / c`` made of
        exponentials. The second derivative of such a term is at most its first derivative over c;
        of a sigmoid, for example, ``|σ''| = σ' |1 - 2σ| / c``. The Newton step of a tree's leaf,
        ``-Σ g / Σ h``, is then never larger than c.

        Args:
            lists: the lists.

        Returns:
            Gradient ``[b, n]``, Hessian diagonal ``[b, n]``, and ``[b]``, True for lists on which
            the loss is defined.
        """
        scores = lists.scores.detach().requires_grad_()
        with torch.enable_grad():
            values, defined = self.values(
                Lists.from_padded(scores, lists.labels, lists.mask, lists.item_weights)
            )
            (gradient,) = torch.autograd.grad(values.sum(), scores)
        return gradient, gradient.abs() / self.score_scale, defined

    @property
    def score_scale(self) -> float:
        """How far apart scores must be for the loss to change much; its temperature, if any."""
        return 1.0

    def now(self, value: float | Schedule) -> float:
        """The value of a hyperparameter at the present training progress.

        Args:
            value: a number, or a schedule.

        Returns:
            The number, or the schedule's value at :attr:`progress`.
        """
        return value.at(self.progress) if isinstance(value, Schedule) else value

    @property
    def is_stationary(self) -> bool:
        """Whether the loss is the same function at every step of training.

        It is not if an option follows a schedule, or if it draws from a seed of its own. Draws from
        PyTorch's generator do not count, as CUDA graphs advance it. Training captures the kernels
        of stationary losses in a CUDA graph. A loss that changes in another
        way overrides this property.

        >>> losses.get("approx_ndcg").is_stationary
        True
        >>> losses.get("approx_ndcg(alpha=linear(start=1, end=9))").is_stationary
        False
        """
        return not any(_varies(option) for option in vars(self).values())

    @property
    def spec(self) -> Spec:
        """The spec that names this loss."""
        return spec_of(self, self.name, self.k)

    def __str__(self) -> str:
        return str(self.spec)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loss) and str(self) == str(other)

    # Hashing is by identity, although equality is by spec: nn.Module keeps modules in sets.
    __hash__ = nn.Module.__hash__


class LossWithoutCutoff(Loss):
    """A loss that takes no rank cutoff ``k``."""

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)


losses.base_class = Loss


def declares_capturable(owner: Loss | Metric) -> bool:
    """Whether the very class of a loss or metric, and not a base of it, declares ``capturable``."""
    return bool(vars(type(owner)).get("capturable", False))


def _varies(option: object) -> bool:
    """Whether an option changes from step to step: by a schedule, or by a seed of its own."""
    if isinstance(option, Relaxation):
        return any(_varies(part) for part in vars(option).values())
    if isinstance(option, Randomness):
        return option.seed is not None
    return isinstance(option, Schedule)


def _without_padding(lists: Lists) -> Lists:
    """The same lists as ragged lists, without padding; their scores have been checked."""
    if lists.ragged:
        return lists
    mask, weights = lists.mask, lists.item_weights
    flat = as_lists(
        lists.scores[mask],
        lists.labels[mask],
        offsets=nn.functional.pad(mask.sum(-1).cumsum(0), (1, 0)),
        weights=None if weights is None else weights[mask],
        check=False,
    )
    return replace(flat, list_weights=lists.list_weights, large=lists.large, finite=True)


def reduce(
    values: ListValues,
    defined: ListMask,
    lists: Lists,
    reduction: Reduction,
) -> Float[Tensor, ...]:
    """Reduce the losses of lists, weighted by list, where they are defined.

    ``"mean"`` gives the weighted mean over those lists, 0 if there are none, and ``"sum"`` the
    weighted sum. ``"none"`` gives the weighted values in the caller's batch shape, and 0 for lists
    on which the loss is undefined.
    """
    weights = defined.to(values)
    if lists.list_weights is not None:
        weights = weights * lists.list_weights
    if reduction == "none":
        return (values * weights).reshape(lists.shape)
    if reduction == "mean":
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
    return values @ weights


def has_relevant(lists: Lists, threshold: float | None = None) -> ListMask:
    """Whether a list has at least two items, one of them relevant.

    An item is relevant if its label is above 0 or, given a threshold, at least the threshold.
    """
    relevant = lists.labels > 0 if threshold is None else lists.labels >= threshold
    return (relevant & lists.mask).any(-1) & (lists.lengths > 1)


def item_mean(lists: Lists, terms: ItemValues) -> ListValues:
    """The mean over the real items of a list of their weighted terms."""
    total = lists.weighted(torch.where(lists.mask, terms, 0.0)).sum(-1)
    return total / lists.lengths.clamp(min=1)


def item_mean_terms(lists: Lists, terms: ItemValues) -> ItemValues:
    """The part of :func:`item_mean` that each item contributes."""
    weighted = lists.weighted(torch.where(lists.mask, terms, 0.0))
    return weighted / lists.lengths.clamp(min=1)[:, None]


def randomness_of(loss: Loss) -> dict[str, Randomness]:
    """The sources of randomness of a loss, by the part that draws: the loss or its relaxation."""
    owners = {"loss": loss, "relaxation": getattr(loss, "relaxation", None)}
    return {
        name: value
        for name, owner in owners.items()
        if owner is not None
        for value in vars(owner).values()
        if isinstance(value, Randomness)
    }


def generators_of(loss: Loss, device: torch.device) -> dict[str, torch.Generator]:
    """The generators of a loss that has seeds of its own, by the part that draws from them."""
    generators = {}
    for name, randomness in randomness_of(loss).items():
        if randomness.seed is not None:
            generator = randomness.generator(device)
            assert generator is not None
            generators[name] = generator
    return generators
