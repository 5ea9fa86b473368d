"""LapSum ranks by one sort and two scans (Struski et al., ICML 2025)."""

from __future__ import annotations

import math

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array
from rankgrad.kernels.cpu._metric_steps import GRAD, RANKS, STATE
from rankgrad.kernels.cpu._relaxed import Lists, Ranking, RankOperator

# The rows of the state, by item i in order of descending score: exp(-|s_i - s_{i-1}| / τ), and
# Σ_{j≠i} exp(-|s_i - s_j| / τ)
DECAY, NEAR = STATE, STATE + 1


@compiled
def _forward(first: int, last: int, lists: Lists, options: tuple[float], rows: Array) -> None:
    """Write the ranks ``1/2 + Σ_j F((s_j - s_i) / τ)``, F the Laplace CDF, and the state.

    Let ``i = 1, 2, ...`` count items by descending score, and let A_i and B_i be the sums of
    ``exp(-|s_i - s_j| / τ)`` over the items above and below item i. The rank of item i is
    ``i - A_i / 2 + B_i / 2``. Two scans compute the sums: A_i is ``decay_i (A_{i-1} + 1)``.
    """
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        start, end = offsets[b], offsets[b] + counts[b]
        above = 0.0
        for i in range(start, end):
            log_decay = (scores[order[i]] - scores[order[i - 1]]) / options[0] if i > start else 0.0
            rows[DECAY, i] = math.exp(log_decay)
            above = rows[DECAY, i] * (above + 1.0) if i > start else 0.0
            rows[NEAR, i] = above
            rows[RANKS, i] = i - start + 1.0 - 0.5 * above
        below = 0.0
        for i in range(end - 1, start - 1, -1):
            rows[NEAR, i] += below
            rows[RANKS, i] += 0.5 * below
            below = rows[DECAY, i] * (below + 1.0)


@compiled
def _adjoint(
    first: int, last: int, lists: Lists, options: tuple[float], rows: Array, grad_scores: Array
) -> None:
    """Add the derivative of ``Σ_i g_i rank_i`` to ``grad_scores``, for g in the row ``GRAD``.

    It is ``(Σ_{j≠i} g_j exp(-|s_i - s_j| / τ) - g_i (A_i + B_i)) / (2 τ)`` for item i.
    """
    _, offsets, order, counts, _ = lists
    for b in range(first, last):
        start, end = offsets[b], offsets[b] + counts[b]
        above, below, half = 0.0, 0.0, 0.5 / options[0]
        for i in range(start, end):
            if i > start:
                above = rows[DECAY, i] * (above + rows[GRAD, i - 1])
            grad_scores[order[i]] += half * (above - rows[GRAD, i] * rows[NEAR, i])
        for i in range(end - 1, start - 1, -1):
            grad_scores[order[i]] += half * below
            below = rows[DECAY, i] * (below + rows[GRAD, i])


LAPSUM = Ranking(_forward, _adjoint)


class LapSumRanks(RankOperator):
    """``1/2 + Σ_j F((s_j - s_i) / τ)``, F the Laplace CDF; option: temperature."""

    relaxation = LAPSUM
