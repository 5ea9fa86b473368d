"""Isotonic regression by pooling adjacent violators, compiled by Numba where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from rankgrad._compilation import compile_cached
except ImportError:  # without Numba the same loop is interpreted

    def compile_cached(function: Function, **_: Any) -> Function:
        """Return the function unchanged."""
        return function


@compile_cached
def pool_adjacent(
    z: np.ndarray, w: np.ndarray, lengths: np.ndarray, entropic: bool, blocks: np.ndarray
) -> None:
    """Pool adjacent violators: merge neighboring blocks until their values decrease.

    Writes to ``blocks``, for each position, the position of the first item of its block.
    """
    for row in range(z.shape[0]):
        n = lengths[row]
        first = np.empty(n + 1, np.int64)
        left = np.empty(n)  # per block: the sum or log-sum-exp of z
        right = np.empty(n)  # per block: the same of w
        count = 0
        for i in range(n):
            first[count], left[count], right[count] = i, z[row, i], w[row, i]
            size = 1
            count += 1
            while count > 1:
                a, b = count - 2, count - 1
                size_a = first[b] - first[a]
                if entropic:
                    merge = left[a] - right[a] < left[b] - right[b]
                else:
                    merge = (left[a] - right[a]) * size < (left[b] - right[b]) * size_a
                if not merge:
                    break
                if entropic:
                    left[a] = np.logaddexp(left[a], left[b])
                    right[a] = np.logaddexp(right[a], right[b])
                else:
                    left[a] += left[b]
                    right[a] += right[b]
                size += size_a
                count -= 1
        first[count] = n
        for block in range(count):
            for i in range(first[block], first[block + 1]):
                blocks[row, i] = first[block]
