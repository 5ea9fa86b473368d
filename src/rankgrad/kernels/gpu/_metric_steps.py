"""The steps of ap, rr, err and hits between a relaxed permutation and its adjoint.

Kernels of relaxed permutations (NeuralSort, Sinkhorn, SmoothI, optimal transport) compute a linear
operator P and its adjoint. For metrics that are not linear in the sorted gains, the loss and its
derivatives in between are computed here, in O(n) per list.

A relaxed permutation P sorts the values of items: ``v = P x``, where x is the relevance (ap, rr,
hits) or the probability that an item satisfies the user (err), and ``w = P (weights x)``. The
metrics are

    ap:             Σ_r w_r (v_1 + ... + v_r) / r, divided by the weighted relevance of the list,
    rr, err, hits:  Σ_r d_r w_r m_1 ... m_{r-1}, with the discount d and the probability
                    m = 1 - min(v, 1) that the user goes on to the next rank,

over the ranks up to the cutoff (see :mod:`rankgrad.metrics`). From ``v`` and ``w`` this module
computes the loss of every list, one minus the metric, and its derivatives with respect to both.

The derivative of the metric with respect to m_l is ``m_1 ... m_{l-1} R_l`` with
``R_l = d_{l+1} w_{l+1} + m_{l+1} R_{l+1}``. This recurrence runs from the last rank to the first
and never divides by an m, which may be 0. Without weights ``w = v = 1 - m`` as long as m > 0, and
the derivative with respect to v_l is ``m_1 ... m_{l-1} D_l`` with
``D_l = d_l - R_l = d_l - d_{l+1} + m_{l+1} D_{l+1}``, in which nothing cancels. The loss is then
``m_1 D_1``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import (
    ListOperator,
    chunk_size,
    empty_norms,
    list_span,
    load_weights,
    positions,
)
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

#: The metrics that have a step here. All others are linear in the sorted gains.
STEP_METRICS = frozenset({"ap", "rr", "err", "hits"})

_CHUNK = 1024  # ranks or items that a program reads at a time


class StepValues(NamedTuple):
    """The values of the items of a batch for ap, rr, err or hits.

    Attributes:
        values: ``[items]``, the relevance, or err's stopping probability (through ranks, the
            logarithm of one minus it); 0 on padding.
        weighted: ``[items]``, the relevance or stopping probability times the item weights; None
            if it equals ``values``.
        scale: ``[lists]``, the factor of the sum over items: for ap one over the sum of
            ``weighted``, for the other metrics 1; 0 where the metric is undefined.
        lengths: ``[lists]`` int32, the number of real items.
        defined: ``[lists]`` bool, whether a list has two items or more and one has a value.
    """

    values: Tensor
    weighted: Tensor | None
    scale: Tensor
    lengths: Tensor
    defined: Tensor


@dataclass(eq=False)
class SortOperator(ListOperator, ABC):
    """A relaxed permutation of every list as a linear operator.

    Args:
        k: the number of ranks that count, 0 for all.

    Attributes:
        misses: one minus the result of the last ``apply``, computed without cancellation; None if
            the operator has no such form.
    """

    k: int

    misses: Tensor | None = field(default=None, init=False)

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """``P values``, ``[items]``: rank r (from 0) of list b at ``offsets[b] + r``.

        Past the last rank of a list it is 0.
        """

    @abstractmethod
    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        """The gradient of ``Σ_r grad_r (P values)_r`` with respect to the scores, ``[items]``."""

    def apply_all(self, channels: list[Tensor]) -> list[Tensor]:
        """:meth:`apply` to one or two vectors of values."""
        return [self.apply(values) for values in channels]

    def adjoint_all(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The sum of :meth:`adjoint` over one or two pairs of values and gradients."""
        # From the last to the first: an operator may have cached the values applied last.
        grad_scores, *others = [self.adjoint(*pair) for pair in reversed(pairs)]
        size = grad_scores.numel()
        for other in others:
            _add[(cdiv(size, _CHUNK),)](grad_scores, other, size, BLOCK=_CHUNK)
        return grad_scores


def step_values(
    batch: FlatLists, metric_options: MetricOptions, through_ranks: bool = False
) -> StepValues:
    """The values of the items for ap, rr, err or hits, and the scales of the lists.

    Args:
        batch: the lists; scores are not read.
        metric_options: the metric.
        through_ranks: whether err's values are the logarithms that ranks need.
    """
    metric = metric_options.name
    logarithmic = metric == "err" and through_ranks
    values = torch.empty_like(batch.labels)
    has_weighted = batch.weights is not None or logarithmic
    weighted = torch.empty_like(values) if has_weighted else None
    norms, chunk = empty_norms(batch), chunk_size(batch.max_length, _CHUNK)
    _write_values[(len(norms[0]),)](
        *batch[1:5], metric_options.threshold, values, weighted, *norms, METRIC=metric,
        LOGARITHMIC=logarithmic, CHUNK=chunk, num_warps=max(1, chunk // 128),
    )  # fmt: skip
    return StepValues(values, weighted, *norms)


def metric_step(
    sorted_values: Tensor,
    sorted_weighted: Tensor | None,
    misses: Tensor | None,
    inputs: StepValues,
    offsets: Tensor,
    max_length: int,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss of every list and its derivatives with respect to the sorted values.

    Args:
        sorted_values: ``[items]``, ``P values``, rank r (from 0) of list b at ``offsets[b] + r``.
        sorted_weighted: ``[items]``, ``P weighted``; None without weights.
        misses: ``[items]``, ``1 - sorted_values`` without cancellation; None to subtract here.
        inputs: from :func:`step_values`.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.
        metric_options: the metric and its cutoff.

    Returns:
        values ``[lists]``, 0 where the loss is undefined; the derivatives with respect to the
        sorted values and, with weights, the sorted weighted values. Derivatives past the cutoff or
        the list's end are not written.
    """
    metric, k = metric_options.name, metric_options.k
    lists = offsets.numel() - 1
    values, grad = sorted_values.new_empty(lists), torch.empty_like(sorted_values)
    grad_weighted = None if sorted_weighted is None else torch.empty_like(sorted_weighted)
    step = _precision_step if metric == "ap" else _cascade_step
    ranks = min(k, max_length) if k else max_length
    step[(lists,)](
        sorted_values, sorted_weighted, misses, offsets, inputs.scale, inputs.lengths,
        inputs.defined, values, grad, grad_weighted, k, RECIPROCAL=metric != "hits",
        CHUNK=chunk_size(ranks, _CHUNK),
    )  # fmt: skip
    return values, grad, grad_weighted


def through_operator(
    operator: SortOperator,
    batch: FlatLists,
    metric_options: MetricOptions,
    inputs: StepValues | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One minus ap, rr, err or hits through a relaxed permutation.

    Args:
        operator: the relaxed permutation.
        batch: the lists.
        metric_options: the metric and its cutoff.
        inputs: from :func:`step_values`; None to compute them here.

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    inputs = step_values(batch, metric_options) if inputs is None else inputs
    # The weighted values come first: the misses are those of the values.
    channels = [each for each in (inputs.weighted, inputs.values) if each is not None]
    *weighted, at_rank = operator.apply_all(channels)
    values, grad, grad_weighted = metric_step(
        at_rank, weighted[0] if weighted else None, operator.misses, inputs, batch.offsets,
        batch.max_length, metric_options,
    )  # fmt: skip
    grads = [each for each in (grad_weighted, grad) if each is not None]
    pairs = list(zip(channels, grads, strict=True))
    return values, operator.adjoint_all(pairs), inputs.defined


@cached_launch
@triton.jit(do_not_specialize=["count"])
def _add(total, addend, count, BLOCK: tl.constexpr):
    """Add one tensor to another in place."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    current = tl.load(total + at, mask=inside, other=0.0)
    tl.store(total + at, current + tl.load(addend + at, mask=inside, other=0.0), mask=inside)


@cached_launch
@triton.jit
def _write_values(
    labels, mask, weights, offsets, threshold, values, weighted, scale, lengths, defined,
    METRIC: tl.constexpr, LOGARITHMIC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the values of the items of one list, its scale, length and whether it is defined.

    The value is ``1[y >= threshold]`` or, for err, the stopping probability ``(2^y - 1) / 2^top``.
    The threshold of err is the top grade of the label scale. If a label exceeds it, the largest
    label of the list is the top grade. If LOGARITHMIC, the value is the log of one minus it.
    """
    list_index, start, length = list_span(offsets)
    total = tl.zeros([CHUNK], tl.float32)
    items = tl.zeros([CHUNK], tl.int32)
    relevant = tl.zeros([CHUNK], tl.int32)
    max_labels = tl.zeros([CHUNK], tl.float32) + threshold
    for first in range(0, length, CHUNK):
        row, real = positions(mask, start, first, length, CHUNK)
        label = tl.load(labels + start + row, mask=real, other=0.0)
        max_labels = tl.maximum(max_labels, label)
        is_relevant = (label > 0) | (label != label) if METRIC == "err" else label >= threshold
        weight = load_weights(weights, start + row, real)
        weight = tl.where(is_relevant & real, weight, 0.0)
        total += weight
        items += real.to(tl.int32)
        relevant += (weight > 0).to(tl.int32)
    item_count = tl.sum(items, 0)
    is_defined = (tl.max(relevant, 0) > 0) & (item_count > 1)
    factor = tl.where(is_defined, 1.0, 0.0)
    if METRIC == "ap":
        factor = factor / tl.where(is_defined, tl.sum(total, 0), 1.0)
    tl.store(scale + list_index, factor)
    tl.store(lengths + list_index, item_count)
    tl.store(defined + list_index, is_defined)
    top_grade = tl.max(max_labels, 0).to(tl.float64)
    for first in range(0, length, CHUNK):
        row, real = positions(mask, start, first, length, CHUNK)
        label = tl.load(labels + start + row, mask=real, other=0.0)
        if METRIC == "err":
            graded = tl.exp2(label.to(tl.float64) - top_grade)
            lowest = tl.exp2(-top_grade + 0.0 * graded)  # 2^-top, in the shape of graded
            stop = (graded - lowest).to(tl.float32)
        else:
            stop = tl.where(label >= threshold, 1.0, 0.0)
        value = stop
        if LOGARITHMIC:
            # 1 - stop, accurate where stop rounds to 1, and at least the smallest normal number.
            miss = tl.maximum(lowest + (1.0 - graded), 1.1754943508222875e-38)
            value = tl.log(miss).to(tl.float32)
        tl.store(values + start + row, tl.where(real, value, 0.0), mask=row < length)
        if weighted is not None:
            stop *= load_weights(weights, start + row, real)
            tl.store(weighted + start + row, tl.where(real, stop, 0.0), mask=row < length)


@triton.jit
def _counted_ranks(offsets, lengths, defined, k):
    """The start of this program's list, how many ranks count, and whether its loss is defined."""
    list_index = tl.program_id(0)
    length = tl.load(lengths + list_index)
    count = tl.where(k > 0, tl.minimum(k, length), length)
    return tl.load(offsets + list_index), count, tl.load(defined + list_index) != 0


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _precision_step(
    sorted_values, sorted_weighted, misses, offsets, scale, lengths, defined, values, grad,
    grad_weighted, k, RECIPROCAL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The loss of one list for average precision, and its derivatives.

    With ``V_r = v_1 + ... + v_r`` and N the norm, the derivatives of the metric are ``V_r / (r N)``
    with respect to w_r, and ``Σ_{l>=r} w_l / (l N)`` with respect to v_r. The first loop computes
    the prefix sums V, the second one the suffix sums. Without weights w = v, and the two add up.
    RECIPROCAL is not used: the two steps have the same arguments.
    """
    begin, count, is_defined = _counted_ranks(offsets, lengths, defined, k)
    inverse_norm = tl.load(scale + tl.program_id(0))
    total = tl.zeros([CHUNK], tl.float32)
    sum_before = tl.zeros([1], tl.float64)
    for first in range(0, count, CHUNK):
        rank = first + tl.arange(0, CHUNK)
        inside = rank < count
        value = tl.load(sorted_values + begin + rank, mask=inside, other=0.0)
        weight = value
        if sorted_weighted is not None:
            weight = tl.load(sorted_weighted + begin + rank, mask=inside, other=0.0)
        sum_so_far = (tl.cumsum(value.to(tl.float64), 0) + sum_before).to(tl.float32)
        sum_before += tl.sum(value.to(tl.float64), 0)
        precision = sum_so_far / (rank + 1).to(tl.float32)
        total += tl.where(inside, weight * precision, 0.0)
        grad_target = grad_weighted if sorted_weighted is not None else grad
        tl.store(grad_target + begin + rank, -inverse_norm * precision, mask=inside)
    tl.store(
        values + tl.program_id(0), tl.where(is_defined, 1.0 - inverse_norm * tl.sum(total, 0), 0.0)
    )
    tl.debug_barrier()
    sum_after = tl.zeros([1], tl.float64)
    for first in range(0, count, CHUNK):
        rank = count - 1 - first - tl.arange(0, CHUNK)
        inside = rank >= 0
        source = sorted_weighted if sorted_weighted is not None else sorted_values
        weight = tl.load(source + begin + rank, mask=inside, other=0.0)
        term = (weight / tl.maximum(rank + 1, 1).to(tl.float32)).to(tl.float64)
        derivative = -inverse_norm * (tl.cumsum(term, 0) + sum_after).to(tl.float32)
        sum_after += tl.sum(term, 0)
        if sorted_weighted is None:
            derivative += tl.load(grad + begin + rank, mask=inside, other=0.0)
        tl.store(grad + begin + rank, derivative, mask=inside)


@triton.jit
def _multiply(a, b):
    """The operator of a scan of products."""
    return a * b


@triton.jit
def _compose(factor, term, next_factor, next_term):
    """The composition of two maps ``x -> term + factor x``, first this one, then the next."""
    return factor * next_factor, next_term + next_factor * term


@triton.jit
def _load_misses(sorted_values, misses, at, inside):
    """One minus the sorted values, not clamped; 1 outside the list."""
    if misses is not None:
        return tl.load(misses + at, mask=inside, other=1.0)
    else:
        return 1.0 - tl.load(sorted_values + at, mask=inside, other=0.0)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _cascade_step(
    sorted_values, sorted_weighted, misses, offsets, scale, lengths, defined, values, grad,
    grad_weighted, k, RECIPROCAL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The loss of one list for rr, err and hits, and its derivatives.

    The first loop computes the probability ``m_1 ... m_{r-1}`` of reaching each rank. The second
    one runs from the last rank to the first and computes the recurrence of the module's docstring:
    R, or without weights D. The probabilities are stored in ``grad`` until derivatives overwrite
    them.
    """
    begin, count, is_defined = _counted_ranks(offsets, lengths, defined, k)
    sign = tl.where(is_defined, -1.0, 0.0)
    source = sorted_weighted if sorted_weighted is not None else sorted_values
    total = tl.zeros([CHUNK], tl.float32)
    reached_before = 1.0
    for first in range(0, count, CHUNK):
        rank = first + tl.arange(0, CHUNK)
        inside = rank < count
        exists = inside & (rank > 0)
        previous_miss = _load_misses(sorted_values, misses, begin + rank - 1, exists)
        clamped_miss = tl.maximum(previous_miss, 0.0)
        reached = reached_before * tl.associative_scan(clamped_miss, 0, _multiply)
        reached_before *= tl.reduce(clamped_miss, 0, _multiply)
        discount = _discount(rank, RECIPROCAL)
        weight = tl.load(source + begin + rank, mask=inside, other=0.0)
        total += weight * reached * discount
        tl.store(grad + begin + rank, reached, mask=inside)
        if sorted_weighted is not None:
            tl.store(grad_weighted + begin + rank, sign * reached * discount, mask=inside)
    loss = 1.0 - tl.sum(total, 0)
    tl.debug_barrier()
    recurrence_after = 0.0
    first_recurrence = 0.0
    for first in range(0, count, CHUNK):
        # The derivative of the rank before this one needs the terms of this and later ranks.
        rank = count - first - tl.arange(0, CHUNK)
        exists = (rank >= 0) & (rank < count)
        unclamped_miss = _load_misses(sorted_values, misses, begin + rank, exists)
        clamped_miss = tl.maximum(unclamped_miss, 0.0)
        discount = _discount(rank, RECIPROCAL)
        if sorted_weighted is not None:
            term = tl.load(source + begin + rank, mask=exists, other=0.0) * discount
        else:  # the term of D; v + m is 1 - min(1 - v, 0), which is 1 unless v is above 1
            term = _discount(rank - 1, RECIPROCAL) + tl.where(
                exists, discount * (tl.minimum(unclamped_miss, 0.0) - 1.0), 0.0
            )
        factor, term_sum = tl.associative_scan((clamped_miss, term), 0, _compose)
        recurrence = term_sum + factor * recurrence_after
        at = begin + rank - 1
        has_rank = rank > 0
        reached = tl.load(grad + at, mask=has_rank, other=0.0)
        is_unclamped = _load_misses(sorted_values, misses, at, has_rank) >= 0
        if sorted_weighted is not None:
            derivative = tl.where(is_unclamped, -recurrence, 0.0)
        else:
            derivative = tl.where(is_unclamped, recurrence, _discount(rank - 1, RECIPROCAL))
        tl.store(grad + at, sign * reached * derivative, mask=has_rank)
        first_recurrence += tl.sum(tl.where(rank == 1, recurrence, 0.0), 0)
        is_last = tl.arange(0, CHUNK) == CHUNK - 1
        recurrence_after = tl.sum(tl.where(is_last, recurrence, 0.0), 0)
    if sorted_weighted is None:  # m_1 D_1 equals one minus the sum, without cancellation
        unclamped_miss = _load_misses(sorted_values, misses, begin, count > 0)
        loss = tl.maximum(unclamped_miss, 0.0) * first_recurrence + tl.minimum(unclamped_miss, 0.0)
    tl.store(values + tl.program_id(0), tl.where(is_defined, loss, 0.0))


@triton.jit
def _discount(rank, RECIPROCAL: tl.constexpr):
    """The discount of stopping at a rank (from 0): 1 / (rank + 1), or 1. Rank -1 is not used."""
    if RECIPROCAL:
        return 1.0 / tl.maximum(rank + 1, 1).to(tl.float32)
    else:
        return tl.full(rank.shape, 1.0, tl.float32)
