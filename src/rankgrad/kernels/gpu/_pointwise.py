"""Pointwise losses on GPUs: each item has a term of its score and label; a list has their mean.

:mod:`rankgrad.losses.pointwise` defines the losses. One program computes a short list. Long lists
are cut into spans: a first kernel writes the sums and unscaled gradients of each span, and a second
one adds the sums of all spans of a list and scales the gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._flat_lists import chunk_size, empty_results, list_block, load_weights
from rankgrad.kernels.gpu._ideal_gain import log1p
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

_SPAN = 4096  # the most items of one program
_WIDTH = 256  # how many spans' sums a program reads at a time


def pointwise(batch: FlatLists, kind: str, number: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(1 / n) Σ_i w_i term(s_i, y_i)``, for rmse its root (:mod:`rankgrad.losses.pointwise`).

    Args:
        batch: the lists.
        kind: ``mse``, ``rmse``, ``bce`` or ``ordinal``.
        number: the number of levels of rmse and ordinal, or the threshold of bce; mse ignores it.

    Returns:
        values, grad_scores and defined (see :mod:`rankgrad.kernels.ops`).
    """
    values, *_ = results = empty_results(batch)
    lists, span = len(values), chunk_size(batch.max_length, _SPAN)
    spans = cdiv(batch.max_length, span)
    # The sum of terms and the number of items of each span; not used if a list is one span
    parts = values if spans == 1 else values.new_empty(lists, spans, 2)
    _sum_terms[(lists, spans)](
        *batch[:5], float(number), int(number), *results, parts, KIND=kind, ALL_ITEMS=spans == 1,
        SPAN=span, num_warps=max(1, min(8, span // 128)),
    )  # fmt: skip
    if spans > 1:
        _join_spans[(lists, spans)](batch.offsets, *results, parts, kind, span, _WIDTH, num_warps=8)
    return results


@triton.jit
def _cross_entropy(logit, target):
    """``-t log σ(x) - (1 - t) log σ(-x)`` and its derivative by x; the target t is a boolean."""
    decay = tl.exp2(-1.4426950408889634 * tl.abs(logit))  # exp(-|x|): the factor is log2(e)
    sigmoid = tl.where(logit >= 0, 1.0, decay) / (1.0 + decay)
    # 1 - σ(x) without cancellation, for targets of 1.
    complement = tl.where(logit >= 0, decay, 1.0) / (1.0 + decay)
    value = tl.maximum(tl.where(target, -logit, logit), 0.0) + log1p(decay)
    return value, tl.where(target, -complement, sigmoid)


@triton.jit
def _terms(score, label, number, levels, KIND: tl.constexpr):
    """The term of each item, and its derivative with respect to the score.

    ``number`` is the number of levels of rmse and ordinal (also as the integer ``levels``), or the
    threshold of bce. With L levels and ce the cross-entropy above, the terms are

        mse: ``(s - y)²``, rmse: ``(L σ(s) - y)²``, bce: ``ce(s, y >= threshold)``,
        ordinal: ``Σ_{l=1}^{L-1} ce(s - (l - L / 2), y >= l)``.
    """
    if KIND == "mse":
        error = score - label
        return error * error, 2.0 * error
    elif KIND == "rmse":
        decay = tl.exp2(-1.4426950408889634 * tl.abs(score))  # exp(-|s|): the factor is log2(e)
        sigmoid = tl.where(score >= 0, 1.0, decay) / (1.0 + decay)
        error = number * sigmoid - label
        return error * error, 2.0 * number * error * (decay / ((1.0 + decay) * (1.0 + decay)))
    elif KIND == "bce":
        return _cross_entropy(score, label >= number)
    else:
        value, grad = score * 0.0, score * 0.0
        for level in range(1, levels):
            logit = score - (level - 0.5 * number)
            term, derivative = _cross_entropy(logit, label >= level)
            value += term
            grad += derivative
        return value, grad


@triton.jit
def _mean(total, items, KIND: tl.constexpr):
    """The loss of a list (the mean of its terms; rmse: the root of it), from their sum.

    Also returns the factor by which the derivatives of the terms become those of the loss.
    """
    factor = 1.0 / tl.maximum(items, 1.0)
    value = total * factor
    if KIND == "rmse":  # the root's derivative at 0 is infinite; use a gradient of 0
        above = value > 0
        root = tl.sqrt(tl.where(above, value, 1.0))
        factor = tl.where(value == 0, 0.0, 0.5 * factor / root)
        value = tl.where(value == 0, 0.0, tl.where(above, root, value))
    return value, factor


@cached_launch
@triton.jit(do_not_specialize=["levels"])
def _sum_terms(
    scores, labels, mask, weights, offsets, number, levels, values, grad_scores, defined, parts,
    KIND: tl.constexpr, ALL_ITEMS: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the unscaled gradients of a span, and its sum and number of items to ``parts``.

    ``parts`` is ``[lists, spans, 2]``. With ALL_ITEMS the span is the whole list: gradients are
    scaled, and the loss is written in place of ``parts``.
    """
    list_index, start, _, row, inside, real = list_block(mask, offsets, SPAN)
    score = tl.load(scores + start + row, mask=real, other=0.0)
    label = tl.load(labels + start + row, mask=real, other=0.0)
    term, grad = _terms(score, label, number, levels, KIND)
    weight = load_weights(weights, start + row, real)
    total = tl.sum(term * weight, 0)
    items = tl.sum(real.to(tl.float32), 0)
    grad = tl.where(real, grad * weight, 0.0)
    if ALL_ITEMS:
        value, factor = _mean(total, items, KIND)
        grad *= factor
        tl.store(values + list_index, value)
        tl.store(defined + list_index, items > 0)
    else:
        part = parts + (list_index.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 2
        tl.store(part, total)
        tl.store(part + 1, items)
    tl.store(grad_scores + start + row, grad, mask=inside)


@cached_launch
@triton.jit
def _join_spans(
    offsets, values, grad_scores, defined, parts,
    KIND: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Scale the gradients of a span of a list; the first program of the list writes the loss."""
    list_index, start, _, row, inside, _ = list_block(None, offsets, SPAN)
    spans = tl.num_programs(1)
    totals = tl.zeros([WIDTH], tl.float32)
    item_counts = tl.zeros([WIDTH], tl.float32)
    for first_span in range(0, spans, WIDTH):
        span = first_span + tl.arange(0, WIDTH)
        part = parts + (list_index.to(tl.int64) * spans + span) * 2
        totals += tl.load(part, mask=span < spans, other=0.0)
        item_counts += tl.load(part + 1, mask=span < spans, other=0.0)
    items = tl.sum(item_counts, 0)
    value, factor = _mean(tl.sum(totals, 0), items, KIND)
    grad = tl.load(grad_scores + start + row, mask=inside, other=0.0)
    tl.store(grad_scores + start + row, grad * factor, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(values + list_index, value)
        tl.store(defined + list_index, items > 0)
