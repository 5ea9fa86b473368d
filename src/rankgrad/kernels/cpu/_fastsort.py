"""FastSort's ranks by projection onto the permutahedron, and their adjoint by blocks."""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array
from rankgrad.kernels.cpu._isotonic import pool_adjacent
from rankgrad.kernels.cpu._metric_steps import GRAD, RANKS, STATE
from rankgrad.kernels.cpu._relaxed import Lists, Ranking, RankOperator

Options = tuple[float, bool]  # the strength, and whether the regularization is entropic


@compiled
def _forward(first: int, last: int, lists: Lists, options: Options, rows: Array) -> None:
    """Write the ranks to ``rows[RANKS]``, and the end of each item's block to ``rows[STATE]``.

    A block is a run of neighboring items that the isotonic regression pools. Its end is exclusive
    and counts from the start of the list.

    The regression reads items from the last to the first, so that ``a = -s / strength`` and the
    weights ``w = n, n - 1, ..., 1`` both descend; in the entropic form it takes ``log w``. On a
    block the rank is ``a`` minus the mean of ``a - w``; in the entropic form it is ``softmax(a)``
    times the sum of w.
    """
    scores, offsets, order, counts, _ = lists
    strength, entropic = options
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        z, anchors, weights = np.empty(n), np.empty((1, n)), np.empty((1, n))
        blocks = np.empty((1, n), np.int64)
        for i in range(n):
            z[i] = scores[order[start + i]] / strength
            anchors[0, n - 1 - i] = -z[i]
            weights[0, n - 1 - i] = math.log(i + 1.0) if entropic else i + 1.0
        pool_adjacent(anchors, weights, np.full(1, n), entropic, blocks)
        end = n
        while end > 0:  # items were reversed, so the first item of this block is end - 1
            begin = end - 1
            while begin > 0 and blocks[0, n - begin] == blocks[0, n - end]:
                begin -= 1
            for i in range(begin, end):
                rows[STATE, start + i] = end
            block_ranks = rows[RANKS, start + begin : start + end]
            _rank_block(z[begin:end], 0.5 * (begin + 1.0 + end), entropic, block_ranks)
            end = begin


@compiled
def _rank_block(z: Array, middle: float, entropic: bool, ranks: Array) -> None:
    """Write the ranks of a block of m items; the mean of its weights w is ``middle``.

    ``z`` ``[m]`` are the scores over the strength, descending; ``ranks`` is ``[m]``.

    Scores are subtracted from each other first: a rank added to a large score would be rounded off.
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
def _adjoint(
    first: int, last: int, lists: Lists, options: Options, rows: Array, grad_scores: Array
) -> None:
    """Add the gradient with respect to the scores to ``grad_scores``.

    With g the gradient with respect to the ranks, item i of a block gets
    ``v_i (Σ_j v_j g_j / Σ_j v_j - g_i) / strength``, where j runs over the block; v is 1, or the
    rank in the entropic form.
    """
    _, offsets, order, counts, _ = lists
    strength, entropic = options
    ranks, grad = rows[RANKS], rows[GRAD]
    for b in range(first, last):
        n, start, begin = counts[b], offsets[b], 0
        while begin < n:
            end = int(rows[STATE, start + begin])
            total, normalizer = 0.0, 0.0
            for i in range(start + begin, start + end):
                weight = ranks[i] if entropic else 1.0
                total += weight * grad[i]
                normalizer += weight
            if end - begin > 1:
                for i in range(start + begin, start + end):
                    weight = (ranks[i] if entropic else 1.0) / strength
                    grad_scores[order[i]] += weight * (total / normalizer - grad[i])
            begin = end


FASTSORT = Ranking(_forward, _adjoint)


class FastSortRanks(RankOperator):
    """``-s / strength`` projected onto the permutahedron of 1..n; options: strength, entropic."""

    relaxation = FASTSORT
    types = (float, bool)
