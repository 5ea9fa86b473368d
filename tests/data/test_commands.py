"""The commands about data: what they refuse, and that what fails leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rankgrad import _checksums
from rankgrad.cli import app
from rankgrad.data import Dataset, columnar, load, store

Same = Callable[[Dataset, Dataset], None]


def run(*arguments: object) -> str:
    """What a command that works prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    """The one line that a command ends with."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_verify(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checksums, "BLOCK", 128)  # so that opening reads no more than the first
    store.write_splits({"train": dataset, "test": dataset}, tmp_path / "set")
    run("data", tmp_path / "set", "--verify")
    path = tmp_path / "set" / "test" / "features.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    run("data", tmp_path / "set")
    for place in (tmp_path / "set", tmp_path / "set" / "test"):
        assert "features.npy does not have the checksum" in refused("data", place, "--verify")
    (tmp_path / "x.txt").write_text("1 qid:1 1:1\n")
    assert "holds no store" in refused("data", tmp_path / "x.txt", "--verify")
    assert "holds no store" not in refused("data", tmp_path / "gone", "--verify")
    for options in (["--verify"], ["--fold", 0], ["--missing", -1]):  # the list ignores them
        assert "go with DATA" in refused("data", *options)


@pytest.fixture
def folds(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        for split in ("train", "test"):
            path = tmp_path / "folds" / f"Fold{number}" / f"{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"1 qid:{number} 1:1\n")
    return tmp_path / "folds"


def test_folds_are_imported_all_or_nothing(folds: Path, tmp_path: Path) -> None:
    good = (folds / "Fold3" / "test.txt").read_text()
    (folds / "Fold3" / "test.txt").write_text("1 qid:1 nonsense\n")
    assert "line 1" in refused("import", folds, "-o", tmp_path / "stores")
    assert [path.name for path in tmp_path.iterdir()] == ["folds"]
    (folds / "Fold3" / "test.txt").write_text(good)
    run("import", folds, "-o", tmp_path / "stores")
    assert sorted(path.name for path in (tmp_path / "stores").iterdir()) == [
        "Fold1", "Fold2", "Fold3",
    ]  # fmt: skip
    assert "already" in refused("import", folds, "-o", tmp_path / "stores")
    run("import", folds, "-o", tmp_path / "stores", "--overwrite")
    run("data", tmp_path / "stores" / "Fold2", "--verify")


def test_options_that_a_source_would_ignore_are_refused(folds: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for option in (["--feature", "x"], ["--query", "q"], ["--fill", "0"]):
        said = refused("import", folds, *option, "-o", out)
        assert f"{option[0]} goes with columnar files, of which" in said
    file = folds / "Fold1" / "train.txt"
    assert "--weight goes with columnar" in refused("import", file, "--weight", "w", "-o", out)
    assert "folder of stores" in refused("import", folds, "-o", tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("qid,label,x\n1,1,1\n")
    assert "there is --id" in refused("import", tmp_path / "x.csv", "--docids", "-o", out)
    for sources in ([tmp_path / "x.csv"], [file, folds / "Fold1" / "test.txt"]):
        assert "leave out --fold" in refused("import", *sources, "--fold", 1, "-o", out)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("qid,label,x\n1,1,1\n")
    assert "there is --id" in refused("import", tmp_path / "csv", "--docids", "-o", out)
    assert not out.exists()


def test_options_reach_the_files_of_a_folder(tmp_path: Path) -> None:
    both, out = tmp_path / "both", tmp_path / "out"
    both.mkdir()
    for split in ("train", "test"):
        (both / f"{split}.csv").write_text("s,clicks,x,y,z\na,1,1,,3\na,0,2,5,4\n")
    options = ["--query", "s", "--label", "clicks", "--feature", "y", "--feature", "x"]
    run("import", both, *options, "--fill", "0.5", "-o", out)
    for split in ("train", "test"):
        data = store.open(out / split)
        assert data.features.tolist() == [[0.5, 1], [5, 2]]
        assert data.labels.tolist() == [1, 0]
        assert data.feature_names == ("y", "x")


def test_docids_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt").write_text("1 qid:1 1:1 # docid = d7\n")
    run("import", tmp_path / "set", "--docids", "-o", tmp_path / "out")
    assert (store.open(tmp_path / "out" / "train").ids == ["d7"]).all()


def test_a_folder_of_parts_is_one_data_set(dataset: Dataset, same: Same, tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / "set" / split
        folder.mkdir(parents=True)
        (folder / "_SUCCESS").write_text("")
        for number, lists in ((10, [5, 6]), (2, [2, 3, 4]), (0, [0, 1])):
            columnar.write(dataset.select(lists), folder / f"part-{number}.parquet")
    same(load(tmp_path / "set" / "test"), dataset)
    same(load(tmp_path / "set", split="test"), dataset)
    run("import", tmp_path / "set" / "train", "-o", tmp_path / "one")
    same(store.open(tmp_path / "one"), dataset)
    run("import", tmp_path / "set", "-o", tmp_path / "both")
    same(store.open(tmp_path / "both" / "test"), dataset)
    renamed = replace(dataset.select([0]), feature_names=("bm25", "clicks", "pagerank", "other"))
    columnar.write(renamed, tmp_path / "set" / "test" / "part-11.parquet")
    said = refused("import", tmp_path / "set" / "test", "-o", tmp_path / "two")
    assert "part-11.parquet has no column 'length'" in said


@pytest.mark.parametrize("value", ["inf", "-1e99"])
def test_import_takes_finite_values_only(tmp_path: Path, value: str) -> None:
    path = tmp_path / "train.txt"
    path.write_text(f"1 qid:1 1:1\n0 qid:1 1:2 3:{value}\n")
    said = [
        refused("import", *sources, "-o", tmp_path / "out")
        for sources in ([path], [path, path], [tmp_path])
    ]
    assert all("train.txt, line 2: the value of feature 3 is" in line for line in said)
    assert not (tmp_path / "out").exists()


def test_import_says_what_is_missing_and_left_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = tmp_path / "log.csv"
    path.write_text("qid,label,x,url\n1,1,1,a\n1,0,,b\n1,0,-9,c\n")
    said = " ".join(run("import", path, "--missing", "-9", "-o", tmp_path / "out").split())
    assert "2 feature values are missing" in said
    assert "log.csv: columns left out, which are neither numbers nor few texts: url" in said
    assert "log.csv: log.csv" not in said
    np.testing.assert_array_equal(
        store.open(tmp_path / "out").features[:, 0], np.array([1, np.nan, np.nan], np.float32)
    )
    run("import", path, "--fill", 0, "--overwrite", "-o", tmp_path / "out")
    assert store.open(tmp_path / "out").features.tolist() == [[1], [0], [-9]]


@pytest.mark.filterwarnings("always::UserWarning")
def test_missing_folds_of_a_known_set_are_warned_of(folds: Path, tmp_path: Path) -> None:
    source = folds.rename(tmp_path / "MQ2008")
    for number in (1, 2, 3):
        for split in ("train", "vali", "test"):
            (source / f"Fold{number}" / f"{split}.txt").write_text("1 qid:1 46:1\n")
    result = CliRunner().invoke(app, ["import", str(source), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "MQ2008 has 5 folds, here 4, 5 are missing" in result.stderr
    assert "MQ2008 has 471 queries in train of fold 2, here there are 1" in result.stderr
    other = source.rename(tmp_path / "mine")
    result = CliRunner().invoke(app, ["import", str(other), "-o", str(tmp_path / "out2")])
    assert result.exit_code == 0 and not result.stderr
