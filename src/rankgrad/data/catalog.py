"""The catalog of known data sets: how to recognize them, where to get them, what they should hold.

``load_splits`` and ``rankgrad data`` compare the data that they read with the catalog. The sets are
listed in ``catalog.toml``. Totals come from the publishers' pages and from papers. Counts of splits
come from the same sources or from the files themselves (MQ2008). Some counts are only commonly
quoted, and add up to the totals: the documents per split of MQ2007, WEB10K, WEB30K and Istella, and
the queries per split of MQ2007. Numbers that are not known are left out and not checked.
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

_HEAD_BYTES = 1 << 20  # bytes whose lines are counted to estimate the number of rows of a file
_MAX_RATIO = 1.5  # of the rows of a file to those of the known set that it may be, or inversely


@dataclass(frozen=True)
class _Counts:
    """How many queries and documents there are; None where that is not known for sure."""

    queries: int | None = None
    documents: int | None = None


@dataclass(frozen=True)
class KnownDataset:
    """A known data set.

    Attributes:
        name: a short name, such as ``MQ2008``.
        title: what the set is.
        url: the page where it can be had.
        license: the terms of use, in a few words.
        features: the number of features.
        highest_label: labels are whole numbers from 0 to it.
        total: the counts of all splits of a fold together.
        parts: the counts by fold (None in a set without folds) and split.
        words: to recognize the set by name: the names of the folder and its parent, reduced to
            small letters and digits, have one of these in them.
        splits: the names of the splits, in order.
        folds: the number of folds, 0 for none.
        sparse: whether files omit features that are zero, so that a reader may see fewer features.
        prefix: the beginning of the files' names, or the name of their folder.
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

    The layout and the number of features must be right. Among the sets that these allow, the name
    of the folder (or of its parent) decides. If it has none of their words, the number of training
    rows decides, which may differ by a factor of up to 1.5. A set that is recognized by name may
    lack some of its folds; see :func:`check_folds`.

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
    features, rows = _peek(splits["train"]) if "train" in splits else (0, 0)
    if not features:
        return None
    candidates = [
        entry
        for entry in ENTRIES
        if (entry.folds == len(folds) or 0 < len(folds) < entry.folds)
        and entry.splits == tuple(splits)
        and (features == entry.features or (entry.sparse and features < entry.features))
        and (splits["train"].name.startswith(entry.prefix) or path.name == entry.prefix)
    ]
    folder_names = re.sub(r"[^a-z0-9/]", "", "/".join(path.absolute().parts[-2:]).lower())
    for entry in candidates:
        if any(word in folder_names for word in entry.words):
            return entry
    return _nearest([entry for entry in candidates if entry.folds == len(folds)], rows)


def check_folds(entry: KnownDataset, folds: Iterable[int]) -> list[str]:
    """Compare the folds of a folder with those of a known data set.

    Args:
        entry: the known data set.
        folds: the numbers of the folds in the folder.

    Returns:
        A sentence that names the missing folds; an empty list if there are none.

    >>> from rankgrad.data import catalog
    >>> catalog.check_folds(catalog.ENTRIES[0], [1, 2, 5])
    ['MQ2007 has 5 folds, here 3, 4 are missing']
    """
    missing = sorted(set(range(1, entry.folds + 1)) - set(folds))
    if not missing:
        return []
    numbers = ", ".join(map(str, missing))
    verb = "is" if len(missing) == 1 else "are"
    return [f"{entry.name} has {entry.folds} folds, here {numbers} {verb} missing"]


def check(
    entry: KnownDataset, datasets: Mapping[str, Dataset], *, fold: int | None = None
) -> list[str]:
    """Compare data with the numbers of a known data set.

    Args:
        entry: the known data set.
        datasets: by split; missing splits are not checked.
        fold: the fold of the splits; None if there are no folds.

    Returns:
        The differences, a sentence each; an empty list if there are none.
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
        part = f"{name} of fold {fold}" if fold is not None and entry.folds else name
        expected = entry.parts.get((fold if entry.folds else None, name), _Counts())
        differences += _compare(entry, part, expected, counts)
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


def _compare(entry: KnownDataset, part: str, expected: _Counts, counts: _Counts) -> list[str]:
    """A sentence for each known count that differs; ``part`` says what was counted."""
    differences = []
    for kind in ("queries", "documents"):
        known, count = getattr(expected, kind), getattr(counts, kind)
        if known not in (None, count):
            expected_text = f"{entry.name} has {known:,} {kind} in {part}"
            differences.append(f"{expected_text}, here there are {count:,}")
    return differences


def _peek(path: Path) -> tuple[int, float]:
    """The features and rows of a LETOR file or a store; (0, 0) for anything else.

    They are those at the beginning of a file, and the rows are estimated from it; 0 rows for a
    compressed file.
    """
    if store.is_store(path):
        try:
            manifest = store.read_manifest(path)
        except (ValueError, OSError):  # damaged, or replaced meanwhile
            return 0, 0
        return manifest["features"], manifest["items"]
    if columnar.is_columnar(path) or not path.is_file():
        return 0, 0
    features = max(_layout.first_features(path), default=0)
    if path.suffix.lower() in _streams.COMPRESSED or not features:
        return features, 0
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return features, head.count(b"\n") * path.stat().st_size / len(head)


def _nearest(candidates: list[KnownDataset], rows: float) -> KnownDataset | None:
    """The candidate whose training split is nearest to ``rows``, within ``_MAX_RATIO``."""
    best, best_distance = None, np.log(_MAX_RATIO)
    for entry in candidates:
        documents = entry.parts[1 if entry.folds else None, "train"].documents
        if rows and documents:
            distance = abs(np.log(rows / documents))
            if distance < best_distance:
                best, best_distance = entry, distance
    return best


def _entry(values: dict[str, Any]) -> KnownDataset:
    """Make an entry from its table in ``catalog.toml``."""
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
