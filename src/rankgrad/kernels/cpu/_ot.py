"""Optimal transport between items and ranks, by Sinkhorn scaling (Cuturi et al. 2019).

The scaling starts from ``exp((f + g - C) / ε)``, with C the costs of transport, and f and g the
dual potentials of the problem without entropy (see :mod:`rankgrad.sorting.optimal_transport`). This
is the matrix K of :mod:`rankgrad.kernels.cpu._scaling` for the points x, the squashed scores of the
n items divided by ``(n - 1) ε``.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu._relaxed import Lists, Permutation, SortOperator, through_permutation
from rankgrad.kernels.cpu._scaling import State, block_rows, scaled_product

Options = tuple[float, int, float, State]  # epsilon, iterations, tolerance; and the state


def through_ot(
    flat: FlatArrays,
    epsilon: float,
    iterations: int,
    tolerance: float,
    metric_options: MetricOptions,
) -> None:
    """1 - metric through optimal transport: see :mod:`rankgrad.kernels.ops`."""
    options = epsilon, iterations, tolerance
    through_permutation(TRANSPORT, options, flat, metric_options)


@compiled
def _transport(
    first: int, last: int, lists: Lists, options: Options, rows: Array, grad_scores: Array
) -> None:
    """Write the transport plan times the values, and add its adjoint to ``grad_scores``.

    It does so for the lists ``first:last``. ``rows`` has the rows of
    :mod:`rankgrad.kernels.cpu._metric_steps`. Without a gradient, ``grad_scores`` is empty.
    """
    scores, offsets, order, counts, _ = lists
    epsilon, iterations, tolerance, state = options
    settings, backward = (iterations, tolerance, False, False), grad_scores.size > 0
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        z, x = np.empty(n), np.empty(n)
        for i in range(n):
            z[i] = scores[order[start + i]]
        scale = _standardize(z)
        unit = 1.0 / (max(n - 1, 1) * epsilon)
        for i in range(n):
            x[i] = unit / (1.0 + math.exp(-z[i]))
        # Columns sum to 0 as rows are not normalized: row sums minus column sums are row sums.
        grad_x, row_sums = scaled_product(b, x, lists, rows, backward, settings, state)
        if backward:
            _add_potentials(x, row_sums, grad_x)
            for i in range(n):
                grad_x[i] *= unit
            _squash_adjoint(z, scale, grad_x)
            for i in range(n):
                grad_scores[order[start + i]] += grad_x[i]


@compiled
def _standardize(z: Array) -> float:
    """Standardize scores in place to mean 0 and deviation 1; return the inverse deviation."""
    n = z.size
    mean, variance = 0.0, 0.0
    for i in range(n):
        mean += z[i] / n
    for i in range(n):
        z[i] -= mean
        variance += z[i] * z[i] / n
    scale = 1.0 / math.sqrt(variance + 1e-6)  # as rankgrad.sorting.optimal_transport has it
    for i in range(n):
        z[i] *= scale
    return scale


@compiled
def _squash_adjoint(z: Array, scale: float, grad: Array) -> None:
    """Propagate the gradient of the squashed scores to the scores, in place."""
    n = z.size
    mean, along = 0.0, 0.0
    for i in range(n):
        decay = math.exp(-abs(z[i]))
        grad[i] *= decay / ((1.0 + decay) * (1.0 + decay))
        mean += grad[i] / n
        along += grad[i] * z[i] / n
    for i in range(n):
        grad[i] = scale * (grad[i] - mean - along * z[i])


@compiled
def _add_potentials(x: Array, row_sums: Array, grad_x: Array) -> None:
    """Add ``2 Σ_{r>j} R_r + R_j``, the gradient through the ranks' dual potentials, to ``grad_x``.

    R are the row sums of the gradient of K's logits. Tied points get the mean of their group.
    """
    n = x.size
    end, after = n, 0.0
    while end > 0:
        start, total = end, 0.0
        while start > 0 and x[start - 1] == x[end - 1]:
            start -= 1
            total += 2.0 * after + row_sums[start]
            after += row_sums[start]
        for i in range(start, end):
            grad_x[i] += total / (end - start)
        end = start


TRANSPORT = Permutation(
    _transport, steps=1024, power=2, state_rows=lambda options: block_rows(options[1])
)


class OptimalTransportOperator(SortOperator):
    """The transport plan; options: epsilon, iterations and tolerance."""

    relaxation = TRANSPORT
