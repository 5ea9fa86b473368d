"""Atomic writes of files and folders: to a temporary name, fsync, rename.

Everything that rankgrad writes to disk goes through this module, so that a reader never sees half
of a file, and a crash leaves the former file. Only :func:`appended` is not atomic. The module also
reads and writes JSON and tensors with checksums, and reads folders while they are replaced.

A temporary file or folder is beside its target, under a hidden name with random digits, so that two
writers of the same target do not disturb each other. If a writer is killed, its temporary file is
removed by a later writer, once it is a day old, or by :func:`clean`.

If the target is a symbolic link, the link stays and what it points to is replaced. FIFOs,
character devices and open files, such as ``/dev/stdout`` redirected to a file, are written to;
other special files are refused. Errors of the disk name the target, not the temporary file.
"""

from __future__ import annotations

import csv
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

_UNFINISHED, _REPLACED = ".unfinished", ".replaced"  # suffixes of the hidden names
_ABANDONED = 86_400  # seconds after which an unfinished file's writer is taken to have been killed
_SPOOLED = 1 << 26  # bytes for a FIFO or device that are kept in memory; more go to a file
_TRIES = 100  # attempts to read files that are being replaced
_DESCRIPTORS = re.compile(r"/proc/[^/]+/fd|/dev/fd")  # folders of links to open files


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and through to the disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "a.txt"), "all of it")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('all of it', 1)
    """
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """The text of a CSV file: a header and a line for each row."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


def write_json(path: Path, values: Mapping[str, Any], parts: Iterable[str] = ()) -> None:
    """Write JSON with a checksum of its own and those of other files in its folder.

    Args:
        path: the file.
        values: the contents.
        parts: the names of the other files, already written. Their checksums are stored under
            ``"files"``, where :func:`read_part` looks them up.
    """
    sums = {name: _checksums.of_bytes((path.parent / name).read_bytes()) for name in parts}
    write(path, _checksums.to_json(values, sums))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` when the block ends without an error.

    A FIFO or character device is written to at the end of the block.
    """
    if is_written_in_place(path):
        with tempfile.SpooledTemporaryFile(_SPOOLED) as spooled:
            yield cast(IO[bytes], _Output(spooled, path))
            spooled.seek(0)
            with (
                _naming_errors(path),
                open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream,
            ):
                shutil.copyfileobj(spooled, stream)
        return
    target = _follow_links(path)
    clean(target, _ABANDONED)
    unfinished = _temporary_path(target)
    try:
        with _naming_errors(path):
            file = unfinished.open("xb")
        try:
            yield cast(IO[bytes], _Output(file, path))
            with _naming_errors(path):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with _naming_errors(path):
                file.close()
        with _naming_errors(path):
            os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(target.parent)


def is_written_in_place(path: Path) -> bool:
    """Whether a path is written to, and not replaced by a new file.

    It is if the path is a FIFO, a character device, or a link to an open file, such as
    ``/dev/stdout``.

    Raises:
        OSError: the path can be neither written to nor replaced, such as a folder or a socket.
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


def check_file_free(path: Path, overwrite: bool) -> None:
    """Raise if a file exists and must not be overwritten."""
    if path.exists() and not is_written_in_place(path) and not overwrite:
        raise FileExistsError(f"{path} is there already; --overwrite or overwrite=True replaces it")


def check_folder_replaceable(path: Path, names: Collection[str], what: str) -> None:
    """Raise if a path exists and is not a folder that has only files of these names.

    Args:
        path: where a folder is to be written.
        names: the names of the files that a folder to be replaced may have.
        what: what a folder of these files is, for the error, such as ``"a saved Ranker"``.
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
    """A file to write to, whose errors name the path of the target.

    NumPy writes to a plain file by its descriptor, and reports a full disk as a number of bytes
    without a reason. This is not a plain file, so NumPy calls :meth:`write`.
    """

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        try:
            return int(self._file.write(content))
        except OSError as error:
            raise _with_path(error, self._path) from None

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        if self._file.closed:  # Python flushes once more when it collects this object
            return
        with _naming_errors(self._path):
            self._file.flush()


@contextmanager
def _naming_errors(path: Path) -> Iterator[None]:
    """Make errors of the disk in the block name this path, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise _with_path(error, path) from None


def _with_path(error: OSError, path: Path) -> OSError:
    """The same error, with ``path`` as the path that it names."""
    return error if error.errno is None else type(error)(error.errno, error.strerror, str(path))


def _follow_links(path: Path) -> Path:
    """What a symbolic link points to, which may not exist; other paths as they are."""
    if not path.is_symlink():
        return path
    with _naming_errors(path):
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


@contextmanager
def appended(path: Path) -> Iterator[IO[bytes]]:
    """A file to append to; at the end of the block it is written through to the disk."""
    with _naming_errors(path), path.open("ab") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A temporary folder to fill, which replaces ``path`` when the block ends without an error.

    Where the file system can exchange two names, as on Linux, readers see either the old folder or
    the new one. Elsewhere this takes two renames; if a crash comes between them, :func:`recover`
    undoes the first.

    Args:
        path: the target. The caller must sync each file that it writes into the folder.
        replace: whether to replace a folder that exists. Otherwise one that is not empty is an
            error at the end of the block.
    """
    target = _follow_links(path)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is there and is not a folder", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    clean(target, _ABANDONED)
    unfinished = _temporary_path(target)
    try:
        with _naming_errors(path):
            unfinished.mkdir()
        try:
            yield unfinished
        except OSError as error:
            raise _with_final_path(error, unfinished, path) from error.__cause__
        with _naming_errors(path):
            sync(unfinished)
            if replace and target.exists():
                _exchange(unfinished, target)
            else:
                os.rename(unfinished, target)  # fails, as it should, if another writer was faster
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(target.parent)


def _with_final_path(error: OSError, unfinished: Path, path: Path) -> OSError:
    """An error of a file in the temporary folder, with the path that the file was to have."""
    file = Path(error.filename) if isinstance(error.filename, str) else None
    if error.errno is None or file is None or not file.is_relative_to(unfinished):
        return error
    return _with_path(error, path / file.relative_to(unfinished))


def recover(path: Path) -> None:
    """Restore a folder whose replacement was interrupted between the two renames.

    Only writers call this; readers use :func:`readable_path`, which changes nothing.
    """
    target = _follow_links(path)
    old = None if target.exists() else _last_replaced(target)
    if old is not None:
        with suppress(FileNotFoundError):  # another writer has restored it meanwhile
            os.rename(old, target)


def readable_path(path: Path) -> Path:
    """The path to read for ``path`` while :func:`atomic_folder` may be replacing it.

    For a moment the former folder, or a parent of it, exists only under its temporary name.
    """
    if path.exists() or path.parent == path:
        return path
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    parent = readable_path(target.parent)
    if parent != target.parent:
        return parent / target.name
    return _last_replaced(target) or path


def snapshot(manifests: Callable[[], Iterable[Path]], read: Callable[[], T]) -> T:
    """Read files that belong together, either all before or all after a replacement of them.

    Args:
        manifests: returns the paths of small files that are replaced together with the others, and
            whose contents change whenever any of the others changes.
        read: reads all files. It is called again if the manifests changed or moved meanwhile.
    """
    after = _contents(manifests())
    for _ in range(_TRIES):
        before = after
        try:
            result = read()
        except (OSError, ValueError):
            after = _contents(manifests())
            if after == before:
                raise
            continue
        after = _contents(manifests())
        if after == before:
            return result
    raise BlockingIOError(errno.EAGAIN, "is replaced again and again", str(next(iter(after), "")))


def _contents(paths: Iterable[Path]) -> dict[Path, tuple[Path, bytes | None]]:
    """The current path and the bytes of each file; None for bytes that cannot be read.

    The path counts because a folder is moved before another one takes its place.
    """
    contents: dict[Path, tuple[Path, bytes | None]] = {}
    for path in paths:
        current = readable_path(path)
        contents[path] = current, None
        with suppress(OSError):
            contents[path] = current, current.read_bytes()
    return contents


def read_folder(folder: Path, manifest: str, read: Callable[[Path], T]) -> T:
    """:func:`snapshot` of one folder, which :func:`atomic_folder` may be replacing.

    Args:
        folder: the folder.
        manifest: a file in it that differs between versions.
        read: reads the folder; its argument is the path to read.
    """
    return snapshot(lambda: [folder / manifest], lambda: read(readable_path(folder)))


def clean(path: Path, min_age: float = 0) -> None:
    """Remove temporary files that killed writers of a file or folder left behind.

    Args:
        path: the file or folder.
        min_age: keep what changed in the last ``min_age`` seconds: it may still be written.
    """
    target = _follow_links(path)
    for unfinished in _hidden_siblings(target, _UNFINISHED):
        with suppress(FileNotFoundError):  # its writer has finished meanwhile
            # Writing to a file does not change the time of its folder.
            files = (unfinished, *unfinished.rglob("*"))
            if time.time() - max(file.lstat().st_mtime for file in files) >= min_age:
                _remove(unfinished)
    if target.exists():
        for old in _hidden_siblings(target, _REPLACED):
            with suppress(FileNotFoundError):
                _remove(old)


def read_json(path: Path) -> Any:
    """Read a JSON file, and compare it with its checksum if it has one."""
    try:
        return _checksums.from_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None


def read_part(path: Path, values: Mapping[str, Any]) -> bytes:
    """Read a file that belongs to a JSON file, and compare it with its checksum in the JSON file.

    Args:
        path: the file.
        values: the contents of the JSON file, from :func:`read_json`, with the checksums under
            ``"files"``. JSON files of earlier versions have none.
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
    copies = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    write(path, save(copies))


def read_tensors(path: Path, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read a file of :func:`write_tensors`, and compare it with the checksum in a JSON file.

    Args:
        path: the file.
        values: the contents of the JSON file beside it, from :func:`read_json`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(read_part(path, values))
    except SafetensorError as error:
        raise damaged(path, f"it is not safetensors: {error}") from None
    return tensors


class FileError(ValueError):
    """A file or folder that cannot be used as it is.

    Args:
        path: the file.
        reason: what is wrong: the words of the message after the path.
        line: the number of the line, if it is known.

    >>> error = FileError(Path("runs/a/metrics.jsonl"), "is damaged", line=3)
    >>> str(error), error.within(Path("runs/a"))
    ('line 3 of runs/a/metrics.jsonl is damaged', 'line 3 of metrics.jsonl is damaged')
    """

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        super().__init__(path, reason, line)
        self.path, self.reason, self.line = path, reason, line

    def __str__(self) -> str:
        return self._message(str(self.path))

    def within(self, folder: Path) -> str:
        """The message for readers who know the folder: the path is relative to it."""
        is_inside = self.path.is_relative_to(folder)
        return self._message(str(self.path.relative_to(folder) if is_inside else self.path))

    def _message(self, name: str) -> str:
        line = "" if self.line is None else f"line {self.line} of "
        return f"{line}{name} {self.reason}"


def damaged(path: Path, what: str) -> FileError:
    """The error of a file that is not as it was written; ``what`` says how that is known."""
    return FileError(path, f"is damaged ({what}): put back a copy of it, or make it anew")


def sync(path: Path) -> None:
    """Write a file, or the entries of a folder, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, path: Path) -> None:
    """Exchange the names of a new folder and of the one that it replaces.

    The replaced folder is then at ``new``, from where :func:`atomic_folder` removes it.
    """
    if _swap(new, path):
        return
    old = new.with_suffix(_REPLACED)
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    with suppress(FileNotFoundError):  # another writer has removed it already
        os.rename(old, new)  # so the suffix _REPLACED remains only if a crash interrupted this


def _swap(first: Path, second: Path) -> bool:
    """Exchange two names in one step, and return whether it was done."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    paths = (current_folder, os.fsencode(first), current_folder, os.fsencode(second))
    return bool(renameat2(*paths, exchange) == 0)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_UNFINISHED}")


def _hidden_siblings(path: Path, suffix: str) -> list[Path]:
    """The hidden files and folders that writers of this file or folder made beside it."""
    if not path.parent.is_dir():
        return []
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(suffix)}")
    return [sibling for sibling in path.parent.iterdir() if pattern.fullmatch(sibling.name)]


def _last_replaced(path: Path) -> Path | None:
    """The folder that was moved away last to be replaced, if one is there."""
    times: dict[Path, int] = {}
    for old in _hidden_siblings(path, _REPLACED):
        with suppress(FileNotFoundError):  # a writer has removed or restored it meanwhile
            times[old] = old.stat().st_ctime_ns  # the time of the rename
    return max(times, key=times.__getitem__, default=None)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
