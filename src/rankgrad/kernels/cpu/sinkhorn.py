"""NeuralSort with Sinkhorn scaling on the band of its matrix.

Let P be the band. Forward and backward are sweeps over its rows. The product of a row with a vector
gives the row's own factor; the row times this factor is added to the column sums. The gradient of
P is never formed. Only its sums over the rows are needed: the plain sum, and the rank-weighted sum,
in which row r is multiplied by the factor ``n - 1 - 2r`` of the scores in NeuralSort's row r.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu.arithmetic import add_scaled, add_scaled_each, dot, exp, total
from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu.permutation_rows import (
    absolute_differences,
    absolute_differences_adjoint,
    band,
)
from rankgrad.kernels.cpu.relaxed import (
    Lists,
    Permutation,
    SortOperator,
    through_permutation,
)

Options = tuple[float, int, float, bool]  # temperature, iterations, tolerance, transposed
Band = tuple[Array, Array, Array]  # entries, the start of each row in them, its first column


def through_sinkhorn(
    flat: FlatArrays,
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
    metric_options: MetricOptions,
) -> None:
    """1 - metric through NeuralSort with Sinkhorn scaling: see :mod:`rankgrad.kernels.ops`."""
    options = temperature, iterations, tolerance, transposed
    through_permutation(SINKHORN, options, flat, metric_options)


@compiled
def _sinkhorn(
    first: int,
    last: int,
    lists: Lists,
    options: Options,
    values: Array,
    grad: Array,
    out: Array,
    grad_scores: Array,
) -> None:
    """``diag(u) P diag(v)``, NeuralSort's matrix P scaled until rows or columns sum to one.

    Rows of P sum to one already. So scaling rows first, as the transposed form does, equals scaling
    columns first without the last scaling of the rows.
    """
    temperature, iterations, tolerance, transposed = options
    for b in range(first, last):
        n, start = lists[3][b], lists[1][b]
        if n == 0:
            continue
        own = values[start : start + n]
        z = _scaled_scores(b, lists, temperature)
        matrix = _neuralsort(z)
        us, vs = np.ones((iterations + 1, n)), np.ones((iterations + 1, n))
        steps = _scale(matrix, us, vs, tolerance, transposed)
        u = us[max(steps - 1, 0)] if transposed else us[steps]
        sums, by_scale = np.empty((3, n)), np.empty((2, n))
        _apply(b, lists, matrix, u, vs[steps], own, grad, out, sums, by_scale)
        if grad.size:
            by_u = np.zeros(n)
            if transposed:  # u is us[steps - 1]: its gradient is added after one backward step
                for r in range(n):
                    by_u[r], by_scale[0, r] = by_scale[0, r], 0.0
            for step in range(steps, 0, -1):
                scales = us[step], us[step - 1], vs[step]
                _step(matrix, scales, by_scale[0], by_scale[1], sums)
                for r in range(n):
                    by_scale[0, r] += by_u[r]
                    by_u[r] = 0.0
            _add_gradient(b, lists, matrix, u, z, sums, grad_scores, temperature)


@compiled
def _scaled_scores(b: int, lists: Lists, temperature: float) -> Array:
    scores, offsets, order, counts, _ = lists
    z = np.empty(counts[b])
    for i in range(z.size):
        z[i] = scores[order[offsets[b] + i]] * (1.0 / temperature)
    return z


@compiled
def _neuralsort(z: Array) -> Band:
    """The band of NeuralSort's matrix, whose rows sum to one."""
    n = z.size
    sums = np.empty(n)
    absolute_differences(z, sums)
    starts, lows = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    low, high = 0, 0
    for r in range(n):
        low, high = band(z, sums, n - 1.0 - 2.0 * r, r, low, high)
        lows[r], starts[r + 1] = low, starts[r] + high - low
    entries = np.empty(starts[n])
    for r in range(n):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        _fill(row, n - 1.0 - 2.0 * r, z[r], sums[r], z[some], sums[some])
    return entries, starts, lows


@compiled
def _fill(row: Array, factor: float, top: float, shift: float, z: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(factor * (z[j] - top) - (sums[j] - shift))
    inverse = 1.0 / total(row)
    for j in range(row.size):
        row[j] *= inverse


@compiled
def _scale(matrix: Band, us: Array, vs: Array, tolerance: float, transposed: bool) -> int:
    """Iterate ``v = 1 / (Pᵀ u)``, ``u = 1 / (P v)``; return the number of steps.

    It stops once all column sums (of the transposed form, row sums) are within the tolerance of 1.
    """
    columns = np.zeros(us.shape[1])
    _add_rows(matrix, us[0], columns)
    for step in range(1, len(us)):
        if not transposed and step > 1 and _off(columns, vs[step - 1]) < tolerance:
            return step - 1
        for j in range(columns.size):
            vs[step, j] = 1.0 / columns[j]
            columns[j] = 0.0
        if transposed and step == len(us) - 1:
            return step
        _scale_rows(matrix, vs[step], us[step], columns)
        if transposed and _change(us[step - 1], us[step]) < tolerance:
            return step
    return len(us) - 1


@compiled
def _apply(
    b: int,
    lists: Lists,
    matrix: Band,
    u: Array,
    v: Array,
    values: Array,
    grad: Array,
    out: Array,
    found: Array,
    by_scale: Array,
) -> None:
    """Write ``u P (v values)`` and, unless ``grad`` is empty, its gradients.

    ``found`` gets the gradient of the entries of P as plain and rank-weighted column sums and as
    row sums of ``P_rj dP_rj``; ``by_scale`` gets the gradients of u and v.
    """
    n, start, k = values.size, lists[1][b], lists[4]
    by_row, means, sums = np.empty(n), np.empty(n), np.zeros((3, n))
    for j in range(n):
        by_row[j] = v[j] * values[j]
    _times(matrix, by_row, means)
    cut = n if k == 0 else min(k, n)
    for r in range(cut):
        out[start + r] = u[r] * means[r]
    if grad.size == 0:
        return
    plain, rank_weighted, inner = found[0], found[1], found[2]
    for r in range(n):
        by_rank = grad[start + r] if r < cut else 0.0
        by_row[r] = by_rank * u[r]
        by_scale[0, r] = by_rank * means[r]
        inner[r] = by_row[r] * means[r]
    _add_three(matrix, by_row, u, sums)
    for j in range(n):
        plain[j], rank_weighted[j] = v[j] * values[j] * sums[0, j], v[j] * values[j] * sums[1, j]
        by_scale[1, j] = values[j] * sums[0, j]


@compiled
def _add_gradient(
    b: int,
    lists: Lists,
    matrix: Band,
    u: Array,
    z: Array,
    found: Array,
    grad_scores: Array,
    temperature: float,
) -> None:
    """Add the gradient through the softmax of the rows to that by the scores.

    The logits' gradient is ``P_rj (dP_rj - Σ_l P_rl dP_rl)``, summed over the rows r.
    """
    plain, rank_weighted, sums = found[0], found[1], np.zeros((3, z.size))
    _add_three(matrix, found[2], u, sums)
    for j in range(z.size):
        plain[j], rank_weighted[j] = sums[0, j] - plain[j], rank_weighted[j] - sums[1, j]
    absolute_differences_adjoint(z, plain, rank_weighted)
    for j in range(z.size):
        grad_scores[lists[2][lists[1][b] + j]] += rank_weighted[j] / temperature


@compiled
def _step(
    matrix: Band, scales: tuple[Array, Array, Array], grad_u: Array, grad_v: Array, found: Array
) -> None:
    plain, rank_weighted, inner = found[0], found[1], found[2]
    u, u_before, v = scales
    n = u.size
    by_row, sums = np.empty(n), np.zeros((3, n))
    for r in range(n):
        by_row[r] = -grad_u[r] * u[r] * u[r]
        inner[r] -= grad_u[r] * u[r]
    _add_three(matrix, by_row, u_before, sums)
    for j in range(n):
        column = -(grad_v[j] + sums[0, j]) * v[j] * v[j]
        plain[j] += v[j] * sums[0, j] + column / v[j]
        rank_weighted[j] += v[j] * sums[1, j] + column * sums[2, j]
        by_row[j] = column
        grad_v[j] = 0.0
    _times(matrix, by_row, grad_u)
    for r in range(n):
        inner[r] += u_before[r] * grad_u[r]


@compiled
def _off(sums: Array, scales: Array) -> float:
    """The largest deviation from one of ``sums * scales``."""
    most = 0.0
    for i in range(sums.size):
        most = max(most, abs(sums[i] * scales[i] - 1.0))
    return most


@compiled
def _change(before: Array, now: Array) -> float:
    """The largest deviation from one of the sums under the previous scales.

    The scales ``now`` make each sum one, so under ``before`` the sum is ``before / now``.
    """
    most = 0.0
    for i in range(now.size):
        most = max(most, abs(before[i] / now[i] - 1.0))
    return most


@compiled
def _times(matrix: Band, vector: Array, out: Array) -> None:
    """``P vector``."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        out[r] = dot(row, vector[lows[r] : lows[r] + row.size])


@compiled
def _scale_rows(matrix: Band, v: Array, u: Array, columns: Array) -> None:
    """Write ``u = 1 / (P v)`` and add ``Pᵀ u`` to ``columns``, in one sweep."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        u[r] = 1.0 / dot(row, v[some])
        add_scaled(row, u[r], columns[some])


@compiled
def _add_rows(matrix: Band, factors: Array, columns: Array) -> None:
    """Add ``Pᵀ factors`` to ``columns``."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        add_scaled(row, factors[r], columns[lows[r] : lows[r] + row.size])


@compiled
def _add_three(matrix: Band, by_row: Array, u: Array, sums: Array) -> None:
    """Add ``Pᵀ by_row``, ``Pᵀ (f by_row)`` and ``Pᵀ (f u)`` to ``sums``; ``f_r = n - 1 - 2r``."""
    entries, starts, lows = matrix
    n = lows.size
    for r in range(n):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        change, factor = by_row[r], n - 1.0 - 2.0 * r
        add_scaled_each(
            row, change, factor * change, factor * u[r], sums[0, some], sums[1, some], sums[2, some]
        )


SINKHORN = Permutation(_sinkhorn, power=2)


class SinkhornOperator(SortOperator):
    """NeuralSort with Sinkhorn; options: temperature, iterations, tolerance and transposed."""

    relaxation = SINKHORN
    types = (float, int, float, bool)
