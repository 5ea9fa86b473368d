"""Intervals and tests of many candidates at once: the draws are made once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

DRAWS = 10_000  # of signs
_CELLS = 1 << 24  # signs or counts held at a time


def intervals(values: Values, *, level: float = 0.95, samples: int = 2000, seed: int = 0) -> Values:
    """Percentile bootstrap intervals of the means of the columns of ``values`` ``[B, C]``.

    Each column gets what :func:`rankgrad.experiments.significance.bootstrap_interval` gives it,
    NaN left out, but the lists are drawn once for all columns.

    >>> intervals(np.array([[0.0, 1.0], [0.0, 1.0]])).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    lists = len(values)
    if not lists:
        return np.full((values.shape[1], 2), np.nan)
    random = np.random.default_rng(seed)
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    whole = bool(known.all())
    shares = np.full(lists, 1 / lists)
    means = []
    for height in _heights(lists, samples):
        counts = random.multinomial(lists, shares, height).astype(np.float64)
        with np.errstate(invalid="ignore"):
            means.append(counts @ filled / (lists if whole else counts @ known))
    edges = [(1 - level) / 2, (1 + level) / 2]
    return _quantiles(np.concatenate(means), edges).T


def randomisation(
    differences: Values, *, samples: int | None = None, seed: int = 0
) -> NDArray[np.float64]:
    """Two-sided p-values that the columns of paired differences ``[B, C]`` have a mean of 0.

    The paired randomisation test: under the hypothesis the two systems of a pair might as well be
    swapped, so signs are drawn at random, and p = (1 + number of draws whose mean is at least as
    far from 0 as the one observed) / (1 + draws). NaN stands for a list that is left out.

    >>> same, better = randomisation(np.array([[0.0, 1.0]] * 30)).tolist()
    >>> same, better < 0.001
    (1.0, True)
    """
    samples = DRAWS if samples is None else samples
    filled = np.nan_to_num(differences)
    observed = np.abs(filled.sum(0))
    slack = 1e-9 * np.abs(filled).sum(0)  # sums in another order are not equal to the last bit
    random = np.random.default_rng(seed)
    beyond = np.zeros(filled.shape[1])
    for height in _heights(len(filled), samples):
        signs = random.integers(0, 2, (height, len(filled)), np.int8).astype(np.float64) * 2 - 1
        beyond += (np.abs(signs @ filled) >= observed - slack).sum(0)
    return np.asarray((1 + beyond) / (1 + samples))


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down correction of p-values; NaN is no test and does not count.

    >>> [round(float(value), 2) for value in holm(np.array([0.01, 0.04, np.nan, 0.03]))]
    [0.03, 0.06, nan, 0.06]
    """
    corrected = np.full(len(p), np.nan)
    tests = np.flatnonzero(~np.isnan(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return corrected


def _heights(lists: int, samples: int) -> Iterator[int]:
    """How many draws to make at a time."""
    height = max(1, _CELLS // max(lists, 1))
    for start in range(0, samples, height):
        yield min(height, samples - start)


def _quantiles(means: Values, edges: list[float]) -> Values:
    """Quantiles of each column; a draw that has no list at all (NaN) does not count."""
    if not np.isnan(means).any():
        return np.asarray(np.quantile(means, edges, axis=0))
    columns = [column[~np.isnan(column)] for column in means.T]
    return np.stack(
        [np.quantile(c, edges) if len(c) else np.full(2, np.nan) for c in columns], axis=1
    )
