"""SmoothI's rank indicators, a softmax for each rank in turn.

A rank costs one exponential per item, so a whole list costs n². Each rank multiplies the logits by
at most 1 - δ. Once they are small, all items lie on one smooth curve: what a later rank does to an
item is a function of its logit alone. So from there on only 16 points of that curve (Chebyshev
nodes) are followed, and sums over items become weighted sums over these points
(:func:`_indicators`). :func:`_follow` computes the ranks for either kind of points.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import add_scaled, dot, exp, exp_near_zero, total
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import APART, Array, FlatArrays, new_block, whole_vectors
from rankgrad.kernels.cpu._metric_steps import GRAD, RANKS, SORTED, STATE, VALUES
from rankgrad.kernels.cpu._relaxed import (
    NOTHING,
    Lists,
    Permutation,
    Ranking,
    RankOperator,
    SortOperator,
    through_permutation,
    through_ranking,
)

# Three bounds of the logits:
NEAR_ZERO = 1.0 / 128  # up to it, a shorter polynomial for the exponential is accurate
SAFE = 300.0  # up to it, the exponential does not overflow without a shift
SMALL = 2.0  # up to it, functions of a logit equal their polynomials through the nodes, to rounding
NODES = 16  # the number of Chebyshev nodes
PLACES = np.cos((np.arange(NODES) + 0.5) * (math.pi / NODES))  # Chebyshev nodes in [-1, 1]
#: The matrix from values at the nodes to Chebyshev coefficients. Its transpose turns sums of
#: Chebyshev polynomials over items into weights of the nodes.
COSINES = np.cos(np.outer(np.arange(NODES), (np.arange(NODES) + 0.5) * (math.pi / NODES)))
COSINES *= 2.0 / NODES
COSINES[0] *= 0.5

#: Rows of a block, by point: the scaled score; the product of ``1 - I - δ`` over earlier ranks; the
#: current rank's indicator before normalization; the point's coefficients in sums of 1, of values
#: and of weights; and the sums over ranks that multiply these coefficients in the gradient.
POINTS, PRODUCT, ROW, OF_ONES, OF_VALUES, OF_WEIGHTS, LOST, BY_VALUE, BY_WEIGHT = range(9)

#: How a rank's output is computed from its expected value: whether the output is the exponential
#: gain of that value, and whether it is multiplied by the expected weight.
Form = tuple[bool, bool]

#: α, δ, whether gains are linear, and labels and weights of the items in input order. If there are
#: labels, the output is the gain of the expected label, times the expected weight if there are
#: weights. Both may be empty.
Options = tuple[float, float, bool, Array, Array]


def through_smoothi(
    flat: FlatArrays, alpha: float, delta: float, expect: str, metric_options: MetricOptions
) -> None:
    """1 - metric through SmoothI's indicators: see :mod:`rankgrad.kernels.ops`.

    ``expect`` is ``"gain"``, or ``"label"`` for the gain of the expected label, as in the paper.
    """
    _, labels, _, weights, *_ = flat.arrays
    if expect == "gain":
        labels = weights = NOTHING  # values are weighted gains
    options = alpha, delta, metric_options.gain == "linear", labels, weights
    through_permutation(SMOOTHI, options, flat, metric_options)


@compiled
def _smoothi(
    first: int, last: int, lists: Lists, options: Options, rows: Array, grad_scores: Array
) -> None:
    """``I^r = softmax(α S Π_{l<r} (1 - I^l - δ))``; the products are not differentiated.

    S are the scores minus the list's lowest. Writes the output of each rank to ``rows[SORTED]``. If
    ``grad_scores`` is not empty, the gradient ``rows[GRAD]`` with respect to the outputs is
    propagated, and the result added to ``grad_scores``.
    """
    scores, offsets, order, counts, k = lists
    alpha, delta, linear, labels, weights = options
    form = labels.size > 0 and not linear, weights.size > 0
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        end = start + (n if k == 0 else min(k, n))
        items = order[start : start + n]
        lowest, highest = _range(scores, items)
        block = _block(n)
        for i in range(n):
            block[POINTS, i] = alpha * (scores[items[i]] - lowest)
            block[OF_ONES, i] = 1.0
            block[OF_VALUES, i] = labels[items[i]] if labels.size else rows[VALUES, start + i]
            block[OF_WEIGHTS, i] = weights[items[i]] if weights.size else 0.0
        grad = rows[GRAD, start : end if grad_scores.size else start]
        _indicators(block, alpha * (highest - lowest), grad, rows[SORTED, start:end], delta, form)
        if grad_scores.size:
            for i in range(n):
                block[ROW, i] = block[OF_VALUES, i] * block[BY_VALUE, i] - block[LOST, i]
                block[ROW, i] += block[OF_WEIGHTS, i] * block[BY_WEIGHT, i]
            _to_scores(scores, items, alpha, block[ROW, :n], grad_scores)


@compiled
def _range(scores: Array, items: Array) -> tuple[float, float]:
    """The lowest and the highest score of a list."""
    lowest = highest = scores[items[0]]
    for item in items:
        lowest, highest = min(lowest, scores[item]), max(highest, scores[item])
    return lowest, highest


@compiled
def _to_scores(scores: Array, items: Array, alpha: float, grad: Array, grad_scores: Array) -> None:
    """Add to ``grad_scores`` the gradient ``grad`` by the scaled scores ``α (s - min s)``.

    The minimum is differentiated too; items that tie for it share its gradient equally.
    """
    n, ties, total = items.size, 0, 0.0
    lowest, _ = _range(scores, items)
    for i in range(n):
        ties += scores[items[i]] == lowest
        total += grad[i]
    for i in range(n):
        through_lowest = total / ties if scores[items[i]] == lowest else 0.0
        grad_scores[items[i]] += alpha * (grad[i] - through_lowest)


@compiled
def _indicators(
    block: Array, bound: float, grad: Array, out: Array, delta: float, form: Form
) -> None:
    """Write the outputs of ranks to ``out``, and the gradient's sums over ranks to ``block``.

    ``block`` is that of :func:`_block` for n items, ``bound`` an upper bound of the first rank's
    logits, ``grad`` ``[ranks]`` the gradient with respect to ``out`` ``[ranks]``, or empty.

    An item's next logit depends on its logit x alone: ``x' = x (1 - δ - e^x / Z)``, where Z is the
    same for all items. So indicators and products are smooth functions of the logit at any earlier
    rank. Once all logits are small, the recurrence runs at Chebyshev nodes instead of at the items,
    and sums over items are sums of the polynomials through the nodes. The error is below 1e-11 in
    the tests.
    """
    n, n_ranks, n_sums = block.shape[1] - APART, out.size, 3 if form[1] else 2
    points, product = block[POINTS, :n], block[PRODUCT, :n]
    n_exact, small_bound = _ranks_until(bound, delta, n_ranks)
    if n < 3 * NODES or n_ranks - n_exact < NODES:  # too few for nodes to save work
        n_exact = n_ranks
    _follow(block, grad[:n_exact], out[:n_exact], bound, delta, form)
    if n_exact < n_ranks:
        at_nodes = _block(NODES)
        chebyshev = np.empty((NODES, n))
        _nodes(points, product, chebyshev, at_nodes[POINTS, :NODES])
        for i in range(n_sums):
            for k in range(NODES):
                total = dot(chebyshev[k], block[OF_ONES + i, :n])
                add_scaled(COSINES[k], total, at_nodes[OF_ONES + i, :NODES])
        _follow(at_nodes, grad[n_exact:], out[n_exact:], small_bound, delta, form)
        if grad.size:
            for i in range(n_sums):
                for k in range(NODES):
                    coefficient = dot(COSINES[k], at_nodes[LOST + i, :NODES])
                    _add_times(coefficient, chebyshev[k], product, block[LOST + i, :n])


@compiled
def _block(n: int) -> Array:
    """A block ``[9, n + APART]`` for :func:`_follow`: n points with products of 1, zeros else."""
    block = new_block(9, n)
    for i in range(n):
        block[PRODUCT, i] = 1.0
    return block


@compiled
def _ranks_until(bound: float, delta: float, n_ranks: int) -> tuple[int, float]:
    """The number of ranks until logits are small, and the logits' bound then.

    Each rank multiplies a logit by at most ``1 - δ``.
    """
    ranks = 0
    while ranks < n_ranks and bound > SMALL:
        bound *= 1.0 - delta
        ranks += 1
    return ranks, bound


@compiled
def _nodes(points: Array, product: Array, chebyshev: Array, nodes: Array) -> None:
    """Write the Chebyshev nodes in the range of the logits, and the polynomials at the logits.

    ``points`` and ``product`` are ``[n]``, ``chebyshev`` ``[NODES, n]``, ``nodes`` ``[NODES]``.
    """
    low = high = points[0] * product[0]
    for j in range(points.size):
        chebyshev[1, j] = points[j] * product[j]
        low, high = min(low, chebyshev[1, j]), max(high, chebyshev[1, j])
    # The least half width avoids a division by 0 where all logits are equal.
    middle, half = 0.5 * (low + high), max(0.5 * (high - low), 1e-3)
    for j in range(points.size):
        chebyshev[0, j], chebyshev[1, j] = 1.0, (chebyshev[1, j] - middle) / half
    for k in range(NODES):
        nodes[k] = middle + half * PLACES[k]
        if k > 1:
            _recur(chebyshev[1], chebyshev[k - 1], chebyshev[k - 2], chebyshev[k])


@compiled_reduction
def _follow(block: Array, grad: Array, out: Array, bound: float, delta: float, form: Form) -> None:
    """Compute the indicators rank by rank, from logits ``points · product``.

    The products are not differentiated. So the scaled scores' derivative is computed together
    with the indicator, and nothing is saved: with ``I = row / Z``, the derivative of
    ``E[v] = Σ_j I_j v_j`` is ``I_j (v_j - E[v])`` times the product. The factors of 1, of values
    and of weights in it are summed over the ranks. A point is an item, with coefficients 1, its
    value and its weight, or a Chebyshev node, whose coefficients stand for all items.
    """
    exponential, weighted = form
    n = whole_vectors(block.shape[1] - APART)  # products and coefficients are 0 past the points
    points, product, row = block[POINTS, :n], block[PRODUCT, :n], block[ROW, :n]
    ones, values, weights = block[OF_ONES, :n], block[OF_VALUES, :n], block[OF_WEIGHTS, :n]
    lost, by_value, by_weight = block[LOST, :n], block[BY_VALUE, :n], block[BY_WEIGHT, :n]
    for r in range(out.size):
        normalizer, mean, mean_weight = 0.0, 0.0, 1.0
        if bound <= NEAR_ZERO:
            for j in range(points.size):
                row[j] = exp_near_zero(points[j] * product[j])
                normalizer += row[j] * ones[j]
                mean += row[j] * values[j]
        else:
            shift = 0.0
            # Logits are stored before the shift: in one expression with it, they are not rounded.
            for j in range(points.size):
                row[j] = points[j] * product[j]
            if bound > SAFE:
                for j in range(points.size):
                    shift = max(shift, row[j])
            for j in range(points.size):
                row[j] = exp(row[j] - shift)
                normalizer += row[j] * ones[j]
                mean += row[j] * values[j]
        inverse = 1.0 / normalizer
        mean *= inverse
        gain, derivative = mean, 1.0
        if exponential:
            gain = exp(math.log(2.0) * mean) - 1.0
            derivative = math.log(2.0) * (gain + 1.0)
        if weighted:
            mean_weight = 0.0
            for j in range(points.size):
                mean_weight += row[j] * weights[j]
            mean_weight *= inverse
        out[r] = gain * mean_weight
        # The gradient with respect to E[v] and to E[w], the expected value and weight
        grad_mean = grad[r] * derivative * mean_weight if grad.size else 0.0
        grad_mean_weight = grad[r] * gain if grad.size and weighted else 0.0
        if grad_mean_weight != 0.0:
            for j in range(points.size):
                by_weight[j] += grad_mean_weight * inverse * row[j] * product[j]
        # The factor of the terms -E[v] and -E[w] of the derivatives
        grad_ones = grad_mean * mean + grad_mean_weight * mean_weight
        for j in range(points.size):
            indicator = row[j] * inverse
            change = indicator * product[j]
            by_value[j] += grad_mean * change
            lost[j] += grad_ones * change
            product[j] *= (1.0 - delta) - indicator
        bound *= 1.0 - delta


@compiled
def _recur(t: Array, last: Array, before: Array, out: Array) -> None:
    """Chebyshev's recurrence: ``T_k = 2 t T_{k-1} - T_{k-2}``."""
    for j in range(t.size):
        out[j] = 2.0 * t[j] * last[j] - before[j]


@compiled
def _add_times(factor: float, a: Array, b: Array, out: Array) -> None:
    """``out += factor * a * b``."""
    for j in range(a.size):
        out[j] += factor * a[j] * b[j]


SMOOTHI = Permutation(_smoothi, steps=100, in_order=False)


class SmoothIOperator(SortOperator):
    """SmoothI's indicators with stop-gradient; options: alpha and delta."""

    relaxation = SMOOTHI
    fixed = (False, NOTHING, NOTHING)


RankOptions = tuple[float, float]  # α and δ
TRACE = 1e-12  # a mass at the last rank: puts an item there if its indicators underflow everywhere


@compiled
def _expected_ranks(first: int, last: int, lists: Lists, options: RankOptions, rows: Array) -> None:
    """Write ``Σ_r r I^r_j / Σ_r I^r_j`` to ``rows[RANKS]``, the denominator to ``rows[STATE]``."""
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        scaled = _scaled(scores, order[start : start + n], options[0])
        row, product = np.empty(n), np.ones(n)
        ranks, mass = rows[RANKS, start : start + n], rows[STATE, start : start + n]
        for i in range(n):
            ranks[i], mass[i] = TRACE * n, TRACE
        for r in range(n):
            inverse = 1.0 / _exponentials(scaled, product, row)
            for i in range(n):
                indicator = row[i] * inverse
                ranks[i] += (r + 1.0) * indicator
                mass[i] += indicator
                product[i] *= (1.0 - options[1]) - indicator
        for i in range(n):
            ranks[i] /= mass[i]


@compiled
def _expected_ranks_adjoint(
    first: int, last: int, lists: Lists, options: RankOptions, rows: Array, grad_scores: Array
) -> None:
    """Add the gradient with respect to the scores, from that with respect to the ranks.

    The products are not differentiated, as in :func:`_smoothi`.
    """
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        items = order[start : start + n]
        of_list = slice(start, start + n)
        ranks, mass, grad = rows[RANKS, of_list], rows[STATE, of_list], rows[GRAD, of_list]
        scaled = _scaled(scores, items, options[0])
        row, product, grad_scaled = np.empty(n), np.ones(n), np.zeros(n)
        # The derivative of the loss by the indicator I^r_i is grad_mass[i] (r - ranks[i]).
        grad_mass, grad_rank = np.empty(n), np.empty(n)
        for i in range(n):
            grad_mass[i] = grad[i] / mass[i]
            grad_rank[i] = grad_mass[i] * ranks[i]
        for r in range(n):
            inverse = 1.0 / _exponentials(scaled, product, row)
            mean = ((r + 1.0) * dot(row, grad_mass) - dot(row, grad_rank)) * inverse
            for i in range(n):
                indicator = row[i] * inverse
                change = grad_mass[i] * (r + 1.0) - grad_rank[i]
                grad_scaled[i] += indicator * (change - mean) * product[i]
                product[i] *= (1.0 - options[1]) - indicator
        _to_scores(scores, items, options[0], grad_scaled, grad_scores)


@compiled
def _scaled(scores: Array, items: Array, alpha: float) -> Array:
    """``α (s - min s)`` of items in order of descending score."""
    scaled = np.empty(items.size)
    for i in range(items.size):
        scaled[i] = alpha * (scores[items[i]] - scores[items[items.size - 1]])
    return scaled


@compiled
def _exponentials(scaled: Array, product: Array, row: Array) -> float:
    """Write ``exp(x - max x)``, ``x = scaled product``, to ``row`` ``[n]``; return the sum."""
    top = 0.0
    for i in range(row.size):
        row[i] = scaled[i] * product[i]
        top = max(top, row[i])
    for i in range(row.size):
        row[i] = exp(row[i] - top)
    return total(row)


class SmoothIRanks(RankOperator):
    """The mean rank of each item over SmoothI's indicators; options: alpha and delta."""

    relaxation = Ranking(_expected_ranks, _expected_ranks_adjoint, power=2)


def through_smoothi_ranks(
    flat: FlatArrays, alpha: float, delta: float, beta: float, metric_options: MetricOptions
) -> None:
    """1 - metric through the mean ranks: see :mod:`rankgrad.kernels.ops`."""
    through_ranking(SmoothIRanks.relaxation, (alpha, delta), beta, flat, metric_options)
