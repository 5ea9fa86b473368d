"""The cross-entropy losses softmax, ListNet and ndcg_bound: values and gradients of lists."""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import exp, total
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, real_items, take
from rankgrad.kernels.cpu._metric_terms import Metric, gains_of, metric_of, norm_of


def cross_entropy(lists: FlatArrays, target: str) -> None:
    """``-Σ_i t_i log softmax(s)_i``: see :mod:`rankgrad.kernels.ops`.

    The targets t are the labels (``target="label"``) or their softmax (``target="softmax"``).
    """
    lists.run(_cross_entropy_loop, target == "softmax", steps=2)


@compiled
def _cross_entropy_loop(first: int, last: int, arrays: Arrays, normalized: bool) -> None:
    """The loss and gradient of the lists ``first:last``; ``normalized`` targets are a softmax.

    Without a mask a list is a slice of the arrays; with one, its real items are copied.
    """
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        span = slice(offsets[b], offsets[b + 1])
        if mask.size:
            items = real_items(mask, offsets[b], offsets[b + 1])
            s, t, out = take(scores, items), take(labels, items), np.empty(items.size)
        else:
            items = np.empty(0, np.int64)
            s, t, out = scores[span], labels[span], grad_scores[span]
        defined[b] = s.size > 1 and (normalized or _largest(t) > 0)
        if not defined[b]:
            continue
        if normalized:
            t = _softmax(t)
        if weights.size:
            t = t * (take(weights, items) if mask.size else weights[span])
        values[b] = _list_cross_entropy(s, t, out)
        for i in range(items.size):  # none without a mask: ``out`` is part of grad_scores then
            grad_scores[items[i]] = out[i]


def ndcg_bound(lists: FlatArrays, k: int, gain: str) -> None:
    """The cross-entropy of gains over their ideal DCG@k: see :mod:`rankgrad.kernels.ops`."""
    options = MetricOptions("ndcg", k, gain, threshold=1.0, persistence=0.0)  # both unused by ndcg
    lists.run(_ndcg_bound_loop, metric_of(options, lists.max_length, lists.single))


@compiled
def _ndcg_bound_loop(first: int, last: int, arrays: Arrays, metric: Metric) -> None:
    """The loss and gradient of the lists ``first:last``; targets are weighted gains / ideal DCG."""
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    code, k, linear, threshold, _, discount = metric
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        y, w = take(labels, items), take(weights, items)
        defined[b] = items.size > 1 and _largest(y) > 0
        if not defined[b]:
            continue
        targets = gains_of(y, code, linear, threshold)
        for i in range(items.size):
            targets[i] *= w[i]
        norm = norm_of(targets, code, k, discount)
        for i in range(items.size):
            targets[i] *= 1.0 / norm if norm > 0 else 0.0
        # The labels y are no longer needed: their memory takes the gradient.
        values[b] = _list_cross_entropy(take(scores, items), targets, y)
        for i in range(items.size):
            grad_scores[items[i]] = y[i]


@compiled
def _list_cross_entropy(s: Array, t: Array, out: Array) -> float:
    """The loss of scores s and targets t; writes its gradient ``softmax(s) Σ t - t`` to ``out``.

    All arrays are ``[n]``. With the largest score m the loss is computed as
    ``Σ t (m - s) + Σ t log Σ exp(s - m)``. No term is negative, so none cancel.
    """
    top = _largest(s)
    normalizer = _exponentials(s, top, out)
    mass, cost = _mass_and_cost(s, t, top)
    scale = mass / normalizer
    for i in range(s.size):
        out[i] = scale * out[i] - t[i]
    return cost + mass * math.log(normalizer)


@compiled_reduction
def _mass_and_cost(s: Array, t: Array, top: float) -> tuple[float, float]:
    """``Σ t`` and ``Σ t (top - s)``."""
    mass, cost = 0.0, 0.0
    for i in range(s.size):
        mass += t[i]
        cost += t[i] * (top - s[i])
    return mass, cost


@compiled
def _softmax(x: Array) -> Array:
    probabilities = np.empty(x.size)
    inverse = 1.0 / _exponentials(x, _largest(x), probabilities)
    for i in range(x.size):
        probabilities[i] *= inverse
    return probabilities


@compiled
def _largest(x: Array) -> float:
    """The largest number, by four independent maxima that the CPU computes in parallel."""
    a = b = c = d = -np.inf
    multiple = x.size - x.size % 4
    for i in range(0, multiple, 4):
        a = x[i] if x[i] > a else a
        b = x[i + 1] if x[i + 1] > b else b
        c = x[i + 2] if x[i + 2] > c else c
        d = x[i + 3] if x[i + 3] > d else d
    for i in range(multiple, x.size):
        a = x[i] if x[i] > a else a
    return max(max(a, b), max(c, d))


@compiled
def _exponentials(x: Array, top: float, out: Array) -> float:
    """Write ``exp(x - top)`` to ``out`` and return the sum."""
    for i in range(x.size):
        out[i] = exp(x[i] - top)
    return total(out)
