"""Plans: what is compared, on which data, and in which folder each run is.

A :class:`Plan` has entries, folds and seeds; every combination of the three is a :class:`Task`,
one run. :mod:`.compare` runs a plan; :mod:`rankgrad.papers.reproduce` makes plans of the papers'
tables.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rankgrad._validation import DEFAULT_METRICS, check_whole
from rankgrad.data import _layout, store
from rankgrad.data._dataset import Dataset
from rankgrad.metrics import metrics
from rankgrad.results._groups import entry_named
from rankgrad.training import Settings
from rankgrad.training._tree_fitting import check_tree_settings

__all__ = [
    "RUNS",
    "SPLITS",
    "TUNING",
    "Entry",
    "NetworkEntry",
    "Plan",
    "ProgressCallback",
    "Splits",
    "Task",
    "check_splits",
    "folder_name",
    "folds_of",
    "missing_splits",
]

RUNS, TUNING = "runs", "tuning"  # subfolders of a comparison's folder
SPLITS = ("train", "vali", "test")

#: The data of a fold by split: train, vali and test.
Splits = Mapping[str, Dataset]
#: Called with the progress of a run, in a few words.
ProgressCallback = Callable[[str], None]

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*")
_MAX_NAME = 80  # characters of a folder's name, before the digest


class Entry(Protocol):
    """The protocol of a ranker that can be compared: it is tuned, trained and scores test items.

    Entries are sent to worker processes, so they must be picklable. ``shared`` are the settings of
    the plan, which all entries share.
    """

    @property
    def name(self) -> str:
        """The name in tables."""

    @property
    def note(self) -> str:
        """A line under tables, such as how its settings were chosen; entries may share one."""

    def check(self, shared: Settings) -> None:
        """Raise if its model does not take its settings, such as a batch size for trees."""

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """The settings of its runs, without fold, seed and tuned values, as JSON values."""

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its ``loss`` and ``model``, as tables and reports name them."""

    def is_tuned(self, plan: Plan) -> bool:
        """Whether hyperparameters are searched for before it is trained."""

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Tune hyperparameters on validation data, or resume the search of ``task.trial_log``."""

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Train, or resume the run at ``task.path``, and score the test items.

        Returns:
            The scores ``[items]``; None if training was interrupted.
        """


@dataclass(frozen=True)
class NetworkEntry:
    """A network: settings that override those that all entries share.

    Args:
        name: the name in tables.
        settings: any of :class:`rankgrad.training.Settings` except ``seed``, which is the plan's.
        note: a line under tables, such as how its settings were chosen; entries may share one.

    >>> from rankgrad.experiments.compare import NetworkEntry
    >>> NetworkEntry.of("lambdaloss@5", learning_rate=0.01)
    NetworkEntry(name='lambdaloss@5', settings={'loss': 'lambdaloss@5', 'learning_rate': 0.01})
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = field(default="", repr=False)

    @classmethod
    def of(
        cls, loss: str, model: str | None = None, *, name: str | None = None, **settings: Any
    ) -> NetworkEntry:
        """An entry named after its loss, and its model if that is given."""
        options = {"loss": loss} if model is None else {"loss": loss, "model": model}
        default = loss if model is None else f"{loss} × {model}"
        return cls(name or default, options | settings)

    def training(self, shared: Settings, **options: Any) -> Settings:
        """The settings of one of its runs."""
        try:
            return Settings(**{**shared.model_dump(), **self.settings, **options})
        except ValueError as error:
            raise ValueError(f"ranker {self.name!r}: {error}") from None

    def check(self, shared: Settings) -> None:
        """Raise if its model does not take its settings, such as a batch size for trees."""
        try:
            check_tree_settings(self.training(shared))
        except ValueError as error:
            raise ValueError(f"ranker {self.name!r}: {error}") from None

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """The settings that all its runs have in common."""
        values = self.training(shared).model_dump(mode="json")
        # The seed differs from run to run. Metrics may be added to a comparison, and CUDA graphs
        # change results by rounding only.
        return {k: v for k, v in values.items() if k not in ("seed", "metrics", "graphs")}

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its loss and model."""
        settings = self.training(shared)
        return {"loss": settings.loss, "model": settings.model}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether the plan has a budget for it."""
        return plan.tune is not None

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Search learning rate and the loss's own options; see :mod:`.tuning`."""
        from rankgrad.experiments.tuning import tune_loss

        tune_loss(self, task, data, on_progress)

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Train with the settings of the task, or resume its run, and score the test lists."""
        from rankgrad.training import RunFolder, fit

        settings = self.training(task.plan.settings, seed=task.seed, **task.values)
        started = RunFolder.is_run(task.path)
        if started:  # go on logging the run's metrics, though the comparison's may have changed
            logged = RunFolder.open(task.path).settings.metrics
            settings = Settings(**{**settings.model_dump(), "metrics": logged})
        on_progress("training")
        result = fit(
            settings,
            data["train"],
            data["vali"],
            folder=task.path,
            resume=started,
            on_epoch=lambda line: on_progress(f"epoch {line['epoch']}/{settings.epochs}"),
        )
        if result.stopped == "interrupted":
            return None
        test = data["test"]
        return result.model.predict(test.features, test.offsets)


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Args:
        data: a folder of splits, or of folds of splits.
        entries: what is compared, in the order of the table.
        folds: numbers of folds; ``(None,)`` for data without folds. See :func:`folds_of`.
        seeds: each entry is trained with each of them on each fold.
        metrics: the metrics that test lists are evaluated with.
        settings: those that all entries share; ``settings.metric`` chooses the best epoch, and the
            best trial of tuning.
        tune: how many trials on validation data each entry has on each fold; None for no tuning.

    >>> from rankgrad.experiments.compare import NetworkEntry, Plan
    >>> plan = Plan("MQ2008", [NetworkEntry.of("mse"), NetworkEntry.of("ranknet")], folds=(1, 2))
    >>> [str(task.path) for task in plan.tasks(Path("out"))][:2]
    ['out/runs/mse/fold1-seed0', 'out/runs/ranknet/fold1-seed0']
    """

    data: str | os.PathLike[str]
    entries: tuple[Entry, ...]
    folds: tuple[int | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    settings: Settings = field(default_factory=Settings)
    tune: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metrics, str):
            raise ValueError(f"metrics are a list of specs; found {self.metrics!r}")
        for name in ("entries", "folds", "seeds", "metrics"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"there are no {name} to compare")
        specs = dict.fromkeys(str(metrics.get(spec)) for spec in self.metrics)
        object.__setattr__(self, "metrics", tuple(specs))
        folds = (fold if fold is None else check_whole("each fold", fold, 0) for fold in self.folds)
        object.__setattr__(self, "folds", tuple(folds))
        seeds = tuple(check_whole("each seed", seed, 0, 2**63 - 1) for seed in self.seeds)
        object.__setattr__(self, "seeds", seeds)
        for kind, numbers in (("fold", self.folds), ("seed", self.seeds)):
            for number in numbers:
                if numbers.count(number) > 1:
                    raise ValueError(f"{kind} {number} is given twice")
        if self.tune is not None:
            object.__setattr__(self, "tune", check_whole("tune", self.tune))
        self._check_names()
        for entry in self.entries:
            if "seed" in getattr(entry, "settings", {}):
                raise ValueError(f"ranker {entry.name!r} has a seed: the plan has the seeds")
            if entry.metadata(self.settings).get("devices", 1) != 1:
                raise ValueError(
                    f"ranker {entry.name!r} is to train on several devices: in a "
                    "comparison each run has one, and runs go side by side"
                )

    def _check_names(self) -> None:
        """Raise if two entries have the same name, or names that give the same folder."""
        entry_names: dict[str, str] = {}  # by folder
        for entry in self.entries:
            folder = folder_name(entry.name).casefold()
            other = entry_names.get(folder)
            if other == entry.name:
                raise ValueError(f"{other!r} is there twice: leave one of them out")
            if other is not None:
                raise ValueError(
                    f"rankers {entry.name!r} and {other!r} would both be in the folder "
                    f"{folder}: rename one"
                )
            entry_names[folder] = entry.name

    def entry(self, name: str) -> Entry:
        """The entry of this name, or of the only name that differs from it in case alone."""
        return entry_named(self.entries, name)

    def tasks(self, folder: Path, only: Entry | None = None) -> list[Task]:
        """Every run of one entry, or of all; runs on the same fold are next to each other."""
        return [
            Task(self, entry, fold, seed, folder)
            for fold in self.folds
            for seed in self.seeds
            for entry in (self.entries if only is None else (only,))
        ]

    def notes(self) -> tuple[str, ...]:
        """Lines under tables that say how the runs were made."""
        size = self.settings.list_size
        cut = "" if size is None else f"; training lists are cut to {size} items"
        lines = [
            "a cutoff beyond a list's end is its end, but precision@k divides by k",
            f"test lists are ranked in full, never cut{cut}",
        ]
        notes = dict.fromkeys(entry.note for entry in self.entries)
        lines += [note for note in notes if note]
        if self.tune is not None:
            lines.append(
                f"values tuned on validation data by {self.settings.metric}, {self.tune} trials "
                "for each ranker and fold"
            )
            return tuple(lines)
        # Without --tune, trees and grid-search entries still choose from a grid; networks have one
        # combination, their own.
        names_by_count: dict[int, list[str]] = {}
        for entry in self.entries:
            count = getattr(entry, "combinations", 1)
            names_by_count.setdefault(count, []).append(entry.name)
        without_search = ""  # what a line says about the entries that have one combination
        if names_by_count.pop(1, None):
            without_search = (
                "; the losses as they are given, without a search (--tune gives all the same "
                "number of trials)"
            )
        for count, names in names_by_count.items():
            lines.append(
                f"{', '.join(names)}: the best of {count} combinations of values by "
                f"{self.settings.metric} on validation data, fold by fold{without_search}"
            )
        return tuple(lines)

    def metadata(self) -> dict[str, Any]:
        """The plan as JSON values, which ``plan.json`` holds."""
        return {
            "data": os.fspath(self.data),
            "folds": list(self.folds),
            "seeds": list(self.seeds),
            "metrics": list(self.metrics),
            "tune": self.tune,
            "candidates": {entry.name: entry.metadata(self.settings) for entry in self.entries},
        }


@dataclass(frozen=True)
class Task:
    """One run of a plan: an entry on a fold with a seed."""

    plan: Plan
    entry: Entry
    fold: int | None
    seed: int
    folder: Path  # of the comparison
    values: Mapping[str, Any] = field(default_factory=dict)  # hyperparameters that tuning chose

    @property
    def key(self) -> tuple[str, int | None, int]:
        """Entry, fold and seed, which identify the run."""
        return self.entry.name, self.fold, self.seed

    @property
    def path(self) -> Path:
        """Its run folder."""
        run = f"seed{self.seed}" if self.fold is None else f"fold{self.fold}-seed{self.seed}"
        return self.folder / RUNS / folder_name(self.entry.name) / run

    @property
    def trial_log(self) -> Path:
        """The file of the trials of this entry on this fold."""
        fold = "all" if self.fold is None else f"fold{self.fold}"
        return self.folder / TUNING / folder_name(self.entry.name) / f"{fold}.json"

    def __str__(self) -> str:
        fold = "" if self.fold is None else f" fold {self.fold}"
        return f"{self.entry.name}{fold} seed {self.seed}"


def folder_name(name: str) -> str:
    """A folder's name for an entry, which does not depend on the other entries.

    Args:
        name: of an entry.

    Returns:
        Letters, digits and a few signs, at most about 90 characters.

    Raises:
        ValueError: the name is empty.

    >>> from rankgrad.experiments.plans import folder_name
    >>> folder_name("lambdaloss@5"), folder_name("a/b")
    ('lambdaloss-at-5', 'a-b-6d959c')
    """
    if not name.strip():
        raise ValueError("a ranker needs a name")
    plain = name.replace("@", "-at-")
    if _SAFE_NAME.fullmatch(plain) and len(plain) <= _MAX_NAME:
        return plain
    digest = hashlib.blake2b(name.encode(), digest_size=3).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", plain).strip("-.")[:_MAX_NAME]
    return f"{safe or 'entry'}-{digest}"


def folds_of(data: str | os.PathLike[str]) -> tuple[int | None, ...]:
    """The folds that a data folder has; ``(None,)`` for a folder of splits.

    Args:
        data: a folder with folds or splits in it.

    Returns:
        The numbers of the folds, ascending.
    """
    path = Path(data)
    _layout.check_exists(path)
    return tuple(_layout.folds(path)) or (None,)


def check_splits(data: str | os.PathLike[str], folds: Iterable[int | None]) -> None:
    """Raise if no fold has all the splits.

    If some folds have them, the comparison goes on: runs on the other folds are missing in it.

    Args:
        data: a folder with folds or splits in it.
        folds: the folds to compare on; None stands for a folder of splits.

    Raises:
        ValueError: no fold has all the splits; the message says what the first one lacks.
    """
    path = Path(data)
    _layout.check_exists(path)
    if path.is_file() or store.is_store(path):
        raise ValueError(
            f"{path} is one set of lists: to compare, give a folder with train, vali and test in it"
        )
    problems = []
    for fold in folds:
        try:
            missing = [split for split in SPLITS if split not in _layout.splits(path, fold)]
        except ValueError as error:
            problems.append(str(error))
            continue
        if not missing:
            return
        problems.append(missing_splits(path, fold, missing))
    raise ValueError(problems[0])


def missing_splits(path: Path, fold: int | None, missing: Iterable[str]) -> str:
    """The message for data that lack a split.

    Args:
        path: of the data.
        fold: the number of the fold; None for a folder of splits.
        missing: the names of the missing splits.

    Returns:
        The message.
    """
    where = path if fold is None else f"fold {fold} of {path}"
    return (
        f"{where} has no {' and no '.join(missing)} split: to compare, train, vali and test are "
        "needed"
    )
