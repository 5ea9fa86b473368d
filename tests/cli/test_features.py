"""Features after training: the same ones in the same order, whatever the next file looks like."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankgrad.data import Dataset, load
from rankgrad.training import RunFolder

NAMES = ["a", "b", "c"]


def write_csv(data: Dataset, path: Path, names: list[str]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["qid", "label", *names])
        for at, qid in enumerate(data.qids):
            for row in range(data.offsets[at], data.offsets[at + 1]):
                values = [data.features[row, NAMES.index(name)] for name in names]
                rows.writerow([qid, data.labels[row], *values])
    return path


@pytest.fixture
def run(in_json: Callable[..., Any], quick: list[str], tmp_path: Path) -> Callable[..., Path]:
    """Trains, and gives the run folder."""

    def trained(*arguments: object) -> Path:
        in_json("train", *arguments, "-o", tmp_path / "run", *quick)
        return tmp_path / "run"

    return trained


def test_columns_in_another_order_are_found_by_name(
    run, in_json, rankgrad, refused, folder, tmp_path
):
    data = load(folder / "train.txt")
    train = write_csv(data, tmp_path / "train.csv", NAMES)
    turned = write_csv(data, tmp_path / "turned.csv", NAMES[::-1])
    done = run(train, "--vali", turned)
    assert RunFolder.open(done).best().feature_names == ("a", "b", "c")
    assert in_json("evaluate", done, turned) == in_json("evaluate", done, train)
    assert rankgrad("predict", done, turned).stdout == rankgrad("predict", done, train).stdout
    best = RunFolder.open(done).history
    assert in_json("evaluate", done, train)["mean"]["ndcg@10"] == pytest.approx(
        max(line["ndcg@10"] for line in best), abs=1e-5
    )
    fewer = write_csv(data, tmp_path / "fewer.csv", ["c", "a"])
    assert "'b'" in refused("evaluate", done, fewer)
    assert f"the ranker in {done} was trained on 3 features" in refused("predict", done, fewer)


def test_a_file_that_names_no_feature_0_is_not_read_one_off(run, in_json, rankgrad, tmp_path):
    lines = [f"{i % 3} qid:{i // 4} 1:{i % 5} 2:{i % 7}" for i in range(40)]
    (tmp_path / "train.txt").write_text("\n".join([*lines, "1 qid:10 0:1 1:1 2:1"]))
    (tmp_path / "vali.txt").write_text("\n".join(lines))
    done = run(tmp_path / "train.txt", "--vali", tmp_path / "vali.txt")
    assert RunFolder.open(done).best().zero_based is True
    full = rankgrad("predict", done, tmp_path / "train.txt").stdout.splitlines()
    assert rankgrad("predict", done, tmp_path / "vali.txt").stdout.splitlines() == full[:40]


def test_validation_files_may_name_fewer_sparse_features(run, in_json, folder, tmp_path):
    (tmp_path / "vali.txt").write_text("1 qid:1 1:2\n0 qid:1 3:1\n")
    done = run(folder / "train.txt", "--vali", tmp_path / "vali.txt")
    assert RunFolder.open(done).metadata["data"]["vali"]["features"] == 16


def test_training_files_may_name_fewer_sparse_features(run, in_json, folder, tmp_path):
    (tmp_path / "vali.txt").write_text("1 qid:1 1:2\n0 qid:1 18:1\n")
    done = run(folder / "train.txt", "--vali", tmp_path / "vali.txt")
    facts = RunFolder.open(done).metadata["data"]
    assert facts["train"]["features"] == facts["vali"]["features"] == 18


def test_all_files_count_features_from_0_if_one_does(run, folder, tmp_path):
    (tmp_path / "vali.txt").write_text("1 qid:1 0:2\n0 qid:1 3:1\n")
    done = run(folder / "train.txt", "--vali", tmp_path / "vali.txt")
    assert RunFolder.open(done).best().zero_based is True
    assert RunFolder.open(done).metadata["data"]["train"]["features"] == 17


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize("kind", ["letor", "csv"])
def test_more_features_than_the_ranker_takes(command, kind, refused, trained, folder, tmp_path):
    if kind == "letor":
        wider = tmp_path / "wider.txt"
        wider.write_text("1 qid:1 1:2 16:1\n0 qid:1 136:1\n")
    else:
        wider = tmp_path / "wider.csv"
        names = ",".join(f"f{j}" for j in range(136))
        wider.write_text(f"qid,label,{names}\na,1{',0.5' * 136}\n")
    said = refused(command, trained, wider)
    assert f"the ranker in {trained} was trained on 16 features, and {wider} has others" in said
    assert "give it data with the same ones, or train one on data like these" in said
    where = {"letor": "line 2: feature id 136 is beyond", "csv": "has 136 features"}[kind]
    assert where in said


@pytest.mark.filterwarnings("default")
def test_a_file_that_lacks_most_features_is_a_warning(trained, folder, tmp_path, rankgrad):
    lines = [line.split() for line in (folder / "test.txt").read_text().splitlines()]
    few = tmp_path / "few.txt"
    few.write_text("".join(" ".join(line[:5]) + "\n" for line in lines))
    for command in ("predict", "evaluate"):
        result = rankgrad(command, trained, few)
        (line,) = (line for line in result.stderr.splitlines() if "warning" in line)
        assert line.startswith(f"rankgrad: warning: {few}: 13 of the 16 features")
        assert "warning" not in rankgrad(command, trained, folder).stderr
