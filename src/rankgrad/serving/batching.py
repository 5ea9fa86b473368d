"""Batcher: requests that arrive while a batch is computed are the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rankgrad.serving.bodies import Lists
from rankgrad.serving.ranker import Score

_ITEMS = 1 << 14  # scored at a time, unless one list has more


@dataclass
class _Waiting:
    lists: Lists
    respond: Callable[[np.ndarray], bytes]
    response: asyncio.Future[bytes]


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
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def respond(self, lists: Lists, respond: Callable[[np.ndarray], bytes]) -> bytes:
        """Score lists.

        Args:
            lists: of a request.
            respond: makes the response of the scores ``[N]``, in the thread that scores.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(lists, respond, future))
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
        batch = [one for one in batch if not one.response.done()]  # the service may be stopping
        if not batch:
            return
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, self._responses, batch)
        for one, response in zip(batch, found, strict=True):
            if one.response.done():
                continue
            if isinstance(response, Exception):
                one.response.set_exception(response)
            else:
                one.response.set_result(response)
        if self._on_batch is not None:
            self._on_batch(len(batch), count)

    def _responses(self, batch: list[_Waiting]) -> list[bytes | Exception]:
        """The responses of a batch; where it cannot be scored, those of each request alone."""
        try:
            scores = self._scores([one.lists for one in batch])
            return [one.respond(own) for one, own in zip(batch, scores, strict=True)]
        except Exception as error:  # the request gets it
            if len(batch) == 1:
                return [error]
            return [self._responses([one])[0] for one in batch]

    def _scores(self, batch: list[Lists]) -> list[np.ndarray]:
        if len(batch) == 1 and 0 < len(batch[0].items) <= _ITEMS:
            return [self._score(batch[0].items, batch[0].offsets)]
        items = np.concatenate([lists.items for lists in batch])
        lengths = [np.diff(lists.offsets) for lists in batch]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        scores = np.empty(len(items), np.float32)
        first = 0
        while first < len(offsets) - 1:  # as many lists at a time as memory is bounded for
            last = max(
                first + 1, int(np.searchsorted(offsets, offsets[first] + _ITEMS, "right")) - 1
            )
            start, stop = offsets[first], offsets[last]
            if start < stop:
                own = offsets[first : last + 1] - start
                scores[start:stop] = self._score(items[start:stop], own)
            first = last
        ends = np.cumsum([len(lists.items) for lists in batch])[:-1]
        return np.split(scores, ends)

    def close(self) -> None:
        """End the thread; what is waiting is scored before."""
        self._thread.shutdown()
