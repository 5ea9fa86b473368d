"""Every command on small files, in this process."""

from __future__ import annotations

import datetime
import inspect
import os
import re
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import rich.progress
from typer.main import get_command
from typer.testing import CliRunner

from rankgrad.cli import app, text_train
from rankgrad.cli.train import train
from rankgrad.data import _scores, load, store, synthetic
from rankgrad.experiments import demo
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.text._text_settings import TextSettings
from rankgrad.training import FittedRanker, RunFolder, Settings
from rankgrad.training._evaluations import EvaluatedLists

COMMANDS = (
    *("import", "train", "evaluate", "predict", "report", "losses", "metrics", "models", "data"),
    *("demo", "compare"),
)
KINDS = {"pointwise", "pairwise", "likelihood", "direct"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"rankgrad {command}" in result.stdout
    assert "<bool>" not in result.stdout  # a flag takes no value


def test_every_setting_is_an_option():
    options = inspect.signature(train).parameters
    assert set(Settings.model_fields) <= set(options)
    options = inspect.signature(text_train.train).parameters
    own = {"loss", "seed"}  # given as losses and seeds
    assert set(TextSettings.model_fields) - own <= set(options)


def test_help_states_the_defaults_of_the_settings():
    parameters = get_command(app).commands["train"].params
    stated = {parameter.name: parameter.show_default for parameter in parameters}
    for name, field in Settings.model_fields.items():
        found = stated[name]
        if name == "holdout":  # the command chooses by the data
            assert found == "0.1 without validation data"
            continue
        given = {"none": None, "no": False, "yes": True}.get(found, found)
        if isinstance(field.default, tuple):
            assert (() if given is None else tuple(found.split(", "))) == field.default
        else:
            assert getattr(Settings(**{name: given}), name) == field.default, name


def test_losses(rankgrad, in_json):
    table = rankgrad("losses").stdout
    assert "lambdarank[@k]" in table
    assert "neural" in table
    everything = {entry["name"]: entry for entry in in_json("losses")}
    assert everything["neural_ndcg"]["options"]["temperature"] == 1.0
    assert everything["neural_ndcg"]["cutoff"] is True
    assert "temperature" in rankgrad("losses", "neural_ndcg").stdout
    cell = rankgrad("losses", "lapsum_rr").stdout
    assert "through" in cell and "the label from which an item is relevant" in cell
    assert "FAMILIES" not in cell and "Args:" not in cell
    assert "\narp through approx." in rankgrad("losses", "approx_arp").stdout
    for name in ("softmax", "neural_ndcg", "gumbel_approx_ap"):
        printed = rankgrad("losses", name).stdout
        assert all(f"\n{part}: " in printed for part in ("Formula", "Paper", "Use", "Cost"))
        assert "\\" not in printed  # no LaTeX
    assert "\n1 - ap through approx, the mean over samples" in printed
    assert "L(s + scale · g_m), L(s) = 1 - " in printed and "Bruch et al. 2020" in printed
    spec = "neural_ndcg@10(temperature=0.5)"
    assert rankgrad("losses", spec).stdout == rankgrad("losses", "neural_ndcg").stdout
    assert in_json("losses", spec)[0]["name"] == "neural_ndcg"


def test_metrics_and_models(rankgrad, in_json):
    assert "lists without relevant items count 0" in rankgrad("metrics").stdout
    everything = {entry["name"]: entry for entry in in_json("metrics")}
    assert {"ndcg", "ap", "rr"} <= set(everything)
    for name, entry in everything.items():
        with nullcontext() if entry["cutoff"] else pytest.raises(ValueError, match="no cutoff"):
            assert str(metrics.get(f"{name}@3")) == f"{name}@3"
        assert "`" not in rankgrad("metrics", name).stdout  # no marks of code
    assert "threshold" in rankgrad("metrics", "ap").stdout
    assert "neuralndcg_web30k" in rankgrad("models").stdout
    assert "hidden" in rankgrad("models", "mlp").stdout
    said = " ".join(rankgrad("models", "medium(heads=2)").stdout.split())
    assert "It stands for: tabm(hidden=[256, 128], members=1, dropout=0.1, in_list=" in said
    assert "heads=2, periodic=8" in said


def test_data(rankgrad, in_json, folder):
    assert "MSLR-WEB30K" in rankgrad("data").stdout
    assert len(in_json("data")) == 7
    assert in_json("data", folder)["vali"]["lists"] == 6
    assert in_json("data", folder / "train.txt")["train.txt"]["features"] == 16
    assert "items per list" in rankgrad("data", folder).stdout


def test_import_a_file(rankgrad, folder, tmp_path):
    rankgrad("import", folder / "train.txt", "-o", tmp_path / "train.store")
    rankgrad("import", tmp_path / "train.store", "-o", tmp_path / "train.parquet")
    letor = load(folder / "train.txt")
    assert store.open(tmp_path / "train.store", verify=True).checksum() == letor.checksum()
    assert (load(tmp_path / "train.parquet").features == letor.features).all()


def test_import_several_files_and_ids(in_json, tmp_path):
    (tmp_path / "a.txt").write_text("1 qid:1 1:2 #docid = X7\n")
    (tmp_path / "b.txt").write_text("0 qid:1 1:3 #docid = X8\n")
    out = tmp_path / "both"
    facts = in_json("import", tmp_path / "a.txt", tmp_path / "b.txt", "--docids", "-o", out)
    assert facts[str(out)]["a.txt"]["items"] == 2
    assert load(out).ids.tolist() == ["X7", "X8"]


def test_import_folders(in_json, folder, tmp_path):
    for number in (1, 2):
        shutil.copytree(folder, tmp_path / "folds" / f"Fold{number}")
    facts = in_json("import", tmp_path / "folds", "-o", tmp_path / "stores")
    assert len(facts) == 2
    assert (
        load(tmp_path / "stores", fold=2, split="test").n_items == load(folder / "test.txt").n_items
    )
    in_json("import", tmp_path / "folds", "--fold", 1, "-o", tmp_path / "one")
    assert load(tmp_path / "one", split="vali").n_features == 16


def test_import_columns(rankgrad, refused, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("session,clicks,bm25,age\ns1,1,0.5,3\ns1,0,,4\n")
    assert "no column 'qid'" in refused("import", path, "-o", tmp_path / "log")
    rankgrad(
        "import", path, "--query", "session", "--label", "clicks", "--feature", "bm25",
        "--fill", 0, "-o", tmp_path / "log",
    )  # fmt: skip
    assert load(tmp_path / "log").features.tolist() == [[0.5], [0.0]]


def test_predict_needs_no_labels(rankgrad, refused, quick, tmp_path):
    rows = [f"q{i // 4},{i % 3},{i * 7 % 5},{i % 4}" for i in range(24)]
    train, new = tmp_path / "train.csv", tmp_path / "new.csv"
    train.write_text("\n".join(["qid,label,a,b", *rows]))
    new.write_text("qid,b,a\nq1,1,2\nq1,3,4\n")
    rankgrad("train", train, "-o", tmp_path / "run", *quick)
    rankgrad("predict", tmp_path / "run", new, "-o", tmp_path / "scores.txt")
    assert len((tmp_path / "scores.txt").read_text().split()) == 2
    assert "no column 'label'" in refused("evaluate", tmp_path / "run", new)


def test_missing_and_categorical_values_are_those_of_training(rankgrad, quick, tmp_path):
    rows = [f"{i % 3} qid:{i // 4} 1:{i * 7 % 5} 2:{[-9, 30, 41][i % 3]}" for i in range(24)]
    (tmp_path / "train.txt").write_text("\n".join(rows))
    options = ["--missing", "-9", "--missing", "oops", "--categorical", "2", "--holdout", 0]
    rankgrad("train", tmp_path / "train.txt", "-o", tmp_path / "run", *quick, *options)
    model = RunFolder.open(tmp_path / "run").best()
    assert (model.settings.missing, model.categories) == (("-9", "oops"), (None, ("30", "41")))
    for value in ("-9", "oops", "?", "77"):
        (tmp_path / "new.txt").write_text(f"qid:1 1:2 2:{value}\n")
        scores = rankgrad("predict", tmp_path / "run", tmp_path / "new.txt").stdout
        assert np.float32(scores) == model.predict(np.array([[2, np.nan]], np.float32))[0]


@pytest.mark.filterwarnings("ignore:.*are in no item")
def test_predict_writes_document_ids(rankgrad, in_json, trained, tmp_path):
    """LETOR rows without labels, with missing values, and with ids in their comments."""
    rows = ["qid:7 1:2 2:NA # docid = d-9", "? qid:7 3:1 #docid = d-4", "qid:8 1: #docid=d-9"]
    (tmp_path / "new.txt").write_text("\n".join(rows))
    run = rankgrad("predict", trained, tmp_path / "new.txt", "--format", "trec").stdout
    assert sorted((line.split()[0], line.split()[2]) for line in run.splitlines()) == [
        ("7", "d-4"), ("7", "d-9"), ("8", "d-9")
    ]  # fmt: skip
    rankgrad("predict", trained, tmp_path / "new.txt", "-o", tmp_path / "new.parquet")
    assert parquet.read_table(tmp_path / "new.parquet")["id"].to_pylist() == ["d-9", "d-4", "d-9"]
    labeled = "\n".join(f"{i} {row.removeprefix('? ')}" for i, row in enumerate(rows))
    (tmp_path / "judged.txt").write_text(labeled)
    (tmp_path / "new.run").write_text(run)
    by_run = in_json("evaluate", tmp_path / "new.run", tmp_path / "judged.txt")
    assert by_run == in_json("evaluate", trained, tmp_path / "judged.txt")
    (tmp_path / "new.txt").write_text("qid:7 1:2\nqid:7 1:3\n")
    said = rankgrad("predict", trained, tmp_path / "new.txt", "-o", tmp_path / "b.run")
    assert "no document ids: positions" in " ".join(said.stderr.split())
    assert {line.split()[2] for line in (tmp_path / "b.run").read_text().splitlines()} == {"1", "2"}


def test_train_writes_a_run(trained):
    run = RunFolder.open(trained)
    assert run.settings.epochs == 2
    assert run.settings.model == "mlp(hidden=[8])"
    assert len(run.history) == 2


def test_train_by_settings_and_options(in_json, folder, trained, tmp_path):
    out = tmp_path / "run"
    facts = in_json(
        "train", folder / "train.txt", "--vali", folder / "vali.txt", "-o", out,
        "--settings", trained / "settings.toml", "--loss", "softmax", "--metrics", "err",
        "--transform", "standardize", "--patience", "none", "--clip", 2, "--no-tensorboard",
    )  # fmt: skip
    settings = RunFolder.open(out).settings
    assert facts["best_epoch"] in (1, 2)
    assert settings.model == "mlp(hidden=[8])"
    assert (settings.loss, settings.clip, settings.patience) == ("softmax", 2.0, None)
    assert (settings.metrics, settings.transforms) == (("err",), ("standardize",))
    assert set(facts["history"][0]) >= {"ndcg@10", "err", "loss"}


def test_train_says_what_follows_the_size_of_the_data(rankgrad, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 1)
    own = ("--vali", folder / "vali.txt", "--epochs", 1, "--device", "cpu")
    for name, model, more in (("a", "medium", ()), ("b", "small", ("--model", "small"))):
        result = rankgrad("train", folder / "train.txt", "-o", tmp_path / name, *own, *more)
        assert RunFolder.open(tmp_path / name).settings.model == str(models.get(model))
        assert ("training items: model medium" in result.stderr) == (model == "medium")


def test_train_without_validation_holds_lists_out_and_says_so(rankgrad, folder, quick, tmp_path):
    data = folder / "train.txt"
    result = rankgrad("train", data, "-o", tmp_path / "a", *quick)
    assert "0.1 of the 12 lists, drawn by the seed, are held out" in result.stderr
    assert "the last epoch is kept" in rankgrad(
        "train", data, "-o", tmp_path / "b", *quick, "--holdout", 0
    ).stderr  # fmt: skip
    rankgrad("train", data, "-o", tmp_path / "c", *quick)
    rankgrad("train", data, "-o", tmp_path / "d", *quick, "--seed", 1, "--holdout", 0.25)
    runs = [RunFolder.open(tmp_path / name) for name in "abcd"]
    assert [run.settings.holdout for run in runs] == [0.1, 0.0, 0.1, 0.25]
    one, all_, same, three = [run.metadata for run in runs]
    assert one["held_out"] == same["held_out"]
    assert "held_out" not in all_
    assert [one["data"]["vali"]["lists"], len(three["held_out"])] == [1, 3]
    assert "ndcg@10" in runs[0].history[0]
    rankgrad("train", data, "-o", tmp_path / "a", "--resume")  # the same lists are held out


def test_train_notes_that_no_item_is_relevant(rankgrad, quick, tmp_path):
    data = tmp_path / "zero.txt"
    data.write_text("0 qid:1 1:0.5\n0 qid:1 1:0.7\n0 qid:2 1:0.1\n0 qid:2 1:0.2\n")
    done = rankgrad("train", data, *quick, "-o", tmp_path / "run")
    assert "no item of the training lists has a label above 0" in done.stderr


def test_train_notes_that_all_lists_have_one_item(rankgrad, quick, tmp_path):
    """As if a column of row numbers were taken for the queries."""
    data = tmp_path / "ones.txt"
    data.write_text("".join(f"{row % 2} qid:{row} 1:0.{row}\n" for row in range(1, 9)))
    done = rankgrad("train", data, *quick, "-o", tmp_path / "run")
    assert "no training list has more than one item" in done.stderr


def test_train_needs_no_option_but_the_data(
    rankgrad, refused, folder, quick, tmp_path, monkeypatch
):
    for fold in (1, 2):
        shutil.copytree(folder, tmp_path / "folds" / f"Fold{fold}")
    monkeypatch.chdir(tmp_path)
    first = rankgrad("train", "folds", *quick)
    assert "the folds 1, 2: training on fold 1." in first.stderr
    assert "rankgrad compare folds -o runs/folds" in first.stderr
    rankgrad("train", "folds", *quick)
    rankgrad("train", "folds", *quick, "--loss", "lambdaloss@5", "--fold", 2)
    day = str(datetime.date.today())
    names = sorted(path.name for path in Path("runs").iterdir())
    assert names == [f"{day}-lambdaloss-at-5", f"{day}-softmax", f"{day}-softmax-2"]
    assert f"rankgrad evaluate runs/{day}-softmax folds --fold 1" in first.stdout
    # Another process takes the next name while this one reads the data.
    taken = Path("runs", f"{day}-softmax-3")
    with monkeypatch.context() as patch:
        patch.setattr(
            "rankgrad.training._fitting.check_data", lambda *data: taken.mkdir(exist_ok=True)
        )
        assert f"runs/{day}-softmax-4" in rankgrad("train", "folds", *quick).stdout
    said = refused("train", "MQ2008")
    assert "https://www.microsoft.com" in said
    assert "rankgrad demo" in said
    assert "-o RUN" in refused("train", "folds", "--resume")


def test_what_to_do_next_is_never_on_training_data(quick, rankgrad, folder, tmp_path):
    out = tmp_path / "my run"
    first = rankgrad("train", folder, "-o", out, *quick).stdout
    assert f"Next: rankgrad evaluate '{out}' {folder}\n" in first
    files = (folder / "train.txt", "--vali", folder / "vali.txt")
    second = rankgrad("train", *files, "-o", tmp_path / "b", *quick).stdout
    assert f"Next: rankgrad evaluate {tmp_path / 'b'} TEST_DATA\n" in second


def test_a_finished_run_is_extended(rankgrad, refused, folder, quick, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    rankgrad("train", folder, "-o", one, *quick)
    rankgrad("train", folder, "-o", one, "--resume", "--epochs", 4)
    rankgrad("train", folder, "-o", other, *quick, "--epochs", 4)
    assert RunFolder.open(one).settings == RunFolder.open(other).settings
    assert len(RunFolder.open(one).history) == 4
    for place in ("best", "last"):
        files = [run / place / "model.safetensors" for run in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert "epochs: 3, not 4" in refused("train", folder, "-o", one, "--resume", "--epochs", 3)


def test_resume_a_finished_run(in_json, folder, trained):
    before = (trained / "metrics.jsonl").read_text()
    assert in_json("train", folder, "-o", trained, "--resume")["epochs"] == 2
    assert (trained / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("name", ["scores.txt", "scores.parquet", "scores.run"])
def test_predict_then_evaluate(rankgrad, in_json, folder, trained, tmp_path, name):
    rankgrad("predict", trained, folder, "-o", tmp_path / name)
    rankgrad("import", folder / "test.txt", "-o", tmp_path / "store")
    by_file = in_json("evaluate", tmp_path / name, folder, "--split", "test")
    assert in_json("evaluate", tmp_path / name, tmp_path / "store") == by_file
    by_run = in_json("evaluate", trained, folder / "test.txt")
    assert by_file == by_run
    low, high = by_run["interval95"]["ndcg@10"]
    assert low <= by_run["mean"]["ndcg@10"] <= high


def test_predict_is_the_ranker(rankgrad, folder, trained):
    data = load(folder / "test.txt")
    printed = rankgrad("predict", trained, folder / "test.txt").stdout.split()
    expected = FittedRanker.load(trained / "best").predict(data.features, data.offsets)
    assert np.array(printed, np.float32).tobytes() == expected.tobytes()
    run = rankgrad("predict", trained / "best", folder, "--format", "trec", "--tag", "x").stdout
    assert run.splitlines()[0].endswith(" x")


@pytest.mark.filterwarnings("ignore:.*are in no item")
def test_predict_on_fewer_sparse_features(rankgrad, trained, tmp_path):
    (tmp_path / "sparse.txt").write_text("1 qid:1 1:2\n0 qid:1 3:1\n")
    assert len(rankgrad("predict", trained, tmp_path / "sparse.txt").stdout.split()) == 2


def test_evaluate_takes_the_weights_that_validation_takes(
    quick, rankgrad, in_json, folder, tmp_path
):
    data = load(folder / "vali.txt")
    weights = np.random.default_rng(0).uniform(0.1, 5, data.n_items)
    shutil.copy(folder / "vali.txt", tmp_path / "vali.txt")
    (tmp_path / "vali.txt.weight").write_text("\n".join(map(str, weights)))
    run = tmp_path / "run"
    facts = in_json(
        "train", folder / "train.txt", "--vali", tmp_path / "vali.txt", "-o", run, *quick
    )
    found = in_json("evaluate", run, tmp_path / "vali.txt")
    assert found["mean"]["ndcg@10"] == pytest.approx(facts["best_value"], abs=1e-5)
    assert found["mean"] != in_json("evaluate", run, folder / "vali.txt")["mean"]
    assert found["item_weights"] is True
    assert "by their weights" in rankgrad("evaluate", run, tmp_path / "vali.txt").stdout


def test_evaluate_says_its_conventions(rankgrad, in_json, folder, tmp_path):
    data = load(folder / "test.txt")
    _scores.write(tmp_path / "s.txt", np.zeros(data.n_items, np.float32), data)
    text = rankgrad("evaluate", tmp_path / "s.txt", folder, "-m", "ndcg@3(empty=1)").stdout
    for part in ("ndcg@3(empty=1)", "95%", "count 1", "tied scores: average", "gain: 2^y - 1"):
        assert part in text
    facts = in_json("evaluate", tmp_path / "s.txt", folder, "-m", "ndcg@3(gain=linear)")
    conventions = {"empty": 0.0, "ties": "average", "gain": "linear"}
    assert facts["conventions"] == {"ndcg@3(gain=linear)": conventions}
    facts = in_json("evaluate", tmp_path / "s.txt", folder, "--per-list", "-m", "rr")
    assert facts["per_list"]["qid"] == data.qids.tolist()
    assert np.mean(facts["per_list"]["rr"]) == pytest.approx(facts["mean"]["rr"])


def test_evaluate_keeps_values_for_the_report(rankgrad, refused, trained, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    rankgrad("evaluate", run, folder, "--save", "-m", "ndcg@3")
    found = EvaluatedLists.load(run)
    assert found.metrics == ("ndcg@3",)
    assert found.labels_of_run == {
        "loss": "softmax",
        "model": "mlp(hidden=[8])",
        "seed": 0,
    }
    page = tmp_path / "page.html"
    text = rankgrad("report", run, "-o", page).stdout
    assert "1 ranker, 1 run, " in text and page.as_uri() in text
    assert f"{found.mean['ndcg@3']:.4f}" in page.read_text()
    assert "is there already" in refused("report", run, "-o", page)
    rankgrad("report", run, "-o", page, "--overwrite")
    assert "is not a run folder" in refused("evaluate", page, folder, "--save")
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    said = rankgrad("report", run, "-o", pipe)
    reader.join(timeout=60)
    assert "<html" in found[0]
    assert "file://" not in said.output and str(pipe) in said.stderr
    assert "is not there" in refused("report", tmp_path / "other", "-o", tmp_path / "x.html")
    assert "holds no run folder" in refused("report", folder, "-o", tmp_path / "x.html")
    assert "there are: ndcg@3" in refused("report", run, "-m", "ap", "-o", page, "--overwrite")
    assert "There are: softmax" in refused(
        "report", run, "--baseline", "mse", "-o", page, "--overwrite"
    )
    assert not (tmp_path / "x.html").exists()


def test_demo(rankgrad, in_json, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "SIZES", {"small": (12, 6, 6)})
    monkeypatch.chdir(tmp_path)
    found = in_json("demo", "--epochs", 1, "--device", "cpu", "-o", tmp_path / "runs")
    rows = found["rows"]
    assert [row["loss"] for row in rows][-1] == "best achievable"
    assert len(rows) == 6
    assert all(set(row["mean"]) == {"ndcg@5", "ndcg@10", "ap", "rr"} for row in rows)
    assert len(list((tmp_path / "runs").glob("*/evaluations/test"))) == 6
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "best achievable" in page and "reference" in page
    assert "<dt>seed</dt><dd>1</dd>" in page  # the best achievable has none, it was not trained
    assert "<dt>rankers</dt><dd>5</dd>" in page and "<dt>reference</dt><dd>1</dd>" in page
    assert "<dt>runs</dt><dd>5</dd>" in page and "<h1>5 losses on a simulated" in page
    assert {row["kind"].split(":")[0] for row in rows[:5]} == KINDS
    monkeypatch.setattr(demo, "LOSSES", {"mse": "pointwise"})
    done = rankgrad("demo", "--epochs", 1, "--device", "cpu")
    assert re.search(r"(?m)^mse: best validation ndcg@10 0\.\d{4} *$", done.stderr)
    text = done.stdout
    for part in ("pointwise", "best achievable", "±", "count 0", "Next:", "docs/results"):
        assert part in text
    assert "mse did best here by ndcg@10" in text and "rankgrad train DATA -o runs/first" in text
    for word in ("list: ", "metric: ", "loss: "):
        assert word in text
    assert (tmp_path / "rankgrad-demo" / "report.html").as_uri() in text


def test_the_demo_replaces_only_its_own(rankgrad, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "SIZES", {"small": (12, 6, 6)})
    monkeypatch.setattr(demo, "LOSSES", {"mse": "pointwise"})
    place = tmp_path / "mine"
    place.mkdir()
    (place / "thesis.txt").write_text("words")
    with pytest.raises(FileExistsError, match="not made by the demonstration"):
        demo.run(folder=place, epochs=1, device="cpu")
    assert (place / "thesis.txt").read_text() == "words"
    # Training that learns nothing stops early, which is said also without a terminal.
    fixed = {"patience": 1, "learning_rate": 1e-12}
    settings_for = demo.settings_for
    monkeypatch.setattr(demo, "settings_for", lambda *a, **o: settings_for(*a, **o | fixed))
    for _ in range(2):
        done = rankgrad("demo", "--epochs", 5, "--device", "cpu", "-o", tmp_path / "demo")
        assert re.search(
            r"mse: best validation ndcg@10 0\.\d{4}, stopped early after epoch 2", done.stderr
        )
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"mse", "best-achievable", "demo.json", "report.html"}
    with pytest.raises(FileExistsError, match="was not made by the demonstration"):
        demo.run(folder=tmp_path / "demo" / "report.html")


def test_the_bars_of_the_demo_start_with_training_and_stop_with_it(rankgrad, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "SIZES", {"small": (12, 6, 6)})
    monkeypatch.setattr(demo, "LOSSES", {"mse": "pointwise", "softmax": "likelihood"})
    settings_for, fit, bars, results = demo.settings_for, demo.fit_to_end, [], []
    fixed = {"patience": 1, "learning_rate": 1.0, "metric": "ap"}
    monkeypatch.setattr(demo, "settings_for", lambda *a, **o: settings_for(*a, **o | fixed))

    class Bars(rich.progress.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, **options)
            bars.append(self)

    def watched_fit(*arguments, **options):
        n_done = len(results)
        assert [task.started for task in bars[0].tasks] == [n_done >= 0, n_done >= 1]
        assert [task.stop_time is None for task in bars[0].tasks] == [n_done < 1, True]
        results.append(fit(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(rich.progress, "Progress", Bars)
    monkeypatch.setattr(demo, "fit_to_end", watched_fit)
    rankgrad("demo", "--epochs", 30, "--device", "cpu", "-o", tmp_path / "demo")
    for task, result in zip(bars[0].tasks, results, strict=True):
        assert result.stopped == "patience" and task.stop_time is not None
        assert result.best_value > result.history[-1]["ap"]
        end = f"stopped early after epoch {result.history[-1]['epoch']}"
        assert task.fields["value"] == f"best validation ap {result.best_value:.4f}, {end}"


def test_version(rankgrad):
    assert rankgrad("--version").stdout.startswith("rankgrad 0")


def test_epochs_are_logged_where_it_is_asked_for(rankgrad, refused, folder, quick, tmp_path):
    pytest.importorskip("tensorboard")
    logged = f'tensorboard(folder="{tmp_path / "events"}")'
    rankgrad("train", folder, "-o", tmp_path / "run", *quick, "--log", logged)
    assert list((tmp_path / "events").glob("events.*"))
    given = ("train", folder, "-o", tmp_path / "other", *quick)
    assert "There are: " in refused(*given, "--log", "tensorbord")
    assert not (tmp_path / "other").exists()
