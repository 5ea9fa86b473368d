"""Writing so that nothing half-written is ever seen: a temporary name, fsync, rename.

What is being written lies beside its place under a hidden name of its writer's own, so that two
writers of one place do not meet. What a writer that was killed left there is removed by a later
one, once it is a day old, or by :func:`clean`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_UNFINISHED, _REPLACED = ".unfinished", ".replaced"  # how the hidden names end
_ABANDONED = 86_400  # seconds after which what is unfinished is taken for left behind


def write(path: Path, content: str | bytes) -> None:
    """Write a file through to the disk; it is there whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write(Path(place, "a.txt"), "whole")
    ...     Path(place, "a.txt").read_text(), len(os.listdir(place))
    ('whole', 1)
    """
    with whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to fill that takes the place of ``path``, and of what is there, once it is full."""
    clean(path, _ABANDONED)
    unfinished = _hidden(path)
    try:
        with _open(unfinished, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)


def _open(unfinished: Path, path: Path) -> IO[bytes]:
    try:
        return unfinished.open("xb")
    except OSError as error:
        raise _about(error, path) from None


def _about(error: OSError, path: Path) -> OSError:
    """The same error, of the path that was asked for and not of the hidden one beside it."""
    return type(error)(error.errno, error.strerror, str(path))


@contextmanager
def folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A folder to fill that takes the place of ``path`` once it is full.

    A folder cannot be renamed over another in one go: :func:`recover` undoes the halves of it.

    Args:
        path: where it goes; what is written into the folder must be synced by who writes it.
        replace: take the place of a folder that is there; without it, one that has something in
            it is an error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    clean(path, _ABANDONED)
    unfinished = _hidden(path)
    try:
        unfinished.mkdir()
    except OSError as error:
        raise _about(error, path) from None
    try:
        yield unfinished
        sync(unfinished)
        if replace and path.exists():
            _exchange(unfinished, path)
        else:
            os.rename(unfinished, path)  # fails, as it should, where another came up meanwhile
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(path.parent)


def recover(path: Path) -> None:
    """Bring back a folder that was moved away to be replaced by another that never came."""
    standing_now = standing(path)
    if standing_now != path:
        os.rename(standing_now, path)


def standing(path: Path) -> Path:
    """Where to read what :func:`folder` writes at ``path`` while it may be at it: no change made.

    For a moment the folder has its old contents under another name only.
    """
    if path.exists():
        return path
    return next(iter(_beside(path, _REPLACED)), path)


def clean(path: Path, older: float = 0) -> None:
    """Remove what killed writers of a file or folder left beside it.

    Args:
        path: the file or folder.
        older: spare what changed in the last so many seconds, whose writer may be at work.
    """
    for left in _beside(path, _UNFINISHED):
        if time.time() - left.stat().st_mtime >= older:
            _remove(left)
    if path.exists():
        for old in _beside(path, _REPLACED):
            _remove(old)


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(damaged(path, str(error))) from None


def damaged(path: Path, what: str) -> str:
    """What to say of a file that is not as it was written."""
    return f"{path} is damaged ({what}): put back a copy of it, or make it anew"


def sync(path: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which then has the name of the new one."""
    old = new.with_suffix(_REPLACED)
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    os.rename(old, new)  # so that what is called replaced is always whole


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_UNFINISHED}")


def _beside(path: Path, suffix: str) -> list[Path]:
    """What writers of this file or folder made beside it."""
    if not path.parent.is_dir():
        return []
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(suffix)}")
    return [other for other in path.parent.iterdir() if pattern.fullmatch(other.name)]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
