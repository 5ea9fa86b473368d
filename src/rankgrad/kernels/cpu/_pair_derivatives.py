"""Gradient and Hessian diagonal of pairwise losses on a CPU, in one pass over a list's pairs.

Boosted trees take these derivatives: :func:`rankgrad.kernels._pair_derivatives.compute` calls
:func:`pair_derivatives`. The loops of :mod:`rankgrad.kernels.cpu._pairs` compute them for all
losses. This file adds the loop for LambdaRank as LightGBM normalizes it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, PairOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, real_items
from rankgrad.kernels.cpu._pairs import (
    GRAD,
    HESSIAN,
    Scheme,
    W,
    Y,
    Z,
    add_lambdas,
    lambda_weights,
    pair_loop,
    sorted_block,
)


def pair_derivatives(lists: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian diagonal, ``[items]`` each, of every list's loss.

    :func:`rankgrad.kernels._pair_derivatives.compute` describes the arguments. Beside the kinds of
    the losses, ``options.kind`` may be "lambdarank_norm": LambdaRank as LightGBM normalizes it.
    """
    arrays = FlatArrays.of(lists)
    if options.kind == "lambdarank_norm":
        lambdarank = options._replace(kind="lambdarank")
        _, scheme = pair_loop(lambdarank, lists.max_length, arrays.single)
        loop, scheme = _normalized_lists, _without_zero_discounts(scheme)
    else:
        loop, scheme = pair_loop(options, lists.max_length, arrays.single)
    hessian = np.zeros(lists.scores.numel())
    arrays.run(loop, hessian, scheme, power=2)
    _, gradient, _ = arrays.results()
    dtype = lists.scores.dtype
    return gradient.to(dtype), torch.from_numpy(hessian).to(dtype)


def _without_zero_discounts(scheme: Scheme) -> Scheme:
    """LambdaRank's weights of pairs, with NDCG's discounts past the cutoff too.

    A pair is weighted by the difference of its items' discounts, the last of the tables. There,
    LambdaRank's discounts are 0 past the cutoff. LightGBM's are not: its cutoff only leaves out
    the pairs of two items past it.
    """
    weighting, gains, (ndcg_discounts, distance_factor, lower_rank_factor, _) = scheme
    return weighting, gains, (ndcg_discounts, distance_factor, lower_rank_factor, ndcg_discounts)


@compiled
def _normalized_lists(
    first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme
) -> None:
    """LambdaRank as LightGBM normalizes it (``rank_objective.hpp``).

    Each pair is divided by ``0.01 + |s_i - s_j|``, unless all scores of the list are equal. The
    list's derivatives are multiplied by ``log2(1 + Σλ) / Σλ``. The sum Σλ is over the absolute
    lambdas of all pairs, without the weights of items, and counts each pair twice, once for each of
    its items. Tied scores are ranked in input order.
    """
    weighting, _, _ = scheme
    top_ranks, sigma = weighting[0], weighting[2]
    _, _, mask, weights, offsets, _, grad_scores, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = sorted_block(b, arrays, sigma, items, ties_by_label=False)
        if block.size == 0:  # no pair of unequal labels, so the derivatives stay 0
            continue
        pair_weights = lambda_weights(block[Y, : items.size], scheme)
        scores_differ = block[Z, 0] > block[Z, items.size - 1]
        divisor_sigma = sigma if scores_differ else 0.0  # 0: pairs are not divided
        total = add_lambdas(block, pair_weights, top_ranks, divisor_sigma, derivatives=True)
        if weights.size:  # the derivatives are weighted, but Σλ is not
            unweighted = block.copy()
            for i in range(items.size):
                unweighted[W, i] = 1.0
            total = add_lambdas(
                unweighted, pair_weights, top_ranks, divisor_sigma, derivatives=True
            )
        sum_lambdas = 2.0 * sigma * total  # Σλ; add_lambdas omits the factor σ
        scale = sigma * (math.log2(1 + sum_lambdas) / sum_lambdas if sum_lambdas > 0 else 1.0)
        for i in range(items.size):
            grad_scores[items[i]] = scale * block[GRAD, i]
            hessian[items[i]] = scale * sigma * block[HESSIAN, i]
