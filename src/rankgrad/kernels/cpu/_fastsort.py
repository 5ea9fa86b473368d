"""FastSort's ranks on a CPU: projections onto the permutahedron (Blondel et al. 2020, eq. 6).

:mod:`rankgrad.sorting.fastsort` defines the ranks: the projection of ``a = -s / strength`` onto the
convex hull of all orders of ``1, ..., n``. It takes an isotonic regression, which partitions the
sorted items of a list into *blocks* of neighbors. Within a block of m items, let w be the exact
ranks of its items. The rank of item i is

- ``a_i - mean(a - w)`` with Euclidean ("l2") regularization;
- ``softmax(a)_i Σ w`` with entropic regularization,

where mean, softmax and sum are over the block. A block of one item has its exact rank.

:mod:`rankgrad.kernels.cpu._relaxed` calls the two loops of this file, and describes their
arguments.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array
from rankgrad.kernels.cpu._isotonic import pool_adjacent
from rankgrad.kernels.cpu._metric_steps import GRAD, RANKS, STATE
from rankgrad.kernels.cpu._relaxed import Lists, Ranking, RankOperator

#: The strength of the regularization, and whether it is entropic.
Options = tuple[float, bool]


@compiled
def _forward(first: int, last: int, lists: Lists, options: Options, rows: Array) -> None:
    """Write the ranks to ``rows[RANKS]``, and the end of each item's block to ``rows[STATE]``.

    Items are in order of descending score, as everywhere in ``rows``. The end of a block is the
    position in its list, from 0, one past the block's last item.

    The isotonic regression takes a and w in descending order (with entropic regularization, a and
    ``log w``), so it reads the items in reverse order: position i becomes position n - 1 - i.
    """
    scores, offsets, order, counts, _ = lists
    strength, entropic = options
    for b in range(first, last):
        n, start = counts[b], offsets[b]
        # pool_adjacent takes a batch of lists, [lists, n]: here a single one.
        z, anchors, weights = np.empty(n), np.empty((1, n)), np.empty((1, n))
        blocks = np.empty((1, n), np.int64)
        for i in range(n):
            z[i] = scores[order[start + i]] / strength
            anchors[0, n - 1 - i] = -z[i]
            weights[0, n - 1 - i] = math.log(i + 1.0) if entropic else i + 1.0
        pool_adjacent(anchors, weights, np.full(1, n), entropic, blocks)
        # From the last block to the first. Item i is at blocks[0, n - 1 - i], so items end - 1 and
        # begin - 1 are at n - end and n - begin.
        end = n
        while end > 0:
            begin = end - 1
            while begin > 0 and blocks[0, n - begin] == blocks[0, n - end]:
                begin -= 1
            for i in range(begin, end):
                rows[STATE, start + i] = end
            block_ranks = rows[RANKS, start + begin : start + end]
            mean_rank = 0.5 * (begin + 1.0 + end)  # of the exact ranks begin + 1, ..., end
            _rank_block(z[begin:end], mean_rank, entropic, block_ranks)
            end = begin


@compiled
def _rank_block(z: Array, mean_rank: float, entropic: bool, ranks: Array) -> None:
    """Write the ranks of a block's items to ``ranks`` ``[m]``.

    ``z`` ``[m]`` are the scores over the strength, ``-a``, descending; ``mean_rank`` is the mean
    of the exact ranks w.

    Scores are first subtracted from each other: large scores would round off the digits of a rank
    that is added to them.
    """
    total = 0.0
    if entropic:
        for i in range(z.size):
            ranks[i] = math.exp(z[z.size - 1] - z[i])
            total += ranks[i]
        for i in range(z.size):
            ranks[i] *= mean_rank * z.size / total
    else:
        for i in range(z.size):
            total += z[i] - z[0]
        for i in range(z.size):
            ranks[i] = mean_rank - ((z[i] - z[0]) - total / z.size)


@compiled
def _adjoint(
    first: int, last: int, lists: Lists, options: Options, rows: Array, grad_scores: Array
) -> None:
    """Add the gradient with respect to the scores to ``grad_scores``.

    With g the gradient with respect to the ranks, in ``rows[GRAD]``, that of item i is
    ``v_i (Σ_j v_j g_j / Σ_j v_j - g_i) / strength``, where j runs over the block of item i. Here
    ``v = 1`` or, with entropic regularization, v is the item's rank. In a block of one item the
    gradient is 0.
    """
    _, offsets, order, counts, _ = lists
    strength, entropic = options
    ranks, grad = rows[RANKS], rows[GRAD]
    for b in range(first, last):
        n, start, begin = counts[b], offsets[b], 0
        while begin < n:
            end = int(rows[STATE, start + begin])
            grad_sum, v_sum = 0.0, 0.0
            for i in range(start + begin, start + end):
                v = ranks[i] if entropic else 1.0
                grad_sum += v * grad[i]
                v_sum += v
            if end - begin > 1:
                for i in range(start + begin, start + end):
                    v = ranks[i] if entropic else 1.0
                    grad_scores[order[i]] += v / strength * (grad_sum / v_sum - grad[i])
            begin = end


FASTSORT = Ranking(_forward, _adjoint)


class FastSortRanks(RankOperator):
    """FastSort's ranks as an operator, with the options ``strength`` and ``entropic``."""

    relaxation = FASTSORT
