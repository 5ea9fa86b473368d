"""NeuralSort with Sinkhorn scaling."""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu._permutation_rows import absolute_differences_adjoint
from rankgrad.kernels.cpu._relaxed import Lists, Permutation, SortOperator, through_permutation
from rankgrad.kernels.cpu._scaling import State, block_rows, scaled_product

#: Temperature, iterations, tolerance, whether rows are scaled before columns, and what the loop
#: saves for later calls on the same scores.
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
    """Sort the values of lists ``first:last`` by NeuralSort's matrix after Sinkhorn scaling.

    The matrix has the points ``x = scores / temperature`` in descending order. Its rows and columns
    are scaled in turn to sum to one: see :mod:`rankgrad.kernels.cpu._scaling`.

    Args:
        first: the first list.
        last: one past the last list.
        lists: the lists.
        options: of the scaling.
        rows: ``[rows, N]``: reads VALUES and, for the gradient, GRAD; writes SORTED.
        grad_scores: ``[N]``, to which the gradient is added; empty for none.
    """
    scores, offsets, order, counts, _ = lists
    temperature, iterations, tolerance, transposed, state = options
    settings = iterations, tolerance, transposed, True  # rows start normalized
    backward = grad_scores.size > 0
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        if n == 0:
            continue
        x = np.empty(n)
        for i in range(n):
            x[i] = scores[order[start + i]] * (1.0 / temperature)
        # The sums become the gradient of x, in place, and that of Σ_k |x_i - x_k|.
        grad_x, grad_sums = scaled_product(b, x, lists, rows, backward, settings, state)
        if backward:
            for i in range(n):
                grad_x[i] -= (n - 1.0 - 2.0 * i) * grad_sums[i]
            absolute_differences_adjoint(x, grad_sums, grad_x)
            for i in range(n):
                grad_scores[order[start + i]] += grad_x[i] / temperature


SINKHORN = Permutation(_sinkhorn, power=2, state_rows=lambda options: block_rows(options[1]))


class SinkhornOperator(SortOperator):
    """NeuralSort with Sinkhorn; options: temperature, iterations, tolerance and transposed."""

    relaxation = SINKHORN
