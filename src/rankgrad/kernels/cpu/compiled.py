"""How the loops are compiled, and how lists are shared out among threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numba import njit

from rankgrad.threads import available

Function = TypeVar("Function", bound=Callable[..., Any])

#: Sums may be reordered, so that they run in vector registers. NaN and infinity keep their meaning.
_REORDERED = {"contract", "reassoc", "nsz", "arcp"}
_SMALL = 100_000  # elementary steps for which a second thread is not worth its start
_PARTS = 4  # ranges for each thread


def compiled(function: Function) -> Function:
    """Compile a loop, its sums in any order."""
    return kept(function, nogil=True, error_model="numpy", fastmath=_REORDERED)


def compiled_strictly(function: Function) -> Function:
    """Compile a loop whose additions must be done as they are written."""
    return kept(function, nogil=True, error_model="numpy", fastmath={"contract"})


def kept(function: Function, **options: Any) -> Function:
    """Compile, once for all processes where there is a place to write what was compiled."""
    try:
        made: Function = njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside the source nor in the user's home
        made = njit(**options)(function)
    return made


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def share(costs: np.ndarray, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` on ranges of lists of about equal cost, in several threads.

    At most as many threads as PyTorch was given. A list is one thread's work, so its result is the
    same however many there are. Each thread takes the next range when it is done with one, so that
    nothing waits for a thread that gets no core beside other busy processes. Threads that wait
    sleep.
    """
    lists, total = len(costs), float(costs.sum())
    threads = min(available(), lists) if total >= _SMALL else 1
    if threads < 2:
        work(0, lists)
        return
    parts = _PARTS * threads
    cuts = np.searchsorted(costs.cumsum(), total * np.arange(1, parts) / parts) + 1
    edges = [0, *np.minimum(cuts, lists).tolist(), lists]
    ranges = iter([(first, last) for first, last in pairwise(edges) if first < last])

    def take() -> None:
        for first, last in ranges:  # which threads share: each range is given once
            work(first, last)

    others = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        wait([other for other in others if not other.cancel()])  # those that began
    for other in others:
        if not other.cancelled():
            other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads of this very process: a forked one has none of its parent's."""
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="rankgrad")
    return _pools[key]
