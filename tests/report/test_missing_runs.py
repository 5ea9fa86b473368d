"""What is missing is said with its reason, and left out of every mean."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest
from pages import text_of
from rewritten import rewrite

from rankgrad import report
from rankgrad.data import Dataset
from rankgrad.training._evaluations import EvaluatedLists


@pytest.fixture
def runs(tmp_path, run_folder, lists):
    """Two losses on two folds with two seeds."""
    for fold in (1, 2):
        data = lists(10, seed=fold)
        for loss in ("mse", "ranknet"):
            for seed in (0, 1):
                path = tmp_path / loss / f"fold{fold}-seed{seed}"
                run_folder(path, data, loss=loss, candidate=loss, fold=fold, seed=seed)
    return tmp_path


def problems_of(runs):
    page, found = report.build([runs])
    return text_of(page), {entry.name: list(entry.problems) for entry in found.entries}, found


def complete(found):
    """Whether each entry is compared, in their order."""
    return tuple(name in found.complete for name in found.names)


def means(found, name):
    return np.array([found.mean(name, metric) for metric in found.metrics])


def test_nothing_is_said_where_nothing_is_missing(runs):
    text, problems, found = problems_of(runs)
    assert problems == {"mse": [], "ranknet": []} and all(complete(found))
    assert "What is missing" not in text


def test_a_page_for_a_device_leaves_the_device(runs, tmp_path_factory):
    null = tmp_path_factory.mktemp("devices") / "null"  # one of our own
    try:
        os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        null.open("wb").close()
    except OSError as error:
        pytest.skip(f"devices cannot be made here: {error}")
    report.write([runs], null)
    assert null.is_char_device() and os.listdir(null.parent) == ["null"]


def test_a_run_of_another_version(runs):
    path = runs / "mse" / "fold1-seed1" / "run.json"
    rewrite(path, version=9)
    text, problems, found = problems_of(runs)
    assert "another version of rankgrad (format version 9, this one reads 1)" in problems["mse"][0]
    assert problems["mse"][0] in text
    assert complete(found) == (False, True)
    assert np.isnan(means(found, "mse")).all() and np.isfinite(means(found, "ranknet")).all()


def test_an_evaluation_of_another_version(runs):
    path = runs / "mse" / "fold1-seed1" / "evaluations" / "test" / "evaluation.json"
    rewrite(path, version=9)
    text, problems, found = problems_of(runs)
    assert "another version of rankgrad" in text and complete(found) == (False, True)
    assert problems["ranknet"] == []


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("run.json", "run.json is damaged"),
        ("settings.toml", "settings.toml is damaged"),
        ("metrics.jsonl", "line 1 of metrics.jsonl is damaged"),
        ("evaluations/test/values.npy", "values.npy is damaged"),
    ],
)
def test_damage(runs, file, reason):
    (runs / "mse" / "fold1-seed1" / file).write_text("}{")
    text, problems, _ = problems_of(runs)
    assert reason in " ".join(problems["mse"]) and reason in text
    assert problems["ranknet"] == []


def test_a_fold_that_is_missing(runs, run_folder, lists):
    run_folder(runs / "listnet", lists(10, seed=1), loss="listnet", candidate="listnet", fold=1)
    text, problems, found = problems_of(runs)
    (problem,) = problems["listnet"]
    assert problem.startswith("no result on fold 2") and problem in text
    assert complete(found) == (False, True, True)
    assert "missing" in text


def test_a_seed_that_is_missing_on_one_fold(runs):
    (runs / "mse" / "fold2-seed1").rename(runs / ".moved")
    _, problems, found = problems_of(runs)
    assert problems["mse"] == [
        "no result on fold 2 with seed 1: its mean would be of fewer runs, so it is not compared"
    ]
    assert complete(found) == (False, True)


def test_a_run_that_was_not_evaluated(runs, run_folder, lists):
    path = runs / "ranknet" / "fold1-seed2"
    run_folder(path, lists(10, seed=1), loss="ranknet", seed=2, evaluate=False, epochs=4)
    _, problems, found = problems_of(runs)
    assert "not evaluated on test; 4 of at most 4 epochs are done" in problems["ranknet"][0]
    assert complete(found) == (True, False)
    (path / "best").rmdir()
    assert "stopped before the first epoch" in problems_of(runs)[1]["ranknet"][0]


def test_a_run_that_failed_in_a_comparison(runs):
    failed = {"fold": 1, "seed": 7, "mean": None, "reason": "the worker was killed"}
    made_since = {"fold": 1, "seed": 0, "mean": None, "reason": "old news"}
    of_earlier_version = {"fold": 1, "seed": 7, "mean": None, "gap": "the worker was killed"}
    rows = [
        {"candidate": "mse", "runs": [failed, made_since]},
        {"candidate": "hinge", "runs": [of_earlier_version]},
    ]
    (runs / "comparison.json").write_text(json.dumps({"rows": rows}))
    text, problems, found = problems_of(runs)
    assert problems["mse"][0] == problems["hinge"][0] == "fold 1, seed 7: the worker was killed"
    assert text.count("the worker was killed") >= 2 and "old news" not in text
    assert complete(found) == (False, True, False)
    assert "4 of 5" in text and "0 of 1" in text


def test_other_data_are_not_compared(runs, run_folder, lists):
    run_folder(runs / "other", lists(10, seed=99), loss="hinge", candidate="hinge")
    text, problems, found = problems_of(runs)
    assert "evaluated on other data than the rest" in problems["hinge"][0]
    assert dict(zip(problems, complete(found), strict=True)) == {
        "mse": True,
        "hinge": False,
        "ranknet": True,
    }
    assert "20 test queries" in text


def test_a_metric_that_only_some_have(runs):
    for fold in (1, 2):
        for seed in (0, 1):
            run = runs / "mse" / f"fold{fold}-seed{seed}"
            found = EvaluatedLists.load(run)
            kept = found.metrics[:2]
            mean = {name: found.mean[name] for name in kept}
            fewer = {**vars(found), "metrics": kept, "mean": mean, "values": found.values[:, :2]}
            EvaluatedLists(**fewer).save(run)
    text, problems, found = problems_of(runs)
    assert problems["mse"] == [
        "ap was not evaluated in all of its runs",
        "rr was not evaluated in all of its runs",
    ]
    assert np.isfinite(means(found, "mse")[:2]).all() and np.isnan(means(found, "mse")[2:]).all()
    assert "missing" in text


def test_two_runs_of_the_same_kind(runs, run_folder, lists):
    data = lists(10, seed=1)
    run_folder(runs / "mse" / "again", data, loss="mse", candidate="mse", fold=1, quality=9.0)
    before = means(problems_of(runs / "ranknet")[2], "ranknet")
    _, problems, found = problems_of(runs)
    assert problems["mse"] == ["2 runs on fold 1 with seed 0: only the first is counted"]
    np.testing.assert_allclose(means(found, "ranknet"), before)


def test_lists_that_a_metric_leaves_out_are_not_missing(tmp_path, run_folder, lists):
    data = lists(40, items=4)
    for loss, quality in (("mse", 1.0), ("ranknet", 2.0)):
        run_folder(tmp_path / loss, data, loss=loss, quality=quality, metrics=("rr(empty=skip)",))
    _, problems, found = problems_of(tmp_path)
    (metric,) = found.metrics
    values = found.values("mse", metric)
    counted = ~np.isnan(values)
    assert 0 < counted.sum() < 40 and not any(problems.values())
    assert found.mean("mse", metric) == pytest.approx(values[counted].mean())
    (difference,) = found.differences(metric)
    assert np.isfinite(difference.corrected)


def test_queries_without_documents_are_said(tmp_path, run_folder):
    data = Dataset(np.ones((3, 1)), [1, 0, 2], [0, 2, 2, 3], ["full", "hollow", "short"])
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss, data, loss=loss)
    text, problems, found = problems_of(tmp_path)
    assert list(found.without_documents.values()) == [["hollow"]] and not any(problems.values())
    assert "1 of the queries have no documents, such as hollow" in text


def test_none_of_several_was_evaluated(tmp_path, run_folder, lists):
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss, lists(5), loss=loss, evaluate=False)
    text, _, _ = problems_of(tmp_path)
    assert "None of the 2 runs can be compared yet" in text and "2 rankers" in text


def test_nothing_was_evaluated(tmp_path, run_folder, lists):
    run_folder(tmp_path / "mse", lists(5), loss="mse", evaluate=False)
    text, problems, _ = problems_of(tmp_path)
    assert "The run cannot be compared yet" in text
    assert "rankgrad evaluate RUN DATA --save" in text
    assert "not evaluated on test" in problems["mse"][0]


def test_an_evaluation_that_lacks_a_file(tmp_path, run_folder, lists):
    run_folder(tmp_path / "mse", lists(5), loss="mse")
    (tmp_path / "mse" / "evaluations" / "test" / "values.npy").unlink()
    _, problems, _ = problems_of(tmp_path)
    assert "evaluations/test/values.npy is damaged (it is missing)" in problems["mse"][0]


def test_a_part_that_was_asked_for(runs):
    page, _ = report.build([runs], part="vali")
    assert "not evaluated on vali (it has test)" in text_of(page)


def failed(place, candidates, folds, reason="fold 2 has no vali split"):
    """A comparison.json that says which runs failed."""
    rows = [
        {"candidate": name, "runs": [{"fold": f, "seed": 0, "reason": reason} for f in folds]}
        for name in candidates
    ]
    (place / "comparison.json").write_text(json.dumps({"rows": rows}))


def test_no_entry_is_complete(tmp_path, run_folder, lists):
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss / "1", lists(5), loss=loss, candidate=loss, fold=1)
    failed(tmp_path, ("mse", "ranknet"), (2,))
    text, problems, found = problems_of(tmp_path)
    assert complete(found) == (False, False) and found.metrics == ()
    assert "every ranker lacks some of its runs" in text
    assert problems["mse"][0] == "fold 2, seed 0: fold 2 has no vali split"


def test_every_run_failed(tmp_path):
    failed(tmp_path, ("mse", "ranknet"), (1, 2))
    text, problems, _ = problems_of(tmp_path)
    assert "Nothing can be compared: every run failed" in text
    assert "fold 1, seed 0: fold 2 has no vali split" in problems["ranknet"]


def test_missing_runs_are_counted_not_notes(runs):
    failed(runs, ("mse",), (2,))
    (runs / "mse" / "fold2-seed0" / "evaluations").rename(runs / "aside")
    page, found = report.build([runs])
    own = found.entry("mse")
    assert len(own.problems) == 3  # of its folder, of the comparison, and what follows from it
    assert "<dt>missing run</dt><dd>1</dd>" in page


def test_a_metric_that_is_undefined_on_all_lists(tmp_path, run_folder):
    data = Dataset(np.ones((4, 1)), [0, 0, 0, 0], [0, 2, 4], ["1", "2"])
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss, data, loss=loss, metrics=("rr", "ap(empty=skip)"))
    text, problems, _ = problems_of(tmp_path)
    assert "undefined" in text and "None is best" not in text and not any(problems.values())
    page, _ = report.build([tmp_path], metric="ap(empty=skip)")
    assert "There is nothing to compare: no ranker has a mean of ap(empty=skip)." in text_of(page)


def test_another_part_than_test_is_named(tmp_path, run_folder, lists):
    for loss in ("mse", "ranknet"):
        run = run_folder(tmp_path / loss, lists(9), loss=loss)
        (run / "evaluations" / "test").rename(run / "evaluations" / "vali")
    text = text_of(report.build([tmp_path], part="vali")[0])
    assert "mean over the vali lists; vali lists: 9" in text and "over 9 vali lists" in text
    assert "test lists" not in text


def test_seeds_are_counted_for_the_rankers_that_are_compared(tmp_path, run_folder, lists):
    for loss, seed in (("mse", 0), ("mse", 1), ("ranknet", 0), ("softmax", 7)):
        path = tmp_path / f"{loss}{seed}"
        run_folder(path, lists(9), loss=loss, seed=seed, evaluate=loss != "softmax")
    assert "means over 1 fold × 1 to 2 seeds of" in problems_of(tmp_path)[0]
