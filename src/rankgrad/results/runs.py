"""Reads run folders, for comparisons and reports.

A file that cannot be read raises no error: the :class:`Run` lacks its contents, and the reason is
one of its ``problems``. So one damaged run does not keep the others from being shown.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._quoting import quote
from rankgrad.metrics import metrics as known_metrics
from rankgrad.significance import Significance
from rankgrad.training import _evaluations
from rankgrad.training import run as run_files
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["COMPARISON", "ComparisonMetadata", "FailedRun", "Run", "find", "read", "read_metadata"]

COMPARISON = "comparison.json"  # what `rankgrad compare` writes beside its run folders
_REPRODUCTION = "reproduction.json"  # what `rankgrad reproduce` writes beside a comparison
_FORMAT, _VERSION = "rankgrad run", 1


@dataclass(frozen=True)
class Run:
    """A run folder.

    Args:
        path: the folder.
        metadata: the contents of ``run.json``.
        settings: as the file has them, including those that this version does not know.
        history: a line per epoch.
        evaluated: the evaluation on ``part``; None if the run has none. Its labels and scores of
            items may have been dropped; :meth:`with_items` has them.
        problems: sentences on what is missing or cannot be read, and why.
        other_labels: the labels of evaluations on other parts, if this one is missing, or does not
            name the entry of the run.
        part: of the data, such as ``test``.
    """

    path: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, float], ...] = ()
    evaluated: EvaluatedLists | None = None
    problems: tuple[str, ...] = ()
    other_labels: Mapping[str, Any] = field(default_factory=dict)
    part: str = "test"

    def with_items(self) -> EvaluatedLists:
        """The evaluation with the labels and scores of items, from disk if they were dropped.

        Returns:
            The evaluated lists.
        """
        evaluated = self.evaluated
        if evaluated is None or len(evaluated.scores) != evaluated.offsets[-1]:
            return EvaluatedLists.load(self.path, self.part)
        return evaluated

    @property
    def labels(self) -> Mapping[str, Any]:
        """What the run is in its experiment: entry (``candidate``), loss, model, fold and seed."""
        saved = self.metadata.get("labels")
        of_run = saved if isinstance(saved, dict) else {}
        of_evaluation = {} if self.evaluated is None else self.evaluated.labels_of_run
        return {**of_run, **self.other_labels, **of_evaluation}

    @property
    def is_tree(self) -> bool:
        """Whether it is a run of boosted trees, which has trees for epochs and other settings."""
        return self.metadata.get("kind") is not None

    @property
    def loss(self) -> str:
        """The loss, from the settings or else from the labels; empty if neither has it."""
        return str(self.settings.get("loss") or self.labels.get("loss") or "")

    @property
    def seed(self) -> int | None:
        """The seed, from the labels or else from the settings; None if neither has it."""
        seed = self.labels.get("seed", self.settings.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def fold(self) -> int | None:
        """The fold; None if the labels have none."""
        fold = self.labels.get("fold")
        return fold if isinstance(fold, int) else None

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the best validation metric; None if the history lacks that metric."""
        metric = str(self.settings.get("metric"))
        values = [line[metric] for line in self.history if metric in line]
        if not values:
            return None
        lower_is_better = known_metrics.get(metric).lower_is_better
        return 1 + values.index(min(values) if lower_is_better else max(values))

    @property
    def seconds(self) -> float | None:
        """The seconds of training; None if neither history nor metadata has them."""
        last = self.history[-1].get("seconds") if self.history else None
        seconds = self.metadata.get("seconds") if last is None else last
        return float(seconds) if isinstance(seconds, int | float) else None


def find(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The run folders at any depth within some folders, or these folders themselves, each once.

    Hidden folders are skipped: runs that are still being written are in such folders.

    Args:
        places: run folders, or folders with run folders in them.

    Returns:
        Their paths; those of each place in the order of their names.

    Raises:
        FileNotFoundError: a place does not exist.
        ValueError: a place has neither a run folder nor a ``comparison.json`` with failed runs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("b", "a"):
    ...         Path(place, name).mkdir()
    ...         _ = Path(place, name, "run.json").write_text("{}")
    ...     [path.name for path in find([place])]
    ['a', 'b']
    """
    folders: dict[Path, Path] = {}
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(f"{place} is not there")
        for folder, subfolders, files in os.walk(place):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            if run_files.RUN in files:
                subfolders.clear()
                folders.setdefault(Path(folder).resolve(), Path(folder))
        has_runs = any(path.is_relative_to(place.resolve()) for path in folders)
        if not has_runs and not FailedRun.read([place]):
            raise ValueError(
                f"{place} holds no run folder (a folder with {run_files.RUN}, as `rankgrad train` "
                "makes)"
            )
    return list(folders.values())


class _Outcome(TypedDict, total=False):
    """How a run of a comparison ended, in ``comparison.json``."""

    fold: int | None
    seed: int | None
    reason: str | None
    gap: str | None  # the reason, in files of earlier versions


class _Row(TypedDict, total=False):
    """An entry, in ``comparison.json``."""

    candidate: str
    runs: list[_Outcome]


class _Comparison(TypedDict, total=False):
    """The keys of ``comparison.json`` that are read."""

    rows: list[_Row]
    plan: dict[str, Any]
    test: dict[str, _schemas.Scalar]


@dataclass(frozen=True)
class FailedRun:
    """A run of a comparison that failed, and why. It may have no folder."""

    entry: str
    fold: int | None
    seed: int | None
    reason: str

    @classmethod
    def read(cls, places: Iterable[Path]) -> list[FailedRun]:
        """The failed runs that the ``comparison.json`` files within some folders list.

        Args:
            places: the folders.

        Returns:
            The runs, with their reasons. Files that cannot be read are skipped.
        """
        failed = []
        for file in _files_named(COMPARISON, places):
            try:
                failed += [
                    cls(str(row["candidate"]), run["fold"], run["seed"], reason)
                    for row in _schemas.read_json(file, _Comparison)["rows"]
                    for run in row["runs"]
                    if (reason := run["reason"] if "reason" in run else run["gap"])
                ]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # of another version, or damaged: the run folders can still be read
        return failed


@dataclass(frozen=True)
class ComparisonMetadata:
    """The data set and the test that the ``comparison.json`` files of some folders agree on."""

    data: str = ""  # the name of the data set
    how: Significance | None = None  # the options of the test
    baseline: str | None = None  # the entry that others are tested against; None for the best
    quick: bool = False  # whether one of them is of `rankgrad reproduce --quick`

    @classmethod
    def read(cls, places: Iterable[Path]) -> ComparisonMetadata:
        """Read the ``comparison.json`` and ``reproduction.json`` files within some folders.

        Args:
            places: the folders.

        Returns:
            What all files agree on; defaults where they differ. ``quick`` is True if it is so for
            any file. Files that cannot be read are skipped.
        """
        names: set[str] = set()
        quick = False
        tests: list[tuple[Significance, str | None]] = []
        for file in _files_named(COMPARISON, places):
            try:
                saved = _schemas.read_json(file, _Comparison)
                reproduction = _reproduction(file)
                names.add(str(reproduction.get("data") or Path(str(saved["plan"]["data"])).name))
                quick = quick or reproduction.get("quick") is True
                test = dict(saved["test"])
                baseline = test.pop("baseline", None)
                tests.append((Significance(**test), baseline))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # of another version, or damaged
        how, baseline = tests[0] if len(set(tests)) == 1 else (None, None)
        return cls(names.pop() if len(names) == 1 else "", how, baseline, quick)


def _reproduction(comparison: Path) -> Mapping[str, Any]:
    """The ``reproduction.json`` beside the folder of a comparison, if there is one."""
    try:
        saved = _files.read_json(comparison.resolve().parent.parent / _REPRODUCTION)
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _files_named(name: str, places: Iterable[Path]) -> list[Path]:
    """The files of this name at any depth within folders, each once."""
    files = {file.resolve(): file for place in places for file in sorted(place.rglob(name))}
    return list(files.values())


def read(path: Path, part: str = "test", *, items: bool = True) -> Run:
    """Read a run folder with its evaluation on a part of the data.

    Args:
        path: the folder.
        part: of the data.
        items: whether to keep scores and labels of items; those of many runs may not fit in memory.

    Returns:
        The run. It lacks what cannot be read, and its ``problems`` say why.

    >>> read(Path("no_such_run")).problems
    ('it was not run',)
    """
    try:
        metadata = read_metadata(path)
    except (OSError, ValueError) as error:
        return Run(path, problems=(_reason(error, path),))
    problems: list[str] = []
    settings: Mapping[str, Any] = {}
    history: list[Mapping[str, float]] = []
    try:
        settings = _settings(path, metadata)
        history = list(run_files.read_history(path)) if (path / run_files.METRICS).exists() else []
    except (OSError, ValueError) as error:
        problems.append(_reason(error, path))
    evaluated, other_labels = None, {}
    if metadata.get("error"):
        problems.append(f"it failed: {metadata['error']}")
    try:
        evaluated = EvaluatedLists.load(path, part)
        if "candidate" not in evaluated.labels_of_run:
            other_labels = _labels_of_other_parts(path, part)
        if not items:
            empty = evaluated.labels[:0].copy()  # a copy, as a view would keep the labels in memory
            evaluated = replace(evaluated, labels=empty, scores=empty)
    except FileNotFoundError:
        problems.append(_not_evaluated(path, part, settings, history))
        other_labels = _labels_of_other_parts(path, part)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(_reason(error, path))
    return Run(
        path, metadata, settings, tuple(history), evaluated, tuple(problems), other_labels, part
    )


def read_metadata(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder.

    Args:
        path: the folder.

    Returns:
        What the file says.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the file is damaged, or of another version.
    """
    if not path.exists():
        raise FileNotFoundError("it was not run")
    metadata: dict[str, Any] = _schemas.read_json(path / run_files.RUN, dict[str, Any])
    if metadata.get("format", _FORMAT) != _FORMAT:
        raise _files.FileError(path / run_files.RUN, "is damaged (it describes no run)")
    if metadata.get("version", _VERSION) != _VERSION:
        raise ValueError(
            "it was written by another version of rankgrad (format version "
            f"{quote(metadata['version'])}, this one reads {_VERSION}): remove it to train it again"
        )
    # Earlier versions did not save which data a run was trained on.
    _schemas.check(path / run_files.RUN, {"data": {}, **metadata}, run_files.RunMetadata)
    return metadata


def _labels_of_other_parts(path: Path, part: str) -> dict[str, Any]:
    """The labels of the run from its evaluations on other parts; {} if it has none."""
    labels: dict[str, Any] = {}
    for other in _evaluations.names(path):
        if other == part:
            continue
        try:
            labels |= EvaluatedLists.load(path, other).labels_of_run
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged
    return labels


def _settings(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the file has them; trees have theirs in the metadata."""
    if not (path / run_files.SETTINGS).exists():
        settings = metadata.get("settings")
        return dict(settings) if isinstance(settings, dict) else {}
    try:
        return tomllib.loads(run_files.read_settings(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{run_files.SETTINGS} is damaged ({error})") from None


def _not_evaluated(
    path: Path, part: str, settings: Mapping[str, Any], history: list[Mapping[str, float]]
) -> str:
    """Why a run has no evaluation on a part, as far as its folder shows."""
    parts = _evaluations.names(path)
    other_parts = f" (it has {', '.join(parts)})" if parts else ""
    best = _files.readable_path(path / run_files.BEST)
    if (path / run_files.SETTINGS).exists() and not best.exists():
        return "training stopped before the first epoch was done"
    epochs = settings.get("epochs")
    done = f"; {len(history)} of at most {epochs} epochs are done" if history and epochs else ""
    return f"not evaluated on {part}{other_parts}{done}"


def _reason(error: Exception, path: Path) -> str:
    """A problem in words; names of files are relative to the run folder."""
    if isinstance(error, KeyError):
        return f"its evaluation is damaged ({error} is missing)"
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename or path).name} cannot be read: {error.strerror}"
    return error.within(path) if isinstance(error, _files.FileError) else str(error)
