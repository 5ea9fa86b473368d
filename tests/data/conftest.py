"""Data for the tests of rankgrad.data: a made-up set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rankgrad.data import Dataset


@pytest.fixture
def dataset() -> Dataset:
    """Seven lists with everything a data set can have."""
    random = np.random.default_rng(0)
    lengths = [3, 1, 5, 2, 4, 1, 6]
    items = sum(lengths)
    return Dataset(
        features=random.normal(size=(items, 4)).astype(np.float32),
        labels=random.integers(0, 5, items),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        qids=np.array(["10", "2", "späti", "07", "7", "q x", "z"]),
        weights=random.uniform(size=items),
        ids=np.array([f"doc-{i}" for i in range(items)]),
        feature_names=("bm25", "clicks", "pagerank", "length"),
        notes=("made up",),
    )


@pytest.fixture
def same() -> Callable[[Dataset, Dataset], None]:
    """Asserts that two data sets are equal, bit for bit."""

    def compare(left: Dataset, right: Dataset) -> None:
        for name in ("features", "labels", "offsets", "qids", "weights", "ids"):
            a, b = getattr(left, name), getattr(right, name)
            assert (a is None) == (b is None), name
            if a is not None:
                assert a.dtype.kind == b.dtype.kind and a.shape == b.shape, name
                assert a.tobytes() == b.astype(a.dtype).tobytes(), name
        assert left.feature_names == right.feature_names
        assert left.checksum() == right.checksum()

    return compare
