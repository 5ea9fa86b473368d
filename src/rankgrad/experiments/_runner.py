"""Runner: makes the missing runs of a plan, one after the other or in workers."""

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
    """How far an entry is."""

    entry: str
    done: int
    failed: int
    total: int
    running: tuple[str, ...]
    means: Mapping[str, float]  # over the runs that are done


@dataclass(frozen=True)
class Progress:
    """How far a comparison is: a row per entry, and what happened now, in words."""

    rows: tuple[Row, ...]
    event: str | None = None


OnChange = Callable[[Progress], None]


class Runner:
    """The runs of a plan: which are to be made, which wait for tuning, and how far each is."""

    def __init__(self, plan: Plan, folder: Path, on_change: OnChange | None) -> None:
        self.plan, self.folder, self.on_change = plan, folder, on_change
        self.failures: dict[Key, str] = {}
        self.means: dict[Key, Mapping[str, float]] = {}
        self.running: dict[tuple[Key, bool], str] = {}
        self.pending: list[Job] = []
        self.waiting: dict[tuple[str, int | None], list[Task]] = {}  # for tuning
        self.reevaluated: dict[Key, str] = {}  # why an evaluation that was there is made again
        for task in plan.tasks(folder):
            if self._finished(task):
                self.means[task.key] = EvaluatedLists.load(task.path).mean
            else:
                self._plan(task)

    def _finished(self, task: Task) -> bool:
        try:
            return _jobs.finished(task)
        except (ValueError, OSError) as error:  # of another version, or damaged
            self.reevaluated[task.key] = _jobs.reason_of(error)
            return False

    def _plan(self, task: Task) -> None:
        if _jobs.is_tuned(task):
            self.pending.append(Job(task))
            return
        group = (task.entry.name, task.fold)
        if group not in self.waiting:
            self.pending.append(Job(task, tuning=True))
        self.waiting.setdefault(group, []).append(task)

    def run(self, workers: int) -> dict[Key, str]:
        """Make the runs; the reasons of those that failed."""
        self._changed()
        if workers == 0:
            data = _jobs.Data()
            while (job := self._next(None)) is not None:
                self._on_end(job, _jobs.perform(job, data, partial(self._on_message, job)))
        elif self.pending:
            runs = len(self.pending) + sum(len(group) - 1 for group in self.waiting.values())
            pool = Pool(min(workers, runs), self.plan.settings, self.folder)
            pool.run(self._next, self._on_message, self._on_end)
        return self.failures

    def _next(self, fold: int | None) -> Job | None:
        """The next job, on the same fold if there is one, as its data are in memory."""
        if not self.pending:
            return None
        same = (at for at, job in enumerate(self.pending) if job.task.fold == fold)
        return self.pending.pop(next(same, 0))

    def _on_message(self, job: Job, text: str) -> None:
        where = f"seed {job.task.seed}" if not job.tuning else "tuning"
        fold = "" if job.task.fold is None else f"fold {job.task.fold} "
        self.running[job.task.key, job.tuning] = f"{fold}{where}: {text}"
        self._changed()

    def _on_end(self, job: Job, outcome: _jobs.Outcome) -> None:
        task = job.task
        self.running.pop((task.key, job.tuning), None)
        if outcome.state == "interrupted":
            raise KeyboardInterrupt
        if job.tuning:
            event = self._tuned(task, outcome)
        elif outcome.state == "failed":
            self.failures[task.key] = outcome.reason
            event = f"{task}: failed: {outcome.reason}"
        else:
            self.means[task.key] = mean = EvaluatedLists.load(task.path).mean
            first = self.plan.metrics[0]
            event = f"{task}: {first} {mean[first]:.4f}"
        self._changed(event)

    def _tuned(self, task: Task, outcome: _jobs.Outcome) -> str:
        waited = self.waiting.pop((task.entry.name, task.fold))
        fold = "" if task.fold is None else f" fold {task.fold}"
        name = f"{task.entry.name}{fold}"
        if outcome.state == "failed":
            self.failures |= {each.key: f"tuning: {outcome.reason}" for each in waited}
            return f"{name}: tuning failed: {outcome.reason}"
        self.pending[:0] = [Job(each) for each in waited]
        return f"{name}: tuned: {in_line(_jobs.chosen(task))}"

    def _changed(self, event: str | None = None) -> None:
        if self.on_change is not None:
            rows = tuple(self._row(entry.name) for entry in self.plan.entries)
            self.on_change(Progress(rows, event))

    def _row(self, name: str) -> Row:
        done = [mean for key, mean in self.means.items() if key[0] == name]
        shown = self.plan.metrics if done else ()
        running = (text for (key, _), text in self.running.items() if key[0] == name)
        return Row(
            entry=name,
            done=len(done),
            failed=sum(key[0] == name for key in self.failures),
            total=len(self.plan.folds) * len(self.plan.seeds),
            running=tuple(running),
            means={metric: float(np.mean([mean[metric] for mean in done])) for metric in shown},
        )
