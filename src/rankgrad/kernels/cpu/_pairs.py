"""Sums over pairs of sorted items: ranknet, hinge, lambdarank and LambdaLoss.

Loops over lists write each list's value and gradient. Given a Hessian that is not empty, they write
its diagonal too, and then values are undefined. Boosted trees take these derivatives:
:func:`rankgrad.kernels._pair_derivatives.compute` calls :func:`pair_derivatives`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, PairOptions
from rankgrad.kernels.cpu._arithmetic import exp, log_one_plus
from rankgrad.kernels.cpu._compiled import compiled, compiled_borrowing, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import (
    APART,
    Array,
    Arrays,
    FlatArrays,
    new_block,
    real_items,
    take,
    whole_vectors,
)
from rankgrad.kernels.cpu._list_sort import indices, sort_descending
from rankgrad.kernels.cpu._metric_terms import (
    AP,
    METRICS,
    RR,
    discounts,
    gains_of,
    norm_of,
    round_threshold,
)
from rankgrad.kernels.cpu._pair_sums import write_exponentials

# Loops over lists take plain tuples, because Numba dispatches named tuples more slowly, and unpack
# them before they loop. Their values, in order:

#: top_ranks, of which a pair must contain one; k; sigma, the margin of hinge; by_gain, whether a
#: pair weighs by the preferred item's gain and discount; and the coefficients by_distance (of the
#: two ranks), by_change (of the metric) and ties (equal labels).
Weighting = tuple[int, int, float, bool, float, float, float]

#: The metric's code, whether gains are linear, and the threshold.
Gains = tuple[int, bool, float]

#: NDCG's discounts by rank; the factor by the distance of two ranks; the factor by the lower item's
#: rank; and the metric's discounts by rank: the difference of two is the cost of a swap.
RankTables = tuple[Array, Array, Array, Array]

#: How pairs are weighted: all of the above.
Scheme = tuple[Weighting, Gains, RankTables]

#: What :func:`_weigh_lambdas` takes: the items' gains, their :func:`_swap_costs`, the factors
#: by distance and by the lower item's rank, and the coefficients by_distance and by_change.
LambdaWeights = tuple[Array, Array, Array, Array, float, float]

#: Rows of a list's block of memory, ``[ROWS, n + APART]``, by sorted item: scaled score, label,
#: weight, gradient, Hessian, exponential; and the weights of the current item's pairs with the
#: items below it: RIGHT if the current item is preferred, WRONG if the lower one is.
Z, Y, W, GRAD, HESSIAN, E, RIGHT, WRONG, ROWS = range(9)

_U, _F, _L = range(3)  # rows of _swap_costs
_LEAST = 1e-16  # lower bound of a logistic pair's p (1 - p)
_NO_HESSIAN = np.empty(0)


def pairs(lists: FlatArrays, *options: Any) -> None:
    """``Σ λ_ij φ(s_i - s_j)`` over the pairs ``y_i > y_j``: see :mod:`rankgrad.kernels.ops`."""
    loop, scheme = _pair_loop(PairOptions(*options), lists.max_length, lists.single)
    lists.run(loop, _NO_HESSIAN, scheme, power=2)


def pair_derivatives(lists: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian diagonal, ``[items]`` each, of every list's loss.

    :func:`rankgrad.kernels._pair_derivatives.compute` describes the arguments. Beside the kinds of
    the losses, ``options.kind`` may be "lambdarank_norm": LambdaRank as LightGBM normalizes it.
    """
    arrays = FlatArrays.of(lists)
    loop, scheme = _pair_loop(options, lists.max_length, arrays.single)
    hessian = np.zeros(lists.scores.numel())
    arrays.run(loop, hessian, scheme, power=2)
    _, gradient, _ = arrays.results()
    dtype = lists.scores.dtype
    return gradient.to(dtype), torch.from_numpy(hessian).to(dtype)


@functools.lru_cache(maxsize=16)
def _pair_loop(
    config: PairOptions, max_length: int, single: bool
) -> tuple[Callable[..., None], Scheme]:
    """The loop over lists that computes these pairs, and how it weights them."""
    swaps = config.kind.startswith("lambdarank") or config.metric in ("ap", "rr")
    bounded = config.kind.startswith("ndcg_loss") and not swaps  # the loss is LambdaLoss's bound
    # Pairs with both items past the cutoff count only in LambdaLoss@K's eq. 17 and in ARP's bound.
    everywhere = bounded and (config.truncation == "corrected" or config.metric == "arp")
    by_distance = {"ndcg_loss2": 1.0, "ndcg_loss2++": float(config.mu)}.get(config.kind, 0.0)
    weighting = (
        max_length if everywhere or config.k == 0 else config.k,
        config.k,
        float(config.sigma),
        config.kind == "ndcg_loss1",
        by_distance if bounded else 0.0,
        0.0 if bounded and config.kind == "ndcg_loss2" else 1.0,
        0.5 if config.half else 0.0,
    )
    metric = (
        METRICS[config.metric],
        config.gain == "linear",
        round_threshold(config.threshold, single),
    )
    loop = _hinge_lists if config.kind == "hinge" else _lambda_lists
    if config.kind in ("ranknet", "ndcg_loss1") and not swaps:
        loop = _ranknet_lists
    elif config.kind == "lambdarank_norm":
        loop = _normalized_lists
    return loop, (weighting, metric, _rank_tables(config, bounded, max_length))


def _rank_tables(config: PairOptions, bounded: bool, max_length: int) -> RankTables:
    """The tables by rank of a loss; equations are those of LambdaLoss@K."""
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
        # Not for eq. 15 (heuristic) and LightGBM (lambdarank_norm), which mask pairs instead.
        discount[k:] = 0.0
    return ndcg_discounts, distance_factor, lower_rank_factor, discount


# Each kind of loss has its own loop over lists, so that a first call compiles only that one.


@compiled
def _hinge_lists(first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme) -> None:
    (top_ranks, _, margin, _, _, _, _), _, _ = scheme
    _, _, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, 1.0, items, True)
        if block.size == 0:
            continue
        for i in range(min(top_ranks, items.size)):
            if hessian.size:
                _hinge_derivatives(i, margin, block)
            else:
                values[b] += _hinge_row(i, margin, block)
        _write_results(arrays, hessian, 1.0, items, block)


@compiled
def _ranknet_lists(first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme) -> None:
    """RankNet, and NDCG-Loss1, which weights pairs by the preferred item's gain and discount."""
    (top_ranks, k, sigma, by_gain, _, _, ties), (code, linear, threshold), tables = scheme
    ndcg_discounts, _, lower_rank_factor, _ = tables
    _, _, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, sigma, items, True)
        if block.size == 0:
            continue
        if by_gain:
            gains = gains_of(block[Y, : items.size], code, linear, threshold)
            norm = norm_of(gains, code, k, ndcg_discounts)
            for i in range(items.size):
                block[W, i] *= gains[i] / (norm if norm > 0 else 1.0) * ndcg_discounts[i]
        near, center = 0, 0.0
        for i in range(min(top_ranks, items.size)):
            if i == near:
                near, _, center = write_exponentials(block[Z, : items.size], i, block[E])
            _weigh_preferred(i, block, ties, lower_rank_factor)
            values[b] += _add_pairs(i, center, block, hessian.size > 0)
        _write_results(arrays, hessian, sigma, items, block)


@compiled
def _lambda_lists(first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme) -> None:
    """LambdaRank and LambdaLoss, which weight pairs by what a swap of their ranks costs."""
    (top_ranks, _, sigma, _, _, _, _), _, _ = scheme
    _, _, mask, _, offsets, values, _, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, sigma, items, True)
        if block.size == 0:
            continue
        weights = _lambda_weights(block[Y, : items.size], scheme)
        values[b] = _add_lambdas(block, weights, top_ranks, 0.0, hessian.size > 0)
        _write_results(arrays, hessian, sigma, items, block)


@compiled
def _normalized_lists(
    first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme
) -> None:
    """LambdaRank as LightGBM normalizes it (``rank_objective.hpp``).

    Each pair is divided by ``0.01 + |s_i - s_j|``, unless all scores of the list are equal. The
    list's derivatives are multiplied by ``log2(1 + Σλ) / Σλ``. The sum Σλ is over the absolute
    lambdas of all pairs, without the weights of items, and counts each pair twice, once for each of
    its items. Tied scores are ranked in input order.
    """
    weighting, _, _ = scheme
    top_ranks, sigma = weighting[0], weighting[2]
    _, _, mask, weights, offsets, _, grad_scores, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = _sorted_block(b, arrays, sigma, items, ties_by_label=False)
        if block.size == 0:  # no pair of unequal labels, so the derivatives stay 0
            continue
        pair_weights = _lambda_weights(block[Y, : items.size], scheme)
        scores_differ = block[Z, 0] > block[Z, items.size - 1]
        divisor_sigma = sigma if scores_differ else 0.0  # 0: pairs are not divided
        total = _add_lambdas(block, pair_weights, top_ranks, divisor_sigma, derivatives=True)
        if weights.size:  # the derivatives are weighted, but Σλ is not
            unweighted = block.copy()
            for i in range(items.size):
                unweighted[W, i], unweighted[E, i] = 1.0, 0.0  # as in a new block
            total = _add_lambdas(
                unweighted, pair_weights, top_ranks, divisor_sigma, derivatives=True
            )
        sum_lambdas = 2.0 * sigma * total  # Σλ; _add_lambdas omits the factor σ
        scale = sigma * (math.log2(1 + sum_lambdas) / sum_lambdas if sum_lambdas > 0 else 1.0)
        for i in range(items.size):
            grad_scores[items[i]] = scale * block[GRAD, i]
            hessian[items[i]] = scale * sigma * block[HESSIAN, i]


@compiled
def _lambda_weights(labels: Array, scheme: Scheme) -> LambdaWeights:
    """What :func:`_weigh_lambdas` takes, for a list's sorted labels."""
    (_, k, _, _, by_distance, by_change, _), (code, linear, threshold), tables = scheme
    ndcg_discounts, distance_factor, lower_rank_factor, discount = tables
    gains = gains_of(labels, code, linear, threshold)
    norm = norm_of(gains, code, k, ndcg_discounts)
    costs = _swap_costs(gains, code, k, discount)
    for i in range(gains.size):
        gains[i] /= norm if norm > 0 else 1.0
    return gains, costs, distance_factor, lower_rank_factor, by_distance, by_change


@compiled
def _sorted_block(b: int, arrays: Arrays, scale: float, items: Array, ties_by_label: bool) -> Array:
    """Sort a list's items and fill a block with their scaled scores, labels and weights.

    Items are sorted by descending score. With ``ties_by_label``, of equal scores the less relevant
    comes first; without, the earlier one. The block is empty if all labels are equal.
    """
    scores, labels, _, weights, _, _, _, defined = arrays
    for i in range(1, items.size):
        defined[b] |= labels[items[i]] != labels[items[0]]
    if not defined[b]:
        return np.zeros((0, 0))
    sort_descending(scores, items)
    if ties_by_label:
        _sort_ties(scores, labels, items)
    block = new_block(ROWS, items.size)
    for i in range(items.size):
        block[Z, i], block[Y, i] = scale * scores[items[i]], labels[items[i]]
        block[W, i] = weights[items[i]] if weights.size else 1.0
    return block


@compiled
def _sort_ties(scores: Array, labels: Array, items: Array) -> None:
    """Sort sorted items of equal scores: the less relevant one comes first."""
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
def _write_results(
    arrays: Arrays, hessian: Array, scale: float, items: Array, block: Array
) -> None:
    """Write a list's derivatives, which are equal for items of equal score, label and weight."""
    scores, labels, _, weights, _, _, grad_scores, _ = arrays
    _average_duplicates(scores, labels, weights, items, block[GRAD])
    for i in range(items.size):
        grad_scores[items[i]] = scale * block[GRAD, i]
    if hessian.size:
        _average_duplicates(scores, labels, weights, items, block[HESSIAN])
        for i in range(items.size):
            hessian[items[i]] = scale * scale * block[HESSIAN, i]


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


# Loops over an item's pairs take slices, so that the compiler knows all indices to be in range and
# vectorizes. They add the pairs' derivatives to those of both items, and write only to the block of
# memory that they read from, as compiled_reduction requires.


@compiled_reduction
def _hinge_row(i: int, margin: float, block: Array) -> float:
    """Sum the hinge of item i's pairs with those below, times the preferred item's weight.

    The hinge is ``max(0, margin - d)``, with d the preferred item's score minus the other's.
    """
    below = slice(i + 1, block.shape[1] - APART)
    z, y, w, out = block[Z, below], block[Y, below], block[W, below], block[GRAD, below]
    score, label, weight = block[Z, i], block[Y, i], block[W, i]
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
    block[GRAD, i] -= grad_sum
    return total


@compiled_reduction
def _hinge_derivatives(i: int, margin: float, block: Array) -> None:
    """Add gradient and Hessian of item i's pairs; see :meth:`rankgrad.losses.Hinge.curvature`."""
    below = slice(i + 1, block.shape[1] - APART)
    z, y, w = block[Z, below], block[Y, below], block[W, below]
    gradient, hessian = block[GRAD, below], block[HESSIAN, below]
    score, label, weight = block[Z, i], block[Y, i], block[W, i]
    grad_sum, hessian_sum = 0.0, 0.0
    for j in range(z.size):
        difference = score - z[j]
        right = weight if label > y[j] else 0.0
        wrong = w[j] if label < y[j] else 0.0
        change = (right if difference < margin else 0.0) - wrong
        bend = 0.5 * (right / max(abs(margin - difference), margin) + wrong / (margin + difference))
        grad_sum += change
        hessian_sum += bend
        gradient[j] += change
        hessian[j] += bend
    block[GRAD, i] -= grad_sum
    block[HESSIAN, i] += hessian_sum


@compiled_borrowing
def _weigh_preferred(i: int, block: Array, ties: float, lower_rank_factor: Array) -> None:
    """Write the weights RIGHT and WRONG of item i's pairs, by the preferred item's weight.

    The factor by the lower item's rank multiplies both. A pair of equal labels counts ``ties``
    times each way.
    """
    below = slice(i + 1, block.shape[1] - APART)
    y, w, right, wrong = block[Y, below], block[W, below], block[RIGHT, below], block[WRONG, below]
    label, weight, factor = block[Y, i], block[W, i], lower_rank_factor[below]
    for j in range(y.size):
        equal = ties if label == y[j] else 0.0
        right[j] = (1.0 if label > y[j] else equal) * weight * factor[j]
        wrong[j] = (1.0 if label < y[j] else equal) * w[j] * factor[j]


@compiled
def _add_lambdas(
    block: Array, weights: LambdaWeights, top_ranks: int, sigma: float, derivatives: bool
) -> float:
    """Add up the pairs of a list, weighted by :func:`_weigh_lambdas`; see :func:`_add_pairs`.

    If ``sigma`` is not 0, each pair is divided by ``0.01 + s_i - s_j``, for scores ``s = z / σ``,
    as in LightGBM with ``lambdarank_norm``.
    """
    n = block.shape[1] - APART
    near, center, total = 0, 0.0, 0.0
    for i in range(min(top_ranks, n)):
        if i == near:
            near, _, center = write_exponentials(block[Z, :n], i, block[E])
        _weigh_lambdas(i, block, weights, sigma)
        total += _add_pairs(i, center, block, derivatives)
    return total


@compiled_borrowing
def _weigh_lambdas(i: int, block: Array, weights: LambdaWeights, sigma: float) -> None:
    """Write the weights RIGHT and WRONG of item i's pairs: gain difference times cost of a swap.

    For ``sigma`` see :func:`_add_lambdas`.
    """
    gains, costs, distance_factor, lower_rank_factor, by_distance, by_change = weights
    below = slice(i + 1, block.shape[1] - APART)
    y, w, right, wrong = block[Y, below], block[W, below], block[RIGHT, below], block[WRONG, below]
    lower_gains, lower, rank_factor = gains[below], costs[_L, below], lower_rank_factor[below]
    z, score, label, weight, gain = block[Z, below], block[Z, i], block[Y, i], block[W, i], gains[i]
    upper, factor = costs[_U, i], costs[_F, i]
    for j in range(right.size):
        cost = by_distance * (distance_factor[j] * rank_factor[j])
        cost += by_change * abs(upper - factor * lower[j])
        cost *= abs(gain - lower_gains[j])
        if sigma > 0:
            cost *= sigma / (0.01 * sigma + score - z[j])
        right[j] = cost * weight if label > y[j] else 0.0
        wrong[j] = cost * w[j] if label < y[j] else 0.0


@compiled_borrowing
def _add_pairs(i: int, center: float, block: Array, derivatives: bool) -> float:
    """Add the logistic pairs of item i to the derivatives; return the sum of their values.

    With ``derivatives`` it adds to the Hessian, too, and returns the sum of absolute first
    derivatives. ``center`` is that of :func:`write_exponentials`.
    """
    inverse = exp(center - block[Z, i])
    if derivatives:
        return _logistic_derivatives(i, inverse, block)
    return _logistic_row(i, inverse, block)


@compiled
def _pairs_below(i: int, block: Array) -> slice:
    """The items below item i, up to a whole vector; past the last, weights are 0."""
    return slice(i + 1, i + 1 + whole_vectors(block.shape[1] - APART - i - 1))


@compiled_reduction
def _logistic_row(i: int, inverse: float, block: Array) -> float:
    """The sum of the pairs of item i with the items j below it.

    With ``x = exp(z_j - z_i)`` the value is ``log(1 + x)`` if i is preferred, and
    ``log(1 + x) + z_i - z_j`` if j is. Where :func:`write_exponentials` writes 0, for items far
    below i, x is 0.
    """
    below = _pairs_below(i, block)
    z, e, right, wrong = block[Z, below], block[E, below], block[RIGHT, below], block[WRONG, below]
    score, out = block[Z, i], block[GRAD, below]
    total, grad_sum = 0.0, 0.0
    for j in range(z.size):
        x = e[j] * inverse
        both = 1.0 / ((1.0 + x) * (2.0 + x))  # one division for 1 / (1 + x) and 1 / (2 + x)
        weight = right[j] + wrong[j]
        total += weight * log_one_plus(x, both * (1.0 + x)) + wrong[j] * (score - z[j])
        change = (right[j] * x - wrong[j]) * (both * (2.0 + x))
        grad_sum += change
        out[j] += change
    block[GRAD, i] -= grad_sum
    return total


@compiled_reduction
def _logistic_derivatives(i: int, inverse: float, block: Array) -> float:
    """Add gradient and Hessian of item i's pairs; return the sum of absolute first derivatives."""
    below = _pairs_below(i, block)
    e, right, wrong = block[E, below], block[RIGHT, below], block[WRONG, below]
    gradient, hessian = block[GRAD, below], block[HESSIAN, below]
    total, grad_sum, hessian_sum = 0.0, 0.0, 0.0
    for j in range(e.size):
        x = e[j] * inverse
        probability = 1.0 / (1.0 + x)
        change = (right[j] * x - wrong[j]) * probability
        bend = (right[j] + wrong[j]) * max(x * probability * probability, _LEAST)
        total += abs(change)
        grad_sum += change
        hessian_sum += bend
        gradient[j] += change
        hessian[j] += bend
    block[GRAD, i] -= grad_sum
    block[HESSIAN, i] += hessian_sum
    return total


@compiled
def _average_duplicates(
    scores: Array, labels: Array, weights: Array, items: Array, out: Array
) -> None:
    """Give items of equal score, label and weight the mean of their derivatives ``out``.

    Args:
        scores: ``[N]``.
        labels: ``[N]``.
        weights: ``[N]`` or empty.
        items: ``[n]``, the indices of a list's sorted items.
        out: ``[n]`` or more, by sorted item; overwritten.
    """
    start = 0
    for i in range(1, items.size + 1):
        if i < items.size:
            item, leader = items[i], items[start]
            if scores[item] == scores[leader] and labels[item] == labels[leader]:
                continue
        if i - start > 1:
            _average_run(weights, items[start:i], out[start:i])
        start = i


@compiled
def _average_run(weights: Array, items: Array, out: Array) -> None:
    """Average the derivatives of items of equal weight, among items of equal score and label."""
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
