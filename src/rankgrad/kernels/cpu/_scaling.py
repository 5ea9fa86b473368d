"""Sinkhorn scaling of a band matrix, for NeuralSort and optimal transport.

For descending points x and ``b_j = Σ_k |x_j - x_k|``, the matrix is

    K_rj = exp((n - 1 - 2r) (x_j - x_r) - (b_j - b_r)),

NeuralSort's before its rows are normalized. It is 1 on the diagonal and decreases away from it, so
only a band is computed. The scaling iterates ``v = 1 / (Kᵀ u)`` and ``u = 1 / (K v)``, from
``u = 1`` or, with normalized rows, ``u = 1 / (K 1)``. The result is ``diag(u) K diag(v)``.

Let D be the gradient with respect to the logits of K. It is K times a sum of outer products, two
for each iteration. So sums of D over rows and columns are sums of products of K with vectors.

A scaling of rows or columns cancels any factor by which these were multiplied before. So every
column of D sums to 0, and row r sums to the gradient of the first ``u_r``. With normalized rows,
every row of D sums to 0, and the sum of column j is that of a single outer product, the
normalization's.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu._arithmetic import add_scaled, dot, exp
from rankgrad.kernels.cpu._compiled import compiled, compiled_borrowing, compiled_inline
from rankgrad.kernels.cpu._flat_arrays import APART, Array
from rankgrad.kernels.cpu._metric_steps import GRAD, SORTED, VALUES
from rankgrad.kernels.cpu._panels import (
    NO_ROW,
    PANEL,
    Product,
    fill_panels,
    lay_panels,
    multiply_panels,
    multiply_with_moments,
)
from rankgrad.kernels.cpu._permutation_rows import absolute_differences, band
from rankgrad.kernels.cpu._relaxed import Lists

#: Iterations, tolerance, whether rows are scaled before columns, whether rows start normalized. If
#: they do, scaling rows first equals scaling columns first without the last scaling of the rows.
Settings = tuple[int, float, bool, bool]

#: What loops save for later calls on the same scores: the first list, memory for the block of each
#: list from there on, and the number of iterations of each, 0 before the first call. The memory is
#: empty if nothing is saved.
State = tuple[int, Array, Array]

#: The arrays of K, in this order:
#:
#: - points: x, b and space for a row of K, ``[3, n rounded up to whole panels]``;
#: - bands: the first column of each row and the end of its columns, then the first row of each
#:   column and the end of its rows, ``[4, n]``;
#: - panels of K and of Kᵀ, ``[2, count + 1, 2]`` (see :mod:`rankgrad.kernels.cpu._panels`);
#: - entries of K, then of Kᵀ. A large matrix has none; each product computes its rows anew.
Matrix = tuple[Array, Array, Array, Array]

STORED = 1 << 20  # matrices of up to so many numbers (8 MiB), with their transpose, are stored

#: Rows of a list's block: the two results of :func:`scaled_product`; ones and zeros; the gradient
#: of u, that of v with a row after it, a product with K, and two pairs of rows for products with
#: Kᵀ. From ``_FIRST`` on, each iteration has ``_STEP`` rows: u and, ``_V`` rows later, the next v
#: and ``Σ_r (r - j) K_rj u_r`` for each column j.
_MOMENTS, _SUMS, _ONES, _ZEROS, _GRAD_U, _GRAD_V, _ROWS, _COLUMNS, _FIRST = (
    *range(6), 7, 8, 12
)  # fmt: skip
_V, _STEP = 1, 3

_NOWHERE: Product = (NO_ROW, NO_ROW, NO_ROW)  # in place of a product that is not computed


def block_rows(iterations: int) -> int:
    """The number of rows of a list's block."""
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, found {iterations}")
    return _FIRST + _STEP * (iterations + 1)


@compiled
def scaled_product(
    b: int, x: Array, lists: Lists, rows: Array, backward: bool, settings: Settings, state: State
) -> tuple[Array, Array]:
    """Write the first k rows of ``u K (v values)`` of list b, and compute the sums of D.

    Args:
        b: the list's number.
        x: the points, descending, ``[n]``.
        lists: all lists.
        rows: reads the values in ``VALUES`` and, if ``backward``, the gradient in ``GRAD``; writes
            ``SORTED``.
        backward: whether to compute the results.
        settings: of the scaling.
        state: of the lists.

    Returns:
        Sums of D, both ``[n]``: ``Σ_r (2j - 2r) D_rj`` for each column j; and for each index the
        sum of the row minus the sum of the column.
    """
    _, offsets, _, _, k = lists
    n, start, size = x.size, offsets[b], _FIRST + _STEP * (settings[0] + 1)
    end = start + (n if k == 0 else min(k, n))
    values, out = rows[VALUES, start : start + n], rows[SORTED, start:end]
    # An odd number of cache lines (of PANEL numbers), so that columns spread over the cache.
    width = PANEL * ((n + PANEL - 1) // PANEL | 1)
    matrix = _matrix(x)
    first, memory, saved = state
    if memory.size:
        at = size * (start - offsets[first] + APART * (b - first))
        block = _aligned_rows(memory[at:], size, width)
        if saved[b - first] == 0:
            saved[b - first] = _scale(matrix, block, settings)
        steps = saved[b - first]
    else:
        block = _aligned_rows(np.empty(size * width + PANEL), size, width)
        steps = _scale(matrix, block, settings)
    last = _FIRST + _STEP * steps
    u, v, product = last - _STEP * settings[2], last - _STEP + _V, _GRAD_U
    for j in range(n):
        block[_COLUMNS, j] = block[v, j] * values[j]
    _sweep(matrix, block, _COLUMNS, (product, _ONES, _ZEROS), _NOWHERE)  # -K (v values)
    for r in range(out.size):
        out[r] = -block[u, r] * block[product, r]
    if backward:
        for r in range(n):
            grad_r = rows[GRAD, start + r] if r < out.size else 0.0
            block[product, r] *= -grad_r  # now the gradient of u
            block[_ROWS, r] = grad_r * block[u, r]
        _adjoint(matrix, block, steps, settings, values)
    return block[_MOMENTS, :n], block[_SUMS, :n]


@compiled
def _aligned_rows(memory: Array, rows: int, width: int) -> Array:
    """Rows that start at cache lines: a processor reads what it has just written there sooner."""
    start = -(memory.ctypes.data // memory.itemsize) % PANEL
    return memory[start : start + rows * width].reshape(rows, width)


@compiled
def _matrix(x: Array) -> Matrix:
    """The matrix of descending points, with its entries if they are few enough to store."""
    n = x.size
    count = (n + PANEL - 1) // PANEL
    points, bands = np.empty((3, PANEL * count)), np.empty((4, n), np.int64)
    absolute_differences(x, points[1, :n])
    for i in range(PANEL * count):  # panels go on past n; there, the last point is repeated
        points[0, i], points[1, i] = x[min(i, n - 1)], points[1, min(i, n - 1)]
    _find_bands(x, points[1], bands)
    panels = np.empty((2, count + 1, 2), np.int64)
    lay_panels(bands[:2], 0, panels[0])
    lay_panels(bands[2:], panels[0, count, 0], panels[1])
    size = panels[1, count, 0]
    entries = np.empty(size if size <= STORED else 0)
    if entries.size:
        fill_panels(entries, panels, points, n)
        _exponentiate(entries)
    return points, bands, panels, entries


@compiled_borrowing
def _find_bands(x: Array, sums: Array, bands: Array) -> None:
    """Write the columns of each row and the rows of each column, ``low:high``: four rows."""
    low, high, n = 0, 0, x.size
    for r in range(n):
        low, high = band(x, sums, n - 1.0 - 2.0 * r, r, low, high)
        bands[0, r], bands[1, r] = low, high
    low, high = 0, 0
    for j in range(n):
        while bands[1, low] <= j:
            low += 1
        while high < n and bands[0, high] <= j:
            high += 1
        bands[2, j], bands[3, j] = low, high


@compiled_borrowing
def _exponentiate(numbers: Array) -> None:
    for i in range(numbers.size):
        numbers[i] = exp(min(numbers[i], 0.0))  # at most 0, up to rounding


@compiled_borrowing
def _compute_row(matrix: Matrix, r: int) -> slice:
    """Write the entries of row r to the last row of points, and return their columns."""
    points, bands, _, _ = matrix
    columns = slice(bands[0, r], bands[1, r])
    factor = bands.shape[1] - 1.0 - 2.0 * r
    x, sums, row = points[0, columns], points[1, columns], points[2, columns]
    _fill_row(row, factor, points[0, r], points[1, r], x, sums)
    return columns


@compiled_borrowing
def _fill_row(row: Array, factor: float, x_r: float, sum_r: float, x: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(min(factor * (x[j] - x_r) - (sums[j] - sum_r), 0.0))


@compiled_inline
def _sweep_inline(
    matrix: Matrix, block: Array, vector: int, by_row: Product, by_column: Product
) -> None:
    """Write the product of K and a vector, then those of Kᵀ and the vector that was written.

    Args:
        matrix: K.
        block: all vectors are rows of it.
        vector: ``NO_ROW`` to leave out the first product; Kᵀ is then multiplied by the row that
            ``by_row`` already holds.
        by_row: for the first product.
        by_column: for the product with Kᵀ and, in the row after it, the sums weighted by ``r - j``;
            ``_NOWHERE`` to leave them out. If it has a scale, they also change the row
            ``_MOMENTS``: see :mod:`rankgrad.kernels.cpu._panels`.
    """
    _, bands, panels, entries = matrix
    n = bands.shape[1]
    if entries.size == 0:
        _sweep_anew(matrix, block, vector, by_row, by_column)
        return
    if vector >= 0:
        multiply_panels(entries, panels, 0, n, block, vector, by_row, _MOMENTS)
    if by_column[0] >= 0:
        multiply_with_moments(entries, panels, 1, n, block, by_row[0], by_column, _MOMENTS)


@compiled_borrowing
def _sweep(matrix: Matrix, block: Array, vector: int, by_row: Product, by_column: Product) -> None:
    """:func:`_sweep_inline`, for calls outside of loops, where compiling it takes longer."""
    _sweep_inline(matrix, block, vector, by_row, by_column)


@compiled_borrowing
def _sweep_anew(
    matrix: Matrix, block: Array, vector: int, by_row: Product, by_column: Product
) -> None:
    """:func:`_sweep_inline` of a matrix that is not stored, which is computed once for both."""
    points, bands, _, _ = matrix
    written, (out, scale, _) = by_row[0], by_column
    n, n_columns = bands.shape[1], bands.shape[1] if out >= 0 else 0
    for j in range(n_columns):
        block[out, j] = block[out + 1, j] = 0.0
    for r in range(n):
        columns = _compute_row(matrix, r)
        row = points[2, columns]
        if vector >= 0:
            block[written, r] = _finish(dot(row, block[vector, columns]), block, by_row, r)
        if out >= 0:
            add_scaled(row, block[written, r], block[out, columns])
            _add_moments(row, r - bands[0, r], block[written, r], block[out + 1, columns])
    for j in range(n_columns):
        block[out, j] = _finish(block[out, j], block, by_column, j)
        if scale >= 0:
            block[_MOMENTS, j] += block[scale, j] * block[out + 1, j]
            block[_MOMENTS, j] += block[scale + 1, j] * block[out, j]


@compiled
def _add_moments(row: Array, r: int, factor: float, out: Array) -> None:
    """``out_j += (r - j) factor row_j``, all ``[n]``."""
    for j in range(row.size):
        out[j] += (r - j) * factor * row[j]


@compiled_inline
def _finish(y: float, block: Array, product: Product, at: int) -> float:
    """What ``multiply_panels`` writes for a product y at this index; see :data:`Product`."""
    _, scale, added = product
    if scale >= 0:
        factor: float = block[scale, at]
        return -(y + float(block[added, at])) * factor * factor
    return 1.0 / y


@compiled_borrowing
def _scale(matrix: Matrix, block: Array, settings: Settings) -> int:
    """Iterate, write each u and v to the block, and return the number of iterations.

    It stops once all column sums (if rows are scaled first, row sums) are within the tolerance
    of 1.
    """
    iterations, tolerance, rows_first, normalized = settings
    n, width = matrix[1].shape[1], block.shape[1]
    head = block.reshape(block.size)[: (_FIRST + 1) * width]
    for i in range(head.size):  # panels read past n; products write the other rows
        head[i] = 0.0
    for j in range(n):
        block[_ONES, j] = block[_FIRST, j] = 1.0
    start = _ONES if normalized else NO_ROW
    _sweep(matrix, block, start, (_FIRST, NO_ROW, NO_ROW), (_FIRST + _V, NO_ROW, NO_ROW))
    checked = 0 if rows_first else _V
    for step in range(1, iterations + 1 - rows_first):
        u = _FIRST + _STEP * step
        v = u - _STEP + _V
        _sweep_inline(matrix, block, v, (u, NO_ROW, NO_ROW), (u + _V, NO_ROW, NO_ROW))
        if _converged(block, u + checked, n, tolerance):
            return step
    return iterations


@compiled_inline
def _converged(block: Array, now: int, n: int, tolerance: float) -> bool:
    """Whether all sums under the previous scales are within the tolerance of one.

    The scales in the row ``now`` make each sum one, so under those of the iteration before, the sum
    is the ratio of the two.
    """
    i = 0
    while i < n and abs(block[now - _STEP, i] - block[now, i]) < tolerance * block[now, i]:
        i += 1
    return i == n


@compiled_borrowing
def _adjoint(matrix: Matrix, block: Array, steps: int, settings: Settings, values: Array) -> None:
    """Write the sums that :func:`scaled_product` returns to the first two rows of the block.

    At the start the block has the gradient of u in the row ``_GRAD_U``, and ``grad u`` in the row
    ``_ROWS``, where grad is the gradient of the result. Columns of D sum to 0, except in the
    normalization. So only the moments ``Σ_r (r - j) D_rj`` are needed.
    """
    _, _, rows_first, normalized = settings
    n, last = values.size, _FIRST + _STEP * (steps - 1)
    _sweep(matrix, block, NO_ROW, (_ROWS, NO_ROW, NO_ROW), (_GRAD_V, _ONES, _ZEROS))
    for j in range(n):
        block[_MOMENTS, j] = block[last + _V, j] * values[j] * block[_GRAD_V + 1, j]
        block[_GRAD_V, j] *= -values[j]
        block[_COLUMNS, j] = 0.0
    grad_u, grad_v, columns, others = _GRAD_U, _GRAD_V, _COLUMNS, _COLUMNS + 2
    if rows_first:  # the last scaling is that of the columns
        for r in range(n):
            block[_ROWS, r] = 0.0
        by_column = (columns, last + _V, grad_v)
        _sweep(matrix, block, NO_ROW, (_ROWS, NO_ROW, NO_ROW), by_column)
        grad_v, last = _ZEROS, last - _STEP
    for at in range(last, _FIRST - 1, -_STEP):
        by_row, by_column = (_ROWS, at + _STEP, grad_u), (others, at + _V, grad_v)
        _sweep_inline(matrix, block, columns, by_row, by_column)
        grad_u, grad_v, columns, others = _ZEROS, _ZEROS, others, columns
    if normalized:
        _sweep(matrix, block, columns, (_ROWS, _FIRST, grad_u), (others, _ONES, _ZEROS))
        for j in range(n):
            block[_SUMS, j] = block[others, j]
    else:
        _sweep(matrix, block, columns, (_ROWS, _ONES, _ZEROS), _NOWHERE)
        for r in range(n):
            block[_SUMS, r] = -block[_ROWS, r]
    for j in range(n):
        block[_MOMENTS, j] *= -2.0
