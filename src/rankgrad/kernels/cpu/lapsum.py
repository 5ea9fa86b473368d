"""LapSum ranks: one sort and two scans."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.cpu.compiled import compiled, share
from rankgrad.kernels.cpu.prepare import Array, flags, numbers, real_slots, sort_descending, take


def lapsum_ranks(
    scores: Tensor, mask: Tensor | None, offsets: Tensor, longest: int, temperature: float
) -> Tensor:
    """``1/2 + Σ_j F((s_j - s_i) / τ)``: see :mod:`rankgrad.kernels.ops`."""
    return _ranks(scores, scores, mask, offsets, temperature, vjp=False)


def lapsum_ranks_vjp(
    grad: Tensor,
    scores: Tensor,
    mask: Tensor | None,
    offsets: Tensor,
    longest: int,
    temperature: float,
) -> Tensor:
    """A gradient by ranks as one by scores."""
    return _ranks(grad, scores, mask, offsets, temperature, vjp=True)


def _ranks(
    grad: Tensor,
    scores: Tensor,
    mask: Tensor | None,
    offsets: Tensor,
    temperature: float,
    vjp: bool,
) -> Tensor:
    result = np.zeros(scores.numel())
    bounds = offsets.to(torch.int64).contiguous().numpy()
    arrays = numbers(grad), numbers(scores), flags(mask), bounds
    costs = 64.0 * np.diff(bounds)
    share(costs, lambda a, b: _lists(a, b, *arrays, temperature, vjp, result))
    return torch.from_numpy(result).to(scores.dtype).reshape(scores.shape)


@compiled
def _lists(
    first: int,
    last: int,
    grad: Array,
    scores: Array,
    mask: Array,
    offsets: Array,
    temperature: float,
    vjp: bool,
    result: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        sort_descending(scores, slots)
        z = take(scores, slots) / temperature
        out, near = lapsum_forward(z)
        if vjp:
            out = lapsum_back(z, take(grad, slots), near) / temperature
        for i in range(slots.size):
            result[slots[i]] = out[i]


@compiled
def lapsum_forward(z: Array) -> tuple[Array, Array]:
    """Ranks of sorted items, and for each the sum of ``exp(-|z_i - z_j|)`` over the others.

    With A_i and B_i that sum over the items above and below, rank i is ``i - A_i / 2 + B_i / 2``.
    """
    n = z.size
    above, below = one_sided(z, np.ones(n))
    ranks = np.empty(n)
    for i in range(n):
        ranks[i] = i + 1.0 + 0.5 * (below[i] - above[i])
        above[i] += below[i]
    return ranks, above


@compiled
def lapsum_back(z: Array, grad: Array, near: Array) -> Array:
    """The gradient by z from that by ranks."""
    above, below = one_sided(z, grad)
    for i in range(z.size):
        above[i] = 0.5 * (above[i] + below[i] - grad[i] * near[i])
    return above


@compiled
def one_sided(z: Array, weights: Array) -> tuple[Array, Array]:
    """``Σ_{j<i}`` and ``Σ_{j>i}`` of ``w_j exp(-|z_i - z_j|)``: a linear recurrence each."""
    n = z.size
    above, below = np.zeros(n), np.zeros(n)
    for i in range(1, n):
        decay = math.exp(z[i] - z[i - 1])
        above[i] = decay * (above[i - 1] + weights[i - 1])
        below[i] = decay  # kept for the way back
    carried = 0.0
    for i in range(n - 1, -1, -1):
        decay = below[i]
        below[i] = carried
        carried = decay * (carried + weights[i])
    return above, below
