"""Intervals of many candidates at once: the draws are made once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_CELLS = 1 << 24  # counts held at a time


def intervals(values: Values, *, level: float = 0.95, samples: int = 2000, seed: int = 0) -> Values:
    """Percentile bootstrap intervals of the means of the columns of ``values`` ``[B, C]``.

    Each column gets what :func:`rankgrad.significance.bootstrap_interval` gives it,
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
