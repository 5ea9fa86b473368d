"""Sinkhorn scaling of a band matrix, for NeuralSort and optimal transport.

For descending points x and ``b_j = Σ_k |x_j - x_k|``, the matrix is

    K_rj = exp((n - 1 - 2r) (x_j - x_r) - (b_j - b_r)),

NeuralSort's before its rows are normalized. It is 1 on the diagonal and decreases away from it, so
only a band is computed. The scaling iterates ``v = 1 / (Kᵀ u)`` and ``u = 1 / (K v)``, from
``u = 1`` or, with normalized rows, ``u = 1 / (K 1)``. The result is ``diag(u) K diag(v)``.

Let D be the gradient with respect to the logits of K. It is K times a sum of outer products, two
for each iteration. So sums of D over rows and columns are sums of products of K with vectors. A
scaling cancels any factor of the columns or rows that it scales: all columns of D sum to 0, and its
rows to the gradient of the first u; or, with normalized rows, all rows sum to 0, and the columns as
those of the outer product of that normalization.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu._arithmetic import add_scaled, dot, exp
from rankgrad.kernels.cpu._compiled import (
    PANEL,
    UNROLLED,
    compiled,
    compiled_borrowing,
    compiled_inline,
    compiled_reduction,
    multiply_panel,
)
from rankgrad.kernels.cpu._flat_arrays import APART, Array
from rankgrad.kernels.cpu._permutation_rows import absolute_differences, band

#: Iterations, tolerance, whether rows are scaled before columns, whether rows start normalized. If
#: they do, scaling rows first equals scaling columns first without the last scaling of the rows.
Settings = tuple[int, float, bool, bool]

#: What loops save for later calls on the same scores: the first list, memory for the block of each
#: list from there on, and the number of iterations of each, 0 before the first call. The memory is
#: empty if nothing is saved.
State = tuple[int, Array, Array]

#: Points and their sums b ``[2, n]``; the first column and the end of the columns of each row
#: ``[2, n]``; the entries in panels of eight rows (see ``multiply_panel``), and the start of each
#: panel in them and its first column ``[panels + 1, 2]``; the same two of the transpose. A large
#: matrix has no entries: its rows are computed anew for each product, in the last array ``[n]``.
Matrix = tuple[Array, Array, Array, Array, Array, Array, Array]

STORED = 1 << 20  # matrices of up to so many entries (8 MiB) are stored

#: Rows of a block, by iteration: u and r u, the pair to be multiplied by Kᵀ; then v of the next
#: iteration, and the product ``Kᵀ (r u)``.
U, V, WEIGHTED, ROWS = 0, 2, 3, 4


def block_rows(iterations: int) -> int:
    """The number of rows of a list's block."""
    return ROWS * iterations + V


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
    n, rows_first = x.size, settings[2]
    matrix = _matrix(x)
    first, memory, saved = state
    if memory.size:
        rows, width = ROWS * settings[0] + V, n + APART
        at = rows * (start + APART * (b - first))
        block = memory[at : at + rows * width].reshape(rows, width)
        if saved[b - first] == 0:
            _end_with_zeros(block, n)
            saved[b - first] = _scale(matrix, block, settings)
        steps = saved[b - first]
    else:
        block = _vectors(ROWS * settings[0] + V, n)
        steps = _scale(matrix, block, settings)
    u, v = block[ROWS * (steps - rows_first) + U, :n], block[ROWS * (steps - 1) + V, :n]
    work = _vectors(8, n)
    for j in range(n):
        work[0, j] = v[j] * values[j]
    _multiply(matrix, work[0], work[2])
    for r in range(out.size):
        out[r] = u[r] * work[2, r]
    if grad.size:
        _adjoint(matrix, block, steps, settings, values, grad, work)
    return work[0, :n], work[1, :n]


@compiled
def _vectors(rows: int, n: int) -> Array:
    """Memory for rows of n numbers, followed by zeros as far as panels may read."""
    block = np.empty((rows, n + APART))
    _end_with_zeros(block, n)
    return block


@compiled_borrowing
def _end_with_zeros(block: Array, n: int) -> None:
    for row in range(len(block)):
        for j in range(n, n + PANEL):
            block[row, j] = 0.0


@compiled
def _matrix(x: Array) -> Matrix:
    """The matrix of descending points, with its entries if they are few enough to store."""
    n = x.size
    points, bands = np.empty((2, n)), np.empty((2, n), np.int64)
    for i in range(n):
        points[0, i] = x[i]
    absolute_differences(x, points[1])
    low, high, size = 0, 0, 0
    for r in range(n):
        low, high = band(x, points[1], n - 1.0 - 2.0 * r, r, low, high)
        bands[0, r], bands[1, r] = low, high
        size += high - low
    panels, transposed = _panels(bands), _panels(_transposed_bands(bands))
    stored = size <= STORED
    entries = np.zeros(panels[-1, 0] if stored else 0)
    of_columns = np.zeros(transposed[-1, 0] if stored else 0)
    matrix = points, bands, entries, panels, of_columns, transposed, np.empty(n)
    if stored:
        _store(matrix)
    return matrix


@compiled
def _transposed_bands(bands: Array) -> Array:
    """The first row of each column, and the end of its rows."""
    found, low, high = np.empty_like(bands), 0, 0
    n = bands.shape[1]
    for j in range(n):
        while bands[1, low] <= j:
            low += 1
        while high < n and bands[0, high] <= j:
            high += 1
        found[0, j], found[1, j] = low, high
    return found


@compiled
def _panels(bands: Array) -> Array:
    """The start of each panel in the entries, and its first column."""
    n = bands.shape[1]
    count = (n + PANEL - 1) // PANEL
    panels = np.zeros((count + 1, 2), np.int64)
    for p in range(count):
        low, high = bands[0, PANEL * p], bands[1, min(PANEL * p + PANEL, n) - 1]
        columns = (high - low + UNROLLED - 1) // UNROLLED * UNROLLED
        panels[p, 1], panels[p + 1, 0] = low, panels[p, 0] + PANEL * columns
    return panels


@compiled_borrowing
def _store(matrix: Matrix) -> None:
    """Compute the entries, in both layouts."""
    _, _, entries, panels, of_columns, transposed, row = matrix
    for r in range(row.size):
        some = _compute_row(matrix, r)
        at = panels[r // PANEL, 0] - PANEL * panels[r // PANEL, 1] + r % PANEL
        for j in range(some.start, some.stop):
            entries[at + PANEL * j] = row[j]
            p = j // PANEL
            of_columns[transposed[p, 0] + PANEL * (r - transposed[p, 1]) + j % PANEL] = row[j]


@compiled_borrowing
def _compute_row(matrix: Matrix, r: int) -> slice:
    """Write the entries of row r to the matrix's last array, and return their columns."""
    points, bands, _, _, _, _, row = matrix
    some = slice(bands[0, r], bands[1, r])
    factor = points.shape[1] - 1.0 - 2.0 * r
    _fill(row[some], factor, points[0, r], points[1, r], points[0, some], points[1, some])
    return some


@compiled_borrowing
def _fill(row: Array, factor: float, own: float, own_sum: float, x: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(factor * (x[j] - own) - (sums[j] - own_sum))


@compiled_borrowing
def _multiply(matrix: Matrix, vector: Array, out: Array) -> None:
    """``K vector``."""
    _, _, entries, panels, _, _, row = matrix
    if entries.size:
        _multiply_panels(entries, panels, vector, out)
        return
    for r in range(row.size):
        some = _compute_row(matrix, r)
        out[r] = dot(row[some], vector[some])


@compiled_inline
def _multiply_transposed(matrix: Matrix, pair: Array, out: Array) -> None:
    """Write Kᵀ times both rows of a pair: a, and ``r a``, which is written first."""
    _, _, _, _, entries, panels, row = matrix
    n = row.size
    for r in range(n):
        pair[1, r] = r * pair[0, r]
    if entries.size:
        _multiply_panels(entries, panels, pair, out)
        return
    _clear(out, n)
    for r in range(n):
        _add_row(row, _compute_row(matrix, r), pair[:, r], out)


@compiled_inline
def _multiply_panels(entries: Array, panels: Array, vectors: Array, out: Array) -> None:
    for p in range(len(panels) - 1):
        columns = (panels[p + 1, 0] - panels[p, 0]) // PANEL
        multiply_panel(entries, panels[p, 0], columns, vectors, panels[p, 1], out, PANEL * p)


@compiled_borrowing
def _clear(pair: Array, n: int) -> None:
    for j in range(n):
        pair[0, j] = pair[1, j] = 0.0


@compiled_borrowing
def _add_row(row: Array, some: slice, factors: Array, out: Array) -> None:
    for i in range(2):
        add_scaled(row[some], factors[i], out[i, some])


@compiled_borrowing
def _sweep(matrix: Matrix, vector: Array, u: Array, added: Array, pair: Array, out: Array) -> None:
    """Compute a factor for each row from ``K vector``, then the factors' products with Kᵀ.

    See :func:`_to_factors` and :func:`_multiply_transposed`. A matrix that is not stored is
    computed once for both.
    """
    _, _, entries, panels, _, _, row = matrix
    n = row.size
    if entries.size:
        _multiply_panels(entries, panels, vector, pair[0])
        _to_factors(pair[0, :n], u, added)
        _multiply_transposed(matrix, pair, out)
        return
    _clear(out, n)
    for r in range(n):
        some = _compute_row(matrix, r)
        pair[0, r] = dot(row[some], vector[some])
        _to_factors(pair[0, r : r + 1], u[r : r + 1], added[r : r + 1])
        pair[1, r] = r * pair[0, r]
        _add_row(row, some, pair[:, r], out)


@compiled_inline
def _to_factors(y: Array, u: Array, added: Array) -> None:
    """Replace y by ``1 / y``, or in the backward pass, which has a u, by ``-(y + added) u²``."""
    for r in range(added.size):
        y[r] += added[r]
    for r in range(u.size):
        y[r] = -y[r] * u[r] * u[r]
    if u.size == 0:
        for r in range(y.size):
            y[r] = 1.0 / y[r]


@compiled_borrowing
def _scale(matrix: Matrix, block: Array, settings: Settings) -> int:
    """Iterate, write each u and v to the block, and return the number of iterations.

    It stops once all column sums (if rows are scaled first, row sums) are within the tolerance
    of 1.
    """
    iterations, tolerance, rows_first, normalized = settings
    n, nothing = matrix[0].shape[1], block[0, :0]
    for r in range(n):
        block[U, r] = block[ROWS, r] = 1.0
    if normalized:
        _sweep(matrix, block[ROWS], nothing, nothing, block[:V], block[V:ROWS])
    else:
        _multiply_transposed(matrix, block[:V], block[V:ROWS])
    for step in range(1, iterations + 1):
        at = ROWS * step
        before, v, u = block[at - ROWS + U, :n], block[at - ROWS + V], block[at + U, :n]
        _to_factors(v[:n], nothing, nothing)
        last_v = block[max(at - 2 * ROWS, 0) + V, :n]
        if not rows_first and step > 1 and _converged(last_v, v[:n], tolerance):
            return step - 1
        if step == iterations and not rows_first:
            _multiply(matrix, v, block[at + U])
            _to_factors(u, nothing, nothing)
        if step == iterations:
            return step
        _sweep(matrix, v, nothing, nothing, block[at : at + V], block[at + V : at + ROWS])
        if rows_first and _converged(before, u, tolerance):
            return step
    return iterations


@compiled_reduction
def _converged(before: Array, now: Array, tolerance: float) -> bool:
    """Whether all sums under the previous scales are within the tolerance of one.

    The scales ``now`` make each sum one, so under ``before`` the sum is ``before / now``.
    """
    moved = 0.0
    for i in range(now.size):
        moved += 1.0 if abs(before[i] - now[i]) >= tolerance * now[i] else 0.0
    return moved == 0.0


@compiled_borrowing
def _adjoint(
    matrix: Matrix,
    block: Array,
    steps: int,
    settings: Settings,
    values: Array,
    grad: Array,
    work: Array,
) -> None:
    """Write the sums that :func:`scaled_product` returns to the first two rows of ``work``.

    Its third row is ``K (v values)``.
    """
    _, _, rows_first, normalized = settings
    n = values.size
    found, grad_u, grad_v, nothing = work[0, :n], work[1, :n], work[2, :n], work[0, :0]
    grad_sums, pair, sums = work[3], work[4:6], work[6:]
    u, v = block[ROWS * (steps - rows_first) + U], block[ROWS * (steps - 1) + V]
    for r in range(n):
        own = grad[r] if r < grad.size else 0.0
        pair[0, r], grad_u[r] = own * u[r], own * work[2, r]
    _multiply_transposed(matrix, pair, sums)
    for j in range(n):
        grad_v[j] = values[j] * sums[0, j]
        found[j] = 2.0 * v[j] * values[j] * (j * sums[0, j] - sums[1, j])
    added = (
        grad_u  # the gradient of u, whose scaling comes first or, if rows are scaled first, next
    )
    for j in range(n):
        grad_sums[j] = 0.0
    for step in range(steps, 0, -1):
        at = ROWS * step
        if step == steps and rows_first:
            _clear(sums, n)
        else:
            _sweep(matrix, grad_sums, block[at + U, :n], added, pair, sums)
            added = nothing
        v, weighted = block[at - ROWS + V, :n], block[at - ROWS + WEIGHTED, :n]
        _column_sums(v, weighted, sums, grad_v, grad_sums, found)
    if not normalized:
        _multiply(matrix, grad_sums, work[1])
        return
    _sweep(matrix, grad_sums, block[U, :n], added, pair, sums)
    for j in range(n):
        found[j] += 2.0 * (j * sums[0, j] - sums[1, j])
        grad_u[j] = -sums[0, j]


@compiled_borrowing
def _column_sums(
    v: Array, weighted: Array, sums: Array, grad_v: Array, grad_sums: Array, found: Array
) -> None:
    """The backward pass of ``v = 1 / (Kᵀ u)``, and what this iteration adds to the sums of D."""
    for j in range(v.size):
        by_row, by_rank = sums[0, j], j * sums[0, j] - sums[1, j]
        own = -(grad_v[j] + by_row) * v[j] * v[j]
        found[j] += 2.0 * (v[j] * by_rank + own * (j / v[j] - weighted[j]))
        grad_sums[j], grad_v[j] = own, 0.0
