"""Reads Parquet, Arrow/Feather and CSV files by column names, and writes Parquet, with pyarrow.

``sources.py`` calls :func:`read`. It finds out which column is what (:class:`_Roles`) and streams
the rows, a record batch at a time, into the arrays of the data set (:class:`_Builder`), so that
memory is bounded by the result. Needs the extra ``rankgrad[columnar]``.

Damage is found by checksums. Parquet files may have one for each page. Those that :func:`write`
makes have these, one of the schema and, without categorical features, one of the whole data set.
Arrow files have none: damage is found only where it breaks the format.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import _checksums, _files
from rankgrad._deprecation import renamed_arguments
from rankgrad._quoting import listing, quote, shorten
from rankgrad.data import _categories, _memory_limit, _streams
from rankgrad.data._dataset import (
    MAX_ID_LENGTH,
    Categories,
    Dataset,
    FeaturesError,
    canonical_nan,
    group_rows,
    id_array,
)
from rankgrad.data._layout import parts
from rankgrad.data._missing import MissingValues
from rankgrad.extras import load

__all__ = ["ARROW", "PARQUET", "id_texts", "is_columnar", "read", "suffix", "write"]

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
#: Names of a nameless index of pandas: in Parquet, in a CSV file, and in one that was read again.
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__||Unnamed: 0")
_WHOLE_FLOAT = re.compile(r"-?[0-9]+\.0")
_MAX_WHOLE = 2**53  # up to here a float64 is exactly one whole number
_BATCH_ROWS = 1 << 14  # rows of a batch, at most
_BATCH_CELLS = 1 << 22  # values of a batch, at most, unless a single row has more
_CSV_BLOCK, _MAX_CSV_BLOCK = 1 << 20, 1 << 28  # bytes of CSV parsed at a time: least, most
_CSV_COLUMN_BYTES = 20_000  # memory that pyarrow takes for a column, whatever it holds
# A column of texts is a feature by default if it has at most so many distinct texts, each of them
# in at least so many rows on average.
_MAX_CATEGORIES, _MIN_REPEATS = 1000, 10
_MAX_SEARCHED = 1000  # columns among which an error finds the nearest name
# Keys of the schema's metadata. The checksums are 8 digits of the schema, then 8 of the contents.
_ROLES_KEY, _SUMS_KEY = b"rankgrad", b"rankgrad.crc32"
_CHANGED_MESSAGE = (
    "its {} does not have its checksum; where another program changed the file and left the "
    "schema's metadata, remove 'rankgrad.crc32' from them"
)


def suffix(path: str | os.PathLike[str]) -> str:
    """A file's suffix in lower case; a suffix of compression is skipped.

    Args:
        path: the file, which need not exist.

    Returns:
        The suffix with its dot; empty if there is none.

    >>> from rankgrad.data import columnar
    >>> columnar.suffix("train.CSV.gz")
    '.csv'
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _streams.COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def is_columnar(path: str | os.PathLike[str]) -> bool:
    """Whether a file is columnar, by its suffix.

    Args:
        path: the file, which need not exist.

    Returns:
        Whether :func:`read` reads it.
    """
    return suffix(path) in (*PARQUET, *ARROW, *_DELIMITERS)


@renamed_arguments(labelled="labeled")
def read(
    path: str | os.PathLike[str],
    *,
    query: str = "qid",
    label: str = "label",
    features: Sequence[str] | None = None,
    weight: str | None = None,
    id: str | None = None,
    fill: float | None = None,
    labeled: bool = True,
    missing: Sequence[str | float] = (),
    categorical: Sequence[str] = (),
) -> Dataset:
    r"""Read a columnar file, or a folder of Parquet parts in order; each row is an item.

    Features that are null or NaN, and in text files empty values, ``?``, ``NA`` and ``NULL``, are
    missing and become NaN. A column of texts is a categorical feature if it has at most 1,000
    distinct texts that occur at least ten times on average; see :mod:`rankgrad.data._categories`.

    Args:
        path: the file or folder.
        query: the column of the query's id.
        label: the column of the graded label.
        features: the columns of features, in this order; by default all other columns of numbers
            and those of few texts. ``Dataset.notes`` says which columns are left out.
        weight: the column of item weights; by default as :func:`write` recorded it in the file.
        id: the column of item ids; by default as :func:`write` recorded it in the file.
        fill: a finite number in place of missing features; missing categories stay NaN.
        labeled: False if labels may be missing, as in data to be scored; they are then 0.
        missing: further missing values, such as ``["-999", "unknown"]``.
        categorical: columns that are categorical features, whatever they hold.

    Returns:
        The lists, with the rows of each query brought together.

    Raises:
        ValueError: the file cannot be read, or lacks a column that was asked for.
        ImportError: pyarrow is not installed.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import columnar
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = pathlib.Path(place, "train.csv")
    ...     _ = path.write_text("qid,label,bm25,clicks\na,2,1.5,3\na,0,0.25,1\n")
    ...     data = columnar.read(path)
    >>> data.feature_names, data.features.tolist()
    (('bm25', 'clicks'), [[1.5, 3.0], [0.25, 1.0]])
    """
    path = Path(path)
    if fill is not None and not abs(fill) <= float(np.finfo(np.float32).max):
        raise ValueError(f"fill must be a finite number in float32, found {fill!r}")
    missing_values, names = MissingValues.of(missing), frozenset(categorical)
    chosen, texts = features is not None, missing_values.texts
    roles = _Roles(path, query, label, features, weight, id, labeled, texts, names, chosen)
    builder = None
    sources = parts(path) or [path]
    for part in sources:
        roles.path = part
        with _open_file(part, roles) as (total, batches):
            if builder is None:
                builder = _Builder(
                    roles, total if len(sources) == 1 else None, fill, missing_values
                )
            builder.begin_file()
            for batch in batches:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    builder.add(batch.slice(start, _BATCH_ROWS))
    assert builder is not None
    roles.path = path
    dataset = builder.finish()
    expected = roles.checksum if len(sources) == 1 and not builder.changed else None
    if expected not in (None, _checksum(dataset)):
        raise _files.damaged(path, _CHANGED_MESSAGE.format("contents"))
    return dataset


def write(dataset: Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a data set as a Parquet file: ``qid``, ``label``, then ``weight``, ``id``, features.

    Features without names are called ``f1``, ``f2`` and so on, as LETOR numbers them. A list
    without items has no row, so it is not written.

    Args:
        dataset: the data set.
        path: the file, which ends in ``.parquet`` or ``.pq``.
        overwrite: replace a file that exists.

    Returns:
        The path.

    Raises:
        FileExistsError: the file exists, and ``overwrite`` is False.
        ValueError: the path has another suffix, features have the names of other columns, or one is
            infinite.
    """
    path = Path(path)
    if suffix(path) not in PARQUET:
        raise ValueError(f"{path} must end in {' or '.join(PARQUET)}: only Parquet is written")
    _files.check_file_free(path, overwrite)
    parquet = load("pyarrow.parquet", "columnar")
    schema = _schema(dataset)
    with (
        _files.atomic_write(path) as file,
        parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer,
    ):
        for start in range(0, max(1, dataset.n_items), _BATCH_ROWS):
            writer.write_batch(_batch(dataset, schema, start, start + _BATCH_ROWS))
    return path


@dataclass
class _Roles:
    """Which column is what.

    The fields up to ``categorical`` are arguments of :func:`read`. :meth:`find_columns` completes
    them and sets the others, from a file's schema. Of several files the first decides what the
    features are, and all must have these columns.
    """

    path: Path  # the file that is being read, for errors
    query: str
    label: str | None
    features: Sequence[str] | None
    weight: str | None
    id: str | None
    labeled: bool
    missing: frozenset[str]  # texts that are missing values
    categorical: frozenset[str]
    chosen: bool  # whether the caller named the features
    names: list[str] = field(default_factory=list)  # of the features
    texts: list[str] = field(default_factory=list)  # features whose columns are read as text
    role_columns: list[str] = field(default_factory=list)  # of queries, labels, weights and ids
    ignored: list[str] = field(default_factory=list)  # columns that are not read
    index_columns: list[str] = field(default_factory=list)  # nor are these, an index of pandas
    _column_counts: Counter[str] = field(default_factory=Counter, init=False)  # by name
    checksum: str | None = None  # of the contents, if the file has one and all columns are read

    def find_columns(self, schema: Any) -> None:
        """Find the columns in a file's schema; a missing one is an error that lists the others."""
        metadata = schema.metadata or {}
        recorded, sums = self._recorded(metadata, schema), metadata.get(_SUMS_KEY, b"").decode()
        uses_recorded_roles = (self.query, self.weight, self.id) == ("qid", None, None)
        self.weight = self.weight or recorded.get("weight")
        self.id = self.id or recorded.get("id")
        self._column_counts = Counter(schema.names)
        if not self.labeled and self.label not in schema.names:
            self.label = None
        for role in ("query", "label", "weight", "id"):
            if getattr(self, role) is not None:
                self._require(getattr(self, role), role, schema)
        roles = (self.query, self.label, self.weight, self.id)
        self.role_columns = [name for name in roles if name is not None]
        # The features by default: columns of numbers or texts, and those named categorical.
        readable = {c.name for c in schema if _is_number(c.type) or _is_text(c.type)}
        others = [name for name in schema.names if name not in self.role_columns]
        candidates = [name for name in others if name in readable | self.categorical]
        if self.features is not None:
            self.names = list(self.features)
        else:
            # write() records roles; what it wrote are features by any name.
            pandas_index = [] if _ROLES_KEY in metadata else _pandas_index(candidates)
            self.index_columns = [n for n in pandas_index if n not in self.categorical]
            self.names = [name for name in candidates if name not in self.index_columns]
            self.ignored = [n for n in schema.names if n not in {*self.role_columns, *candidates}]
        for name in self.names:
            self._require(name, "features", schema)
        self.check_names()
        for name in self.categorical:
            self._require(name, "categorical", schema)
        types = {name: schema.field(name).type for name in self.names}
        self.texts = [n for n in self.names if n in self.categorical or _is_text(types[n])]
        for name in set(self.names) - set(self.texts):
            if not _is_number(types[name]):
                raise self.not_numbers("feature", name, types[name])
        # The checksum is that of all columns in the roles that write() gave them.
        reads_all = self.names == candidates and not self.categorical
        if uses_recorded_roles and self.label == "label" and reads_all:
            self.checksum = sums[8:] or None
        self.features = self.names  # which the next file must have

    def check_names(self) -> None:
        """Raise an error if there are no features."""
        if not self.names:
            raise ValueError(
                f"{self.path} has no numeric columns for features beside {quote(self.role_columns)}"
            )

    def not_numbers(self, role: str, name: str, kind: Any) -> ValueError:
        """The error for a column that does not hold numbers, and has to."""
        return ValueError(
            f"{self.path}: the {role} {quote(name)} must be a column of numbers, found "
            f"{shorten(str(kind))}"
        )

    def _recorded(self, metadata: dict[bytes, bytes], schema: Any) -> dict[str, str]:
        """The columns by role, as :func:`write` recorded them in the file; checksum verified."""
        roles_json, sums = metadata.get(_ROLES_KEY, b"{}"), metadata.get(_SUMS_KEY)
        if sums is not None and sums[:8].decode() != _schema_checksum(schema, roles_json):
            raise _files.damaged(self.path, _CHANGED_MESSAGE.format("schema"))
        try:
            recorded = json.loads(roles_json)
        except (ValueError, RecursionError):
            recorded = None
        if isinstance(recorded, dict) and all(isinstance(name, str) for name in recorded.values()):
            return recorded
        raise _files.damaged(self.path, "its record of the columns is not readable")

    def columns(self) -> list[str]:
        """All columns to read, each once."""
        return list(dict.fromkeys([*self.role_columns, *self.names]))

    def _require(self, name: str, role: str, schema: Any) -> None:
        """Raise an error unless the schema has the column exactly once."""
        count = self._column_counts[name]
        if count == 0:
            close = difflib.get_close_matches(name, schema.names[:_MAX_SEARCHED], n=1)
            hint = f"Did you mean {quote(close[0])}? " if close else ""
            kind = FeaturesError if role == "features" else ValueError
            raise kind(
                f"{self.path} has no column {quote(name)} for {role}. {hint}"
                f"There are: {listing(schema.names)}"
            )
        if count > 1:
            raise ValueError(f"{self.path} has {count} columns named {quote(name)}")


class _Builder:
    """Collects record batches in the arrays of a data set.

    The arrays are allocated once if the number of rows is known; otherwise they grow in place.

    Args:
        roles: which column is what, of the first file.
        total: the number of rows of all files, if it is known.
        fill: a value in place of missing features that are not categorical.
        missing_values: what counts as missing.
    """

    def __init__(
        self, roles: _Roles, total: int | None, fill: float | None, missing_values: MissingValues
    ) -> None:
        self.roles, self.fill, self.missing_values, self.rows = roles, fill, missing_values, 0
        self.n_missing = np.zeros(len(roles.names), np.int64)  # values of each feature
        self.n_unlabeled = 0  # rows
        self.changed = False  # whether values differ from those in the file
        self.file_start = 0  # the first row of the file that is being read
        # Half of the memory: bringing scattered rows together takes a second copy.
        self.memory_limit = _memory_limit.available() // 2
        size = min(_batch_rows(len(roles.names)), self._max_rows()) if total is None else total
        self._check_memory(size)
        self.features = np.empty((size, len(roles.names)), np.float32)
        self.labels = np.empty(size, np.float32)
        self.weights = None if roles.weight is None else np.empty(size, np.float32)
        self.ids: list[np.ndarray] | None = None if roles.id is None else []  # of each batch
        # Of each feature read as text, the code of each text, numbered by first appearance.
        self.categories: dict[str, dict[str, int]] = {name: {} for name in roles.texts}
        self.query_codes: dict[str, int] = {}  # by qid; numbered by first appearance
        self.row_queries = np.empty(size, np.int64)  # the code of each row's query

    def begin_file(self) -> None:
        """Start with the batches of the next file."""
        self.file_start = self.rows

    def add(self, batch: Any) -> None:
        """Add the rows of a record batch."""
        start, stop = self.rows, self.rows + batch.num_rows
        if stop > len(self.labels):
            self._check_memory(stop)
            self._resize(max(stop, min(len(self.labels) * 3 // 2, self._max_rows())))
        self.row_queries[start:stop] = self._encode_queries(batch.column(self.roles.query))
        self.labels[start:stop] = 0.0
        if self.roles.label is not None:
            self.labels[start:stop] = self._checked_values(batch, self.roles.label, "label")
        if self.weights is not None:
            self.weights[start:stop] = self._checked_values(batch, str(self.roles.weight), "weight")
        if self.ids is not None:
            column = self._checked_texts(batch.column(self.roles.id), "id", str(self.roles.id))
            self.ids.append(id_array("ids", column.to_pylist()))
        for j, name in enumerate(self.roles.names):
            if name in self.categories:
                self.features[start:stop, j] = self._category_codes(batch.column(name), name)
            else:
                self.features[start:stop, j] = self._checked_values(batch, name, "feature")
        self._mark_missing(self.features[start:stop])
        self.rows = stop

    def _mark_missing(self, features: np.ndarray) -> None:
        """Set missing features ``[rows, f]`` to NaN and count them; then numbers to ``fill``."""
        is_number = np.array([name not in self.categories for name in self.roles.names])
        self.changed |= self.missing_values.mark(features, np.flatnonzero(is_number).tolist()) > 0
        missing = np.isnan(features)
        self.n_missing += missing.sum(0)
        if self.fill is not None:
            features[missing & is_number] = self.fill
            self.changed |= bool((missing & is_number).any())

    def finish(self) -> Dataset:
        """The data set, with the rows of each query brought together."""
        path = self.roles.path
        if self.rows == 0:
            raise ValueError(f"{path} has no rows")
        self._resize(self.rows)
        categories = self._finish_categories()
        ids = None if self.ids is None else self._joined_ids()
        offsets, order, n_scattered = group_rows(self.row_queries, len(self.query_codes))
        rows: Any = slice(None) if order is None else order
        try:
            return Dataset(
                features=self.features[rows],
                labels=self.labels[rows],
                offsets=offsets,
                qids=id_array("qids", self._whole_ids(list(self.query_codes))),
                weights=None if self.weights is None else self.weights[rows],
                ids=None if ids is None else ids[rows],
                feature_names=tuple(self.roles.names),
                notes=tuple(self._notes(n_scattered)),
                source_rows=order,
                categories=categories,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _notes(self, n_scattered: int) -> Iterator[str]:
        """What a person should know about how the file was read."""
        if n_scattered:
            yield f"the rows of {n_scattered} queries were not contiguous and were brought together"
        if self.roles.label is None:
            yield "there are no labels"
        elif self.n_unlabeled:
            yield f"{self.n_unlabeled:,} rows have no label"
        pairs = zip(self.roles.names, self.n_missing.tolist(), strict=True)
        n_filled = sum(
            n for name, n in pairs if self.fill is not None and name not in self.categories
        )
        if n_filled:
            yield f"{n_filled:,} missing feature values were set to {self.fill:g}"
        if n_missing := int(self.n_missing.sum()) - n_filled:
            yield f"{n_missing:,} feature values are missing"
        if self.roles.index_columns:
            columns = listing(map(repr, self.roles.index_columns))
            yield f"columns left out, which are numbers of rows that pandas wrote: {columns}"
        if self.roles.ignored:
            columns = listing(self.roles.ignored)
            yield f"columns left out, which are neither numbers nor few texts: {columns}"

    def _max_rows(self) -> int:
        """The number of rows of float32 features that fit in the memory limit."""
        return self.memory_limit // (4 * max(1, len(self.roles.names)))

    def _check_memory(self, rows: int) -> None:
        """Raise an error if so many rows do not fit in the memory limit."""
        columns = len(self.roles.names)
        request = f"{self.roles.path}: {rows:,} rows of {columns:,} features"
        hint = "name fewer columns (--feature), or give more memory (half of it is the limit)"
        _memory_limit.check(4 * rows * columns, self.memory_limit, request, hint)

    def _joined_ids(self) -> np.ndarray:
        """The ids of all batches, ``[rows]``."""
        assert self.ids is not None
        width = max(ids.dtype.itemsize for ids in self.ids)  # bytes; NumPy takes 4 per character
        request = f"{self.roles.path}: {self.rows:,} ids of up to {width // 4:,} characters"
        _memory_limit.check(width * self.rows, self.memory_limit, request, "give shorter ids")
        joined = np.concatenate(self.ids)
        return np.array(self._whole_ids(joined.tolist()), np.str_) if self._is_text else joined

    @property
    def _is_text(self) -> bool:
        """Whether the data are in a text file, in which ids have no type."""
        return suffix(self.roles.path) in _DELIMITERS

    def _whole_ids(self, texts: list[str]) -> list[str]:
        """Ids without a final ``.0`` if all ids of a text file have one.

        Such a file was written from a column of floats, as pandas has where a value is missing. A
        Parquet file of the same data, or one with integers, has the ids 1, 2, 3.
        """
        if self._is_text and all(map(_WHOLE_FLOAT.fullmatch, texts)):
            return [text.removesuffix(".0") for text in texts]
        return texts

    def _resize(self, rows: int) -> None:
        for array in (self.features, self.labels, self.row_queries, self.weights):
            if array is not None:
                array.resize((rows, *array.shape[1:]), refcheck=False)

    def _category_codes(self, column: Any, name: str) -> np.ndarray:
        """The code of each row's category in a column, ``[rows]``; NaN for missing values."""
        if not _is_number(column.type):
            column = _to_strings(column)
        encoded = column.dictionary_encode()
        codes = self.categories[name]
        value_codes = []
        for value in encoded.dictionary.to_numpy(zero_copy_only=False):
            text = _categories.category_name(value)
            is_missing = value is None or text in self.missing_values
            value_codes.append(np.nan if is_missing else codes.setdefault(text, len(codes)))
        # Null rows take the NaN after the last value's code.
        indices = encoded.indices.fill_null(len(value_codes)).to_numpy(zero_copy_only=False)
        row_codes: np.ndarray = np.array([*value_codes, np.nan], np.float32)[indices]
        return row_codes

    def _finish_categories(self) -> Categories | None:
        """Sort the categories, and drop columns of too many texts that the caller did not name."""
        roles, categories = self.roles, dict[str, tuple[str, ...]]()
        for name, codes in self.categories.items():
            is_named = roles.chosen or name in roles.categorical
            if not is_named and len(codes) > min(_MAX_CATEGORIES, self.rows // _MIN_REPEATS):
                roles.ignored.append(name)
                continue
            categories[name], new_codes = _categories.sort_names(list(codes))
            column = self.features[:, roles.names.index(name)]
            present = ~np.isnan(column)
            column[present] = new_codes[column[present].astype(np.int64)]
        remaining = [j for j, name in enumerate(roles.names) if name not in roles.ignored]
        if len(remaining) < len(roles.names):
            self.features = np.ascontiguousarray(self.features[:, remaining])
            self.n_missing = self.n_missing[remaining]
            roles.names = [roles.names[j] for j in remaining]
        roles.check_names()
        return tuple(categories.get(name) for name in roles.names) if categories else None

    def _encode_queries(self, column: Any) -> np.ndarray:
        """The code of each row's query, ``[rows]``."""
        encoded = self._checked_texts(column, "query", self.roles.query).dictionary_encode()
        codes, qids = self.query_codes, encoded.dictionary.to_pylist()
        batch_codes = np.array([codes.setdefault(qid, len(codes)) for qid in qids], np.int64)
        row_codes: np.ndarray = batch_codes[encoded.indices.to_numpy()]
        return row_codes

    def _checked_texts(self, column: Any, role: str, name: str) -> Any:
        """A column of ids as pyarrow strings, none of them missing or too long."""
        if column.null_count:
            raise self._error(role, name, "is null", np.asarray(column.is_null()))
        texts = id_texts(column)
        lengths = np.asarray(load("pyarrow.compute", "columnar").utf8_length(texts))
        if len(lengths) and lengths.max() > MAX_ID_LENGTH:
            problem = f"has {lengths.max():,} characters, and at most {MAX_ID_LENGTH:,} are read"
            raise self._error(role, name, problem, lengths > MAX_ID_LENGTH)
        # An id that is missing in a text file is an empty text, not null.
        if self._is_text and (lengths == 0).any():
            raise self._error(role, name, "is empty", lengths == 0)
        return texts

    def _checked_values(self, batch: Any, name: str, role: str) -> np.ndarray:
        """A column as float32 ``[rows]``, without infinite values; only features may be missing."""
        column = batch.column(name)
        try:
            wide = column.cast(load("pyarrow", "columnar").float64(), safe=False)
        except load("pyarrow", "columnar").ArrowException as error:
            raise self.roles.not_numbers(role, name, column.type) from error
        with np.errstate(over="ignore"):
            values: np.ndarray = wide.to_numpy(zero_copy_only=False).astype(np.float32)
        missing = np.isnan(values)
        if missing.any() and role == "label" and not self.roles.labeled:
            values[missing] = 0.0
            self.n_unlabeled += int(missing.sum())
        elif missing.any() and role != "feature":
            raise self._error(role, name, "is null or NaN", missing)
        infinite = np.isinf(values)
        if infinite.any():
            raise self._error(role, name, "is infinite or beyond float32", infinite)
        return values

    def _error(self, role: str, name: str, problem: str, invalid: np.ndarray) -> ValueError:
        """The error for the first row of the batch where the mask ``invalid`` is True."""
        row = self.rows - self.file_start + int(invalid.argmax()) + 1
        return ValueError(f"{self.roles.path}: the {role} {quote(name)} of row {row} {problem}")


@contextmanager
def _open_file(path: Path, roles: _Roles) -> Iterator[tuple[int | None, Iterable[Any]]]:
    """Open a file, find the columns, and yield its number of rows, if known, and its batches."""
    arrow = load("pyarrow", "columnar")
    kind = suffix(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and has no parts called part-0000.parquet and so on")
    if kind in (*PARQUET, *ARROW) and path.suffix.lower() in _streams.COMPRESSED:
        raise ValueError(f"{path} is compressed as a whole: unpack it")
    try:
        if kind in PARQUET:
            open_parquet = load("pyarrow.parquet", "columnar").ParquetFile
            with open_parquet(path, page_checksum_verification=True) as file:
                roles.find_columns(file.schema_arrow)
                columns = roles.columns()
                batches = file.iter_batches(_batch_rows(len(columns)), columns=columns)
                yield file.metadata.num_rows, _validated(batches)
        elif kind in ARROW:
            with arrow.memory_map(os.fspath(path)) as source:
                yield None, _validated(_arrow_batches(source, roles))
        elif kind in _DELIMITERS:
            with _text_batches(path, roles) as batches:
                yield None, batches
        else:
            suffixes = ", ".join((*PARQUET, *ARROW, *_DELIMITERS))
            raise ValueError(f"{path} must end in one of {suffixes}")
    except arrow.ArrowException as error:
        raise ValueError(f"cannot read {path}: {shorten(str(error), 400)}") from error
    # UnicodeDecodeError comes from column names, OSError without errno from damaged Arrow files.
    except (UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the operating system, such as a file that does not exist
        raise ValueError(f"{path} is damaged: {shorten(str(error), 400)}") from error


def _batch_rows(columns: int) -> int:
    """The number of rows in a batch of so many columns."""
    return max(1, min(_BATCH_ROWS, _BATCH_CELLS // max(1, columns)))


def _validated(batches: Iterable[Any]) -> Iterator[Any]:
    """Validate each batch, as Arrow would follow damaged offsets out of its memory."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _arrow_batches(source: Any, roles: _Roles) -> Iterable[Any]:
    """The batches of an Arrow file, which has an index at its end, or of an Arrow stream."""
    ipc = load("pyarrow.ipc", "columnar")
    try:
        reader = ipc.open_file(source)
    except (load("pyarrow", "columnar").ArrowInvalid, OSError):
        source.seek(0)
        stream = ipc.open_stream(source)
        roles.find_columns(stream.schema)
        return stream  # type: ignore[no-any-return]
    roles.find_columns(reader.schema)
    return map(reader.get_batch, range(reader.num_record_batches))


def _csv_block(path: Path) -> int:
    """The block size in bytes for a text file: at least four times the header's.

    Pyarrow needs the header and some rows in a block.
    """
    max_header = _MAX_CSV_BLOCK // 4
    with _streams.open_text(path) as file:
        header = file.readline(max_header)
    if len(header) == max_header:
        raise ValueError(f"{path}: the first line is longer than {len(header):,} bytes")
    columns = header.count(_DELIMITERS[suffix(path)].encode()) + 1
    request = f"{path}: to read a text file of {columns:,} columns"
    limit = _memory_limit.available()
    _memory_limit.check(columns * _CSV_COLUMN_BYTES, limit, request, "give a Parquet file")
    return max(_CSV_BLOCK, 4 * len(header))


@contextmanager
def _text_batches(path: Path, roles: _Roles) -> Iterator[Any]:
    """Open a text file twice: to see which columns are numbers, and to read these as float64.

    With the types that pyarrow infers from the first block, a column of whole numbers that has a
    fraction further down would be an error. Only columns of true and false keep their type.
    """
    csv, arrow = load("pyarrow.csv", "columnar"), load("pyarrow", "columnar")
    delimiter = csv.ParseOptions(delimiter=_DELIMITERS[suffix(path)])
    block = csv.ReadOptions(block_size=_csv_block(path))
    nulls = _null_texts(csv, roles.missing)
    with (
        _streams.open_text(path) as file,
        csv.open_csv(file, block, delimiter, csv.ConvertOptions(null_values=nulls)) as reader,
    ):
        roles.find_columns(reader.schema)
        flags = {f.name for f in reader.schema if arrow.types.is_boolean(f.type)}
    types = {n: arrow.bool_() if n in flags else arrow.float64() for n in roles.columns()}
    texts = [name for name in (roles.query, roles.id, *roles.texts) if name is not None]
    types |= dict.fromkeys(texts, arrow.string())
    convert = csv.ConvertOptions(
        column_types=types, include_columns=roles.columns(), null_values=nulls
    )
    with _streams.open_text(path) as file, csv.open_csv(file, block, delimiter, convert) as reader:
        yield reader


def _null_texts(csv: Any, missing: Iterable[str]) -> list[str]:
    """The texts that are read as null: pyarrow's own, and ``missing``.

    Each of ``missing`` counts as it is, in upper case and with a capital letter.
    """
    cases = (case for text in missing for case in (text, text.upper(), text.capitalize()))
    return sorted({*csv.ConvertOptions().null_values, *cases})


def _schema(dataset: Dataset) -> Any:
    """The Arrow schema of a data set, with the roles of its columns and checksums as metadata."""
    arrow = load("pyarrow", "columnar")
    roles = {"query": "qid", "label": "label"}
    roles |= {} if dataset.weights is None else {"weight": "weight"}
    roles |= {} if dataset.ids is None else {"id": "id"}
    ids = ("qid", "id")
    fields = [(n, arrow.string() if n in ids else arrow.float32()) for n in roles.values()]
    names = dataset.feature_names or tuple(f"f{j + 1}" for j in range(dataset.n_features))
    conflicts = set(names) & set(roles.values())
    if conflicts or len(set(names)) != len(names):
        raise ValueError(
            f"feature names must be unique and none of {', '.join(roles.values())}; found "
            f"{', '.join(sorted(conflicts)) or 'the same name twice'}"
        )
    categories = dataset.categories or (None,) * len(names)
    fields += [
        (name, arrow.float32() if texts is None else arrow.string())
        for name, texts in zip(names, categories, strict=True)
    ]
    roles_json = json.dumps(roles).encode()
    # With categories there is no checksum of the contents: a reader numbers the texts that occur in
    # the file, so its codes may differ from those of this data set.
    contents = "" if dataset.categories else _checksum(dataset)
    sums = _schema_checksum(arrow.schema(fields), roles_json) + contents
    return arrow.schema(fields, metadata={_ROLES_KEY: roles_json, _SUMS_KEY: sums.encode()})


def _schema_checksum(schema: Any, roles: bytes) -> str:
    """The checksum of the columns' names and types, and of their roles as JSON."""
    columns = [(column.name, str(column.type)) for column in schema]
    return _checksums.of_bytes(repr(columns).encode() + roles)


def _checksum(dataset: Dataset) -> str:
    """The checksum of the contents: features, labels, queries, and weights and ids if any.

    Lists without items do not count, as a file has no rows of them.
    """
    blocks = range(0, dataset.n_items, _BATCH_ROWS)
    arrays: list[Any] = [dataset.features[start : start + _BATCH_ROWS] for start in blocks]
    arrays += [dataset.labels, np.unique(dataset.offsets), dataset.weights]
    total = 0
    for array in arrays:
        if array is not None:
            total = zlib.crc32(canonical_nan(np.asarray(array)).data, total)
    for texts in (dataset.qids[dataset.lengths > 0], dataset.ids):
        if texts is not None:
            total = zlib.crc32("\0".join(texts.tolist()).encode("utf-8", "surrogatepass"), total)
    return f"{total:08x}"


def _pandas_index(names: Iterable[str]) -> list[str]:
    """The columns that are an index of pandas: numbers of rows, which may give away the labels."""
    return [name for name in names if _PANDAS_INDEX.fullmatch(name)]


def _batch(dataset: Dataset, schema: Any, start: int, stop: int) -> Any:
    """The items ``start:stop`` as a record batch."""
    arrow = load("pyarrow", "columnar")
    rows = np.arange(start, min(stop, dataset.n_items))
    lists = np.searchsorted(dataset.offsets, rows, side="right") - 1
    columns = [dataset.qids[lists].tolist(), dataset.labels[start:stop]]
    others = [array for array in (dataset.weights, dataset.ids) if array is not None]
    columns += [array[start:stop].tolist() for array in others]
    block = np.asarray(dataset.features[start:stop])
    if np.isinf(block).any():  # read would refuse it
        row, column = np.argwhere(np.isinf(block))[0]
        name = schema.names[column - dataset.n_features]
        raise ValueError(f"the feature {name!r} of item {start + row} is infinite")
    categories = dataset.categories or (None,) * dataset.n_features
    for column, names in zip(block.T, categories, strict=True):
        if names is None:
            columns.append(np.ascontiguousarray(column))
        else:
            columns.append([None if np.isnan(code) else names[int(code)] for code in column])
    arrays = [arrow.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return arrow.record_batch(arrays, schema=schema)


def id_texts(column: Any) -> Any:
    """A column of ids as pyarrow strings; whole floats as integers.

    Args:
        column: of any type that pyarrow casts to strings.

    Returns:
        The strings; null where the column is null.

    >>> import pyarrow
    >>> id_texts(pyarrow.array([2.0, 12345678901.0, 0.5])).to_pylist()
    ['2', '12345678901', '0.5']
    """
    arrow = load("pyarrow", "columnar")
    texts = _to_strings(column)
    if not arrow.types.is_floating(column.type):
        return texts
    # As strings, pyarrow writes floats from 1e10 on with an exponent.
    values = np.asarray(column.fill_null(0.5).cast(arrow.float64()))
    whole = (values == np.floor(values)) & (np.abs(values) <= _MAX_WHOLE)
    integers = arrow.array(np.where(whole, values, 0).astype(np.int64)).cast(arrow.string())
    return load("pyarrow.compute", "columnar").if_else(arrow.array(whole), integers, texts)


def _to_strings(column: Any) -> Any:
    """A column as pyarrow strings. Before version 18, pyarrow does not cast string views."""
    arrow = load("pyarrow", "columnar")
    if arrow.types.is_string_view(column.type):
        return arrow.array(column.to_pylist(), arrow.string())
    return column.cast(arrow.string())


def _is_text(column_type: Any) -> bool:
    """Whether a column's type is a string, or a dictionary of strings."""
    types = load("pyarrow", "columnar").types
    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view)  # views: from Polars
    return any(test(column_type) for test in tests)


def _is_number(column_type: Any) -> bool:
    """Whether a column's type is numeric; a column of nulls alone counts as one."""
    types = load("pyarrow", "columnar").types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(column_type) for test in tests)
