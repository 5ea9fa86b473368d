"""Gradient and Hessian diagonal of LambdaRank and LambdaLoss for NDCG on GPUs, of flat lists.

Boosted trees take these derivatives (:mod:`rankgrad.kernels._pair_derivatives`). The loss is
``Σ_{y_i > y_j} weight_ij log(1 + exp(-σ (s_i - s_j)))`` with the weights of Jagerman et al. 2022,
which :mod:`rankgrad.kernels.gpu._pairs` lists. With ``p = sigmoid(-σ (s_i - s_j))`` a pair adds
``-σ weight p`` to the gradient of item i, ``σ weight p`` to that of item j, and
``σ² weight p (1 - p)`` to the Hessian of both.

The first and the last of three launches are those of the loss, which rank the items, average over
duplicates and write the results in input order. The second one, here, sums over the pairs of each
item. It has less code than that of the loss: a batch is all lists of a data set, of unequal
lengths, and warps in different parts of the code should find it in the instruction cache.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, PairOptions
from rankgrad.kernels.gpu._flat_lists import list_span
from rankgrad.kernels.gpu._ideal_gain import ROWS
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._pairs import (
    Block,
    load_items,
    rank_items,
    scatter_grads,
    signed_weight,
)

_MANY_ITEMS = 1 << 18  # from this many on, blocks of rows of one warp each fill the device
_SCATTERED = 128  # the most rows of a program that writes results
_LOG2E = math.log2(math.e)


def pair_derivatives(flat: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """See :func:`rankgrad.kernels._pair_derivatives.compute`; supports the NDCG kinds only.

    Does not synchronize with the host.
    """
    scores, _, _, weights, offsets, max_length = flat
    norm, k = options.kind == "lambdarank_norm", options.k
    kind = "lambdarank" if norm else options.kind
    gradient, hessian = torch.zeros_like(scores), torch.zeros_like(scores)
    lists, items = offsets.numel() - 1, scores.numel()
    if lists == 0 or items == 0:
        return gradient, hessian
    # One warp per block of rows, unless there are too few blocks to fill the device.
    is_one_warp = max_length <= 512 or items >= _MANY_ITEMS
    columns, warps, width = (64, 1, 32) if is_one_warp else (128, 4, 512)
    shape = {"ROWS": ROWS, "COLUMNS": columns, "num_warps": warps}
    rows = max(ROWS, min(_SCATTERED, next_power_of_2(max_length)))
    scattered = cdiv(max_length, rows)
    blocks = scattered * rows // ROWS
    # As in :func:`rankgrad.kernels.gpu._pairs.pairs`; the last row is the Hessian.
    table = scores.new_empty(2 * blocks * ROWS + columns)
    ranked, origin = scores.new_empty(5, items), torch.empty_like(scores, dtype=torch.int32)
    parts, sums = scores.new_empty(lists, blocks, 4), scores.new_empty(lists, blocks)
    rank_items[(lists, blocks)](
        *flat[:5], ranked, origin, parts, table, items, k, 0.0, GAIN=options.gain, NORM="ideal",
        TABLE=kind != "lambdarank", BY_LABEL=not norm, **shape,
    )  # fmt: skip
    # With a cutoff, pairs of two items past it are masked, or have a factor (eqs. 16-17). Without
    # a mask on LambdaLoss, and in LambdaRank, discounts past the cutoff are 0.
    cut, is_masked = "none", k > 0 and (kind == "lambdarank" or options.truncation == "heuristic")
    if k > 0:
        cut = "inside" if norm or options.truncation == "heuristic" else "corrected"
    _sum_pairs[(lists, blocks)](
        ranked, offsets, table, sums, items, k, float(options.sigma), options.sigma * _LOG2E,
        float(options.mu), KIND=kind, CUT=cut, MASK=is_masked, GAIN=options.gain,
        WEIGHTED=weights is not None, NORM=norm,
        FAST=isinstance(_reciprocal, triton.runtime.JITFunction), **shape,
    )  # fmt: skip
    scatter_grads[(lists, scattered)](
        ranked, origin, None, offsets, parts, sums, None, gradient, None, hessian, items,
        WEIGHTED=weights is not None, NORMALIZED=norm, BLOCKS=rows // ROWS, ROWS=rows, COLUMNS=16,
        WIDTH=width, num_warps=max(1, rows // 32),
    )  # fmt: skip
    return gradient, hessian


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
def _add_tile(
    block, columns_end, floor, rows, row_exp, first_column, grads, hessians, lambdas, is_below,
    KIND: tl.constexpr, CUT: tl.constexpr, MASK: tl.constexpr, GAIN: tl.constexpr,
    WEIGHTED: tl.constexpr, NORM: tl.constexpr, NEAR: tl.constexpr, MIXED: tl.constexpr,
    FAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the pairs of a tile to the gradients, Hessians and absolute lambdas of its rows.

    Unless MIXED, all columns are items, ranked below all rows (``is_below``) or above them. Sums
    are ``[ROWS, COLUMNS]``. NEAR: ``exp(σ (s_i - s_j))`` is the product of ``row_exp`` and an
    exponential of the column. For the other constants see :func:`_sum_pairs`.
    """
    row, k = block.row, block.k
    column = first_column + tl.arange(0, COLUMNS)
    columns = load_items(block, column, KIND, GAIN, CUT, WEIGHTED)
    gain_difference = rows.gain[:, None] - columns.gain[None, :]
    below = is_below
    if MIXED:
        below = column[None, :] > row[:, None]
    signed = signed_weight(
        block, column, below, gain_difference, rows, columns, KIND, CUT, False, 0
    )
    if MASK:
        signed = tl.where((column[None, :] < k) | (row[:, None] < k), signed, 0.0)
    if MIXED:
        signed = tl.where(column[None, :] < columns_end, signed, 0.0)
    if NORM:
        difference = tl.abs(rows.score[:, None] - columns.score[None, :])
        signed /= tl.where(floor > 0, floor + difference, 1.0)
    column_score = columns.score
    if MIXED:
        column_score = tl.where(column < columns_end, column_score, block.middle)
    if NEAR:
        column_power = (block.middle - column_score) * block.steepness
        exp_ratio = row_exp[:, None] * tl.exp2(column_power)[None, :]
    else:
        power = (rows.score[:, None] - column_score[None, :]) * block.steepness
        exp_ratio = tl.exp2(tl.minimum(tl.maximum(power, -60.0), 60.0))  # stays finite
    inverse = _reciprocal(1.0 + exp_ratio, FAST)
    complement = exp_ratio * inverse
    pair_grad = signed * tl.where(gain_difference > 0, inverse, complement)
    # 1e-16 is LEAST_CURVATURE of rankgrad.losses._newton.
    hessian = tl.abs(signed) * tl.maximum(complement * inverse, 1e-16)
    if NORM:
        lambdas += tl.abs(pair_grad)
    if WEIGHTED:
        item_weight = tl.where(gain_difference > 0, rows.weight[:, None], columns.weight[None, :])
        pair_grad *= item_weight
        hessian *= item_weight
    return grads - pair_grad, hessians + hessian, lambdas


@cached_launch
@triton.jit(do_not_specialize=["items", "k"])
def _sum_pairs(
    ranked, offsets, table, sums, items, k, sigma, steepness, mu,
    KIND: tl.constexpr, CUT: tl.constexpr, MASK: tl.constexpr, GAIN: tl.constexpr,
    WEIGHTED: tl.constexpr, NORM: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Sum over the pairs of a block of items, in tiles with the block as rows.

    Writes gradients and Hessians to ``ranked[3:5]`` and, with NORM, the block's sum of absolute
    lambdas to ``sums``.

    Args:
        ranked: ``[5, items]``, in sorted order: scores, labels, weights, gradients, Hessians.
        offsets: ``[lists + 1]``.
        table: δ by signed distance, from :func:`rank_items`.
        sums: ``[lists, blocks]``.
        items: the number of items of all lists.
        k: the cutoff, 0 for none.
        sigma: σ.
        steepness: ``σ log2(e)``, since exponentials are powers of 2.
        mu: μ of ``ndcg_loss2++``.
        KIND: ``lambdarank``, ``ndcg_loss2`` or ``ndcg_loss2++``.
        CUT: what the cutoff does to discounts and weights, as in :func:`load_items`.
        MASK: whether pairs of two items past the cutoff are dropped.
        GAIN: the gain of labels.
        WEIGHTED: whether there are item weights.
        NORM: normalize as LightGBM does.
        FAST: use an instruction of the GPU for reciprocals; False in Triton's interpreter.
        ROWS: items of a block.
        COLUMNS: columns of a tile.
    """
    list_index, start, length = list_span(offsets)
    first = tl.program_id(1) * ROWS
    total = 0.0
    if first < length:
        row = first + tl.arange(0, ROWS)
        top = tl.load(ranked + start)
        bottom = tl.load(ranked + start + length - 1)
        middle = bottom + 0.5 * (top - bottom)
        center = tl.num_programs(1) * ROWS
        block = Block(
            ranked, start, length, items, k, sigma, steepness, mu, table, center, first, row,
            middle,
        )  # fmt: skip
        rows = load_items(block, row, KIND, GAIN, CUT, WEIGHTED)
        grads = tl.zeros([ROWS, COLUMNS], tl.float32)
        hessians = tl.zeros([ROWS, COLUMNS], tl.float32)
        lambdas = tl.zeros([ROWS, COLUMNS], tl.float32)
        row_exp = tl.exp2(rows.power)
        floor = tl.where(top > bottom, 0.01, 0.0)  # LightGBM's norm, unless all scores are equal
        last = length
        if MASK:  # two items past the cutoff form no pair
            last = tl.where(first >= k, tl.minimum(last, k), last)
        # Tiles of columns above the rows, below them, and those that overlap them or the end.
        above = tl.minimum(first // COLUMNS * COLUMNS, last // COLUMNS * COLUMNS)
        below = tl.maximum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, above)
        full_end = tl.maximum(last // COLUMNS * COLUMNS, below)
        # If so, both factors of an exponential are at most 2^55, and their product is finite.
        is_narrow = (top - bottom) * steepness <= 110.0
        mixed_tiles = tl.cdiv(tl.minimum(below, last) - above, COLUMNS)
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
                        block, last, floor, rows, row_exp, first_column, grads, hessians, lambdas,
                        first_column > first, KIND, CUT, MASK, GAIN, WEIGHTED, NORM, True,
                        are_full == 0, FAST, ROWS, COLUMNS,
                    )  # fmt: skip
                else:
                    grads, hessians, lambdas = _add_tile(
                        block, last, floor, rows, row_exp, first_column, grads, hessians, lambdas,
                        first_column > first, KIND, CUT, MASK, GAIN, WEIGHTED, NORM, False,
                        are_full == 0, FAST, ROWS, COLUMNS,
                    )  # fmt: skip
        target = ranked + 3 * items.to(tl.int64) + start + row
        tl.store(target, tl.sum(grads, 1) * sigma, mask=row < length)
        tl.store(target + items, tl.sum(hessians, 1) * sigma * sigma, mask=row < length)
        if NORM:
            total = tl.sum(tl.where(row < length, tl.sum(lambdas, 1), 0.0), 0) * sigma
    if NORM:  # 0 for blocks past the list's end
        tl.store(sums + list_index * tl.num_programs(1) + tl.program_id(1), total)
