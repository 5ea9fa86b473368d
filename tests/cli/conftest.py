"""A small data set in files, a run trained on it, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankgrad.cli import app
from rankgrad.data import Dataset, synthetic

TRAIN = ["--epochs", "2", "--model", "mlp(hidden=[8])", "--device", "cpu"]


def write_letor(data: Dataset, path: Path) -> None:
    with path.open("w") as file:
        for qid, start, stop in zip(data.qids, data.offsets[:-1], data.offsets[1:], strict=True):
            for row in range(start, stop):
                values = " ".join(f"{j}:{v:g}" for j, v in enumerate(data.features[row], start=1))
                file.write(f"{data.labels[row]:g} qid:{qid} {values}\n")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of LETOR files: train, vali and test."""
    place = tmp_path_factory.mktemp("letor")
    for split, queries in (("train", 12), ("vali", 6), ("test", 6)):
        data = synthetic.make(queries, features=16, split=split)
        write_letor(data, place / f"{split}.txt")
    return place


@pytest.fixture(scope="session")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder."""
    run = tmp_path_factory.mktemp("runs") / "first"
    result = CliRunner().invoke(app, ["train", str(folder), "-o", str(run), *TRAIN])
    assert result.exit_code == 0, result.output
    return run


@pytest.fixture
def quick() -> list[str]:
    """Options for training in no time."""
    return TRAIN


@pytest.fixture
def rankgrad() -> Callable[..., Result]:
    """Runs a command that must work."""

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result

    return run


@pytest.fixture
def in_json(rankgrad: Callable[..., Result]) -> Callable[..., Any]:
    """Runs a command with --json and reads what it prints."""
    return lambda *arguments: json.loads(rankgrad(*arguments, "--json").stdout)


@pytest.fixture
def refused() -> Callable[..., str]:
    """Runs a command that must fail with exit code 2 and one line, which is returned."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2, result.output
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("rankgrad: ")
        assert result.stdout == ""
        return lines[0]

    return run
