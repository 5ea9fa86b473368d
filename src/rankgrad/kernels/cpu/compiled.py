"""How the loops are compiled, and how lists are shared out among threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import np_cfarray

from rankgrad.linking import compile_linked
from rankgrad.threads import available

Function = TypeVar("Function", bound=Callable[..., Any])

#: Sums may be reordered, so that they run in vector registers. NaN and infinity keep their meaning.
_REORDERED = {"contract", "reassoc", "nsz"}
_SMALL = 100_000  # elementary steps that take less time than starting a second thread
_PARTS = 4  # ranges for each thread


def compiled(function: Function) -> Function:
    """Compile a function whose additions are done in the order they are written in.

    A loop that writes to arrays is compiled twice, as vectors and one item at a time, and a check
    of the distances between its arrays chooses when it runs. Where arrays lie is chance, so both
    forms must give the same bits: no sum in such a loop may be reordered.
    """
    return compile_linked(function, nogil=True, error_model="numpy", fastmath={"contract"})


def compiled_reduction(function: Function) -> Function:
    """Compile a function that sums up, its additions in the order of vectors.

    It writes to no array, so that there is no check of distances, or only to arrays that lie in one
    block of memory with those it reads, so that the distances are always the same: either way the
    order of additions depends on sizes alone.
    """
    return compile_linked(function, nogil=True, error_model="numpy", fastmath=_REORDERED)


def _array_at(context: Any, address: Any, size: Any, like: Any) -> Any:
    """The memory at an address as a flat array of so many numbers, of another array's type.

    As ``numba.carray``, which is slower to compile.
    """
    pointer, found = types.CPointer(like.dtype), types.Array(like.dtype, 1, "C")

    def build(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        memory = builder.inttoptr(arguments[0], target.get_value_type(pointer))
        return np_cfarray(target, builder, found(pointer, size), (memory, arguments[1]))

    return found(address, size, like), build


array_at: Any = intrinsic(_array_at)


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_in_threads(costs: np.ndarray, work: Callable[[int, int], None]) -> None:
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
