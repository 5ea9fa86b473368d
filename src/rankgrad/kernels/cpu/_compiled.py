"""How loops are compiled, and how lists are distributed over threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import np_cfarray

from rankgrad._compilation import compile_cached
from rankgrad._threads import available

Function = TypeVar("Function", bound=Callable[..., Any])

#: Fast-math flags that allow sums to be reordered, so that they vectorize. NaN and infinity still
#: follow IEEE 754.
_REORDERED = {"contract", "reassoc", "nsz"}
_SMALL = 100_000  # work of fewer elementary steps takes less time than starting a second thread
_PARTS = 4  # ranges per thread


def compiled(function: Function) -> Function:
    """Compile a function that adds in the order in which its source does.

    LLVM compiles a loop that writes to arrays into a vector form and a scalar form. A run-time
    check of the distances between the arrays selects one. The addresses of arrays vary from run to
    run, so both forms must give the same bits: no sum in such a loop may be reordered.
    """
    return compile_cached(function, nogil=True, error_model="numpy", fastmath={"contract"})


def compiled_borrowing(function: Function) -> Function:
    """:func:`compiled`, for a function that borrows the arrays it takes: faster on short lists.

    Numba counts the references to arrays by atomic instructions, several for each slice. This
    function does not count them; it may neither allocate nor return an array.
    """
    return compile_cached(
        function, nogil=True, error_model="numpy", fastmath={"contract"}, _nrt=False
    )


def compiled_inline(function: Function) -> Function:
    """:func:`compiled_borrowing`, for a small function that is inlined wherever it is called.

    A call passes every field of every array on the stack, which takes as long as a short loop.
    """
    return compile_cached(
        function,
        nogil=True,
        error_model="numpy",
        fastmath={"contract"},
        _nrt=False,
        forceinline=True,
    )


def compiled_reduction(function: Function) -> Function:
    """Compile a function whose sums may be reordered, so that they vectorize.

    The function must write to no array, or only to arrays in the same block of memory as those it
    reads. In the first case there is no check of distances (see :func:`compiled`), in the second
    the distances are always the same. So the order of additions depends on sizes alone.
    """
    return compile_cached(function, nogil=True, error_model="numpy", fastmath=_REORDERED)


def _array_at(context: Any, address: Any, size: Any, like: Any) -> Any:
    """A view of the memory at an address: a flat array of ``size`` numbers of ``like``'s dtype.

    ``numba.carray`` does the same, but is slower to compile.
    """
    pointer, found = types.CPointer(like.dtype), types.Array(like.dtype, 1, "C")

    def build(target: Any, builder: Any, _: Any, arguments: Any) -> Any:
        memory = builder.inttoptr(arguments[0], target.get_value_type(pointer))
        return np_cfarray(target, builder, found(pointer, size), (memory, arguments[1]))

    return found(address, size, like), build


array_at: Any = intrinsic(_array_at)

PANEL = 8  # rows of a panel
UNROLLED = 4  # the number of a panel's columns is a multiple of it


def _multiply_panel(
    context: Any, entries: Any, start: Any, columns: Any, vectors: Any, low: Any, out: Any, at: Any
) -> Any:
    """Write the product of a panel with a vector ``[n]``, or with both rows of ``[2, n]``.

    A panel is eight rows of a matrix, stored column by column at ``entries[start:]``. The product
    is ``Σ_c panel[:, c] vector[low + c]``, written to ``out[at : at + 8]``. All eight rows are one
    vector register, which LLVM's loop vectorizer does not find.
    """
    count, lane = vectors.ndim, ir.VectorType(ir.DoubleType(), PANEL)

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(which: int, place: Any, row: int = 0) -> Any:
            kind = signature.args[which]
            array = target.make_array(kind)(target, builder, arguments[which])
            places = [place] if kind.ndim == 1 else [cgutils.intp_t(row), place]
            return cgutils.get_item_pointer(target, builder, kind, array, places)

        sums = [
            cgutils.alloca_once_value(builder, ir.Constant(lane, [0.0] * PANEL))
            for _ in range(UNROLLED)
        ]
        first = builder.bitcast(pointer(0, arguments[1]), lane.as_pointer())
        from_columns = [pointer(3, arguments[4], row) for row in range(count)]
        unroll = cgutils.intp_t(UNROLLED // count)
        with cgutils.for_range_slice(builder, cgutils.intp_t(0), arguments[2], unroll) as (c, _):
            for i, found in enumerate(sums):
                column = builder.add(c, cgutils.intp_t(i // count))
                entry = builder.load(builder.gep(first, [column]), align=8)
                factor = builder.load(builder.gep(from_columns[i % count], [column]))
                term = builder.fmul(entry, _broadcast(builder, factor, lane), flags=["contract"])
                added = builder.fadd(builder.load(found), term, flags=["contract"])
                builder.store(added, found)
        for row in range(count):
            found, *others = [builder.load(each) for each in sums[row::count]]
            for other in others:
                found = builder.fadd(found, other)
            to = builder.bitcast(pointer(5, arguments[6], row), lane.as_pointer())
            builder.store(found, to, align=8)
        return target.get_dummy_value()

    return types.void(entries, start, columns, vectors, low, out, at), build


def _broadcast(builder: Any, number: Any, lane: Any) -> Any:
    """A vector register with this number at each place."""
    undefined, place = ir.Constant(lane, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(undefined, number, place(0))
    return builder.shuffle_vector(one, undefined, ir.VectorType(place, PANEL)([0] * PANEL))


multiply_panel: Any = intrinsic(_multiply_panel)


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_in_threads(costs: np.ndarray, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` on ranges of lists of about equal cost, in several threads.

    It uses at most as many threads as PyTorch does. One thread computes a list, so the result does
    not depend on the number of threads. A thread that finishes a range takes the next one, so a
    thread that other processes keep off its core delays only its own range. Waiting threads sleep.
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
        for first, last in ranges:  # threads share this iterator, which yields each range once
            work(first, last)

    others = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        wait([other for other in others if not other.cancel()])  # only tasks that have started
    for other in others:
        if not other.cancelled():
            other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """A thread pool of this process; a forked process cannot use its parent's threads."""
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="rankgrad")
    return _pools[key]
