"""File locks, so that only one process at a time works in a folder.

The operating system locks an open file, so a lock ends when its process ends, in whatever way. The
file holds a line about the process that has the lock, for error messages. It is removed when the
lock is released. A file that a killed process left behind is not locked: the next process locks it.
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

_PATIENCE = 0.25  # seconds to wait for a process that is about to release the lock
_INTERVAL = 0.02  # seconds between two attempts to lock
_HELD_BY_OTHER = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


class LockedError(ValueError):
    """Another process works in the folder."""


@contextmanager
def hold(path: Path, doing: str, patience: float = _PATIENCE) -> Iterator[None]:
    """Create a lock file, and hold its lock for as long as the block runs.

    If the file system has no locks, the block runs without one, with a warning.

    Args:
        path: the lock file; its folder must exist.
        doing: what is done in the folder, for the error, such as ``"training"``.
        patience: seconds to wait for the lock.

    Raises:
        LockedError: another process holds the lock; the message says which.

    >>> import tempfile
    >>> from rankgrad import _locks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with _locks.hold(Path(folder, "run.lock"), "training"):
    ...         print(os.listdir(folder))
    ['run.lock']
    """
    file = _open_locked(path, doing, patience)
    with suppress(OSError):  # the line is only for messages: a full disk must not stop the work
        file.truncate(0)
        os.write(file.fileno(), _describe_process().encode())
    try:
        yield
    finally:
        with suppress(OSError):  # the folder may be gone
            path.unlink()
        file.close()


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold the lock of a file together with other processes that call this.

    While one of them holds it, :func:`hold` waits ``patience`` seconds, then raises an error.

    Args:
        path: the lock file, which is created if it does not exist.

    Raises:
        LockedError: another process holds the lock by :func:`hold`.
    """
    with _open_locked(path, "working", _PATIENCE, exclusive=False):
        yield


def check(path: Path, doing: str) -> None:
    """Raise :class:`LockedError` if another process holds the lock of a file.

    A lock file that no process holds is removed.
    """
    if path.exists():
        with hold(path, doing):
            pass


def _open_locked(path: Path, doing: str, patience: float, *, exclusive: bool = True) -> IO[bytes]:
    """Open a file and lock it.

    Between the two, the last holder may have removed the file. Then this process has locked a file
    that no other can find, and opens the path again. Some file systems never report an open file
    and its path as the same file, so after ``patience`` seconds that comparison is left out.
    """
    deadline = time.monotonic() + patience
    while True:
        file = path.open("a+b")
        is_locked = _try_lock(file, path, exclusive=exclusive)
        late = time.monotonic() > deadline
        if is_locked and (late or _is_file_at(file, path)):
            return file
        holder = _describe_holder(file)
        file.close()
        if late:
            raise LockedError(
                f"another process is {doing} in {path.parent}{holder}: wait for it, or choose "
                "another folder"
            )
        time.sleep(_INTERVAL)


def _try_lock(file: IO[bytes], path: Path, *, exclusive: bool = True) -> bool:
    """Lock a file, and return False if another process holds the lock.

    If the system has no locks, warn and return True.
    """
    try:
        import fcntl

        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except (ImportError, OSError) as error:  # there is no fcntl on Windows
        if isinstance(error, OSError) and error.errno in _HELD_BY_OTHER:
            return False
        warnings.warn(
            f"{path.parent} has no locks ({error}): take care that no other process works there",
            stacklevel=2,
        )
    return True


def _is_file_at(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _describe_process() -> str:
    """What the lock file says of its holder."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}\n"


def _describe_holder(file: IO[bytes]) -> str:
    """The line that the holder has written, in parentheses, if it has."""
    file.seek(0)
    line = file.read(200).decode(errors="replace").strip()
    return f" ({line})" if line.startswith("process ") else ""
