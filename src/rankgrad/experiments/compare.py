"""Compare: entries trained on the same data, folds and seeds, in a folder that can be resumed.

The folder holds the plan, a run folder for each run, and ``comparison.json``. The plan is in
``plans``, the runs are made in ``runner``; :mod:`rankgrad.results` reads and compares them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad.experiments import _data_checksums, _jobs
from rankgrad.experiments._runner import OnChange, Progress, Row, Runner
from rankgrad.experiments._tree_entries import TreeEntry
from rankgrad.experiments._workers import LOCK, WORKERS, default_count, exclusive
from rankgrad.experiments.plans import Entry, NetworkEntry, Plan, check_splits, folds_of
from rankgrad.results._comparison_tables import FORMAT, VERSION, to_json
from rankgrad.results._groups import RunGroup
from rankgrad.results.comparison import Comparison, Key, check_same_data, compare
from rankgrad.results.runs import COMPARISON, read
from rankgrad.significance import Significance

__all__ = [
    "Comparison",
    "Entry",
    "NetworkEntry",
    "Plan",
    "Progress",
    "Row",
    "Significance",
    "TreeEntry",
    "folds_of",
    "load",
    "run",
    "save",
]

_PLAN = "plan.json"


def run(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_change: OnChange | None = None,
    how: Significance | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Make every run of a plan that is not there yet, and compare them all.

    Every run has its own folder, ``folder/runs/ENTRY/fold1-seed0``. If it is called again with the
    same plan, finished runs are left as they are and unfinished ones are resumed. Entries, folds,
    seeds and metrics may be added. It is an error if the settings of an entry, or the data, are not
    those of the results in the folder.

    Args:
        plan: what to compare.
        folder: where; made if it is not there.
        workers: processes to run in; None for one per core, or per GPU if runs are on GPUs; 0 for
            this process.
        on_change: called when a run starts, makes progress or ends.
        how: the significance test, saved in ``comparison.json`` for reports.
        baseline: the entry that the others are tested against; None for the best one.

    Returns:
        The comparison of all finished runs; the others are missing in it, with the reason.

    Raises:
        ValueError: the folder holds results of other settings or data, or no fold has all
            splits.
    """
    place = Path(folder)
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be at least 0, found {workers}")
    count = default_count(plan.settings) if workers is None else workers
    check_splits(plan.data, plan.folds)
    _check_folder(place)
    place.mkdir(parents=True, exist_ok=True)
    with exclusive(place):
        _check_plan(plan, place)
        runner = Runner(plan, place, on_change)
        comparison = _collect(plan, place, runner.run(count), runner.reevaluated)
        comparison = comparison.tested(how, baseline)
        save(comparison)
    return comparison


def load(plan: Plan, folder: str | os.PathLike[str]) -> Comparison:
    """Compare the runs that a folder holds, without running anything.

    Args:
        plan: what is compared.
        folder: of the comparison.

    Returns:
        The comparison of the runs that are finished.
    """
    return _collect(plan, Path(folder), {})


def save(comparison: Comparison) -> None:
    """Write ``comparison.json``, from which reports take the test and the baseline.

    Args:
        comparison: of a folder, as :func:`run` gives it.
    """
    assert comparison.folder is not None
    _files.write(comparison.folder / COMPARISON, json.dumps(to_json(comparison), indent=1) + "\n")


def _collect(
    plan: Plan,
    folder: Path,
    failures: Mapping[Key, str],
    reevaluated: Mapping[Key, str] | None = None,
) -> Comparison:
    """Read all runs of a plan and compare them."""
    groups = []
    chosen: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for entry in plan.entries:
        runs = []
        missing: dict[tuple[int | None, int | None], str] = {}
        for task in plan.tasks(folder, entry):
            found = read(task.path)
            if task.key in failures or found.evaluated is None:
                reason = failures.get(task.key) or "; ".join(found.problems)
                missing[task.fold, task.seed] = reason
                continue
            labels = {"fold": task.fold, "seed": task.seed}  # also where the run does not name them
            runs.append(replace(found, metadata={**found.metadata, "labels": labels}))
            if entry.is_tuned(plan):
                chosen[entry.name, task.fold] = _jobs.chosen(task)
        groups.append(RunGroup(entry.name, tuple(runs), missing))
    check_same_data(groups)
    keys = {(group.name, run.fold, run.seed) for group in groups for run in group.runs}
    return compare(
        groups,
        metrics=plan.metrics,
        notes=plan.notes(),
        plan=plan.metadata(),
        folder=folder,
        chosen=chosen,
        reevaluated={key: why for key, why in (reevaluated or {}).items() if key in keys},
    )


def _check_folder(folder: Path) -> None:
    """An error if the folder holds something else than a comparison."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another place")
    if folder.exists() and not (folder / _PLAN).exists():
        others = {inside.name for inside in folder.iterdir()} - {LOCK, WORKERS}
        if others:
            raise FileExistsError(
                f"{folder} is there and holds no comparison: choose another folder"
            )


class _PlanMetadata(TypedDict):
    """What is read of ``plan.json``; its ``candidates`` are the entries."""

    candidates: dict[str, dict[str, Any]]
    tune: Any
    checksums: NotRequired[dict[str, dict[str, dict[str, str]]]]


def _check_plan(plan: Plan, folder: Path) -> None:
    """Raise if the folder holds another plan, and say what differs; otherwise save the plan."""
    now, path = plan.metadata(), folder / _PLAN
    known: _data_checksums.Checksums = {}
    if path.exists():
        then = _schemas.read_json(path, dict[str, Any])
        if then.get("version") != VERSION:
            raise ValueError(
                f"{path} was written by another version of rankgrad: compare in another folder"
            )
        _schemas.check(path, then, _PlanMetadata)
        differences = [
            f"{name}: {difference}"
            for name, metadata in now["candidates"].items()
            if name in then["candidates"]
            for difference in _differences(metadata, then["candidates"][name])
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
        # Earlier versions saved checksums with the runs only, not in the plan.
        known = then.get("checksums") or _data_checksums.of_runs(plan.tasks(folder))
    found = _data_checksums.of_data(Path(plan.data), plan.folds, known, plan.settings.load_options)
    _data_checksums.check(found, known, folder)
    folds = {**known, **found}
    now["checksums"] = {f: {**known.get(f, {}), **found.get(f, {})} for f in folds}
    now = {"format": FORMAT, "version": VERSION, **now}
    _files.write(path, json.dumps(now, indent=1) + "\n")


def _differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {now.get(name)!r}, not {then.get(name)!r}"
        for name in {**then, **now}
        if now.get(name) != then.get(name)
    ]
