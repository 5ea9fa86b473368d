"""SmoothI's indicators, one softmax after another, and metrics through them."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.cpu.arithmetic import exp, exp_near_zero
from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.prepare import (
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
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    alpha: float,
    delta: float,
    expect: str,
    metric: str,
    k: int,
    gain: str,
    threshold: float,
    persistence: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through SmoothI's indicators: see :mod:`rankgrad.kernels.ops`."""
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
        worth = (discount - beyond) / norm
        rows = n if k == 0 else min(k, n)
        out = np.zeros(n)
        total = _indicators(
            scaled,
            y if by_label else gains,
            w,
            worth,
            rows,
            delta,
            (by_label, linear, by_label and weights.size > 0),
            out,
        )
        values[b] = finish(total + beyond * gains.sum() / norm, metric)
        sign = alpha if metric == ARP else -alpha
        lifted = out.sum() / ties  # the lowest score is subtracted from all
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
    sums = np.ones((3, n))
    sums[1], sums[2] = values, weights
    bound = scaled.max()
    ranks, small = _ranks_until(bound, delta, rows)
    if n < 3 * NODES or rows - ranks < NODES:
        ranks = rows
    product, pulls = np.ones(n), np.zeros((3, n))
    total = _follow(scaled, sums, worth[:ranks], bound, delta, how, product, pulls)
    if ranks < rows:
        nodes, chebyshev = _nodes(scaled * product)
        at_nodes, grown, pulled = np.zeros((3, NODES)), np.ones(NODES), np.zeros((3, NODES))
        for i in range(count):
            for k in range(NODES):
                _add(_dot(chebyshev[k], sums[i]), COSINES[k], at_nodes[i])
        total += _follow(nodes, at_nodes, worth[ranks:rows], small, delta, how, grown, pulled)
        for i in range(count):
            for k in range(NODES):
                _add_times(_dot(COSINES[k], pulled[i]), chebyshev[k], product, pulls[i])
    for j in range(n):
        out[j] = values[j] * pulls[1, j] + weights[j] * pulls[2, j] - pulls[0, j]
    return total


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


@compiled
def _follow(
    points: Array,
    sums: Array,
    worth: Array,
    bound: float,
    delta: float,
    how: How,
    product: Array,
    pulls: Array,
) -> float:
    """Rank after rank, from logits ``points · product``; the value that they add.

    The products are constants on the way back, so the derivative by the scaled scores is known as
    soon as a row is, and nothing is kept: with ``I = row / Z``, that of ``E[v] = Σ_j I_j v_j`` is
    ``I_j (v_j - E[v])`` times the product. What multiplies 1, the values and the weights is pulled
    together over the ranks. A point adds as much to Z, to that of values and to that of weights
    as ``sums`` says: an item 1, its value and its weight.
    """
    by_label, linear, weighted = how
    ones, values, weights = sums[0], sums[1], sums[2]
    lost, by_value, by_weight = pulls[0], pulls[1], pulls[2]
    row, total = np.empty(points.size), 0.0
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
        total += own * gain
        own *= slope
        both = own * mean + own_weight * mean_weight
        for j in range(points.size):
            indicator = row[j] * inverse
            pull = indicator * product[j]
            by_value[j] += own * pull
            lost[j] += both * pull
            product[j] *= (1.0 - delta) - indicator
        bound *= 1.0 - delta
    return total


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


@compiled
def _dot(first: Array, second: Array) -> float:
    total = 0.0
    for j in range(first.size):
        total += first[j] * second[j]
    return total
