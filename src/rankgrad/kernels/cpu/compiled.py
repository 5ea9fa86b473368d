"""How the loops are compiled, and how lists are shared out among threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from rankgrad.compilation import compile_cached

Function = TypeVar("Function", bound=Callable[..., Any])

#: Sums may be reordered, so that they run in vector registers. NaN and infinity keep their meaning.
_REORDERED = {"contract", "reassoc", "nsz", "arcp"}
_SMALL = 100_000  # elementary steps for which a second thread is not worth its start


def compiled(function: Function) -> Function:
    """Compile a loop, its sums in any order."""
    return compile_cached(function, nogil=True, error_model="numpy", fastmath=_REORDERED)


def compiled_strictly(function: Function) -> Function:
    """Compile a loop whose additions must be done as they are written."""
    return compile_cached(function, nogil=True, error_model="numpy", fastmath={"contract"})


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def share(costs: np.ndarray, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` on ranges of lists of about equal cost, one for each thread.

    As many threads as PyTorch uses. A list is one thread's work, so its result is the same however
    many there are.
    """
    lists, threads = len(costs), torch.get_num_threads()
    total = float(costs.sum())
    if threads < 2 or lists < 2 or total < _SMALL:
        work(0, lists)
        return
    cuts = np.searchsorted(costs.cumsum(), total * np.arange(1, threads) / threads) + 1
    edges = [0, *np.minimum(cuts, lists).tolist(), lists]
    others = [
        _pool(threads - 1).submit(work, first, last)
        for first, last in pairwise(edges[1:])
        if first < last
    ]
    work(edges[0], edges[1])
    for other in others:
        other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads of this very process: a forked one has none of its parent's."""
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="rankgrad")
    return _pools[key]
