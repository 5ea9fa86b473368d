"""Workers: processes that do the jobs of a comparison, each one job at a time.

They are spawned, not forked. Each has one thread, and one GPU if runs are on GPUs. A worker that
dies is replaced, and its run is missing in the table. Workers end when the process that started
them ends, even if it was killed. ``_runner`` uses the :class:`Pool`.
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

#: Lock files in the folder of a comparison. The process that runs it holds ``LOCK``; all of its
#: workers share ``WORKERS``.
LOCK, WORKERS = ".lock", ".workers"

_PATIENCE = 20.0  # seconds that workers have to save their runs and end when interrupted
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


#: Called with a job and a message of its worker about its progress.
OnMessage = Callable[[Job, str], None]
#: Called when a worker is idle, with the fold whose data it has; gives its next job, if any.
NextJob = Callable[[int | None], Job | None]
#: Called with a job and how it ended.
OnEnd = Callable[[Job, _jobs.Outcome], None]


def default_count(settings: Settings) -> int:
    """How many workers there are by default: one per GPU if runs are on GPUs, else per core."""
    return len(_gpus()) if _processes.accelerator(settings) == "cuda" else cores()


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no two processes run the same comparison."""
    with _locks.hold(folder / LOCK, "comparing"):
        # Workers of a killed process end a moment after it: wait until they have.
        with _locks.hold(folder / WORKERS, "comparing", _PATIENCE):
            pass
        yield


class Pool:
    """Worker processes, which are started as there are jobs for them.

    Args:
        count: the largest number of workers.
        settings: the settings of the plan; they say whether runs are on GPUs.
        folder: the folder of the comparison.
    """

    def __init__(self, count: int, settings: Settings, folder: Path) -> None:
        self.count, self.folder = count, folder
        on_gpus = _processes.accelerator(settings) == "cuda"
        self.gpus: list[str | None] = list(_gpus()) if on_gpus else [None]
        self.workers: list[_Worker] = []

    def run(self, next_job: NextJob, on_message: OnMessage, on_end: OnEnd) -> None:
        """Run jobs until there are no more; on Ctrl-C, running jobs are saved first."""
        try:
            while self._assign(next_job) or any(worker.job for worker in self.workers):
                busy = {worker.connection: worker for worker in self.workers if worker.job}
                # A worker that dies closes its connection, so that it is among these, too.
                for connection in wait(list(busy)):
                    self._receive(busy[connection], on_message, on_end)  # type: ignore[index]
        except BaseException:
            self._interrupt()
            raise
        finally:
            for worker in self.workers:
                worker.end()

    def _assign(self, next_job: NextJob) -> bool:
        """Give jobs to idle workers, and start workers up to the count; True if one got a job."""
        assigned = False
        for index in range(self.count):
            worker = self.workers[index] if index < len(self.workers) else None
            if worker is not None and worker.job is not None:
                continue
            job = next_job(None if worker is None else worker.fold)
            if job is None:
                break
            if worker is None:
                gpus_in_use = [other.gpu for other in self.workers]
                worker = _Worker(min(self.gpus, key=gpus_in_use.count), self.folder)
                self.workers.append(worker)
            worker.start(job)
            assigned = True
        return assigned

    def _receive(self, worker: _Worker, on_message: OnMessage, on_end: OnEnd) -> None:
        """Handle a message of a worker: that it is ready, its progress, or how its job ended."""
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
            reason = _processes.exit_reason(worker.process.exitcode)
            on_end(job, _jobs.Outcome("failed", f"its worker process {reason}"))
            return
        worker.ready = True
        if isinstance(message, _jobs.Outcome):
            worker.job = None
            on_end(job, message)
        elif message:
            on_message(job, message)

    def _interrupt(self) -> None:
        """Ask all workers to save their runs and stop; wait until they have, or time is up."""
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
    """A worker process as the pool sees it: its job, and the connection to it."""

    def __init__(self, gpu: str | None, folder: Path) -> None:
        self.gpu = gpu
        self.job: Job | None = None  # None while it is idle
        self.fold: int | None = None  # of the last job, whose data it has in memory
        self.ready = False  # whether it has sent its first message
        variables = dict.fromkeys(_THREAD_VARIABLES, "1")
        if gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = gpu
        self.process, self.connection = _processes.spawn(_work, str(folder), variables=variables)

    def start(self, job: Job) -> None:
        """Send it a job."""
        self.job, self.fold = job, job.task.fold
        with contextlib.suppress(BrokenPipeError):  # it died: the pool notices next
            self.connection.send(job)

    def end(self) -> None:
        """Terminate the process; kill it if it does not react."""
        self.connection.close()
        self.process.terminate()
        self.process.join(5)  # seconds
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
            connection.send("")  # it is ready
            while True:
                job: Job = connection.recv()
                connection.send(_jobs.perform(job, data, connection.send))
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass


def _gpus() -> list[str]:
    """The GPUs, each as ``CUDA_VISIBLE_DEVICES`` names it."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]
