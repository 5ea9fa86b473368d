"""Stores: a data set as a folder of ``.npy`` memory maps and a JSON manifest.

``rankgrad import`` writes stores, and :func:`rankgrad.data.load` opens them. A store of any size
opens at once: opening maps the files, compares their sizes with the manifest and checks offsets,
labels and weights, but reads no features. Blocks of features are compared with their checksums when
they are first read (:mod:`rankgrad.data._checksummed`). The error for a damaged store names the
damaged file.

Writing is atomic: a store is written to a hidden folder beside its path, which is then renamed. A
reader sees the old store or the new one, never a mixture: it reads the manifest before and after,
and starts again if the manifest changed. Maps of a store that was replaced stay valid. Readers
write nothing.

The manifest has the format's version, the shape, type, size and checksums of each file, the names
of the features, notes, and where the data came from. Stores of earlier versions have one checksum
per file, which only ``verify`` compares. The qids are in a file of their own, as reading a million
of them from JSON would take a second at every opening.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import rankgrad
from rankgrad import _checksums, _files
from rankgrad._quoting import message_of, quote
from rankgrad.data._checksummed import ChecksummedArray, ChecksummedFile
from rankgrad.data._dataset import ArrayError, Dataset, categories_of

__all__ = ["atomic_store", "is_store", "open", "read_manifest", "snapshot", "write", "write_splits"]

_T = TypeVar("_T")

_FORMAT = "rankgrad store"
_VERSION = 1
_MANIFEST = "manifest.json"
_REQUIRED = ("features", "labels", "offsets", "qids")
_OPTIONAL = ("weights", "ids", "source_rows")
_MANIFEST_TYPES = {  # of the values that a manifest must have, by key
    "lists": int,
    "items": int,
    "features": int,
    "feature_names": list | None,
    "notes": list,
    "files": dict,
}
_FILE_TYPES = {"shape": list, "dtype": str, "bytes": int}  # of an entry of "files"
#: The keys of checksums in an entry of "files": those of the blocks of the file or, in stores of
#: earlier versions, that of the whole file. An entry has one of the two.
_SUM_KEYS = ("crc32", "blake2b")
_CHECKED_ON_OPENING = ("labels", "offsets", "weights")  # their values and checksums


def is_store(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a store, which may be damaged.

    Args:
        folder: any path.

    Returns:
        Whether it has a manifest, or features.
    """
    folder = _files.readable_path(Path(folder))
    return (folder / _MANIFEST).is_file() or (folder / "features.npy").is_file()


def write(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    sources: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
) -> Path:
    """Write a data set as a store and return its folder.

    Args:
        dataset: the data set.
        folder: of the store.
        sources: where the data came from, recorded in the manifest.
        overwrite: replace an existing store; anything else is never replaced.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder exists and may not be replaced.

    >>> import tempfile
    >>> from rankgrad.data import Dataset, store
    >>> data = Dataset(np.eye(3), labels=[2, 0, 1], offsets=[0, 1, 3], qids=["a", "b"])
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = store.write(data, place + "/train")
    ...     store.open(folder, verify=True).checksum() == data.checksum()
    True
    """
    with atomic_store(Path(folder), overwrite) as unfinished:
        _write_files(unfinished, dataset, sources)
    return Path(folder)


def write_splits(
    datasets: Mapping[str, Dataset],
    folder: str | os.PathLike[str],
    *,
    sources: Mapping[str, str | os.PathLike[str]] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a folder with a store for each split, ``folder/train`` and so on, atomically.

    Args:
        datasets: by split.
        folder: of the stores.
        sources: where each split came from, recorded in its manifest.
        overwrite: replace existing stores.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder exists and may not be replaced.
    """
    with atomic_store(Path(folder), overwrite) as unfinished:
        for name, dataset in datasets.items():
            (unfinished / name).mkdir()
            _write_files(unfinished / name, dataset, [sources[name]] if sources else [])
    return Path(folder)


def open(folder: str | os.PathLike[str], *, verify: bool = False) -> Dataset:
    """Open a store as a data set of read-only memory maps.

    Args:
        folder: of the store.
        verify: also read all files and compare them with their checksums.

    Returns:
        The data set, whose features are read when they are used.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is not a store, of another version, or damaged; a damaged file is named.
    """
    return _files.read_folder(Path(folder), _MANIFEST, lambda path: _open(path, verify=verify))


def _open(folder: Path, *, verify: bool) -> Dataset:
    """Open a store once; :func:`open` calls it again if the store is replaced meanwhile.

    Without ``verify``, large files are compared with their checksums when they are read, smaller
    ones here, and files with one checksum (of earlier versions) not at all.
    """
    manifest = read_manifest(folder)
    entries = manifest["files"]
    arrays = {name: _map_file(folder, name, entry) for name, entry in entries.items()}
    if verify:
        for name, entry in entries.items():
            _verify_file(folder, name, entry)
    try:
        dataset = Dataset(
            **arrays,
            feature_names=manifest["feature_names"],
            notes=manifest["notes"],
            zero_based=manifest.get("zero_based"),
            categories=categories_of(manifest.get("categories")),
            check=verify,
        )
        if not verify:
            dataset.check_numbers()
    except ArrayError as error:
        raise _damage_error(folder, f"{error.array}.npy: {error}") from error
    except ValueError as error:
        raise _damage_error(folder, str(error)) from error
    if not verify:
        for name, entry in entries.items():
            if "crc32" in entry and not isinstance(arrays[name], ChecksummedArray):
                _verify_file(folder, name, entry)
    return dataset


def snapshot(folder: Path, read: Callable[[], _T]) -> _T:
    """Read stores so that all are seen either before or after a replacement.

    Args:
        folder: a store, or a folder of splits or folds.
        read: reads the stores; called again if one of them was replaced meanwhile.

    Returns:
        The result of ``read``.
    """
    return _files.snapshot(lambda: _manifests(folder), read)


def _manifests(folder: Path) -> list[Path]:
    """The manifests of a store, or of all stores in a folder of splits or folds."""
    patterns = (_MANIFEST, f"*/{_MANIFEST}", f"*/*/{_MANIFEST}")
    while (readable := _files.readable_path(folder)).is_dir():
        with suppress(FileNotFoundError):  # the folder is being replaced: try again
            paths = [path for pattern in patterns for path in readable.glob(pattern)]
            return [folder / path.relative_to(readable) for path in paths]
    return []


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the manifest of a store, without its arrays.

    Args:
        folder: of the store.

    Returns:
        The contents of the manifest, without its checksum.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is not a store, of another version, or damaged.
    """
    folder = _files.readable_path(Path(folder))
    path = folder / _MANIFEST
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no store at {folder}")
    if not path.is_file():
        if is_store(folder):
            raise _damage_error(folder, f"{_MANIFEST} is missing")
        raise ValueError(f"{folder} is not a rankgrad store: it has no {_MANIFEST}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON or of UTF-8
        raise _damage_error(folder, f"{_MANIFEST} is cut short or is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"{folder} is not a rankgrad store: its {_MANIFEST} is of something else")
    version = manifest.get("version")
    if version != _VERSION:
        raise ValueError(
            f"the store {folder} has format version {quote(version)}, this rankgrad reads "
            f"{_VERSION}: update rankgrad, or import the data again"
        )
    checksum = manifest.pop("checksum", None)
    if checksum != _manifest_checksum(manifest):
        raise _damage_error(folder, f"{_MANIFEST} was changed after it was written")
    _check_manifest(folder, manifest)
    return manifest


def _check_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check that a manifest has all keys that are read later, with values of the right types."""
    for key, kind in _MANIFEST_TYPES.items():
        # The default is of no valid type; None would be valid for some keys.
        if not isinstance(manifest.get(key, ...), kind):
            raise _damage_error(folder, f"{_MANIFEST} has no {key!r}, or one of the wrong type")
    for name in _REQUIRED:
        if name not in manifest["files"]:
            raise _damage_error(folder, f"{_MANIFEST} does not list {name}.npy")
    for name, entry in manifest["files"].items():
        is_complete = isinstance(entry, dict) and all(
            isinstance(entry.get(key), kind) for key, kind in _FILE_TYPES.items()
        )
        if not is_complete or not any(isinstance(entry.get(key), str) for key in _SUM_KEYS):
            raise _damage_error(folder, f"{_MANIFEST} does not tell all of {name}.npy")


def _write_files(folder: Path, dataset: Dataset, sources: Iterable[str | os.PathLike[str]]) -> None:
    """Write the files of a store into an empty folder, and sync them to disk."""
    entries = {}
    for name in (*_REQUIRED, *_OPTIONAL):
        array = getattr(dataset, name)
        if array is None:
            continue
        path = folder / f"{name}.npy"
        with _files.atomic_write(path) as file:
            np.save(file, array, allow_pickle=False)
        entries[name] = {
            "shape": list(array.shape),
            "dtype": array.dtype.str,
            "bytes": path.stat().st_size,
            "crc32": _block_checksums(path),
        }
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "lists": len(dataset),
        "items": dataset.n_items,
        "features": dataset.n_features,
        "feature_names": None if dataset.feature_names is None else list(dataset.feature_names),
        "notes": list(dataset.notes),
        "zero_based": dataset.zero_based,
        "files": entries,
        "provenance": {
            "sources": [os.fspath(source) for source in sources],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "rankgrad": rankgrad.__version__,
        },
    }
    if dataset.categories is not None:
        manifest["categories"] = dataset.categories
    manifest["checksum"] = _manifest_checksum(manifest)
    _files.write(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")


@contextmanager
def atomic_store(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a hidden folder to write to, and rename it to ``folder`` if no error was raised.

    Args:
        folder: of the store, or of several.
        overwrite: replace existing stores.

    Yields:
        The hidden folder, beside ``folder``.

    Raises:
        FileExistsError: the folder exists and may not be replaced.
    """
    _files.recover(folder)
    _check_free(folder, overwrite)
    with _files.atomic_folder(folder, replace=overwrite) as unfinished:
        yield unfinished


def _check_free(folder: Path, overwrite: bool) -> None:
    """Raise an error unless a folder may be written: it is new, empty, or stores to replace."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not _holds_stores_only(folder):
        raise FileExistsError(f"{folder} is there already and is not a store: choose another place")
    if not overwrite:
        hint = "--overwrite or overwrite=True replaces it"
        raise FileExistsError(f"there is a store at {folder} already; {hint}")


def _holds_stores_only(folder: Path) -> bool:
    """Whether a folder is a store, or holds stores (splits, folds of splits) and nothing else."""
    if not folder.is_dir():
        return False
    if is_store(folder):
        store_files = {_MANIFEST, *(f"{name}.npy" for name in (*_REQUIRED, *_OPTIONAL))}
        return all(path.name in store_files for path in folder.iterdir())
    paths = list(folder.iterdir())
    return bool(paths) and all(_holds_stores_only(path) for path in paths)


def _map_file(folder: Path, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """Memory-map one file after comparing its size, shape and type with the manifest.

    A large file that opening does not check is checked block by block when it is read.
    """
    path = folder / f"{name}.npy"
    if name not in (*_REQUIRED, *_OPTIONAL):
        raise _damage_error(folder, f"{_MANIFEST} lists an unknown file {name!r}")
    if not path.is_file():
        raise _damage_error(folder, f"{path.name} is missing")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise _damage_error(folder, f"{path.name} has {size} bytes, {entry['bytes']} were written")
    try:
        array: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # NumPy evaluates the header: a damaged one may raise anything
        reason = message_of(error)
        raise _damage_error(folder, f"{path.name} is not readable as .npy ({reason})") from error
    layout = f"{array.dtype.str} {list(array.shape)}"
    expected = f"{entry['dtype']} {entry['shape']}"
    if layout != expected:
        raise _damage_error(folder, f"{path.name} holds {layout}, {expected} was written")
    if "crc32" not in entry or name in _CHECKED_ON_OPENING or size <= _checksums.BLOCK:
        return array
    try:
        file = ChecksummedFile(path, entry["crc32"])
        file.check(0, 1)  # the header, which says where the values begin
    except ValueError as error:
        raise _damage_error(folder, str(error)) from error
    checked: Any = ChecksummedArray(file, array.dtype, array.shape, array.offset)
    return checked  # type: ignore[no-any-return]


def _verify_file(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Compare all of a file with its checksums."""
    path = folder / f"{name}.npy"
    has_blocks = "crc32" in entry
    checksum = _block_checksums(path) if has_blocks else _file_checksum(path)
    if checksum != entry["crc32" if has_blocks else "blake2b"]:
        raise _damage_error(folder, f"{path.name} does not have the checksum it was written with")


def _damage_error(folder: Path, problem: str) -> ValueError:
    return ValueError(f"the store {folder} is damaged: {problem}. Import the data again")


def _block_checksums(path: Path) -> str:
    """The checksums of a file's blocks, as text."""
    with path.open("rb") as file:
        return _checksums.of_blocks(file)


def _file_checksum(path: Path) -> str:
    """The checksum of a whole file, as in stores of earlier versions."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "checksum"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
