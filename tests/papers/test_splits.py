"""The data of a table, divided and cut as its paper says."""

from pathlib import Path

import numpy as np
import pytest

from rankgrad.data import Dataset, load_splits, store
from rankgrad.papers._splits import cut, find, join, missing, prepare
from rankgrad.papers.protocol import Data, Split


def lists(number, start=0, length=5):
    offsets = np.arange(number + 1) * length
    features = np.random.default_rng(start).random((number * length, 3), dtype=np.float32)
    qids = [str(start + q) for q in range(number)]
    return Dataset(features, np.arange(number * length) % 3, offsets, qids)


@pytest.fixture
def source(tmp_path):
    place = tmp_path / "source"
    parts = {"train": lists(60), "vali": lists(20, 60), "test": lists(20, 80)}
    store.write_splits(parts, place / "Fold1")
    return place


def test_data_as_they_come_are_used_where_they_lie(source, tmp_path):
    data = Data(name="MQ2008", label="x", folds=(1,))
    assert prepare(source, data, tmp_path / "made") == (source, (1,))
    assert not (tmp_path / "made").exists()


def test_drawings_share_no_query_and_cover_all(source, tmp_path):
    split = Split(pool=True, test=0.1, vali=0.3, repeats=3)
    data = Data(name="MQ2008", label="x", folds=(1,), split=split)
    place, folds = prepare(source, data, tmp_path / "made")
    assert folds == (1, 2, 3)
    tests = []
    for fold in folds:
        parts = load_splits(place, fold)
        assert {name: len(part) for name, part in parts.items()} == {
            "train": 63,
            "vali": 27,
            "test": 10,
        }
        queries = [qid for part in parts.values() for qid in part.qids.tolist()]
        assert sorted(queries, key=int) == [str(q) for q in range(100)]
        tests.append(set(parts["test"].qids.tolist()))
    assert tests[0] != tests[1]
    again, _ = prepare(source, data, tmp_path / "again")
    assert load_splits(again, 2)["test"].checksum() == load_splits(place, 2)["test"].checksum()


def test_a_validation_part_is_drawn_from_training_alone(source, tmp_path):
    data = Data(name="MQ2008", label="x", folds=(1,), split=Split(vali=0.25))
    place, folds = prepare(source, data, tmp_path / "made")
    parts = load_splits(place, folds[0])
    assert (len(parts["train"]), len(parts["vali"])) == (45, 15)
    assert parts["test"].qids.tolist() == [str(q) for q in range(80, 100)]


def test_a_set_without_folds_gets_a_validation_part(tmp_path):
    source = store.write_splits({"train": lists(40), "test": lists(9, 40)}, tmp_path / "source")
    data = Data(name="Istella", label="x", split=Split(vali=0.25))
    place, folds = prepare(source, data, tmp_path / "made")
    assert folds == (None,)
    assert {name: len(part) for name, part in load_splits(place).items()} == {
        "train": 30,
        "vali": 10,
        "test": 9,
    }


def test_lists_are_cut_in_the_parts_that_are_measured(source, tmp_path):
    data = Data(name="MQ2008", label="x", folds=(1,), list_limit=3)
    place, folds = prepare(source, data, tmp_path / "made")
    parts = load_splits(place, folds[0])
    assert parts["train"].lengths.max() == 5
    assert set(parts["test"].lengths.tolist()) == {3}


def test_cutting_keeps_items_whole_and_in_order():
    whole = lists(4, length=6)
    short = cut(whole, 4, seed=3)
    for at in range(4):
        before = whole.features[whole.offsets[at] : whole.offsets[at + 1]]
        after = short.features[short.offsets[at] : short.offsets[at + 1]]
        rows = [int(np.flatnonzero((before == row).all(1))[0]) for row in after]
        assert rows == sorted(rows) and len(set(rows)) == 4
    assert cut(whole, 6) is whole


def test_joined_lists_are_those_that_were_given():
    one, two = lists(3), lists(2, 10)
    both = join([one, two])
    assert both.select([3, 4]).checksum() == two.checksum()


def test_a_folder_prepared_otherwise_is_not_used(source, tmp_path):
    data = Data(name="MQ2008", label="x", folds=(1,), split=Split(vali=0.25))
    prepare(source, data, tmp_path / "made")
    with pytest.raises(ValueError, match="prepared in another way"):
        prepare(source, data, tmp_path / "made", lists=10)


def test_a_relative_path_is_the_same_data_from_another_folder(source, tmp_path, monkeypatch):
    data = Data(name="MQ2008", label="x", folds=(1,), split=Split(vali=0.25))
    monkeypatch.chdir(source.parent)
    made = prepare(Path(source.name), data, tmp_path / "made")
    monkeypatch.chdir(tmp_path)
    assert prepare(source, data, tmp_path / "made") == made


def test_a_folder_prepared_from_other_data_is_not_used(source, tmp_path):
    data = Data(name="MQ2008", label="x", folds=(1,), split=Split(vali=0.25))
    prepare(source, data, tmp_path / "made")
    prepare(source, data, tmp_path / "made")
    store.write(lists(20, 81), source / "Fold1" / "test", overwrite=True)
    with pytest.raises(ValueError, match="made from other data; fold 1 test"):
        prepare(source, data, tmp_path / "made")


def test_a_set_is_found_by_itself_or_among_others(tmp_path):
    fold = tmp_path / "data" / "MQ2008" / "Fold1"
    fold.mkdir(parents=True)
    line = "1 qid:1 " + " ".join(f"{f}:0.5" for f in range(1, 47)) + "\n"
    for split in ("train", "vali", "test"):
        (fold / f"{split}.txt").write_text(line)
    expected = {"MQ2008": tmp_path / "data" / "MQ2008"}
    for place in (tmp_path / "data", tmp_path / "data" / "MQ2008", fold):
        assert find(place, ["MQ2008", "MQ2007"]) == expected
    assert find(tmp_path / "data", ["MQ2007"]) == {}
    assert find(tmp_path / "nowhere", ["MQ2008"]) == {}


def test_a_missing_set_says_where_to_get_it(tmp_path):
    text = missing("Yahoo C14", tmp_path)
    assert "webscope" in text and str(tmp_path) in text
    assert "--data" in missing("MQ2008", None)
