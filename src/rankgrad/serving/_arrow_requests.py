"""parse_arrow: the lists of a request whose body is an Arrow stream.

``_app`` imports this module for the first such request, as pyarrow is optional. Types and sizes are
checked before anything is decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rankgrad._quoting import message_of, quote
from rankgrad.serving._arrow_metadata import measure
from rankgrad.serving._bodies import NO_FEATURE, Limits, Lists, RequestError, check_count
from rankgrad.serving._served_ranker import ServedRanker

_MAX_BATCHES = 64  # record batches of a stream; each may have its own dictionary


def parse_arrow(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of an Arrow stream, which has a row for each item.

    There is a column for each feature, or one column ``features`` with an array of all of them. The
    column ``list`` names the list of each row, and rows of one list are adjacent; without it, all
    rows are one list. If a feature is called ``list``, lists can be named only beside a column
    ``features``. The column of a categorical feature has the names of
    its categories, or their codes.

    Raises:
        RequestError: 400 if the body is not an Arrow stream, 413 if it is too large, 422 for other
            errors.
    """
    try:
        _check_size(body, ranker, limits)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            columns = _Columns(reader.schema, ranker)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(400, f"the body is not an Arrow stream: {message_of(error)}") from None
    list_names = _values(table.column("list")) if columns.has_list_column else None
    offsets, ids = _group(list_names, len(table), limits)
    items = columns.features(table)
    _check_values(items, ranker)
    return Lists(np.ascontiguousarray(items), offsets, ids, rows=True)


def _check_size(body: bytes, ranker: ServedRanker, limits: Limits) -> None:
    """Raise a 413 if the decoded stream would be too large."""
    batches, rows, decompressed = measure(body)
    check_count(batches, _MAX_BATCHES, "body", "record batches")
    check_count(rows, limits.most_items(len(ranker.feature_names)), "body", "rows")
    check_count(decompressed, limits.body, "body", "bytes once it is decompressed")


class _Columns:
    """The columns of a request, whose names and types are checked before any column is read.

    Args:
        schema: the schema of the stream.
        ranker: the ranker that the request is for.

    Attributes:
        positional: whether one column ``features`` has all features.
        has_list_column: whether a column ``list`` names the lists.
    """

    def __init__(self, schema: Any, ranker: ServedRanker) -> None:
        self.ranker, self.names = ranker, ranker.feature_names
        self.positional = "features" in schema.names and "features" not in self.names
        allowed = {"features"} if self.positional else set(self.names)
        self.has_list_column = "list" in schema.names and "list" not in allowed
        seen = set()
        for field in schema:
            column = f"column {quote(field.name)}"
            if field.name in seen:
                raise RequestError(422, "is there twice", column)
            seen.add(field.name)
            if field.name not in allowed and not (self.has_list_column and field.name == "list"):
                is_repeated = self.positional and field.name in self.names
                message = "is there beside 'features', which has all of them"
                raise RequestError(422, message if is_repeated else NO_FEATURE, column)
            self._check_type(field, column)
        for name, required in zip(self.names, ranker.required, strict=True):
            if required and name not in seen and not self.positional:
                raise RequestError(422, "is missing", f"column {quote(name)}")

    def _check_type(self, field: Any, column: str) -> None:
        """Raise a 422 if a column is of a wrong type; ``column`` names it in the error."""
        type, width = field.type, len(self.names)
        value_type = type.value_type if pa.types.is_dictionary(type) else type
        if self.has_list_column and field.name == "list":
            is_valid = pa.types.is_integer(value_type) or _is_text(value_type)
            expected = "texts or integers"
        elif self.positional:
            tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
            is_valid = any(test(type) for test in tests) and _is_number(type.value_type)
            expected = f"arrays of {width} numbers"
        elif self.names.index(field.name) in self.ranker.categorical:
            is_valid = _is_number(type) or _is_text(value_type)
            expected = "texts or of codes"
        else:
            is_valid, expected = _is_number(type), "numbers"
        if not is_valid:
            found = quote(str(type)).strip("'")  # shortened
            raise RequestError(422, f"must be of {expected}, found {found}", column)
        if pa.types.is_fixed_size_list(type) and type.list_size != width:
            message = f"each row must have {width} numbers, found {type.list_size}"
            raise RequestError(422, message, column)

    def features(self, table: Any) -> np.ndarray:
        """All features in the ranker's order, ``[N, f]``; NaN where a column is absent."""
        features = np.full((len(table), len(self.names)), np.nan, np.float32)
        with np.errstate(over="ignore"):  # _check_values refuses what becomes infinite
            if self.positional:
                features[:] = _feature_rows(table.column("features"), len(self.names))
            for index, name in enumerate(self.names):
                if not self.positional and name in table.column_names:
                    features[:, index] = self._column(table.column(name), index)
                elif self.positional and index in self.ranker.categorical:
                    features[:, index] = self._codes(features[:, index], index)
        return features

    def _column(self, column: Any, index: int) -> np.ndarray:
        """The values ``[N]`` of the column of one feature; of categories, the codes."""
        if index not in self.ranker.categorical:
            return np.asarray(column.to_numpy())
        if _is_number(column.type):
            return self._codes(column.to_numpy(), index)
        return self.ranker.categorical[index].codes_of_texts(_values(column))

    def _codes(self, values: np.ndarray, index: int) -> np.ndarray:
        """The codes ``[N]`` of a categorical feature from numbers ``[N]``."""
        try:
            return self.ranker.categorical[index].codes_of(values)
        except ValueError as error:
            message, row = error.args
            raise RequestError(422, message, f"column {quote(self.names[index])}[{row}]") from None


def _is_number(type: Any) -> bool:
    return bool(pa.types.is_floating(type) or pa.types.is_integer(type))


def _is_text(type: Any) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)  # of Polars
    return any(test(type) for test in tests)


def _values(column: Any) -> list[Any]:
    """The values of a column, ``[N]``.

    Of a dictionary only the entries that occur in rows are decoded, as it may be far larger.
    """
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        codes = chunk.indices.fill_null(0).to_numpy(zero_copy_only=False)
        is_valid = chunk.indices.is_valid().to_numpy(zero_copy_only=False)
        used_codes, inverse = np.unique(codes[is_valid], return_inverse=True)
        used_values = chunk.dictionary.take(pa.array(used_codes)).to_pylist()
        indices = np.full(len(codes), len(used_codes))  # null is after the values
        indices[is_valid] = inverse
        values += np.array([*used_values, None], object)[indices].tolist()
    return values


def _group(names: list[Any] | None, rows: int, limits: Limits) -> tuple[np.ndarray, list[Any]]:
    """Group rows into lists, by their names: the offsets ``[B + 1]`` and the ids ``[B]``.

    Args:
        names: the names, ``[N]``; None without a column ``list``.
        rows: the number of rows, N.
        limits: the limits of a request.
    """
    if names is None:
        check_count(rows, limits.items, "body", "rows, which are one list without 'list',")
        return np.array([0, rows]), [None]
    starts = [row for row in range(len(names)) if row == 0 or names[row] != names[row - 1]]
    ids = [names[row] for row in starts]
    if len(set(ids)) < len(ids):
        raise RequestError(422, "the rows of a list must be beside each other", "column 'list'")
    offsets = np.array([*starts, len(names)] if starts else [0])
    check_count(len(ids), limits.lists, "column 'list'", "lists")
    max_length = int(np.diff(offsets).max(initial=0))
    check_count(max_length, limits.items, "column 'list'", "items of one list")
    return offsets, ids


def _feature_rows(column: Any, width: int) -> np.ndarray:
    """The features ``[N, width]`` of the column ``features``, which has an array per item."""
    rows = column.combine_chunks()
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    invalid = np.flatnonzero(lengths != width)  # NaN where the row is null
    if len(invalid):
        length = "null" if np.isnan(lengths[invalid[0]]) else int(lengths[invalid[0]])
        message = f"each row must have {width} numbers, found {length}"
        raise RequestError(422, message, f"column 'features'[{invalid[0]}]")
    values = rows.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float32).reshape(len(rows), width)


def _check_values(items: np.ndarray, ranker: ServedRanker) -> None:
    """Raise a 422 that names the first value that is infinite, or missing and required."""
    invalid = ranker.wrong_values(items)
    if invalid.any():
        row, feature = np.argwhere(invalid)[0].tolist()
        field = f"column {quote(ranker.feature_names[feature])}[{row}]"
        message = f"must be a finite number within float32, found {items[row, feature]}"
        raise RequestError(422, message, field)
