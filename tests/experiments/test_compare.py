"""Comparisons: runs, resumption, missing runs, significance."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments.dying import Dying
from learnable import lists
from rewritten import rewrite
from scipy.stats import ttest_rel

from rankgrad import _files
from rankgrad.data import Dataset, store
from rankgrad.experiments import _data_checksums, _jobs, compare, plans, tuning
from rankgrad.experiments._grid_search import GridSearchEntry
from rankgrad.experiments.compare import NetworkEntry, Plan, Significance, run
from rankgrad.metrics import evaluate
from rankgrad.report._sections import footnotes, headline
from rankgrad.results import comparison
from rankgrad.results._comparison_tables import differences_table, table, tuned_table
from rankgrad.results._groups import RunGroup
from rankgrad.results.runs import Run
from rankgrad.training import RunFolder, Settings
from rankgrad.training._evaluations import EvaluatedLists

TESTS = Path(__file__).resolve().parents[1]
BAD = NetworkEntry.of("softmax", name="bad", learning_rate=1e30)


def same(one, other):
    """Whether two comparisons found the same to the last bit."""
    assert one.evaluated.keys() == other.evaluated.keys()
    for key, found in one.evaluated.items():
        assert np.array_equal(found.scores, other.evaluated[key].scores), key
        assert np.array_equal(found.values, other.evaluated[key].values, equal_nan=True), key
    return True


def test_every_combination_is_a_run_folder(plan, tmp_path):
    found = run(plan(seeds=(0, 3)), tmp_path / "out", workers=0)
    assert not found.missing
    assert len(found.evaluated) == 8
    place = tmp_path / "out" / "runs" / "softmax" / "fold2-seed3"
    kept = EvaluatedLists.load(place)
    assert kept.labels_of_run == {
        "candidate": "softmax",
        "loss": "softmax",
        "model": "mlp(hidden=[8])",
        "fold": 2,
        "seed": 3,
    }
    settings = RunFolder.open(place).settings
    assert (settings.loss, settings.seed, settings.epochs) == ("softmax", 3, 2)
    test = store.open(Path(found.plan["data"]) / "Fold2" / "test")
    scores = RunFolder.open(place).best().predict(test.features, test.offsets)
    expected = evaluate(
        scores, np.array(test.labels), offsets=np.array(test.offsets), metrics="ndcg@5"
    )
    assert found.metric_values("softmax", "ndcg@5").means[1, 1] == pytest.approx(expected["ndcg@5"])


def test_means_are_over_runs_and_tests_over_lists(plan, tmp_path):
    found = run(plan(seeds=(0, 1)), tmp_path / "out", workers=0)
    means = found.metric_values("mse", "ap").means
    assert means.shape == (2, 2)
    assert found.mean("mse", "ap") == pytest.approx(means.mean())
    values = found.values("mse", "ap")
    by_hand = [
        np.mean([found.evaluated["mse", fold, seed].of_metric("ap") for seed in (0, 1)], axis=0)
        for fold in (1, 2)
    ]
    assert values == pytest.approx(np.concatenate(by_hand))
    assert len(found.queries) == len(values) == 24
    assert (found.queries[12][0].number, found.queries[12][1]) == (2, "0")
    assert found.metric_values("mse", "ap").standard_error == pytest.approx(
        np.std(means.mean(1), ddof=1) / np.sqrt(2)
    )


def test_differences_are_paired_tests_against_the_best_or_a_baseline(plan, tmp_path):
    entries = tuple(map(NetworkEntry.of, ("mse", "softmax", "hinge")))
    found = run(plan(entries=entries), tmp_path / "out", workers=0)
    best = max(found.names, key=lambda name: found.mean(name, "ndcg@5"))
    assert found.best("ndcg@5") == best
    differences = found.tested(Significance(correction="bonferroni")).differences("ndcg@5")
    assert {d.entry for d in differences} == set(found.names) - {best}
    for d in differences:
        mine, theirs = found.values(d.entry, "ndcg@5"), found.values(best, "ndcg@5")
        assert d.p_value == pytest.approx(ttest_rel(mine, theirs).pvalue)
        assert d.corrected == pytest.approx(min(1, 2 * d.p_value))
        assert d.difference == pytest.approx((mine - theirs).mean())
        assert d.interval.low <= d.difference <= d.interval.high
    one_sided = Significance(sides=1, correction="none")
    for d in found.tested(one_sided, "mse").differences("ap"):
        mine, theirs = found.values(d.entry, "ap"), found.values("mse", "ap")
        assert d.p_value == pytest.approx(ttest_rel(mine, theirs, alternative="greater").pvalue)
        assert d.better == (mine.mean() > theirs.mean())


def of_runs(plan, evaluated):
    """A comparison of evaluations by entry, fold and seed."""
    groups = [
        RunGroup(
            entry.name,
            tuple(
                Run(Path("out"), {"labels": {"fold": fold, "seed": seed}}, evaluated=own)
                for (name, fold, seed), own in evaluated.items()
                if name == entry.name
            ),
        )
        for entry in plan.entries
    ]
    return comparison.compare(
        groups, metrics=plan.metrics, notes=plan.notes(), plan=plan.metadata()
    )


def made(plan, values):
    """A comparison whose lists have these values of ndcg@5, by entry."""
    data = lists(len(next(iter(values.values()))), 0)
    base = EvaluatedLists.of(np.zeros(data.n_items), data, plan.metrics)
    evaluated = {
        (name, None, 0): replace(
            base,
            values=np.stack([np.asarray(column), base.values[:, 1]], 1),
            mean={"ndcg@5": float(np.mean(column)), "ap": 0.5},
        )
        for name, column in values.items()
    }
    return of_runs(plan, evaluated)


def test_daggers_are_those_of_the_smoothi_paper(plan):
    random = np.random.default_rng(0)
    base = random.uniform(0.2, 0.6, 40)
    values = {
        "low": base - 0.1 + 0.02 * random.normal(size=40),
        "near": base + 0.001 * random.normal(size=40),
        "high": base,
    }
    entries = [NetworkEntry("low"), NetworkEntry("near"), NetworkEntry("high")]
    found = made(plan(entries=entries, folds=(None,)), values)
    best = found.best("ndcg@5")
    marks = {row[0].text: (row[1].mark, row[1].bold) for row in table(found).rows}
    assert marks["low"] == ("†", False)
    assert marks[best] == ("", True)
    legend = table(found).notes[0]
    assert "† significantly worse than the best one (paired t-test, two-sided, Bonf" in legend
    against = table(found.tested(Significance("randomization", "holm", 1), "low"))
    marks = {row[0].text: row[1].mark for row in against.rows}
    assert marks == {"low": "", "near": "‡", "high": "‡"}
    assert "‡ significantly better than low (paired randomization test, one" in against.notes[0]


def test_an_entry_may_be_better_than_the_best_where_folds_are_of_unequal_sizes(plan):
    large, small = lists(60, 1), lists(5, 2)
    evaluated = {}
    for name, fold, data, sign in (
        ("small", 1, large, 1),
        ("small", 2, small, 1),
        ("large", 1, large, 1),
        ("large", 2, small, -1),
    ):
        noise = 2.0 * np.random.default_rng(0).normal(size=data.n_items)
        noise = noise if (name, fold) == ("small", 1) else 0.0
        scores = sign * (data.labels + noise)
        evaluated[name, fold, 0] = EvaluatedLists.of(scores, data, ["ndcg@5"])
    entries = [NetworkEntry("large"), NetworkEntry("small")]
    found = of_runs(plan(entries=entries, metrics=("ndcg@5",)), evaluated)
    assert found.best("ndcg@5") == "small"
    assert found.difference("large", "ndcg@5").better
    made_table = table(found)
    assert made_table.rows[0][1].mark == "‡"
    assert "‡ better over the lists of all folds together" in made_table.notes[0]
    assert headline(found).endswith("Its lead over large is not significant.")
    assert "‡ significantly better" in footnotes(found, "test")


def test_metrics_where_lower_is_better(plan):
    random = np.random.default_rng(0)
    data = lists(30, 0)
    good = data.labels + random.normal(size=data.n_items)
    evaluated = {
        ("good", None, 0): EvaluatedLists.of(good, data, ["arp"]),
        ("bad", None, 0): EvaluatedLists.of(-good, data, ["arp"]),
    }
    entries = [NetworkEntry("bad"), NetworkEntry("good")]
    small = plan(entries=entries, folds=(None,), metrics=("arp",))
    found = of_runs(small, evaluated)
    assert found.best("arp") == "good"
    (difference,) = found.differences("arp")
    assert difference.difference > 0
    assert not difference.better
    assert difference.significant
    assert table(found).rows[0][1].mark == "†"


def test_the_baseline_is_checked_before_training_and_saved_by_its_name(plan, tmp_path):
    small = plan(folds=(1,))
    with pytest.raises(ValueError, match="there is no ranker 'mes'"):
        run(small, tmp_path / "out", workers=0, baseline="mes")
    assert not (tmp_path / "out").exists()
    assert run(small, tmp_path / "out", workers=0, baseline="MSE").baseline == "mse"
    saved = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert saved["test"]["baseline"] == "mse"  # where the report finds it


def test_finished_runs_are_not_repeated(plan, tmp_path, monkeypatch):
    small = plan(folds=(1,))
    first = run(small, tmp_path / "out", workers=0)
    monkeypatch.setattr(_jobs, "perform", None)  # whatever would be run would fail
    assert same(run(small, tmp_path / "out", workers=0), first)


def test_entries_seeds_and_folds_can_be_added(plan, tmp_path):
    small = plan(folds=(1,))
    run(small, tmp_path / "out", workers=0)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("*.npy")}
    more = replace(
        small, folds=(1, 2), seeds=(0, 1), entries=(*small.entries, NetworkEntry.of("listnet"))
    )
    found = run(more, tmp_path / "out", workers=0)
    assert len(found.evaluated) == 12
    assert {p: p.stat().st_mtime_ns for p in before} == before
    fewer = run(small, tmp_path / "out", workers=0)
    assert len(fewer.evaluated) == 2


def test_other_metrics_need_no_training_and_no_prediction(plan, tmp_path, monkeypatch):
    small = plan(folds=(1,))
    first = run(small, tmp_path / "out", workers=0)
    monkeypatch.setattr("rankgrad.training.trainer.Trainer._epoch", None)
    monkeypatch.setattr("rankgrad.training.FittedRanker.predict", None)
    other = replace(small, metrics=("rr", "ndcg@5"))
    found = run(other, tmp_path / "out", workers=0)
    assert found.mean("mse", "ndcg@5") == first.mean("mse", "ndcg@5")
    assert found.mean("mse", "rr") > 0


def test_another_plan_in_the_same_folder_is_refused(plan, tmp_path):
    run(plan(folds=(1,)), tmp_path / "out", workers=0)
    other = Settings(**{**plan().settings.model_dump(), "learning_rate": 0.5})
    with pytest.raises(ValueError, match=r"mse: learning_rate 0\.5, not 0\.003"):
        run(plan(folds=(1,), settings=other), tmp_path / "out", workers=0)
    with pytest.raises(ValueError, match="tune: 3, not None"):
        compare.check(plan(folds=(1,), tune=3), tmp_path / "out")  # before data are read
    shutil.rmtree(tmp_path / "out" / "runs")  # as if all had failed, and all trials of tuning
    failed = {"parameters": {}, "value": None, "reason": "labels"}
    log = tmp_path / "out" / "tuning" / "mse" / "fold1.json"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"metric": "ap", "space": {}, "trials": [failed], "chosen": None}))
    assert run(plan(folds=(1,), settings=other), tmp_path / "out", workers=0).evaluated


def other_labels(part):
    """Other data of the same queries in the place of a store."""
    data = store.open(part)
    labels = np.array(data.labels)
    labels[0] = 1 - min(labels[0], 1)
    other = replace(data, features=np.array(data.features), labels=labels)
    store.write(other, part, overwrite=True)


@pytest.mark.parametrize("split", ["train", "vali", "test"])
def test_other_data_in_the_same_folder_are_refused(plan, folds, tmp_path, split):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(folds, data)
    run(plan(data=data), out, workers=0)
    before = {p: p.read_bytes() for p in out.rglob("*.json")}
    other_labels(data / "Fold2" / split)
    words = f"holds what was made from other data; fold 2 {split} .*folder .-o., or remove"
    with pytest.raises(ValueError, match=words):
        run(plan(data=data), out, workers=0)
    assert {p: p.read_bytes() for p in out.rglob("*.json")} == before
    run(plan(data=data, folds=(1,)), out, workers=0)  # that fold is the same
    with pytest.raises(ValueError, match=f"fold 2 {split}"):
        run(plan(data=data), out, workers=0)


def test_the_same_data_in_another_place_are_the_same(plan, folds, tmp_path, monkeypatch):
    first = run(plan(), tmp_path / "out", workers=0)
    shutil.copytree(folds, tmp_path / "moved")
    monkeypatch.setattr(_jobs, "perform", None)  # whatever would be run would fail
    assert same(run(plan(data=tmp_path / "moved"), tmp_path / "out", workers=0), first)
    assert _files.read_json(tmp_path / "out" / "plan.json")["data"] == str(tmp_path / "moved")
    monkeypatch.setattr(_data_checksums, "load_splits", None)  # nor are data read again
    assert same(run(plan(data=tmp_path / "moved"), tmp_path / "out", workers=0), first)


def test_a_plan_without_checksums_takes_those_of_its_runs(plan, folds, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(folds, data)
    run(plan(data=data), out, workers=0)
    metadata = _files.read_json(out / "plan.json")
    recorded = metadata.pop("checksums")
    _files.write(out / "plan.json", json.dumps(metadata))
    run(plan(data=data), out, workers=0)
    assert _files.read_json(out / "plan.json")["checksums"] == recorded
    _files.write(out / "plan.json", json.dumps(metadata))
    other_labels(data / "Fold1" / "test")
    with pytest.raises(ValueError, match="from other data; fold 1 test"):
        run(plan(data=data), out, workers=0)


def test_graphs_make_no_other_comparison():
    ours, theirs = (
        NetworkEntry.of("softmax").metadata(Settings(graphs=on)) for on in (True, False)
    )
    assert ours == theirs


def test_a_folder_of_something_else_is_left_alone(plan, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no comparison"):
        run(plan(), tmp_path, workers=0)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_in_use_is_refused(plan, tmp_path):
    run(plan(folds=(1,)), tmp_path / "out", workers=0)
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is comparing"):
            run(plan(folds=(1,)), tmp_path / "out", workers=0)


def test_a_failed_run_is_missing_with_its_reason(plan, tmp_path):
    small = plan(entries=(NetworkEntry.of("mse"), BAD, NetworkEntry.of("softmax")))
    events = []
    found = run(small, tmp_path / "out", workers=0, on_change=lambda p: events.append(p))
    assert set(found.missing) == {("bad", 1, 0), ("bad", 2, 0)}
    assert all("training diverged in epoch 1" in reason for reason in found.missing.values())
    assert np.isnan(found.mean("bad", "ap"))
    assert [d.entry for d in found.differences("ap")] != []
    assert "bad" not in {d.entry for d in found.differences("ap")}
    shown = table(found)
    assert shown.rows[1][1].text == "missing (0/2)"
    assert any(
        note.startswith("missing run: bad, fold 1 seed 0; fold 2 seed 0: training diverged")
        for note in shown.notes
    )
    with pytest.raises(ValueError, match="bad, fold 1, seed 0 is missing: training diverged"):
        found.values("bad", "ap")
    metadata = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert metadata["rows"][1]["mean"] == {"ndcg@5": None, "ap": None}
    assert "diverged" in metadata["rows"][1]["runs"][0]["reason"]
    assert events[-1].rows[1].failed == 2
    assert events[-1].rows[0].done == 2
    assert events[-1].rows[0].means["ap"] == pytest.approx(found.mean("mse", "ap"))


def test_a_missing_seed_is_not_averaged_away(plan, tmp_path):
    small = plan(folds=(1,), seeds=(0, 1))
    run(small, tmp_path / "out", workers=0)
    shutil.rmtree(tmp_path / "out" / "runs" / "mse" / "fold1-seed1" / "evaluations")
    found = compare.load(small, tmp_path / "out")
    reason = "not evaluated on test; 2 of at most 2 epochs are done"
    assert found.missing == {("mse", 1, 1): reason}
    assert np.isnan(found.mean("mse", "ap"))
    assert np.isfinite(found.evaluated["mse", 1, 0].mean["ap"])
    assert table(found).rows[0][1].text == "missing (1/2)"
    assert found.best("ap") == "softmax"


def test_an_evaluation_of_another_version_is_missing_until_it_is_made_again(plan, tmp_path):
    small = plan(folds=(1,))
    first = run(small, tmp_path / "out", workers=0)
    path = tmp_path / "out" / "runs" / "mse" / "fold1-seed0" / "evaluations" / "test"
    rewrite(path / "evaluation.json", version=99)
    found = compare.load(small, tmp_path / "out")
    assert "another version of rankgrad (format version 99" in found.missing["mse", 1, 0]
    anew = run(small, tmp_path / "out", workers=0)
    assert same(anew, first)
    [line] = [line for line in table(anew).notes if line.startswith("evaluated again: ")]
    assert line.startswith("evaluated again: mse, fold 1, seed 0, since ")
    assert "format version 99" in line
    assert not run(small, tmp_path / "out", workers=0).reevaluated


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_run_of_another_version_is_missing(plan, tmp_path, evaluated):
    small = plan(folds=(1,))
    run(small, tmp_path / "out", workers=0)
    path = tmp_path / "out" / "runs" / "mse" / "fold1-seed0"
    rewrite(path / "run.json", version=99)
    if not evaluated:
        shutil.rmtree(path / "evaluations")
    for found in (run(small, tmp_path / "out", workers=0), compare.load(small, tmp_path / "out")):
        assert list(found.missing) == [("mse", 1, 0)] and not found.reevaluated
        assert "(format version 99, this one reads 1): remove it" in found.missing["mse", 1, 0]


def test_a_damaged_run_is_missing(plan, tmp_path):
    small = plan(folds=(1,))
    run(small, tmp_path / "out", workers=0)
    place = tmp_path / "out" / "runs" / "mse" / "fold1-seed0"
    shutil.rmtree(place / "evaluations")
    (place / "run.json").write_text("{")
    found = run(small, tmp_path / "out", workers=0)
    assert "run.json is damaged" in found.missing["mse", 1, 0]


def test_a_missing_split_is_a_missing_run_or_an_error(plan, folds, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folds, data)
    shutil.rmtree(data / "Fold2" / "vali")
    found = run(plan(data=data), tmp_path / "out", workers=0)
    assert set(found.missing) == {("mse", 2, 0), ("softmax", 2, 0)}
    assert "has no vali split" in found.missing["mse", 2, 0]
    shutil.rmtree(data / "Fold1" / "test")
    with pytest.raises(ValueError, match=r"fold 1 of .* has no test split"):
        run(plan(data=data), tmp_path / "other", workers=0)
    assert not (tmp_path / "other").exists()


def test_unequal_sets_of_queries_are_an_error(plan, folds, tmp_path):
    small = plan(folds=(1,))
    run(small, tmp_path / "out", workers=0)
    place = tmp_path / "out" / "runs" / "softmax" / "fold1-seed0"
    test = store.open(folds / "Fold1" / "test")
    fewer = test.select(np.arange(len(test) - 1))
    EvaluatedLists.of(np.zeros(fewer.n_items), fewer, small.metrics).save(place)
    with pytest.raises(ValueError, match="12 and 11 of them; only mse, fold 1, seed 0 has '11'"):
        compare.load(small, tmp_path / "out")


def test_other_data_of_the_same_queries_are_an_error(plan, folds, tmp_path):
    small = plan(folds=(1,))
    run(small, tmp_path / "out", workers=0)
    place = tmp_path / "out" / "runs" / "softmax" / "fold1-seed0"
    test = store.open(folds / "Fold1" / "test")
    other = replace(test, labels=np.zeros(test.n_items))
    EvaluatedLists.of(np.zeros(test.n_items), other, small.metrics).save(place)
    with pytest.raises(ValueError, match="evaluated on other data, though of the same queries"):
        compare.load(small, tmp_path / "out")


def test_queries_without_documents_are_said_under_the_table(plan, folds, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folds / "Fold1", data)
    test = store.open(data / "test")
    ends = np.append(test.offsets, test.offsets[-1])
    more = Dataset(test.features, test.labels, ends, [*test.qids, "lonely"])
    store.write(more, data / "test", overwrite=True)
    found = run(plan(data=data, folds=(None,)), tmp_path / "out", workers=0)
    assert any("1 test queries have no documents, such as 'lonely'" in p for p in found.problems())
    assert (tmp_path / "out" / "runs" / "mse" / "seed0").is_dir()


def test_conventions_are_under_the_table(plan, tmp_path):
    small = plan(settings=Settings(**{**plan().settings.model_dump(), "list_size": 6}))
    notes = table(run(small, tmp_path / "out", workers=0)).notes
    for words in (
        "means over 2 folds × 1 seed",
        "lists without relevant items",
        "tied scores: average",
        "gain: 2^y - 1",
        "a cutoff beyond a list's end",
        "training lists are cut to 6 items",
    ):
        assert any(words in note for note in notes), words


def test_counts_and_gains_are_those_of_the_table(plan):
    metrics = ("ndcg@5", "ndcg@5(empty=skip)", "ndcg@5(gain=linear)", "rr")
    found, without = {}, []
    for fold, number in ((1, 12), (2, 9)):
        data = lists(number, fold)
        labels = np.array(data.labels)
        labels[: data.offsets[fold]] = 0  # so many lists of the fold at least
        for name in ("mse", "softmax"):
            scores = np.random.default_rng(len(name)).normal(size=data.n_items)
            data = replace(data, labels=labels)
            found[name, fold, 0] = EvaluatedLists.of(scores, data, metrics)
        without.append(sum(not part.any() for part in np.split(labels, data.offsets[1:-1])))
    made = of_runs(plan(metrics=metrics), found)
    notes, counts = table(made).notes, f"({without[0]}, {without[1]})"
    assert without[0] != without[1]
    others = "ndcg@5, ndcg@5(gain=linear), rr"
    assert f"lists without relevant items {counts} count 0 for {others}" in notes
    assert f"lists without relevant items {counts} are left out for ndcg@5(empty=skip)" in notes
    gains = "2^y - 1 for ndcg@5, ndcg@5(empty=skip); y for ndcg@5(gain=linear)"
    assert f"gain: {gains}" in notes
    [note] = differences_table(made, "ndcg@5(empty=skip)").notes
    assert note.startswith(f"over {21 - sum(without)} of 21 test lists; ")
    [note] = differences_table(made, "ndcg@5").notes
    assert note.startswith("over 21 test lists; ")


def test_how_much_was_searched_is_under_the_table(plan):
    both = (NetworkEntry.of("mse"), compare.TreeEntry("LightGBM"))
    made = of_runs(plan(entries=both), {})
    assert any(
        line.startswith("LightGBM: the best of 24 combinations of values by ndcg@5 on validation")
        and "the losses as they are given, without a search" in line
        for line in made.conventions
    )
    grid = GridSearchEntry("Grid", ({"loss": "mse"}, {"loss": "softmax"}))
    notes = plan(entries=(grid, compare.TreeEntry("LightGBM"))).notes()
    assert any(line.startswith("Grid: the best of 2 combinations") for line in notes)
    assert not any("without a search" in line for line in notes)
    tuned = of_runs(plan(entries=both, tune=7), {}).conventions
    assert not any("combinations" in line for line in tuned)
    assert any("7 trials for each ranker and fold" in line for line in tuned)


def test_every_kind_of_entry_is_checked_against_its_model(plan, tmp_path):
    trees = {"model": "lightgbm", "batch_size": 8}
    for entry in (GridSearchEntry("Grid", ({}, trees)), NetworkEntry("Grid", trees)):
        with pytest.raises(ValueError, match="ranker 'Grid': lightgbm is trained without an opt"):
            compare.check(plan(entries=(compare.TreeEntry("X"), entry)), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"entries": ()}, "no entries"),
        ({"entries": [NetworkEntry.of("mse"), NetworkEntry.of("mse")]}, "leave one of them out"),
        (
            {"entries": [NetworkEntry.of("mse"), NetworkEntry.of("mse", name="MSE")]},
            "would both be",
        ),
        ({"entries": [NetworkEntry.of("mse", seed=3)]}, "the plan has the seeds"),
        ({"entries": [NetworkEntry.of("mse", devices=2)]}, "each run has one"),
        ({"entries": [NetworkEntry.of("msee")]}, "ranker 'msee': loss: unknown loss 'msee'"),
        ({"entries": [NetworkEntry(" ")]}, "needs a name"),
        ({"seeds": (1, 1)}, "seed 1 is given twice"),
        ({"metrics": "ndcg@5"}, "metrics are a list of specs; found 'ndcg@5'"),
        ({"metrics": ("ndgc",)}, "Did you mean 'ndcg'"),
        ({"tune": 0}, "at least 1"),
        ({"tune": 1.5}, "tune must be a whole number"),
        ({"seeds": (0, -1)}, "each seed must be a whole number of at least 0, found -1"),
        ({"seeds": (0.5,)}, "each seed must be a whole number"),
        ({"folds": ("1",)}, "each fold must be a whole number"),
    ],
)
def test_plans_that_make_no_sense(plan, options, words):
    with pytest.raises(ValueError, match=words):
        plan(**options)


def test_numbers_of_a_plan_may_be_numpys(plan):
    numbers = plan(seeds=np.arange(2), folds=np.array([1]), tune=np.int64(3)).metadata()
    assert json.loads(json.dumps(numbers))["seeds"] == [0, 1]


def test_names_that_differ_in_case_alone(plan):
    both = plan(entries=[NetworkEntry.of("mse", name=name) for name in ("a b", "A B", "c")])
    assert [both.entry(name).name for name in ("a b", "A B", "C")] == ["a b", "A B", "c"]
    with pytest.raises(ValueError, match="no ranker 'A b'"):
        both.entry("A b")


def test_names_of_folders_are_safe_and_last():
    names = ["mse", "neural_ndcg@10(temperature=0.5)", "../up", "a/b", "a b", "é" * 200, ".x"]
    places = [plans.folder_name(name) for name in names]
    assert len(set(places)) == len(names)
    for place in places:
        assert set(place) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.=+-")
        assert not place.startswith(".")
        assert len(place) < 100


@pytest.mark.slow
def test_processes_give_what_one_process_gives_and_a_killed_worker_is_missing(plan, tmp_path):
    both = (NetworkEntry.of("mse"), Dying("dying", {"loss": "mse"}), NetworkEntry.of("softmax"))
    found = run(plan(entries=both), tmp_path / "out", workers=2)
    assert set(found.missing) == {("dying", 1, 0), ("dying", 2, 0)}
    assert "worker process was killed by signal 9" in found.missing["dying", 1, 0]
    assert found.missing["dying", 2, 0] == "KeyError: 'lost'"
    assert same(found, run(plan(), tmp_path / "alone", workers=0))


LONG = ("--epochs", "12", "--patience", "none", "--models", "mlp(hidden=[8])", "--batch-size", "8")


def start(folds, folder, workers):
    """A real `rankgrad compare`, of which one run is done and another is started."""
    command = [sys.executable, "-m", "rankgrad", "compare", str(folds), "-o", str(folder)]
    command += ["--losses", "mse, softmax", "-m", "ndcg@5", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, *LONG, "--workers", str(workers)],
        env=os.environ | {"PYTHONPATH": str(TESTS.parent / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        runs = list((folder / "runs").glob("*/*"))
        done = [r for r in runs if (r / "evaluations" / "test").exists()]
        half = [r for r in runs if (r / "last").exists() and r not in done]
        if done and half:
            return process
        time.sleep(0.01)
    process.kill()
    raise AssertionError(process.communicate())


def expected(folds):
    settings = Settings(
        model="mlp(hidden=[8])",
        epochs=12,
        patience=None,
        batch_size=8,
        metric="ndcg@5",
        metrics=("ndcg@5",),
        device="cpu",
    )
    entries = [NetworkEntry.of(loss, settings.model, name=loss) for loss in ("mse", "softmax")]
    return Plan(folds, entries, folds=(1, 2), metrics=("ndcg@5",), settings=settings)


@pytest.mark.slow
def test_killed_and_run_again_it_finds_the_same(folds, tmp_path):
    process = start(folds, tmp_path / "killed", workers=1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    small = expected(folds)
    assert compare.load(small, tmp_path / "killed").missing
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "killed").rglob("values.npy")}
    again = run(small, tmp_path / "killed", workers=0)
    assert not again.missing
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    assert same(again, run(small, tmp_path / "whole", workers=0))


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(folds, tmp_path):
    process = start(folds, tmp_path / "out", workers=2)  # all of them must save
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    last = err.splitlines()[-1]
    assert last.startswith("rankgrad: interrupted; what is done is in")
    assert "To go on: rankgrad compare" in last
    assert "Traceback" not in err
    small = expected(folds)
    assert compare.load(small, tmp_path / "out").missing
    assert not run(small, tmp_path / "out", workers=0).missing


def test_tuning_sees_no_test_data_and_gives_each_the_same_budget(plan, folds, tmp_path):
    small = plan(folds=(1,), tune=3, entries=[NetworkEntry.of("mse"), NetworkEntry.of("ranknet")])
    found = run(small, tmp_path / "out", workers=0)
    assert not found.missing
    for name, options in (("mse", {"learning_rate"}), ("ranknet", {"learning_rate", "sigma"})):
        trial_log = json.loads((tmp_path / "out" / "tuning" / name / "fold1.json").read_text())
        assert len(trial_log["trials"]) == 3
        assert set(trial_log["trials"][0]["parameters"]) == options
        assert trial_log["trials"][0]["parameters"]["learning_rate"] == 0.003
        best = max(trial_log["trials"], key=lambda trial: trial["value"])
        chosen = found.chosen[name, 1]
        assert chosen["learning_rate"] == best["parameters"]["learning_rate"]
        settings = RunFolder.open(tmp_path / "out" / "runs" / name / "fold1-seed0").settings
        assert settings.learning_rate == chosen["learning_rate"]
        assert settings.loss == chosen["loss"]
    assert any("3 trials for each ranker" in note for note in table(found).notes)
    assert [row[0].text for row in tuned_table(found).rows] == ["mse", "ranknet"]
    seen = {}

    class Watching(NetworkEntry):
        def tune(self, task, data, on_progress):
            seen.update(data)
            tuning.tune_loss(self, task, data, on_progress)

    watched = plan(folds=(1,), tune=1, entries=[Watching("mse", {"loss": "mse"})])
    run(watched, tmp_path / "watched", workers=0)
    assert set(seen) == {"train", "vali"}


def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path):
    space = {"a": tuning.Range(0.1, 10), "n": tuning.Range(1, 50, integer=True)}
    calls = []

    def search(trial_log, dies_at=None):
        def objective(parameters):
            calls.append(parameters)
            if len(calls) == dies_at:
                raise KeyboardInterrupt
            if parameters["a"] > 8:
                raise ValueError("diverged")
            return -((parameters["a"] - 2) ** 2) - abs(parameters["n"] - 20) / 10

        calls.clear()
        found = tuning.Space(space, {"a": 9.0, "n": 5}, 16, seed=0)
        return tuning.search(found, objective, "ndcg", tmp_path / trial_log, lambda text: None)

    whole = search("whole.json")
    ranges = json.loads((tmp_path / "whole.json").read_text())["space"]
    assert ranges["n"] == {"low": 1, "high": 50, "log": True, "whole": True}  # as ever: it resumes
    with pytest.raises(KeyboardInterrupt):
        search("killed.json", dies_at=12)
    assert search("killed.json") == whole
    assert len(calls) == 5
    trials = [json.loads((tmp_path / name).read_text()) for name in ("whole.json", "killed.json")]
    assert trials[0] == trials[1]
    assert trials[0]["trials"][0]["reason"] == "diverged"


def test_values_that_are_tried_are_in_their_range():
    # Optuna draws from a range that is a little wider; with this seed, 1.0007.
    space = {"a": tuning.Range(0.3, 1.0, log=False), "b": tuning.Range(0.3, 1.0, log=False)}
    done = [{"parameters": {"a": 1.0, "b": 1.0}, "value": 0.5, "reason": None}]
    assert tuning.Space(space, {}, 2, seed=70).propose(done, False)["a"] == 1.0


@pytest.mark.parametrize("delta", [0.005, 0.48])
def test_the_entrys_own_delta_is_in_the_range_that_is_searched(delta):
    settings = Settings(loss=f"smoothi_ndcg@5(delta={delta})")
    space = tuning.Space({"delta": tuning._space_of(settings)["delta"]}, {"delta": delta}, 2, 0)
    done = [{"parameters": {"delta": delta}, "value": 0.5, "reason": None}]
    assert 0 < space.propose(done, False)["delta"] < 0.5


def test_a_search_of_which_all_trials_fail_is_missing(plan, tmp_path):
    found = run(plan(folds=(1,), entries=[BAD], tune=1), tmp_path / "out", workers=0)
    assert "tuning: all 1 trials of tuning failed; the last: training" in found.missing["bad", 1, 0]
    grid, nothing = tuning.Grid([{}]), lambda parameters: float("nan")
    with pytest.raises(ValueError, match="failed; the last: the validation rr is nan"):
        tuning.search(grid, nothing, "rr", tmp_path / "log.json", lambda text: None)


@pytest.mark.slow
def test_a_script_without_a_main_guard_gets_an_error(folds, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from rankgrad.experiments.compare import NetworkEntry, Plan, run\n"
        f"plan = Plan({str(folds)!r}, [NetworkEntry.of('mse')], folds=(1,))\n"
        f"run(plan, {str(tmp_path / 'out')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(TESTS.parent / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ChildProcessError: worker processes cannot be started. In a script, call"
    )


def test_a_damaged_trial_log_costs_only_the_runs_that_need_it(plan, tmp_path):
    small = plan(folds=(1,), tune=1)
    run(small, tmp_path / "out", workers=0)
    (tmp_path / "out" / "tuning" / "mse" / "fold1.json").write_text("{")
    for seeds in ((0,), (0, 1)):  # its run is finished; it has another one to make
        found = run(plan(folds=(1,), tune=1, seeds=seeds), tmp_path / "out", workers=0)
        assert set(found.missing) == {("mse", 1, seed) for seed in seeds}
        assert all("fold1.json is damaged" in reason for reason in found.missing.values())
        assert found.chosen.keys() == {("softmax", 1)}
