"""SmoothI's indicators, one softmax after another, and metrics through them."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.arithmetic import dot, exp, exp_near_zero, total
from rankgrad.kernels.cpu.compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu.prepare import (
    APART,
    ARP,
    METRICS,
    Array,
    Slots,
    any_relevant,
    beyond_cutoff,
    discounts,
    finish,
    gains_of,
    level,
    new_block,
    norm_of,
    real_slots,
    take,
)

NEAR_ZERO = 1.0 / 128  # up to which a shorter polynomial will do
SAFE = 300.0  # up to which an exponential needs no shift
SMALL = 2.0  # up to which functions of a logit are polynomials through the nodes, to rounding
NODES = 16
PLACES = np.cos((np.arange(NODES) + 0.5) * (math.pi / NODES))  # in [-1, 1]
#: From values at the nodes to a polynomial's coefficients, and transposed from sums to sums.
COSINES = np.cos(np.outer(np.arange(NODES), (np.arange(NODES) + 0.5) * (math.pi / NODES)))
COSINES *= 2.0 / NODES
COSINES[0] *= 0.5

How = tuple[bool, bool, bool]  # by label, of linear gain, weighted


def through_smoothi(
    batch: FlatLists,
    alpha: float,
    delta: float,
    expect: str,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through SmoothI's indicators: see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    slots = Slots.of(scores, labels, mask, weights, offsets)
    slots.each(
        _lists,
        alpha,
        delta,
        expect == "label",
        METRICS[metric],
        k,
        gain == "linear",
        level(threshold, scores),
        discounts(metric, persistence, longest),
        steps=100,
    )
    return slots.results(scores)


@compiled
def _lists(
    first: int,
    last: int,
    scores: Array,
    labels: Array,
    mask: Array,
    weights: Array,
    offsets: Array,
    values: Array,
    slopes: Array,
    defined: Array,
    alpha: float,
    delta: float,
    by_label: bool,
    metric: int,
    k: int,
    linear: bool,
    threshold: float,
    discount: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        n = slots.size
        y, w = take(labels, slots), take(weights, slots)
        gains = gains_of(y, metric, linear, threshold)
        defined[b] = n > 1 and any_relevant(gains, w)
        if not defined[b]:
            continue
        gains *= w
        norm = norm_of(gains, metric, k, discount)
        if norm <= 0:
            norm = np.inf
        scaled = take(scores, slots)
        lowest = scaled.min()
        ties = 0
        for i in range(n):
            ties += scaled[i] == lowest
            scaled[i] = alpha * (scaled[i] - lowest)
        beyond = beyond_cutoff(metric, k, n)
        rows = n if k == 0 else min(k, n)
        worth = (discount[:rows] - beyond) * (1.0 / norm)
        out = np.zeros(n)
        value = _indicators(
            scaled,
            y if by_label else gains,
            w,
            worth,
            rows,
            delta,
            (by_label, linear, by_label and weights.size > 0),
            out,
        )
        values[b] = finish(value + beyond * total(gains) / norm, metric)
        sign = alpha if metric == ARP else -alpha
        lifted = total(out) / ties  # the lowest score is subtracted from all
        for i in range(n):
            slopes[slots[i]] = sign * (out[i] - (lifted if scores[slots[i]] == lowest else 0.0))


@compiled
def _indicators(
    scaled: Array,
    values: Array,
    weights: Array,
    worth: Array,
    rows: int,
    delta: float,
    how: How,
    out: Array,
) -> float:
    """The sum over ranks of worth times the expected value, or the gain of the expected value.

    What becomes of an item depends on its logit x alone: ``x' = x (1 - δ - e^x / Z)``, with Z
    common to all. So rows and products are smooth functions of the logit at any rank before. Once
    logits are small, they are followed at Chebyshev's nodes instead of at the items; sums over the
    items are those of the polynomials through the nodes, right to 1e-11 in the tests.
    """
    n, count = scaled.size, 3 if how[2] else 2
    block = _block(n)
    points, product = block[0, :n], block[1, :n]
    points[:], block[3, :n], block[4, :n], block[5, :n] = scaled, 1.0, values, weights
    bound = scaled.max()
    ranks, small = _ranks_until(bound, delta, rows)
    if n < 3 * NODES or rows - ranks < NODES:
        ranks = rows
    value = _follow(block, worth[:ranks], bound, delta, how)
    if ranks < rows:
        at_nodes = _block(NODES)
        at_nodes[0, :NODES], chebyshev = _nodes(points * product)
        for i in range(count):
            for k in range(NODES):
                _add(dot(chebyshev[k], block[3 + i, :n]), COSINES[k], at_nodes[3 + i, :NODES])
        value += _follow(at_nodes, worth[ranks:rows], small, delta, how)
        for i in range(count):
            for k in range(NODES):
                pulled = dot(COSINES[k], at_nodes[6 + i, :NODES])
                _add_times(pulled, chebyshev[k], product, block[6 + i, :n])
    for j in range(n):
        out[j] = values[j] * block[7, j] + weights[j] * block[8, j] - block[6, j]
    return value


@compiled
def _block(n: int) -> Array:
    """What :func:`_follow` takes of n points.

    Rows: the points, the products (1 before the first rank), room for one of the indicators' rows,
    three kinds of sums and three kinds of pulls (0).
    """
    block = new_block(9, n)
    block[1, :n] = 1.0
    return block


@compiled
def _ranks_until(bound: float, delta: float, rows: int) -> tuple[int, float]:
    """Ranks until logits are small, and their bound then: each takes at least δ of them."""
    ranks = 0
    while ranks < rows and bound > SMALL:
        bound *= 1.0 - delta
        ranks += 1
    return ranks, bound


@compiled
def _nodes(logits: Array) -> tuple[Array, Array]:
    """Chebyshev's nodes in the range of the logits, and his polynomials at the logits."""
    low, high = logits.min(), logits.max()
    middle, half = 0.5 * (low + high), max(0.5 * (high - low), 1e-3)
    chebyshev = np.ones((NODES, logits.size))
    chebyshev[1] = (logits - middle) / half
    for k in range(2, NODES):
        _recur(chebyshev[1], chebyshev[k - 1], chebyshev[k - 2], chebyshev[k])
    return middle + half * PLACES, chebyshev


@compiled_reduction
def _follow(block: Array, worth: Array, bound: float, delta: float, how: How) -> float:
    """Rank after rank, from logits ``points · product``; the value that they add.

    The products are constants on the way back, so the derivative by the scaled scores is known as
    soon as a row is, and nothing is kept: with ``I = row / Z``, that of ``E[v] = Σ_j I_j v_j`` is
    ``I_j (v_j - E[v])`` times the product. What multiplies 1, the values and the weights is pulled
    together over the ranks. A point adds as much to Z, to that of values and to that of weights
    as ``sums`` says: an item 1, its value and its weight.
    """
    by_label, linear, weighted = how
    n = block.shape[1] - APART
    points, product, row = block[0, :n], block[1, :n], block[2, :n]
    ones, values, weights = block[3, :n], block[4, :n], block[5, :n]
    lost, by_value, by_weight = block[6, :n], block[7, :n], block[8, :n]
    value = 0.0
    for r in range(worth.size):
        whole, mean, mean_weight = 0.0, 0.0, 0.0
        if bound <= NEAR_ZERO:
            for j in range(points.size):
                row[j] = exp_near_zero(points[j] * product[j])
                whole += row[j] * ones[j]
                mean += row[j] * values[j]
        else:
            shift = (points * product).max() if bound > SAFE else 0.0
            for j in range(points.size):
                row[j] = exp(points[j] * product[j] - shift)
                whole += row[j] * ones[j]
                mean += row[j] * values[j]
        inverse = 1.0 / whole
        mean *= inverse
        own, own_weight = worth[r], 0.0
        if by_label:
            gain = mean if linear else exp(math.log(2.0) * mean) - 1.0
            slope = 1.0 if linear else math.log(2.0) * (gain + 1.0)
        else:
            gain, slope = mean, 1.0
        if weighted:
            for j in range(points.size):
                mean_weight += row[j] * weights[j]
            mean_weight *= inverse
            own, own_weight = own * mean_weight, own * gain
            for j in range(points.size):
                by_weight[j] += own_weight * inverse * row[j] * product[j]
        value += own * gain
        own *= slope
        both = own * mean + own_weight * mean_weight
        for j in range(points.size):
            indicator = row[j] * inverse
            pull = indicator * product[j]
            by_value[j] += own * pull
            lost[j] += both * pull
            product[j] *= (1.0 - delta) - indicator
        bound *= 1.0 - delta
    return value


@compiled
def _recur(t: Array, last: Array, before: Array, out: Array) -> None:
    """Chebyshev's recurrence: ``T_k = 2 t T_{k-1} - T_{k-2}``."""
    for j in range(t.size):
        out[j] = 2.0 * t[j] * last[j] - before[j]


@compiled
def _add(factor: float, some: Array, out: Array) -> None:
    for j in range(some.size):
        out[j] += factor * some[j]


@compiled
def _add_times(factor: float, some: Array, other: Array, out: Array) -> None:
    for j in range(some.size):
        out[j] += factor * some[j] * other[j]
