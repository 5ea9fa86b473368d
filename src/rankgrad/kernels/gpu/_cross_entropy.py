"""Softmax cross-entropy and ListNet on GPUs: ``-Σ_i t_i log softmax(s)_i`` of every list.

The targets t are the labels (Jagerman et al. eq. 7), or softmax(labels) for ListNet, both times the
item weights. With ``m = max s`` the loss is ``Σ_i t_i (m - s_i) + (Σ_i t_i) log Σ_i exp(s_i - m)``,
and its gradient is ``(Σ_l t_l) softmax(s)_i - t_i``.

One program computes a short list in registers. A long list is cut into spans. A first kernel
computes the sums of each span, relative to the largest score in it; a second kernel joins the sums
and writes the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._flat_lists import (
    empty_results,
    is_real,
    list_block,
    list_span,
    load_weights,
)
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2

_SHORT = 8192  # the longest list that one program computes alone
_SPAN = 4096  # items of a longer list that one program computes
_WIDTH = 256  # spans joined at a time


def cross_entropy(batch: FlatLists, target: str) -> tuple[Tensor, Tensor, Tensor]:
    """``-Σ_i t_i log softmax(s)_i`` of every list.

    Args:
        batch: the lists.
        target: ``softmax`` for t = softmax(labels); otherwise t is the labels.

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    values, *_ = results = empty_results(batch)
    lists = len(values)
    span = max(32, next_power_of_2(batch.max_length)) if batch.max_length <= _SHORT else _SPAN
    spans = cdiv(batch.max_length, span)
    constants = {"NORMALIZED": target == "softmax", "SPAN": span}
    # 8 numbers of each span: the 6 fields of :class:`_Sums`, the number of items (at 6), and an
    # unused one. A single span needs no parts; `values` is passed in their place and not used.
    parts = values if spans == 1 else values.new_empty(lists, spans, 8)
    arguments = (*batch[:5], parts, *results)
    warps = 8 if spans > 1 else max(1, min(16, span // 256))
    _sum_span[(lists, spans)](*arguments, **constants, ALL_ITEMS=spans == 1, num_warps=warps)
    if spans > 1:
        _write_gradient[(lists, spans)](*arguments, spans, **constants, WIDTH=_WIDTH, num_warps=8)
    return results


@triton.jit
def _exp(x):
    """``e^x``."""
    return tl.exp2(x * 1.4426950408889634)  # log2(e)


@triton.jit
def _load(scores, labels, mask, weights, index, inside):
    """Load items: scores and labels (-inf on padding), weights (0 on padding), which are real."""
    real = is_real(mask, index, inside)
    score = tl.load(scores + index, mask=real, other=float("-inf"))
    label = tl.load(labels + index, mask=real, other=float("-inf"))
    weight = load_weights(weights, index, real)
    return score, label, weight, real


@triton.jit
def _zero_if_empty(maximum):
    """A maximum over items; 0 if there are none, where it would be -inf."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def _targets(label, max_label, weight, real, NORMALIZED: tl.constexpr):
    """The weighted targets, and the targets without weights.

    If NORMALIZED, they are the numerators of softmax(labels), and the sum of those without weights
    is the denominator.
    """
    target = tl.where(real, label, 0.0)
    if NORMALIZED:
        target = _exp(label - max_label)
    return target * weight, target


class _Sums(NamedTuple):
    """The sums that the cross-entropy is computed from, over a list or a span, in device code."""

    max_score: Any  # 0 if there are no items
    exp_sum: Any  # Σ exp(s - max_score)
    max_label: Any  # 0 if there are no items
    target_norm: Any  # Σ target, without weights
    target_sum: Any  # Σ weight target
    cost: Any  # Σ weight target (max_score - s)


@triton.jit
def _sum_terms(score, label, weight, real, NORMALIZED: tl.constexpr):
    """The sums over the loaded items."""
    max_score = _zero_if_empty(tl.max(score, 0))
    max_label = _zero_if_empty(tl.max(label, 0))
    exponential = _exp(score - max_score)
    weighted_target, target = _targets(label, max_label, weight, real, NORMALIZED)
    cost = weighted_target * (max_score - tl.where(real, score, max_score))
    return _Sums(
        max_score, tl.sum(exponential, 0), max_label, tl.sum(target, 0), tl.sum(weighted_target, 0),
        tl.sum(cost, 0),
    )  # fmt: skip


@triton.jit
def _results(sums, items, NORMALIZED: tl.constexpr):
    """The loss of a list from its sums, and what its gradient needs.

    Returns the loss, whether it is defined, and the factors f and g with which the gradient is
    ``f exp(s - max_score) - g weight target``.
    """
    is_defined = items > 1
    scale = tl.where(is_defined, 1.0, 0.0)
    if NORMALIZED:
        scale = scale / tl.maximum(sums.target_norm, 1.0)
    else:
        is_defined = is_defined & (sums.max_label > 0)
    exp_sum = tl.maximum(sums.exp_sum, 1.0)
    value = tl.where(is_defined, scale * (sums.cost + sums.target_sum * tl.log(exp_sum)), 0.0)
    factor = tl.where(is_defined, scale * sums.target_sum / exp_sum, 0.0)
    return value, is_defined, factor, tl.where(is_defined, scale, 0.0)


@cached_launch
@triton.jit
def _sum_span(
    scores, labels, mask, weights, offsets, parts, values, grad_scores, defined,
    NORMALIZED: tl.constexpr, ALL_ITEMS: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the sums of a span of a list, and its number of items, to ``parts``.

    With ALL_ITEMS the span is the whole list: the loss and its gradient are written instead.
    """
    list_index, start, length, row, inside, _ = list_block(mask, offsets, SPAN)
    index = start + row
    score, label, weight, real = _load(scores, labels, mask, weights, index, inside)
    sums = _sum_terms(score, label, weight, real, NORMALIZED)
    if ALL_ITEMS:
        items = length
        if mask is not None:
            items = tl.sum(real.to(tl.int32), 0)
        value, is_defined, factor, scale = _results(sums, items, NORMALIZED)
        target, _ = _targets(label, sums.max_label, weight, real, NORMALIZED)
        grad = factor * _exp(score - sums.max_score) - scale * target
        tl.store(grad_scores + index, grad, mask=inside)
        tl.store(values + list_index, value)
        tl.store(defined + list_index, is_defined)
    else:
        part = parts + (list_index.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 8
        items = tl.sum(real.to(tl.float32), 0)
        for slot in tl.static_range(6):
            tl.store(part + slot, sums[slot])
        tl.store(part + 6, items)


@triton.jit
def _join_sums(parts, list_index, spans, NORMALIZED: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of a list and its number of items, from ``parts`` ``[lists, spans, 8]``.

    The sums of a span are relative to its own largest score and label. They are rescaled to those
    of the list, which a first loop finds.
    """
    max_scores = tl.full([WIDTH], float("-inf"), tl.float32)
    max_labels = tl.full([WIDTH], float("-inf"), tl.float32)
    for first_span in range(0, spans, WIDTH):
        span = first_span + tl.arange(0, WIDTH)
        part = parts + (list_index * spans + span) * 8
        filled = tl.load(part + 6, mask=span < spans, other=0.0) > 0
        max_scores = tl.maximum(max_scores, tl.load(part, mask=filled, other=float("-inf")))
        max_labels = tl.maximum(max_labels, tl.load(part + 2, mask=filled, other=float("-inf")))
    max_score = _zero_if_empty(tl.max(max_scores, 0))
    max_label = _zero_if_empty(tl.max(max_labels, 0))
    exp_sum = tl.zeros([WIDTH], tl.float32)
    target_norm = tl.zeros([WIDTH], tl.float32)
    target_sum = tl.zeros([WIDTH], tl.float32)
    cost = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    for first_span in range(0, spans, WIDTH):
        span = first_span + tl.arange(0, WIDTH)
        part = parts + (list_index * spans + span) * 8
        span_items = tl.load(part + 6, mask=span < spans, other=0.0)
        filled = span_items > 0
        score_difference = max_score - tl.load(part, mask=filled, other=max_score)
        exp_sum += tl.load(part + 1, mask=filled, other=0.0) * _exp(-score_difference)
        scale = tl.where(filled, 1.0, 0.0)
        if NORMALIZED:
            scale *= _exp(tl.load(part + 2, mask=filled, other=max_label) - max_label)
        span_target_sum = tl.load(part + 4, mask=filled, other=0.0)
        target_norm += tl.load(part + 3, mask=filled, other=0.0) * scale
        target_sum += span_target_sum * scale
        span_cost = tl.load(part + 5, mask=filled, other=0.0)
        cost += (span_cost + span_target_sum * score_difference) * scale
        items += span_items
    sums = _Sums(
        max_score, tl.sum(exp_sum, 0), max_label, tl.sum(target_norm, 0), tl.sum(target_sum, 0),
        tl.sum(cost, 0),
    )  # fmt: skip
    return sums, tl.sum(items, 0)


@cached_launch
@triton.jit(do_not_specialize=["spans"])
def _write_gradient(
    scores, labels, mask, weights, offsets, parts, values, grad_scores, defined, spans,
    NORMALIZED: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradient of a span of a list; the list's first program also writes the loss."""
    list_index, start, length = list_span(offsets)
    first = tl.program_id(1) * SPAN
    if (first < length) | (first == 0):
        sums, items = _join_sums(parts, list_index.to(tl.int64), spans, NORMALIZED, WIDTH)
        value, is_defined, factor, scale = _results(sums, items, NORMALIZED)
        row = first + tl.arange(0, SPAN)
        inside = row < length
        score, label, weight, real = _load(scores, labels, mask, weights, start + row, inside)
        target, _ = _targets(label, sums.max_label, weight, real, NORMALIZED)
        grad = factor * _exp(score - sums.max_score) - scale * target
        tl.store(grad_scores + start + row, grad, mask=inside)
        if first == 0:
            tl.store(values + list_index, value)
            tl.store(defined + list_index, is_defined)
