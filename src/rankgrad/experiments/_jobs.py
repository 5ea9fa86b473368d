"""Jobs: what a worker process does for a comparison: tune an entry on a fold, or make one run.

``_runner`` makes the jobs; it, or a worker of ``_workers``, calls :func:`perform`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rankgrad import _files, _schemas
from rankgrad.data import load_splits
from rankgrad.data._dataset import Dataset
from rankgrad.experiments.plans import SPLITS, Plan, ProgressCallback, Task, missing_splits
from rankgrad.experiments.tuning import TrialLog
from rankgrad.results.runs import read_metadata
from rankgrad.training._evaluations import EvaluatedLists
from rankgrad.training.run import RUN

#: Errors whose message is enough as the reason of a missing run; others are named by their type.
EXPECTED = (ValueError, OSError, ImportError, MemoryError, RuntimeError)


@dataclass(frozen=True)
class Job:
    """A run to make or, with ``tuning``, the search that the runs of its entry and fold need."""

    task: Task
    tuning: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``done``, ``failed`` with a reason, or ``interrupted``."""

    state: Literal["done", "failed", "interrupted"]
    reason: str = ""


class Data:
    """A cache of the splits of the fold read last, for several jobs in a row on the same fold."""

    def __init__(self) -> None:
        self._key: Any = None
        self._splits: Mapping[str, Dataset] = {}

    def of(self, plan: Plan, fold: int | None) -> Mapping[str, Dataset]:
        """The splits of a fold; raises if one of them is missing."""
        key = (plan.data, fold)
        if self._key != key:
            self._key, self._splits = None, {}  # so that two folds are never in memory together
            splits = load_splits(plan.data, fold, **plan.settings.load_options)
            missing = [split for split in SPLITS if split not in splits]
            if missing:
                raise ValueError(missing_splits(Path(plan.data), fold, missing))
            self._key, self._splits = key, splits
        return self._splits


def perform(job: Job, data: Data, on_progress: ProgressCallback) -> Outcome:
    """Do a job; an error in it becomes its outcome."""
    task = job.task
    try:
        on_progress("reading")
        splits = data.of(task.plan, task.fold)
        if job.tuning:
            # Tuning must not see test data.
            task.entry.tune(task, {name: splits[name] for name in ("train", "vali")}, on_progress)
            return Outcome("done")
        return _run(task, splits, on_progress)
    except Exception as error:  # whatever it is, the other runs go on
        return Outcome("failed", reason_of(error))


def _run(task: Task, splits: Mapping[str, Dataset], on_progress: ProgressCallback) -> Outcome:
    """Train, or resume, a run; evaluate its scores of test items and save the evaluation."""
    check_version(task)
    task = replace(task, values=chosen(task))
    scores = _saved_scores(task, splits["test"])
    if scores is None:
        scores = task.entry.score(task, splits, on_progress)
    if scores is None:
        return Outcome("interrupted")
    on_progress("evaluating")
    plan = task.plan
    labels = {
        "candidate": task.entry.name,
        **task.entry.labels(plan.settings),
        "fold": task.fold,
        "seed": task.seed,
    }
    EvaluatedLists.of(scores, splits["test"], plan.metrics, labels).save(task.path)
    return Outcome("done")


def _saved_scores(task: Task, test: Dataset) -> Any:
    """The scores ``[N]`` that a run was evaluated with; None without an evaluation on these data.

    A run has them if metrics were added to the plan.
    """
    try:
        evaluated = EvaluatedLists.load(task.path)
    except (ValueError, OSError):  # there is none, or it cannot be read
        return None
    return evaluated.scores if evaluated.checksum == test.checksum() else None


def chosen(task: Task) -> dict[str, Any]:
    """The values that tuning chose for the runs of an entry on a fold; {} without tuning."""
    if not task.entry.is_tuned(task.plan):
        return {}
    values: dict[str, Any] | None = _schemas.read_json(task.trial_log, TrialLog)["chosen"]
    if values is None:
        raise _files.damaged(task.trial_log, "nothing was chosen")
    return values


def is_ready(task: Task) -> bool:
    """Whether a run can be made: its tuning is finished, or not needed.

    It is not ready if its trial log cannot be read: the tuning job then fails with the reason.
    """
    try:
        chosen(task)
    except (OSError, ValueError):
        return False
    return True


def is_finished(task: Task) -> bool:
    """Whether a run is evaluated with all metrics of the plan.

    If metrics were added to the plan, the run is evaluated again, without training.
    """
    check_version(task)
    try:
        evaluated = EvaluatedLists.load(task.path)
    except FileNotFoundError:
        return False
    return set(task.plan.metrics) <= set(evaluated.metrics)


def check_version(task: Task) -> None:
    """Raise if another version of rankgrad wrote a run: its numbers may mean something else."""
    if (task.path / RUN).exists():
        try:
            read_metadata(task.path)
        except ValueError as error:
            raise ValueError(f"{task.path}: {error}") from None


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = " ".join(str(error).split())
    if isinstance(error, EXPECTED) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
