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
from rankgrad.training.evaluations import Evaluated


@pytest.fixture
def runs(tmp_path, run_folder, lists):
    """Two candidates on two folds with two seeds."""
    for fold in (1, 2):
        data = lists(10, seed=fold)
        for loss in ("mse", "ranknet"):
            for seed in (0, 1):
                path = tmp_path / loss / f"fold{fold}-seed{seed}"
                run_folder(path, data, loss=loss, candidate=loss, fold=fold, seed=seed)
    return tmp_path


def gaps_of(runs):
    page, found = report.build([runs])
    return text_of(page), {c.name: c.gaps for c in found.candidates}, found


def test_without_gaps_none_are_said(runs):
    text, gaps, found = gaps_of(runs)
    assert gaps == {"mse": [], "ranknet": []} and all(found.complete)
    assert "never averaged over" not in text


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
    text, gaps, found = gaps_of(runs)
    assert "another version of rankgrad (format 9, this one reads 1)" in gaps["mse"][0]
    assert gaps["mse"][0] in text
    assert found.complete == (False, True)
    assert np.isnan(found.mean[0]).all() and np.isfinite(found.mean[1]).all()


def test_an_evaluation_of_another_version(runs):
    path = runs / "mse" / "fold1-seed1" / "evaluations" / "test" / "evaluation.json"
    rewrite(path, version=9)
    text, gaps, found = gaps_of(runs)
    assert "another version of rankgrad" in text and found.complete == (False, True)
    assert gaps["ranknet"] == []


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
    text, gaps, _ = gaps_of(runs)
    assert reason in " ".join(gaps["mse"]) and reason in text
    assert gaps["ranknet"] == []


def test_a_fold_that_is_missing(runs, run_folder, lists):
    run_folder(runs / "listnet", lists(10, seed=1), loss="listnet", candidate="listnet", fold=1)
    text, gaps, found = gaps_of(runs)
    (gap,) = gaps["listnet"]
    assert gap.startswith("no result on fold 2") and gap in text
    assert found.complete == (False, True, True)
    assert "gap" in text


def test_a_seed_that_is_missing_on_one_fold(runs):
    (runs / "mse" / "fold2-seed1").rename(runs / ".moved")
    _, gaps, found = gaps_of(runs)
    assert gaps["mse"] == [
        "no result on fold 2 with seed 1: its mean would be of fewer runs, so it is not compared"
    ]
    assert found.complete == (False, True)


def test_a_run_that_was_not_evaluated(runs, run_folder, lists):
    path = runs / "ranknet" / "fold1-seed2"
    run_folder(path, lists(10, seed=1), loss="ranknet", seed=2, evaluate=False, epochs=4)
    _, gaps, found = gaps_of(runs)
    assert "not evaluated on test; 4 of at most 4 epochs are done" in gaps["ranknet"][0]
    assert found.complete == (True, False)
    (path / "best").rmdir()
    assert "stopped before the first epoch" in gaps_of(runs)[1]["ranknet"][0]


def test_a_run_that_failed_in_a_comparison(runs):
    failed = {"fold": 1, "seed": 7, "mean": None, "gap": "the worker was killed"}
    made_since = {"fold": 1, "seed": 0, "mean": None, "gap": "old news"}
    rows = [
        {"candidate": "mse", "runs": [failed, made_since]},
        {"candidate": "hinge", "runs": [failed]},
    ]
    (runs / "comparison.json").write_text(json.dumps({"rows": rows}))
    text, gaps, found = gaps_of(runs)
    assert gaps["mse"][0] == gaps["hinge"][0] == "fold 1, seed 7: the worker was killed"
    assert text.count("the worker was killed") >= 2 and "old news" not in text
    assert found.complete == (False, True, False)
    assert "4 of 5" in text and "0 of 1" in text


def test_other_data_are_not_compared(runs, run_folder, lists):
    run_folder(runs / "other", lists(10, seed=99), loss="hinge", candidate="hinge")
    text, gaps, found = gaps_of(runs)
    assert "evaluated on other data than the rest" in gaps["hinge"][0]
    assert dict(zip(gaps, found.complete, strict=True)) == {
        "mse": True,
        "hinge": False,
        "ranknet": True,
    }
    assert "20 test queries" in text


def test_a_metric_that_only_some_have(runs):
    for fold in (1, 2):
        for seed in (0, 1):
            run = runs / "mse" / f"fold{fold}-seed{seed}"
            found = Evaluated.load(run)
            kept = found.metrics[:2]
            mean = {name: found.mean[name] for name in kept}
            fewer = {**vars(found), "metrics": kept, "mean": mean, "values": found.values[:, :2]}
            Evaluated(**fewer).save(run)
    text, gaps, found = gaps_of(runs)
    assert gaps["mse"] == [
        "ap was not evaluated in all of its runs",
        "rr was not evaluated in all of its runs",
    ]
    assert np.isfinite(found.mean[0, :2]).all() and np.isnan(found.mean[0, 2:]).all()
    assert "gap" in text


def test_two_runs_of_the_same_kind(runs, run_folder, lists):
    data = lists(10, seed=1)
    run_folder(runs / "mse" / "again", data, loss="mse", candidate="mse", fold=1, quality=9.0)
    before = gaps_of(runs / "ranknet")[2].mean[0]
    _, gaps, found = gaps_of(runs)
    assert gaps["mse"] == ["2 runs on fold 1 with seed 0: only the first is counted"]
    np.testing.assert_allclose(found.mean[1], before)


def test_lists_that_a_metric_leaves_out_are_no_gap(tmp_path, run_folder, lists):
    data = lists(40, items=4)
    for loss, quality in (("mse", 1.0), ("ranknet", 2.0)):
        run_folder(tmp_path / loss, data, loss=loss, quality=quality, metrics=("rr(empty=skip)",))
    _, gaps, found = gaps_of(tmp_path)
    kept = ~np.isnan(found.values[0, :, 0])
    assert 0 < kept.sum() < 40 and not any(gaps.values())
    assert found.mean[0, 0] == pytest.approx(found.values[0, kept, 0].mean())
    assert np.isfinite(found.p[:, 0]).sum() == 1


def test_queries_without_documents_are_said(tmp_path, run_folder):
    data = Dataset(np.ones((3, 1)), [1, 0, 2], [0, 2, 2, 3], ["full", "hollow", "short"])
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss, data, loss=loss)
    text, gaps, found = gaps_of(tmp_path)
    assert found.empty == ("hollow",) and not any(gaps.values())
    assert "1 of the queries have no documents, such as hollow" in text


def test_none_of_several_was_evaluated(tmp_path, run_folder, lists):
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss, lists(5), loss=loss, evaluate=False)
    text, _, _ = gaps_of(tmp_path)
    assert "None of the 2 runs can be compared yet" in text and "2 candidates" in text


def test_nothing_was_evaluated(tmp_path, run_folder, lists):
    run_folder(tmp_path / "mse", lists(5), loss="mse", evaluate=False)
    text, gaps, _ = gaps_of(tmp_path)
    assert "The run cannot be compared yet" in text
    assert "rankgrad evaluate RUN DATA --save" in text
    assert "not evaluated on test" in gaps["mse"][0]


def test_a_part_that_was_asked_for(runs):
    page, _ = report.build([runs], part="vali")
    assert "not evaluated on vali (it has test)" in text_of(page)


def failed(place, candidates, folds, reason="fold 2 has no vali split"):
    """A comparison.json that says which runs failed."""
    rows = [
        {"candidate": name, "runs": [{"fold": f, "seed": 0, "gap": reason} for f in folds]}
        for name in candidates
    ]
    (place / "comparison.json").write_text(json.dumps({"rows": rows}))


def test_no_candidate_is_complete(tmp_path, run_folder, lists):
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / loss / "1", lists(5), loss=loss, candidate=loss, fold=1)
    failed(tmp_path, ("mse", "ranknet"), (2,))
    text, gaps, found = gaps_of(tmp_path)
    assert found.complete == (False, False) and found.metrics == ()
    assert "every candidate lacks some of its runs" in text
    assert gaps["mse"][0] == "fold 2, seed 0: fold 2 has no vali split"


def test_every_run_failed(tmp_path):
    failed(tmp_path, ("mse", "ranknet"), (1, 2))
    text, gaps, _ = gaps_of(tmp_path)
    assert "Nothing can be compared: every run failed" in text
    assert "fold 1, seed 0: fold 2 has no vali split" in gaps["ranknet"]


def test_gaps_are_counted_by_runs_not_by_notes(runs):
    failed(runs, ("mse",), (2,))
    (runs / "mse" / "fold2-seed0" / "evaluations").rename(runs / "aside")
    page, found = report.build([runs])
    own = next(c for c in found.candidates if c.name == "mse")
    assert len(own.gaps) == 3  # of its folder, of the comparison, and what follows from it
    assert "<dt>gap</dt><dd>1</dd>" in page
