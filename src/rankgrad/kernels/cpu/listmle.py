"""ListMLE: one sort and one scan each way."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.prepare import Array, Slots, real_slots, sort_descending, take


def listmle(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ_r log Σ_{l>=r} exp(s_(l)) - s_(r)``: see :mod:`rankgrad.kernels.ops`."""
    slots = Slots.of(scores, labels, mask, weights, offsets)
    slots.each(_lists, seed is not None, 0 if seed is None else int(seed))
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
    shuffle: bool,
    seed: int,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        defined[b] = slots.size > 1
        if not defined[b]:
            continue
        if shuffle:
            order = np.arange(slots.size)
            sort_descending(_hashes(seed, slots.size), order)
            slots = slots[order]
        sort_descending(labels, slots)
        s, w = take(scores, slots), take(weights, slots)
        values[b] = _likelihood(s, w)
        for i in range(slots.size):
            slopes[slots[i]] = s[i]


@compiled
def _hashes(seed: int, n: int) -> Array:
    """A number for each place, by the seed: SplitMix64 of both (Steele et al. 2014)."""
    numbers = np.empty(n)
    for place in range(n):
        x = np.uint64(seed) + np.uint64(place + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        numbers[place] = np.float64(x >> np.uint64(32))
    return numbers


@compiled
def _likelihood(s: Array, w: Array) -> float:
    """The loss of scores in the order of their labels; they are replaced by its slopes.

    With ``t_r`` the logarithm of the sum from r on, item l pulls ``exp(s_l - t_r)`` of the weight
    of every r up to l. As t falls, the sum over r is carried on without growing.
    """
    n = s.size
    tails = np.empty(n)
    tail, total = s[n - 1], 0.0
    for i in range(n - 1, -1, -1):
        if i < n - 1:
            tail = max(tail, s[i]) + math.log1p(math.exp(-abs(tail - s[i])))
        tails[i] = tail
        total += w[i] * (tail - s[i])
    carried = 0.0
    for i in range(n):
        if i:
            carried *= math.exp(tails[i] - tails[i - 1])
        carried += w[i]
        s[i] = carried * math.exp(s[i] - tails[i]) - w[i]
    return total
