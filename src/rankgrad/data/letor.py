"""Reads LETOR and LibSVM text files as a :class:`~rankgrad.data.Dataset`.

A row is ``label qid:Q id:value id:value ... # comment``. Files that scikit-learn's
``load_svmlight_file`` reads have the same values here. In addition, qids may be any strings and
need not be contiguous, feature ids may be unsorted or repeated, files may be compressed with gzip,
bzip2 or xz, and several files may be read as one. ``Dataset.notes`` says what was corrected.
Unlike scikit-learn, this reader does not take ``1_000`` and digits of other scripts for numbers.

One pass over the files is enough, although the numbers of rows and features are known only at its
end. The files are read in blocks of whole lines (:class:`_Block`). Threads parse each block
(:class:`_Parser`, with the compiled loop of ``_letor_kernel.py``) into a matrix (:class:`_Part`)
whose width is the block's highest feature id. At the end the matrices are copied into the result
one by one; until then those with few values are sparse. Peak memory is at most twice that of the
result. :class:`_SizeLimit` follows the size of the result while blocks are read; it is an error if
that exceeds half of the available memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np

from rankgrad._quoting import quote, shorten
from rankgrad._shapes import Array
from rankgrad._validation import check_list_sizes, check_whole
from rankgrad.data import _memory_limit, _streams, _text_lines
from rankgrad.data._dataset import MAX_ID_LENGTH, Dataset, FeaturesError, group_rows, id_array
from rankgrad.data._missing import MissingValues
from rankgrad.data._ordered_map import ordered_map

if TYPE_CHECKING:
    from rankgrad.data._letor_kernel import Output

__all__ = ["cores", "read"]


_BLOCK = 1 << 20  # bytes of text parsed at a time
_PADDING = 40  # bytes after a block; needed are 1 for a line end and 32 that the kernel may read
_PROBE_BYTES = 1 << 16  # bytes of the first block from which its width is guessed
_TOKEN = re.compile(rb"[^\s#]*")
_DOCID = re.compile(rb"#[^\n]*?docid[ \t]*=[ \t]*([^\s#]+)[^\n]*")
_SHOWN_BYTES = 60  # of a faulty line that an error shows: at its start, and around the fault
_MAX_DENSE_BYTES = 1 << 25  # of the matrix of a block; a block that needs more is parsed in pieces
# In a matrix above this size, at least one in so many cells must have a value. Otherwise the
# highest feature id is likely to be a mistake.
_LARGE_BYTES, _MAX_SPARSITY = 1 << 30, 100_000


def read(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    groups: Sequence[int] | Array | None = None,
    n_features: int | None = None,
    zero_based: bool | None = None,
    threads: int | None = None,
    ids: bool | Literal["auto"] = False,
    finite: bool = False,
    labeled: bool = True,
    missing: Sequence[str | float] = (),
    _block: int = _BLOCK,  # tests read smaller blocks
) -> Dataset:
    r"""Read LETOR/LibSVM files, one after the other, as one data set.

    Values are parsed as Python's ``float`` does and rounded to float32; empty values, ``?``,
    ``NA``, ``nan`` and ``NULL`` are missing and become NaN. A label must be finite. Features that a
    row does not name are 0. All rows with the same qid form one list, wherever they are.

    Args:
        paths: a file or several; the content tells how a file is compressed.
        groups: list sizes, for files without qids (such as LightGBM's, from their ``.query`` side
            file), over all files in order. The qids are then ``"1"``, ``"2"``, ...
        n_features: the width of the result, such as that of the training data; by default the
            highest feature id. A higher id in the files is an error.
        zero_based: whether feature ids start at 0. By default they do if there is an id 0.
        threads: how many blocks to parse at a time; by default one on each core.
        ids: take item ids from ``docid = X`` in the comments, as in MQ2008; ``"auto"`` does so if
            all rows have one.
        finite: raise an error for an infinite feature value.
        labeled: False if labels may be missing, as in data to be scored: a row may begin with its
            qid or have a missing value as its label, and gets the label 0.
        missing: further missing values, such as ``["-999", "unknown"]``.

    Returns:
        The lists, in the order of the first rows of their qids.

    Raises:
        ValueError: a malformed line, with file, line number and text.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.txt")
    >>> _ = path.write_text("2 qid:a 1:0.5 3:7 # best\n0 qid:a 2:1\n1 qid:b 1:3e-1\n")
    >>> dataset = read(path)
    >>> dataset.features.tolist()[0], dataset.labels.tolist()
    ([0.5, 0.0, 7.0], [2.0, 0.0, 1.0])
    >>> dataset.offsets.tolist(), dataset.qids.tolist()
    ([0, 2, 3], ['a', 'b'])
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise ValueError("paths must name at least one file, found none")
    for option, value in (("n_features", n_features), ("threads", threads)):
        if value is not None:
            check_whole(option, value)
    sizes = None if groups is None else check_list_sizes("groups", groups)
    threads = threads or cores()
    threads = threads if threads > 1 else 0  # a single thread is the calling one
    buffers: list[bytearray] = []
    size_limit = _SizeLimit(_memory_limit.available() // 2, n_features)
    missing_values = MissingValues.of(missing)
    row_options = _RowOptions(sizes is None, ids, labeled, finite, missing_values)
    parser = _Parser(row_options, n_features, zero_based, buffers, size_limit)
    blocks = (
        block for path in files for block in _read_blocks(path, _block, buffers, size_limit.limit)
    )
    parts: list[_Part] = []
    for block_parts in ordered_map(parser.parse, blocks, threads):
        for part in block_parts:
            parts.append(part)
            size_limit.add(part)

    file_names = shorten(", ".join(map(_streams.display_name, files)), 400)
    rows = sum(part.rows for part in parts)
    if rows == 0:
        raise ValueError(f"{file_names}: no rows, only blank lines or comments")
    first_id, width = _feature_range(parts, n_features, zero_based)
    labels = np.concatenate([part.labels for part in parts])
    item_ids = None
    if ids and all(part.ids for part in parts):
        item_ids = id_array("ids", [name for part in parts for name in part.ids])
    order, n_scattered = None, 0  # order: [N], as in _join_features
    if sizes is None:
        list_of_row, qids = _number_queries(parts, rows)
        offsets, order, n_scattered = group_rows(list_of_row, len(qids))
    else:
        if sizes.sum() != rows:
            raise ValueError(f"{file_names}: groups add up to {sizes.sum()} rows, found {rows}")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        qids = np.arange(1, len(sizes) + 1).astype(str)
    features = _join_features(parts, rows, first_id, width, order, threads)
    n_marked = missing_values.mark(features)
    notes = _notes(parts, labels, first_id, n_scattered, sizes is not None, n_marked)
    if item_ids is None and any(part.ids for part in parts):
        notes += ("some rows have no 'docid = ...': items have no ids",)
    if order is not None:
        labels = labels[order]
        item_ids = None if item_ids is None else item_ids[order]
    return Dataset(
        features, labels, offsets, qids,
        ids=item_ids, notes=notes, zero_based=first_id == 0, source_rows=order,
    )  # fmt: skip


def cores() -> int:
    """The number of cores that this process may use.

    Returns:
        The number, at least 1.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Location:
    """A line of a file, for errors."""

    path: Path
    line: int  # its number, from 1
    text: str

    def error(self, problem: str, kind: type[ValueError] = ValueError) -> ValueError:
        path = _streams.display_name(self.path)
        return kind(f"{path}, line {self.line}: {problem}; in the line {self.text!r}")


@dataclass(frozen=True)
class _Block:
    """Whole lines of a file: ``text[:end]``; the rest of ``text`` is no part of the block."""

    path: Path
    text: bytearray
    end: int
    line: int  # number of the first line in the file, from 1
    lines: int  # how many lines

    def locate(self, position: int) -> _Location:
        """The line of a position, shortened to its start and the text around the position."""
        start = self.text.rfind(b"\n", 0, position) + 1
        stop = min(self.text.find(b"\n", position), position + _SHOWN_BYTES)
        text = self.text[start:stop]
        if len(text) > 3 * _SHOWN_BYTES:
            text = text[:_SHOWN_BYTES] + b" ... " + text[-2 * _SHOWN_BYTES :]
        number = self.line + self.text.count(b"\n", 0, start)
        return _Location(self.path, number, text.decode("utf-8", "replace").strip())

    def token(self, position: int) -> str:
        """The token that starts at a position."""
        match = _TOKEN.match(self.text, position)
        return match.group().decode("utf-8", "replace") if match else ""

    def pieces(self, lines: int) -> Iterator[_Block]:
        """Split the block into blocks of this many lines."""
        start = 0
        for first in range(0, self.lines, lines):
            stop, count = start, min(lines, self.lines - first)
            for _ in range(count):
                stop = self.text.find(b"\n", stop) + 1
            text = self.text[start:stop] + bytes(_PADDING)
            yield _Block(self.path, text, stop - start, self.line + first, count)
            start = stop


@dataclass
class _Sparse:
    """The nonzero cells of a float32 matrix: ``matrix[rows, columns] == values``.

    All three arrays are ``[cells]``.
    """

    rows: Array
    columns: Array
    values: Array

    @classmethod
    def of(cls, matrix: Array) -> _Sparse:
        """Keep the cells whose bits are not all 0, so that -0.0 stays -0.0."""
        rows, columns = np.nonzero(matrix.view(np.uint32))
        return cls(rows.astype(np.int32), columns.astype(np.int32), matrix[rows, columns])


@dataclass
class _Counts:
    """What the kernel counts in a block; ``..._at`` are positions of lines in its text."""

    unsorted: int  # rows whose feature ids do not ascend
    duplicates: int  # values of a feature that their row had before
    infinite: int  # values that are infinite
    zero_rows: int  # rows with a feature id 0
    zero_at: int  # the last of them
    id_bound: int  # one above the highest feature id
    id_bound_at: int  # the first line with that id
    missing: int  # values that are missing
    unlabeled: int  # rows without a label
    unlabeled_at: int  # the first of them


@dataclass
class _Part:
    """A parsed block. Column ``f`` of ``features`` has the values of feature id ``f``, from 0."""

    features: Array | _Sparse  # [rows, width]
    labels: Array  # [rows]
    # For each run of rows with the same qid: its first row, and the qid.
    runs: list[tuple[int, str]]
    ids: list[str]  # the item ids of all rows, or empty
    counts: _Counts
    highest: _Location  # the line with the highest feature id

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def cells(self) -> int:
        """How many cells of ``features`` are stored."""
        features = self.features
        return len(features.values) if isinstance(features, _Sparse) else features.size


@dataclass
class _SizeLimit:
    """Bounds the size of the matrix of all rows, which is known only when all files are read.

    The matrix must fit in memory, and must not be so sparse that its highest feature id is likely
    to be a mistake.
    """

    limit: int  # bytes
    n_features: int | None  # the width of the matrix, if the caller says so
    rows: int = 0  # so far
    cells: int = 0  # that have a value, so far
    widest: _Part | None = None

    def add(self, part: _Part) -> None:
        """Add a block to the matrix, and check its size."""
        self.rows += part.rows
        self.cells += part.cells
        if self.widest is None or part.counts.id_bound > self.widest.counts.id_bound:
            self.widest = part
        width = self.n_features or self.widest.counts.id_bound - 1
        self.check(self.rows, width, self.cells, self.widest.highest)

    def check(self, rows: int, width: int, cells: int, location: _Location) -> None:
        """Raise an error if a matrix is too large, or too sparse for its size.

        Args:
            rows: of the matrix, in the blocks that were read so far.
            width: of the matrix.
            cells: an upper bound of the number of its cells that have a value.
            location: the line with the highest feature id, from which the width follows.
        """
        size = 4 * rows * width  # bytes in float32
        is_sparse = rows * width > _MAX_SPARSITY * cells
        is_implausible = self.n_features is None and size > _LARGE_BYTES and is_sparse
        if not is_implausible and size <= self.limit:
            return
        why = f"and {_memory_limit.gigabytes(self.limit)}, half of what can be had, is the limit"
        if is_implausible:
            why = f"and less than one cell in {_MAX_SPARSITY:,} has a value"
        raise location.error(
            f"{rows:,} rows of {width:,} features would take {_memory_limit.gigabytes(size)} of "
            f"memory, {why}: is the highest feature id meant? Wide sparse data need fewer features"
        )


@dataclass(frozen=True)
class _RowOptions:
    """What rows contain, and what is an error in them; see :func:`read`."""

    with_qids: bool
    ids: bool | Literal["auto"]
    labeled: bool
    finite: bool
    missing: MissingValues


@dataclass
class _Parser:
    """Parses blocks. The kernel needs the width of a block's matrix before it reads the ids.

    So the width is guessed from the blocks before; a block that turns out to be wider is parsed
    again. The width counts column 0, for feature id 0, whether or not the files have that id.
    Several threads call :meth:`parse` at a time.
    """

    options: _RowOptions
    n_features: int | None
    zero_based: bool | None
    buffers: list[bytearray]  # texts of parsed blocks, which _read_blocks fills again
    size_limit: _SizeLimit
    width: int = field(default=0, init=False)  # the largest so far

    def parse(self, block: _Block) -> list[_Part]:
        """Parse a block, whose buffer is then free for another block."""
        parts = list(self._parts(block, self._guess_width(block)))
        self.buffers.append(block.text)
        return parts

    def _guess_width(self, block: _Block) -> int:
        """The width of the blocks before or, for the first one, of its first lines."""
        if self.n_features is not None:
            return self.n_features + 1
        if self.width:
            return self.width
        probe_end = block.text.find(b"\n", min(_PROBE_BYTES, block.end - 1)) + 1
        parsed = _run_kernel(block, probe_end, 0, self.options.with_qids)
        self._check_size(block, parsed, probe_end)
        return parsed.counts.id_bound

    def _parts(self, block: _Block, width: int) -> Iterator[_Part]:
        """Parse a block into a matrix of this width, or a wider one if its ids need it.

        A block whose matrix would be large is parsed in pieces.
        """
        lines = max(1, _MAX_DENSE_BYTES // (4 * width + 1))  # + 1, as the width may be 0
        if lines < block.lines:
            for piece in block.pieces(lines):
                yield from self._parts(piece, max(width, self.width))
            return
        parsed = _run_kernel(block, block.end, width, self.options.with_qids)
        id_bound = parsed.counts.id_bound
        if id_bound > width and self.n_features is None:
            self._check_size(block, parsed, block.end)
            self.width = max(self.width, id_bound)
            yield from self._parts(block, id_bound)
            return
        self.width = max(self.width, id_bound)
        yield self._part(block, parsed)

    def _check_size(self, block: _Block, parsed: _Parsed, end: int) -> None:
        """Check the size of the matrix of ``block.text[:end]``, before it is allocated."""
        location = block.locate(parsed.counts.id_bound_at)
        rows, width = len(parsed.arrays.starts), parsed.counts.id_bound - 1
        # The text of a value takes two bytes or more.
        most_cells = end // 2
        self.size_limit.check(rows, width, most_cells, location)

    def _part(self, block: _Block, parsed: _Parsed) -> _Part:
        """Check what the kernel parsed, and add the numbers and names that it left to Python."""
        self._check_ids(block, parsed)
        if parsed.counts.unlabeled and self.options.labeled:
            raise block.locate(parsed.counts.unlabeled_at).error("no label before the qid")
        _parse_deferred(block, parsed, self.options)
        _check_labels(block, parsed.arrays)
        if parsed.problem:
            raise block.locate(parsed.stop).error(_problem_text(block, parsed))
        arrays, rows = parsed.arrays, len(parsed.arrays.starts)
        features = arrays.features.reshape(len(arrays.labels), parsed.width)[:rows]
        if self.options.finite and parsed.counts.infinite:
            _check_finite(block, arrays.starts, features)
        # Finding the nonzero cells takes time: only for a matrix far larger than its text.
        is_wide = features.nbytes > 8 * block.end
        return _Part(
            features=_Sparse.of(features) if is_wide else features,
            labels=arrays.labels[:rows],
            runs=[
                (row, _decode_qid(block, start, stop)) for row, start, stop in arrays.runs.tolist()
            ],
            ids=_find_docids(block, arrays.starts, self.options.ids),
            counts=parsed.counts,
            highest=block.locate(parsed.counts.id_bound_at),
        )

    def _check_ids(self, block: _Block, parsed: _Parsed) -> None:
        counts = parsed.counts
        if self.zero_based is False and counts.zero_rows:
            raise block.locate(counts.zero_at).error(
                "feature id 0, though ids start at 1 (zero_based=False)"
            )
        if self.n_features is not None and counts.id_bound > self.n_features + 1:
            problem = _too_wide(counts.id_bound - 1, self.n_features)
            raise block.locate(counts.id_bound_at).error(problem, FeaturesError)


@dataclass(frozen=True)
class _Parsed:
    """What :func:`rankgrad.data._letor_kernel.parse` made of a block."""

    width: int  # of the matrix of features
    problem: int  # a status of the kernel; 0 if there is none
    stop: int  # the position where the kernel stopped
    arrays: Output
    counts: _Counts


def _run_kernel(block: _Block, end: int, width: int, with_qids: bool) -> _Parsed:
    """Run the kernel over ``text[:end]`` of a block, for a matrix of this width."""
    from rankgrad.data import _letor_kernel

    output = _letor_kernel.Output(
        features=np.zeros(block.lines * width, np.float32),
        labels=np.empty(block.lines, np.float32),
        starts=np.empty(block.lines, np.int64),
        runs=np.empty((block.lines, 3), np.int64),
        # A number and the separator after it take two bytes or more.
        deferred=np.empty((end // 2 + 1, 2), np.int64),
        stamps=np.zeros(width, np.int64),
    )
    text = np.frombuffer(block.text, np.uint8)
    problem, stop, sizes, counts = _letor_kernel.parse(text, end, width, with_qids, output)
    rows, n_runs, n_deferred = sizes
    filled = {"runs": output.runs[:n_runs], "deferred": output.deferred[:n_deferred]}
    arrays = output._replace(starts=output.starts[:rows], **filled)
    return _Parsed(width, problem, stop, arrays, _Counts(*counts))


def _parse_deferred(block: _Block, parsed: _Parsed, options: _RowOptions) -> None:
    """Parse the numbers that the kernel left to Python, and count the missing and infinite ones.

    They are in the order of the file. Where a row has several values of one feature, the kernel
    defers all but the first, so that the last one counts.
    """
    arrays, counts = parsed.arrays, parsed.counts
    with np.errstate(over="ignore"):
        for position, cell in arrays.deferred.tolist():  # for a label, cell = -1 - row
            token = block.token(position)
            if token in options.missing and (cell >= 0 or not options.labeled):
                if cell >= 0:
                    arrays.features[cell] = np.nan
                    counts.missing += 1
                else:
                    arrays.labels[-1 - cell] = 0.0
                    counts.unlabeled += 1
                continue
            try:
                value = np.float32(_text_lines.parse_number(token))
            except ValueError:
                problem = f"{'label' if cell < 0 else 'value'} {quote(token)} is not a number"
                raise block.locate(position).error(problem) from None
            if cell >= 0:
                arrays.features[cell] = value
                counts.missing += bool(np.isnan(value))
                counts.infinite += bool(np.isinf(value))
            elif np.isfinite(value):
                arrays.labels[-1 - cell] = value
            else:
                raise block.locate(position).error(f"label {quote(token)} is not a finite float32")


def _check_finite(block: _Block, starts: Array, features: Array) -> None:
    """Raise an error if a row has an infinite value, unless a later one in the row replaced it."""
    rows, ids = np.nonzero(np.isinf(features))
    if len(rows):
        value = features[rows[0], ids[0]]
        raise block.locate(int(starts[rows[0]])).error(
            f"the value of feature {ids[0]} is {value}; values must be finite float32 numbers"
        )


def _check_labels(block: _Block, arrays: Output) -> None:
    negative = np.flatnonzero(arrays.labels[: len(arrays.starts)] < 0)
    if len(negative):
        position = int(arrays.starts[negative[0]])
        label = quote(block.token(position))
        raise block.locate(position).error(f"label {label} is negative; relevance starts at 0")


def _problem_text(block: _Block, parsed: _Parsed) -> str:
    """Why the kernel stopped, in words."""
    from rankgrad.data import _letor_kernel as kernel

    start = max(block.text.rfind(c, 0, parsed.stop) for c in (b" ", b"\t", b"\n")) + 1
    token = quote(block.token(start))
    return {
        kernel.BAD_PAIR: f"expected id:value, found {token}",
        kernel.BAD_ID: f"the feature id of {token} is not a number from 0 to {kernel.MAX_ID}",
        kernel.QID_EMPTY: "the qid is empty",
        kernel.QID_MISSING: "no qid:... after the label (a file without qids needs the sizes of "
        "its lists: beside it as NAME.query, or in Python as groups)",
        kernel.QID_UNEXPECTED: "a qid, though there are groups (NAME.query beside the file), "
        "which are for files without qids",
    }[parsed.problem]


def _too_wide(feature: int, n_features: int) -> str:
    return f"feature id {feature} is beyond n_features={n_features}"


def _decode_qid(block: _Block, start: int, stop: int) -> str:
    try:
        qid = block.text[start:stop].decode()
    except UnicodeDecodeError:
        raise block.locate(start).error("the qid is not UTF-8 text") from None
    if "\0" in qid:
        raise block.locate(start).error("the qid has a NUL in it")
    _check_length(block, start, "qid", qid)
    return qid


def _find_docids(block: _Block, starts: Array, option: bool | Literal["auto"]) -> list[str]:
    """The ids in the comments of the rows; empty if some rows have none.

    Args:
        block: the text.
        starts: ``[rows]``: where each row's line starts.
        option: ``ids`` of :func:`read`.
    """
    if not option:
        return []
    matches = list(_DOCID.finditer(block.text, 0, block.end))
    rows = np.searchsorted(starts, [match.start() for match in matches], side="right") - 1
    ids: dict[int, str] = {}
    for row, match in zip(rows.tolist(), matches, strict=True):
        if row < 0 or block.text.find(b"\n", int(starts[row]), match.start()) >= 0:
            continue  # in a line of its own, not in the line of a row
        docid = match.group(1).decode("utf-8", "replace")
        _check_length(block, match.start(), "docid", docid)
        ids[row] = docid
    if len(ids) == len(starts):
        return list(ids.values())
    if option is True:
        row = next(row for row in range(len(starts)) if row not in ids)
        problem = "there is no 'docid = ...' in a comment, but --docids (ids=True) asks for it"
        raise block.locate(int(starts[row])).error(problem)
    return []


def _check_length(block: _Block, position: int, kind: str, text: str) -> None:
    if len(text) > MAX_ID_LENGTH:
        raise block.locate(position).error(
            f"the {kind} has {len(text):,} characters, and at most {MAX_ID_LENGTH:,} are read"
        )


def _read_blocks(path: Path, size: int, buffers: list[bytearray], limit: int) -> Iterator[_Block]:
    """Yield a file in blocks of whole lines, of about ``size`` bytes, or of one longer line.

    Args:
        path: the file.
        size: bytes of a block.
        buffers: texts of blocks that were parsed, which are used again.
        limit: bytes of memory; a buffer for a long line may take a sixteenth of it.
    """
    from rankgrad.data import _letor_kernel

    line = 1
    tail = bytearray()  # the beginning of a line whose end is in the next block
    with _streams.open_text(path) as file:
        ended = False
        while not ended:
            capacity = max(size, 2 * len(tail)) + _PADDING
            if capacity > max(limit // 16, size + _PADDING):
                raise ValueError(
                    f"{_streams.display_name(path)}, line {line}: the line is longer than "
                    f"{len(tail):,} bytes, which is no line of a LETOR file"
                )
            text = buffers.pop() if buffers else bytearray(capacity)
            if len(text) < capacity:
                text = bytearray(capacity)
            text[: len(tail)] = tail
            filled = _fill_buffer(file, text, len(tail))
            if line == 1:
                _check_line_ends(path, text, filled)
            ended = filled < len(text) - _PADDING
            if ended and filled and text[filled - 1] != ord("\n"):
                text[filled] = ord("\n")
                filled += 1
            end = text.rfind(b"\n", 0, filled) + 1
            tail = text[end:filled]
            if end:
                lines = _letor_kernel.count_lines(np.frombuffer(text, np.uint8), end)
                yield _Block(path, text, end, line, lines)
                line += lines


def _fill_buffer(file: IO[bytes], text: bytearray, filled: int) -> int:
    """Read the file into ``text`` from index ``filled`` up to the padding; return the new end."""
    with memoryview(text) as view:
        while filled < len(text) - _PADDING:
            count = file.readinto(view[filled:-_PADDING])  # type: ignore[attr-defined]
            if not count:
                break
            filled += count
    return filled


def _check_line_ends(path: Path, text: bytearray, filled: int) -> None:
    """Raise an error if lines end in carriage returns alone, which would read as one line."""
    first_return = text.find(b"\r", 0, filled)
    has_several_lines = 0 <= first_return < len(text[:filled].rstrip())
    if has_several_lines and text.find(b"\n", 0, filled) < 0:
        raise ValueError(
            f"{_streams.display_name(path)}: lines end in carriage returns alone, as on old Macs: "
            "convert them to line feeds (tr '\\r' '\\n')"
        )


def _feature_range(
    parts: list[_Part], n_features: int | None, zero_based: bool | None
) -> tuple[int, int]:
    """The feature id of the first column, and the number of columns."""
    widest = max(parts, key=lambda part: part.counts.id_bound)
    id_bound = widest.counts.id_bound
    if zero_based is None:
        zero_based = any(part.counts.zero_rows for part in parts)
    first_id = 0 if zero_based else 1
    width = max(id_bound - first_id, 0)
    if n_features is None or width <= n_features:
        return first_id, n_features or width
    problem = f"{_too_wide(id_bound - 1, n_features)}, counted from {first_id}"
    raise widest.highest.error(problem, FeaturesError)


def _number_queries(parts: list[_Part], rows: int) -> tuple[Array, Array]:
    """The list of each row ``[N]``, numbered by first appearance; and the lists' qids ``[B]``."""
    numbers: dict[str, int] = {}  # of the lists, by qid
    list_of_run: list[int] = []  # for each run of rows with the same qid
    run_starts: list[int] = []  # the first row of each run
    first_row = 0  # of the part
    for part in parts:
        for start, qid in part.runs:
            list_of_run.append(numbers.setdefault(qid, len(numbers)))
            run_starts.append(first_row + start)
        first_row += part.rows
    list_of_row = np.repeat(list_of_run, np.diff(run_starts, append=rows))
    return list_of_row, id_array("qids", list(numbers))


def _join_features(
    parts: list[_Part], rows: int, first_id: int, width: int, order: Array | None, threads: int
) -> Array:
    """Move the features of all parts into one matrix ``[rows, width]``.

    The memory of each part is freed once its features have been moved.

    Args:
        parts: in the order of the file.
        rows: of the matrix.
        first_id: the feature id of its first column.
        width: of the matrix.
        order: ``[rows]``: which row of the file each row of the matrix is; None if it is the same.
        threads: how many parts to move at a time.
    """
    features = np.zeros((rows, width), np.float32)
    targets = None if order is None else np.argsort(order)  # where each row of the file goes
    stops = np.cumsum([part.rows for part in parts]).tolist()

    def move(item: tuple[int, _Part]) -> None:
        stop, part = item
        start, matrix = stop - part.rows, part.features
        if isinstance(matrix, _Sparse):
            cell_rows = matrix.rows + np.int64(start)
            cell_rows = cell_rows if targets is None else targets[cell_rows]
            features[cell_rows, matrix.columns - first_id] = matrix.values
        else:
            columns = matrix[:, first_id : first_id + width]
            part_rows = slice(start, stop) if targets is None else targets[start:stop]
            features[part_rows, : columns.shape[1]] = columns
        part.features = np.empty((0, 0), np.float32)

    for _ in ordered_map(move, zip(stops, parts, strict=True), threads):
        pass
    return features


def _notes(
    parts: list[_Part], labels: Array, first_id: int, scattered: int, grouped: bool, marked: int
) -> tuple[str, ...]:
    """What a person should know about how the files were read.

    Args:
        parts: all of them, with their counts.
        labels: ``[N]``.
        first_id: the feature id of the first column.
        scattered: the number of queries whose rows were not contiguous.
        grouped: whether the queries have sizes in place of qids.
        marked: the number of values that the user said are missing.
    """
    # The sums of positions (..._at) mean nothing, and are not used.
    total = _Counts(*map(sum, zip(*(astuple(part.counts) for part in parts), strict=True)))
    missing = total.missing + marked
    notes = {
        "feature ids start at 0": first_id == 0,
        f"rows of {scattered} queries were not contiguous and were brought together": scattered,
        f"feature ids of {total.unsorted} rows were not in order and were put in order": (
            total.unsorted
        ),
        f"{total.duplicates} values were of a feature that the row had before; the last one "
        "counts": total.duplicates,
        f"{missing:,} feature values are missing": missing,
        f"{total.infinite} values are infinite, or beyond float32": total.infinite,
        f"{total.unlabeled:,} rows have no label": total.unlabeled,
        "labels are not all whole numbers": bool((labels != np.rint(labels)).any()),
        "queries have no names in the files and were numbered from 1": grouped,
    }
    return tuple(note for note, holds in notes.items() if holds)
