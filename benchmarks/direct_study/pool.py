"""Trains tasks in several processes that share a GPU, until a deadline; saves each result."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import plan
from data import Data, prepare
from plan import Task

RESULTS, FAILURES = "results.jsonl", "failures.jsonl"
_PREPARING = 3  # data sets that are simulated at a time, while others are trained on
_WORKERS_SHARE = 0.85  # of GPU memory; CUDA itself and processes that simulate data take the rest
_ATTEMPTS = 3  # at a run that fails for lack of memory


def run(
    output: Path,
    cache: Path,
    *,
    previous: Iterable[Path],
    seconds: float,
    workers: int,
    changes: Mapping[str, Any],
    tasks: Any = plan.tasks,
    first: Iterable[Data] = (),
) -> None:
    """Train every task that has no result yet, in their order, until the time is over.

    Args:
        output: the folder of results; those that it has are not trained again.
        cache: the folder of simulated data.
        previous: files or folders with results of earlier calls.
        seconds: a run is started only if it is likely to end within this time.
        workers: the number of processes; 0 to train in this process.
        changes: settings of all runs that differ from the plan, for a trial.
        tasks: a function from the results so far to the tasks.
        first: data to simulate before all others.
    """
    output.mkdir(parents=True, exist_ok=True)
    results = read_results([output, *previous])
    print(f"{len(results)} results are there", flush=True)
    share = _WORKERS_SHARE / max(1, workers)
    pool = Pool(workers, (cache, dict(changes), share), time.monotonic() + seconds)
    pool.perform(tasks, results, output, first)


class Pool:
    """Processes that train, and others that simulate data before they are needed.

    Args:
        count: the number of processes that train.
        arguments: the arguments of the :class:`train.Worker` of each.
        deadline: when to stop, by the monotonic clock.
    """

    def __init__(
        self, count: int, arguments: tuple[Path, dict[str, Any], float], deadline: float
    ) -> None:
        self.count, self.arguments, self.deadline = count, arguments, deadline
        self.context = multiprocessing.get_context("spawn")
        self.task_queue, self.result_queue = self.context.Queue(), self.context.Queue()
        self.max_seconds: dict[tuple[Any, ...], float] = {}  # by kind of task
        self.started: set[str] = set()
        self.attempts: Counter[str] = Counter()

    def perform(
        self, tasks: Any, results: dict[str, Any], output: Path, first: Iterable[Data] = ()
    ) -> None:
        """Train tasks in their order; a task is skipped while its data are being simulated.

        The data in ``first`` are simulated first.
        """
        if not self.count:
            return self._perform_here(tasks, results, output)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end, too
        workers = [
            self._start(work, self.arguments, self.task_queue, self.result_queue)
            for _ in range(self.count)
        ]
        data_queue = self.context.Queue()
        requested: set[Data] = set()
        simulators = [
            self._start(make_data, self.arguments[0], data_queue) for _ in range(_PREPARING)
        ]
        running = 0
        try:
            while True:
                waiting = self._waiting(tasks, results)
                for data in dict.fromkeys([*first, *(task.data for task in waiting)]):
                    if data not in requested:
                        requested.add(data)
                        data_queue.put(data)
                while running < self.count and (task := self._next(tasks, results)):
                    self.started.add(task.key)
                    self.task_queue.put(task)
                    running += 1
                late = time.monotonic() > self.deadline
                if not running and (late or not self._waiting(tasks, results)):
                    return
                if time.monotonic() > self.deadline + 20:
                    print("time is over: what was finished is saved", flush=True)
                    return
                try:
                    finished, result = self.result_queue.get(timeout=1.0)
                except queue.Empty:
                    if not all(process.is_alive() for process in workers):
                        print("a worker died: what was finished is saved", flush=True)
                        return
                    continue
                running -= 1
                self._record(finished, result, results, output)
        finally:
            for process in (*workers, *simulators):
                process.terminate()

    def _perform_here(self, tasks: Any, results: dict[str, Any], output: Path) -> None:
        """Train in this process."""
        from train import Worker

        worker = Worker(*self.arguments)
        while time.monotonic() < self.deadline:
            task = next(iter(self._waiting(tasks, results)), None)
            if task is None:
                return
            self.started.add(task.key)
            self._record(task, attempt(worker, task), results, output)

    def _start(self, target: Any, *arguments: Any) -> Any:
        """Start a process that calls a function."""
        process = self.context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _waiting(self, tasks: Any, results: dict[str, Any]) -> list[Task]:
        """The tasks that have no result and were not started."""
        return [t for t in tasks(results) if t.key not in results and t.key not in self.started]

    def _next(self, tasks: Any, results: dict[str, Any]) -> Task | None:
        """The first task whose data are simulated and that is likely to end in time."""
        seconds_left = self.deadline - time.monotonic()
        for task in self._waiting(tasks, results):
            if 1.2 * self.max_seconds.get(task.kind, 0.0) > seconds_left or seconds_left <= 0:
                continue
            if (self.arguments[0] / task.data.key / "done.json").is_file():
                return task
        return None

    def _record(
        self, task: Task, result: dict[str, Any], results: dict[str, Any], output: Path
    ) -> None:
        """Save the result of a task, and print it; without enough memory it is tried again."""
        write_result(output, task, result)
        self.attempts[task.key] += 1
        if "OutOfMemoryError" in result.get("error", "") and self.attempts[task.key] < _ATTEMPTS:
            self.started.discard(task.key)
        if "error" not in result:
            results[task.key] = result
            seconds = max(self.max_seconds.get(task.kind, 0.0), result["seconds"])
            self.max_seconds[task.kind] = seconds
        seconds_left = self.deadline - time.monotonic()
        print(f"{seconds_left:5.0f} s left  {_describe(task, result)}", flush=True)


def make_data(cache: Path, data_queue: Any) -> None:
    """The loop of a process that simulates data."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    while True:
        data: Data = data_queue.get()
        try:
            prepare(data, cache, device)
        except Exception:
            traceback.print_exc()
        print(f"made {data.key}", flush=True)


def work(arguments: tuple[Path, dict[str, Any], float], tasks: Any, results: Any) -> None:
    """The loop of a process that trains."""
    import torch
    from train import Worker

    torch.set_num_threads(1)
    worker = Worker(*arguments)
    while True:
        task = tasks.get()
        results.put((task, attempt(worker, task)))


def attempt(worker: Any, task: Task) -> dict[str, Any]:
    """The result of a run, or the traceback of any error, so that the other runs continue."""
    try:
        result: dict[str, Any] = worker.perform(task)
    except Exception:
        result = {"error": traceback.format_exc()}
    worker.release()
    return result


def _describe(task: Task, result: Mapping[str, Any]) -> str:
    """A line about a run and its result."""
    parts = [task.data.key, task.recipe, str(task.budget or "")]
    if task.model != plan.MODEL:
        parts.append(task.model)
    parts += [f"{name}={value}" for name, value in task.changes]
    name = " then ".join(task.losses) + " | " + " ".join(parts)
    if "error" in result:
        return f"{name} FAILED: {result['error'].strip().splitlines()[-1]}"
    metrics = {"vali": result["best_value"], "test": result["test"], "train": result["train"]}
    values = " ".join(f"{part} {value:.4f}" for part, value in metrics.items())
    return f"{name} seed {task.seed}: {values}, {result['seconds']} s"


def write_result(folder: Path, task: Task, result: Mapping[str, Any]) -> None:
    """Append a line to the file of results, or to that of failures."""
    line = json.dumps({"task": task.key, **result})
    path = folder / (FAILURES if "error" in result else RESULTS)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def pack(places: Iterable[Path], path: Path) -> None:
    """Write the results of some files or folders into one compressed file."""
    results = read_results(places)
    lines = [json.dumps({"task": key, **result}) for key, result in results.items()]
    data = gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)
    path.write_bytes(data)


def read_results(places: Iterable[Path]) -> dict[str, Any]:
    """All results of some files or folders by the key of the task, without incomplete lines."""
    results: dict[str, Any] = {}
    for place in places:
        path = place / RESULTS if place.is_dir() else place
        if not path.is_file():
            continue
        open_file = gzip.open if path.suffix == ".gz" else open
        with open_file(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            try:
                result = json.loads(line)
            except json.JSONDecodeError:
                print(f"{path}: an unfinished line", file=sys.stderr)
                continue
            # An earlier version may have written the key in another way than Task.key does.
            results[Task.of(result.pop("task")).key] = result
    return results
