"""Opens files for the readers: decompressed, and from pipes and the standard input (``-``) too.

A file that cannot be read (another compression or encoding, a broken link) is an error that says
what the file is.
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
COMPRESSED = (".gz", ".bz2", ".xz")  # suffixes
# Keys are the first bytes of a file; values, what decompresses it, or why it is not read.
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": "is compressed with Zstandard, which is not read: unpack it (zstd -d), or "
    "compress it with gzip, bzip2 or xz",
    b"PK\x03\x04": "is a ZIP archive: unpack it and give the file inside",
    b"\xff\xfe": "is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
}
_BOM = b"\xef\xbb\xbf"  # byte order mark of UTF-8


def is_stdin(path: str | os.PathLike[str]) -> bool:
    """Whether a path is ``-``, the standard input."""
    return os.fspath(path) == STDIN


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path can be read only once: the standard input, a pipe, or a terminal."""
    if is_stdin(path):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def display_name(path: str | os.PathLike[str]) -> str:
    """The name of a path in messages."""
    return "the standard input" if is_stdin(path) else os.fspath(path)


def check_link(path: Path) -> None:
    """Raise an error if the path is a broken symbolic link."""
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {os.readlink(path)}, which is not there")


@contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a text file as bytes, decompressed and without a byte order mark.

    Compression is recognized by the first bytes of the file; its name does not matter.

    Raises:
        ValueError: the file is damaged, or of a format that is not supported.
    """
    with open_raw(path) as raw:
        start = raw.peek(6)  # the longest key of _OPENERS and _UNSUPPORTED
        for magic, reason in _UNSUPPORTED.items():
            if start.startswith(magic):
                raise ValueError(f"{display_name(path)} {reason}")
        openers = (opener for magic, opener in _OPENERS.items() if start.startswith(magic))
        decompress = next(openers, None)
        if decompress is None:
            yield _skip_bom(raw)
        else:
            with decompression_errors(path), decompress(raw) as file:
                yield _skip_bom(file)


@contextmanager
def open_raw(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """Open a file without decompressing it; the standard input is not closed afterwards."""
    if not is_stdin(path):
        with open(path, "rb") as file:
            yield file
        return
    raw: Any = sys.stdin.buffer
    yield raw if hasattr(raw, "peek") else io.BufferedReader(raw)


@contextmanager
def decompression_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of decompression into a ``ValueError`` that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system: errors of gzip and bz2 have no errno
        raise ValueError(f"{display_name(path)}: damaged compressed file: {error}") from None


def _skip_bom(file: Any) -> IO[bytes]:
    """The file, read past a byte order mark at its beginning."""
    if file.peek(len(_BOM)).startswith(_BOM):
        file.read(len(_BOM))
    opened: IO[bytes] = file
    return opened
