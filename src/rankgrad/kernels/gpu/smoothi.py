"""SmoothI with stop-gradient: the rows of a list one after another, value and slopes in one pass.

Short lists are held in registers by one program each. Long ones are spread over programs, one
launch per row: the sweep that takes row r out of the products also meets row r + 1.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu.launch import cdiv, next_power_of_2, quick
from rankgrad.kernels.gpu.linear import as_loss, beyond, discount, is_real
from rankgrad.kernels.gpu.prepare import prepare

_LONGEST = 16384  # what one program holds in registers
_TILE = 1024


def through_smoothi(
    batch: FlatLists,
    alpha: float,
    delta: float,
    expect: str,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through SmoothI's indicators; see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    lists = offsets.numel() - 1
    prepared = prepare(labels, mask, weights, offsets, longest, metric, k, gain, threshold)
    gains, scale, lengths, defined = prepared
    values, slopes = scores.new_empty(lists), torch.empty_like(scores)
    if lists == 0 or scores.numel() == 0:
        return values.zero_(), slopes.zero_(), defined
    by_label = expect == "label"
    tensors = (
        scores,
        labels if by_label else gains,
        scores if mask is None else mask,
        scores if weights is None else weights,
        scale,
        lengths,
        defined,
        offsets,
        values,
        slopes,
    )
    numbers = (alpha, delta, persistence, k)
    options: dict[str, Any] = {
        "metric": metric,
        "gain": gain if by_label else "none",
        "masked": mask is not None,
        "weighted": by_label and weights is not None,
    }
    if longest <= _LONGEST:
        width = max(32, next_power_of_2(longest))
        warps = min(16, max(1, width // 256))
        _list[(lists,)](*tensors, *numbers, **options, width=width, num_warps=warps)
    else:
        _long(tensors, numbers, options, lists, longest)
    return values, slopes, defined


def _long(
    tensors: tuple[Tensor, ...],
    numbers: tuple[Any, ...],
    options: dict[str, Any],
    lists: int,
    longest: int,
) -> None:
    scores, _, mask, _, scale, lengths, defined, offsets, values, slopes = tensors
    alpha, k = numbers[0], numbers[-1]
    splits = min(256, cdiv(longest, _TILE))
    lowest = scores.new_empty(lists, splits, 3)
    partial = scores.new_empty(2, lists, splits, 4)
    state = torch.empty(2, scores.numel(), dtype=scores.dtype, device=scores.device)
    grid = (lists, splits)
    shape = {"splits": splits, "wide": next_power_of_2(splits), "tile": _TILE}
    _lowest[grid](
        scores, mask, offsets, lowest, masked=options["masked"], splits=splits, tile=_TILE
    )
    rows = min(k, longest) if k else longest
    for row in range(rows + 1):
        _sweep[grid](
            *tensors,
            *numbers,
            lowest,
            partial,
            state,
            row,
            lists,
            scores.numel(),
            **options,
            **shape,
        )
    _add_slopes[grid](
        scores, mask, defined, offsets, lowest, state, scores.numel(),
        masked=options["masked"], **shape,
    )  # fmt: skip
    _finish[grid](
        scores, mask, scale, lengths, defined, offsets, values, slopes, lowest, state,
        scores.numel(), alpha, k, metric=options["metric"], masked=options["masked"], **shape,
    )  # fmt: skip


@triton.jit
def _add(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _at_rank(mean, weight, gain: tl.constexpr, weighted: tl.constexpr):
    """The expected worth at a rank, and its derivatives by the expected value and weight."""
    if gain == "none":
        return mean, mean * 0.0 + 1.0, mean * 0.0
    else:
        if gain == "exponential":
            power = tl.exp2(mean)
            worth, slope = power - 1.0, power * 0.6931471805599453
        else:
            worth, slope = mean, mean * 0.0 + 1.0
        if weighted:
            return worth * weight, slope * weight, worth
        else:
            return worth, slope, mean * 0.0


@triton.jit
def _row(
    logits, value, product, slope, worth, weight, factor, delta,
    gain: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    """One softmax: into the value, the slopes and the products."""
    part = tl.exp2(logits)
    if weighted:
        total, mean, mean_weight = tl.reduce((part, part * worth, part * weight), 0, _add)
    else:
        total, mean = tl.reduce((part, part * worth), 0, _add_two)
        mean_weight = total
    shrink = 1.0 / total
    mean *= shrink
    mean_weight *= shrink
    at_rank, by_worth, by_weight = _at_rank(mean, mean_weight, gain, weighted)
    indicator = part * shrink
    pull = (factor * by_worth) * (worth - mean)
    if weighted:
        pull += (factor * by_weight) * (weight - mean_weight)
    slope += indicator * product * pull
    return value + factor * at_rank, product * ((1.0 - delta) - indicator), slope


@quick
@triton.jit(do_not_specialize=["k"])
def _list(
    scores, worths, mask, weights, scales, lengths, defined, offsets, values, slopes, alpha, delta,
    persistence, k, metric: tl.constexpr, gain: tl.constexpr, masked: tl.constexpr,
    weighted: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """One list, its items in registers: per row one maximum and one joint sum."""
    place = tl.program_id(0)
    begin = tl.load(offsets + place)
    item = tl.arange(0, width)
    inside = item < tl.load(offsets + place + 1) - begin
    slot = begin + item
    real = is_real(mask, slot, inside, masked)
    score = tl.load(scores + slot, mask=real, other=float("inf"))
    worth = tl.load(worths + slot, mask=real, other=0.0)
    weight = worth
    if weighted:
        weight = tl.load(weights + slot, mask=real, other=0.0)
    lowest = tl.min(score, 0)
    lowest = tl.where(lowest < float("inf"), lowest, 0.0)  # no items
    base = tl.where(real, score - lowest, 0.0) * (alpha * 1.4426950408889634)
    padding = tl.where(real, 0.0, float("-inf"))
    length = tl.load(lengths + place)
    scale = tl.where(tl.load(defined + place) != 0, tl.load(scales + place), 0.0)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    rows = tl.where(scale > 0, rows, 0)
    past = beyond(length, k, metric)
    product = tl.full([width], 1.0, tl.float32)
    slope = tl.zeros([width], tl.float32)
    value = scale * 0.0
    if tl.max(base, 0) < 60.0:  # products are at most 1 in size: nothing can overflow
        for row in range(rows):
            factor = scale * (discount(row + 1.0, metric, persistence) - past)
            value, product, slope = _row(
                base * product + padding, value, product, slope, worth, weight, factor, delta,
                gain, weighted,
            )  # fmt: skip
    else:
        for row in range(rows):
            factor = scale * (discount(row + 1.0, metric, persistence) - past)
            logits = base * product + padding
            value, product, slope = _row(
                logits - tl.max(logits, 0), value, product, slope, worth, weight, factor, delta,
                gain, weighted,
            )  # fmt: skip
    slope *= alpha
    least = real & (score == lowest)
    share = tl.sum(slope, 0) / tl.maximum(tl.sum(least.to(tl.float32), 0), 1.0)
    slope -= tl.where(least, share, 0.0)
    if metric != "arp":
        slope = -slope
    tl.store(slopes + slot, tl.where(real, slope, 0.0), mask=inside)
    tl.store(values + place, as_loss(value, length, k, scale, metric))


@quick
@triton.jit
def _lowest(
    scores, mask, offsets, lowest,
    masked: tl.constexpr, splits: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The lowest score of each program's part of a list."""
    place, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    least = tl.full([tile], float("inf"), tl.float32)
    for first in range(begin + split * tile, end, splits * tile):
        slot = first + tl.arange(0, tile)
        real = is_real(mask, slot, slot < end, masked)
        least = tl.minimum(least, tl.load(scores + slot, mask=real, other=float("inf")))
    tl.store(lowest + (place * splits + split) * 3, tl.min(least, 0))


@triton.jit
def _least(lowest, place, splits: tl.constexpr, wide: tl.constexpr):
    part = tl.arange(0, wide)
    many = lowest + (place * splits + part) * 3
    return tl.min(tl.load(many, mask=part < splits, other=float("inf")), 0)


@quick
@triton.jit(do_not_specialize=["k", "row", "lists", "slots"])
def _sweep(
    scores, worths, mask, weights, scales, lengths, defined, offsets, values, slopes, alpha, delta,
    persistence, k, lowest, partial, state, row, lists, slots, metric: tl.constexpr,
    gain: tl.constexpr, masked: tl.constexpr, weighted: tl.constexpr, splits: tl.constexpr,
    wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Row - 1 into slopes and products, and the sums over the exponentials of the row."""
    place, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    length = tl.load(lengths + place)
    scale = tl.where(tl.load(defined + place) != 0, tl.load(scales + place), 0.0)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    if (row == 0) & (split == 0):
        tl.store(values + place, 0.0)
    if (row <= rows) & (scale > 0):
        low = _least(lowest, place, splits, wide)
        strength = alpha * 1.4426950408889634
        top, total, mean, mean_weight = low * 0.0, low * 0.0 + 1.0, low * 0.0, low * 0.0
        factor, by_worth, by_weight = low * 0.0, low * 0.0, low * 0.0
        if row > 0:
            part = tl.arange(0, wide)
            source = partial + (((row - 1) % 2 * lists + place) * splits + part) * 4
            tops = tl.load(source, mask=part < splits, other=float("-inf"))
            top = tl.max(tops, 0)
            rescale = tl.exp2(tops - top)
            total = tl.sum(tl.load(source + 1, mask=part < splits, other=0.0) * rescale, 0)
            mean = tl.sum(tl.load(source + 2, mask=part < splits, other=0.0) * rescale, 0) / total
            mean_weight = (
                tl.sum(tl.load(source + 3, mask=part < splits, other=0.0) * rescale, 0) / total
            )
            factor = scale * (discount(row * 1.0, metric, persistence) - beyond(length, k, metric))
            at_rank, by_worth, by_weight = _at_rank(mean, mean_weight, gain, weighted)
            if split == 0:
                before = tl.load(values + place)
                tl.store(values + place, before + factor * at_rank)
        tops = tl.full([tile], -1e38, tl.float32)
        sums = tl.zeros([tile], tl.float32)
        sums_worth = tl.zeros([tile], tl.float32)
        sums_weight = tl.zeros([tile], tl.float32)
        for first in range(begin + split * tile, end, splits * tile):
            slot = first + tl.arange(0, tile)
            real = is_real(mask, slot, slot < end, masked)
            base = (tl.load(scores + slot, mask=real, other=0.0) - low) * strength
            worth = tl.load(worths + slot, mask=real, other=0.0)
            product = tl.full([tile], 1.0, tl.float32)
            slope = tl.zeros([tile], tl.float32)
            if weighted:
                weight = tl.load(weights + slot, mask=real, other=0.0)
            if row > 0:
                if row > 1:
                    product = tl.load(state + slot, mask=real, other=0.0)
                    slope = tl.load(state + slots + slot, mask=real, other=0.0)
                indicator = tl.exp2(base * product - top) / total
                pull = (factor * by_worth) * (worth - mean)
                if weighted:
                    pull += (factor * by_weight) * (weight - mean_weight)
                slope += indicator * product * pull
                product *= (1.0 - delta) - indicator
                tl.store(state + slot, product, mask=real)
                tl.store(state + slots + slot, slope, mask=real)
            logits = tl.where(real, base * product, float("-inf"))
            higher = tl.maximum(tops, logits)
            fade, entry = tl.exp2(tops - higher), tl.exp2(logits - higher)
            sums = sums * fade + entry
            sums_worth = sums_worth * fade + entry * worth
            if weighted:
                sums_weight = sums_weight * fade + entry * weight
            tops = higher
        top = tl.max(tops, 0)
        rescale = tl.exp2(tops - top)
        target = partial + ((row % 2 * lists + place) * splits + split) * 4
        tl.store(target, top)
        tl.store(target + 1, tl.sum(sums * rescale, 0))
        tl.store(target + 2, tl.sum(sums_worth * rescale, 0))
        tl.store(target + 3, tl.sum(sums_weight * rescale, 0))
    return


@quick
@triton.jit(do_not_specialize=["slots"])
def _add_slopes(
    scores, mask, defined, offsets, lowest, state, slots,
    masked: tl.constexpr, splits: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The sum of the slopes and the number of lowest scores, of each program's part of a list."""
    place, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    low = _least(lowest, place, splits, wide)
    total = tl.zeros([tile], tl.float32)
    count = tl.zeros([tile], tl.float32)
    for first in range(begin + split * tile, end, splits * tile):
        slot = first + tl.arange(0, tile)
        real = is_real(mask, slot, slot < end, masked)
        total += tl.load(state + slots + slot, mask=real, other=0.0)
        score = tl.load(scores + slot, mask=real, other=float("inf"))
        count += (real & (score == low)).to(tl.float32)
    tl.store(lowest + (place * splits + split) * 3 + 1, tl.sum(total, 0))
    tl.store(lowest + (place * splits + split) * 3 + 2, tl.sum(count, 0))


@quick
@triton.jit(do_not_specialize=["slots", "k"])
def _finish(
    scores, mask, scales, lengths, defined, offsets, values, slopes, lowest, state, slots, alpha, k,
    metric: tl.constexpr, masked: tl.constexpr,
    splits: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The part of the gradient that goes through the list's minimum, and the slopes."""
    place, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    scale = tl.where(tl.load(defined + place) != 0, tl.load(scales + place), 0.0)
    low = _least(lowest, place, splits, wide)
    part = tl.arange(0, wide)
    many = lowest + (place * splits + part) * 3
    total = tl.sum(tl.load(many + 1, mask=part < splits, other=0.0), 0)
    count = tl.sum(tl.load(many + 2, mask=part < splits, other=0.0), 0)
    share = total / tl.maximum(count, 1.0)
    counted = tl.where(scale > 0, end, begin)
    if metric != "arp":
        alpha = -alpha
    for first in range(begin + split * tile, end, splits * tile):
        slot = first + tl.arange(0, tile)
        real = is_real(mask, slot, slot < counted, masked)
        slope = tl.load(state + slots + slot, mask=real, other=0.0)
        score = tl.load(scores + slot, mask=real, other=float("inf"))
        slope = alpha * (slope - tl.where(score == low, share, 0.0))
        tl.store(slopes + slot, tl.where(real, slope, 0.0), mask=slot < end)
    if split == 0:
        value = tl.load(values + place)
        tl.store(values + place, as_loss(value, tl.load(lengths + place), k, scale, metric))
