"""Batcher: dynamic batching. Requests that arrive while a batch is scored are the next batch.

``_app`` has one for each ranker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rankgrad.serving._bodies import Lists, RequestError
from rankgrad.serving._served_ranker import Score

_Result = TypeVar("_Result")
_MAX_ITEMS = 1 << 12  # the most that are scored at a time; a longer list is scored alone
_MAX_BYTES = 1 << 20  # the most of the bodies of a batch; a larger request is a batch alone


class Request(NamedTuple):
    """A request to a batcher. Both functions are called in the thread that scores.

    Attributes:
        size: the bytes of the body.
        parse: returns the lists of the request.
        respond: returns the body of the response, from the lists and their scores ``[N]``.
    """

    size: int
    parse: Callable[[], Lists]
    respond: Callable[[Lists, np.ndarray], bytes]


class Response(NamedTuple):
    """The body of a response, and the number of items that were scored."""

    content: bytes
    items: int


class _Pending(NamedTuple):
    """A request, and the future of its response."""

    request: Request
    response: asyncio.Future[Response]


class Batcher:
    """Answers concurrent requests together, in one thread, in the order of their arrival.

    No request waits for others to arrive: when the thread is free, it takes the requests that are
    pending as the next batch. It also parses them, so that the event loop can serve other
    connections meanwhile.

    Args:
        score: returns the scores ``[N]`` of flat lists, from their items and offsets.
        on_batch: called with the number of requests of each batch.
    """

    def __init__(self, score: Score, on_batch: Callable[[int], None] = lambda count: None) -> None:
        self._score, self._on_batch = score, on_batch
        self._closed = False
        self._pending: deque[_Pending] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def respond(self, request: Request) -> Response:
        """The response to a request.

        Raises:
            RequestError: the request cannot be answered.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(request, future))
        if self._task is None:
            self._task = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        """Answer batches until no request is pending."""
        try:
            while self._pending:
                await self._answer_next_batch()
        finally:
            self._task = None

    async def _answer_next_batch(self) -> None:
        """Take a batch of pending requests, and set their responses."""
        batch = [self._pending.popleft()]
        size = batch[0].request.size
        while self._pending and size + self._pending[0].request.size <= _MAX_BYTES:
            batch.append(self._pending.popleft())
            size += batch[-1].request.size
        # A future is done already if the request was cancelled, as when the service is stopping.
        batch = [pending for pending in batch if not pending.response.done()]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        requests = [request for request, _ in batch]
        responses: Sequence[Response | Exception]
        try:
            responses = await loop.run_in_executor(self._thread, self._responses, requests)
        except Exception as error:  # the thread has been shut down
            responses = [error] * len(batch)
        for (_, future), response in zip(batch, responses, strict=True):
            if future.done():
                continue
            if isinstance(response, Exception):
                future.set_exception(response)
            else:
                future.set_result(response)
        self._on_batch(len(batch))

    def _responses(self, batch: list[Request]) -> list[Response | Exception]:
        """The response to each request of a batch, or its error."""
        results: list[Any] = [_result_or_error(request.parse) for request in batch]
        lists = {i: parsed for i, parsed in enumerate(results) if isinstance(parsed, Lists)}
        for i, scores in zip(lists, self._scores_of_each(list(lists.values())), strict=True):
            results[i] = scores
            if not isinstance(scores, Exception):
                results[i] = _result_or_error(partial(_response, batch[i], lists[i], scores))
        return results

    def _scores_of_each(self, batch: list[Lists]) -> Sequence[np.ndarray | Exception]:
        """The scores ``[N]`` of each request, or its error.

        If the requests cannot be scored together, each is scored alone, so that one does not fail
        the others.
        """
        scores = _result_or_error(partial(self._scores_together, batch))
        if not isinstance(scores, Exception):
            return scores
        if len(batch) == 1:
            return [scores]
        return [self._scores_of_each([lists])[0] for lists in batch]

    def _scores_together(self, batch: list[Lists]) -> list[np.ndarray]:
        """The scores ``[N]`` of each request, computed ``_MAX_ITEMS`` at a time to bound memory."""
        if not batch:
            return []
        if len(batch) == 1 and 0 < len(batch[0].items) <= _MAX_ITEMS:
            return [self._score(batch[0].items, batch[0].offsets)]
        items = np.concatenate([lists.items for lists in batch])
        lengths = [np.diff(lists.offsets) for lists in batch]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        scores = np.empty(len(items), np.float32)
        first = 0
        while first < len(offsets) - 1:  # lists first to last - 1 are scored at a time
            last = int(np.searchsorted(offsets, offsets[first] + _MAX_ITEMS, "right")) - 1
            last = max(last, first + 1)
            start, stop = offsets[first], offsets[last]
            if self._closed:
                raise RequestError(503, "the service has stopped: try another")
            if start < stop:
                part_offsets = offsets[first : last + 1] - start
                scores[start:stop] = self._score(items[start:stop], part_offsets)
            first = last
        return np.split(scores, np.cumsum([len(lists.items) for lists in batch])[:-1])

    def close(self) -> None:
        """End the thread once it has scored its present lists."""
        self._closed = True
        self._thread.shutdown()


def _response(request: Request, lists: Lists, scores: np.ndarray) -> Response:
    """The response to a request whose scores are known; an error if a score is not finite."""
    lists.check_scores(scores)
    return Response(request.respond(lists, scores), len(lists.items))


def _result_or_error(compute: Callable[[], _Result]) -> _Result | Exception:
    """The value that a function returns, or the exception that it raises."""
    try:
        return compute()
    except Exception as error:  # which is the response to the request
        return error
