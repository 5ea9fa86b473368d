"""Parquet, Arrow/Feather and CSV files, by column names, through pyarrow.

Rows are streamed, a record batch at a time, into the arrays of the data set: memory is bounded by
the output. Needs the extra ``rankgrad[columnar]``.

Parquet files are read with the checksums of their pages, where they have any; those written here
have them, and one of the whole data set. Arrow files have none: damage is found
only where it breaks the format.
"""

from __future__ import annotations

import difflib
import json
import os
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
    LONGEST_ID,
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

__all__ = ["ARROW", "PARQUET", "is_columnar", "read", "suffix", "write"]

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
_TEXT = {".csv": ",", ".tsv": "\t"}
_ROWS = 1 << 14  # rows of a batch, at most
_CELLS = 1 << 22  # values of a batch, at most, but for one row
_CSV_BLOCK = 1 << 20, 1 << 28  # bytes of CSV parsed at a time: usually, and at most
_CSV_COLUMN = 20_000  # bytes that pyarrow takes for a column, whatever is in it
_CATEGORIES, _REPEATS = 1000, 10  # most texts of a categorical feature; mean rows of each
_SEARCHED = 1000  # columns among which the nearest name is looked for
# Keys of the schema's metadata: the columns' roles; the checksums of schema and contents.
_ROLES, _SUMS = b"rankgrad", b"rankgrad.crc32"
_CHANGED = (
    "its {} does not have its checksum; where another program changed the file and left the "
    "schema's metadata, remove 'rankgrad.crc32' from them"
)


def suffix(path: str | os.PathLike[str]) -> str:
    """A file's suffix in lower case, without that of a compression.

    Args:
        path: the file, which need not exist.

    Returns:
        The suffix with its dot; empty if there is none.

    >>> from rankgrad.data import columnar
    >>> columnar.suffix("train.CSV.gz")
    '.csv'
    """
    parts = [part.lower() for part in Path(path).suffixes]
    if parts and parts[-1] in _streams.COMPRESSED:
        parts.pop()
    return parts[-1] if parts else ""


def is_columnar(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a columnar file.

    Args:
        path: the file, which need not exist.

    Returns:
        Whether :func:`read` takes it, by its suffix.
    """
    return suffix(path) in (*PARQUET, *ARROW, *_TEXT)


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
    different ones and each is there ten times on average; see :mod:`rankgrad.data._categories`.

    Args:
        path: the file or folder.
        query: the column of the query's id.
        label: the column of the graded label.
        features: the columns of features, in this order; by default all other columns of numbers
            and those of few texts. ``Dataset.notes`` says which columns are left out.
        weight: the column of item weights. Files that :func:`write` made know theirs.
        id: the column of item ids. Files that :func:`write` made know theirs.
        fill: a value in place of missing features.
        labeled: without it labels may be missing, as in data to be scored; they are then 0.
        missing: what else counts as a missing value, such as ``["-999", "unknown"]``.
        categorical: columns that are categorical features, whatever they hold.

    Returns:
        The lists, with the rows of each query brought together.

    Raises:
        ValueError: the file cannot be read, or has not the columns that were asked for.
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
    also = MissingValues.of(missing)
    roles = _Roles(
        path, query, label, features, weight, id, labeled, also.texts, frozenset(categorical)
    )
    builder = None
    sources = parts(path) or [path]
    for part in sources:
        roles.path = part
        with _opened(part, roles) as (total, batches):
            if builder is None:
                builder = _Builder(roles, total if len(sources) == 1 else None, fill, also)
            builder.begin_file()
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    builder.add(batch.slice(start, _ROWS))
    assert builder is not None
    roles.path = path
    dataset = builder.finish()
    known = roles.checksum if len(sources) == 1 and not builder.changed else None
    if known not in (None, _checksum(dataset)):
        raise _files.damaged(path, _CHANGED.format("contents"))
    return dataset


def write(dataset: Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a data set as a Parquet file: ``qid``, ``label``, then ``weight``, ``id``, features.

    Features without names are called ``f1``, ``f2`` and so on, as LETOR numbers them.

    Args:
        dataset: the data set.
        path: the file, which ends in ``.parquet`` or ``.pq``.
        overwrite: replace a file that is there.

    Returns:
        The path.

    Raises:
        FileExistsError: the file is there and is not to be replaced.
        ValueError: the path has another suffix, or features have the names of other columns.
    """
    path = Path(path)
    if suffix(path) not in PARQUET:
        raise ValueError(f"{path} must end in {' or '.join(PARQUET)}: only Parquet is written")
    _files.check_free(path, overwrite)
    parquet = load("pyarrow.parquet", "columnar")
    schema = _schema(dataset)
    with (
        _files.atomic_write(path) as file,
        parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer,
    ):
        for start in range(0, max(1, dataset.n_items), _ROWS):
            writer.write_batch(_batch(dataset, schema, start, start + _ROWS))
    return path


@dataclass
class _Roles:
    """Which column is what, known once the file's schema is known; later parts have the same."""

    path: Path
    query: str
    label: str | None
    features: Sequence[str] | None
    weight: str | None
    id: str | None
    labeled: bool
    missing: frozenset[str]  # texts that are missing values
    categorical: frozenset[str]  # named as such
    texts: list[str] = field(default_factory=list)  # features whose columns are of texts
    chosen: bool = False  # whether features are named by the caller
    names: list[str] = field(default_factory=list)  # of the features
    used: list[str] = field(default_factory=list)  # columns with another role
    left_out: list[str] = field(default_factory=list)  # columns that have no role
    _counts: Counter[str] = field(default_factory=Counter, init=False)  # of the file's columns
    checksum: str | None = None  # of the contents, where the file has it and all of it is read

    def find_columns(self, schema: Any) -> None:
        """Find the columns in a schema, or say which one is missing and what there is."""
        metadata = schema.metadata or {}
        recorded, sums = self._recorded(metadata, schema), metadata.get(_SUMS, b"").decode()
        no_extras = (self.weight, self.id) == (None, None)
        self.weight = self.weight or recorded.get("weight")
        self.id = self.id or recorded.get("id")
        self._counts = Counter(schema.names)
        if not self.labeled and self.label not in schema.names:
            self.label = None
        for role in ("query", "label", "weight", "id"):
            if getattr(self, role) is not None:
                self._find(getattr(self, role), role, schema)
        roles = (self.query, self.label, self.weight, self.id)
        used = self.used = [name for name in roles if name is not None]
        if self.features is not None:
            for name in self.features:
                self._find(name, "features", schema)
            self.names = list(self.features)
            self.chosen = self.chosen or not self.left_out
        else:
            self.names = _usable(schema, used, self.categorical)
            self.left_out = [name for name in schema.names if name not in {*used, *self.names}]
        self.check_names()
        for name in self.categorical:
            self._find(name, "categorical", schema)
        named = self.categorical
        self.texts = [n for n in self.names if n in named or _is_text(schema.field(n).type)]
        for name in set(self.names) - set(self.texts):
            if not _is_number(schema.field(name).type):
                raise self.not_numbers("feature", name, schema.field(name).type)
        complete = self.names == _usable(schema, used, self.categorical)
        if no_extras and self.label == "label" and complete:
            self.checksum = sums[8:] or None
        self.features = self.names

    def check_names(self) -> None:
        """An error if there are no features."""
        if not self.names:
            raise ValueError(
                f"{self.path} has no numeric columns for features beside {quote(self.used)}"
            )

    def not_numbers(self, role: str, name: str, kind: Any) -> ValueError:
        """The error of a column that must be one of numbers, and is of another type."""
        return ValueError(
            f"{self.path}: the {role} {quote(name)} must be a column of numbers, found "
            f"{shorten(str(kind))}"
        )

    def _recorded(self, metadata: dict[bytes, bytes], schema: Any) -> dict[str, str]:
        """The roles that :func:`write` recorded in the file, compared with their checksum."""
        text, sums = metadata.get(_ROLES, b"{}"), metadata.get(_SUMS)
        if sums is not None and sums[:8].decode() != _schema_checksum(schema, text):
            raise _files.damaged(self.path, _CHANGED.format("schema"))
        try:
            recorded = json.loads(text)
        except (ValueError, RecursionError):
            recorded = None
        if isinstance(recorded, dict) and all(isinstance(name, str) for name in recorded.values()):
            return recorded
        raise _files.damaged(self.path, "its record of the columns is not readable")

    def columns(self) -> list[str]:
        """All columns to read, each once."""
        return list(dict.fromkeys([*self.used, *self.names]))

    def _find(self, name: str, role: str, schema: Any) -> None:
        count = self._counts[name]
        if count == 0:
            close = difflib.get_close_matches(name, schema.names[:_SEARCHED], n=1)
            hint = f"Did you mean {quote(close[0])}? " if close else ""
            kind = FeaturesError if role == "features" else ValueError
            raise kind(
                f"{self.path} has no column {quote(name)} for {role}. {hint}"
                f"There are: {listing(schema.names)}"
            )
        if count > 1:
            raise ValueError(f"{self.path} has {count} columns named {quote(name)}")


class _Builder:
    """Batches into arrays: preallocated where the number of rows is known, else grown in place."""

    def __init__(
        self, roles: _Roles, total: int | None, fill: float | None, also: MissingValues
    ) -> None:
        self.roles, self.fill, self.also, self.rows = roles, fill, also, 0
        self.missing = self.unlabeled = 0  # values, rows
        self.changed = False  # whether values are not as they are in the file
        self.first = 0  # row of the file that is being read
        self.limit = _memory_limit.available() // 2  # rows out of order are copied once more
        size = min(_rows(len(roles.names)), self._most()) if total is None else total
        self._check(size)
        self.features = np.empty((size, len(roles.names)), np.float32)
        self.labels = np.empty(size, np.float32)
        self.weights = None if roles.weight is None else np.empty(size, np.float32)
        self.ids: list[np.ndarray] | None = None if roles.id is None else []
        self.categories: dict[str, dict[str, int]] = {name: {} for name in roles.texts}
        self.codes = np.empty(size, np.int64)  # of the queries, in order of first appearance
        self.code: dict[str, int] = {}

    def begin_file(self) -> None:
        """What is added from here on is of the next file."""
        self.first = self.rows

    def add(self, batch: Any) -> None:
        """Take in the rows of a record batch."""
        start, stop = self.rows, self.rows + batch.num_rows
        if stop > len(self.labels):
            self._check(stop)
            self._resize(max(stop, min(len(self.labels) * 3 // 2, self._most())))
        self.codes[start:stop] = self._encode(batch.column(self.roles.query))
        self.labels[start:stop] = 0.0
        if self.roles.label is not None:
            self.labels[start:stop] = self._values(batch, self.roles.label, "label")
        if self.weights is not None:
            self.weights[start:stop] = self._values(batch, str(self.roles.weight), "weight")
        if self.ids is not None:
            column = self._texts(batch.column(self.roles.id), "id", str(self.roles.id))
            self.ids.append(id_array("ids", column.to_pylist()))
        for j, name in enumerate(self.roles.names):
            if name in self.categories:
                self.features[start:stop, j] = self._category_codes(batch.column(name), name)
            else:
                self.features[start:stop, j] = self._values(batch, name, "feature")
        self._mark_missing(self.features[start:stop])
        self.rows = stop

    def _mark_missing(self, features: np.ndarray) -> None:
        """Count missing values, and replace them by ``fill``, in place; codes stay as they are."""
        numbers = [j for j, name in enumerate(self.roles.names) if name not in self.categories]
        self.changed |= self.also.mark(features, numbers) > 0
        absent = np.isnan(features)
        self.missing += int(absent.sum())
        if self.fill is not None and absent.any():
            features[absent] = self.fill
            self.changed = True

    def finish(self) -> Dataset:
        """The data set, with the rows of each query brought together."""
        path = self.roles.path
        if self.rows == 0:
            raise ValueError(f"{path} has no rows")
        self._resize(self.rows)
        categories = self._finish_categories()
        ids = None if self.ids is None else self._all_ids()
        offsets, order, apart = group_rows(self.codes, len(self.code))
        rows: Any = slice(None) if order is None else order
        notes = []
        if apart:
            notes.append(
                f"the rows of {apart} queries were not contiguous and were brought together"
            )
        if self.roles.label is None:
            notes.append("there are no labels")
        elif self.unlabeled:
            notes.append(f"{self.unlabeled:,} rows have no label")
        if self.missing and self.fill is None:
            notes.append(f"{self.missing:,} feature values are missing")
        elif self.missing:
            notes.append(f"{self.missing} missing feature values were set to {self.fill:g}")
        if self.roles.left_out:
            columns = listing(self.roles.left_out)
            notes.append(f"columns left out, which are neither numbers nor few texts: {columns}")
        try:
            return Dataset(
                features=self.features[rows],
                labels=self.labels[rows],
                offsets=offsets,
                qids=id_array("qids", list(self.code)),
                weights=None if self.weights is None else self.weights[rows],
                ids=None if ids is None else ids[rows],
                feature_names=tuple(self.roles.names),
                notes=tuple(notes),
                source_rows=order,
                categories=categories,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _most(self) -> int:
        """The number of rows that the limit on memory leaves."""
        return self.limit // (4 * max(1, len(self.roles.names)))

    def _check(self, rows: int) -> None:
        """An error, before memory is taken, if this many rows are too many."""
        columns = len(self.roles.names)
        what = f"{self.roles.path}: {rows:,} rows of {columns:,} features"
        hint = "name fewer columns (--feature), or give more memory (half of it is the limit)"
        _memory_limit.check(4 * rows * columns, self.limit, what, hint)

    def _all_ids(self) -> np.ndarray:
        assert self.ids is not None
        widest = max(ids.dtype.itemsize for ids in self.ids)
        what = f"{self.roles.path}: {self.rows:,} ids of up to {widest // 4:,} characters"
        _memory_limit.check(widest * self.rows, self.limit, what, "give shorter ids")
        return np.concatenate(self.ids)

    def _resize(self, rows: int) -> None:
        arrays: list[np.ndarray] = [self.features, self.labels, self.codes]
        if self.weights is not None:
            arrays.append(self.weights)
        for array in arrays:
            array.resize((rows, *array.shape[1:]), refcheck=False)

    def _category_codes(self, column: Any, name: str) -> np.ndarray:
        """Codes of a column's texts in order of first appearance; NaN for missing ones."""
        texts = column.cast(load("pyarrow", "columnar").string())
        encoded = texts.dictionary_encode()
        codes = self.categories[name]
        table = [
            np.nan if text is None or text in self.also else codes.setdefault(text, len(codes))
            for text in encoded.dictionary.to_pylist()
        ]
        indices = encoded.indices.fill_null(len(table)).to_numpy(zero_copy_only=False)
        category_codes: np.ndarray = np.array([*table, np.nan], np.float32)[indices]
        return category_codes

    def _finish_categories(self) -> Categories | None:
        """Sort the categories; leave out columns of too many texts, unless they are chosen."""
        roles, categories = self.roles, dict[str, tuple[str, ...]]()
        for name, codes in self.categories.items():
            chosen = roles.chosen or name in roles.categorical
            if not chosen and len(codes) > min(_CATEGORIES, self.rows // _REPEATS):
                roles.left_out.append(name)
                continue
            categories[name], new = _categories.sort_names(list(codes))
            column = self.features[:, roles.names.index(name)]
            there = ~np.isnan(column)
            column[there] = new[column[there].astype(np.int64)]
        stay = [j for j, name in enumerate(roles.names) if name not in roles.left_out]
        if len(stay) < len(roles.names):
            self.features = np.ascontiguousarray(self.features[:, stay])
            roles.names = [roles.names[j] for j in stay]
        roles.check_names()
        return tuple(categories.get(name) for name in roles.names) if categories else None

    def _encode(self, column: Any) -> np.ndarray:
        """Query ids as numbers in the order of their first appearance in the file."""
        encoded = self._texts(column, "query", self.roles.query).dictionary_encode()
        known = [self.code.setdefault(q, len(self.code)) for q in encoded.dictionary.to_pylist()]
        codes: np.ndarray = np.asarray(known, np.int64)[encoded.indices.to_numpy()]
        return codes

    def _texts(self, column: Any, role: str, name: str) -> Any:
        if column.null_count:
            raise self._error(role, name, "is null", np.asarray(column.is_null()))
        texts = column.cast(load("pyarrow", "columnar").string())
        lengths = np.asarray(load("pyarrow.compute", "columnar").utf8_length(texts))
        if len(lengths) and lengths.max() > LONGEST_ID:
            what = f"has {lengths.max():,} characters, and at most {LONGEST_ID:,} are read"
            raise self._error(role, name, what, lengths > LONGEST_ID)
        return texts

    def _values(self, batch: Any, name: str, role: str) -> np.ndarray:
        """A column as float32, none of them infinite; only features may be missing."""
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
            self.unlabeled += int(missing.sum())
        elif missing.any() and role != "feature":
            raise self._error(role, name, "is null or NaN", missing)
        infinite = np.isinf(values)
        if infinite.any():
            raise self._error(role, name, "is infinite or beyond float32", infinite)
        return values

    def _error(self, role: str, name: str, what: str, where: np.ndarray) -> ValueError:
        row = self.rows - self.first + int(where.argmax()) + 1
        return ValueError(f"{self.roles.path}: the {role} {quote(name)} of row {row} {what}")


@contextmanager
def _opened(path: Path, roles: _Roles) -> Iterator[tuple[int | None, Iterable[Any]]]:
    """The number of rows of a file, where it says so, and its record batches."""
    arrow = load("pyarrow", "columnar")
    kind = suffix(path)
    try:
        if kind in PARQUET:
            read = load("pyarrow.parquet", "columnar").ParquetFile
            with read(path, page_checksum_verification=True) as file:
                roles.find_columns(file.schema_arrow)
                columns = roles.columns()
                batches = file.iter_batches(_rows(len(columns)), columns=columns)
                yield file.metadata.num_rows, _valid(batches)
        elif kind in ARROW:
            with arrow.memory_map(os.fspath(path)) as source:
                yield None, _valid(_arrow_batches(source, roles))
        elif kind in _TEXT:
            with _text_batches(path, roles) as batches:
                yield None, batches
        else:
            known = ", ".join((*PARQUET, *ARROW, *_TEXT))
            raise ValueError(f"{path} must end in one of {known}")
    except arrow.ArrowException as error:
        raise ValueError(f"cannot read {path}: {shorten(str(error), 400)}") from error
    except (UnicodeDecodeError, OSError) as error:  # of names, and what Arrow finds in its files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} is damaged: {shorten(str(error), 400)}") from error


def _rows(columns: int) -> int:
    """How many rows of this many columns are read at a time."""
    return max(1, min(_ROWS, _CELLS // max(1, columns)))


def _valid(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches, each checked first: Arrow follows the offsets of a damaged one anywhere."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _arrow_batches(source: Any, roles: _Roles) -> Iterable[Any]:
    """Batches of both Arrow formats: files, with an index at their end, and streams."""
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
    """Bytes that hold the header and some rows, as pyarrow needs; a row may be of any width."""
    usual, most = _CSV_BLOCK
    with _streams.open_text(path) as file:
        header = file.readline(most // 4)
    if len(header) == most // 4:
        raise ValueError(f"{path}: the first line is longer than {len(header):,} bytes")
    columns = header.count(_TEXT[suffix(path)].encode()) + 1
    what = f"{path}: to read a text file of {columns:,} columns"
    _memory_limit.check(
        columns * _CSV_COLUMN, _memory_limit.available(), what, "give a Parquet file"
    )
    return max(usual, 4 * len(header))


@contextmanager
def _text_batches(path: Path, roles: _Roles) -> Iterator[Any]:
    """CSV in two openings: one to see which columns are numbers, one to read them as such.

    Without the second, whole numbers that turn to fractions far down would be an error.
    """
    csv, arrow = load("pyarrow.csv", "columnar"), load("pyarrow", "columnar")
    delimiter = csv.ParseOptions(delimiter=_TEXT[suffix(path)])
    block = csv.ReadOptions(block_size=_csv_block(path))
    nulls = _null_texts(csv, roles.missing)
    with (
        _streams.open_text(path) as file,
        csv.open_csv(file, block, delimiter, csv.ConvertOptions(null_values=nulls)) as reader,
    ):
        roles.find_columns(reader.schema)
    types = dict.fromkeys(roles.columns(), arrow.float64())
    texts = [name for name in (roles.query, roles.id, *roles.texts) if name is not None]
    types |= dict.fromkeys(texts, arrow.string())
    convert = csv.ConvertOptions(
        column_types=types, include_columns=roles.columns(), null_values=nulls
    )
    with _streams.open_text(path) as file, csv.open_csv(file, block, delimiter, convert) as reader:
        yield reader


def _null_texts(csv: Any, missing: Iterable[str]) -> list[str]:
    """Texts of missing values: pyarrow's own and these, which it compares by case."""
    cases = (case for text in missing for case in (text, text.upper(), text.capitalize()))
    return sorted({*csv.ConvertOptions().null_values, *cases})


def _schema(dataset: Dataset) -> Any:
    arrow = load("pyarrow", "columnar")
    roles = {"query": "qid", "label": "label"}
    roles |= {} if dataset.weights is None else {"weight": "weight"}
    roles |= {} if dataset.ids is None else {"id": "id"}
    texts = ("qid", "id")
    fields = [(n, arrow.string() if n in texts else arrow.float32()) for n in roles.values()]
    names = dataset.feature_names or tuple(f"f{j + 1}" for j in range(dataset.n_features))
    taken = set(names) & set(roles.values())
    if taken or len(set(names)) != len(names):
        raise ValueError(
            f"feature names must be unique and none of {', '.join(roles.values())}; found "
            f"{', '.join(sorted(taken)) or 'the same name twice'}"
        )
    kinds = dataset.categories or (None,) * len(names)
    fields += [
        (name, arrow.float32() if kind is None else arrow.string())
        for name, kind in zip(names, kinds, strict=True)
    ]
    text = json.dumps(roles).encode()
    # Codes depend on which categories the file has, so that their checksum would not be theirs.
    contents = "" if dataset.categories else _checksum(dataset)
    sums = _schema_checksum(arrow.schema(fields), text) + contents
    return arrow.schema(fields, metadata={_ROLES: text, _SUMS: sums.encode()})


def _schema_checksum(schema: Any, roles: bytes) -> str:
    columns = [(column.name, str(column.type)) for column in schema]
    return _checksums.of_bytes(repr(columns).encode() + roles)


def _checksum(dataset: Dataset) -> str:
    """The checksum of what a file holds: features, labels, and which items are of which query."""
    blocks = range(0, dataset.n_items, _ROWS)
    arrays: list[Any] = [dataset.features[start : start + _ROWS] for start in blocks]
    arrays += [dataset.labels, dataset.offsets, dataset.weights]
    total = 0
    for array in arrays:
        if array is not None:
            total = zlib.crc32(canonical_nan(np.asarray(array)).data, total)
    for texts in (dataset.qids, dataset.ids):
        if texts is not None:
            total = zlib.crc32("\0".join(texts.tolist()).encode("utf-8", "surrogatepass"), total)
    return f"{total:08x}"


def _usable(schema: Any, used: Sequence[str], categorical: Iterable[str]) -> list[str]:
    """The columns that have no other role and may be features: of numbers, texts, or named so."""
    return [
        c.name
        for c in schema
        if c.name not in used and (c.name in categorical or _is_number(c.type) or _is_text(c.type))
    ]


def _batch(dataset: Dataset, schema: Any, start: int, stop: int) -> Any:
    arrow = load("pyarrow", "columnar")
    rows = np.arange(start, min(stop, dataset.n_items))
    lists = np.searchsorted(dataset.offsets, rows, side="right") - 1
    columns = [dataset.qids[lists].tolist(), dataset.labels[start:stop]]
    others = [array for array in (dataset.weights, dataset.ids) if array is not None]
    columns += [array[start:stop].tolist() for array in others]
    block = np.asarray(dataset.features[start:stop])
    kinds = dataset.categories or (None,) * dataset.n_features
    for column, kind in zip(block.T, kinds, strict=True):
        if kind is None:
            columns.append(np.ascontiguousarray(column))
        else:
            columns.append([None if np.isnan(code) else kind[int(code)] for code in column])
    arrays = [arrow.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return arrow.record_batch(arrays, schema=schema)


def _is_text(kind: Any) -> bool:
    types = load("pyarrow", "columnar").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    """Whether a column's type is numeric; one with nothing but nulls may be."""
    types = load("pyarrow", "columnar").types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)
