"""Sums over pairs on GPUs: RankNet, hinge, LambdaRank and LambdaLoss.

The loss of a list is ``Σ_{y_i > y_j} weight_ij φ(s_i - s_j)``, divided by a norm, with
``φ(x) = log(1 + exp(-σ x))``, or ``max(0, margin - x)`` for hinge. π are the ranks by score, G the
gains and ``D(r) = log2(1 + r)``. The weights are (equations of Jagerman et al. 2022)

    ranknet, hinge:  1 (eq. 6),
    lambdarank:      |G_i - G_j| |1 / D(π_i) - 1 / D(π_j)| (eq. 11, with a cutoff eq. 12),
    ndcg_loss1:      G_i / D(π_i),
    ndcg_loss2:      |G_i - G_j| δ(|π_i - π_j|) with δ(d) = 1 / D(d) - 1 / D(d + 1) (eq. 13),
    ndcg_loss2++:    |G_i - G_j| (μ δ(|π_i - π_j|) + |1 / D(π_i) - 1 / D(π_j)|).

With a cutoff, LambdaLoss weighs pairs by eqs. 16-17 ("corrected") or masks them by eq. 15
("heuristic").

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
from rankgrad.kernels.gpu._ideal_gain import (
    ROWS,
    gain_key,
    gain_of,
    is_ahead,
    sign_bit,
    sum_blocks,
    tile,
)
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._segmented_sort import ordered_bits

_LOG2E = math.log2(math.e)


class PairWeights(NamedTuple):
    """How a loss weighs its pairs: constants of the kernels.

    Attributes:
        kind: the formula of the weights. For NDCG it is the ``kind`` of
            :class:`~rankgrad.kernels.arguments.PairOptions`. For other metrics it is ``swap``, the
            change of the metric by a swap, or ``swap_delta``, that change times δ (LambdaLoss).
        change: the change by a swap, which :func:`_swap_changes` computes: that of AP (``ap``), of
            RR (``rr``), of being inside the cutoff (``top``) or of the rank (``rank``); 1 for every
            pair (``any``); the factor of eqs. 16-17 if the lower item is past the cutoff, else 0
            (``past``). ``none`` for NDCG, which needs no such launch.
        cut: the factor of a pair by the cutoff: 1 (``none``), that of eqs. 16-17 (``corrected``),
            or 1 if the upper item is ``inside`` the cutoff and otherwise 0.
        reach: whether two items past the cutoff have weight 0, so that tiles of them are skipped.
        gain: ``exponential``, ``linear`` or ``binary``.
        norm: ``ideal`` (DCG), ``sum`` (of gains), ``cutoff`` or ``one``.
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

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    loss = PairOptions(*options)
    k, threshold = loss.k, float(loss.threshold)
    scores, _, mask, weights, offsets, max_length = batch
    values, *_ = results = empty_results(batch)
    lists, items = len(values), scores.numel()
    columns, warps, width = tile(max_length)
    blocks = cdiv(max_length, ROWS)
    grid, masked, weighted = (lists, blocks), mask is not None, weights is not None
    shape = {"ROWS": ROWS, "COLUMNS": columns, "num_warps": warps}
    pair_weights = _ndcg_weights(loss) if loss.metric == "ndcg" else _swap_weights(loss)
    kind, change, cut, reach, gain, norm = pair_weights
    # δ by signed distance of two ranks. The last tile of columns may read past the longest
    # distance; those values belong to no pair.
    table = scores.new_empty(2 * blocks * ROWS + columns)
    # In sorted order: scores, labels, weights, gradients; for swaps also gains, upper and lower.
    ranked = scores.new_empty(4 if change == "none" else 7, items)
    origin = torch.empty_like(scores, dtype=torch.int32)
    parts = scores.new_empty(lists, blocks, 4)
    sums = scores.new_empty(lists, blocks)
    _rank_items[grid](
        *batch[:5], ranked, origin, parts, table, items, k, threshold, GAIN=gain, NORM=norm,
        TABLE=kind in ("ndcg_loss2", "ndcg_loss2++", "swap_delta"), **shape,
    )  # fmt: skip
    if change != "none":
        chunk = chunk_size(max_length, 1024)
        _swap_changes[(lists,)](
            ranked, offsets, parts, items, k, threshold, blocks, change, gain, masked, width, chunk,
            num_warps=max(1, chunk // 128),
        )  # fmt: skip
    _sum_pairs[grid](
        ranked, offsets, parts, table, sums, items, k, float(loss.sigma), loss.sigma * _LOG2E,
        float(loss.mu), KIND=kind, GAIN=gain if change == "none" else "linear", CUT=cut,
        HALF=loss.half and kind == "ranknet", REACH=reach, MASKED=masked, WEIGHTED=weighted,
        **shape, WIDTH=width,
    )  # fmt: skip
    _scatter_grads[grid](
        ranked, origin, mask, offsets, parts, sums, *results, items, WEIGHTED=weighted, **shape,
        WIDTH=width,
    )  # fmt: skip
    return results


def _ndcg_weights(loss: PairOptions) -> PairWeights:
    """The weights of RankNet, hinge, and the lambda losses of NDCG."""
    is_unweighted = loss.kind in ("ranknet", "hinge")
    if loss.k == 0 or loss.kind == "lambdarank":
        cut = "none"
    else:
        cut = "inside" if is_unweighted or loss.truncation == "heuristic" else "corrected"
    reach = cut == "inside" or (loss.kind == "lambdarank" and loss.k > 0)
    gain = "exponential" if loss.gain == "exponential" else "linear"
    return PairWeights(loss.kind, "none", cut, reach, gain, "one" if is_unweighted else "ideal")


def _swap_weights(loss: PairOptions) -> PairWeights:
    """The weights of the lambda losses of metrics other than NDCG."""
    is_lambdarank = loss.kind == "lambdarank"
    kind, change, norm = "swap", loss.metric, "sum"
    if loss.metric == "rr":
        norm = "one"
    elif loss.metric == "arp":
        change = "rank" if is_lambdarank else "any"
    elif loss.metric != "ap":
        change = "top" if is_lambdarank or loss.truncation == "heuristic" else "past"
        kind = "swap" if is_lambdarank else "swap_delta"
    if loss.metric == "precision":
        norm = "cutoff" if loss.k else "one"  # without a cutoff no swap changes precision
    reach = loss.k > 0 and change not in ("any", "past")
    gain = "linear" if loss.metric == "arp" else "binary"
    return PairWeights(kind, change, "none", reach, gain, norm)


@triton.jit
def log2_above_one(t):
    """``log2(1 + t)`` for t in [0, 1], with a relative error of 1.3e-6."""
    series = 0.0204011747 * t - 0.095797517
    series = series * t + 0.21528451
    series = series * t - 0.339089011
    series = series * t + 0.477668374
    series = series * t - 0.721159474
    series = series * t + 1.44269321
    return series * t


@triton.jit
def _sort_key(score, label):
    """Sort keys, larger for items ranked higher: by score; of ties the less relevant come first.

    A key has 63 bits, so that the difference of two keys does not overflow 64 bits.
    """
    ordered = ordered_bits(score + 0.0).to(tl.int64)
    grade = (tl.maximum(label, 0.0) + 0.0).to(tl.int32, bitcast=True)
    return (ordered << 31) | (0x7FFFFFFF - grade).to(tl.int64)


@triton.jit
def past_cutoff(rank):
    """The weight that eqs. 16-17 give to a pair whose lower item is at this rank, past k."""
    return 1.0 / (1.0 - 1.0 / tl.log2(1.0 + tl.maximum(rank, 2.0)))


@triton.jit
def _rank_tile(
    scores, labels, mask, start, width, row, key, grade_key, first_column, ahead, better,
    NORM: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Count the columns of a tile ahead of its rows, by score (``ahead``) and label (``better``).

    Ties are broken by input order. SIDE is -1 if all columns come before all rows, 1 if they come
    after, 0 if mixed. Returns the counts so far, ``[ROWS, COLUMNS]``, which are summed at the end.
    """
    column, valid = positions(mask, start, first_column, width, COLUMNS)
    score = tl.load(scores + start + column, mask=valid, other=0.0)
    label = tl.load(labels + start + column, mask=valid, other=0.0)
    # Padding ranks below every item.
    column_key = tl.where(valid, _sort_key(score, label), -0x4000000000000000)
    if SIDE == 1:
        # Subtracts the columns that are not ahead; _rank_items adds the number of all columns on
        # this side. A comparison would compile to a predicate, which costs more.
        ahead -= sign_bit((column_key - 1)[None, :] - key[:, None])
    else:
        ahead += is_ahead(key, column_key, row, column, SIDE)
    if NORM == "ideal":
        better += is_ahead(grade_key, gain_key(label, valid), row, column, SIDE)
    return ahead, better


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k"])
def _rank_items(
    scores, labels, mask, weights, offsets, ranked, origin, parts, table, total_items, k, threshold,
    GAIN: tl.constexpr, NORM: tl.constexpr, TABLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Count the ranks of a block of items, by score and by label, and write it in score order.

    Writes scores, labels and weights to ``ranked`` ``[4 or 7, items]``, the items' positions to
    ``origin`` ``[items]``; and to ``parts`` ``[lists, blocks, 4]`` the block's part of the norm,
    its number of items, its highest and its lowest label. With TABLE, the programs of the first
    list also write δ at every distance.
    """
    list_index, start, width, row, _, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    first = block * ROWS
    if TABLE:  # δ of eq. 13: log2(1 + 1 / (1 + d)) / (log2(1 + d) log2(2 + d))
        distance = tl.maximum(row, 1).to(tl.float32)
        log_step = log2_above_one(1.0 / (1.0 + distance))
        delta = log_step / (tl.log2(1.0 + distance) * tl.log2(2.0 + distance))
        center = table + tl.num_programs(1) * ROWS
        tl.store(center + row, delta, mask=(row >= 0) & (list_index == 0))
        tl.store(center - row, delta, mask=(row >= 0) & (list_index == 0))
    score = tl.load(scores + start + row, mask=real, other=0.0)
    label = tl.load(labels + start + row, mask=real, other=0.0)
    key, grade_key = _sort_key(score, label), gain_key(label, real)
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    better = tl.zeros([ROWS, COLUMNS], tl.int32)
    # Columns before, among and after the rows: ties are broken by input order.
    columns_end = tl.where(first < width, width, 0)  # no columns for blocks past the list's end
    mixed_begin = tl.minimum(first // COLUMNS * COLUMNS, columns_end)
    mixed_end = tl.minimum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, columns_end)
    begin = columns_end * 0  # a zero of the type of the other bounds
    for side in tl.static_range(-1, 2):
        end = mixed_begin if side == -1 else (mixed_end if side == 0 else columns_end)
        for first_column in range(begin, end, COLUMNS):
            ahead, better = _rank_tile(
                scores, labels, mask, start, width, row, key, grade_key, first_column, ahead,
                better, NORM, COLUMNS, side,
            )  # fmt: skip
        begin = end
    # The last term is the number of columns that _rank_tile saw with SIDE 1.
    target = start + tl.sum(ahead, 1) + tl.cdiv(columns_end - mixed_end, COLUMNS) * COLUMNS
    tl.store(ranked + target, score, mask=real)
    tl.store(ranked + total_items + target, label, mask=real)
    if weights is not None:
        weight = tl.load(weights + start + row, mask=real, other=0.0)
        tl.store(ranked + 2 * total_items.to(tl.int64) + target, weight, mask=real)
    tl.store(origin + target, row, mask=real)
    gain = gain_of(label, threshold, GAIN)
    if NORM == "ideal":
        ideal_position = tl.sum(better, 1)
        counted = real & ((k == 0) | (ideal_position < k))
        discounted = gain / tl.log2(ideal_position.to(tl.float32) + 2.0)
        norm = tl.sum(tl.where(counted, discounted, 0.0), 0)
    elif NORM == "sum":
        norm = tl.sum(tl.where(real, gain, 0.0), 0)
    else:  # the norm is one, or the cutoff
        norm = tl.where(block == 0, k if NORM == "cutoff" else 1, 0).to(tl.float32)
    part = parts + (list_index * tl.num_programs(1) + block) * 4
    tl.store(part, norm)
    tl.store(part + 1, tl.sum(real.to(tl.float32), 0))
    tl.store(part + 2, tl.max(tl.where(real, label, -1.0), 0))
    tl.store(part + 3, tl.min(tl.where(real, label, float("inf")), 0))


@triton.jit
def _list_parts(parts, list_index, WIDTH: tl.constexpr):
    """The norm, the number of items, the highest and the lowest label of a list."""
    blocks = tl.num_programs(1)
    norm = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    max_label = tl.full([WIDTH], -1.0, tl.float32)
    min_label = tl.full([WIDTH], float("inf"), tl.float32)
    for first_block in range(0, blocks, WIDTH):
        block = first_block + tl.arange(0, WIDTH)
        part = parts + (list_index * blocks + block) * 4
        norm += tl.load(part, mask=block < blocks, other=0.0)
        items += tl.load(part + 1, mask=block < blocks, other=0.0)
        max_label = tl.maximum(max_label, tl.load(part + 2, mask=block < blocks, other=-1.0))
        lowest = tl.load(part + 3, mask=block < blocks, other=float("inf"))
        min_label = tl.minimum(min_label, lowest)
    norm, items = tl.sum(norm, 0), tl.sum(items, 0).to(tl.int32)
    return norm, items, tl.max(max_label, 0), tl.min(min_label, 0)


@triton.jit
def _length(parts, list_index, blocks, width, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    """The number of real items of a list.

    ``width`` is its length with padding; WIDTH is how many blocks are read at a time.
    """
    if MASKED:
        return sum_blocks(parts + 1, list_index, blocks, WIDTH, 4).to(tl.int32)
    else:
        return width


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k", "blocks"])
def _swap_changes(
    ranked, offsets, parts, total_items, k, threshold, blocks,
    CHANGE: tl.constexpr, GAIN: tl.constexpr, MASKED: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gains of a sorted list, and ``upper`` and ``lower`` of every item.

    With rank r (from 1), relevance y (0 or 1), ``in = 1[r <= k]`` and sums Σ over ranks l <= r:

        ap:    upper = (1 - y + Σ y_l) in / r - Σ y_l in_l / l,
               lower = Σ_{l<r} y_l in_l / l - (Σ y_l) in / r,
        rr:    see :func:`_rr_change`,
        top:   upper = in,  lower = -in,
        rank:  upper = min(r, k + 1),  lower = -upper,
        any:   upper = 1,  lower = 0,
        past:  upper = 0,  lower = 0 inside the cutoff, else the factor of eqs. 16-17.
    """
    list_index, start, width = list_span(offsets)
    length = _length(parts, list_index, blocks, width, MASKED, WIDTH)
    sorted_labels = ranked + total_items + start
    # The ranks of the first two relevant items; 0x7FFFFFFF if there is none.
    first = tl.full([], 0x7FFFFFFF, tl.int32)
    second = first
    if CHANGE == "rr":
        for chunk_start in range(0, length, CHUNK):
            at = chunk_start + tl.arange(0, CHUNK)
            label = tl.load(sorted_labels + at, mask=at < length, other=0.0)
            rank = tl.where((label >= threshold) & (at < length), at + 1, 0x7FFFFFFF)
            best = tl.min(rank, 0)
            next_best = tl.min(tl.where(rank > best, rank, 0x7FFFFFFF), 0)
            second = tl.minimum(second, tl.where(first < best, best, next_best))
            first = tl.minimum(first, best)
    relevant_before = tl.zeros([1], tl.float64)
    sum_before = tl.zeros([1], tl.float64)
    for chunk_start in range(0, length, CHUNK):
        at = chunk_start + tl.arange(0, CHUNK)
        inside = at < length
        label = tl.load(sorted_labels + at, mask=inside, other=0.0)
        gain = tl.where(inside, gain_of(label, threshold, GAIN), 0.0)
        in_cutoff = ((k == 0) | (at < k)).to(tl.float64)
        rank = (at + 1).to(tl.float64)
        if CHANGE == "ap":
            relevance = gain.to(tl.float64)
            reciprocal = relevance * in_cutoff / rank
            relevant_count = relevant_before + tl.cumsum(relevance, 0)
            reciprocal_sum = sum_before + tl.cumsum(reciprocal, 0)
            upper = (relevant_count + 1.0 - relevance) / rank * in_cutoff - reciprocal_sum
            lower = reciprocal_sum - reciprocal - relevant_count / rank * in_cutoff
            relevant_before += tl.sum(relevance, 0, keep_dims=True)
            sum_before += tl.sum(reciprocal, 0, keep_dims=True)
        elif CHANGE == "rr":
            upper, lower = _rr_change(at + 1, gain, first, second, k)
        elif CHANGE == "top":
            upper, lower = in_cutoff, -in_cutoff
        elif CHANGE == "rank":
            upper = tl.where(in_cutoff > 0, rank, k + 1.0)
            lower = -upper
        elif CHANGE == "any":
            upper, lower = in_cutoff * 0.0 + 1.0, in_cutoff * 0.0
        else:
            upper, lower = in_cutoff * 0.0, tl.where(in_cutoff > 0, 0.0, past_cutoff(rank))
        target = ranked + 4 * total_items.to(tl.int64) + start + at
        tl.store(target, gain, mask=inside)
        tl.store(target + total_items, upper.to(tl.float32), mask=inside)
        tl.store(target + 2 * total_items.to(tl.int64), lower.to(tl.float32), mask=inside)


@triton.jit
def _reciprocal(rank, k):
    """One over a rank; 0 past the cutoff, and for 0x7FFFFFFF, which stands for no rank."""
    is_counted = (rank < 0x7FFFFFFF) & ((k == 0) | (rank <= k))
    return tl.where(is_counted, 1.0 / rank.to(tl.float64), 0.0)


@triton.jit
def _rr_change(rank, relevance, first_rank, second_rank, k):
    """``upper`` and ``lower`` for RR, which depends only on the rank of the first relevant item.

    If a relevant item moves above the first one, it becomes the first. If the first one moves down,
    the new first one is the second relevant item, or the moved item if it is still above that one.
    Other swaps change nothing.
    """
    relevant = relevance > 0
    first_value, second_value = _reciprocal(first_rank, k), _reciprocal(second_rank, k)
    improvement = tl.where(rank < first_rank, _reciprocal(rank, k) - first_value, 0.0)
    upper = tl.where(relevant, tl.where(rank == first_rank, first_value, second_value), improvement)
    decline = -_reciprocal(tl.minimum(rank, second_rank), k)
    return upper, tl.where(relevant | (rank < first_rank), 0.0, decline)


class _Block(NamedTuple):
    """A block of rows of one sorted list, and the numbers of its loss, in device code."""

    ranked: Any
    start: Any  # the first item of the list
    length: Any  # the number of real items
    total_items: Any  # of all lists
    k: Any
    sigma: Any  # for hinge the margin
    steepness: Any  # sigma times log2(e), for exponentials in base 2
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
    gain: Any  # for RankNet, hinge and ndcg_loss1 the label
    weight: Any
    discount: Any  # of the rank; for swaps ``upper``
    cut: Any  # the cutoff's factor; for swaps ``lower``


@triton.jit
def _load_items(
    block, at, KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Load the items at some ranks (from 0)."""
    SWAP: tl.constexpr = KIND == "swap" or KIND == "swap_delta"
    inside = at < block.length
    ranked, start, k, stride = block.ranked, block.start, block.k, block.total_items.to(tl.int64)
    score = tl.load(ranked + start + at, mask=inside, other=0.0)
    power = (score - block.middle) * block.steepness
    if SWAP:
        gain = tl.load(ranked + 4 * stride + start + at, mask=inside, other=0.0)
    else:
        label = tl.load(ranked + block.total_items + start + at, mask=inside, other=0.0)
        gain = label
        if KIND == "lambdarank" or KIND == "ndcg_loss2" or KIND == "ndcg_loss2++":
            gain = gain_of(label, 0.0, GAIN)
    weight = load_weights(ranked + 2 * stride + start if WEIGHTED else None, at, inside)
    rank = at.to(tl.float32) + 1.0
    discount = weight  # a placeholder for kinds that do not use it; so is ``cut`` below
    if KIND == "lambdarank" or KIND == "ndcg_loss1" or KIND == "ndcg_loss2++":
        discount = 1.0 / tl.log2(1.0 + rank)
        if KIND == "ndcg_loss1":
            discount *= gain_of(label, 0.0, GAIN)
        elif CUT != "inside":  # LambdaRank's discount is 0 past the cutoff; eq. 15 has none
            discount = tl.where((k == 0) | (at < k), discount, 0.0)
    cut = weight
    if CUT == "corrected":
        cut = tl.where(at < k, 1.0, past_cutoff(rank))
    elif CUT == "inside":
        cut = tl.where(at < k, 1.0, 0.0)
    if SWAP:
        discount = tl.load(ranked + 5 * stride + start + at, mask=inside, other=0.0)
        cut = tl.load(ranked + 6 * stride + start + at, mask=inside, other=0.0)
    return _Items(score, power, gain, weight, discount, cut)


@triton.jit
def _bounded_exp2(power):
    """``2^power``, clamped to the range of float32: beyond it, pairs are saturated."""
    return tl.exp2(tl.minimum(tl.maximum(power, -122.0), 122.0))


@triton.jit
def _choose(below, if_below, otherwise, SIDE: tl.constexpr):
    """``if_below`` for pairs whose column ranks below the row, else ``otherwise``.

    SIDE is that of :func:`_pair_tile`: if it is not 0, all pairs of the tile are of one kind.
    """
    if SIDE == 1:
        return if_below
    elif SIDE == -1:
        return otherwise
    else:
        return tl.where(below, if_below, otherwise)


@triton.jit
def _signed_weight(
    block, column, below, gain_diff, rows, columns,
    KIND: tl.constexpr, CUT: tl.constexpr, WEIGHTED: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The weight of each pair of a tile, negative where the column's item is more relevant.

    ``below`` and SIDE are those of :func:`_choose`.
    """
    discount_difference = rows.discount[:, None] - columns.discount[None, :]
    discount_difference = _choose(below, discount_difference, -discount_difference, SIDE)
    # The change of a swap, ``|upper + lower|``; and the cutoff's factor of the lower item.
    swap_change = tl.abs(
        _choose(
            below, rows.discount[:, None] + columns.cut[None, :],
            columns.discount[None, :] + rows.cut[:, None], SIDE,
        )
    )  # fmt: skip
    lower_cut = _choose(below, columns.cut[None, :], rows.cut[:, None], SIDE)
    if KIND == "lambdarank":
        signed = gain_diff * discount_difference
    elif KIND == "swap":
        signed = gain_diff * swap_change
    elif KIND == "ndcg_loss1":
        column_weight = tl.where(gain_diff < 0.0, -columns.discount[None, :], 0.0)
        signed = tl.where(gain_diff > 0.0, rows.discount[:, None], column_weight)
    elif KIND == "ranknet" or KIND == "hinge":
        signed = tl.where(gain_diff > 0.0, 1.0, tl.where(gain_diff < 0.0, -1.0, 0.0))
    else:
        # In 64 bits, so that a thread's rows are at fixed offsets from one address.
        lane = (column + (block.center - block.first)).to(tl.int64)
        delta = tl.load(block.table + (lane[None, :] - tl.arange(0, block.row.shape[0])[:, None]))
        if KIND == "swap_delta":
            delta *= swap_change
        if CUT == "corrected":
            delta *= lower_cut
        if KIND == "ndcg_loss2++":
            delta = block.mu * delta + discount_difference
        signed = gain_diff * delta
    if CUT == "corrected" and KIND == "ndcg_loss1":
        signed *= lower_cut
    if WEIGHTED:
        signed *= tl.where(gain_diff > 0.0, rows.weight[:, None], columns.weight[None, :])
    return signed


@triton.jit
def _pair_tile(
    block, rows, row_exp, first_column, grad_sum, term_sum,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr,
    WEIGHTED: tl.constexpr, COLUMNS: tl.constexpr, NEAR: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the rows of a tile and, for columns ranked below them, the loss terms.

    With ``x = σ |s_i - s_j|`` the term of a pair is ``weight log(1 + exp(-x))``, plus ``weight x``
    if the less relevant item ranks higher. SIDE is 1 if all columns rank below all rows, -1 if
    above, 0 if mixed or past the list's end. NEAR: ``exp(-x)`` is the product of ``row_exp`` and an
    exponential of the columns; otherwise ``row_exp`` is not read.
    """
    row, length = block.row, block.length
    column = first_column + tl.arange(0, COLUMNS)
    columns = _load_items(block, column, KIND, GAIN, CUT, WEIGHTED)
    gain_diff = rows.gain[:, None] - columns.gain[None, :]
    below = column[None, :] > row[:, None]
    signed = _signed_weight(
        block, column, below, gain_diff, rows, columns, KIND, CUT, WEIGHTED, SIDE
    )
    if CUT == "inside":  # eq. 15 is about the upper item, eqs. 16-17 are about the lower one
        is_counted = _choose(below, rows.cut[:, None], columns.cut[None, :], SIDE)
        signed *= is_counted
    if SIDE == 0:
        inside = (column < length)[None, :] & (row < length)[:, None]
        signed = tl.where(inside, signed, 0.0)
    in_order = _choose(below, gain_diff > 0.0, gain_diff < 0.0, SIDE)  # by relevance and by rank
    difference = tl.abs(rows.score[:, None] - columns.score[None, :])
    if KIND == "hinge":
        violation = block.sigma + tl.where(in_order, -difference, difference)
        grad_sum += tl.where(violation > 0.0, signed, 0.0)
        term = tl.abs(signed) * tl.maximum(violation, 0.0)
    else:
        if NEAR:
            decay = row_exp[:, None] * _bounded_exp2(SIDE * columns.power)[None, :]
            exponent = SIDE * (rows.power[:, None] - columns.power[None, :])
        else:
            exponent = difference * block.steepness
            decay = tl.exp2(-exponent)
        root = tl.math.rsqrt(1.0 + decay)
        inverse = root * root
        grad_sum += signed * (tl.where(in_order, decay, 1.0) * inverse)
        log_term = log2_above_one(decay)
        # The weights of pairs in the wrong order.
        wrong = tl.maximum(-signed, 0.0) if SIDE == 1 else tl.where(in_order, 0.0, tl.abs(signed))
        term = tl.abs(signed * log_term) + wrong * exponent  # in units of log 2
        if HALF:  # pairs of equal labels count half in each direction
            halves = tl.where(gain_diff == 0.0, 0.5, 0.0)
            if CUT == "inside":
                halves *= is_counted
            if SIDE == 0:
                halves = tl.where(inside & (column[None, :] != row[:, None]), halves, 0.0)
            ones, farther = 1.0 + 0.0 * decay, log_term + exponent
            row_weight, column_weight = rows.weight[:, None], columns.weight[None, :]
            row_grad = row_weight * _choose(below, decay, ones, SIDE)
            column_grad = column_weight * _choose(below, ones, decay, SIDE)
            grad_sum += halves * inverse * (row_grad - column_grad)
            row_term = row_weight * _choose(below, log_term, farther, SIDE)
            column_term = column_weight * _choose(below, farther, log_term, SIDE)
            term += halves * (row_term + column_term)
    if SIDE == 1:
        term_sum += term
    elif SIDE == 0:
        term_sum += tl.where(below, term, 0.0)
    return grad_sum, term_sum


@cached_launch
@triton.jit(do_not_specialize=["total_items", "k"])
def _sum_pairs(
    ranked, offsets, parts, table, sums, total_items, k, sigma, steepness, mu,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr,
    REACH: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradients of a block of sorted items to ``ranked[3]``, and its sum over pairs.

    The program has the ROWS items of its block as rows, and loops over tiles of columns: all items
    of the list. If the scores of the block are close to each other, ``exp(-σ |s_i - s_j|)`` is
    computed as a product of two exponentials, one of the row and one of the column.
    """
    list_index, start, width = list_span(offsets)
    length = _length(parts, list_index, tl.num_programs(1), width, MASKED, WIDTH)
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    center = tl.num_programs(1) * ROWS
    last_row = tl.minimum(first + ROWS, length) - 1
    top_score = tl.load(ranked + start + first, mask=first < length, other=0.0)
    bottom_score = tl.load(ranked + start + last_row, mask=first < length, other=0.0)
    middle = bottom_score + 0.5 * (top_score - bottom_score)
    block = _Block(
        ranked, start, length, total_items, k, sigma, steepness, mu, table, center, first, row,
        middle,
    )  # fmt: skip
    rows = _load_items(block, row, KIND, GAIN, CUT, WEIGHTED)
    grad_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    term_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    columns_end = tl.where(first < length, length, 0)
    if REACH:  # pairs of two items past the cutoff have no weight
        columns_end = tl.where(first >= k, tl.minimum(columns_end, k), columns_end)
    mixed_begin = tl.minimum(first // COLUMNS * COLUMNS, columns_end)
    mixed_end = tl.cdiv(first + ROWS, COLUMNS) * COLUMNS
    full_end = columns_end // COLUMNS * COLUMNS
    mixed_tiles = tl.cdiv(tl.minimum(mixed_end, columns_end) - mixed_begin, COLUMNS)
    ragged_begin = tl.maximum(full_end, mixed_end)
    # Tiles of columns that overlap the rows, and the last, incomplete tile.
    for turn in range(0, mixed_tiles + (ragged_begin < columns_end).to(tl.int32)):
        first_column = tl.where(turn < mixed_tiles, mixed_begin + turn * COLUMNS, ragged_begin)
        grad_sum, term_sum = _pair_tile(
            block, rows, rows.power, first_column, grad_sum, term_sum,
            KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, False, 0,
        )  # fmt: skip
    # If so, the rows' ``power`` is at most 58 from 0, and a column whose ``power`` is clamped to
    # 122 is so far away that its pairs are saturated.
    is_narrow = (top_score - bottom_score) * steepness <= 116.0
    for side in tl.static_range(-1, 2, 2):  # columns ranked above the rows, then below
        begin = columns_end * 0 if side == -1 else mixed_end
        end = mixed_begin if side == -1 else full_end
        if is_narrow:
            row_exp = _bounded_exp2(rows.power * -side)
            for first_column in range(begin, end, COLUMNS):
                grad_sum, term_sum = _pair_tile(
                    block, rows, row_exp, first_column, grad_sum, term_sum,
                    KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, True, side,
                )  # fmt: skip
        else:
            for first_column in range(begin, end, COLUMNS):
                grad_sum, term_sum = _pair_tile(
                    block, rows, rows.power, first_column, grad_sum, term_sum,
                    KIND, GAIN, CUT, HALF, WEIGHTED, COLUMNS, False, side,
                )  # fmt: skip
    grad = -tl.sum(grad_sum, 1)
    if KIND != "hinge":
        grad *= sigma
    target = ranked + 3 * total_items.to(tl.int64) + start + row
    tl.store(target, grad, mask=row < length)
    value = tl.sum(tl.sum(term_sum, 0), 0)
    if KIND != "hinge":
        value *= 0.6931471805599453  # log 2, the unit of the terms
    tl.store(sums + list_index * tl.num_programs(1) + tl.program_id(1), value)


@cached_launch
@triton.jit(do_not_specialize=["total_items"])
def _scatter_grads(
    ranked, origin, mask, offsets, parts, sums, values, grad_scores, defined, total_items,
    WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradients of a block of items in input order; a list's first block writes its loss.

    Gradients are averaged over duplicates (items of equal score, label and weight), which sorting
    ranks in an arbitrary order.
    """
    list_index, start, width = list_span(offsets)
    block = tl.program_id(1)
    norm, length, max_label, min_label = _list_parts(parts, list_index, WIDTH)
    is_defined = max_label > min_label
    scale = tl.where(is_defined & (norm > 0), 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    inside = row < length
    sorted_labels = ranked + total_items
    sorted_weights = ranked + 2 * total_items.to(tl.int64)
    sorted_grads = ranked + 3 * total_items.to(tl.int64)
    score = tl.load(ranked + start + row, mask=inside, other=0.0)
    label = tl.load(sorted_labels + start + row, mask=inside, other=-1.0)
    grad = tl.load(sorted_grads + start + row, mask=inside, other=0.0)
    has_previous, has_next = inside & (row > 0), row + 1 < length
    previous_label = tl.load(sorted_labels + start + row - 1, mask=has_previous, other=-2.0)
    equals_previous = has_previous & (previous_label == label)
    equals_previous &= tl.load(ranked + start + row - 1, mask=has_previous, other=0.0) == score
    next_label = tl.load(sorted_labels + start + row + 1, mask=has_next, other=-2.0)
    equals_next = has_next & (next_label == label)
    equals_next &= tl.load(ranked + start + row + 1, mask=has_next, other=0.0) == score
    if tl.max((equals_previous | equals_next).to(tl.int32), 0) > 0:
        max_score = tl.max(tl.where(inside, score, float("-inf")), 0)
        min_score = tl.min(tl.where(inside, score, float("inf")), 0)
        weight = label
        if WEIGHTED:
            weight = tl.load(sorted_weights + start + row, mask=inside, other=0.0)
        grad_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
        count = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first_column in range(0, length, COLUMNS):
            last_column = tl.minimum(first_column + COLUMNS, length) - 1
            overlaps = tl.load(ranked + start + first_column) >= min_score
            overlaps &= tl.load(ranked + start + last_column) <= max_score
            if overlaps:
                column = first_column + tl.arange(0, COLUMNS)
                valid = column < length
                is_same = score[:, None] == tl.load(ranked + start + column, mask=valid)[None, :]
                column_label = tl.load(sorted_labels + start + column, mask=valid, other=-2.0)
                is_same &= label[:, None] == column_label[None, :]
                if WEIGHTED:
                    column_weight = tl.load(sorted_weights + start + column, mask=valid, other=-1.0)
                    is_same &= weight[:, None] == column_weight[None, :]
                column_grad = tl.load(sorted_grads + start + column, mask=valid, other=0.0)
                grad_sum += tl.where(is_same, column_grad[None, :], 0.0)
                count += tl.where(is_same, 1.0, 0.0)
        grad = tl.sum(grad_sum, 1) / tl.maximum(tl.sum(count, 1), 1.0)
    position = tl.load(origin + start + row, mask=inside, other=0)
    tl.store(grad_scores + start + position, grad * scale, mask=inside)
    if mask is not None:
        padding = (row < width) & (tl.load(mask + start + row, mask=row < width, other=1) == 0)
        tl.store(grad_scores + start + row, tl.zeros([ROWS], tl.float32), mask=padding)
    if block == 0:
        tl.store(
            values + list_index, sum_blocks(sums, list_index, tl.num_programs(1), WIDTH) * scale
        )
        tl.store(defined + list_index, is_defined)
