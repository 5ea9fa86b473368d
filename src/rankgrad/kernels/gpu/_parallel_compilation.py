"""Compile the kernels of a first call at the same time, on threads.

A loss launches five kernels or more, one after another, and Triton compiles a kernel when it is
launched. So from the first launch of a kernel that is not compiled, the launches of a call wait in
a queue, and their kernels are compiled on threads. The queue is launched, in order, at the end of
the call, and before any operation of PyTorch that may read what the kernels write.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.driver import driver

EMPTY = ("aten::empty", "aten::empty_like", "aten::new_empty")
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
_THREADS = 16
_parsing = threading.Lock()


@functools.cache
def hash_triton() -> threading.Thread:
    """Start to hash Triton's files, a part of the keys of its cache, in a thread.

    Triton's library alone has 400 MB. While the thread hashes it, modules are imported and Triton's
    driver is compiled.
    """
    from triton.runtime import cache

    # If this version of Triton has no triton_key, the thread calls int(), which does nothing.
    thread = threading.Thread(target=getattr(cache, "triton_key", int), daemon=True)
    thread.start()
    return thread


def only_allocates(function: Any) -> bool:
    """Whether an operation of PyTorch reads no memory: it allocates a tensor, or views one.

    In inference mode, ``reshape`` and others that may copy arrive here as views.
    """
    if function._schema.name in EMPTY + ZEROS:
        return "out" not in function._overloadname
    composite = "CompositeImplicitAutograd"
    may_copy = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), composite)
    return function.is_view and not may_copy


class _Call(threading.local):
    """The call of this thread that launches kernels.

    Attributes:
        depth: of nested calls; 0 outside of calls.
        queue: the queue of launches, if a kernel of the call was not compiled.
        is_ahead: whether kernels are compiled for a later call, and not launched.
    """

    depth = 0
    queue: LaunchQueue | None = None
    is_ahead = False


_call = _Call()


class CallScope:
    """A context for a call that launches kernels; it may be nested and used again."""

    def __enter__(self) -> None:
        _call.depth += 1

    def __exit__(self, error: Any, *_: Any) -> None:
        _call.depth -= 1
        queue = _call.queue
        if queue is not None and _call.depth == 0:
            _call.queue = None
            queue.__exit__(None, None, None)
            if error is None:
                queue.launch()


class LaunchQueue(TorchDispatchMode):
    """The launches of a call that wait until their kernels are compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._launches: list[Callable[[], None]] = []
        self._compilers: Any = None
        self._started: set[Hashable] = set()
        # Triton's mode of compilation is a context variable: a context of its own keeps it from
        # other code, also if an exception ends this call.
        self._context = Context()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: PyTorch would import its compiler to skip it, which takes seconds."""
        return False

    def compile(self, compile_only: Callable[[], Any], key: Hashable) -> None:
        """Have a kernel compiled before the next launch, once for each key."""
        if key in self._started:
            return
        self._started.add(key)
        if self._compilers is None:
            hash_triton().join()
            # A failed compilation is repeated by the launch, which raises its error.
            self._compilers = triton.AsyncCompileMode(_Executor(), ignore_errors=True)
            self._context.run(self._compilers.__enter__)
        self._context.run(compile_only)

    def append(self, launch: Callable[[], None]) -> None:
        """Add a launch."""
        self._launches.append(launch)

    def launch(self) -> None:
        """Wait for the compilers, and launch all in order."""
        compilers, self._compilers = self._compilers, None
        launches, self._launches = self._launches, []
        if compilers is not None:
            compilers.executor.start()
            self._context.run(compilers.__exit__, None, None, None)
            compilers.executor.shutdown()
        queue, _call.queue = _call.queue, None
        depth, _call.depth = _call.depth, 0  # launches do not wait again
        try:
            for launch in launches:
                launch()
        finally:
            _call.queue, _call.depth = queue, depth

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not only_allocates(function):
            self.launch()
        return function(*args, **(kwargs or {}))


class _Executor(ThreadPoolExecutor):
    """Threads that compile kernels, those with most code first.

    The C functions by which Triton launches kernels are compiled, too.
    """

    def __init__(self) -> None:
        super().__init__(min(_THREADS, os.cpu_count() or 1), "rankgrad-compile")
        # The length of the kernel's code, the future of the result, the task.
        self._tasks: list[tuple[int, Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        """Add a task; :meth:`start` starts it."""
        closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        source, future = closure.get("src"), Future[Any]()
        if source is not None:  # Triton 3.6 submits a closure that has the kernel's source
            build_launcher = functools.partial(driver.active.launcher_cls, source, _Unknown())
            self._tasks.append((0, Future(), build_launcher))
            source.make_ir = functools.partial(_parse, source.make_ir)
        self._tasks.append((0 if source is None else len(source.fn.src), future, function))
        return future

    def start(self) -> None:
        """Start all tasks."""
        tasks, self._tasks = self._tasks, []
        for _, future, task in sorted(tasks, key=lambda task: -task[0]):
            super().submit(_complete, future, task)


def _parse(make_ir: Callable[..., Any], *arguments: Any) -> Any:
    """Parse a kernel under a lock: parsing is Python code, of which one thread runs at a time."""
    with _parsing:
        return make_ir(*arguments)


def _complete(future: Future[Any], task: Callable[[], Any]) -> None:
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)


class _Unknown:
    """Stands for a kernel that is not compiled yet, with 0 for every property.

    The C function that launches the kernel does not depend on them.
    """

    def __getattr__(self, name: str) -> int:
        return 0


def is_queued(
    launch: Callable[[], None], compile_only: Callable[[], Any] | None, key: Hashable
) -> bool:
    """Add a launch to the queue of this thread's call.

    Args:
        launch: launches a kernel.
        compile_only: compiles it instead; None if it is compiled.
        key: of the compiled kernel.

    Returns:
        Whether the queue will launch it; if not, the caller must.
    """
    queue = _call.queue
    if queue is None:
        if compile_only is None or _call.depth == 0 or not _CAN_COMPILE:
            return False
        queue = LaunchQueue()
        queue.__enter__()
        _call.queue = queue
    if compile_only is not None:
        queue.compile(compile_only, key)
    if not _call.is_ahead:
        queue.append(launch)
    return True


def launch_queued() -> None:
    """Launch what waits in the queue of this thread's call, before the host reads results."""
    if _call.queue is not None:
        _call.queue.launch()


def is_waiting() -> bool:
    """Whether launches of this thread's call wait for their kernels to be compiled."""
    return _call.queue is not None


def compile_ahead(function: Callable[..., Any], *arguments: Any) -> None:
    """If kernels of this call are being compiled, compile those of another function, too."""
    if _call.queue is None or _call.is_ahead:
        return
    _call.is_ahead = True
    try:
        function(*arguments)
    finally:
        _call.is_ahead = False


#: Whether this version of Triton compiles on threads.
_CAN_COMPILE = hasattr(triton, "AsyncCompileMode")
if torch.cuda.is_available():
    hash_triton()
