"""load: whatever the path is, and clear words where it is nothing."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankgrad.data import Dataset, columnar, folds, load, load_splits, splits, store

Same = Callable[[Dataset, Dataset], None]
LETOR = "2 qid:a 1:0.5 3:7\n0 qid:a 2:1\n1 qid:b 1:0.25\n"
FOLDS = [1, 2, 3, 4, 5]


def letor(path: Path, text: str = LETOR) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Splits of which the test one names fewer features."""
    letor(tmp_path / "set" / "train.txt")
    letor(tmp_path / "set" / "valid.txt", "1 qid:c 2:1\n0 qid:c 1:1\n")
    letor(tmp_path / "set" / "test.txt", "1 qid:d 1:1\n")
    (tmp_path / "set" / "README").touch()
    return tmp_path / "set"


@pytest.mark.parametrize("name", ["x.txt", "x.svm", "x.letor", "x.libsvm", "x", "x.dat"])
def test_a_letor_file_by_any_name(tmp_path: Path, name: str) -> None:
    data = load(letor(tmp_path / name))
    assert data.features.tolist() == [[0.5, 0, 7], [0, 1, 0], [0.25, 0, 0]]
    assert data.qids.tolist() == ["a", "b"]
    assert load(tmp_path / name, n_features=5).n_features == 5


def test_a_compressed_file(tmp_path: Path, same: Same) -> None:
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(LETOR.encode()))
    same(load(tmp_path / "x.txt.gz"), load(letor(tmp_path / "x.txt")))


def test_splits_have_the_same_names_whatever_the_folder_calls_them(folder: Path) -> None:
    assert {name: path.name for name, path in splits(folder).items()} == {
        "train": "train.txt",
        "vali": "valid.txt",
        "test": "test.txt",
    }
    for name in ("vali", "valid", "val", "dev", "Validation"):
        assert load(folder, split=name).qids.tolist() == ["c"]


def test_all_splits_get_the_same_width(folder: Path) -> None:
    assert load(folder, split="test").n_features == 1
    datasets = load_splits(folder)
    assert [data.n_features for data in datasets.values()] == [3, 3, 3]
    assert datasets["test"].features.tolist() == [[1, 0, 0]]
    assert load(folder, split="test", n_features=3).checksum() == datasets["test"].checksum()


def test_splits_count_features_from_zero_if_one_does(tmp_path: Path) -> None:
    letor(tmp_path / "train.txt", "1 qid:1 0:5 1:6\n")
    letor(tmp_path / "test.txt", "1 qid:1 1:7\n")
    assert load_splits(tmp_path)["test"].features.tolist() == [[0, 7]]
    assert load(tmp_path, split="test").features.tolist() == [[0, 7]]
    assert all(data.zero_based for data in load_splits(tmp_path).values())
    letor(tmp_path / "train.txt", "1 qid:1 1:6 # seen at 0:15\n")
    assert load(tmp_path, split="test").features.tolist() == [[7]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"folder of splits: train \(train.txt\), vali \(valid.txt\), test .* say which split"),
        ({"split": "tset"}, "unknown split 'tset'. Did you mean 'test'"),
        ({"split": "test", "fold": 1}, "folder of splits: train .*; there is no fold 1"),
        ({"fold": 1}, "there is no fold 1"),
    ],
)
def test_a_folder_needs_a_split(folder: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(folder, **options)  # type: ignore[arg-type]


def test_a_split_that_is_not_there(folder: Path) -> None:
    (folder / "valid.txt").unlink()
    with pytest.raises(ValueError, match=r"has no split 'dev'. There are: train, test"):
        load(folder, split="dev")


def test_folds(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        for split in ("train", "vali", "test"):
            letor(tmp_path / f"Fold{number}" / f"{split}.txt", f"1 qid:{number}{split} 1:1\n")
    assert list(folds(tmp_path)) == [1, 2, 10]
    assert load(tmp_path, fold=10, split="vali").qids.tolist() == ["10vali"]
    assert load(tmp_path / "Fold2", split="test").qids.tolist() == ["2test"]
    for options, message in [
        ({}, "folder of folds: 1, 2, 10; say which split"),
        ({"split": "train"}, "folder of folds: 1, 2, 10; say which fold"),
        ({"fold": 1}, r"folder of splits: train \(train.txt\)"),
        ({"fold": 3, "split": "train"}, "folds: 1, 2, 10; there is no fold 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(tmp_path, **options)  # type: ignore[arg-type]


def test_a_file_or_store_takes_no_split(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="is a file: a split and a fold are of folders"):
        load(letor(tmp_path / "x.txt"), split="train")
    with pytest.raises(ValueError, match="is one store"):
        load(store.write(dataset, tmp_path / "store"), fold=1)


def test_missing_paths_name_the_nearest(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no .*trian.txt; did you mean .*train.txt\?"):
        load(folder / "trian.txt")
    with pytest.raises(FileNotFoundError, match=r"did you mean .*set\?"):
        load(folder.parent / "sett" / "Fold1" / "train.txt")
    with pytest.raises(FileNotFoundError, match=r"set has README, test.txt, train.txt, valid.txt"):
        load(folder / "0123456789")
    with pytest.raises(FileNotFoundError, match="there is no"):
        splits(folder / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no"):
        load(folder / "train.txt" / "deeper")


def test_a_folder_of_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match=r"no train, vali or test in it; .*photos is empty"):
        load(tmp_path / "photos")
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ValueError, match=r"photos has cat.jpg"):
        load(tmp_path / "photos", split="train")
    file = letor(tmp_path / "a.txt", "1 qid:1 1:1\n")
    with pytest.raises(ValueError, match=r"a.txt is a file, not a folder of splits"):
        load_splits(file)


def test_several_sets_in_one_folder_are_distinguished_by_the_part_before(tmp_path: Path) -> None:
    for number in (1, 2):
        for split in ("train", "valid", "test"):
            letor(tmp_path / f"set{number}.{split}.txt", f"1 qid:{number}{split} 1:1\n")
    with pytest.raises(ValueError, match=r"several test splits: set1.test.txt, set2.*/set1"):
        load(tmp_path, split="test")
    assert load(tmp_path / "set2", split="vali").qids.tolist() == ["2valid"]
    assert list(load_splits(tmp_path / "set1")) == ["train", "vali", "test"]


def test_lightgbm_side_files(tmp_path: Path) -> None:
    path = letor(tmp_path / "rank.train", "1 1:1\n0 1:2\n2 2:3\n")
    letor(tmp_path / "rank.train.query", "\ufeff1\n2\n")  # with a byte order mark
    letor(tmp_path / "rank.train.weight", "1\n0.5\n2\n")
    data = load(path)
    assert data.offsets.tolist() == [0, 1, 3] and data.weights.tolist() == [1, 0.5, 2]
    assert load(tmp_path, split="train").checksum() == data.checksum()
    (tmp_path / "rank.train.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert load(tmp_path / "rank.train.gz").checksum() == data.checksum()
    letor(tmp_path / "rank.train.weight", "1\n0.5\n")
    with pytest.raises(ValueError, match=r"rank.train.weight: .* 3 rows, weights 2"):
        load(path)
    for text in ("1\ntwo\n", "1\n0\n2\n", "1\n-2\n", "1\n1 1\n", "1\n9999999999999999999\n"):
        letor(tmp_path / "rank.train.query", text)
        with pytest.raises(ValueError, match=r"rank.train.query, line 2: expected a whole number"):
            load(path)
    letor(tmp_path / "rank.train.query", "1\n2\n")
    for text in ("1\nx\n2\n", "1\nnan\n2\n", "1\n-1\n2\n", "1\ninf\n2\n"):
        letor(tmp_path / "rank.train.weight", text)
        with pytest.raises(ValueError, match=r"rank.train.weight, line 2: expected a finite"):
            load(path)
    letor(tmp_path / "rank.train.query", "1\n1\n")
    with pytest.raises(ValueError, match=r"rank.train"):
        load(path)


def test_stores_are_loaded_like_files(tmp_path: Path, dataset: Dataset, same: Same) -> None:
    same(load(store.write(dataset, tmp_path / "one")), dataset)
    parts = {"train": dataset, "test": dataset.select([0, 3])}
    store.write_splits(parts, tmp_path / "set")
    same(load(tmp_path / "set", split="test"), parts["test"])
    store.write_splits(parts, tmp_path / "folds" / "Fold1")
    same(load(tmp_path / "folds", fold=1, split="train"), dataset)
    assert isinstance(load_splits(tmp_path / "folds", fold=1)["test"].features, np.memmap)
    (tmp_path / "one" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"damaged: manifest.json is missing"):
        load(tmp_path / "one")


def test_the_width_asked_for(tmp_path: Path, dataset: Dataset) -> None:
    named = store.write(dataset, tmp_path / "named")
    nameless = store.write(replace(dataset, feature_names=None), tmp_path / "nameless")
    assert load(named, n_features=4).n_features == 4
    assert load(nameless, n_features=6).n_features == 6
    for path, width in ((named, 6), (nameless, 3)):
        with pytest.raises(ValueError, match=f"has 4 features, {width} were asked for"):
            load(path, n_features=width)


def test_where_feature_ids_start(tmp_path: Path) -> None:
    path = letor(tmp_path / "x.txt", "1 qid:1 1:7\n")
    data = load(path)
    assert data.zero_based is False and data.features.tolist() == [[7]]
    data = load(path, zero_based=True, n_features=3)
    assert data.zero_based is True and data.features.tolist() == [[0, 7, 0]]
    assert data.select([0]).zero_based is True and data.widen(5).zero_based is True
    letor(path, "1 qid:1 0:7\n")
    with pytest.raises(ValueError, match=r"x.txt, line 1: feature id 0"):
        load(path, zero_based=False)
    kept = store.write(load(path), tmp_path / "kept")
    assert load(kept, zero_based=True).zero_based
    with pytest.raises(ValueError, match=r"kept was read with feature ids from 0, but from 1"):
        load(kept, zero_based=False)


def test_the_names_asked_for(tmp_path: Path, dataset: Dataset) -> None:
    names = ["bm25", "clicks", "pagerank", "length"]
    path = store.write(dataset, tmp_path / "named")
    assert load(path, feature_names=names).feature_names == tuple(names)
    for wanted, message in [
        (["bm25", "pagerank", "clicks", "length"], "feature 2 is clicks, not pagerank"),
        (names[:3], "feature 4 is length, not there at all"),
        ([*names, "age"], "feature 5 is missing, not age"),
    ]:
        with pytest.raises(ValueError, match=f"named has other features .*: {message}"):
            load(path, feature_names=wanted)
    nameless = store.write(replace(dataset, feature_names=None), tmp_path / "nameless")
    assert load(nameless, feature_names=names).feature_names is None
    assert load(letor(tmp_path / "x.txt"), feature_names=names).feature_names is None


def test_columns_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = letor(tmp_path / "x.csv", "qid,label,y,extra,x\n1,1,3,9,2\n")
    data = load(path, feature_names=("x", "y"))
    assert data.feature_names == ("x", "y") and data.features.tolist() == [[2, 3]]
    with pytest.raises(ValueError, match=r"x.csv has no column 'z'"):
        load(path, feature_names=("x", "z"))


def test_values_must_be_finite_where_that_is_asked_for(tmp_path: Path) -> None:
    path = letor(tmp_path / "train.txt", "1 qid:1 1:6\n0 qid:1 1:2 2:inf\n")
    assert np.isinf(load(path).features[1, 1])
    message = r"train.txt, line 2: the value of feature 2 is inf; values must be finite"
    with pytest.raises(ValueError, match=message):
        load(path, finite=True)
    with pytest.raises(ValueError, match=message):
        load_splits(tmp_path, finite=True)
    assert load(letor(path, "1 qid:1 1:inf 1:3\n"), finite=True).features.tolist() == [[3]]


def test_columnar_splits_share_the_columns_of_the_first(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    letor(tmp_path / "train.csv", "qid,label,x,y\n1,1,2,3\n")
    letor(tmp_path / "test.csv", "qid,label,y,extra,x\n1,1,3,9,2\n")
    datasets = load_splits(tmp_path)
    assert datasets["test"].feature_names == ("x", "y")
    assert datasets["test"].features.tolist() == [[2, 3]]
    letor(tmp_path / "test.csv", "qid,label,y\n1,1,3\n")
    with pytest.raises(ValueError, match=r"test.csv has no column 'x'"):
        load_splits(tmp_path)


def test_options_of_columns_are_those_of_all_splits(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "train.csv").write_text("q,color,b,y\n1,7,-9,1\n1,3,2,\n")
    (tmp_path / "test.csv").write_text("q,color,b,y\n2,3,-9,0\n2,5,,1\n")
    columns = {"query": "q", "label": "y", "labeled": False, "missing": ["-9"], "fill": 4.0}
    read = load_splits(tmp_path, columns={**columns, "categorical": ["color"]})
    assert read["train"].features.tolist() == [[1, 4], [0, 2]]
    assert read["train"].categories == read["test"].categories == (("3", "7"), None)
    np.testing.assert_array_equal(read["test"].features, [[0, 4], [np.nan, 4]])
    assert read["train"].labels.tolist() == [1, 0]


def test_splits_with_other_features_are_an_error(tmp_path: Path, dataset: Dataset) -> None:
    other = replace(dataset, feature_names=("a", "b", "c", "d"))
    store.write_splits({"train": dataset, "test": other}, tmp_path / "set")
    with pytest.raises(ValueError, match=r"different features \(train 4, test 4\)"):
        load_splits(tmp_path / "set")


def test_lightgbm_example(real: Callable[[str], Path]) -> None:
    folder = real("lightgbm_rank")
    train, test = load_splits(folder).values()
    assert (len(train), train.n_items, train.n_features) == (201, 3_005, 300)
    assert (len(test), test.n_items, test.n_features) == (50, 768, 300)
    sizes = [int(line) for line in (folder / "rank.test.query").read_text().split()]
    assert test.lengths.tolist() == sizes
    assert set(train.labels.tolist()) == {0, 1, 2, 3, 4}


def test_mslr_sample(real: Callable[[str], Path], tmp_path: Path, same: Same) -> None:
    datasets = load_splits(real("mslr_sample"))
    assert [(len(d), d.n_items, d.n_features) for d in datasets.values()] == [
        (53, 5_488, 136),
        (18, 1_734, 136),
        (18, 1_900, 136),
    ]
    store.write_splits(datasets, tmp_path / "set")
    same(load(tmp_path / "set", split="vali"), datasets["vali"])


def test_parquet_of_real_data(real: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    data = load(real("mslr_sample"), split="test")
    read = load(columnar.write(data, tmp_path / "test.parquet"))
    assert replace(read, feature_names=None).checksum() == data.checksum()
