"""What the run folders of text rankers say, as the same tables and tests as any comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankgrad import files, schemas
from rankgrad.experiments.compare import COMPARISON, check_data
from rankgrad.experiments.comparison import Comparison
from rankgrad.experiments.plans import RUNS
from rankgrad.experiments.results import Key
from rankgrad.experiments.text import FIRST_STAGE
from rankgrad.metrics import metrics as known_metrics
from rankgrad.significance import Significance
from rankgrad.text.runs import is_text_run
from rankgrad.training.evaluations import Evaluated
from rankgrad.training.run import RUN, RunMetadata


@dataclass(frozen=True)
class TextCandidate:
    """What tables show of some runs."""

    name: str


@dataclass(frozen=True)
class TextPlan:
    """What run folders of text rankers are of."""

    data: str
    candidates: tuple[TextCandidate, ...]
    folds: tuple[int | None, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    tune: int | None = None
    settings: Any = None

    def candidate(self, name: str) -> TextCandidate:
        """The candidate of this name, in whatever case it is given."""
        for candidate in self.candidates:
            if candidate.name.casefold() == name.casefold():
                return candidate
        listed = ", ".join(candidate.name for candidate in self.candidates)
        raise ValueError(f"there is no candidate {name!r}. There are: {listed}")

    def facts(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        return {
            "data": self.data,
            "folds": list(self.folds),
            "seeds": list(self.seeds),
            "metrics": list(self.metrics),
            "tune": None,
            "candidates": {candidate.name: {} for candidate in self.candidates},
        }


@dataclass(frozen=True)
class TextComparison(Comparison):
    """A comparison of text rankers and their first stage."""

    def conventions(self) -> tuple[str, ...]:
        """What the numbers mean."""
        folds, seeds = len(self.plan.folds), len(self.plan.seeds)
        over = [f"{n} {what}{'s' * (n > 1)}" for n, what in ((folds, "fold"), (seeds, "seed"))]
        lines = [f"means over {' × '.join(over)} of each run's mean over the test queries"]
        if self._first:
            sizes = ", ".join(str(len(found.qids)) for found in self._first.values())
            lines.append(f"test queries: {sizes}")
            lines += next(iter(self._first.values())).conventions
        return tuple(lines)


def is_text_folder(folder: Path) -> bool:
    """Whether a folder holds the runs of ``rankgrad text train``."""
    return folder.is_dir() and next(_runs(folder), None) is not None


def load(folder: Path, metrics: Iterable[str] = ()) -> TextComparison:
    """The text runs of a folder, put together; what is missing is a gap.

    Args:
        folder: of ``rankgrad text train``.
        metrics: of the test queries; by default those that all runs were evaluated with.

    Raises:
        ValueError: runs of the same fold were evaluated on other data.
    """
    evaluated: dict[Key, Evaluated] = {}
    names: dict[str, None] = {}
    keys: list[Key] = []
    for path, labels in _runs(folder):
        key = (str(labels["candidate"]), labels["fold"], int(labels["seed"]))
        names[key[0]] = None
        keys.append(key)
        if (found := _evaluated(path)) is not None:
            evaluated[key] = found
    folds = tuple(sorted({key[1] for key in keys}, key=lambda fold: fold or 0))
    seeds = tuple(sorted({key[2] for key in keys if key[0] != FIRST_STAGE})) or (0,)
    for fold in folds:  # the first stage has no seed: its values are those of each
        first = evaluated.get((FIRST_STAGE, fold, 0))
        if first is not None:
            evaluated |= {(FIRST_STAGE, fold, seed): first for seed in seeds}
    wanted = [str(known_metrics.get(spec)) for spec in metrics] or _shared(evaluated.values())
    order = sorted(names, key=lambda name: name != FIRST_STAGE)
    plan = TextPlan(
        str(folder), tuple(map(TextCandidate, order)), folds, seeds, tuple(dict.fromkeys(wanted))
    )
    gaps: dict[Key, str] = {}
    for key in ((name, fold, seed) for name in order for fold in folds for seed in seeds):
        lacking = [m for m in plan.metrics if key in evaluated and m not in evaluated[key].metrics]
        if key not in evaluated:
            gaps[key] = "it has not been run to its end"
        elif lacking:
            gaps[key] = f"it was not evaluated with {', '.join(lacking)}"
            del evaluated[key]
    check_data(evaluated)
    kept = {key: one for key, one in evaluated.items() if key[1] in folds and key[2] in seeds}
    return TextComparison(plan, folder, kept, gaps, {})


def save(found: TextComparison, *, baseline: str | None, how: Significance) -> None:
    """Write ``comparison.json``, whose test and baseline reports take."""
    facts = found.facts(baseline=baseline, how=how)
    files.write(found.folder / COMPARISON, json.dumps(facts, indent=1) + "\n")


def _runs(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The run folders of text rankers, and what each is called."""
    for path in sorted((folder / RUNS).glob(f"*/*/{RUN}")):
        if is_text_run(path.parent):
            yield path.parent, schemas.read_json(path, RunMetadata)["labels"]


def _evaluated(path: Path) -> Evaluated | None:
    try:
        return Evaluated.load(path)
    except FileNotFoundError:
        return None


def _shared(evaluated: Iterable[Evaluated]) -> list[str]:
    """The metrics that all evaluations have, in the order of the first."""
    every = [found.metrics for found in evaluated]
    return [metric for metric in (every[0] if every else ()) if all(metric in m for m in every)]
