"""rankgrad distill: a student of a trained ranker, and what it loses."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.training import fit


@pytest.mark.parametrize("model", ["mlp(hidden=[4])", "lightgbm(num_leaves=4)"])
def test_a_student_is_trained_measured_and_exported(
    model, rankgrad, in_json, trained, folder, tmp_path
):
    short = ["--model", model, "--epochs", 3, "--device", "cpu"]
    found = in_json("distill", trained, folder, "-o", tmp_path / "student", *short)
    assert found["on"] == "test" and found["lists"] == 6
    one = found["metrics"][0]
    assert one["difference"] == pytest.approx(one["student"] - one["teacher"])
    assert 0 < one["p"] <= 1
    again = in_json("evaluate", tmp_path / "student", folder)
    assert again["mean"]["ndcg@10"] == pytest.approx(one["student"])
    rankgrad("export", tmp_path / "student", "--format", "solr", "-o", tmp_path / "a.json")
    kind = json.loads((tmp_path / "a.json").read_text())["class"].rpartition(".")[2]
    expected = {"mlp": "NeuralNetworkModel", "lightgbm": "MultipleAdditiveTreesModel"}
    assert kind == expected[model.partition("(")[0]]


def test_a_fold_of_files_is_refused(refused, trained, folder, tmp_path):
    files = [folder / "train.txt", "--vali", folder / "vali.txt", "--fold", 1]
    assert "leave out" in refused("distill", trained, *files, "-o", tmp_path / "student")


def test_what_is_lost_is_printed_with_a_test(rankgrad, trained, folder, tmp_path):
    files = [folder / "train.txt", "--vali", folder / "vali.txt"]
    short = ["--epochs", 1, "--device", "cpu", "-l", "margin_mse", "--teacher-labels", "shift"]
    said = rankgrad("distill", trained, *files, "-o", tmp_path / "student", *short)
    assert "paired randomization test" in said.stdout and "difference" in said.stdout
    assert "no test data" in said.stderr


def test_missing_values_go_to_solr_with_a_student(rankgrad, in_json, refused, folder, tmp_path):
    """The way out that the message names: what it refuses, the student's file takes."""
    data, files = tmp_path / "data", [*folder.glob("*.txt")]
    data.mkdir()
    for file in files:  # every fifth value of two features is missing
        lines = file.read_text().splitlines()
        for at in range(0, len(lines), 5):
            lines[at] = re.sub(r" ([25]):\S+", r" \1:-999", lines[at])
        (data / file.name).write_text("\n".join(lines))
    short = ["--epochs", 2, "--device", "cpu"]
    scaled = ["--model", "mlp(hidden=[4])", "--transform", "standardize"]
    rankgrad("train", data, "-o", tmp_path / "first", "--missing", -999, *scaled, *short)
    solr = ["--format", "solr", "-o", tmp_path / "a.json", "--data", data]
    said = refused("export", tmp_path / "first", *solr)
    assert "engines send 0" in said and "rankgrad distill" in said
    assert not (tmp_path / "a.json").exists()
    done = in_json("distill", tmp_path / "first", data, "-o", tmp_path / "student", *short)
    again = in_json("evaluate", tmp_path / "student", data)  # which reads -999 as missing too
    assert again["mean"]["ndcg@10"] == pytest.approx(done["metrics"][0]["student"])
    rankgrad("export", tmp_path / "student", *solr)
    assert "NeuralNetworkModel" in (tmp_path / "a.json").read_text()
    trees = ["--model", "xgboost(max_leaves=4)", *short]
    rankgrad("distill", tmp_path / "first", data, "-o", tmp_path / "trees", *trees)
    said = rankgrad("export", tmp_path / "trees", *solr, "--overwrite").stderr
    assert "Solr 9.2" in said and "2 features (2, 5)" in said


def test_an_interrupted_student_is_not_there(trained, folder, tmp_path, monkeypatch):
    def stopped(*arguments, **options):
        return replace(fit(*arguments, **options), stopped="interrupted")

    monkeypatch.setattr("rankgrad.training._fitting.fit", stopped)
    arguments = ["distill", trained, folder, "-o", tmp_path / "student", "--epochs", 1]
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
    assert result.exit_code == 130 and "there is no student" in result.stderr
    assert not (tmp_path / "student").exists()


def test_what_is_wrong_is_said(refused, trained, folder, tmp_path):
    place = ["-o", tmp_path / "student"]
    assert "give --test" in refused("distill", trained, folder / "train.txt", *place)
    assert "leave out --vali" in refused("distill", trained, folder, "--vali", folder, *place)
    assert "listnet" in refused("distill", trained, folder, "--loss", "lisnet", *place)
    assert not (tmp_path / "student").exists()
