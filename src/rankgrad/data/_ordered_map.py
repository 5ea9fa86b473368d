"""``map`` over threads, with results in order.

The LETOR parser parses blocks with it; :class:`~rankgrad.data.batches.Batches` reads ahead with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, name: str = ""
) -> Iterator[Result]:
    """Yield the function's result for each item, in order; threads compute a few items ahead.

    Args:
        function: called in the threads. An error it raises is raised in place of its result.
        items: iterated over in the calling thread.
        threads: the number of threads, which end with the iterator. With 0, the calling thread
            computes the results.
        name: a prefix of the threads' names.
    """
    if not threads:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, name)
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > threads + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
