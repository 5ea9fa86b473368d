"""LETOR and LibSVM text files to a :class:`~rankgrad.data.Dataset`.

A row is ``label qid:Q id:value id:value ... # comment``. All that scikit-learn's
``load_svmlight_file`` reads gives the same values here. In addition, qids may be any strings and
need not be contiguous, feature ids may come in any order or twice, files may be compressed with
gzip, bzip2 or xz, and several files may be read as one. ``Dataset.notes`` says what was corrected.
Unlike there, ``1_000`` and digits of other scripts are not numbers.

The files are read in blocks of whole lines. Threads parse the blocks into matrices as wide as the
highest feature id of each, so that one pass is enough: the number of rows and of features are known
only at the end, when the blocks are copied to the result one by one. Blocks with few values are
sparse until then. Peak memory is at most twice that of the result. The size of the result is
tracked while blocks are read, and it is an error if it exceeds half of the available memory.
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
from rankgrad.data import _memory_limit, _streams, _text_lines
from rankgrad.data._dataset import LONGEST_ID, Dataset, FeaturesError, group_rows, id_array
from rankgrad.data._missing import MissingValues
from rankgrad.data._ordered_map import ordered_map

if TYPE_CHECKING:
    from rankgrad.data._letor_kernel import Output

__all__ = ["cores", "read"]


_BLOCK = 1 << 20  # bytes of text parsed at a time
_AFTER = 40  # bytes after a block: for a line end that is missing, and for the kernel
_PROBE = 1 << 16  # bytes of the first block from which its width is guessed
_TOKEN = re.compile(rb"[^\s#]*")
_DOCID = re.compile(rb"#[^\n]*?docid[ \t]*=[ \t]*([^\s#]+)[^\n]*")
_SHOWN = 60  # bytes of a faulty line that an error shows: from its start, and about the fault
_DENSE = 1 << 25  # bytes of a matrix of a block; one that would be larger is parsed in pieces
_PLAUSIBLE = 1 << 30, 100_000  # a matrix of this size has a value in one of this many cells


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
    _block: int = _BLOCK,
) -> Dataset:
    r"""Read LETOR/LibSVM files, one after the other, as one data set.

    Values become the float32 nearest to the float64 that Python's ``float`` makes of them; empty
    values, ``?``, ``NA``, ``nan`` and ``NULL`` are missing and become NaN. A label must be finite.
    Features that a row does not name are 0. Rows of one qid belong to one list, wherever they are.

    Args:
        paths: a file or several; compression is seen from the content.
        groups: list sizes, for files without qids (such as LightGBM's, from their ``.query`` side
            file), over all files in order. The lists are then called ``"1"``, ``"2"``, ...
        n_features: the width of the result, such as that of the training data; by default the
            highest feature id. A higher id in the files is an error.
        zero_based: whether feature ids start at 0. By default they do if there is an id 0.
        threads: how many blocks to parse at a time; by default one on each core.
        ids: take item ids from ``docid = X`` in the comments, as in MQ2008; ``"auto"`` if all rows
            have one.
        finite: take an infinite feature value for an error.
        labeled: without it rows may begin with their qid, as in data that are to be scored, or have
            a missing label; the label is then 0.
        missing: what else counts as a missing value, such as ``["-999", "unknown"]``.

    Returns:
        The lists, in the order in which their qids appear first.

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
    _check_count("n_features", n_features)
    _check_count("threads", threads)
    sizes = None if groups is None else _check_groups(groups)
    threads = threads or cores()
    threads = threads if threads > 1 else 0  # with one thread, blocks are parsed in this one
    spare: list[bytearray] = []
    guard = _SizeLimit(_memory_limit.available() // 2, n_features)
    also = MissingValues.of(missing)
    row_options = _RowOptions(sizes is None, ids, labeled, finite, also)
    parser = _Parser(row_options, n_features, zero_based, spare, guard)
    blocks = (block for path in files for block in _blocks(path, _block, spare, guard.limit))
    parts: list[_Part] = []
    for pieces in ordered_map(parser.parse, blocks, threads):
        for part in pieces:
            parts.append(part)
            guard.add(part)

    named = shorten(", ".join(map(_streams.display_name, files)), 400)
    rows = sum(part.rows for part in parts)
    if rows == 0:
        raise ValueError(f"{named}: no rows, only blank lines or comments")
    base, width = _columns(parts, n_features, zero_based)
    labels = np.concatenate([part.labels for part in parts])
    item_ids = None
    if ids and all(part.ids for part in parts):
        item_ids = id_array("ids", [name for part in parts for name in part.ids])
    order, moved = None, 0
    if sizes is None:
        codes, qids = _queries(parts, rows)
        offsets, order, moved = group_rows(codes, len(qids))
    else:
        offsets, qids = _grouped(sizes, rows, named), np.arange(1, len(sizes) + 1).astype(str)
    features = _assemble(parts, rows, base, width, order, threads)
    marked = also.mark(features)
    notes = _notes(parts, labels, base, moved, sizes is not None, marked)
    if item_ids is None and any(part.ids for part in parts):
        notes += ("some rows have no 'docid = ...': items have no ids",)
    if order is not None:
        labels = labels[order]
        item_ids = None if item_ids is None else item_ids[order]
    return Dataset(
        features, labels, offsets, qids,
        ids=item_ids, notes=notes, zero_based=base == 0, source_rows=order,
    )  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """A line of a file, for errors."""

    path: Path
    line: int
    text: str

    def error(self, what: str, kind: type[ValueError] = ValueError) -> ValueError:
        path = _streams.display_name(self.path)
        return kind(f"{path}, line {self.line}: {what}; in the line {self.text!r}")


@dataclass(frozen=True)
class _Block:
    """Whole lines of a file: ``text[:end]``, the first of which is line ``line``."""

    path: Path
    text: bytearray
    end: int
    line: int
    lines: int

    def place(self, at: int) -> _Place:
        """The line of a position, shortened to its start and the text around the position."""
        start = self.text.rfind(b"\n", 0, at) + 1
        stop = min(self.text.find(b"\n", at), at + _SHOWN)
        text = self.text[start:stop]
        if len(text) > 3 * _SHOWN:
            text = text[:_SHOWN] + b" ... " + text[-2 * _SHOWN :]
        number = self.line + self.text.count(b"\n", 0, start)
        return _Place(self.path, number, text.decode("utf-8", "replace").strip())

    def token(self, at: int) -> str:
        """The token that starts at a position."""
        match = _TOKEN.match(self.text, at)
        return match.group().decode("utf-8", "replace") if match else ""

    def pieces(self, lines: int) -> Iterator[_Block]:
        """The same text in blocks of this many lines."""
        start = 0
        for first in range(0, self.lines, lines):
            stop, count = start, min(lines, self.lines - first)
            for _ in range(count):
                stop = self.text.find(b"\n", stop) + 1
            text = self.text[start:stop] + bytes(_AFTER)
            yield _Block(self.path, text, stop - start, self.line + first, count)
            start = stop


@dataclass
class _Sparse:
    """The cells of a matrix that are not 0, as ``features[rows, columns] = values``."""

    shape: tuple[int, int]
    rows: Array
    columns: Array
    values: Array

    @classmethod
    def of(cls, features: Array) -> _Sparse:
        """The bits decide what is 0: -0.0 is not."""
        rows, columns = np.nonzero(features.view(np.uint32))
        places = rows.astype(np.int32), columns.astype(np.int32)
        return cls(features.shape, *places, features[rows, columns])

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.columns.nbytes + self.values.nbytes


@dataclass
class _Counts:
    """What was counted in a block; positions are those of the first, or of the highest id."""

    unsorted: int
    duplicates: int
    infinite: int
    zeros: int
    zero_at: int
    above: int  # one above the highest feature id
    above_at: int
    missing: int
    unlabeled: int
    unlabeled_at: int


@dataclass
class _Part:
    """A parsed block. Column ``f`` of ``features`` is feature id ``f``."""

    features: Array | _Sparse
    labels: Array
    runs: list[tuple[int, str]]  # the first row of each run of rows with one qid, and that qid
    ids: list[str]  # of all rows, or empty
    counts: _Counts
    highest: _Place

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def cells(self) -> int:
        """How many cells of ``features`` have a value."""
        features = self.features
        return len(features.values) if isinstance(features, _Sparse) else features.size


@dataclass
class _SizeLimit:
    """Bounds the matrix of all rows: by memory, and by what sparse data can sensibly be."""

    limit: int  # bytes
    n_features: int | None  # how wide the matrix is, if the caller says so
    rows: int = 0
    cells: int = 0
    widest: _Part | None = None

    def add(self, part: _Part) -> None:
        """Count a block in."""
        self.rows += part.rows
        self.cells += part.cells
        if self.widest is None or part.counts.above > self.widest.counts.above:
            self.widest = part
        width = self.n_features or self.widest.counts.above - 1
        self.check(self.rows, width, self.cells, self.widest.highest)

    def check(self, rows: int, width: int, cells: int, place: _Place) -> None:
        """An error, with what it would take, if this many rows are too large at this width.

        Args:
            rows: of the matrix, as far as the files are read.
            width: of the matrix.
            cells: how many of its cells have a value, at most.
            place: the line that asks for the width.
        """
        size = 4 * rows * width
        least, sparse = _PLAUSIBLE
        is_stray = self.n_features is None and size > least and rows * width > sparse * cells
        if not is_stray and size <= self.limit:
            return
        why = f"and {_memory_limit.gigabytes(self.limit)}, half of what can be had, is the limit"
        if is_stray:
            why = f"and less than one cell in {sparse:,} has a value"
        raise place.error(
            f"{rows:,} rows of {width:,} features would take {_memory_limit.gigabytes(size)} of "
            f"memory, {why}: is the highest feature id meant? Wide sparse data need fewer features"
        )


@dataclass(frozen=True)
class _RowOptions:
    """What rows have, and what is an error in them."""

    with_qids: bool
    ids: bool | Literal["auto"]
    labeled: bool
    finite: bool
    missing: MissingValues


@dataclass
class _Parser:
    """Blocks to parts. It remembers how wide rows have been, to guess right at the next block."""

    options: _RowOptions
    n_features: int | None
    zero_based: bool | None
    spare: list[bytearray]  # where the text of a block goes once it is parsed, to be used again
    guard: _SizeLimit
    width: int = field(default=0, init=False)

    def parse(self, block: _Block) -> list[_Part]:
        """Parse a block and give up its text."""
        parts = list(self._parts(block, self._guess(block)))
        self.spare.append(block.text)
        return parts

    def _guess(self, block: _Block) -> int:
        """How wide a block may be: as those before, or as its first lines."""
        if self.n_features is not None:
            return self.n_features + 1
        if self.width:
            return self.width
        probe = block.text.find(b"\n", min(_PROBE, block.end - 1)) + 1
        parsed = _run(block, probe, 0, self.options.with_qids)
        self._check_size(block, parsed, probe)
        return parsed.counts.above

    def _parts(self, block: _Block, width: int) -> Iterator[_Part]:
        """Parse a block at a width, in pieces if it is large, again if it is wider."""
        lines = max(1, _DENSE // (4 * width + 1))
        if lines < block.lines:
            for piece in block.pieces(lines):
                yield from self._parts(piece, max(width, self.width))
            return
        parsed = _run(block, block.end, width, self.options.with_qids)
        above = parsed.counts.above
        if above > width and self.n_features is None:
            self._check_size(block, parsed, block.end)
            self.width = max(self.width, above)
            yield from self._parts(block, above)
            return
        self.width = max(self.width, above)
        yield self._part(block, parsed)

    def _check_size(self, block: _Block, parsed: _Parsed, end: int) -> None:
        """Check the matrix of ``text[:end]`` of a block, where a value takes two bytes or more."""
        place = block.place(parsed.counts.above_at)
        self.guard.check(len(parsed.arrays.starts), parsed.counts.above - 1, end // 2, place)

    def _part(self, block: _Block, parsed: _Parsed) -> _Part:
        """What the kernel parsed, checked, with the numbers and names it left to Python."""
        self._check_ids(block, parsed)
        if parsed.counts.unlabeled and self.options.labeled:
            raise block.place(parsed.counts.unlabeled_at).error("no label before the qid")
        _resolve(block, parsed, self.options)
        _check_labels(block, parsed.arrays)
        if parsed.problem:
            raise block.place(parsed.stop).error(_problem(block, parsed))
        arrays, rows = parsed.arrays, len(parsed.arrays.starts)
        features = arrays.features.reshape(len(arrays.labels), parsed.width)[:rows]
        if self.options.finite and parsed.counts.infinite:
            _check_finite(block, arrays.starts, features)
        # Counting takes time, so it is done where a matrix is larger than its text by far.
        is_wide = features.nbytes > 8 * block.end
        return _Part(
            features=_Sparse.of(features) if is_wide else features,
            labels=arrays.labels[:rows],
            runs=[(row, _qid(block, start, stop)) for row, start, stop in arrays.runs.tolist()],
            ids=_docids(block, arrays.starts, self.options.ids),
            counts=parsed.counts,
            highest=block.place(parsed.counts.above_at),
        )

    def _check_ids(self, block: _Block, parsed: _Parsed) -> None:
        counts = parsed.counts
        if self.zero_based is False and counts.zeros:
            raise block.place(counts.zero_at).error("feature id 0, with zero_based=False")
        if self.n_features is not None and counts.above > self.n_features + 1:
            what = _too_wide(counts.above - 1, self.n_features)
            raise block.place(counts.above_at).error(what, FeaturesError)


@dataclass(frozen=True)
class _Parsed:
    """What the kernel made of a block; see :func:`rankgrad.data._letor_kernel.parse`."""

    width: int
    problem: int
    stop: int
    arrays: Output
    counts: _Counts


def _run(block: _Block, end: int, width: int, with_qids: bool) -> _Parsed:
    """Run the kernel over ``text[:end]`` of a block, at a width."""
    from rankgrad.data import _letor_kernel

    output = _letor_kernel.Output(
        features=np.zeros(block.lines * width, np.float32),
        labels=np.empty(block.lines, np.float32),
        starts=np.empty(block.lines, np.int64),
        runs=np.empty((block.lines, 3), np.int64),
        # A token and what ends it are two bytes or more.
        deferred=np.empty((end // 2 + 1, 2), np.int64),
        stamps=np.zeros(width, np.int64),
    )
    text = np.frombuffer(block.text, np.uint8)
    problem, stop, sizes, counts = _letor_kernel.parse(text, end, width, with_qids, output)
    rows, n_runs, n_deferred = sizes
    filled = {"runs": output.runs[:n_runs], "deferred": output.deferred[:n_deferred]}
    arrays = output._replace(starts=output.starts[:rows], **filled)
    return _Parsed(width, problem, stop, arrays, _Counts(*counts))


def _resolve(block: _Block, parsed: _Parsed, options: _RowOptions) -> None:
    """Parse the numbers that the kernel deferred by Python's ``float``, and count them.

    They come in the order of the file, and with them all later values of a feature that comes twice
    in a line, so that the last one counts.
    """
    arrays, counts = parsed.arrays, parsed.counts
    with np.errstate(over="ignore"):
        for at, cell in arrays.deferred.tolist():
            token = block.token(at)
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
                what = "label" if cell < 0 else "value"
                raise block.place(at).error(f"{what} {quote(token)} is not a number") from None
            if cell >= 0:
                arrays.features[cell] = value
                counts.missing += bool(np.isnan(value))
                counts.infinite += bool(np.isinf(value))
            elif np.isfinite(value):
                arrays.labels[-1 - cell] = value
            else:
                raise block.place(at).error(f"label {quote(token)} is not a finite float32")


def _check_finite(block: _Block, starts: Array, features: Array) -> None:
    """An error for an infinite value, unless a later one of its feature replaces it."""
    rows, ids = np.nonzero(np.isinf(features))
    if len(rows):
        value = features[rows[0], ids[0]]
        raise block.place(int(starts[rows[0]])).error(
            f"the value of feature {ids[0]} is {value}; values must be finite float32 numbers"
        )


def _check_labels(block: _Block, arrays: Output) -> None:
    below = np.flatnonzero(arrays.labels[: len(arrays.starts)] < 0)
    if len(below):
        at = int(arrays.starts[below[0]])
        label = quote(block.token(at))
        raise block.place(at).error(f"label {label} is negative; relevance starts at 0")


def _problem(block: _Block, parsed: _Parsed) -> str:
    """Why the kernel stopped, in words."""
    from rankgrad.data import _letor_kernel as kernel

    start = max(block.text.rfind(c, 0, parsed.stop) for c in (b" ", b"\t", b"\n")) + 1
    token = quote(block.token(start))
    return {
        kernel.BAD_PAIR: f"expected id:value, found {token}",
        kernel.BAD_ID: f"the feature id of {token} is not a number from 0 to {kernel.MAX_ID}",
        kernel.QID_EMPTY: "the qid is empty",
        kernel.QID_MISSING: "no qid:... after the label (files without qids need groups=)",
        kernel.QID_UNEXPECTED: "a qid, though groups= was given, which is for files without qids",
    }[parsed.problem]


def _too_wide(feature: int, n_features: int) -> str:
    return f"feature id {feature} is beyond n_features={n_features}"


def _qid(block: _Block, start: int, stop: int) -> str:
    try:
        qid = block.text[start:stop].decode()
    except UnicodeDecodeError:
        raise block.place(start).error("the qid is not UTF-8 text") from None
    if "\0" in qid:
        raise block.place(start).error("the qid has a NUL in it")
    _check_length(block, start, "qid", qid)
    return qid


def _docids(block: _Block, starts: Array, wanted: bool | Literal["auto"]) -> list[str]:
    """The ids in the comments of the rows; for ``"auto"``, none if a row has none."""
    if not wanted:
        return []
    matches = list(_DOCID.finditer(block.text, 0, block.end))
    rows = np.searchsorted(starts, [match.start() for match in matches], side="right") - 1
    ids: dict[int, str] = {}
    for row, match in zip(rows.tolist(), matches, strict=True):
        if row < 0 or block.text.find(b"\n", int(starts[row]), match.start()) >= 0:
            continue  # a line that is all comment
        docid = match.group(1).decode("utf-8", "replace")
        _check_length(block, match.start(), "docid", docid)
        ids[row] = docid
    if len(ids) == len(starts):
        return list(ids.values())
    if wanted is True:
        row = next(row for row in range(len(starts)) if row not in ids)
        what = "ids=True, but there is no 'docid = ...' in a comment"
        raise block.place(int(starts[row])).error(what)
    return []


def _check_length(block: _Block, at: int, what: str, text: str) -> None:
    if len(text) > LONGEST_ID:
        raise block.place(at).error(
            f"the {what} has {len(text):,} characters, and at most {LONGEST_ID:,} are read"
        )


def _blocks(path: Path, size: int, spare: list[bytearray], limit: int) -> Iterator[_Block]:
    """A file in blocks of whole lines, of about ``size`` bytes or one line."""
    from rankgrad.data import _letor_kernel

    line = 1
    tail = bytearray()
    with _streams.open_text(path) as file:
        ended = False
        while not ended:
            capacity = max(size, 2 * len(tail)) + _AFTER
            if capacity > max(limit // 16, size + _AFTER):
                raise ValueError(
                    f"{_streams.display_name(path)}, line {line}: the line is longer than "
                    f"{len(tail):,} bytes, which is no line of a LETOR file"
                )
            text = spare.pop() if spare else bytearray(capacity)
            if len(text) < capacity:
                text = bytearray(capacity)
            text[: len(tail)] = tail
            filled = _fill(file, text, len(tail))
            if line == 1:
                _check_line_ends(path, text, filled)
            ended = filled < len(text) - _AFTER
            if ended and filled and text[filled - 1] != ord("\n"):
                text[filled] = ord("\n")
                filled += 1
            end = text.rfind(b"\n", 0, filled) + 1
            tail = text[end:filled]
            if end:
                lines = _letor_kernel.count_lines(np.frombuffer(text, np.uint8), end)
                yield _Block(path, text, end, line, lines)
                line += lines


def _fill(file: IO[bytes], text: bytearray, filled: int) -> int:
    """Read until ``text`` is full, less some bytes, or the file ends; how much of it is filled."""
    with memoryview(text) as view:
        while filled < len(text) - _AFTER:
            count = file.readinto(view[filled:-_AFTER])  # type: ignore[attr-defined]
            if not count:
                break
            filled += count
    return filled


def _check_line_ends(path: Path, text: bytearray, filled: int) -> None:
    """Lines that end in a carriage return alone would be taken for one line."""
    at = text.find(b"\r", 0, filled)
    if 0 <= at < len(text[:filled].rstrip()) and text.find(b"\n", 0, filled) < 0:
        raise ValueError(
            f"{_streams.display_name(path)}: lines end in carriage returns alone, as on old Macs: "
            "convert them to line feeds (tr '\\r' '\\n')"
        )


def _columns(
    parts: list[_Part], n_features: int | None, zero_based: bool | None
) -> tuple[int, int]:
    """The feature id of the first column, and the number of columns."""
    widest = max(parts, key=lambda part: part.counts.above)
    above = widest.counts.above
    if zero_based is None:
        zero_based = any(part.counts.zeros for part in parts)
    base = 0 if zero_based else 1
    width = max(above - base, 0)
    if n_features is None or width <= n_features:
        return base, n_features or width
    error = f"{_too_wide(above - 1, n_features)}, counted from {base}"
    raise widest.highest.error(error, FeaturesError)


def _queries(parts: list[_Part], rows: int) -> tuple[Array, Array]:
    """The list of each row, numbered by first appearance, and the qids of the lists."""
    numbers: dict[str, int] = {}
    runs: list[int] = []  # the list of each run of rows
    starts: list[int] = []
    row = 0
    for part in parts:
        for start, qid in part.runs:
            runs.append(numbers.setdefault(qid, len(numbers)))
            starts.append(row + start)
        row += part.rows
    return np.repeat(runs, np.diff(starts, append=rows)), id_array("qids", list(numbers))


def _assemble(
    parts: list[_Part], rows: int, base: int, width: int, order: Array | None, threads: int
) -> Array:
    """The parts in one matrix, in this order; each is given up once it has been moved there."""
    features = np.zeros((rows, width), np.float32)
    target = None if order is None else np.argsort(order)  # where each row goes
    stops = np.cumsum([part.rows for part in parts]).tolist()

    def move(piece: tuple[int, _Part]) -> None:
        stop, part = piece
        place, block = slice(stop - part.rows, stop), part.features
        if isinstance(block, _Sparse):
            first = block.rows + np.int64(place.start)
            to = first if target is None else target[first]
            features[to, block.columns - base] = block.values
        else:
            columns = block[:, base : base + width]
            features[place if target is None else target[place], : columns.shape[1]] = columns
        part.features = np.empty((0, 0), np.float32)

    for _ in ordered_map(move, zip(stops, parts, strict=True), threads):
        pass
    return features


def _notes(
    parts: list[_Part], labels: Array, base: int, moved: int, grouped: bool, marked: int
) -> tuple[str, ...]:
    """What a person should know of how the files were read."""
    total = _Counts(*map(sum, zip(*(astuple(part.counts) for part in parts), strict=True)))
    missing = total.missing + marked
    notes = {
        "feature ids start at 0": base == 0,
        f"rows of {moved} queries were not contiguous and were brought together": moved,
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


def _grouped(sizes: Array, rows: int, named: str) -> Array:
    """Offsets from list sizes."""
    if sizes.sum() != rows:
        raise ValueError(f"{named}: groups add up to {sizes.sum()} rows, found {rows}")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _check_groups(groups: Sequence[int] | Array) -> Array:
    sizes = np.asarray(groups)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        raise ValueError("groups must be the sizes of the lists, whole numbers of at least 1")
    return sizes.astype(np.int64)


def _check_count(option: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{option} must be a whole number of at least 1, or None; found {value!r}")


def cores() -> int:
    """The cores this process may use.

    Returns:
        How many there are.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
