"""``map`` over threads."""

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
    """What a function gives for each item, in order, computed a few items ahead by threads.

    Args:
        function: called in the threads; an error of it is raised where its result would be.
        items: taken in this thread.
        threads: how many; they end with the iterator. 0 computes in this one, without threads.
        name: of the threads.
    """
    if not threads:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, name)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
