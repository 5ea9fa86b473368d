"""Gradient and Hessian diagonal of pairwise losses, in one pass over the pairs of a list."""

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
    """The gradient and the Hessian diagonal, ``[items]`` each, of every list's value.

    :func:`rankgrad.kernels._pair_derivatives.compute` describes the arguments. Of the options, the
    kind "lambdarank_norm" is LambdaRank as LightGBM normalizes it.
    """
    arrays = FlatArrays.of(lists)
    normalized = options.kind == "lambdarank_norm"
    if normalized:
        options = options._replace(kind="lambdarank")
    loop, scheme = pair_loop(options, lists.max_length, arrays.single)
    if normalized:
        weighting, metric, (ndcg_discounts, distance_factor, lower_rank_factor, _) = scheme
        # The last table has the discounts whose differences weight pairs, 0 past the cutoff.
        # LightGBM's cutoff leaves out pairs, but its discounts are not 0 past it.
        tables = ndcg_discounts, distance_factor, lower_rank_factor, ndcg_discounts
        loop, scheme = _normalized_lists, (weighting, metric, tables)
    hessian = np.zeros(lists.scores.numel())
    arrays.run(loop, hessian, scheme, power=2)
    _, gradient, _ = arrays.results()
    dtype = lists.scores.dtype
    return gradient.to(dtype), torch.from_numpy(hessian).to(dtype)


@compiled
def _normalized_lists(
    first: int, last: int, arrays: Arrays, hessian: Array, scheme: Scheme
) -> None:
    """LambdaRank as LightGBM normalizes it (``rank_objective.hpp``).

    Each pair is divided by ``0.01 + |s_i - s_j|``, unless all scores of the list are equal. The
    list's derivatives are multiplied by ``log2(1 + Σλ) / Σλ``, where Σλ counts the absolute lambda
    of each pair twice, once per item, and ignores the weights of items. Tied scores are ranked in
    input order.
    """
    weighting, _, _ = scheme
    top_ranks, sigma = weighting[0], weighting[2]
    _, _, mask, weights, offsets, _, grad_scores, _ = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        block = sorted_block(b, arrays, sigma, items, ties_by_label=False)
        if block.size == 0:
            continue
        pair_weights = lambda_weights(block[Y, : items.size], scheme)
        scores_differ = block[Z, 0] > block[Z, items.size - 1]
        divisor_sigma = sigma if scores_differ else 0.0  # 0: pairs are not divided
        unweighted = block
        if weights.size:
            unweighted = block.copy()
            for i in range(items.size):
                unweighted[W, i] = 1.0
            add_lambdas(block, pair_weights, top_ranks, divisor_sigma, derivatives=True)
        total = add_lambdas(unweighted, pair_weights, top_ranks, divisor_sigma, derivatives=True)
        total *= 2.0 * sigma  # Σλ
        scale = sigma * (math.log2(1 + total) / total if total > 0 else 1.0)
        for i in range(items.size):
            grad_scores[items[i]] = scale * block[GRAD, i]
            hessian[items[i]] = scale * sigma * block[HESSIAN, i]
