"""Locks: one process at a time works in a folder.

A lock is the operating system's on an open file, so it ends with the process that holds it, however
that ended; the file says who that is. It is removed with the lock; one that a killed process left
is not locked, and the next process takes it.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

_PATIENCE = 0.25  # seconds for a process that is just letting go, or only checks
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


class LockedError(ValueError):
    """Another process works in the folder."""


@contextmanager
def hold(path: Path, doing: str, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the lock of a file, which is made for it, for as long as the block runs.

    Where the file system has no locks, this is warned of and the block runs without.

    Args:
        path: the file; its folder must be there.
        doing: what is done in the folder, for the error, such as ``"training"``.
        patience: seconds to wait for it.

    Raises:
        LockedError: another process holds it; the error says which.

    >>> import tempfile
    >>> from rankgrad import _locks
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with _locks.hold(Path(place, "run.lock"), "training"):
    ...         print(os.listdir(place))
    ['run.lock']
    """
    file = _locked(path, doing, patience)
    with suppress(OSError):  # the text is informative only: a full disk must not end the work
        file.truncate(0)
        os.write(file.fileno(), _who().encode())
    try:
        yield
    finally:
        with suppress(OSError):  # the folder may be gone
            path.unlink()
        file.close()


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold the lock of a file together with others; :func:`hold` waits for all of them.

    Args:
        path: the file, which is made where it is not there.

    Raises:
        LockedError: another process holds it alone.
    """
    with _locked(path, "working", _PATIENCE, exclusive=False):
        yield


def check(path: Path, doing: str) -> None:
    """An error if another process holds the lock of a file."""
    if path.exists():
        with hold(path, doing):
            pass


def _locked(path: Path, doing: str, patience: float, *, exclusive: bool = True) -> IO[bytes]:
    """The file, locked. One that its last holder has just removed is made again.

    On file systems on which a file is never known again, the lock that was had last is taken.
    """
    deadline = time.monotonic() + patience
    while True:
        file = path.open("a+b")
        taken = _take(file, path, exclusive=exclusive)
        late = time.monotonic() > deadline
        if taken and (late or _is_at(file, path)):
            return file
        holder = _holder(file)
        file.close()
        if late:
            raise LockedError(
                f"another process is {doing} in {path.parent}{holder}: wait for it, or choose "
                "another folder"
            )
        time.sleep(0.02)


def _take(file: IO[bytes], path: Path, *, exclusive: bool = True) -> bool:
    """Whether the lock could be had, which it can where there are none."""
    try:
        import fcntl

        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except (ImportError, OSError) as error:  # there is no fcntl on Windows
        if isinstance(error, OSError) and error.errno in _BUSY:
            return False
        warnings.warn(
            f"{path.parent} has no locks ({error}): take care that no other process works there",
            stacklevel=2,
        )
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _who() -> str:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}\n"


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    said = file.read(200).decode(errors="replace").strip()
    return f" ({said})" if said.startswith("process ") else ""
