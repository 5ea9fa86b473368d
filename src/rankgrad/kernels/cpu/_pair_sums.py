"""Sums of sigmoids over all pairs of a list, each pair computed once, and their adjoint."""

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
    """Write ``exp(z - center)`` of descending points from ``start`` on, and a vector of zeros.

    Returns:
        The end of the points within ``REACH`` of the first one, whose pairs these exponentials
        serve; the end of those within twice that, which have one; and the center.
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
    """``S_i = Σ_{j≠i} v_j sigmoid(z_j - z_i)``, with the sigmoid as ``e_j / (e_i + e_j)``.

    Each pair is computed once: ``sigmoid(z_i - z_j)`` is ``1 - sigmoid(z_j - z_i)``.
    """
    n = block.shape[1] - APART
    z, v, sums, e = block[POINTS, :n], block[FACTORS], block[SUMS], block[EXPONENTIALS]
    before = 0.0
    for i in range(n):
        sums[i] = before
        before += v[i]
    near, far = 0, 0
    for i in range(n):
        if i == near:
            near, far, _ = write_exponentials(z, i, e)
        some = slice(i + 1, i + 1 + whole_vectors(far - i - 1))
        sums[i] += _sum_row(e[i], v[i], e[some], v[some], sums[some])


@compiled
def sigmoid_sums_adjoint(block: Array) -> None:
    """Write to the row of sums the gradient of ``Σ_i c_i S_i`` by the points.

    It is ``Σ_j sigmoid'(z_j - z_i) (v_i c_j - v_j c_i)``.
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
        some = slice(i + 1, i + 1 + whole_vectors(far - i - 1))
        out[i] += _adjoint_row(e[i], v[i], c[i], e[some], v[some], c[some], out[some])


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# Exponentials, factors and gradients are 0 past the last point in reach, up to a whole vector.
# Loops write only to the block of memory that they read from, as compiled_reduction requires.


@compiled_reduction
def _sum_row(own: float, factor: float, e: Array, v: Array, sums: Array) -> float:
    total = 0.0
    for j in range(e.size):
        above = e[j] / (own + e[j])
        total += v[j] * above
        sums[j] -= factor * above
    return total


@compiled_reduction
def _adjoint_row(
    own: float, factor: float, grad: float, e: Array, v: Array, c: Array, out: Array
) -> float:
    total = 0.0
    for j in range(e.size):
        inverse = 1.0 / (own + e[j])
        term = (own * inverse) * (e[j] * inverse) * (factor * c[j] - grad * v[j])
        total += term
        out[j] -= term
    return total
