"""Isotonic regression by pooling adjacent violators, compiled by Numba where it is installed.

For soft sort and rank (Blondel et al. 2020): ``kernels._isotonic`` and ``cpu._fastsort`` call it;
``gpu._isotonic`` computes the same blocks.

The regression partitions a list into blocks of neighboring items, so that the values of blocks do
not increase from one block to the next. The value of a block is ``mean(z - w)`` or, with entropic
regularization, ``logsumexp(z) - logsumexp(w)`` over the block.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from rankgrad._compilation import compile_cached
except ImportError as error:
    if importlib.util.find_spec("numba") is not None:  # installed, but broken
        warnings.warn(f"Numba cannot be used, so fastsort is slow: {error}", stacklevel=2)

    def compile_cached(function: Function, **options: Any) -> Function:
        """Return the function unchanged: without Numba the same loop is interpreted."""
        return function


@compile_cached
def pool_adjacent(
    z: np.ndarray, w: np.ndarray, lengths: np.ndarray, entropic: bool, block_starts: np.ndarray
) -> None:
    """Pool adjacent violators: merge neighboring blocks until their values do not increase.

    Blocks of equal values stay separate.

    Args:
        z: ``[b, n]`` float64, each row descending.
        w: ``[b, n]`` float64, each row descending.
        lengths: ``[b]``, the number of leading items of each row that are real.
        entropic: whether the value of a block is of log-sum-exps instead of a mean.
        block_starts: ``[b, n]`` int64, the result: for each position, the first position of its
            block. Positions past a row's length are left as they were.
    """
    for row in range(z.shape[0]):
        n = lengths[row]
        first = np.empty(n + 1, np.int64)  # per block: its first position
        total_z = np.empty(n)  # per block: the sum or log-sum-exp of z
        total_w = np.empty(n)  # per block: the same of w
        n_blocks = 0
        for i in range(n):
            first[n_blocks], total_z[n_blocks], total_w[n_blocks] = i, z[row, i], w[row, i]
            size_b = 1
            n_blocks += 1
            while n_blocks > 1:
                a, b = n_blocks - 2, n_blocks - 1
                size_a = first[b] - first[a]
                if entropic:
                    merge = total_z[a] - total_w[a] < total_z[b] - total_w[b]
                else:  # means compared without dividing
                    merge = (total_z[a] - total_w[a]) * size_b < (total_z[b] - total_w[b]) * size_a
                if not merge:
                    break
                if entropic:
                    total_z[a] = np.logaddexp(total_z[a], total_z[b])
                    total_w[a] = np.logaddexp(total_w[a], total_w[b])
                else:
                    total_z[a] += total_z[b]
                    total_w[a] += total_w[b]
                size_b += size_a
                n_blocks -= 1
        first[n_blocks] = n  # sentinel: the end of the last block
        for block in range(n_blocks):
            for i in range(first[block], first[block + 1]):
                block_starts[row, i] = first[block]
