"""RunFolder: the files of a training run, from which it can be resumed.

:func:`rankgrad.training.fit` writes one if it is given a folder; the command line, experiments and
reports read it. Text rankers write the same files (:class:`TrainingFolder`)::

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
LOCK = "run.lock"  # locked by the process that trains
STATE, _OPTIMIZER = "state.json", "optimizer.safetensors"

_PACKAGES = ("rankgrad", "torch", "numpy", "lightning-fabric", "safetensors")


#: A callback that is called with each new entry of the history.
OnEpoch = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Job:
    """The arguments of :func:`rankgrad.training.fit`, checked; see there for what they mean."""

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
        """All data sets, by name."""
        required = {"train": self.train, "vali": self.vali}
        return {name: data for name, data in required.items() if data is not None} | self.others

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: data sets as handles, which are unpickled as data sets."""
        handles = {name: _processes.DatasetHandle(dataset) for name, dataset in self.data.items()}
        train, vali = handles.pop("train"), handles.pop("vali", None)
        return vars(self) | {"train": train, "vali": vali, "others": handles}


@dataclass
class EpochState:
    """The state of training between two epochs, without its tensors: ``state.json``."""

    epoch: int = 0  # finished epochs
    best_epoch: int = 0
    best_value: float | None = None
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass
class TrainState(EpochState):
    """The state of training between two steps, without its tensors."""

    step: int = 0  # finished batches of the current epoch
    loss: float = 0.0  # the sum of the losses of their lists
    lists: float = 0.0  # the number of these lists


_State = TypeVar("_State", bound=EpochState)


def read_state(kind: type[_State], saved: Any, path: Path) -> _State:
    """Check the contents of ``state.json``, and make a state of training of them.

    Args:
        kind: the class of the state.
        saved: the contents.
        path: of the file, for errors.

    Returns:
        The state.

    Raises:
        FileError: a field is missing, unknown or of another type.
    """
    _schemas.check(path, saved, _schemas.fields_of(kind, files=NotRequired[dict[str, str]]))
    # Not the validated values: validation turns integers into floats.
    return kind(**{name: value for name, value in saved.items() if name != "files"})


class _LoggedState(TypedDict):
    """The part of ``state.json`` that all kinds of runs have: the lines of ``metrics.jsonl``."""

    history: list[dict[str, float]]


class _DataMetadata(TypedDict):
    """The entry of a data set in ``run.json``."""

    lists: int
    items: int
    features: NotRequired[int]  # texts have none
    checksum: str


class RunMetadata(TypedDict):
    """The part of ``run.json`` that is read."""

    data: dict[str, _DataMetadata]
    held_out: NotRequired[list[str]]  # the queries of the training data used for validation
    command: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    labels: NotRequired[dict[str, _schemas.Scalar]]
    settings: NotRequired[dict[str, Any]]
    kind: NotRequired[str | None]
    seconds: NotRequired[float | None]
    error: NotRequired[str | None]


@dataclass
class Checkpoint:
    """The state that a training resumes from, with its tensors.

    Attributes:
        state: of training.
        model: the tensors of the ranker.
        other: the tensors of optimizer, averaged weights and random number generators.
        best: the tensors of the ranker of the best epoch.
    """

    state: TrainState
    model: dict[str, Tensor]
    other: dict[str, Tensor]
    best: dict[str, Tensor]


_Settings = TypeVar("_Settings", bound=TomlSettings)


class TrainingFolder(Generic[_Settings]):
    """A folder in which training is saved: of a run on features, or of a text ranker.

    Args:
        path: the folder.
        settings: of the run.
    """

    def __init__(self, path: Path, settings: _Settings) -> None:
        self.path, self.settings = path, settings

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder: one process at a time trains in it.

        Returns:
            A context manager, which holds the lock.

        Raises:
            LockedError: another process trains in it; the error says which.
        """
        return _locks.hold(self.path / LOCK, "training")

    def recover(self) -> None:
        """Clean up after a process that was killed while writing. Needs the lock."""
        for name in (BEST, LAST, METRICS):
            _files.recover(self.path / name)
            _files.clean(self.path / name)

    def saved_state(self) -> Any:
        """The contents of ``last/state.json``; None if there is no checkpoint. Needs the lock.

        What a killed process left behind is cleaned up before; without a checkpoint,
        ``metrics.jsonl`` is emptied.
        """
        self.recover()
        if (self.path / LAST).exists():
            return _files.read_json(self.path / LAST / STATE)
        self.write_history([])
        return None

    def write_history(self, history: Sequence[Mapping[str, float]]) -> None:
        """Replace ``metrics.jsonl``."""
        _files.write(self.path / METRICS, "".join(map(history_line, history)))


class RunFolder(TrainingFolder[Settings]):
    """A run folder; :meth:`create` makes a new one, :meth:`open` opens an existing one."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        settings: Settings,
        data: Mapping[str, Dataset],
        command: str | None = None,
    ) -> RunFolder:
        """Make a new run folder; raises if the path exists.

        Args:
            path: the folder.
            settings: of the run.
            data: the data sets by name: ``train``, ``vali`` and others.
            command: the command line, for ``run.json``; None for that of this process.

        Returns:
            The new run folder.

        Raises:
            FileExistsError: the path exists, or another process has just made it.
        """
        held_out = {"held_out": data["vali"].qids.tolist()} if settings.holdout > 0 else {}
        cls.write_new(Path(path), settings, lambda: run_metadata(data, command) | held_out)
        return cls(Path(path), settings)

    @staticmethod
    def write_new(
        path: Path, settings: TomlSettings, metadata: Callable[[], dict[str, Any]]
    ) -> None:
        """Write the files of a run folder before the first epoch.

        Args:
            path: the folder.
            settings: of the run.
            metadata: returns the contents of ``run.json``.

        Raises:
            FileExistsError: the path exists, or another process has just made it.
        """
        RunFolder.check_new(path)
        try:
            with _files.atomic_folder(path, replace=False) as folder:
                _files.write(folder / SETTINGS, settings.to_toml())
                _files.write_json(folder / RUN, metadata(), [SETTINGS])
                _files.write(folder / METRICS, "")
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
        """Raise if the path exists; the error says whether another process trains there.

        Args:
            path: where a run is to be written.

        Raises:
            LockedError: another process trains there.
            FileExistsError: the path exists.
        """
        if path.exists():
            _locks.check(path / LOCK, "training")
            hint = "resume it, or choose another" if RunFolder.is_run(path) else "choose another"
            raise FileExistsError(f"{path} is there already: {hint}")

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether there is a run in a folder.

        Args:
            path: the folder, which need not exist.

        Returns:
            Whether it has a ``run.json``.
        """
        return (path / RUN).is_file()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run folder.

        Args:
            path: the folder.

        Returns:
            The run folder, with the settings of its run.

        Raises:
            FileNotFoundError: there is no run at the path.
            ValueError: the run is of a ranker of texts, or its settings are damaged.
        """
        path = Path(path)
        if not cls.is_run(path):
            reason = "is not a run folder" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {reason}: nothing to resume")
        if _read_metadata(path).get("ranker") == "text":
            raise ValueError(
                f"{path} is of a ranker of texts: `rankgrad text rerank` uses it, and its test.run "
                "is a TREC run for `rankgrad evaluate`"
            )
        return cls(path, parse_settings(path, Settings))

    @classmethod
    def of_job(cls, job: Job, lock: ExitStack) -> RunFolder:
        """The folder of a job, made or resumed, locked until ``lock`` is closed.

        Args:
            job: a job with a folder.
            lock: the stack that the lock is put on.

        Returns:
            The run folder.
        """
        assert job.folder is not None
        run = cls.open(job.folder) if job.resume else cls.create(job.folder, job.settings, job.data)
        lock.enter_context(run.locked())
        if job.resume:
            run.check(job.settings, job.data)
        return run

    @property
    def metadata(self) -> dict[str, Any]:
        """The contents of ``run.json``: versions, data, command."""
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
        """The model of the best epoch so far.

        Returns:
            The ranker in ``best/``.
        """
        return FittedRanker.load(self.path / BEST)

    def check_free(self) -> None:
        """Raise if another process trains in the folder.

        Raises:
            LockedError: another process does; the error says which.
        """
        _locks.check(self.path / LOCK, "training")

    def check_settings(self, settings: Settings) -> None:
        """Raise an error that says what differs, if these are not the settings of this run.

        More epochs and more patience are allowed: see :meth:`extend`.

        Args:
            settings: those to resume with.

        Raises:
            ValueError: there are differences; the message lists them.
        """
        refuse_differences(self.path, settings.differences(_extended(self.settings, settings)))

    def check(self, settings: Settings, data: Mapping[str, Dataset]) -> None:
        """Raise an error that says what differs from the settings or the data of this run.

        Args:
            settings: those to resume with.
            data: the data sets by name.

        Raises:
            ValueError: settings or data differ.
        """
        self.check_settings(settings)
        original = self.metadata["data"]
        for name in {**original, **data}:
            current = _data_metadata(data[name]) if name in data else None
            if current != original.get(name):
                raise ValueError(
                    f"the {name} data are not those {self.path} was started with: "
                    f"{_describe(current)} now, {_describe(original.get(name))} then"
                )

    def extend(self, settings: Settings) -> None:
        """Save settings with more epochs or patience, so that training continues.

        The checksum of the settings is removed first and written last. So if the process is killed
        between two of the writes, the folder can still be read.

        Args:
            settings: those to resume with; without more epochs or patience nothing is written.
        """
        if not settings.extension(self.settings):
            return
        metadata = {k: v for k, v in self.metadata.items() if k not in ("files", "crc32")}
        _files.write(self.path / RUN, json.dumps(metadata, indent=1))
        _files.write(self.path / SETTINGS, settings.to_toml())
        _files.write_json(self.path / RUN, metadata, [SETTINGS])
        self.settings = settings

    def log(self, line: Mapping[str, float]) -> None:
        """Append an epoch to ``metrics.jsonl``.

        Args:
            line: the values of the epoch, by name.
        """
        with _files.appended(self.path / METRICS) as file:
            file.write(history_line(line).encode())

    def save_best(self, ranker: FittedRanker) -> None:
        """Replace ``best/``.

        Args:
            ranker: of the best epoch.
        """
        with _files.atomic_folder(self.path / BEST) as folder:
            ranker.write(folder)

    def save_last(
        self, ranker: FittedRanker, state: TrainState, other: Mapping[str, Tensor]
    ) -> None:
        """Replace ``last/``; ``other`` are the tensors that are not the ranker's.

        Args:
            ranker: as it is now.
            state: of training.
            other: tensors of optimizer, averaged weights and random number generators, by name.
        """
        with _files.atomic_folder(self.path / LAST) as folder:
            ranker.write(folder)
            _files.write_tensors(folder / _OPTIMIZER, other)
            _files.write_json(folder / STATE, asdict(state), [_OPTIMIZER])

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, or None if there is none yet.

        ``metrics.jsonl`` is cut back to it, since an epoch is logged before its checkpoint is
        saved.

        Returns:
            The checkpoint, with the tensors of the best epoch if there is one.

        Raises:
            FileError: a file of the checkpoint is damaged.
        """
        last, saved = self.path / LAST, self.saved_state()
        if saved is None:
            return None
        state = read_state(TrainState, saved, last / STATE)
        counts = state.epoch, state.step, state.lists, state.seconds
        if min(counts) < 0 or not 0 <= state.best_epoch <= len(state.history):
            raise _files.damaged(last / STATE, "its counts are wrong")
        manifest = read_manifest(last)
        self._check_checkpoint_settings(manifest["settings"], last)
        model = _files.read_tensors(last / WEIGHTS, manifest)
        other = _files.read_tensors(last / _OPTIMIZER, saved)
        best_folder, best = self.path / BEST, {}
        if best_folder.exists():
            best = _files.read_tensors(best_folder / WEIGHTS, read_manifest(best_folder))
        self.write_history(state.history)
        return Checkpoint(state, model, other, best)

    def _check_checkpoint_settings(self, saved: Mapping[str, Any], folder: Path) -> None:
        """Raise if the settings saved in the checkpoint's folder differ from ``settings.toml``."""
        try:
            differences = self.settings.differences(_extended(Settings(**saved), self.settings))
        except ValueError as error:
            raise _files.damaged(folder / MANIFEST, str(error)) from None
        if differences:
            raise _files.damaged(
                self.path / SETTINGS,
                f"it differs from the checkpoint in {folder}: {'; '.join(differences)}",
            )


def _extended(settings: Settings, resumed: Settings) -> Settings:
    """Settings with the epochs and the patience of ``resumed`` where ``resumed`` has more."""
    return settings.model_copy(update=resumed.extension(settings))


def refuse_differences(path: Path, differences: Sequence[str]) -> None:
    """Raise if a run is to be resumed with settings that differ from its own.

    Args:
        path: of the run.
        differences: in words.

    Raises:
        ValueError: there are differences; the message lists them.
    """
    if differences:
        raise ValueError(
            f"{path} was started with other settings; {'; '.join(differences)}. Resume with the "
            "same, or start a new run"
        )


def command() -> list[str]:
    """The command line of this process, without the path of the program."""
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
        FileError: the file was changed or damaged.
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
    """Read ``metrics.jsonl`` of a run folder, and check that it was not changed.

    The lines are compared with the checkpoint in ``last/``, which has all of them, or all except
    the last if training has not saved that epoch yet. In runs that are written all at once,
    ``run.json`` has a checksum of the file instead.

    Args:
        path: of the run.

    Returns:
        The entries, one per epoch.

    Raises:
        FileError: a line is damaged, or is not the one that was written.
    """
    metadata, saved_history, state_path = _read_metadata(path), [], path / LAST / STATE
    # The checkpoint is read before the lines, because training may append to them meanwhile.
    if _files.readable_path(state_path).exists():
        saved = _files.snapshot(
            lambda: [state_path], lambda: _files.read_json(_files.readable_path(state_path))
        )
        _schemas.check(state_path, saved, _LoggedState)
        saved_history = saved["history"]
    if METRICS in metadata.get("files", {}):
        content = _files.read_part(path / METRICS, metadata)
    else:
        content = (path / METRICS).read_bytes()
    history = [_parse_line(line, n, path) for n, line in enumerate(content.splitlines(), start=1)]
    written = content.splitlines(keepends=True)[: len(saved_history)]
    if "files" in metadata and written != [history_line(line).encode() for line in saved_history]:
        raise _files.damaged(path / METRICS, f"it does not have the lines of {LAST}/{STATE}")
    return history


def _parse_line(text: bytes, number: int, path: Path) -> dict[str, float]:
    """An entry of the history, from a line of ``metrics.jsonl``."""
    try:
        values: dict[str, float] = json.loads(text)
        _schemas.check(path / METRICS, values, dict[str, float])
    except (ValueError, RecursionError):
        raise _files.FileError(path / METRICS, "is damaged", line=number) from None
    return values


def history_line(values: Mapping[str, float]) -> str:
    """An entry of the history as a line of ``metrics.jsonl``.

    Args:
        values: of the epoch, by name.

    Returns:
        The line, with a line feed.
    """
    return json.dumps(values) + "\n"


def _read_metadata(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = _schemas.read_json(path / RUN, RunMetadata)
    return metadata


def run_metadata(
    data: Mapping[str, Dataset], started_by: str | None = None, packages: Sequence[str] = _PACKAGES
) -> dict[str, Any]:
    """The contents of ``run.json`` for a run on these data.

    Args:
        data: the data sets by name.
        started_by: the command line; None for that of this process.
        packages: the packages whose versions are included.

    Returns:
        The contents.
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
    """The size and the checksum of a data set, for an error."""
    if metadata is None:
        return "none"
    checksum = metadata["checksum"][:8]
    return f"{metadata['lists']} lists, {metadata['items']} items, checksum {checksum}"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of Python and of packages.

    Args:
        packages: their names.

    Returns:
        The versions by name; ``unknown`` where a package is not installed.
    """
    by_name = {"python": platform.python_version()}
    for package in packages:
        try:
            by_name[package] = version(package)
        except PackageNotFoundError:
            by_name[package] = "unknown"
    return by_name
