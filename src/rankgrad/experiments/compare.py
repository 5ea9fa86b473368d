"""Compare: candidates trained on the same data, folds and seeds, and what is significant.

Here is the comparison's folder: what is run in it, what it was made with and what is found in it.
The plan of it is in ``plans``, the runs are made in ``runner``, what they say is in ``results`` and
shown by ``comparison``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from rankgrad import files, schemas, significance
from rankgrad.experiments import data_checksums, jobs
from rankgrad.experiments.comparison import FORMAT, VERSION, Comparison
from rankgrad.experiments.plans import Candidate, Contender, Plan, check_splits, folds_of
from rankgrad.experiments.results import Difference, Key, run_name
from rankgrad.experiments.runner import OnChange, Progress, Row, Runner
from rankgrad.experiments.trees import TreeCandidate
from rankgrad.experiments.workers import LOCK, WORKERS, alone, number
from rankgrad.significance import Significance
from rankgrad.training.evaluations import Evaluated

__all__ = [
    "Candidate",
    "Comparison",
    "Contender",
    "Difference",
    "Plan",
    "Progress",
    "Row",
    "Significance",
    "TreeCandidate",
    "folds_of",
    "load",
    "run",
]

PLAN, COMPARISON = "plan.json", "comparison.json"


def run(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_change: OnChange | None = None,
    how: Significance | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Make every run of a plan that is not there yet, and put all of them together.

    Every run has its own folder, ``folder/runs/CANDIDATE/fold1-seed0``. Called again with the same
    plan after a crash, finished runs are left as they are and half-runs are continued. Candidates,
    folds, seeds and metrics may be added; a candidate whose settings differ is an error, and so are
    other data than those the folder's results were made with.

    Args:
        plan: what to compare.
        folder: where; made if it is not there.
        workers: processes to run in; None for one per core, or per GPU if runs are on GPUs; 0 for
            this process.
        on_change: called whenever something happened.
        how: the test that ``comparison.json`` has, and which a report then takes.
        baseline: what candidates are tested against there; None for the best one.
    """
    place = Path(folder)
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be at least 0, found {workers}")
    count = number(plan.settings) if workers is None else workers
    check_splits(plan.data, plan.folds)
    _check_folder(place)
    place.mkdir(parents=True, exist_ok=True)
    with alone(place):
        _check_plan(plan, place)
        runner = Runner(plan, place, on_change)
        found = _gather(plan, place, runner.run(count), runner.remade)
        facts = found.facts(baseline=baseline, how=how)
        files.write(place / COMPARISON, json.dumps(facts, indent=1) + "\n")
    return found


def load(plan: Plan, folder: str | os.PathLike[str]) -> Comparison:
    """What is there of a comparison, without running anything."""
    return _gather(plan, Path(folder), {})


def _gather(
    plan: Plan, folder: Path, failures: Mapping[Key, str], remade: Mapping[Key, str] | None = None
) -> Comparison:
    """Read the evaluations of all runs; what cannot be read is a gap."""
    evaluated: dict[Key, Evaluated] = {}
    gaps: dict[Key, str] = {}
    chosen: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for task in plan.tasks(folder):
        if task.key in failures:
            gaps[task.key] = failures[task.key]
            continue
        try:
            jobs.check_version(task)
            found = Evaluated.load(task.path)
        except FileNotFoundError:
            gaps[task.key] = "it has not been run to its end"
        except (ValueError, OSError) as error:
            gaps[task.key] = jobs.reason_of(error)
        else:
            missing = [metric for metric in plan.metrics if metric not in found.metrics]
            if missing:
                gaps[task.key] = f"it was not evaluated with {', '.join(missing)}"
            else:
                evaluated[task.key] = found
                if task.candidate.is_tuned(plan):
                    chosen[task.candidate.name, task.fold] = jobs.chosen(task)
    check_data(evaluated)
    again = {key: why for key, why in (remade or {}).items() if key in evaluated}
    return Comparison(plan, folder, evaluated, gaps, chosen, again)


def check_data(evaluated: Mapping[Key, Evaluated]) -> None:
    """Runs of the same fold must be of the same test data."""
    first: dict[int | None, Key] = {}
    for key, found in evaluated.items():
        other = first.setdefault(key[1], key)
        reference = evaluated[other]
        if found.checksum == reference.checksum:
            continue
        names = (run_name(*other), run_name(*key))
        significance.check_same_queries(reference.qids, found.qids, names=names)
        raise ValueError(
            f"{names[0]} and {names[1]} were evaluated on other data, though of the same queries: "
            "compare in another folder"
        )


def _check_folder(folder: Path) -> None:
    """A folder of something else is left alone."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another place")
    if folder.exists() and not (folder / PLAN).exists():
        others = {inside.name for inside in folder.iterdir()} - {LOCK, WORKERS}
        if others:
            raise FileExistsError(
                f"{folder} is there and holds no comparison: choose another folder"
            )


class _PlanFacts(TypedDict):
    """What is read of ``plan.json``."""

    candidates: dict[str, dict[str, Any]]
    tune: Any
    checksums: NotRequired[dict[str, dict[str, dict[str, str]]]]


def _check_plan(plan: Plan, folder: Path) -> None:
    """An error that says what differs, if the folder is of another plan; else write it down."""
    now, path = plan.facts(), folder / PLAN
    known: data_checksums.Checksums = {}
    if path.exists():
        then = schemas.read_json(path, dict[str, Any])
        if then.get("version") != VERSION:
            raise ValueError(
                f"{path} was written by another version of rankgrad: compare in another folder"
            )
        schemas.check(path, then, _PlanFacts)
        differences = [
            f"{name}: {difference}"
            for name, facts in now["candidates"].items()
            if name in then["candidates"]
            for difference in _differences(facts, then["candidates"][name])
        ]
        if now["tune"] != then["tune"]:
            differences.append(f"tune: {now['tune']!r}, not {then['tune']!r}")
        if differences:
            more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
            raise ValueError(
                f"{folder} holds a comparison with other settings; "
                f"{'; '.join(differences[:4])}{more}. Go on with the same, or in another folder"
            )
        now["candidates"] = {**then["candidates"], **now["candidates"]}
        # Before it was written down in the plan, the runs alone had it.
        known = then.get("checksums") or data_checksums.of_runs(plan.tasks(folder))
    found = data_checksums.of_data(Path(plan.data), plan.folds, known)
    data_checksums.check(found, known, folder)
    folds = {**known, **found}
    now["checksums"] = {f: {**known.get(f, {}), **found.get(f, {})} for f in folds}
    now = {"format": FORMAT, "version": VERSION, **now}
    files.write(path, json.dumps(now, indent=1) + "\n")


def _differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {now.get(name)!r}, not {then.get(name)!r}"
        for name in {**then, **now}
        if now.get(name) != then.get(name)
    ]
