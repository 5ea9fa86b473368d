"""Arrays whose blocks are compared with their checksums when they are first read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankgrad import _checksums
from rankgrad.data import Dataset, store
from rankgrad.data._checksummed import ChecksummedArray, ChecksummedFile
from rankgrad.training._processes import DatasetHandle

ROWS = 50


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr(_checksums, "BLOCK", 128)
    return np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6)


@pytest.fixture
def folder(values: np.ndarray, tmp_path: Path) -> Path:
    ids = [f"d{row}" for row in range(ROWS)]
    qids = [f"q{row}" for row in range(ROWS)]
    data = Dataset(values, values[:, 0], range(ROWS + 1), qids, ids=ids)
    return store.write(data, tmp_path / "set")


def damage(folder: Path, row: int) -> None:
    """Flip a bit of a row's features; without it, the header's 128 bytes come first."""
    path = folder / "features.npy"
    content = bytearray(path.read_bytes())
    content[128 + row * 24 + 5] ^= 4
    path.write_bytes(content)


INDICES: list[Any] = [
    3,
    -1,
    np.int64(7),
    slice(2, 9),
    slice(None, None, -3),
    slice(5, 5),
    [1, 4, -2],
    np.array([[0, 3], [40, 49]]),
    np.arange(ROWS) % 7 == 0,
    (slice(3, 20), 2),
    (slice(None), [0, 1]),
    (4, 5),
    ([1, 30], 2),
    ...,
    True,
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_gives_what_it_gives_of_an_array(folder: Path, values: Any, index: Any) -> None:
    features: Any = store.open(folder).features
    assert isinstance(features, ChecksummedArray)
    np.testing.assert_array_equal(features[index], values[index])
    rows = np.unique(np.arange(ROWS)[index[0] if isinstance(index, tuple) else index])
    for row in rows[:: max(1, len(rows) // 3)]:
        damage(folder, int(row))
        with pytest.raises(ValueError, match=r"features.npy is damaged: bytes \d+ to \d+ do not"):
            store.open(folder).features[index]
        damage(folder, int(row))


def test_the_row_of_the_largest_int8_is_checked(tmp_path: Path) -> None:
    path, content = tmp_path / "rows", bytes(200)
    path.write_bytes(b"x" * 200)
    file = ChecksummedFile(path, _checksums.of_bytes(content))
    array = ChecksummedArray(file, np.dtype(np.uint8), (200,), 0)
    with pytest.raises(ValueError, match="is damaged"):
        array[np.int8(127)]


READINGS: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "array": lambda a: np.array(a, np.float64),
    "sum": lambda a: a.sum(),
    "ufunc": lambda a: a * 2 + 1,
    "function": lambda a: np.concatenate([a, a]),
    "iterate": lambda a: np.stack(list(a)),
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
    "part": lambda a: np.asarray(a.part(30, 50)) if isinstance(a, ChecksummedArray) else a[30:50],
}


@pytest.mark.parametrize("how", READINGS)
def test_nothing_is_read_past_the_checksums(folder: Path, values: Any, how: str) -> None:
    read = READINGS[how]
    np.testing.assert_array_equal(read(store.open(folder).features), read(values))
    damage(folder, 44)
    with pytest.raises(ValueError, match="is damaged"):
        read(store.open(folder).features)


def test_blocks_that_are_not_read_are_not_checked(folder: Path, values: Any) -> None:
    damage(folder, 44)
    opened = store.open(folder)
    assert opened.features.shape == (ROWS, 6) and len(opened.features) == ROWS
    np.testing.assert_array_equal(opened.features[:40], values[:40])
    np.testing.assert_array_equal(opened.select(range(30)).features, values[:30])
    part, sent = opened.select(range(40, 50)), pickle.dumps(DatasetHandle(opened))
    for data in (opened, part, pickle.loads(sent)):
        with pytest.raises(ValueError, match="is damaged"):
            data.checksum()
    assert opened.ids is not None and opened.ids.tolist()[-1] == "d49"


def test_arrays_of_a_store_are_not_changed(folder: Path) -> None:
    features = store.open(folder).features
    with pytest.raises(ValueError, match="read-only"):
        features += 1


def test_a_header_that_moves_the_values_is_noticed(folder: Path) -> None:
    path = folder / "features.npy"
    content = bytearray(path.read_bytes())
    assert content[8] == 118
    content[8] -= 16  # the header ends in spaces: a shorter one still reads
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        store.open(folder)
