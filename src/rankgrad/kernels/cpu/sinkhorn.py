"""NeuralSort with Sinkhorn scaling on the band of its matrix, and metrics through it.

With P the band, forward and backward are sweeps over its rows, each of which takes the product with
a vector, uses it to finish that row's number, and adds the row, times that, to sums over columns.
Of the gradient by P only its sums over rows are needed, plain and *leaning* (times the row's slope
in NeuralSort), so it is never formed either.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.arithmetic import dot, exp, total
from rankgrad.kernels.cpu.compiled import compiled
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
    norm_of,
    real_slots,
    sort_descending,
    take,
)
from rankgrad.kernels.cpu.rows import absolute_differences, absolute_differences_back, band

Band = tuple[Array, Array, Array]  # the entries, where each row begins in them, its first column


def through_sinkhorn(
    batch: FlatLists,
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through NeuralSort with Sinkhorn scaling: see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    slots = Slots.of(scores, labels, mask, weights, offsets)
    slots.each(
        _lists,
        temperature,
        iterations,
        tolerance,
        transposed,
        METRICS[metric],
        k,
        gain == "linear",
        level(threshold, scores),
        discounts(metric, persistence, longest),
        power=2,
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
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
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
        beyond = beyond_cutoff(metric, k, n)
        worth = np.zeros(n)
        for r in range(n if k == 0 else min(k, n)):
            worth[r] = (discount[r] - beyond) / norm
        z = take(scores, slots) * (1.0 / temperature)
        matrix = _neuralsort(z)
        if transposed:
            value, by_score, by_sum = _columns_last(matrix, gains, worth, iterations, tolerance)
        else:
            value, by_score, by_sum = _rows_last(matrix, gains, worth, iterations, tolerance)
        absolute_differences_back(z, by_sum, by_score)
        values[b] = finish(value + beyond * total(gains) / norm, metric)
        scale = (1.0 if metric == ARP else -1.0) / temperature
        for i in range(n):
            slopes[slots[i]] = scale * by_score[i]


@compiled
def _neuralsort(z: Array) -> Band:
    """The band of NeuralSort's matrix, rows summing to one."""
    n = z.size
    sums = absolute_differences(z)
    starts, lows = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    low, high = 0, 0
    for r in range(n):
        low, high = band(z, sums, n - 1.0 - 2.0 * r, r, low, high)
        lows[r], starts[r + 1] = low, starts[r] + high - low
    entries = np.empty(starts[n])
    for r in range(n):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        _fill(row, n - 1.0 - 2.0 * r, z[r], sums[r], z[some], sums[some])
    return entries, starts, lows


@compiled
def _fill(row: Array, slope: float, top: float, shift: float, z: Array, sums: Array) -> None:
    for j in range(row.size):
        row[j] = exp(slope * (z[j] - top) - (sums[j] - shift))
    inverse = 1.0 / total(row)
    for j in range(row.size):
        row[j] *= inverse


@compiled
def _rows_last(
    matrix: Band, gains: Array, worth: Array, iterations: int, tolerance: float
) -> tuple[float, Array, Array]:
    """``v = 1 / (Pᵀ u)``, then ``u = 1 / (P v)``, until done; the value, and the way back."""
    n = gains.size
    us, vs = np.ones((iterations + 1, n)), np.ones((iterations + 1, n))
    columns = np.zeros(n)
    _add_rows(matrix, us[0], columns)
    steps = 0
    for step in range(1, iterations + 1):
        if step > 1 and _off(columns, vs[step - 1]) < tolerance:
            break
        vs[step] = 1.0 / columns
        columns[:] = 0.0
        _scale_rows(matrix, vs[step], us[step], columns)
        steps = step
    # The direct term, and the last step's rows.
    u, v = us[steps], vs[steps]
    means, pulls = np.empty(n), np.zeros(n)
    value = _means(matrix, v * gains, u, worth, means)
    direct, direct_leaning = np.zeros(n), np.zeros(n)
    _add_rows(matrix, worth * u, direct)
    _add_rows(matrix, _slopes(n) * worth * u, direct_leaning)
    plain, leaning = v * gains * direct, v * gains * direct_leaning
    grad_u, grad_v = worth * means, gains * direct
    inner = worth * u * means
    for step in range(steps, 0, -1):
        pulls = -grad_u * us[step] * us[step]
        inner += pulls / us[step]
        sums = np.zeros((3, n))
        _add_three(matrix, pulls, us[step - 1], sums)
        columns = -(grad_v + sums[0]) * vs[step] * vs[step]
        plain += vs[step] * sums[0] + columns / vs[step]
        leaning += vs[step] * sums[1] + columns * sums[2]
        _times(matrix, columns, grad_u)
        inner += us[step - 1] * grad_u
        grad_v = np.zeros(n)
    return _finish(matrix, value, inner, plain, leaning)


@compiled
def _columns_last(
    matrix: Band, gains: Array, worth: Array, iterations: int, tolerance: float
) -> tuple[float, Array, Array]:
    """``u = 1 / (P v)``, then ``v = 1 / (Pᵀ u)``: the transposed scaling."""
    n = gains.size
    us, vs = np.ones((iterations + 1, n)), np.ones((iterations + 1, n))
    rows, columns = np.empty(n), np.zeros(n)
    steps = 0
    for step in range(1, iterations + 1):
        _times(matrix, vs[step - 1], rows)
        if step > 1 and _off(rows, us[step - 1]) < tolerance:
            break
        us[step] = 1.0 / rows
        columns[:] = 0.0
        _add_rows(matrix, us[step], columns)
        vs[step] = 1.0 / columns
        steps = step
    u, v = us[steps], vs[steps]
    means = np.empty(n)
    value = _means(matrix, v * gains, u, worth, means)
    direct, direct_leaning = np.zeros(n), np.zeros(n)
    _add_rows(matrix, worth * u, direct)
    _add_rows(matrix, _slopes(n) * worth * u, direct_leaning)
    plain, leaning = v * gains * direct, v * gains * direct_leaning
    grad_u, grad_v = worth * means, gains * direct
    inner = worth * u * means
    for step in range(steps, 0, -1):
        columns = -grad_v * vs[step] * vs[step]
        _times(matrix, columns, rows)
        inner += us[step] * rows
        pulls = -(grad_u + rows) * us[step] * us[step]
        inner += pulls / us[step]
        sums = np.zeros((3, n))
        _add_three(matrix, pulls, us[step], sums)
        plain += columns / vs[step] + vs[step - 1] * sums[0]
        leaning += columns * sums[2] + vs[step - 1] * sums[1]
        grad_u, grad_v = np.zeros(n), sums[0]
    return _finish(matrix, value, inner, plain, leaning)


@compiled
def _finish(
    matrix: Band, value: float, inner: Array, plain: Array, leaning: Array
) -> tuple[float, Array, Array]:
    """Through the softmax of the rows: ``P_rj (dP_rj - Σ_l P_rl dP_rl)``, summed over the rows."""
    n = inner.size
    lost, lost_leaning = np.zeros(n), np.zeros(n)
    _add_rows(matrix, inner, lost)
    _add_rows(matrix, _slopes(n) * inner, lost_leaning)
    return value, leaning - lost_leaning, lost - plain


@compiled
def _slopes(n: int) -> Array:
    """NeuralSort's factors of the scores, by row."""
    return n - 1.0 - 2.0 * np.arange(n)


@compiled
def _off(sums: Array, scales: Array) -> float:
    """How far from one scaled sums are."""
    most = 0.0
    for i in range(sums.size):
        most = max(most, abs(sums[i] * scales[i] - 1.0))
    return most


@compiled
def _means(matrix: Band, values: Array, u: Array, worth: Array, means: Array) -> float:
    """``P values``, and the sum of it times u and worth."""
    _times(matrix, values, means)
    value = 0.0
    for r in range(u.size):
        value += worth[r] * u[r] * means[r]
    return value


@compiled
def _times(matrix: Band, vector: Array, out: Array) -> None:
    """``P vector``."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        out[r] = dot(row, vector[lows[r] : lows[r] + row.size])


@compiled
def _scale_rows(matrix: Band, v: Array, u: Array, columns: Array) -> None:
    """``u = 1 / (P v)``, and add ``Pᵀ u``, in one sweep."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        u[r] = 1.0 / dot(row, v[some])
        _add(row, u[r], columns[some])


@compiled
def _add_rows(matrix: Band, factors: Array, columns: Array) -> None:
    """Add ``Pᵀ factors``."""
    entries, starts, lows = matrix
    for r in range(lows.size):
        row = entries[starts[r] : starts[r + 1]]
        _add(row, factors[r], columns[lows[r] : lows[r] + row.size])


@compiled
def _add_three(matrix: Band, pulls: Array, u: Array, sums: Array) -> None:
    """Add ``Pᵀ pulls``, and leaning ``Pᵀ pulls`` and ``Pᵀ u``."""
    entries, starts, lows = matrix
    n = lows.size
    for r in range(n):
        row = entries[starts[r] : starts[r + 1]]
        some = slice(lows[r], lows[r] + row.size)
        pull, slope = pulls[r], n - 1.0 - 2.0 * r
        _add_each(
            row, pull, slope * pull, slope * u[r], sums[0, some], sums[1, some], sums[2, some]
        )


# Inner loops take slices, whose indices the compiler knows to be in range: they become vectors.


@compiled
def _add(row: Array, factor: float, out: Array) -> None:
    for j in range(row.size):
        out[j] += factor * row[j]


@compiled
def _add_each(
    row: Array, a: float, b: float, c: float, first: Array, second: Array, third: Array
) -> None:
    for j in range(row.size):
        first[j] += a * row[j]
        second[j] += b * row[j]
        third[j] += c * row[j]
