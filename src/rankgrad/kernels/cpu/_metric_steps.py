"""Metrics independent of the relaxation: loss and gradient from sorted gains or relaxed ranks.

Each step is a loop over the lists ``first:last``. It reads and writes a block of rows; a row holds
the number of rank (or sorted item) r of list b at ``offsets[b] + r``. A list on which the loss is
undefined has count 0.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._arithmetic import dot, total
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import (
    AP,
    APART,
    ARP,
    DCG,
    ERR,
    HITS,
    RBP,
    SPEARMAN,
    Array,
    Arrays,
    Metric,
    any_relevant,
    beyond_cutoff,
    find_items,
    gains_of,
    indices,
    norm_of,
    sort_by_label,
    sort_descending,
    take,
)
from rankgrad.kernels.cpu._pair_sums import (
    FACTORS,
    GRADS,
    POINTS,
    SUMS,
    pair_block,
    sigmoid_sums,
    sigmoid_sums_adjoint,
)

#: Rows of a block: gains and weighted gains of items; their values sorted by rank (or, in place of
#: the sorted gains, the relaxed ranks of items); and the loss's derivatives with respect to them.
GAINS, WEIGHTED, SORTED, GRAD, WEIGHTED_SORTED, WEIGHTED_GRAD = range(6)
RANKS = SORTED
ROWS = 6

#: Sorted lists: the items of each list in order, the number of items per list (0 if the loss is
#: undefined there), and the norm of each list.
Ranked = tuple[Array, Array, Array]


@compiled
def start_metric(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    block: Array,
    in_order: bool,
) -> None:
    """Find the items of each list, sort them if ``in_order``, and write their gains and the norm.

    The derivatives of a linear metric with respect to the sorted gains do not depend on these, so
    this also writes those derivatives.
    """
    scores, labels, mask, weights, offsets, _, _, defined = arrays
    order, counts, norms = ranked
    code, k, linear, threshold, _, discount = metric
    for b in range(first, last):
        start = offsets[b]
        n = find_items(mask, start, offsets[b + 1], order[start:])
        items = order[start : start + n]
        if in_order:
            sort_descending(scores, items)
        w = take(weights, items)
        gains = gains_of(take(labels, items), code, linear, threshold)
        defined[b] = n > 1 and any_relevant(gains, w)
        counts[b] = n if defined[b] else 0
        if not defined[b]:
            continue
        for i in range(n):
            block[GAINS, start + i] = gains[i]
            gains[i] *= w[i]
            block[WEIGHTED, start + i] = gains[i]
        norm = norm_of(gains, code, k, discount)
        norms[b] = norm if norm > 0 else np.inf
        if code <= ARP:
            beyond, sign = beyond_cutoff(code, k, n), 1.0 if code == ARP else -1.0
            for r in range(n if k == 0 else min(k, n)):
                block[GRAD, start + r] = sign * (discount[r] - beyond) / norms[b]


@compiled
def start_spearman(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    block: Array,
    in_order: bool,
) -> None:
    """:func:`start_metric` of spearman, which is linear in the ranks r by score.

    With ranks q by label it is ``Σ_i w_i (q_i - mean q) r_i``, divided by the norm of ranks without
    ties. So ``w_i (q_i - mean q)`` are the gains.
    """
    scores, labels, mask, weights, offsets, _, _, defined = arrays
    order, counts, norms = ranked
    for b in range(first, last):
        start = offsets[b]
        n = find_items(mask, start, offsets[b + 1], order[start:])
        items = order[start : start + n]
        sort_descending(scores, items)
        w, gains = take(weights, items), block[WEIGHTED, start : start + n]
        defined[b] = _mean_ranks(take(labels, items), w, gains)
        counts[b] = n if defined[b] else 0
        if not defined[b]:
            continue
        by_label, by_score, weight = 0.0, 0.0, total(w)
        for i in range(n):
            by_label += w[i] * gains[i] / weight
            by_score += w[i] * i / weight
        of_labels, of_scores = 0.0, 0.0
        for i in range(n):
            gains[i] -= by_label
            of_labels += w[i] * gains[i] * gains[i]
            of_scores += w[i] * (i - by_score) * (i - by_score)
            gains[i] *= w[i]
        norms[b] = math.sqrt(of_labels) * math.sqrt(of_scores)


@compiled
def _mean_ranks(labels: Array, weights: Array, ranks: Array) -> bool:
    """Write the ranks by descending label, tied ones their mean; whether two that weigh differ."""
    n, start, groups = labels.size, 0, 0
    order = indices(n)
    sort_by_label(labels, order)
    while start < n:
        end, weight = start, 0.0
        while end < n and labels[order[end]] == labels[order[start]]:
            weight += weights[order[end]]
            end += 1
        for i in range(start, end):
            ranks[order[i]] = (start + end + 1) / 2.0
        groups += weight > 0
        start = end
    return groups > 1


@compiled
def finish_linear(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    block: Array,
) -> None:
    """The loss of a linear metric from sorted gains."""
    offsets, values = arrays[4], arrays[5]
    _, counts, norms = ranked
    code, k = metric[0], metric[1]
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        end = start + (n if k == 0 else min(k, n))
        value = dot(block[GRAD, start:end], block[SORTED, start:end])
        beyond = beyond_cutoff(code, k, n)
        if beyond > 0:
            value += beyond * total(block[WEIGHTED, start : start + n]) / norms[b]
        values[b] = value if code == ARP else 1.0 + value


@compiled
def step_sorted(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    block: Array,
) -> None:
    """The loss of ap, rr, err or hits from sorted gains, and its derivatives."""
    weights, offsets, values = arrays[3], arrays[4], arrays[5]
    _, counts, norms = ranked
    code, k, _, _, _, discount = metric
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        end = start + (n if k == 0 else min(k, n))
        gains, grad = block[SORTED, start:end], block[GRAD, start:end]
        weighted = block[WEIGHTED_SORTED if weights.size else SORTED, start:end]
        weighted_grad = block[WEIGHTED_GRAD, start:end]
        if code == AP:
            value = _average_precision(gains, weighted, discount, norms[b], grad, weighted_grad)
        else:
            value = _cascade(gains, weighted, discount, grad, weighted_grad)
        values[b] = 1.0 - value
        if weights.size == 0:
            for r in range(grad.size):
                grad[r] += weighted_grad[r]


@compiled
def _average_precision(
    gains: Array, weighted: Array, discount: Array, norm: float, grad: Array, weighted_grad: Array
) -> float:
    """``Σ_r u_r (Σ_{l<=r} v_l) / r`` divided by the norm, and the derivatives of the loss.

    v are the sorted gains and u the sorted weighted gains.
    """
    value, count = 0.0, 0.0
    for r in range(gains.size):
        count += gains[r]
        precision = count * discount[r] / norm
        value += weighted[r] * precision
        weighted_grad[r] = -precision
    later = 0.0
    for r in range(gains.size - 1, -1, -1):
        later += weighted[r] * discount[r] / norm
        grad[r] = -later
    return value


@compiled
def _cascade(
    stops: Array, weighted: Array, discount: Array, grad: Array, weighted_grad: Array
) -> float:
    """``Σ_r u_r discount_r Π_{l<r} (1 - min(v_l, 1))``, and the derivatives of the loss.

    The derivative with respect to v_l is a product over the other factors, so there is no division
    by ``1 - v_l``, which may be 0.
    """
    value, passed = 0.0, 1.0
    for r in range(stops.size):
        value += weighted[r] * discount[r] * passed
        weighted_grad[r] = -passed * discount[r]
        grad[r] = passed if stops[r] <= 1.0 else 0.0
        passed *= 1.0 - min(stops[r], 1.0)
    later = 0.0
    for r in range(stops.size - 1, -1, -1):
        grad[r] *= later
        later = weighted[r] * discount[r] + (1.0 - min(stops[r], 1.0)) * later
    return value


@compiled
def inside_cutoff(rank: float, k: int, beta: float) -> tuple[float, float, float]:
    """The relaxed ``1[rank <= k]``, one minus it, and its derivative.

    With ``d = rank - k - 1/2`` it is ``sigmoid(-beta d)`` up to the cutoff, and past it
    ``(1 + d / 4)^(-2 beta) / 2``, which does not underflow far down long lists.
    """
    x = beta * (k + 0.5 - rank)
    if x >= 0:
        small = math.exp(-x)
        inside = 1.0 / (1.0 + small)
        return inside, small * inside, -beta * small * inside * inside
    farther = 1.0 + 0.25 * (rank - k - 0.5)
    inside = 0.5 * math.exp(-2.0 * beta * math.log(farther))
    return inside, 1.0 - inside, -beta * 0.5 * inside / farther


@compiled
def capped(rank: float, k: int) -> float:
    """The rank at which the discount is evaluated, at most ``k + 0.75`` with a cutoff k."""
    return min(rank, k + 0.75) if k > 0 else rank


@compiled
def step_linear_ranks(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    beta: float,
    block: Array,
) -> None:
    """The loss of a linear metric or of spearman from relaxed ranks, and its derivatives."""
    offsets, values = arrays[4], arrays[5]
    _, counts, norms = ranked
    code, k, _, _, persistence, _ = metric
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        beyond, value = beyond_cutoff(code, k, n), 0.0
        scale = (1.0 if code == ARP else -1.0) / norms[b]
        for i in range(start, start + n):
            rank = capped(block[RANKS, i], k)
            if code <= DCG:
                discount = math.log(2.0) / math.log(1.0 + rank)
                change = -discount * discount / (math.log(2.0) * (1.0 + rank))
            elif code == RBP:
                discount = (1.0 - persistence) * persistence ** (rank - 1.0)
                change = discount * math.log(persistence)
            else:
                discount, change = (rank, 1.0) if code in (ARP, SPEARMAN) else (1.0, 0.0)
            if 0 < k < n:
                inside, outside, drop = inside_cutoff(block[RANKS, i], k, beta)
                if rank < block[RANKS, i]:
                    change = 0.0
                change = inside * change + drop * (discount - beyond)
                discount = inside * discount + outside * beyond
            value += block[WEIGHTED, i] * discount
            block[GRAD, i] = scale * block[WEIGHTED, i] * change
        values[b] = scale * value + (0.0 if code == ARP else 1.0)


@compiled
def step_ranks(
    first: int,
    last: int,
    arrays: Arrays,
    ranked: Ranked,
    metric: Metric,
    beta: float,
    block: Array,
) -> None:
    """The loss of ap, rr, err or hits from relaxed ranks, and its derivatives.

    All sums are over the items with a positive gain, in the order of their ranks.
    """
    labels, offsets, values = arrays[1], arrays[4], arrays[5]
    order, counts, norms = ranked
    code = metric[0]
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        found, top = 0, metric[3]
        relevant = np.empty(n, np.int64)
        for i in range(start, start + n):
            top = max(top, labels[order[i]])
            block[GRAD, i] = 0.0
            relevant[found] = i
            found += block[GAINS, i] > 0
        pairs = pair_block(found)
        for i in range(found):
            at = relevant[i]
            pairs[POINTS, i] = -beta * block[RANKS, at]
            if code == ERR:
                pairs[FACTORS, i] = _log_miss(labels[order[at]], top, block[GAINS, at])
        if code in (AP, ERR):
            values[b] = _step_pairs(n, relevant, metric, beta, norms[b], pairs, block)
        else:
            values[b] = _step_first(n, relevant, metric, beta, pairs, block)


@compiled
def _log_miss(label: float, top: float, stop: float) -> float:
    """``log(1 - stop)`` of err, finite even if the stop probability rounds to 1."""
    if stop < 0.5:
        return math.log1p(-stop)
    return math.log(np.exp2(-top) - math.expm1((label - top) * math.log(2.0)))


@compiled
def _discount(rank: float, n: int, metric: Metric, beta: float) -> tuple[float, float]:
    """The discount of a relaxed rank within the cutoff, and its derivative."""
    code, k = metric[0], metric[1]
    near = capped(rank, k)
    discount = 1.0 if code == HITS else 1.0 / near
    change = 0.0 if code == HITS or near < rank else -discount * discount
    if 0 < k < n:
        inside, _, drop = inside_cutoff(rank, k, beta)
        change = inside * change + drop * discount
        discount *= inside
    return discount, change


@compiled
def _step_pairs(
    n: int,
    relevant: Array,
    metric: Metric,
    beta: float,
    norm: float,
    pairs: Array,
    block: Array,
) -> float:
    """The loss of ap or err, and its derivatives with respect to the ranks.

    The metric is ``Σ_i u_i discount_i (1 + S_i)`` divided by the norm for ap, and
    ``Σ_i u_i discount_i exp(S_i)`` for err, where u are the weighted gains and
    ``S_i = Σ_{j≠i} v_j sigmoid(beta (rank_i - rank_j))``. v is the gain for ap, ``log(1 - stop)``
    for err.
    """
    value = 0.0
    sigmoid_sums(pairs)
    for i in range(pairs.shape[1] - APART):
        at = relevant[i]
        discount, change = _discount(block[RANKS, at], n, metric, beta)
        weight, factor = block[WEIGHTED, at] / norm, math.exp(pairs[SUMS, i])
        grad = discount * weight * factor
        if metric[0] == AP:
            factor, grad = 1.0 + pairs[SUMS, i], discount * weight
        value += discount * weight * factor
        block[GRAD, at] = -weight * change * factor
        pairs[GRADS, i] = grad
    sigmoid_sums_adjoint(pairs)
    for i in range(pairs.shape[1] - APART):
        block[GRAD, relevant[i]] += beta * pairs[SUMS, i]
    return 1.0 - value


@compiled
def _step_first(
    n: int, relevant: Array, metric: Metric, beta: float, pairs: Array, block: Array
) -> float:
    """The loss of rr or hits, ``1 - Σ_i softmax(-beta rank)_i u_i discount_i``, and derivatives.

    The softmax over relevant items relaxes the choice of the first one.
    """
    value, normalizer, lowest = 0.0, 0.0, pairs[POINTS, 0]
    found = pairs.shape[1] - APART
    for i in range(found):
        lowest = max(lowest, pairs[POINTS, i])
    for i in range(found):
        at = relevant[i]
        discount, change = _discount(block[RANKS, at], n, metric, beta)
        probability = math.exp(pairs[POINTS, i] - lowest)
        normalizer += probability
        value += probability * discount * block[WEIGHTED, at]
        pairs[GRADS, i] = probability
        pairs[SUMS, i] = discount * block[WEIGHTED, at]
        block[GRAD, at] = change * block[WEIGHTED, at]
    value /= normalizer
    for i in range(found):
        change = block[GRAD, relevant[i]] - beta * (pairs[SUMS, i] - value)
        block[GRAD, relevant[i]] = -change * pairs[GRADS, i] / normalizer
    return 1.0 - value
