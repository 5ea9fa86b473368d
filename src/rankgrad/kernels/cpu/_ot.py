"""Optimal transport: Sinkhorn scaling of a band matrix, whose rows are recomputed on long lists.

Let x be the squashed scores of n items, divided by ``(n - 1) ε``. The matrix
``K = exp((f + g - C) / ε)`` of :mod:`rankgrad.sorting.optimal_transport` equals NeuralSort's matrix
of x before its rows are normalized: it is 1 on the diagonal and decreases away from it.

The iteration starts from ``u = 1``. An iteration, forward or backward, is one sweep over the rows.
The product of a row with a vector gives the row's own factor; the row times this factor is added to
the column sums.

The first scaling cancels any factor of a whole column. So the gradient with respect to the
logits sums to 0 over each column, and over each row to the gradient with respect to the first u.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import add_scaled, add_scaled_each, dot, exp
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu._permutation_rows import absolute_differences, band
from rankgrad.kernels.cpu._relaxed import (
    Lists,
    Permutation,
    SortOperator,
    through_permutation,
)

#: A band matrix: points, their sums of absolute differences, the first column of each row, the end
#: of its columns (exclusive), its start in the entries, and the entries. The entries are those of
#: all rows or, for a large matrix, of the row computed last.
Matrix = tuple[Array, Array, Array, Array, Array, Array]

_STORED = 1 << 20  # matrices of up to so many entries (8 MiB) are stored; others are recomputed


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
    first: int,
    last: int,
    lists: Lists,
    options: tuple[float, int, float],
    values: Array,
    grad: Array,
    out: Array,
    grad_scores: Array,
) -> None:
    """The transport plan times the values, and its adjoint."""
    scores, offsets, order, counts, k = lists
    epsilon, iterations, tolerance = options
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        z, own = np.empty(n), values[start : start + n]
        for i in range(n):
            z[i] = scores[order[start + i]]
        scale = _standardize(z)
        unit = 1.0 / (max(n - 1, 1) * epsilon)
        x = np.empty(n)
        for i in range(n):
            x[i] = unit / (1.0 + math.exp(-z[i]))
        matrix = _matrix(x)
        us, vs = np.ones((iterations + 1, n)), np.ones((iterations + 1, n))
        steps = _scale(matrix, us, vs, tolerance)
        cut = n if k == 0 else min(k, n)
        scaled, means = vs[steps] * own, np.zeros(n)
        for r in range(cut):
            row, some = _row(matrix, r)
            means[r] = dot(row, scaled[some])
            out[start + r] = us[steps, r] * means[r]
        if grad.size:
            by_rank = np.zeros(n)
            for r in range(cut):
                by_rank[r] = grad[start + r]
            by_score = _adjoint(matrix, us[: steps + 1], vs[: steps + 1], own, means, by_rank)
            for i in range(n):
                by_score[i] *= unit
            _squash_adjoint(z, scale, by_score)
            for i in range(n):
                grad_scores[order[start + i]] += by_score[i]


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
    scale = 1.0 / math.sqrt(variance + 1e-6)
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
def _matrix(x: Array) -> Matrix:
    """The band matrix of x, with its entries if they are few enough to store."""
    n = x.size
    sums, lows, highs = np.empty(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    starts = np.zeros(n + 1, np.int64)
    absolute_differences(x, sums)
    low, high = 0, 0
    for r in range(n):
        low, high = band(x, sums, n - 1.0 - 2.0 * r, r, low, high)
        lows[r], highs[r], starts[r + 1] = low, high, starts[r] + high - low
    stored = starts[n] <= _STORED
    entries = np.empty(starts[n] if stored else n)
    matrix = x, sums, lows, highs, starts, entries
    if stored:
        for r in range(n):
            some = slice(lows[r], highs[r])
            _fill(
                entries[starts[r] : starts[r + 1]],
                n - 1.0 - 2.0 * r,
                r - lows[r],
                x[some],
                sums[some],
            )
    return matrix


@compiled
def _row(matrix: Matrix, r: int) -> tuple[Array, slice]:
    """The entries of a row, stored or recomputed, and their columns."""
    x, sums, lows, highs, starts, entries = matrix
    some = slice(lows[r], highs[r])
    if entries.size == starts[-1]:
        return entries[starts[r] : starts[r + 1]], some
    row = entries[: highs[r] - lows[r]]
    _fill(row, x.size - 1.0 - 2.0 * r, r - lows[r], x[some], sums[some])
    return row, some


@compiled
def _fill(row: Array, rank_offset: float, own: int, x: Array, sums: Array) -> None:
    top, shift = x[own], sums[own]
    for j in range(row.size):
        row[j] = exp(rank_offset * (x[j] - top) - (sums[j] - shift))


@compiled
def _scale(matrix: Matrix, us: Array, vs: Array, tolerance: float) -> int:
    """Iterate ``v = 1 / (Kᵀ u)``, ``u = 1 / (K v)``; return the number of iterations.

    It stops once all column sums are within the tolerance of 1.
    """
    n = us.shape[1]
    columns = np.zeros(n)
    for r in range(n):
        row, some = _row(matrix, r)
        add_scaled(row, us[0, r], columns[some])
    for step in range(1, len(us)):
        if step > 1:
            off = 0.0
            for j in range(n):
                off = max(off, abs(columns[j] * vs[step - 1, j] - 1.0))
            if off < tolerance:
                return step - 1
        for j in range(n):
            vs[step, j] = 1.0 / columns[j]
            columns[j] = 0.0
        for r in range(n):
            row, some = _row(matrix, r)
            us[step, r] = 1.0 / dot(row, vs[step, some])
            add_scaled(row, us[step, r], columns[some])
    return len(us) - 1


@compiled
def _adjoint(
    matrix: Matrix, us: Array, vs: Array, values: Array, means: Array, grad: Array
) -> Array:
    """The gradient with respect to the matrix's points x.

    It is the gradient of ``u K (v values)`` with u and v constant, plus the gradients through the
    scalings in reverse order.
    """
    n, steps = values.size, len(us) - 1
    grad_u, grad_sums, found = grad * means, np.zeros(n), np.zeros(n)
    sums = np.zeros((3, n))  # column sums Kᵀ a, Kᵀ (r a) and Kᵀ (r u) for row factors a
    for r in range(n):
        if grad[r] != 0.0:
            row, some = _row(matrix, r)
            factor = grad[r] * us[steps, r]
            add_scaled(row, factor, sums[0, some])
            add_scaled(row, r * factor, sums[1, some])
    by_column = np.empty(n)
    for j in range(n):
        by_column[j] = values[j] * sums[0, j]
        found[j] = 2.0 * vs[steps, j] * values[j] * (j * sums[0, j] - sums[1, j])
    for step in range(steps, 0, -1):
        sums[:] = 0.0
        for r in range(n):
            row, some = _row(matrix, r)
            if step < steps:
                grad_u[r] = dot(row, grad_sums[some])
            factor = -grad_u[r] * us[step, r] * us[step, r]
            weighted_u = r * us[step - 1, r]
            add_scaled_each(
                row, factor, r * factor, weighted_u, sums[0, some], sums[1, some], sums[2, some]
            )
        for j in range(n):
            v = vs[step, j]
            grad_sums[j] = -(by_column[j] + sums[0, j]) * v * v
            found[j] += 2.0 * v * (j * sums[0, j] - sums[1, j])
            found[j] += 2.0 * grad_sums[j] * (j / v - sums[2, j])
            by_column[j] = 0.0
    for r in range(n):
        row, some = _row(matrix, r)
        grad_u[r] = dot(row, grad_sums[some])
    _add_potentials(matrix[0], grad_u, found)
    return found


@compiled
def _add_potentials(x: Array, grad: Array, found: Array) -> None:
    """Add ``2 Σ_{r>j} R_r + R_j``, the gradient through the ranks' dual potentials.

    R are the row sums of the logits' gradient. Tied points get the mean of their group.
    """
    n = x.size
    end, after = n, 0.0
    while end > 0:
        start, total = end, 0.0
        while start > 0 and x[start - 1] == x[end - 1]:
            start -= 1
            total += 2.0 * after + grad[start]
            after += grad[start]
        for i in range(start, end):
            found[i] += total / (end - start)
        end = start


TRANSPORT = Permutation(_transport, steps=1024, power=2)


class OptimalTransportOperator(SortOperator):
    """The transport plan; options: epsilon, iterations and tolerance."""

    relaxation = TRANSPORT
    types = (float, int, float)
