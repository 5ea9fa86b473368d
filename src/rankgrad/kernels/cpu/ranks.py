"""Sigmoid ranks over pairs of sorted items, and metrics through relaxed ranks."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.compiled import compiled, compiled_reduction, share
from rankgrad.kernels.cpu.fastsort import fastsort_back, fastsort_forward
from rankgrad.kernels.cpu.lapsum import lapsum_back, lapsum_forward
from rankgrad.kernels.cpu.prepare import (
    ARP,
    DCG,
    METRICS,
    RBP,
    Array,
    Slots,
    any_relevant,
    beyond_cutoff,
    discounts,
    finish,
    flags,
    gains_of,
    level,
    new_block,
    norm_of,
    numbers,
    real_slots,
    sort_descending,
    take,
)

SIGMOID, LAPSUM, FASTSORT, FASTSORT_ENTROPIC = range(4)
RELAXATIONS = {
    "sigmoid": SIGMOID,
    "lapsum": LAPSUM,
    "fastsort": FASTSORT,
    "fastsort_entropic": FASTSORT_ENTROPIC,
}
REACH = 300.0  # items this far apart and more are compared for certain: e^-300 is 0 beside 1


def through_ranks(
    batch: FlatLists,
    relaxation: str,
    sharpness: float,
    beta: float,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through relaxed ranks: see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    slots = Slots.of(scores, labels, mask, weights, offsets)
    slots.each(
        _metric_lists,
        RELAXATIONS[relaxation],
        sharpness,
        beta,
        METRICS[metric],
        k,
        gain == "linear",
        level(threshold, scores),
        persistence,
        discounts(metric, persistence, longest),
        power=2 if relaxation == "sigmoid" else 1,
    )
    return slots.results(scores)


def sigmoid_ranks(
    scores: Tensor, mask: Tensor | None, offsets: Tensor, longest: int, alpha: float
) -> Tensor:
    """``1 + Σ_{j ≠ i} sigmoid(α (s_j - s_i))``: see :mod:`rankgrad.kernels.ops`."""
    return _ranks(scores, scores, mask, offsets, alpha, vjp=False)


def sigmoid_ranks_vjp(
    grad: Tensor, scores: Tensor, mask: Tensor | None, offsets: Tensor, longest: int, alpha: float
) -> Tensor:
    """A gradient by ranks as one by scores."""
    return _ranks(grad, scores, mask, offsets, alpha, vjp=True)


def _ranks(
    grad: Tensor, scores: Tensor, mask: Tensor | None, offsets: Tensor, alpha: float, vjp: bool
) -> Tensor:
    result = np.zeros(scores.numel())
    bounds = offsets.to(torch.int64).contiguous().numpy()
    arrays = numbers(grad), numbers(scores), flags(mask), bounds
    lengths = np.diff(bounds).astype(np.float64)
    share(lengths**2, lambda a, b: _rank_lists(a, b, *arrays, alpha, vjp, result))
    return torch.from_numpy(result).to(scores.dtype).reshape(scores.shape)


@compiled
def _rank_lists(
    first: int,
    last: int,
    grad: Array,
    scores: Array,
    mask: Array,
    offsets: Array,
    alpha: float,
    vjp: bool,
    result: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        sort_descending(scores, slots)
        z = take(scores, slots) * alpha
        out = _pull(z, take(grad, slots)) * alpha if vjp else _sigmoid_sums(z)
        for i in range(slots.size):
            result[slots[i]] = out[i]


@compiled
def _metric_lists(
    first: int,
    last: int,
    scores: Array,
    labels: Array,
    mask: Array,
    weights: Array,
    offsets: Array,
    values: Array,
    slopes: Array,
    defined: Array,
    relaxation: int,
    sharpness: float,
    beta: float,
    metric: int,
    k: int,
    linear: bool,
    threshold: float,
    persistence: float,
    discount: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        n = slots.size
        sort_descending(scores, slots)
        z = take(scores, slots) * sharpness
        w = take(weights, slots)
        gains = gains_of(take(labels, slots), metric, linear, threshold)
        defined[b] = n > 1 and any_relevant(gains, w)
        if not defined[b]:
            continue
        gains *= w
        norm = norm_of(gains, metric, k, discount)
        if norm <= 0:
            norm = np.inf
        entropic = relaxation == FASTSORT_ENTROPIC
        near, ends = np.empty(0), np.empty(0, np.int64)
        if relaxation == SIGMOID:
            ranks = _sigmoid_sums(z)
        elif relaxation == LAPSUM:
            ranks, near = lapsum_forward(z)
        else:
            ranks, ends = fastsort_forward(z, entropic)
        value, pull = _metric_of_ranks(ranks, gains, metric, k, beta, persistence)
        pull *= sharpness / norm
        if relaxation == SIGMOID:
            out = _pull(z, pull)
        elif relaxation == LAPSUM:
            out = lapsum_back(z, pull, near)
        else:
            out = fastsort_back(pull, ranks, ends, entropic)
        values[b] = finish(value / norm, metric)
        sign = 1.0 if metric == ARP else -1.0
        for i in range(n):
            slopes[slots[i]] = sign * out[i]


@compiled
def _metric_of_ranks(
    ranks: Array, gains: Array, metric: int, k: int, beta: float, persistence: float
) -> tuple[float, Array]:
    """The sum of gains times discounts of relaxed ranks, and its derivative by the ranks."""
    n = ranks.size
    pull = np.empty(n)
    value = 0.0
    beyond = beyond_cutoff(metric, k, n)
    for i in range(n):
        rank = ranks[i]
        if metric <= DCG:
            worth = math.log(2.0) / math.log(1.0 + rank)
            slope = -worth * worth / (math.log(2.0) * (1.0 + rank))
        elif metric == RBP:
            worth = (1.0 - persistence) * persistence ** (rank - 1.0)
            slope = worth * math.log(persistence)
        else:
            worth, slope = (rank, 1.0) if metric == ARP else (1.0, 0.0)
        if 0 < k < n:
            x = beta * (k + 0.5 - rank)
            small = math.exp(-abs(x))
            inside = (1.0 if x >= 0 else small) / (1.0 + small)
            change = -beta * small / ((1.0 + small) * (1.0 + small))
            slope = inside * slope + change * (worth - beyond)
            worth = inside * worth + (1.0 - inside) * beyond
        value += gains[i] * worth
        pull[i] = gains[i] * slope
    return value, pull


@compiled
def reach_of(z: Array, start: int) -> tuple[int, int]:
    """Sorted items from start on that are near it, and those that are near one of them."""
    near = start
    while near < z.size and z[start] - z[near] <= REACH:
        near += 1
    far = near
    while far < z.size and z[start] - z[far] <= 2 * REACH:
        far += 1
    return near, far


@compiled
def exponentials(z: Array, start: int, end: int, centre: float, out: Array) -> None:
    """``exp(z - centre)`` of some items."""
    for i in range(start, end):
        out[i] = math.exp(z[i] - centre)


@compiled
def _sigmoid_sums(z: Array) -> Array:
    """Ranks of sorted items, each pair once: ``sigmoid(z_j - z_i) = e_j / (e_i + e_j)``."""
    n = z.size
    block = new_block(2, n)
    e, ranks = block[0, :n], block[1, :n]
    for i in range(n):
        ranks[i] = i + 1.0
    start = 0
    while start < n:
        near, far = reach_of(z, start)
        exponentials(z, start, far, z[start] - REACH, e)
        for i in range(start, near):
            ranks[i] += _compare(e[i], e[i + 1 : far], ranks[i + 1 : far])
        start = near
    return ranks


# Inner loops take slices, whose indices the compiler knows to be in range: they become vectors.
# Divisions are what they wait for, so two items share one: 1/a = b/(ab) and 1/b = a/(ab).
# What they write lies in one block with what they read, as compiled_reduction asks.


@compiled_reduction
def _compare(own: float, e: Array, ranks: Array) -> float:
    half = e.size // 2
    e1, e2, ranks1, ranks2 = e[:half], e[half : 2 * half], ranks[:half], ranks[half : 2 * half]
    total = 0.0
    for j in range(half):
        first, second = own + e1[j], own + e2[j]
        inverse = 1.0 / (first * second)
        above1, above2 = e1[j] * second * inverse, e2[j] * first * inverse
        total += above1 + above2
        ranks1[j] -= above1
        ranks2[j] -= above2
    if e.size > 2 * half:
        above = e[-1] / (own + e[-1])
        total += above
        ranks[-1] -= above
    return total


@compiled
def _pull(z: Array, grad: Array) -> Array:
    """``Σ_j sigmoid'(z_j - z_i) (grad_j - grad_i)`` of sorted items."""
    n = z.size
    block = new_block(3, n)
    e, own, out = block[0, :n], block[1, :n], block[2, :n]
    own[:] = grad
    start = 0
    while start < n:
        near, far = reach_of(z, start)
        exponentials(z, start, far, z[start] - REACH, e)
        for i in range(start, near):
            some = slice(i + 1, far)
            out[i] += _pull_row(e[i], own[i], e[some], own[some], out[some])
        start = near
    return out


@compiled_reduction
def _pull_row(own: float, own_grad: float, e: Array, grad: Array, out: Array) -> float:
    half = e.size // 2
    e1, e2, grad1, grad2 = e[:half], e[half : 2 * half], grad[:half], grad[half : 2 * half]
    out1, out2 = out[:half], out[half : 2 * half]
    total = 0.0
    for j in range(half):
        first, second = own + e1[j], own + e2[j]
        inverse = 1.0 / (first * second)
        inverse1, inverse2 = inverse * second, inverse * first
        term1 = (own * inverse1) * (e1[j] * inverse1) * (grad1[j] - own_grad)
        term2 = (own * inverse2) * (e2[j] * inverse2) * (grad2[j] - own_grad)
        total += term1 + term2
        out1[j] -= term1
        out2[j] -= term2
    if e.size > 2 * half:
        inverse = 1.0 / (own + e[-1])
        term = (own * inverse) * (e[-1] * inverse) * (grad[-1] - own_grad)
        total += term
        out[-1] -= term
    return total
