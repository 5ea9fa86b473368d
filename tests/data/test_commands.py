"""The commands about data: what they refuse, and that what fails leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.data import Dataset, store


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


def test_verify(dataset: Dataset, tmp_path: Path) -> None:
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
