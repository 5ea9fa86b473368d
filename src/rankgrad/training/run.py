"""RunFolder: what a training run leaves behind, and what it goes on from.

::

    settings.toml     everything the run depends on besides its data
    run.json          versions, checksums of the data, the command
    metrics.jsonl     one line per epoch
    best/             the model of the best epoch
    last/             the newest model with all that training goes on from

Every change is whole or not made at all, so the process may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict
from torch import Tensor
from typing_extensions import TypedDict

from rankgrad import files, schemas
from rankgrad.data.dataset import Dataset
from rankgrad.training import tensors
from rankgrad.training.fitted import FittedRanker
from rankgrad.training.settings import Settings

SETTINGS, RUN, METRICS, BEST, LAST = "settings.toml", "run.json", "metrics.jsonl", "best", "last"
STATE, OPTIMIZER = "state.json", "optimizer.safetensors"

_PACKAGES = ("rankgrad", "torch", "numpy", "lightning-fabric", "safetensors")


@dataclass
class Position:
    """How far training has come: all that is not a tensor."""

    epoch: int = 0  # epochs that are finished
    step: int = 0  # batches of the next one that are done
    loss: float = 0.0  # its sum over the lists of those batches
    lists: float = 0.0  # how many those were
    best_epoch: int = 0
    best_value: float | None = None
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class _PositionFacts(TypedDict):
    """What ``state.json`` holds: the fields of a :class:`Position`."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    epoch: int
    step: int
    loss: float
    lists: float
    best_epoch: int
    best_value: float | None
    seconds: float
    history: list[dict[str, float]]


class DataFacts(TypedDict):
    """What ``run.json`` says of a data set."""

    lists: int
    items: int
    features: int
    checksum: str


class RunFacts(TypedDict):
    """What ``run.json`` holds, as far as it is read."""

    data: dict[str, DataFacts]
    command: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    labels: NotRequired[dict[str, schemas.Scalar]]
    settings: NotRequired[dict[str, Any]]
    kind: NotRequired[str | None]
    seconds: NotRequired[float | None]
    error: NotRequired[str | None]


@dataclass
class Checkpoint:
    """What training goes on from: the model's tensors and all others (optimiser, randomness)."""

    position: Position
    model: dict[str, Tensor]
    other: dict[str, Tensor]
    best: dict[str, Tensor]


class RunFolder:
    """A run folder on disk; made by :meth:`create`, found again by :meth:`open`."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        settings: Settings,
        data: Mapping[str, Dataset],
        command: str | None = None,
    ) -> RunFolder:
        """A new run folder. One that is there already is never used again, unless by resuming."""
        path = Path(path)
        cls.check_new(path)
        with files.folder(path) as place:
            files.write(place / SETTINGS, settings.to_toml())
            files.write(place / RUN, json.dumps(facts_of(data, command), indent=1) + "\n")
            files.write(place / METRICS, "")
        return cls(path, settings)

    @staticmethod
    def check_new(path: Path) -> None:
        """An error if there is something at the path already."""
        if path.exists():
            hint = "resume it, or choose another" if (path / RUN).exists() else "choose another"
            raise FileExistsError(f"{path} is there already: {hint}")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A run folder that is there."""
        path = Path(path)
        if not (path / RUN).is_file():
            what = "is not a run folder" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {what}: nothing to resume")
        try:
            settings = Settings.from_toml((path / SETTINGS).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path / SETTINGS}: {error}") from None
        return cls(path, settings)

    @property
    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says: versions, data, command."""
        facts: dict[str, Any] = schemas.read_json(self.path / RUN, RunFacts)
        return facts

    @property
    def history(self) -> list[dict[str, float]]:
        """The lines of ``metrics.jsonl``."""
        path = self.path / METRICS
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (ValueError, RecursionError) as error:
            raise ValueError(files.damaged(path, str(error))) from None
        schemas.check(path, lines, list[dict[str, float]])
        return lines

    @property
    def started(self) -> bool:
        """Whether there is something to go on from."""
        return files.standing(self.path / LAST).exists()

    def best(self) -> FittedRanker:
        """The model of the best epoch so far."""
        place = self.path / BEST
        try:
            return FittedRanker.load(files.standing(place))
        except FileNotFoundError:  # a better one may have taken its place while it was read
            return FittedRanker.load(files.standing(place))

    def check_settings(self, settings: Settings) -> None:
        """An error that says what differs, if these are not the settings of this run."""
        differences = settings.differences(self.settings)
        if differences:
            raise ValueError(
                f"{self.path} was started with other settings; {'; '.join(differences)}. Resume "
                "with the same, or start a new run"
            )

    def check(self, settings: Settings, data: Mapping[str, Dataset]) -> None:
        """An error that says what differs, if these are not the settings and data of this run."""
        self.check_settings(settings)
        then = self.facts["data"]
        for name in {**then, **data}:
            now = _data_facts(data[name]) if name in data else None
            if now != then.get(name):
                raise ValueError(
                    f"the {name} data are not those {self.path} was started with: "
                    f"{_describe(now)} now, {_describe(then.get(name))} then"
                )

    def log(self, line: Mapping[str, float]) -> None:
        """Add an epoch to ``metrics.jsonl``."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_best(self, ranker: FittedRanker) -> None:
        """Replace ``best/``."""
        with files.folder(self.path / BEST) as place:
            ranker.write(place)

    def save_last(
        self, ranker: FittedRanker, position: Position, other: Mapping[str, Tensor]
    ) -> None:
        """Replace ``last/``."""
        with files.folder(self.path / LAST) as place:
            ranker.write(place)
            tensors.write(place / OPTIMIZER, other)
            files.write(place / STATE, json.dumps(asdict(position)) + "\n")

    def checkpoint(self) -> Checkpoint | None:
        """What to go on from, or None if no epoch was finished.

        ``metrics.jsonl`` is cut back to it: a kill may have come between the two.
        """
        for name in (BEST, LAST, METRICS):
            files.recover(self.path / name)
            files.clean(self.path / name)  # of a writer that was killed: a run has one at a time
        last = self.path / LAST
        if not last.exists():
            files.write(self.path / METRICS, "")
            return None
        position = _read_position(last / STATE)
        lines = [json.dumps(line) + "\n" for line in position.history]
        files.write(self.path / METRICS, "".join(lines))
        best = self.path / BEST / "model.safetensors"
        return Checkpoint(
            position=position,
            model=tensors.read(last / "model.safetensors"),
            other=tensors.read(last / OPTIMIZER),
            best=tensors.read(best) if best.exists() else {},
        )


def command() -> list[str]:
    """The command that is running, without the path of the program."""
    program = Path(sys.argv[0])
    own = program.name == "__main__.py" and program.parent.name == "rankgrad"
    return ["rankgrad" if own else program.name, *sys.argv[1:]]


def _read_position(path: Path) -> Position:
    # What is read is taken, not what is validated, which makes decimals of whole numbers.
    position = Position(**schemas.read_json(path, _PositionFacts))
    counts = position.epoch, position.step, position.lists, position.seconds
    if min(counts) < 0 or not 0 <= position.best_epoch <= len(position.history):
        raise ValueError(files.damaged(path, "its counts are wrong"))
    return position


def facts_of(data: Mapping[str, Dataset], started_by: str | None = None) -> dict[str, Any]:
    """What ``run.json`` says of a run on these data."""
    return {
        "format": "rankgrad run",
        "version": 1,
        "command": shlex.join(command()) if started_by is None else started_by,
        "versions": {"python": platform.python_version(), **_versions()},
        "data": {name: _data_facts(dataset) for name, dataset in data.items()},
    }


def _data_facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "lists": len(dataset),
        "items": dataset.n_items,
        "features": dataset.n_features,
        "checksum": dataset.checksum(),
    }


def _describe(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "none"
    return f"{facts['lists']} lists, {facts['items']} items, checksum {facts['checksum'][:8]}"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found
