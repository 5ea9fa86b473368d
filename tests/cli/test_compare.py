"""``rankgrad compare`` on small files, in this process."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest
from typer.testing import CliRunner

from rankgrad import _files
from rankgrad.cli import app
from rankgrad.cli.compare import _progress_table
from rankgrad.data import load
from rankgrad.experiments.compare import NetworkEntry, Plan, Progress, Row, default_settings
from rankgrad.training import RunFolder, Settings

QUICK = ["--epochs", "1", "--models", "mlp(hidden=[8])", "--device", "cpu", "--workers", "0"]


@pytest.fixture(scope="module")
def out(folder, tmp_path_factory):
    """A comparison that is done."""
    place = tmp_path_factory.mktemp("compare") / "out"
    losses = "mse, neural_ndcg@10(temperature=0.5, sinkhorn=false)"
    arguments = ["compare", str(folder), "--losses", losses, "-m", "ndcg@5", "-m", "rr"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(place), *QUICK])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return place, result, arguments[1:]


def test_the_table_and_what_it_means(out):
    place, result, _ = out
    assert "neural_ndcg@10(temperature=0.5, sinkhorn=false)" in result.stdout
    for words in ("ndcg@5", "† significantly worse", "lists without relevant", "gain: 2^y - 1"):
        assert words in result.stdout
    assert "difference from" in result.stdout
    assert "mse seed 0: ndcg@5 0." in result.stderr
    assert (place / "runs" / "mse" / "seed0" / "evaluations" / "test").is_dir()


def test_json(out, in_json):
    place, _, arguments = out
    metadata = in_json("compare", *arguments, "-o", place, *QUICK, "--test", "randomization")
    assert [row["candidate"] for row in metadata["rows"]] == [
        "mse",
        "neural_ndcg@10(temperature=0.5, sinkhorn=false)",
    ]
    assert metadata["rows"][0]["complete"] is True
    assert metadata["plan"]["metrics"] == ["ndcg@5", "rr"]
    assert metadata["plan"]["candidates"]["mse"]["metric"] == "ndcg@5"  # the first is validated on
    assert {d["metric"] for d in metadata["differences"]} == {"ndcg@5", "rr"}
    assert metadata["significance"].startswith("paired randomization test, two-sided, Bonferroni")


def test_comparison_json_holds_the_test_that_was_asked_for(out, in_json):
    place, _, arguments = out
    how = ["--test", "randomization", "--correction", "holm", "--sides", "1", "--baseline", "mse"]
    metadata = in_json("compare", *arguments, "-o", place, *QUICK, *how)
    kept = json.loads((place / "comparison.json").read_text())
    assert kept == metadata
    assert kept["test"] == {
        **{"test": "randomization", "correction": "holm", "sides": 1, "level": 0.05},
        **{"samples": 100_000, "baseline": "mse"},
    }
    assert {d["reference"] for d in kept["differences"]} == {"mse"}


def test_formats(out, rankgrad):
    place, _, arguments = out
    command = ["compare", *arguments, "-o", place, *QUICK]
    markdown = rankgrad(*command, "--format", "markdown").stdout
    assert markdown.startswith("| ranker | ndcg@5 | rr")
    assert "| ranker | difference | 95% interval | p | corrected p | significant |" in markdown
    latex = rankgrad(*command, "--format", "latex").stdout
    assert r"\begin{tabular}{lrrr}" in latex
    assert r"ranker & difference & 95\% interval & p & corrected p & significant" in latex
    result = rankgrad(*command, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["ranker"] for row in rows] == list(
        _files.read_json(place / "plan.json")["candidates"]
    )
    assert list(rows[0]) == ["ranker", "ndcg@5", "ndcg@5 mark", "rr", "rr mark", "seconds"]
    assert 0 < float(rows[0]["ndcg@5"]) < 1
    assert "tied scores: average" in result.stderr
    with_baseline = rankgrad(*command, "--baseline", "MSE", "--intervals", "--sides", "1").stdout
    assert "‡ significantly better than mse (paired t-test, one-sided" in with_baseline
    assert "95% bootstrap intervals" in with_baseline


def test_the_defaults_are_those_of_train_on_the_same_data(folder, tmp_path, rankgrad, monkeypatch):
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 20)
    how = ["-m", "ndcg@5", "--epochs", "1", "--device", "cpu"]
    rankgrad("train", folder, "-o", tmp_path / "run", *how)
    done = rankgrad("compare", folder, "-o", tmp_path / "out", "--workers", "0", *how)
    assert "training items: model medium, loss ordered_logit, cosine" in done.stderr
    (run,) = (tmp_path / "out" / "runs").glob("*/seed0")
    trained, compared = (RunFolder.open(path).settings for path in (tmp_path / "run", run))
    names = ("loss", "model", "optimizer", "epochs", "schedule", "weight_decay")
    assert all(getattr(trained, name) == getattr(compared, name) for name in names)
    for explicit in ({"model"}, {"loss"}):
        chosen, _ = default_settings(folder, Settings(), explicit)
        assert chosen.loss == "softmax" and (chosen == Settings()) == ("model" in explicit)
    assert chosen.optimizer == "adamw(l1=0.3)"
    assert default_settings(tmp_path, Settings(), ()) == (Settings(), [])  # no data


@pytest.fixture
def planned(monkeypatch):
    """Makes the plan of a command, in place of its runs."""

    plans = []

    def run(plan, *arguments, **options):
        plans.append(plan)
        raise ValueError("no runs are made")

    def make(*arguments):
        result = CliRunner().invoke(app, ["compare", *map(str, arguments), "-o", "no-folder"])
        assert "no runs are made" in result.stderr
        plan = plans.pop()
        # What the data chose is said once, on stderr or under the table.
        assert not any(entry.note for entry in plan.entries) or "note:" not in result.stderr
        return plan

    monkeypatch.setattr("rankgrad.experiments.compare.run", run)
    return make


def test_the_default_stands_beside_other_models(folder, planned, monkeypatch):
    few = planned(folder, "--models", "default, small")
    assert [entry.name for entry in few.entries] == ["softmax × default", "softmax × small"]
    assert few.notes()[2] == (
        f"default: model {Settings().model}; the rules for 50,000 training items or more do not "
        "apply"
    )
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 40_000)
    assert "rules for 40,000" in planned(folder, "--models", "default, small").notes()[2]
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 20)
    alone, named = planned(folder), planned(folder, "--models", "default")
    assert alone.metadata() == named.metadata()
    many = planned(folder, "--models", "small, default", "--epochs", "3")
    small, default = (entry.training(many.settings) for entry in many.entries)
    assert [entry.name for entry in many.entries] == [
        "softmax × small",
        "ordered_logit × default",
    ]
    shared = Settings(epochs=3, metric="ndcg@5")
    assert (small, default) == (shared, default_settings(folder, shared, {"epochs"})[0])
    assert default.optimizer == "adamw(l1=0.3)" and default.epochs == 3
    assert "training items: model medium, loss ordered_logit, cosine" in many.notes()[2]
    crossed = planned(folder, "--losses", "mse, ranknet", "--models", "default, small")
    assert [entry.labels(crossed.settings)["loss"] for entry in crossed.entries] == [
        *("mse", "ranknet", "mse", "ranknet"),
    ]
    assert "loss" not in crossed.notes()[2].partition("; model=small")[0]


def test_nothing_is_the_default_of_settings_from_a_file(folder, tmp_path, refused):
    (tmp_path / "settings.toml").write_text("epochs = 1")
    command = ["compare", folder, "-o", tmp_path / "out", "--settings", tmp_path / "settings.toml"]
    line = refused(*command, "--models", "default, small")
    assert "there is no model default: name the model" in line
    assert "it has no options" in refused(*command[:-2], "--models", "default(seed=1)")


def test_folds_that_are_added_have_the_same_defaults(folder, tmp_path, rankgrad, monkeypatch):
    items = load(folder, split="train").n_items
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", items)
    folds = tmp_path / "folds"
    for number in (1, 2):
        shutil.copytree(folder, folds / f"Fold{number}")
    lines = (folder / "train.txt").read_text().splitlines(keepends=True)
    (folds / "Fold2" / "train.txt").write_text("".join(lines[:-1]))  # fewer items
    how = ["-o", tmp_path / "out", "--workers", "0", "--epochs", "1", "--device", "cpu"]
    for fold in ("2", "all"):
        assert "model medium" in rankgrad("compare", folds, "--folds", fold, *how).stderr


def test_models_are_crossed_and_seeds_counted(folder, tmp_path, in_json):
    metadata = in_json(
        *("compare", folder, "--losses", "mse", "--models", "mlp(hidden=[4]), mlp(hidden=[8])"),
        *("--seeds", "2", "-o", tmp_path / "out", "--epochs", "1", "--workers", "0"),
        *("-m", "rr", "--device", "cpu"),
    )
    names = [row["candidate"] for row in metadata["rows"]]
    assert names == ["mse × mlp(hidden=[4])", "mse × mlp(hidden=[8])"]
    assert [run["seed"] for run in metadata["rows"][0]["runs"]] == [0, 1]


def test_a_missing_run_is_in_the_table_and_the_exit_code(folder, tmp_path):
    arguments = ["compare", str(folder), "--losses", "mse", "-o", str(tmp_path / "out"), *QUICK]
    result = CliRunner().invoke(app, [*arguments, "--lr", "1e30", "--epochs", "2"])
    assert result.exit_code == 1, result.output
    assert "missing (0/1)" in result.stdout
    assert "missing run: mse, seed 0: training diverged" in result.stdout
    assert "mse seed 0: failed: training diverged" in result.stderr
    metadata = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert "diverged" in metadata["rows"][0]["runs"][0]["reason"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--losses", "msee"], "unknown loss 'msee'"),
        (["--losses", ""], "--losses: cannot read the spec ''"),
        (["--models", ""], "--models: cannot read the spec ''"),
        (["--trees", "mse,"], "--trees: cannot read the spec 'mse,'"),
        (["--models", "Defalt"], "'Defalt'. Did you mean 'default'? There are: default, comp"),
        (["--losses", "mse ranknet"], "expected the end at character 5"),
        (["--losses", "mse", "--folds", "1"], "has no fold 1. There are: none"),
        (["--losses", "mse", "--seeds", "x"], "--seeds takes whole numbers"),
        (["--losses", "mse", "--seeds", "0"], "at least 1"),
        (["--losses", "mse", "--baseline", "ranknet"], "no ranker 'ranknet'. There are: mse"),
        (["--trees", "mse", "--baseline", "x"], "There are: softmax, mse × lightgbm"),
        (["--losses", "mse, mse"], "'mse' is there twice: leave one of them out"),
        (["--losses", "mse", "-m", "ndgc"], "Did you mean 'ndcg'"),
    ],
)
def test_bad_options(folder, tmp_path, refused, options, words):
    assert words in refused("compare", folder, "-o", tmp_path / "out", *QUICK, *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--losses", "msee"], "unknown loss 'msee'"),
        (["--losses", "mse", "--baseline", "ranknet"], "no ranker 'ranknet'. There are: mse"),
        (["--seeds", "0"], "at least 1"),
        (["--folds", "1"], "has no fold 1"),
        (["--device", "cuda"], "no GPU is found"),
        (["-o", "{folder}"], "holds no comparison: choose another folder"),
        (["-o", "{newer}"], "written by another version of rankgrad"),
        (["--models", "lightgbm", "--batch-size", "8"], "ranker 'softmax': lightgbm is trained"),
    ],
)
def test_bad_options_are_found_before_data_are_read(
    folder, tmp_path, refused, monkeypatch, options, words
):
    def reader(*arguments, **options):
        raise AssertionError("the data are read")

    for name in ("compare.load_data", "_data_checksums.load_splits", "_jobs.load_splits"):
        monkeypatch.setattr(f"rankgrad.experiments.{name}", reader)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "plan.json").write_text('{"version": 99}')
    places = {"{folder}": folder, "{newer}": tmp_path}
    given = [places.get(option, option) for option in options]
    assert words in refused("compare", folder, "-o", tmp_path / "out", "--workers", 0, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_data_without_a_split(folder, tmp_path, refused):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "vali"):
        (data / f"{split}.txt").write_bytes((folder / f"{split}.txt").read_bytes())
    line = refused("compare", data, "--losses", "mse", "-o", tmp_path / "out")
    assert "has no test split: to compare, train, vali and test are needed" in line
    line = refused("compare", data / "train.txt", "--losses", "mse", "-o", tmp_path / "o", *QUICK)
    assert "give a folder with train, vali and test in it" in line


def test_other_settings_in_the_same_folder(out, refused):
    place, _, arguments = out
    line = refused("compare", *arguments, "-o", place, *QUICK, "--lr", "0.5")
    assert "mse: learning_rate 0.5, not 0.003" in line


def test_missing_and_categorical_values_are_read_as_in_training(
    rankgrad, refused, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "rankgrad.experiments._tree_entries._GRID", {"lightgbm": [({"num_leaves": 2},)]}
    )
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for split in ("train", "vali", "test"):
        rows = [f"{i % 3} qid:{i // 4} 1:{i * 7 % 5} 2:{[-9, 30, 41][i % 3]}" for i in range(24)]
        (data / f"{split}.txt").write_text("\n".join(rows))
    command = ["compare", data, "--losses", "mse", "--trees", "mse", *QUICK]
    kinds = ["--missing", "-9", "--categorical", "2"]
    rankgrad(*command, *kinds, "-o", out)
    model = RunFolder.open(out / "runs/mse/seed0").best()
    assert (model.settings.missing, model.categories) == (("-9",), (None, ("30", "41")))
    trees = next((out / "runs").glob("mse-*/seed0/model.txt")).read_text()
    assert "[categorical_feature: 1]" in trees
    rankgrad(*command, *kinds, "-o", out)  # goes on with what is there
    # Trees know data alone by its contents: other values of the same files are other data.
    line = refused("compare", data, "--trees", "mse", *QUICK, "--missing", "30", "-o", out)
    assert "holds what was made from other data" in line
    assert "--max-length is for text" in refused(*command, "--max-length", 9, "-o", out)
    assert "--interpolate is for text" in refused(*command, "--interpolate", "-o", out)


def test_the_live_table():
    from rich.console import Console

    plan = Plan("data", [NetworkEntry.of("mse"), NetworkEntry.of("softmax")], metrics=("rr",))
    rows = (
        Row("mse", 1, 0, 2, ("fold 1 seed 1: epoch 3/9",), {"rr": 0.25}),
        Row("softmax", 0, 1, 2, (), {}),
    )
    text = io.StringIO()
    Console(file=text, width=80).print(_progress_table(plan, Progress(rows)))
    assert "epoch 3/9" in text.getvalue()
    assert "0.2500" in text.getvalue()
    assert "1 failed" in text.getvalue()


def test_a_report_tests_as_the_comparison_did_by_default(out, rankgrad, tmp_path):
    place, _, arguments = out
    how = ["--test", "randomization", "--correction", "holm"]
    rankgrad("compare", *arguments, "-o", place, *QUICK, *how)
    rankgrad("report", place, "-o", tmp_path / "same.html")
    words = "paired randomization test, two-sided, Holm correction, at 5%"
    assert words in (tmp_path / "same.html").read_text()
    rankgrad("report", place, "-o", tmp_path / "t.html", "--test", "t", "--correction", "none")
    text = (tmp_path / "t.html").read_text()
    assert "paired t-test, two-sided, no correction, at 5%" in text


def test_labels_of_a_thousand_with_a_linear_gain(tmp_path, rankgrad, refused):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    for split in ("train", "vali", "test"):
        rows = [f"{i * 77 % 1001} qid:{i // 6} 1:{i * 7 % 5} 2:{i % 3}" for i in range(24)]
        (data / f"{split}.txt").write_text("\n".join(rows))
    metric = "ndcg@10(gain=linear)"
    quick = ["--epochs", 1, "--device", "cpu"]
    (tmp_path / "s.toml").write_text('model = "mlp(hidden=[4])"')
    rankgrad("train", data, "--settings", tmp_path / "s.toml", "-o", run, "-m", metric, *quick)
    assert "ndcg@5(gain=linear)" in rankgrad("evaluate", run, data).stdout
    line = refused("evaluate", run, data, "-m", "ndcg@5")
    assert "ndcg@5: a label of" in line and line.endswith(" scale, or ndcg@5(gain=linear)")
    small = tmp_path / "small.txt"
    small.write_text("1 qid:1 1:1 2:1\n120 qid:1 1:2\n")
    assert "gain=linear" not in rankgrad("evaluate", run, small).stdout
    short = ["--split", "test", "--repeats", 1]
    assert f"100 times {metric}" in rankgrad("explain", run, data, *short).stdout
    assert refused("explain", run, data, *short, "-m", "dcg").endswith(" or dcg(gain=linear)")
    rankgrad("distill", run, data, "-o", tmp_path / "student", *quick)
    student, teacher = (RunFolder.open(path).settings for path in (tmp_path / "student", run))
    assert (student.metric, student.metrics) == (metric, teacher.metrics)
    command = ["compare", data, "--losses", "mse", *QUICK, "-o", tmp_path / "out"]
    done = rankgrad(*command, "--validation-metric", metric, "--format", "csv")
    assert "mse,0." in done.stdout and "ndcg@5(gain=linear)" in done.stdout
