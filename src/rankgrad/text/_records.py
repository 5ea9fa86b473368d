"""Documents and topics as readers give them: line, id and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

IDS = ("id", "docid", "_id", "docno", "doc_id", "qid", "query_id")  #: keys of ids, first found wins
TEXTS = ("text", "contents", "body", "query", "question")  #: keys of texts


class TextRecord(NamedTuple):
    """A document or a topic.

    Attributes:
        line: that it begins at, from 1; 0 where it does not come from lines.
        id: of the document or the query.
        text: may be empty.
    """

    line: int
    id: str
    text: str


def join(title: str, body: str) -> str:
    """A title and what follows it as one text; white space around both is dropped.

    >>> from rankgrad.text._records import join
    >>> join("Wings ", "in a slipstream"), join("", "alone")
    ('Wings in a slipstream', 'alone')
    """
    return " ".join(part for part in (title.strip(), body.strip()) if part)


def from_fields(fields: Mapping[str, Any], line: int, where: str) -> TextRecord:
    """A document or topic of named fields.

    Args:
        fields: an id, a text, or a title, or both; see :data:`IDS` and :data:`TEXTS`.
        line: of the entry.
        where: what errors begin with.

    >>> from rankgrad.text._records import from_fields
    >>> from_fields({"_id": 7, "title": "Wings", "text": "in a slipstream"}, 1, "a.jsonl, line 1")
    TextRecord(line=1, id='7', text='Wings in a slipstream')
    """
    name = next((fields[key] for key in IDS if key in fields), None)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise ValueError(f"{where}: expected an id under one of {', '.join(IDS)}, found {name!r}")
    title, body = fields.get("title"), next((fields[key] for key in TEXTS if key in fields), None)
    for value in (title, body):
        if not isinstance(value, str | None):
            raise ValueError(f"{where}: expected a text, found {value!r}")
    if body is None and title is None:
        raise ValueError(
            f"{where}: expected a text under one of {', '.join(TEXTS)}; there are: "
            f"{', '.join(fields)}"
        )
    return TextRecord(line, str(name), join(title or "", body or ""))
