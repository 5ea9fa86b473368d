"""The format ``smart`` of Cranfield and CISI: ``.I 1``, then fields such as ``.T`` and ``.W``.

The lines of a field are joined by spaces. If a field is repeated in a record, its texts are joined.
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
    """A record: the line it begins at, its id, and the texts of its fields by their letters."""

    line: int
    id: str
    fields: dict[str, str]


def records(path: Path) -> Iterator[Record]:
    """The records of a file with all fields; :func:`text_records` takes titles and bodies.

    Raises:
        ValueError: there is text before the first record or field, or a record has no id.
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
            expected = "a field, such as .W" if record else "a record, such as .I 1"
            raise ValueError(f"{path}, line {number}: expected {expected}, found {line[:40]!r}")
    if record:
        yield record


def text_records(path: Path) -> Iterator[TextRecord]:
    """The documents or topics of a file: titles (``.T``) and bodies (``.W``).

    Cranfield repeats the title at the beginning of the body; here it occurs once.
    """
    for line, id, fields in records(path):
        title, body = fields.get("T", ""), fields.get("W", "")
        repeats_title = body.startswith(title) and not body[len(title) :][:1].isalnum()
        yield TextRecord(line, id, body if repeats_title else join(title, body))
