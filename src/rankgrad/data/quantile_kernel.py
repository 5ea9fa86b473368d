"""The compiled search of :class:`~rankgrad.data.transforms.Quantile` on a CPU, in float32."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankgrad.compilation import compile_cached

_ROWS = 256  # searched at a time, so that a column of quantiles stays in the processor's cache

_compiled = partial(compile_cached, nogil=True)


@_compiled
def _search(table: np.ndarray, value: np.float32, right: bool) -> int:
    """How many entries of a sorted table are below a value, or with ``right`` not above it."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) >> 1
        if table[middle] < value or (right and table[middle] == value):
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def quantile_levels(rows: np.ndarray, table: np.ndarray, levels: np.ndarray) -> None:
    """Where values stand among the quantiles of their feature, from 0 to 1; NaN stays NaN.

    A value between two quantiles is interpolated, one that equals several is in their middle.

    Args:
        rows: ``[N, F]`` float32.
        table: ``[F, Q]`` float32, sorted.
        levels: ``[N, F]`` float32, written.
    """
    last = np.float32(table.shape[1] - 1)
    for first in range(0, rows.shape[0], _ROWS):
        for column in range(rows.shape[1]):
            own = table[column]
            for row in range(first, min(first + _ROWS, rows.shape[0])):
                value = rows[row, column]
                if np.isnan(value):
                    levels[row, column] = value
                    continue
                left = _search(own, value, False)
                if left < len(own) and own[left] == value:
                    right = _search(own, value, True)
                    place = np.float32(left + right - 1) / np.float32(2)
                else:
                    low = max(left - 1, 0)
                    below = own[low]
                    gap = own[min(left, len(own) - 1)] - below
                    part = (value - below) / gap if gap > 0 else np.float32(0)
                    place = np.float32(low) + part
                levels[row, column] = place / last
