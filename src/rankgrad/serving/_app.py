"""create_app: the HTTP service as an ASGI application.

:class:`Service` has the routes. A request to score lists is admitted, its body is read, and the
ranker's batcher parses, scores and answers it in the batcher's own thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from pydantic_core import to_json

import rankgrad
from rankgrad.extras import requires
from rankgrad.serving import _batching, _bodies, _openapi
from rankgrad.serving._admission import Admission
from rankgrad.serving._bodies import ARROW, JSON, Limits, Lists, RequestError
from rankgrad.serving._json_requests import parse_json
from rankgrad.serving._json_shape import JsonShape
from rankgrad.serving._monitoring import Metrics
from rankgrad.serving._served_ranker import Score, ServedRanker

with requires("serve"):
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

_BODY_SECONDS = 30  # in which the body of a request has to arrive
_CLIENT_GONE = 499  # nginx's status for a client that has disconnected; only metrics show it
_MAX_LENGTH_DIGITS = 18  # of a content-length; a longer one is refused without parsing it


def create_app(
    rankers: Mapping[str, ServedRanker],
    limits: Limits | None = None,
    version: str = rankgrad.__version__,
) -> FastAPI:
    """The ASGI application.

    Args:
        rankers: the rankers by name; the first also answers at ``/rank``.
        limits: the limits of one request, and of all requests in progress.
        version: the version of rankgrad that ``/version`` gives.

    Returns:
        The application, which any ASGI server runs; see :func:`rankgrad.serving.serve`.

    >>> from starlette.testclient import TestClient
    >>> from rankgrad.serving import ServedRanker, create_app
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])"), features)
    >>> app = create_app({"default": ServedRanker.of(ranker, "default")})
    >>> with TestClient(app) as client:
    ...     response = client.post("/rank", json={"lists": [{"items": features.tolist()}]})
    >>> (ranked,) = response.json()["lists"]
    >>> ranked["order"] == np.argsort(ranked["scores"])[::-1].tolist()
    True
    """
    service = Service(dict(rankers), limits or Limits(), version)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.ready = True
        yield
        service.close()

    app = FastAPI(
        title="rankgrad",
        version=version,
        description="Scores lists of items with trained rankers.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    service.add_routes(app)
    return app


class Service:
    """The service: its rankers with their batchers, admission of requests, metrics and routes.

    Args:
        rankers: the rankers by name; the first also answers at ``/rank``.
        limits: the limits of one request, and of all requests in progress.
        version: the version of rankgrad.

    Attributes:
        ready: whether the service has started and is not about to stop.
    """

    def __init__(self, rankers: dict[str, ServedRanker], limits: Limits, version: str) -> None:
        self.rankers, self.limits, self.version = rankers, limits, version
        self.admission = Admission(limits)
        self.metrics = Metrics(lambda: self.admission.requests)
        self.ready = False
        self._deadline: float | None = None  # for all requests, once the service is stopping
        self._timeouts: set[asyncio.Timeout] = set()  # of the requests in progress
        JsonShape.of(b"{}")  # compiles its kernel, so that no request waits for it
        self.batchers = {
            name: _batching.Batcher(
                self._timed_score(ranker), self.metrics.batch_requests.labels(name).observe
            )
            for name, ranker in rankers.items()
        }

    def _timed_score(self, ranker: ServedRanker) -> Score:
        """The function from items ``[N, f]`` and offsets ``[B + 1]`` to scores ``[N]``, timed."""
        seconds = self.metrics.scoring_seconds.labels(ranker.name)

        def score(items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
            with seconds.time():
                return ranker.score(items, offsets)

        return score

    def add_routes(self, app: FastAPI) -> None:
        """Add the paths that the service answers."""
        first = next(iter(self.rankers))
        scoring: Any = {"openapi_extra": _openapi.REQUEST, "responses": _openapi.RESPONSES}

        @app.post("/rank", **scoring)
        async def rank(request: Request) -> Response:
            """Score lists with the first ranker."""
            return await self._rank(first, request)

        @app.post("/models/{name}/rank", **scoring)
        async def rank_by(name: str, request: Request) -> Response:
            """Score lists with a ranker by its name."""
            return await self._rank(name, request)

        @app.get("/models")
        async def models() -> dict[str, Any]:
            """The rankers there are."""
            return {"models": [ranker.described() for ranker in self.rankers.values()]}

        @app.get("/models/{name}", responses=_openapi.NOT_FOUND)
        async def model(name: str) -> Any:
            """One ranker: its features, in order, and its version."""
            try:
                return self._ranker(name).described()
            except RequestError as error:
                return _refusal(error)

        @app.get("/health")
        async def health() -> dict[str, str]:
            """Whether the process answers."""
            return {"status": "ok"}

        @app.get("/ready", responses=_openapi.NOT_READY)
        async def ready() -> Any:
            """Whether rankers are loaded and the service is not about to stop."""
            status, code = ("ready", 200) if self.ready else ("stopping", 503)
            return Response(to_json({"status": status}), code, media_type=JSON)

        @app.get("/version")
        async def version() -> dict[str, Any]:
            """The versions of rankgrad and of the rankers."""
            models = {name: ranker.version for name, ranker in self.rankers.items()}
            return {"rankgrad": self.version, "models": models}

        @app.get("/metrics", responses=_openapi.METRICS, response_class=Response)
        async def metrics() -> Response:
            """Counts and times, as Prometheus reads them."""
            return Response(self.metrics.text(), media_type=self.metrics.media_type)

        @app.exception_handler(HTTPException)
        async def refuse(request: Request, error: HTTPException) -> Response:
            """Answer an unknown path or method in the form of all other errors."""
            response = _refusal(RequestError(error.status_code, error.detail))
            response.headers.update(error.headers or {})
            return response

    async def _rank(self, name: str, request: Request) -> Response:
        """The response to a request to score lists; the metrics count the request."""
        start, label, items = time.perf_counter(), "unknown", 0  # label: the ranker in the metrics
        try:
            ranker = self._ranker(name)
            label = ranker.name
            with self.admission.request() as hold:
                async with self._until_stopped():
                    response, items = await self._score(ranker, request, hold)
        except RequestError as error:
            response = _refusal(error)
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_GONE)
        except Exception:
            logging.getLogger(__name__).exception("a request to the ranker %s failed", label)
            response = _refusal(RequestError(500, "the service failed: its log says why"))
        self.metrics.request(label, response.status_code, items, time.perf_counter() - start)
        return response

    async def _score(
        self, ranker: ServedRanker, request: Request, hold: Callable[[int], None]
    ) -> tuple[Response, int]:
        """The response to an admitted request, and the number of its items.

        Args:
            ranker: the ranker that scores the lists.
            request: the request.
            hold: reserves the bytes of its body; see :meth:`Admission.request`.
        """
        content_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if content_type not in (JSON, ARROW):
            raise RequestError(415, f"must be {JSON} or {ARROW}", "content-type")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            message = "must be left out: of bodies only Arrow's buffers may be compressed"
            raise RequestError(415, message, "content-encoding")
        body = await self._read_body(request, hold)
        parse = _parse_arrow if content_type == ARROW else parse_json
        accept = ",".join(request.headers.getlist("accept"))
        to_arrow = _bodies.prefers_arrow(accept) and find_spec("pyarrow") is not None
        write = _bodies.to_arrow_body if to_arrow else _bodies.to_json_body
        response = await self.batchers[ranker.name].respond(
            _batching.Request(
                size=len(body),
                parse=partial(parse, body, ranker, self.limits),
                respond=partial(write, ranker),
            )
        )
        return Response(response.content, media_type=ARROW if to_arrow else JSON), response.items

    def _ranker(self, name: str) -> ServedRanker:
        """A ranker by name; raises a 404 if there is none."""
        if name not in self.rankers:
            message = f"there is no such ranker. There are: {', '.join(self.rankers)}"
            raise RequestError(404, message)
        return self.rankers[name]

    async def _read_body(self, request: Request, hold: Callable[[int], None]) -> bytes:
        """The body of a request; raises a 413 as soon as it is larger than the limit.

        ``hold`` is called with the number of bytes that have arrived.
        """
        max_bytes = self.limits.body
        declared = request.headers.get("content-length", "")
        too_large = RequestError(413, f"the body is larger than {max_bytes:,} bytes")
        # int() of a very long text would be slow, or an error.
        if declared.isdecimal() and (
            len(declared) > _MAX_LENGTH_DIGITS or int(declared) > max_bytes
        ):
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    if len(content) + len(part) > max_bytes:
                        raise too_large
                    content += part
                    hold(len(content))
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive in {_BODY_SECONDS} seconds") from None
        return bytes(content)

    @asynccontextmanager
    async def _until_stopped(self) -> AsyncIterator[None]:
        """A context for a request's work, which ends with a 503 once the deadline has passed."""
        try:
            async with asyncio.timeout_at(self._deadline) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            raise RequestError(503, "the service is stopping: try another") from None

    def stop(self, grace: float) -> None:
        """Stop being ready; requests not answered within ``grace`` seconds get a 503."""
        self.ready = False
        self._deadline = asyncio.get_running_loop().time() + grace
        for timeout in self._timeouts:
            timeout.reschedule(self._deadline)

    def close(self) -> None:
        """End the threads of the batchers."""
        self.ready = False
        for batcher in self.batchers.values():
            batcher.close()


def _parse_arrow(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of an Arrow stream; raises a 415 if pyarrow is not installed."""
    try:
        from rankgrad.serving._arrow_requests import parse_arrow
    except ImportError:
        raise RequestError(415, "Arrow needs pyarrow where the service runs: send JSON") from None
    return parse_arrow(body, ranker, limits)


def _refusal(error: RequestError) -> Response:
    """The response for an error; a 503 also says when to try again."""
    content = to_json({"error": {"field": error.field, "message": error.message}})
    headers = {"retry-after": "1"} if error.status == 503 else None
    return Response(content, error.status, headers, JSON)
