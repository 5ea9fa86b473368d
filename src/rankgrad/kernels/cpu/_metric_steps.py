"""Metrics independent of the relaxation: loss and gradient from sorted gains or relaxed ranks.

Each function without an underscore is a loop over the lists ``first:last``. It reads and writes the
rows of a block ``[ROWS, items + APART]``; a row holds the number of rank (or sorted item) r of list
b at ``offsets[b] + r``. A list on which the loss is undefined has count 0.

*Linear* metrics, those with a code up to ``ARP``, are a sum of gains times discounts. The loss is
1 - metric, or the metric itself for arp, of which less is better.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._arithmetic import dot, total
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import APART, Array, Arrays, find_items, take
from rankgrad.kernels.cpu._list_sort import indices, sort_by_label, sort_descending
from rankgrad.kernels.cpu._metric_terms import (
    AP,
    ARP,
    DCG,
    ERR,
    RBP,
    RR,
    SPEARMAN,
    Metric,
    any_relevant,
    beyond_cutoff,
    gains_of,
    norm_of,
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

#: Rows of a block, and their number. Through a permutation: the gains of items, the gains sorted by
#: the permutation, and the loss's derivatives with respect to the sorted gains; then the same three
#: of weighted gains.
GAINS, SORTED, GRAD, WEIGHTED, WEIGHTED_SORTED, WEIGHTED_GRAD, ROWS = range(7)
VALUES = GAINS  # what a permutation sorts: the first of three rows, of gains or of weighted gains
#: Through ranks, in place of sorted gains: relaxed ranks, and two rows that their adjoint needs.
RANKS, STATE = SORTED, WEIGHTED_SORTED

#: Sorted lists: the items of each list in order, the number of items per list (0 if the loss is
#: undefined there), the norm of each list, and the block.
Ranked = tuple[Array, Array, Array, Array]


@compiled
def start_metric(
    first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric, in_order: bool
) -> None:
    """Find the items of each list, sort them if ``in_order``, and write their gains and the norm.

    The derivatives of a linear metric with respect to the sorted gains do not depend on the gains,
    so this also writes the derivatives.
    """
    scores, labels, mask, weights, offsets, _, _, defined = arrays
    order, counts, norms, block = ranked
    code, k, linear, threshold, _, discount = metric
    for b in range(first, last):
        items = _order_items(scores, mask, offsets[b], offsets[b + 1], order, in_order)
        start, n, w = offsets[b], items.size, take(weights, items)
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
            # Σ_r d_r v_r = Σ_{r<=k} (d_r - beyond) v_r + beyond Σ_r v_r, for discounts d and sorted
            # gains v: finish_linear adds the last term, which does not depend on the order.
            beyond, sign = beyond_cutoff(code, k, n), 1.0 if code == ARP else -1.0
            for r in range(n if k == 0 else min(k, n)):
                block[WEIGHTED_GRAD, start + r] = sign * (discount[r] - beyond) / norms[b]


@compiled
def _order_items(
    scores: Array, mask: Array, first: int, last: int, order: Array, in_order: bool
) -> Array:
    """Write and return the items of a list, by descending score if ``in_order``."""
    items = order[first : first + find_items(mask, first, last, order[first:])]
    if in_order:
        sort_descending(scores, items)
    return items


@compiled
def start_spearman(
    first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric, in_order: bool
) -> None:
    """:func:`start_metric` of spearman; separate, so that other metrics need not compile it."""
    scores, labels, mask, weights, offsets, _, _, defined = arrays
    order, counts, norms, block = ranked
    for b in range(first, last):
        items = _order_items(scores, mask, offsets[b], offsets[b + 1], order, in_order)
        gains = block[WEIGHTED, offsets[b] : offsets[b] + items.size]
        norms[b] = _spearman_gains(take(labels, items), take(weights, items), gains)
        defined[b] = norms[b] > 0
        counts[b] = items.size if defined[b] else 0


@compiled
def _spearman_gains(labels: Array, w: Array, gains: Array) -> float:
    """Write the gains of spearman, which is linear in the ranks r by score; return its norm.

    With ranks q by label it is ``Σ_i w_i (q_i - mean q) r_i``, divided by the norm. So the gains
    are ``w_i (q_i - mean q)``. The norm is the product of the weighted deviations of q and of the
    exact ranks by score, which are the positions of the sorted items. It is 0 where spearman is
    undefined.

    Args:
        labels: of the items by descending score, ``[n]``.
        w: the weights of the items, ``[n]``.
        gains: where the gains are written, ``[n]``.
    """
    if not _mean_ranks(labels, w, gains):
        return 0.0
    mean_rank, mean_position, weight = 0.0, 0.0, total(w)
    for i in range(gains.size):
        mean_rank += w[i] * gains[i] / weight
        mean_position += w[i] * i / weight
    rank_squares, position_squares = 0.0, 0.0
    for i in range(gains.size):
        gains[i] -= mean_rank
        rank_squares += w[i] * gains[i] * gains[i]
        position_squares += w[i] * (i - mean_position) * (i - mean_position)
        gains[i] *= w[i]
    return math.sqrt(rank_squares) * math.sqrt(position_squares)


@compiled
def _mean_ranks(labels: Array, weights: Array, ranks: Array) -> bool:
    """Write the ranks by descending label, where tied items have the mean of their ranks.

    Returns:
        Whether two items of positive weight have unequal labels.
    """
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
def finish_linear(first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric) -> None:
    """The loss of a linear metric from sorted weighted gains."""
    _, _, _, _, offsets, values, _, _ = arrays
    _, counts, norms, block = ranked
    code, k, _, _, _, _ = metric
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        end = start + (n if k == 0 else min(k, n))
        value = dot(block[WEIGHTED_GRAD, start:end], block[WEIGHTED_SORTED, start:end])
        beyond = beyond_cutoff(code, k, n)
        if beyond > 0:
            value += beyond * total(block[WEIGHTED, start : start + n]) / norms[b]
        values[b] = value if code == ARP else 1.0 + value


@compiled
def step_sorted(first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric) -> None:
    """The loss of ap, rr, err or hits from sorted gains, and its derivatives."""
    _, _, _, weights, offsets, values, _, _ = arrays
    _, counts, norms, block = ranked
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
    """``Σ_r u_r (Σ_{l<=r} v_l) / r`` divided by the norm; write the derivatives of the loss.

    v are the sorted gains and u the sorted weighted gains. The discounts are ``1 / r``.
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
    """``Σ_r u_r discount_r Π_{l<r} (1 - min(v_l, 1))``; write the derivatives of the loss.

    v are the sorted gains, the probabilities that a user stops at a rank (``stops``), and u the
    sorted weighted gains. The derivative with respect to v_l is a product over the other factors,
    so there is no division by ``1 - v_l``, which may be 0.
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
def _inside_cutoff(rank: float, k: int, beta: float) -> tuple[float, float, float]:
    """The relaxed ``1[rank <= k]``, one minus it, and its derivative.

    With ``d = rank - k - 1/2`` it is ``sigmoid(-beta d)`` up to the cutoff, and past it
    ``(1 + d / 4)^(-2 beta) / 2``, which does not underflow far down long lists. See
    :func:`rankgrad.metrics.linear.soft_inside`.
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
def _discount(rank: float, n: int, metric: Metric, beta: float) -> tuple[float, float]:
    """The discount of a relaxed rank in a list of n items, and its derivative.

    With a cutoff k it is evaluated at rank ``k + 0.75`` at most, for the reasons in
    :func:`rankgrad.metrics.linear.clamp_ranks`.
    """
    code, k, _, _, persistence, _ = metric
    near = min(rank, k + 0.75) if k > 0 else rank
    if code <= DCG:
        discount = math.log(2.0) / math.log(1.0 + near)
        change = -discount * discount / (math.log(2.0) * (1.0 + near))
    elif code == RBP:
        discount = (1.0 - persistence) * persistence ** (near - 1.0)
        change = discount * math.log(persistence)
    elif code in (AP, RR, ERR):
        discount = 1.0 / near
        change = -discount * discount
    else:
        discount, change = (near, 1.0) if code in (ARP, SPEARMAN) else (1.0, 0.0)
    if 0 < k < n:
        beyond = beyond_cutoff(code, k, n)
        inside, outside, drop = _inside_cutoff(rank, k, beta)
        change = inside * (change if near == rank else 0.0) + drop * (discount - beyond)
        discount = inside * discount + outside * beyond
    return discount, change


@compiled
def step_linear_ranks(
    first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric, beta: float
) -> None:
    """The loss of a linear metric or of spearman from relaxed ranks, and its derivatives."""
    _, _, _, _, offsets, values, _, _ = arrays
    _, counts, norms, block = ranked
    is_arp = metric[0] == ARP
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        scale, value = (1.0 if is_arp else -1.0) / norms[b], 0.0
        for i in range(start, start + n):
            discount, change = _discount(block[RANKS, i], n, metric, beta)
            value += block[WEIGHTED, i] * discount
            block[GRAD, i] = scale * block[WEIGHTED, i] * change
        values[b] = scale * value + (0.0 if is_arp else 1.0)


@compiled
def step_ranks(
    first: int, last: int, arrays: Arrays, ranked: Ranked, metric: Metric, beta: float
) -> None:
    """The loss of ap, rr, err or hits from relaxed ranks, and its derivatives.

    All sums are over the items with a positive gain, in the order of their ranks.
    """
    _, labels, _, _, offsets, values, _, _ = arrays
    order, counts, norms, block = ranked
    code, _, _, threshold, _, _ = metric
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        n_relevant, top = 0, threshold
        relevant = np.empty(n, np.int64)
        for i in range(start, start + n):
            top = max(top, labels[order[i]])
            block[GRAD, i] = 0.0
            relevant[n_relevant] = i  # overwritten by the next item unless this one has a gain
            n_relevant += block[GAINS, i] > 0
        pairs = pair_block(n_relevant)
        for i in range(n_relevant):
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
    """``log(1 - stop)`` of err, finite even if the stop probability rounds to 1.

    The probability is ``stop = (2^label - 1) / 2^top``.
    """
    if stop < 0.5:
        return math.log1p(-stop)
    return math.log(np.exp2(-top) - math.expm1((label - top) * math.log(2.0)))


@compiled
def _step_pairs(
    n: int, relevant: Array, metric: Metric, beta: float, norm: float, pairs: Array, block: Array
) -> float:
    """The loss of ap or err, and its derivatives with respect to the ranks.

    The metric is ``Σ_i u_i discount_i (1 + S_i)`` divided by the norm for ap, and
    ``Σ_i u_i discount_i exp(S_i)`` for err, where u are the weighted gains and
    ``S_i = Σ_{j≠i} v_j sigmoid(beta (rank_i - rank_j))``. v is the gain for ap, which is 1, and
    ``log(1 - stop)`` for err.
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

    The softmax over relevant items relaxes the choice of the first one. The row ``GRADS`` of
    ``pairs`` holds the numerators of the softmax, and the row ``SUMS`` holds ``u_i discount_i``.
    """
    value, normalizer, highest = 0.0, 0.0, pairs[POINTS, 0]
    n_relevant = pairs.shape[1] - APART
    for i in range(n_relevant):
        highest = max(highest, pairs[POINTS, i])
    for i in range(n_relevant):
        at = relevant[i]
        discount, change = _discount(block[RANKS, at], n, metric, beta)
        numerator = math.exp(pairs[POINTS, i] - highest)
        normalizer += numerator
        value += numerator * discount * block[WEIGHTED, at]
        pairs[GRADS, i] = numerator
        pairs[SUMS, i] = discount * block[WEIGHTED, at]
        block[GRAD, at] = change * block[WEIGHTED, at]
    value /= normalizer
    for i in range(n_relevant):
        change = block[GRAD, relevant[i]] - beta * (pairs[SUMS, i] - value)
        block[GRAD, relevant[i]] = -change * pairs[GRADS, i] / normalizer
    return 1.0 - value
