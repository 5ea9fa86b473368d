"""Processes that are started anew: how they are interrupted, and how they end with their parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
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


_follows = False  # whether this process was started by one of these functions' callers


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """A process started meanwhile takes no Ctrl-C until it is ready for one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_interrupts() -> None:
    """In a process started under :func:`no_interrupts`: it is ready for Ctrl-C.

    In other processes nothing is changed: who blocks the signal there has a reason.
    """
    if _follows:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def follow_parent() -> None:
    """In a new process: leave Ctrl-C to the parent, which tells it once, and end when it ends."""
    global _follows
    _follows = True
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def why(code: int | None) -> str:
    """How a process ended, as the end of a sentence.

    >>> why(1), why(-9)
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
