"""Several workers at a time, for as long as there is time; results are saved as they come."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from plan import OF_COLLECTION, Task, choosing_tasks, main_tasks

from rankgrad.text._text_settings import TextSettings

Results = dict[str, dict[str, Any]]


def run(
    study: Path,
    output: Path,
    *,
    previous: Iterable[Path] = (),
    collections: Iterable[str],
    seconds: float,
    workers: int,
    changes: Mapping[str, Any],
    queries: int | None = None,
) -> None:
    """Choose the recipes, then train everything else that has no result yet.

    Args:
        study: what ``prepare`` wrote.
        output: where results go; it goes on with what is there.
        previous: folders with results of earlier calls.
        collections: their names.
        seconds: no run is begun that would not be finished by then.
        workers: processes side by side; 0 for this process alone.
        changes: of settings, for a trial.
        queries: only the first ones, for a trial.
    """
    output.mkdir(parents=True, exist_ok=True)
    names = list(collections)
    results = read_results([output, *previous])
    check_recipe(results, changes)
    arguments, deadline = (study, dict(changes), queries), time.monotonic() + seconds
    with Pool(workers, arguments, deadline) if workers else Alone(arguments, deadline) as pool:
        for phase in (choosing_tasks, lambda names: main_tasks(names, results)):
            tasks = [task for task in phase(names) if task.key not in results]
            print(f"{len(tasks)} runs to do", flush=True)
            pool.perform(tasks, results, output)


class Alone:
    """The only worker is this process."""

    def __init__(self, arguments: tuple[Any, ...], deadline: float) -> None:
        from train import Worker

        self.worker, self.deadline = Worker(*arguments), deadline

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def perform(self, tasks: list[Task], results: Results, output: Path) -> None:
        """Do tasks in their order until the time is over."""
        for count, task in enumerate(tasks, start=1):
            if time.monotonic() > self.deadline:
                return
            record(task, attempt(self.worker, task), results, output, f"{count}/{len(tasks)}")


class Pool:
    """Worker processes, which start with the first task.

    Args:
        count: of processes.
        arguments: of the :class:`train.Worker` of each.
        deadline: by the monotonic clock.
    """

    def __init__(self, count: int, arguments: tuple[Any, ...], deadline: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.given, self.found = context.Queue(), context.Queue()
        self.deadline, self.max_seconds, self.finished = deadline, 0.0, 0
        self.processes = [
            context.Process(target=work, args=(arguments, self.given, self.found), daemon=True)
            for _ in range(count)
        ]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: Any) -> None:
        for _ in self.processes:
            self.given.put(None)
        for process in self.processes:
            if process.pid is not None:
                process.join(timeout=5)
                if process.is_alive():
                    process.terminate()

    def perform(self, tasks: list[Task], results: Results, output: Path) -> None:
        """Do tasks in their order until the time is over; what is found is written and added."""
        waiting = iter(tasks)
        count = 0
        for process in self.processes:
            if tasks and process.pid is None:
                process.start()
        running = sum(self._give(waiting) for _ in self.processes)
        while running:
            try:
                task, found = self.found.get(timeout=5.0)
            except queue.Empty:
                late = time.monotonic() > self.deadline + 20
                if late or not all(process.is_alive() for process in self.processes):
                    print("a worker died or is late: what was finished is saved", flush=True)
                    return
                continue
            running, count, self.finished = running - 1, count + 1, self.finished + 1
            if self.finished > len(self.processes):  # the first ones load and compile
                self.max_seconds = max(self.max_seconds, found.get("seconds", 0.0))
            record(task, found, results, output, f"{count}/{len(tasks)}")
            running += self._give(waiting)

    def _give(self, waiting: Any) -> int:
        """One more task for whoever is free, if it can be finished."""
        if time.monotonic() + 1.2 * self.max_seconds > self.deadline:
            return 0
        task = next(waiting, None)
        if task is not None:
            self.given.put(task)
        return int(task is not None)


def work(arguments: tuple[Any, ...], tasks: Any, results: Any) -> None:
    """What a worker process does: tasks until there is None."""
    from train import Worker

    torch.set_num_threads(1)
    worker = Worker(*arguments)
    for task in iter(tasks.get, None):
        results.put((task, attempt(worker, task)))


def attempt(worker: Any, task: Task) -> dict[str, Any]:
    """What a run gives, or its error: whatever it is, the other runs go on."""
    try:
        found: dict[str, Any] = worker.perform(task)
    except Exception:
        return {"error": traceback.format_exc()}
    return found


def record(task: Task, found: dict[str, Any], results: Results, output: Path, number: str) -> None:
    """Write what was found, add it to the results, and say so."""
    write_result(output, task, found)
    if "error" not in found:
        results[task.key] = found
    print(f"{number} {task.key} {_words(found)}", flush=True)


def _words(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return found["error"].strip().splitlines()[-1]
    if "diverged" in found:
        return "diverged"
    epochs = len(found["history"])
    value, best = found["best_value"], found["best_epoch"]
    return f"vali {value:.4f}, epoch {best} of {epochs}, {found['seconds']} s"


def check_recipe(results: Results, changes: Mapping[str, Any]) -> None:
    """Runs of one study must have one recipe."""
    for key, found in results.items():
        task = Task.of(key)
        if "settings" not in found:
            continue
        now = task.settings("any", changes).model_dump(mode="json")
        differing = [name for name, value in found["settings"].items() if now[name] != value]
        if differing:
            raise SystemExit(f"results were made with another recipe: {', '.join(differing)}")


def write_result(folder: Path, task: Task, found: Mapping[str, Any]) -> None:
    """Add a line to the results of a collection; failures have a file of their own."""
    name = "failures" if "error" in found else task.collection
    line = json.dumps({"task": task.key, **found})
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_results(folders: Iterable[Path]) -> Results:
    """All results by task; a line that was not written to its end is passed over."""
    found: Results = {}
    for folder in folders:
        for name in OF_COLLECTION:
            path = folder / f"{name}.jsonl"
            if not path.is_file():
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    own = json.loads(line)
                except json.JSONDecodeError:
                    print(f"{path}: an unfinished line", file=sys.stderr)
                    continue
                found[own.pop("task")] = own
    return found


def parse(changes: Iterable[str]) -> dict[str, Any]:
    """Settings as the command line has them, ``name=value`` with a value of JSON or a word."""
    found = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in TextSettings.model_fields:
            raise SystemExit(f"--set: there is no setting {name!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
