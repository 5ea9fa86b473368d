"""Metrics through relaxed ranks r that are not linear in the items: AP, RR, ERR and hits.

AP and ERR sum the values v of the items ranked ahead of item i,
``S_i = Σ_{j ≠ i} v_j sigmoid(β (r_i - r_j))``, in tiles of pairs: O(n²) work, O(n) memory. With the
weighted values w (see :class:`~rankgrad.kernels.gpu._metric_steps.StepValues`) and the relaxed
discount d of ``1 / r``, they are

    AP:   ``Σ_i w_i (1 + S_i) d(r_i)``, divided by ``Σ_i w_i``, with v the relevance,
    ERR:  ``Σ_i w_i exp(S_i) d(r_i)``, with v the log of one minus the stopping probability.

RR and hits are ``Σ_i p_i w_i d(r_i)``, with p the softmax of ``-β r`` over the relevant items, and
the discount of hits 1 up to the cutoff. :mod:`rankgrad.kernels.gpu._ranks` calls this module.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import chunk_size, list_block, list_span
from rankgrad.kernels.gpu._ideal_gain import ROWS, rank_discount, soft_inside, sum_blocks, tile
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._metric_steps import StepValues

_CHUNK = 4096  # items of a list that one program reads at a time
_LOG2E = math.log2(math.e)


class RankOperator(Protocol):
    """Relaxed ranks ``[items]`` of lists (0 on padding) and their adjoint."""

    ranks: Tensor

    def adjoint(self, grad: Tensor) -> Tensor:
        """The vector-Jacobian product with respect to the scores, ``[items]`` as ``grad``."""


def through_operator(
    batch: FlatLists, operator: RankOperator, beta: float, metric: MetricOptions, steps: StepValues
) -> tuple[Tensor, Tensor, Tensor]:
    """One minus ap, rr, err or hits through the ranks of an operator.

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    losses = torch.empty_like(steps.scale)
    grad_ranks = torch.empty_like(batch.scores)
    weighted = steps.values if steps.weighted is None else steps.weighted
    inputs = operator.ranks, *steps._replace(weighted=weighted), batch.offsets
    if metric.name in ("rr", "hits"):
        chunk = chunk_size(batch.max_length, _CHUNK)
        _first_relevant[(len(losses),)](
            *inputs, losses, grad_ranks, metric.k, float(beta),
            "reciprocal" if metric.name == "rr" else "constant", metric.k > 0, chunk,
            num_warps=max(1, min(8, chunk // 128)),
        )  # fmt: skip
    else:
        columns, warps, width = tile(batch.max_length)
        blocks = cdiv(batch.max_length, ROWS)
        grad_sums = torch.empty_like(grad_ranks)
        block_sums = losses.new_empty(len(losses), blocks)
        _sum_ahead[(len(losses), blocks)](
            *inputs, grad_sums, grad_ranks, block_sums, beta * _LOG2E,
            metric.k, float(beta), metric.name, metric.k > 0, ROWS, columns, num_warps=warps,
        )  # fmt: skip
        _sum_ahead_vjp[(len(losses), blocks)](
            operator.ranks, steps.values, grad_sums, batch.offsets, steps.defined, block_sums,
            losses, grad_ranks, beta * _LOG2E, float(beta), ROWS, columns, width, num_warps=warps,
        )  # fmt: skip
    return losses, operator.adjoint(grad_ranks), steps.defined


@triton.jit
def _missed(rank, weight, discount, items, k, beta, CURVE: tl.constexpr, CUT: tl.constexpr):
    """``1 - weight discount``; for hits, whose discount is often near 1, without cancellation."""
    missed = 1.0 - discount
    if CURVE == "constant":
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
    """RR and hits of one list: the loss, and its derivatives with respect to the ranks.

    The first loop finds the lowest rank of a relevant item, the second sums the softmax relative to
    it, and the third writes the derivatives ``p_i (β (w_i d_i - mean) - w_i d'_i)``, with the mean
    of ``w d`` under p.
    """
    list_index, start, length = list_span(offsets)
    items = tl.load(lengths + list_index)
    valid = tl.load(defined + list_index) != 0
    steepness = beta * 1.4426950408889634  # log2(e), for exp2
    lowest_ranks = tl.full([CHUNK], float("inf"), tl.float32)
    for first_item in range(0, length, CHUNK):
        row = first_item + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        rank = tl.load(ranks + start + row, mask=value != 0, other=float("inf"))
        lowest_ranks = tl.minimum(lowest_ranks, rank)
    lowest_rank = tl.min(lowest_ranks, 0)
    exp_sums = tl.zeros([CHUNK], tl.float32)
    gain_sums = tl.zeros([CHUNK], tl.float32)
    loss_sums = tl.zeros([CHUNK], tl.float32)
    for first_item in range(0, length, CHUNK):
        row = first_item + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        rank = tl.load(ranks + start + row, mask=value != 0, other=1.0)
        weight = tl.load(weighted + start + row, mask=row < length, other=0.0)
        probability = tl.where(value != 0, tl.exp2((lowest_rank - rank) * steepness), 0.0)
        discount, _ = rank_discount(rank, items, k, beta, 0.0, CURVE, CUT)
        exp_sums += probability
        gain_sums += probability * weight * discount
        loss_sums += probability * _missed(rank, weight, discount, items, k, beta, CURVE, CUT)
    # The relevant item of the lowest rank adds 1 to the sum, so where it is less, there is none.
    inverse_norm = tl.where(valid, 1.0 / tl.maximum(tl.sum(exp_sums, 0), 1.0), 0.0)
    mean = tl.sum(gain_sums, 0) * inverse_norm
    loss = tl.sum(loss_sums, 0) * inverse_norm
    for first_item in range(0, length, CHUNK):
        row = first_item + tl.arange(0, CHUNK)
        value = tl.load(values + start + row, mask=row < length, other=0.0)
        rank = tl.load(ranks + start + row, mask=value != 0, other=1.0)
        weight = tl.load(weighted + start + row, mask=row < length, other=0.0)
        probability = inverse_norm * tl.exp2((lowest_rank - rank) * steepness)
        discount, derivative = rank_discount(rank, items, k, beta, 0.0, CURVE, CUT)
        missed = _missed(rank, weight, discount, items, k, beta, CURVE, CUT)
        # The item's value minus the mean, from the smaller numbers, which are more accurate.
        excess = tl.where(mean < 0.5, weight * discount - mean, loss - missed)
        grad = probability * (beta * excess - weight * derivative)
        tl.store(grad_ranks + start + row, tl.where(value != 0, grad, 0.0), mask=row < length)
    tl.store(losses + list_index, tl.where(valid, loss, 0.0))


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
    METRIC: tl.constexpr, CUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """AP's or ERR's terms of a block of items, from the sums S of the values ranked ahead of each.

    Writes the derivatives of the metric with respect to S, those with respect to the ranks at fixed
    S, and the sum of the terms over the block.
    """
    list_index, start, length, row, inside, _ = list_block(None, offsets, ROWS)
    value, rank = _load_values(ranks, values, start + row, inside)
    # A block without values has no terms.
    last = tl.where(tl.max((value != 0).to(tl.int32), 0) > 0, length, 0)
    terms = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first_column in range(0, last, COLUMNS):
        column = first_column + tl.arange(0, COLUMNS)
        column_value, column_rank = _load_values(ranks, values, start + column, column < length)
        difference = (rank[:, None] - column_rank[None, :]) * steepness
        decay = tl.exp2(-tl.abs(difference))
        root = tl.math.rsqrt(1.0 + decay)  # its square is 1 / (1 + decay)
        terms += column_value[None, :] * (tl.where(difference >= 0, 1.0, decay) * root * root)
    ahead = tl.sum(terms, 1)
    items = tl.load(lengths + list_index)
    rank = tl.where(value != 0, rank, 1.0)
    discount, derivative = rank_discount(rank, items, k, beta, 0.0, "reciprocal", CUT)
    weight = tl.load(weighted + start + row, mask=inside, other=0.0)
    weight *= tl.load(scale + list_index)
    # The sum includes half of the item's own value: sigmoid(0) = 1/2.
    if METRIC == "ap":
        term = weight * (1.0 + ahead - 0.5 * value)
        tl.store(grad_sums + start + row, weight * discount, mask=inside)
    else:
        term = weight * tl.exp2((ahead - 0.5 * value) * 1.4426950408889634)  # exp
        tl.store(grad_sums + start + row, term * discount, mask=inside)
    tl.store(grad_ranks + start + row, term * derivative, mask=inside)
    to = block_sums + list_index * tl.num_programs(1) + tl.program_id(1)
    tl.store(to, tl.sum(term * discount, 0))


@cached_launch
@triton.jit
def _sum_ahead_vjp(
    ranks, values, grad_sums, offsets, defined, block_sums, losses, grad_ranks, steepness, beta,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Add the derivatives through S to ``grad_ranks``, and negate them: the loss is 1 - metric.

    With ``g_i`` the derivative with respect to S_i, item i gets
    ``β Σ_j (g_i v_j - g_j v_i) sigmoid'(β (r_i - r_j))``. The first block also writes the loss.
    """
    list_index, start, length, row, inside, _ = list_block(None, offsets, ROWS)
    value, rank = _load_values(ranks, values, start + row, inside)
    grad = tl.load(grad_sums + start + row, mask=inside, other=0.0)
    last = tl.where(tl.max((value != 0).to(tl.int32), 0) > 0, length, 0)
    terms = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first_column in range(0, last, COLUMNS):
        column = first_column + tl.arange(0, COLUMNS)
        valid = column < length
        column_value, column_rank = _load_values(ranks, values, start + column, valid)
        column_grad = tl.load(grad_sums + start + column, mask=valid, other=0.0)
        decay = tl.exp2(-tl.abs((rank[:, None] - column_rank[None, :]) * steepness))
        root = tl.math.rsqrt(1.0 + decay)
        inverse = root * root  # 1 / (1 + decay)
        crossed = grad[:, None] * column_value[None, :] - column_grad[None, :] * value[:, None]
        terms += crossed * (decay * inverse * inverse)
    result = beta * tl.sum(terms, 1)
    result += tl.load(grad_ranks + start + row, mask=inside, other=0.0)
    tl.store(grad_ranks + start + row, -result, mask=inside)
    if tl.program_id(1) == 0:
        loss = 1.0 - sum_blocks(block_sums, list_index, tl.num_programs(1), WIDTH)
        tl.store(losses + list_index, tl.where(tl.load(defined + list_index) != 0, loss, 0.0))
