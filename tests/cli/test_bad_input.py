"""Bad input: one line that says what, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from rewritten import rewrite
from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.data import load, store


def test_missing_files(refused, folder, trained, tmp_path):
    assert "did you mean" in refused("train", folder / "trian.txt", "-o", tmp_path / "run")
    assert "there is no" in refused("evaluate", tmp_path / "none.txt", folder)
    assert "there is no" in refused("predict", trained, tmp_path / "none.txt")
    assert "there is no model" in refused("predict", tmp_path, folder)
    assert "there is no" in refused("import", tmp_path / "none", "-o", tmp_path / "store")
    assert "there are no settings" in refused(
        "train", folder, "-o", tmp_path / "run", "--settings", tmp_path / "none.toml"
    )
    assert list(tmp_path.iterdir()) == []


def test_wrong_names(refused, folder, tmp_path):
    assert "Did you mean 'ranknet'" in refused("losses", "rankent")
    assert "unknown loss" in refused("train", folder, "-o", tmp_path / "r", "--loss", "ndgc")
    assert "unknown split" in refused("evaluate", folder / "test.txt", folder, "--split", "tset")
    assert "epochs" in refused("train", folder, "-o", tmp_path / "r", "--epochs", 0)
    assert "patience" in refused("train", folder, "-o", tmp_path / "r", "--patience", "soon")
    assert list(tmp_path.iterdir()) == []


def test_malformed_line(refused, tmp_path):
    (tmp_path / "bad.txt").write_text("1 qid:1 1:2\n0 qid:1 1:x\n")
    line = refused("train", tmp_path / "bad.txt", "-o", tmp_path / "run")
    assert "bad.txt, line 2" in line
    assert not (tmp_path / "run").exists()


def test_feature_counts_that_differ(refused, folder, trained, tmp_path):
    wide = tmp_path / "wide.txt"
    wide.write_text("1 qid:1 99:1\n0 qid:1 98:1\n")
    assert "16" in refused("predict", trained, wide)
    narrow = tmp_path / "narrow.csv"
    narrow.write_text("qid,label,x\n1,1,2\n1,0,3\n")
    assert "16" in refused("evaluate", trained, narrow)
    train = ("train", folder / "train.txt", "-o", tmp_path / "run")
    line = refused(*train, "--vali", narrow)
    assert "narrow.csv" in line
    assert "16" in line
    assert not (tmp_path / "run").exists()


def test_an_infinite_value_is_said_in_one_line(refused, folder, tmp_path):
    odd = tmp_path / "odd.txt"
    odd.write_text("1 qid:1 1:inf\n0 qid:1 1:1\n")
    for files in ([odd], [odd, "--vali", folder / "vali.txt"]):
        assert "an infinite feature" in refused("train", *files, "-o", tmp_path / "run")


def test_empty_splits(refused, folder, tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("1 qid:1 1:1\n0 qid:1 1:2\n")
    (tmp_path / "vali.txt").write_text("\n")
    assert "vali.txt: no rows" in refused("train", tmp_path, "-o", tmp_path / "run")
    (tmp_path / "vali.txt").unlink()
    (tmp_path / "train.txt").unlink()
    assert "no train in it" in refused("train", tmp_path, "-o", tmp_path / "run")
    assert "no split 'vali'" in refused(
        "evaluate", folder / "test.txt", tmp_path, "--split", "vali"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(refused, folder, trained, tmp_path):
    assert "no GPU" in refused("train", folder, "-o", tmp_path / "run", "--device", "cuda")
    assert "no GPU" in refused("predict", trained, folder, "--device", "cuda")
    assert not (tmp_path / "run").exists()


def test_what_is_there_is_kept(refused, folder, trained, tmp_path):
    assert "is there already" in refused("train", folder, "-o", trained)
    assert "other settings" in refused("train", folder, "-o", trained, "--resume", "--seed", 5)
    assert "is not there: nothing to resume" in refused(
        "train", folder, "-o", tmp_path / "none", "--resume"
    )
    settings = ("--settings", trained / "settings.toml")
    assert "leave out --settings" in refused("train", folder, "-o", trained, "--resume", *settings)
    (tmp_path / "mine.txt").write_text("mine")
    assert "overwrite" in refused("predict", trained, folder, "-o", tmp_path / "mine.txt")
    assert "already" in refused("import", folder, "-o", tmp_path)
    store.write(load(folder / "vali.txt"), tmp_path / "store")
    there = refused("import", folder / "vali.txt", "-o", tmp_path / "store")
    assert "--overwrite or overwrite=True replaces it" in there
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_needs_no_data_is_said_before_it_is_read(refused, folder, trained, tmp_path):
    alone = folder / "train.txt"  # without validation data there would be a note as well
    assert "is there already" in refused("train", alone, "-o", trained)
    assert "other settings" in refused("train", alone, "-o", trained, "--resume", "--seed", 5)
    if not torch.cuda.is_available():
        line = refused("train", alone, "-o", tmp_path / "r", "--device", "cuda")
        assert line.endswith("no GPU is found: take cpu or auto")


def test_a_run_that_never_began_does_not_stand_in_the_way(
    quick, refused, in_json, folder, tmp_path
):
    files = (folder / "train.txt", "--vali", folder / "vali.txt", "-o", tmp_path / "run")
    diverging = ("--loss", "mse", "--optimizer", "sgd", "--lr", 1e30, "--batch-size", 1)
    assert "diverged in epoch 1" in refused("train", *files, *diverging, *quick)
    assert list(tmp_path.iterdir()) == []
    in_json("train", *files, *quick)


def test_damaged_runs(refused, folder, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    run, again = tmp_path / "run", ("train", folder, "-o", tmp_path / "run", "--resume")
    rewrite(run / "best" / "model.json", drop=["settings"])
    line = refused("predict", run, folder)
    assert "model.json is damaged ('settings'" in line
    assert "put back a copy" in line
    for content in ("[]", '{"epoch": 1', '{"epoch": "x"}'):
        (run / "last" / "state.json").write_text(content)
        assert "state.json is damaged" in refused(*again)
    for content in ("[]", '{"data"', "{}"):
        (run / "run.json").write_text(content)
        assert "run.json is damaged" in refused(*again)


def test_errors_of_our_own_keep_their_traceback(monkeypatch, folder, tmp_path):
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("rankgrad.data.load_splits", broken)
    result = CliRunner().invoke(app, ["data", str(folder)])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 99 bytes"), 2, "allocate"),
        (RuntimeError("can't start new thread"), 2, "thread"),
        (ValueError("x" * 10**6), 2, "(1,000,000 characters)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_in_one_bounded_line(monkeypatch, folder, error, code, words):
    def broken(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("rankgrad.data.load_splits", broken)
    result = CliRunner().invoke(app, ["data", str(folder)])
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert words in line
    assert len(line) < 2100


def test_an_import_that_was_interrupted_is_no_import_error(monkeypatch, folder):
    def broken(*arguments: object, **options: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("rankgrad.data.load_splits", broken)
    assert CliRunner().invoke(app, ["data", str(folder)]).exit_code == 130


@pytest.mark.parametrize(
    ("command", "file"),
    [("predict", "best/model.json"), ("report", "run.json"), ("resume", "last/state.json")],
)
@pytest.mark.parametrize("content", ["[" * 100_000, '{"data": {"train": {}}, "epoch": -1}'])
def test_damaged_json_is_one_line(refused, folder, trained, tmp_path, command, file, content):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / file).write_text(content)
    if command == "report":  # it shows what is wrong on the page
        page = tmp_path / "page.html"
        result = CliRunner().invoke(app, ["report", str(run), "-o", str(page)])
        assert result.exit_code == 0
        assert "run.json is damaged" in result.stderr
        return
    arguments = {
        "predict": ("predict", run, folder),
        "resume": ("train", folder, "-o", run, "--resume"),
    }[command]
    assert f"{file.split('/')[-1]} " in refused(*arguments)


def test_the_standard_input(folder, trained, tmp_path):
    text = (folder / "test.txt").read_bytes()

    def piped(*arguments: object) -> bytes:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)
        assert result.exit_code == 0, result.stderr
        return result.stdout_bytes

    scores = tmp_path / "scores.txt"
    scores.write_bytes(piped("predict", trained, "-"))
    from_pipe = json.loads(piped("evaluate", scores, "-", "--json"))
    assert from_pipe == json.loads(piped("evaluate", scores, folder / "test.txt", "--json"))
    piped("import", "-", "-o", tmp_path / "store")
    piped("train", "-", "-o", tmp_path / "run", "--epochs", 1, "--model", "mlp(hidden=[2])")


def test_the_standard_input_is_read_once(refused, folder, tmp_path):
    words = "the standard input (-) can be read only once"
    assert words in refused("evaluate", "-", "-")
    assert words in refused("import", "-", "-", "-o", tmp_path / "store")
    assert words in refused("train", "-", "--vali", "-", "-o", tmp_path / "run")
    assert "give a folder of splits" in refused("compare", "-", "-o", tmp_path / "out")


def test_traceback_on_demand(tmp_path):
    result = CliRunner().invoke(app, ["--traceback", "data", str(tmp_path / "none")])
    assert isinstance(result.exception, FileNotFoundError)


def test_warnings_are_one_line(folder, monkeypatch, recwarn):
    import warnings

    from rankgrad.data import load_splits

    def warned(*arguments: object, **options: object) -> object:
        warnings.warn("the counts differ", stacklevel=2)
        return load_splits(folder)

    monkeypatch.setattr("rankgrad.data.load_splits", warned)
    warnings.simplefilter("default")
    result = CliRunner().invoke(app, ["data", str(folder)])
    assert result.stderr.splitlines()[0] == "rankgrad: warning: the counts differ"
