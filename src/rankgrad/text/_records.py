"""TextRecord: a document or a topic as the readers of all formats yield it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: Keys of ids and of texts in JSONL files and data sets. The first one that is present counts.
IDS = ("id", "docid", "_id", "docno", "doc_id", "qid", "query_id")
TEXTS = ("text", "contents", "body", "query", "question")


class TextRecord(NamedTuple):
    """A document or a topic.

    Attributes:
        line: the line that it begins at, from 1; 0 if it does not come from a file of lines.
        id: the id of the document or the query.
        text: the text, which may be empty.
    """

    line: int
    id: str
    text: str


def join(title: str, body: str) -> str:
    """A title and a body as one text, without the white space around them.

    >>> from rankgrad.text._records import join
    >>> join("Wings ", "in a slipstream"), join("", "alone")
    ('Wings in a slipstream', 'alone')
    """
    return " ".join(part for part in (title.strip(), body.strip()) if part)


def from_fields(fields: Mapping[str, Any], line: int, where: str) -> TextRecord:
    """A document or topic from named fields.

    Args:
        fields: an id, and a text or a ``title`` or both; see :data:`IDS` and :data:`TEXTS`.
        line: the line of the entry.
        where: the file and line, with which errors begin.

    Raises:
        ValueError: a field is missing, is not a text, or is not valid Unicode.

    >>> from rankgrad.text._records import from_fields
    >>> from_fields({"_id": 7, "title": "Wings", "text": "in a slipstream"}, 1, "a.jsonl, line 1")
    TextRecord(line=1, id='7', text='Wings in a slipstream')
    """
    id = next((fields[key] for key in IDS if key in fields), None)
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"{where}: expected an id under one of {', '.join(IDS)}, found {id!r}")
    title, body = fields.get("title"), next((fields[key] for key in TEXTS if key in fields), None)
    for value in (title, body):
        if not isinstance(value, str | None):
            raise ValueError(f"{where}: expected a text, found {value!r}")
    if body is None and title is None:
        raise ValueError(
            f"{where}: expected a text under one of {', '.join(TEXTS)}; there are: "
            f"{', '.join(fields)}"
        )
    record = TextRecord(line, str(id), join(title or "", body or ""))
    try:
        f"{record.id}{record.text}".encode()
    except UnicodeEncodeError as error:  # JSON may have it, as of a text that was cut in an emoji
        half = error.object[error.start]
        raise ValueError(
            f"{where}: {half!r} is half of a surrogate pair, not a character"
        ) from None
    return record
