"""Numbered lines of text files, compressed or not, and the decimal numbers in them.

The readers of TREC files, of scores and of text collections use this module, so that all of them
name lines in errors and accept numbers alike. (LETOR files have a compiled parser,
``_letor_kernel.py``.)
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rankgrad._quoting import quote
from rankgrad.data import _layout, _streams

_MAX_LINE_BYTES = 1 << 28  # 256 MiB
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE | re.ASCII)


def numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file as bytes, without their ends, numbered from 1.

    Only a line feed ends a line, so that the numbers are those that an editor shows; a carriage
    return before it is dropped. The caller decodes the bytes.

    Args:
        path: a file, which may be compressed; ``-`` is the standard input.

    Yields:
        The number of a line, and the line.

    Raises:
        FileNotFoundError: there is no such file; the message has the nearest name.
        ValueError: the path is a folder, its compressed contents are damaged, or a line is longer
            than 256 MiB.
    """
    path = Path(path)
    _layout.check_exists(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    with _streams.open_text(path) as file:
        # A plain reader: the first bytes are not those of a compressed file, whatever its name.
        if path.suffix.lower() in _streams.COMPRESSED and isinstance(file, io.BufferedReader):
            raise ValueError(f"{path}: damaged compressed file: it is not compressed")
        lines = iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > _MAX_LINE_BYTES:
                name = _streams.display_name(path)
                raise ValueError(f"{name}, line {number} has more than {_MAX_LINE_BYTES:,} bytes")
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def decode(path: str | os.PathLike[str], number: int, line: bytes) -> str:
    r"""Decode a line as UTF-8; if it is not UTF-8, the error names the file, line and byte.

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
    """Parse a decimal number, ``nan`` or ``inf`` as float64.

    Unlike ``float``, it rejects underscores and digits of other scripts.

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
    """:func:`parse_number`, with the file and the line in its error."""
    try:
        return parse_number(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {quote(text)} is not a number") from None
