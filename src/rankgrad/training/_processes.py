"""Processes: the devices a run trains on, connected by Lightning Fabric, and Ctrl-C in all of them.

One process needs nothing. Several are started here, or by ``torchrun``, which also spans machines.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib import metadata
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rankgrad import _checksums
from rankgrad.data._checksummed import ChecksummedArray, ChecksummedFile
from rankgrad.data._dataset import Dataset
from rankgrad.training._optimizers import FusedAdam
from rankgrad.training._settings import Settings


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spawn(
    target: Callable[..., None], *arguments: Any, variables: Mapping[str, str]
) -> tuple[Any, Connection]:
    """Start ``target(connection, *arguments)`` in a new process; the process, and the other end.

    Args:
        target: what it does.
        arguments: are pickled.
        variables: of its environment, beside those of this process.
    """
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=target, args=(other, *arguments), daemon=True)
    # It takes no Ctrl-C until it is ready for one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _environment(variables):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    other.close()
    return process, connection


_follows = False  # whether this process was started by one of these functions' callers


def take_interrupts() -> None:
    """In a process started by :func:`spawn`: it is ready for Ctrl-C.

    In other processes nothing is changed: who blocks the signal there has a reason.
    """
    if _follows:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; after a destructor, in which it would be printed and lost."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def follow_parent() -> None:
    """In a new process: leave Ctrl-C to the parent, which tells it once, and end when it ends."""
    global _follows
    _follows = True
    os.setsid()
    signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def exit_reason(code: int | None) -> str:
    """How a process ended, as the end of a sentence.

    >>> exit_reason(1), exit_reason(-9)
    ('ended with exit code 1', 'was killed by signal 9, as happens where memory runs out')
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    hint = ", as happens where memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code}{hint}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Interrupts:
    """While open, the first Ctrl-C sets ``stop_requested``; the second one interrupts as usual.

    Outside the main thread, where signals do not arrive, nothing is changed.

    Args:
        on_request: called at the first one.
    """

    def __init__(self, on_request: Callable[[], None] | None = None) -> None:
        self.stop_requested = False
        self._on_request = on_request
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
            take_interrupts()  # one that came before, to a process of several, counts now
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True
        if self._on_request is not None:
            self._on_request()


_SMALL = 1 << 26  # bytes up to which a map is compared: its file may be replaced on the way
_GUARD = "a script must call this under `if __name__ == '__main__':`"
_GRACE = 5.0  # seconds that processes have to end when one of them has failed


def launched() -> bool:
    """Whether this is one of several processes already, started by ``torchrun`` or the like."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


class SingleProcess:
    """What training asks of Fabric, where one process trains on its CPU in float32.

    Fabric itself takes longer to make than a small network to train.
    """

    device = torch.device("cpu")
    global_rank, world_size = 0, 1

    def setup(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer | FusedAdam]:
        """The module as it is, and what makes the steps of its optimizer."""
        types = {each.dtype for group in optimizer.param_groups for each in group["params"]}
        if isinstance(optimizer, torch.optim.Adam) and len(types) == 1:
            return module, FusedAdam(optimizer)
        return module, optimizer

    def backward(self, total: Tensor, gradient: Tensor) -> None:
        """Gradients at the parameters."""
        total.backward(gradient)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Nothing is synchronized."""
        return contextlib.nullcontext()

    def clip_gradients(
        self, module: nn.Module, optimizer: Any, max_norm: float, error_if_nonfinite: bool
    ) -> None:
        """Clip the norm of all gradients."""
        nn.utils.clip_grad_norm_(
            module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite
        )

    def all_reduce(self, data: Tensor, *, reduce_op: str) -> Tensor:
        """The values of this process, which are all there are."""
        return data

    def broadcast(self, value: Any) -> Any:
        """What the first process has, which is this one."""
        return value


def connect(settings: Settings) -> Any:
    """The Fabric of this process, connected with the others where there are others."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A new process runs the script that started it.
        raise ChildProcessError(f"processes cannot be started: {_GUARD}")
    plain = settings.precision == "32-true" and accelerator(settings) == "cpu"
    if plain and not launched():
        return SingleProcess()
    with _version_only("torchmetrics"):
        from lightning_fabric import Fabric

    # No lines about how the processes found each other; warnings still come through.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    options: dict[str, Any] = {"devices": 1}
    if launched():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // local
        options = {"devices": local, "num_nodes": nodes, "strategy": "ddp"}
    fabric = Fabric(accelerator=accelerator(settings), precision=settings.precision, **options)
    fabric.launch()
    return fabric


@contextlib.contextmanager
def _version_only(package: str) -> Iterator[None]:
    """While open, importing a package gives its version and nothing else.

    Fabric imports torchmetrics to ask for its version. That takes seconds, of which most go to
    transformers, which torchmetrics imports.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = None
    if package in sys.modules or version is None:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__version__ = version  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        del sys.modules[package]


def start(settings: Settings, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``function(*arguments, fabric)`` in as many new processes; what the first one gives.

    An error in one of them is raised here, as is :class:`ChildProcessError` where one was killed.
    The first Ctrl-C is passed on to all of them, which save and stop; the second one ends them.
    """
    check_devices(settings)
    accelerator(settings)
    started = _Started(settings)
    try:
        started.begin(partial(function, *arguments))
        with Interrupts(started.interrupt):
            return started.result()
    finally:
        started.end()


class _Started:
    """The processes that train together, and their messages."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.count = settings, settings.devices
        self.processes: list[Any] = []
        self.connections: list[Connection] = []

    def begin(self, function: Callable[..., Any]) -> None:
        """Start the processes, with the environment variables that ``torchrun`` sets."""
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(self.count))
        if "OMP_NUM_THREADS" not in os.environ:  # the threads, divided among the processes
            sizes["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // self.count))
        for rank in range(self.count):
            ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            variables = address | sizes | ranks
            process, connection = spawn(_work, self.settings, function, variables=variables)
            self.processes.append(process)
            self.connections.append(connection)

    def interrupt(self) -> None:
        """Ask all of them to save and stop."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    def result(self) -> Any:
        """Wait for all of them; what the first one gives, or the error that explains the others."""
        answers: dict[int, _Answer] = {}
        while len(answers) < self.count and not any(answer.error for answer in answers.values()):
            answers |= self._receive(answers, None)
        if any(answer.error for answer in answers.values()):
            raise self._explain(answers)
        return answers[0].value

    def _receive(self, answers: dict[int, _Answer], timeout: float | None) -> dict[int, _Answer]:
        """What those that had not answered say."""
        ranks = {end: rank for rank, end in enumerate(self.connections) if rank not in answers}
        ready = [ranks[end] for end in wait(list(ranks), timeout)]  # type: ignore[index]
        return {rank: self._answer(rank) for rank in ready}

    def _answer(self, rank: int) -> _Answer:
        try:
            answer: _Answer = self.connections[rank].recv()
        except (EOFError, OSError):  # it died
            process = self.processes[rank]
            process.join()
            ended = f"process {rank + 1} of {self.count} {exit_reason(process.exitcode)}"
            text = f"{ended}; the training was stopped, and --resume goes on from its last epoch"
            if process.exitcode == 1:  # before it reached its function, which answers
                text = f"{ended}; its own error is above, and {_GUARD}"
            return _Answer(error=ChildProcessError(text))
        return answer

    def _explain(self, answers: dict[int, _Answer]) -> BaseException:
        """The error to raise: where a process dies, the others fail too, and may be heard first."""
        deadline = time.monotonic() + _GRACE
        while len(answers) < self.count and (left := deadline - time.monotonic()) > 0:
            answers |= self._receive(answers, left)
        errors = [error for _, (_, error) in sorted(answers.items()) if error is not None]
        kinds = (ChildProcessError, ValueError, OSError, BaseException)
        return next(error for kind in kinds for error in errors if isinstance(error, kind))

    def end(self) -> None:
        """End all processes; those that have answered end by themselves."""
        deadline = time.monotonic() + _GRACE
        for process, connection in zip(self.processes, self.connections, strict=True):
            connection.close()
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
            process.join()


class _Answer(NamedTuple):
    value: Any = None
    error: BaseException | None = None


def _work(connection: Connection, settings: Settings, function: Callable[..., Any]) -> None:
    """The work of a process. Ctrl-C is blocked until training is ready for it: see Interrupts."""
    follow_parent()
    try:
        # As in the command line, warnings are single lines; only the first process prints.
        if os.environ["RANK"] != "0":
            warnings.simplefilter("ignore")
        answer = _Answer(function(connect(settings)))
    except KeyboardInterrupt as error:
        answer = _Answer(error=error)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        answer = _Answer(error=error)
    try:
        connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception:  # an error that cannot be sent
        connection.send(_Answer(error=RuntimeError(repr(answer.error))))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def check_devices(settings: Settings) -> None:
    """An error if there are not the devices that the settings ask for."""
    there = torch.cuda.device_count()
    if accelerator(settings) == "cuda" and settings.devices > there and not launched():
        raise ValueError(f"devices is {settings.devices}, but there are {there} GPUs")


def accelerator(settings: Settings) -> str:
    """``"cpu"`` or ``"cuda"``."""
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise ValueError("device is cuda, but no GPU is found: take device=cpu or auto")
    return "cuda" if there and settings.device != "cpu" else "cpu"


@dataclass(frozen=True)
class DatasetHandle:
    """A data set on its way to another process, in which it is unpickled as the data set itself.

    What is mapped from a file is mapped again there.

    Without this, a memory map larger than memory would be copied into each process.
    """

    dataset: Dataset

    def __reduce__(self) -> tuple[Any, ...]:
        names = [each.name for each in fields(self.dataset)]
        return _receive, ({name: _pack(getattr(self.dataset, name)) for name in names},)


def _receive(values: Mapping[str, Any]) -> Dataset:
    opened = {k: v() if isinstance(v, partial) else v for k, v in values.items()}
    return Dataset(**opened, check=False)


def _pack(array: Any) -> Any:
    """What to send for an array: a call that maps its file again, where it is mapped from one."""
    if isinstance(array, ChecksummedArray):
        file = array.file.path.resolve(), array.file.sums
        return partial(_map_checked, *file, array.dtype, array.shape, array.offset)
    # A part of a map says its offset wrong, so only a whole one goes by name.
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename:
        checksum = _checksums.of_bytes(array) if array.nbytes <= _SMALL else None
        path = os.fspath(array.filename)
        return partial(_map, checksum, path, array.dtype, "r", array.offset, array.shape)
    return array


def _map_checked(path: Path, sums: str, *layout: Any) -> ChecksummedArray:
    """A part of a file that is compared with its checksums as it is read, there as here."""
    return ChecksummedArray(ChecksummedFile(path, sums), *layout)


def _map(checksum: str | None, path: str, *layout: Any) -> np.memmap[Any, Any]:
    array: np.memmap[Any, Any] = np.memmap(path, *layout)
    if checksum not in (None, _checksums.of_bytes(array)):
        raise ValueError(f"{path} was replaced while processes were started: start again")
    return array
