"""Sums of sigmoids over all pairs of a list, each pair computed once, and their adjoint.

:func:`sigmoid_sums` and :func:`sigmoid_sums_adjoint` work on a block ``[5, n + APART]`` of
:func:`pair_block`. The caller writes points, factors other than 1, and for the adjoint gradients;
the result is in the row of sums.
"""

from __future__ import annotations

from rankgrad.kernels.cpu._arithmetic import exp
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import APART, VECTOR, Array, new_block, whole_vectors

REACH = 300.0  # sigmoids of points farther apart are taken as 0 or 1: 1 + e^-300 rounds to 1

#: Rows of a block: points in descending order, their factors v, gradients c, sums and exponentials.
POINTS, FACTORS, GRADS, SUMS, EXPONENTIALS = range(5)


@compiled
def pair_block(n: int) -> Array:
    """A block for n points, with factors of 1 and zeros elsewhere."""
    block = new_block(5, n)
    for i in range(n):
        block[FACTORS, i] = 1.0
    return block


@compiled
def write_exponentials(z: Array, start: int, out: Array) -> tuple[int, int, float]:
    """Write ``exp(z - center)`` of the points up to ``2 * REACH`` below ``z[start]``, then zeros.

    Args:
        z: ``[n]`` points in descending order.
        start: the index of the first of these points.
        out: at least ``[n + VECTOR]``; the exponential of ``z[i]`` is written to ``out[i]``, and
            ``VECTOR`` zeros after the last one.

    Returns:
        near: the end of the points at most ``REACH`` below ``z[start]``. For each of these, the
            exponentials of all later points within its ``REACH`` are written. For the points from
            ``near`` on, call this again with ``start = near``.
        far: the end of the points whose exponentials are written.
        center: ``z[start] - REACH``, the middle of the range of these points.
    """
    near, far, center = start, start, z[start] - REACH
    while far < z.size and z[start] - z[far] <= 2 * REACH:
        near += z[start] - z[far] <= REACH
        far += 1
    for i in range(start, far):
        out[i] = exp(z[i] - center)
    for i in range(far, far + VECTOR):
        out[i] = 0.0
    return near, far, center


@compiled
def sigmoid_sums(block: Array) -> None:
    """Write ``S_i = Σ_{j≠i} v_j sigmoid(z_j - z_i)`` to the row of sums.

    The sigmoid is ``e_j / (e_i + e_j)`` with exponentials e. Each pair i < j is computed once, for
    both its sums: ``sigmoid(z_i - z_j)`` is ``1 - sigmoid(z_j - z_i)``.
    """
    n = block.shape[1] - APART
    z, v, sums, e = block[POINTS, :n], block[FACTORS], block[SUMS], block[EXPONENTIALS]
    # An earlier point j adds v_j - v_j sigmoid(z_i - z_j) to the sum of i. The v_j are added here;
    # _sum_row subtracts the rest, except beyond REACH, where it is 0.
    sum_before = 0.0
    for i in range(n):
        sums[i] = sum_before
        sum_before += v[i]
    near, far = 0, 0
    for i in range(n):
        if i == near:
            near, far, _ = write_exponentials(z, i, e)
        later = slice(i + 1, i + 1 + whole_vectors(far - i - 1))
        sums[i] += _sum_row(e[i], v[i], e[later], v[later], sums[later])


@compiled
def sigmoid_sums_adjoint(block: Array) -> None:
    """Write to the row of sums the gradient of ``Σ_i c_i S_i`` with respect to the points.

    For point i it is ``Σ_j sigmoid'(z_j - z_i) (v_i c_j - v_j c_i)``.
    """
    n = block.shape[1] - APART
    z, v, c, e = block[POINTS, :n], block[FACTORS], block[GRADS], block[EXPONENTIALS]
    out = block[SUMS]
    for i in range(n):
        out[i] = 0.0
    near, far = 0, 0
    for i in range(n):
        if i == near:
            near, far, _ = write_exponentials(z, i, e)
        later = slice(i + 1, i + 1 + whole_vectors(far - i - 1))
        out[i] += _adjoint_row(e[i], v[i], c[i], e[later], v[later], c[later], out[later])


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# Exponentials, factors and gradients are 0 past the last point in reach, up to a whole vector.
# Loops write only to the block of memory that they read from, as compiled_reduction requires.


@compiled_reduction
def _sum_row(e_i: float, v_i: float, e: Array, v: Array, sums: Array) -> float:
    """Add the pairs of point i and later points j to the sums of j; returns their sum for i.

    The arrays are those of the later points.
    """
    total = 0.0
    for j in range(e.size):
        sigmoid = e[j] / (e_i + e[j])
        total += v[j] * sigmoid
        sums[j] -= v_i * sigmoid
    return total


@compiled_reduction
def _adjoint_row(
    e_i: float, v_i: float, c_i: float, e: Array, v: Array, c: Array, out: Array
) -> float:
    """As :func:`_sum_row`, for the gradient."""
    total = 0.0
    for j in range(e.size):
        inverse = 1.0 / (e_i + e[j])
        term = (e_i * inverse) * (e[j] * inverse) * (v_i * c[j] - c_i * v[j])
        total += term
        out[j] -= term
    return total
