"""Scores in files: every format there and back, and what is wrong with a file said by line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from dataclasses import replace

import numpy as np
import pytest

from rankgrad.data import Dataset, _scores, load, store


@pytest.fixture
def written(dataset):
    values = np.random.default_rng(1).normal(size=dataset.n_items).astype(np.float32)
    values[3] = values[4]  # a tie
    return values


@pytest.mark.parametrize("name", ["scores.txt", "scores.parquet", "scores.run"])
def test_round_trip(dataset, written, tmp_path, name):
    one_word = np.char.replace(dataset.qids, " ", "-")
    dataset = Dataset(dataset.features, dataset.labels, dataset.offsets, one_word, ids=dataset.ids)
    path = tmp_path / "new" / name
    _scores.write(path, written, dataset)
    assert _scores.read(path, dataset).tobytes() == written.tobytes()
    assert [inside.name for inside in path.parent.iterdir()] == [name]


def test_a_fifo_is_written_to_without_being_asked_to_overwrite(dataset, written, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    _scores.write(tmp_path / "fifo", written, dataset, format="plain")
    assert np.array(os.read(reader, 10_000).split(), np.float32).tobytes() == written.tobytes()
    os.close(reader)
    assert (tmp_path / "fifo").is_fifo()


def test_run_file_is_best_first(tmp_path):
    data = Dataset(np.zeros((3, 1)), [1, 0, 0], [0, 1, 3], ["a", "b"])
    _scores.write(tmp_path / "a.run", np.array([0.5, -1, 2], np.float32), data, tag="mine")
    assert (tmp_path / "a.run").read_text().splitlines() == [
        "a Q0 1 1 0.5 mine",
        "b Q0 2 1 2.0 mine",
        "b Q0 1 2 -1.0 mine",
    ]


def test_plain_scores_follow_the_rows_of_the_file(tmp_path):
    rows = ["0 qid:b 1:10", "1 qid:a 1:20", "# nothing", "", "2 qid:b 1:30", "0 qid:a 1:40"]
    path = tmp_path / "mixed.txt"
    path.write_text("\n".join(rows) + "\n")
    data = load(path)
    assert data.features[:, 0].tolist() == [10, 30, 20, 40]
    assert data.features[data.source_order, 0].tolist() == [10, 20, 30, 40]
    _scores.write(tmp_path / "s.txt", data.features[:, 0], data)
    assert (tmp_path / "s.txt").read_text().split() == ["10.0", "20.0", "30.0", "40.0"]
    assert _scores.read(tmp_path / "s.txt", data).tolist() == [10, 30, 20, 40]


def test_plain_scores_follow_the_rows_of_columnar_files_and_of_their_stores(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text("qid,label,x\nb,0,1\na,1,2\nb,2,3\n")
    kept = load(store.write(load(path), tmp_path / "store"))
    for data in (load(path), kept, kept.select([1, 0])):
        _scores.write(tmp_path / "s.txt", data.features[:, 0], data, overwrite=True)
        assert (tmp_path / "s.txt").read_text().split() == ["1.0", "2.0", "3.0"]
        np.testing.assert_array_equal(_scores.read(tmp_path / "s.txt", data), data.features[:, 0])
    _scores.write(tmp_path / "t.txt", kept.select([1]).features[:, 0], kept.select([1]))
    assert (tmp_path / "t.txt").read_text().split() == ["2.0"]


def test_weights_beside_a_file_follow_its_rows(tmp_path):
    path = tmp_path / "mixed.txt"
    path.write_text("0 qid:b 1:10\n1 qid:a 1:20\n2 qid:b 1:30\n")
    path.with_name("mixed.txt.weight").write_text("1\n2\n3\n")
    data = load(path)
    assert (data.features[:, 0] / 10).tolist() == data.weights.tolist() == [1, 3, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n", "has 2 scores, the data 3 items"),
        ("1\nx\n3\n", "line 2: 'x' is not a number"),
        ("1\n2 3\n3\n", "line 2: expected one score"),
        ("1\nnan\n3\n", "the score of item 2 is nan"),
        ("1e99\n1\n1\n", "the score of item 1 is inf"),
        ("\n\n", "no scores"),
        ("1 2 3\n", "found 3 columns"),
        ("a Q0 1 1 0.5 t\n", "no score for 2 items of the data; the first is '1' of query 'b'"),
        ("c Q0 1 1 0.5 t\n", "no item '1' in query 'c'"),
        ("a Q0 1 1 0.5 t\nb Q0\n", "line 2: expected six columns"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    data = Dataset(np.zeros((3, 1)), [1, 0, 0], [0, 1, 3], ["a", "b"])
    (tmp_path / "s").write_text(text)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=message):
        _scores.read(tmp_path / "s", data)


@pytest.mark.parametrize(("kind", "pack"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_damaged_compressed_files_are_named(dataset, written, tmp_path, kind, pack, damage):
    _scores.write(tmp_path / "s", written, dataset)
    packed = pack.compress((tmp_path / "s").read_bytes())
    path = tmp_path / f"s.txt.{kind}"
    path.write_bytes(packed)
    assert _scores.read(path, dataset).tobytes() == written.tobytes()
    half = len(packed) // 2
    changed = packed[:half] + bytes(255 - byte for byte in packed[half:])
    path.write_bytes({"cut": packed[:half], "changed": changed, "other": b"1\n2\n3\n"}[damage])
    with pytest.raises(ValueError, match=rf"s\.txt\.{kind}: damaged compressed file: "):
        _scores.read(path, dataset)


@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_of_a_list_may_be_in_any_order_if_they_have_ids(tmp_path, with_ids):
    """As other tools write them, best first; qids may be floats, as pandas has them."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ids = ["x", "y", "x", "z"] if with_ids else None
    data = Dataset(np.zeros((4, 1)), [1, 0, 0, 1], [0, 2, 4], ["1", "2"], ids=ids)
    table = {
        "qid": [1.0, 1.0, 2.0, 2.0],
        "id": ["y", "x", "z", "x"] if with_ids else ["2", "1", "2", "1"],
        "score": [4.0, 3.0, 2.0, 1.0],
    }
    parquet.write_table(arrow.table(table), tmp_path / "s.parquet")
    assert _scores.read(tmp_path / "s.parquet", data).tolist() == [3.0, 4.0, 1.0, 2.0]
    table["id"][1] = "0"
    parquet.write_table(arrow.table(table), tmp_path / "t.parquet")
    if with_ids:
        with pytest.raises(ValueError, match="row 2: the data has no item '0' in query '1'"):
            _scores.read(tmp_path / "t.parquet", data)
    else:  # ids that these data do not have
        assert _scores.read(tmp_path / "t.parquet", data).tolist() == [4.0, 3.0, 2.0, 1.0]


def test_scores_in_parquet_follow_the_rows_of_the_file_if_their_queries_do(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "mixed.txt").write_text("0 qid:b 1:1\n1 qid:a 1:2\n2 qid:b 1:3\n0 qid:a 1:4\n")
    data = load(tmp_path / "mixed.txt")
    columns = {"qid": list("baba"), "id": ["1", "1", "2", "2"], "score": [1.0, 2.0, 3.0, 4.0]}
    for names in (["qid", "score"], ["qid", "id", "score"]):
        path = tmp_path / f"{len(names)}.parquet"
        parquet.write_table(arrow.table({name: columns[name] for name in names}), path)
        assert _scores.read(path, data).tolist() == data.features[:, 0].tolist() == [1, 3, 2, 4]
    parquet.write_table(arrow.table({"score": columns["score"]}), tmp_path / "s.parquet")
    with pytest.raises(ValueError, match="has no column 'qid', and the data have queries whose"):
        _scores.read(tmp_path / "s.parquet", data)


def test_scores_of_other_data_are_refused(dataset, written, tmp_path):
    _scores.write(tmp_path / "s.parquet", written, dataset)
    other = dataset.select([1, 0, 2, 3, 4, 5, 6])
    with pytest.raises(ValueError, match="not the scores of this data"):
        _scores.read(tmp_path / "s.parquet", other)


def test_nothing_is_replaced_or_left_half_written(dataset, written, tmp_path):
    path = tmp_path / "s.txt"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite"):
        _scores.write(path, written, dataset)
    lone = replace(dataset, qids=np.char.add(dataset.qids, "\ud800"))  # no UTF-8 has it
    with pytest.raises(UnicodeEncodeError):
        _scores.write(path, written, lone, format="trec", overwrite=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
    _scores.write(path, written, dataset, overwrite=True)
    assert len(path.read_text().split()) == dataset.n_items
