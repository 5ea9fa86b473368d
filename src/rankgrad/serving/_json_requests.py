"""parse_json: the lists of a request whose body is JSON."""

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

_OTHERS = 16  # the most arrays and objects that are neither lists nor items nor arrays of items
_UNREADABLE = re.compile(rb"(?<!\d)\d{4301,}")  # integers that the parser refuses
_LARGEST = float(np.finfo(np.float32).max)


def parse_json(body: bytes, ranker: ServedRanker, limits: Limits) -> Lists:
    """The lists of a JSON body.

    ``{"lists": [{"id": "q1", "items": [...]}]}``; an item is an array of all features in the order
    of training, or an object of features by name. Categories are named, or given as codes.

    Raises:
        RequestError: 400 if this is not JSON or not lists, 413 for too much, 422 for errors in it.
    """
    shape = JsonShape.of(body)
    max_items = limits.most_items(len(ranker.feature_names))
    check_count(shape.lists, limits.lists, "lists", "lists")
    check_count(shape.items, max_items, "lists", "items in all its lists")
    if shape.others > _OTHERS + shape.lists:
        form = '{"lists": [{"items": [[...], ...]}, ...]}'
        raise RequestError(400, f"the body must be {form}: it is nested otherwise", "body")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        if "out of range" in str(error):
            parse_json(_UNREADABLE.sub(b"9" * 400, body), ranker, limits)  # names the field
        _refuse_nan(body)
        raise RequestError(400, f"the body is not JSON: {error}") from None
    entries = _array(value, "lists", "body")
    _check_names(value, ("lists",), "", "a body has 'lists'; the path names the ranker")
    check_count(len(entries), limits.lists, "lists", "lists")
    lists = [_list(entry, f"lists[{b}]", limits) for b, entry in enumerate(entries)]
    offsets = np.concatenate([[0], np.cumsum([len(items) for _, items in lists])]).astype(np.int64)
    check_count(int(offsets[-1]), max_items, "lists", "items in all its lists")
    reader = _Items(ranker, plain=not shape.texts and not shape.booleans)
    parts = [
        reader.features(items, f"lists[{b}].items") for b, (_, items) in enumerate(lists) if items
    ]
    empty = np.empty((0, len(ranker.feature_names)), np.float32)
    return Lists(
        parts[0] if len(parts) == 1 else np.concatenate([empty, *parts]),
        offsets,
        [identifier for identifier, _ in lists],
    )


def _refuse_nan(body: bytes) -> None:
    """Raise an error that names the field if NaN or Infinity is all that is not JSON in a body."""
    try:
        value = from_json(body)
    except ValueError:
        return
    field = _place_of_nan(value)
    if field is not None:
        message = "is not JSON: a missing value is null, and numbers are finite"
        raise RequestError(400, message, field.removeprefix(".") or "body")


def _place_of_nan(value: Any) -> str | None:
    """Where in a value the first number is that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, dict):
        parts = ((f".{name[:100]}", part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((f"[{i}]", part) for i, part in enumerate(value))
    else:
        return None
    places = ((name, _place_of_nan(part)) for name, part in parts)
    return next((f"{name}{place}" for name, place in places if place is not None), None)


def _list(entry: Any, where: str, limits: Limits) -> tuple[str | int | None, list[Any]]:
    """The id and the items of a list."""
    items = _array(entry, "items", where)
    _check_names(entry, ("id", "items"), f"{where}.", "a list has 'id' and 'items'")
    identifier = entry.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
        raise RequestError(422, "must be a text or a whole number", f"{where}.id")
    check_count(len(items), limits.items, f"{where}.items", "items")
    return identifier, items


def _check_names(value: dict[str, Any], allowed: tuple[str, ...], prefix: str, hint: str) -> None:
    unknown = next((name for name in value if name not in allowed), None)
    if unknown is not None:
        raise RequestError(422, f"is unknown: {hint}", f"{prefix}{unknown[:100]}")


def _array(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, dict):
        raise RequestError(422, f"must be an object with {name!r}", where)
    field = name if where == "body" else f"{where}.{name}"
    if name not in value:
        raise RequestError(422, "is missing", field)
    array = value[name]
    if not isinstance(array, list):
        raise RequestError(422, f"must be an array, found {_shown(array)}", field)
    return array


def _shown(value: Any) -> str:
    """A value in a message. Arrays and objects may be large, so they are not shown."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    return quote(value)


class _Items:
    """Reads items into arrays: all of a list at once; where one is wrong, value by value.

    Args:
        ranker: that they are for.
        plain: whether no feature of the request is a text or a boolean, which NumPy would take for
            numbers.
    """

    def __init__(self, ranker: ServedRanker, plain: bool) -> None:
        self.ranker, self.plain = ranker, plain
        self.names = ranker.feature_names
        self._known = frozenset(self.names)
        self._pick = itemgetter(*self.names) if len(self.names) > 1 else None

    def features(self, items: list[Any], where: str) -> np.ndarray:
        """The features of a list's items, ``[n, f]``."""
        features = self._together(items)
        if features is not None:
            return features
        rows = []
        for row, item in enumerate(items):
            features = self._together([item])
            if features is None:
                features = np.array([self._item(item, f"{where}[{row}]")], np.float32)
            rows.append(features)
        return np.concatenate(rows)

    def _together(self, items: list[Any]) -> np.ndarray | None:
        """The features of items, or None if something has to be read value by value."""
        rows = items
        if type(items[0]) is dict:
            if not all(type(item) is dict and item.keys() <= self._known for item in items):
                return None
            if self._pick is not None and all(len(item) == len(self.names) for item in items):
                rows = [self._pick(item) for item in items]
            else:
                rows = [[item.get(name) for name in self.names] for item in items]
        elif not all(type(item) is list and len(item) == len(self.names) for item in items):
            return None
        categorical = self.ranker.categorical
        try:
            if categorical:
                rows = [list(row) for row in rows]
                for column, feature in categorical.items():
                    for row in rows:
                        row[column] = _code(row[column], feature)
            if not self.plain and not set(map(type, chain(*rows))) <= {int, float, type(None)}:
                return None
            count = len(rows) * len(self.names)
            numbers = np.fromiter(chain.from_iterable(rows), np.float64, count)
        except (ValueError, TypeError, OverflowError):
            return None
        with np.errstate(over="ignore"):
            features = numbers.astype(np.float32).reshape(len(rows), -1)
        return None if self.ranker.wrong_values(features).any() else features

    def _item(self, item: Any, where: str) -> list[float]:
        """The features of one item. An error names the first value that is wrong."""
        if isinstance(item, dict):
            unknown = next((name for name in item if name not in self._known), None)
            if unknown is not None:
                raise RequestError(422, NO_FEATURE, f"{where}.{str(unknown)[:100]}")
            return [
                self._value(item.get(name), column, f"{where}.{name}", name in item)
                for column, name in enumerate(self.names)
            ]
        if not isinstance(item, list):
            raise RequestError(
                422,
                "must be an array of all features in order, or an object of them by name",
                where,
            )
        if len(item) != len(self.names):
            raise RequestError(
                422, f"must have {len(self.names)} features, found {len(item)}", where
            )
        return [self._value(value, i, f"{where}[{i}]") for i, value in enumerate(item)]

    def _value(self, value: Any, column: int, where: str, present: bool = True) -> float:
        if value is None:
            if not self.ranker.required[column]:
                return float("nan")
            message = "must be a number: this ranker takes no missing values"
            raise RequestError(422, message if present else "is missing", where)
        feature = self.ranker.categorical.get(column)
        if feature is not None:
            try:
                return _code(value, feature)
            except (ValueError, TypeError, OverflowError):
                message = f"must be {feature.expected}, found {_shown(value)}"
                raise RequestError(422, message, where) from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestError(422, f"must be a number, found {_shown(value)}", where)
        if not -_LARGEST <= value <= _LARGEST:
            raise RequestError(422, "is too large for float32", where)
        return float(value)


def _code(value: Any, feature: CategoricalFeature) -> float:
    """The code of a category, NaN of a missing one."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return feature.code(value)
