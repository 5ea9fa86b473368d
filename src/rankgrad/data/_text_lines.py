"""Numbered lines of text files, compressed or not, and the decimal numbers in them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rankgrad._quoting import quote
from rankgrad.data import _layout, _streams

_LONGEST = 1 << 28  # bytes of a line
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE | re.ASCII)


def numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file as bytes, without their ends, numbered from 1.

    Only a line feed ends a line (a carriage return before it is dropped), so that numbers are those
    that an editor shows. Bytes are left to the caller to decode.

    Args:
        path: a file, decompressed where its first bytes say so; ``-`` is the standard input.

    Yields:
        The number of a line, and the line.

    Raises:
        FileNotFoundError: with the nearest name there is.
        ValueError: the path is a folder, its compressed contents are damaged, or a line is longer
            than any text should be.
    """
    path = Path(path)
    _layout.check_exists(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    with _streams.open_text(path) as file:
        if path.suffix.lower() in _streams.COMPRESSED and isinstance(file, io.BufferedReader):
            raise ValueError(f"{path}: damaged compressed file: it is not compressed")
        lines = iter(lambda: file.readline(_LONGEST + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > _LONGEST:
                raise ValueError(
                    f"{_streams.display_name(path)}, line {number} has more than {_LONGEST:,} bytes"
                )
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def decode(path: str | os.PathLike[str], number: int, line: bytes) -> str:
    r"""A line as UTF-8 text; a line that is not is an error that names it.

    >>> from rankgrad.data import _text_lines
    >>> _text_lines.decode("topics.tsv", 3, b"caf\xe9")
    Traceback (most recent call last):
    ValueError: topics.tsv, line 3: not UTF-8 text (byte 4 is 0xe9)
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 text (byte {error.start + 1} is "
            f"0x{line[error.start]:02x})"
        ) from None


def parse_number(text: str) -> float:
    """A decimal as float64; ``nan`` and ``inf`` are taken too.

    Digits of other scripts and underscores, which ``float`` takes, are errors.

    Raises:
        ValueError: the text is not a number.

    >>> from rankgrad.data import _text_lines
    >>> _text_lines.parse_number("-1.5e3")
    -1500.0
    >>> _text_lines.parse_number("1_000")
    Traceback (most recent call last):
    ValueError: not a number
    """
    if not (_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        raise ValueError("not a number")
    return float(text)


def number_at(path: str | os.PathLike[str], line: int, text: str) -> float:
    """:func:`parse_number` of a text in a file; the error names the file and the line."""
    try:
        return parse_number(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {quote(text)} is not a number") from None
