"""Requests and responses: JSON or Arrow to flat lists and back, with errors that name the field."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json

from rankgrad.quoting import quote
from rankgrad.serving.ranker import ServedRanker

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

_NO_FEATURE = "is not a feature of this ranker: GET /models has their names"


class RequestError(Exception):
    """What is wrong with a request: a status of HTTP, the field, and a sentence."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    def body(self) -> bytes:
        """The JSON of the response."""
        return to_json({"error": {"field": self.field, "message": self.message}})


@dataclass(frozen=True)
class Limits:
    """What one request may have.

    Args:
        body: bytes.
        lists: how many.
        items: of one list.
    """

    body: int = 8 << 20
    lists: int = 1000
    items: int = 10_000


@dataclass(frozen=True)
class Lists:
    """The lists of a request: items ``[N, f]`` in float32, offsets ``[B + 1]``, and ids."""

    items: np.ndarray
    offsets: np.ndarray
    ids: list[Any]


def parse_json(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of a JSON body.

    ``{"lists": [{"id": "q1", "items": [...]}]}``; an item is an array of all features in the order
    of training, or an object of features by name.

    Raises:
        RequestError: 400 for what is no JSON, 422 for what is wrong in it.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    lists = _member(value, "lists", list, "body")
    _check_count(len(lists), limits.lists, "lists", "lists")
    parts, ids = [], []
    plain = b"true" not in body and b"false" not in body  # which NumPy takes for numbers
    for at, entry in enumerate(lists):
        where = f"lists[{at}]"
        items = _member(entry, "items", list, where)
        unknown = next((name for name in entry if name not in ("id", "items")), None)
        if unknown is not None:
            field = f"{where}.{str(unknown)[:100]}"
            raise RequestError(422, "is unknown: a list has 'id' and 'items'", field)
        identifier = entry.get("id")
        if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
            raise RequestError(422, "must be a text or a whole number", f"{where}.id")
        _check_count(len(items), limits.items, f"{where}.items", "items")
        ids.append(identifier)
        parts.append(_items(items, ranker, f"{where}.items", plain))
    return _joined(parts, ids, len(ranker.feature_names))


def parse_arrow(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of an Arrow stream: features by name or position, and ``list``.

    There is a column for each feature; or one column ``features`` of arrays of all of them. Rows of
    one list are beside each other; without a column ``list``, all rows are one list.

    Raises:
        RequestError: 400 for what is no Arrow stream, 422 for what is wrong in it.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise RequestError(415, "Arrow needs pyarrow where the service runs: send JSON") from None
    try:
        with pa.ipc.open_stream(io.BytesIO(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise RequestError(400, f"the body is not an Arrow stream: {said}") from None
    offsets, ids = _arrow_lists(table, limits)
    positional = "features" in table.column_names and "features" not in ranker.feature_names
    known = {"features"} if positional else set(ranker.feature_names)
    for name in table.column_names:
        if name not in known and name != "list":
            raise RequestError(422, _NO_FEATURE, f"column {quote(name)}")
    if positional:
        items = _arrow_rows(table, len(ranker.feature_names))
    else:
        names = ranker.feature_names
        items = np.stack([_arrow_column(table, name, ranker.missing) for name in names], 1)
    _check_values(items, ranker, lambda row, at: f"column {quote(ranker.feature_names[at])}[{row}]")
    return Lists(np.ascontiguousarray(items), offsets, ids)


def to_json_body(ranker: ServedRanker, lists: Lists, scores: np.ndarray) -> bytes:
    """Scores and order of each list: ``order`` has the places of items, best first."""
    found = []
    for at, identifier in enumerate(lists.ids):
        own = scores[lists.offsets[at] : lists.offsets[at + 1]]
        entry: dict[str, Any] = {} if identifier is None else {"id": identifier}
        entry["scores"] = own.tolist()
        entry["order"] = np.argsort(-own, kind="stable").tolist()
        found.append(entry)
    answer = {"model": ranker.name, "version": ranker.version, "lists": found}
    return to_json(answer, inf_nan_mode="null")


def to_arrow_body(lists: Lists, scores: np.ndarray) -> bytes:
    """An Arrow stream with a row for each row of the request: ``score``, and ``rank`` from 1."""
    import pyarrow as pa

    ranks = np.empty(len(scores), np.int32)
    for start, stop in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        order = np.argsort(-scores[start:stop], kind="stable")
        ranks[start:stop][order] = np.arange(1, stop - start + 1)
    table = pa.table({"score": scores, "rank": ranks})
    content = io.BytesIO()
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def _member(value: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(value, dict):
        raise RequestError(422, f"must be an object with {name!r}", where)
    field = name if where == "body" else f"{where}.{name}"
    if name not in value:
        raise RequestError(422, "is missing", field)
    if not isinstance(value[name], kind):
        raise RequestError(422, f"must be an array, found {quote(value[name])}", field)
    return value[name]


def _check_count(count: int, most: int, field: str, what: str) -> None:
    if count > most:
        raise RequestError(413, f"has {count:,} {what}, and at most {most:,} are taken", field)


def _items(items: list[Any], ranker: ServedRanker, where: str, plain: bool) -> np.ndarray:
    """The features of a list's items, the fast way if nothing is wrong and no value is missing."""
    names = ranker.feature_names
    rows: Sequence[Any] = items
    if items and isinstance(items[0], dict):
        try:
            if not all(len(item) == len(names) for item in items):
                return _checked_items(items, ranker, where)
            pick = itemgetter(*names)
            rows = [pick(item) for item in items]
            rows = rows if len(names) > 1 else [[row] for row in rows]
        except (KeyError, TypeError):
            return _checked_items(items, ranker, where)
    if not items:
        return np.empty((0, len(names)), np.float32)
    try:
        array = np.array(rows)
    except ValueError:  # rows of several lengths
        return _checked_items(items, ranker, where)
    if not plain or array.dtype.kind not in "iuf" or array.shape != (len(items), len(names)):
        return _checked_items(items, ranker, where)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        return _checked_items(items, ranker, where)
    return narrow


def _checked_items(items: list[Any], ranker: ServedRanker, where: str) -> np.ndarray:
    """The same, value by value; the first that is wrong is named."""
    found = np.empty((len(items), len(ranker.feature_names)), np.float32)
    for row, item in enumerate(items):
        found[row] = _checked_item(item, ranker, f"{where}[{row}]")
    return found


def _checked_item(item: Any, ranker: ServedRanker, where: str) -> list[float]:
    names = ranker.feature_names
    if isinstance(item, dict):
        unknown = next((name for name in item if name not in names), None)
        if unknown is not None:
            raise RequestError(422, _NO_FEATURE, f"{where}.{str(unknown)[:100]}")
        return [_value(item.get(name), ranker, f"{where}.{name}", name in item) for name in names]
    if not isinstance(item, list):
        raise RequestError(
            422, "must be an array of all features in order, or an object of them by name", where
        )
    if len(item) != len(names):
        raise RequestError(422, f"must have {len(names)} features, found {len(item)}", where)
    return [_value(value, ranker, f"{where}[{at}]") for at, value in enumerate(item)]


def _value(value: Any, ranker: ServedRanker, where: str, present: bool = True) -> float:
    if value is None:
        if ranker.missing:
            return float("nan")
        said = "must be a number: this ranker takes no missing values"
        raise RequestError(422, said if present else "is missing", where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(422, f"must be a number, found {quote(value)}", where)
    if not -3.4e38 < value < 3.4e38:
        raise RequestError(422, "is too large for float32", where)
    return float(value)


def _joined(parts: list[np.ndarray], ids: list[Any], width: int) -> Lists:
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    items = parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, width)), *parts])
    return Lists(np.ascontiguousarray(items, np.float32), offsets, ids)


def _arrow_lists(table: Any, limits: Limits) -> tuple[np.ndarray, list[Any]]:
    import pyarrow as pa

    if "list" not in table.column_names:
        _check_count(len(table), limits.items, "rows", "rows")
        return np.array([0, len(table)]), [None]
    if table.column_names.count("list") > 1:
        raise RequestError(422, "is there twice", "column 'list'")
    column = table.column("list")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        found = f"must be of texts or integers, found {column.type}"
        raise RequestError(422, found, "column 'list'")
    names = column.to_pylist()
    begins = [at for at in range(len(names)) if at == 0 or names[at] != names[at - 1]]
    ids = [names[at] for at in begins]
    if len(set(ids)) < len(ids):
        raise RequestError(422, "the rows of a list must be beside each other", "column 'list'")
    offsets = np.array([*begins, len(names)] if begins else [0])
    _check_count(len(ids), limits.lists, "column 'list'", "lists")
    max_length = int(np.diff(offsets).max(initial=0))
    _check_count(max_length, limits.items, "column 'list'", "items of one list")
    return offsets, ids


def _arrow_rows(table: Any, width: int) -> np.ndarray:
    """The column ``features``, of arrays with all features of an item."""
    import pyarrow as pa

    rows = table.column("features").combine_chunks()
    listed = pa.types.is_list(rows.type) or pa.types.is_fixed_size_list(rows.type)
    if table.column_names.count("features") > 1 or not listed or rows.null_count:
        raise RequestError(422, "must be one column of arrays of numbers", "column 'features'")
    values = rows.flatten()
    numeric = pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
    lengths = set(rows.value_lengths().to_pylist())
    if not numeric or lengths - {width}:
        raise RequestError(422, f"each row must have {width} numbers", "column 'features'")
    with np.errstate(over="ignore"):
        found = np.asarray(values.to_numpy(zero_copy_only=False), np.float32)
    return found.reshape(len(rows), width)


def _arrow_column(table: Any, name: str, missing: bool) -> np.ndarray:
    import pyarrow as pa

    field = f"column {quote(name)}"
    count = table.column_names.count(name)
    if count > 1:
        raise RequestError(422, "is there twice", field)
    if count == 0:
        if not missing:
            raise RequestError(422, "is missing", field)
        return np.full(len(table), np.nan, np.float32)
    column = table.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise RequestError(422, f"must be of numbers, found {column.type}", field)
    values = column.to_numpy()
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32)


def _check_values(items: np.ndarray, ranker: ServedRanker, field: Any) -> None:
    """An error that names the first value that is infinite, or missing where none may be."""
    wrong = ~np.isfinite(items) if not ranker.missing else np.isinf(items)
    if wrong.any():
        row, at = np.argwhere(wrong)[0].tolist()
        raise RequestError(422, f"must be a finite number, found {items[row, at]}", field(row, at))
