"""ChecksummedArray: a memory map whose blocks are compared with checksums when first read.

So a store (``store.py``) of any size opens at once, and no damaged value is ever returned.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rankgrad import _checksums

#: The attributes of an array that do not read its values.
_METADATA = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "flags")


class ChecksummedFile:
    """A memory-mapped file that remembers which of its blocks were checked.

    Args:
        path: the file.
        sums: the checksums of its blocks, as text that :func:`rankgrad._checksums.of_blocks` makes.

    Attributes:
        raw: ``[bytes]`` uint8, which may be read only after a check.
    """

    def __init__(self, path: Path, sums: str) -> None:
        self.path, self.sums = path, sums
        with path.open("rb") as file:
            self.raw = np.memmap(file, np.uint8, "r")
        self._expected = _checksums.split(sums)
        self._unchecked = np.ones(len(self._expected), bool)
        if len(self._expected) != -(-len(self.raw) // _checksums.BLOCK):
            raise ValueError(
                f"{path.name} has {len(self.raw)} bytes, but {len(self._expected)} checksums of "
                f"{_checksums.BLOCK} bytes each"
            )

    def check(self, start: int = 0, stop: int | None = None) -> None:
        """Check the blocks that contain ``raw[start:stop]``, unless they were checked before.

        Raises:
            ValueError: a block does not have its checksum.
        """
        first = start // _checksums.BLOCK
        end = -(-(len(self.raw) if stop is None else stop) // _checksums.BLOCK)  # rounded up
        for block in np.flatnonzero(self._unchecked[first:end]) + first:
            self._check_block(int(block))

    def check_rows(self, starts: np.ndarray, length: int) -> None:
        """:meth:`check` for the ranges of ``length`` bytes that start at ``starts``, ``[n]``."""
        if not length or not self._unchecked.any():
            return
        # The sum of the steps up to and including a block is the number of ranges that overlap it.
        steps = np.zeros(len(self._expected) + 1, np.int64)
        np.add.at(steps, starts // _checksums.BLOCK, 1)
        np.add.at(steps, (starts + length - 1) // _checksums.BLOCK + 1, -1)
        for block in np.flatnonzero((np.cumsum(steps[:-1]) > 0) & self._unchecked):
            self._check_block(int(block))

    def _check_block(self, block: int) -> None:
        start = block * _checksums.BLOCK
        stop = min(start + _checksums.BLOCK, len(self.raw))
        if int(_checksums.of_bytes(self.raw[start:stop]), 16) != self._expected[block]:
            raise ValueError(
                f"{self.path} is damaged: bytes {start} to {stop} do not have the checksum they "
                "were written with. Import the data again"
            )
        self._unchecked[block] = False


class ChecksummedArray(NDArrayOperatorsMixin):
    """A read-only array in a :class:`ChecksummedFile`; rows are checked before they are read.

    Indices and slices check their rows and return an ``np.ndarray``. Boolean masks, ``np.asarray``,
    operators and methods check all rows. ``shape``, ``dtype``, ``len`` and :meth:`part` check none.
    It is not a subclass of ``np.ndarray``: the memory of one could be read without a check.

    Args:
        file: the file that contains the array.
        dtype: of the array.
        shape: of the array.
        offset: where the array starts in the file, in bytes.
    """

    def __init__(
        self, file: ChecksummedFile, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
    ) -> None:
        self.file, self.offset = file, offset
        stop = offset + math.prod(shape) * dtype.itemsize
        self._array: np.ndarray = file.raw[offset:stop].view(dtype).reshape(shape)
        self._row_bytes = self._array.nbytes // max(1, len(self._array))

    def part(self, start: int, stop: int) -> ChecksummedArray:
        """The rows from ``start`` to ``stop``, both at least 0, which are not read yet."""
        shape = (stop - start, *self._array.shape[1:])
        offset = self.offset + start * self._row_bytes
        return ChecksummedArray(self.file, self._array.dtype, shape, offset)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        rows = index[0] if isinstance(index, tuple) and index else index
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            row = int(rows)  # np.int8(127) + 1 would overflow
            end = row + 1 or None  # the slice of row -1 has no end
            self.file.check(*self._byte_range(range(len(self))[row:end]))
        elif isinstance(rows, slice):
            self.file.check(*self._byte_range(range(len(self))[rows]))
        elif isinstance(rows, (np.ndarray, list)) and np.asarray(rows).dtype.kind in "iu":
            selected = self._array[rows]  # raises IndexError if there is no such row
            indices = np.asarray(rows, np.int64).reshape(-1) % max(1, len(self))
            self.file.check_rows(self.offset + indices * self._row_bytes, self._row_bytes)
            return selected if rows is index else self._array[index]
        else:
            self._check_all()
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._check_all()
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
        if name not in _METADATA:
            self._check_all()
        return getattr(self._array, name)

    def __reduce__(self) -> Any:  # unpickled as a plain np.ndarray
        return np.asarray, (np.array(self),)

    def __repr__(self) -> str:
        shape = list(self._array.shape)
        return f"ChecksummedArray({self._array.dtype} {shape} of {self.file.path})"

    def _byte_range(self, rows: range) -> tuple[int, int]:
        """Where these rows start and stop in the file, in bytes."""
        if not rows:
            return 0, 0
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        return self.offset + first * self._row_bytes, self.offset + (last + 1) * self._row_bytes

    def _check_all(self) -> None:
        self.file.check(self.offset, self.offset + self._array.nbytes)
