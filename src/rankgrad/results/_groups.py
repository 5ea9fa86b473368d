"""Groups of runs: an entry of a comparison is the runs that differ in seed and fold only.

The report groups the runs it finds with :func:`group`. ``rankgrad compare`` makes its groups
itself, because it knows which entry it trains each run for.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from rankgrad.results.runs import FailedRun, Run

#: Settings that do not tell entries apart: the seed, where a run was made, and what was logged.
INCIDENTAL = ("seed", "metrics", "device", "devices", "graphs", "memory", "tensorboard")
#: The name of a run folder in a comparison, which is in the folder of its entry.
_RUN_NAME = re.compile(r"(fold\d+-)?seed\d+|fold\d+")


class Fold(NamedTuple):
    """The test data of a run: their checksum, and the number of the fold if it is known."""

    checksum: str
    number: int | None = None

    @property
    def name(self) -> str:
        """The fold in words."""
        return f"data {self.checksum[:8]}" if self.number is None else f"fold {self.number}"


Place = tuple[Fold, int | None]  # fold and seed of a run


@dataclass(frozen=True)
class RunGroup:
    """An entry of a comparison, such as a loss with a model, with its runs over seeds and folds.

    Args:
        name: the name of the entry.
        runs: its run folders.
        missing: the runs that failed and have no folder: from (fold, seed) to the reason.
        problems: the failures, each with its fold, seed and reason.
    """

    name: str
    runs: tuple[Run, ...]
    missing: Mapping[tuple[int | None, int | None], str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_reference(self) -> bool:
        """Whether the entry is only shown, not tested, such as the best achievable ranking."""
        return any(run.labels.get("kind") == "reference" for run in self.runs)

    @property
    def is_tree(self) -> bool:
        """Whether its runs are boosted trees."""
        return any(run.is_tree for run in self.runs)

    @property
    def n_runs(self) -> int:
        """The number of its runs, failed ones included."""
        return len(self.runs) + len(self.missing)

    @property
    def n_missing(self) -> int:
        """The number of its runs without a result."""
        return len(self.missing) + sum(run.evaluated is None for run in self.runs)

    @property
    def loss(self) -> str:
        """The loss of its runs."""
        return next((run.loss for run in self.runs if run.loss), "")

    @property
    def model(self) -> str:
        """The model of its runs."""
        models = (run.settings.get("model") or run.labels.get("model") for run in self.runs)
        return next((str(model) for model in models if model), "")

    @property
    def seeds(self) -> list[int | None]:
        """The seeds of its runs, ascending; None, for runs that state none, is last."""
        return sorted({run.seed for run in self.runs}, key=lambda s: (s is None, s or 0))

    @property
    def seconds(self) -> float | None:
        """The mean seconds of training a run; None if no run states them."""
        seconds = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(seconds) / len(seconds) if seconds else None


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


def entry_named(entries: Iterable[_Entry], name: str) -> _Entry:
    """The entry of this name, or of the only name that differs from it in case alone.

    Raises:
        ValueError: no entry has this name, or several differ from it in case alone.
    """
    entries = tuple(entries)
    matches = [entry for entry in entries if entry.name.casefold() == name.casefold()]
    matches = [entry for entry in matches if entry.name == name] or matches
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(entry.name for entry in entries)
    raise ValueError(f"there is no ranker {name!r}. There are: {names}")


def group(runs: Sequence[Run]) -> list[RunGroup]:
    """Group the runs that differ in seed and fold only.

    The evaluation of a run usually names its entry, in the label ``candidate``. A run without that
    label (it was trained by itself, or is not evaluated) joins the entry of the runs with the same
    settings or, if it is a run of a comparison, of the other runs in its parent folder.
    """
    by_folder = _unanimous_labels((run.path.parent, run) for run in runs)
    by_settings = _unanimous_labels((_identity(run), run) for run in runs if run.settings)
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        label = run.labels.get("candidate")
        if label is None and _RUN_NAME.fullmatch(run.path.name):
            label = by_folder.get(run.path.parent)
        if label is None:
            label = by_settings.get(_identity(run))
        if label is not None:
            key = "label", str(label)
        else:
            key = "settings", _identity(run) if run.settings else str(run.path)
        groups[key].append(run)
    names = _names(groups)
    return [RunGroup(names[key], tuple(members)) for key, members in groups.items()]


def _unanimous_labels(pairs: Iterable[tuple[Any, Run]]) -> dict[Any, str]:
    """The label by key, of the keys whose labeled runs all have the same label."""
    labels_by_key: dict[Any, set[str]] = defaultdict(set)
    for key, run in pairs:
        label = run.labels.get("candidate")
        if label is not None:
            labels_by_key[key].add(str(label))
    return {key: next(iter(labels)) for key, labels in labels_by_key.items() if len(labels) == 1}


def _identity(run: Run) -> str:
    """The settings of a run, without the incidental ones, as a string."""
    settings = {name: value for name, value in run.settings.items() if name not in INCIDENTAL}
    return json.dumps(settings, sort_keys=True)


def _names(groups: Mapping[tuple[str, str], list[Run]]) -> dict[tuple[str, str], str]:
    """A name for each group: its label, or its loss with the settings that differ from others."""
    names: dict[tuple[str, str], str] = {}
    by_loss = defaultdict(list)
    for key, runs in groups.items():
        kind, label = key
        if kind == "label":
            names[key] = label
        elif not runs[0].settings:
            names[key] = runs[0].loss or runs[0].path.name
        else:
            by_loss[runs[0].loss].append(key)
    for loss, keys in by_loss.items():
        different = varying(groups[key][0].settings for key in keys)
        for key in keys:
            first = groups[key][0]
            shown = [name for name in different if name not in INCIDENTAL]
            options = [f"{name}={first.settings[name]}" for name in shown if name in first.settings]
            names[key] = " · ".join([loss or first.path.parent.name, *options])
    counts = Counter(names.values())
    for key, name in names.items():
        if counts[name] > 1:
            names[key] = f"{name} ({groups[key][0].path})"
    return names


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that differ between runs.

    >>> from rankgrad.results._groups import varying
    >>> varying([{"loss": "mse", "seed": 1}, {"loss": "mse", "seed": 2}])
    ['seed']
    """
    per_run = list(settings)
    names = dict.fromkeys(name for run in per_run for name in run)
    return [name for name in names if len({json.dumps(run.get(name)) for run in per_run}) > 1]


def add_failed(groups: Iterable[RunGroup], failed: Iterable[FailedRun]) -> list[RunGroup]:
    """Add failed runs to their groups, except those that a later attempt has evaluated."""
    by_name = {entry.name: entry for entry in groups}
    for failure in failed:
        entry = by_name.get(failure.entry, RunGroup(failure.entry, ()))
        attempts = [run for run in entry.runs if run.seed == failure.seed]
        attempts = [run for run in attempts if run.fold in (failure.fold, None)]
        if any(run.evaluated is not None for run in attempts):
            continue
        missing = dict(entry.missing)
        if not attempts:
            missing[failure.fold, failure.seed] = failure.reason
        fold = "" if failure.fold is None else f"fold {failure.fold}, "
        problem = f"{fold}seed {failure.seed}: {failure.reason}"
        by_name[entry.name] = replace(entry, missing=missing, problems=(*entry.problems, problem))
    return list(by_name.values())
