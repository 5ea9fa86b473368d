"""Workers: processes that do the jobs of a comparison, one job at a time each.

They are spawned, not forked, each with one thread and one GPU where there are GPUs. A worker
that dies is replaced by another, and its run is missing in the table. Workers end when the process
that started them does, however it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from rankgrad import _locks
from rankgrad.data.letor import cores
from rankgrad.experiments import _jobs
from rankgrad.experiments._jobs import Job
from rankgrad.training import Settings, _processes

LOCK, WORKERS = ".lock", ".workers"

_PATIENCE = 20.0  # seconds that workers have to save their runs when they are interrupted
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


#: Called with a job and a message of its worker about its progress.
OnMessage = Callable[[Job, str], None]
Next = Callable[[int | None], Job | None]  # the next job, on this fold if there is one
Ended = Callable[[Job, _jobs.Outcome], None]


def default_count(settings: Settings) -> int:
    """How many workers there are by default: one per GPU if runs are on GPUs, else per core."""
    return len(_gpus()) if _processes.accelerator(settings) == "cuda" else cores()


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no two processes run the same comparison."""
    with _locks.hold(folder / LOCK, "comparing"):
        # Workers of a process that was killed end by themselves, a moment later.
        with _locks.hold(folder / WORKERS, "comparing", _PATIENCE):
            pass
        yield


class Pool:
    """Worker processes and the jobs they run."""

    def __init__(self, count: int, settings: Settings, folder: Path) -> None:
        self.count, self.folder = count, folder
        on_gpus = _processes.accelerator(settings) == "cuda"
        self.gpus: list[str | None] = list(_gpus()) if on_gpus else [None]
        self.workers: list[_Worker] = []

    def run(self, next_job: Next, on_message: OnMessage, ended: Ended) -> None:
        """Run jobs until there are no more; on Ctrl-C, running jobs are saved first."""
        try:
            while self._assign(next_job) or any(w.job for w in self.workers):
                for worker in self._ready():
                    self._receive(worker, on_message, ended)
        except BaseException:
            self._interrupt()
            raise
        finally:
            for worker in self.workers:
                worker.end()

    def _assign(self, next_job: Next) -> bool:
        """Assign jobs to idle workers; whether there was one to assign."""
        assigned = False
        for at in range(self.count):
            worker = self.workers[at] if at < len(self.workers) else None
            if worker is not None and worker.job is not None:
                continue
            job = next_job(None if worker is None else worker.fold)
            if job is None:
                break
            if worker is None:
                taken = [other.gpu for other in self.workers]
                worker = _Worker(min(self.gpus, key=taken.count), self.folder)
                self.workers.append(worker)
            worker.start(job)
            assigned = True
        return assigned

    def _ready(self) -> list[_Worker]:
        busy = {w.connection: w for w in self.workers if w.job is not None}
        ready = wait(list(busy))  # a worker that died closes its end
        return [busy[connection] for connection in ready]  # type: ignore[index]

    def _receive(self, worker: _Worker, on_message: OnMessage, ended: Ended) -> None:
        job = worker.job
        assert job is not None
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            self.workers.remove(worker)
            if not worker.ready:
                raise ChildProcessError(
                    "worker processes cannot be started. In a script, call this under "
                    "`if __name__ == '__main__':`; or take workers=0"
                ) from None
            how = _processes.exit_reason(worker.process.exitcode)
            ended(job, _jobs.Outcome("failed", f"its worker process {how}"))
            return
        worker.ready = True
        if isinstance(message, _jobs.Outcome):
            worker.job = None
            ended(job, message)
        elif message:
            on_message(job, message)

    def _interrupt(self) -> None:
        """Ask all workers to save their runs and stop."""
        for worker in self.workers:
            if worker.job is not None and worker.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGINT)
        deadline = time.monotonic() + _PATIENCE
        while (busy := [w for w in self.workers if w.job]) and time.monotonic() < deadline:
            wait([worker.connection for worker in busy], timeout=0.2)
            for worker in busy:
                try:
                    while worker.connection.poll():
                        message = worker.connection.recv()
                        if isinstance(message, _jobs.Outcome):
                            worker.job = None
                except (EOFError, OSError):
                    worker.job = None


class _Worker:
    """One process at the other end of a pipe."""

    def __init__(self, gpu: str | None, folder: Path) -> None:
        self.gpu = gpu
        self.job: Job | None = None
        self.fold: int | None = None
        self.ready = False
        variables = dict.fromkeys(_THREADS, "1")
        if gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = gpu
        spawned = _processes.spawn(_work, str(folder), variables=variables)
        self.process, self.connection = spawned

    def start(self, job: Job) -> None:
        """Give it a job."""
        self.job, self.fold = job, job.task.fold
        with contextlib.suppress(BrokenPipeError):  # it died: the pool notices next
            self.connection.send(job)

    def end(self) -> None:
        """Make it end."""
        self.connection.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(connection: Connection, folder: str) -> None:
    """The loop of a worker process: receive a job, run it, send its outcome."""
    try:
        _processes.follow_parent()
        _processes.take_interrupts()
        import torch

        torch.set_num_threads(1)
        data = _jobs.Data()
        with _locks.shared(Path(folder) / WORKERS):
            connection.send("")
            while True:
                job: Job = connection.recv()
                connection.send(_jobs.perform(job, data, connection.send))
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass


def _gpus() -> list[str]:
    """The name of each GPU in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]
