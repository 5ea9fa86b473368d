"""parse_arrow: the lists of a request whose body is an Arrow stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rankgrad._quoting import quote
from rankgrad.serving._arrow_metadata import measure
from rankgrad.serving._bodies import NO_FEATURE, Limits, Lists, RequestError, check_count
from rankgrad.serving._categorical import CategoricalFeature
from rankgrad.serving._served_ranker import ServedRanker

_BATCHES = 64  # the most record batches; each may have its own dictionary


def parse_arrow(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of an Arrow stream: features by name or position, and ``list``.

    There is a column for each feature; or one column ``features`` of arrays of all of them. Rows of
    one list are beside each other; without a column ``list``, all rows are one list. If a feature
    is called ``list``, such a column names the lists only beside ``features``. Columns of
    categories are of texts, or of their codes.

    Raises:
        RequestError: 400 if this is not an Arrow stream, 413 for too much, 422 for errors in it.
    """
    try:
        _check_size(body, ranker, limits)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            columns = _Columns(reader.schema, ranker)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(400, f"the body is not an Arrow stream: {reason}") from None
    names = _values(table.column("list")) if columns.grouped else None
    offsets, ids = _lists(names, len(table), limits)
    items = columns.features(table)
    _check_values(items, ranker)
    return Lists(np.ascontiguousarray(items), offsets, ids, rows=True)


def _check_size(body: bytes, ranker: ServedRanker, limits: Limits) -> None:
    """Raise a 413 if decoding the stream would take too much."""
    size = measure(body)
    check_count(size.batches, _BATCHES, "body", "record batches")
    check_count(size.rows, limits.most_items(len(ranker.feature_names)), "body", "rows")
    check_count(size.expanded, limits.body, "body", "bytes once it is decompressed")


class _Columns:
    """The columns of a request. Their types are checked before any is read.

    Args:
        schema: of the stream.
        ranker: that they are for.
    """

    def __init__(self, schema: Any, ranker: ServedRanker) -> None:
        self.ranker, self.names = ranker, ranker.feature_names
        self.positional = "features" in schema.names and "features" not in self.names
        allowed = {"features"} if self.positional else set(self.names)
        self.grouped = "list" in schema.names and "list" not in allowed
        seen = set()
        for field in schema:
            name = f"column {quote(field.name)}"
            if field.name in seen:
                raise RequestError(422, "is there twice", name)
            seen.add(field.name)
            if self.grouped and field.name == "list":
                _check_list_type(field.type)
            elif field.name not in allowed:
                beside = self.positional and field.name in self.names
                twice = "is there beside 'features', which has all of them"
                raise RequestError(422, twice if beside else NO_FEATURE, name)
            elif self.positional:
                _check_array_type(field.type, len(self.names))
            else:
                feature = ranker.categorical.get(self.names.index(field.name))
                _check_feature_type(field.type, feature, name)
        for name, required in zip(self.names, ranker.required, strict=True):
            if required and name not in seen and not self.positional:
                raise RequestError(422, "is missing", f"column {quote(name)}")

    def features(self, table: Any) -> np.ndarray:
        """All features in order, ``[N, f]``."""
        features = np.full((len(table), len(self.names)), np.nan, np.float32)
        with np.errstate(over="ignore"):
            if self.positional:
                features[:] = _rows(table.column("features"), len(self.names))
            for index, name in enumerate(self.names):
                if not self.positional and name in table.column_names:
                    features[:, index] = self._column(table.column(name), index)
                elif self.positional and index in self.ranker.categorical:
                    features[:, index] = self._codes(features[:, index], index)
        return features

    def _column(self, column: Any, index: int) -> np.ndarray:
        if index not in self.ranker.categorical:
            values: np.ndarray = column.to_numpy()
            return values
        if _is_number(column.type):
            return self._codes(column.to_numpy(), index)
        return self.ranker.categorical[index].codes_of_texts(_values(column))

    def _codes(self, values: np.ndarray, index: int) -> np.ndarray:
        try:
            return self.ranker.categorical[index].codes_of(np.asarray(values, np.float64))
        except ValueError as error:
            message, row = error.args
            raise RequestError(422, message, f"column {quote(self.names[index])}[{row}]") from None


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(kind: Any) -> Any:
    """The type of the values of a dictionary, or the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_list_type(kind: Any) -> None:
    if not (pa.types.is_integer(_decoded(kind)) or _is_text(_decoded(kind))):
        message = f"must be of texts or integers, found {_type_name(kind)}"
        raise RequestError(422, message, "column 'list'")


def _check_array_type(kind: Any, width: int) -> None:
    is_array = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    if not is_array or not _is_number(kind.value_type):
        message = f"must be of arrays of {width} numbers, found {_type_name(kind)}"
        raise RequestError(422, message, "column 'features'")
    if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
        message = f"each row must have {width} numbers, found {kind.list_size}"
        raise RequestError(422, message, "column 'features'")


def _check_feature_type(kind: Any, feature: CategoricalFeature | None, name: str) -> None:
    if feature is None and not _is_number(kind):
        raise RequestError(422, f"must be of numbers, found {_type_name(kind)}", name)
    if feature is not None and not _is_number(kind) and not _is_text(_decoded(kind)):
        message = f"must be of texts or of codes, found {_type_name(kind)}"
        raise RequestError(422, message, name)


def _type_name(kind: Any) -> str:
    """The name of a type, shortened."""
    return quote(str(kind)).strip("'")


def _values(column: Any) -> list[Any]:
    """The values of a column; of a dictionary, only those that rows have are decoded."""
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        codes = chunk.indices.fill_null(0).to_numpy(zero_copy_only=False)
        valid = chunk.indices.is_valid().to_numpy(zero_copy_only=False)
        used, inverse = np.unique(codes[valid], return_inverse=True)
        names = np.array([*chunk.dictionary.take(pa.array(used)).to_pylist(), None], object)
        indices = np.full(len(codes), len(used))
        indices[valid] = inverse
        values += names[indices].tolist()
    return values


def _lists(names: list[Any] | None, rows: int, limits: Limits) -> tuple[np.ndarray, list[Any]]:
    """The offsets of lists and their ids, by the list that each row names."""
    if names is None:
        check_count(rows, limits.items, "body", "rows, which are one list without 'list',")
        return np.array([0, rows]), [None]
    begins = [row for row in range(len(names)) if row == 0 or names[row] != names[row - 1]]
    ids = [names[row] for row in begins]
    if len(set(ids)) < len(ids):
        raise RequestError(422, "the rows of a list must be beside each other", "column 'list'")
    offsets = np.array([*begins, len(names)] if begins else [0])
    check_count(len(ids), limits.lists, "column 'list'", "lists")
    max_length = int(np.diff(offsets).max(initial=0))
    check_count(max_length, limits.items, "column 'list'", "items of one list")
    return offsets, ids


def _rows(column: Any, width: int) -> np.ndarray:
    """The column ``features``, of arrays with all features of an item."""
    rows = column.combine_chunks()
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != width)  # NaN where the row is null
    if len(wrong):
        length = "null" if np.isnan(lengths[wrong[0]]) else int(lengths[wrong[0]])
        message = f"each row must have {width} numbers, found {length}"
        raise RequestError(422, message, f"column 'features'[{wrong[0]}]")
    values = rows.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float32).reshape(len(rows), width)


def _check_values(items: np.ndarray, ranker: ServedRanker) -> None:
    """Raise an error that names the first value that is infinite, or missing where none may be."""
    wrong = ranker.wrong_values(items)
    if wrong.any():
        row, feature = np.argwhere(wrong)[0].tolist()
        field = f"column {quote(ranker.feature_names[feature])}[{row}]"
        message = f"must be a finite number within float32, found {items[row, feature]}"
        raise RequestError(422, message, field)
