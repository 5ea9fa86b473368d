"""The SMART format of classic test collections: ``.I 1``, then fields such as ``.T`` and ``.W``.

Lines of a field are joined by spaces. A field that is repeated in a record continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankgrad.data import _text_lines
from rankgrad.text._records import TextRecord, join

_RECORD = re.compile(r"\.I\s+(\S+)\s*")
_FIELD = re.compile(r"\.([A-Z])\s*")


class Record(NamedTuple):
    """One record: the line it begins at, its id, and its fields by their letters."""

    line: int
    id: str
    fields: dict[str, str]


def records(path: Path) -> Iterator[Record]:
    """The records of a file.

    Raises:
        ValueError: text before a record or a field, or a record without an id, with its line.
    """
    record: Record | None = None
    letter = ""
    for number, raw in _text_lines.numbered(path):
        line = _text_lines.decode(path, number, raw)
        if match := _RECORD.fullmatch(line):
            if record:
                yield record
            record, letter = Record(number, match[1], {}), ""
        elif line.startswith(".I") and _FIELD.fullmatch(line):
            raise ValueError(f"{path}, line {number}: a record without an id")
        elif record and (match := _FIELD.fullmatch(line)):
            letter = match[1]
            record.fields.setdefault(letter, "")
        elif record and letter:
            record.fields[letter] = join(record.fields[letter], " ".join(line.split()))
        elif line.strip():
            wanted = "a field, such as .W" if record else "a record, such as .I 1"
            raise ValueError(f"{path}, line {number}: expected {wanted}, found {line[:40]!r}")
    if record:
        yield record


def text_records(path: Path) -> Iterator[TextRecord]:
    """Documents or topics: their titles (``.T``) and texts (``.W``).

    Cranfield's texts begin with the title again; it is taken once.
    """
    for line, name, fields in records(path):
        title, body = fields.get("T", ""), fields.get("W", "")
        yield TextRecord(line, name, body if body.startswith(title) else join(title, body))
