"""TREC's SGML: ``<DOC><DOCNO>...</DOCNO>...</DOC>`` documents and ``<top><num>...`` topics.

It is older than XML: fields of topics have no end tags, and text has bare ampersands. A line that
is not UTF-8 is read as Latin-1.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankgrad.data import _text_lines
from rankgrad.text._records import TextRecord

#: Elements of a document that are its text; where it has none of them, all but its number is.
CONTENT = ("TITLE", "HEADLINE", "HL", "HEAD", "TTL", "LEADPARA", "LP", "TEXT")

_DOCUMENT = re.compile(r"(<(/?)DOC\s*>)", re.IGNORECASE)
_NUMBER = re.compile(r"<DOCNO>(.*?)</DOCNO>", re.IGNORECASE | re.DOTALL)
_CONTENT = re.compile(rf"<({'|'.join(CONTENT)})\b[^<>]*>(.*?)</\1\s*>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(r"<!--.*?-->|</?[A-Za-z!?][^<>]*>", re.DOTALL)
_TOPIC = re.compile(r"(<(/?)top(?:ic)?\b([^<>]*)>)", re.IGNORECASE)
_TOPIC_FIELDS = {
    "number": ("num", r"Number\s*:"),
    "title": ("title|query", r"Topic\s*:"),
    "description": ("desc(?:ription)?", r"Description\s*:"),
    "narrative": ("narr(?:ative)?", r"Narrative\s*:"),
}


class _Block(NamedTuple):
    """What is between two tags: the line it begins at, the start tag's attributes, the text."""

    line: int
    attributes: str
    text: str


def documents(path: Path) -> Iterator[TextRecord]:
    """The documents of a file.

    Raises:
        ValueError: a document that does not end, or has no number, or text outside of documents,
            with its line.
    """
    for block in _blocks(path, _DOCUMENT, "DOC"):
        number = _NUMBER.search(block.text)
        if number is None:
            raise ValueError(f"{path}, line {block.line}: a document without a <DOCNO>")
        rest = block.text[: number.start()] + block.text[number.end() :]
        parts = [match[2] for match in _CONTENT.finditer(rest)] or [rest]
        yield TextRecord(block.line, number[1].strip(), _plain(" ".join(parts)))


def topics(path: Path, field: str = "title") -> Iterator[TextRecord]:
    """The topics of a file.

    ``051`` is query ``51``, as in TREC's judgments.

    Args:
        path: the file.
        field: ``"title"``, ``"description"`` or ``"narrative"``.

    Raises:
        ValueError: a topic that does not end, or has no number or no such field, with its line.
    """
    for block in _blocks(path, _TOPIC, "top"):
        attribute = re.search(r"number\s*=\s*[\"']?([^\"'\s>]+)", block.attributes, re.IGNORECASE)
        number = attribute[1] if attribute else _topic_field(block.text, "number")
        text = _topic_field(block.text, field)
        if not number:
            raise ValueError(f"{path}, line {block.line}: a topic without a <num>")
        if not text:
            raise ValueError(f"{path}, line {block.line}: topic {number} has no {field}")
        yield TextRecord(block.line, str(int(number)) if number.isdecimal() else number, text)


def _blocks(path: Path, tag: re.Pattern[str], name: str) -> Iterator[_Block]:
    """What stands between start and end tags; nothing but markup may stand elsewhere."""
    start, attributes = 0, ""
    inside: list[str] = []
    for number, raw in _text_lines.numbered(path):
        line, position = _decode(raw), 0
        for match in tag.finditer(line):
            text, position = line[position : match.start()], match.end()
            ends = match[2] == "/"
            if ends != bool(start):
                problem = f"</{name}> without a <{name}> before it" if ends else f"<{name}> inside"
                where = "" if ends else f" of the <{name}> of line {start}, which does not end"
                raise ValueError(f"{path}, line {number}: {problem}{where}")
            if ends:
                yield _Block(start, attributes, "\n".join([*inside, text]))
                start, inside = 0, []
            else:
                _check_markup(path, number, text, name)
                start, attributes = number, match[3] if tag.groups > 2 else ""
        if start:
            inside.append(line[position:])
        else:
            _check_markup(path, number, line[position:], name)
    if start:
        raise ValueError(f"{path}, line {start}: <{name}> does not end; the file is cut off")


def _check_markup(path: Path, number: int, text: str, name: str) -> None:
    if _MARKUP.sub("", text).strip():
        raise ValueError(
            f"{path}, line {number}: expected <{name}>, found {text.strip()[:40]!r} outside of one"
        )


def _topic_field(text: str, field: str) -> str:
    """A field's text up to the next tag, without the label that TREC begins it with."""
    tag, label = _TOPIC_FIELDS[field]
    match = re.search(
        rf"<(?:{tag})>\s*(?:{label})?(.*?)(?=</?[A-Za-z]|\Z)", text, re.IGNORECASE | re.DOTALL
    )
    return _plain(match[1]) if match else ""


def _plain(text: str) -> str:
    return " ".join(html.unescape(_MARKUP.sub(" ", text)).split())


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")
