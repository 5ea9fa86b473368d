"""Compare: train entries on the same data, folds and seeds, in a folder that can be resumed.

An entry is what is compared, such as a loss with a model; it has a run for each fold and seed.
``rankgrad compare`` calls :func:`run`. The folder holds ``plan.json``, a run folder for each run
and ``comparison.json``. ``plans`` defines the plan, ``_runner`` makes its runs, and
:mod:`rankgrad.results` reads and compares them.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from rankgrad import _files, _locks, _schemas
from rankgrad.data import load as load_data
from rankgrad.experiments import _data_checksums, _jobs
from rankgrad.experiments._network_entries import DEFAULT, Networks
from rankgrad.experiments._runner import OnChange, Progress, Row, Runner
from rankgrad.experiments._tree_entries import TreeEntry
from rankgrad.experiments._workers import LOCK, WORKERS, default_count, exclusive
from rankgrad.experiments.plans import (
    RUNS,
    TUNING,
    Entry,
    NetworkEntry,
    Plan,
    check_splits,
    folder_name,
    folds_of,
)
from rankgrad.experiments.tuning import TrialLog, has_values
from rankgrad.results._comparison_tables import FORMAT, VERSION, to_json
from rankgrad.results._groups import RunGroup
from rankgrad.results.comparison import Comparison, Key, check_same_data, compare
from rankgrad.results.runs import COMPARISON, read
from rankgrad.significance import Significance
from rankgrad.training import Settings, _processes
from rankgrad.training._settings import for_data

__all__ = [
    "DEFAULT",
    "Comparison",
    "Entry",
    "NetworkEntry",
    "Networks",
    "Plan",
    "Progress",
    "Row",
    "Significance",
    "TreeEntry",
    "check",
    "default_settings",
    "folds_of",
    "load",
    "run",
    "save",
]

_PLAN = "plan.json"
_MAX_NAMED = 4  # differences of settings that an error names


def default_settings(
    data: str | os.PathLike[str], settings: Settings, explicit: Collection[str]
) -> tuple[Settings, list[str]]:
    """The defaults of ``rankgrad train`` on these data, which all folds share.

    Args:
        data: a folder of splits, or of folds of splits. The training lists of the first fold that
            can be read decide, also if it is not compared, so that folds can be added later.
        settings: with defaults for those that the user did not set.
        explicit: the names of the settings that the user set, which stay as they are; with
            ``loss`` among them if the entries have their own.

    Returns:
        The settings, and sentences that say which rules were applied.
    """
    for fold in folds_of(data):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the runs that read the data warn
                train = load_data(data, split="train", fold=fold, **settings.load_options)
        except (ValueError, OSError):
            continue  # the runs on this fold report the error
        return for_data(settings, train, explicit)
    return settings, []


def check(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    baseline: str | None = None,
) -> None:
    """Raise if a plan cannot be run in a folder, as far as that is known without reading data.

    :func:`run` calls it. Call it before what takes long, such as :func:`default_settings`.

    Args:
        plan: what to compare.
        folder: of the comparison.
        workers: as for :func:`run`.
        baseline: as for :func:`run`.

    Raises:
        ValueError: a number, a name or the settings of an entry are wrong, no fold has all splits,
            or another process compares in the folder.
        FileExistsError: the folder is there and holds no comparison.
    """
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be at least 0, found {workers}")
    _processes.accelerator(plan.settings)  # raises if there is no such device
    if baseline is not None:
        plan.entry(baseline)
    for entry in plan.entries:
        entry.check(plan.settings)
    check_splits(plan.data, plan.folds)
    _check_folder(Path(folder))
    saved = _saved_plan(Path(folder))
    if saved is not None:
        _check_saved({}, plan.tune, saved, Path(folder))  # entries may change with the data
    _locks.check(Path(folder) / LOCK, "comparing")


def run(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_change: OnChange | None = None,
    how: Significance | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Make every run of a plan that the folder does not have yet, and compare all runs.

    Every run has its own folder, ``folder/runs/ENTRY/fold1-seed0``. A second call with the same
    plan leaves finished runs as they are and resumes unfinished ones. Its plan may add entries,
    folds, seeds and metrics. The settings of an entry and the data must be those of the results
    that the folder holds.

    Args:
        plan: what to compare.
        folder: of the comparison; it is created if it does not exist.
        workers: the number of worker processes; None for one per core, or per GPU if runs are on
            GPUs; 0 to run in this process.
        on_change: called when a run starts, makes progress or ends.
        how: the significance test, saved in ``comparison.json`` for reports.
        baseline: the entry that the others are tested against; None for the best one.

    Returns:
        The comparison of all finished runs. It lists the missing runs with their reasons.

    Raises:
        ValueError: the folder holds results of other settings or data, no fold has all splits, or
            the plan has no entry of the name ``baseline``.
    """
    path = Path(folder)
    check(plan, path, workers=workers, baseline=baseline)
    count = default_count(plan.settings) if workers is None else workers
    path.mkdir(parents=True, exist_ok=True)
    with exclusive(path):
        _check_and_save_plan(plan, path)
        runner = Runner(plan, path, on_change)
        comparison = _collect(plan, path, runner.run(count), runner.reevaluated)
        comparison = comparison.tested(how, baseline)
        save(comparison)
    return comparison


def load(plan: Plan, folder: str | os.PathLike[str]) -> Comparison:
    """Compare the runs that a folder holds, without running anything.

    Args:
        plan: what is compared.
        folder: of the comparison.

    Returns:
        The comparison of the finished runs.
    """
    return _collect(plan, Path(folder), {}, {})


def save(comparison: Comparison) -> None:
    """Write ``comparison.json``, from which reports take the test and the baseline.

    Args:
        comparison: of a folder, as :func:`run` gives it.
    """
    assert comparison.folder is not None
    _files.write(comparison.folder / COMPARISON, json.dumps(to_json(comparison), indent=1) + "\n")


def _collect(
    plan: Plan, folder: Path, failures: Mapping[Key, str], reevaluated: Mapping[Key, str]
) -> Comparison:
    """Read all runs of a plan and compare them.

    Args:
        plan: what is compared.
        folder: of the comparison.
        failures: by entry, fold and seed, why a run failed in this call.
        reevaluated: by entry, fold and seed, why a saved evaluation was made again in this call.
    """
    groups = []
    chosen: dict[tuple[str, int | None], Mapping[str, Any]] = {}  # by tuning, for entry and fold
    for entry in plan.entries:
        runs = []
        missing: dict[tuple[int | None, int | None], str] = {}
        for task in plan.tasks(folder, entry):
            result = read(task.path)
            if task.key in failures or result.evaluated is None:
                missing[task.fold, task.seed] = failures.get(task.key) or "; ".join(result.problems)
                continue
            try:
                if entry.is_tuned(plan):
                    chosen[entry.name, task.fold] = _jobs.chosen(task)
            except (OSError, ValueError) as error:  # what tuning chose is not known
                missing[task.fold, task.seed] = _jobs.reason_of(error)
                continue
            labels = {"fold": task.fold, "seed": task.seed}  # the evaluation may not state them
            runs.append(replace(result, metadata={**result.metadata, "labels": labels}))
        groups.append(RunGroup(entry.name, tuple(runs), missing))
    check_same_data(groups)
    finished = {(group.name, run.fold, run.seed) for group in groups for run in group.runs}
    return compare(
        groups,
        metrics=plan.metrics,
        notes=plan.notes(),
        plan=plan.metadata(),
        folder=folder,
        chosen=chosen,
        reevaluated={key: why for key, why in reevaluated.items() if key in finished},
    )


def _check_folder(folder: Path) -> None:
    """Raise if the path is a file, or a folder with files but without a comparison."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another place")
    if folder.exists() and not (folder / _PLAN).exists():
        others = {child.name for child in folder.iterdir()} - {LOCK, WORKERS}
        if others:
            raise FileExistsError(
                f"{folder} is there and holds no comparison: choose another folder"
            )


class _PlanMetadata(TypedDict):
    """The keys of ``plan.json`` that are read.

    Attributes:
        candidates: the settings of each entry, by its name.
        tune: the number of tuning trials of each entry on each fold; None without tuning.
        checksums: of the data; see :data:`._data_checksums.Checksums`.
    """

    candidates: dict[str, dict[str, Any]]
    tune: Any
    checksums: NotRequired[dict[str, dict[str, dict[str, str]]]]


def _check_and_save_plan(plan: Plan, folder: Path) -> None:
    """Raise if settings or data differ from those of the folder's results; else save the plan."""
    metadata = json.loads(json.dumps(plan.metadata()))  # as saved: JSON has lists for tuples
    saved_checksums: _data_checksums.Checksums = {}
    saved = _saved_plan(folder)
    if saved is not None:
        _check_saved(metadata["candidates"], metadata["tune"], saved, folder)
        metadata["candidates"] = {**saved["candidates"], **metadata["candidates"]}
        # Earlier versions saved checksums with the runs only, not in the plan.
        saved_checksums = saved.get("checksums") or _data_checksums.of_runs(plan.tasks(folder))
    options = plan.settings.load_options
    checksums = _data_checksums.of_data(Path(plan.data), plan.folds, saved_checksums, options)
    _data_checksums.check(checksums, saved_checksums, folder)
    metadata["checksums"] = {
        fold: {**saved_checksums.get(fold, {}), **checksums.get(fold, {})}
        for fold in {**saved_checksums, **checksums}
    }
    metadata = {"format": FORMAT, "version": VERSION, **metadata}
    _files.write(folder / _PLAN, json.dumps(metadata, indent=1) + "\n")


def _saved_plan(folder: Path) -> _PlanMetadata | None:
    """The contents of ``plan.json``; None if there is none."""
    path = folder / _PLAN
    if not path.exists():
        return None
    saved: Any = _schemas.read_json(path, dict[str, Any])
    if saved.get("version") != VERSION:
        raise ValueError(
            f"{path} was written by another version of rankgrad: compare in another folder"
        )
    _schemas.check(path, saved, _PlanMetadata)
    return cast("_PlanMetadata", saved)


def _check_saved(
    entries: Mapping[str, Mapping[str, Any]], tune: int | None, saved: _PlanMetadata, folder: Path
) -> None:
    """Raise if the saved plan has other settings than these; the error names them.

    Settings of which there is no result, such as those that the labels do not allow, may change.

    Args:
        entries: the settings of entries, by their names.
        tune: the number of tuning trials, or None.
        saved: the plan of the folder.
        folder: of the comparison.
    """
    differences = []
    trained = [name for name in saved["candidates"] if _has_results(folder, name)]
    for name in (name for name in trained if name in entries):
        settings, saved_settings = entries[name], saved["candidates"][name]
        differences += [
            f"{name}: {option} {settings.get(option)!r}, not {saved_settings.get(option)!r}"
            for option in {**saved_settings, **settings}
            if settings.get(option) != saved_settings.get(option)
        ]
    if trained and tune != saved["tune"]:
        differences.append(f"tune: {tune!r}, not {saved['tune']!r}")
    if differences:
        named, n_more = "; ".join(differences[:_MAX_NAMED]), len(differences) - _MAX_NAMED
        more = f" and {n_more} more" if n_more > 0 else ""
        raise ValueError(
            f"{folder} holds a comparison with other settings; "
            f"{named}{more}. Go on with the same, or in another folder"
        )


def _has_results(folder: Path, name: str) -> bool:
    """Whether an entry has a run, or a trial of tuning that did not fail."""
    if (folder / RUNS / folder_name(name)).is_dir():
        return True
    logs = (folder / TUNING / folder_name(name)).glob("*.json")
    try:
        return any(has_values(_schemas.read_json(log, TrialLog)) for log in logs)
    except ValueError:  # a damaged log, of which tuning says so
        return True
