"""Metrics: what the service counts and times, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counters and histograms whose names begin with ``rankgrad_``."""

    def __init__(self) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise ImportError(
                "prometheus_client is not installed: pip install 'rankgrad[serve]'"
            ) from error
        self._client, self._registry = client, client.CollectorRegistry()
        client.ProcessCollector(registry=self._registry)
        registry: dict[str, Any] = {"registry": self._registry}
        self._requests = client.Counter(
            "rankgrad_requests", "Requests to score lists.", ["model", "status"], **registry
        )
        self._items = client.Counter(
            "rankgrad_items", "Items that were scored.", ["model"], **registry
        )
        self._seconds = client.Histogram(
            "rankgrad_request_seconds",
            "From the first byte of a request to its response.",
            ["model"],
            buckets=_SECONDS,
            **registry,
        )
        self._batches = client.Histogram(
            "rankgrad_batch_requests",
            "Requests that were scored together.",
            ["model"],
            buckets=_SIZES,
            **registry,
        )
        self._waiting = client.Gauge(
            "rankgrad_waiting_requests", "Requests that are in progress.", **registry
        )
        self.scoring_seconds = client.Histogram(
            "rankgrad_scoring_seconds", "Of one batch.", ["model"], buckets=_SECONDS, **registry
        )

    @property
    def media_type(self) -> str:
        """The content type of :meth:`text`."""
        return str(self._client.CONTENT_TYPE_LATEST)

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        content: bytes = self._client.generate_latest(self._registry)
        return content

    def watch(self, waiting: Callable[[], float]) -> None:
        """Set the function that returns the number of requests in progress."""
        self._waiting.set_function(waiting)

    def request(self, model: str, status: int, items: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(model, status).inc()
        self._items.labels(model).inc(items if status == 200 else 0)
        self._seconds.labels(model).observe(seconds)

    def batch_of(self, model: str) -> Callable[[int], None]:
        """A function that counts a batch of a ranker by its number of requests."""
        requests = self._batches.labels(model)
        return lambda count: requests.observe(count)
