"""FastSort's ranks: projections onto the permutahedron, and the way back through their blocks."""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.isotonic import pool_adjacent
from rankgrad.kernels.cpu.prepare import Array


@compiled
def fastsort_forward(z: Array, entropic: bool) -> tuple[Array, Array]:
    """Ranks of items in descending order, and where the block of each ends (one past it).

    From the last item on, ``a = -z`` and the weights n, n - 1, ..., 1 both descend. On a block the
    rank is ``a`` less the mean of ``a - w`` or, entropic, the softmax of a times the sum of w.
    """
    n = z.size
    anchors, weights = np.empty((1, n)), np.empty((1, n))
    for i in range(n):
        anchors[0, n - 1 - i] = -z[i]
        weights[0, n - 1 - i] = math.log(i + 1.0) if entropic else i + 1.0
    blocks = np.empty((1, n), np.int64)
    pool_adjacent(anchors, weights, np.full(1, n), entropic, blocks)
    ranks, ends = np.empty(n), np.empty(n, np.int64)
    last = n
    while last > 0:  # the block of the items first, ..., last - 1 begins where they end
        first = last - 1
        while first > 0 and blocks[0, n - first] == blocks[0, n - last]:
            first -= 1
        ends[first:last] = last
        _rank_block(z[first:last], 0.5 * (first + 1.0 + last), entropic, ranks[first:last])
        last = first
    return ranks, ends


@compiled
def _rank_block(z: Array, middle: float, entropic: bool, ranks: Array) -> None:
    """Ranks of a block whose weights have this mean.

    Scores may be so large that a rank is lost beside them: their differences come first.
    """
    total = 0.0
    if entropic:
        for i in range(z.size):
            ranks[i] = math.exp(z[z.size - 1] - z[i])
            total += ranks[i]
        for i in range(z.size):
            ranks[i] *= middle * z.size / total
    else:
        for i in range(z.size):
            total += z[i] - z[0]
        for i in range(z.size):
            ranks[i] = middle - ((z[i] - z[0]) - total / z.size)


@compiled
def fastsort_back(grad: Array, ranks: Array, ends: Array, entropic: bool) -> Array:
    """The gradient by z from that by ranks: what a block's items have in common is taken off."""
    n = grad.size
    out = np.empty(n)
    first = 0
    while first < n:
        last = ends[first]
        total, whole = 0.0, 0.0
        for i in range(first, last):
            share = ranks[i] if entropic else 1.0
            total += share * grad[i]
            whole += share
        for i in range(first, last):
            share = ranks[i] if entropic else 1.0
            out[i] = share * (total / whole - grad[i]) if last - first > 1 else 0.0
        first = last
    return out
