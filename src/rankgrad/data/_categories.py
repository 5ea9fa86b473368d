"""Categorical features: columns of codes, and the names that the codes stand for.

In a :class:`~rankgrad.data._dataset.Dataset` a categorical feature is a column of codes from 0, and
``Dataset.categories`` has the names; NaN is a missing or an unknown category. Names are sorted, so
that codes do not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankgrad._quoting import listing, quote
from rankgrad._shapes import Array
from rankgrad.data._dataset import Categories, Dataset, FeaturesError


def encode(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """The data set with some columns of numbers as categorical features.

    Args:
        dataset: columns that are categorical already stay as they are.
        columns: names of features, or their ids in a LETOR file.

    >>> from rankgrad.data import Dataset, _categories
    >>> data = Dataset([[7.0], [3.0], [7.0]], [0, 1, 0], [0, 3], ["q"], feature_names=["color"])
    >>> encoded = _categories.encode(data, ["color"])
    >>> encoded.features[:, 0].tolist(), encoded.categories
    ([1.0, 0.0, 1.0], (('3', '7'),))
    """
    found = list(dataset.categories or [None] * dataset.n_features)
    wanted = [at for at in (_column(dataset, name) for name in columns) if found[at] is None]
    if not wanted:
        return dataset
    features = np.array(dataset.features)
    for at in wanted:
        values = np.unique(features[:, at])
        values = values[~np.isnan(values)]
        found[at] = tuple(map(number_text, values.tolist()))
        codes = np.searchsorted(values, features[:, at]).astype(np.float32)
        features[:, at] = np.where(np.isnan(features[:, at]), np.nan, codes)
    return replace(dataset, features=features, categories=tuple(found), check=False)


def match(dataset: Dataset, categories: Categories | None) -> Dataset:
    """The data set with the codes of these categories, such as those of a trained ranker.

    Categories that are not among them become missing values, and a note says how many there are.

    Raises:
        FeaturesError: a feature is a number on one side and a category on the other.
    """
    kinds = dataset.categories or (None,) * dataset.n_features
    wanted = categories or (None,) * dataset.n_features
    if len(kinds) != len(wanted) or kinds == wanted:
        return dataset
    numbers = [at for at, names in enumerate(wanted) if names is not None and kinds[at] is None]
    dataset = encode(dataset, [_column_name(dataset, at) for at in numbers])
    features, unknown = np.array(dataset.features), 0
    for at, (old, new) in enumerate(zip(dataset.categories or kinds, wanted, strict=True)):
        if new is None and old is not None:
            raise FeaturesError(
                f"feature {_column_name(dataset, at)} is of texts here and of numbers in training"
            )
        if new is None or old is None or old == new:
            continue
        codes = {name: code for code, name in enumerate(new)}
        table = np.array([codes.get(name, np.nan) for name in old] or [np.nan], np.float32)
        there = ~np.isnan(features[:, at])
        features[there, at] = table[features[there, at].astype(np.int64)]
        unknown += int(there.sum() - (~np.isnan(features[:, at])).sum())
    notes = dataset.notes
    if unknown:
        notes += (f"{unknown:,} values are categories that are not in the training data",)
    return replace(dataset, features=features, categories=categories, notes=notes, check=False)


def number_columns(categories: Categories | None, width: int) -> list[int]:
    """Which of ``width`` columns are numbers, not codes of categories."""
    kinds = categories or (None,) * width
    return [at for at, names in enumerate(kinds) if names is None]


def sort_names(names: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """Names in order, and the new code of each old one."""
    order = np.argsort(np.array(names, object), kind="stable") if len(names) else np.zeros(0, int)
    new = np.empty(len(names), np.float32)
    new[order] = np.arange(len(names))
    return tuple(names[at] for at in order.tolist()), new


def _column(dataset: Dataset, name: str) -> int:
    known = [_column_name(dataset, at) for at in range(dataset.n_features)]
    if name not in known:
        raise FeaturesError(f"there is no feature {quote(name)}. There are: {listing(known)}")
    return known.index(name)


def _column_name(dataset: Dataset, at: int) -> str:
    """A feature's name, or its id in a LETOR file."""
    if dataset.feature_names is not None:
        return dataset.feature_names[at]
    return str(at if dataset.zero_based else at + 1)


def number_text(value: float) -> str:
    """The name of a category that is a number.

    >>> from rankgrad.data._categories import number_text
    >>> number_text(7.0), number_text(0.5)
    ('7', '0.5')
    """
    return str(int(value)) if np.isfinite(value) and value == int(value) else repr(value)


def encode_frame(
    X: Any, known: Categories | None = None, named: Sequence[str] = ()
) -> tuple[Any, Categories | None]:
    """A data frame or an array with codes in place of categories, and the names of these.

    Args:
        X: columns of pandas' dtype ``category`` are categorical features.
        known: the categories of the training data; others become missing values.
        named: further categorical features: columns of a data frame, indices of an array.
    """
    is_frame = hasattr(X, "isetitem")
    if not is_frame and (not isinstance(X, np.ndarray) or X.ndim != 2 or not (known or named)):
        return X, known
    kinds: list[tuple[str, ...] | None] = [None] * X.shape[1]
    if known is not None and len(known) == X.shape[1]:
        kinds = list(known)
    elif known is None:
        names = [str(name) for name in (X.columns if is_frame else range(X.shape[1]))]
        for name in map(str, named):
            if name not in names:
                raise ValueError(f"there is no column {quote(name)} in X: {listing(names)}")
        for at, name in enumerate(names):
            column = X.iloc[:, at] if is_frame else X[:, at]
            if hasattr(column, "cat"):
                kinds[at] = tuple(sorted(map(_text, column.cat.categories)))
            elif name in set(map(str, named)):
                there = (value for value in column if value is not None and value == value)
                kinds[at] = tuple(sorted(set(map(_text, there))))
    if not any(names is not None for names in kinds):
        return X, None
    encoded = X.copy() if is_frame else X.astype(np.float64)
    for at, texts in enumerate(kinds):
        if texts is None:
            continue
        codes = {text: float(code) for code, text in enumerate(texts)}
        column = X.iloc[:, at].astype(object) if is_frame else X[:, at]
        values = np.array([codes.get(_text(value), np.nan) for value in column], np.float64)
        if is_frame:
            encoded.isetitem(at, values)
        else:
            encoded[:, at] = values
    return encoded, tuple(kinds)


def _text(value: Any) -> str:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number_text(float(value)) if is_number and value == value else str(value)
