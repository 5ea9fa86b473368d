"""measure: what an Arrow stream says of its size, before anything of it is decoded.

The metadata of its messages are flatbuffers (``Message.fbs`` of Arrow's format). pyarrow checks
them, and gives them as bytes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_VERSION_5 = 4  # of the metadata; earlier ones have compression elsewhere
_DICTIONARY, _RECORDS = 2, 3  # kinds of messages


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
    import pyarrow as pa

    batches = rows = expanded = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            header = _Table.message(message)
            kind = header.integer(1, "<B")
            if kind not in (_DICTIONARY, _RECORDS):
                continue
            if header.integer(0, "<h") < _VERSION_5 and header.place(4):
                raise ValueError("it is of an old version and may be compressed")
            records = header.table(2)
            if kind == _DICTIONARY:
                records = records.table(1)
            else:
                batches, rows = batches + 1, rows + records.integer(0, "<q")
            if records.place(3):
                expanded += sum(map(_expanded(message.body), records.structs(2, "<qq")))
    except struct.error:
        raise ValueError("its metadata are damaged") from None
    return StreamSize(batches, rows, expanded)


def _expanded(body: Any) -> Any:
    """What gives the decompressed size of a buffer, which stands in front of it."""
    content = memoryview(body)

    def size(buffer: tuple[int, int]) -> int:
        start, length = buffer
        if length < 8:
            return 0
        said: int = struct.unpack_from("<q", content, start)[0]
        return length if said == -1 else abs(said)

    return size


class _Table:
    """A table of a flatbuffer: fields by their numbers in the schema."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._start = content, start

    @classmethod
    def message(cls, message: Any) -> _Table:
        content = message.metadata.to_pybytes()
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def place(self, field: int) -> int:
        """Where a field is, 0 if it is left out."""
        fields = self._start - self._read("<i", self._start)
        within = 4 + 2 * field
        offset = self._read("<H", fields + within) if within < self._read("<H", fields) else 0
        return self._start + offset if offset else 0

    def integer(self, field: int, form: str) -> int:
        place = self.place(field)
        return self._read(form, place) if place else 0

    def table(self, field: int) -> _Table:
        place = self.place(field)
        return _Table(self._content, place + self._read("<I", place))

    def structs(self, field: int, form: str) -> list[tuple[int, int]]:
        place = self.place(field)
        if not place:
            return []
        start = place + self._read("<I", place)
        size = struct.calcsize(form)
        count = self._read("<I", start)
        part = self._content[start + 4 : start + 4 + count * size]
        return list(struct.iter_unpack(form, part[: len(part) // size * size]))

    def _read(self, form: str, at: int) -> int:
        found: int = struct.unpack_from(form, self._content, at)[0]
        return found
