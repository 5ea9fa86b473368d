"""ListMLE by one sort, one backward and one forward scan."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.cpu._arithmetic import exp, log, total
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import (
    Array,
    Arrays,
    FlatArrays,
    indices,
    real_items,
    sort_by_label,
    sort_descending,
    take,
)

SAFE = 300.0  # a range of scores whose exponentials do not underflow: e^-300 is 5e-131


def listmle(lists: FlatArrays, seed: Tensor | None) -> None:
    """``Σ_r log Σ_{l>=r} exp(s_(l)) - s_(r)``: see :mod:`rankgrad.kernels.ops`."""
    number = 0 if seed is None else int(seed)
    order = np.empty(0, np.int64) if seed is None else _shuffled(number, lists.max_length)
    lists.run(_lists, order, number)


@compiled
def _lists(
    first: int,
    last: int,
    arrays: Arrays,
    order: Array,
    seed: int,
) -> None:
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        defined[b] = items.size > 1
        if not defined[b]:
            continue
        if order.size > 16 * items.size:
            items = _reordered(items, _shuffled(seed, items.size))
        elif order.size:
            items = _reordered(items, order)
        sort_by_label(labels, items)
        s, w = take(scores, items), take(weights, items)
        values[b] = _likelihood(s, w)
        for i in range(items.size):
            grad_scores[items[i]] = s[i]


@compiled
def _shuffled(seed: int, n: int) -> Array:
    """A random order of n positions, by SplitMix64 of seed and position (Steele et al. 2014)."""
    numbers, order = np.empty(n), indices(n)
    for place in range(n):
        x = np.uint64(seed) + np.uint64(place + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        numbers[place] = np.float64(x >> np.uint64(32))
    sort_descending(numbers, order)
    return order


@compiled
def _reordered(items: Array, order: Array) -> Array:
    """Items permuted by a random order of positions; positions past the list's end are skipped."""
    found, count = np.empty(items.size + 1, np.int64), 0
    for place in order:
        found[count] = items[min(place, items.size - 1)]
        count += place < items.size
    return found[:-1]


@compiled
def _likelihood(s: Array, w: Array) -> float:
    """The loss of scores sorted by label; its gradient replaces the scores.

    With ``t_r = Σ_{l>=r} exp(s_l)`` the gradient is ``exp(s_l) Σ_{r<=l} w_r / t_r - w_l``. So t is
    a cumulative sum from the end, and the gradient needs one from the start.
    """
    n, lowest, highest = s.size, s[0], s[0]
    for i in range(n):
        lowest, highest = min(lowest, s[i]), max(highest, s[i])
    if highest - lowest > SAFE:
        return _likelihood_by_logarithms(s, w)
    exponentials, tails = np.empty(n), np.empty(n)
    for i in range(n):
        exponentials[i] = exp(s[i] - highest)
    tail = 0.0
    for i in range(n - 1, -1, -1):
        tail += exponentials[i]
        tails[i] = tail
    for i in range(n):
        s[i] = w[i] * (log(tails[i]) - (s[i] - highest))
        tails[i] = w[i] / tails[i]
    value, carried = total(s), 0.0
    for i in range(n):
        carried += tails[i]
        s[i] = exponentials[i] * carried - w[i]
    return value


@compiled
def _likelihood_by_logarithms(s: Array, w: Array) -> float:
    """The same in the log domain, for scores of any range.

    ``t_r`` decreases with r, so the cumulative sum of ``w_r / t_r`` times the current t is finite.
    """
    n = s.size
    tails = np.empty(n)
    tail, value = s[n - 1], 0.0
    for i in range(n - 1, -1, -1):
        if i < n - 1:
            tail = max(tail, s[i]) + math.log1p(math.exp(-abs(tail - s[i])))
        tails[i] = tail
        value += w[i] * (tail - s[i])
    carried = 0.0
    for i in range(n):
        if i:
            carried *= math.exp(tails[i] - tails[i - 1])
        carried += w[i]
        s[i] = carried * math.exp(s[i] - tails[i]) - w[i]
    return value
