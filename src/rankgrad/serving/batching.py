"""Batcher: requests that arrive while a batch is computed are the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rankgrad.serving.bodies import Lists, RequestError
from rankgrad.serving.ranker import Score

_ITEMS = 1 << 14  # of a batch, at most, unless one request has more
_WAITING = 1 << 20  # items that may wait


@dataclass
class _Waiting:
    lists: Lists
    scores: asyncio.Future[np.ndarray]


class Batcher:
    """Scores the lists of concurrent requests together, in one thread, in the order they came.

    No request waits for others to arrive: a batch is what there is when the thread is free.

    Args:
        score: of flat lists.
        on_batch: called with the number of requests and of items of each batch.
    """

    def __init__(self, score: Score, on_batch: Callable[[int, int], None] | None = None) -> None:
        self._score, self._on_batch = score, on_batch
        self._waiting: deque[_Waiting] = deque()
        self._items = 0
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def score(self, lists: Lists) -> np.ndarray:
        """The scores of the items, ``[N]``.

        Raises:
            RequestError: 503 if too much is waiting.
        """
        if self._items > _WAITING:
            raise RequestError(503, "too many items are waiting to be scored: try again later")
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(lists, future))
        self._items += len(lists.items)
        if self._work is None:
            self._work = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._next()
        finally:
            self._work = None

    async def _next(self) -> None:
        batch = [self._waiting.popleft()]
        count = len(batch[0].lists.items)
        while self._waiting and count + len(self._waiting[0].lists.items) <= _ITEMS:
            count += len(self._waiting[0].lists.items)
            batch.append(self._waiting.popleft())
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._scores, batch)
        except Exception as error:  # which each request of the batch is told
            for one in batch:
                if not one.scores.done():
                    one.scores.set_exception(error)
        else:
            for one, scores in zip(batch, found, strict=True):
                if not one.scores.done():  # a client may have gone
                    one.scores.set_result(scores)
        self._items -= count
        if self._on_batch is not None:
            self._on_batch(len(batch), count)

    def _scores(self, batch: list[_Waiting]) -> list[np.ndarray]:
        if len(batch) == 1:
            lists = batch[0].lists
            return [self._score(lists.items, lists.offsets)]
        items = np.concatenate([one.lists.items for one in batch])
        lengths = [np.diff(one.lists.offsets) for one in batch]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        ends = np.cumsum([len(one.lists.items) for one in batch])[:-1]
        return np.split(self._score(items, offsets), ends)

    def close(self) -> None:
        """End the thread; what is waiting is scored before."""
        self._thread.shutdown()
