"""The format ``trec``: ``<DOC><DOCNO>...</DOCNO>...</DOC>`` documents, ``<top><num>...`` topics.

TREC's files are SGML, not XML: fields of topics have no end tags, and texts have bare ampersands.
So regular expressions find the tags. A line that is not UTF-8 is read as Latin-1.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from rankgrad.data import _text_lines
from rankgrad.text._records import TextRecord

#: Elements of a document that are its text. A document without them, and a web page, which has a
#: ``<DOCHDR>``, is text but for its number and that header.
CONTENT = ("TITLE", "HEADLINE", "HL", "HEAD", "TTL", "LEADPARA", "LP", "TEXT")

_DOCUMENT_TAG = re.compile(r"(<(/?)DOC\s*>)", re.IGNORECASE)
#: What a web crawler was told of a page: its address and the server's answer.
_WEB_HEADER = re.compile(r"<DOCHDR>.*?</DOCHDR>", re.IGNORECASE | re.DOTALL)
_DOCUMENT_NUMBER = re.compile(r"<DOCNO>(.*?)</DOCNO>", re.IGNORECASE | re.DOTALL)
_CONTENT = re.compile(rf"<({'|'.join(CONTENT)})\b[^<>]*>(.*?)</\1\s*>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(r"<!--.*?-->|</?[A-Za-z!?][^<>]*>", re.DOTALL)
_TOPIC_TAG = re.compile(r"(<(/?)top(?:ic)?\b([^<>]*)>)", re.IGNORECASE)
#: By field: regular expressions of its tag's name and of the label that may begin its text.
_TOPIC_FIELDS = {
    "number": ("num", r"Number\s*:"),
    "title": ("title|query", r"Topic\s*:"),
    "description": ("desc(?:ription)?", r"Description\s*:"),
    "narrative": ("narr(?:ative)?", r"Narrative\s*:"),
}


def documents(path: Path) -> Iterator[TextRecord]:
    """The documents of a file.

    Raises:
        ValueError: a document does not end or has no number, or there is text outside of documents.
    """
    for line, _, text in _blocks(path, _DOCUMENT_TAG, "DOC"):
        number = _DOCUMENT_NUMBER.search(text)
        if number is None:
            raise ValueError(f"{path}, line {line}: a document without a <DOCNO>")
        rest = text[: number.start()] + text[number.end() :]
        page, is_web_page = _WEB_HEADER.subn("", rest)
        parts = [] if is_web_page else [match[2] for match in _CONTENT.finditer(rest)]
        yield TextRecord(line, number[1].strip(), _plain_text(" ".join(parts or [page])))


def topics(path: Path, field: str = "title") -> Iterator[TextRecord]:
    """The topics of a file.

    Leading zeros of numbers are dropped, as in TREC's judgments: topic ``051`` is query ``51``.

    Args:
        path: the file.
        field: the field that is the query: ``"title"``, ``"description"`` or ``"narrative"``.

    Raises:
        ValueError: a topic does not end, or has no number or no such field.
    """
    for line, attributes, topic in _blocks(path, _TOPIC_TAG, "top"):
        attribute = re.search(r"number\s*=\s*[\"']?([^\"'\s>]+)", attributes, re.IGNORECASE)
        number = attribute[1] if attribute else _topic_field(topic, "number")
        text = _topic_field(topic, field)
        if not number:
            raise ValueError(f"{path}, line {line}: a topic without a <num>")
        if not text:
            raise ValueError(f"{path}, line {line}: topic {number} has no {field}")
        query = str(int(number)) if number.isdecimal() else number
        yield TextRecord(line, query, text)


def _blocks(path: Path, tag: re.Pattern[str], name: str) -> Iterator[tuple[int, str, str]]:
    """The blocks between start and end tags; nothing but markup may be outside of them.

    Yields the line of a start tag, the tag's attributes, and the text up to the end tag.

    Args:
        path: the file.
        tag: finds start tags and end tags. Group 2 is the slash of an end tag; group 3, if there is
            one, the attributes.
        name: the tag's name, for errors.
    """
    start, attributes = 0, ""  # line and attributes of the open block's tag; 0 if no block is open
    lines: list[str] = []  # of the open block
    for line_number, raw in _text_lines.numbered(path):
        line, position = _decode(raw), 0
        for match in tag.finditer(line):
            text, position = line[position : match.start()], match.end()
            is_end_tag = match[2] == "/"
            if is_end_tag and not start:
                raise ValueError(
                    f"{path}, line {line_number}: </{name}> without a <{name}> before it"
                )
            if start and not is_end_tag:
                raise ValueError(
                    f"{path}, line {line_number}: <{name}> inside of the <{name}> of line {start}, "
                    "which does not end"
                )
            if is_end_tag:
                yield start, attributes, "\n".join([*lines, text])
                start, lines = 0, []
            else:
                _check_no_text(path, line_number, text, name)
                start, attributes = line_number, match[3] if tag.groups > 2 else ""
        if start:
            lines.append(line[position:])
        else:
            _check_no_text(path, line_number, line[position:], name)
    if start:
        raise ValueError(f"{path}, line {start}: <{name}> does not end; the file is cut off")


def _check_no_text(path: Path, line_number: int, text: str, name: str) -> None:
    """Raise if ``text``, which is outside of blocks, is more than markup."""
    if _MARKUP.sub("", text).strip():
        raise ValueError(
            f"{path}, line {line_number}: expected <{name}>, "
            f"found {text.strip()[:40]!r} outside of one"
        )


def _topic_field(text: str, field: str) -> str:
    """The text of a topic's field up to the next tag, without a label such as ``Number:``."""
    tag, label = _TOPIC_FIELDS[field]
    match = re.search(
        rf"<(?:{tag})>\s*(?:{label})?(.*?)(?=</?[A-Za-z]|\Z)", text, re.IGNORECASE | re.DOTALL
    )
    return _plain_text(match[1]) if match else ""


def _plain_text(text: str) -> str:
    """A text without markup, with entities such as ``&amp;`` as characters, and single spaces."""
    return " ".join(html.unescape(_MARKUP.sub(" ", text)).split())


def _decode(line: bytes) -> str:
    """A line as UTF-8 or, if it is not, as Latin-1."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")
