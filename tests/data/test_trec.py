"""TREC runs and qrels: there and back, and what is wrong with a file said by line."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankgrad.data import Dataset, _scores
from rankgrad.data.trec import (
    RankedList,
    Run,
    looks_like_qrels,
    read_qrels,
    read_run,
    write_qrels,
    write_run,
)

WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\x0b\f"), min_size=1
)


@settings(max_examples=25)
@given(
    lists=st.dictionaries(
        WORDS, st.dictionaries(WORDS, st.floats(-1e300, 1e300), min_size=1), min_size=1
    ),
    compressed=st.booleans(),
)
def test_a_run_round_trip(lists, compressed, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / ("a.run.gz" if compressed else "a.run")
    write_run(path, lists, tag="mine")
    run = read_run(path)
    assert run.tag == "mine" and run.queries == list(lists) == list(run)
    for query, by_document in lists.items():
        ranked = run[query]
        assert ranked.scores.dtype == np.float64
        assert dict(zip(ranked.documents, ranked.scores.tolist(), strict=True)) == by_document
        keys = [(by_document[d], d) for d in ranked.documents]
        assert keys == sorted(keys, reverse=True)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    before = path.read_bytes()
    write_run(path, run, overwrite=True)  # the run's own tag
    assert path.read_bytes() == before
    assert path.read_bytes()[:2] == (b"\x1f\x8b" if compressed else before[:2])


def test_a_run_is_written_to_a_pipe_that_is_there(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_run(tmp_path / "fifo", {"7": {"a": 0.5}}, tag="t")
    assert os.read(reader, 100) == b"7 Q0 a 1 0.5 t\n"
    os.close(reader)
    (tmp_path / "a.run").touch()
    with pytest.raises(FileExistsError, match="is there already; --overwrite or overwrite=True"):
        write_run(tmp_path / "a.run", {"7": {"a": 0.5}})


@pytest.mark.parametrize("name", ["a.qrels", "a.qrels.gz"])
def test_qrels_round_trip(tmp_path, name):
    qrels = {"2": {"a": 1, "b": -2}, "1": {"späti": 0}}
    write_qrels(tmp_path / name, qrels)
    found = read_qrels(tmp_path / name)
    assert found == qrels and list(found) == ["2", "1"]


def test_what_trec_eval_tolerates(tmp_path):
    text = "7\tQ0  a 1 0.5 tag more junk\r\n\n7 x b 0 +.5e1 tag\n8 Q0 a\xa0b 1 2 other"
    (tmp_path / "a.run").write_bytes(text.encode())
    run = read_run(tmp_path / "a.run")
    assert run["7"].documents == ["b", "a"] and run["7"].scores.tolist() == [5, 0.5]
    assert run["8"].documents == ["a\xa0b"] and run.tag == "tag"


def test_trec_evals_own_files(real):
    folder = real("trec_eval")
    run = read_run(folder / "results.test")
    assert run.queries == ["301", "302", "303"] and [len(run[q]) for q in run] == [500] * 3
    assert sum(map(len, read_run(folder / "results.trunc").values())) > 0
    qrels = read_qrels(folder / "qrels.rel_level")
    assert sum(map(len, qrels.values())) == 3681
    assert {grade for judged in qrels.values() for grade in judged.values()} == {-1, 0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 Q0 a 1 2 t\n1 Q0 b 2 1 t\n1 Q0 a 3 0 t\n", "line 3: query '1' has document 'a' twice"),
        ("1 Q0 a 1 2 t\n\n1 Q0 b 2 1\n", "line 3: expected six columns .*, found 5"),
        ("1 Q0 a 1 x t\n", "line 1: 'x' is not a number"),
        ("1 Q0 a 1 1_0 t\n", "line 1: '1_0' is not a number"),
        ("1 Q0 a 1 nan t\n", "line 1: the score 'nan' is not finite"),
        ("1 Q0 a 1 1 t\n1 Q0 \udcff 1 1 t\n", "line 2: not UTF-8 text"),
        ("\n", "has no ranked documents"),
    ],
)
def test_a_damaged_run(tmp_path, text, message):
    (tmp_path / "a.run").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"a\.run.*{message}"):
        read_run(tmp_path / "a.run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 a 1\n1 0 b\n", "line 2: expected four columns .*, found 3$"),
        ("query-id\tcorpus-id\tscore\n1\ta\t1\n", "line 1: expected four .* are BEIR's: drop"),
        ("1 a 1\n", "line 1: expected four columns .*, found 3. Three columns .* are BEIR's"),
        ("1 0 a 1\n1 0 b 2 3\n", "line 2: expected four columns .*, found 5"),
        ("1 0 a 1.0\n", "line 1: the grade '1.0' is not a whole number"),
        ("1 0 a 1\n2 0 a 1\n1 0 a 1\n", "line 3: document 'a' is judged twice for query '1'"),
        ("", "has no judgments"),
    ],
)
def test_damaged_qrels(tmp_path, text, message):
    (tmp_path / "a.qrels").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.qrels.*{message}"):
        read_qrels(tmp_path / "a.qrels")


def test_a_cut_off_gzip_file(tmp_path):
    packed = gzip.compress(b"1 0 a 1\n")
    (tmp_path / "a.gz").write_bytes(packed[:-9])
    with pytest.raises(ValueError, match=r"a\.gz: damaged compressed file"):
        read_qrels(tmp_path / "a.gz")


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ({"a b": {"c": 1.0}}, {}, "a query's id .* must be one word, found 'a b'"),
        ({"a": {"": 1.0}}, {}, "a document's id .* must be one word"),
        ({"a": {"b": float("inf")}}, {}, "the score of document 'b' is inf"),
        ({"a": {"b": 1.0}}, {"tag": "two words"}, "the tag of a run must be one word"),
        ({"a": RankedList(["b"], np.zeros(2))}, {}, "a score for each of 1 documents"),
        ({"a": RankedList(["b", "b"], np.zeros(2))}, {}, "query 'a' has a document twice"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path, run, options, message):
    with pytest.raises(ValueError, match=message):
        write_run(tmp_path / "a.run", run, **options)
    assert not list(tmp_path.iterdir())


def test_grades_that_are_not_whole_are_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"the grade 1.0 of document 'b' is not whole"):
        write_qrels(tmp_path / "a", {"q": {"b": 1.0}})
    assert not list(tmp_path.iterdir())
    write_qrels(tmp_path / "a", {"q": {"b": True, "c": np.int64(2)}})
    assert read_qrels(tmp_path / "a") == {"q": {"b": 1, "c": 2}}


def test_nothing_is_replaced_unasked(tmp_path):
    (tmp_path / "a.run").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite"):
        write_run(tmp_path / "a.run", {})
    assert (tmp_path / "a.run").read_text() == "mine"
    with pytest.raises(TypeError):
        Run({})["1"] = None


def test_scores_of_data_as_a_run(tmp_path):
    """Trailing columns are passed over, a document twice is an error; the last won before."""
    data = Dataset(np.zeros((2, 1)), [1, 0], [0, 2], ["a"])
    (tmp_path / "s").write_text("a Q0 2 1 0.5 t junk\na Q0 1 2 0.25 t\n")
    assert _scores.read(tmp_path / "s", data).tolist() == [0.25, 0.5]
    (tmp_path / "s").write_text("a Q0 2 1 0.5 t\na Q0 1 2 0.25 t\na Q0 1 3 0.1 t\n")
    with pytest.raises(ValueError, match="line 3: query 'a' has document '1' twice"):
        _scores.read(tmp_path / "s", data)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("q", "301 0 CR93E:1 1\n", True),
        ("q", "301 0 x\n", True),  # damaged: read_qrels says how
        ("qrels.tsv", "301\t0\td\t1\n", True),
        ("log.tsv", "qid\tlabel\tx\ty\n", False),
        ("log.csv", "qid,label,x\n", False),
        ("t.txt", "2 qid:10 1:0.5 2:0\n", False),
        ("t.txt", "2 1:0.5 2:0 3:1\n", False),
        ("t.txt", "# a comment\n2 qid:10\n", False),
        ("t.txt", "", False),
    ],
)
def test_qrels_are_distinguished_from_data(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert looks_like_qrels(tmp_path / name) == expected
    assert not looks_like_qrels(tmp_path)
