"""The service: lists of items in, scores and order out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic_core import to_json

from rankgrad.serving import openapi
from rankgrad.serving.batching import Batcher
from rankgrad.serving.bodies import (
    ARROW,
    JSON,
    Limits,
    Lists,
    RequestError,
    parse_arrow,
    parse_json,
    to_arrow_body,
    to_json_body,
)
from rankgrad.serving.metrics import Metrics
from rankgrad.serving.ranker import ServedRanker

try:
    from fastapi import FastAPI, Request, Response
except ImportError as error:
    raise ImportError("fastapi is not installed: pip install 'rankgrad[serve]'") from error


def create_app(
    rankers: Mapping[str, ServedRanker], limits: Limits | None = None, version: str = "unknown"
) -> FastAPI:
    """The ASGI application.

    Args:
        rankers: by name; the first also answers at ``/rank``.
        limits: of a request.
        version: of rankgrad.
    """
    service = _Service(dict(rankers), limits or Limits(), version)

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


class _Service:
    """The rankers of a service, their batches and counts."""

    def __init__(self, rankers: dict[str, ServedRanker], limits: Limits, version: str) -> None:
        self.rankers, self.limits, self.version = rankers, limits, version
        self.metrics = Metrics()
        self.ready = False
        self.batchers = {
            name: Batcher(self._timed(ranker), self.metrics.batch_of(name))
            for name, ranker in rankers.items()
        }

    def _timed(self, ranker: ServedRanker) -> Any:
        seconds = self.metrics.scoring_seconds.labels(ranker.name)

        def score(*lists: Any) -> Any:
            with seconds.time():
                return ranker.score(*lists)

        return score

    def add_routes(self, app: FastAPI) -> None:
        """Add what the service answers to."""
        first = next(iter(self.rankers))
        answer = {"openapi_extra": openapi.REQUEST, "responses": openapi.RESPONSES}

        async def rank(request: Request) -> Response:
            """Score lists with the first ranker."""
            return await self._rank(first, request)

        async def rank_by(name: str, request: Request) -> Response:
            """Score lists with a ranker by its name."""
            return await self._rank(name, request)

        def models() -> dict[str, Any]:
            """The rankers there are."""
            return {"models": [ranker.described() for ranker in self.rankers.values()]}

        def model(name: str) -> Any:
            """One ranker: its features, in order, and its version."""
            try:
                return self._ranker(name).described()
            except RequestError as error:
                return _response(error.status, error.body())

        def health() -> dict[str, str]:
            """Whether the process answers."""
            return {"status": "ok"}

        def ready() -> Any:
            """Whether rankers are loaded and the service is not about to stop."""
            status = "ready" if self.ready else "stopping"
            return _json(200 if self.ready else 503, {"status": status})

        def version() -> dict[str, Any]:
            """The versions of rankgrad and of the rankers."""
            models = {name: ranker.version for name, ranker in self.rankers.items()}
            return {"rankgrad": self.version, "models": models}

        def metrics() -> Response:
            """Counts and times, as Prometheus reads them."""
            return Response(self.metrics.text(), media_type=self.metrics.media_type)

        app.post("/rank", **answer)(rank)  # type: ignore[arg-type]
        app.post("/models/{name}/rank", **answer)(rank_by)  # type: ignore[arg-type]
        app.get("/models")(models)
        app.get("/models/{name}", responses=openapi.NOT_FOUND)(model)
        app.get("/health")(health)
        app.get("/ready", responses=openapi.NOT_READY)(ready)
        app.get("/version")(version)
        app.get("/metrics", responses=openapi.METRICS, response_class=Response)(metrics)

    async def _rank(self, name: str, request: Request) -> Response:
        began, label, count = time.perf_counter(), "unknown", 0
        try:
            ranker = self._ranker(name)
            label = ranker.name
            lists = self._lists(request, await self._body(request), ranker)
            count = len(lists.items)
            scores = await self.batchers[name].score(lists) if count else lists.items[:, 0]
            arrow = ARROW in request.headers.get("accept", "")
            content = to_arrow_body(lists, scores) if arrow else to_json_body(ranker, lists, scores)
            response = _response(200, content, ARROW if arrow else JSON)
        except RequestError as error:
            response = _response(error.status, error.body())
            if error.status == 503:
                response.headers["retry-after"] = "1"
        self.metrics.request(label, response.status_code, count, time.perf_counter() - began)
        return response

    def _ranker(self, name: str) -> ServedRanker:
        if name not in self.rankers:
            raise RequestError(
                404, f"there is no such ranker. There are: {', '.join(self.rankers)}"
            )
        return self.rankers[name]

    def _lists(self, request: Request, body: bytes, ranker: ServedRanker) -> Lists:
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind == ARROW:
            return parse_arrow(body, ranker, self.limits)
        if kind != JSON:
            raise RequestError(415, f"must be {JSON} or {ARROW}", "content-type")
        return parse_json(body, ranker, self.limits)

    async def _body(self, request: Request) -> bytes:
        """The body, which is not read beyond the limit."""
        most = self.limits.body
        said = request.headers.get("content-length", "")
        too_large = RequestError(413, f"the body is larger than {most:,} bytes")
        if said.isdecimal() and int(said) > most:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self.ready = False
        for batcher in self.batchers.values():
            batcher.close()


def _response(status: int, content: bytes, media_type: str = JSON) -> Response:
    return Response(content, status, media_type=media_type)


def _json(status: int, value: Any) -> Response:
    return _response(status, to_json(value))
