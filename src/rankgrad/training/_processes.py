"""Processes that train together, one per device: starting them, connecting them, Ctrl-C in them.

:func:`connect` gives each process its Fabric (Lightning Fabric connects the processes); a single
process on a CPU gets the cheaper :class:`SingleProcess`. Several processes are started by
:func:`start`, or by ``torchrun``, which also spans machines. ``rankgrad.experiments`` starts its
workers by :func:`spawn`, too.

Ctrl-C reaches the parent process only, which passes it on: see :class:`Interrupts` and
:func:`follow_parent`. :class:`DatasetHandle` sends data sets to processes without copying them.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import pickle
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
    """A context with further environment variables, which processes started in it inherit."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spawn(
    target: Callable[..., None], *arguments: Any, variables: Mapping[str, str]
) -> tuple[Any, Connection]:
    """Start ``target(connection, *arguments)`` in a new process.

    Args:
        target: the function that the process runs.
        arguments: its arguments, which are pickled.
        variables: further environment variables of the process.

    Returns:
        The process, and this process's end of the connection.
    """
    context = multiprocessing.get_context("spawn")
    connection, child_connection = context.Pipe()
    process = context.Process(target=target, args=(child_connection, *arguments), daemon=True)
    # The process inherits the mask: Ctrl-C is blocked in it until it calls take_interrupts.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _environment(variables):
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    child_connection.close()
    return process, connection


_was_spawned = False  # whether this process called follow_parent


def take_interrupts() -> None:
    """Unblock Ctrl-C in a process started by :func:`spawn`.

    In other processes this does nothing: if Ctrl-C is blocked there, other code has blocked it.
    """
    if _was_spawned:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The handler of SIGINT: raise KeyboardInterrupt.

    If a destructor (``__del__``) is running, Python would print the exception and go on. So the
    signal is then sent again 0.01 seconds later.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def follow_parent() -> None:
    """End this process when its parent ends. A new process must call this first.

    Ctrl-C on the terminal does not reach this process any more; the parent sends the signal.
    """
    global _was_spawned
    _was_spawned = True
    os.setsid()
    signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def exit_reason(code: int | None) -> str:
    """How a process with this exit code ended, as the end of a sentence.

    >>> exit_reason(1), exit_reason(-9)
    ('ended with exit code 1', 'was killed by signal 9, as happens where memory runs out')
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    hint = ", as happens where memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code}{hint}"


def _end_with_parent() -> None:
    """Wait until the parent ends, then end this process at once; runs in a thread."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Interrupts:
    """A context in which the first Ctrl-C sets ``stop_requested``; the next raises as usual.

    Outside the main thread nothing is changed, since signals arrive in the main thread only.

    Args:
        on_request: called at the first Ctrl-C.
    """

    def __init__(self, on_request: Callable[[], None] | None = None) -> None:
        self.stop_requested = False
        self._on_request = on_request
        self._previous_handler: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._handle)
            take_interrupts()  # a Ctrl-C that was blocked until now arrives here
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True
        if self._on_request is not None:
            self._on_request()


_GUARD_HINT = "a script must call this under `if __name__ == '__main__':`"
_GRACE = 5.0  # seconds to wait for further answers after an error, and for processes to end


def launched() -> bool:
    """Whether this is one of several training processes, of :func:`start` or ``torchrun``."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


class SingleProcess:
    """Stands in for Fabric where one process trains on a CPU in float32.

    It has the attributes and methods of Fabric that training uses. Importing and making a Fabric
    takes longer than training a small network.
    """

    device = torch.device("cpu")
    global_rank, world_size = 0, 1

    def setup(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer | FusedAdam]:
        """The module unchanged, and its optimizer; a faster one in place of Adam."""
        dtypes = {p.dtype for group in optimizer.param_groups for p in group["params"]}
        is_plain = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)  # no subclass of them
        if is_plain and isinstance(optimizer, torch.optim.Adam) and len(dtypes) == 1:
            return module, FusedAdam(optimizer)
        return module, optimizer

    def backward(self, total: Tensor, gradient: Tensor) -> None:
        """Compute the gradients of the parameters."""
        total.backward(gradient)

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """A context that does nothing: there is nothing to synchronize."""
        return contextlib.nullcontext()

    def clip_gradients(
        self, module: nn.Module, optimizer: Any, max_norm: float, error_if_nonfinite: bool
    ) -> None:
        """Clip the norm of all gradients together."""
        nn.utils.clip_grad_norm_(
            module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite
        )

    def all_reduce(self, data: Tensor, *, reduce_op: str) -> Tensor:
        """The data of this process, which are those of all processes."""
        return data

    def broadcast(self, value: Any) -> Any:
        """The value of the first process, which is this one."""
        return value


def connect(settings: Settings) -> Any:
    """The Fabric of this process, connected with the other processes if there are any."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A new process imports the script that started it, and the script calls fit again.
        raise ChildProcessError(f"processes cannot be started: {_GUARD_HINT}")
    is_float32_cpu = settings.precision == "32-true" and accelerator(settings) == "cpu"
    if is_float32_cpu and not launched():
        return SingleProcess()
    with _version_only("torchmetrics"):
        from lightning_fabric import Fabric

    # Hides messages on how the processes were connected; warnings are still shown.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    options: dict[str, Any] = {"devices": 1}
    if launched():
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // per_node
        options = {"devices": per_node, "num_nodes": nodes, "strategy": "ddp"}
    fabric = Fabric(accelerator=accelerator(settings), precision=settings.precision, **options)
    fabric.launch()
    return fabric


@contextlib.contextmanager
def _version_only(package: str) -> Iterator[None]:
    """A context in which importing a package gives a module with its version and nothing else.

    Fabric imports torchmetrics only for its version. The real import takes seconds, mostly since
    torchmetrics imports transformers.
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
    """Run ``function(*arguments, fabric)`` in ``settings.devices`` new processes.

    The first Ctrl-C is passed on to all processes, which save and stop; the second one ends them.

    Returns:
        The result of the first process.

    Raises:
        ChildProcessError: a process was killed. An error in a process is raised here as well.
    """
    check_devices(settings)
    accelerator(settings)
    group = _ProcessGroup(settings)
    try:
        group.start(partial(function, *arguments))
        with Interrupts(group.interrupt):
            return group.result()
    finally:
        group.end()


class _ProcessGroup:
    """The processes that train together, and the connections to them, by rank."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.count = settings, settings.devices
        self.processes: list[Any] = []
        self.connections: list[Connection] = []

    def start(self, function: Callable[..., Any]) -> None:
        """Start the processes, with the environment variables that ``torchrun`` sets."""
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(self.count))
        if "OMP_NUM_THREADS" not in os.environ:  # divide the threads among the processes
            sizes["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // self.count))
        for rank in range(self.count):
            ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            variables = address | sizes | ranks
            process, connection = spawn(_work, self.settings, function, variables=variables)
            self.processes.append(process)
            self.connections.append(connection)

    def interrupt(self) -> None:
        """Ask all processes to save and stop."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    def result(self) -> Any:
        """Wait for all processes; returns the result of the first one, or raises an error."""
        answers: dict[int, _Answer] = {}
        while len(answers) < self.count and not any(answer.error for answer in answers.values()):
            answers |= self._receive(answers, None)
        if any(answer.error for answer in answers.values()):
            raise self._root_error(answers)
        return answers[0].value

    def _receive(self, answers: dict[int, _Answer], timeout: float | None) -> dict[int, _Answer]:
        """New answers, by rank; waits until there is one, or for ``timeout`` seconds."""
        ranks = {pipe: rank for rank, pipe in enumerate(self.connections) if rank not in answers}
        ready = [ranks[pipe] for pipe in wait(list(ranks), timeout)]  # type: ignore[index]
        return {rank: self._read_answer(rank) for rank in ready}

    def _read_answer(self, rank: int) -> _Answer:
        """The answer that a process sent, or an error if it died without one."""
        try:
            answer: _Answer = self.connections[rank].recv()
        except (EOFError, OSError):
            process = self.processes[rank]
            process.join()
            ended = f"process {rank + 1} of {self.count} {exit_reason(process.exitcode)}"
            text = f"{ended}; the training was stopped, and --resume goes on from its last epoch"
            if process.exitcode == 1:  # it failed before _work, which sends errors as answers
                text = f"{ended}; its own error is above, and {_GUARD_HINT}"
            return _Answer(error=ChildProcessError(text))
        return answer

    def _root_error(self, answers: dict[int, _Answer]) -> BaseException:
        """The error to raise.

        If a process dies, the others fail too, since they lose the connection, and their answers
        may arrive first. So wait a little for the other answers, and prefer the more specific
        error.
        """
        deadline = time.monotonic() + _GRACE
        while len(answers) < self.count and (remaining := deadline - time.monotonic()) > 0:
            answers |= self._receive(answers, remaining)
        errors = [error for _, (_, error) in sorted(answers.items()) if error is not None]
        kinds = (ChildProcessError, ValueError, OSError, BaseException)
        return next(error for kind in kinds for error in errors if isinstance(error, kind))

    def end(self) -> None:
        """Wait for the processes to end, and kill those that do not end in time."""
        deadline = time.monotonic() + _GRACE
        for process, connection in zip(self.processes, self.connections, strict=True):
            connection.close()
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
            process.join()


class _Answer(NamedTuple):
    """The message that a process sends when it is done: the result, or an error."""

    value: Any = None
    error: BaseException | None = None


def _work(connection: Connection, settings: Settings, function: Callable[..., Any]) -> None:
    """Run ``function(fabric)`` in a new process, and send its result or error.

    Ctrl-C is blocked until training enters :class:`Interrupts`.
    """
    follow_parent()
    try:
        # Only the first process prints warnings.
        if os.environ["RANK"] != "0":
            warnings.simplefilter("ignore")
        answer = _Answer(function(connect(settings)))
    except KeyboardInterrupt as error:
        answer = _Answer(error=error)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        answer = _Answer(error=error)
    try:
        pickle.loads(pickle.dumps(answer.error))  # errors with arguments of their own may fail
        connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:  # the result, or its error, cannot be pickled or unpickled
        connection.send(_Answer(error=RuntimeError(repr(answer.error or error))))


def _free_port() -> int:
    """A TCP port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_devices(settings: Settings) -> None:
    """Raise if this machine has fewer GPUs than the settings ask for."""
    n_gpus = torch.cuda.device_count()
    if accelerator(settings) == "cuda" and settings.devices > n_gpus and not launched():
        raise ValueError(f"devices is {settings.devices}, but there are {n_gpus} GPUs")


def accelerator(settings: Settings) -> str:
    """The kind of device to train on, ``"cpu"`` or ``"cuda"``; raises if there is no GPU for it."""
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise ValueError("device is cuda, but no GPU is found: take cpu or auto")
    return "cuda" if has_gpu and settings.device != "cpu" else "cpu"


_MAX_COMPARED = 1 << 26  # bytes of the largest memory map that is sent with a checksum


@dataclass(frozen=True)
class DatasetHandle:
    """Pickles a data set for another process; it is unpickled as the data set itself.

    Arrays that are mapped from a file are mapped again in the other process. Otherwise, a memory
    map larger than memory would be copied to each process.
    """

    dataset: Dataset

    def __reduce__(self) -> tuple[Any, ...]:
        names = [field.name for field in fields(self.dataset)]
        return _unpack_dataset, ({name: _pack(getattr(self.dataset, name)) for name in names},)


def _unpack_dataset(packed: Mapping[str, Any]) -> Dataset:
    """The data set of fields that :func:`_pack` packed, by name."""
    values = {k: v() if isinstance(v, partial) else v for k, v in packed.items()}
    return Dataset(**values, check=False)


def _pack(array: Any) -> Any:
    """A ``partial`` that maps the file again if the array is mapped from one; else the array."""
    if isinstance(array, ChecksummedArray):
        path_and_sums = array.file.path.resolve(), array.file.sums
        return partial(_map_checked, *path_and_sums, array.dtype, array.shape, array.offset)
    # A slice of a memmap has the wrong ``offset``, so only a whole one is sent as a path.
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename:
        checksum = _checksums.of_bytes(array) if array.nbytes <= _MAX_COMPARED else None
        path = os.fspath(array.filename)
        return partial(_map, checksum, path, array.dtype, "r", array.offset, array.shape)
    return array


def _map_checked(path: Path, sums: str, *layout: Any) -> ChecksummedArray:
    """Map a part of a file, which is compared with the checksums ``sums`` as it is read."""
    return ChecksummedArray(ChecksummedFile(path, sums), *layout)


def _map(checksum: str | None, path: str, *layout: Any) -> np.memmap[Any, Any]:
    """Map a file; raises if a checksum was sent and the file's content has another one."""
    array: np.memmap[Any, Any] = np.memmap(path, *layout)
    if checksum not in (None, _checksums.of_bytes(array)):
        raise ValueError(f"{path} was replaced while processes were started: start again")
    return array
