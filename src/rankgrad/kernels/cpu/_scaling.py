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
from rankgrad.kernels.cpu._panels import PANEL, UNROLLED, multiply_panels, panels_of
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
#: - points: x and b, ``[2, n rounded up to whole panels]``;
#: - bands: the first column and the end of the columns of each row, ``[2, n]``;
#: - entries and panels of K (see :mod:`rankgrad.kernels.cpu._panels`);
#: - entries and panels of Kᵀ;
#: - row ``[n]``: a large matrix has no entries; each product computes its rows anew, in this array.
Matrix = tuple[Array, Array, Array, Array, Array, Array, Array]

#: ``out [2, n]``, ``scale [n]`` and ``added [n]``: the last arguments of ``multiply_panels``, which
#: say where a product y is written and in which form: ``1 / y`` if ``scale`` is empty, otherwise
#: ``-(y + added) scale²``.
Product = tuple[Array, Array, Array]

STORED = 1 << 20  # matrices of up to so many numbers (8 MiB), with their transpose, are stored

#: Rows of a list's block: the two results of :func:`scaled_product`, zeros and ones; pairs of rows
#: for the gradients of u and v, for products with K, and two pairs for products with Kᵀ. From
#: ``_FIRST`` on, each iteration has ``_STEP`` rows: the pair of u and r u (u times the row index r)
#: and, ``_V`` rows later, the pair of the next v and ``Kᵀ (r u)``.
_MOMENTS, _SUMS, _ZEROS, _ONES, _GRAD_U, _GRAD_V, _ROWS, _COLUMNS = 0, 1, 2, 3, 4, 6, 8, 10
_FIRST, _V, _STEP = 14, 2, 4


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
    # Panels read past n, up to this width. It is an odd number of cache lines (of PANEL numbers),
    # so that columns spread over the cache.
    width = PANEL * ((n + PANEL + UNROLLED - 2) // PANEL | 1)
    matrix = _matrix(x)
    first, memory, saved = state
    if memory.size:
        at = size * (start - offsets[first] + APART * (b - first))
        block = memory[at : at + size * width].reshape(size, width)
        if saved[b - first] == 0:
            saved[b - first] = _scale(matrix, block, settings)
        steps = saved[b - first]
    else:
        block = np.empty((size, width))
        steps = _scale(matrix, block, settings)
    last, rows_first, nothing = _FIRST + _STEP * steps, settings[2], block[:0]
    u, v, weighted = block[last - _STEP * rows_first], block[last - _STEP + _V], block[_COLUMNS]
    for j in range(n):
        weighted[j] = v[j] * values[j]
    pair, product = block[_GRAD_U : _GRAD_U + 2], block[_GRAD_U]
    by_row = pair, block[_ONES], block[_ZEROS]
    _sweep(matrix, weighted, by_row, (nothing, product, product))  # product = -K (v values)
    for r in range(out.size):
        out[r] = -u[r] * product[r]
    if backward:
        for r in range(n):
            grad_r = rows[GRAD, start + r] if r < out.size else 0.0
            product[r] *= -grad_r  # now the gradient of u
            block[_ROWS, r], block[_ROWS + 1, r] = grad_r * u[r], r * grad_r * u[r]
        _adjoint(matrix, block, steps, settings, values)
    return block[_MOMENTS, :n], block[_SUMS, :n]


@compiled
def _matrix(x: Array) -> Matrix:
    """The matrix of descending points, with its entries if they are few enough to store."""
    n = x.size
    count = (n + PANEL - 1) // PANEL
    points, bands = np.zeros((2, PANEL * count)), np.empty((2, n), np.int64)
    for i in range(n):
        points[0, i] = x[i]
    absolute_differences(x, points[1, :n])
    low, high = 0, 0
    for r in range(n):
        low, high = band(x, points[1, :n], n - 1.0 - 2.0 * r, r, low, high)
        bands[0, r], bands[1, r] = low, high
    panels, transposed = panels_of(bands), panels_of(_transposed_bands(bands))
    stored = panels[-1, 0] + transposed[-1, 0] <= STORED
    entries = np.empty(panels[-1, 0] if stored else 0)
    of_columns = np.empty(transposed[-1, 0] if stored else 0)
    if stored:
        for p in range(count):
            _fill_panel(points, n, p, panels, True, entries[panels[p, 0] :])
            _fill_panel(points, n, p, transposed, False, of_columns[transposed[p, 0] :])
    return points, bands, entries, panels, of_columns, transposed, np.empty(n)


@compiled
def _transposed_bands(bands: Array) -> Array:
    """The first row of each column, and the end of its rows."""
    transposed, low, high = np.empty_like(bands), 0, 0
    n = bands.shape[1]
    for j in range(n):
        while bands[1, low] <= j:
            low += 1
        while high < n and bands[0, high] <= j:
            high += 1
        transposed[0, j], transposed[1, j] = low, high
    return transposed


@compiled_borrowing
def _fill_panel(points: Array, n: int, p: int, panels: Array, of_rows: bool, out: Array) -> None:
    """Compute a panel of eight rows, or of eight columns, of the matrix.

    Index i counts the panel's eight rows (or columns), c is a column (or row) that crosses them.
    ``(n - 1 - 2r) (x_j - x_r) - (b_j - b_r)`` is written with ``x_i - x_c``: if i is the row r, the
    sign changes and the factor decreases by 2 with each i.
    """
    low, size = panels[p, 1], panels[p + 1, 0] - panels[p, 0]
    sign, decrease = (-1.0, 2.0) if of_rows else (1.0, 0.0)
    x, sums = points[0, PANEL * p : PANEL * p + PANEL], points[1, PANEL * p : PANEL * p + PANEL]
    for c in range(low, min(low + size // PANEL, n)):
        column = out[PANEL * (c - low) : PANEL * (c - low) + PANEL]
        factor = n - 1.0 - 2.0 * (PANEL * p if of_rows else c)
        x_c, sum_c = points[0, c], points[1, c]
        for i in range(PANEL):
            column[i] = sign * ((factor - decrease * i) * (x[i] - x_c) - (sums[i] - sum_c))
    _exponentiate(out[:size])
    # Zeros past the end of the matrix
    for c in range(low, low + size // PANEL):
        for i in range(n - PANEL * p if c < n else 0, PANEL):
            out[PANEL * (c - low) + i] = 0.0


@compiled_borrowing
def _exponentiate(numbers: Array) -> None:
    for i in range(numbers.size):
        numbers[i] = exp(min(numbers[i], 0.0))  # at most 0, up to rounding


@compiled_borrowing
def _compute_row(matrix: Matrix, r: int) -> slice:
    """Write the entries of row r to the matrix's last array, and return their columns."""
    points, bands, _, _, _, _, row = matrix
    columns = slice(bands[0, r], bands[1, r])
    factor = bands.shape[1] - 1.0 - 2.0 * r
    x, sums = points[0, columns], points[1, columns]
    _fill_row(row[columns], factor, points[0, r], points[1, r], x, sums)
    return columns


@compiled_borrowing
def _fill_row(row: Array, factor: float, x_r: float, sum_r: float, x: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(min(factor * (x[j] - x_r) - (sums[j] - sum_r), 0.0))


@compiled_borrowing
def _sweep(matrix: Matrix, vector: Array, by_row: Product, by_column: Product) -> None:
    """Write the product of K and a vector, then those of Kᵀ and the pair that was written.

    A matrix that is not stored is computed once for both.

    Args:
        matrix: K.
        vector: ``[n]``; if it is empty, the first product is left out, and Kᵀ is multiplied by the
            pair that ``by_row`` already holds.
        by_row: for the first product; the second row of its pair becomes r times the first.
        by_column: for the two products with Kᵀ; if its ``out`` is empty, they are left out.
    """
    _, bands, entries, panels, of_columns, transposed, row = matrix
    (pair, scale, added), (out, column_scale, column_added) = by_row, by_column
    if entries.size:
        if vector.size:
            multiply_panels(entries, panels, vector, pair, scale, added)
        if out.size:
            multiply_panels(of_columns, transposed, pair, out, column_scale, column_added)
        return
    n = bands.shape[1]
    for j in range(n if out.size else 0):
        out[0, j] = out[1, j] = 0.0
    for r in range(n):
        columns = _compute_row(matrix, r)
        if vector.size:
            pair[0, r] = _finish(dot(row[columns], vector[columns]), scale, added, r)
            pair[1, r] = r * pair[0, r]
        for i in range(len(out)):
            add_scaled(row[columns], pair[i, r], out[i, columns])
    for j in range(n if out.size else 0):
        out[0, j] = _finish(out[0, j], column_scale, column_added, j)


@compiled_inline
def _finish(y: float, scale: Array, added: Array, at: int) -> float:
    """What ``multiply_panels`` writes for a product y at this index; see :data:`Product`."""
    return -(y + added[at]) * scale[at] * scale[at] if scale.size else 1.0 / y


@compiled_borrowing
def _scale(matrix: Matrix, block: Array, settings: Settings) -> int:
    """Iterate, write each u and v to the block, and return the number of iterations.

    It stops once all column sums (if rows are scaled first, row sums) are within the tolerance
    of 1.
    """
    iterations, tolerance, rows_first, normalized = settings
    n, none = matrix[1].shape[1], block[0][:0]
    for row in range(len(block)):
        for j in range(n, block.shape[1]):
            block[row, j] = 0.0  # panels read past n
    u, v = block[_FIRST : _FIRST + _V], block[_FIRST + _V : _FIRST + _STEP]
    for j in range(n):
        block[_ZEROS, j], block[_ONES, j], u[0, j], u[1, j] = 0.0, 1.0, 1.0, j
    _sweep(matrix, block[_ONES] if normalized else none, (u, none, none), (v, none, none))
    for step in range(1, iterations + 1):
        at = _FIRST + _STEP * step
        last_u, last_v = block[at - _STEP, :n], block[max(at - 2 * _STEP, _FIRST) + _V, :n]
        now_v, u, v = block[at - _STEP + _V], block[at : at + _V], block[at + _V : at + _STEP]
        if not rows_first and step > 1 and _converged(last_v, now_v[:n], tolerance):
            return step - 1
        if step == iterations and rows_first:
            return step
        _sweep(matrix, now_v, (u, none, none), (v, none, none))
        if rows_first and _converged(last_u, u[0, :n], tolerance):
            return step
    return iterations


@compiled_inline
def _converged(before: Array, now: Array, tolerance: float) -> bool:
    """Whether all sums under the previous scales are within the tolerance of one.

    The scales ``now`` make each sum one, so under ``before`` the sum is ``before / now``.
    """
    i = 0
    while i < now.size and abs(before[i] - now[i]) < tolerance * now[i]:
        i += 1
    return i == now.size


@compiled_borrowing
def _adjoint(matrix: Matrix, block: Array, steps: int, settings: Settings, values: Array) -> None:
    """Write the sums that :func:`scaled_product` returns to the first two rows of the block.

    At the start the block has the gradient of u in the row ``_GRAD_U``, and ``grad u`` and
    ``r grad u`` in the pair ``_ROWS``, where grad is the gradient of the result. Columns of D sum
    to 0, except in the normalization. So only the moments ``Σ_r r D_rj`` are needed.
    """
    _, _, rows_first, normalized = settings
    n, ones, zeros, moments = values.size, block[_ONES], block[_ZEROS], block[_MOMENTS]
    rows, grad_u, grad_v = block[_ROWS : _ROWS + 2], block[_GRAD_U], block[_GRAD_V]
    columns, others = block[_COLUMNS : _COLUMNS + 2], block[_COLUMNS + 2 : _FIRST]
    none, end = grad_u[:0], _FIRST + _STEP * steps
    _sweep(matrix, none, (rows, none, none), (block[_GRAD_V : _GRAD_V + 2], ones, zeros))
    for j in range(n):
        moments[j] = block[end - _STEP + _V, j] * values[j] * block[_GRAD_V + 1, j]
        grad_v[j] *= -values[j]
        columns[0, j] = 0.0
    for at in range(end - _STEP, _FIRST - 1, -_STEP):
        v, weighted = block[at + _V], block[at + _V + 1]
        if rows_first and at == end - _STEP:  # the last scaling is that of the columns
            for r in range(n):
                rows[0, r] = rows[1, r] = 0.0
            _sweep(matrix, none, (rows, none, none), (others, v, grad_v))
        else:
            by_row = rows, block[at + _STEP], grad_u
            _sweep(matrix, columns[0], by_row, (others, v, grad_v))
            grad_u = zeros
        grad_v, columns, others = zeros, others, columns
        for j in range(n):
            moments[j] += v[j] * columns[1, j] + columns[0, j] * weighted[j]
    sums = block[_SUMS]
    if normalized:
        _sweep(matrix, columns[0], (rows, block[_FIRST], grad_u), (others, ones, zeros))
        for j in range(n):
            sums[j], moments[j] = others[0, j], moments[j] + others[1, j] + j * others[0, j]
    else:
        _sweep(matrix, columns[0], (rows, ones, zeros), (block[:0], none, none))
        for r in range(n):
            sums[r] = -rows[0, r]
    for j in range(n):
        moments[j] *= -2.0
