"""The loss ordered_logit: a logistic regression at each label level, with an intercept of the list.

Each item has an error probability e = σ(sign (s - c)) at a level, where sign is 1 for items below
the level and -1 for those at or above it. In these no term cancels, however unequal the two sides
of a level are.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._arithmetic import exp
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, real_items, take

_MAX_BISECTIONS = 64
#: From an error of half this width, five Newton steps reach the precision of float64.
_NEWTON_WIDTH, _NEWTON_STEPS = 0.25, 5


def ordered_logit(lists: FlatArrays, levels: int) -> None:
    """``Σ_l min_c Σ_i w_i BCE(σ(s_i - c), 1[y_i >= l])``: see :mod:`rankgrad.kernels.ops`."""
    lists.run(_lists, levels, steps=64 * (levels - 1))


@compiled
def _lists(first: int, last: int, arrays: Arrays, levels: int) -> None:
    """Write the value and gradient of each list."""
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        s, y, w = take(scores, items), take(labels, items), take(weights, items)
        grad, signed = np.zeros(s.size), np.empty(s.size)
        for level in range(1, levels):
            above, below = 0.0, 0.0  # the weights at or above the level, and below
            low, high = np.inf, -np.inf  # the least and the largest score
            for i in range(s.size):
                if w[i] > 0:
                    low, high = min(low, s[i]), max(high, s[i])
                is_above = y[i] >= level
                above += w[i] if is_above else 0.0
                below += 0.0 if is_above else w[i]
                signed[i] = -w[i] if is_above else w[i]
            if above <= 0 or below <= 0:
                continue  # the infimum is 0, at an infinite intercept
            defined[b] = True
            shift = math.log(above) - math.log(below)
            c = _fit_intercept(s, signed, low - shift, high - shift)
            values[b] += _add_level(s, signed, c, grad)
        for i in range(items.size):
            grad_scores[items[i]] = grad[i]


@compiled
def _fit_intercept(s: Array, signed: Array, low: float, high: float) -> float:
    """The intercept c between two bounds at which the errors of both sides have equal weight.

    Bisection, then Newton's method. The slope of the excess changes by less than a factor of
    ``exp(w)`` in an interval of width w, so that Newton's method converges in a narrow one.

    Args:
        s: scores, ``[n]``.
        signed: weights, negative for items at or above the level, ``[n]``.
        low: a lower bound.
        high: an upper bound.
    """
    for _ in range(_MAX_BISECTIONS):
        if high - low <= _NEWTON_WIDTH:
            break
        c = 0.5 * (low + high)
        if _errors(s, signed, c)[0] > 0:
            low = c
        else:
            high = c
    c = 0.5 * (low + high)
    for _ in range(_NEWTON_STEPS):
        excess, slope = _errors(s, signed, c)
        if slope > 0:
            c = min(max(c + excess / slope, low), high)
    return c


@compiled_reduction
def _errors(s: Array, signed: Array, c: float) -> tuple[float, float]:
    """``Σ w sign e``, which decreases in c, and minus its derivative ``Σ w e (1 - e)``."""
    excess, slope = 0.0, 0.0
    for i in range(s.size):
        logit = s[i] - c if signed[i] > 0 else c - s[i]
        tail = exp(-abs(logit))
        small = tail / (1.0 + tail)
        error = small if logit < 0 else 1.0 - small
        excess += signed[i] * error
        slope += abs(signed[i]) * small * (1.0 - small)
    return excess, slope


@compiled
def _add_level(s: Array, signed: Array, c: float, grad: Array) -> float:
    """Add the derivatives ``w sign e`` to ``grad``; returns the level's value."""
    value = 0.0
    for i in range(s.size):
        logit = s[i] - c if signed[i] > 0 else c - s[i]
        tail = math.exp(-abs(logit))
        grad[i] += signed[i] * (1.0 if logit >= 0 else tail) / (1.0 + tail)
        value += abs(signed[i]) * (max(logit, 0.0) + math.log1p(tail))
    return value
