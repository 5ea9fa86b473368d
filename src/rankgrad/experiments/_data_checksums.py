"""Checksums: which data the results in a comparison's folder were made with.

They are of the contents, so data may be moved, or imported into stores. The size, times and inode
of the files are stored beside, so that files that have not changed are not read again.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankgrad._quoting import listing
from rankgrad.data import _layout, load_splits
from rankgrad.experiments.plans import Task
from rankgrad.training._evaluations import EvaluatedLists
from rankgrad.training.run import RunFolder

#: By fold ("-" where there are none) and split: the ``checksum``, and the state of the ``files``.
Checksums = dict[str, dict[str, dict[str, str]]]


def of_data(
    data: Path,
    folds: Iterable[int | None],
    then: Checksums,
    options: Mapping[str, Any] | None = None,
) -> Checksums:
    """The checksums of data as they are now; folds that cannot be read have none.

    Args:
        data: a folder of splits, or of folds of splits.
        folds: which.
        then: the checksums of an earlier call; folds whose files are unchanged are not read again.
        options: of :func:`rankgrad.data.load_splits`.
    """
    found: Checksums = {}
    used = {name: value for name, value in (options or {}).items() if value}
    for fold in folds:
        known = then.get(_name(fold), {})
        try:
            states = {name: _state(path, used) for name, path in _layout.splits(data, fold).items()}
            if states == {name: metadata.get("files") for name, metadata in known.items()}:
                found[_name(fold)] = known
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the runs that read them report the error
                splits = load_splits(data, fold, **used)
        except (ValueError, OSError):
            continue
        found[_name(fold)] = {
            name: {"checksum": part.checksum(), "files": states[name]}
            for name, part in splits.items()
        }
    return found


def of_runs(tasks: Iterable[Task]) -> Checksums:
    """The checksums that runs saved, for folders whose plan has none."""
    found: Checksums = {}
    for task in tasks:
        parts = found.setdefault(_name(task.fold), {})
        try:
            for name, metadata in RunFolder.open(task.path).metadata["data"].items():
                parts.setdefault(name, {"checksum": metadata["checksum"]})
            parts.setdefault("test", {"checksum": EvaluatedLists.load(task.path).checksum})
        except (ValueError, OSError, KeyError):
            continue  # missing or damaged: the comparison reports it
    return found


def check(
    now: Checksums, then: Mapping[str, Mapping[str, Mapping[str, str]]], folder: Path
) -> None:
    """An error that says which splits are not those that the folder's results were made with."""
    others = []
    for fold, parts in now.items():
        for name, metadata in parts.items():
            before = then.get(fold, {}).get(name)
            if before is not None and before["checksum"] != metadata["checksum"]:
                where = name if fold == "-" else f"fold {fold} {name}"
                marks = f"{metadata['checksum'][:8]}, not {before['checksum'][:8]}"
                others.append(f"{where} (checksum {marks})")
    if others:
        raise ValueError(
            f"{folder} holds what was made from other data; {listing(others, most=4)}. "
            "Go on in another folder (-o), or remove this one to start anew"
        )


def _name(fold: int | None) -> str:
    return "-" if fold is None else str(fold)


def _state(path: Path, options: Mapping[str, Any]) -> str:
    """The files of a split, their size and times, and the options they are read with."""
    inside = path.rglob("*") if path.is_dir() else path.parent.iterdir()
    digest = hashlib.blake2b(repr(options).encode() if options else b"", digest_size=16)
    for file in sorted(inside):
        # Beside a file may be others that belong to it, such as LightGBM's train.txt.query.
        if file.is_file() and (path.is_dir() or file.name.startswith(path.name)):
            stat = file.stat()
            state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            digest.update(repr((str(file.resolve()), *state)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
