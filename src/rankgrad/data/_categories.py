"""Categorical features: columns of codes, and the names that the codes stand for.

In a :class:`~rankgrad.data._dataset.Dataset` a categorical feature is a column of codes from 0, and
``Dataset.categories`` has the names; NaN is a missing or an unknown category. Categories are
sorted, as numbers in :func:`encode` and as text elsewhere, so that codes do not depend on the order
of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankgrad._quoting import listing, quote
from rankgrad._shapes import Array
from rankgrad.data._dataset import Categories, Dataset, FeaturesError, names_of_features


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
    categories = list(dataset.categories or [None] * dataset.n_features)
    wanted = [at for at in (_column(dataset, name) for name in columns) if categories[at] is None]
    if not wanted:
        return dataset
    features = np.array(dataset.features)
    for at in wanted:
        values = np.unique(features[:, at])
        values = values[~np.isnan(values)]
        categories[at] = tuple(map(number_text, values.tolist()))
        codes = np.searchsorted(values, features[:, at]).astype(np.float32)
        features[:, at] = np.where(np.isnan(features[:, at]), np.nan, codes)
    return replace(dataset, features=features, categories=tuple(categories), check=False)


def match(dataset: Dataset, categories: Categories | None) -> Dataset:
    """Recode categorical columns to the codes of other categories, such as a trained ranker's.

    Columns of numbers that are categorical there are encoded. Values of other categories become
    NaN, and a note gives their number. Another number of features is left to the ranker to report.

    Raises:
        FeaturesError: a feature is categorical here and numeric in training.
    """
    kinds = dataset.categories or (None,) * dataset.n_features
    wanted = categories or (None,) * dataset.n_features
    if len(kinds) != len(wanted) or kinds == wanted:
        return dataset
    numbers = [at for at, names in enumerate(wanted) if names is not None and kinds[at] is None]
    names = names_of_features(dataset)
    dataset = encode(dataset, [names[at] for at in numbers])
    features, unknown = np.array(dataset.features), 0
    for at, (old, new) in enumerate(zip(dataset.categories or kinds, wanted, strict=True)):
        if new is None and old is not None:
            raise FeaturesError(f"feature {names[at]} is categorical here and numeric in training")
        if new is None or old is None or old == new:
            continue
        codes = {name: code for code, name in enumerate(new)}
        table = np.array([codes.get(name, np.nan) for name in old], np.float32)
        present = ~np.isnan(features[:, at])
        features[present, at] = table[features[present, at].astype(np.int64)]
        unknown += int(present.sum() - (~np.isnan(features[:, at])).sum())
    notes = dataset.notes
    if unknown:
        notes += (f"{unknown:,} values are categories that are not in the training data",)
    return replace(dataset, features=features, categories=categories, notes=notes, check=False)


def number_columns(categories: Categories | None, width: int) -> list[int]:
    """Which of ``width`` columns are numbers, not codes of categories."""
    kinds = categories or (None,) * width
    return [at for at, names in enumerate(kinds) if names is None]


def sort_names(names: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """The sorted names, and for each old code the new one."""
    order = np.argsort(np.array(names, object), kind="stable") if len(names) else np.zeros(0, int)
    new = np.empty(len(names), np.float32)
    new[order] = np.arange(len(names))
    return tuple(names[at] for at in order.tolist()), new


def _column(dataset: Dataset, name: str) -> int:
    known = names_of_features(dataset)
    if name not in known:
        raise FeaturesError(f"there is no feature {quote(name)}. There are: {listing(known)}")
    return known.index(name)


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
        known: the categories of the training data, by which X is encoded; others become missing
            values. None: find them in X.
        named: without ``known``, further categorical features: columns of a data frame, indices of
            an array.

    Returns:
        X unchanged if it is neither a data frame nor a matrix, or has another number of columns
        than ``known``: scikit-learn's validation reports that.
    """
    is_frame = hasattr(X, "isetitem")  # pandas', which need not be installed
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
                present = (value for value in column if not _is_missing(value))
                kinds[at] = tuple(sorted(set(map(_text, present))))
    if not any(names is not None for names in kinds):
        return X, None
    encoded = X.copy() if is_frame else X.astype(np.float64)
    for at, texts in enumerate(kinds):
        if texts is None:
            continue
        codes = {text: float(code) for code, text in enumerate(texts)}
        column = X.iloc[:, at].astype(object) if is_frame else X[:, at]
        values = [np.nan if _is_missing(v) else codes.get(_text(v), np.nan) for v in column]
        if is_frame:
            encoded.isetitem(at, np.array(values, np.float64))
        else:
            encoded[:, at] = values
    return encoded, tuple(kinds)


def _is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or pandas' NaT or NA, whose comparisons have no truth value."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _text(value: Any) -> str:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number_text(float(value)) if is_number and value == value else str(value)
