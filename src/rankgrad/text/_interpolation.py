"""Interpolation of a ranker's scores with those of the first stage."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from rankgrad.metrics import metrics as known_metrics
from rankgrad.text._candidates import Candidates

#: The weights of the first stage that :func:`choose_weight` tries.
WEIGHTS = tuple(round(0.05 * step, 2) for step in range(21))


def standardize(scores: NDArray[np.floating], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores of each list with mean 0 and deviation 1; zeros where a list's scores all tie.

    >>> standardize(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3])).tolist()
    [-1.0, 1.0, 0.0]
    """
    out = np.zeros(len(scores))
    for first, last in itertools.pairwise(offsets.tolist()):
        list_scores = np.asarray(scores[first:last], np.float64)
        deviation = list_scores.std() if len(list_scores) else 0.0
        if deviation > 0:
            out[first:last] = (list_scores - list_scores.mean()) / deviation
    return out


def interpolate(
    scores: NDArray[np.floating],
    first_stage: NDArray[np.floating],
    offsets: NDArray[np.int64],
    weight: float,
) -> NDArray[np.float64]:
    """``(1 - weight) z(scores) + weight z(first_stage)`` with z-scores within each list.

    Args:
        scores: the ranker's, ``[N]``.
        first_stage: ``[N]``.
        offsets: of the lists, ``[B + 1]``.
        weight: of the first stage, from 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight of the first stage must be from 0 to 1, found {weight}")
    ranker, first = standardize(scores, offsets), standardize(first_stage, offsets)
    return (1 - weight) * ranker + weight * first


def choose_weight(scores: NDArray[np.floating], candidates: Candidates, metric: str) -> float:
    """The weight of the first stage with the best mean of a metric; of equal ones, the smallest.

    Args:
        scores: the ranker's, of validation lists, ``[N]``.
        candidates: these lists.
        metric: what counts.
    """
    chosen = known_metrics.get(metric)
    name, sign = str(chosen), -1 if chosen.lower_is_better else 1
    values = {}
    for weight in WEIGHTS:
        mixed = interpolate(scores, candidates.first_stage, candidates.offsets, weight)
        values[weight] = sign * candidates.evaluate(mixed, [metric]).values.mean[name]
    return max(values, key=lambda weight: (round(values[weight], 12), -weight))
