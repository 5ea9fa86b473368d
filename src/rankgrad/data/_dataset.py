"""Dataset: lists of items with features and graded labels, flat, with offsets.

What every reader gives and everything that trains, scores or writes takes. The arrays may be memory
maps, so nothing here copies features that are of the right type already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any

import numpy as np

from rankgrad._quoting import quote
from rankgrad.data import _memory_limit
from rankgrad.data._checksummed import ChecksummedArray

#: By feature: the names of its categories, or None if it is a number.
Categories = tuple[tuple[str, ...] | None, ...]

LONGEST_ID = 1024  # characters of a query's or an item's id: arrays of text are as wide as it
_BLOCK = 1 << 24  # bytes hashed, or values checked, at a time
_PER_ITEM = ("features", "labels", "weights", "ids", "source_rows")  # arrays with a row per item
_SHOWN = 8  # distinct labels that repr spells out


def categories_of(names: Sequence[Sequence[str] | None] | None) -> Categories | None:
    """Categories as JSON has them, with lists in place of tuples."""
    if names is None:
        return None
    return tuple(None if of_feature is None else tuple(of_feature) for of_feature in names)


def features_of(source: Any) -> dict[str, Any]:
    """Options of :func:`rankgrad.data.load` for the features of a data set or a fitted ranker."""
    names = ("n_features", "zero_based", "feature_names", "categories")
    return {name: getattr(source, name) for name in names}


def names_of_features(source: Any) -> tuple[str, ...]:
    """The names of the features of a data set or a fitted ranker; else their numbers in LETOR."""
    if source.feature_names is not None:
        return tuple(source.feature_names)
    first = 0 if source.zero_based else 1
    return tuple(str(first + column) for column in range(source.n_features))


class FeaturesError(ValueError):
    """Data do not have the features that were asked for, such as those of a trained ranker."""


class ArrayError(ValueError):
    """An array of a data set is wrong; ``array`` is its name, with which the message begins."""

    def __init__(self, array: str, what: str) -> None:
        super().__init__(f"{array} {what}")
        self.array = array


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Lists of items: list ``b`` has the rows ``offsets[b]:offsets[b + 1]``.

    Arrays are converted to the types below and checked; an error names the array, the position and
    the value. ``check=False`` leaves out the checks that read values, for data checked before.

    >>> from rankgrad.data import Dataset
    >>> data = Dataset(np.eye(3), labels=[2, 0, 1], offsets=[0, 1, 3], qids=["a", "b"])
    >>> data
    Dataset(2 lists, 3 items, 3 features; labels 0: 33.3%, 1: 33.3%, 2: 33.3%)
    >>> data.select([1]).labels.tolist()
    [0.0, 1.0]
    >>> Dataset(np.eye(2), labels=[2, -1], offsets=[0, 2], qids=["a"])
    Traceback (most recent call last):
    rankgrad.data._dataset.ArrayError: labels must be finite ...; item 1 (list 0, qid 'a') has -1.0
    """

    features: np.ndarray  # [N, F] float32, C order; NaN is a missing value
    labels: np.ndarray  # [N] float32
    offsets: np.ndarray  # [B + 1] int64
    qids: np.ndarray  # [B] of str, unique, in order of first appearance
    weights: np.ndarray | None = None  # [N] float32, item weights
    ids: np.ndarray | None = None  # [N] of str, item ids
    feature_names: tuple[str, ...] | None = None  # F of them
    notes: tuple[str, ...] = ()  # what was done on reading that a person should know
    zero_based: bool | None = None  # LETOR files: whether feature ids start at 0
    source_rows: np.ndarray | None = None  # [N] int64, of each item in its file, if out of order
    categories: Categories | None = None  # F of them: the names of the codes, None for numbers
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        names = self.feature_names
        self._set("features", _numbers("features", self.features, np.float32, 2, names))
        for name in ("labels", "offsets", "qids", "weights", "ids", "source_rows"):
            if (array := getattr(self, name)) is not None:
                self._set(name, _column(name, array))
        if self.feature_names is not None:
            self._set("feature_names", tuple(map(str, self.feature_names)))
        self._set("notes", tuple(self.notes))
        self._check_shapes()
        if check:
            self._check_qids()
            self._check_source_rows()
            self.check_numbers()

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.qids)

    @property
    def n_items(self) -> int:
        """The number of items of all lists together."""
        return len(self.labels)

    @property
    def n_features(self) -> int:
        """The number of features of an item."""
        return int(self.features.shape[1])

    @property
    def lengths(self) -> np.ndarray:
        """The number of items of each list, ``[B]``."""
        return np.diff(self.offsets)

    @property
    def source_order(self) -> np.ndarray | None:
        """The items in the order of the rows of their file, ``[N]``; None where they stand so.

        Readers bring the rows of a query together where the file has them apart.
        """
        return None if self.source_rows is None else np.argsort(self.source_rows, kind="stable")

    def select(self, lists: Sequence[int] | np.ndarray) -> Dataset:
        """The lists at these indices (or where a boolean array is True), in this order.

        Lists that lie beside each other are given as views, anything else as a copy.
        """
        indices = self._indices(lists)
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rows: Any
        if len(indices) and (np.diff(indices) == 1).all():
            rows = slice(int(self.offsets[indices[0]]), int(self.offsets[indices[-1] + 1]))
        else:
            starts = self.offsets[:-1][indices]
            rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        arrays = {name: getattr(self, name) for name in _PER_ITEM}
        chosen: dict[str, Any] = {k: _rows(v, rows) for k, v in arrays.items() if v is not None}
        return replace(self, **chosen, offsets=offsets, qids=self.qids[indices], check=False)

    def widen(self, n_features: int) -> Dataset:
        """The same lists with features of zeros added at the end, up to ``n_features``.

        For sparse files, in which a feature that is zero throughout does not appear.
        """
        missing = n_features - self.n_features
        if missing < 0:
            raise ValueError(
                f"cannot widen {self.n_features} features to {n_features}: that would drop some"
            )
        if missing == 0:
            return self
        if self.feature_names is not None:
            raise ValueError(
                f"cannot add {missing} features to {self.n_features} that have names: the new ones "
                "would have none"
            )
        what = f"{self.n_items:,} rows, widened to {n_features:,} features,"
        hint = "the other data that go with these name that many features: are they meant?"
        _memory_limit.check(4 * self.n_items * n_features, _memory_limit.available(), what, hint)
        features = np.zeros((self.n_items, n_features), np.float32)
        features[:, : self.n_features] = self.features
        categories = None if self.categories is None else self.categories + (None,) * missing
        return replace(self, features=features, categories=categories, check=False)

    def check_numbers(self) -> None:
        """Offsets must not fall; labels and weights must be finite and at least 0.

        What ``check=True`` checks, less the qids: little work beside reading the features.
        """
        self._check_offsets()
        self._check_values("labels", self.labels)
        if self.weights is not None:
            self._check_values("weights", self.weights)

    def checksum(self) -> str:
        """A hash of the contents: equal for equal data, however it was stored or read.

        Item ids do not count: no ranker and no metric depends on them.
        """
        digest = hashlib.blake2b(digest_size=16)
        for name in ("features", "labels", "offsets", "weights"):
            array = getattr(self, name)
            if array is not None:
                digest.update(f"{name}{array.shape}".encode())
                _hash_array(digest, array)
        texts_of = {"qids": self.qids, "names": self.feature_names}
        for at, names in enumerate(self.categories or ()):
            texts_of[f"categories{at}"] = names
        for name, texts in texts_of.items():
            if texts is not None:
                digest.update(f"{name}{len(texts)}".encode())
                for text in texts:
                    encoded = str(text).encode("utf-8", "surrogateescape")
                    digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return (
            f"Dataset({len(self):,} lists, {self.n_items:,} items, {self.n_features:,} features; "
            f"{_histogram(self.labels)})"
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen from here on

    def _check_shapes(self) -> None:
        items, columns = self.features.shape
        for name in _PER_ITEM:
            array = getattr(self, name)
            if array is not None and len(array) != items:
                raise ArrayError(
                    name,
                    f"must have one value per item: features have {items} rows, "
                    f"{name} {len(array)}",
                )
        if len(self.offsets) != len(self.qids) + 1:
            raise ArrayError(
                "offsets",
                f"must have one value more than there are qids, {len(self.qids)} + 1; "
                f"found {len(self.offsets)}",
            )
        if self.offsets[0] != 0 or self.offsets[-1] != items:
            raise ArrayError(
                "offsets",
                f"must run from 0 to the number of items, {items}; found "
                f"{self.offsets[0]} to {self.offsets[-1]}",
            )
        if self.categories is not None and len(self.categories) != columns:
            raise ValueError(
                f"categories must have an entry for each of {columns} features, found "
                f"{len(self.categories)}"
            )
        if self.feature_names is not None and len(self.feature_names) != columns:
            raise ValueError(
                f"feature_names must name each of {columns} features, found "
                f"{len(self.feature_names)} names"
            )

    def _check_offsets(self) -> None:
        falls = np.flatnonzero(self.offsets[1:] < self.offsets[:-1])  # differences may overflow
        if len(falls):
            at = int(falls[0]) + 1
            raise ArrayError(
                "offsets",
                f"must not fall; offsets[{at}] = {self.offsets[at]} follows {self.offsets[at - 1]}",
            )

    def _check_qids(self) -> None:
        unique, first = np.unique(self.qids, return_index=True)
        if len(unique) != len(self.qids):
            at = int(np.setdiff1d(np.arange(len(self.qids)), first)[0])
            before = int(np.flatnonzero(self.qids == self.qids[at])[0])
            raise ArrayError(
                "qids",
                f"must be unique: lists {before} and {at} both have {quote(str(self.qids[at]))}",
            )

    def _check_source_rows(self) -> None:
        if self.source_rows is None:
            return
        unique, counts = np.unique(self.source_rows, return_counts=True)
        if len(unique) != self.n_items:
            raise ArrayError(
                "source_rows", f"must be distinct; {unique[counts > 1][0]} is there twice"
            )

    def _check_values(self, name: str, values: np.ndarray) -> None:
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            bad = ~(block >= 0) | np.isinf(block)
            if not bad.any():
                continue
            item = start + int(bad.argmax())
            at = int(np.searchsorted(self.offsets, item, side="right")) - 1
            raise ArrayError(
                name,
                f"must be finite and at least 0; item {item} (list {at}, qid "
                f"{quote(str(self.qids[at]))}) has {values[item]}",
            )

    def _indices(self, lists: Sequence[int] | np.ndarray) -> np.ndarray:
        indices = np.asarray(lists)
        if indices.dtype == bool and indices.shape == (len(self),):
            return np.flatnonzero(indices)
        if indices.size == 0:
            return np.empty(0, np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(
                f"select takes list indices in one dimension, or a boolean array of {len(self)}; "
                f"found {indices.dtype} {list(indices.shape)}"
            )
        outside = (indices < 0) | (indices >= len(self))
        if outside.any():
            raise IndexError(f"there are {len(self)} lists; found index {indices[outside][0]}")
        values, counts = np.unique(indices, return_counts=True)
        if len(values) != len(indices):
            raise ValueError(f"select takes each list once; {values[counts > 1][0]} is there twice")
        return indices.astype(np.int64, copy=False)


def as_float32(
    name: str, array: np.ndarray, feature_names: Sequence[str] | None = None, *, first: int = 0
) -> np.ndarray:
    """The numbers in float32 and C order; one that is too large for it is an error that names it.

    Args:
        name: of the array, for the error.
        array: ``[N]``, or features ``[N, F]``.
        feature_names: of the columns, if they have names.
        first: the number of the first row, where the array is a part of a longer one.

    >>> from rankgrad.data._dataset import as_float32
    >>> as_float32("features", np.array([[1.0, 2e300]]), ["age", "price"])
    Traceback (most recent call last):
    ValueError: feature 'price' at index 1 (counting from 0) of row 0 is 2e+300, too large for
        float32, which ends at 3.4e+38: bring it to another scale, such as its logarithm
    """
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(array, dtype=np.float32)
    if array.dtype.itemsize <= narrow.itemsize:
        return narrow
    infinite = np.isinf(narrow)
    if not infinite.any() or not (lost := infinite & np.isfinite(array)).any():
        return narrow
    place = tuple(np.argwhere(lost)[0].tolist())
    row = first + place[0]
    where = f"{name}[{row}]"
    if array.ndim == 2:
        known = dict(enumerate(feature_names if feature_names is not None else ()))
        named = f" {known[place[1]]!r}" if place[1] in known else ""
        where = f"feature{named} at index {place[1]} (counting from 0) of row {row}"
    raise ValueError(
        f"{where} is {array[place]:g}, too large for float32, which ends at "
        f"{np.finfo(np.float32).max:.1e}: bring it to another scale, such as its logarithm"
    )


def _as_array(values: Any) -> Any:
    return values if isinstance(values, (np.ndarray, ChecksummedArray)) else np.asarray(values)


def _numbers(
    name: str,
    values: Any,
    dtype: type[np.number[Any]],
    dims: int,
    feature_names: Sequence[str] | None = None,
) -> np.ndarray:
    """An array of numbers in its type, uncopied where it is already; memory maps stay so."""
    array: np.ndarray = _as_array(values)
    if array.ndim != dims:
        raise ArrayError(name, f"must have {dims} dimension(s), found shape {list(array.shape)}")
    whole = issubclass(dtype, np.integer)
    if array.dtype.kind not in ("iu" if whole else "iufb") and array.size:
        kind = "whole numbers" if whole else "real numbers"
        raise ArrayError(name, f"must be {kind}, found {array.dtype}")
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    if whole:
        return np.ascontiguousarray(array, dtype=dtype)
    return as_float32(name, array, feature_names)


def _column(name: str, values: Any) -> np.ndarray:
    """An array with a value per item or list, in its type."""
    if name in ("qids", "ids"):
        return _texts(name, values)
    whole = name in ("offsets", "source_rows")
    return _numbers(name, values, np.int64 if whole else np.float32, 1)


def _rows(array: Any, rows: Any) -> np.ndarray:
    """Some rows of an array; slicing a :class:`ChecksummedArray` does not read it."""
    unread = isinstance(array, ChecksummedArray) and isinstance(rows, slice)
    part: np.ndarray = array.part(rows.start, rows.stop) if unread else array[rows]
    return part


def id_array(name: str, values: Sequence[str]) -> np.ndarray:
    """Ids of queries or items as an array of text, each as wide as the longest.

    Raises:
        ValueError: an id is too long, or all together would not fit in memory.

    >>> from rankgrad.data._dataset import id_array
    >>> id_array("qids", ["a", "bc"]).dtype
    dtype('<U2')
    """
    lengths = [len(value) for value in values]
    longest = max(lengths, default=0)
    if longest > LONGEST_ID:
        raise ValueError(
            f"{name}[{lengths.index(longest)}] has {longest:,} characters, and at most "
            f"{LONGEST_ID:,} are taken: {quote(values[lengths.index(longest)])}"
        )
    what = f"{name}: {len(values):,} ids, the longest of {longest:,} characters,"
    limit = _memory_limit.available()
    _memory_limit.check(4 * longest * len(values), limit, what, "give shorter ids")
    return np.array(values, np.str_)


def group_rows(codes: np.ndarray, lists: int) -> tuple[np.ndarray, np.ndarray | None, int]:
    """The offsets of lists whose rows may not be contiguous, and how to bring these together.

    Args:
        codes: ``[N]``, the list of each row, numbered by first appearance.
        lists: how many there are.

    Returns:
        The offsets; the rows in the order of their lists, None if they are contiguous; and the
        number of lists whose rows are not contiguous.

    >>> from rankgrad.data._dataset import group_rows
    >>> group_rows(np.array([0, 1, 1, 0]), 2)
    (array([0, 2, 4]), array([0, 3, 1, 2]), 1)
    """
    begins = np.concatenate([[True], codes[1:] != codes[:-1]])
    scattered = int((np.bincount(codes[begins], minlength=lists) > 1).sum())
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=lists))])
    return offsets, np.argsort(codes, kind="stable") if scattered else None, scattered


def canonical_nan(array: np.ndarray) -> np.ndarray:
    """The array with one pattern of bits for NaN, so that equal data have equal checksums."""
    if array.dtype.kind != "f" or not (missing := np.isnan(array)).any():
        return array
    return np.where(missing, array.dtype.type(np.nan), array)


def _texts(name: str, values: Any) -> np.ndarray:
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        values = id_array(name, values)
    array: np.ndarray = _as_array(values)
    if array.ndim != 1:
        raise ArrayError(name, f"must have 1 dimension, found shape {list(array.shape)}")
    if array.dtype.kind == "O":  # any objects; their texts may be of any length
        return id_array(name, list(map(str, array)))
    if array.dtype.kind != "U":
        return array.astype(np.str_)
    if array.dtype.itemsize > 4 * LONGEST_ID:
        return id_array(name, array.tolist())
    return array


def _hash_array(digest: Any, array: np.ndarray) -> None:
    rows = max(1, _BLOCK // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        block = np.ascontiguousarray(canonical_nan(array[start : start + rows]))
        digest.update(block.reshape(-1).view(np.uint8).data)


def _histogram(labels: np.ndarray) -> str:
    if not len(labels):
        return "no labels"
    values, counts = np.unique(labels, return_counts=True)
    if len(values) > _SHOWN:
        return f"{len(values):,} distinct labels from {values[0]:g} to {values[-1]:g}"
    fractions = (f"{v:g}: {c / len(labels):.1%}" for v, c in zip(values, counts, strict=True))
    return f"labels {', '.join(fractions)}"
