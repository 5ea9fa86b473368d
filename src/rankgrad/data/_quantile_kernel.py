"""The compiled search of :class:`~rankgrad.data.transforms.Quantile` on a CPU, in float32."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankgrad._compilation import compile_cached

_ROWS = 256  # searched at a time, so that a column of quantiles stays in the processor's cache
_HALF, _ZERO, _ONE = np.float32(0.5), np.float32(0), np.float32(1)
WIDE = 1e30  # quantiles beyond are halved before they are subtracted: float32 ends at 3e38

_compiled = partial(compile_cached, nogil=True)


class Knots:
    """The distinct quantiles of each feature, padded to one length, and what holds between them.

    Args:
        table: of a :class:`~rankgrad.data.transforms.Quantile`.

    Attributes:
        table: ``[features, 2^p - 1]``: the knots, then infinity.
        below, spacing, index, last: ``[features, 2^p]``, by the number of knots below x. Between
            two knots the fraction is ``(index + (x - below) / spacing) / last``.
        middle: ``[features, 2^p]``: the fraction at the next knot, where x is equal to it.
        scale: ``[features, 1]``: 1/2 where a difference of x may exceed float32, else 1. ``below``
            and ``spacing`` are of ``scale x``.
    """

    def __init__(self, table: np.ndarray) -> None:
        rows = table.astype(np.float32)
        distinct = [np.unique(row, return_index=True, return_counts=True) for row in rows]
        self.width = max(len(values) for values, _, _ in distinct).bit_length()
        self.last = rows.shape[1] - 1
        features, size = len(rows), 1 << self.width
        self.table = np.full((features, size - 1), np.inf, np.float32)
        self.below = np.zeros((features, size), np.float32)
        self.spacing = np.full((features, size), np.inf, np.float32)
        self.index = np.zeros((features, size), np.float32)
        self.middle = np.zeros((features, size), np.float32)
        self.scale = np.ones((features, 1), np.float32)
        for at, (values, first, counts) in enumerate(distinct):
            count = len(values)
            self.table[at, :count] = values
            middle = (2 * first + counts - 1) / np.float32(2)
            self.middle[at, :count] = middle / np.float32(self.last)
            self.index[at, 1 : count + 1] = first + counts - 1
            self.index[at, count + 1 :] = self.last
            self.scale[at] = _HALF if np.abs(values).max() > WIDE else _ONE
            values = values * self.scale[at]
            self.below[at, 1 : count + 1] = values
            self.spacing[at, 1:count] = values[1:] - values[:-1]


@_compiled
def _count_below(values: np.ndarray, table: np.ndarray, counts: np.ndarray) -> None:
    """How many entries of a sorted table are below each value.

    All values take a step of their binary searches together, so that none waits for memory and
    none is mispredicted.
    """
    for i in range(len(values)):
        counts[i] = 0
    left = len(table)
    while left > 1:
        half = left >> 1
        for i in range(len(values)):
            next_ = counts[i] + half
            counts[i] = next_ if table[np.uint32(next_ - 1)] < values[i] else counts[i]
        left -= half
    for i in range(len(values)):
        counts[i] += table[np.uint32(counts[i])] < values[i]


@_compiled
def _tie_ends(table: np.ndarray) -> np.ndarray:
    """For each entry of each sorted row, where those equal to it end."""
    ends = np.empty(table.shape, np.int32)
    for row in range(table.shape[0]):
        end = table.shape[1]
        for at in range(table.shape[1] - 1, -1, -1):
            if at + 1 < end and table[row, at] != table[row, at + 1]:
                end = at + 1
            ends[row, at] = end
    return ends


@_compiled
def quantile_levels(rows: np.ndarray, table: np.ndarray, levels: np.ndarray) -> None:
    """Where values stand among the quantiles of their feature, from 0 to 1; NaN stays NaN.

    A value between two quantiles is interpolated, one that equals several is in their middle.

    Args:
        rows: ``[N, F]`` float32.
        table: ``[F, Q]`` float32, sorted.
        levels: ``[N, F]`` float32, written.
    """
    size, ends = table.shape[1], _tie_ends(table)
    last = np.float32(size - 1)
    some, counts = np.empty(_ROWS, np.float32), np.empty(_ROWS, np.int32)
    for first in range(0, rows.shape[0], _ROWS):
        n = min(_ROWS, rows.shape[0] - first)
        values = some[:n]
        for column in range(rows.shape[1]):
            quantiles = table[column]
            wide = max(abs(quantiles[0]), abs(quantiles[size - 1])) > WIDE
            scale = _HALF if wide else _ONE
            for i in range(n):
                values[i] = rows[first + i, column]
            _count_below(values, quantiles, counts)
            for i in range(n):
                value, count = values[i], counts[i]
                if np.isnan(value):
                    place = value
                elif count < size and quantiles[count] == value:
                    place = np.float32(count + ends[column, count] - 1) * _HALF
                else:
                    low = max(count - 1, 0)
                    step = quantiles[min(count, size - 1)] * scale - quantiles[low] * scale
                    part = (value * scale - quantiles[low] * scale) / step if step > 0 else _ZERO
                    place = np.float32(low) + part
                levels[first + i, column] = place / last
