"""ChecksummedArray: a memory map, compared with checksums, block by block, when it is first read.

So a file of any size opens at once, and no damaged value is ever returned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rankgrad import _checksums

_UNREAD = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "flags")  # no value is read


class ChecksummedFile:
    """The bytes of a file, mapped, and which of its blocks were checked.

    Args:
        path: the file.
        sums: the checksums of its blocks, as :func:`rankgrad._checksums.of_blocks` writes them.
    """

    def __init__(self, path: Path, sums: str) -> None:
        self.path, self.sums = path, sums
        with path.open("rb") as file:
            self.raw = np.memmap(file, np.uint8, "r")
        self._wanted = _checksums.split(sums)
        self._unchecked = np.ones(len(self._wanted), bool)
        if len(self._wanted) != -(-len(self.raw) // _checksums.BLOCK):
            raise ValueError(f"{path.name} has {len(self.raw)} bytes, which are not its checksums'")

    def check(self, start: int = 0, stop: int | None = None) -> None:
        """Check the blocks that contain a range of bytes, unless they were checked before."""
        first = start // _checksums.BLOCK
        last = -(-(len(self.raw) if stop is None else stop) // _checksums.BLOCK)
        for at in np.flatnonzero(self._unchecked[first:last]) + first:
            self._check_block(int(at))

    def check_rows(self, starts: np.ndarray, length: int) -> None:
        """:meth:`check` for pieces of one length that begin at ``starts``."""
        if not length or not self._unchecked.any():
            return
        steps = np.zeros(len(self._wanted) + 1, np.int64)  # +1 at first blocks, -1 after the last
        np.add.at(steps, starts // _checksums.BLOCK, 1)
        np.add.at(steps, (starts + length - 1) // _checksums.BLOCK + 1, -1)
        for at in np.flatnonzero((np.cumsum(steps[:-1]) > 0) & self._unchecked):
            self._check_block(int(at))

    def _check_block(self, at: int) -> None:
        start = at * _checksums.BLOCK
        stop = min(start + _checksums.BLOCK, len(self.raw))
        if int(_checksums.of_bytes(self.raw[start:stop]), 16) != self._wanted[at]:
            raise ValueError(
                f"{self.path} is damaged: bytes {start} to {stop} do not have the checksum they "
                "were written with. Import the data again"
            )
        self._unchecked[at] = False


class ChecksummedArray(NDArrayOperatorsMixin):
    """A read-only array in a :class:`ChecksummedFile`, checked as far as it is read.

    Indices and slices check their rows and give an array; masks, ``np.asarray`` and methods check
    all rows; ``shape``, ``dtype``, ``len`` and :meth:`part` read nothing. It is not an
    ``np.ndarray``, whose memory could be read without a check.

    Args:
        file: the file of the array, which begins at ``offset``.
        dtype, shape: the array's.
        offset: in bytes.
    """

    def __init__(
        self, file: ChecksummedFile, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
    ) -> None:
        self.file, self.offset = file, offset
        stop = offset + int(np.prod(shape)) * dtype.itemsize
        self._array: np.ndarray = file.raw[offset:stop].view(dtype).reshape(shape)
        self._row = self._array.nbytes // max(1, len(self._array))  # bytes of a row

    def part(self, start: int, stop: int) -> ChecksummedArray:
        """The rows from ``start`` to ``stop``, which are not read yet."""
        shape = (stop - start, *self._array.shape[1:])
        offset = self.offset + start * self._row
        return ChecksummedArray(self.file, self._array.dtype, shape, offset)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        rows = index[0] if isinstance(index, tuple) and index else index
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            self.file.check(*self._bytes(range(len(self))[rows : rows + 1 or None]))
        elif isinstance(rows, slice):
            self.file.check(*self._bytes(range(len(self))[rows]))
        elif isinstance(rows, (np.ndarray, list)) and np.asarray(rows).dtype.kind in "iu":
            inside = self._array[rows]  # raises IndexError where there is no such row
            places = np.asarray(rows, np.int64).reshape(-1) % max(1, len(self))
            self.file.check_rows(self.offset + places * self._row, self._row)
            return inside if rows is index else self._array[index]
        else:
            self._check()
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._check()
        if copy or (dtype is not None and np.dtype(dtype) != self._array.dtype):
            return np.array(self._array, dtype)
        return self._array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(x, ChecksummedArray) for x in options.get("out", ())):
            raise ValueError("arrays of a store are read-only: copy them with np.array")
        arrays = [np.asarray(x) if isinstance(x, ChecksummedArray) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # special names, such as __deepcopy__, are not the array's
            raise AttributeError(name)
        if name not in _UNREAD:
            self._check()
        return getattr(self._array, name)

    def __reduce__(self) -> Any:
        return np.asarray, (np.array(self),)

    def __repr__(self) -> str:
        shape = list(self._array.shape)
        return f"ChecksummedArray({self._array.dtype} {shape} of {self.file.path})"

    def _bytes(self, rows: range) -> tuple[int, int]:
        """The range of bytes of these rows in the file."""
        if not rows:
            return 0, 0
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        return self.offset + first * self._row, self.offset + (last + 1) * self._row

    def _check(self) -> None:
        self.file.check(self.offset, self.offset + self._array.nbytes)
