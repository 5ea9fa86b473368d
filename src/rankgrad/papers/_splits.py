"""The data of a paper's table, divided and cut as the paper did.

If the paper used the published parts, the publisher's folder is used as it is. If it drew its own
parts, cut lists, or took a sample, the result is written once, as stores, and used by later calls.
:mod:`.reproduce` calls :func:`find` and :func:`prepare`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import _files, _schemas
from rankgrad.data import _layout, catalog, load_splits, store
from rankgrad.data._dataset import Dataset
from rankgrad.experiments import _data_checksums
from rankgrad.papers.protocol import Data

METADATA = "data.json"
_TEST, _VALI, _ITEMS, _SAMPLE = range(4)  # independent streams of random numbers


def find(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """The folders of known data sets: the folder itself, or folders inside it.

    Args:
        folder: a data set, or a folder of data sets.
        names: of data sets in the catalog.
    """
    wanted_names = set(names)
    folders: dict[str, Path] = {}
    for path in _candidate_folders(folder):
        entry = catalog.recognize(path)
        if entry is not None and entry.name in wanted_names:
            folders.setdefault(entry.name, path)
    return folders


def _candidate_folders(folder: Path) -> list[Path]:
    """The folder (its parent, if it is a fold such as ``Fold1``) and those up to two levels down.

    Each is followed by its ``set1``: such a path stands for files that begin with ``set1.``, as
    those of Yahoo's first set do.
    """
    if _layout.fold_number(folder) is not None:
        folder = folder.parent
    folders = [folder]
    if folder.is_dir():
        for pattern in ("*", "*/*"):
            subfolders = sorted(path for path in folder.glob(pattern) if path.is_dir())
            folders += [path for path in subfolders if _layout.fold_number(path) is None]
    candidates = [candidate for path in folders for candidate in (path, path / "set1")]
    return [path for path in candidates if path.is_dir() or path.parent.is_dir()]


def check_exists(folder: Path) -> None:
    """Raise if the folder does not exist, with a message that names the option ``--data``."""
    try:
        _layout.check_exists(folder)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder}: no such folder (--data)") from None


def missing(name: str, folder: Path | None) -> str:
    """The message for a data set that was not found: where it was searched, where to get it."""
    entry = next((entry for entry in catalog.ENTRIES if entry.name == name), None)
    where = "no folder was given (--data)" if folder is None else f"not found in {folder}"
    if entry is None:
        return f"{name}: {where}"
    return f"{name} ({entry.title}): {where}. Get it from {entry.url} ({entry.license})"


def prepare(
    source: Path, data: Data, folder: Path, *, folds: int | None = None, lists: int | None = None
) -> tuple[Path, tuple[int | None, ...]]:
    """The folder of a table's data, with train, vali and test in each fold, and its folds.

    Args:
        source: the publisher's folder.
        data: how the paper divided it.
        folder: to write prepared data to, if the publisher's cannot be used as they are.
        folds: at most this many folds; None for all. If the paper drew its parts several times
            (``data.split.repeats``), each drawing is a fold.
        lists: at most this many in each part, drawn at random, for ``--quick``; None for all.

    Returns:
        The folder, and the numbers of its folds; ``(None,)`` if it is not divided into folds.
    """
    repeats = 1 if data.split is None else data.split.repeats
    source_folds: tuple[int | None, ...] = tuple(data.folds) or (None,)
    if not (data.split is not None or data.list_limit or data.test_lists or lists):
        return source, source_folds[:folds]
    drawings = [(fold, i) for fold in source_folds for i in range(1, repeats + 1)][:folds]
    has_no_folds = source_folds == (None,) and repeats == 1
    metadata = {
        "source": str(source.resolve()),
        "data": data.model_dump(mode="json"),
        "lists": lists,
    }
    _check_and_save_metadata(folder, metadata, source, [fold for fold, _ in drawings])
    for number, (fold, drawing) in enumerate(drawings, 1):
        fold_number = number if repeats > 1 or fold is None else fold
        path = folder / "splits" if has_no_folds else folder / f"Fold{fold_number}"
        if not path.exists():
            store.write_splits(_divide(load_splits(source, fold), data, drawing, lists), path)
    if has_no_folds:
        return folder / "splits", (None,)
    return folder, tuple(_layout.folds(folder))[: len(drawings)]


def _check_and_save_metadata(
    folder: Path, metadata: Mapping[str, Any], source: Path, folds: Iterable[int | None]
) -> None:
    """Save the metadata; raise if the folder was prepared from other data or in another way."""
    path = folder / METADATA
    saved = _schemas.read_json(path, dict[str, Any]) if path.exists() else {}
    saved_checksums = saved.pop("checksums", {})
    _schemas.check(path, saved_checksums, _data_checksums.Checksums)
    if saved:  # earlier versions saved a relative path as it was given
        saved["source"] = str(Path(saved["source"]).resolve())
    if saved and saved != json.loads(json.dumps(metadata)):
        raise ValueError(
            f"{folder} holds data that were prepared in another way: choose another folder"
        )
    checksums = _data_checksums.of_data(source, dict.fromkeys(folds), saved_checksums)
    _data_checksums.check(checksums, saved_checksums, folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {**metadata, "checksums": {**saved_checksums, **checksums}}
    _files.write(path, json.dumps(contents, indent=1) + "\n")


def _divide(
    published: Mapping[str, Dataset], data: Data, drawing: int, max_lists: int | None
) -> dict[str, Dataset]:
    """Train, vali and test as the paper had them, from the published parts.

    ``drawing`` is the number of the drawing, from 1, which seeds all random numbers.
    """
    parts = dict(published)
    split = data.split
    if split is not None:
        if split.pool:
            parts = {"train": join(parts.values())}
        if split.test is not None:
            parts["test"], parts["train"] = _draw(parts["train"], split.test, drawing, _TEST)
        if split.vali is not None:
            parts["vali"], parts["train"] = _draw(parts["train"], split.vali, drawing, _VALI)
    if data.test_lists is not None:
        parts["test"] = _sample(parts["test"], data.test_lists, drawing)
    if data.list_limit is not None:
        for name in ("vali", "test"):
            parts[name] = cut(parts[name], data.list_limit, drawing)
    if max_lists is not None:
        parts = {name: _sample(part, max_lists, drawing) for name, part in parts.items()}
    return parts


def join(parts: Iterable[Dataset]) -> Dataset:
    """Concatenate the lists of several data sets with the same features.

    >>> one = Dataset(np.eye(2), [1, 0], [0, 2], ["a"])
    >>> two = Dataset(np.eye(2), [1, 0], [0, 1, 2], ["b", "c"])
    >>> join([one, two]).offsets.tolist()
    [0, 2, 3, 4]
    """
    sets = list(parts)
    lengths = np.concatenate([part.lengths for part in sets])
    weights = [part.weights for part in sets if part.weights is not None]
    return Dataset(
        features=np.concatenate([part.features for part in sets]),
        labels=np.concatenate([part.labels for part in sets]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        qids=np.concatenate([part.qids for part in sets]),
        weights=np.concatenate(weights) if len(weights) == len(sets) else None,
        feature_names=sets[0].feature_names,
        zero_based=sets[0].zero_based,
    )


def cut(lists: Dataset, limit: int, seed: int = 0) -> Dataset:
    """Cut lists longer than ``limit`` to that many items, drawn at random; their order stays.

    >>> long = Dataset(np.eye(3), [1, 0, 2], [0, 3], ["a"])
    >>> cut(long, 2).offsets.tolist()
    [0, 2]
    """
    if (lists.lengths <= limit).all():
        return lists
    keys = _random(seed, _ITEMS).random(lists.n_items)
    list_of_item = np.repeat(np.arange(len(lists)), lists.lengths)
    order = np.lexsort((keys, list_of_item))
    # Each item's rank by its random key within its list, from 0: the first ``limit`` are drawn.
    ranks = np.empty(lists.n_items, np.int64)
    ranks[order] = np.arange(lists.n_items) - lists.offsets[:-1][list_of_item[order]]
    drawn = ranks < limit
    return Dataset(
        features=lists.features[drawn],
        labels=lists.labels[drawn],
        offsets=np.concatenate([[0], np.cumsum(np.minimum(lists.lengths, limit))]),
        qids=lists.qids,
        weights=None if lists.weights is None else lists.weights[drawn],
        feature_names=lists.feature_names,
        zero_based=lists.zero_based,
    )


def _draw(lists: Dataset, fraction: float, drawing: int, stream: int) -> tuple[Dataset, Dataset]:
    """A fraction of the lists drawn at random, and the others."""
    number = max(1, round(fraction * len(lists)))
    drawn = np.zeros(len(lists), bool)
    drawn[_random(drawing, stream).permutation(len(lists))[:number]] = True
    return lists.select(drawn), lists.select(~drawn)


def _sample(lists: Dataset, number: int, drawing: int) -> Dataset:
    """At most ``number`` lists, drawn at random, in their order."""
    if len(lists) <= number:
        return lists
    return lists.select(np.sort(_random(drawing, _SAMPLE).permutation(len(lists))[:number]))


def _random(drawing: int, stream: int) -> np.random.Generator:
    """The random numbers of a drawing for one purpose, which do not depend on other purposes."""
    return np.random.default_rng([drawing, stream])
