"""Rows of NeuralSort's and SoftSort's permutations, and metrics through them.

NeuralSort's row r has its maximum at the r-th item and falls to both sides, so only a band around
the diagonal is computed. SoftSort's sums are of ``exp(-|s_i - s_j|)``, one-sided recurrences.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.arithmetic import exp, total
from rankgrad.kernels.cpu.compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu.lapsum import one_sided
from rankgrad.kernels.cpu.prepare import (
    ARP,
    METRICS,
    Array,
    Slots,
    any_relevant,
    beyond_cutoff,
    discounts,
    finish,
    gains_of,
    level,
    new_block,
    norm_of,
    real_slots,
    sort_descending,
    take,
)

FLOOR = -60.0  # logits this far below their row's maximum count as nothing: e^-60 is 1e-26


def through_rows(
    batch: FlatLists,
    relaxation: str,
    temperature: float,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through the rows of a relaxed permutation: see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    slots = Slots.of(scores, labels, mask, weights, offsets)
    neural = relaxation == "neuralsort"
    slots.each(
        _lists,
        neural,
        temperature,
        METRICS[metric],
        k,
        gain == "linear",
        level(threshold, scores),
        discounts(metric, persistence, longest),
        power=2 if neural and not k else 1,
    )
    return slots.results(scores)


@compiled
def _lists(
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
    neural: bool,
    temperature: float,
    metric: int,
    k: int,
    linear: bool,
    threshold: float,
    discount: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        n = slots.size
        sort_descending(scores, slots)
        w = take(weights, slots)
        gains = gains_of(take(labels, slots), metric, linear, threshold)
        defined[b] = n > 1 and any_relevant(gains, w)
        if not defined[b]:
            continue
        gains *= w
        norm = norm_of(gains, metric, k, discount)
        if norm <= 0:
            norm = np.inf
        z = take(scores, slots) * (1.0 / temperature)
        beyond = beyond_cutoff(metric, k, n)
        rows = n if k == 0 else min(k, n)
        worth = (discount[:rows] - beyond) * (1.0 / norm)
        if neural:
            value, out = _neuralsort(z, gains, worth, rows)
        else:
            value, out = _softsort(z, gains, worth, rows)
        values[b] = finish(value + beyond * total(gains) / norm, metric)
        scale = (1.0 if metric == ARP else -1.0) / temperature
        for i in range(n):
            slopes[slots[i]] = scale * out[i]


@compiled
def absolute_differences(z: Array) -> Array:
    """``Σ_k |z_j - z_k|`` of sorted items."""
    n = z.size
    sums = np.empty(n)
    above, whole = 0.0, total(z)
    for i in range(n):
        below = whole - above - z[i]
        sums[i] = (above - i * z[i]) + ((n - 1 - i) * z[i] - below)
        above += z[i]
    return sums


@compiled
def absolute_differences_back(z: Array, grad: Array, out: Array) -> None:
    """Add ``Σ_j (g_i + g_j) sign(z_i - z_j)`` to each item i; tied ones do not act mutually."""
    n = z.size
    whole, above, start = total(grad), 0.0, 0
    while start < n:
        end, own = start, 0.0
        while end < n and z[end] == z[start]:
            own += grad[end]
            end += 1
        below = whole - above - own
        for i in range(start, end):
            out[i] += (n - end - start) * grad[i] + (below - above)
        above += own
        start = end


@compiled
def _neuralsort(z: Array, gains: Array, worth: Array, rows: int) -> tuple[float, Array]:
    n = z.size
    block = new_block(6, n)
    block[0, :n], block[1, :n], block[2, :n] = z, absolute_differences(z), gains
    z, sums, gains, row = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
    by_score, by_sum = block[4, :n], block[5, :n]
    value, low, high = 0.0, 0, 0
    for r in range(rows):
        slope, shift = n - 1.0 - 2.0 * r, sums[r]
        low, high = band(z, sums, slope, r, low, high)
        some = slice(low, high)
        whole, mean = _row(slope, z[r], shift, z[some], sums[some], gains[some], row[some])
        mean /= whole
        value += worth[r] * mean
        own = worth[r] / whole
        _pull(own, mean, slope, row[some], gains[some], by_score[some], by_sum[some])
    absolute_differences_back(z, by_sum, by_score)
    return value, by_score


# Inner loops take slices, whose indices the compiler knows to be in range: they become vectors.
# What they write lies in one block with what they read, as compiled_reduction asks.


@compiled_reduction
def _row(
    slope: float, top: float, shift: float, z: Array, sums: Array, gains: Array, row: Array
) -> tuple[float, float]:
    whole, mean = 0.0, 0.0
    for j in range(z.size):
        row[j] = exp(slope * (z[j] - top) - (sums[j] - shift))
        whole += row[j]
        mean += row[j] * gains[j]
    return whole, mean


@compiled
def _pull(
    own: float,
    mean: float,
    slope: float,
    row: Array,
    gains: Array,
    by_score: Array,
    by_sum: Array,
) -> None:
    for j in range(row.size):
        pull = own * row[j] * (gains[j] - mean)
        by_score[j] += slope * pull
        by_sum[j] -= pull


@compiled
def band(z: Array, sums: Array, slope: float, r: int, low: int, high: int) -> tuple[int, int]:
    """The columns of row r that count, given those of the row before: both ends only move down."""
    n = z.size
    while low < r and slope * (z[low] - z[r]) - (sums[low] - sums[r]) < FLOOR:
        low += 1
    high = max(high, r + 1)
    while high < n and slope * (z[high] - z[r]) - (sums[high] - sums[r]) >= FLOOR:
        high += 1
    return low, high


@compiled
def _softsort(z: Array, gains: Array, worth: Array, rows: int) -> tuple[float, Array]:
    """With ``K_ij = exp(-|z_i - z_j|)``, row r gives ``V_r = Σ_j K_rj g_j / Z_r``, and

    ``dV/dz_i = -Σ_j sign(z_i - z_j) K_ij [a_i (g_j - V_i) + a_j (g_i - V_j)]``, ``a = worth / Z``.
    Ties, as in the eager form, have the mean gradient over the orders they can stand in.
    """
    n = z.size
    above, below = one_sided(z, np.ones(n))
    gain_above, gain_below = one_sided(z, gains)
    a, mean, weighted = np.zeros(n), np.empty(n), np.zeros(n)
    value = 0.0
    for i in range(n):
        whole = above[i] + below[i] + 1.0
        mean[i] = (gain_above[i] + gain_below[i] + gains[i]) / whole
        if i < rows:
            value += worth[i] * mean[i]
            a[i] = worth[i] / whole
            weighted[i] = a[i] * mean[i]
    a_above, a_below = one_sided(z, a)
    m_above, m_below = one_sided(z, weighted)
    out = np.empty(n)
    start = 0
    while start < n:
        end = start
        while end < n and z[end] == z[start]:
            end += 1
        # Sums over other groups: what stands above the group's first item and below its last.
        ones = below[end - 1] - above[start]
        values = gain_below[end - 1] - gain_above[start]
        others = a_below[end - 1] - a_above[start]
        means = m_below[end - 1] - m_above[start]
        size, pulled, tilted, sum_gains = end - start, 0.0, 0.0, 0.0
        for i in range(start, end):
            pulled += a[i] * (values - mean[i] * ones)
            tilted += a[i] * ((end - 1 - i) - (i - start)) / size
            sum_gains += gains[i]
        within = tilted * (sum_gains - size * mean[start])
        for i in range(start, end):
            out[i] = -(pulled / size + others * gains[i] - means)
            if size > 1:
                own = tilted * (gains[i] - mean[start])
                out[i] -= (within - own) / (size - 1) - own
        start = end
    return value, out
