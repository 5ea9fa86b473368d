"""measure: the size of an Arrow stream by its metadata, before anything is decoded.

``_arrow_requests`` refuses a stream that would be too large once it is decompressed. A stream is a
sequence of messages: a schema, then record batches, and dictionary batches, which contain a record
batch. Each has metadata, which say how many rows and which buffers the message has; pyarrow returns
them as bytes in the format FlatBuffers only, of which :class:`_Table` reads the fields needed here.
The schema of the metadata is ``Message.fbs`` in Arrow's repository:
https://github.com/apache/arrow/blob/main/format/Message.fbs
"""

from __future__ import annotations

import struct

import pyarrow as pa

# The numbers of fields in Message.fbs, by table.
_VERSION, _HEADER_TYPE, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4  # of Message
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # of RecordBatch
_DATA = 1  # of DictionaryBatch
# Values of the fields _VERSION and _HEADER_TYPE.
_VERSION_5 = 4  # MetadataVersion.V5; earlier versions have the compression in custom metadata
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
# Integers in the notation of struct: little-endian, with or without a sign, of 8 to 64 bits.
_UINT8, _INT16, _UINT16, _INT32, _UINT32, _INT64 = "<B", "<h", "<H", "<i", "<I", "<q"
_BUFFER = "<qq"  # the struct Buffer: its offset in the message's body, and its length


def measure(body: bytes) -> tuple[int, int, int]:
    """The size of an Arrow stream by its metadata.

    Returns:
        The number of record batches, the number of rows of all batches, and the bytes of compressed
        buffers once they are decompressed.

    Raises:
        ValueError: the body is not an Arrow stream, or is of an old version and may be compressed.
    """
    batches = rows = decompressed = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            metadata = _Table.root(message.metadata.to_pybytes())
            header_type = metadata.integer(_HEADER_TYPE, _UINT8)
            if header_type not in (_DICTIONARY_BATCH, _RECORD_BATCH):
                continue
            is_old = metadata.integer(_VERSION, _INT16) < _VERSION_5
            if is_old and metadata.has(_CUSTOM_METADATA):
                raise ValueError("it is of an old version and may be compressed")
            batch = metadata.table(_HEADER)
            if header_type == _DICTIONARY_BATCH:
                batch = batch.table(_DATA)
            else:
                batches, rows = batches + 1, rows + batch.integer(_LENGTH, _INT64)
            if batch.has(_COMPRESSION):
                body_bytes = memoryview(message.body)
                buffers = batch.structs(_BUFFERS, _BUFFER)
                decompressed += sum(_decompressed_size(body_bytes, *each) for each in buffers)
    except struct.error:
        raise ValueError("its metadata are damaged") from None
    return batches, rows, decompressed


def _decompressed_size(body: memoryview, start: int, length: int) -> int:
    """The decompressed size of the buffer ``body[start : start + length]`` of a message.

    The buffer begins with that size as an int64, which is -1 if the buffer is not compressed.
    """
    if length < 8:  # too short for an int64
        return 0
    size: int = struct.unpack_from(_INT64, body, start)[0]
    return length if size == -1 else abs(size)


class _Table:
    """A table of a FlatBuffer: fields by number, each of which may be absent.

    In memory::

        table:  int32, the distance back to its vtable; then the values of the fields
        vtable: uint16, its size; uint16, the size of the table;
                uint16 for each field, its offset in the table, 0 if it is absent
        vector: uint32, its length; then its elements

    The value of a field that is a table or a vector is a uint32: the distance from the field to it.
    A FlatBuffer begins with such a distance to its root table.

    Args:
        content: the FlatBuffer.
        start: the position of the table in it.
    """

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content, start

    @classmethod
    def root(cls, content: bytes) -> _Table:
        """The root table of a FlatBuffer."""
        return cls(content, struct.unpack_from(_UINT32, content)[0])

    def has(self, field: int) -> bool:
        """Whether a field is present."""
        return self._position(field) > 0

    def integer(self, field: int, format: str) -> int:
        """A field that is an integer, in a format of ``struct``; 0 if the field is absent."""
        return self._read(format, self._position(field)) if self.has(field) else 0

    def table(self, field: int) -> _Table:
        """A field that is a table."""
        return _Table(self._content, self._target(field))

    def structs(self, field: int, format: str) -> list[tuple[int, int]]:
        """A field that is a vector of pairs, in a format of ``struct``; [] if it is absent."""
        if not self.has(field):
            return []
        vector, size = self._target(field), struct.calcsize(format)
        first = vector + 4  # after its length
        content = self._content[first : first + self._read(_UINT32, vector) * size]
        complete = len(content) // size * size  # damaged metadata may end within a struct
        return list(struct.iter_unpack(format, content[:complete]))

    def _position(self, field: int) -> int:
        """The position of a field in the content; 0 if the field is absent."""
        vtable = self._start - self._read(_INT32, self._start)
        entry = 4 + 2 * field
        offset = self._read(_UINT16, vtable + entry) if entry < self._read(_UINT16, vtable) else 0
        return self._start + offset if offset else 0

    def _target(self, field: int) -> int:
        """The position of the table or the vector that a field refers to."""
        position = self._position(field)
        return position + self._read(_UINT32, position)

    def _read(self, format: str, position: int) -> int:
        return int(struct.unpack_from(format, self._content, position)[0])
