"""Sums over pairs on GPUs: RankNet, hinge, LambdaRank and LambdaLoss.

There are three launches. The first counts the rank of every item and writes the items in sorted
order, in which the sign of every score difference is known and ``δ(|π_i - π_j|)`` is constant along
diagonals. The second sums over the pairs of each item. The third averages gradients over duplicates
(items of equal score, label and weight) and writes them in input order.

For metrics other than NDCG, swapping items i and j changes the metric by ``|upper_i + lower_j|``,
where i is ranked higher. One more launch computes ``upper`` and ``lower`` of every item.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, PairOptions
from rankgrad.kernels.gpu._flat_lists import (
    chunk_size,
    empty_results,
    list_block,
    list_span,
    load_weights,
    positions,
)
from rankgrad.kernels.gpu._ideal_gain import ROWS, gain_key, gain_of, sign_bit, sum_blocks, tile
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._segmented_sort import ordered_bits

_LOG2E = math.log2(math.e)


class PairWeights(NamedTuple):
    """How a loss weighs its pairs.

    Attributes:
        kind: of the operation ``pairs`` (:mod:`rankgrad.kernels.ops`). For metrics other than NDCG
            ``swap``, the change of a swap, or ``swap_delta``, its product with δ (LambdaLoss).
        change: the change of a swap: of ``ap``, of ``rr``, of being at the ``top``, inside the
            cutoff, of the ``rank``, 1 for ``any`` pair, or the factor of eqs. 16-17 where the lower
            item is ``past`` the cutoff; ``none`` for NDCG.
        cut: a pair's weight by the cutoff: 1 (``none``), that of eqs. 16-17 (``corrected``), or
            whether its upper item is ``inside``.
        reach: whether the weight of two items past the cutoff is 0.
        gain: the kind of gain.
        norm: the kind of norm.
    """

    kind: str
    change: str
    cut: str
    reach: bool
    gain: str
    norm: str


def pairs(batch: FlatLists, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ_{y_i > y_j} weight_ij φ(s_i - s_j)`` of every list (see :mod:`rankgrad.kernels.ops`).

    Args:
        batch: the lists.
        options: those of :class:`rankgrad.kernels.arguments.PairOptions`.
    """
    kind, k, sigma, gain, truncation, mu, half, metric, threshold = PairOptions(*options)
    scores, _, mask, weights, offsets, max_length = batch
    values, *_ = results = empty_results(batch)
    lists, items = len(values), scores.numel()
    if lists == 0:
        return results
    columns, warps, width = tile(max_length)
    blocks = max(1, cdiv(max_length, ROWS))
    grid, masked, weighted = (lists, blocks), mask is not None, weights is not None
    shape = {"ROWS": ROWS, "COLUMNS": columns, "num_warps": warps}
    kind, change, cut, reach, gain, norm = (
        _of_ndcg(kind, k, gain, truncation)
        if metric == "ndcg"
        else _of_swaps(metric, k, kind == "lambdarank", truncation)
    )
    # δ by signed distance of two ranks. The last tile of columns may read past the longest
    # distance; those values belong to no pair.
    table = scores.new_empty(2 * blocks * ROWS + columns)
    # In sorted order: scores, labels, weights, gradients; for swaps also gains, upper and lower.
    ranked = scores.new_empty(4 if change == "none" else 7, items)
    origin = torch.empty_like(scores, dtype=torch.int32)
    parts = scores.new_empty(lists, blocks, 4)
    sums = scores.new_empty(lists, blocks)
    _rank_items[grid](
        *batch[:5], ranked, origin, parts, table, items, k, float(threshold), GAIN=gain, NORM=norm,
        TABLE=kind in ("ndcg_loss2", "ndcg_loss2++", "swap_delta"), **shape,
    )  # fmt: skip
    if change != "none":
        chunk = chunk_size(max_length, 1024)
        _swap_changes[(lists,)](
            ranked, offsets, parts, items, k, float(threshold), blocks, change, gain,
            masked, width, chunk, num_warps=max(1, chunk // 128),
        )  # fmt: skip
    _sum_pairs[grid](
        ranked, offsets, parts, table, sums, items, k, float(sigma), sigma * _LOG2E, float(mu),
        KIND=kind, GAIN=gain if change == "none" else "linear", CUT=cut,
        HALF=half and kind == "ranknet", REACH=reach, MASKED=masked, WEIGHTED=weighted,
        **shape, WIDTH=width,
    )  # fmt: skip
    _scatter_grads[grid](
        ranked, origin, mask, offsets, parts, sums, *results, items, WEIGHTED=weighted, **shape,
        WIDTH=width,
    )  # fmt: skip
    return results


def _of_ndcg(kind: str, k: int, gain: str, truncation: str) -> PairWeights:
    """The weights of RankNet, hinge, and the lambda losses of NDCG."""
    plain = kind in ("ranknet", "hinge")
    if k == 0 or kind == "lambdarank":
        cut = "none"
    else:
        cut = "inside" if plain or truncation == "heuristic" else "corrected"
    reach = cut == "inside" or (kind == "lambdarank" and k > 0)
    gain = "exponential" if gain == "exponential" else "linear"
    return PairWeights(kind, "none", cut, reach, gain, "one" if plain else "ideal")


def _of_swaps(metric: str, k: int, is_lambdarank: bool, truncation: str) -> PairWeights:
    """The weights of the lambda losses of other metrics."""
    kind, change, norm = "swap", metric, "sum"
    if metric == "rr":
        norm = "one"
    elif metric == "arp":
        change = "rank" if is_lambdarank else "any"
    elif metric != "ap":
        change = "top" if is_lambdarank or truncation == "heuristic" else "past"
        kind = "swap" if is_lambdarank else "swap_delta"
    if metric == "precision":
        norm = "cutoff" if k else "one"  # without a cutoff no swap changes precision
    reach = k > 0 and change not in ("any", "past")
    gain = "linear" if metric == "arp" else "binary"
    return PairWeights(kind, change, "none", reach, gain, norm)


@triton.jit
def log2_above_one(small):
    """``log2(1 + t)`` for t in [0, 1], with a relative error of 1.3e-6."""
    series = 0.0204011747 * small - 0.095797517
    series = series * small + 0.21528451
    series = series * small - 0.339089011
    series = series * small + 0.477668374
    series = series * small - 0.721159474
    series = series * small + 1.44269321
    return series * small


@triton.jit
def _sort_key(score, label):
    """Sort key, larger for higher ranks: by score; of tied items the less relevant come first.

    The key has 63 bits, so that the difference of two keys does not overflow 64 bits.
    """
    ordered = ordered_bits(score + 0.0).to(tl.int64)
    grade = (tl.maximum(label, 0.0) + 0.0).to(tl.int32, bitcast=True)
    return (ordered << 31) | (0x7FFFFFFF - grade).to(tl.int64)


@triton.jit
def past_cutoff(rank):
    """The weight that eqs. 16-17 give to a pair whose lower item is at this rank."""
    return 1.0 / (1.0 - 1.0 / tl.log2(1.0 + tl.maximum(rank, 2.0)))


@triton.jit
def _rank_tile(
    scores, labels, mask, start, width, row, key, grade_key, left, ahead, better,
    NORM: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Count the columns of a tile that rank ahead of its rows, by score and by label."""
    column, valid = positions(mask, start, left, width, COLUMNS)
    score = tl.load(scores + start + column, mask=valid, other=0.0)
    label = tl.load(labels + start + column, mask=valid, other=0.0)
    # Padding ranks below every item.
    keys = tl.where(valid, _sort_key(score, label), -0x4000000000000000)
    grades = gain_key(label, valid)
    if SIDE == -1:
        ahead += sign_bit((key - 1)[:, None] - keys[None, :])
        if NORM == "ideal":
            better += sign_bit((grade_key - 1)[:, None] - grades[None, :])
    elif SIDE == 1:
        # Subtracts the columns that are not ahead; their total is added later. A comparison
        # would compile to a predicate, which costs more.
        ahead -= sign_bit((keys - 1)[None, :] - key[:, None])
        if NORM == "ideal":
            better += sign_bit(grade_key[:, None] - grades[None, :])
    else:
        earlier = (column[None, :] < row[:, None]).to(tl.int32)
        ahead += sign_bit(key[:, None] - earlier - keys[None, :])
        if NORM == "ideal":
            better += sign_bit(grade_key[:, None] - earlier - grades[None, :])
    return ahead, better


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k"])
def _rank_items(
    scores, labels, mask, weights, offsets, ranked, origin, parts, table, total_items, k, threshold,
    GAIN: tl.constexpr, NORM: tl.constexpr, TABLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Count the ranks of a block of items, by score and ideal, and write it in score order."""
    list_index, start, width, row, _, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    first = block * ROWS
    if TABLE:  # δ of eq. 13 at every distance, once for all lists
        apart = tl.maximum(row, 1).to(tl.float32)
        step = log2_above_one(1.0 / (1.0 + apart))
        delta = step / (tl.log2(1.0 + apart) * tl.log2(2.0 + apart))
        center = table + tl.num_programs(1) * ROWS
        tl.store(center + row, delta, mask=(row >= 0) & (list_index == 0))
        tl.store(center - row, delta, mask=(row >= 0) & (list_index == 0))
    score = tl.load(scores + start + row, mask=real, other=0.0)
    label = tl.load(labels + start + row, mask=real, other=0.0)
    key, grade_key = _sort_key(score, label), gain_key(label, real)
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    better = tl.zeros([ROWS, COLUMNS], tl.int32)
    # Columns before, among and after the rows: ties are broken by input order.
    last = tl.where(first < width, width, 0)
    among = tl.minimum(first // COLUMNS * COLUMNS, last)
    after = tl.minimum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, last)
    begin = last * 0
    for side in tl.static_range(-1, 2):
        end = among if side == -1 else (after if side == 0 else last)
        for left in range(begin, end, COLUMNS):
            ahead, better = _rank_tile(
                scores, labels, mask, start, width, row, key, grade_key, left, ahead, better,
                NORM, COLUMNS, side,
            )  # fmt: skip
        begin = end
    at = start + tl.sum(ahead, 1) + tl.cdiv(last - after, COLUMNS) * COLUMNS
    tl.store(ranked + at, score, mask=real)
    tl.store(ranked + total_items + at, label, mask=real)
    if weights is not None:
        weight = tl.load(weights + start + row, mask=real, other=0.0)
        tl.store(ranked + 2 * total_items.to(tl.int64) + at, weight, mask=real)
    tl.store(origin + at, row, mask=real)
    gain = gain_of(label, threshold, GAIN)
    if NORM == "ideal":
        place = tl.sum(better, 1)
        counted = real & ((k == 0) | (place < k))
        norm = tl.sum(tl.where(counted, gain / tl.log2(place.to(tl.float32) + 2.0), 0.0), 0)
    elif NORM == "sum":
        norm = tl.sum(tl.where(real, gain, 0.0), 0)
    else:  # the norm is one, or the cutoff
        norm = tl.where(block == 0, k if NORM == "cutoff" else 1, 0).to(tl.float32)
    to = parts + (list_index * tl.num_programs(1) + block) * 4
    tl.store(to, norm)
    tl.store(to + 1, tl.sum(real.to(tl.float32), 0))
    tl.store(to + 2, tl.max(tl.where(real, label, -1.0), 0))
    tl.store(to + 3, tl.min(tl.where(real, label, float("inf")), 0))


@triton.jit
def _list_parts(parts, list_index, WIDTH: tl.constexpr):
    """The norm, the number of items, the highest and the lowest label of a list."""
    blocks = tl.num_programs(1)
    norm = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    high = tl.full([WIDTH], -1.0, tl.float32)
    low = tl.full([WIDTH], float("inf"), tl.float32)
    for left in range(0, blocks, WIDTH):
        block = left + tl.arange(0, WIDTH)
        at = parts + (list_index * blocks + block) * 4
        norm += tl.load(at, mask=block < blocks, other=0.0)
        items += tl.load(at + 1, mask=block < blocks, other=0.0)
        high = tl.maximum(high, tl.load(at + 2, mask=block < blocks, other=-1.0))
        low = tl.minimum(low, tl.load(at + 3, mask=block < blocks, other=float("inf")))
    return tl.sum(norm, 0), tl.sum(items, 0).to(tl.int32), tl.max(high, 0), tl.min(low, 0)


@triton.jit
def _length(parts, list_index, blocks, width, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    """The number of real items of a list."""
    if MASKED:
        items = tl.zeros([WIDTH], tl.float32)
        for left in range(0, blocks, WIDTH):
            block = left + tl.arange(0, WIDTH)
            at = parts + (list_index * blocks + block) * 4 + 1
            items += tl.load(at, mask=block < blocks, other=0.0)
        return tl.sum(items, 0).to(tl.int32)
    else:
        return width


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k", "blocks"])
def _swap_changes(
    ranked, offsets, parts, total_items, k, threshold, blocks,
    CHANGE: tl.constexpr, GAIN: tl.constexpr, MASKED: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The gains of a sorted list, and ``upper`` and ``lower`` of every item."""
    list_index, start, width = list_span(offsets)
    length = _length(parts, list_index, blocks, width, MASKED, WIDTH)
    labeled = ranked + total_items + start
    first = tl.full([], 0x7FFFFFFF, tl.int32)  # the ranks of the first two relevant items
    second = first
    if CHANGE == "rr":
        for left in range(0, length, CHUNK):
            at = left + tl.arange(0, CHUNK)
            label = tl.load(labeled + at, mask=at < length, other=0.0)
            rank = tl.where((label >= threshold) & (at < length), at + 1, 0x7FFFFFFF)
            best = tl.min(rank, 0)
            after = tl.min(tl.where(rank > best, rank, 0x7FFFFFFF), 0)
            second = tl.minimum(second, tl.where(first < best, best, after))
            first = tl.minimum(first, best)
    count = tl.zeros([1], tl.float64)
    through = tl.zeros([1], tl.float64)
    for left in range(0, length, CHUNK):
        at = left + tl.arange(0, CHUNK)
        held = at < length
        label = tl.load(labeled + at, mask=held, other=0.0)
        gain = tl.where(held, gain_of(label, threshold, GAIN), 0.0)
        inside = ((k == 0) | (at < k)).to(tl.float64)
        rank = (at + 1).to(tl.float64)
        if CHANGE == "ap":
            relevance = gain.to(tl.float64)
            step = relevance * inside / rank
            counts = count + tl.cumsum(relevance, 0)
            steps = through + tl.cumsum(step, 0)
            upper = (counts + 1.0 - relevance) / rank * inside - steps
            lower = steps - step - counts / rank * inside
            count += tl.sum(relevance, 0, keep_dims=True)
            through += tl.sum(step, 0, keep_dims=True)
        elif CHANGE == "rr":
            upper, lower = _rr_change(at + 1, gain, first, second, k)
        elif CHANGE == "top":
            upper, lower = inside, -inside
        elif CHANGE == "rank":
            upper = tl.where(inside > 0, rank, k + 1.0)
            lower = -upper
        elif CHANGE == "any":
            upper, lower = inside * 0.0 + 1.0, inside * 0.0
        else:
            upper, lower = inside * 0.0, tl.where(inside > 0, 0.0, past_cutoff(rank))
        to = ranked + 4 * total_items.to(tl.int64) + start + at
        tl.store(to, gain, mask=held)
        tl.store(to + total_items, upper.to(tl.float32), mask=held)
        tl.store(to + 2 * total_items.to(tl.int64), lower.to(tl.float32), mask=held)


@triton.jit
def _reciprocal(rank, k):
    """One over a rank; 0 past the cutoff, or if there is no such rank."""
    counts = (rank < 0x7FFFFFFF) & ((k == 0) | (rank <= k))
    return tl.where(counts, 1.0 / rank.to(tl.float64), 0.0)


@triton.jit
def _rr_change(rank, relevance, first, second, k):
    """``upper`` and ``lower`` for RR, which depends on the rank of the first relevant item only.

    A relevant item that moves above the first one becomes the first. When the first one moves down,
    the first is then either the second one or itself at its new rank. Other swaps change nothing.
    """
    relevant = relevance > 0
    top, after = _reciprocal(first, k), _reciprocal(second, k)
    before = tl.where(rank < first, _reciprocal(rank, k) - top, 0.0)
    upper = tl.where(relevant, tl.where(rank == first, top, after), before)
    left = -_reciprocal(tl.minimum(rank, second), k)
    return upper, tl.where(relevant | (rank < first), 0.0, left)


class _Block(NamedTuple):
    """A block of rows of one sorted list, and the numbers of its loss, in device code."""

    ranked: Any
    start: Any  # the first item of the list
    length: Any  # the number of real items
    total_items: Any  # of all lists
    k: Any
    sigma: Any
    steepness: Any  # sigma in base 2
    mu: Any
    table: Any  # δ by signed distance of two ranks
    center: Any  # the place of distance 0 in the table
    first: Any  # the first row
    row: Any  # the ranks of the rows, from 0
    middle: Any  # of the rows' scores


class _Items(NamedTuple):
    """What a pair needs of its items, in device code."""

    score: Any
    power: Any  # the base-2 exponent of the score, relative to the middle of the rows
    gain: Any  # or label
    weight: Any
    discount: Any  # of the rank; for swaps ``upper``
    cut: Any  # the cutoff's factor; for swaps ``lower``


@triton.jit
def _load_items(
    block, at, KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, WEIGHTED: tl.constexpr
):
    """The items of some ranks."""
    SWAP: tl.constexpr = KIND == "swap" or KIND == "swap_delta"
    inside = at < block.length
    ranked, start, k, far = block.ranked, block.start, block.k, block.total_items.to(tl.int64)
    score = tl.load(ranked + start + at, mask=inside, other=0.0)
    power = (score - block.middle) * block.steepness
    if SWAP:
        gain = tl.load(ranked + 4 * far + start + at, mask=inside, other=0.0)
    else:
        gain = tl.load(ranked + block.total_items + start + at, mask=inside, other=0.0)
        if KIND == "lambdarank" or KIND == "ndcg_loss2" or KIND == "ndcg_loss2++":
            gain = gain_of(gain, 0.0, GAIN)
    weight = load_weights(ranked + 2 * far + start if WEIGHTED else None, at, inside)
    rank = at.to(tl.float32) + 1.0
    discount = weight
    if KIND == "lambdarank" or KIND == "ndcg_loss1" or KIND == "ndcg_loss2++":
        discount = 1.0 / tl.log2(1.0 + rank)
        if KIND == "ndcg_loss1":
            discount *= gain_of(gain, 0.0, GAIN)
        elif CUT != "inside":  # LambdaRank's discount is 0 past the cutoff; eq. 15 has none
            discount = tl.where((k == 0) | (at < k), discount, 0.0)
    cut = weight
    if CUT == "corrected":
        cut = tl.where(at < k, 1.0, past_cutoff(rank))
    elif CUT == "inside":
        cut = tl.where(at < k, 1.0, 0.0)
    if SWAP:
        discount = tl.load(ranked + 5 * far + start + at, mask=inside, other=0.0)
        cut = tl.load(ranked + 6 * far + start + at, mask=inside, other=0.0)
    return _Items(score, power, gain, weight, discount, cut)


@triton.jit
def _bounded_exp2(power):
    """``2^power``, clamped to the range of float32: beyond it, pairs are saturated."""
    return tl.exp2(tl.minimum(tl.maximum(power, -122.0), 122.0))


@triton.jit
def _signed_weight(
    block, column, apart, mine, theirs,
    KIND: tl.constexpr, CUT: tl.constexpr, WEIGHTED: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The weight of each pair, negative where the column's item is the more relevant one."""
    row = block.row
    if SIDE == 1:
        lead = mine.discount[:, None] - theirs.discount[None, :]
    elif SIDE == -1:
        lead = theirs.discount[None, :] - mine.discount[:, None]
    else:
        lead = tl.abs(mine.discount[:, None] - theirs.discount[None, :])
    if KIND == "lambdarank":
        signed = apart * lead
    elif KIND == "swap":
        signed = apart * _swapped(row, column, mine, theirs, SIDE)
    elif KIND == "ndcg_loss1":
        lower = tl.where(apart < 0.0, -theirs.discount[None, :], 0.0)
        signed = tl.where(apart > 0.0, mine.discount[:, None], lower)
    elif KIND == "ranknet" or KIND == "hinge":
        signed = tl.where(apart > 0.0, 1.0, tl.where(apart < 0.0, -1.0, 0.0))
    else:
        # In 64 bits, so that a thread's rows are at fixed offsets from one address.
        lane = (column + (block.center - block.first)).to(tl.int64)
        delta = tl.load(block.table + (lane[None, :] - tl.arange(0, row.shape[0])[:, None]))
        if KIND == "swap_delta":
            delta *= _swapped(row, column, mine, theirs, SIDE)
        if CUT == "corrected":
            delta *= _of_lower(row, column, mine.cut, theirs.cut, SIDE)
        if KIND == "ndcg_loss2++":
            delta = block.mu * delta + lead
        signed = apart * delta
    if CUT == "corrected" and KIND == "ndcg_loss1":
        signed *= _of_lower(row, column, mine.cut, theirs.cut, SIDE)
    if WEIGHTED:
        signed *= tl.where(apart > 0.0, mine.weight[:, None], theirs.weight[None, :])
    return signed


@triton.jit
def _swapped(row, column, mine, theirs, SIDE: tl.constexpr):
    """The change of a swap: ``|upper + lower|`` of the pair's upper and lower item."""
    if SIDE == 1:
        change = mine.discount[:, None] + theirs.cut[None, :]
    elif SIDE == -1:
        change = theirs.discount[None, :] + mine.cut[:, None]
    else:
        change = tl.where(
            column[None, :] > row[:, None], mine.discount[:, None] + theirs.cut[None, :],
            theirs.discount[None, :] + mine.cut[:, None],
        )  # fmt: skip
    return tl.abs(change)


@triton.jit
def _of_lower(row, column, mine, theirs, SIDE: tl.constexpr):
    """The value of the pair's lower item, given values of rows (mine) and columns (theirs)."""
    if SIDE == 1:
        return theirs[None, :]
    elif SIDE == -1:
        return mine[:, None]
    else:
        return tl.where(column[None, :] > row[:, None], theirs[None, :], mine[:, None])


@triton.jit
def _pair_tile(
    block, mine, lift, left, grad_sum, total,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr,
    WEIGHTED: tl.constexpr, COLUMNS: tl.constexpr, NEAR: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the rows of a tile and, for columns ranked below them, the loss terms.

    SIDE is 1 if all columns rank below all rows, -1 if above, 0 if mixed or past the list's end.
    """
    row, length = block.row, block.length
    column = left + tl.arange(0, COLUMNS)
    theirs = _load_items(block, column, KIND, GAIN, CUT, WEIGHTED)
    apart = mine.gain[:, None] - theirs.gain[None, :]
    if CUT == "inside":  # eq. 15 tests the upper item, eqs. 16-17 the lower
        if SIDE == 0:
            below = column[None, :] > row[:, None]
            counted = tl.where(below, mine.cut[:, None], theirs.cut[None, :])
        elif SIDE == 1:
            counted = mine.cut[:, None] + 0.0 * apart
        else:
            counted = theirs.cut[None, :] + 0.0 * apart
    signed = _signed_weight(block, column, apart, mine, theirs, KIND, CUT, WEIGHTED, SIDE)
    if CUT == "inside":
        signed *= counted
    if SIDE == 1:
        right = apart > 0.0  # the more relevant item ranks higher
        difference = mine.score[:, None] - theirs.score[None, :]
    elif SIDE == -1:
        right = apart < 0.0
        difference = theirs.score[None, :] - mine.score[:, None]
    else:
        held = (column < length)[None, :] & (row < length)[:, None]
        signed = tl.where(held, signed, 0.0)
        right = (apart > 0.0) == (column[None, :] > row[:, None])
        difference = tl.abs(mine.score[:, None] - theirs.score[None, :])
    if KIND == "hinge":
        away = block.sigma + tl.where(right, -difference, difference)
        grad_sum += tl.where(away > 0.0, signed, 0.0)
        term = tl.abs(signed) * tl.maximum(away, 0.0)
    else:
        if NEAR:
            small = lift[:, None] * _bounded_exp2(SIDE * theirs.power)[None, :]
            fall = SIDE * (mine.power[:, None] - theirs.power[None, :])
        else:
            fall = difference * block.steepness
            small = tl.exp2(-fall)
        root = tl.math.rsqrt(1.0 + small)
        over = root * root
        grad_sum += signed * (tl.where(right, small, 1.0) * over)
        flat = log2_above_one(small)
        wrong = tl.maximum(-signed, 0.0) if SIDE == 1 else tl.where(right, 0.0, tl.abs(signed))
        term = tl.abs(signed * flat) + wrong * fall  # in units of log 2
        if HALF:  # pairs of equal labels count half in each direction
            halves = tl.where(apart == 0.0, 0.5, 0.0)
            if CUT == "inside":
                halves *= counted
            if SIDE == 0:
                halves = tl.where(held & (column[None, :] != row[:, None]), halves, 0.0)
                upper = column[None, :] > row[:, None]
                my_grad = tl.where(upper, small, 1.0)
                their_grad = tl.where(upper, 1.0, small)
                my_term = flat + tl.where(upper, 0.0, fall)
                their_term = flat + tl.where(upper, fall, 0.0)
            elif SIDE == 1:
                my_grad, their_grad = small, 1.0 + 0.0 * small
                my_term, their_term = flat, flat + fall
            else:
                my_grad, their_grad = 1.0 + 0.0 * small, small
                my_term, their_term = flat, flat
            weight, weights = mine.weight[:, None], theirs.weight[None, :]
            grad_sum += halves * over * (weight * my_grad - weights * their_grad)
            term += halves * (weight * my_term + weights * their_term)
    if SIDE == 1:
        total += term
    elif SIDE == 0:
        total += tl.where(column[None, :] > row[:, None], term, 0.0)
    return grad_sum, total


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k"])
def _sum_pairs(
    ranked, offsets, parts, table, sums, total_items, k, sigma, steepness, mu,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr,
    REACH: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """The gradients of a block of items in sorted order, and its part of the sum over pairs.

    If the scores of the block are close to each other, ``exp(-σ (s_i - s_j))`` is computed as the
    product of one exponential per item.
    """
    list_index, start, width = list_span(offsets)
    length = _length(parts, list_index, tl.num_programs(1), width, MASKED, WIDTH)
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    center = tl.num_programs(1) * ROWS
    end = tl.minimum(first + ROWS, length) - 1
    high = tl.load(ranked + start + first, mask=first < length, other=0.0)
    low = tl.load(ranked + start + end, mask=first < length, other=0.0)
    middle = low + 0.5 * (high - low)
    block = _Block(
        ranked, start, length, total_items, k, sigma, steepness, mu, table, center, first, row,
        middle,
    )  # fmt: skip
    mine = _load_items(block, row, KIND, GAIN, CUT, WEIGHTED)
    grad_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    last = tl.where(first < length, length, 0)
    if REACH:  # pairs of two items past the cutoff have no weight
        last = tl.where(first >= k, tl.minimum(last, k), last)
    among = tl.minimum(first // COLUMNS * COLUMNS, last)
    after = tl.cdiv(first + ROWS, COLUMNS) * COLUMNS
    full_end = last // COLUMNS * COLUMNS
    mixed = tl.cdiv(tl.minimum(after, last) - among, COLUMNS)
    ragged = tl.maximum(full_end, after)
    # Tiles of columns that overlap the rows, and the last, incomplete tile.
    for turn in range(0, mixed + (ragged < last).to(tl.int32)):
        left = tl.where(turn < mixed, among + turn * COLUMNS, ragged)
        grad_sum, total = _pair_tile(
            block, mine, mine.power, left, grad_sum, total,
            KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, False, 0,
        )  # fmt: skip
    near = (high - low) * steepness <= 116.0
    for side in tl.static_range(-1, 2, 2):  # columns ranked above the rows, then below
        begin = last * 0 if side == -1 else after
        end = among if side == -1 else full_end
        if near:
            lift = _bounded_exp2(mine.power * -side)
            for left in range(begin, end, COLUMNS):
                grad_sum, total = _pair_tile(
                    block, mine, lift, left, grad_sum, total,
                    KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, True, side,
                )  # fmt: skip
        else:
            for left in range(begin, end, COLUMNS):
                grad_sum, total = _pair_tile(
                    block, mine, mine.power, left, grad_sum, total,
                    KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, False, side,
                )  # fmt: skip
    grad = -tl.sum(grad_sum, 1)
    if KIND != "hinge":
        grad *= sigma
    to = ranked + 3 * total_items.to(tl.int64) + start + row
    tl.store(to, grad, mask=row < length)
    value = tl.sum(tl.sum(total, 0), 0)
    if KIND != "hinge":
        value *= 0.6931471805599453
    tl.store(sums + list_index * tl.num_programs(1) + tl.program_id(1), value)


@cached_launch
@triton.jit(do_not_specialize=["total_items"])
def _scatter_grads(
    ranked, origin, mask, offsets, parts, sums, values, grad_scores, defined, total_items,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """``grad_scores`` in input order, averaged over duplicates (equal score, label, weight)."""
    list_index, start, width = list_span(offsets)
    block = tl.program_id(1)
    norm, length, high, low = _list_parts(parts, list_index, WIDTH)
    valid = high > low
    scale = tl.where(valid & (norm > 0), 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    inside = row < length
    labeled = ranked + total_items
    weighted = ranked + 2 * total_items.to(tl.int64)
    grads_of = ranked + 3 * total_items.to(tl.int64)
    score = tl.load(ranked + start + row, mask=inside, other=0.0)
    label = tl.load(labeled + start + row, mask=inside, other=-1.0)
    grad = tl.load(grads_of + start + row, mask=inside, other=0.0)
    before, after = inside & (row > 0), row + 1 < length
    alike = before & (tl.load(labeled + start + row - 1, mask=before, other=-2.0) == label)
    alike &= tl.load(ranked + start + row - 1, mask=before, other=0.0) == score
    next_alike = after & (tl.load(labeled + start + row + 1, mask=after, other=-2.0) == label)
    next_alike &= tl.load(ranked + start + row + 1, mask=after, other=0.0) == score
    if tl.max((alike | next_alike).to(tl.int32), 0) > 0:
        top = tl.max(tl.where(inside, score, float("-inf")), 0)
        bottom = tl.min(tl.where(inside, score, float("inf")), 0)
        weight = label
        if WEIGHTED:
            weight = tl.load(weighted + start + row, mask=inside, other=0.0)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        count = tl.zeros([ROWS, COLUMNS], tl.float32)
        for left in range(0, length, COLUMNS):
            end = tl.minimum(left + COLUMNS, length) - 1
            near = tl.load(ranked + start + left) >= bottom
            near &= tl.load(ranked + start + end) <= top
            if near:
                column = left + tl.arange(0, COLUMNS)
                held = column < length
                same = score[:, None] == tl.load(ranked + start + column, mask=held)[None, :]
                labels = tl.load(labeled + start + column, mask=held, other=-2.0)
                same &= label[:, None] == labels[None, :]
                if WEIGHTED:
                    weights = tl.load(weighted + start + column, mask=held, other=-1.0)
                    same &= weight[:, None] == weights[None, :]
                others = tl.load(grads_of + start + column, mask=held, other=0.0)
                total += tl.where(same, others[None, :], 0.0)
                count += tl.where(same, 1.0, 0.0)
        grad = tl.sum(total, 1) / tl.maximum(tl.sum(count, 1), 1.0)
    to = tl.load(origin + start + row, mask=inside, other=0)
    tl.store(grad_scores + start + to, grad * scale, mask=inside)
    if mask is not None:
        padding = (row < width) & (tl.load(mask + start + row, mask=row < width, other=1) == 0)
        tl.store(grad_scores + start + row, tl.zeros([ROWS], tl.float32), mask=padding)
    if block == 0:
        tl.store(
            values + list_index, sum_blocks(sums, list_index, tl.num_programs(1), WIDTH) * scale
        )
        tl.store(defined + list_index, valid)
