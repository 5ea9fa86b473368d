"""create_app: the HTTP service as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydantic_core import to_json

from rankgrad.extras import requires
from rankgrad.serving import _batching, _openapi
from rankgrad.serving._admission import Admission, Held
from rankgrad.serving._arrow_requests import parse_arrow
from rankgrad.serving._bodies import (
    ARROW,
    JSON,
    Limits,
    RequestError,
    prefers_arrow,
    to_arrow_body,
    to_json_body,
)
from rankgrad.serving._json_requests import parse_json
from rankgrad.serving._json_shape import JsonShape
from rankgrad.serving._monitoring import Metrics
from rankgrad.serving._ranker import ServedRanker

with requires("serve"):
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

_BODY_SECONDS = 30  # in which a body has to arrive
_CLIENT_GONE = 499  # the status in metrics, as in nginx; the client has gone


def create_app(
    rankers: Mapping[str, ServedRanker], limits: Limits | None = None, version: str = "unknown"
) -> FastAPI:
    """The ASGI application.

    Args:
        rankers: by name; the first also answers at ``/rank``.
        limits: of a request, and of those in progress.
        version: of rankgrad.

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
    """The state of the service: rankers, their batchers, and metrics."""

    def __init__(self, rankers: dict[str, ServedRanker], limits: Limits, version: str) -> None:
        self.rankers, self.limits, self.version = rankers, limits, version
        self.admission, self.metrics = Admission(limits), Metrics()
        self.metrics.watch(lambda: self.admission.requests)
        self.ready = False
        self._deadline: float | None = None  # of all requests, once the service is stopping
        self._timeouts: set[asyncio.Timeout] = set()
        JsonShape.of(b"{}")  # compiles it
        self.batchers = {
            name: _batching.Batcher(self._timed(ranker), self.metrics.batch_of(name))
            for name, ranker in rankers.items()
        }

    def _timed(self, ranker: ServedRanker) -> Any:
        seconds = self.metrics.scoring_seconds.labels(ranker.name)

        def score(*lists: Any) -> Any:
            with seconds.time():
                return ranker.score(*lists)

        return score

    def add_routes(self, app: FastAPI) -> None:
        """Add the paths that the service answers."""
        first = next(iter(self.rankers))
        options: dict[str, Any] = {
            "openapi_extra": _openapi.REQUEST,
            "responses": _openapi.RESPONSES,
        }

        async def rank(request: Request) -> Response:
            """Score lists with the first ranker."""
            return await self._rank(first, request)

        async def rank_by(name: str, request: Request) -> Response:
            """Score lists with a ranker by its name."""
            return await self._rank(name, request)

        async def models() -> dict[str, Any]:
            """The rankers there are."""
            return {"models": [ranker.described() for ranker in self.rankers.values()]}

        async def model(name: str) -> Any:
            """One ranker: its features, in order, and its version."""
            try:
                return self._ranker(name).described()
            except RequestError as error:
                return _response(error.status, error.body())

        async def health() -> dict[str, str]:
            """Whether the process answers."""
            return {"status": "ok"}

        async def ready() -> Any:
            """Whether rankers are loaded and the service is not about to stop."""
            status = "ready" if self.ready else "stopping"
            return _json(200 if self.ready else 503, {"status": status})

        async def version() -> dict[str, Any]:
            """The versions of rankgrad and of the rankers."""
            models = {name: ranker.version for name, ranker in self.rankers.items()}
            return {"rankgrad": self.version, "models": models}

        async def metrics() -> Response:
            """Counts and times, as Prometheus reads them."""
            return Response(self.metrics.text(), media_type=self.metrics.media_type)

        async def refuse(request: Request, error: Exception) -> Response:
            """A path or method that there is not, in the form of all errors."""
            assert isinstance(error, HTTPException)
            refused = RequestError(error.status_code, error.detail)
            response = _response(refused.status, refused.body())
            response.headers.update(error.headers or {})
            return response

        app.add_exception_handler(HTTPException, refuse)
        app.post("/rank", **options)(rank)
        app.post("/models/{name}/rank", **options)(rank_by)
        app.get("/models")(models)
        app.get("/models/{name}", responses=_openapi.NOT_FOUND)(model)
        app.get("/health")(health)
        app.get("/ready", responses=_openapi.NOT_READY)(ready)
        app.get("/version")(version)
        app.get("/metrics", responses=_openapi.METRICS, response_class=Response)(metrics)

    async def _rank(self, name: str, request: Request) -> Response:
        began, label, items = time.perf_counter(), "unknown", 0
        try:
            ranker = self._ranker(name)
            label = ranker.name
            with self.admission.request() as held:
                async with self._until_stopped():
                    response, items = await self._scored(ranker, request, held)
        except RequestError as error:
            response = _response(error.status, error.body())
            if error.status == 503:
                response.headers["retry-after"] = "1"
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_GONE)
        except Exception:
            logging.getLogger(__name__).exception("a request to the ranker %s failed", label)
            failed = RequestError(500, "the service failed: its log says why")
            response = _response(failed.status, failed.body())
        self.metrics.request(label, response.status_code, items, time.perf_counter() - began)
        return response

    async def _scored(
        self, ranker: ServedRanker, request: Request, held: Held
    ) -> tuple[Response, int]:
        """The response to an admitted request, and the number of its items."""
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, ARROW):
            raise RequestError(415, f"must be {JSON} or {ARROW}", "content-type")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            message = "must be left out: of bodies only Arrow's buffers may be compressed"
            raise RequestError(415, message, "content-encoding")
        body = await self._body(request, held)
        parse = parse_arrow if kind == ARROW else parse_json
        arrow = prefers_arrow(",".join(request.headers.getlist("accept")))
        scored = await self.batchers[ranker.name].respond(
            _batching.Request(
                len(body),
                partial(parse, body, ranker, self.limits),
                partial(to_arrow_body if arrow else to_json_body, ranker),
            )
        )
        return _response(200, scored.content, ARROW if arrow else JSON), scored.items

    def _ranker(self, name: str) -> ServedRanker:
        if name not in self.rankers:
            raise RequestError(
                404, f"there is no such ranker. There are: {', '.join(self.rankers)}"
            )
        return self.rankers[name]

    async def _body(self, request: Request, held: Held) -> bytes:
        """The body of a request, which is not read beyond the limit."""
        max_bytes = self.limits.body
        declared = request.headers.get("content-length", "")
        too_large = RequestError(413, f"the body is larger than {max_bytes:,} bytes")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > max_bytes):
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    if len(content) + len(part) > max_bytes:
                        raise too_large
                    content += part
                    held.hold(len(content))
        except TimeoutError:
            message = f"the body did not arrive in {_BODY_SECONDS} seconds"
            raise RequestError(408, message) from None
        return bytes(content)

    @asynccontextmanager
    async def _until_stopped(self) -> AsyncIterator[None]:
        """A request's work, which ends with a 503 when the time to stop is over."""
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
        """Stop being ready, and answer admitted requests within ``grace`` seconds."""
        self.ready = False
        self._deadline = asyncio.get_running_loop().time() + grace
        for timeout in self._timeouts:
            timeout.reschedule(self._deadline)

    def close(self) -> None:
        """End the threads."""
        self.ready = False
        for batcher in self.batchers.values():
            batcher.close()


def _response(status: int, content: bytes, media_type: str = JSON) -> Response:
    return Response(content, status, media_type=media_type)


def _json(status: int, value: Any) -> Response:
    return _response(status, to_json(value))
