"""rankgrad distill: a student of a trained ranker, and what it loses."""

import json

import pytest


@pytest.mark.parametrize("model", ["mlp(hidden=[4])", "lightgbm(num_leaves=4)"])
def test_a_student_is_trained_measured_and_exported(
    model, rankgrad, in_json, trained, folder, tmp_path
):
    short = ["--model", model, "--epochs", 3, "--device", "cpu"]
    facts = in_json("distill", trained, folder, "-o", tmp_path / "student", *short)
    assert facts["on"] == "test" and facts["lists"] == 6
    one = facts["metrics"][0]
    assert one["difference"] == pytest.approx(one["student"] - one["teacher"])
    assert 0 < one["p"] <= 1
    again = in_json("evaluate", tmp_path / "student", folder)
    assert again["mean"]["ndcg@10"] == pytest.approx(one["student"])
    rankgrad("export", tmp_path / "student", "--format", "solr", "-o", tmp_path / "a.json")
    kind = json.loads((tmp_path / "a.json").read_text())["class"].rpartition(".")[2]
    expected = {"mlp": "NeuralNetworkModel", "lightgbm": "MultipleAdditiveTreesModel"}
    assert kind == expected[model.partition("(")[0]]


def test_what_is_lost_is_printed_with_a_test(rankgrad, trained, folder, tmp_path):
    files = [folder / "train.txt", "--vali", folder / "vali.txt"]
    short = ["--epochs", 1, "--device", "cpu", "-l", "margin_mse", "--teacher-labels", "shift"]
    said = rankgrad("distill", trained, *files, "-o", tmp_path / "student", *short)
    assert "paired randomization test" in said.stdout and "difference" in said.stdout
    assert "no test data" in said.stderr


def test_a_student_learns_the_order_of_its_teacher():
    """Of a teacher that knows what the labels do not say."""
    import numpy as np
    from learnable import lists as learnable

    from rankgrad.export.distillation import taught
    from rankgrad.training import FittedRanker, Settings, fit

    data = learnable(60, features=4)
    teacher = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=()), data.features)
    settings = Settings(loss="listnet", model="mlp(hidden=[])", transforms=(), device="cpu")
    settings = settings.model_copy(update={"epochs": 60, "patience": None, "learning_rate": 0.1})
    student = fit(settings, taught(data, teacher)).model
    close = np.corrcoef(student.predict(data.features), teacher.predict(data.features))[0, 1]
    assert close > 0.999


def test_what_is_wrong_is_said(refused, trained, folder, tmp_path):
    place = ["-o", tmp_path / "student"]
    assert "give --test" in refused("distill", trained, folder / "train.txt", *place)
    assert "leave out --vali" in refused("distill", trained, folder, "--vali", folder, *place)
    assert "listnet" in refused("distill", trained, folder, "--loss", "lisnet", *place)
    assert not (tmp_path / "student").exists()
