"""measure: the size of an Arrow stream by its metadata, before anything is decoded.

The metadata of its messages are flatbuffers (``Message.fbs`` of Arrow's format). pyarrow checks
them, but gives them as bytes only.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyarrow as pa

_VERSION_5 = 4  # of the metadata; earlier versions have compression in custom metadata
_DICTIONARY, _RECORDS = 2, 3  # values of _KIND
# The numbers of fields: of a message, of a record batch, and of a dictionary batch.
_VERSION, _KIND, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_DATA = 1


class StreamSize(NamedTuple):
    """What a stream holds.

    Attributes:
        batches: of records.
        rows: of all batches.
        expanded: bytes of compressed buffers once they are decompressed.
    """

    batches: int
    rows: int
    expanded: int


def measure(body: bytes) -> StreamSize:
    """The size of an Arrow stream by its metadata.

    Raises:
        ValueError: it is not an Arrow stream, or one of an old version that is compressed.
    """
    batches = rows = expanded = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            header = _Table.message(message)
            kind = header.integer(_KIND, "<B")
            if kind not in (_DICTIONARY, _RECORDS):
                continue
            if header.integer(_VERSION, "<h") < _VERSION_5 and header.position(_CUSTOM_METADATA):
                raise ValueError("it is of an old version and may be compressed")
            records = header.table(_HEADER)
            if kind == _DICTIONARY:
                records = records.table(_DATA)
            else:
                batches, rows = batches + 1, rows + records.integer(_LENGTH, "<q")
            if records.position(_COMPRESSION):
                content = memoryview(message.body)
                buffers = records.structs(_BUFFERS, "<qq")
                expanded += sum(_expanded(content, *buffer) for buffer in buffers)
    except struct.error:
        raise ValueError("its metadata are damaged") from None
    return StreamSize(batches, rows, expanded)


def _expanded(content: memoryview, start: int, length: int) -> int:
    """The decompressed size of a buffer, which is its first number; -1 if it is not compressed."""
    if length < 8:
        return 0
    size: int = struct.unpack_from("<q", content, start)[0]
    return length if size == -1 else abs(size)


class _Table:
    """A table of a flatbuffer; its fields are named by their numbers in the schema."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content, start

    @classmethod
    def message(cls, message: Any) -> _Table:
        content = message.metadata.to_pybytes()
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def position(self, field: int) -> int:
        """Where a field begins, 0 if it is left out."""
        fields = self._start - self._read("<i", self._start)
        within = 4 + 2 * field
        offset = self._read("<H", fields + within) if within < self._read("<H", fields) else 0
        return self._start + offset if offset else 0

    def integer(self, field: int, form: str) -> int:
        """A number in a format of ``struct``, 0 if the field is left out."""
        position = self.position(field)
        return self._read(form, position) if position else 0

    def table(self, field: int) -> _Table:
        position = self.position(field)
        return _Table(self._content, position + self._read("<I", position))

    def structs(self, field: int, form: str) -> list[tuple[int, int]]:
        position = self.position(field)
        if not position:
            return []
        start = position + self._read("<I", position)
        size = struct.calcsize(form)
        count = self._read("<I", start)
        part = self._content[start + 4 : start + 4 + count * size]
        return list(struct.iter_unpack(form, part[: len(part) // size * size]))

    def _read(self, form: str, position: int) -> int:
        number: int = struct.unpack_from(form, self._content, position)[0]
        return number
