"""The compiled search of :class:`~rankgrad.data.transforms.Quantile` on a CPU, in float32.

:class:`Knots` has the same tables in another form, for export and for ``_preparation_kernel.py``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rankgrad._compilation import compile_cached

_BLOCK_ROWS = 256  # searched at a time, so that a feature's quantiles stay in the processor's cache
_HALF, _ZERO, _ONE = np.float32(0.5), np.float32(0), np.float32(1)
WIDE = 1e30  # above it, quantiles are halved before they are subtracted: float32 ends at 3e38

_compiled = partial(compile_cached, nogil=True)


class Knots:
    """The distinct quantiles ("knots") of each feature, and the interpolation between them.

    Args:
        table: ``[features, quantiles]``, of a :class:`~rankgrad.data.transforms.Quantile`.

    Attributes:
        width: p, the number of bits of the largest number of knots.
        last: the index of the last quantile.
        table: ``[features, 2^p - 1]``: the knots, padded with infinity.
        below, spacing, index: ``[features, 2^p]``, by the number of knots below x: the last of
            these knots, its distance to the next knot, and the index of the last quantile equal to
            it. If x is not a knot, its level is ``(index + (x - below) / spacing) / last``. Before
            the first knot and after the last, ``spacing`` is infinite: the level is 0 or 1.
        middle: ``[features, 2^p]``, by the number of knots below x: the level of x if it is equal
            to the next knot.
        scale: ``[features, 1]``: 1/2 if a difference of values may exceed float32, else 1.
            ``below`` and ``spacing`` are those of ``scale * x``.
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
        for j, (values, first, counts) in enumerate(distinct):
            count = len(values)
            self.table[j, :count] = values
            middle = (2 * first + counts - 1) / np.float32(2)
            self.middle[j, :count] = middle / np.float32(self.last)
            self.index[j, 1 : count + 1] = first + counts - 1
            self.index[j, count + 1 :] = self.last
            self.scale[j] = _HALF if np.abs(values).max() > WIDE else _ONE
            scaled = values * self.scale[j]
            self.below[j, 1 : count + 1] = scaled
            self.spacing[j, 1:count] = scaled[1:] - scaled[:-1]


@_compiled
def _count_below(values: np.ndarray, table: np.ndarray, counts: np.ndarray) -> None:
    """Write to ``counts`` how many entries of a sorted table are below each value.

    The binary searches of all values advance together, without branches, so that no search waits
    for memory or for a mispredicted branch.

    Args:
        values: ``[n]``.
        table: ``[Q]``, sorted.
        counts: ``[n]`` or longer; the first n are written.
    """
    for i in range(len(values)):
        counts[i] = 0
    remaining = len(table)
    while remaining > 1:
        half = remaining >> 1
        for i in range(len(values)):
            larger = counts[i] + half
            counts[i] = larger if table[np.uint32(larger - 1)] < values[i] else counts[i]
        remaining -= half
    for i in range(len(values)):
        counts[i] += table[np.uint32(counts[i])] < values[i]


@_compiled
def _tie_ends(table: np.ndarray) -> np.ndarray:
    """For each entry of a table ``[F, Q]`` with sorted rows, where the entries equal to it end.

    The ends ``[F, Q]`` are exclusive.
    """
    ends = np.empty(table.shape, np.int32)
    for row in range(table.shape[0]):
        end = table.shape[1]
        for i in range(table.shape[1] - 1, -1, -1):
            if i + 1 < end and table[row, i] != table[row, i + 1]:
                end = i + 1
            ends[row, i] = end
    return ends


@_compiled
def quantile_levels(rows: np.ndarray, table: np.ndarray, levels: np.ndarray) -> None:
    """Write the level, from 0 to 1, of each value among its feature's quantiles; NaN stays NaN.

    Between two quantiles the level is interpolated; a value that equals several quantiles has their
    middle level.

    Args:
        rows: ``[N, F]`` float32.
        table: ``[F, Q]`` float32, sorted.
        levels: ``[N, F]`` float32, written.
    """
    size, ends = table.shape[1], _tie_ends(table)
    last = np.float32(size - 1)
    buffer, counts = np.empty(_BLOCK_ROWS, np.float32), np.empty(_BLOCK_ROWS, np.int32)
    for first in range(0, rows.shape[0], _BLOCK_ROWS):
        n = min(_BLOCK_ROWS, rows.shape[0] - first)
        values = buffer[:n]
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
                    position = value
                elif count < size and quantiles[count] == value:
                    position = np.float32(count + ends[column, count] - 1) * _HALF
                else:
                    low = max(count - 1, 0)
                    step = quantiles[min(count, size - 1)] * scale - quantiles[low] * scale
                    weight = (value * scale - quantiles[low] * scale) / step if step > 0 else _ZERO
                    position = np.float32(low) + weight
                levels[first + i, column] = position / last
