"""What a run folder says of its run; what it cannot say is a gap with its reason, not an error."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from rankgrad import files, schemas
from rankgrad.quoting import quote
from rankgrad.significance import Significance
from rankgrad.training import evaluations
from rankgrad.training.evaluations import Evaluated
from rankgrad.training.run import (
    BEST,
    METRICS,
    RUN,
    SETTINGS,
    RunMetadata,
    read_history,
    read_settings,
)

COMPARISON = "comparison.json"  # what `rankgrad compare` writes beside its run folders
REPRODUCTION = "reproduction.json"  # what `rankgrad reproduce` writes beside a comparison
_FORMAT, _VERSION = "rankgrad run", 1


@dataclass(frozen=True)
class Run:
    """A run folder as it was found. ``gaps`` says in words what is missing, and why."""

    path: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, float], ...] = ()
    evaluated: Evaluated | None = None
    gaps: tuple[str, ...] = ()
    elsewhere: Mapping[str, Any] = field(default_factory=dict)  # labels of another part's

    @property
    def labels(self) -> Mapping[str, Any]:
        """What the run is in its experiment: candidate, loss, model, fold, seed, where it says."""
        own = self.facts.get("labels")
        stated = self.evaluated.labels_of_run if self.evaluated is not None else self.elsewhere
        return {**(own if isinstance(own, dict) else {}), **stated}

    @property
    def is_tree(self) -> bool:
        """Whether it is of boosted trees, whose steps are trees and whose settings are others."""
        return self.facts.get("kind") is not None

    @property
    def loss(self) -> str:
        """The loss, by the settings or by what the evaluation says."""
        return str(self.settings.get("loss") or self.labels.get("loss") or "")

    @property
    def seed(self) -> int | None:
        """The seed, or None where nothing says it."""
        seed = self.labels.get("seed", self.settings.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def seconds(self) -> float | None:
        """How long training took, or None where nothing says it."""
        last = self.history[-1].get("seconds") if self.history else None
        seconds = self.facts.get("seconds") if last is None else last
        return float(seconds) if isinstance(seconds, int | float) else None


def find(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The run folders among some folders and at any depth within them, each once.

    Folders with hidden names are left out: they are being written.
    """
    found: dict[Path, Path] = {}
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(f"{place} is not there")
        before = len(found)
        for folder, inside, names in os.walk(place):
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            if RUN in names:
                inside.clear()
                found.setdefault(Path(folder).resolve(), Path(folder))
        inside_others = any(_within(path, place) for path in found)
        if len(found) == before and not inside_others and not failures([place]):
            raise ValueError(
                f"{place} holds no run folder (a folder with {RUN}, as `rankgrad train` makes)"
            )
    return list(found.values())


class _Outcome(TypedDict, total=False):
    fold: int | None
    seed: int | None
    gap: str | None


class _Row(TypedDict, total=False):
    candidate: str
    runs: list[_Outcome]


class _Comparison(TypedDict, total=False):
    """What is read of ``comparison.json``."""

    rows: list[_Row]
    plan: dict[str, Any]
    test: dict[str, schemas.Scalar]


@dataclass(frozen=True)
class Failure:
    """A run of a comparison that came to nothing, and why."""

    candidate: str
    fold: int | None
    seed: int | None
    reason: str


def failures(places: Iterable[Path]) -> list[Failure]:
    """The runs that comparisons among some folders say have failed; these may have no folder."""
    found = []
    for file in _named(places, COMPARISON):
        try:
            rows = schemas.read_json(file, _Comparison)["rows"]
            found += [
                Failure(str(row["candidate"]), run["fold"], run["seed"], str(run["gap"]))
                for row in rows
                for run in row["runs"]
                if run["gap"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of another version, or damaged: the folders still tell what is there
    return found


@dataclass(frozen=True)
class Told:
    """What the comparisons among some folders say of themselves, as far as they agree."""

    data: str = ""  # the name of the data set
    how: Significance | None = None
    baseline: str | None = None
    quick: bool = False  # of a reproduction in its reduced version


def told(places: Iterable[Path]) -> Told:
    """What ``comparison.json`` and ``reproduction.json`` files say of data and test."""
    names: set[str] = set()
    quick = False
    tests: list[tuple[Significance, str | None]] = []
    for file in _named(places, COMPARISON):
        try:
            facts = schemas.read_json(file, _Comparison)
            again = _reproduction(file)
            names.add(str(again.get("data") or Path(str(facts["plan"]["data"])).name))
            quick = quick or again.get("quick") is True
            own = dict(facts["test"])
            baseline = own.pop("baseline", None)
            tests.append((Significance(**own), baseline))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of another version, or damaged
    same = len(set(tests)) == 1
    how, baseline = tests[0] if same else (None, None)
    return Told(names.pop() if len(names) == 1 else "", how, baseline, quick)


def _reproduction(comparison: Path) -> Mapping[str, Any]:
    """What the reproduction says that a comparison is of, beside whose folder it stands."""
    try:
        facts = files.read_json(comparison.resolve().parent.parent / REPRODUCTION)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _named(places: Iterable[Path], name: str) -> list[Path]:
    """The files of a name within folders, each once."""
    found = {file.resolve(): file for place in places for file in sorted(place.rglob(name))}
    return list(found.values())


def _within(path: Path, place: Path) -> bool:
    return path.is_relative_to(place.resolve())


def read(path: Path, part: str = "test") -> Run:
    """Read a run folder with its evaluation on a part of the data."""
    try:
        facts = _facts(path)
    except (OSError, ValueError) as error:
        return Run(path, gaps=(_reason(error, path),))
    gaps: list[str] = []
    settings: Mapping[str, Any] = {}
    history: list[Mapping[str, float]] = []
    try:
        settings = _settings(path, facts)
        history = _history(path)
    except (OSError, ValueError) as error:
        gaps.append(_reason(error, path))
    evaluated, elsewhere = None, {}
    failure = facts.get("error")
    if failure:
        gaps.append(f"it failed: {failure}")
    try:
        evaluated = _without_items(Evaluated.load(path, part))
    except FileNotFoundError:
        gaps.append(_not_evaluated(path, part, settings, history))
        elsewhere = _labels_elsewhere(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        gaps.append(_reason(error, path))
    return Run(path, facts, settings, tuple(history), evaluated, tuple(gaps), elsewhere)


def _labels_elsewhere(path: Path) -> dict[str, Any]:
    """What the evaluation on another part says that the run is."""
    for part in evaluations.names(path):
        try:
            return dict(Evaluated.load(path, part).labels_of_run)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged: it says nothing
    return {}


def _without_items(found: Evaluated) -> Evaluated:
    """An evaluation without its items, of which many runs have too many to hold at once."""
    return replace(found, labels=found.labels[:0].copy(), scores=found.scores[:0].copy())


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = schemas.read_json(path / RUN, dict[str, Any])
    if facts.get("format", _FORMAT) != _FORMAT:
        raise ValueError(f"{path / RUN} is damaged (it describes no run)")
    if facts.get("version", _VERSION) != _VERSION:
        raise ValueError(
            "it was written by another version of rankgrad (format "
            f"{quote(facts['version'])}, this one reads {_VERSION})"
        )
    schemas.check(path / RUN, {"data": {}, **facts}, RunMetadata)  # earlier versions said no data
    return facts


def _settings(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they stand, also those that this version does not know."""
    file = path / SETTINGS
    if not file.exists():  # trees have theirs among the facts
        own = facts.get("settings")
        return dict(own) if isinstance(own, dict) else {}
    try:
        return tomllib.loads(read_settings(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{SETTINGS} is damaged ({error})") from None


def _history(path: Path) -> list[Mapping[str, float]]:
    return list(read_history(path)) if (path / METRICS).exists() else []


def _not_evaluated(
    path: Path, part: str, settings: Mapping[str, Any], history: list[Mapping[str, float]]
) -> str:
    """Why a run has no evaluation, as far as its folder tells."""
    others = evaluations.names(path)
    has = f" (it has {', '.join(others)})" if others else ""
    if (path / SETTINGS).exists() and not files.readable_path(path / BEST).exists():
        return "training stopped before the first epoch was done"
    epochs = settings.get("epochs")
    far = f"; {len(history)} of at most {epochs} epochs are done" if history and epochs else ""
    return f"not evaluated on {part}{has}{far}"


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, KeyError):
        return f"its evaluation is damaged ({error} is missing)"
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename or path).name} cannot be read: {error.strerror}"
    return str(error).replace(f"{path}{os.sep}", "").replace(f"{path} ", "it ")
