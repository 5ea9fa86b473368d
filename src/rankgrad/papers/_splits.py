"""The data of a table, divided and cut as its paper did.

What the publisher's folder has already is used where it lies. Where a paper drew its own parts, cut
lists, or took a sample, stores are written once and found again.
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
_TEST, _VALI, _ITEMS, _SAMPLE = range(4)  # streams of random numbers


def find(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Where known data sets lie: the folder itself, or one inside it.

    Args:
        folder: a data set, or a folder of data sets.
        names: in the catalog.
    """
    wanted = set(names)
    found: dict[str, Path] = {}
    for place in _places(folder):
        entry = catalog.recognize(place)
        if entry is not None and entry.name in wanted:
            found.setdefault(entry.name, place)
    return found


def _places(folder: Path) -> list[Path]:
    if _layout.fold_number(folder) is not None:
        folder = folder.parent
    places = [folder, folder / "set1"]
    if folder.is_dir():
        for depth in ("*", "*/*"):
            inside = sorted(path for path in folder.glob(depth) if path.is_dir())
            inside = [path for path in inside if _layout.fold_number(path) is None]
            places += [place for path in inside for place in (path, path / "set1")]
    return [place for place in places if place.is_dir() or place.parent.is_dir()]


def check_exists(folder: Path) -> None:
    """Raise if the folder does not exist; a folder without the data is another error."""
    try:
        _layout.check_exists(folder)
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder}: no such folder (--data)") from None


def missing(name: str, folder: Path | None) -> str:
    """The message for a data set that is not there: where to get it, and where it was searched."""
    entry = next((entry for entry in catalog.ENTRIES if entry.name == name), None)
    where = "no folder was given (--data)" if folder is None else f"not found in {folder}"
    if entry is None:
        return f"{name}: {where}"
    return f"{name} ({entry.title}): {where}. Get it from {entry.url} ({entry.license})"


def prepare(
    source: Path, data: Data, folder: Path, *, folds: int | None = None, lists: int | None = None
) -> tuple[Path, tuple[int | None, ...]]:
    """Where the data of a table lie, with train, vali and test in each fold, and which folds.

    Args:
        source: the publisher's folder.
        data: how the paper divided it.
        folder: where to write what has to be made.
        folds: no more than this many.
        lists: no more than this many in each part, drawn at random, for ``--quick``.
    """
    drawn = data.split is not None
    repeats = 1 if data.split is None else data.split.repeats
    numbered: tuple[int | None, ...] = tuple(data.folds) or (None,)
    if not (drawn or data.list_limit or data.test_lists or lists):
        return source, numbered[:folds]
    numbers = [(fold, drawing) for fold in numbered for drawing in range(1, repeats + 1)][:folds]
    single = numbered == (None,) and repeats == 1
    metadata = {"source": str(source), "data": data.model_dump(mode="json"), "lists": lists}
    _check(folder, metadata, source, [fold for fold, _ in numbers])
    for number, (fold, drawing) in enumerate(numbers, 1):
        label = number if repeats > 1 or fold is None else fold
        place = folder / "splits" if single else folder / f"Fold{label}"
        if not place.exists():
            parts = load_splits(source, fold)
            store.write_splits(_divide(parts, data, drawing, lists), place)
    if single:
        return folder / "splits", (None,)
    return folder, tuple(_layout.folds(folder))[: len(numbers)]


def _check(
    folder: Path, metadata: Mapping[str, Any], source: Path, folds: Iterable[int | None]
) -> None:
    """Raise if the prepared data were made from other data or options; otherwise save both."""
    path = folder / METADATA
    then = _schemas.read_json(path, dict[str, Any]) if path.exists() else {}
    known = then.pop("checksums", {})
    _schemas.check(path, known, _data_checksums.Checksums)
    if then and then != json.loads(json.dumps(metadata)):
        raise ValueError(
            f"{folder} holds data that were prepared in another way: choose another folder"
        )
    found = _data_checksums.of_data(source, dict.fromkeys(folds), known)
    _data_checksums.check(found, known, folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = {**metadata, "checksums": {**known, **found}}
    _files.write(path, json.dumps(written, indent=1) + "\n")


def _divide(
    parts: Mapping[str, Dataset], data: Data, drawing: int, lists: int | None
) -> dict[str, Dataset]:
    """Train, vali and test as the paper had them."""
    found = dict(parts)
    split = data.split
    if split is not None:
        if split.pool:
            found = {"train": join(found.values())}
        if split.test is not None:
            found["test"], found["train"] = _draw(found["train"], split.test, drawing, _TEST)
        if split.vali is not None:
            found["vali"], found["train"] = _draw(found["train"], split.vali, drawing, _VALI)
    if data.test_lists is not None:
        found["test"] = _sample(found["test"], data.test_lists, drawing)
    if data.list_limit is not None:
        for name in ("vali", "test"):
            found[name] = cut(found[name], data.list_limit, drawing)
    if lists is not None:
        found = {name: _sample(part, lists, drawing) for name, part in found.items()}
    return found


def join(parts: Iterable[Dataset]) -> Dataset:
    """The lists of several data sets with the same features, one after the other.

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
    """Longer lists cut to ``limit`` items drawn at random, in the order they stood in.

    >>> long = Dataset(np.eye(3), [1, 0, 2], [0, 3], ["a"])
    >>> cut(long, 2).offsets.tolist()
    [0, 2]
    """
    if (lists.lengths <= limit).all():
        return lists
    keys = _random(seed, _ITEMS).random(lists.n_items)
    which = np.repeat(np.arange(len(lists)), lists.lengths)
    order = np.lexsort((keys, which))
    place = np.empty(lists.n_items, np.int64)
    place[order] = np.arange(lists.n_items) - lists.offsets[:-1][which[order]]
    inside = place < limit
    return Dataset(
        features=lists.features[inside],
        labels=lists.labels[inside],
        offsets=np.concatenate([[0], np.cumsum(np.minimum(lists.lengths, limit))]),
        qids=lists.qids,
        weights=None if lists.weights is None else lists.weights[inside],
        feature_names=lists.feature_names,
        zero_based=lists.zero_based,
    )


def _draw(lists: Dataset, share: float, drawing: int, use: int) -> tuple[Dataset, Dataset]:
    """A fraction of the lists drawn at random, and the others."""
    number = max(1, round(share * len(lists)))
    chosen = np.zeros(len(lists), bool)
    chosen[_random(drawing, use).permutation(len(lists))[:number]] = True
    return lists.select(chosen), lists.select(~chosen)


def _sample(lists: Dataset, number: int, drawing: int) -> Dataset:
    if len(lists) <= number:
        return lists
    return lists.select(np.sort(_random(drawing, _SAMPLE).permutation(len(lists))[:number]))


def _random(drawing: int, use: int) -> np.random.Generator:
    return np.random.default_rng([drawing, use])
