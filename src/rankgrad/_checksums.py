"""CRC-32 checksums of the files that rankgrad writes, to find damage when they are read.

CRC-32 finds every error of up to 32 bits in a row, and misses one in 4 billion of the others. Small
files have one checksum; arrays too large to be read at once have one for each block of
:data:`BLOCK` bytes. A JSON file ends with the checksum of all that comes before it. ``_files.py``
and ``data/_checksummed.py`` use this.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

BLOCK = 1 << 20  # bytes of a block

_JSON_WITH_CHECKSUM = re.compile(rb'(.*,\n "crc32": ")([0-9a-f]{8})"\n}\n', re.DOTALL)


def of_bytes(content: Any) -> str:
    """The checksum of bytes or of the memory of an array, in 8 hexadecimal digits.

    >>> from rankgrad import _checksums
    >>> _checksums.of_bytes(b"123456789")
    'cbf43926'
    """
    return f"{zlib.crc32(content):08x}"


def of_blocks(file: IO[bytes]) -> str:
    """The checksums of the blocks of a file, in order: 8 hexadecimal digits each, no separators."""
    sums = []
    while block := file.read(BLOCK):
        sums.append(of_bytes(block))
    return "".join(sums)


def split(sums: str) -> np.ndarray:
    """The checksums of :func:`of_blocks` as numbers, ``[blocks]``.

    >>> from rankgrad import _checksums
    >>> _checksums.split("cbf4392600000001").tolist()
    [3421780262, 1]
    """
    return np.frombuffer(bytes.fromhex(sums), ">u4").astype(np.uint32)


def to_json(values: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """JSON that ends with its own checksum.

    Args:
        values: the contents.
        parts: the checksums of the files that belong to this one, by their names; they become the
            value of ``"files"``.

    >>> from rankgrad import _checksums
    >>> print(_checksums.to_json({"a": 1}, {}), end="")
    {
     "a": 1,
     "files": {},
     "crc32": "7b3cc4f0"
    }
    """
    text = json.dumps({**values, "files": dict(parts)}, indent=1)
    head = text.removesuffix("\n}") + ',\n "crc32": "'
    return f'{head}{of_bytes(head.encode())}"\n}}\n'


def from_json(content: bytes) -> Any:
    """Parse JSON, and compare it with its checksum if it has one.

    Files of earlier versions have no checksum. A file with ``"files"``, which only :func:`to_json`
    writes, must have one.

    Raises:
        ValueError: the content is not JSON, or not as it was written.
    """
    values = json.loads(content)
    if isinstance(values, dict) and ("crc32" in values or "files" in values):
        match = _JSON_WITH_CHECKSUM.fullmatch(content)
        if match is None or of_bytes(match[1]) != match[2].decode():
            raise ValueError("it does not have the checksum it was written with")
        del values["crc32"]
    return values
