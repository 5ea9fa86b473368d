"""Groups of runs: the runs of an entry, which differ by seed and fold alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rankgrad.results.runs import FailedRun, Run

#: Settings that say where a run was made and what was logged, not what it is.
ASIDE = ("seed", "metrics", "device", "devices", "graphs", "memory", "tensorboard")


class Fold(NamedTuple):
    """A part of the data that runs are tested on: its checksum, and its number where it has one."""

    checksum: str
    number: int | None = None

    @property
    def name(self) -> str:
        """In words."""
        return f"data {self.checksum[:8]}" if self.number is None else f"fold {self.number}"


Place = tuple[Fold, int | None]  # fold and seed of a run


@dataclass(frozen=True)
class RunGroup:
    """An entry of a comparison, such as a loss with a model, with its runs over seeds and folds.

    Args:
        name: of the entry.
        runs: its run folders.
        missing: the reason of each run that failed and has no folder, by fold and seed.
        problems: what is missing, in words.
    """

    name: str
    runs: tuple[Run, ...]
    missing: Mapping[tuple[int | None, int | None], str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_reference(self) -> bool:
        """Whether tables show it and tests leave it out, such as the best achievable ranking."""
        return any(run.labels.get("kind") == "reference" for run in self.runs)

    @property
    def is_tree(self) -> bool:
        """Whether it is of boosted trees."""
        return any(run.is_tree for run in self.runs)

    @property
    def n_runs(self) -> int:
        """How many runs it has, with those that failed."""
        return len(self.runs) + len(self.missing)

    @property
    def n_missing(self) -> int:
        """How many runs have no result."""
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
        """Its seeds."""
        return sorted({run.seed for run in self.runs}, key=lambda s: (s is None, s or 0))

    @property
    def seconds(self) -> float | None:
        """The mean seconds of training a run; None where no run says it."""
        every = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(every) / len(every) if every else None


def group(runs: Sequence[Run]) -> list[RunGroup]:
    """Group runs that differ by seed and fold alone.

    The evaluation of a run names its entry. One that does not (it was trained by itself, or has no
    evaluation) goes with the runs of its folder, or of the same settings.
    """
    by_folder = _unanimous((run.path.parent, run) for run in runs)
    by_settings = _unanimous((_identity(run), run) for run in runs if run.settings)
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        label = run.labels.get("candidate")
        if label is None:
            label = by_folder.get(run.path.parent) or by_settings.get(_identity(run))
        named = ("", str(label)) if label is not None else None
        groups[named or ("settings", _identity(run) if run.settings else str(run.path))].append(run)
    names = _names(groups)
    return [RunGroup(names[key], tuple(inside)) for key, inside in groups.items()]


def _unanimous(pairs: Iterable[tuple[Any, Run]]) -> dict[Any, str]:
    """For each key, the entry that all its runs with a label name."""
    labels_by_key: dict[Any, set[str]] = defaultdict(set)
    for key, run in pairs:
        label = run.labels.get("candidate")
        if label is not None:
            labels_by_key[key].add(str(label))
    return {key: next(iter(labels)) for key, labels in labels_by_key.items() if len(labels) == 1}


def _identity(run: Run) -> str:
    """The settings that make a run what it is, in one string."""
    return json.dumps({k: v for k, v in run.settings.items() if k not in ASIDE}, sort_keys=True)


def _names(groups: Mapping[Any, list[Run]]) -> dict[Any, str]:
    """A name for each group: its label, or its loss, with the settings that differ from others."""
    names: dict[Any, str] = {}
    by_loss = defaultdict(list)
    for key, runs in groups.items():
        kind, text = key
        if kind == "":
            names[key] = text
        elif not runs[0].settings:
            names[key] = runs[0].loss or runs[0].path.name
        else:
            by_loss[runs[0].loss].append(key)
    for loss, keys in by_loss.items():
        settings = [groups[key][0].settings for key in keys]
        for key, settings_of_group in zip(keys, settings, strict=True):
            apart = [k for k in varying(settings) if k not in ASIDE and k in settings_of_group]
            named = loss or groups[key][0].path.parent.name
            names[key] = " · ".join([named, *(f"{k}={settings_of_group[k]}" for k in apart)])
    taken = Counter(names.values())
    for key, name in names.items():
        if taken[name] > 1:
            names[key] = f"{name} ({groups[key][0].path})"
    return names


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same everywhere.

    >>> from rankgrad.results._groups import varying
    >>> varying([{"loss": "mse", "seed": 1}, {"loss": "mse", "seed": 2}])
    ['seed']
    """
    every = list(settings)
    names = dict.fromkeys(name for each in every for name in each)
    return [n for n in names if len({json.dumps(each.get(n)) for each in every}) > 1]


def add_failed(groups: Iterable[RunGroup], failed: Iterable[FailedRun]) -> list[RunGroup]:
    """Add runs that failed to their groups, unless they were made since."""
    by_name = {one.name: one for one in groups}
    for failure in failed:
        entry = by_name.get(failure.entry, RunGroup(failure.entry, ()))
        same = [run for run in entry.runs if run.seed == failure.seed]
        same = [run for run in same if run.fold in (failure.fold, None)]
        if any(run.evaluated is not None for run in same):
            continue
        missing = dict(entry.missing)
        if not same:
            missing[failure.fold, failure.seed] = failure.reason
        fold = "" if failure.fold is None else f"fold {failure.fold}, "
        problem = f"{fold}seed {failure.seed}: {failure.reason}"
        by_name[entry.name] = replace(entry, missing=missing, problems=(*entry.problems, problem))
    return list(by_name.values())
