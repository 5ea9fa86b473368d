"""Sigmoid ranks over pairs of sorted items, and metrics through relaxed ranks.

:mod:`rankgrad.kernels.cpu._relaxed` says what the loops :func:`_forward` and :func:`_adjoint` get
and write.
"""

from __future__ import annotations

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._fastsort import FASTSORT
from rankgrad.kernels.cpu._flat_arrays import Array, FlatArrays
from rankgrad.kernels.cpu._lapsum import LAPSUM
from rankgrad.kernels.cpu._metric_steps import GRAD, RANKS
from rankgrad.kernels.cpu._pair_sums import (
    GRADS,
    POINTS,
    SUMS,
    pair_block,
    sigmoid_sums,
    sigmoid_sums_adjoint,
)
from rankgrad.kernels.cpu._relaxed import Lists, Ranking, RankOperator, through_ranking


@compiled
def _forward(first: int, last: int, lists: Lists, options: tuple[float], rows: Array) -> None:
    """Write the ranks ``1 + Σ_{j≠i} sigmoid(α (s_j - s_i))`` of lists first to last - 1.

    ``options`` is ``(α,)``.
    """
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        start = offsets[b]
        block = pair_block(counts[b])
        for i in range(counts[b]):
            block[POINTS, i] = options[0] * scores[order[start + i]]
        sigmoid_sums(block)
        for i in range(counts[b]):
            rows[RANKS, start + i] = 1.0 + block[SUMS, i]


@compiled
def _adjoint(
    first: int, last: int, lists: Lists, options: tuple[float], rows: Array, grad_scores: Array
) -> None:
    """Add the gradient of the scores to ``grad_scores``, given that of the ranks in ``rows``."""
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        start = offsets[b]
        block = pair_block(counts[b])
        for i in range(counts[b]):
            block[POINTS, i] = options[0] * scores[order[start + i]]
            block[GRADS, i] = rows[GRAD, start + i]
        sigmoid_sums_adjoint(block)
        for i in range(counts[b]):
            grad_scores[order[start + i]] += options[0] * block[SUMS, i]


SIGMOID = Ranking(_forward, _adjoint, power=2)


class SigmoidRanks(RankOperator):
    """``1 + Σ_{j≠i} sigmoid(α (s_j - s_i))``; option: alpha."""

    relaxation = SIGMOID


def through_ranks(
    flat: FlatArrays, relaxation: str, sharpness: float, beta: float, metric_options: MetricOptions
) -> None:
    """1 - metric through relaxed ranks: see ``through_ranks`` in :mod:`rankgrad.kernels._backends`.

    ``sharpness`` is α of "sigmoid", one over the temperature of "lapsum", or one over the strength
    of "fastsort" and "fastsort_entropic".
    """
    if relaxation == "sigmoid":
        through_ranking(SIGMOID, (sharpness,), beta, flat, metric_options)
    elif relaxation == "lapsum":
        through_ranking(LAPSUM, (1 / sharpness,), beta, flat, metric_options)
    else:
        options = 1 / sharpness, relaxation == "fastsort_entropic"
        through_ranking(FASTSORT, options, beta, flat, metric_options)
