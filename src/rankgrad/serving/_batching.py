"""Batcher: dynamic batching. Requests that arrive while a batch is scored are the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from rankgrad.serving._bodies import Lists, RequestError
from rankgrad.serving._served_ranker import Score

_Result = TypeVar("_Result")
_ITEMS = 1 << 12  # scored at a time, unless one list has more
_BYTES = 1 << 20  # of the bodies of a batch, unless one request has more


class Request(NamedTuple):
    """A request as a batch takes it; both functions are called in the thread that scores.

    Attributes:
        size: bytes of the body.
        parse: returns its lists.
        respond: returns the body of the response, of the lists and their scores ``[N]``.
    """

    size: int
    parse: Callable[[], Lists]
    respond: Callable[[Lists, np.ndarray], bytes]


class Response(NamedTuple):
    """The body of a response, and how many items it is about."""

    content: bytes
    items: int


@dataclass
class _Waiting:
    request: Request
    response: asyncio.Future[Response]


class Batcher:
    """Answers concurrent requests together, in one thread, in the order they came.

    No request waits for others to arrive: a batch is what there is when the thread is free. It is
    parsed there, too, so that the event loop answers other requests meanwhile.

    Args:
        score: of flat lists.
        on_batch: called with the number of requests of each batch.
    """

    def __init__(self, score: Score, on_batch: Callable[[int], None] = lambda count: None) -> None:
        self._score, self._on_batch = score, on_batch
        self._closed = False
        self._waiting: deque[_Waiting] = deque()
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def respond(self, request: Request) -> Response:
        """The response to a request.

        Raises:
            RequestError: what is wrong with it.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, future))
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
        size = batch[0].request.size
        while self._waiting and size + self._waiting[0].request.size <= _BYTES:
            size += self._waiting[0].request.size
            batch.append(self._waiting.popleft())
        # Responses are done already if the service is stopping.
        batch = [waiting for waiting in batch if not waiting.response.done()]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        requests = [waiting.request for waiting in batch]
        responses = await loop.run_in_executor(self._thread, self._responses, requests)
        for waiting, response in zip(batch, responses, strict=True):
            if waiting.response.done():
                continue
            if isinstance(response, Exception):
                waiting.response.set_exception(response)
            else:
                waiting.response.set_result(response)
        self._on_batch(len(batch))

    def _responses(self, batch: list[Request]) -> list[Response | Exception]:
        """The response to each request of a batch, or its error."""
        parsed = [_result(request.parse) for request in batch]
        scored = iter(self._scores_of_each([each for each in parsed if isinstance(each, Lists)]))
        responses: list[Response | Exception] = []
        for request, lists in zip(batch, parsed, strict=True):
            scores = lists if isinstance(lists, Exception) else next(scored)
            if isinstance(scores, Exception):
                responses.append(scores)
            else:
                assert isinstance(lists, Lists)
                responses.append(_result(partial(_response, request, lists, scores)))
        return responses

    def _scores_of_each(self, batch: list[Lists]) -> Sequence[np.ndarray | Exception]:
        """The scores of requests; where they cannot be scored together, those of each alone."""
        scores = _result(partial(self._scores, batch))
        if not isinstance(scores, Exception):
            return scores
        if len(batch) == 1:
            return [scores]
        return [self._scores_of_each([lists])[0] for lists in batch]

    def _scores(self, batch: list[Lists]) -> list[np.ndarray]:
        if not batch:
            return []
        if len(batch) == 1 and 0 < len(batch[0].items) <= _ITEMS:
            return [self._score(batch[0].items, batch[0].offsets)]
        items = np.concatenate([lists.items for lists in batch])
        lengths = [np.diff(lists.offsets) for lists in batch]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        scores = np.empty(len(items), np.float32)
        first = 0
        while first < len(offsets) - 1:  # at most _ITEMS items at a time, which bounds memory
            last = max(
                first + 1, int(np.searchsorted(offsets, offsets[first] + _ITEMS, "right")) - 1
            )
            start, stop = offsets[first], offsets[last]
            if self._closed:
                raise RequestError(503, "the service has stopped: try another")
            if start < stop:
                part_offsets = offsets[first : last + 1] - start
                scores[start:stop] = self._score(items[start:stop], part_offsets)
            first = last
        ends = np.cumsum([len(lists.items) for lists in batch])[:-1]
        return np.split(scores, ends)

    def close(self) -> None:
        """End the thread, after the lists that it is scoring."""
        self._closed = True
        self._thread.shutdown()


def _response(request: Request, lists: Lists, scores: np.ndarray) -> Response:
    lists.check_scores(scores)
    return Response(request.respond(lists, scores), len(lists.items))


def _result(compute: Callable[[], _Result]) -> _Result | Exception:
    """What a function returns or raises."""
    try:
        return compute()
    except Exception as error:  # the request gets it
        return error
