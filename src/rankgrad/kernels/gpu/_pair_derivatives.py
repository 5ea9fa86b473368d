"""Gradient and Hessian diagonal of LambdaRank and LambdaLoss for NDCG on GPUs, of flat lists.

Boosted trees take these derivatives (:mod:`rankgrad.kernels._pair_derivatives`). The loss is
``Σ_{y_i > y_j} weight_ij log(1 + exp(-σ (s_i - s_j)))`` with the weights of Jagerman et al. 2022,
which :mod:`rankgrad.kernels.gpu._pairs` lists. With ``p = sigmoid(-σ (s_i - s_j))`` a pair adds
``-σ weight p`` to the gradient of item i, ``σ weight p`` to that of item j, and
``σ² weight p (1 - p)`` to the Hessian of both.

One program per list sorts its items: by label, for the ideal DCG and to break ties, then by score.
Each range of lengths has a launch of its own, so that one long list does not make short lists more
expensive. A second kernel sums over the pairs of each item. In sorted order ``δ(|π_i - π_j|)`` is
constant along diagonals. The sums need no atomic additions: the same input gives the same bits. A
third kernel averages over duplicates (items of equal score, label and weight) and writes the
results in input order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, PairOptions
from rankgrad.kernels.gpu._flat_lists import list_span, load_weights
from rankgrad.kernels.gpu._ideal_gain import gain_of
from rankgrad.kernels.gpu._pairs import past_cutoff
from rankgrad.kernels.gpu._segmented_sort import ordered_bits

_ROWS = 16  # of a tile of pairs
_MANY_ITEMS = 1 << 18  # from this many on, blocks of rows of one warp each fill the device
_FIRST_RANGE, _ONE_RANGE = 256, 512  # lengths: see _length_ranges
_LOG2E = math.log2(math.e)


def pair_derivatives(flat: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """See :func:`rankgrad.kernels._pair_derivatives.compute`; supports the NDCG kinds only.

    Does not synchronize with the host.
    """
    scores, labels, _, weights, offsets, max_length = flat
    kind, norm = options.kind, options.kind == "lambdarank_norm"
    gradient, hessian = torch.zeros_like(scores), torch.zeros_like(scores)
    lists, items = offsets.numel() - 1, scores.numel()
    if lists == 0 or items == 0:
        return gradient, hessian
    by_label, order = _orders(scores, labels, offsets, max_length, norm)
    # In sorted order: scores, labels, weights, gradient, Hessian, and the last row, which has the
    # absolute lambdas with ``norm``, otherwise the numbers of runs (_number_runs).
    ranked = scores.new_empty(6, items)
    norms = scores.new_empty(lists)
    weighted = weights is not None
    _for_each_list(
        _lay_out, offsets, max_length, scores, labels, weights, offsets, by_label, order, ranked,
        norms, items, options.k, options.gain,
    )  # fmt: skip
    # One warp per block of rows, unless there are too few blocks to fill the device.
    columns, pair_warps = (64, 1) if max_length <= 512 or items >= _MANY_ITEMS else (128, 4)
    delta_factor = {"ndcg_loss2": 1.0, "ndcg_loss2++": float(options.mu)}.get(kind, 0.0)
    max_distance = max_length + max(columns, _ROWS)
    _sum_pairs[(lists, triton.cdiv(max_length, _ROWS))](
        ranked, offsets, _delta_table(max_distance, scores), items, max_distance, options.k,
        float(options.sigma), options.sigma * _LOG2E, delta_factor,
        not kind.startswith("lambdarank"), kind != "ndcg_loss2", _cut_kind(options),
        options.k > 0 and not (norm or options.truncation == "heuristic"), options.gain, weighted,
        norm, isinstance(_sum_pairs, triton.runtime.JITFunction), _ROWS, columns,
        num_warps=pair_warps,
    )  # fmt: skip
    # Without weights, duplicates are adjacent already; with ``norm``, they are not averaged.
    by_weight = weighted and not norm
    duplicate_order = _duplicate_order(ranked, offsets, max_length) if by_weight else order
    _for_each_list(
        _average_duplicates, offsets, max_length, ranked, offsets, order, duplicate_order, norms,
        gradient, hessian, items, float(options.sigma), by_weight, norm,
    )  # fmt: skip
    return gradient, hessian


def _cut_kind(options: PairOptions) -> str:
    """What a cutoff does to pairs.

    ``none``: there is no cutoff; ``factor``: δ of pairs whose lower item is past the cutoff has a
    factor (eq. 17); ``mask``: pairs of two items past the cutoff are dropped.
    """
    if options.k == 0:
        return "none"
    masked = options.kind.startswith("lambdarank") or options.truncation == "heuristic"
    return "mask" if masked else "factor"


def _delta_table(max_distance: int, like: Tensor) -> Tensor:
    """``δ(|d|) = 1 / log2(1 + |d|) - 1 / log2(2 + |d|)`` (eq. 13), ``[2 max_distance + 1]``.

    d is from -max_distance to max_distance; the entry at 0, which no pair has, is that at 1.
    """
    signed = torch.arange(-max_distance, max_distance + 1, device=like.device, dtype=torch.float64)
    distance = signed.abs().clamp(min=1)
    return (1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)).to(like.dtype)


def _orders(
    scores: Tensor, labels: Tensor, offsets: Tensor, max_length: int, norm: bool
) -> tuple[Tensor, Tensor]:
    """The items of each list by ascending label, and by descending score: ``[items]`` each.

    Ties in score are broken by ascending label and then by input order; with ``norm``, by input
    order alone.
    """
    by_label, by_score = torch.empty(2, scores.numel(), dtype=torch.int32, device=scores.device)
    _sort(labels, None, by_label, offsets, max_length)
    _sort(scores, None if norm else by_label, by_score, offsets, max_length, descending=True)
    return by_label, by_score


def _duplicate_order(ranked: Tensor, offsets: Tensor, max_length: int) -> Tensor:
    """An order of the sorted items in which duplicates (score, label and weight) are adjacent.

    Items of equal score and label are adjacent already. They are runs, which are numbered; sorting
    by weight, then by the run, makes duplicates adjacent.
    """
    items = ranked.shape[1]
    by_weight = torch.empty(items, dtype=torch.int32, device=ranked.device)
    duplicate_order = torch.empty_like(by_weight)
    _for_each_list(_number_runs, offsets, max_length, ranked, offsets, items)
    _sort(ranked[2], None, by_weight, offsets, max_length)
    _sort(ranked[5], by_weight, duplicate_order, offsets, max_length)
    return duplicate_order


def _sort(
    values: Tensor,
    before: Tensor | None,
    after: Tensor,
    offsets: Tensor,
    max_length: int,
    descending: bool = False,
) -> None:
    """Write the order of each list by a value to ``after``; ties are ordered as in ``before``."""
    _for_each_list(_sort_list, offsets, max_length, values, before, after, offsets, descending)


def _for_each_list(kernel: Any, offsets: Tensor, max_length: int, *arguments: Any) -> None:
    """Launch a kernel with one program per list, once for each range of lengths.

    The bounds of the range are the kernel's last arguments; it skips lists of other lengths.
    """
    for above, length in _length_ranges(max_length):
        warps = max(1, min(8, length // 128))
        kernel[(offsets.numel() - 1,)](*arguments, above, length, num_warps=warps)


def _length_ranges(max_length: int) -> list[tuple[int, int]]:
    """Ranges ``(above, up to]`` of lengths: powers of 2, with all lengths up to 256 in one range.

    If no list exceeds 512 items there is one range: a second launch would cost more than it saves.

    >>> from rankgrad.kernels.gpu._pair_derivatives import _length_ranges
    >>> _length_ranges(300), _length_ranges(540)
    ([(0, 512)], [(0, 256), (256, 512), (512, 1024)])
    """
    padded_length = max(16, triton.next_power_of_2(max_length))
    if padded_length <= _ONE_RANGE:
        return [(0, padded_length)]
    tops = [_FIRST_RANGE << step for step in range((padded_length // _FIRST_RANGE).bit_length())]
    return list(zip([0, *tops], tops, strict=False))


@triton.jit
def _sort_list(
    values, before, after, offsets,
    DESCENDING: tl.constexpr, ABOVE: tl.constexpr, LENGTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the order of a list's items by a value; ties as in ``before``, or in input order.

    Only lists with more than ABOVE and up to LENGTH items are sorted (see :func:`_length_ranges`).
    """
    _, start, length = list_span(offsets)
    if (length > ABOVE) & (length <= LENGTH):
        place = tl.arange(0, LENGTH)
        inside = place < length
        item = place
        if before is not None:
            item = tl.load(before + start + place, mask=inside, other=0)
        value = tl.load(values + start + item, mask=inside, other=0.0)
        if DESCENDING:
            value = -value
        ordered = ordered_bits(value + 0.0).to(tl.int64)  # -0 becomes 0
        key = tl.where(inside, (ordered << 32) | place.to(tl.int64), 0x7FFFFFFFFFFFFFFF)
        sorted_item = (tl.sort(key) & 0xFFFFFFFF).to(tl.int32)
        if before is not None:
            sorted_item = tl.load(before + start + sorted_item, mask=inside, other=0)
        tl.store(after + start + place, sorted_item, mask=inside)


@triton.jit(do_not_specialize=["items", "k"])
def _lay_out(
    scores, labels, weights, offsets, by_label, order, ranked, norms, items, k,
    GAIN: tl.constexpr, ABOVE: tl.constexpr, LENGTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write the scores, labels and weights of a list to ``ranked``, in the order of the scores.

    Also writes one over the ideal DCG to ``norms``; 0 where all labels are equal, since such a list
    has no pairs.
    """
    list_index, start, length = list_span(offsets)
    if (length > ABOVE) & (length <= LENGTH):
        place = tl.arange(0, LENGTH)
        inside = place < length
        item = tl.load(order + start + place, mask=inside, other=0)
        target = ranked + start + place
        tl.store(target, tl.load(scores + start + item, mask=inside, other=0.0), mask=inside)
        stride = items.to(tl.int64)
        item_label = tl.load(labels + start + item, mask=inside, other=0.0)
        tl.store(target + stride, item_label, mask=inside)
        if weights is not None:
            weight = tl.load(weights + start + item, mask=inside, other=0.0)
            tl.store(target + 2 * stride, weight, mask=inside)
        label_item = tl.load(by_label + start + place, mask=inside, other=0)
        label = tl.load(labels + start + label_item, mask=inside, other=0.0)
        rank = length - place  # the highest label comes last
        counted = inside & ((k == 0) | (rank <= k))
        discount = 1.0 / tl.log2(1.0 + tl.maximum(rank, 1).to(tl.float32))
        ideal = tl.sum(tl.where(counted, gain_of(label, 0.0, GAIN) * discount, 0.0), 0)
        max_label = tl.max(tl.where(inside, label, -1.0), 0)
        min_label = tl.min(tl.where(inside, label, float("inf")), 0)
        tl.store(
            norms + list_index,
            tl.where(max_label > min_label, 1.0 / tl.where(ideal > 0, ideal, 1.0), 0.0),
        )


@triton.jit
def _reciprocal(x, FAST: tl.constexpr):
    """``1 / x`` for x >= 1, in one instruction unless interpreted."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def _load_item(
    ranked, start, at, inside, stride, k,
    CUT: tl.constexpr, SHORT: tl.constexpr, GAIN: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """What a pair needs of its items: score, gain, weight, discount, and the cutoff's factor.

    For the constants see :func:`_sum_pairs`.
    """
    score = tl.load(ranked + start + at, mask=inside, other=0.0)
    gain = gain_of(tl.load(ranked + stride + start + at, mask=inside, other=0.0), 0.0, GAIN)
    weight = load_weights(ranked + 2 * stride + start if WEIGHTED else None, at, inside)
    rank = at.to(tl.float32) + 1.0
    discount = 1.0 / tl.log2(1.0 + rank)
    cut = weight  # not used unless CUT is "factor"
    if CUT == "factor":
        cut = tl.where(at < k, 1.0, past_cutoff(rank))
    if SHORT:  # no discount past LambdaRank's cutoff
        discount = tl.where(at < k, discount, 0.0)
    return score, gain, weight, discount, cut


@triton.jit
def _add_tile(
    ranked, delta, start, stride, columns_end, first, k, middle, steepness, delta_factor, floor,
    rows, row_exp, first_column, grads, hessians, lambdas, is_below, DISTANCE: tl.constexpr,
    DISCOUNT: tl.constexpr, CUT: tl.constexpr, SHORT: tl.constexpr, GAIN: tl.constexpr,
    WEIGHTED: tl.constexpr, NORM: tl.constexpr, NEAR: tl.constexpr, MIXED: tl.constexpr,
    FAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the pairs of a tile to the gradients, Hessians and absolute lambdas of its rows.

    Unless MIXED, all columns are items, ranked below all rows (``is_below``) or above them. Sums
    are ``[ROWS, COLUMNS]``. NEAR: ``exp(σ (s_i - s_j))`` is the product of ``row_exp`` and an
    exponential of the column. ``steepness`` is ``σ log2(e)``, ``first`` the first row. For the
    other constants see :func:`_sum_pairs`.
    """
    score, gain, weight, discount, cut = rows
    row = first + tl.arange(0, ROWS)
    column = first_column + tl.arange(0, COLUMNS)
    column_score, column_gain, column_weight, column_discount, column_cut = _load_item(
        ranked, start, column, column < columns_end, stride, k, CUT, SHORT, GAIN, WEIGHTED
    )
    gain_difference = gain[:, None] - column_gain[None, :]
    swap = tl.zeros([ROWS, COLUMNS], tl.float32)
    if DISTANCE:
        # In 64 bits, so that a thread's rows are at fixed offsets from one address.
        lane = (column - first).to(tl.int64)
        swap = tl.load(delta + (lane[None, :] - tl.arange(0, ROWS)[:, None]))
        swap *= delta_factor
        if CUT == "factor":
            if MIXED:
                swap *= tl.where(column[None, :] > row[:, None], column_cut[None, :], cut[:, None])
            else:  # the factor of the lower item: one of the two is 1
                swap *= tl.where(is_below, column_cut, 1.0)[None, :]
                swap *= tl.where(is_below, 1.0, cut)[:, None]
    if DISCOUNT:
        swap += tl.abs(discount[:, None] - column_discount[None, :])
    if CUT == "mask":
        swap = tl.where((column[None, :] < k) | (row[:, None] < k), swap, 0.0)
    if MIXED:
        swap = tl.where(column[None, :] < columns_end, swap, 0.0)
    if NORM:
        difference = tl.abs(score[:, None] - column_score[None, :])
        swap /= tl.where(floor > 0, floor + difference, 1.0)
    swap *= gain_difference  # negative where the column's item is more relevant
    if MIXED:
        column_score = tl.where(column < columns_end, column_score, middle)
    if NEAR:
        exp_ratio = row_exp[:, None] * tl.exp2((middle - column_score) * steepness)[None, :]
    else:
        power = (score[:, None] - column_score[None, :]) * steepness
        exp_ratio = tl.exp2(tl.minimum(tl.maximum(power, -60.0), 60.0))  # stays finite
    inverse = _reciprocal(1.0 + exp_ratio, FAST)
    complement = exp_ratio * inverse
    pair_grad = swap * tl.where(gain_difference > 0, inverse, complement)
    # 1e-16 is LEAST_CURVATURE of rankgrad.losses._newton.
    hessian = tl.abs(swap) * tl.maximum(complement * inverse, 1e-16)
    if NORM:
        lambdas += tl.abs(pair_grad)
    if WEIGHTED:
        item_weight = tl.where(gain_difference > 0, weight[:, None], column_weight[None, :])
        pair_grad *= item_weight
        hessian *= item_weight
    return grads - pair_grad, hessians + hessian, lambdas


@triton.jit(do_not_specialize=["items", "k", "max_distance"])
def _sum_pairs(
    ranked, offsets, delta, items, max_distance, k, sigma, steepness, delta_factor,
    DISTANCE: tl.constexpr, DISCOUNT: tl.constexpr, CUT: tl.constexpr, SHORT: tl.constexpr,
    GAIN: tl.constexpr, WEIGHTED: tl.constexpr, NORM: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Sum over the pairs of a block of items, in tiles with the block as rows.

    Writes gradients, Hessians and, with NORM, absolute lambdas to ``ranked[3:6]``.

    Args:
        ranked: ``[6, items]``, see :func:`pair_derivatives`.
        offsets: ``[lists + 1]``.
        delta: the table of :func:`_delta_table`.
        items: the number of items of all lists.
        max_distance: the largest distance in the table.
        k: the cutoff, 0 for none.
        sigma: σ.
        steepness: ``σ log2(e)``, since exponentials are powers of 2.
        delta_factor: multiplies δ in the weight of a pair.
        DISTANCE: whether weights have the term δ of LambdaLoss.
        DISCOUNT: whether weights have the difference of discounts of LambdaRank.
        CUT: what the cutoff does, see :func:`_cut_kind`.
        SHORT: whether discounts past the cutoff are 0.
        GAIN: the gain of labels.
        WEIGHTED: whether there are item weights.
        NORM: normalize as LightGBM does.
        FAST: use an instruction of the GPU for reciprocals; False in Triton's interpreter.
        ROWS: items of a block.
        COLUMNS: columns of a tile.
    """
    _, start, length = list_span(offsets)
    first = tl.program_id(1) * ROWS
    if first < length:
        stride = items.to(tl.int64)
        delta += max_distance  # the table's middle: distances are signed
        row = first + tl.arange(0, ROWS)
        rows = _load_item(ranked, start, row, row < length, stride, k, CUT, SHORT, GAIN, WEIGHTED)
        grads = tl.zeros([ROWS, COLUMNS], tl.float32)
        hessians = tl.zeros([ROWS, COLUMNS], tl.float32)
        lambdas = tl.zeros([ROWS, COLUMNS], tl.float32)
        top = tl.load(ranked + start)
        bottom = tl.load(ranked + start + length - 1)
        middle = bottom + 0.5 * (top - bottom)
        row_exp = tl.exp2((rows[0] - middle) * steepness)
        floor = tl.where(top > bottom, 0.01, 0.0)  # LightGBM's norm, unless all scores are equal
        last = length
        if CUT == "mask":  # two items past the cutoff form no pair
            last = tl.where(first >= k, tl.minimum(last, k), last)
        # Tiles of columns above the rows, below them, and those that overlap them or the end.
        above = tl.minimum(first // COLUMNS * COLUMNS, last // COLUMNS * COLUMNS)
        below = tl.maximum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, above)
        full_end = tl.maximum(last // COLUMNS * COLUMNS, below)
        # If so, both factors of an exponential are at most 2^55, and their product is finite.
        is_narrow = (top - bottom) * steepness <= 110.0
        mixed_tiles = tl.cdiv(tl.minimum(below, last) - above, COLUMNS)
        tile_arguments = (
            ranked, delta, start, stride, last, first, k, middle, steepness, delta_factor,
            floor, rows, row_exp,
        )  # fmt: skip
        # One body of code for full tiles of either side: warps on lists of unequal lengths are in
        # different parts of the code, which should fit into the instruction cache.
        for are_full in tl.static_range(0, 2):
            tiles = mixed_tiles + (full_end < last).to(tl.int32)
            if are_full:
                tiles = (above + full_end - below) // COLUMNS
            for tile in range(0, tiles):
                first_column = tile * COLUMNS
                if are_full:
                    skipped = first_column - above + below
                    first_column = tl.where(first_column < above, first_column, skipped)
                else:
                    first_column = tl.where(tile < mixed_tiles, above + first_column, full_end)
                if is_narrow:
                    grads, hessians, lambdas = _add_tile(
                        *tile_arguments, first_column, grads, hessians, lambdas,
                        first_column > first, DISTANCE, DISCOUNT, CUT, SHORT, GAIN, WEIGHTED, NORM,
                        True, are_full == 0, FAST, ROWS, COLUMNS,
                    )  # fmt: skip
                else:
                    grads, hessians, lambdas = _add_tile(
                        *tile_arguments, first_column, grads, hessians, lambdas,
                        first_column > first, DISTANCE, DISCOUNT, CUT, SHORT, GAIN, WEIGHTED, NORM,
                        False, are_full == 0, FAST, ROWS, COLUMNS,
                    )  # fmt: skip
        target = ranked + start + row
        tl.store(target + 3 * stride, tl.sum(grads, 1) * sigma, mask=row < length)
        tl.store(target + 4 * stride, tl.sum(hessians, 1) * sigma * sigma, mask=row < length)
        if NORM:
            tl.store(target + 5 * stride, tl.sum(lambdas, 1), mask=row < length)


@triton.jit(do_not_specialize=["items"])
def _number_runs(ranked, offsets, items, ABOVE: tl.constexpr, LENGTH: tl.constexpr) -> None:
    """Write the number of each item's run of equal score and label, in a sorted list."""
    _, start, length = list_span(offsets)
    if (length > ABOVE) & (length <= LENGTH):
        stride = items.to(tl.int64)
        place = tl.arange(0, LENGTH)
        later = (place > 0) & (place < length)
        item_at = ranked + start + place
        score = tl.load(item_at, mask=later, other=0.0)
        is_new = score != tl.load(item_at - 1, mask=later, other=0.0)
        label = tl.load(item_at + stride, mask=later, other=0.0)
        is_new |= label != tl.load(item_at + stride - 1, mask=later, other=0.0)
        number = tl.cumsum(is_new.to(tl.int32), 0).to(tl.float32)
        tl.store(item_at + 5 * stride, number, mask=place < length)


@triton.jit
def _differ(ranked, start, stride, a, b, exist, WEIGHTED: tl.constexpr):
    """Whether two items of a sorted list differ in score, label or weight."""
    a_at, b_at = ranked + start + a, ranked + start + b
    differs = tl.load(a_at, mask=exist, other=0.0) != tl.load(b_at, mask=exist, other=0.0)
    labels = tl.load(a_at + stride, mask=exist, other=0.0)
    differs |= labels != tl.load(b_at + stride, mask=exist, other=0.0)
    if WEIGHTED:
        weights = tl.load(a_at + 2 * stride, mask=exist, other=0.0)
        differs |= weights != tl.load(b_at + 2 * stride, mask=exist, other=0.0)
    return differs | (exist == 0)


@triton.jit
def _add_in_run(first, second, count, new, first_, second_, count_, new_):
    """The operator of a segmented scan: sums restart where a run starts."""
    return (
        tl.where(new_ > 0, first_, first + first_), tl.where(new_ > 0, second_, second + second_),
        tl.where(new_ > 0, count_, count + count_), tl.maximum(new, new_),
    )  # fmt: skip


@triton.jit
def _take_end(first, second, count, end, first_, second_, count_, end_):
    """The operator of a reverse scan that copies the values at a run's end to the whole run."""
    return (
        tl.where(end_ > 0, first_, first), tl.where(end_ > 0, second_, second),
        tl.where(end_ > 0, count_, count), tl.maximum(end, end_),
    )  # fmt: skip


@triton.jit(do_not_specialize=["items"])
def _average_duplicates(
    ranked, offsets, order, duplicate_order, norms, gradient, hessian, items, sigma,
    WEIGHTED: tl.constexpr, NORM: tl.constexpr, ABOVE: tl.constexpr, LENGTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write results in input order: means over duplicates, or with NORM normalized as in LightGBM.

    Duplicates are adjacent in ``duplicate_order`` if WEIGHTED, otherwise in the sorted list itself.
    """
    list_index, start, length = list_span(offsets)
    if (length > ABOVE) & (length <= LENGTH):
        scale = tl.load(norms + list_index)
        stride = items.to(tl.int64)
        lane = tl.arange(0, LENGTH)
        inside = lane < length
        place, previous, following = lane, lane - 1, lane + 1
        has_previous, has_next = inside & (lane > 0), lane + 1 < length
        if WEIGHTED:
            place = tl.load(duplicate_order + start + lane, mask=inside, other=0)
            previous = tl.load(duplicate_order + start + lane - 1, mask=has_previous, other=0)
            following = tl.load(duplicate_order + start + lane + 1, mask=has_next, other=0)
        item_at = ranked + start + place
        item_grad = tl.load(item_at + 3 * stride, mask=inside, other=0.0)
        item_hessian = tl.load(item_at + 4 * stride, mask=inside, other=0.0)
        if NORM:
            # The sum over items counts every pair twice.
            lambdas = tl.load(item_at + 5 * stride, mask=inside, other=0.0)
            lambda_sum = tl.sum(lambdas, 0) * sigma * scale
            scale *= tl.where(
                lambda_sum > 0,
                tl.log2(1.0 + lambda_sum) / tl.where(lambda_sum > 0, lambda_sum, 1.0), 1.0,
            )  # fmt: skip
        else:
            starts = _differ(ranked, start, stride, place, previous, has_previous, WEIGHTED)
            ends = _differ(ranked, start, stride, place, following, has_next, WEIGHTED)
            starts, ends = starts.to(tl.int32), ends.to(tl.int32)
            count = tl.where(inside, 1.0, 0.0)
            item_grad, item_hessian, count, starts = tl.associative_scan(
                (item_grad, item_hessian, count, starts), 0, _add_in_run
            )
            item_grad, item_hessian, count, ends = tl.associative_scan(
                (item_grad, item_hessian, count, ends), 0, _take_end, reverse=True
            )
            item_grad /= tl.maximum(count, 1.0)
            item_hessian /= tl.maximum(count, 1.0)
        item = tl.load(order + start + place, mask=inside, other=0)
        tl.store(gradient + start + item, item_grad * scale, mask=inside)
        tl.store(hessian + start + item, item_hessian * scale, mask=inside)
