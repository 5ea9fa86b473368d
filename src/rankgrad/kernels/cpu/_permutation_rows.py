"""Rows of NeuralSort's and SoftSort's relaxed permutations, and a cross-entropy of NeuralSort's.

Row r of NeuralSort has its maximum at the r-th item and decreases to both sides, so only a band
around the diagonal is computed. SoftSort's sums of ``exp(-|s_i - s_j|)`` are linear recurrences,
one from each side.

In loops, items are in order of descending score, and ranks r start at 0. z is the scores divided by
the temperature τ.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import exp, log, total
from rankgrad.kernels.cpu._compiled import compiled, compiled_borrowing, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, new_block, real_items, take
from rankgrad.kernels.cpu._list_sort import indices, sort_by_label, sort_descending
from rankgrad.kernels.cpu._metric_steps import GRAD, SORTED, VALUES
from rankgrad.kernels.cpu._relaxed import Lists, Permutation, SortOperator, through_permutation

ABOVE, BELOW = range(2)  # rows of the sums over items on one side of each item
FLOOR = -60.0  # entries with logits this far below their row's maximum are left out: e^-60 is 1e-26


def through_rows(
    flat: FlatArrays, relaxation: str, temperature: float, metric_options: MetricOptions
) -> None:
    """1 - metric through the rows of a relaxed permutation: see :mod:`rankgrad.kernels.ops`."""
    rows = SOFTSORT
    if relaxation == "neuralsort":
        # With a cutoff, the number of rows does not grow with the list: the cost is linear in n.
        rows = NEURALSORT if metric_options.k == 0 else NEURALSORT._replace(power=1)
    through_permutation(rows, (temperature,), flat, metric_options)


@compiled
def _neuralsort(
    first: int, last: int, lists: Lists, options: tuple[float], rows: Array, grad_scores: Array
) -> None:
    """``P[r] = softmax(((n - 1 - 2r) s - A 1) / τ)`` with ``A_ij = |s_i - s_j|`` and r from 0.

    Write ``P @ values`` to ``rows[SORTED]``. If ``grad_scores`` is not empty, add to it the
    gradient of the scores, from the gradient of the sorted values in ``rows[GRAD]``.
    """
    scores, offsets, order, counts, k = lists
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        block = new_block(6, n)
        z, sums, values, row = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
        grad_z, grad_sums = block[4, :n], block[5, :n]
        for i in range(n):
            z[i] = scores[order[start + i]] * (1.0 / options[0])
            values[i] = rows[VALUES, start + i]
        absolute_differences(z, sums)
        low, high = 0, 0
        for r in range(n if k == 0 else min(k, n)):
            factor, shift = n - 1.0 - 2.0 * r, sums[r]
            low, high = band(z, sums, factor, r, low, high)
            columns = slice(low, high)
            normalizer, weighted_sum = _row(
                factor, z[r], shift, z[columns], sums[columns], values[columns], row[columns]
            )
            mean = weighted_sum / normalizer
            rows[SORTED, start + r] = mean
            if grad_scores.size:
                scale = rows[GRAD, start + r] / normalizer
                _row_adjoint(
                    scale,
                    mean,
                    factor,
                    row[columns],
                    values[columns],
                    grad_z[columns],
                    grad_sums[columns],
                )
        if grad_scores.size:
            absolute_differences_adjoint(z, grad_sums, grad_z)
            for i in range(n):
                grad_scores[order[start + i]] += grad_z[i] / options[0]


def neuralsort_ce(lists: FlatArrays, k: int, temperature: float) -> None:
    """The cross-entropy of the labels' permutation and NeuralSort's.

    See ``neuralsort_ce`` in :mod:`rankgrad.kernels._backends`.
    """
    lists.run(_cross_entropy_loop, k, temperature, power=2 if k == 0 else 1)


@compiled
def _cross_entropy_loop(first: int, last: int, arrays: Arrays, k: int, temperature: float) -> None:
    """``Σ_r Σ_j P*_rj w_j (log Σ_i exp(x_ri) - x_rj) / ranks``, with the logits x of :func:`_row`.

    The items of one label form a group, which has as many ranks as items. For the items and ranks
    of a group, P* is one over that number. So the terms of a rank need only sums over its group.
    """
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        n = items.size
        defined[b] = n > 1
        if n < 2:
            continue
        sort_descending(scores, items)
        y, w, by_label = take(labels, items), take(weights, items), indices(n)
        sort_by_label(y, by_label)
        block = new_block(6, n)
        z, sums, zeros, row = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
        grad_z, grad_sums = block[4, :n], block[5, :n]
        for i in range(n):
            z[i] = scores[items[i]] * (1.0 / temperature)
        absolute_differences(z, sums)
        n_ranks = n if k == 0 else min(k, n)
        low, high, start = 0, 0, 0
        while start < n_ranks:
            # The masses are sums over the group: of the weights w, of w z and of w times ``sums``.
            end, mass, mass_z, mass_sums = start, 0.0, 0.0, 0.0
            while end < n and y[by_label[end]] == y[by_label[start]]:
                j = by_label[end]
                mass += w[j]
                mass_z += w[j] * z[j]
                mass_sums += w[j] * sums[j]
                end += 1
            target = 1.0 / ((end - start) * n_ranks)
            stop, factors = min(end, n_ranks), 0.0
            for r in range(start, stop):
                factor = n - 1.0 - 2.0 * r
                factors += factor
                low, high = band(z, sums, factor, r, low, high)
                columns = slice(low, high)
                normalizer, _ = _row(
                    factor, z[r], sums[r], z[columns], sums[columns], zeros[columns], row[columns]
                )
                # Σ_j w_j (x_rr - x_rj) over the group; x_rr is the row's maximum.
                below_top = factor * (mass * z[r] - mass_z) - (mass * sums[r] - mass_sums)
                values[b] += target * (mass * log(normalizer) + below_top)
                # Values of 0 and a mean of -1 make it the adjoint of the row's log Σ exp.
                _row_adjoint(
                    target * mass / normalizer,
                    -1.0,
                    factor,
                    row[columns],
                    zeros[columns],
                    grad_z[columns],
                    grad_sums[columns],
                )
            for i in range(start, end):
                j = by_label[i]
                grad_z[j] -= target * w[j] * factors
                grad_sums[j] += target * w[j] * (stop - start)
            start = end
        absolute_differences_adjoint(z, grad_sums, grad_z)
        for i in range(n):
            grad_scores[items[i]] = grad_z[i] / temperature


@compiled_borrowing
def absolute_differences(z: Array, sums: Array) -> None:
    """Write ``Σ_k |z_j - z_k| - |z_0 - z_k|`` for each j; z is descending.

    Only differences of these sums are used. Tied items have exactly equal sums.
    """
    n, change = z.size, 0.0
    for i in range(n):
        if i > 0:  # i items are above the gap, n - i below it
            change += (2.0 * i - n) * (z[i - 1] - z[i])
        sums[i] = change


@compiled_borrowing
def absolute_differences_adjoint(z: Array, grad: Array, out: Array) -> None:
    """Add ``Σ_j (g_i + g_j) sign(z_i - z_j)`` to each item i; tied items have sign 0."""
    n = z.size
    sum_of_all, above, start = total(grad), 0.0, 0
    while start < n:
        end, tied = start, 0.0
        while end < n and z[end] == z[start]:
            tied += grad[end]
            end += 1
        below = sum_of_all - above - tied
        for i in range(start, end):
            out[i] += (n - end - start) * grad[i] + (below - above)
        above += tied
        start = end


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# They write only to the block of memory that they read from, as compiled_reduction requires.


@compiled_reduction
def _row(
    factor: float, top: float, shift: float, z: Array, sums: Array, values: Array, row: Array
) -> tuple[float, float]:
    """Write the exponentials of a row's logits; return their sum and that of exponential × value.

    ``top`` and ``shift`` are z and the sum of the row's maximum, whose exponential becomes 1.
    """
    normalizer, weighted_sum = 0.0, 0.0
    for j in range(z.size):
        row[j] = exp(min(factor * (z[j] - top) - (sums[j] - shift), 0.0))  # 0: up to rounding
        normalizer += row[j]
        weighted_sum += row[j] * values[j]
    return normalizer, weighted_sum


@compiled
def _row_adjoint(
    scale: float,
    mean: float,
    factor: float,
    row: Array,
    values: Array,
    grad_z: Array,
    grad_sums: Array,
) -> None:
    """Add the gradients of z and ``sums`` through a row's softmax.

    ``row`` has the exponentials; ``mean`` is the mean of ``values`` by the row; ``scale`` is the
    gradient of that mean divided by the row's normalizer.
    """
    for j in range(row.size):
        change = scale * row[j] * (values[j] - mean)
        grad_z[j] += factor * change
        grad_sums[j] -= change


@compiled_borrowing
def band(z: Array, sums: Array, factor: float, r: int, low: int, high: int) -> tuple[int, int]:
    """The columns ``low:high`` of row r whose logits are above ``FLOOR``.

    ``low`` and ``high`` are those of row r - 1 (0 and 0 for the first row), and never decrease.
    """
    n = z.size
    while low < r and factor * (z[low] - z[r]) - (sums[low] - sums[r]) < FLOOR:
        low += 1
    high = max(high, r + 1)
    while high < n and factor * (z[high] - z[r]) - (sums[high] - sums[r]) >= FLOOR:
        high += 1
    return low, high


@compiled
def _softsort(
    first: int, last: int, lists: Lists, options: tuple[float], rows: Array, grad_scores: Array
) -> None:
    """``V_r = Σ_j K_rj v_j / Z_r`` with ``K_ij = exp(-|z_i - z_j|)`` and ``Z_r = Σ_j K_rj``.

    Reads and writes as :func:`_neuralsort`. ``a`` is ``grad_r / Z_r``, 0 past the cutoff.
    """
    scores, offsets, order, counts, k = lists
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        items, values = order[start : start + n], rows[VALUES, start : start + n]
        decay, means, a = np.zeros(n), np.empty(n), np.zeros(n)
        for i in range(1, n):
            difference = scores[items[i]] - scores[items[i - 1]]
            decay[i] = math.exp(difference * (1.0 / options[0]))
        ones, of_values = _one_sided(decay, np.ones(n)), _one_sided(decay, values)
        for i in range(n):
            normalizer = ones[ABOVE, i] + ones[BELOW, i] + 1.0
            means[i] = (of_values[ABOVE, i] + of_values[BELOW, i] + values[i]) / normalizer
            if k == 0 or i < k:
                rows[SORTED, start + i] = means[i]
                a[i] = rows[GRAD, start + i] / normalizer
        if grad_scores.size:
            sums = ones, of_values, _one_sided(decay, a), _one_sided(decay, a * means)
            _softsort_adjoint(scores, items, values, means, a, sums, options[0], grad_scores)


@compiled
def _softsort_adjoint(
    scores: Array,
    items: Array,
    values: Array,
    means: Array,
    a: Array,
    sums: tuple[Array, Array, Array, Array],
    temperature: float,
    grad_scores: Array,
) -> None:
    """``-Σ_j sign(z_i - z_j) K_ij [a_i (v_j - V_i) + a_j (v_i - V_j)]``, ``a = grad / Z``.

    Tied items get the mean gradient over their possible orders, as in the eager form. ``sums`` has
    the one-sided sums of 1, v, a and ``a V``.
    """
    n, start = items.size, 0
    while start < n:
        end = start
        while end < n and scores[items[end]] == scores[items[start]]:
            end += 1
        ones, of_values = _outside(sums[0], start, end), _outside(sums[1], start, end)
        of_rows, of_means = _outside(sums[2], start, end), _outside(sums[3], start, end)
        size, row_terms, tie_offset, sum_of_values = end - start, 0.0, 0.0, 0.0
        # Each of the tied items is at each row of the group in 1 / size of the orders. Row i has
        # end - 1 - i of the tied items below it and i - start above it; K is 1 between them.
        for i in range(start, end):
            row_terms += a[i] * (of_values - means[i] * ones)
            tie_offset += a[i] * ((end - 1 - i) - (i - start)) / size
            sum_of_values += values[i]
        within = tie_offset * (sum_of_values - size * means[start])
        for i in range(start, end):
            change = row_terms / size + of_rows * values[i] - of_means
            if size > 1:
                centered = tie_offset * (values[i] - means[start])
                change += (within - centered) / (size - 1) - centered
            grad_scores[items[i]] -= change / temperature
        start = end


@compiled
def _outside(sums: Array, start: int, end: int) -> float:
    """The sum over items below a tie group ``start:end`` minus that over items above it."""
    return float(sums[BELOW, end - 1] - sums[ABOVE, start])


@compiled
def _one_sided(decay: Array, weights: Array) -> Array:
    """``Σ_{j<i}`` and ``Σ_{j>i}`` of ``w_j exp(-|z_i - z_j|)``, each by a linear recurrence.

    They are the rows ``ABOVE`` and ``BELOW`` of the result, ``[2, n]``. ``decay[i]`` is
    ``exp(-|z_i - z_{i-1}|)``.
    """
    sums = np.empty((2, decay.size))
    carried = 0.0
    for i in range(decay.size):
        carried *= decay[i]
        sums[ABOVE, i] = carried
        carried += weights[i]
    carried = 0.0
    for i in range(decay.size - 1, -1, -1):
        sums[BELOW, i] = carried
        carried = decay[i] * (carried + weights[i])
    return sums


NEURALSORT = Permutation(_neuralsort, power=2)
SOFTSORT = Permutation(_softsort)


class NeuralSortOperator(SortOperator):
    """NeuralSort's rows; option: temperature."""

    relaxation = NEURALSORT


class SoftSortOperator(SortOperator):
    """SoftSort's rows; option: temperature."""

    relaxation = SOFTSORT
