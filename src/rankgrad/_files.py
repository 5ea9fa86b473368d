"""Atomic writes: a temporary name, fsync, rename.

What is being written lies beside its place under a hidden name of its writer's own, so that two
writers of one place do not meet. What a writer that was killed left there is removed by a later
one, once it is a day old, or by :func:`clean`.

Symbolic links stay: what they point to is replaced. FIFOs and character devices are written to, and
whatever else is there and is no regular file is refused. An error of the disk names the path that
was asked for.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from rankgrad import _checksums

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_UNFINISHED, _REPLACED = ".unfinished", ".replaced"  # how the hidden names end
_ABANDONED = 86_400  # seconds after which an unfinished file is taken for abandoned
_SPOOLED = 1 << 26  # bytes for a FIFO or device that are held in memory
_TRIES = 100  # attempts to read files that are being replaced
_DESCRIPTORS = re.compile(r"/proc/[^/]+/fd|/dev/fd")  # links there are open files, not places


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and through to the disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write(Path(place, "a.txt"), "all of it")
    ...     Path(place, "a.txt").read_text(), len(os.listdir(place))
    ('all of it', 1)
    """
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, values: Mapping[str, Any], parts: Iterable[str] = ()) -> None:
    """Write JSON with a checksum of its own and those of files beside it.

    Args:
        path: the file.
        values: what it says.
        parts: the names of the files beside it, which are there already, for :func:`read_part`.
    """
    sums = {name: _checksums.of_bytes((path.parent / name).read_bytes()) for name in parts}
    write(path, _checksums.to_json(values, sums))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` when the block ends without an error.

    A FIFO or character device is written to at the end of the block.
    """
    if is_stream(path):
        with tempfile.SpooledTemporaryFile(_SPOOLED) as spooled:
            yield cast(IO[bytes], _Output(spooled, path))
            spooled.seek(0)
            with _named(path), open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                shutil.copyfileobj(spooled, stream)
        return
    place = _resolved(path)
    clean(place, _ABANDONED)
    unfinished = _hidden(place)
    try:
        with _named(path):
            file = unfinished.open("xb")
        try:
            yield cast(IO[bytes], _Output(file, path))
            with _named(path):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with _named(path):
                file.close()
        with _named(path):
            os.replace(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(place.parent)


def is_stream(path: Path) -> bool:
    """Whether writing goes through to something that is there and is not replaced.

    That is a FIFO, a character device, or an open file by its number, such as ``/dev/stdout``.

    Raises:
        OSError: there is something that can be neither written to nor replaced.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file to write", str(path))
    if not stat.S_ISREG(mode):
        kind = "block device" if stat.S_ISBLK(mode) else "socket"
        raise OSError(errno.EINVAL, f"is a {kind}; name a file to write", str(path))
    return _is_descriptor(path)


def check_free(path: Path, overwrite: bool) -> None:
    """Raise if a file is there that is not to be replaced."""
    if path.exists() and not is_stream(path) and not overwrite:
        raise FileExistsError(f"{path} is there already; --overwrite or overwrite=True replaces it")


def check_replaceable(path: Path, names: Collection[str], what: str) -> None:
    """Raise if something is there that is not a folder of files of these names alone.

    Args:
        path: where a folder is to be written.
        names: of what it may hold.
        what: such a folder is, for the error.
    """
    if path.exists() and not (path.is_dir() and {file.name for file in path.iterdir()} <= {*names}):
        raise FileExistsError(f"{path} is there and is not {what}: choose another place")


def _is_descriptor(path: Path) -> bool:
    """Whether a path is a link to one of the files that a process has open."""
    while path.is_symlink():
        if _DESCRIPTORS.fullmatch(os.path.realpath(path.parent)):
            return True
        path = path.parent / os.readlink(path)
    return False


class _Output(io.BufferedIOBase):
    """A file to write to, whose errors say its path.

    It is no file of the operating system to NumPy, which would write past it and, on a full disk,
    say how much was written but not why that was all.
    """

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        try:
            return int(self._file.write(content))
        except OSError as error:
            raise _about(error, self._path) from None

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        with _named(self._path):
            self._file.flush()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the disk name this path, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise _about(error, path) from None


def _about(error: OSError, path: Path) -> OSError:
    return error if error.errno is None else type(error)(error.errno, error.strerror, str(path))


def _resolved(path: Path) -> Path:
    """The path without symbolic links, so that these stay; what they point to may be missing."""
    if not path.is_symlink():
        return path
    with _named(path):
        place = Path(os.path.realpath(path))
        if place.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return place


@contextmanager
def appended(path: Path) -> Iterator[IO[bytes]]:
    """A file to add to, through to the disk."""
    with _named(path), path.open("ab") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A folder to fill that takes the place of ``path`` once it is full.

    Readers see the old folder or the new one where the file system can exchange two names, as those
    of Linux can. Others take two renames, and :func:`recover` undoes the halves of them.

    Args:
        path: where it goes; what is written into the folder must be synced by who writes it.
        replace: take the place of a folder that is there; without it, one that has something in
            it is an error.
    """
    asked, path = path, _resolved(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is there and is not a folder", str(asked))
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    clean(path, _ABANDONED)
    unfinished = _hidden(path)
    try:
        with _named(asked):
            unfinished.mkdir()
        try:
            yield unfinished
        except OSError as error:
            raise _inside(error, unfinished, asked) from error.__cause__
        sync(unfinished)
        if replace and path.exists():
            _exchange(unfinished, path)
        else:
            os.rename(unfinished, path)  # fails, as it should, if another writer was faster
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(path.parent)


def _inside(error: OSError, unfinished: Path, path: Path) -> OSError:
    """The same error, of the file as it would have been called."""
    where = Path(error.filename) if isinstance(error.filename, str) else None
    if error.errno is None or where is None or not where.is_relative_to(unfinished):
        return error
    named = path / where.relative_to(unfinished)
    return type(error)(error.errno, error.strerror, str(named))


def recover(path: Path) -> None:
    """Restore a folder whose replacement was interrupted between the two renames.

    For writers: readers take :func:`readable_path`, which changes nothing.
    """
    if not path.exists():
        for old in _beside(path, _REPLACED)[:1]:
            with suppress(FileNotFoundError):  # another writer has restored it meanwhile
                os.rename(old, path)


def readable_path(path: Path) -> Path:
    """The path to read for ``path`` while :func:`atomic_folder` may be replacing it.

    For a moment the former folder, or a parent of it, exists only under its temporary name.
    """
    if path.exists() or path.parent == path:
        return path
    above = readable_path(path.parent)
    return next(iter(_beside(path, _REPLACED)), path) if above == path.parent else above / path.name


def snapshot(marks: Callable[[], Iterable[Path]], read: Callable[[], T]) -> T:
    """What ``read`` gives of files that go together, all of them before or after a replacement.

    Args:
        marks: finds small files that are replaced with the others and differ where any of them do.
        read: reads them all; it is called again if the marks have changed, or moved, meanwhile.
    """
    after = _contents(marks())
    for _ in range(_TRIES):
        before = after
        try:
            found = read()
        except (OSError, ValueError):
            after = _contents(marks())
            if after == before:
                raise
            continue
        after = _contents(marks())
        if after == before:
            return found
    raise BlockingIOError(errno.EAGAIN, "is replaced again and again", str(next(iter(after), "")))


def _contents(paths: Iterable[Path]) -> dict[Path, tuple[Path, bytes | None]]:
    """Where each file is now, and its bytes: a folder is moved before another takes its place."""
    found: dict[Path, tuple[Path, bytes | None]] = {}
    for path in paths:
        place = readable_path(path)
        found[path] = place, None
        with suppress(OSError):
            found[path] = place, place.read_bytes()
    return found


def read_folder(folder: Path, manifest: str, read: Callable[[Path], T]) -> T:
    """:func:`snapshot` of one folder, which :func:`atomic_folder` may be replacing.

    Args:
        folder: the folder.
        manifest: a file in it that differs between versions.
        read: reads the folder at the path that it is given.
    """
    return snapshot(lambda: [folder / manifest], lambda: read(readable_path(folder)))


def clean(path: Path, older: float = 0) -> None:
    """Remove temporary files that killed writers of a file or folder left.

    Args:
        path: the file or folder.
        older: leave files that changed in the last ``older`` seconds: they may still be written.
    """
    for left in _beside(path, _UNFINISHED):
        with suppress(FileNotFoundError):  # its writer has finished meanwhile
            if time.time() - left.stat().st_mtime >= older:
                _remove(left)
    if path.exists():
        for old in _beside(path, _REPLACED):
            with suppress(FileNotFoundError):
                _remove(old)


def read_json(path: Path) -> Any:
    """What a JSON file holds, compared with its checksum where it has one."""
    try:
        return _checksums.from_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None


def read_part(path: Path, values: Mapping[str, Any]) -> bytes:
    """The content of a file that goes with a JSON file, compared with the checksum there.

    Args:
        path: the file.
        values: what :func:`read_json` gave; one of earlier versions has no checksums.
    """
    content = path.read_bytes()
    sums = values.get("files")
    if sums is not None and sums.get(path.name) != _checksums.of_bytes(content):
        raise damaged(path, "it does not have the checksum it was written with")
    return content


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name as safetensors, atomically."""
    from safetensors.torch import save

    # Each tensor is copied: some share memory, which the format does not allow.
    own = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    write(path, save(own))


def read_tensors(path: Path, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """What :func:`write_tensors` wrote, compared with the checksum in the JSON file beside it.

    Args:
        path: the file.
        values: what :func:`read_json` gave.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(read_part(path, values))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or is not safetensors: {error}") from None
    return tensors


class FileError(ValueError):
    """A file or folder that cannot be used as it is.

    Args:
        path: of the file.
        reason: what is wrong, as the words that follow the path.
        line: where in the file, if that is known.

    >>> error = FileError(Path("runs/a/metrics.jsonl"), "is damaged", line=3)
    >>> str(error), error.within(Path("runs/a"))
    ('line 3 of runs/a/metrics.jsonl is damaged', 'line 3 of metrics.jsonl is damaged')
    """

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        super().__init__(path, reason, line)
        self.path, self.reason, self.line = path, reason, line

    def __str__(self) -> str:
        return self._about(str(self.path))

    def within(self, folder: Path) -> str:
        """The message for readers who know the folder: the path is relative to it."""
        inside = self.path.is_relative_to(folder)
        return self._about(str(self.path.relative_to(folder)) if inside else str(self.path))

    def _about(self, name: str) -> str:
        where = "" if self.line is None else f"line {self.line} of "
        return f"{where}{name} {self.reason}"


def damaged(path: Path, what: str) -> FileError:
    """The error of a file that is not as it was written."""
    return FileError(path, f"is damaged ({what}): put back a copy of it, or make it anew")


def sync(path: Path) -> None:
    """Write the entries of a folder through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which then has the name of the new one."""
    if _swap(new, path):
        return
    old = new.with_suffix(_REPLACED)
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    os.rename(old, new)  # so that a folder with the suffix is always complete


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names at once; whether that was possible."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


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
