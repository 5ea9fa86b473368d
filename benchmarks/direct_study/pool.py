"""Several workers share a GPU for as long as there is time; results are saved as they come."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import queue
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
_PREPARING = 3  # data sets made at a time, while others are trained on
_FOR_WORKERS = 0.85  # of a GPU: CUDA itself and processes that make data take the rest
_ATTEMPTS = 3  # at a run that has failed for want of memory


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
    """Train everything that has no result yet, most useful first, until the time is over.

    Args:
        output: where results go; it goes on with what is there.
        cache: where data are made.
        previous: files or folders with results of earlier calls.
        seconds: no run is begun that would not be finished by then.
        workers: processes side by side; 0 for this process alone.
        changes: of settings, for a trial.
        tasks: gives the tasks, of the results that there are.
        first: data to make before any other.
    """
    output.mkdir(parents=True, exist_ok=True)
    results = read_results([output, *previous])
    print(f"{len(results)} results are there", flush=True)
    share = _FOR_WORKERS / max(1, workers)
    pool = Pool(workers, (cache, dict(changes), share), time.monotonic() + seconds)
    pool.perform(tasks, results, output, first)


class Pool:
    """Worker processes, and others that make the data before they are needed.

    Args:
        count: of workers.
        arguments: of the :class:`train.Worker` of each.
        deadline: by the monotonic clock.
    """

    def __init__(
        self, count: int, arguments: tuple[Path, dict[str, Any], float], deadline: float
    ) -> None:
        self.count, self.arguments, self.deadline = count, arguments, deadline
        self.context = multiprocessing.get_context("spawn")
        self.given, self.found = self.context.Queue(), self.context.Queue()
        self.longest: dict[tuple[Any, ...], float] = {}
        self.begun: set[str] = set()
        self.attempts: Counter[str] = Counter()

    def perform(
        self, tasks: Any, results: dict[str, Any], output: Path, first: Iterable[Data] = ()
    ) -> None:
        """Do tasks in their order; those whose data are not made yet wait for them.

        The data in ``first`` are made first.
        """
        if not self.count:
            return self._alone(tasks, results, output)
        processes = [self._start(work) for _ in range(self.count)]
        wanted = self.context.Queue()
        requested: set[Data] = set()
        makers = [self._start(make_data, wanted) for _ in range(_PREPARING)]
        running = 0
        try:
            while True:
                waiting = self._waiting(tasks, results)
                for data in dict.fromkeys([*first, *(task.data for task in waiting)]):
                    if data not in requested:
                        requested.add(data)
                        wanted.put(data)
                while running < self.count and (task := self._next(tasks, results)):
                    self.begun.add(task.key)
                    self.given.put(task)
                    running += 1
                late = time.monotonic() > self.deadline
                if not running and (late or not self._waiting(tasks, results)):
                    return
                if time.monotonic() > self.deadline + 20:
                    print("time is over: what was finished is saved", flush=True)
                    return
                try:
                    done, found = self.found.get(timeout=1.0)
                except queue.Empty:
                    if not all(process.is_alive() for process in processes):
                        print("a worker died: what was finished is saved", flush=True)
                        return
                    continue
                running -= 1
                self._record(done, found, results, output)
        finally:
            for process in (*processes, *makers):
                process.terminate()

    def _alone(self, tasks: Any, results: dict[str, Any], output: Path) -> None:
        from train import Worker

        worker = Worker(*self.arguments)
        while time.monotonic() < self.deadline:
            task = next((t for t in self._waiting(tasks, results)), None)
            if task is None:
                return
            self.begun.add(task.key)
            self._record(task, attempt(worker, task), results, output)

    def _start(self, target: Any, *more: Any) -> Any:
        arguments = (self.arguments, self.given, self.found) if target is work else more
        if target is make_data:
            arguments = (self.arguments[0], *more)
        process = self.context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _waiting(self, tasks: Any, results: dict[str, Any]) -> list[Task]:
        return [t for t in tasks(results) if t.key not in results and t.key not in self.begun]

    def _next(self, tasks: Any, results: dict[str, Any]) -> Task | None:
        """The first task whose data are there and that can be finished."""
        left = self.deadline - time.monotonic()
        for task in self._waiting(tasks, results):
            if 1.2 * self.longest.get(task.kind, 0.0) > left or left <= 0:
                continue
            if (self.arguments[0] / task.data.key / "done.json").is_file():
                return task
        return None

    def _record(
        self, task: Task, found: dict[str, Any], results: dict[str, Any], output: Path
    ) -> None:
        write_result(output, task, found)
        self.attempts[task.key] += 1
        if "OutOfMemoryError" in found.get("error", "") and self.attempts[task.key] < _ATTEMPTS:
            self.begun.discard(task.key)
        if "error" not in found:
            results[task.key] = found
            self.longest[task.kind] = max(self.longest.get(task.kind, 0.0), found["seconds"])
        left = self.deadline - time.monotonic()
        print(f"{left:5.0f} s left  {_words(task, found)}", flush=True)


def make_data(cache: Path, wanted: Any) -> None:
    """What a process does that makes data."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    while True:
        data: Data = wanted.get()
        try:
            prepare(data, cache, device)
        except Exception:
            traceback.print_exc()
        print(f"made {data.key}", flush=True)


def work(arguments: tuple[Path, dict[str, Any], float], tasks: Any, results: Any) -> None:
    """What a worker process does."""
    import torch
    from train import Worker

    torch.set_num_threads(1)
    worker = Worker(*arguments)
    while True:
        task = tasks.get()
        results.put((task, attempt(worker, task)))


def attempt(worker: Any, task: Task) -> dict[str, Any]:
    """What a run gives, or its error: whatever it is, the other runs go on."""
    try:
        found: dict[str, Any] = worker.perform(task)
    except Exception:
        found = {"error": traceback.format_exc()}
    worker.release()
    return found


def _words(task: Task, found: Mapping[str, Any]) -> str:
    own = [task.data.key, task.recipe, str(task.budget or "")]
    own += [task.model] * (task.model != plan.MODEL) + [f"{n}={v}" for n, v in task.changes]
    name = " then ".join(task.losses) + " | " + " ".join(own)
    if "error" in found:
        return f"{name} FAILED: {found['error'].strip().splitlines()[-1]}"
    values = f"vali {found['best_value']:.4f} test {found['test']:.4f} train {found['train']:.4f}"
    return f"{name} seed {task.seed}: {values}, {found['seconds']} s"


def write_result(folder: Path, task: Task, found: Mapping[str, Any]) -> None:
    """Add a line to the results; failures have a file of their own."""
    line = json.dumps({"task": task.key, **found})
    with (folder / (FAILURES if "error" in found else RESULTS)).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def pack(places: Iterable[Path], path: Path) -> None:
    """Write the results of some files or folders into one, compressed."""
    lines = [json.dumps({"task": key, **own}) for key, own in read_results(places).items()]
    data = gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)
    path.write_bytes(data)


def read_results(places: Iterable[Path]) -> dict[str, Any]:
    """All results by task; a line that was not written to its end is passed over."""
    found: dict[str, Any] = {}
    for place in places:
        path = place / RESULTS if place.is_dir() else place
        if not path.is_file():
            continue
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            try:
                own = json.loads(line)
            except json.JSONDecodeError:
                print(f"{path}: an unfinished line", file=sys.stderr)
                continue
            found[Task.of(own.pop("task")).key] = own  # keys of today, whenever it was written
    return found
