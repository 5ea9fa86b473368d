"""Bytes of files: decompressed, from pipes and the standard input (``-``) too.

Files that cannot be read (other compressions and encodings, broken links) are errors that say
what they are.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

STDIN = "-"
COMPRESSED = (".gz", ".bz2", ".xz")
_UNPACK: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_REFUSED = {
    b"\x28\xb5\x2f\xfd": "is compressed with Zstandard, which is not read: unpack it (zstd -d), or "
    "compress it with gzip, bzip2 or xz",
    b"PK\x03\x04": "is a ZIP archive: unpack it and give the file inside",
    b"\xff\xfe": "is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
}
_BOM = b"\xef\xbb\xbf"


def is_stdin(path: str | os.PathLike[str]) -> bool:
    """Whether a path is ``-``, the standard input."""
    return os.fspath(path) == STDIN


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path can be read once only: the standard input, a pipe, or a terminal."""
    if is_stdin(path):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def display_name(path: str | os.PathLike[str]) -> str:
    """What to call a path in messages."""
    return "the standard input" if is_stdin(path) else os.fspath(path)


def check_link(path: Path) -> None:
    """An error for a link to something that is not there."""
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {os.readlink(path)}, which is not there")


@contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """The bytes of a text file, decompressed as its first bytes say, without a byte order mark.

    Raises:
        ValueError: the file is something known that is not read, or is damaged.
    """
    with open_raw(path) as raw:
        start = raw.peek(6)
        for magic, reason in _REFUSED.items():
            if start.startswith(magic):
                raise ValueError(f"{display_name(path)} {reason}")
        unpack = next((u for magic, u in _UNPACK.items() if start.startswith(magic)), None)
        if unpack is None:
            yield _without_mark(raw)
        else:
            with named(path), unpack(raw) as file:
                yield _without_mark(file)


@contextmanager
def open_raw(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """A file as it is; the standard input is left open."""
    if not is_stdin(path):
        with open(path, "rb") as file:
            yield file
        return
    raw: Any = sys.stdin.buffer
    yield raw if hasattr(raw, "peek") else io.BufferedReader(raw)


@contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of decompression as a ``ValueError`` that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of gzip and bz2
            raise
        raise ValueError(f"{display_name(path)}: damaged compressed file: {error}") from None


def _without_mark(file: Any) -> IO[bytes]:
    if file.peek(len(_BOM)).startswith(_BOM):
        file.read(len(_BOM))
    opened: IO[bytes] = file
    return opened
