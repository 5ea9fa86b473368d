"""measure: the size of an Arrow stream by its metadata, before anything is decoded.

``_arrow_requests`` refuses a stream that would be too large once it is decompressed. The metadata
of a stream's messages are FlatBuffers (``Message.fbs`` of Arrow's format). pyarrow validates them
but returns them as bytes only, so :class:`_Table` reads the few fields that are needed.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyarrow as pa

# Numbers of the fields in Message.fbs: of the table Message, of RecordBatch, of DictionaryBatch
_VERSION, _HEADER_TYPE, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_DATA = 1
_VERSION_5 = 4  # MetadataVersion.V5; earlier versions have the compression in custom metadata
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # header types of a message


class StreamSize(NamedTuple):
    """The size of an Arrow stream.

    Attributes:
        batches: the number of record batches.
        rows: the number of rows of all batches.
        expanded: the bytes of compressed buffers once they are decompressed.
    """

    batches: int
    rows: int
    expanded: int


def measure(body: bytes) -> StreamSize:
    """The size of an Arrow stream by its metadata.

    Raises:
        ValueError: the body is not an Arrow stream, or is of an old version and may be compressed.
    """
    batches = rows = expanded = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            fields = _Table.message(message)
            header_type = fields.integer(_HEADER_TYPE, "<B")
            if header_type not in (_DICTIONARY_BATCH, _RECORD_BATCH):
                continue
            if fields.integer(_VERSION, "<h") < _VERSION_5 and fields.position(_CUSTOM_METADATA):
                raise ValueError("it is of an old version and may be compressed")
            records = fields.table(_HEADER)
            if header_type == _DICTIONARY_BATCH:
                records = records.table(_DATA)  # a RecordBatch, too
            else:
                batches, rows = batches + 1, rows + records.integer(_LENGTH, "<q")
            if records.position(_COMPRESSION):
                content = memoryview(message.body)
                buffers = records.structs(_BUFFERS, "<qq")
                expanded += sum(_decompressed_size(content, *buffer) for buffer in buffers)
    except struct.error:
        raise ValueError("its metadata are damaged") from None
    return StreamSize(batches, rows, expanded)


def _decompressed_size(content: memoryview, start: int, length: int) -> int:
    """The decompressed size of a buffer.

    A buffer begins with that size as an int64, which is -1 if the buffer is not compressed.
    """
    if length < 8:  # too short for an int64
        return 0
    size: int = struct.unpack_from("<q", content, start)[0]
    return length if size == -1 else abs(size)


class _Table:
    """A table of a FlatBuffer, whose fields have numbers in the schema.

    A table begins with the distance back to its vtable. The vtable has its own size and the table's
    size (2 bytes each), then 2 bytes per field: the offset of the field in the table, or 0.
    """

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content, start

    @classmethod
    def message(cls, message: Any) -> _Table:
        """The root table of a pyarrow message's metadata."""
        content = message.metadata.to_pybytes()
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def position(self, field: int) -> int:
        """The position of a field in the content; 0 if the field is absent."""
        vtable = self._start - self._read("<i", self._start)
        entry = 4 + 2 * field
        offset = self._read("<H", vtable + entry) if entry < self._read("<H", vtable) else 0
        return self._start + offset if offset else 0

    def integer(self, field: int, format: str) -> int:
        """A field that is an integer, in a format of ``struct``; 0 if the field is absent."""
        position = self.position(field)
        return self._read(format, position) if position else 0

    def table(self, field: int) -> _Table:
        """A field that is a table."""
        position = self.position(field)
        return _Table(self._content, position + self._read("<I", position))

    def structs(self, field: int, format: str) -> list[tuple[int, int]]:
        """A field that is a vector of pairs, in a format of ``struct``; [] if it is absent."""
        position = self.position(field)
        if not position:
            return []
        start = position + self._read("<I", position)
        size = struct.calcsize(format)
        count = self._read("<I", start)
        content = self._content[start + 4 : start + 4 + count * size]
        whole = len(content) // size * size  # damaged metadata may end within a struct
        return list(struct.iter_unpack(format, content[:whole]))

    def _read(self, format: str, position: int) -> int:
        number: int = struct.unpack_from(format, self._content, position)[0]
        return number
