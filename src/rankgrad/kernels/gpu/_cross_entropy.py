"""Softmax cross-entropy and ListNet on GPUs.

One program computes a short list in registers. A long list is cut into spans. A first kernel
computes the sums of each span, relative to the largest score in it; a second kernel joins the sums
and writes the gradient.
"""

from __future__ import annotations

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
_SPAN = 4096
_WIDTH = 256  # spans joined at a time


def cross_entropy(batch: FlatLists, target: str) -> tuple[Tensor, Tensor, Tensor]:
    """``-Σ_i t_i log softmax(s)_i`` (see :mod:`rankgrad.kernels.ops`)."""
    values, *_ = results = empty_results(batch)
    lists = len(values)
    if lists == 0:
        return results
    span = max(32, next_power_of_2(batch.max_length)) if batch.max_length <= _SHORT else _SPAN
    spans = max(1, cdiv(batch.max_length, span))
    constants = {"NORMALIZED": target == "softmax", "SPAN": span}
    parts = values if spans == 1 else values.new_empty(lists, spans, 8)
    arguments = (*batch[:5], parts, *results)
    warps = 8 if spans > 1 else max(1, min(16, span // 256))
    _sum_span[(lists, spans)](*arguments, **constants, ALL_ITEMS=spans == 1, num_warps=warps)
    if spans > 1:
        _join[(lists, spans)](*arguments, spans, **constants, WIDTH=_WIDTH, num_warps=8)
    return results


@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _load(scores, labels, mask, weights, at, inside):
    """Scores and labels (-inf on padding), weights (0 on padding), and which items are real."""
    real = is_real(mask, at, inside)
    score = tl.load(scores + at, mask=real, other=float("-inf"))
    label = tl.load(labels + at, mask=real, other=float("-inf"))
    weight = load_weights(weights, at, real)
    return score, label, weight, real


@triton.jit
def _finite(top):
    """A maximum; 0 where it is -inf because there is no item."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _targets(label, best, weight, real, NORMALIZED: tl.constexpr):
    """The weighted targets, and the terms of their norm. ListNet's are not yet normalized."""
    term = tl.where(real, label, 0.0)
    if NORMALIZED:
        term = _exp(label - best)
    return term * weight, term


@triton.jit
def _sums(score, label, weight, real, NORMALIZED: tl.constexpr):
    """The sums that the cross-entropy of a list is computed from.

    Returns the largest score and ``Σ exp(s - max s)``; the largest label and the norm of the
    targets; the sum of the targets; and ``Σ target (max s - s)``.
    """
    top = _finite(tl.max(score, 0))
    best = _finite(tl.max(label, 0))
    power = _exp(score - top)
    target, term = _targets(label, best, weight, real, NORMALIZED)
    cost = target * (top - tl.where(real, score, top))
    return top, tl.sum(power, 0), best, tl.sum(term, 0), tl.sum(target, 0), tl.sum(cost, 0)


@triton.jit
def _results(total, best, norm, mass, cost, items, NORMALIZED: tl.constexpr):
    """The loss of a list, whether it is defined, and the factors of exponentials and targets."""
    counts = items > 1
    scale = tl.where(counts, 1.0, 0.0)
    if NORMALIZED:
        scale = scale / tl.maximum(norm, 1.0)
    else:
        counts = counts & (best > 0)
    value = tl.where(counts, scale * (cost + mass * tl.log(tl.maximum(total, 1.0))), 0.0)
    factor = tl.where(counts, scale * mass / tl.maximum(total, 1.0), 0.0)
    return value, counts, factor, tl.where(counts, scale, 0.0)


@cached_launch
@triton.jit
def _sum_span(
    scores, labels, mask, weights, offsets, parts, values, grad_scores, defined,
    NORMALIZED: tl.constexpr, ALL_ITEMS: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The sums of a span of a list or, if it is the whole list, the loss and its gradient."""
    list_index, start, width, row, inside, _ = list_block(mask, offsets, SPAN)
    at = start + row
    score, label, weight, real = _load(scores, labels, mask, weights, at, inside)
    top, total, best, norm, mass, cost = _sums(score, label, weight, real, NORMALIZED)
    if ALL_ITEMS:
        items = width
        if mask is not None:
            items = tl.sum(real.to(tl.int32), 0)
        value, counts, factor, scale = _results(total, best, norm, mass, cost, items, NORMALIZED)
        target, _ = _targets(label, best, weight, real, NORMALIZED)
        tl.store(grad_scores + at, factor * _exp(score - top) - scale * target, mask=inside)
        tl.store(values + list_index, value)
        tl.store(defined + list_index, counts)
    else:
        to = parts + (list_index.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 8
        sums = (top, total, best, norm, mass, cost, tl.sum(real.to(tl.float32), 0))
        for which in tl.static_range(7):
            tl.store(to + which, sums[which])


@triton.jit
def _joined(parts, list_index, spans, NORMALIZED: tl.constexpr, WIDTH: tl.constexpr):
    """The sums of a list, from the sums of its spans."""
    tops = tl.full([WIDTH], float("-inf"), tl.float32)
    bests = tl.full([WIDTH], float("-inf"), tl.float32)
    for left in range(0, spans, WIDTH):
        span = left + tl.arange(0, WIDTH)
        part = parts + (list_index * spans + span) * 8
        filled = tl.load(part + 6, mask=span < spans, other=0.0) > 0
        tops = tl.maximum(tops, tl.load(part, mask=filled, other=float("-inf")))
        bests = tl.maximum(bests, tl.load(part + 2, mask=filled, other=float("-inf")))
    top = _finite(tl.max(tops, 0))
    best = _finite(tl.max(bests, 0))
    total = tl.zeros([WIDTH], tl.float32)
    norm = tl.zeros([WIDTH], tl.float32)
    mass = tl.zeros([WIDTH], tl.float32)
    cost = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    for left in range(0, spans, WIDTH):
        span = left + tl.arange(0, WIDTH)
        part = parts + (list_index * spans + span) * 8
        number = tl.load(part + 6, mask=span < spans, other=0.0)
        filled = number > 0
        below = top - tl.load(part, mask=filled, other=top)
        total += tl.load(part + 1, mask=filled, other=0.0) * _exp(-below)
        scale = tl.where(filled, 1.0, 0.0)
        if NORMALIZED:
            scale *= _exp(tl.load(part + 2, mask=filled, other=best) - best)
        own = tl.load(part + 4, mask=filled, other=0.0)
        norm += tl.load(part + 3, mask=filled, other=0.0) * scale
        mass += own * scale
        cost += (tl.load(part + 5, mask=filled, other=0.0) + own * below) * scale
        items += number
    return (
        top, tl.sum(total, 0), best, tl.sum(norm, 0), tl.sum(mass, 0), tl.sum(cost, 0),
        tl.sum(items, 0),
    )  # fmt: skip


@cached_launch
@triton.jit(do_not_specialize=["spans"])
def _join(
    scores, labels, mask, weights, offsets, parts, values, grad_scores, defined, spans,
    NORMALIZED: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of a span of a list; the first program also writes the loss."""
    list_index, start, width = list_span(offsets)
    first = tl.program_id(1) * SPAN
    if (first < width) | (first == 0):
        top, total, best, norm, mass, cost, items = _joined(
            parts, list_index.to(tl.int64), spans, NORMALIZED, WIDTH
        )
        value, counts, factor, scale = _results(total, best, norm, mass, cost, items, NORMALIZED)
        row = first + tl.arange(0, SPAN)
        inside = row < width
        score, label, weight, real = _load(scores, labels, mask, weights, start + row, inside)
        target, _ = _targets(label, best, weight, real, NORMALIZED)
        grad = factor * _exp(score - top) - scale * target
        tl.store(grad_scores + start + row, grad, mask=inside)
        if first == 0:
            tl.store(values + list_index, value)
            tl.store(defined + list_index, counts)
