"""Metrics: counters and times of the service, which ``/metrics`` shows in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rankgrad.extras import load

# Upper bounds of the buckets of histograms: of requests per batch, and of times
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counters and histograms whose names begin with ``rankgrad_``.

    Args:
        waiting: returns the number of requests in progress; called whenever metrics are read.

    Attributes:
        media_type: the content type of :meth:`text`.
        batch_requests: the histogram of requests that were scored together, by model.
        scoring_seconds: the histogram of the times to score a batch, by model.
    """

    def __init__(self, waiting: Callable[[], float]) -> None:
        client = load("prometheus_client", "serve")
        self._client, self._registry = client, client.CollectorRegistry()
        self.media_type = str(client.CONTENT_TYPE_LATEST)
        client.ProcessCollector(registry=self._registry)
        counter = partial(client.Counter, registry=self._registry)
        histogram = partial(client.Histogram, labelnames=["model"], registry=self._registry)
        self._requests = counter(
            "rankgrad_requests", "Requests to score lists.", ["model", "status"]
        )
        self._items = counter("rankgrad_items", "Items that were scored.", ["model"])
        self._seconds = histogram(
            "rankgrad_request_seconds",
            "From the first byte of a request to its response.",
            buckets=_SECONDS,
        )
        self.batch_requests = histogram(
            "rankgrad_batch_requests", "Requests that were scored together.", buckets=_SIZES
        )
        client.Gauge(
            "rankgrad_waiting_requests", "Requests that are in progress.", registry=self._registry
        ).set_function(waiting)
        self.scoring_seconds = histogram(
            "rankgrad_scoring_seconds", "Of one batch.", buckets=_SECONDS
        )

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        return bytes(self._client.generate_latest(self._registry))

    def request(self, model: str, status: int, items: int, seconds: float) -> None:
        """Count a request that was answered.

        Args:
            model: the name of the ranker.
            status: the HTTP status of the response.
            items: the number of items of the request, which count only if the status is 200.
            seconds: from the first byte of the request to its response.
        """
        self._requests.labels(model, status).inc()
        self._items.labels(model).inc(items if status == 200 else 0)
        self._seconds.labels(model).observe(seconds)
