"""Candidates: the runs that differ by seed and fold alone, and what is missing among them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankgrad.report.runs import Failure, Run

#: Settings that say where a run was made and what was logged, not what it is.
ASIDE = ("seed", "metrics", "device", "devices", "graphs", "memory", "tensorboard")

Place = tuple[str, int | None]  # the data of a run, by checksum, and its seed


@dataclass
class Candidate:
    """What is compared: a loss with a model and settings, or a tree, over its seeds and folds."""

    name: str
    runs: list[Run]
    gaps: list[str] = field(default_factory=list)
    failed: int = 0  # runs that have no folder

    @property
    def evaluated(self) -> dict[Place, Run]:
        """Its runs that can be compared, one for each part of the data and seed."""
        return {
            (run.evaluated.checksum, run.seed): run
            for run in reversed(self.runs)  # the first of two alike is taken
            if run.evaluated is not None
        }

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the data (folds), by checksum, that it was evaluated on."""
        return frozenset(part for part, _ in self.evaluated)

    @property
    def is_reference(self) -> bool:
        """Whether it is there to be looked at, not to compete: as the best ranking there is."""
        return any(run.labels.get("kind") == "reference" for run in self.runs)

    @property
    def is_tree(self) -> bool:
        """Whether it is of boosted trees."""
        return any(run.is_tree for run in self.runs)

    @property
    def missing(self) -> int:
        """How many gaps it has: runs without a result, or what else its notes say."""
        return self.failed + sum(r.evaluated is None for r in self.runs) or len(self.gaps)

    @property
    def loss(self) -> str:
        """The loss of its runs."""
        return next((run.loss for run in self.runs if run.loss), "")

    @property
    def model(self) -> str:
        """The model of its runs."""
        found = (run.settings.get("model") or run.labels.get("model") for run in self.runs)
        return next((str(model) for model in found if model), "")

    @property
    def seeds(self) -> list[int | None]:
        """Its seeds."""
        return sorted({run.seed for run in self.runs}, key=lambda s: (s is None, s or 0))


def group(runs: Sequence[Run]) -> list[Candidate]:
    """Put runs together that differ by seed and fold alone.

    A run says in its evaluation what candidate it is of. One that does not (it was trained by
    itself, or did not come so far) goes with the runs of its folder, or of the same settings.
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
    return [Candidate(names[key], inside, _own_gaps(inside)) for key, inside in groups.items()]


def _unanimous(pairs: Iterable[tuple[Any, Run]]) -> dict[Any, str]:
    """For each key, the candidate that all its runs with a label name."""
    found: dict[Any, set[str]] = defaultdict(set)
    for key, run in pairs:
        label = run.labels.get("candidate")
        if label is not None:
            found[key].add(str(label))
    return {key: next(iter(labels)) for key, labels in found.items() if len(labels) == 1}


def _identity(run: Run) -> str:
    """The settings that make a run what it is, in one string."""
    return json.dumps({k: v for k, v in run.settings.items() if k not in ASIDE}, sort_keys=True)


def _names(groups: Mapping[Any, list[Run]]) -> dict[Any, str]:
    """A name for each group: its label, or its loss, with the settings that tell it from others."""
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
        for key, own in zip(keys, settings, strict=True):
            apart = [k for k in varying(settings) if k not in ASIDE and k in own]
            named = loss or groups[key][0].path.parent.name
            names[key] = " · ".join([named, *(f"{k}={own[k]}" for k in apart)])
    taken = Counter(names.values())
    for key, name in names.items():
        if taken[name] > 1:
            names[key] = f"{name} ({groups[key][0].path})"
    return names


def varying(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same everywhere.

    >>> varying([{"loss": "mse", "seed": 1}, {"loss": "mse", "seed": 2}])
    ['seed']
    """
    every = list(settings)
    names = dict.fromkeys(name for own in every for name in own)
    return [n for n in names if len({json.dumps(own.get(n)) for own in every}) > 1]


def _own_gaps(runs: Sequence[Run]) -> list[str]:
    """What its runs lack, and runs that are there twice."""
    gaps = [f"{run.path}: {gap}" for run in runs for gap in run.gaps]
    places = Counter((r.evaluated.checksum, r.seed) for r in runs if r.evaluated is not None)
    for (part, seed), number in places.items():
        if number > 1:
            where = f"{_fold(runs, part)} with seed {seed}"
            gaps.append(f"{number} runs on {where}: only the first is counted")
    return gaps


def add_failures(candidates: list[Candidate], failures: Iterable[Failure]) -> None:
    """Note runs that failed as gaps of their candidates, unless they were made since."""
    by_name = {candidate.name: candidate for candidate in candidates}
    for failure in failures:
        own = by_name.get(failure.candidate)
        if own is None:
            own = by_name[failure.candidate] = Candidate(failure.candidate, [])
            candidates.append(own)
        alike = [r for r in own.runs if r.seed == failure.seed]
        alike = [r for r in alike if r.labels.get("fold") in (failure.fold, None)]
        if any(run.evaluated is not None for run in alike):
            continue
        own.failed += not any(run.seed == failure.seed and run.gaps for run in own.runs)
        fold = "" if failure.fold is None else f"fold {failure.fold}, "
        own.gaps.append(f"{fold}seed {failure.seed}: {failure.reason}")


def _fold(runs: Sequence[Run], part: str) -> str:
    names = fold_names(runs)
    return names.get(part, f"data {part[:8]}")


def fold_names(runs: Iterable[Run]) -> dict[str, str]:
    """What to call the parts of the data: by fold where runs say it, or by checksum."""
    names: dict[str, str] = {}
    for run in runs:
        if run.evaluated is not None:
            fold, part = run.labels.get("fold"), run.evaluated.checksum
            names.setdefault(part, f"data {part[:8]}" if fold is None else f"fold {fold}")
    return names


def common_parts(candidates: Sequence[Candidate]) -> list[str]:
    """The parts of the data that candidates are compared on.

    These are the most that any candidate has, then the set that most candidates have. A candidate
    without all of them is left out and listed as missing.
    """
    sets = Counter(c.parts for c in candidates if c.parts)
    if not sets:
        return []
    best = max(sets, key=lambda parts: (len(parts), sets[parts]))
    names = fold_names(run for c in candidates for run in c.runs)
    order = {part: at for at, part in enumerate(dict.fromkeys(names))}
    folds = {part: names[part].removeprefix("fold ") for part in best}
    # Fold 10 comes after fold 2, as where the runs were made: draws follow the order of lists.
    numbers = {part: int(fold) if fold.isdecimal() else 0 for part, fold in folds.items()}
    return sorted(best, key=lambda part: (numbers[part], names[part], order[part]))


def leave_out(candidates: Sequence[Candidate], parts: Sequence[str]) -> list[bool]:
    """Whether each candidate can be compared on these parts; where not, a gap is added."""
    names = fold_names(run for c in candidates for run in c.runs)
    qids = {
        part: next(
            run.evaluated.qids
            for c in candidates
            for (own, _), run in c.evaluated.items()
            if own == part and run.evaluated is not None
        )
        for part in parts
    }
    complete = []
    for candidate in candidates:
        reason = _incomparable(candidate, parts, names, qids)
        if reason:
            candidate.gaps.append(reason)
        complete.append(reason is None)
    return complete


def _missing(candidate: Candidate, parts: Sequence[str], names: Mapping[str, str]) -> str:
    """The runs that it lacks though they were begun, or other folds have them; "" for none."""
    there = candidate.evaluated
    seeds = dict.fromkeys(seed for _, seed in there)
    lacking = [
        f"{names[part]} with seed {seed}"
        for seed in seeds
        for part in parts
        if (part, seed) not in there
    ]
    begun = sum(run.evaluated is None for run in candidate.runs) + candidate.failed
    return ", ".join(lacking) or ("" if not begun else f"{begun} of its runs")


def _incomparable(
    candidate: Candidate,
    parts: Sequence[str],
    names: Mapping[str, str],
    qids: Mapping[str, Any],
) -> str | None:
    own = candidate.parts
    if not own:
        return "none of its runs has a result, so it is not compared"
    if not own & set(parts):
        return "it was evaluated on other data than the rest, so it is not compared"
    lacking = [names[part] for part in parts if part not in own]
    if lacking:
        return (
            f"no result on {', '.join(lacking)}: a mean over the others would be of other queries, "
            "so it is not compared"
        )
    missing = _missing(candidate, parts, names)
    if missing:
        return f"no result on {missing}: its mean would be of fewer runs, so it is not compared"
    for (part, _), run in candidate.evaluated.items():
        assert run.evaluated is not None
        if part in qids and not np.array_equal(run.evaluated.qids, qids[part]):
            return f"{run.path}: its queries are not those of the others, so it is not compared"
    return None
