"""Bodies of requests and responses: limits, the parsed lists, errors that name the field."""

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
    """An error that answers a request: a status of HTTP, a message, and the field it is about."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and of all requests in progress together.

    Args:
        body: the bytes of a request, decompressed.
        lists: the lists of a request.
        items: the items of one list.
        total_items: the items of a request, in all its lists.
        waiting: the requests in progress; further ones are refused.
        waiting_bytes: the bytes of the bodies of requests in progress. The features of one request
            as float32 must be within them, too.
    """

    body: int = 8 << 20  # 8 MiB
    lists: int = 1000
    items: int = 10_000
    total_items: int = 100_000
    waiting: int = 128
    waiting_bytes: int = 64 << 20  # 64 MiB

    def __post_init__(self) -> None:
        """Raise if a request of the largest size could never be admitted."""
        if self.waiting_bytes < self.body:
            raise ValueError(
                f"requests in progress may hold {self.waiting_bytes:,} bytes, fewer than the "
                f"{self.body:,} of one body: give at least as many"
            )

    def most_items(self, n_features: int) -> int:
        """The largest number of items of a request, whose features must fit ``waiting_bytes``.

        Args:
            n_features: the number of features of an item.

        Returns:
            The number of items.
        """
        return min(self.total_items, self.waiting_bytes // (4 * n_features))  # float32


@dataclass(frozen=True)
class Lists:
    """The lists of a request.

    Attributes:
        items: the features of all items, ``[N, f]`` in float32.
        offsets: ``[B + 1]``: list b is ``items[offsets[b]:offsets[b + 1]]``.
        ids: the ids of the lists, ``[B]``; None for a list without an id.
        rows: whether errors name an item by its row, as in Arrow streams, or by its list.
    """

    items: np.ndarray
    offsets: np.ndarray
    ids: list[Any]
    rows: bool = False

    def check_scores(self, scores: np.ndarray) -> None:
        """Raise a 422 that names the first item whose score is not a finite number."""
        invalid = np.flatnonzero(~np.isfinite(scores))
        if not len(invalid):
            return
        row = int(invalid[0])
        b = int(np.searchsorted(self.offsets, row, "right")) - 1
        field = f"row {row}" if self.rows else f"lists[{b}].items[{row - self.offsets[b]}]"
        message = "its features are too large: the score is not a finite number"
        raise RequestError(422, message, field)


def prefers_arrow(accept: str) -> bool:
    """Whether an ``Accept`` header prefers Arrow to JSON; Arrow wins a tie.

    A wildcard such as ``*/*`` stands for JSON only: Arrow must be named.

    >>> from rankgrad.serving._bodies import ARROW, prefers_arrow
    >>> prefers_arrow(f"{ARROW}, application/json"), prefers_arrow(f"*/*, {ARROW};q=0.1")
    (True, False)
    """
    quality: dict[str, float] = {}  # the parameter q of each media type
    for entry in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in entry.split(";"))
        values = [part[2:] for part in parameters if part.startswith("q=")]
        try:
            quality[media_type] = float(values[0]) if values else 1.0
        except ValueError:
            quality[media_type] = 1.0
    arrow_quality = quality.get(ARROW, 0.0)
    json_types = [name for name in (JSON, "application/*", "*/*") if name in quality]
    json_quality = quality[json_types[0]] if json_types else 0.0
    return arrow_quality > 0 and arrow_quality >= json_quality


def check_count(count: int, limit: int, field: str, noun: str) -> None:
    """Raise a 413 if ``field`` has more than ``limit`` of what ``noun`` names."""
    if count > limit:
        raise RequestError(413, f"has {count:,} {noun}, and at most {limit:,} are taken", field)


def to_json_body(ranker: ServedRanker, lists: Lists, scores: np.ndarray) -> bytes:
    """A JSON response: each list has its ``scores`` and, in ``order``, its items, best first."""
    ranked_lists = []
    for b, identifier in enumerate(lists.ids):
        list_scores = scores[lists.offsets[b] : lists.offsets[b + 1]]
        entry: dict[str, Any] = {} if identifier is None else {"id": identifier}
        entry["scores"] = list_scores.tolist()
        entry["order"] = np.argsort(-list_scores, kind="stable").tolist()
        ranked_lists.append(entry)
    return to_json({"model": ranker.name, "version": ranker.version, "lists": ranked_lists})


def to_arrow_body(ranker: ServedRanker, lists: Lists, scores: np.ndarray) -> bytes:
    """An Arrow response: each row of the request has its ``score``, and its ``rank`` from 1."""
    import pyarrow as pa

    ranks = np.empty(len(scores), np.int32)
    for start, stop in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        order = np.argsort(-scores[start:stop], kind="stable")
        ranks[start:stop][order] = np.arange(1, stop - start + 1)
    table = pa.table({"score": scores, "rank": ranks})
    table = table.replace_schema_metadata({"model": ranker.name, "version": ranker.version})
    content = io.BytesIO()
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()
