"""ListMLE by one sort and two cumulative sums: one for the loss and one for its gradient."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.cpu._arithmetic import exp, log, total
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, real_items, take
from rankgrad.kernels.cpu._list_sort import indices, sort_by_label, sort_descending

MAX_RANGE = 300.0  # of scores: e^-300 is 5e-131, far from underflow, and 1 / t from overflow


def listmle(lists: FlatArrays, seed: Tensor | None) -> None:
    """``Σ_r w_r (log Σ_{l>=r} exp(s_(l)) - s_(r))``, items by descending label.

    Args:
        lists: the batch; values, gradients and ``defined`` are written to its arrays.
        seed: a scalar, of the random order of items with equal labels; None if they keep the order
            of the list.
    """
    n_shuffled = 0 if seed is None else lists.max_length
    lists.run(_lists, n_shuffled, 0 if seed is None else int(seed))


@compiled
def _lists(first: int, last: int, arrays: Arrays, n_shuffled: int, seed: int) -> None:
    """Compute the lists ``first:last``; ``n_shuffled`` is 0, or a bound of the lists' lengths."""
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    order = _random_order(seed, n_shuffled)
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        defined[b] = items.size > 1
        if not defined[b]:
            continue
        # The random order of a list's positions is the same, whether drawn for this list or taken
        # from the order of n_shuffled positions. For a short list, drawing it again is faster than
        # skipping all further positions. Sorting by label is stable: ties keep this order.
        if order.size > 16 * items.size:
            items = _reordered(items, _random_order(seed, items.size))
        elif order.size:
            items = _reordered(items, order)
        sort_by_label(labels, items)
        s, w = take(scores, items), take(weights, items)
        values[b] = _negative_log_likelihood(s, w)
        for i in range(items.size):
            grad_scores[items[i]] = s[i]


@compiled
def _random_order(seed: int, n: int) -> Array:
    """A random order of n positions, by SplitMix64 of seed and position (Steele et al. 2014)."""
    numbers, order = np.empty(n), indices(n)
    for position in range(n):
        x = np.uint64(seed) + np.uint64(position + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        numbers[position] = np.float64(x >> np.uint64(32))  # as kernels/gpu/_listmle.py
    sort_descending(numbers, order)
    return order


@compiled
def _reordered(items: Array, order: Array) -> Array:
    """Items permuted by a random order of positions; positions past the list's end are skipped."""
    # Without branches: the next item overwrites one that is skipped. The last entry takes those
    # that are skipped after all items.
    permuted, count = np.empty(items.size + 1, np.int64), 0
    for position in order:
        permuted[count] = items[min(position, items.size - 1)]
        count += position < items.size
    return permuted[:-1]


@compiled
def _negative_log_likelihood(s: Array, w: Array) -> float:
    """The loss ``Σ_r w_r (log t_r - s_r)`` of sorted scores; its gradient replaces the scores.

    With ``t_r = Σ_{l>=r} exp(s_l)`` the gradient is ``exp(s_l) Σ_{r<=l} w_r / t_r - w_l``. So t is
    a cumulative sum from the end, and the gradient needs one from the start.
    """
    n, lowest, highest = s.size, s[0], s[0]
    for i in range(n):
        lowest, highest = min(lowest, s[i]), max(highest, s[i])
    if highest - lowest > MAX_RANGE:
        return _in_log_domain(s, w)
    exponentials, tails = np.empty(n), np.empty(n)
    for i in range(n):
        exponentials[i] = exp(s[i] - highest)
    tail = 0.0
    for i in range(n - 1, -1, -1):
        tail += exponentials[i]
        tails[i] = tail
    for i in range(n):
        s[i] = w[i] * (log(tails[i]) - (s[i] - highest))  # terms of the loss, until summed
        tails[i] = w[i] / tails[i]  # from here on w_r / t_r
    value, prefix = total(s), 0.0
    for i in range(n):
        prefix += tails[i]
        s[i] = exponentials[i] * prefix - w[i]
    return value


@compiled
def _in_log_domain(s: Array, w: Array) -> float:
    """The same for scores of any range; ``tails`` are ``log t_r``.

    ``Σ_{r<=i} w_r / t_r`` may overflow. This sum times ``t_i`` does not: t decreases, so it is at
    most ``Σ w``.
    """
    n = s.size
    tails = np.empty(n)
    tail, value = s[n - 1], 0.0
    for i in range(n - 1, -1, -1):
        if i < n - 1:
            tail = max(tail, s[i]) + math.log1p(math.exp(-abs(tail - s[i])))
        tails[i] = tail
        value += w[i] * (tail - s[i])
    scaled_prefix = 0.0
    for i in range(n):
        if i:
            scaled_prefix *= math.exp(tails[i] - tails[i - 1])
        scaled_prefix += w[i]
        s[i] = scaled_prefix * math.exp(s[i] - tails[i]) - w[i]
    return value
