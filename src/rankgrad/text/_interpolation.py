"""Interpolation of a ranker's scores with those of the first stage.

``rankgrad text train --interpolate`` chooses the weight of the first stage on validation lists, and
``rankgrad text rerank`` applies it.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from rankgrad.metrics import metrics
from rankgrad.text._candidates import Candidates

#: The weights of the first stage that :func:`choose_weight` tries.
WEIGHTS = tuple(round(0.05 * step, 2) for step in range(21))


def standardize(scores: NDArray[np.floating], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The z-scores within each list: mean 0 and standard deviation 1; 0 if all scores tie.

    Args:
        scores: ``[N]``.
        offsets: where lists begin and end, ``[B + 1]``.

    >>> standardize(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3])).tolist()
    [-1.0, 1.0, 0.0]
    >>> standardize(np.full(3, 0.1), np.array([0, 3])).tolist()
    [0.0, 0.0, 0.0]
    >>> standardize(np.array([0.0, 2e-200]), np.array([0, 2])).tolist()
    [-1.0, 1.0]
    """
    z_scores = np.zeros(len(scores))
    for begin, end in itertools.pairwise(offsets.tolist()):
        list_scores = np.asarray(scores[begin:end], np.float64)
        # Rounding makes the deviation of equal scores positive: compare them instead.
        if (list_scores != list_scores[:1]).any():
            # Scaled by a power of 2, which is exact, so that squares neither under- nor overflow.
            list_scores = np.ldexp(list_scores, -np.frexp(np.abs(list_scores).max())[1])
            z_scores[begin:end] = (list_scores - list_scores.mean()) / list_scores.std()
    return z_scores


def interpolate(
    scores: NDArray[np.floating],
    first_stage: NDArray[np.floating],
    offsets: NDArray[np.int64],
    weight: float,
) -> NDArray[np.float64]:
    """``(1 - weight) z(scores) + weight z(first_stage)`` with z-scores within each list.

    Args:
        scores: scores of the ranker, ``[N]``.
        first_stage: scores of the first stage, ``[N]``.
        offsets: where lists begin and end, ``[B + 1]``.
        weight: the weight of the first stage, from 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight of the first stage must be from 0 to 1, found {weight}")
    z_ranker, z_first_stage = standardize(scores, offsets), standardize(first_stage, offsets)
    return (1 - weight) * z_ranker + weight * z_first_stage


def choose_weight(scores: NDArray[np.floating], candidates: Candidates, metric: str) -> float:
    """The weight of the first stage with the best mean of a metric; of equal ones, the smallest.

    Args:
        scores: scores of the ranker on validation lists, ``[N]``.
        candidates: the validation lists.
        metric: the spec of the metric.
    """
    parsed = metrics.get(metric)
    sign = -1 if parsed.lower_is_better else 1
    quality = {}
    for weight in WEIGHTS:
        mixed = interpolate(scores, candidates.first_stage, candidates.offsets, weight)
        quality[weight] = sign * candidates.evaluate(mixed, [metric]).values.mean[str(parsed)]
    # Rounded, so that the last bits do not decide between weights with equal metrics.
    return max(quality, key=lambda weight: (round(quality[weight], 12), -weight))
