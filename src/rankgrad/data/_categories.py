"""Categorical features: columns of codes, and the names that the codes stand for.

In a :class:`~rankgrad.data._dataset.Dataset` a categorical feature is a column of codes 0, 1, ...;
``Dataset.categories`` has the names of its codes, or None for a column of numbers. NaN is a missing
or unknown category. Names are sorted, as numbers in :func:`encode` and as text elsewhere, so that
codes do not depend on the order of rows. The readers encode columns of files, the estimator those
of data frames (:func:`encode_frame`), and :func:`match` gives new data the codes of the training
data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from rankgrad._quoting import listing, quote
from rankgrad._shapes import Array
from rankgrad.data._dataset import Categories, Dataset, FeaturesError, names_of_features

_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0*)?")  # without leading zeros


def encode(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """Turn columns of numbers into categorical features.

    Args:
        dataset: its columns that are categorical already stay as they are.
        columns: the names of the features, or their ids in a LETOR file.

    >>> from rankgrad.data import Dataset, _categories
    >>> data = Dataset([[7.0], [3.0], [7.0]], [0, 1, 0], [0, 3], ["q"], feature_names=["color"])
    >>> encoded = _categories.encode(data, ["color"])
    >>> encoded.features[:, 0].tolist(), encoded.categories
    ([1.0, 0.0, 1.0], (('3', '7'),))
    """
    categories = list(dataset.categories or [None] * dataset.n_features)
    indices = [_column_index(dataset, name) for name in columns]
    number_indices = [j for j in indices if categories[j] is None]
    if not number_indices:
        return dataset
    features = np.array(dataset.features)
    for j in number_indices:
        values = np.unique(features[:, j])
        values = values[~np.isnan(values)]
        categories[j] = tuple(map(category_name, values))
        codes = np.searchsorted(values, features[:, j]).astype(np.float32)
        features[:, j] = np.where(np.isnan(features[:, j]), np.nan, codes)
    return replace(dataset, features=features, categories=tuple(categories), check=False)


def match(dataset: Dataset, categories: Categories | None) -> Dataset:
    """Recode categorical columns to the codes of the training data.

    Columns of numbers that are categorical in training are encoded. Values of categories that are
    not in the training data become NaN, and a note gives their number. If the number of features
    differs, the data set is returned as it is: the ranker reports that.

    Args:
        dataset: new data.
        categories: ``[F]``, of the training data; None if all its features are numbers.

    Raises:
        FeaturesError: a feature is categorical here and numeric in training.
    """
    current = dataset.categories or (None,) * dataset.n_features
    trained = categories or (None,) * dataset.n_features
    if len(current) != len(trained) or current == trained:
        return dataset
    names = names_of_features(dataset)
    pairs = zip(names, current, trained, strict=True)
    dataset = encode(dataset, [name for name, old, new in pairs if old is None and new is not None])
    features, unknown = np.array(dataset.features), 0
    for j, (old, new) in enumerate(zip(dataset.categories or current, trained, strict=True)):
        if new is None and old is not None:
            raise FeaturesError(f"feature {names[j]} is categorical here and numeric in training")
        if new is None or old is None or old == new:
            continue
        codes = category_codes(new)
        by_old_code = [codes.get(category_name(name), np.nan) for name in old]
        new_codes = np.array(by_old_code, np.float32)
        present = ~np.isnan(features[:, j])
        features[present, j] = new_codes[features[present, j].astype(np.int64)]
        unknown += int(present.sum() - (~np.isnan(features[:, j])).sum())
    notes = dataset.notes
    if unknown:
        notes += (f"{unknown:,} values are categories that are not in the training data",)
    return replace(dataset, features=features, categories=categories, notes=notes, check=False)


def number_columns(categories: Categories | None, width: int) -> list[int]:
    """The indices, among ``width`` columns, of those that are numbers and not categorical."""
    return [j for j, names in enumerate(categories or (None,) * width) if names is None]


def sort_names(names: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """The names in sorted order; and ``[n]``, for each name as given, its index in that order."""
    order = sorted(range(len(names)), key=names.__getitem__)
    codes = np.empty(len(names), np.float32)
    codes[order] = np.arange(len(names))
    return tuple(names[i] for i in order), codes


def category_name(value: Any) -> str:
    """The name of the category that a value stands for, whatever file or request it comes from.

    Whole numbers are written without a fraction, also in texts, since a text file may have 7.0
    where a column of integers has 7.

    Args:
        value: a text, a number, a truth value, or any other object.

    >>> from rankgrad.data._categories import category_name
    >>> [category_name(value) for value in (7, 7.0, "7.0", np.float32(0.1), True, "True", "red")]
    ['7', '7', '7', '0.1', 'true', 'true', 'red']
    """
    if isinstance(value, float | np.floating | Decimal):
        is_whole = np.isfinite(float(value)) and value == int(value)
        value = int(value) if is_whole else float(value) if isinstance(value, Decimal) else value
    text = str(value)
    if whole := _WHOLE_NUMBER.fullmatch(text):
        return "0" if whole[1] == "-0" else whole[1]
    return text.lower() if text.lower() in ("true", "false") else text


def category_codes(names: Sequence[str]) -> dict[str, float]:
    """The codes of categories by :func:`category_name` of their names.

    Names that are not in that form are those of data that an earlier version read.
    """
    codes = {category_name(name): float(code) for code, name in enumerate(names)}
    return codes | {name: float(code) for code, name in enumerate(names)}


def encode_frame(
    X: Any, categories: Categories | None = None, categorical: Sequence[str] = ()
) -> tuple[Any, Categories | None]:
    """Encode the categorical columns of a data frame, an array or a sparse matrix.

    Args:
        X: ``[N, F]``; columns of pandas' dtype ``category`` are categorical features.
        categories: ``[F]``, of the training data: they give the codes, and values that are not
            among them become missing. None: X is training data, and its own categories are taken.
        categorical: without ``categories``, further categorical features: columns of a data frame,
            indices of an array.

    Returns:
        X with codes in place of categories, and the categories. X is returned as it is, with None,
        if no column is categorical; also if it is not a matrix, or has another number of columns
        than ``categories``, which scikit-learn's validation reports.
    """
    is_frame = hasattr(X, "isetitem")  # a method of pandas, which need not be installed
    if not is_frame:
        if not categorical and not any(names is not None for names in categories or ()):
            return X, None
        X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
        if X.ndim != 2:
            return X, None
    if categories is None:
        categories = _frame_categories(X, is_frame, list(map(str, categorical)))
    if len(categories) != X.shape[1] or not any(names is not None for names in categories):
        return X, None
    # An array of texts or objects has numbers, too, which scikit-learn's validation reads later.
    encoded = X.copy() if is_frame else X.astype(object if X.dtype.kind in "OUS" else np.float64)
    for j, names in enumerate(categories):
        if names is None:
            continue
        codes = category_codes(names)
        column = X.iloc[:, j].astype(object) if is_frame else X[:, j]
        values = [np.nan if _is_missing(v) else codes.get(category_name(v), np.nan) for v in column]
        if is_frame:
            encoded.isetitem(j, np.array(values, np.float64))
        else:
            encoded[:, j] = values
    return encoded, categories


def _column_index(dataset: Dataset, name: str) -> int:
    names = names_of_features(dataset)
    if name not in names:
        raise FeaturesError(f"there is no feature {quote(name)}. There are: {listing(names)}")
    return names.index(name)


def _frame_categories(X: Any, is_frame: bool, categorical: Sequence[str]) -> Categories:
    """The categories of columns of dtype ``category`` or in ``categorical``; None for others."""
    columns = [str(name) for name in (X.columns if is_frame else range(X.shape[1]))]
    for name in categorical:
        if name not in columns:
            raise ValueError(f"there is no column {quote(name)} in X: {listing(columns)}")
    categories: list[tuple[str, ...] | None] = [None] * len(columns)
    for j, name in enumerate(columns):
        column = X.iloc[:, j] if is_frame else X[:, j]
        if hasattr(column, "cat"):
            categories[j] = tuple(sorted(map(category_name, column.cat.categories)))
        elif name in categorical:
            present = (value for value in column if not _is_missing(value))
            categories[j] = tuple(sorted(set(map(category_name, present))))
    return tuple(categories)


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NaT or NA."""
    # NA is recognized by its type: NA != NA is NA, which has no truth value.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)
