"""How CPU kernels are compiled, and how they distribute lists over threads.

Nearly every function of this package that Numba compiles has one of the decorators below. They
differ in whether sums may be reordered, and in whether Numba counts references to arrays.
"""

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

from rankgrad._compilation import compile_cached
from rankgrad._threads import available

Function = TypeVar("Function", bound=Callable[..., Any])

#: The options of all functions. No flag of fast-math allows wrong results for NaN or infinity.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
_REORDERED = {"contract", "reassoc", "nsz"}  # sums may be reordered, so that they vectorize
_ONE_THREAD = 100_000  # elementary steps: less work is done before a second thread has started
_PARTS = 4  # ranges of lists per thread


def compiled(function: Function) -> Function:
    """Compile a function that adds in the order in which its source does.

    LLVM compiles a loop that writes to arrays into a vector form and a scalar form. A run-time
    check of the distances between the arrays selects one. The addresses of arrays vary from run to
    run, so both forms must give the same bits: no sum in such a loop may be reordered.
    """
    return compile_cached(function, **_OPTIONS)


def compiled_borrowing(function: Function) -> Function:
    """:func:`compiled`, for a function that borrows the arrays it takes: faster on short lists.

    Numba counts the references to arrays by atomic instructions, several for each slice. This
    function does not count them; it may neither allocate nor return an array.
    """
    return compile_cached(function, **_OPTIONS, _nrt=False)


def compiled_inline(function: Function) -> Function:
    """:func:`compiled_borrowing`, for a small function that is inlined wherever it is called.

    A call passes every field of every array on the stack, which takes as long as a short loop.
    """
    return compile_cached(function, **_OPTIONS, _nrt=False, forceinline=True)


def compiled_reduction(function: Function) -> Function:
    """Compile a function whose sums may be reordered, so that they vectorize.

    The function must write to no array, or only to arrays in the same block of memory as those it
    reads. In the first case there is no check of distances (see :func:`compiled`), in the second
    the distances are always the same. So the order of additions depends on sizes alone. Like
    :func:`compiled_borrowing` it neither allocates nor returns an array.
    """
    return compile_cached(function, **{**_OPTIONS, "fastmath": _REORDERED}, _nrt=False)


def _array_at(context: Any, address: Any, size: Any, like: Any) -> Any:
    """A view of the memory at an address: a flat array of ``size`` numbers of ``like``'s dtype.

    ``numba.carray`` does the same, but is slower to compile.
    """
    pointer_type, array_type = types.CPointer(like.dtype), types.Array(like.dtype, 1, "C")

    def build(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        memory = builder.inttoptr(arguments[0], target.get_value_type(pointer_type))
        signature = array_type(pointer_type, size)
        return np_cfarray(target, builder, signature, (memory, arguments[1]))

    return array_type(address, size, like), build  # the signature, and what builds the code


array_at: Any = intrinsic(_array_at)

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process id and number of threads


def run_in_threads(costs: np.ndarray, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` on ranges of lists of about equal cost, in several threads.

    It uses at most as many threads as PyTorch does. One thread computes a list, so the result does
    not depend on the number of threads. A thread that finishes a range takes the next one, so a
    thread that other processes keep off its core delays only its own range. Waiting threads sleep.

    Args:
        costs: ``[lists]``, about how many elementary steps each list takes.
        work: computes the lists ``first:last``.
    """
    lists, total = len(costs), float(costs.sum())
    threads = min(available(), lists) if total >= _ONE_THREAD else 1
    if threads < 2:
        work(0, lists)
        return
    parts = _PARTS * threads
    cuts = np.searchsorted(costs.cumsum(), total * np.arange(1, parts) / parts) + 1
    edges = [0, *np.minimum(cuts, lists).tolist(), lists]
    ranges = iter([(first, last) for first, last in pairwise(edges) if first < last])

    def take_ranges() -> None:
        for first, last in ranges:  # threads share this iterator, which yields each range once
            work(first, last)

    futures = [_pool(threads - 1).submit(take_ranges) for _ in range(threads - 1)]
    try:
        take_ranges()
    finally:
        wait([future for future in futures if not future.cancel()])  # only those that have started
    for future in futures:
        if not future.cancelled():
            future.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """A thread pool of this process; a forked process cannot use its parent's threads."""
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="rankgrad")
    return _pools[key]
