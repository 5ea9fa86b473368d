"""Linear metrics through relaxed ranks, and sigmoid ranks (Qin et al. 2010), in tiles of pairs.

Sigmoid ranks are ``r_i = 1 + Σ_{j ≠ i} sigmoid(α (s_j - s_i))`` (Jagerman et al. eq. 8, without its
term j = i). A linear metric is ``Σ_i gain_i discount(r_i)``, divided by its norm. Through sigmoid
ranks it is computed in two kernels; through other ranks by an operator and its adjoint. Metrics
that are not linear are in :mod:`rankgrad.kernels.gpu._rank_sums`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._fastsort import FastSortRanks
from rankgrad.kernels.gpu._flat_lists import ListOperator, empty_results, list_block, positions
from rankgrad.kernels.gpu._ideal_gain import (
    ROWS,
    gain_key,
    gain_kind,
    ideal_gain,
    is_ahead,
    list_sums,
    load_gains,
    norm_kind,
    rank_discount,
    scale_of,
    store_sums,
    sum_blocks,
)
from rankgrad.kernels.gpu._lapsum import LapSumRanks
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, step_values
from rankgrad.kernels.gpu._rank_sums import RankOperator, through_operator
from rankgrad.kernels.gpu._spearman import spearman_gains

_SPAN = 1024  # items per program of _sum_discounted
_LONG = 8192  # longer lists have tiles with more columns
_LOG2E = math.log2(math.e)

Losses = tuple[Tensor, Tensor, Tensor]  # values [lists], grad_scores [items], defined [lists]


def through_ranks(
    batch: FlatLists, relaxation: str, sharpness: float, beta: float, metric_options: MetricOptions
) -> Losses:
    """``1 - metric`` (ARP itself) through relaxed ranks.

    Args:
        batch: the lists.
        relaxation: ``sigmoid``, ``lapsum``, ``fastsort`` or ``fastsort_entropic``.
        sharpness: one over the temperature (LapSum) or strength (FastSort); α of the sigmoid.
        beta: the steepness with which cutoffs and comparisons of ranks are relaxed.
        metric_options: the metric.

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    if metric_options.name in STEP_METRICS:
        steps = step_values(batch, metric_options, through_ranks=True)
        operator = _operator(batch, relaxation, sharpness, steps.lengths)
        return through_operator(batch, operator, beta, metric_options, steps)
    if metric_options.name == "spearman":
        gain_norms = spearman_gains(batch)
    elif relaxation == "sigmoid":
        return _through_pairs(batch, sharpness, beta, metric_options)
    else:
        gain_norms = ideal_gain(batch, metric_options)
    _, _, lengths, _ = gain_norms
    operator = _operator(batch, relaxation, sharpness, lengths)
    return _through_linear(batch, operator, beta, metric_options, gain_norms)


def _operator(batch: FlatLists, relaxation: str, sharpness: float, lengths: Tensor) -> RankOperator:
    """The ranks of a relaxation by its name in :mod:`rankgrad.kernels.ops`."""
    lists = batch.scores, batch.mask, batch.offsets, batch.max_length
    if relaxation == "sigmoid":
        return SigmoidRanks(*lists, sharpness)
    if relaxation == "lapsum":
        return LapSumRanks(*lists, 1 / sharpness)
    return FastSortRanks(*lists, 1 / sharpness, relaxation == "fastsort_entropic", lengths)


def _through_pairs(
    batch: FlatLists, sharpness: float, beta: float, metric_options: MetricOptions
) -> Losses:
    """A linear metric through sigmoid ranks, in two passes over the pairs.

    The first computes every rank and the derivative of the metric with respect to it, and counts
    ideal ranks. The second computes the gradient with respect to the scores.
    """
    scores, _, mask, _, offsets, max_length = batch
    metric, k, gain, threshold, persistence = metric_options
    values, grad_scores, defined = empty_results(batch)
    lists, grad_ranks = len(values), torch.empty_like(scores)
    tile = _tile(max_length)
    blocks = cdiv(max_length, ROWS)
    parts = scores.new_empty(lists, blocks, 4)
    block_sums = scores.new_empty(lists, blocks)
    norm, steepness = norm_kind(metric, k), sharpness * _LOG2E
    _rank[(lists, blocks)](
        *batch[:5], steepness, grad_ranks, parts, block_sums, k, float(threshold), float(beta),
        float(persistence), CURVE=_curve(metric), GAIN=gain_kind(metric, gain),
        IDEAL=norm == "ideal", CUT=k > 0, **tile,
    )  # fmt: skip
    _rank_vjp[(lists, blocks)](
        scores, mask, offsets, steepness, grad_ranks, grad_scores, parts, block_sums, values,
        defined, k, sharpness if metric == "arp" else -sharpness, blocks, NORM=norm,
        LOWER=metric == "arp", LOSS=True, WIDTH=32 if blocks <= 32 else 512, **tile,
    )  # fmt: skip
    return values, grad_scores, defined


def _through_linear(
    batch: FlatLists,
    operator: RankOperator,
    beta: float,
    metric_options: MetricOptions,
    gain_norms: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Losses:
    """A linear metric through the ranks of an operator, and its gradient by the adjoint.

    ``gain_norms`` is what :func:`ideal_gain` returns.
    """
    scores, max_length = batch.scores, batch.max_length
    metric, k, _, _, persistence = metric_options
    gains, scale, lengths, defined = gain_norms
    lists, blocks = len(scale), cdiv(max_length, _SPAN)
    grad_ranks = torch.empty_like(scores)
    block_sums = scores.new_empty(lists, blocks)
    values = torch.empty_like(scale)
    sign = 1.0 if metric == "arp" else -1.0
    _sum_discounted[(lists, blocks)](
        operator.ranks, gains, batch.offsets, scale, lengths, grad_ranks, block_sums, sign, k, beta,
        persistence, _curve(metric), k > 0, _SPAN, num_warps=4,
    )  # fmt: skip
    _total[(lists,)](block_sums, scale, defined, values, blocks, metric == "arp", 256, num_warps=1)
    return values, operator.adjoint(grad_ranks), defined


@dataclass(eq=False)
class SigmoidRanks(ListOperator):
    """``1 + Σ_{j ≠ i} sigmoid(α (s_j - s_i))`` of every item i, and its adjoint.

    Args:
        alpha: α.

    Attributes:
        ranks: ``[items]``, 0 on padding.
    """

    alpha: float

    def __post_init__(self) -> None:
        scores, steepness = self.scores, self.alpha * _LOG2E
        self.ranks = torch.empty_like(scores)
        if self.lists:
            _rank[self._grid](
                scores, None, self.mask, None, self.offsets, steepness, self.ranks, None, None,
                0, 0.0, 0.0, 0.0, CURVE="none", GAIN="none", IDEAL=False, CUT=False,
                **_tile(self.max_length),
            )  # fmt: skip

    def adjoint(self, grad: Tensor) -> Tensor:
        """``α Σ_j (g_j - g_i) sigmoid'(α (s_j - s_i))`` of every item i, 0 on padding."""
        scores, steepness = self.scores, self.alpha * _LOG2E
        grad_scores = torch.empty_like(scores)
        if self.lists:
            _rank_vjp[self._grid](
                scores, self.mask, self.offsets, steepness, grad.contiguous(), grad_scores,
                None, None, None, None, 0, self.alpha, self._grid[1],
                NORM="none", LOWER=False, LOSS=False, WIDTH=32,
                **_tile(self.max_length),
            )  # fmt: skip
        return grad_scores

    @property
    def _grid(self) -> tuple[int, int]:
        return self.lists, cdiv(self.max_length, ROWS)


def _tile(max_length: int) -> dict[str, int]:
    """Rows and columns of a tile, its warps, and the pipeline stages of the loop over tiles.

    One warp computes a block of rows, unless there are so many columns that sharing them pays.
    """
    columns, warps, stages = (64, 1, 3) if max_length <= _LONG else (128, 4, 1)
    return {"ROWS": ROWS, "COLUMNS": columns, "STAGES": stages, "num_warps": warps}


def _curve(metric: str) -> str:
    """The discount of a linear metric, a curve of :func:`rank_discount`."""
    curves = {"precision": "constant", "recall": "constant", "rbp": "geometric"}
    return curves.get(metric, "rank" if metric in ("arp", "spearman") else "logarithmic")


@triton.jit
def _load_scores(scores, at, real):
    """Load scores; -inf on padding, so that padding ranks ahead of no item."""
    return tl.load(scores + at, mask=real, other=float("-inf"))


@triton.jit
def _center(score, real, steepness):
    """The middle of the scores of a block, and whether all its scores are close to the middle.

    If so, ``sigmoid(α (s_j - s_i)) = e_j / (e_i + e_j)`` with ``e = exp(α (s - middle))``: one
    exponential per item instead of one per pair. ``steepness`` is α log2(e), as exponentials are
    taken in base 2. Close means at most 58 from the middle in these units: then ``1 / e_i²`` is
    finite in float32, and where :func:`_scaled_exp` clamps e_j the sigmoid is saturated.
    """
    min_score = tl.min(tl.where(real, score, float("inf")), 0)
    max_score = tl.max(tl.where(real, score, float("-inf")), 0)
    middle = tl.where(max_score >= min_score, min_score + 0.5 * (max_score - min_score), 0.0)
    return middle, (max_score - min_score) * steepness <= 116.0


@triton.jit
def _scaled_exp(score, middle, steepness):
    """``exp(α (s - middle))``, clamped to the range of float32; 0 on padding."""
    exponent = (score - middle) * steepness
    exponential = tl.exp2(tl.minimum(tl.maximum(exponent, -122.0), 122.0))
    return tl.where(score == float("-inf"), 0.0, exponential)


@triton.jit
def _rank_tile(
    scores, labels, mask, weights, start, width, steepness, threshold, row, score, middle, row_exp,
    key, first_column, sigmoids, better_gains, real_items, GAIN: tl.constexpr, IDEAL: tl.constexpr,
    COLUMNS: tl.constexpr, NEAR: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Add the columns of a tile to the relaxed ranks and to the ideal ranks of its rows.

    The sums ``sigmoids`` and ``better_gains`` are ``[ROWS, COLUMNS]``. Ties in gain are broken by
    input order. SIDE is -1 if all columns come before all rows, 1 if they come after, 0 if mixed.
    NEAR: the scores of the rows are close to each other (see :func:`_center`).
    """
    column, valid = positions(mask, start, first_column, width, COLUMNS)
    column_score = _load_scores(scores, start + column, valid)
    if NEAR:
        column_exp = _scaled_exp(column_score, middle, steepness)
        root = tl.math.rsqrt(row_exp[:, None] + column_exp[None, :])
        sigmoids += (column_exp[None, :] * root) * root
    else:
        difference = (column_score[None, :] - score[:, None]) * steepness
        decay = tl.exp2(-tl.abs(difference))
        root = tl.math.rsqrt(1.0 + decay)
        sigmoids += tl.where(difference >= 0, 1.0, decay) * root * root
    if mask is not None:
        real_items += valid.to(tl.int32)
    if IDEAL:
        column_gain = load_gains(labels, weights, start + column, valid, threshold, GAIN)
        better_gains += is_ahead(key, gain_key(column_gain, valid), row, column, SIDE)
    return sigmoids, better_gains, real_items


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _rank(
    scores, labels, mask, weights, offsets, steepness, out, parts, block_sums, k, threshold, beta,
    persistence, CURVE: tl.constexpr, GAIN: tl.constexpr, IDEAL: tl.constexpr, CUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Compute the sigmoid ranks of a block of items and, from them, its part of the metric.

    With the CURVE "none" the ranks are written to ``out`` ``[items]``. Otherwise ``out`` gets the
    derivatives of ``Σ gain discount`` with respect to the ranks, ``block_sums`` ``[lists, blocks]``
    that sum over the block, and ``parts`` the block's sums for the norm (see :func:`store_sums`).
    """
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    first = block * ROWS
    score = tl.load(scores + start + row, mask=real, other=0.0)
    middle, is_narrow = _center(score, real, steepness)
    row_exp = tl.where(is_narrow, _scaled_exp(score, middle, steepness), 1.0)
    gain = score  # a placeholder: with the CURVE "none" there are no gains
    if CURVE != "none":
        gain = load_gains(labels, weights, start + row, real, threshold, GAIN)
    key = gain_key(gain, real)
    sigmoids = tl.zeros([ROWS, COLUMNS], tl.float32)
    better_gains = tl.zeros([ROWS, COLUMNS], tl.int32)
    real_items = tl.zeros([COLUMNS], tl.int32)
    # Columns before, among and after the rows: ties in gain are broken by input order.
    columns_end = tl.where(first < width, width, 0)  # no columns for blocks past the list's end
    mixed_begin = tl.minimum(first // COLUMNS * COLUMNS, columns_end)
    mixed_end = tl.minimum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, columns_end)
    if is_narrow:
        begin = columns_end * 0  # a zero of the type of the other bounds
        for side in tl.static_range(-1, 2):
            end = mixed_begin if side == -1 else (mixed_end if side == 0 else columns_end)
            for first_column in tl.range(begin, end, COLUMNS, num_stages=STAGES):
                sigmoids, better_gains, real_items = _rank_tile(
                    scores, labels, mask, weights, start, width, steepness, threshold, row, score,
                    middle, row_exp, key, first_column, sigmoids, better_gains, real_items,
                    GAIN, IDEAL, COLUMNS, True, side,
                )  # fmt: skip
            begin = end
    else:
        for first_column in range(0, columns_end, COLUMNS):
            sigmoids, better_gains, real_items = _rank_tile(
                scores, labels, mask, weights, start, width, steepness, threshold,
                row, score, middle, row_exp, key, first_column, sigmoids, better_gains, real_items,
                GAIN, IDEAL, COLUMNS, False, 0,
            )  # fmt: skip
    # The sum has the term j = i, which is 1/2.
    rank = 0.5 + tl.sum(sigmoids, 1)
    if CURVE == "none":
        tl.store(out + start + row, tl.where(real, rank, 0.0), mask=inside)
    else:
        length = width
        if mask is not None:
            length = tl.sum(real_items, 0)
        discount, derivative = rank_discount(rank, length, k, beta, persistence, CURVE, CUT)
        value = tl.where(real, gain, 0.0)
        tl.store(out + start + row, tl.where(real, value * derivative, 0.0), mask=inside)
        ideal = 0.0
        if IDEAL:
            ideal_position = tl.sum(better_gains, 1)
            ideal_terms = value / tl.log2(ideal_position.to(tl.float32) + 2.0)
            if CUT:
                ideal_terms = tl.where(ideal_position < k, ideal_terms, 0.0)
            ideal = tl.sum(ideal_terms, 0)
        block_index = list_index * tl.num_programs(1) + block
        tl.store(block_sums + block_index, tl.sum(tl.where(real, value * discount, 0.0), 0))
        store_sums(parts, block_index, ideal, value, real)


@cached_launch
@triton.jit(do_not_specialize=["k", "blocks"])
def _rank_vjp(
    scores, mask, offsets, steepness, grad_ranks, grad_scores, parts, block_sums, values, defined,
    k, sharpness, blocks, NORM: tl.constexpr, LOWER: tl.constexpr, LOSS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradient of a block of items, ``α Σ_j (g_j - g_i) sigmoid'(α (s_j - s_i))``.

    g is ``grad_ranks``. The first α is ``sharpness``, negative if the loss is 1 - metric. With
    LOSS the gradient is divided by the norm of the list, and the first block also writes the loss:
    the metric itself if LOWER (lower is better), else 1 - metric.
    """
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    block = tl.program_id(1)
    score = tl.load(scores + start + row, mask=real, other=0.0)
    grad = tl.load(grad_ranks + start + row, mask=real, other=0.0)
    middle, is_narrow = _center(score, real, steepness)
    row_exp = tl.where(is_narrow, _scaled_exp(score, middle, steepness), 1.0)
    if LOSS:
        ideal, gain_sum, items, gaining_items = list_sums(parts, list_index, blocks, WIDTH)
    terms = tl.zeros([ROWS, COLUMNS], tl.float32)
    columns_end = tl.where(block * ROWS < width, width, 0)
    for first_column in tl.range(0, columns_end, COLUMNS, num_stages=STAGES):
        column, valid = positions(mask, start, first_column, width, COLUMNS)
        column_score = _load_scores(scores, start + column, valid)
        column_grad = tl.load(grad_ranks + start + column, mask=valid, other=0.0)
        if is_narrow:
            column_exp = _scaled_exp(column_score, middle, steepness)
            root = tl.math.rsqrt(row_exp[:, None] + column_exp[None, :])
            inverse = root * root
            # sigmoid' is e_i e_j / (e_i + e_j)²; the factor e_i follows after the sum.
            weighted = (column_grad * column_exp)[None, :] - grad[:, None] * column_exp[None, :]
            terms += weighted * (inverse * inverse)
        else:
            decay = tl.exp2(-tl.abs((column_score[None, :] - score[:, None]) * steepness))
            root = tl.math.rsqrt(1.0 + decay)
            inverse = root * root
            terms += (column_grad[None, :] - grad[:, None]) * (decay * inverse * inverse)
    result = tl.sum(terms, 1) * row_exp * sharpness
    if LOSS:
        scale = scale_of(ideal, gain_sum, items, k, NORM)
        is_defined = (gaining_items > 0) & (items > 1)
        result = tl.where(is_defined, result * scale, 0.0)
        if block == 0:
            value = sum_blocks(block_sums, list_index, blocks, WIDTH) * scale
            if not LOWER:
                value = 1.0 - value
            tl.store(values + list_index, tl.where(is_defined, value, 0.0))
            tl.store(defined + list_index, is_defined)
    tl.store(grad_scores + start + row, tl.where(real, result, 0.0), mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _sum_discounted(
    ranks, gains, offsets, scale, lengths, grad_ranks, block_sums, sign, k, beta, persistence,
    CURVE: tl.constexpr, CUT: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write ``Σ gain discount`` of a span of items, and the loss's derivatives by their ranks."""
    list_index, start, _, row, inside, _ = list_block(None, offsets, SPAN)
    gain = tl.load(gains + start + row, mask=inside, other=0.0)
    rank = tl.load(ranks + start + row, mask=inside & (gain != 0), other=1.0)
    length = tl.load(lengths + list_index)
    discount, derivative = rank_discount(rank, length, k, beta, persistence, CURVE, CUT)
    factor = tl.where(length > 1, sign * tl.load(scale + list_index), 0.0)
    tl.store(grad_ranks + start + row, gain * derivative * factor, mask=inside)
    target = block_sums + list_index * tl.num_programs(1) + tl.program_id(1)
    tl.store(target, tl.sum(gain * discount, 0))


@cached_launch
@triton.jit(do_not_specialize=["blocks"])
def _total(
    block_sums, scale, defined, values, blocks, LOWER: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Write the loss of a list from the sums of its spans: the metric if LOWER, else 1 - metric."""
    list_index = tl.program_id(0)
    value = sum_blocks(block_sums, list_index, blocks, WIDTH) * tl.load(scale + list_index)
    if not LOWER:
        value = 1.0 - value
    tl.store(values + list_index, tl.where(tl.load(defined + list_index) != 0, value, 0.0))
