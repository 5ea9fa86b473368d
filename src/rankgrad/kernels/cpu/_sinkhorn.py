"""NeuralSort with Sinkhorn scaling."""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu._metric_steps import GRAD, SORTED, VALUES
from rankgrad.kernels.cpu._permutation_rows import absolute_differences_adjoint
from rankgrad.kernels.cpu._relaxed import Lists, Permutation, SortOperator, through_permutation
from rankgrad.kernels.cpu._scaling import State, block_rows, scaled_product

#: Temperature, iterations, tolerance, and whether rows are scaled before columns; and the state.
Options = tuple[float, int, float, bool, State]


def through_sinkhorn(
    flat: FlatArrays,
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
    metric_options: MetricOptions,
) -> None:
    """1 - metric through NeuralSort with Sinkhorn scaling: see :mod:`rankgrad.kernels.ops`."""
    options = temperature, iterations, tolerance, transposed
    through_permutation(SINKHORN, options, flat, metric_options)


@compiled
def _sinkhorn(
    first: int, last: int, lists: Lists, options: Options, rows: Array, grad_scores: Array
) -> None:
    """NeuralSort's matrix, scaled until rows or columns sum to one."""
    scores, offsets, order, counts, k = lists
    temperature, iterations, tolerance, transposed, state = options
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        x, end = np.empty(n), start + (n if k == 0 else min(k, n))
        for i in range(n):
            x[i] = scores[order[start + i]] * (1.0 / temperature)
        by_score, by_sum = scaled_product(
            b,
            start - offsets[state[0]],
            x,
            rows[VALUES, start : start + n],
            rows[GRAD, start : end if grad_scores.size else start],
            rows[SORTED, start:end],
            (iterations, tolerance, transposed, True),
            state,
        )
        if grad_scores.size:
            for i in range(n):
                by_score[i] -= (n - 1.0 - 2.0 * i) * by_sum[i]
            absolute_differences_adjoint(x, by_sum, by_score)
            for i in range(n):
                grad_scores[order[start + i]] += by_score[i] / temperature


SINKHORN = Permutation(_sinkhorn, power=2, state_rows=lambda options: block_rows(options[1]))


class SinkhornOperator(SortOperator):
    """NeuralSort with Sinkhorn; options: temperature, iterations, tolerance and transposed."""

    relaxation = SINKHORN
    types = (float, int, float, bool)
