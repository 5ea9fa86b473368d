"""Gains of items and norms of lists, for the metrics of the fused losses.

A linear metric is ``Σ_i gain_i discount(rank_i) / norm``. The norm of NDCG is its ideal value
``Σ_i gain_i / log2(1 + r_i)`` with r_i the rank of item i by gain, up to the cutoff. Short lists
count these ranks pair by pair; long lists are sorted by gain.

Other modules of this package import gains, discounts and helpers for tiles of pairs from here.
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
        metric_options: a linear metric: ndcg, dcg, precision, recall, rbp or arp. A cutoff k of 0
            means none.

    Returns:
        gains ``[items]``: weighted, 0 on padding; scale ``[b]``: one over the norm, or 0 where the
        norm is 0; lengths ``[b]`` int32: the number of real items; defined ``[b]`` bool: whether
        the list has two items or more and one of them has a positive gain.
    """
    labels, offsets, max_length = batch.labels, batch.offsets, batch.max_length
    metric, k, gain, threshold, _ = metric_options
    norm = norm_kind(metric, k)
    gains = torch.empty_like(labels)
    scale, lengths, defined = empty_norms(batch)
    lists = len(scale)
    is_short, is_sorted = max_length <= _SHORT, norm == "ideal" and max_length > COUNTED
    rows = max(16, next_power_of_2(max_length)) if is_short else ROWS
    if norm != "ideal" or is_sorted:
        rows = max(rows, min(_SPAN, next_power_of_2(max_length)))
    blocks = cdiv(max_length, rows)
    is_one_block = blocks == 1 and not is_sorted
    # The sums of each block. With one block the kernel does not use them: any tensor will do.
    parts = scale if is_one_block else labels.new_empty(lists, blocks, 4)
    _count_ideal_ranks[(lists, blocks)](
        *batch[1:5], threshold, k, gains, parts, scale, lengths, defined,
        GAIN=gain_kind(metric, gain), NORM="sum" if is_sorted else norm, ALL_ITEMS=is_one_block,
        ROWS=rows, COLUMNS=16 if is_short else 128, num_warps=8 if rows > 64 else 4,
    )  # fmt: skip
    if is_one_block:
        return gains, scale, lengths, defined
    if is_sorted:
        if gains.numel() == lists * max_length:  # all lists have the same length
            sorted_gains = gains.view(lists, max_length).sort(dim=-1, descending=True).values
        else:
            sorted_gains = sort_lists(gains, None, offsets, max_length).scores
        _add_ideal[(lists, blocks)](sorted_gains, offsets, parts, k, rows, num_warps=8)
    _join_blocks[(lists,)](parts, scale, lengths, defined, blocks, k, norm, 256, num_warps=1)
    return gains, scale, lengths, defined


def tile(max_length: int) -> tuple[int, int, int]:
    """Columns of a tile of pairs, its warps, and how many blocks of a list are summed at a time.

    Short lists use one warp per block of rows: a sum across warps would cost more than it saves.
    """
    return (64, 1, 32) if max_length <= 512 else (128, 4, 512)


def gain_kind(metric: str, gain: str) -> str:
    """The gain of a metric: "exponential", "linear" or "binary"."""
    if metric in ("ndcg", "dcg"):
        return gain
    return "linear" if metric == "arp" else "binary"


def norm_kind(metric: str, k: int) -> str:
    """The norm of a metric: "ideal" (DCG), "one", "cutoff" (k), "length" or "sum" (of gains)."""
    if metric == "precision":
        return "cutoff" if k else "length"
    return {"ndcg": "ideal", "dcg": "one", "rbp": "one", "recall": "sum", "arp": "sum"}[metric]


@triton.jit
def gain_of(label, threshold, GAIN: tl.constexpr):
    """The gain of a label y: ``2^y - 1``, ``y``, or ``1[y >= threshold]``."""
    if GAIN == "exponential":
        return tl.exp2(label) - 1.0
    elif GAIN == "linear":
        return label
    else:
        return tl.where(label >= threshold, 1.0, 0.0)


@triton.jit
def load_gains(labels, weights, index, real, threshold, GAIN: tl.constexpr):
    """The weighted gains of real items; -1 on padding, which is below every gain."""
    gain = gain_of(tl.load(labels + index, mask=real, other=0.0), threshold, GAIN)
    if weights is not None:
        gain *= tl.load(weights + index, mask=real, other=0.0)
    return tl.where(real, gain, -1.0)


@triton.jit
def gain_key(gain, real):
    """Integers in the same order as the gains; -1 on padding. Gains must not be negative."""
    # The bits of floats that are not negative ascend with them; adding 0 makes 0 of -0.
    return tl.where(real, (gain + 0.0).to(tl.int32, bitcast=True), -1)


@triton.jit
def sign_bit(number):
    """1 for negative integers, else 0; cheaper to add up than the result of a comparison."""
    if number.dtype == tl.int64:
        return (number >> 63).to(tl.int32) & 1
    else:
        return (number >> 31) & 1


@triton.jit
def is_ahead(key, column_key, row, column, SIDE: tl.constexpr):
    """1 for columns of a tile that sort before a row, else 0: by descending keys, then by position.

    SIDE is -1 if all columns come before all rows, 1 if they come after, 0 if mixed.
    """
    if SIDE == -1:  # columns of equal key are ahead: lower the rows' keys by one
        return sign_bit((key - 1)[:, None] - column_key[None, :])
    elif SIDE == 1:
        return sign_bit(key[:, None] - column_key[None, :])
    else:
        earlier = (column[None, :] < row[:, None]).to(tl.int32)
        return sign_bit(key[:, None] - earlier - column_key[None, :])


@triton.jit
def soft_inside(rank, k, beta):
    """A relaxation of ``1[rank <= k]``, one minus it, and its derivative with respect to the rank.

    With ``d = rank - k - 1/2`` the relaxation is ``sigmoid(-beta d)`` for d <= 0, and
    ``(1/2) (1 + d / 4)^(-2 beta)`` for d > 0.
    """
    x = beta * (k + 0.5 - rank)
    decay = tl.exp2(-1.4426950408889634 * tl.abs(x))  # log2(e): this is exp(-|x|)
    inside = 1.0 / (1.0 + decay)
    outside = decay * inside  # equals 1 - inside, without cancellation
    stretched = 1.0 + 0.25 * tl.maximum(rank - k - 0.5, 0.0)
    tail = 0.5 * tl.exp2(-2.0 * beta * tl.log2(stretched))
    derivative = tl.where(x >= 0, inside * outside, 0.5 * tail / stretched)
    return tl.where(x >= 0, inside, tail), tl.where(x >= 0, outside, 1.0 - tail), -beta * derivative


@triton.jit
def rank_discount(rank, length, k, beta, persistence, CURVE: tl.constexpr, CUT: tl.constexpr):
    """The discount of a relaxed rank, and its derivative.

    CURVE is "logarithmic" (``1 / log2(1 + r)``), "constant" (1), "geometric" (``(1 - p) p^{r-1}``),
    "rank" (r) or "reciprocal" (``1 / r``). With a cutoff, ranks are clamped to k + 3/4, and
    :func:`soft_inside` interpolates between their discount and that past the cutoff: k + 1 for
    "rank" (ARP), 0 for others. A list of at most k items is not cut. The factors are log2(e) and
    ln 2; ``rank * 0.0`` is a zero of the shape of the ranks.
    """
    unclamped_rank = rank
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
        inside_weight, outside_weight, inside_derivative = soft_inside(unclamped_rank, k, beta)
        is_within = length <= k
        cut_derivative = tl.where(unclamped_rank > k + 0.75, 0.0, inside_weight * derivative)
        cut_derivative += inside_derivative * (discount - beyond)
        derivative = tl.where(is_within, derivative, cut_derivative)
        discount = tl.where(is_within, discount, inside_weight * discount + outside_weight * beyond)
    return discount, derivative


@triton.jit
def sum_blocks(terms, list_index, blocks, WIDTH: tl.constexpr, STRIDE: tl.constexpr = 1):
    """The sum of one number per block of a list; ``terms`` is ``[lists, blocks, STRIDE]``."""
    total = tl.zeros([WIDTH], tl.float32)
    for first_block in range(0, blocks, WIDTH):
        block = first_block + tl.arange(0, WIDTH)
        at = (list_index * blocks + block) * STRIDE
        total += tl.load(terms + at, mask=block < blocks, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def log1p(t):
    """``log(1 + t)`` for t in [-1/2, 1], with a relative error of a few float32 ulps."""
    ratio = t / (2.0 + t)  # log(1 + t) = 2 atanh(t / (2 + t))
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
def store_sums(parts, block, ideal, gain, real):
    """Store the sums of a block in ``parts`` ``[all blocks, 4]``, for :func:`list_sums`.

    They are its part of the ideal DCG, its sum of gains, the number of its items, and how many of
    them have a positive gain. ``block`` is its index among the blocks of all lists.
    """
    gain = tl.where(real, gain, 0.0)
    tl.store(parts + block * 4, ideal)
    tl.store(parts + block * 4 + 1, tl.sum(gain, 0))
    tl.store(parts + block * 4 + 2, tl.sum(real.to(tl.float32), 0))
    tl.store(parts + block * 4 + 3, tl.sum((gain > 0).to(tl.float32), 0))


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _count_ideal_ranks(
    labels, mask, weights, offsets, threshold, k, gains, parts, scale, lengths, defined,
    GAIN: tl.constexpr, NORM: tl.constexpr, ALL_ITEMS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gains of a block of items, and its sums with its part of the ideal DCG.

    The ideal rank of an item is one plus the number of items with a larger gain, or with an equal
    gain and an earlier position. With ALL_ITEMS the block is the whole list: its scale, length and
    whether it is defined are written instead of sums.
    """
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    gain = load_gains(labels, weights, start + row, real, threshold, GAIN)
    tl.store(gains + start + row, tl.where(real, gain, 0.0), mask=inside)
    ideal = 0.0
    if NORM == "ideal":
        key = gain_key(gain, real)
        ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
        for first_column in range(0, tl.where(block * ROWS < width, width, 0), COLUMNS):
            column, valid = positions(mask, start, first_column, width, COLUMNS)
            column_gain = load_gains(labels, weights, start + column, valid, threshold, GAIN)
            ahead += is_ahead(key, gain_key(column_gain, valid), row, column, 0)
        ideal_position = tl.sum(ahead, 1)
        counted = real & ((k == 0) | (ideal_position < k))
        ideal = tl.sum(tl.where(counted, gain * discount(ideal_position.to(tl.float32)), 0.0), 0)
    if ALL_ITEMS:
        gain = tl.where(real, gain, 0.0)
        items = tl.sum(real.to(tl.int32), 0)
        # Adding 0 times a sum makes a tensor of ``ideal``, which may be the constant 0.
        inverse_norm = scale_of(ideal + 0.0 * tl.sum(gain, 0), tl.sum(gain, 0), items, k, NORM)
        tl.store(scale + list_index, inverse_norm)
        tl.store(lengths + list_index, items)
        tl.store(defined + list_index, (tl.max(gain, 0) > 0) & (items > 1))
    else:
        store_sums(parts, list_index * tl.num_programs(1) + block, ideal, gain, real)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _add_ideal(sorted_gains, offsets, parts, k, ROWS: tl.constexpr) -> None:
    """Write a block's part of the ideal DCG, from gains in descending order."""
    list_index, start, _, position, inside, _ = list_block(None, offsets, ROWS)
    counted = inside & ((k == 0) | (position < k))
    gain = tl.load(sorted_gains + start + position, mask=counted, other=0.0)
    ideal = tl.sum(gain * discount(position.to(tl.float32)), 0)
    tl.store(parts + (list_index * tl.num_programs(1) + tl.program_id(1)) * 4, ideal)


@triton.jit
def list_sums(parts, list_index, blocks, WIDTH: tl.constexpr):
    """The ideal DCG of a list, its sum of gains, its number of items, and how many have a gain."""
    ideal = tl.zeros([WIDTH], tl.float32)
    gain_sum = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    gaining_items = tl.zeros([WIDTH], tl.float32)
    for first_block in range(0, blocks, WIDTH):
        block = first_block + tl.arange(0, WIDTH)
        part = parts + (list_index * blocks + block) * 4
        ideal += tl.load(part, mask=block < blocks, other=0.0)
        gain_sum += tl.load(part + 1, mask=block < blocks, other=0.0)
        items += tl.load(part + 2, mask=block < blocks, other=0.0)
        gaining_items += tl.load(part + 3, mask=block < blocks, other=0.0)
    return tl.sum(ideal, 0), tl.sum(gain_sum, 0), tl.sum(items, 0), tl.sum(gaining_items, 0)


@triton.jit
def scale_of(ideal, gain_sum, items, k, NORM: tl.constexpr):
    """One over the norm of a list; 0 where the norm is 0."""
    if NORM == "ideal":
        norm = ideal
    elif NORM == "one":
        norm = ideal * 0.0 + 1.0
    elif NORM == "cutoff":
        norm = ideal * 0.0 + k
    elif NORM == "length":
        norm = items
    else:
        norm = gain_sum
    return tl.where(norm > 0, 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k"])
def _join_blocks(
    parts, scale, lengths, defined, blocks, k, NORM: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Write the scale of a list, its length and whether it is defined, from its blocks' sums."""
    list_index = tl.program_id(0)
    ideal, gain_sum, items, gaining_items = list_sums(parts, list_index, blocks, WIDTH)
    tl.store(scale + list_index, scale_of(ideal, gain_sum, items, k, NORM))
    tl.store(lengths + list_index, items.to(tl.int32))
    tl.store(defined + list_index, (gaining_items > 0) & (items > 1))
