"""Runner: makes the runs of a plan that have no usable evaluation yet, and reports progress.

:func:`rankgrad.experiments.compare.run` calls it; ``_jobs`` does the work of each run, in this
process or in the workers of ``_workers``.

A ``Task`` is one run; a ``Job`` is a task to do, or the tuning (``tuning=True``) that the tasks of
one entry and fold share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rankgrad.experiments import _jobs
from rankgrad.experiments._jobs import Job
from rankgrad.experiments._workers import Pool
from rankgrad.experiments.plans import Plan, Task
from rankgrad.results._comparison_tables import in_line
from rankgrad.results.comparison import Key
from rankgrad.training._evaluations import EvaluatedLists


@dataclass(frozen=True)
class Row:
    """The progress of an entry; ``done``, ``failed`` and ``total`` are numbers of its runs."""

    entry: str  # its name
    done: int
    failed: int
    total: int
    running: tuple[str, ...]  # for each run in progress, what it does, in words
    means: Mapping[str, float]  # of each metric, over the runs that are done


@dataclass(frozen=True)
class Progress:
    """The progress of a comparison: a row per entry, and the latest event in words."""

    rows: tuple[Row, ...]
    event: str | None = None


OnChange = Callable[[Progress], None]


class Runner:
    """The runs of a plan: which are pending, which wait for tuning, and how far each is.

    It reads the evaluations that the folder has when it is made. A ``Key`` is the entry, fold and
    seed of a run.

    Args:
        plan: the plan whose runs are made.
        folder: the folder of the comparison.
        on_change: called once at the beginning, at each message of a job, and when a job ends.
    """

    def __init__(self, plan: Plan, folder: Path, on_change: OnChange | None) -> None:
        self.plan, self.folder, self.on_change = plan, folder, on_change
        self.failures: dict[Key, str] = {}  # the reason of each failed run
        self.means: dict[Key, Mapping[str, float]] = {}  # of each metric, for finished runs
        self.running: dict[Key, str] = {}  # progress in words; tuning has the key of its task
        self.pending: list[Job] = []
        # The runs that wait for tuning, by the entry and fold that is tuned.
        self.waiting: dict[tuple[str, int | None], list[Task]] = {}
        # Why a saved evaluation is made again; ``compare.run`` notes it in the comparison.
        self.reevaluated: dict[Key, str] = {}
        for task in plan.tasks(folder):
            if self._is_finished(task):
                self.means[task.key] = EvaluatedLists.load(task.path).mean
            else:
                self._enqueue(task)

    def run(self, workers: int) -> dict[Key, str]:
        """Make the runs; return the reasons of those that failed.

        Args:
            workers: the number of worker processes; with 0, this process makes the runs.
        """
        self._report()
        if workers == 0:
            data = _jobs.Data()
            while (job := self._next(None)) is not None:
                self._on_end(job, _jobs.perform(job, data, partial(self._on_message, job)))
        elif self.pending:
            # At most this many jobs at once: each pending tuning job gives way to its waiting runs.
            replacing = sum(len(tasks) - 1 for tasks in self.waiting.values())
            max_concurrent = len(self.pending) + replacing
            pool = Pool(min(workers, max_concurrent), self.plan.settings, self.folder)
            pool.run(self._next, self._on_message, self._on_end)
        return self.failures

    def _is_finished(self, task: Task) -> bool:
        """Whether a run has its evaluation; one that cannot be read is noted and made again.

        If the run itself cannot be read, or is of another version, its job fails with the reason.
        """
        try:
            return _jobs.is_finished(task)
        except (ValueError, OSError) as error:
            self.reevaluated[task.key] = _jobs.reason_of(error)
            return False

    def _enqueue(self, task: Task) -> None:
        """Add the job of a run; if its entry must be tuned on its fold first, one job for that."""
        if _jobs.is_ready(task):
            self.pending.append(Job(task))
            return
        group = (task.entry.name, task.fold)
        if group not in self.waiting:
            self.pending.append(Job(task, tuning=True))
        self.waiting.setdefault(group, []).append(task)

    def _next(self, fold: int | None) -> Job | None:
        """The next job; None if none is pending now (the pool asks again after each job).

        Args:
            fold: a job on this fold comes first, as its data are in memory. None for data without
                folds, or if no data are in memory: then the first pending job is next.
        """
        if not self.pending:
            return None
        on_fold = (index for index, job in enumerate(self.pending) if job.task.fold == fold)
        return self.pending.pop(next(on_fold, 0))

    def _on_message(self, job: Job, text: str) -> None:
        """Note and report what a job is doing."""
        name = "tuning" if job.tuning else f"seed {job.task.seed}"
        fold = "" if job.task.fold is None else f"fold {job.task.fold} "
        self.running[job.task.key] = f"{fold}{name}: {text}"
        self._report()

    def _on_end(self, job: Job, outcome: _jobs.Outcome) -> None:
        """Note and report how a job ended; one that was interrupted interrupts all."""
        task = job.task
        self.running.pop(task.key, None)
        if outcome.state == "interrupted":
            raise KeyboardInterrupt
        if job.tuning:
            event = self._on_tuned(task, outcome)
        elif outcome.state == "failed":
            self.failures[task.key] = outcome.reason
            event = f"{task}: failed: {outcome.reason}"
        else:
            self.means[task.key] = mean = EvaluatedLists.load(task.path).mean
            first = self.plan.metrics[0]
            event = f"{task}: {first} {mean[first]:.4f}"
        self._report(event)

    def _on_tuned(self, task: Task, outcome: _jobs.Outcome) -> str:
        """Enqueue the runs that waited for tuning, or fail them with it; describe the event."""
        tasks = self.waiting.pop((task.entry.name, task.fold))
        fold = "" if task.fold is None else f" fold {task.fold}"
        name = f"{task.entry.name}{fold}"
        if outcome.state == "failed":
            self.failures |= {each.key: f"tuning: {outcome.reason}" for each in tasks}
            return f"{name}: tuning failed: {outcome.reason}"
        # Before the jobs of other folds, as the data of this fold are in memory.
        self.pending[:0] = [Job(each) for each in tasks]
        return f"{name}: tuned: {in_line(_jobs.chosen(task))}"

    def _report(self, event: str | None = None) -> None:
        """Call ``on_change`` with the progress of all entries."""
        if self.on_change is not None:
            rows = tuple(self._row(entry.name) for entry in self.plan.entries)
            self.on_change(Progress(rows, event))

    def _row(self, name: str) -> Row:
        """The progress of the entry of this name."""
        run_means = [means for (entry, _, _), means in self.means.items() if entry == name]
        metrics = self.plan.metrics if run_means else ()
        running = (text for (entry, _, _), text in self.running.items() if entry == name)
        return Row(
            entry=name,
            done=len(run_means),
            failed=sum(entry == name for entry, _, _ in self.failures),
            total=len(self.plan.folds) * len(self.plan.seeds),
            running=tuple(running),
            means={m: float(np.mean([means[m] for means in run_means])) for m in metrics},
        )
