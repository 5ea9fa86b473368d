"""Gains of items and norms of lists, for the metrics of the fused losses.

Other modules of this package import the gains, discounts and pair-tile helpers from here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import empty_norms, list_block, positions
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._segmented_sort import sort_lists

#: Rows of a tile of pairs. A thread holds all rows of one column.
ROWS = 16
COUNTED = 4096  # up to this length, ideal ranks are counted pair by pair; longer lists are sorted
_SHORT = 256  # the longest list that one program computes alone
_SPAN = 4096  # the most gains that one program sums


def ideal_gain(
    batch: FlatLists, metric_options: MetricOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gains of the items and the norm of each list.

    Args:
        batch: the lists; scores are not read.
        metric_options: a linear metric: ndcg, dcg, precision, recall, rbp or arp.

    Returns:
        gains ``[items]``: weighted, 0 on padding; scale ``[b]``: one over the norm, or 0 where the
        norm is 0; lengths ``[b]`` int32: the number of real items; defined ``[b]`` bool: whether
        the list has two items or more and one of them has a gain.
    """
    labels, offsets, max_length = batch.labels, batch.offsets, batch.max_length
    metric, k, gain, threshold, _ = metric_options
    norm = norm_kind(metric, k)
    gains = torch.empty_like(labels)
    scale, lengths, defined = empty_norms(batch)
    lists = len(scale)
    if lists == 0:
        return gains, scale, lengths, defined
    short, ranked = max_length <= _SHORT, norm == "ideal" and max_length > COUNTED
    rows = max(16, next_power_of_2(max_length)) if short else ROWS
    if norm != "ideal" or ranked:
        rows = max(rows, min(_SPAN, next_power_of_2(max_length)))
    blocks = max(1, cdiv(max_length, rows))
    at_once = blocks == 1 and not ranked
    parts = scale if at_once else labels.new_empty(lists, blocks, 4)
    _count[(lists, blocks)](
        *batch[1:5], threshold, k, gains, parts, scale, lengths, defined,
        GAIN=gain_kind(metric, gain), NORM="sum" if ranked else norm, ALL_ITEMS=at_once, ROWS=rows,
        COLUMNS=16 if short else 128, num_warps=8 if rows > 64 else 4,
    )  # fmt: skip
    if at_once:
        return gains, scale, lengths, defined
    if ranked:
        if gains.numel() == lists * max_length:  # lists of one length need no keys
            best = gains.view(lists, max_length).sort(dim=-1, descending=True).values
        else:
            best = sort_lists(gains, None, offsets, max_length).scores
        _add_ideal[(lists, blocks)](best, offsets, parts, k, rows, num_warps=8)
    _finish[(lists,)](parts, scale, lengths, defined, blocks, k, norm, 256, num_warps=1)
    return gains, scale, lengths, defined


def tile(max_length: int) -> tuple[int, int, int]:
    """Columns of a tile of pairs, its warps, and how many parts of a list are summed at a time.

    Short lists use one warp per block of rows: a sum across warps would cost more than it saves.
    """
    return (64, 1, 32) if max_length <= 512 else (128, 4, 512)


def gain_kind(metric: str, gain: str) -> str:
    """The gain of a metric: "exponential", "linear" or "binary"."""
    if metric in ("ndcg", "dcg"):
        return gain
    return "linear" if metric == "arp" else "binary"


def norm_kind(metric: str, k: int) -> str:
    """The divisor of a metric's sum: its "ideal" DCG, "one", k ("cutoff"), "length" or "sum"."""
    if metric == "precision":
        return "cutoff" if k else "length"
    return {"ndcg": "ideal", "dcg": "one", "rbp": "one", "recall": "sum", "arp": "sum"}[metric]


@triton.jit
def gain_of(label, threshold, GAIN: tl.constexpr):
    """``2^y - 1``, ``y``, or ``1[y >= threshold]``."""
    if GAIN == "exponential":
        return tl.exp2(label) - 1.0
    elif GAIN == "linear":
        return label
    else:
        return tl.where(label >= threshold, 1.0, 0.0)


@triton.jit
def load_gains(labels, weights, at, real, threshold, GAIN: tl.constexpr):
    """The weighted gains of real items; -1 on padding, which is below every gain."""
    gain = gain_of(tl.load(labels + at, mask=real, other=0.0), threshold, GAIN)
    if weights is not None:
        gain *= tl.load(weights + at, mask=real, other=0.0)
    return tl.where(real, gain, -1.0)


@triton.jit
def gain_key(gain, real):
    """Integers that sort as the gains do; -1 on padding. Gains must not be negative."""
    return tl.where(real, (gain + 0.0).to(tl.int32, bitcast=True), -1)


@triton.jit
def sign_bit(number):
    """1 for negative integers, else 0. Counting with it needs no predicate registers."""
    if number.dtype == tl.int64:
        return (number >> 63).to(tl.int32) & 1
    else:
        return (number >> 31) & 1


@triton.jit
def soft_inside(rank, k, beta):
    """``1[rank <= k]`` relaxed, one minus it, and its derivative with respect to the rank.

    With ``d = rank - k - 1/2`` it is the sigmoid of ``-beta d`` up to d = 0, and
    ``(1/2) (1 + d / 4)^(-2 beta)`` from there on.
    """
    x = beta * (k + 0.5 - rank)
    small = tl.exp2(-1.4426950408889634 * tl.abs(x))
    inside = 1.0 / (1.0 + small)
    outside = small * inside  # equals 1 - inside, without cancellation
    farther = 1.0 + 0.25 * tl.maximum(rank - k - 0.5, 0.0)
    past = 0.5 * tl.exp2(-2.0 * beta * tl.log2(farther))
    derivative = tl.where(x >= 0, inside * outside, 0.5 * past / farther)
    return tl.where(x >= 0, inside, past), tl.where(x >= 0, outside, 1.0 - past), -beta * derivative


@triton.jit
def rank_discount(rank, length, k, beta, persistence, CURVE: tl.constexpr, CUT: tl.constexpr):
    """The discount of a relaxed rank, and its derivative.

    CURVE is "logarithmic" (``1 / log2(1 + r)``), "constant" (1), "geometric" (``(1 - p) p^{r-1}``),
    "rank" (r) or "reciprocal" (``1 / r``). With a cutoff, ranks are clamped to k + 3/4, and
    :func:`soft_inside` interpolates between their discount and that past the cutoff: k + 1 for
    "rank" (ARP), 0 for others.
    """
    place = rank
    if CUT:
        rank = tl.minimum(rank, k + 0.75)
    if CURVE == "logarithmic":
        logarithm = tl.log2(1.0 + rank)
        discount = 1.0 / logarithm
        derivative = -1.4426950408889634 * discount * discount / (1.0 + rank)
    elif CURVE == "constant":
        discount = rank * 0.0 + 1.0
        derivative = rank * 0.0
    elif CURVE == "geometric":
        rate = tl.log2(rank * 0.0 + persistence)
        discount = (1.0 - persistence) * tl.exp2((rank - 1.0) * rate)
        derivative = discount * rate * 0.6931471805599453
    elif CURVE == "rank":
        discount = rank
        derivative = rank * 0.0 + 1.0
    else:
        discount = 1.0 / rank
        derivative = -discount * discount
    if CUT:
        beyond = rank * 0.0
        if CURVE == "rank":
            beyond += k + 1.0
        inner, outer, fall = soft_inside(place, k, beta)
        is_within = length <= k
        cut = tl.where(place > k + 0.75, 0.0, inner * derivative) + fall * (discount - beyond)
        derivative = tl.where(is_within, derivative, cut)
        discount = tl.where(is_within, discount, inner * discount + outer * beyond)
    return discount, derivative


@triton.jit
def sum_blocks(terms, list_index, blocks, WIDTH: tl.constexpr):
    """The sum over the blocks of a list."""
    total = tl.zeros([WIDTH], tl.float32)
    for left in range(0, blocks, WIDTH):
        block = left + tl.arange(0, WIDTH)
        total += tl.load(terms + list_index * blocks + block, mask=block < blocks, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def log1p(small):
    """``log(1 + t)`` for t in [-1/2, 1], with a relative error of a few float32 ulps."""
    ratio = small / (2.0 + small)  # log(1 + t) = 2 atanh(t / (2 + t))
    square = ratio * ratio
    series = square * (1.0 / 15.0) + (1.0 / 13.0)
    series = series * square + (1.0 / 11.0)
    series = series * square + (1.0 / 9.0)
    series = series * square + (1.0 / 7.0)
    series = series * square + (1.0 / 5.0)
    series = series * square + (1.0 / 3.0)
    return 2.0 * (ratio + ratio * square * series)


@triton.jit
def discount(position):
    """``1 / log2(1 + r)`` at the 0-based position r - 1."""
    return 1.0 / tl.log2(position + 2.0)


@triton.jit
def store_sums(parts, at, ideal, gain, real):
    """Store what :func:`list_sums` adds up: ideal DCG, gains, items, and items with a gain."""
    gain = tl.where(real, gain, 0.0)
    tl.store(parts + at * 4, ideal)
    tl.store(parts + at * 4 + 1, tl.sum(gain, 0))
    tl.store(parts + at * 4 + 2, tl.sum(real.to(tl.float32), 0))
    tl.store(parts + at * 4 + 3, tl.sum((gain > 0).to(tl.float32), 0))


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _count(
    labels, mask, weights, offsets, threshold, k, gains, parts, scale, lengths, defined,
    GAIN: tl.constexpr, NORM: tl.constexpr, ALL_ITEMS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Gains of a block of items and their part of the ideal DCG; ideal ranks are counted."""
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    gain = load_gains(labels, weights, start + row, real, threshold, GAIN)
    tl.store(gains + start + row, tl.where(real, gain, 0.0), mask=inside)
    ideal = 0.0
    if NORM == "ideal":
        key = gain_key(gain, real)
        ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
        for left in range(0, tl.where(block * ROWS < width, width, 0), COLUMNS):
            column, valid = positions(mask, start, left, width, COLUMNS)
            other = load_gains(labels, weights, start + column, valid, threshold, GAIN)
            earlier = (column[None, :] < row[:, None]).to(tl.int32)  # breaks ties by input order
            ahead += sign_bit(key[:, None] - earlier - gain_key(other, valid)[None, :])
        place = tl.sum(ahead, 1)
        counted = real & ((k == 0) | (place < k))
        ideal = tl.sum(tl.where(counted, gain * discount(place.to(tl.float32)), 0.0), 0)
    if ALL_ITEMS:
        gain = tl.where(real, gain, 0.0)
        items = tl.sum(real.to(tl.int32), 0)
        norm = scale_of(ideal + 0.0 * tl.sum(gain, 0), tl.sum(gain, 0), items, k, NORM)
        tl.store(scale + list_index, norm)
        tl.store(lengths + list_index, items)
        tl.store(defined + list_index, (tl.max(gain, 0) > 0) & (items > 1))
    else:
        store_sums(parts, list_index * tl.num_programs(1) + block, ideal, gain, real)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _add_ideal(ranked, offsets, parts, k, ROWS: tl.constexpr) -> None:
    """The ideal DCG of a block of sorted gains."""
    list_index, start, _, position, inside, _ = list_block(None, offsets, ROWS)
    counted = inside & ((k == 0) | (position < k))
    gain = tl.load(ranked + start + position, mask=counted, other=0.0)
    ideal = tl.sum(gain * discount(position.to(tl.float32)), 0)
    tl.store(parts + (list_index * tl.num_programs(1) + tl.program_id(1)) * 4, ideal)


@triton.jit
def list_sums(parts, list_index, blocks, WIDTH: tl.constexpr):
    """Of one list: the ideal DCG, the sum of gains, the items, and the items with a gain."""
    ideal = tl.zeros([WIDTH], tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    counting = tl.zeros([WIDTH], tl.float32)
    for left in range(0, blocks, WIDTH):
        block = left + tl.arange(0, WIDTH)
        at = parts + (list_index * blocks + block) * 4
        ideal += tl.load(at, mask=block < blocks, other=0.0)
        total += tl.load(at + 1, mask=block < blocks, other=0.0)
        items += tl.load(at + 2, mask=block < blocks, other=0.0)
        counting += tl.load(at + 3, mask=block < blocks, other=0.0)
    return tl.sum(ideal, 0), tl.sum(total, 0), tl.sum(items, 0), tl.sum(counting, 0)


@triton.jit
def scale_of(ideal, total, items, k, NORM: tl.constexpr):
    """One over the norm; 0 where the norm is 0."""
    if NORM == "ideal":
        norm = ideal
    elif NORM == "one":
        norm = ideal * 0.0 + 1.0
    elif NORM == "cutoff":
        norm = ideal * 0.0 + k
    elif NORM == "length":
        norm = items
    else:
        norm = total
    return tl.where(norm > 0, 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k"])
def _finish(
    parts, scale, lengths, defined, blocks, k, NORM: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Sum the blocks of a list."""
    list_index = tl.program_id(0)
    ideal, total, items, counting = list_sums(parts, list_index, blocks, WIDTH)
    tl.store(scale + list_index, scale_of(ideal, total, items, k, NORM))
    tl.store(lengths + list_index, items.to(tl.int32))
    tl.store(defined + list_index, (counting > 0) & (items > 1))
