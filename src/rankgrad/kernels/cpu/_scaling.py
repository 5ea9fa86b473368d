"""Sinkhorn scaling of a band matrix, for NeuralSort and optimal transport.

For descending points x and ``b_j = Σ_k |x_j - x_k|``, the matrix is

    K_rj = exp((n - 1 - 2r) (x_j - x_r) - (b_j - b_r)),

NeuralSort's before its rows are normalized. It is 1 on the diagonal and decreases away from it, so
only a band is computed. The scaling iterates ``v = 1 / (Kᵀ u)`` and ``u = 1 / (K v)``, from
``u = 1`` or, with normalized rows, ``u = 1 / (K 1)``. The result is ``diag(u) K diag(v)``.

Let D be the gradient with respect to the logits of K. It is K times a sum of outer products, two
for each iteration. So sums of D over rows and columns are sums of products of K with vectors.

A scaling of rows or columns cancels any factor by which these were multiplied before. So every
column of D sums to 0, and row r sums to the gradient of the first ``u_r``. With normalized rows it
is the rows of D that sum to 0, and column j sums to that of the normalization's outer product.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu._arithmetic import add_scaled, dot, exp
from rankgrad.kernels.cpu._compiled import compiled, compiled_borrowing, compiled_inline
from rankgrad.kernels.cpu._flat_arrays import APART, Array
from rankgrad.kernels.cpu._panels import PANEL, UNROLLED, multiply_panels, panels_of
from rankgrad.kernels.cpu._permutation_rows import absolute_differences, band

#: Iterations, tolerance, whether rows are scaled before columns, whether rows start normalized. If
#: they do, scaling rows first equals scaling columns first without the last scaling of the rows.
Settings = tuple[int, float, bool, bool]

#: What loops save for later calls on the same scores: the first list, memory for the block of each
#: list from there on, and the number of iterations of each, 0 before the first call. The memory is
#: empty if nothing is saved.
State = tuple[int, Array, Array]

#: Points and their sums b ``[2, whole panels]``; the first column and the end of the columns of
#: each row ``[2, n]``; the entries in panels (see :mod:`rankgrad.kernels.cpu._panels`), and where
#: the panels are; the same two of the transpose. A large matrix has no entries: its rows are
#: computed anew for each product, in the last array ``[n]``.
Matrix = tuple[Array, Array, Array, Array, Array, Array, Array]

#: Where to write a product and what, as the last arguments of ``multiply_panels``.
Product = tuple[Array, Array, Array]

STORED = 1 << 20  # matrices of up to so many numbers (8 MiB), with their transpose, are stored

#: Rows of a block: the two results of :func:`scaled_product`, zeros and ones; pairs for the
#: gradients of u and v, for products with K, and two for products with Kᵀ; then for each iteration
#: the pair of u and r u, and that of the next v and ``Kᵀ (r u)``.
_MOMENTS, _SUMS, _ZEROS, _ONES, _GRAD_U, _GRAD_V, _ROWS, _COLUMNS = 0, 1, 2, 3, 4, 6, 8, 10
_FIRST, _V, _STEP = 14, 2, 4


def block_rows(iterations: int) -> int:
    """The number of rows of a list's block."""
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, found {iterations}")
    return _FIRST + _STEP * (iterations + 1)


@compiled
def scaled_product(
    b: int,
    start: int,
    x: Array,
    values: Array,
    grad: Array,
    out: Array,
    settings: Settings,
    state: State,
) -> tuple[Array, Array]:
    """Write the first ranks of ``u K (v values)`` to ``out``, and compute the adjoint.

    Args:
        b: the list's number.
        start: the offset of the list, less that of the state's first list.
        x: ``[n]``.
        values: ``[n]``.
        grad: the gradient of ``out``, or empty.
        out: ``[k]``.
        settings: of the scaling.
        state: of the lists.

    Returns:
        Sums of D: ``Σ_r (2j - 2r) D_rj`` for each column j; and row sums minus column sums.
    """
    n, rows = x.size, _FIRST + _STEP * (settings[0] + 1)
    # As far as panels read; of an odd number of cache lines, so that columns spread over the cache.
    width = PANEL * ((n + PANEL + UNROLLED - 2) // PANEL | 1)
    matrix = _matrix(x)
    first, memory, saved = state
    if memory.size:
        at = rows * (start + APART * (b - first))
        block = memory[at : at + rows * width].reshape(rows, width)
        if saved[b - first] == 0:
            saved[b - first] = _scale(matrix, block, settings)
        steps = saved[b - first]
    else:
        block = np.empty((rows, width))
        steps = _scale(matrix, block, settings)
    at, rows_first, nothing = _FIRST + _STEP * steps, settings[2], block[:0]
    u, v, weighted = block[at - _STEP * rows_first], block[at - _STEP + _V], block[_COLUMNS]
    for j in range(n):
        weighted[j] = v[j] * values[j]
    pair, product = block[_GRAD_U : _GRAD_U + 2], block[_GRAD_U]
    by_row = pair, block[_ONES], block[_ZEROS]
    _sweep(matrix, weighted, by_row, (nothing, product, product))
    for r in range(out.size):
        out[r] = -u[r] * product[r]
    if grad.size:
        for r in range(n):
            own = grad[r] if r < grad.size else 0.0
            product[r] *= -own
            block[_ROWS, r], block[_ROWS + 1, r] = own * u[r], r * own * u[r]
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
    """Compute a panel of eight rows, or of eight columns, of the matrix."""
    low, size = panels[p, 1], panels[p + 1, 0] - panels[p, 0]
    sign, change = (-1.0, 2.0) if of_rows else (1.0, 0.0)
    x, sums = points[0, PANEL * p : PANEL * p + PANEL], points[1, PANEL * p : PANEL * p + PANEL]
    for c in range(low, min(low + size // PANEL, n)):
        column = out[PANEL * (c - low) : PANEL * (c - low) + PANEL]
        factor, own, own_sum = (
            n - 1.0 - 2.0 * (PANEL * p if of_rows else c),
            points[0, c],
            points[1, c],
        )
        for i in range(PANEL):
            column[i] = sign * ((factor - change * i) * (x[i] - own) - (sums[i] - own_sum))
    _exponentiate(out[:size])
    for c in range(low, low + size // PANEL):
        for i in range(n - PANEL * p if c < n else 0, PANEL):
            out[PANEL * (c - low) + i] = 0.0


@compiled_borrowing
def _exponentiate(numbers: Array) -> None:
    for i in range(numbers.size):
        numbers[i] = exp(numbers[i])


@compiled_borrowing
def _compute_row(matrix: Matrix, r: int) -> slice:
    """Write the entries of row r to the matrix's last array, and return their columns."""
    points, bands, _, _, _, _, row = matrix
    some = slice(bands[0, r], bands[1, r])
    factor = bands.shape[1] - 1.0 - 2.0 * r
    _fill(row[some], factor, points[0, r], points[1, r], points[0, some], points[1, some])
    return some


@compiled_borrowing
def _fill(row: Array, factor: float, own: float, own_sum: float, x: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(factor * (x[j] - own) - (sums[j] - own_sum))


@compiled_borrowing
def _sweep(matrix: Matrix, vector: Array, by_row: Product, by_column: Product) -> None:
    """Write the product of K and a vector, then that of Kᵀ and what was written.

    Without a vector, what is there is multiplied by Kᵀ; the second product may be left out, too. A
    matrix that is not stored is computed once for both.
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
        some = _compute_row(matrix, r)
        if vector.size:
            pair[0, r] = _finish(dot(row[some], vector[some]), scale, added, r)
            pair[1, r] = r * pair[0, r]
        for i in range(len(out)):
            add_scaled(row[some], pair[i, r], out[i, some])
    for j in range(n if out.size else 0):
        out[0, j] = _finish(out[0, j], column_scale, column_added, j)


@compiled_inline
def _finish(y: float, scale: Array, added: Array, at: int) -> float:
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
            block[row, j] = 0.0  # panels may read so far
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

    The block has the gradient of u, and the pair that the result's gradient is multiplied by.
    Columns of D sum to 0, except in the normalization. So only the moments ``Σ_r r D_rj`` are
    needed.
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
