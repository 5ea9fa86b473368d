"""NeuralSort with Sinkhorn scaling on the band of its matrix.

Let P be the band. Forward and backward are products of P and of its transpose with vectors; four
rows at a time share the loads of the vector. The transpose is stored too, as dot products take less
time than adding rows to a sum in memory. Every step of the scaling adds two outer products to
the gradient of P. Their factors are stored, so that the gradient is computed once, entry by entry.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import dot, exp, total
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays, new_block, whole_vectors
from rankgrad.kernels.cpu._permutation_rows import (
    absolute_differences,
    absolute_differences_adjoint,
    band,
    row_adjoint,
)
from rankgrad.kernels.cpu._relaxed import (
    Lists,
    Permutation,
    SortOperator,
    through_permutation,
)

Options = tuple[float, int, float, bool]  # temperature, iterations, tolerance, transposed

#: The band in tiles of four rows, which have the same columns: entries, the start of each tile in
#: them and its first column. The last tile ends with rows of zeros.
Band = tuple[Array, Array, Array]


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

    The gradient of P is ``Σ_k left_k rightᵀ_k``. Step t scales to ``v_t = right[2t]`` and
    ``u_t = left[2t + 1]``; its backward pass writes ``left[2t]`` and ``right[2t - 1]``.
    """
    temperature, iterations, _, transposed = options
    for b in range(first, last):
        n, start = lists[3][b], lists[1][b]
        if n == 0:
            continue
        z = _scaled_scores(b, lists, temperature)
        matrix = _neuralsort(z)
        columns = _transposed(matrix)
        size = (n + 3) // 4 * 4
        left, right = new_block(2 * iterations + 2, size), new_block(2 * iterations + 2, size)
        steps = _scale(n, matrix, columns, left, right, options)
        u, v = left[2 * steps - 1 if transposed else 2 * steps + 1], right[2 * steps]
        means = np.empty(size)
        for j in range(n):
            right[0, j] = v[j] * values[start + j]
        _times(matrix, right[0], means)
        cut = n if lists[4] == 0 else min(lists[4], n)
        for r in range(cut):
            out[start + r] = u[r] * means[r]
        if grad.size == 0:
            continue
        grad_u, grad_v, later = np.zeros(size), np.zeros(size), np.zeros(size)
        for r in range(cut):
            left[0, r] = grad[start + r] * u[r]
            grad_u[r] = grad[start + r] * means[r]
        if transposed:  # u is that of the step before: its gradient is added after one step back
            grad_u, later = later, grad_u
        _times(columns, left[0], grad_v)
        for j in range(n):
            grad_v[j] *= values[start + j]
        for step in range(steps, 0, -1):
            _step(n, matrix, columns, left[2 * step :], right[2 * step - 1 :], grad_u, grad_v)
            if step == steps:
                for r in range(n):
                    grad_u[r] += later[r]
        _backward(z, matrix, left, right, 2 * steps + 2)
        for j in range(n):
            grad_scores[lists[2][start + j]] += z[j] / temperature


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
    tiles = (n + 3) // 4
    starts, lows = np.zeros(tiles + 1, np.int64), np.zeros(tiles, np.int64)
    low, high = 0, 0
    for r in range(n):
        low, high = band(z, sums, n - 1.0 - 2.0 * r, r, low, high)
        if r % 4 == 0:
            lows[r // 4] = low
        starts[r // 4 + 1] = starts[r // 4] + 4 * (high - lows[r // 4])
    entries = np.zeros(starts[tiles])
    for r in range(n):
        row, some = _row(entries, starts, lows, r)
        _fill(row, n - 1.0 - 2.0 * r, z[r], sums[r], z[some], sums[some])
    return entries, starts, lows


@compiled
def _row(entries: Array, starts: Array, lows: Array, r: int) -> tuple[Array, slice]:
    """Row r of the band, and its columns."""
    tile = r // 4
    size = (starts[tile + 1] - starts[tile]) // 4
    start = starts[tile] + r % 4 * size
    return entries[start : start + size], slice(lows[tile], lows[tile] + size)


@compiled
def _transposed(matrix: Band) -> Band:
    """The band's transpose: the rows of each four columns, from the first tile to the last one."""
    entries, starts, lows = matrix
    tiles, first, last = lows.size, 0, 0
    its_starts, its_lows = np.zeros(tiles + 1, np.int64), np.empty(tiles, np.int64)
    for tile in range(tiles):
        while lows[first] + (starts[first + 1] - starts[first]) // 4 <= 4 * tile:
            first += 1
        while last < tiles and lows[last] < 4 * tile + 4:
            last += 1
        its_lows[tile], its_starts[tile + 1] = 4 * first, its_starts[tile] + 16 * (last - first)
    its_entries = np.zeros(its_starts[tiles])
    for tile in range(tiles):
        rows, n = entries[starts[tile] : starts[tile + 1]], (starts[tile + 1] - starts[tile]) // 4
        for j in range(n):
            to, place = (lows[tile] + j) // 4, (lows[tile] + j) % 4
            size = (its_starts[to + 1] - its_starts[to]) // 4
            at = its_starts[to] + place * size + 4 * tile - its_lows[to]
            for row in range(4):
                its_entries[at + row] = rows[row * n + j]
    return its_entries, its_starts, its_lows


@compiled
def _fill(row: Array, factor: float, top: float, shift: float, z: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(factor * (z[j] - top) - (sums[j] - shift))
    inverse = 1.0 / total(row)
    for j in range(row.size):
        row[j] *= inverse


@compiled
def _scale(n: int, matrix: Band, columns: Band, left: Array, right: Array, options: Options) -> int:
    """Iterate ``v = 1 / (Pᵀ u)``, ``u = 1 / (P v)``; return the number of steps.

    It stops once all column sums (of the transposed form, row sums) are within the tolerance of 1.
    """
    _, iterations, tolerance, transposed = options
    sums = np.empty(left.shape[1])
    for r in range(n):
        left[1, r] = 1.0
    for step in range(1, iterations + 1):
        v, u = right[2 * step, :n], left[2 * step + 1, :n]
        _times(columns, left[2 * step - 1], sums)
        for j in range(n):
            v[j] = 1.0 / sums[j]
        if not transposed and step > 1 and _has_converged(right[2 * step - 2, :n], v, tolerance):
            return step - 1
        if transposed and step == iterations:
            return step
        _times(matrix, v, sums)
        for r in range(n):
            u[r] = 1.0 / sums[r]
        if transposed and _has_converged(left[2 * step - 1, :n], u, tolerance):
            return step
    return iterations


@compiled_reduction
def _has_converged(before: Array, now: Array, tolerance: float) -> bool:
    """Whether all sums under the previous scales are within the tolerance of one.

    The scales ``now`` make each sum one, so under ``before`` the sum is ``before / now``.
    """
    moved = 0.0
    for i in range(now.size):
        moved += 1.0 if abs(before[i] - now[i]) >= tolerance * now[i] else 0.0
    return moved == 0.0


@compiled
def _step(
    n: int, matrix: Band, columns: Band, left: Array, right: Array, grad_u: Array, grad_v: Array
) -> None:
    """The backward pass of one step, from the gradients of its u and v to that of the previous u.

    It writes its two factors: the gradients of the sums ``P v`` and ``Pᵀ u``.
    """
    by_row, u, by_column, v = left[0, :n], left[1, :n], right[0, :n], right[1, :n]
    for r in range(n):
        by_row[r] = -grad_u[r] * u[r] * u[r]
    _times(columns, left[0], right[0])
    for j in range(n):
        by_column[j] = -(grad_v[j] + by_column[j]) * v[j] * v[j]
        grad_v[j] = 0.0
    _times(matrix, by_column, grad_u)


@compiled
def _backward(z: Array, matrix: Band, left: Array, right: Array, terms: int) -> None:
    """Replace z by its gradient, from the ``terms`` outer products of the gradient of P."""
    entries, starts, lows = matrix
    n = z.size
    by_row, by_column = _factors(left, n, terms), _factors(right, n, terms)
    block = new_block(3, n)
    by_score, by_sum = block[0, :n], block[1, :n]
    for r in range(n):
        row, some = _row(entries, starts, lows, r)
        for j in range(some.start, some.stop, 4):
            block[2, j], block[2, j + 1], block[2, j + 2], block[2, j + 3] = _four_dots(
                by_row[r], by_column[j], by_column[j + 1], by_column[j + 2], by_column[j + 3]
            )
        found, factor = block[2, some], n - 1.0 - 2.0 * r
        mean = dot(row, found)
        row_adjoint(1.0, mean, factor, row, found, by_score[some], by_sum[some])
    absolute_differences_adjoint(z, by_sum, by_score)
    for j in range(n):
        z[j] = by_score[j]


@compiled
def _factors(stored: Array, n: int, terms: int) -> Array:
    """The factors of each item one after another, followed by zeros; and three items of zeros."""
    factors = np.zeros((n + 3, whole_vectors(terms)))
    for start in range(0, n, 8):  # a cache line
        for k in range(terms):
            for j in range(start, min(start + 8, n)):
                factors[j, k] = stored[k, j]
    return factors


@compiled_reduction
def _four_dots(
    x: Array, first: Array, second: Array, third: Array, fourth: Array
) -> tuple[float, float, float, float]:
    """The products of one vector with four others, which takes fewer loads than one by one."""
    a = b = c = d = 0.0
    for k in range(x.size):
        a += x[k] * first[k]
        b += x[k] * second[k]
        c += x[k] * third[k]
        d += x[k] * fourth[k]
    return a, b, c, d


@compiled
def _times(matrix: Band, vector: Array, out: Array) -> None:
    """``P vector``."""
    entries, starts, lows = matrix
    for tile in range(lows.size):
        rows, low = entries[starts[tile] : starts[tile + 1]], lows[tile]
        n, r = rows.size // 4, 4 * tile
        out[r], out[r + 1], out[r + 2], out[r + 3] = _four_dots(
            vector[low : low + n], rows[:n], rows[n : 2 * n], rows[2 * n : 3 * n], rows[3 * n :]
        )


SINKHORN = Permutation(_sinkhorn, power=2)


class SinkhornOperator(SortOperator):
    """NeuralSort with Sinkhorn; options: temperature, iterations, tolerance and transposed."""

    relaxation = SINKHORN
    types = (float, int, float, bool)
