"""Collections of documents and topics (queries), in the formats that test collections come in.

========== ============================================================================
``jsonl``  one object per line: ``id`` (or ``docid``, ``_id``, ``docno``), an optional
           ``title``, and ``text`` (or ``contents``, ``body``)
``tsv``    MS MARCO: ``id<TAB>text``, or ``id<TAB>url<TAB>title<TAB>body``
``trec``   ``<DOC><DOCNO>...`` documents, ``<top><num>...<title>...`` topics
``smart``  ``.I``, ``.T``, ``.W`` fields: Cranfield, CISI
========== ============================================================================

The format is recognized by a file's name and first line, unless ``format`` says it. Files may be
compressed. A folder is read file by file, in the order of their names; in Cranfield's and CISI's
folders only the documents, topics or judgments are read, see :mod:`rankgrad.text._classic`.
``ir_datasets:ID`` and ``datasets:NAME`` read through these packages where they are installed. The
text of a document is its title and its body; an empty document stays in the collection, with the
empty text.
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
_STARTS: dict[bytes, Format] = {b"{": "jsonl", b"<": "trec", b".I": "smart"}  # of the first line


def read_documents(path: Source, format: Format | None = None) -> dict[str, str]:
    """Read a collection.

    Args:
        path: a file, a folder of files, ``ir_datasets:ID``, or ``datasets:NAME``.
        format: of files; by default recognized by their names and first lines.

    Returns:
        The texts by id, in the order of the collection.

    Raises:
        ValueError: what cannot be read, with its line; a document id that comes twice.
        ImportError: a package is needed; the message has the install line.
    """
    if _packages.is_identifier(path):
        return _collect(path, _packages.documents(os.fspath(path)), "document")
    if _classic.is_known(path):
        return _classic.load(path).documents
    texts: dict[str, str] = {}
    for file in _files_in(Path(path)):
        _collect(file, _READERS[_format(file, format)](file), "document", texts)
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
        field: of TREC topics, what is taken for the query.

    Returns:
        The queries' texts by id, in the order of the file.

    Raises:
        ValueError: what cannot be read, with its line; a query id that comes twice, or a query
            without text.
    """
    check_choice("field", field, get_args(TopicField))
    if _classic.is_known(path):
        return _classic.load(path).topics
    if _packages.is_identifier(path):
        records: Iterable[TextRecord] = _packages.topics(os.fspath(path), field)
    else:
        file = Path(path)
        file_format = _format(file, format)
        records = (
            _sgml.topics(file, field) if file_format == "trec" else _READERS[file_format](file)
        )
    topics = _collect(path, records, "query", allow_empty=False)
    if not topics:
        raise ValueError(f"{path} has no topics in it")
    return topics


def _format(path: Path, format: Format | None) -> Format:
    """``format``, or the one that a file's name or its first line that is not blank shows."""
    if format is not None:
        check_choice("format", format, get_args(Format))
        return format
    for suffix in path.suffixes[-2:]:
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    first = next((line for _, line in _text_lines.numbered(path) if line.strip()), b"").lstrip()
    for start, recognized in _STARTS.items():
        if first.startswith(start):
            return recognized
    if b"\t" in first:
        return "tsv"
    raise ValueError(
        f"cannot tell the format of {path} by its first line; it must be one of "
        f"{', '.join(get_args(Format))}"
    )


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    inside = [file for file in inside if not file.name.startswith(".")]
    if not inside:
        raise ValueError(f"{path} has no files in it")
    return inside


def _collect(
    path: Source,
    records: Iterable[TextRecord],
    kind: str,
    into: dict[str, str] | None = None,
    allow_empty: bool = True,
) -> dict[str, str]:
    """Texts by id; an id that comes twice is an error."""
    texts = {} if into is None else into
    for line, name, text in records:
        where = f"{path}, line {line}" if line else f"{path}"
        if not name or any(character.isspace() for character in name):
            raise ValueError(f"{where}: the id of a {kind} must be one word, found {name!r}")
        if name in texts:
            raise ValueError(f"{where}: the {kind} {name!r} comes twice")
        if not allow_empty and not text:
            raise ValueError(f"{where}: the {kind} {name!r} has no text")
        texts[name] = text
    return texts


def _jsonl(path: Path) -> Iterator[TextRecord]:
    for number, line in _text_lines.numbered(path):
        if not line.strip():
            continue
        try:
            fields = json.loads(_text_lines.decode(path, number, line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{path}, line {number}: expected an object, found {line[:40]!r}")
        yield from_fields(fields, number, f"{path}, line {number}")


def _tsv(path: Path) -> Iterator[TextRecord]:
    """Two columns, or MS MARCO's four of documents; the first line says which."""
    expected = 0
    for number, line in _text_lines.numbered(path):
        if not line:
            continue
        columns = _text_lines.decode(path, number, line).split("\t")
        expected = expected or len(columns)
        if len(columns) not in (2, 4) or len(columns) != expected:
            wanted = f"{expected} columns, as in the first line"
            if expected not in (2, 4):
                wanted = "2 columns (id, text) or 4 (id, url, title, body)"
            raise ValueError(
                f"{path}, line {number}: expected {wanted}, between tabs, found {len(columns)}"
            )
        body = columns[1].strip() if len(columns) == 2 else join(columns[2], columns[3])
        yield TextRecord(number, columns[0].strip(), body)


_READERS: dict[Format, Callable[[Path], Iterable[TextRecord]]] = {
    "jsonl": _jsonl,
    "tsv": _tsv,
    "trec": _sgml.documents,
    "smart": _smart.text_records,
}
