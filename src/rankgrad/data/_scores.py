"""Files of scores, one for each item of a data set.

``rankgrad predict`` writes them, and ``rankgrad evaluate`` reads them, also from other rankers.
There are three formats. ``plain`` has one score a line, in the order of the rows of the data file.
``parquet`` has the columns ``qid``, ``id``, ``label`` and ``score``, list by list. ``trec`` is a
run file with lines ``qid Q0 id rank score tag``, best first. The id of an item without one is its
position in its list, from 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from rankgrad import _files
from rankgrad._quoting import listing, quote, shorten
from rankgrad._shapes import Array
from rankgrad._validation import check_choice
from rankgrad.data import _layout, _streams, _text_lines, columnar, trec
from rankgrad.data._dataset import MAX_ID_LENGTH, Dataset
from rankgrad.extras import load

Format = Literal["plain", "parquet", "trec"]

FORMATS: tuple[Format, ...] = get_args(Format)
_TREC_SUFFIXES = (".run", ".trec")


def format_of(path: str | os.PathLike[str]) -> Format:
    """The format of a file by its suffix.

    >>> from rankgrad.data import _scores
    >>> [_scores.format_of(name) for name in ("a.txt", "a.parquet", "a.run")]
    ['plain', 'parquet', 'trec']
    """
    suffix = columnar.suffix(path)
    if suffix in columnar.PARQUET:
        return "parquet"
    return "trec" if suffix in _TREC_SUFFIXES else "plain"


def write(
    path: str | os.PathLike[str],
    scores: Array,
    dataset: Dataset,
    *,
    format: Format | None = None,
    tag: str = "rankgrad",
    overwrite: bool = False,
) -> None:
    """Write the scores of a data set's items; ``-`` is the standard output.

    Args:
        path: the file, which is written atomically.
        scores: ``[N]``.
        dataset: the data set of the items.
        format: ``"plain"``, ``"parquet"`` or ``"trec"``; by default :func:`format_of` the path.
        tag: the name of the run in a run file.
        overwrite: replace a file that exists.
    """
    if scores.shape != (dataset.n_items,):
        raise ValueError(
            f"there must be a score for each of {dataset.n_items} items, found the shape "
            f"{list(scores.shape)}"
        )
    kind = format or format_of(path)
    check_choice("format", kind, FORMATS)
    with _output(path, overwrite) as file:
        if kind == "parquet":
            _write_parquet(file, scores, dataset)
        else:
            is_trec = kind == "trec"
            lines = _trec_lines(scores, dataset, tag) if is_trec else _plain_lines(scores, dataset)
            file.writelines(f"{line}\n".encode() for line in lines)


def read(path: str | os.PathLike[str], dataset: Dataset) -> Array:
    """Read one score for each item of a data set, in the order of its items.

    Args:
        path: a file in any of the formats; the first line shows which of the two text formats it
            has. ``-`` is the standard input, which must be text.
        dataset: the data set of the items.

    Returns:
        The scores ``[N]``, in float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it does not have one finite score for each item of the data set.
    """
    path = Path(path)
    _layout.check_exists(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file of scores")
    if format_of(path) == "parquet":
        return _read_parquet(path, dataset)
    name, numbered_lines = _streams.display_name(path), _read_lines(path, dataset)
    filled_lines = ((n, line) for n, line in numbered_lines if line.split())
    number, first = next(filled_lines, (0, b""))
    columns = len(first.split())
    if not columns:
        raise ValueError(f"{name} has no scores in it")
    if columns >= 6:
        return _read_trec(name, numbered_lines, dataset)
    if columns > 1:
        raise ValueError(
            f"{name}, line {number}: expected one score, or the six columns of a TREC run (qid Q0 "
            f"id rank score tag), found {columns} columns"
        )
    return _read_plain(name, numbered_lines, dataset)


def item_ids(dataset: Dataset) -> list[str]:
    """The id of each item, or its position in its list, from 1, if the data set has no ids."""
    return _positions(dataset) if dataset.ids is None else list(map(str, dataset.ids))


@contextmanager
def _output(path: str | os.PathLike[str], overwrite: bool) -> Iterator[IO[bytes]]:
    """Open the standard output, or a file that is written atomically."""
    if os.fspath(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    _files.check_file_free(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _files.atomic_write(path) as file:
        yield file


def _plain_lines(scores: Array, dataset: Dataset) -> list[str]:
    """The scores in file order, as the shortest decimals that read back as the same numbers."""
    order = dataset.source_order
    texts: list[str] = (scores if order is None else scores[order]).astype(np.str_).tolist()
    return texts


def _positions(dataset: Dataset) -> list[str]:
    """The position of each item in its list, from 1, as text."""
    firsts = np.repeat(dataset.offsets[:-1], np.diff(dataset.offsets))
    return [str(position) for position in np.arange(dataset.n_items) - firsts + 1]


def _trec_lines(scores: Array, dataset: Dataset, tag: str) -> Iterator[str]:
    """The lines of a run file."""
    ids, offsets = item_ids(dataset), dataset.offsets.tolist()
    for qid, start, stop in zip(dataset.qids.tolist(), offsets[:-1], offsets[1:], strict=True):
        ranked = trec.RankedList(ids[start:stop], scores[start:stop])
        yield from trec.format_run({qid: ranked}, tag)


def _write_parquet(file: IO[bytes], scores: Array, dataset: Dataset) -> None:
    """Write the scores ``[N]`` with the qid, id and label of each item."""
    arrow, parquet = load("pyarrow", "columnar"), load("pyarrow.parquet", "columnar")
    columns = {"qid": _item_qids(dataset), "id": item_ids(dataset)}
    table = arrow.table({**columns, "label": dataset.labels, "score": scores})
    parquet.write_table(table, file, write_page_checksum=True)


def _read_parquet(path: Path, dataset: Dataset) -> Array:
    """Read the scores ``[N]``; a column ``qid``, if there is one, must be that of the data set.

    It may also be in the order of the rows of the data file. With a column ``id``, the rows of a
    list may be in any order, unless the data set has no ids and these are not positions.
    """
    parquet = load("pyarrow.parquet", "columnar")
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
        table.validate(full=True)
    except (load("pyarrow", "columnar").ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {shorten(str(error), 400)}") from error
    if "score" not in table.column_names:
        raise ValueError(f"{path} has no column 'score'. There are: {listing(table.column_names)}")
    scores = np.array(table["score"].to_numpy(), np.float32)
    _check_count(path, len(scores), dataset)
    _check_finite(path, scores)
    qids, ids = (_id_column(table, name) for name in ("qid", "id"))
    order, own_qids = dataset.source_order, _item_qids(dataset)
    if qids is None and order is None:
        return scores
    if qids is None:
        raise ValueError(
            f"{path} has no column 'qid', and the data have queries whose rows are not contiguous: "
            "without it, nothing says whether the scores are in the order of these rows"
        )
    if order is not None and qids != own_qids and qids == [own_qids[item] for item in order]:
        row_of_item = np.argsort(order)
        scores, qids = scores[row_of_item], own_qids
        ids = None if ids is None else [ids[row] for row in row_of_item]
    for row, (qid, expected) in enumerate(zip(qids, own_qids, strict=True), start=1):
        if qid != expected:
            raise ValueError(
                f"{path}: row {row} is of query {quote(qid)}, the data has another one there: "
                "these are not the scores of this data"
            )
    positions = _positions(dataset)
    if ids is None or ids in (item_ids(dataset), positions):
        return scores
    if dataset.ids is None and not set(ids) <= set(positions):
        return scores
    rows = zip(qids, ids, scores.tolist(), strict=True)
    return _by_id(str(path), [(f"row {n}", *row) for n, row in enumerate(rows, 1)], dataset)


def _id_column(table: Any, name: str) -> list[str] | None:
    """A column of ids as texts; None if the table has no such column."""
    if name not in table.column_names:
        return None
    texts: list[str] = columnar.id_texts(table[name].combine_chunks()).to_pylist()
    return texts


def _read_plain(path: str, numbered_lines: list[tuple[int, bytes]], dataset: Dataset) -> Array:
    """Read the scores ``[N]`` from the lines of a plain file, which are in file order."""
    scores = []
    for number, line in numbered_lines:
        columns = _text_lines.decode(path, number, line).split()
        if len(columns) > 1:
            text = quote(" ".join(columns))
            raise ValueError(f"{path}, line {number}: expected one score, found {text}")
        if columns:
            scores.append(_text_lines.number_at(path, number, columns[0]))
    _check_count(path, len(scores), dataset)
    values = np.array(scores, np.float32)
    _check_finite(path, values)
    order = dataset.source_order
    if order is None:
        return values
    item_scores = np.empty_like(values)
    item_scores[order] = values
    return item_scores


def _read_trec(path: str, numbered_lines: list[tuple[int, bytes]], dataset: Dataset) -> Array:
    """Read the scores ``[N]`` from the lines of a run file, which are found by qid and id."""
    lines = [
        (f"line {line.number}", line.query, line.document, line.score)
        for line in trec.run_lines(path, numbered_lines)
    ]
    scores = _by_id(path, lines, dataset)
    _check_finite(path, scores)
    return scores


def _by_id(path: str, rows: list[tuple[str, str, str, float]], dataset: Dataset) -> Array:
    """The scores ``[N]`` of rows, each with its place in the file, a qid, an id and a score."""
    qids, ids = _item_qids(dataset), item_ids(dataset)
    if rows and rows[0][2] not in ids:
        ids = _positions(dataset)  # the file was written from data without ids
    items = {key: item for item, key in enumerate(zip(qids, ids, strict=True))}
    if len(items) < dataset.n_items:
        raise ValueError(f"the data has an item id twice in one list, so {path} is ambiguous")
    scores = np.full(dataset.n_items, np.nan, np.float32)
    for place, query, document, score in rows:
        item = items.get((query, document))
        if item is None:
            raise ValueError(
                f"{path}, {place}: the data has no item {quote(document)} in query {quote(query)}"
            )
        scores[item] = score
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
        qid, document = qids[missing[0]], ids[missing[0]]
        raise ValueError(
            f"{path} has no score for {len(missing)} items of the data; the first is "
            f"{quote(document)} of query {quote(qid)}"
        )
    return scores


def _item_qids(dataset: Dataset) -> list[str]:
    """The qid of each item; a list, as an array would store each as wide as the longest."""
    lists = zip(dataset.qids.tolist(), dataset.lengths.tolist(), strict=True)
    return [qid for qid, length in lists for _ in range(length)]


def _read_lines(path: Path, dataset: Dataset) -> list[tuple[int, bytes]]:
    """The lines of a file of scores, with their numbers from 1.

    Raises an error for a file of more than ``4 * MAX_ID_LENGTH`` bytes an item, instead of reading
    to the end.
    """
    max_size, size = (dataset.n_items + 1) * 4 * MAX_ID_LENGTH, 0
    lines = []
    for number, line in _text_lines.numbered(path):
        lines.append((number, line))
        size += len(line) + 1
        if size > max_size:
            raise ValueError(f"{path} is too long for the scores of {dataset.n_items:,} items")
    return lines


def _check_count(path: Path | str, count: int, dataset: Dataset) -> None:
    if count != dataset.n_items:
        raise ValueError(
            f"{path} has {count:,} scores, the data {dataset.n_items:,} items: these are not the "
            "scores of this data"
        )


def _check_finite(path: Path | str, scores: Array) -> None:
    invalid = np.flatnonzero(~np.isfinite(scores))
    if len(invalid):
        i = int(invalid[0])
        raise ValueError(f"{path}: the score of item {i + 1} is {scores[i]}; scores must be finite")
