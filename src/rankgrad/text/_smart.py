"""The format ``smart`` of Cranfield and CISI: ``.I 1``, then fields such as ``.T`` and ``.W``.

The lines of a field are joined by spaces. If a field is repeated in a record, its texts are joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rankgrad.data import _text_lines
from rankgrad.text._records import TextRecord, join

_RECORD = re.compile(r"\.I\s+(\S+)\s*")
_FIELD = re.compile(r"\.([A-Z])\s*")


def text_records(path: Path) -> Iterator[TextRecord]:
    """The documents or topics of a file: titles (``.T``) and bodies (``.W``).

    Raises:
        ValueError: there is text before the first record or field, or a record has no id.
    """
    start, id, letter = 0, "", ""  # of the record: its first line and its id; of its last field
    fields: dict[str, str] = {}  # the texts of the record's fields by their letters
    for number, raw in _text_lines.numbered(path):
        line = _text_lines.decode(path, number, raw)
        if match := _RECORD.fullmatch(line):
            if start:
                yield TextRecord(start, id, _title_and_body(fields))
            start, id, letter, fields = number, match[1], "", {}
        elif line.startswith(".I") and _FIELD.fullmatch(line):
            raise ValueError(f"{path}, line {number}: a record without an id")
        elif start and (match := _FIELD.fullmatch(line)):
            letter = match[1]
        elif letter:
            fields[letter] = join(fields.get(letter, ""), " ".join(line.split()))
        elif line.strip():
            expected = "a field, such as .W" if start else "a record, such as .I 1"
            raise ValueError(f"{path}, line {number}: expected {expected}, found {line[:40]!r}")
    if start:
        yield TextRecord(start, id, _title_and_body(fields))


def _title_and_body(fields: dict[str, str]) -> str:
    """The text of a record. Cranfield repeats the title in front of the body; here it is once."""
    title, body = fields.get("T", ""), fields.get("W", "")
    repeats_title = body.startswith(title) and not body[len(title) :][:1].isalnum()
    return body if repeats_title else join(title, body)
