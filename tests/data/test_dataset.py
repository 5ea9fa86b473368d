"""Dataset: what it checks, and what it gives."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankgrad.data import Dataset


def small(**changes: object) -> Dataset:
    fields = {
        "features": np.arange(6.0).reshape(3, 2),
        "labels": [0, 1, 2],
        "offsets": [0, 2, 3],
        "qids": ["a", "b"],
    }
    return Dataset(**{**fields, **changes})  # type: ignore[arg-type]


def test_brings_arrays_to_their_types() -> None:
    data = small(
        features=np.asfortranarray(np.arange(6).reshape(3, 2)), qids=[7, 8], weights=[1] * 3
    )
    assert data.features.dtype == np.float32 and data.features.flags.c_contiguous
    assert data.labels.dtype == data.weights.dtype == np.float32
    assert data.offsets.dtype == np.int64 and data.qids.tolist() == ["7", "8"]
    assert (len(data), data.n_items, data.n_features) == (2, 3, 2)
    assert data.lengths.tolist() == [2, 1]


def test_does_not_copy_what_is_right_already() -> None:
    features = np.zeros((3, 2), np.float32)
    assert small(features=features).features is features


def test_errors_travel_between_processes() -> None:
    with pytest.raises(ValueError, match="labels") as caught:
        small(labels=[0, np.nan, 1])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros(3)}, "features must have 2 dimension"),
        ({"features": np.array([["a", "b"]] * 3)}, "features must be real numbers, found <U1"),
        ({"features": [[0, 0], [0, 1e300], [0, 0]]}, r"index 1 .* of row 1 is 1e\+300, too large"),
        (
            {"features": [[0, 0], [0, -1e39], [0, 0]], "feature_names": ("x", "y")},
            r"feature 'y' at index 1 .* of row 1 is -1e\+39, too large for float32",
        ),
        ({"labels": [0, 1, 1e300]}, r"labels\[2\] is 1e\+300, too large for float32"),
        ({"labels": [0, 1]}, "features have 3 rows, labels 2"),
        ({"labels": [0, np.nan, 1]}, r"labels .* item 1 \(list 0, qid 'a'\) has nan"),
        ({"labels": [0, 1, np.inf]}, r"labels .* item 2 \(list 1, qid 'b'\) has inf"),
        ({"labels": [-1, 1, 0]}, r"item 0 \(list 0, qid 'a'\) has -1"),
        ({"weights": [1, 1, -2]}, r"weights .* item 2 \(list 1, qid 'b'\) has -2"),
        ({"weights": [1]}, "features have 3 rows, weights 1"),
        ({"ids": ["x"]}, "features have 3 rows, ids 1"),
        ({"qids": ["a", "b" * 1025]}, r"qids\[1\] has 1,025 characters, and at most 1,024"),
        ({"offsets": [0, 3]}, r"2 \+ 1; found 2"),
        ({"offsets": [0, 1, 2]}, "number of items, 3; found 0 to 2"),
        ({"offsets": [1, 2, 3]}, "found 1 to 3"),
        ({"offsets": [0.0, 2.0, 3.0]}, "offsets must be whole numbers, found float64"),
        ({"offsets": [0, 4, 2, 3], "qids": list("abc")}, r"offsets\[2\] = 2 follows 4"),
        ({"qids": ["a", "a"]}, "lists 0 and 1 both have 'a'"),
        ({"qids": [["a", "b"]]}, r"qids must have 1 dimension, found shape \[1, 2\]"),
        ({"feature_names": ("x",)}, "each of 2 features, found 1 names"),
    ],
)
def test_names_what_is_wrong_and_where(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_select_takes_lists_in_the_order_of_its_argument(dataset: Dataset) -> None:
    chosen = dataset.select([4, 0, 2])
    assert chosen.qids.tolist() == ["7", "10", "späti"]
    for position, at in enumerate([4, 0, 2]):
        rows = slice(dataset.offsets[at], dataset.offsets[at + 1])
        here = slice(chosen.offsets[position], chosen.offsets[position + 1])
        for name in ("features", "labels", "weights", "ids"):
            assert (getattr(chosen, name)[here] == getattr(dataset, name)[rows]).all()
    assert chosen.feature_names == dataset.feature_names and chosen.notes == dataset.notes


def test_select_of_neighbors_is_a_view(dataset: Dataset) -> None:
    assert np.shares_memory(dataset.select(range(2, 5)).features, dataset.features)
    assert not np.shares_memory(dataset.select([2, 4]).features, dataset.features)


def test_select_takes_booleans_and_nothing(dataset: Dataset) -> None:
    assert dataset.select(dataset.lengths > 3).qids.tolist() == ["späti", "7", "z"]
    assert len(dataset.select([])) == 0 and dataset.select([]).n_features == 4
    assert repr(dataset.select([])).endswith("no labels)")


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ([7], IndexError, "there are 7 lists; found index 7"),
        ([-1], IndexError, "found index -1"),
        ([1, 2, 1], ValueError, "each list once; 1 is there twice"),
        ([0.5], ValueError, "list indices in one dimension"),
    ],
)
def test_select_refuses(
    dataset: Dataset, lists: list[int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dataset.select(lists)


@given(st.permutations(range(7)), st.integers(0, 7))
def test_selecting_twice_is_selecting_the_selection(order: list[int], count: int) -> None:
    lengths = np.array([2, 0, 3, 1, 4, 1, 2])
    items = int(lengths.sum())
    data = Dataset(
        np.arange(items * 2.0).reshape(items, 2),
        np.arange(items),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.arange(7),
    )
    there = data.select(order)
    back = there.select(np.argsort(order))
    assert back.checksum() == data.checksum()
    assert there.select(range(count)).checksum() == data.select(order[:count]).checksum()


def test_categories_may_be_lists() -> None:
    data = Dataset([[0.0]], [1], [0, 1], ["a"], categories=[["x"]])
    assert data.widen(2).categories == (("x",), None)


def test_widen_adds_zeros_at_the_end() -> None:
    wide = small().widen(4)
    assert wide.features.tolist() == [[0, 1, 0, 0], [2, 3, 0, 0], [4, 5, 0, 0]]
    with pytest.raises(ValueError, match="would drop some"):
        wide.widen(2)
    with pytest.raises(ValueError, match="would have none"):
        small(feature_names=("x", "y")).widen(3)


def test_checksum_is_of_the_contents(dataset: Dataset) -> None:
    assert dataset.checksum() == replace(dataset, notes=()).checksum()
    assert dataset.checksum() == replace(dataset, ids=None).checksum()  # which rank nothing
    missing = dataset.features.copy()
    missing[1, 2] = np.nan
    other = missing.copy()
    other.view(np.uint32)[1, 2] |= 1 << 31 | 7  # another NaN
    assert len({replace(dataset, features=f).checksum() for f in (missing, other)}) == 1
    assert dataset.checksum() == replace(dataset, qids=dataset.qids.astype("U40")).checksum()
    features = dataset.features.copy()
    features[-1, -1] += 1
    changes = [
        {"features": features},
        {"labels": dataset.labels + 1},
        {"weights": None},
        {"qids": np.char.add(dataset.qids, "'")},
        {"feature_names": ("bm2", "5clicks", "pagerank", "length")},
    ]
    sums = {dataset.checksum(), *(replace(dataset, **change).checksum() for change in changes)}
    assert len(sums) == len(changes) + 1


def test_repr_shows_sizes_and_labels() -> None:
    assert repr(small(labels=[0, 0, 2])) == (
        "Dataset(2 lists, 3 items, 2 features; labels 0: 66.7%, 2: 33.3%)"
    )
    many = Dataset(np.zeros((20, 1)), np.arange(20) / 2, [0, 20], ["a"])
    assert "20 distinct labels from 0 to 9.5" in repr(many)


def test_source_rows_are_checked_and_go_along() -> None:
    features, rows = np.arange(3.0)[:, None], np.array([2, 0, 1])
    data = Dataset(features, [0, 1, 2], [0, 1, 3], ["a", "b"], source_rows=rows)
    assert data.source_order is not None
    assert data.source_order.tolist() == [1, 2, 0]
    for other in (data.widen(2), data.select([0, 1])):
        assert np.array_equal(other.source_rows, rows)
    assert np.array_equal(data.select([1, 0]).source_rows, [0, 1, 2])
    with pytest.raises(ValueError, match="source_rows must be distinct; 1 is there twice"):
        replace(data, source_rows=[1, 1, 0])
    with pytest.raises(ValueError, match="source_rows must have one value per item"):
        replace(data, source_rows=[1, 0])
