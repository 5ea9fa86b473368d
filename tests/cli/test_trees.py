"""Boosted trees on the command line: train, predict, evaluate, report, compare."""

import json
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from cli.test_processes import start

from rankgrad.data import load
from rankgrad.experiments._tree_entries import TreeEntry

FILES = {"lightgbm": "trees.txt", "xgboost": "trees.json"}


@pytest.mark.parametrize("kind", list(FILES))
def test_a_run_of_trees_is_like_any_other(rankgrad, in_json, refused, folder, tmp_path, kind):
    library = pytest.importorskip(kind)
    run = tmp_path / "run"
    options = ["--loss", "lambdaloss@5", "--model", kind, "--epochs", "6", "-m", "ndcg@5"]
    options += ["--device", "cpu"]  # also where the run is resumed, whose settings have none
    printed = in_json("train", folder, *options, "-o", run)
    assert printed["epochs"] == len(printed["history"]) <= 6
    values = [line["ndcg@5"] for line in printed["history"]]
    assert printed["best_value"] == max(values) == values[printed["best_epoch"] - 1]
    assert sorted(path.name for path in run.iterdir()) == [
        "best", "last", "metrics.jsonl", "run.json", "settings.toml",
    ]  # fmt: skip

    listed = (run / "settings.toml").read_text()  # and none of networks
    assert "patience" in listed
    assert "optimizer" not in listed

    rankgrad("predict", run, folder, "-o", tmp_path / "scores.txt")
    scores = np.loadtxt(tmp_path / "scores.txt")
    features = np.asarray(load(folder, split="test").features)
    saved = run / "best" / FILES[kind]  # which the library reads by itself
    if kind == "lightgbm":
        alone = library.Booster(model_file=saved).predict(features)
    else:
        alone = library.Booster(model_file=saved).predict(library.DMatrix(features))
    np.testing.assert_allclose(scores, alone, rtol=1e-5, atol=1e-6)

    rankgrad("evaluate", run, folder, "--save")
    rankgrad("report", run, "-o", tmp_path / "report.html")
    assert "lambdaloss@5" in (tmp_path / "report.html").read_text()
    rankgrad("explain", run, folder, "--repeats", 1, "--queries", 1, "-o", tmp_path / "explained")
    qid = load(folder, split="test").qids[0]
    pair = in_json("explain", run, folder, "--query", qid, "--above", 2, "--below", 1)
    parts = sum(row["attribution"] for row in pair["attributions"])
    assert parts == pytest.approx(pair["scores"][0] - pair["scores"][1], abs=1e-5)
    assert "TreeSHAP" in rankgrad("explain", run, folder, "--query", qid).stdout
    again = in_json("train", folder, *options, "-o", run, "--resume")
    assert {**again, "seconds": 0} == {**printed, "seconds": 0}
    assert "trained on the CPU" in refused(
        "train", folder, *options, "--devices", "2", "-o", tmp_path / "two"
    )
    assert not (tmp_path / "two").exists()
    saved.write_bytes(saved.read_bytes().replace(b"1", b"2", 1))
    assert "damaged" in refused("predict", run, folder)


def test_ctrl_c_keeps_the_trees_and_resume_goes_on(rankgrad, folder, tmp_path):
    pytest.importorskip("lightgbm")
    run = tmp_path / "run"
    options = ["--loss", "lambdaloss@5", "--model", "lightgbm(min_data_in_leaf=5)"]
    options += ["--patience", "none", "--epochs"]
    process = start("train", folder, *options, 100000, "-o", run)
    until = time.monotonic() + 60
    while time.monotonic() < until and len(history(run)) < 3:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("rankgrad: interrupted and saved; to go on: rankgrad")
    grown = len(history(run))
    assert grown >= 3
    files = [run / name / "trees.txt" for name in ("last", "best")]
    assert files[0].read_text().count("Tree=") == grown
    assert 1 <= files[1].read_text().count("Tree=") <= grown
    rankgrad("evaluate", run, folder)  # which takes the best so far

    small = tmp_path / "small"  # the same with few trees: first ten, then five more
    rankgrad("train", folder, *options, 10, "-o", small)
    rankgrad("train", folder, *options, 15, "-o", small, "--resume")
    rankgrad("train", folder, *options, 15, "-o", tmp_path / "whole")
    for name in ("last", "best"):
        file = f"{name}/trees.txt"
        assert (small / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def history(run):
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_the_same_bytes_again(rankgrad, folder, tmp_path):
    pytest.importorskip("lightgbm")
    options = ["--loss", "gumbel_neural_ndcg", "--model", "lightgbm(bagging_fraction=0.5)"]
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        rankgrad("train", folder, *options, "--epochs", "3", "--seed", seed, "-o", tmp_path / name)
    one, again, other = (
        (tmp_path / name / "best" / "trees.txt").read_bytes() for name in ("one", "again", "other")
    )
    assert one == again != other


@pytest.mark.parametrize("kind", list(FILES))
def test_trees_without_validation_are_counted(rankgrad, in_json, folder, tmp_path, kind):
    pytest.importorskip(kind)
    run = tmp_path / "run"
    given = ["train", folder / "train.txt", "--model", kind, "--epochs", "2", "-o", run]
    given += ["--holdout", "0"]
    assert "2 trees in" in rankgrad(*given).stdout
    if kind == "lightgbm":
        assert (run / "best" / FILES[kind]).read_text().count("Tree=") == 2
    again = in_json(*given, "--resume")
    assert [sorted(line) for line in again["history"]] == [["epoch", "seconds"]] * 2
    assert (again["best_epoch"], again["best_value"], again["stopped"]) == (2, None, "epochs")
    rankgrad("report", run, "-o", tmp_path / "report.html")


def test_losses_for_trees_are_compared_beside_networks_and_the_built_in(
    in_json, folder, tmp_path, monkeypatch
):
    pytest.importorskip("lightgbm")
    boost = TreeEntry.boost
    monkeypatch.setattr(TreeEntry, "boost", lambda own, *rest: boost(few(own), *rest))
    monkeypatch.setattr(
        "rankgrad.experiments._tree_entries._GRID",
        {"lightgbm": [({"num_leaves": 2}, {"num_leaves": 3})]},
    )
    arguments = ["--losses", "mse", "--trees", "lambdaloss@5, neural_ndcg@5", "--lightgbm"]
    fast = ["--epochs", "1", "--models", "mlp(hidden=[8])", "--device", "cpu", "--workers", "0"]
    printed = in_json("compare", folder, *arguments, "-m", "ndcg@5", *fast, "-o", tmp_path / "out")
    assert [row["candidate"] for row in printed["rows"]] == [
        "mse", "LightGBM", "lambdaloss@5 × lightgbm", "neural_ndcg@5 × lightgbm",
    ]  # fmt: skip
    logs = (tmp_path / "out" / "tuning").rglob("*.json")
    trials = [json.loads(path.read_text())["trials"] for path in logs]
    assert len(trials) == 3  # all trees, tuned alike
    assert {len(one) for one in trials} == {2}
    entries = printed["plan"]["candidates"]
    assert entries["lambdaloss@5 × lightgbm"]["loss"] == "lambdaloss@5"
    assert "loss" not in entries["LightGBM"]


def few(entry):
    return replace(entry, rounds=3)
