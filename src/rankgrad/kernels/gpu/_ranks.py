"""Linear metrics through relaxed ranks, and sigmoid ranks (Qin et al. 2010), in tiles of pairs."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._fastsort import FastSortRanks
from rankgrad.kernels.gpu._flat_lists import empty_results, is_real, list_block, or_placeholder
from rankgrad.kernels.gpu._ideal_gain import (
    CONSTANT,
    GEOMETRIC,
    IDEAL,
    LOGARITHMIC,
    NO_DISCOUNT,
    RANK,
    ROWS,
    gain_key,
    gain_kind,
    ideal_gain,
    list_sums,
    load_gains,
    norm_kind,
    rank_discount,
    scale_of,
    sign_bit,
    store_sums,
    sum_blocks,
)
from rankgrad.kernels.gpu._lapsum import LapSumRanks
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, step_values
from rankgrad.kernels.gpu._rank_sums import RankOperator, through_operator
from rankgrad.kernels.gpu._spearman import spearman_gains

_SPAN = 1024
_LONG = 8192  # longer lists have tiles with more columns
_LOG2E = math.log2(math.e)

Losses = tuple[Tensor, Tensor, Tensor]


def through_ranks(
    batch: FlatLists,
    relaxation: str,
    sharpness: float,
    beta: float,
    metric_options: MetricOptions,
) -> Losses:
    """``1 - metric`` through relaxed ranks (see :mod:`rankgrad.kernels.ops`)."""
    if batch.offsets.shape[0] == 1:
        return empty_results(batch)
    if metric_options.name in STEP_METRICS:
        steps = step_values(batch, metric_options, through_ranks=True)
        operator = _operator(batch, relaxation, sharpness, steps.lengths)
        return through_operator(batch, operator, beta, metric_options, steps)
    if metric_options.name == "spearman":
        gains = spearman_gains(batch)
    elif relaxation == "sigmoid":
        return _through_pairs(batch, sharpness, beta, metric_options)
    else:
        gains = ideal_gain(batch, metric_options)
    operator = _operator(batch, relaxation, sharpness, gains[2])
    return _through_linear(batch, operator, beta, metric_options, gains)


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
    scores, labels, mask, weights, offsets, max_length = batch
    metric, k, gain, threshold, persistence = metric_options
    values, grad_scores, defined = empty_results(batch)
    lists, grad_ranks = len(values), torch.empty_like(scores)
    columns, warps, stages = _tile(max_length)
    blocks = max(1, cdiv(max_length, ROWS))
    parts = scores.new_empty(lists, blocks, 4)
    block_sums = scores.new_empty(lists, blocks)
    norm = norm_kind(metric, k)
    mask_, weights_ = or_placeholder(mask, scores), or_placeholder(weights, scores)
    _rank[(lists, blocks)](
        scores, labels, mask_, weights_, offsets, sharpness * _LOG2E, grad_ranks, parts, block_sums,
        k, float(threshold), float(beta), float(persistence),
        _curve(metric), gain_kind(metric, gain), norm == IDEAL, k > 0, mask is not None,
        weights is not None, ROWS, columns, stages, num_warps=warps,
    )  # fmt: skip
    _rank_vjp[(lists, blocks)](
        scores, mask_, offsets, sharpness * _LOG2E, grad_ranks, grad_scores, parts, block_sums,
        values, defined, k, sharpness if metric == "arp" else -sharpness, blocks, norm,
        metric == "arp", True, mask is not None, ROWS, columns, 32 if blocks <= 32 else 512,
        stages, num_warps=warps,
    )  # fmt: skip
    return values, grad_scores, defined


def _through_linear(
    batch: FlatLists,
    operator: RankOperator,
    beta: float,
    metric_options: MetricOptions,
    gain_norms: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Losses:
    """A linear metric through the ranks of an operator, and its gradient by the adjoint."""
    scores, max_length = batch.scores, batch.max_length
    metric, k, _, _, persistence = metric_options
    gains, scale, lengths, defined = gain_norms
    lists, blocks = len(scale), max(1, cdiv(max_length, _SPAN))
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


class SigmoidRanks:
    """``1 + Σ_{j ≠ i} sigmoid(α (s_j - s_i))`` of every item i, 0 on padding, and its adjoint."""

    def __init__(
        self, scores: Tensor, mask: Tensor | None, offsets: Tensor, max_length: int, alpha: float
    ) -> None:
        self._scores, self._mask, self._offsets, self._alpha = scores, mask, offsets, alpha
        self._grid = offsets.shape[0] - 1, max(1, cdiv(max_length, ROWS))
        self._columns, self._warps, self._stages = _tile(max_length)
        self.ranks = torch.empty_like(scores)
        if self._grid[0]:
            _rank[self._grid](
                scores, scores, or_placeholder(mask, scores), scores, offsets, alpha * _LOG2E,
                self.ranks, scores, scores, 0, 0.0, 0.0, 0.0, NO_DISCOUNT, 0, False, False,
                mask is not None,
                False, ROWS, self._columns, self._stages, num_warps=self._warps,
            )  # fmt: skip

    def adjoint(self, grad: Tensor) -> Tensor:
        """``α Σ_j (g_j - g_i) sigmoid'(α (s_j - s_i))`` of every item i, 0 on padding."""
        scores, mask, alpha = self._scores, self._mask, self._alpha
        grad_scores = torch.empty_like(scores)
        if self._grid[0]:
            _rank_vjp[self._grid](
                scores, or_placeholder(mask, scores), self._offsets, alpha * _LOG2E,
                grad.contiguous(), grad_scores, scores, scores, scores, scores, 0, alpha,
                self._grid[1], 0, False,
                False, mask is not None, ROWS, self._columns, 32, self._stages,
                num_warps=self._warps,
            )  # fmt: skip
        return grad_scores


def _tile(max_length: int) -> tuple[int, int, int]:
    """Columns of a tile, its warps, and the pipeline stages of the loop over tiles.

    One warp computes a block of rows, unless there are so many columns that sharing them pays.
    """
    return (64, 1, 3) if max_length <= _LONG else (128, 4, 1)


def _curve(metric: str) -> int:
    """The kind of discount of a linear metric."""
    curves = {"precision": CONSTANT, "recall": CONSTANT, "rbp": GEOMETRIC}
    return curves.get(metric, RANK if metric in ("arp", "spearman") else LOGARITHMIC)


@triton.jit
def _load_scores(scores, at, real):
    """Scores; -inf on padding, which ranks ahead of no item."""
    return tl.load(scores + at, mask=real, other=float("-inf"))


@triton.jit
def _center(score, real, steepness):
    """The middle of the scores of a block, and whether all scores are close to it.

    If so, ``sigmoid(s_j - s_i) = e_j / (e_i + e_j)`` needs one exponential per item only.
    """
    low = tl.min(tl.where(real, score, float("inf")), 0)
    high = tl.max(tl.where(real, score, float("-inf")), 0)
    middle = tl.where(high >= low, low + 0.5 * (high - low), 0.0)
    return middle, (high - low) * steepness <= 116.0


@triton.jit
def _power(score, middle, steepness):
    """``exp(α (s - middle))``, clamped to the range of float32; 0 on padding."""
    power = (score - middle) * steepness
    near = tl.exp2(tl.minimum(tl.maximum(power, -122.0), 122.0))
    return tl.where(score == float("-inf"), 0.0, near)


@triton.jit
def _rank_tile(
    scores, labels, mask, weights, start, width, steepness, threshold,
    row, score, middle, own, key, left, above, ahead, items,
    KIND: tl.constexpr, IDEAL: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    COLUMNS: tl.constexpr, NEAR: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Add the columns of a tile to the relaxed and the ideal ranks of its rows."""
    column = left + tl.arange(0, COLUMNS)
    valid = is_real(mask, start + column, column < width, MASKED)
    other = _load_scores(scores, start + column, valid)
    if NEAR:
        power = _power(other, middle, steepness)
        root = tl.math.rsqrt(own[:, None] + power[None, :])
        above += (power[None, :] * root) * root
    else:
        difference = (other[None, :] - score[:, None]) * steepness
        small = tl.exp2(-tl.abs(difference))
        root = tl.math.rsqrt(1.0 + small)
        above += tl.where(difference >= 0, 1.0, small) * root * root
    if MASKED:
        items += valid.to(tl.int32)
    if IDEAL:
        gains = load_gains(labels, weights, start + column, valid, threshold, KIND, WEIGHTED)
        keys = gain_key(gains, valid)
        if SIDE == -1:  # columns of equal gain are ahead: lower the rows' keys by one
            apart = (key - 1)[:, None] - keys[None, :]
        elif SIDE == 1:
            apart = key[:, None] - keys[None, :]
        else:
            earlier = (column[None, :] < row[:, None]).to(tl.int32)
            apart = key[:, None] - earlier - keys[None, :]
        ahead += sign_bit(apart)
    return above, ahead, items


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _rank(
    scores, labels, mask, weights, offsets, steepness, out, parts, block_sums,
    k, threshold, beta, persistence,
    CURVE: tl.constexpr, KIND: tl.constexpr, IDEAL: tl.constexpr, CUT: tl.constexpr,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Ranks of a block of items, ``Σ gain discount``, its derivatives, and the ideal sum."""
    list_index, start, width, row, inside, real = list_block(mask, offsets, MASKED, ROWS)
    block = tl.program_id(1)
    first = block * ROWS
    score = tl.load(scores + start + row, mask=real, other=0.0)
    middle, near = _center(score, real, steepness)
    own = tl.where(near, _power(score, middle, steepness), 1.0)
    gain = score
    if CURVE != 5:
        gain = load_gains(labels, weights, start + row, real, threshold, KIND, WEIGHTED)
    key = gain_key(gain, real)
    above = tl.zeros([ROWS, COLUMNS], tl.float32)
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    items = tl.zeros([COLUMNS], tl.int32)
    # Columns before, among and after the rows: ties in gain are broken by input order.
    last = tl.where(first < width, width, 0)  # no columns for blocks past the list's end
    among = tl.minimum(first // COLUMNS * COLUMNS, last)
    after = tl.minimum(tl.cdiv(first + ROWS, COLUMNS) * COLUMNS, last)
    if near:
        begin = last * 0
        for side in tl.static_range(-1, 2):
            end = among if side == -1 else (after if side == 0 else last)
            for left in tl.range(begin, end, COLUMNS, num_stages=STAGES):
                above, ahead, items = _rank_tile(
                    scores, labels, mask, weights, start, width, steepness, threshold,
                    row, score, middle, own, key, left, above, ahead, items,
                    KIND, IDEAL, MASKED, WEIGHTED, COLUMNS, True, side,
                )  # fmt: skip
            begin = end
    else:
        for left in range(0, last, COLUMNS):
            above, ahead, items = _rank_tile(
                scores, labels, mask, weights, start, width, steepness, threshold,
                row, score, middle, own, key, left, above, ahead, items,
                KIND, IDEAL, MASKED, WEIGHTED, COLUMNS, False, 0,
            )  # fmt: skip
    rank = 0.5 + tl.sum(above, 1)
    if CURVE == 5:
        tl.store(out + start + row, tl.where(real, rank, 0.0), mask=inside)
    else:
        length = width
        if MASKED:
            length = tl.sum(items, 0)
        discount, derivative = rank_discount(rank, length, k, beta, persistence, CURVE, CUT)
        value = tl.where(real, gain, 0.0)
        tl.store(out + start + row, tl.where(real, value * derivative, 0.0), mask=inside)
        ideal = 0.0
        if IDEAL:
            place = tl.sum(ahead, 1)
            best = value / tl.log2(place.to(tl.float32) + 2.0)
            if CUT:
                best = tl.where(place < k, best, 0.0)
            ideal = tl.sum(best, 0)
        at = list_index * tl.num_programs(1) + block
        tl.store(block_sums + at, tl.sum(tl.where(real, value * discount, 0.0), 0))
        store_sums(parts, at, ideal, value, real)


@cached_launch
@triton.jit(do_not_specialize=["k", "blocks"])
def _rank_vjp(
    scores, mask, offsets, steepness, grad_ranks, grad_scores, parts, block_sums, values, defined,
    k, sharpness, blocks,
    NORM: tl.constexpr, LOWER: tl.constexpr, LOSS: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of a block of items: ``α Σ_j (g_j - g_i) sigmoid'(α (s_j - s_i))``."""
    list_index, start, width, row, inside, real = list_block(mask, offsets, MASKED, ROWS)
    block = tl.program_id(1)
    score = tl.load(scores + start + row, mask=real, other=0.0)
    grad = tl.load(grad_ranks + start + row, mask=real, other=0.0)
    middle, near = _center(score, real, steepness)
    own = tl.where(near, _power(score, middle, steepness), 1.0)
    if LOSS:
        ideal, gains, items, counting = list_sums(parts, list_index, blocks, WIDTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    last = tl.where(block * ROWS < width, width, 0)
    for left in tl.range(0, last, COLUMNS, num_stages=STAGES):
        column = left + tl.arange(0, COLUMNS)
        valid = is_real(mask, start + column, column < width, MASKED)
        other = _load_scores(scores, start + column, valid)
        others = tl.load(grad_ranks + start + column, mask=valid, other=0.0)
        if near:
            power = _power(other, middle, steepness)
            root = tl.math.rsqrt(own[:, None] + power[None, :])
            over = root * root
            moved = (others * power)[None, :] - grad[:, None] * power[None, :]
            total += moved * (over * over)
        else:
            small = tl.exp2(-tl.abs((other[None, :] - score[:, None]) * steepness))
            root = tl.math.rsqrt(1.0 + small)
            over = root * root
            total += (others[None, :] - grad[:, None]) * (small * over * over)
    result = tl.sum(total, 1) * own * sharpness
    if LOSS:
        scale = scale_of(ideal, gains, items, k, NORM)
        counts = (counting > 0) & (items > 1)
        result = tl.where(counts, result * scale, 0.0)
        if block == 0:
            value = sum_blocks(block_sums, list_index, blocks, WIDTH) * scale
            if not LOWER:
                value = 1.0 - value
            tl.store(values + list_index, tl.where(counts, value, 0.0))
            tl.store(defined + list_index, counts)
    tl.store(grad_scores + start + row, tl.where(real, result, 0.0), mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _sum_discounted(
    ranks, gains, offsets, scale, lengths, grad_ranks, block_sums, sign, k, beta, persistence,
    CURVE: tl.constexpr, CUT: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """``Σ gain discount`` of a span of items, and the derivatives with respect to their ranks."""
    list_index, start, _, row, inside, _ = list_block(offsets, offsets, False, SPAN)
    gain = tl.load(gains + start + row, mask=inside, other=0.0)
    rank = tl.load(ranks + start + row, mask=inside & (gain != 0), other=1.0)
    length = tl.load(lengths + list_index)
    discount, derivative = rank_discount(rank, length, k, beta, persistence, CURVE, CUT)
    factor = tl.where(length > 1, sign * tl.load(scale + list_index), 0.0)
    tl.store(grad_ranks + start + row, gain * derivative * factor, mask=inside)
    to = block_sums + list_index * tl.num_programs(1) + tl.program_id(1)
    tl.store(to, tl.sum(gain * discount, 0))


@cached_launch
@triton.jit(do_not_specialize=["blocks"])
def _total(
    block_sums, scale, defined, values, blocks, LOWER: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """The loss of a list, from the sums of its spans."""
    list_index = tl.program_id(0)
    value = sum_blocks(block_sums, list_index, blocks, WIDTH) * tl.load(scale + list_index)
    if not LOWER:
        value = 1.0 - value
    tl.store(values + list_index, tl.where(tl.load(defined + list_index) != 0, value, 0.0))
