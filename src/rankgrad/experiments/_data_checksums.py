"""Checksums of the data that the results in a comparison's folder were made with.

:mod:`.compare` saves them in ``plan.json`` and refuses to add runs on other data. A checksum is of
the contents, so data may be moved, or imported into stores. Beside each checksum is a fingerprint
of the files (paths, sizes, times, inodes): while it is the same, the files are not read again.
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

#: By fold ("-" for data without folds) and split: ``checksum``, and the fingerprint of ``files``.
Checksums = dict[str, dict[str, dict[str, str]]]


def of_data(
    data: Path, folds: Iterable[int | None], saved: Checksums, options: Mapping[str, Any] = {}
) -> Checksums:
    """The checksums of data as they are now, without folds that cannot be read.

    Args:
        data: a folder of splits, or of folds of splits.
        folds: the numbers of the folds; None for a folder of splits.
        saved: the checksums of an earlier call; folds whose files are unchanged are not read again.
        options: of :func:`rankgrad.data.load_splits`.
    """
    checksums: Checksums = {}
    load_options = {name: value for name, value in options.items() if value}
    for fold in folds:
        saved_splits = saved.get(_key(fold), {})
        try:
            fingerprints = {
                name: _fingerprint(path, load_options)
                for name, path in _layout.splits(data, fold).items()
            }
            if fingerprints == {name: split.get("files") for name, split in saved_splits.items()}:
                checksums[_key(fold)] = saved_splits
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the runs that read the data warn
                splits = load_splits(data, fold, **load_options)
        except (ValueError, OSError):
            continue  # the runs on this fold report the error
        checksums[_key(fold)] = {
            name: {"checksum": split.checksum(), "files": fingerprints[name]}
            for name, split in splits.items()
        }
    return checksums


def of_runs(tasks: Iterable[Task]) -> Checksums:
    """The checksums that runs saved, for folders whose plan has none."""
    checksums: Checksums = {}
    for task in tasks:
        splits = checksums.setdefault(_key(task.fold), {})
        try:
            for name, metadata in RunFolder.open(task.path).metadata["data"].items():
                splits.setdefault(name, {"checksum": metadata["checksum"]})
            splits.setdefault("test", {"checksum": EvaluatedLists.load(task.path).checksum})
        except (ValueError, OSError, KeyError):
            continue  # missing or damaged: the comparison reports it
    return checksums


def check(checksums: Checksums, saved: Checksums, folder: Path) -> None:
    """Raise if checksums differ from the saved ones; say of which splits."""
    differences = []
    for fold, splits in checksums.items():
        for name, split in splits.items():
            saved_split = saved.get(fold, {}).get(name)
            if saved_split is not None and saved_split["checksum"] != split["checksum"]:
                full_name = name if fold == "-" else f"fold {fold} {name}"
                change = f"{split['checksum'][:8]}, not {saved_split['checksum'][:8]}"
                differences.append(f"{full_name} (checksum {change})")
    if differences:
        raise ValueError(
            f"{folder} holds what was made from other data; {listing(differences, most=4)}. "
            "Go on in another folder (-o), or remove this one to start anew"
        )


def _key(fold: int | None) -> str:
    return "-" if fold is None else str(fold)


def _fingerprint(path: Path, options: Mapping[str, Any]) -> str:
    """A digest of the paths and file statistics of a split, and of the options to read it with."""
    files = path.rglob("*") if path.is_dir() else path.parent.iterdir()
    digest = hashlib.blake2b(repr(options).encode() if options else b"", digest_size=16)
    for file in sorted(files):
        # Beside a file may be others that belong to it, such as LightGBM's train.txt.query.
        if file.is_file() and (path.is_dir() or file.name.startswith(path.name)):
            stat = file.stat()
            state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            digest.update(repr((str(file.resolve()), *state)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
