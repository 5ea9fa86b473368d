"""Pointwise losses; and MarginMSE, whose sum over pairs is computed by sums over items."""

from __future__ import annotations

import math

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Arrays, FlatArrays, real_items, take
from rankgrad.kernels.cpu._metric_terms import round_threshold

MSE, RMSE, BCE, ORDINAL = range(4)
KINDS = {"mse": MSE, "rmse": RMSE, "bce": BCE, "ordinal": ORDINAL}


def pointwise(lists: FlatArrays, kind: str, number: float) -> None:
    """``(1 / n) Σ_i φ(s_i, y_i)``: see :mod:`rankgrad.kernels.ops`.

    ``number`` is the count of levels for "rmse" and "ordinal", the threshold for "bce".
    """
    number = round_threshold(number, lists.single) if kind == "bce" else number
    lists.run(_lists, KINDS[kind], float(number), steps=4)


@compiled
def _lists(first: int, last: int, arrays: Arrays, kind: int, number: float) -> None:
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        total, count = 0.0, 0.0
        for i in range(offsets[b], offsets[b + 1]):
            if mask.size and not mask[i]:
                continue
            weight = weights[i] if weights.size else 1.0
            value, grad = _term(kind, scores[i], labels[i], number)
            total += weight * value
            grad_scores[i] = weight * grad
            count += 1.0
        defined[b] = count > 0
        if not defined[b]:
            continue
        values[b], scale = total / count, 1.0 / count
        if kind == RMSE:
            # The square root's derivative at 0 is infinite; a list without error gets gradient 0.
            values[b] = math.sqrt(values[b])
            scale *= 0.5 / values[b] if values[b] > 0 else 0.0
        for i in range(offsets[b], offsets[b + 1]):
            grad_scores[i] *= scale


@compiled
def _term(kind: int, score: float, label: float, number: float) -> tuple[float, float]:
    """An item's loss, and its derivative with respect to the score."""
    if kind == MSE:
        error = score - label
        return error * error, 2.0 * error
    if kind == RMSE:
        probability, other = _sigmoid(score)
        error = number * probability - label
        return error * error, 2.0 * error * number * probability * other
    if kind == BCE:
        return _binary(score, label >= number)
    # Ordinal: is the label at least ``grade``? The score's threshold for it is grade - number / 2.
    total, grad = 0.0, 0.0
    for grade in range(1, int(number)):
        value, change = _binary(score - (grade - number / 2), label >= grade)
        total += value
        grad += change
    return total, grad


def margin_mse(lists: FlatArrays) -> None:
    """The mean over pairs of ``((s_i - s_j) - (y_i - y_j))²``: see :mod:`rankgrad.kernels.ops`."""
    lists.run(_margins, steps=8)


@compiled
def _margins(first: int, last: int, arrays: Arrays) -> None:
    """``Σ_i w_i (n e_i² + Σ_j e_j²) / (n (n - 1))``, where e is ``s - y`` minus its mean.

    It equals ``Σ_i w_i Σ_j (e_i - e_j)² / (n (n - 1))``, because the errors e add up to 0.
    """
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        n, w, errors = items.size, take(weights, items), take(scores, items)
        defined[b] = n > 1
        if not defined[b]:
            continue
        mean, squares, weight, weighted_errors = 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            errors[i] -= labels[items[i]]
            mean += errors[i] / n
        for i in range(n):
            errors[i] -= mean
            squares += errors[i] * errors[i]
            weight += w[i]
            weighted_errors += w[i] * errors[i]
        for i in range(n):
            values[b] += w[i] * (n * errors[i] * errors[i] + squares) / (n * (n - 1.0))
            grad = (n * w[i] + weight) * errors[i] - weighted_errors
            grad_scores[items[i]] = 2.0 * grad / (n * (n - 1.0))


@compiled
def _sigmoid(x: float) -> tuple[float, float]:
    """``sigmoid(x)`` and ``sigmoid(-x)``."""
    small = math.exp(-abs(x))
    large = 1.0 / (1.0 + small)
    return (large, small * large) if x >= 0 else (small * large, large)


@compiled
def _binary(x: float, target: bool) -> tuple[float, float]:
    """``-log sigmoid(x)`` if the target is True, else ``-log sigmoid(-x)``; and the derivative."""
    probability, other = _sigmoid(x)
    wrong = -x if target else x
    return max(wrong, 0.0) + math.log1p(math.exp(-abs(x))), -other if target else probability
