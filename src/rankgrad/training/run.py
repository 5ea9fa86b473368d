"""RunFolder: the files of a training run, from which it can be resumed.

::

    settings.toml     everything the run depends on besides its data
    run.json          versions, checksums of the data, the command
    metrics.jsonl     one line per epoch
    best/             the model of the best epoch
    last/             the newest checkpoint

Every write is atomic, so the process may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, NotRequired, TypeVar

from torch import Tensor, nn
from typing_extensions import TypedDict

from rankgrad import _files, _locks, _schemas
from rankgrad.data._dataset import Dataset
from rankgrad.training import _processes
from rankgrad.training._fitted import MANIFEST, WEIGHTS, FittedRanker, read_manifest
from rankgrad.training._settings import Settings, TomlSettings

__all__ = [
    "BEST",
    "LAST",
    "LOCK",
    "METRICS",
    "RUN",
    "SETTINGS",
    "STATE",
    "Checkpoint",
    "EpochState",
    "Job",
    "OnEpoch",
    "RunFolder",
    "RunMetadata",
    "TrainState",
    "TrainingFolder",
    "command",
    "history_line",
    "parse_settings",
    "read_history",
    "read_settings",
    "read_state",
    "refuse_differences",
    "run_metadata",
    "versions",
]

SETTINGS, RUN, METRICS, BEST, LAST = "settings.toml", "run.json", "metrics.jsonl", "best", "last"
LOCK = "run.lock"  # while it is trained
STATE, _OPTIMIZER = "state.json", "optimizer.safetensors"

_PACKAGES = ("rankgrad", "torch", "numpy", "lightning-fabric", "safetensors")


OnEpoch = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Job:
    """The arguments of :func:`rankgrad.training.fit`."""

    settings: Settings
    train: Dataset
    vali: Dataset | None
    others: dict[str, Dataset]
    folder: Path | None
    resume: bool
    network: nn.Module | None
    on_epoch: tuple[OnEpoch, ...]
    quiet: bool

    @property
    def data(self) -> dict[str, Dataset]:
        """The data sets by name."""
        chosen = {"train": self.train, "vali": self.vali}
        return {name: data for name, data in chosen.items() if data is not None} | self.others

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: data sets as handles, which are unpickled as data sets."""
        sent = {name: _processes.DatasetHandle(dataset) for name, dataset in self.data.items()}
        train, vali = sent.pop("train"), sent.pop("vali", None)
        return vars(self) | {"train": train, "vali": vali, "others": sent}


@dataclass
class EpochState:
    """The state of training between two epochs, but for tensors."""

    epoch: int = 0  # epochs that are finished
    best_epoch: int = 0
    best_value: float | None = None
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass
class TrainState(EpochState):
    """The state of training, but for tensors."""

    step: int = 0  # batches of the next epoch that are done
    loss: float = 0.0  # its sum over the lists of those batches
    lists: float = 0.0  # how many those were


_State = TypeVar("_State", bound=EpochState)


def read_state(kind: type[_State], saved: Any, path: Path) -> _State:
    """A state of training, as ``state.json`` has it.

    Args:
        kind: the class of the state.
        saved: what the file holds.
        path: of the file, for errors.

    Returns:
        The state.

    Raises:
        FileError: a field is missing, unknown or of another type.
    """
    _schemas.check(path, saved, _schemas.fields_of(kind, files=NotRequired[dict[str, str]]))
    # The values as read: validation turns integers into floats.
    return kind(**{name: value for name, value in saved.items() if name != "files"})


class _Logged(TypedDict):
    """What the ``state.json`` of any run holds: the lines of ``metrics.jsonl`` so far."""

    history: list[dict[str, float]]


class _DataMetadata(TypedDict):
    """What ``run.json`` says of a data set."""

    lists: int
    items: int
    features: NotRequired[int]  # of texts there are none
    checksum: str


class RunMetadata(TypedDict):
    """What ``run.json`` holds, as far as it is read."""

    data: dict[str, _DataMetadata]
    held_out: NotRequired[list[str]]  # queries of the training data that validated
    command: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    labels: NotRequired[dict[str, _schemas.Scalar]]
    settings: NotRequired[dict[str, Any]]
    kind: NotRequired[str | None]
    seconds: NotRequired[float | None]
    error: NotRequired[str | None]


@dataclass
class Checkpoint:
    """What training goes on from: the model's tensors and all others (optimizer, randomness)."""

    state: TrainState
    model: dict[str, Tensor]
    other: dict[str, Tensor]
    best: dict[str, Tensor]


_Settings = TypeVar("_Settings", bound=TomlSettings)


class TrainingFolder(Generic[_Settings]):
    """A folder in which training is saved.

    Args:
        path: the folder.
        settings: of the run.
    """

    def __init__(self, path: Path, settings: _Settings) -> None:
        self.path, self.settings = path, settings

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder: one process at a time trains in it.

        Raises:
            LockedError: another one does; the error says which.
        """
        return _locks.hold(self.path / LOCK, "training")

    def recover(self) -> None:
        """Clean up after a writer that was killed; a run has one writer at a time."""
        for name in (BEST, LAST, METRICS):
            _files.recover(self.path / name)
            _files.clean(self.path / name)


class RunFolder(TrainingFolder[Settings]):
    """A run folder on disk; made by :meth:`create`, found again by :meth:`open`."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        settings: Settings,
        data: Mapping[str, Dataset],
        command: str | None = None,
    ) -> RunFolder:
        """Make a new run folder; an existing one is an error, as only resuming uses it again."""
        held_out = {"held_out": data["vali"].qids.tolist()} if settings.holdout > 0 else {}
        cls.write_new(Path(path), settings, lambda: run_metadata(data, command) | held_out)
        return cls(Path(path), settings)

    @staticmethod
    def write_new(
        path: Path, settings: TomlSettings, metadata: Callable[[], dict[str, Any]]
    ) -> None:
        """Write what a run folder has before the first epoch.

        Raises:
            FileExistsError: the path exists, or another process has made it meanwhile.
        """
        RunFolder.check_new(path)
        try:
            with _files.atomic_folder(path, replace=False) as place:
                _files.write(place / SETTINGS, settings.to_toml())
                _files.write_json(place / RUN, metadata(), [SETTINGS])
                _files.write(place / METRICS, "")
        except OSError:
            if RunFolder.is_run(path):
                raise FileExistsError(
                    f"another process has just started a run in {path}: wait for it, or choose "
                    "another folder"
                ) from None
            RunFolder.check_new(path)
            raise

    @staticmethod
    def check_new(path: Path) -> None:
        """Raise if the path exists, or another process trains there."""
        if path.exists():
            _locks.check(path / LOCK, "training")
            hint = "resume it, or choose another" if RunFolder.is_run(path) else "choose another"
            raise FileExistsError(f"{path} is there already: {hint}")

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether there is a run in a folder."""
        return (path / RUN).is_file()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A run folder that is there."""
        path = Path(path)
        if not cls.is_run(path):
            what = "is not a run folder" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {what}: nothing to resume")
        if _read_metadata(path).get("ranker") == "text":
            raise ValueError(
                f"{path} is of a ranker of texts: `rankgrad text rerank` uses it, and its test.run "
                "is a TREC run for `rankgrad evaluate`"
            )
        return cls(path, parse_settings(path, Settings))

    @classmethod
    def of_job(cls, job: Job, lock: ExitStack) -> RunFolder:
        """The folder of a job, made or resumed, locked until ``lock`` is closed."""
        assert job.folder is not None
        run = cls.open(job.folder) if job.resume else cls.create(job.folder, job.settings, job.data)
        lock.enter_context(run.locked())
        if job.resume:
            run.check(job.settings, job.data)
        return run

    @property
    def metadata(self) -> dict[str, Any]:
        """What ``run.json`` says: versions, data, command."""
        return _read_metadata(self.path)

    @property
    def history(self) -> list[dict[str, float]]:
        """The lines of ``metrics.jsonl``."""
        return read_history(self.path)

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return _files.readable_path(self.path / LAST).exists()

    def best(self) -> FittedRanker:
        """The model of the best epoch so far."""
        return FittedRanker.load(self.path / BEST)

    def check_free(self) -> None:
        """An error if another process trains in the folder."""
        _locks.check(self.path / LOCK, "training")

    def check_settings(self, settings: Settings) -> None:
        """An error that says what differs, if these are not the settings of this run.

        There may be more epochs and patience: see :meth:`extend`.
        """
        refuse_differences(self.path, settings.differences(_extended(self.settings, settings)))

    def check(self, settings: Settings, data: Mapping[str, Dataset]) -> None:
        """An error that says what differs, if these are not the settings and data of this run."""
        self.check_settings(settings)
        then = self.metadata["data"]
        for name in {**then, **data}:
            now = _data_metadata(data[name]) if name in data else None
            if now != then.get(name):
                raise ValueError(
                    f"the {name} data are not those {self.path} was started with: "
                    f"{_describe(now)} now, {_describe(then.get(name))} then"
                )

    def extend(self, settings: Settings) -> None:
        """Take over settings with more epochs or patience, so that training goes on.

        A kill between two of the writes leaves a folder that is read, without a checksum of its
        settings until it is extended again.
        """
        if not settings.extension(self.settings):
            return
        metadata = {k: v for k, v in self.metadata.items() if k not in ("files", "crc32")}
        _files.write(self.path / RUN, json.dumps(metadata, indent=1))
        _files.write(self.path / SETTINGS, settings.to_toml())
        _files.write_json(self.path / RUN, metadata, [SETTINGS])
        self.settings = settings

    def log(self, line: Mapping[str, float]) -> None:
        """Add an epoch to ``metrics.jsonl``."""
        with _files.appended(self.path / METRICS) as file:
            file.write(history_line(line).encode())

    def save_best(self, ranker: FittedRanker) -> None:
        """Replace ``best/``."""
        with _files.atomic_folder(self.path / BEST) as place:
            ranker.write(place)

    def save_last(
        self, ranker: FittedRanker, state: TrainState, other: Mapping[str, Tensor]
    ) -> None:
        """Replace ``last/``."""
        with _files.atomic_folder(self.path / LAST) as place:
            ranker.write(place)
            _files.write_tensors(place / _OPTIMIZER, other)
            _files.write_json(place / STATE, asdict(state), [_OPTIMIZER])

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, or None if no epoch was finished.

        ``metrics.jsonl`` is cut back to it: a kill may have come between the two.
        """
        self.recover()
        last = self.path / LAST
        if not last.exists():
            _files.write(self.path / METRICS, "")
            return None
        saved = _files.read_json(last / STATE)
        state = read_state(TrainState, saved, last / STATE)
        counts = state.epoch, state.step, state.lists, state.seconds
        if min(counts) < 0 or not 0 <= state.best_epoch <= len(state.history):
            raise _files.damaged(last / STATE, "its counts are wrong")
        manifest = read_manifest(last)
        self._check_saved(manifest["settings"], last)
        model = _files.read_tensors(last / WEIGHTS, manifest)
        other = _files.read_tensors(last / _OPTIMIZER, saved)
        best = self.path / BEST
        chosen = _files.read_tensors(best / WEIGHTS, read_manifest(best)) if best.exists() else {}
        _files.write(self.path / METRICS, "".join(map(history_line, state.history)))
        return Checkpoint(state, model, other, chosen)

    def _check_saved(self, saved: Mapping[str, Any], place: Path) -> None:
        """An error if ``settings.toml`` does not say what the checkpoint was trained with."""
        try:
            differences = self.settings.differences(_extended(Settings(**saved), self.settings))
        except ValueError as error:
            raise _files.damaged(place / MANIFEST, str(error)) from None
        if differences:
            raise _files.damaged(
                self.path / SETTINGS,
                f"it differs from the checkpoint in {place}: {'; '.join(differences)}",
            )


def _extended(before: Settings, now: Settings) -> Settings:
    """Settings of a run with as many epochs and as much patience as it is resumed with."""
    return before.model_copy(update=now.extension(before))


def refuse_differences(path: Path, differences: Sequence[str]) -> None:
    """Raise if a run is to be resumed with other settings than it was started with.

    Args:
        path: of the run.
        differences: in words.

    Raises:
        ValueError: there are differences; the message has them.
    """
    if differences:
        raise ValueError(
            f"{path} was started with other settings; {'; '.join(differences)}. Resume with the "
            "same, or start a new run"
        )


def command() -> list[str]:
    """The command that is running, without the path of the program."""
    program = Path(sys.argv[0])
    is_module = program.name == "__main__.py" and program.parent.name == "rankgrad"
    return ["rankgrad" if is_module else program.name, *sys.argv[1:]]


def read_settings(path: Path) -> str:
    """The ``settings.toml`` of a run folder, compared with the checksum in ``run.json``.

    Args:
        path: of the run.

    Returns:
        The text.

    Raises:
        FileError: it is not as it was written.
    """
    content = _files.read_part(path / SETTINGS, _read_metadata(path))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _files.damaged(path / SETTINGS, str(error)) from None


def parse_settings(path: Path, kind: type[_Settings]) -> _Settings:
    """The settings of a run folder.

    Args:
        path: of the run.
        kind: the class of its settings.

    Returns:
        The settings.

    Raises:
        ValueError: they are damaged, or not valid.
    """
    text = read_settings(path)
    try:
        return kind.from_toml(text)
    except ValueError as error:
        raise ValueError(f"{path / SETTINGS}: {error}") from None


def read_history(path: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl`` in a run folder, compared with what the folder knows of them.

    ``last/`` has the lines up to its epoch, which is that of the last line or the one before; runs
    that are written at once have a checksum.

    Args:
        path: of the run.

    Returns:
        The lines, one per epoch.

    Raises:
        FileError: a line is damaged, or not the one that was written.
    """
    metadata, known, state = _read_metadata(path), [], path / LAST / STATE
    if _files.readable_path(state).exists():  # before the lines, which may become more
        saved = _files.snapshot(
            lambda: [state], lambda: _files.read_json(_files.readable_path(state))
        )
        _schemas.check(state, saved, _Logged)
        known = saved["history"]
    if METRICS in metadata.get("files", {}):
        content = _files.read_part(path / METRICS, metadata)
    else:
        content = (path / METRICS).read_bytes()
    lines = [_parse(line, at, path) for at, line in enumerate(content.splitlines(), start=1)]
    written = content.splitlines(keepends=True)[: len(known)]
    if "files" in metadata and written != [history_line(line).encode() for line in known]:
        raise _files.damaged(path / METRICS, f"it does not have the lines of {LAST}/{STATE}")
    return lines


def _parse(text: bytes, number: int, path: Path) -> dict[str, float]:
    try:
        values: dict[str, float] = json.loads(text)
        _schemas.check(path / METRICS, values, dict[str, float])
    except (ValueError, RecursionError):
        raise _files.FileError(path / METRICS, "is damaged", line=number) from None
    return values


def history_line(values: Mapping[str, float]) -> str:
    """An epoch as a line of ``metrics.jsonl``.

    Args:
        values: of the epoch, by name.

    Returns:
        The line, with its end.
    """
    return json.dumps(values) + "\n"


def _read_metadata(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = _schemas.read_json(path / RUN, RunMetadata)
    return metadata


def run_metadata(
    data: Mapping[str, Dataset], started_by: str | None = None, packages: Sequence[str] = _PACKAGES
) -> dict[str, Any]:
    """What ``run.json`` says of a run on these data.

    Args:
        data: the data sets by name.
        started_by: the command; None for the one that is running.
        packages: whose versions it says.

    Returns:
        What is to be written.
    """
    return {
        "format": "rankgrad run",
        "version": 1,
        "command": shlex.join(command()) if started_by is None else started_by,
        "versions": versions(packages),
        "data": {name: _data_metadata(dataset) for name, dataset in data.items()},
    }


def _data_metadata(dataset: Dataset) -> dict[str, Any]:
    return {
        "lists": len(dataset),
        "items": dataset.n_items,
        "features": dataset.n_features,
        "checksum": dataset.checksum(),
    }


def _describe(metadata: Mapping[str, Any] | None) -> str:
    if metadata is None:
        return "none"
    return (
        f"{metadata['lists']} lists, {metadata['items']} items, checksum {metadata['checksum'][:8]}"
    )


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of Python and of packages.

    Args:
        packages: their names.

    Returns:
        The versions by name; ``unknown`` where a package is not installed.
    """
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
