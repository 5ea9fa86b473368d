"""Bodies of requests and responses: limits, lists, and errors that name the field."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import to_json

from rankgrad.serving._served_ranker import ServedRanker

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

NO_FEATURE = "is not a feature of this ranker: GET /models has their names"


class RequestError(Exception):
    """An error of a request: a status of HTTP, a message, and the field."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and of all requests in progress together.

    Args:
        body: bytes of a request, decompressed.
        lists: of a request.
        items: of one list.
        total_items: of a request, in all its lists.
        waiting: requests that are in progress; those beyond are refused.
        waiting_bytes: of the bodies of requests in progress; of one request also as float32.
    """

    body: int = 8 << 20
    lists: int = 1000
    items: int = 10_000
    total_items: int = 100_000
    waiting: int = 128
    waiting_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Refuse limits under which a request of the largest size could never be taken."""
        if self.waiting_bytes < self.body:
            raise ValueError(
                f"requests in progress may hold {self.waiting_bytes:,} bytes, fewer than the "
                f"{self.body:,} of one body: give at least as many"
            )

    def most_items(self, n_features: int) -> int:
        """Items of a request of so many features, which as float32 are within ``waiting_bytes``."""
        return min(self.total_items, self.waiting_bytes // (4 * n_features))


@dataclass(frozen=True)
class Lists:
    """The lists of a request.

    Attributes:
        items: ``[N, f]`` in float32.
        offsets: ``[B + 1]``.
        ids: of the lists.
        rows: whether the request has items as rows, as Arrow does, for errors.
    """

    items: np.ndarray
    offsets: np.ndarray
    ids: list[Any]
    rows: bool = False

    def check_scores(self, scores: np.ndarray) -> None:
        """Raise a 422 that names the first item whose score is not a finite number."""
        wrong = np.flatnonzero(~np.isfinite(scores))
        if not len(wrong):
            return
        row = int(wrong[0])
        b = int(np.searchsorted(self.offsets, row, "right")) - 1
        field = f"row {row}" if self.rows else f"lists[{b}].items[{row - self.offsets[b]}]"
        message = "its features are too large: the score is not a finite number"
        raise RequestError(422, message, field)


def prefers_arrow(accept: str) -> bool:
    """Whether an ``Accept`` header names Arrow, and does not refuse it or prefer JSON.

    JSON may be meant by a wildcard; Arrow is not.

    >>> from rankgrad.serving._bodies import ARROW, prefers_arrow
    >>> prefers_arrow(f"{ARROW}, application/json"), prefers_arrow(f"*/*, {ARROW};q=0.1")
    (True, False)
    """
    quality: dict[str, float] = {}
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        values = [part[2:] for part in parameters if part.startswith("q=")]
        try:
            quality[kind] = float(values[0]) if values else 1.0
        except ValueError:
            quality[kind] = 1.0
    arrow = quality.get(ARROW, 0.0)
    json = next((quality[kind] for kind in (JSON, "application/*", "*/*") if kind in quality), 0.0)
    return arrow > 0 and arrow >= json


def check_count(count: int, most: int, field: str, what: str) -> None:
    """Raise a 413 if there are more than may be."""
    if count > most:
        raise RequestError(413, f"has {count:,} {what}, and at most {most:,} are taken", field)


def to_json_body(ranker: ServedRanker, lists: Lists, scores: np.ndarray) -> bytes:
    """Scores and order of each list: ``order`` has the indices of items, best first."""
    ranked = []
    for b, identifier in enumerate(lists.ids):
        list_scores = scores[lists.offsets[b] : lists.offsets[b + 1]]
        entry: dict[str, Any] = {} if identifier is None else {"id": identifier}
        entry["scores"] = list_scores.tolist()
        entry["order"] = np.argsort(-list_scores, kind="stable").tolist()
        ranked.append(entry)
    return to_json({"model": ranker.name, "version": ranker.version, "lists": ranked})


def to_arrow_body(ranker: ServedRanker, lists: Lists, scores: np.ndarray) -> bytes:
    """An Arrow stream with a row for each row of the request: ``score``, and ``rank`` from 1."""
    import pyarrow as pa

    ranks = np.empty(len(scores), np.int32)
    for start, stop in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        order = np.argsort(-scores[start:stop], kind="stable")
        ranks[start:stop][order] = np.arange(1, stop - start + 1)
    table = pa.table({"score": scores, "rank": ranks})
    metadata = {"model": ranker.name, "version": ranker.version}
    table = table.replace_schema_metadata(metadata)
    content = io.BytesIO()
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()
