"""Documents and topics as readers give them: line, id and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class Documents(Mapping[str, str]):
    """Texts by document id, in the order of the collection.

    Args:
        texts: by id.

    >>> from rankgrad.text._records import Documents
    >>> documents = Documents({"a": "first text", "b": ""})
    >>> documents.ids, documents["a"], len(documents)
    (['a', 'b'], 'first text', 2)
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    @property
    def ids(self) -> list[str]:
        """The ids of all documents."""
        return list(self._texts)

    def __getitem__(self, document: str) -> str:
        return self._texts[document]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"Documents({len(self):,})"


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
