"""The catalog of known data sets: how to recognize them, where to get them, what they should hold.

``catalog.toml`` lists them. Totals come from the publishers' pages and from papers. Counts of parts
do too, or from the files themselves (MQ2008); the documents of the parts of MQ2007, WEB10K, WEB30K
and Istella, and the queries of MQ2007's, are as commonly quoted, and add up to the totals. What is
not known is left out and not checked.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad._deprecation import renamed_attributes
from rankgrad.data import _layout, _streams, columnar, store
from rankgrad.data._dataset import Dataset

__all__ = ["ENTRIES", "KnownDataset", "check", "check_folds", "names", "recognize"]

_HEAD = 1 << 20  # bytes whose lines are counted to estimate the rows
_NEAR = 1.5  # a file of up to this many times more or fewer rows may be a known one


@dataclass(frozen=True)
class _Counts:
    """How many queries and documents there are; None where that is not known for sure."""

    queries: int | None = None
    documents: int | None = None


@dataclass(frozen=True)
class KnownDataset:
    """A known data set.

    Attributes:
        parts: the counts of splits, by fold (None where there are no folds) and split.
        sparse: features that are zero are not written, so a reader may see fewer of them.
        words: what the folder is called, in small letters and digits only; any one will do.
        prefix: what the names of the files begin with.
    """

    name: str
    title: str
    url: str
    license: str
    features: int
    highest_label: int
    total: _Counts
    parts: Mapping[tuple[int | None, str], _Counts] = field(repr=False)
    words: tuple[str, ...]
    splits: tuple[str, ...]
    folds: int = 0
    sparse: bool = False
    prefix: str = ""


def names() -> list[str]:
    """The names of the known data sets.

    Returns:
        Their names, as in ``ENTRIES``.

    >>> from rankgrad.data import catalog
    >>> catalog.names()
    ['MQ2007', 'MQ2008', 'MSLR-WEB10K', 'MSLR-WEB30K', 'Yahoo C14', 'Istella', 'Istella-S']
    """
    return [entry.name for entry in ENTRIES]


def recognize(path: str | os.PathLike[str]) -> KnownDataset | None:
    """The known data set that a folder (or one of its folds) holds, or None.

    The layout and the number of features must be right; beyond that the folder's name decides, and
    where that says nothing, the number of rows, which need only be near. Under its own name a set
    is known with some of its folds missing too; see :func:`check_folds`.

    Args:
        path: the folder.

    Returns:
        The known data set, which :func:`check` compares with what was read.
    """
    path = Path(path)
    if _layout.fold_number(path) is not None and _layout.folds(path.parent):
        return recognize(path.parent)
    try:
        folds = _layout.folds(path)
        splits = _layout.splits(path, next(iter(folds), None))
    except (ValueError, OSError):
        return None
    peek = _peek(splits["train"]) if "train" in splits else None
    if peek is None:
        return None
    candidates = [
        entry
        for entry in ENTRIES
        if (entry.folds == len(folds) or 0 < len(folds) < entry.folds)
        and entry.splits == tuple(splits)
        and (peek.features == entry.features or (entry.sparse and peek.features < entry.features))
        and (splits["train"].name.startswith(entry.prefix) or path.name == entry.prefix)
    ]
    place = re.sub(r"[^a-z0-9/]", "", "/".join(path.absolute().parts[-2:]).lower())
    for entry in candidates:
        if any(word in place for word in entry.words):
            return entry
    return _nearest([entry for entry in candidates if entry.folds == len(folds)], peek)


def check_folds(entry: KnownDataset, folds: Iterable[int]) -> list[str]:
    """Which folds of a known data set are not there, in a sentence; empty if all are.

    Args:
        entry: the known data set.
        folds: the numbers of those that are there.

    Returns:
        The sentence, or nothing.

    >>> from rankgrad.data import catalog
    >>> catalog.check_folds(catalog.ENTRIES[0], [1, 2, 5])
    ['MQ2007 has 5 folds, here 3, 4 are missing']
    """
    missing = sorted(set(range(1, entry.folds + 1)) - set(folds))
    if not missing:
        return []
    listed = ", ".join(map(str, missing))
    are = "is" if len(missing) == 1 else "are"
    return [f"{entry.name} has {entry.folds} folds, here {listed} {are} missing"]


def check(
    entry: KnownDataset, datasets: Mapping[str, Dataset], *, fold: int | None = None
) -> list[str]:
    """What differs from what a known data set should hold, a sentence each; empty if nothing does.

    Args:
        entry: the known data set.
        datasets: by split; those that are not there are not checked.
        fold: which fold they are of, or None.

    Returns:
        The differences.
    """
    differences = []
    for name, dataset in datasets.items():
        if dataset.n_features != entry.features and not (
            entry.sparse and dataset.n_features < entry.features
        ):
            differences.append(
                f"{entry.name} has {entry.features} features, {name} has {dataset.n_features}"
            )
        counts = _Counts(len(dataset), dataset.n_items)
        where = f"{name} of fold {fold}" if fold is not None and entry.folds else name
        expected = entry.parts.get((fold if entry.folds else None, name), _Counts())
        differences += _compare(entry, where, expected, counts)
        labels = dataset.labels
        if len(labels) and (labels.max() > entry.highest_label or (labels % 1 != 0).any()):
            differences.append(
                f"{entry.name} has whole labels from 0 to {entry.highest_label}, {name} has "
                f"others, the highest {labels.max():g}"
            )
    if set(datasets) == set(entry.splits):
        queries = sum(len(dataset) for dataset in datasets.values())
        documents = sum(dataset.n_items for dataset in datasets.values())
        counts = _Counts(queries, documents)
        differences += _compare(entry, "all splits together", entry.total, counts)
    return differences


def _compare(entry: KnownDataset, where: str, expected: _Counts, counts: _Counts) -> list[str]:
    return [
        f"{entry.name} has {wanted:,} {kind} in {where}, here there are {getattr(counts, kind):,}"
        for kind in ("queries", "documents")
        if (wanted := getattr(expected, kind)) not in (None, getattr(counts, kind))
    ]


@dataclass(frozen=True)
class _Peek:
    """What the beginning of a file says about it."""

    features: int
    rows: float | None  # estimated; None for a compressed file


def _peek(path: Path) -> _Peek | None:
    if store.is_store(path):
        try:
            manifest = store.read_manifest(path)
        except (ValueError, OSError):  # damaged, or replaced meanwhile
            return None
        return _Peek(manifest["features"], manifest["items"])
    if columnar.is_columnar(path) or not path.is_file():
        return None
    features = _layout.first_features(path)
    if not features:
        return None
    if path.suffix.lower() in _streams.COMPRESSED:
        return _Peek(max(features), None)
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return _Peek(max(features), head.count(b"\n") * path.stat().st_size / len(head))


def _nearest(candidates: list[KnownDataset], peek: _Peek) -> KnownDataset | None:
    """The candidate whose training part is nearest in size, if one is near at all."""
    best, least = None, np.log(_NEAR)
    for entry in candidates:
        known = entry.parts[1 if entry.folds else None, "train"].documents
        if peek.rows and known:
            distance = abs(np.log(peek.rows / known))
            if distance < least:
                best, least = entry, distance
    return best


def _entry(values: dict[str, Any]) -> KnownDataset:
    """An entry of ``catalog.toml``."""
    parts = values.pop("parts")
    values |= {
        "total": _Counts(*values["total"]),
        "words": tuple(values["words"]),
        "splits": tuple(next(iter(parts.values()))),
        "parts": {
            (None if fold == "all" else int(fold), split): _Counts(*counts)
            for fold, splits in parts.items()
            for split, counts in splits.items()
        },
    }
    return KnownDataset(**values)


_TEXT = resources.files("rankgrad.data").joinpath("catalog.toml").read_text(encoding="utf-8")
ENTRIES: tuple[KnownDataset, ...] = tuple(map(_entry, tomllib.loads(_TEXT)["sets"]))

__getattr__ = renamed_attributes(__name__, {"recognise": "recognize", "Entry": "KnownDataset"})
