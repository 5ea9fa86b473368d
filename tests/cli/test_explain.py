"""``rankgrad explain``, and what it keeps in the report."""

from __future__ import annotations

import json
import re
import shutil

import pytest


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_importance_as_a_table_json_and_files(rankgrad, in_json, run, folder, tmp_path):
    given = ("explain", run, folder, "--repeats", 1, "--device", "cpu")
    shown = rankgrad(*given, "--top", 3, "-o", tmp_path / "out").stdout
    found = in_json(*given)
    assert found["explained_queries"] == []  # nothing would show their pairs
    assert [row["feature"] for row in found["importance"][:3]] == re.findall(r"│ +(\d+) +│", shown)
    assert "13 more features" in shown
    assert "95% interval" in shown
    assert (found["lists"], found["metric"]) == (6, "ndcg@10")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"importance.csv", "importance.svg", "pairs.csv", "explanation.json"}


def test_a_metric_that_is_undefined_on_all_lists(rankgrad, run, folder, tmp_path):
    labeled = (folder / "test.txt").read_text()
    (tmp_path / "zero.txt").write_text(re.sub(r"(?m)^\d+", "0", labeled))
    metric = ("-m", "ndcg@10(empty=skip)", "--device", "cpu")
    for command in ("explain", "evaluate"):
        shown = rankgrad(command, run, tmp_path / "zero.txt", *metric).stdout
        assert "undefined" in shown and "nan" not in shown and "0.00" not in shown


def test_a_pair_adds_up(rankgrad, in_json, run, folder):
    given = ("explain", run, folder, "--device", "cpu")
    qid = in_json("evaluate", run, folder, "--per-list")["per_list"]["qid"][0]
    found = in_json(*given, "--query", qid, "--above", 2, "--below", 1)
    total = sum(row["attribution"] for row in found["attributions"])
    assert total == pytest.approx(found["score_difference"], abs=1e-3)
    scores = found["scores"]
    assert found["score_difference"] == pytest.approx(scores[0] - scores[1], abs=1e-5)
    words = {
        order: rankgrad(*given, "--query", qid, "--above", a, "--below", b).stdout
        for order, a, b in (("one", 2, 1), ("other", 1, 2))
    }
    assert [") above item" in text for text in words.values()].count(True) == 1
    assert [") below item" in text for text in words.values()].count(True) == 1
    shown = rankgrad(*given, "--query", qid, "--top", 2).stdout
    assert f"query {qid}: item" in shown
    assert "14 others" in shown


def test_the_inspector_shows_saved_explanations(rankgrad, run, folder, tmp_path):
    keep = ("explain", run, folder, "--repeats", 1, "--queries", 2, "--save", "--device", "cpu")
    assert f"rankgrad evaluate {run} {folder} --save" in rankgrad(*keep).stderr  # not shown without
    rankgrad("evaluate", run, folder, "--save", "--device", "cpu")
    assert "rankgrad evaluate" not in rankgrad(*keep).stderr
    rankgrad("report", run, "-o", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (queries,) = data["lists"]["explained"]["queries"].values()
    assert len(queries) == 2
    assert data["lists"]["explained"]["problems"] == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--above", 1), "give --query too"),
        (("--query", "none such"), "there is no query"),
        (("--query", "x", "--above", 1), "give both --above and --below"),
        (("--query", "x", "--save"), "--query only prints"),
        (("--query", "x", "--repeats", 9), "--repeats is an option of importance, and --query"),
        (("-m", "ndgc"), "ndgc"),
    ],
)
def test_wrong_use(refused, trained, folder, more, message):
    assert message in refused("explain", trained, folder, "--device", "cpu", *more)


def test_what_is_there_is_not_replaced(refused, trained, folder, tmp_path):
    assert "is there already" in refused("explain", trained, folder, "-o", tmp_path)
    assert "is not a run folder" in refused("explain", trained / "best", folder, "--save")
