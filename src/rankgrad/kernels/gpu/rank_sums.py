"""Metrics through relaxed ranks that are not linear in the items: AP, RR, ERR and hits.

AP and ERR sum the values ranked ahead of an item, ``S_i = Σ_j v_j sigmoid(β (r_i - r_j))``, in
tiles of pairs: O(n²) work, O(n) memory. RR and hits take a softmax of ``-β r`` over the relevant
items.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu.ideal_gain import (
    CONSTANT,
    RECIPROCAL,
    ROWS,
    presence,
    rank_discount,
    soft_inside,
    sum_blocks,
    tile,
)
from rankgrad.kernels.gpu.launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu.linear import is_real

METRICS = ("ap", "rr", "err", "hits")
#: The metric of the sums: average precision, or expected reciprocal rank.
_AP, _ERR = 1, 2
_CHUNK = 4096  # items of a list that one program reads at a time
_LOG2E = math.log2(math.e)


class RankOperator(Protocol):
    """Relaxed ranks of lists (0 on padding) and their adjoint."""

    ranks: Tensor

    def adjoint(self, grad: Tensor) -> Tensor:
        """The vector-Jacobian product with respect to the scores."""


class StepValues(NamedTuple):
    """The values of the items of a batch for a metric.

    Attributes:
        values: ``[items]`` relevance; for err ``log(1 - stop)``. 0 on padding.
        weighted: ``[items]`` relevance (for err the stopping probability) times item weight.
        scale: ``[lists]`` one over the norm; 0 where the metric is undefined.
        lengths: ``[lists]`` int32, the number of real items.
        defined: ``[lists]`` bool, whether a list has two items or more, one of them relevant.
    """

    values: Tensor
    weighted: Tensor
    scale: Tensor
    lengths: Tensor
    defined: Tensor


def step_values(batch: FlatLists, metric: str, threshold: float) -> StepValues:
    """The values of a metric of :data:`METRICS`; for err, ``threshold`` is the highest grade."""
    labels, weights = batch.labels, batch.weights
    lists = batch.offsets.shape[0] - 1
    scale = labels.new_empty(lists)
    found = StepValues(
        torch.empty_like(labels), torch.empty_like(labels), scale,
        torch.empty_like(scale, dtype=torch.int32), torch.empty_like(scale, dtype=torch.bool),
    )  # fmt: skip
    chunk, warps = _chunk(batch.max_length)
    _step_values[(lists,)](
        labels, presence(batch.mask, labels), presence(weights, labels), batch.offsets,
        float(threshold), *found, metric == "err", metric == "ap", batch.mask is not None,
        weights is not None, chunk, num_warps=warps,
    )  # fmt: skip
    return found


def through_operator(
    batch: FlatLists, operator: RankOperator, beta: float, metric: MetricOptions, steps: StepValues
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` through the ranks of an operator: values, grad_scores and defined."""
    values = torch.empty_like(steps.scale)
    grad_ranks = torch.empty_like(batch.scores)
    ranked = operator.ranks, *steps, batch.offsets
    if metric.name in ("rr", "hits"):
        chunk, warps = _chunk(batch.max_length)
        _first_relevant[(len(values),)](
            *ranked, values, grad_ranks, metric.k, float(beta),
            RECIPROCAL if metric.name == "rr" else CONSTANT, metric.k > 0, chunk, num_warps=warps,
        )  # fmt: skip
    else:
        columns, warps, width = tile(batch.max_length)
        blocks = max(1, cdiv(batch.max_length, ROWS))
        grad_sums = torch.empty_like(grad_ranks)
        block_sums = values.new_empty(len(values), blocks)
        _sum_ahead[(len(values), blocks)](
            *ranked, grad_sums, grad_ranks, block_sums, beta * _LOG2E,
            metric.k, float(beta), _AP if metric.name == "ap" else _ERR, metric.k > 0,
            ROWS, columns, num_warps=warps,
        )  # fmt: skip
        _sum_ahead_vjp[(len(values), blocks)](
            operator.ranks, steps.values, grad_sums, batch.offsets, steps.defined, block_sums,
            values, grad_ranks, beta * _LOG2E, float(beta), ROWS, columns, width, num_warps=warps,
        )  # fmt: skip
    return values, operator.adjoint(grad_ranks), steps.defined


def _chunk(max_length: int) -> tuple[int, int]:
    """Items that a program reads at a time, and its warps."""
    chunk = min(_CHUNK, max(32, next_power_of_2(max_length)))
    return chunk, max(1, min(8, chunk // 128))


@cached_launch
@triton.jit
def _step_values(
    labels, mask, weights, offsets, threshold, values, weighted, scale, lengths, defined,
    STOPS: tl.constexpr, NORMED: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The values of the items of a list, and one over its norm."""
    at_list = tl.program_id(0)
    start = tl.load(offsets + at_list)
    length = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    norm = tl.zeros([CHUNK], tl.float32)
    items = tl.zeros([CHUNK], tl.int32)
    relevant = tl.zeros([CHUNK], tl.int32)
    tops = tl.zeros([CHUNK], tl.float32) + threshold
    for left in range(0, length, CHUNK):
        row = left + tl.arange(0, CHUNK)
        real = is_real(mask, start + row, row < length, MASKED)
        label = tl.load(labels + start + row, mask=real, other=0.0)
        weight = tl.where(real, 1.0, 0.0)
        if WEIGHTED:
            weight = tl.load(weights + start + row, mask=real, other=0.0)
        if STOPS:
            counts = label > 0
            tops = tl.maximum(tops, label)
        else:
            counts = label >= threshold
        counted_weight = tl.where(counts & real, weight, 0.0)
        norm += counted_weight
        items += real.to(tl.int32)
        relevant += (counted_weight > 0).to(tl.int32)
    number = tl.sum(items, 0)
    valid = (tl.max(relevant, 0) > 0) & (number > 1)
    inverse_norm = tl.where(valid, 1.0, 0.0)
    if NORMED:
        inverse_norm = inverse_norm / tl.where(valid, tl.sum(norm, 0), 1.0)
    tl.store(scale + at_list, inverse_norm)
    tl.store(lengths + at_list, number)
    tl.store(defined + at_list, valid)
    # If a label exceeds the highest grade, the list's largest label is its highest grade.
    top = tl.max(tops, 0).to(tl.float64)
    for left in range(0, length, CHUNK):
        row = left + tl.arange(0, CHUNK)
        real = is_real(mask, start + row, row < length, MASKED)
        label = tl.load(labels + start + row, mask=real, other=0.0)
        if STOPS:
            grade = tl.exp2(label.to(tl.float64) - top)
            lowest = tl.exp2(-top + 0.0 * grade)
            stop = (grade - lowest).to(tl.float32)
            # 1 - stop, accurate where stop rounds to 1, and at least the smallest normal number.
            miss = tl.maximum(lowest + (1.0 - grade), 1.1754943508222875e-38)
            value = tl.log(miss).to(tl.float32)
        else:
            stop = tl.where(label >= threshold, 1.0, 0.0)
            value = stop
        tl.store(values + start + row, tl.where(real, value, 0.0), mask=row < length)
        if WEIGHTED:
            stop *= tl.load(weights + start + row, mask=real, other=0.0)
        tl.store(weighted + start + row, tl.where(real, stop, 0.0), mask=row < length)


@triton.jit
def _missed(rank, weight, discount, items, k, beta, CURVE: tl.constexpr, CUT: tl.constexpr):
    """``1 - w discount``; for hits, whose discount is often near 1, without cancellation."""
    missed = 1.0 - discount
    if CURVE == 1:
        missed = rank * 0.0
        if CUT:
            _, outside, _ = soft_inside(rank, k, beta)
            missed = tl.where(items <= k, 0.0, outside)
    return missed + discount * (1.0 - weight)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _first_relevant(
    ranks, values, weighted, scale, lengths, defined, offsets, losses, grad_ranks, k, beta,
    CURVE: tl.constexpr, CUT: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The discount of the first relevant rank, relaxed: a softmax of ``-β r`` for the minimum."""
    at_list = tl.program_id(0)
    start = tl.load(offsets + at_list)
    length = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    items = tl.load(lengths + at_list)
    valid = tl.load(defined + at_list) != 0
    steepness = beta * 1.4426950408889634
    firsts = tl.full([CHUNK], float("inf"), tl.float32)
    for left in range(0, length, CHUNK):
        row = left + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        firsts = tl.minimum(
            firsts, tl.load(ranks + start + row, mask=value != 0, other=float("inf"))
        )
    first = tl.min(firsts, 0)
    norm = tl.zeros([CHUNK], tl.float32)
    gain_sums = tl.zeros([CHUNK], tl.float32)
    loss_sums = tl.zeros([CHUNK], tl.float32)
    for left in range(0, length, CHUNK):
        row = left + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        rank = tl.load(ranks + start + row, mask=value != 0, other=1.0)
        weight = tl.load(weighted + start + row, mask=row < length, other=0.0)
        probability = tl.where(value != 0, tl.exp2((first - rank) * steepness), 0.0)
        discount, _ = rank_discount(rank, items, k, beta, 0.0, CURVE, CUT)
        norm += probability
        gain_sums += probability * weight * discount
        loss_sums += probability * _missed(rank, weight, discount, items, k, beta, CURVE, CUT)
    inverse_norm = tl.where(valid, 1.0 / tl.maximum(tl.sum(norm, 0), 1.0), 0.0)
    mean = tl.sum(gain_sums, 0) * inverse_norm
    loss = tl.sum(loss_sums, 0) * inverse_norm
    for left in range(0, length, CHUNK):
        row = left + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        rank = tl.load(ranks + start + row, mask=value != 0, other=1.0)
        weight = tl.load(weighted + start + row, mask=row < length, other=0.0)
        probability = inverse_norm * tl.exp2((first - rank) * steepness)
        discount, derivative = rank_discount(rank, items, k, beta, 0.0, CURVE, CUT)
        missed = _missed(rank, weight, discount, items, k, beta, CURVE, CUT)
        # The item's value minus the mean, from the smaller numbers, which are more accurate.
        above = tl.where(mean < 0.5, weight * discount - mean, loss - missed)
        grad = probability * (beta * above - weight * derivative)
        tl.store(grad_ranks + start + row, tl.where(value != 0, grad, 0.0), mask=row < length)
    tl.store(losses + at_list, tl.where(valid, loss, 0.0))


@triton.jit
def _load_values(ranks, values, at, inside):
    """Values and ranks of items; both are 0 on padding and outside the list."""
    value = tl.load(values + at, mask=inside, other=0.0)
    return value, tl.load(ranks + at, mask=inside, other=0.0)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _sum_ahead(
    ranks, values, weighted, scale, lengths, defined, offsets, grad_sums, grad_ranks, block_sums,
    steepness, k, beta,
    STEP: tl.constexpr, CUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """The metric terms of a block of items, from the values ranked ahead of each.

    Writes the derivatives with respect to the sums of these values, and with respect to the ranks
    at fixed sums.
    """
    at_list = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(offsets + at_list)
    length = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < length
    value, rank = _load_values(ranks, values, start + row, inside)
    # A block without values has no terms.
    last = tl.where(tl.max((value != 0).to(tl.int32), 0) > 0, length, 0)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for left in range(0, last, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        other, place = _load_values(ranks, values, start + column, column < length)
        gap = (rank[:, None] - place[None, :]) * steepness
        small = tl.exp2(-tl.abs(gap))
        root = tl.math.rsqrt(1.0 + small)
        total += other[None, :] * (tl.where(gap >= 0, 1.0, small) * root * root)
    ahead = tl.sum(total, 1)
    items = tl.load(lengths + at_list)
    rank = tl.where(value != 0, rank, 1.0)
    discount, derivative = rank_discount(rank, items, k, beta, 0.0, 4, CUT)
    weight = tl.load(weighted + start + row, mask=inside, other=0.0)
    weight *= tl.load(scale + at_list)
    # The sum has half of the item itself: sigmoid(0) = 1/2.
    if STEP == 1:
        term = weight * (1.0 + ahead - 0.5 * value)
        tl.store(grad_sums + start + row, weight * discount, mask=inside)
    else:
        term = weight * tl.exp2((ahead - 0.5 * value) * 1.4426950408889634)
        tl.store(grad_sums + start + row, term * discount, mask=inside)
    tl.store(grad_ranks + start + row, term * derivative, mask=inside)
    to = block_sums + at_list * tl.num_programs(1) + block
    tl.store(to, tl.sum(term * discount, 0))


@cached_launch
@triton.jit
def _sum_ahead_vjp(
    ranks, values, grad_sums, offsets, defined, block_sums, losses, grad_ranks, steepness, beta,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Add the derivatives through the sums to ``grad_ranks``; the first block writes the loss."""
    at_list = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(offsets + at_list)
    length = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < length
    value, rank = _load_values(ranks, values, start + row, inside)
    grad = tl.load(grad_sums + start + row, mask=inside, other=0.0)
    last = tl.where(tl.max((value != 0).to(tl.int32), 0) > 0, length, 0)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for left in range(0, last, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        valid = column < length
        other, place = _load_values(ranks, values, start + column, valid)
        grads = tl.load(grad_sums + start + column, mask=valid, other=0.0)
        small = tl.exp2(-tl.abs((rank[:, None] - place[None, :]) * steepness))
        root = tl.math.rsqrt(1.0 + small)
        over = root * root
        crossed = grad[:, None] * other[None, :] - grads[None, :] * value[:, None]
        total += crossed * (small * over * over)
    result = beta * tl.sum(total, 1)
    result += tl.load(grad_ranks + start + row, mask=inside, other=0.0)
    tl.store(grad_ranks + start + row, -result, mask=inside)
    if block == 0:
        loss = 1.0 - sum_blocks(block_sums, at_list, tl.num_programs(1), WIDTH)
        tl.store(losses + at_list, tl.where(tl.load(defined + at_list) != 0, loss, 0.0))
