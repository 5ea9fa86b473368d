"""Dataset: lists of items with features and graded labels, in flat layout with offsets.

Every reader of :mod:`rankgrad.data` returns a Dataset; training, scoring and writing take one. Its
arrays may be memory maps of a store, so features that already have the right type are not copied.
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

MAX_ID_LENGTH = 1024  # characters; NumPy stores every id of an array as wide as the longest
_BLOCK = 1 << 24  # bytes hashed, or values checked, at a time
_PER_ITEM = ("features", "labels", "weights", "ids", "source_rows")  # arrays with a row per item
_SHOWN = 8  # distinct labels that repr spells out


def categories_of(names: Sequence[Sequence[str] | None] | None) -> Categories | None:
    """Categories as tuples, from the nested lists that JSON has in place of tuples."""
    if names is None:
        return None
    return tuple(None if categories is None else tuple(categories) for categories in names)


def feature_options(source: Any) -> dict[str, Any]:
    """Options of :func:`rankgrad.data.load` that ask for the features of ``source``.

    Args:
        source: a data set or a fitted ranker.
    """
    options = ("n_features", "zero_based", "feature_names", "categories")
    return {option: getattr(source, option) for option in options}


def names_of_features(source: Any) -> tuple[str, ...]:
    """The names of the features of a data set or a fitted ranker.

    Features without names are named by their ids in LETOR files.
    """
    if source.feature_names is not None:
        return tuple(source.feature_names)
    first = 0 if source.zero_based else 1
    return tuple(str(first + column) for column in range(source.n_features))


class FeaturesError(ValueError):
    """The data lack features that the caller requires, such as those of a trained ranker."""


class ArrayError(ValueError):
    """An array of a data set is wrong; ``array`` is its name, with which the message begins."""

    def __init__(self, array: str, problem: str) -> None:
        super().__init__(array, problem)  # both, so that other processes can send the error
        self.array, self.problem = array, problem

    def __str__(self) -> str:
        return f"{self.array} {self.problem}"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Lists of items: list ``b`` has the rows ``offsets[b]:offsets[b + 1]``.

    Arrays are converted to the types below and checked; an error names the array, the position and
    the value. ``check=False`` skips the checks that read values, for data that were checked before.

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
    feature_names: tuple[str, ...] | None = None  # [F]
    notes: tuple[str, ...] = ()  # what a person should know about how the data were read
    zero_based: bool | None = None  # LETOR files: whether feature ids start at 0
    source_rows: np.ndarray | None = None  # [N] int64: each item's row in its file, if reordered
    categories: Categories | None = None  # [F]: the names of the codes; None for numbers
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        self._set("features", _as_numbers("features", self.features, self.feature_names))
        for name in ("labels", "offsets", "qids", "weights", "ids", "source_rows"):
            if (array := getattr(self, name)) is not None:
                is_text = name in ("qids", "ids")
                self._set(name, _as_texts(name, array) if is_text else _as_numbers(name, array))
        if self.feature_names is not None:
            self._set("feature_names", tuple(map(str, self.feature_names)))
        self._set("notes", tuple(self.notes))
        self._set("categories", categories_of(self.categories))
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
        """The indices of the items in the order of their file's rows, ``[N]``.

        None if the items are in that order already. They are not if a query's rows were not
        contiguous in the file, because readers bring such rows together.
        """
        return None if self.source_rows is None else np.argsort(self.source_rows, kind="stable")

    def select(self, lists: Sequence[int] | np.ndarray) -> Dataset:
        """The lists at these indices (or where a boolean array is True), in this order.

        A run of consecutive lists is returned as views, any other selection as copies.

        Args:
            lists: indices, each at most once, or ``[B]`` booleans.

        Returns:
            A data set of these lists.

        Raises:
            IndexError: there is no list at an index.
            ValueError: an index is there twice, or ``lists`` is neither indices nor booleans.
        """
        indices = self._list_indices(lists)
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rows: Any
        if len(indices) and (np.diff(indices) == 1).all():
            rows = slice(int(self.offsets[indices[0]]), int(self.offsets[indices[-1] + 1]))
        else:
            starts = self.offsets[:-1][indices]
            rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        arrays = {name: getattr(self, name) for name in _PER_ITEM}
        selected: dict[str, Any] = {
            name: _select_rows(array, rows) for name, array in arrays.items() if array is not None
        }
        return replace(self, **selected, offsets=offsets, qids=self.qids[indices], check=False)

    def widen(self, n_features: int) -> Dataset:
        """The same lists with features of zeros added at the end, up to ``n_features``.

        For sparse files, in which a feature that is zero throughout does not appear.

        Args:
            n_features: the number of features afterward.

        Returns:
            The wider data set; this one if it has that many features already.

        Raises:
            ValueError: there are more features than that already, the features have names, which
                the new ones would lack, or the wider array does not fit into memory.
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
        request = f"{self.n_items:,} rows, widened to {n_features:,} features,"
        hint = "the other data that go with these name that many features: are they meant?"
        _memory_limit.check(4 * self.n_items * n_features, _memory_limit.available(), request, hint)
        features = np.zeros((self.n_items, n_features), np.float32)
        features[:, : self.n_features] = self.features
        categories = None if self.categories is None else self.categories + (None,) * missing
        return replace(self, features=features, categories=categories, check=False)

    def check_numbers(self) -> None:
        """Check that offsets do not fall, and that labels and weights are finite and at least 0.

        ``check=True`` checks the same, and also the qids and the source rows.

        Raises:
            ArrayError: one of them is wrong; the message names the array, the position and the
                value.
        """
        self._check_offsets()
        self._check_non_negative("labels", self.labels)
        if self.weights is not None:
            self._check_non_negative("weights", self.weights)

    def checksum(self) -> str:
        """A hash of the contents, equal for equal data however they were stored or read.

        Item ids are not part of it: no ranker and no metric depends on them.

        Returns:
            32 hexadecimal digits.
        """
        digest = hashlib.blake2b(digest_size=16)
        for name in ("features", "labels", "offsets", "weights"):
            array = getattr(self, name)
            if array is not None:
                digest.update(f"{name}{array.shape}".encode())
                _hash_array(digest, array)
        all_texts = {"qids": self.qids, "names": self.feature_names}
        for column, names in enumerate(self.categories or ()):
            all_texts[f"categories{column}"] = names
        for name, texts in all_texts.items():
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
        object.__setattr__(self, name, value)  # which a frozen dataclass allows in __post_init__

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
        falls = np.flatnonzero(self.offsets[1:] < self.offsets[:-1])  # np.diff might overflow
        if len(falls):
            i = int(falls[0]) + 1
            raise ArrayError(
                "offsets",
                f"must not fall; offsets[{i}] = {self.offsets[i]} follows {self.offsets[i - 1]}",
            )

    def _check_qids(self) -> None:
        unique, first = np.unique(self.qids, return_index=True)
        if len(unique) != len(self.qids):
            repeated = int(np.setdiff1d(np.arange(len(self.qids)), first)[0])
            qid = str(self.qids[repeated])
            original = int(np.flatnonzero(self.qids == qid)[0])
            raise ArrayError(
                "qids", f"must be unique: lists {original} and {repeated} both have {quote(qid)}"
            )

    def _check_source_rows(self) -> None:
        if self.source_rows is None:
            return
        unique, counts = np.unique(self.source_rows, return_counts=True)
        if len(unique) != self.n_items:
            raise ArrayError(
                "source_rows", f"must be distinct; {unique[counts > 1][0]} is there twice"
            )

    def _check_non_negative(self, name: str, values: np.ndarray) -> None:
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            invalid = ~(block >= 0) | np.isinf(block)  # NaN is invalid too
            if not invalid.any():
                continue
            item = start + int(invalid.argmax())
            b = int(np.searchsorted(self.offsets, item, side="right")) - 1
            raise ArrayError(
                name,
                f"must be finite and at least 0; item {item} (list {b}, qid "
                f"{quote(str(self.qids[b]))}) has {values[item]}",
            )

    def _list_indices(self, lists: Sequence[int] | np.ndarray) -> np.ndarray:
        """The argument of :meth:`select` as checked indices, int64."""
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
    """The array in float32 and C order.

    Args:
        name: what the error calls the array.
        array: ``[N]``, or features ``[N, F]``.
        feature_names: ``[F]``, if the columns have names.
        first: the number of the first row, if the array is a part of a longer one.

    Raises:
        ValueError: a finite number is too large for float32; it is named.

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
    if not infinite.any() or np.isinf(array[infinite]).all():
        return narrow
    index = tuple(np.argwhere(infinite & np.isfinite(array))[0].tolist())
    row = first + index[0]
    location = f"{name}[{row}]"
    if array.ndim == 2:
        names = () if feature_names is None else feature_names
        feature = f"feature {names[index[1]]!r}" if index[1] < len(names) else "feature"
        location = f"{feature} at index {index[1]} (counting from 0) of row {row}"
    raise ValueError(
        f"{location} is {array[index]:g}, too large for float32, which ends at "
        f"{np.finfo(np.float32).max:.1e}: bring it to another scale, such as its logarithm"
    )


def id_array(name: str, values: Sequence[str]) -> np.ndarray:
    """Ids of queries or items as an array of text, in which each is as wide as the longest.

    Args:
        name: what the error calls the array.
        values: the ids.

    Raises:
        ValueError: an id is longer than ``MAX_ID_LENGTH``, or the array would not fit in memory.

    >>> from rankgrad.data._dataset import id_array
    >>> id_array("qids", ["a", "bc"]).dtype
    dtype('<U2')
    """
    lengths = [len(value) for value in values]
    max_length = max(lengths, default=0)
    if max_length > MAX_ID_LENGTH:
        raise ValueError(
            f"{name}[{lengths.index(max_length)}] has {max_length:,} characters, and at most "
            f"{MAX_ID_LENGTH:,} are taken: {quote(values[lengths.index(max_length)])}"
        )
    request = f"{name}: {len(values):,} ids, the longest of {max_length:,} characters,"
    limit = _memory_limit.available()
    _memory_limit.check(4 * max_length * len(values), limit, request, "give shorter ids")
    return np.array(values, np.str_)


def group_rows(codes: np.ndarray, lists: int) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Group rows by list: the offsets of the lists, and the order that makes each contiguous.

    Args:
        codes: ``[N]``: the list of each row. Lists are numbered by first appearance.
        lists: the number of lists, B.

    Returns:
        The offsets ``[B + 1]``; the order of the rows ``[N]``, None if every list is contiguous
        already; and the number of lists that are not contiguous.

    >>> from rankgrad.data._dataset import group_rows
    >>> group_rows(np.array([0, 1, 1, 0]), 2)
    (array([0, 2, 4]), array([0, 3, 1, 2]), 1)
    """
    starts_run = np.concatenate([[True], codes[1:] != codes[:-1]])
    runs_per_list = np.bincount(codes[starts_run], minlength=lists)
    scattered = int((runs_per_list > 1).sum())
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=lists))])
    return offsets, np.argsort(codes, kind="stable") if scattered else None, scattered


def canonical_nan(array: np.ndarray) -> np.ndarray:
    """The array with the same bits for every NaN, so that equal data have equal checksums."""
    if array.dtype.kind != "f" or not (missing := np.isnan(array)).any():
        return array
    return np.where(missing, array.dtype.type(np.nan), array)


def _as_array(values: Any) -> Any:
    return values if isinstance(values, (np.ndarray, ChecksummedArray)) else np.asarray(values)


def _as_numbers(name: str, values: Any, feature_names: Sequence[str] | None = None) -> np.ndarray:
    """Values as the array ``name`` of a Dataset; one that has its type already is not copied."""
    array: np.ndarray = _as_array(values)
    dims = 2 if name == "features" else 1
    if array.ndim != dims:
        raise ArrayError(name, f"must have {dims} dimension(s), found shape {list(array.shape)}")
    is_integer = name in ("offsets", "source_rows")
    if array.dtype.kind not in ("iu" if is_integer else "iufb") and array.size:
        kind = "whole numbers" if is_integer else "real numbers"
        raise ArrayError(name, f"must be {kind}, found {array.dtype}")
    if array.dtype == (np.int64 if is_integer else np.float32) and array.flags.c_contiguous:
        return array
    if is_integer:
        return np.ascontiguousarray(array, dtype=np.int64)
    return as_float32(name, array, feature_names)


def _select_rows(array: Any, rows: Any) -> np.ndarray:
    """Some rows of an array; a slice of a :class:`ChecksummedArray` is not read yet."""
    is_lazy = isinstance(array, ChecksummedArray) and isinstance(rows, slice)
    selected: np.ndarray = array.part(rows.start, rows.stop) if is_lazy else array[rows]
    return selected


def _as_texts(name: str, values: Any) -> np.ndarray:
    """Values as an array of text ``[n]``, with the limits of :func:`id_array`."""
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        values = id_array(name, values)
    array: np.ndarray = _as_array(values)
    if array.ndim != 1:
        raise ArrayError(name, f"must have 1 dimension, found shape {list(array.shape)}")
    if array.dtype.kind == "O":  # the texts of objects may be of any length
        return id_array(name, list(map(str, array)))
    if array.dtype.kind != "U":
        return array.astype(np.str_)
    if array.dtype.itemsize > 4 * MAX_ID_LENGTH:  # NumPy takes 4 bytes per character
        return id_array(name, array.tolist())
    return array


def _hash_array(digest: Any, array: np.ndarray) -> None:
    """Add an array to a hash of :mod:`hashlib`, block by block."""
    rows = max(1, _BLOCK // max(1, array.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        block = np.ascontiguousarray(canonical_nan(array[start : start + rows]))
        digest.update(block.reshape(-1).view(np.uint8).data)


def _histogram(labels: np.ndarray) -> str:
    """The distinct labels and how often each occurs, as text."""
    if not len(labels):
        return "no labels"
    values, counts = np.unique(labels, return_counts=True)
    if len(values) > _SHOWN:
        return f"{len(values):,} distinct labels from {values[0]:g} to {values[-1]:g}"
    fractions = (f"{v:g}: {c / len(labels):.1%}" for v, c in zip(values, counts, strict=True))
    return f"labels {', '.join(fractions)}"
