"""Reading documents and topics (queries with ids) in the formats that test collections come in.

``rankgrad text index``, ``retrieve``, ``train`` and ``rerank`` read their texts here.

========== ============================================================================
``jsonl``  one object per line: ``id``, ``text``, and an optional ``title``;
           :mod:`rankgrad.text._records` lists the other keys of ids and texts
``tsv``    MS MARCO: ``id<TAB>text``, or ``id<TAB>url<TAB>title<TAB>body``
``trec``   ``<DOC><DOCNO>...`` documents, ``<top><num>...<title>...`` topics
``smart``  ``.I`` (id), ``.T`` (title), ``.W`` (text) fields: Cranfield, CISI
========== ============================================================================

The format is recognized by a file's name and first line, unless the caller names it. Files may be
compressed. A folder is read file by file, in the order of the files' names. The folders of
Cranfield and CISI hold documents, topics and judgments; :mod:`rankgrad.text._classic` tells them
apart. ``ir_datasets:ID`` and ``datasets:NAME`` are read through these packages if they are
installed. The text of a document is its title and its body. An empty document stays in the
collection, as "".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rankgrad._validation import check_choice
from rankgrad.data import _text_lines
from rankgrad.text import _classic, _packages, _sgml, _smart
from rankgrad.text._records import TextRecord, from_fields, join

Format = Literal["jsonl", "tsv", "trec", "smart"]
TopicField = Literal["title", "description", "narrative"]
Source: TypeAlias = str | os.PathLike[str]

_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}
#: How the first line of a file in each format starts.
_STARTS: dict[bytes, Format] = {b"{": "jsonl", b"<": "trec", b".I": "smart"}


def read_documents(path: Source, format: Format | None = None) -> dict[str, str]:
    """Read a collection.

    Args:
        path: a file, a folder of files, ``ir_datasets:ID``, or ``datasets:NAME``.
        format: the format of files; by default recognized by their names and first lines.

    Returns:
        The texts by id, in the order of the collection.

    Raises:
        ValueError: a line cannot be read, or a document id occurs twice.
        ImportError: a package is not installed; the message has the install line.
    """
    if _packages.is_identifier(path):
        return _collect(path, _packages.records(os.fspath(path), "docs"), "document")
    if _classic.is_known(path):
        return _classic.load(path).documents
    texts: dict[str, str] = {}
    for file in _files_in(Path(path)):
        _collect(file, _READERS[_file_format(file, format)](file), "document", texts)
    if not texts:
        raise ValueError(f"{path} has no documents in it")
    return texts


def read_topics(
    path: Source, format: Format | None = None, *, field: TopicField = "title"
) -> dict[str, str]:
    """Read topics, which are queries with ids.

    Args:
        path: a file, the folder of Cranfield or CISI, ``ir_datasets:ID``, or ``datasets:NAME``.
        format: by default recognized by the file's name and first line.
        field: the field of TREC topics that is the query.

    Returns:
        The queries' texts by id, in the order of the file.

    Raises:
        ValueError: a line cannot be read, a query id occurs twice, or a query has no text.
        ImportError: a package is not installed; the message has the install line.
    """
    check_choice("field", field, get_args(TopicField))
    if _classic.is_known(path):
        return _classic.load(path).topics
    if _packages.is_identifier(path):
        records: Iterable[TextRecord] = _packages.records(os.fspath(path), "queries", field)
    else:
        file = Path(path)
        file_format = _file_format(file, format)
        records = (
            _sgml.topics(file, field) if file_format == "trec" else _READERS[file_format](file)
        )
    topics = _collect(path, records, "query", allow_empty=False)
    if not topics:
        raise ValueError(f"{path} has no topics in it")
    return topics


def _file_format(path: Path, format: Format | None) -> Format:
    """``format`` if it is given, else the format by a file's name or its first non-blank line."""
    if format is not None:
        check_choice("format", format, get_args(Format))
        return format
    for suffix in path.suffixes[-2:]:  # two, since the last may be of a compression, as .gz
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    lines = (line for _, line in _text_lines.numbered(path) if line.strip())
    first_line = next(lines, b"").lstrip()
    for start, format_of_start in _STARTS.items():
        if first_line.startswith(start):
            return format_of_start
    if b"\t" in first_line:
        return "tsv"
    raise ValueError(
        f"cannot tell the format of {path} by its first line; it must be one of "
        f"{', '.join(get_args(Format))}"
    )


def _files_in(path: Path) -> list[Path]:
    """A file itself, or all files below a folder that are not hidden."""
    if not path.is_dir():
        return [path]
    paths = sorted(path.rglob("*"))
    files = [file for file in paths if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise ValueError(f"{path} has no files in it")
    return files


def _collect(
    path: Source,
    records: Iterable[TextRecord],
    kind: str,
    into: dict[str, str] | None = None,
    allow_empty: bool = True,
) -> dict[str, str]:
    """Collect the texts of records by id, and check the ids.

    Args:
        path: where the records come from, for error messages.
        records: the records.
        kind: ``"document"`` or ``"query"``, for error messages.
        into: texts of earlier files, to which those of the records are added.
        allow_empty: whether a text may be empty.

    Returns:
        The texts by id: ``into`` if it is given, else a new dict.
    """
    texts = {} if into is None else into
    for line, id, text in records:
        where = f"{path}, line {line}" if line else f"{path}"  # packages have no lines
        if not id or any(character.isspace() for character in id):
            raise ValueError(f"{where}: the id of a {kind} must be one word, found {id!r}")
        if id in texts:
            raise ValueError(f"{where}: the {kind} {id!r} comes twice")
        if not allow_empty and not text:
            raise ValueError(f"{where}: the {kind} {id!r} has no text")
        texts[id] = text
    return texts


def _read_jsonl(path: Path) -> Iterator[TextRecord]:
    """The records of a file with a JSON object per line."""
    for number, line in _text_lines.numbered(path):
        if not line.strip():
            continue
        text = _text_lines.decode(path, number, line)
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:  # of brackets that are nested very deeply
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{path}, line {number}: expected an object, found {line[:40]!r}")
        yield from_fields(fields, number, f"{path}, line {number}")


def _read_tsv(path: Path) -> Iterator[TextRecord]:
    """The records of a file with as many columns as its first line: 2, or MS MARCO's 4."""
    column_count = 0
    for number, line in _text_lines.numbered(path):
        if not line:
            continue
        columns = _text_lines.decode(path, number, line).split("\t")
        column_count = column_count or len(columns)
        if len(columns) not in (2, 4) or len(columns) != column_count:
            expected = f"{column_count} columns, as in the first line"
            if column_count not in (2, 4):
                expected = "2 columns (id, text) or 4 (id, url, title, body)"
            raise ValueError(
                f"{path}, line {number}: expected {expected}, between tabs, found {len(columns)}"
            )
        text = columns[1].strip() if len(columns) == 2 else join(columns[2], columns[3])
        yield TextRecord(number, columns[0].strip(), text)


_READERS: dict[Format, Callable[[Path], Iterable[TextRecord]]] = {
    "jsonl": _read_jsonl,
    "tsv": _read_tsv,
    "trec": _sgml.documents,
    "smart": _smart.text_records,
}
