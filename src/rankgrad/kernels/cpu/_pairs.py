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

# Loops over lists take plain tuples, because Numba dispatches named tuples more slowly, and unpack
# them before they loop. Their values, in order:

#: The kind; top_ranks, of which a pair must contain one; k; sigma, the margin of hinge; and the
#: coefficients by_distance (of the two ranks), by_change (of the metric) and ties (equal labels).
Weighting = tuple[int, int, int, float, float, float, float]

#: The metric's code, whether gains are linear, and the threshold.
Gains = tuple[int, bool, float]

#: NDCG's discounts by rank; the factor by the distance of two ranks; the factor by the lower item's
#: rank; and the metric's discounts by rank: the difference of two is the cost of a swap.
RankTables = tuple[Array, Array, Array, Array]

#: Rows of a list's block of memory, by sorted item: score, label, weight, gradient, exponential;
#: and the weights of an item's pairs with those below: it is preferred, or the lower item is.
_Z, _Y, _W, _GRAD, _E, _RIGHT, _WRONG, _ROWS = range(8)

_U, _F, _L = range(3)  # rows of _swap_costs


def pairs(lists: FlatArrays, *options: Any) -> None:
    """``Σ λ_ij φ(s_i - s_j)`` over the pairs ``y_i > y_j``: see :mod:`rankgrad.kernels.ops`."""
    loop, *arguments = _prepared(options, lists.max_length, lists.single)
    lists.run(loop, *arguments, power=2)


@functools.lru_cache(maxsize=16)
def _prepared(options: tuple[Any, ...], max_length: int, single: bool) -> tuple[Any, ...]:
    """The loop over lists for these options, and its arguments after the lists."""
    config = PairOptions(*options)
    swaps = config.kind == "lambdarank" or config.metric in ("ap", "rr")
    bounded = config.kind.startswith("ndcg_loss") and not swaps  # the loss is LambdaLoss's bound
    # Pairs with both items past the cutoff count only in LambdaLoss@K's eq. 17 and in ARP's bound.
    everywhere = bounded and (config.truncation == "corrected" or config.metric == "arp")
    kind = KINDS["lambdarank" if swaps else config.kind]
    weighting = (
        kind,
        max_length if everywhere or config.k == 0 else config.k,
        config.k,
        config.sigma,
        {"ndcg_loss2": 1.0, "ndcg_loss2++": config.mu}.get(config.kind, 0.0) if bounded else 0.0,
        0.0 if bounded and config.kind == "ndcg_loss2" else 1.0,
        0.5 if config.half else 0.0,
    )
    metric = METRICS[config.metric], config.gain == "linear", level(config.threshold, single)
    loops = {HINGE: _hinge_lists, RANKNET: _ranknet_lists, LOSS1: _ranknet_lists}
    tables = _rank_tables(config, bounded, max_length)
    return loops.get(kind, _lambda_lists), weighting, metric, tables


def _rank_tables(config: PairOptions, bounded: bool, max_length: int) -> RankTables:
    k, name = config.k, config.metric
    ndcg_discounts = discounts("ndcg", 0.0, max_length + 2)
    distance_factor = ndcg_discounts[:-1] - ndcg_discounts[1:]
    corrected = config.truncation == "corrected"
    lower_rank_factor = np.ones(max_length)
    if bounded and k and corrected and name != "arp":
        lower_rank_factor[k:] = 1 / (1 - ndcg_discounts[k:max_length])  # eq. 17
    if bounded and name in ("precision", "recall"):
        lower_rank_factor[: k or max_length] = 0.0  # an item within the cutoff costs nothing
    if bounded and name == "arp":
        distance_factor = np.ones(max_length + 1)
    discount = discounts(name, 0.0, max_length + 2)[:max_length].copy()
    if k and name == "arp":
        discount[k:] = k + 1.0
    elif k and (config.kind == "lambdarank" or corrected):
        discount[k:] = 0.0  # not for eq. 15 (heuristic), which masks pairs instead
    return ndcg_discounts, distance_factor, lower_rank_factor, discount


# Each kind of loss has its own loop over lists, so that a first call compiles only that one.


@compiled
def _hinge_lists(
    first: int, last: int, arrays: Arrays, weighting: Weighting, metric: Gains, tables: RankTables
) -> None:
    _, top_ranks, _, margin, _, _, _ = weighting
    _, _, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, 1.0, items)
        if block.size:
            values[b] = _hinge(block, margin, min(top_ranks, items.size))
            _write_gradient(arrays, 1.0, items, block)


@compiled
def _ranknet_lists(
    first: int, last: int, arrays: Arrays, weighting: Weighting, metric: Gains, tables: RankTables
) -> None:
    """RankNet, and NDCG-Loss1, which weights pairs by the preferred item's gain and discount."""
    kind, top_ranks, k, sigma, _, _, ties = weighting
    code, linear, threshold = metric
    ndcg_discounts, _, lower_rank_factor, _ = tables
    _, labels, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, sigma, items)
        if block.size:
            if kind == LOSS1:
                gains = gains_of(take(labels, items), code, linear, threshold)
                norm = norm_of(gains, code, k, ndcg_discounts)
                for i in range(items.size):
                    block[_W, i] *= gains[i] / (norm if norm > 0 else 1.0) * ndcg_discounts[i]
            values[b] = _logistic_pairs(block, ties, lower_rank_factor, min(top_ranks, items.size))
            _write_gradient(arrays, sigma, items, block)


@compiled
def _lambda_lists(
    first: int, last: int, arrays: Arrays, weighting: Weighting, metric: Gains, tables: RankTables
) -> None:
    """LambdaRank and LambdaLoss, which weight pairs by what a swap of their ranks costs."""
    _, _, k, sigma, _, _, _ = weighting
    code, linear, threshold = metric
    ndcg_discounts, _, _, discount = tables
    _, labels, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, sigma, items)
        if block.size:
            gains = gains_of(take(labels, items), code, linear, threshold)
            norm = norm_of(gains, code, k, ndcg_discounts)
            costs = _swap_costs(gains, code, k, discount)
            for i in range(items.size):
                gains[i] /= norm if norm > 0 else 1.0
            values[b] = _lambdas(block, gains, costs, weighting, tables)
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
    block = new_block(_ROWS, items.size)
    for i in range(items.size):
        block[_Z, i], block[_Y, i] = scale * scores[items[i]], labels[items[i]]
        block[_W, i] = weights[items[i]] if weights.size else 1.0
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
    scores, labels, _, weights, _, _, grad_scores, _ = arrays
    average_duplicates(scores, labels, weights, items, block[_GRAD, : items.size])
    for i in range(items.size):
        grad_scores[items[i]] = scale * block[_GRAD, i]


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
    count, precision_sum = 0.0, 0.0
    top, second = n, n  # positions of the first two relevant items
    for i in range(n):
        costs[_U, i] = costs[_L, i] = discount[i]
        if metric == AP:
            inside = 1.0 / (i + 1.0) if i < end else 0.0
            count += relevance[i]
            precision_sum += relevance[i] * inside
            costs[_U, i] = (count + 1.0 - relevance[i]) * inside - precision_sum
            costs[_L, i] = (count + relevance[i]) * inside - precision_sum
        elif relevance[i] > 0 and top == n:
            top = i
        elif relevance[i] > 0 and second == n:
            second = i
    if metric == RR:
        now = 1.0 / (top + 1.0) if top < end else 0.0
        for i in range(n):
            inside = 1.0 / (min(i, second) + 1.0) if min(i, second) < end else 0.0
            costs[_U, i] = inside - now if i < top else (now if i == top else 0.0)
            costs[_F, i] = 1.0 if i == top else 0.0
            costs[_L, i] = inside
    return costs


@compiled
def _reverse(items: Array) -> None:
    n = items.size
    for i in range(n // 2):
        items[i], items[n - 1 - i] = items[n - 1 - i], items[i]


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# Each returns the sum of an item's pair values and of their gradients, and adds to the gradients of
# the other items. They write only to the block of memory that they read from, as compiled_reduction
# requires.


@compiled
def _hinge(block: Array, margin: float, end: int) -> float:
    """Sum ``max(0, margin - (s_i - s_j))`` over pairs, weighted by their preferred item."""
    n = block.shape[1] - APART
    z, y, w, out = block[_Z, :n], block[_Y, :n], block[_W, :n], block[_GRAD, :n]
    total = 0.0
    for i in range(end):
        j = i + 1
        value, grad_sum = _hinge_row(z[i], y[i], w[i], margin, z[j:], y[j:], w[j:], out[j:])
        total += value
        out[i] -= grad_sum
    return total


@compiled_reduction
def _hinge_row(
    score: float,
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
        difference = score - z[j]
        right = weight if label > y[j] else 0.0
        wrong = w[j] if label < y[j] else 0.0
        right = right if difference < margin else 0.0
        total += right * (margin - difference) + wrong * (margin + difference)
        change = right - wrong
        grad_sum += change
        out[j] += change
    return total, grad_sum


@compiled
def _logistic_pairs(block: Array, ties: float, factor: Array, end: int) -> float:
    """Sum logistic pairs weighted by their preferred item, times a factor by the lower rank."""
    n = block.shape[1] - APART
    z, y, w = block[_Z, :n], block[_Y, :n], block[_W, :n]
    right, wrong = block[_RIGHT, :n], block[_WRONG, :n]
    total, start = 0.0, 0
    while start < end:
        near, far = reach_of(z, start)
        center = z[start] - REACH
        exponentials(z, start, far, center, block[_E])
        for i in range(start, min(near, end)):
            j = i + 1
            weigh_by_preferred(y[i], w[i], ties, y[j:], w[j:], factor[j:n], right[j:], wrong[j:])
            total += _pair_row(i, math.exp(center - z[i]), block)
        start = near
    return total


@compiled
def weigh_by_preferred(
    label: float,
    weight: float,
    ties: float,
    y: Array,
    w: Array,
    factor: Array,
    right: Array,
    wrong: Array,
) -> None:
    """Write the weights of an item's pairs: ``right`` if it is preferred, else ``wrong``."""
    for j in range(y.size):
        equal = ties if label == y[j] else 0.0
        right[j] = (1.0 if label > y[j] else equal) * weight * factor[j]
        wrong[j] = (1.0 if label < y[j] else equal) * w[j] * factor[j]


@compiled
def _lambdas(
    block: Array, gains: Array, costs: Array, weighting: Weighting, tables: RankTables
) -> float:
    """Sum logistic pairs weighted by their difference in gains times the cost of swapping ranks."""
    n = block.shape[1] - APART
    z, y, w = block[_Z, :n], block[_Y, :n], block[_W, :n]
    right, wrong = block[_RIGHT, :n], block[_WRONG, :n]
    upper, lower_factor, lower = costs[_U], costs[_F], costs[_L]
    _, distance_factor, lower_rank_factor, _ = tables
    _, top_ranks, _, _, by_distance, by_change, _ = weighting
    coefficients = by_distance, by_change
    total, start, end = 0.0, 0, min(top_ranks, n)
    while start < end:
        near, far = reach_of(z, start)
        center = z[start] - REACH
        exponentials(z, start, far, center, block[_E])
        for i in range(start, min(near, end)):
            item, below = (y[i], w[i], gains[i], upper[i], lower_factor[i]), slice(i + 1, n)
            lower_items = y[below], w[below], gains[below], lower[below], lower_rank_factor[below]
            results = right[below], wrong[below]
            _weigh_lambdas(item, lower_items, distance_factor, coefficients, *results)
            total += _pair_row(i, math.exp(center - z[i]), block)
        start = near
    return total


@compiled
def _weigh_lambdas(
    item: tuple[float, float, float, float, float],
    lower_items: tuple[Array, Array, Array, Array, Array],
    distance_factor: Array,
    coefficients: tuple[float, float],
    right: Array,
    wrong: Array,
) -> None:
    """Write the weights of an item's pairs, as :func:`weigh_by_preferred` does."""
    label, weight, gain, upper, factor = item
    y, w, gains, lower, lower_rank_factor = lower_items
    by_distance, by_change = coefficients
    for j in range(right.size):
        cost = by_distance * (distance_factor[j] * lower_rank_factor[j])
        cost += by_change * abs(upper - factor * lower[j])
        cost *= abs(gain - gains[j])
        right[j] = cost * weight if label > y[j] else 0.0
        wrong[j] = cost * w[j] if label < y[j] else 0.0


@compiled
def _pair_row(i: int, inverse: float, block: Array) -> float:
    """Sum the logistic pairs of item i with the items below it; past the last, weights are 0."""
    z, e, right, wrong, out = block[_Z], block[_E], block[_RIGHT], block[_WRONG], block[_GRAD]
    below = slice(i + 1, i + 1 + whole_vectors(block.shape[1] - APART - i - 1))
    pair_rows = z[below], e[below], right[below], wrong[below], out[below]
    total, grad_sum = _row(z[i], inverse, *pair_rows)
    out[i] -= grad_sum
    return total


@compiled_reduction
def _row(
    score: float, inverse: float, z: Array, e: Array, right: Array, wrong: Array, out: Array
) -> tuple[float, float]:
    """The sums of the pairs of item i with the items j below it, and of their gradients.

    With ``x = exp(z_j - z_i)`` the value is ``log(1 + x)`` if i is preferred, and
    ``log(1 + x) + z_i - z_j`` if j is. Out of reach x is 0.
    """
    total, grad_sum = 0.0, 0.0
    for j in range(z.size):
        x = e[j] * inverse
        both = 1.0 / ((1.0 + x) * (2.0 + x))
        weight = right[j] + wrong[j]
        total += weight * log_one_plus(x, both * (1.0 + x)) + wrong[j] * (score - z[j])
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
    """Average the gradients of equal weights, among items of equal score and label."""
    order = indices(items.size)
    item_weights = take(weights, items)
    if weights.size:
        sort_descending(item_weights, order)
    start = 0
    for i in range(1, order.size + 1):
        if i < order.size and item_weights[order[i]] == item_weights[order[start]]:
            continue
        mean = 0.0
        for j in range(start, i):
            mean += out[order[j]]
        mean /= i - start
        for j in range(start, i):
            out[order[j]] = mean
        start = i
