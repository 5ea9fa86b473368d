"""Gradient and Hessian diagonal of pairwise losses on CPUs, in one pass over the pairs of a list.

A list is sorted by its scores, so that the first item of a pair is the higher one, and
``exp(s_j - s_i)`` is a product of two exponentials. Everything is computed in float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels._pair_derivatives import PairConfig
from rankgrad.kernels.cpu._arithmetic import exp
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction, run_in_threads
from rankgrad.kernels.cpu._flat_arrays import (
    APART,
    NDCG,
    Array,
    gains_of,
    ideal,
    new_block,
    sort_descending,
)
from rankgrad.kernels.cpu._pairs import average_duplicates, sort_by_score, weigh_by_preferred

RANKNET, HINGE, LAMBDAS, LOSS1 = range(4)
_KINDS = {"ranknet": RANKNET, "hinge": HINGE, "ndcg_loss1": LOSS1}
_LEAST = 1e-16  # lower bound of a logistic pair's p (1 - p)
_RANGE = 600.0  # a range of scaled scores whose exponentials are all finite in float64

# Rows of a list's block of memory, by sorted item: score, label, weight, the factor of pairs that
# prefer the item, gain, discount, the factor of pairs whose lower item it is, gradient, Hessian,
# exponential, and the weights of the current item's pairs by which of the two is preferred.
_Z, _Y, _W, _V, _G, _D, _L, _GRAD, _HESS, _E, _RIGHT, _WRONG, _ROWS = range(13)


def pair_derivatives(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    offsets: Tensor,
    max_length: int,
    config: PairConfig,
) -> tuple[Tensor, Tensor]:
    """See :func:`rankgrad.kernels._pair_derivatives.compute`."""
    bounds = offsets.to(torch.int64).contiguous().numpy()
    lengths = np.diff(bounds)
    own_scores, own_labels, own_weights = (
        np.empty(0) if one is None else one.detach().to(torch.float64).contiguous().numpy()
        for one in (scores, labels, weights)
    )
    gradient, hessian = np.zeros(scores.numel()), np.zeros(scores.numel())
    options = _options(config, max_length)
    tables = _tables(config, max_length)

    def work(first: int, last: int) -> None:
        _lists(
            first, last, own_scores, own_labels, own_weights, bounds, gradient, hessian,
            options, tables,
        )  # fmt: skip

    run_in_threads(16.0 * lengths + lengths.astype(np.float64) ** 2, work)
    dtype = scores.dtype
    return torch.from_numpy(gradient).to(dtype), torch.from_numpy(hessian).to(dtype)


def _options(
    config: PairConfig, max_length: int
) -> tuple[int, int, int, float, bool, bool, float, float, float]:
    """The options of :func:`_lists`.

    Returns:
        The kind; the number of top ranks of which a pair must contain one; k; sigma; whether gains
        are linear; whether to normalize; and the coefficients in a pair's weight of the distance of
        its ranks, of the difference of their discounts, and of equal labels.
    """
    kind = _KINDS.get(config.kind, LAMBDAS)
    # Only in LambdaLoss@K's eq. 17 do pairs with both items past the cutoff count.
    everywhere = config.k == 0 or (config.kind.startswith("ndcg_loss") and not config.heuristic)
    by_distance = {"ndcg_loss2": 1.0, "ndcg_loss2++": config.mu}.get(config.kind, 0.0)
    by_discount = 1.0 if config.kind in ("lambdarank", "ndcg_loss2++") else 0.0
    return (
        kind,
        max_length if everywhere else config.k,
        config.k,
        float(config.sigma),
        config.linear,
        config.norm,
        float(by_distance),
        by_discount,
        0.5 if config.half else 0.0,
    )


def _tables(config: PairConfig, max_length: int) -> tuple[Array, Array, Array, Array]:
    """Tables by rank.

    Returns:
        The discount; its decrease from each rank to the next, which LambdaLoss uses by the distance
        of two ranks; the factor of a pair by the rank of its lower item; and the discount whose
        difference a swap of two ranks costs.
    """
    k = config.k
    discount = 1 / np.log2(1 + np.arange(1.0, max_length + 3))
    lower_rank_factor = np.ones(max_length)
    if k and config.kind.startswith("ndcg_loss") and not config.heuristic:
        lower_rank_factor[k:] = 1 / (1 - discount[k:max_length])
    swap_discount = discount[:max_length].copy()
    if k and not config.norm and not config.heuristic:
        swap_discount[k:] = 0.0
    return discount, discount[:-1] - discount[1:], lower_rank_factor, swap_discount


@compiled
def _lists(
    first: int,
    last: int,
    scores: Array,
    labels: Array,
    weights: Array,
    offsets: Array,
    gradient: Array,
    hessian: Array,
    options: tuple[int, int, int, float, bool, bool, float, float, float],
    tables: tuple[Array, Array, Array, Array],
) -> None:
    kind, rows, k, sigma, linear, norm, by_distance, by_discount, half = options
    discount, delta, lower_rank_factor, swap_discount = tables
    for b in range(first, last):
        n = offsets[b + 1] - offsets[b]
        if n < 2 or not _differ(labels[offsets[b] : offsets[b + 1]]):
            continue
        items = np.empty(n, np.int64)
        for i in range(n):
            items[i] = offsets[b] + i
        if norm:
            sort_descending(scores, items)
        else:
            sort_by_score(scores, labels, items)
        block = new_block(_ROWS, n)
        z, y = block[_Z, :n], block[_Y, :n]
        for i in range(n):
            z[i], y[i] = scores[items[i]], labels[items[i]]
            block[_W, i] = block[_V, i] = weights[items[i]] if weights.size else 1.0
            block[_D, i], block[_L, i] = swap_discount[i], lower_rank_factor[i]
        end = min(rows, n)
        if kind == HINGE:
            _hinge(block, sigma, end)
        else:
            if kind >= LAMBDAS:
                gains = gains_of(y, NDCG, linear, 1.0)
                best = ideal(gains, discount, k)
                for i in range(n):
                    block[_G, i] = gains[i] / (best if best > 0 else 1.0)
                    if kind == LOSS1:
                        block[_V, i] *= block[_G, i] * discount[i]
            parts = by_distance, by_discount, half, 0.01 if norm and z[0] > z[n - 1] else 0.0
            for i in range(n):
                z[i] *= sigma
            factor = sigma
            if norm:
                factor *= _norm_factor(block, kind, delta, parts, sigma, end, weights.size > 0)
            else:
                _logistic(block, kind, delta, parts, sigma, end)
            for i in range(n):
                block[_GRAD, i] *= factor
                block[_HESS, i] *= factor * sigma
        if not norm:
            for row in (_GRAD, _HESS):
                average_duplicates(scores, labels, weights, items, block[row, :n])
        for i in range(n):
            gradient[items[i]], hessian[items[i]] = block[_GRAD, i], block[_HESS, i]


@compiled
def _differ(labels: Array) -> bool:
    """Whether any two labels differ."""
    found = False
    for i in range(1, labels.size):
        found = found or labels[i] != labels[0]
    return found


# Inner loops take slices, so that the compiler knows all indices to be in range and vectorizes.
# They write only to the block of memory that they read from, as compiled_reduction requires.


@compiled
def _hinge(block: Array, margin: float, end: int) -> None:
    n = block.shape[1] - APART
    for i in range(end):
        below = slice(i + 1, n)
        item = block[_Z, i], block[_Y, i], block[_W, i]
        lower_items = block[_Z, below], block[_Y, below], block[_W, below]
        results = block[_GRAD, below], block[_HESS, below]
        grad_sum, hess_sum = _hinge_row(item, lower_items, margin, *results)
        block[_GRAD, i] -= grad_sum
        block[_HESS, i] += hess_sum


@compiled_reduction
def _hinge_row(
    item: tuple[float, float, float],
    lower_items: tuple[Array, Array, Array],
    margin: float,
    gradient: Array,
    hessian: Array,
) -> tuple[float, float]:
    score, label, weight = item
    z, y, w = lower_items
    grad_sum, hess_sum = 0.0, 0.0
    for j in range(z.size):
        difference = score - z[j]
        right = weight if label > y[j] else 0.0
        wrong = w[j] if label < y[j] else 0.0
        grad = (right if difference < margin else 0.0) - wrong
        hess = 0.5 * (right / max(abs(margin - difference), margin) + wrong / (margin + difference))
        grad_sum += grad
        hess_sum += hess
        gradient[j] += grad
        hessian[j] += hess
    return grad_sum, hess_sum


@compiled
def _norm_factor(
    block: Array,
    kind: int,
    delta: Array,
    parts: tuple[float, float, float, float],
    sigma: float,
    end: int,
    weighted: bool,
) -> float:
    """Add up the pairs and return LightGBM's normalization factor, which ignores item weights."""
    n = block.shape[1] - APART
    for i in range(n):
        block[_V, i] = 1.0
    total = 2 * sigma * _logistic(block, kind, delta, parts, sigma, end)
    if weighted:
        for i in range(n):
            block[_V, i] = block[_W, i]
            block[_GRAD, i], block[_HESS, i] = 0.0, 0.0
        _logistic(block, kind, delta, parts, sigma, end)
    return math.log2(1 + total) / total if total > 0 else 1.0


@compiled
def _logistic(
    block: Array,
    kind: int,
    delta: Array,
    parts: tuple[float, float, float, float],
    sigma: float,
    end: int,
) -> float:
    """Add up logistic pairs, each once; return the sum of the absolute lambdas."""
    n = block.shape[1] - APART
    z = block[_Z, :n]
    near = z[0] - z[n - 1] <= _RANGE
    if near:
        for j in range(n):
            block[_E, j] = exp(z[j] - z[0])
    total = 0.0
    for i in range(end):
        below = slice(i + 1, n)
        scale = 1.0
        if near:
            scale = exp(z[0] - z[i])
        else:
            for j in range(i + 1, n):
                block[_E, j] = exp(z[j] - z[i])
        results = block[_GRAD, below], block[_HESS, below]
        if kind == LAMBDAS:
            item = block[_V, i], block[_G, i], block[_D, i], z[i]
            lower_items = block[_V, below], block[_G, below], block[_D, below], block[_L, below]
            places = block[_E, below], z[below]
            if parts[3] > 0:
                scales = scale, parts[3] * sigma, sigma
                grad_sum, hess_sum, lambda_sum = _normalized_row(
                    item, lower_items, places, scales, results
                )
            else:
                grad_sum, hess_sum, lambda_sum = _lambda_row(
                    item, lower_items, delta, places, scale, parts, results
                )
            total += lambda_sum
        else:
            right, wrong = block[_RIGHT, below], block[_WRONG, below]
            y, v, factor = block[_Y, below], block[_V, below], block[_L, below]
            weigh_by_preferred(block[_Y, i], block[_V, i], parts[2], y, v, factor, right, wrong)
            grad_sum, hess_sum = _pair_row(block[_E, below], scale, right, wrong, *results)
        block[_GRAD, i] -= grad_sum
        block[_HESS, i] += hess_sum
    return total


@compiled_reduction
def _lambda_row(
    item: tuple[float, float, float, float],
    lower_items: tuple[Array, Array, Array, Array],
    delta: Array,
    places: tuple[Array, Array],
    scale: float,
    parts: tuple[float, float, float, float],
    results: tuple[Array, Array],
) -> tuple[float, float, float]:
    """The pairs of an item with the items below it, weighted by their difference in gains.

    With ``x = exp(z_j - z_i)`` a lambda is ``x / (1 + x)`` if i is preferred, else ``1 / (1 + x)``.
    """
    weight, gain, top, _ = item
    weights, gains, swap_discount, factor = lower_items
    e, _ = places
    gradient, hessian = results
    grad_sum, hess_sum, lambda_sum = 0.0, 0.0, 0.0
    for j in range(e.size):
        apart = gain - gains[j]
        swap = apart * (delta[j] * factor[j] * parts[0] + parts[1] * (top - swap_discount[j]))
        x = e[j] * scale
        inverse = 1.0 / (1.0 + x)
        lambda_ = swap * (x * inverse if apart > 0 else inverse)
        owned = weight if apart > 0 else weights[j]
        grad = lambda_ * owned
        hess = abs(swap) * owned * max(x * inverse * inverse, _LEAST)
        grad_sum += grad
        hess_sum += hess
        lambda_sum += abs(lambda_)
        gradient[j] += grad
        hessian[j] += hess
    return grad_sum, hess_sum, lambda_sum


@compiled_reduction
def _normalized_row(
    item: tuple[float, float, float, float],
    lower_items: tuple[Array, Array, Array, Array],
    places: tuple[Array, Array],
    scales: tuple[float, float, float],
    results: tuple[Array, Array],
) -> tuple[float, float, float]:
    """The same for LambdaRank, with each pair divided by its difference in scores."""
    scale, least, sigma = scales
    weight, gain, top, score = item
    weights, gains, swap_discount, _ = lower_items
    e, z = places
    gradient, hessian = results
    grad_sum, hess_sum, lambda_sum = 0.0, 0.0, 0.0
    for j in range(e.size):
        apart = gain - gains[j]
        x = e[j] * scale
        above = 1.0 + x
        # One division serves both quotients.
        both = 1.0 / (above * (least + score - z[j]))
        inverse = both * (least + score - z[j])
        swap = apart * (top - swap_discount[j]) * (both * above * sigma)
        lambda_ = swap * (x * inverse if apart > 0 else inverse)
        owned = weight if apart > 0 else weights[j]
        grad = lambda_ * owned
        hess = abs(swap) * owned * max(x * inverse * inverse, _LEAST)
        grad_sum += grad
        hess_sum += hess
        lambda_sum += abs(lambda_)
        gradient[j] += grad
        hessian[j] += hess
    return grad_sum, hess_sum, lambda_sum


@compiled_reduction
def _pair_row(
    e: Array, scale: float, right: Array, wrong: Array, gradient: Array, hessian: Array
) -> tuple[float, float]:
    """The pairs of an item i with the items j below it.

    With ``x = exp(z_j - z_i)`` the lambda is ``x / (1 + x)`` if i is preferred, else
    ``1 / (1 + x)``.
    """
    grad_sum, hess_sum = 0.0, 0.0
    for j in range(e.size):
        x = e[j] * scale
        inverse = 1.0 / (1.0 + x)
        grad = (right[j] * x - wrong[j]) * inverse
        hess = (right[j] + wrong[j]) * max(x * inverse * inverse, _LEAST)
        grad_sum += grad
        hess_sum += hess
        gradient[j] += grad
        hessian[j] += hess
    return grad_sum, hess_sum
