"""Sums over pairs of sorted items: ranknet, hinge, lambdarank and LambdaLoss."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rankgrad.kernels.arguments import PairOptions
from rankgrad.kernels.cpu._arithmetic import log_one_plus
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import (
    AP,
    APART,
    METRICS,
    RR,
    Array,
    Arrays,
    FlatArrays,
    discounts,
    gains_of,
    indices,
    level,
    new_block,
    norm_of,
    real_items,
    sort_descending,
    take,
    whole_vectors,
)
from rankgrad.kernels.cpu._pair_sums import REACH, exponentials, reach_of

KINDS = {
    "ranknet": 0,
    "hinge": 1,
    "lambdarank": 2,
    "ndcg_loss1": 3,
    "ndcg_loss2": 4,
    "ndcg_loss2++": 5,
}
RANKNET, HINGE, LOSS1 = 0, 1, 3


#: Tables for the weights of pairs: NDCG's discount by rank; the factor by the distance of two
#: ranks; the factor by the lower item's rank; and the metric's discount by rank, whose difference
#: a swap costs.
ByRank = tuple[Array, Array, Array, Array]

#: How pairs are weighted: the kind; the number of top ranks of which a pair must contain one (0 for
#: all); k; sigma; and the coefficients of the distance, of the difference in discounts, and of
#: pairs of equal labels.
Weighing = tuple[int, int, int, float, float, float, float]


def pairs(lists: FlatArrays, *options: Any) -> None:
    """``Σ λ_ij φ(s_i - s_j)`` over the pairs ``y_i > y_j``: see :mod:`rankgrad.kernels.ops`."""
    loop, *others = _prepared(options, lists.max_length, lists.single)
    lists.run(loop, *others, power=2)


@functools.lru_cache(maxsize=16)
def _prepared(options: tuple[Any, ...], max_length: int, single: bool) -> tuple[Any, ...]:
    """The loop over lists for these options, and its arguments after the lists."""
    config = PairOptions(*options)
    swaps = config.kind == "lambdarank" or config.metric in ("ap", "rr")
    bounded = config.kind.startswith("ndcg_loss") and not swaps  # the loss is LambdaLoss's bound
    # Pairs with both items past the cutoff count only in LambdaLoss@K's eq. 17 and in ARP's bound.
    everywhere = bounded and (config.truncation == "corrected" or config.metric == "arp")
    weighing = (
        KINDS["lambdarank" if swaps else config.kind],
        0 if everywhere else config.k,
        config.k,
        config.sigma,
        {"ndcg_loss2": 1.0, "ndcg_loss2++": config.mu}.get(config.kind, 0.0) if bounded else 0.0,
        0.0 if bounded and config.kind == "ndcg_loss2" else 1.0,
        0.5 if config.half else 0.0,
    )
    metric = METRICS[config.metric], config.gain == "linear", level(config.threshold, single)
    loops = {HINGE: _hinge_lists, RANKNET: _ranknet_lists, LOSS1: _ranknet_lists}
    loop = loops.get(weighing[0], _lambda_lists)
    return loop, weighing, metric, _by_rank(config, bounded, max_length)


def _by_rank(config: PairOptions, bounded: bool, max_length: int) -> ByRank:
    k, name = config.k, config.metric
    graded = discounts("ndcg", 0.0, max_length + 2)
    delta = graded[:-1] - graded[1:]
    corrected = config.truncation == "corrected"
    later = np.ones(max_length)
    if bounded and k and corrected and name != "arp":
        later[k:] = 1 / (1 - graded[k:max_length])  # eq. 17
    if bounded and name in ("precision", "recall"):
        later[: k or max_length] = 0.0  # an item within the cutoff costs nothing
    if bounded and name == "arp":
        delta = np.ones(max_length + 1)
    discount = discounts(name, 0.0, max_length + 2)[:max_length].copy()
    if k and name == "arp":
        discount[k:] = k + 1.0
    elif k and (config.kind == "lambdarank" or corrected):
        discount[k:] = 0.0  # not for eq. 15 (heuristic), which masks pairs instead
    return graded, delta, later, discount


# Each kind of loss has its own loop over lists, so that a first call compiles only that one.


@compiled
def _hinge_lists(
    first: int,
    last: int,
    arrays: Arrays,
    weighing: Weighing,
    metric: tuple[int, bool, float],
    by_rank: ByRank,
) -> None:
    for b in range(first, last):
        items = real_items(arrays[2], arrays[4][b], arrays[4][b + 1])
        block = _sorted_block(b, arrays, 1.0, items)
        if block.size:
            end = items.size if weighing[1] == 0 else min(weighing[1], items.size)
            arrays[5][b] = _hinge(block, weighing[3], end)
            _write_gradient(arrays, 1.0, items, block)


@compiled
def _ranknet_lists(
    first: int,
    last: int,
    arrays: Arrays,
    weighing: Weighing,
    metric: tuple[int, bool, float],
    by_rank: ByRank,
) -> None:
    """RankNet, and NDCG-Loss1, which weights pairs by the preferred item's gain and discount."""
    kind, rows, k, sigma, _, _, half = weighing
    code, linear, threshold = metric
    graded, _, later, _ = by_rank
    for b in range(first, last):
        items = real_items(arrays[2], arrays[4][b], arrays[4][b + 1])
        block = _sorted_block(b, arrays, sigma, items)
        if block.size:
            if kind == LOSS1:
                gains = gains_of(take(arrays[1], items), code, linear, threshold)
                norm = norm_of(gains, code, k, graded)
                for i in range(items.size):
                    block[2, i] *= gains[i] / (norm if norm > 0 else 1.0) * graded[i]
            end = items.size if rows == 0 else min(rows, items.size)
            arrays[5][b] = _one_weighted(block, half, later, end)
            _write_gradient(arrays, sigma, items, block)


@compiled
def _lambda_lists(
    first: int,
    last: int,
    arrays: Arrays,
    weighing: Weighing,
    metric: tuple[int, bool, float],
    by_rank: ByRank,
) -> None:
    _, rows, k, sigma, _, _, _ = weighing
    code, linear, threshold = metric
    for b in range(first, last):
        items = real_items(arrays[2], arrays[4][b], arrays[4][b + 1])
        block = _sorted_block(b, arrays, sigma, items)
        if block.size:
            gains = gains_of(take(arrays[1], items), code, linear, threshold)
            norm = norm_of(gains, code, k, by_rank[0])
            costs = _swap_costs(gains, code, k, by_rank[3])
            for i in range(items.size):
                gains[i] /= norm if norm > 0 else 1.0
            end = items.size if rows == 0 else min(rows, items.size)
            arrays[5][b] = _lambdas(block, gains, costs, by_rank, weighing, end)
            _write_gradient(arrays, sigma, items, block)


@compiled
def _sorted_block(b: int, arrays: Arrays, scale: float, items: Array) -> Array:
    """Sort a list's items and fill a block with their scaled scores, labels and weights.

    Items are sorted by descending score; of items with equal scores the less relevant comes first.
    The block is empty if all labels are equal.
    """
    scores, labels, _, weights, _, _, _, defined = arrays
    for i in range(1, items.size):
        defined[b] |= labels[items[i]] != labels[items[0]]
    if not defined[b]:
        return np.zeros((0, 0))
    sort_by_score(scores, labels, items)
    block = new_block(7, items.size)
    for i in range(items.size):
        block[0, i], block[1, i] = scale * scores[items[i]], labels[items[i]]
        block[2, i] = weights[items[i]] if weights.size else 1.0
    return block


@compiled
def sort_by_score(scores: Array, labels: Array, items: Array) -> None:
    """Sort items by descending score; of equal scores the less relevant item comes first."""
    sort_descending(scores, items)
    start = 0
    for i in range(1, items.size + 1):
        if i < items.size and scores[items[i]] == scores[items[start]]:
            continue
        if i - start > 1:
            equal = items[start:i]
            _reverse(equal)
            sort_descending(labels, equal)
            _reverse(equal)
        start = i


@compiled
def _write_gradient(arrays: Arrays, scale: float, items: Array, block: Array) -> None:
    """Write the scores' gradient, which is equal for items of equal score, label and weight."""
    average_duplicates(arrays[0], arrays[1], arrays[3], items, block[3, : items.size])
    for i in range(items.size):
        arrays[6][items[i]] = scale * block[3, i]


@compiled
def _swap_costs(relevance: Array, metric: int, k: int, discount: Array) -> Array:
    """Rows U, F and L that give the change of a metric if the items at ranks a < b swap places.

    The change is ``|U_a - F_a L_b|`` times the difference of their gains. For a sum of gains times
    discounts, U and L are the discounts and F is 1. For ap and rr see
    :mod:`rankgrad.losses.lambdaloss`.
    """
    n = relevance.size
    costs = np.ones((3, n))
    end = n if k == 0 else min(k, n)
    count, through = 0.0, 0.0
    top, second = n, n  # positions of the first two relevant items
    for i in range(n):
        costs[0, i] = costs[2, i] = discount[i]
        if metric == AP:
            inside = 1.0 / (i + 1.0) if i < end else 0.0
            count += relevance[i]
            through += relevance[i] * inside
            costs[0, i] = (count + 1.0 - relevance[i]) * inside - through
            costs[2, i] = (count + relevance[i]) * inside - through
        elif relevance[i] > 0 and top == n:
            top = i
        elif relevance[i] > 0 and second == n:
            second = i
    if metric == RR:
        now = 1.0 / (top + 1.0) if top < end else 0.0
        for i in range(n):
            inside = 1.0 / (min(i, second) + 1.0) if min(i, second) < end else 0.0
            costs[0, i] = inside - now if i < top else (now if i == top else 0.0)
            costs[1, i] = 1.0 if i == top else 0.0
            costs[2, i] = inside
    return costs


@compiled
def _reverse(items: Array) -> None:
    n = items.size
    for i in range(n // 2):
        items[i], items[n - 1 - i] = items[n - 1 - i], items[i]


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# Each returns the sum of an item's pair values and of their gradients, and adds to the gradients of
# the other items. They write only to the block of memory that they read from, as compiled_reduction
# requires. Its rows are scores, labels, weights and gradient of the items, exponentials, and two
# rows of pair weights (the higher item is preferred, the lower item is preferred).


@compiled
def _hinge(block: Array, margin: float, end: int) -> float:
    n = block.shape[1] - APART
    z, y, w, out = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
    total = 0.0
    for i in range(end):
        j = i + 1
        value, grad_sum = _hinge_row(z[i], y[i], w[i], margin, z[j:], y[j:], w[j:], out[j:])
        total += value
        out[i] -= grad_sum
    return total


@compiled_reduction
def _hinge_row(
    own: float,
    label: float,
    weight: float,
    margin: float,
    z: Array,
    y: Array,
    w: Array,
    out: Array,
) -> tuple[float, float]:
    total, grad_sum = 0.0, 0.0
    for j in range(z.size):
        difference = own - z[j]
        right = weight if label > y[j] else 0.0
        wrong = w[j] if label < y[j] else 0.0
        right = right if difference < margin else 0.0
        total += right * (margin - difference) + wrong * (margin + difference)
        change = right - wrong
        grad_sum += change
        out[j] += change
    return total, grad_sum


@compiled
def _one_weighted(block: Array, half: float, later: Array, end: int) -> float:
    """Logistic pairs weighted by their preferred item, times a factor of the lower item's rank."""
    n = block.shape[1] - APART
    z, y, w, right, wrong = block[0, :n], block[1, :n], block[2, :n], block[5, :n], block[6, :n]
    total, start = 0.0, 0
    while start < end:
        near, far = reach_of(z, start)
        center = z[start] - REACH
        exponentials(z, start, far, center, block[4])
        for i in range(start, min(near, end)):
            j = i + 1
            weigh_ones(y[i], w[i], half, y[j:], w[j:], later[j:n], right[j:], wrong[j:])
            total += _pair_row(i, math.exp(center - z[i]), block)
        start = near
    return total


@compiled
def weigh_ones(
    label: float,
    weight: float,
    half: float,
    y: Array,
    w: Array,
    later: Array,
    right: Array,
    wrong: Array,
) -> None:
    """Write the weights of an item's pairs: ``right`` if it is preferred, else ``wrong``."""
    for j in range(y.size):
        equal = half if label == y[j] else 0.0
        right[j] = (1.0 if label > y[j] else equal) * weight * later[j]
        wrong[j] = (1.0 if label < y[j] else equal) * w[j] * later[j]


@compiled
def _lambdas(
    block: Array, gains: Array, costs: Array, by_rank: ByRank, weighing: Weighing, end: int
) -> float:
    """Logistic pairs weighted by their difference in gains times the cost of swapping ranks."""
    n = block.shape[1] - APART
    z, y, w, right, wrong = block[0, :n], block[1, :n], block[2, :n], block[5, :n], block[6, :n]
    upper, factors, lower = costs[0], costs[1], costs[2]
    delta, later = by_rank[1], by_rank[2]
    factor = weighing[4], weighing[5]
    total, start = 0.0, 0
    while start < end:
        near, far = reach_of(z, start)
        center = z[start] - REACH
        exponentials(z, start, far, center, block[4])
        for i in range(start, min(near, end)):
            own, some = (y[i], w[i], gains[i], upper[i], factors[i]), slice(i + 1, n)
            others = y[some], w[some], gains[some], lower[some], delta, later[some]
            _weigh_lambdas(own, others, factor, right[some], wrong[some])
            total += _pair_row(i, math.exp(center - z[i]), block)
        start = near
    return total


@compiled
def _weigh_lambdas(
    own: tuple[float, float, float, float, float],
    others: tuple[Array, Array, Array, Array, Array, Array],
    factor: tuple[float, float],
    right: Array,
    wrong: Array,
) -> None:
    label, weight, gain, upper, part = own
    y, w, gains, lower, delta, later = others
    by_distance, by_change = factor
    for j in range(right.size):
        cost = by_distance * (delta[j] * later[j]) + by_change * abs(upper - part * lower[j])
        cost *= abs(gain - gains[j])
        right[j] = cost * weight if label > y[j] else 0.0
        wrong[j] = cost * w[j] if label < y[j] else 0.0


@compiled
def _pair_row(i: int, inverse: float, block: Array) -> float:
    """The logistic pairs of item i with the items below it; past the last, weights are 0."""
    z, e, right, wrong, out = block[0], block[4], block[5], block[6], block[3]
    some = slice(i + 1, i + 1 + whole_vectors(block.shape[1] - APART - i - 1))
    total, grad_sum = _row(z[i], inverse, z[some], e[some], right[some], wrong[some], out[some])
    out[i] -= grad_sum
    return total


@compiled_reduction
def _row(
    own: float, inverse: float, z: Array, e: Array, right: Array, wrong: Array, out: Array
) -> tuple[float, float]:
    """Pairs of an item with items j below it.

    With ``x = exp(z_j - z_i)`` the value is ``log(1 + x)`` if i is preferred, and
    ``log(1 + x) + z_i - z_j`` if j is. Out of reach x is 0.
    """
    total, grad_sum = 0.0, 0.0
    for j in range(z.size):
        x = e[j] * inverse
        both = 1.0 / ((1.0 + x) * (2.0 + x))
        weight = right[j] + wrong[j]
        total += weight * log_one_plus(x, both * (1.0 + x)) + wrong[j] * (own - z[j])
        change = (right[j] * x - wrong[j]) * (both * (2.0 + x))
        grad_sum += change
        out[j] += change
    return total, grad_sum


@compiled
def average_duplicates(
    scores: Array, labels: Array, weights: Array, items: Array, out: Array
) -> None:
    """Give items of equal score, label and weight the mean of their gradients."""
    start = 0
    for i in range(1, items.size + 1):
        if i < items.size:
            one, other = items[i], items[start]
            if scores[one] == scores[other] and labels[one] == labels[other]:
                continue
        if i - start > 1:
            _average_run(weights, items[start:i], out[start:i])
        start = i


@compiled
def _average_run(weights: Array, items: Array, out: Array) -> None:
    """The same among items of equal score and label."""
    order = indices(items.size)
    own = take(weights, items)
    if weights.size:
        sort_descending(own, order)
    start = 0
    for i in range(1, order.size + 1):
        if i < order.size and own[order[i]] == own[order[start]]:
            continue
        mean = 0.0
        for j in range(start, i):
            mean += out[order[j]]
        mean /= i - start
        for j in range(start, i):
            out[order[j]] = mean
        start = i
