"""A table run again: every row, the marks of its test, missing runs, and what is said under it."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rankgrad import _files
from rankgrad.data import Dataset, store
from rankgrad.experiments._grid_search import GridSearchEntry
from rankgrad.experiments.compare import Plan
from rankgrad.experiments.plans import Task
from rankgrad.metrics import evaluate
from rankgrad.papers import reproduce
from rankgrad.papers.protocol import Metric, Protocol
from rankgrad.papers.reproduce import RunOptions
from rankgrad.results.statistics import MetricValues
from rankgrad.significance import Significance
from rankgrad.training import Settings

SETTINGS = {
    "model": "mlp(hidden=[4])",
    "transforms": [],
    "epochs": 2,
    "metric": "ndcg@5",
    "metrics": ["ndcg@5"],
    "device": "cpu",
}


def lists(number, seed):
    random = np.random.default_rng(seed)
    features = random.normal(size=(number * 6, 3)).astype(np.float32)
    labels = (features[:, 0] > 0.4).astype(np.float32) + (features[:, 0] > 1.2)
    labels[:6] = 0  # the first list is empty
    qids = [f"{seed}-{q}" for q in range(number)]
    return Dataset(features, labels, np.arange(number + 1) * 6, qids)


def write_source(place):
    for fold in (1, 2):
        parts = {
            name: lists(number, 10 * fold + at)
            for at, (name, number) in enumerate((("train", 30), ("vali", 12), ("test", 15)))
        }
        store.write_splits(parts, place / f"Fold{fold}")
    return place


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source")


def protocol(**changes):
    values = {
        "paper": "smoothi",
        "table": "Table 9",
        "title": "a table",
        "reference": "Nobody",
        "url": "https://example.org",
        "name": "mine",
        "settings": SETTINGS,
        "data": [{"name": "MQ2008", "label": "MQ", "folds": [1, 2], "seeds": 2}],
        "metrics": [
            {"name": "NDCG@5", "spec": "ndcg@5"},
            {"name": "P@1", "spec": "precision@1(empty=skip)"},
            {"name": "odd", "spec": "ndcg(empty=skip)", "shift": 1, "printed": False},
        ],
        "rows": [
            {
                "name": "Good",
                "losses": ["approx_ndcg", "softmax"],
                "grid": {"learning_rate": [0.05, 0.1]},
            },
            {"name": "Bad", "losses": ["mse"], "settings": {"learning_rate": 1e-9}},
            {"name": "Absent", "not_run": "there is no such loss"},
            {"name": "Ours", "losses": ["listnet"], "extra": True},
        ],
        "significance": {"worse": "†"},
        "quick": {"epochs": 1, "folds": 1, "lists": 10},
        "choices": [{"about": "ties", "chosen": "the mean", "why": "fair"}],
        "findings": ["nothing surprises"],
        "published": {
            "MQ2008": {"Good": ["0.700", "0.6"], "Bad": ["0.5†", "0.4"], "Absent": ["0.1", "-"]}
        },
    }
    made = Protocol(**values | changes)
    made.check()
    return made


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    place, table = tmp_path_factory.mktemp("done"), protocol()
    source = write_source(place / "source")
    return reproduce.run(table, table.data[0], source, place / "out", workers=0)


def test_ours_is_the_mean_over_folds_and_seeds_beside_the_paper(done):
    runs = [done.comparison.evaluated["Bad", f, s] for f in (1, 2) for s in (0, 1)]
    ours = done.values["Bad", "NDCG@5"]
    assert ours.mean == pytest.approx(np.mean([run.mean["ndcg@5"] for run in runs]))
    by_seed = [np.mean([runs[s].mean["ndcg@5"], runs[2 + s].mean["ndcg@5"]]) for s in (0, 1)]
    assert ours.error_over_seeds == pytest.approx(np.std(by_seed, ddof=1) / np.sqrt(2))
    first = np.concatenate([runs[0].of_metric("ndcg@5"), runs[2].of_metric("ndcg@5")])
    second = np.concatenate([runs[1].of_metric("ndcg@5"), runs[3].of_metric("ndcg@5")])
    queries = (first + second) / 2
    assert ours.error_over_lists == pytest.approx(np.std(queries, ddof=1) / np.sqrt(30))
    table = {(row[0].text, row[1].text): row[2:] for row in done.table().rows}
    paper = [(cell.text, cell.value, cell.mark) for cell in table["Bad", "paper"]]
    assert paper == [("0.5", 0.5, "†"), ("0.4", 0.4, ""), ("", None, "")]
    assert table["Bad", "difference"][0].value == pytest.approx(ours.mean - 0.5)
    assert table["Bad", "ours"][0].value == ours.mean
    assert table["Good", "seeds"][0].value == done.values["Good", "NDCG@5"].error_over_seeds


def test_shifted_labels_change_the_gain_but_not_which_lists_are_empty(done):
    run = done.comparison.evaluated["Good", 1, 0]
    shifted = evaluate(run.scores, run.labels + 1, offsets=run.offsets, metrics=["ndcg"])
    expected = shifted.per_list["ndcg"].numpy()[1:]  # the first list is empty
    ours = done.values["Good", "odd"].folds[0][0]
    assert np.isnan(ours[0])
    np.testing.assert_allclose(ours[1:], expected, rtol=1e-6)


def test_a_metric_of_lists_of_one_length(done):
    metric = Metric(name="short", spec="precision@1", length=6)
    run = done.comparison.evaluated["Good", 1, 0]
    specs = {"metrics": ("precision@1",), "values": np.arange(15.0)[:, None]}
    run = dataclasses.replace(run, **specs)
    assert reproduce._values(run, metric).tolist() == list(range(15))
    other = Metric(name="other", spec="precision@1", length=5)
    assert np.isnan(reproduce._values(run, other)).all()


def test_numbers_that_are_undefined_are_no_nan(done):
    columns = [
        {"name": "NDCG@5", "spec": "ndcg@5"},
        {"name": "P@1", "spec": "precision@1(empty=skip)"},
        {"name": "eight", "spec": "ndcg(empty=skip)", "length": 8, "printed": False},
    ]
    result = dataclasses.replace(done, protocol=protocol(metrics=columns))
    assert ("Good", "eight") not in result.values and result.marks("eight") == {}
    lines = [[cell.text for cell in row] for row in result.table().rows[:4]]
    assert [line[4] for line in lines] == ["", "undefined", "", ""]
    rows = json.loads(json.dumps(result.to_json(), allow_nan=False))["rows"]
    assert [row["reason"] for row in rows[:3]] == [None, None, "undefined"]
    single = MetricValues.of((np.array([[0.5]]),))  # the mean of one query
    assert reproduce._our_cell(single, 3, "").text == "0.500"


def test_the_comparison_is_tested_as_the_paper_does(done):
    kept = json.loads((done.comparison.folder / "comparison.json").read_text())["test"]
    assert (kept["test"], kept["correction"], kept["sides"]) == ("t", "none", 2)
    other = protocol(significance={"against": "Bad", "sided": "one", "correction": "holm"})
    plan = reproduce._plan_of(
        other, done.data, Path(done.comparison.plan["data"]), done.comparison.folder, RunOptions()
    )
    given = reproduce._test_of(other, plan)
    assert given == {"how": Significance("t", "holm", 1), "baseline": "Bad"}


def test_marks_follow_the_papers_test(done):
    assert done.marks("NDCG@5") == {"Bad": "†"}
    good = done.values["Good", "NDCG@5"].per_list - done.values["Bad", "NDCG@5"].per_list
    assert good.mean() > 0.1
    bold = reproduce.ReproductionResult(
        protocol(significance={"sided": "one", "better": "*"}),
        done.data,
        RunOptions(),
        done.comparison,
    )
    assert bold.marks("NDCG@5") == {"Good": "*"}
    against = reproduce.ReproductionResult(
        protocol(significance={"against": "Bad", "better": "^", "worse": "v"}),
        done.data,
        RunOptions(),
        done.comparison,
    )
    assert against.marks("NDCG@5") == {"Good": "^"}


def test_rows_of_ours_do_not_change_the_marks_of_the_papers(done):
    scores = {"Good": 0.5, "Bad": 0.3, "Ours": 0.9}
    noise = np.random.default_rng(0).normal(scale=0.05, size=(3, 2, 30))
    made = {
        (name, "NDCG@5"): MetricValues.of((value + noise[at],))
        for at, (name, value) in enumerate(scores.items())
    }
    both = reproduce.ReproductionResult(
        protocol(), done.data, RunOptions(extra=True), done.comparison
    )
    both.__dict__["values"] = made
    assert both.marks("NDCG@5") == {"Bad": "†", "Ours": "‡"}
    made["Ours", "NDCG@5"] = MetricValues.of((0.1 + noise[2],))
    assert both.marks("NDCG@5") == {"Bad": "†", "Ours": "†"}
    near = made["Good", "NDCG@5"].folds[0] + noise[2] / 10
    made["Ours", "NDCG@5"] = MetricValues.of((near,))
    assert both.marks("NDCG@5") == {"Bad": "†"}


def test_a_row_above_the_best_in_most_lists_is_not_worse(done):
    """The mean over folds may choose another row than the test over all lists, if folds differ."""
    noise = np.random.default_rng(0).normal(scale=0.01, size=(1, 42))
    good, bad = noise + 0.3, noise[:, ::-1] + 0.4
    good[:, :2] = 0.9  # the first fold
    result = reproduce.ReproductionResult(
        protocol(significance={"better": "*", "worse": "v"}), done.data, RunOptions(), None
    )
    result.__dict__["values"] = {
        (name, "NDCG@5"): MetricValues.of((values[:, :2], values[:, 2:]))
        for name, values in (("Good", good), ("Bad", bad))
    }
    assert result.values["Good", "NDCG@5"].mean > result.values["Bad", "NDCG@5"].mean
    assert result.marks("NDCG@5") == {"Good": "*", "Bad": "*"}


def test_the_note_on_the_test_has_its_level_and_its_mark(done):
    for significance, expected in (
        ({"level": 0.025, "worse": "v"}, "v significantly worse than the best (two-sided paired "),
        ({"level": 0.025, "against": "Bad"}, "† significantly worse than Bad (two-sided paired "),
    ):
        note = reproduce._about_test(protocol(significance=significance))
        assert note.startswith(expected) and "over queries at 2.5%" in note


def test_the_rules_of_empty_lists_are_in_the_order_of_the_metrics(done):
    for first, second in (("", "(empty=skip)"), ("(empty=skip)", "(empty=1)"), ("(empty=1)", "")):
        columns = [
            {"name": "NDCG@5", "spec": f"ndcg@5{first}"},
            {"name": "P@1", "spec": f"precision@1{second}"},
        ]
        table = protocol(metrics=columns)
        note = reproduce.ReproductionResult(table, done.data, RunOptions(), None).notes()[1]
        words = {"": "count 0", "(empty=skip)": "are left out", "(empty=1)": "count 1"}
        assert f"document {words[first]} or {words[second]};" in note


def test_what_validation_chose_is_printed_and_saved(done):
    trial_log = _files.read_json(done.comparison.folder / "tuning" / "Good" / "fold1.json")
    assert [trial["parameters"]["learning_rate"] for trial in trial_log["trials"]] == [
        0.05,
        0.1,
    ] * 2
    best = max(trial_log["trials"], key=lambda trial: trial["value"])["parameters"]
    assert trial_log["chosen"] == best
    settings = (
        done.comparison.folder / "runs" / "Good" / "fold1-seed1" / "settings.toml"
    ).read_text()
    assert Settings.from_toml(settings).loss == best["loss"]
    notes = "\n".join(done.notes())
    assert f"fold 1 {best['loss']} at {best['learning_rate']:g}" in notes


def test_the_notes_have_conventions_choices_and_findings(done):
    notes = "\n".join(done.notes())
    for part in (
        "mean over 2 folds × 2 seeds",
        "NDCG@5 = ndcg@5",
        "odd = ndcg(empty=skip) of labels + 1",
        "chosen for ties: the mean (fair)",
        "nothing surprises",
        "two-sided paired t-test",
        "https://example.org",
    ):
        assert part in notes
    table = {(row[0].text, row[1].text): row[2:] for row in done.table().rows}
    assert table["Absent", "ours"][0].text == "there is no such loss"
    assert ("Ours", "ours") not in table


def test_choices_are_those_of_the_data_set_and_of_the_full_run(done):
    choices = [
        {"about": "epochs", "chosen": "50", "why": "so", "reduced": True},
        {"about": "splits", "chosen": "one", "why": "so", "data": ["MQ2008"]},
        {"about": "seeds", "chosen": "five", "why": "so", "data": ["Other"]},
    ]
    other = {"name": "Other", "label": "O", "not_run": "it is not here"}
    published = {**protocol().published, "Other": protocol().published["MQ2008"]}
    data = [*(one.model_dump() for one in protocol().data), other]
    table = protocol(choices=choices, data=data, published=published)
    whole = reproduce.ReproductionResult(table, done.data, RunOptions(), done.comparison).notes()
    chosen = [line for line in whole if line.startswith("chosen for ")]
    assert chosen == ["chosen for epochs: 50 (so)", "chosen for splits: one (so)"]
    quick = reproduce.ReproductionResult(
        table, done.data, RunOptions(quick=True), done.comparison
    ).notes()
    assert "chosen for epochs (less of it here): 50 (so)" in quick
    with pytest.raises(ValueError, match=r"choices\.seeds: there is no data set 'Other'"):
        protocol(choices=choices)


def test_how_rows_of_ours_are_corrected_and_what_trees_chose(done):
    rows = [row.model_dump() for row in protocol().rows]
    rows.append({"name": "Trees", "trees": "lightgbm", "extra": True})
    table = protocol(rows=rows, significance={"worse": "†", "correction": "bonferroni"})
    values = {"num_leaves": 15, "learning_rate": 0.03}
    found = dataclasses.replace(done.comparison, chosen={("Trees", 2): values})
    both = reproduce.ReproductionResult(table, done.data, RunOptions(extra=True), found)
    names = ("Good", "Bad", "Ours", "Trees")
    zeros = MetricValues.of((np.zeros((2, 30)),))
    both.__dict__["values"] = {(name, "NDCG@5"): zeros for name in names}
    notes = both.notes()
    words = "corrected for their own number, 2, as the paper's rows are for theirs, 1"
    assert any(words in note for note in notes)
    line = "Trees: chosen on validation data: fold 2 num_leaves 15, learning_rate 0.03"
    assert line in notes


def test_files_are_written_and_runs_are_not_repeated(done):
    place, source = done.comparison.folder.parent, Path(done.comparison.plan["data"])
    metadata = json.loads((place / "reproduction.json").read_text())
    [row] = [r for r in metadata["rows"] if (r["row"], r["metric"]) == ("Good", "NDCG@5")]
    assert row["paper"] == 0.7 and row["difference"] == pytest.approx(row["ours"] - 0.7)
    assert "| Good | paper | 0.700 |" in (place / "table.md").read_text()
    assert "| Bad | paper | 0.5† |" in (place / "table.md").read_text()
    lines = list(csv.DictReader((place / "table.csv").read_text().splitlines()))
    names = ["row", "line", "NDCG@5", "NDCG@5 mark", "P@1", "P@1 mark", "odd", "odd mark"]
    assert list(lines[0]) == names
    [bad] = [line for line in lines if (line["row"], line["line"]) == ("Bad", "paper")]
    assert (bad["NDCG@5"], bad["NDCG@5 mark"], bad["odd"]) == ("0.5", "†", "")
    assert all(line["NDCG@5"] == "" or float(line["NDCG@5"]) for line in lines)
    before = {p: p.stat().st_mtime_ns for p in place.rglob("settings.toml")}
    table = protocol()
    more = reproduce.run(table, table.data[0], source, place, RunOptions(extra=True), workers=0)
    after = {p: p.stat().st_mtime_ns for p in place.rglob("settings.toml")}
    assert before.items() < after.items()
    assert ("Ours", "NDCG@5") in more.values
    np.testing.assert_equal(more.values["Good", "P@1"].folds, done.values["Good", "P@1"].folds)


def test_quick_is_less_and_says_so(source, tmp_path):
    table = protocol()
    quick = reproduce.run(
        table, table.data[0], source, tmp_path / "out", RunOptions(quick=True), workers=0
    )
    assert quick.comparison.plan["folds"] == [1] and quick.comparison.plan["seeds"] == [0]
    assert quick.comparison.plan["candidates"]["Good"]["options"][0]["epochs"] == 1
    assert not (quick.comparison.folder / "tuning").exists()
    assert "quick" in quick.table().title and "1 fold × 1 seed" in "\n".join(quick.notes())
    assert len(quick.comparison.evaluated["Good", 1, 0].qids) == 10


def test_a_row_that_fails_is_missing_with_its_reason(source, tmp_path):
    table = protocol()
    broken = source / "Fold2" / "vali"
    broken.rename(tmp_path / "moved")
    found = reproduce.run(table, table.data[0], source, tmp_path / "out", workers=0)
    row = {(r[0].text, r[1].text): r[2:] for r in found.table().rows}["Good", "ours"]
    assert row[0].missing and "vali" in row[0].text
    assert ("Good", "NDCG@5") not in found.values and found.marks("NDCG@5") == {}


def test_drawings_have_their_own_deviation(source, tmp_path):
    split = {"pool": True, "test": 0.2, "vali": 0.3, "repeats": 3}
    data = [{"name": "MQ2008", "label": "MQ", "folds": [1], "split": split}]
    table = protocol(data=data)
    found = reproduce.run(table, table.data[0], source, tmp_path / "out", workers=0)
    runs = [found.comparison.evaluated["Bad", f, 0].mean["ndcg@5"] for f in (1, 2, 3)]
    deviation = pytest.approx(np.std(runs, ddof=1))
    assert found.values["Bad", "NDCG@5"].deviation_over_folds == deviation
    rows = {(row["row"], row["metric"]): row for row in found.to_json()["rows"]}
    assert rows["Bad", "NDCG@5"]["sd_drawing"] == deviation
    assert "3 drawings" in "\n".join(found.notes())


def test_nothing_there_says_where_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"microsoft\.com.*accepted"):
        reproduce.run_tables([protocol()], tmp_path, tmp_path / "out", RunOptions())
    with pytest.raises(ValueError, match="no table has the data set 'MQ2007'"):
        reproduce.run_tables([protocol()], tmp_path, tmp_path / "out", RunOptions(), only="MQ2007")


def test_a_grid_search_goes_on_where_it_stopped(source, tmp_path):
    from rankgrad.data import load_splits

    options = tuple({"loss": loss, "learning_rate": 0.1} for loss in ("mse", "softmax", "listnet"))
    row = GridSearchEntry("Row", options)
    settings = Settings(**SETTINGS, tensorboard=True)  # of the runs; trials have no folder for it
    plan = Plan(source, (row,), folds=(1,), settings=settings)
    task = Task(plan, row, 1, 0, tmp_path)
    trial_log = task.trial_log
    trial_log.parent.mkdir(parents=True)
    made_up = [{"parameters": dict(options[0]), "value": 2.0, "reason": None}]
    _files.write(trial_log, json.dumps({"trials": made_up, "chosen": None}))
    messages = []
    row.tune(task, load_splits(source, 1), messages.append)
    metadata = _files.read_json(trial_log)
    assert messages == ["trial 2/3", "trial 3/3"]
    assert not any(trial["reason"] for trial in metadata["trials"])
    assert metadata["trials"][0]["value"] == 2.0 and metadata["chosen"] == dict(options[0])


def test_trees_are_rows_like_others():
    from rankgrad.experiments.compare import TreeEntry
    from rankgrad.papers.protocol import protocols

    table = protocols()["neuralndcg_table3"]
    made = reproduce._entry(table, table.data[0], table.row("XGBoost"), RunOptions())
    assert made == TreeEntry("XGBoost", "xgboost", {"objective": "rank:pairwise"})
    assert made.combinations == 24
    for less in (RunOptions(quick=True), RunOptions(search=False)):
        made = reproduce._entry(table, table.data[0], table.row("XGBoost"), less)
        assert made.combinations == 1 and made.options["objective"] == "rank:pairwise"


def test_every_table_that_is_run_makes_a_plan(tmp_path):
    from rankgrad.papers.protocol import protocols

    for table in protocols().values():
        for data in table.data:
            plain = data.model_copy(update={"split": None, "list_limit": None, "test_lists": None})
            found = reproduce._plan_of(
                table, plain, tmp_path, tmp_path / "out", RunOptions(extra=True)
            )
            if table.not_run:
                assert found is None
                continue
            rows = [row.name for row in table.rows_on(data.name, extra=True)]
            assert [one.name for one in found.entries] == rows
            assert len(found.seeds) == data.seeds
