"""parse_json: the lists of a request whose body is JSON.

Sizes are checked before the body is parsed (``_json_shape``). Then all items of a list are
converted at once. Only if that fails, items are read one by one, and the wrong one value by value,
so that the error names the wrong field.
"""

from __future__ import annotations

import math
import re
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from pydantic_core import from_json

from rankgrad._quoting import quote
from rankgrad.serving._bodies import NO_FEATURE, Limits, Lists, RequestError, check_count
from rankgrad.serving._categorical import CategoricalFeature
from rankgrad.serving._json_shape import JsonShape
from rankgrad.serving._served_ranker import ServedRanker

_MAX_OTHERS = 16  # arrays and objects that are neither lists nor items nor arrays of items
_MAX_NAME = 100  # characters of a client's name in the field of an error
#: Integers of more than 4300 digits, which the parser refuses.
_HUGE_INTEGERS = re.compile(rb"(?<!\d)\d{4301,}")
#: An integer that the parser takes, and that is too large for float32.
_LARGE_INTEGER = b"9" * 400
_NUMBER_TYPES = {int, float, type(None)}  # None is a missing value, NaN
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def parse_json(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of a JSON body.

    The body is ``{"lists": [{"id": "q1", "items": [...]}]}``. An item is an array of all features
    in the order of training, or an object of features by name. The value of a categorical feature
    is the name or the code of a category.

    Args:
        body: the body of the request.
        ranker: the ranker that the lists are for.
        limits: the most lists, and items of a list and of the request.

    Raises:
        RequestError: 400 if the body is not JSON or is nested otherwise, 413 if it is too large,
            422 for other errors.
    """
    shape = JsonShape.of(body)
    max_items = limits.most_items(len(ranker.feature_names))
    check_count(shape.lists, limits.lists, "lists", "lists")
    check_count(shape.items, max_items, "lists", "items in all its lists")
    if shape.others > _MAX_OTHERS + shape.lists:
        form = '{"lists": [{"items": [[...], ...]}, ...]}'
        raise RequestError(400, f"the body must be {form}: it is nested otherwise", "body")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        if "out of range" in str(error):
            # With integers that can be parsed, this raises an error that names the wrong field.
            parse_json(_HUGE_INTEGERS.sub(_LARGE_INTEGER, body), ranker, limits)
        _refuse_nan(body)
        raise RequestError(400, f"the body is not JSON: {error}") from None
    entries = _array_field(value, "lists", "body")
    _check_keys(value, ("lists",), "", "a body has 'lists'; the path names the ranker")
    check_count(len(entries), limits.lists, "lists", "lists")
    lists = [_parse_list(entry, f"lists[{b}]", limits) for b, entry in enumerate(entries)]
    offsets = np.concatenate([[0], np.cumsum([len(items) for _, items in lists])]).astype(np.int64)
    check_count(int(offsets[-1]), max_items, "lists", "items in all its lists")
    reader = _ItemReader(ranker, only_numbers=not shape.texts and not shape.booleans)
    parts = [
        reader.features(items, f"lists[{b}].items") for b, (_, items) in enumerate(lists) if items
    ]
    empty = np.empty((0, len(ranker.feature_names)), np.float32)
    return Lists(
        parts[0] if len(parts) == 1 else np.concatenate([empty, *parts]),
        offsets,
        [id for id, _ in lists],
    )


def _refuse_nan(body: bytes) -> None:
    """Raise an error that names the field if NaN or Infinity is all that is wrong with a body."""
    try:
        value = from_json(body)
    except ValueError:
        return
    field = _path_of_nan(value)
    if field is not None:
        message = "is not JSON: a missing value is null, and numbers are finite"
        raise RequestError(400, message, field.removeprefix(".") or "body")


def _path_of_nan(value: Any) -> str | None:
    """The path of the first NaN or infinity in a value, such as ``.lists[0]``; None without any.

    The path is empty if the value itself is that number.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, dict):
        parts = ((f".{name[:_MAX_NAME]}", part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((f"[{i}]", part) for i, part in enumerate(value))
    else:
        return None
    paths = ((name, _path_of_nan(part)) for name, part in parts)
    return next((f"{name}{path}" for name, path in paths if path is not None), None)


def _parse_list(entry: Any, where: str, limits: Limits) -> tuple[str | int | None, list[Any]]:
    """The id and the items of a list; ``where`` is its path, for errors."""
    items = _array_field(entry, "items", where)
    _check_keys(entry, ("id", "items"), f"{where}.", "a list has 'id' and 'items'")
    id = entry.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int | None):
        raise RequestError(422, "must be a text or a whole number", f"{where}.id")
    check_count(len(items), limits.items, f"{where}.items", "items")
    return id, items


def _check_keys(value: dict[str, Any], allowed: tuple[str, ...], prefix: str, hint: str) -> None:
    """Raise a 422 if an object has a key that is not allowed.

    Args:
        value: the object.
        allowed: its keys.
        prefix: the path of the object and a dot, or nothing for the body.
        hint: which keys there are, for the error.
    """
    unknown = next((name for name in value if name not in allowed), None)
    if unknown is not None:
        raise RequestError(422, f"is unknown: {hint}", f"{prefix}{unknown[:_MAX_NAME]}")


def _array_field(value: Any, name: str, where: str) -> list[Any]:
    """The array ``name`` of the object ``value`` at the path ``where``; raises a 422 without it."""
    if not isinstance(value, dict):
        raise RequestError(422, f"must be an object with {name!r}", where)
    field = name if where == "body" else f"{where}.{name}"
    if name not in value:
        raise RequestError(422, "is missing", field)
    array = value[name]
    if not isinstance(array, list):
        raise RequestError(422, f"must be an array, found {_describe(array)}", field)
    return array


def _describe(value: Any) -> str:
    """A value for an error. Arrays and objects may be large, so they are not shown."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    return quote(value)


class _ItemReader:
    """Reads items into arrays: all of a list at once or, if one may be wrong, one by one.

    Args:
        ranker: the ranker that the items are for.
        only_numbers: whether no feature of the request is a text or a boolean. NumPy would convert
            these to numbers.
    """

    def __init__(self, ranker: ServedRanker, only_numbers: bool) -> None:
        self.ranker, self.only_numbers = ranker, only_numbers
        self.names = ranker.feature_names
        self._name_set = frozenset(self.names)
        # An itemgetter of one name would return a value instead of a tuple.
        self._pick_features = itemgetter(*self.names) if len(self.names) > 1 else None

    def features(self, items: list[Any], where: str) -> np.ndarray:
        """The features of a list's items, ``[n, f]``; ``where`` is their path, for errors."""
        features = self._read_together(items)
        if features is not None:
            return features
        rows = []
        for row, item in enumerate(items):
            features = self._read_together([item])
            if features is None:
                features = np.array([self._read_item(item, f"{where}[{row}]")], np.float32)
            rows.append(features)
        return np.concatenate(rows)

    def _read_together(self, items: list[Any]) -> np.ndarray | None:
        """The features ``[n, f]`` of items, at least one; None if a value may be wrong.

        Items that are arrays and items that are objects are not read together.
        """
        rows = items
        if type(items[0]) is dict:
            if not all(type(item) is dict and item.keys() <= self._name_set for item in items):
                return None
            have_all = all(len(item) == len(self.names) for item in items)
            if have_all and self._pick_features is not None:
                rows = [self._pick_features(item) for item in items]
            else:
                rows = [[item.get(name) for name in self.names] for item in items]
        elif not all(type(item) is list and len(item) == len(self.names) for item in items):
            return None
        categorical = self.ranker.categorical
        try:
            if categorical:
                rows = [list(row) for row in rows]  # copies, as the items may be read again
            for column, feature in categorical.items():
                for row in rows:
                    row[column] = _category_code(row[column], feature)
            if not self.only_numbers and not set(map(type, chain(*rows))) <= _NUMBER_TYPES:
                return None
            count = len(rows) * len(self.names)
            numbers = np.fromiter(chain.from_iterable(rows), np.float64, count)
        except (ValueError, TypeError, OverflowError):
            return None
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
            features = numbers.astype(np.float32).reshape(len(rows), -1)
        return None if self.ranker.wrong_values(features).any() else features

    def _read_item(self, item: Any, where: str) -> list[float]:
        """The features ``[f]`` of one item. An error names the first value that is wrong."""
        if isinstance(item, dict):
            unknown = next((name for name in item if name not in self._name_set), None)
            if unknown is not None:
                raise RequestError(422, NO_FEATURE, f"{where}.{str(unknown)[:_MAX_NAME]}")
            return [
                self._read_value(item.get(name), column, f"{where}.{name}", name in item)
                for column, name in enumerate(self.names)
            ]
        if not isinstance(item, list):
            message = "must be an array of all features in order, or an object of them by name"
            raise RequestError(422, message, where)
        if len(item) != len(self.names):
            message = f"must have {len(self.names)} features, found {len(item)}"
            raise RequestError(422, message, where)
        return [self._read_value(value, i, f"{where}[{i}]") for i, value in enumerate(item)]

    def _read_value(self, value: Any, column: int, where: str, present: bool = True) -> float:
        """The value of a feature; NaN if it is missing and may be.

        Args:
            value: the value; None for null, and for a feature that is left out.
            column: the index of the feature.
            where: the path of the value, for errors.
            present: False for a feature that is left out.
        """
        if value is None:
            if not self.ranker.required[column]:
                return float("nan")
            message = "must be a number: this ranker takes no missing values"
            raise RequestError(422, message if present else "is missing", where)
        feature = self.ranker.categorical.get(column)
        if feature is not None:
            try:
                return _category_code(value, feature)
            except (ValueError, TypeError, OverflowError):
                message = f"must be {feature.expected}, found {_describe(value)}"
                raise RequestError(422, message, where) from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestError(422, f"must be a number, found {_describe(value)}", where)
        if not -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
            raise RequestError(422, "is too large for float32", where)
        return float(value)


def _category_code(value: Any, feature: CategoricalFeature) -> float:
    """The code of a category by its name or code; NaN for null and for unknown names.

    Raises:
        TypeError: the value is neither a text nor a number.
        ValueError: the value is a number, but not a code. (OverflowError if it is too large.)
    """
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return feature.code(value)
