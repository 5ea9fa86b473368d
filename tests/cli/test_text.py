"""``rankgrad text`` and ``rankgrad evaluate RUN QRELS``, from a collection to a table."""

from __future__ import annotations

import gzip
import json

import pytest

from rankgrad.data.trec import read_run

DOCUMENTS = {"a": "wing in a slipstream", "b": "a wing", "c": "heat in slabs", "d": ""}
TOPICS = {"1": "slipstream wing", "2": "slabs", "3": "nothing like it"}
QRELS = "1 0 b 2\n1 0 c 1\n2 0 c 1\n3 0 d 1\n"


@pytest.fixture
def collection(tmp_path):
    rows = [json.dumps({"id": name, "text": text}) for name, text in DOCUMENTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    (tmp_path / "topics.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in TOPICS.items()))
    (tmp_path / "qrels").write_text(QRELS)
    return tmp_path


def test_from_a_collection_to_a_table(collection, rankgrad):
    index, run = collection / "index", collection / "bm25.run.gz"
    result = rankgrad("text", "index", collection / "corpus.jsonl", "-o", index)
    assert "indexed 4 documents, 1 of them empty" in result.output
    result = rankgrad("text", "retrieve", index, collection / "topics.tsv", "-o", run)
    assert "nothing was found for 1 queries; the first is '3'" in result.stderr
    assert gzip.decompress(run.read_bytes()).startswith(b"1 Q0 a 1 ")
    assert read_run(run)["1"].documents == ["a", "b"] and read_run(run).tag == "bm25"
    for command in (["evaluate"], ["text", "evaluate"]):
        result = rankgrad(*command, run, collection / "qrels", "-m", "map", "-m", "nDCG@10")
        assert "0.6250" in result.output and "ndcg@10(gain=linear)" in result.output
        assert "equal scores (as float32): by document id, descending" in result.output
        assert "left out: 1; --complete (-c) counts them" in result.stderr


def test_options_of_trec_eval(collection, rankgrad):
    run = collection / "a.run"
    run.write_text("1 Q0 b 1 1.0000000001 t\n1 Q0 x 2 1 t\n2 Q0 c 1 1 t\n")

    def means(*options):
        arguments = ("evaluate", run, collection / "qrels", "-m", "rr", *options, "--json")
        return json.loads(rankgrad(*arguments).stdout)

    found = means("--per-list")
    assert found["runs"][0]["per_list"] == {"qid": ["1", "2"], "rr": [0.5, 1.0]}
    assert found["conventions"] == {
        **{"level": 1, "complete": False, "ties": "trec_eval", "double": False}
    }
    assert means("--double")["runs"][0]["mean"] == {"rr": 1.0}
    assert means("--ties", "average")["runs"][0]["mean"] == {"rr": 0.875}
    assert means("-c")["runs"][0]["mean"] == {"rr": 0.5}
    assert means("-l", "2")["runs"][0]["mean"] == {"rr(threshold=2)": 0.25}
    arguments = ("evaluate", run, collection / "qrels", "--ties", "average", "--double", "-c")
    assert "equal scores (as float64): averaged" in rankgrad(*arguments).output
    assert "mean over all judged queries" in rankgrad(*arguments).output
    assert "lists without relevant items (0) count 0" in rankgrad(*arguments).output


def test_several_runs_side_by_side(collection, rankgrad):
    for name, order in (("one", "bxc"), ("two", "xbc"), ("three", "cxb")):
        lines = [f"{q} Q0 {d} 1 {3 - at} {name}\n" for q in "12" for at, d in enumerate(order)]
        (collection / name).write_text("".join(lines))
    runs = [collection / name for name in ("one", "two", "three")]
    result = rankgrad("evaluate", *runs, collection / "qrels", "-m", "ap", "-m", "rr")
    header = next(line for line in result.output.splitlines() if "metric" in line)
    words = [word for word in header.split() if word.isalpha()]
    assert words == ["metric", "one", "two", "p", "three", "p"]
    assert "p: against one, paired t-test, two-sided, Holm correction" in result.output
    arguments = ("evaluate", *runs, collection / "qrels", "--test", "randomization", "--json")
    found = json.loads(rankgrad(*arguments).stdout)
    assert [run["run"] for run in found["runs"]] == ["one", "two", "three"]
    assert found["significance"].startswith("paired randomization test")
    assert all(len(p) == 2 for p in found["p_values"].values())


def test_what_is_wrong_is_said(collection, refused):
    run = collection / "a.run"
    run.write_text("1 Q0 b 1 2 t\n1 Q0 b 2 1 t\n")
    qrels = collection / "qrels"
    assert "a.run, line 2: query '1' has document 'b' twice" in refused("evaluate", run, qrels)
    for fold in (0, 1):
        assert "leave out --fold" in refused("evaluate", run, qrels, "--fold", fold)
    assert "give two runs or more" in refused("evaluate", run, qrels, "--test", "t")
    assert "must be a TREC run" in refused("evaluate", collection, qrels)
    assert "give --json too" in refused("evaluate", run, qrels, "--per-list")
    data = collection / "test.txt"
    data.write_text("1 qid:1 1:0.5\n")
    assert "has no TREC judgments: leave out --complete" in refused("evaluate", run, data, "-c")
    assert "several rankers at once" in refused("evaluate", run, run, data)
    (collection / "qrels").write_text("1 0 b 2\n1 0 c x\n")
    assert "qrels, line 2: the grade 'x'" in refused("evaluate", run, qrels)
    assert "corpus.jsonl" in refused("text", "index", collection / "corpus.json", "-o", "x")
    message = refused("text", "index", collection / "corpus.jsonl", "-o", collection)
    assert "not an index, so it is not replaced" in message
    message = refused("text", "retrieve", collection, collection / "topics.tsv", "-o", "x")
    assert "is not an index" in message
    # The tag is refused before any work: neither the index nor the model is there.
    topics = ("--collection", collection / "corpus.jsonl", "--topics", collection / "topics.tsv")
    for command in (
        ["retrieve", "none", collection / "topics.tsv"],
        ["rerank", "none", run, *topics],
    ):
        message = refused("text", *command, "-o", "x", "--tag", "two words")
        assert "the tag of a run must be one word, found 'two words'" in message
