"""``rankgrad data``: describes a data set in numbers, or lists the known data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import rankgrad
from rankgrad.cli._arguments import Fold, Missing
from rankgrad.cli._printing import Number, show_json, show_notes, show_table

__all__ = ["data", "describe", "show_data"]

_MAX_GRADES = 8  # data with more distinct labels are described by the range of their labels


def data(
    path: Annotated[Path | None, typer.Argument(metavar="[DATA]", show_default=False)] = None,
    fold: Fold = None,
    missing: Missing = None,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Describe a file, store or folder; without one, list the known data sets.

    Inputs:
        path: What to describe.

    Options:
        verify: Stores: read everything and compare it with its checksums.

    \b
    Examples:
      rankgrad data
      rankgrad data train.txt
      rankgrad data MSLR-WEB30K --fold 1
      rankgrad data web30k/Fold1 --verify
    """  # noqa: D301
    if path is None:
        if verify or missing or fold is not None:
            raise ValueError("--fold, --missing and --verify go with DATA: say what to describe")
        return _show_catalog(json)
    if verify:
        _verify(path)
    datasets = _read(path, fold, missing or [])
    metadata = {name: describe(dataset) for name, dataset in datasets.items()}
    if json:
        show_json(metadata)
    else:
        show_data(metadata, title=str(path))


def _read(path: Path, fold: int | None, missing: list[str]) -> dict[str, rankgrad.data.Dataset]:
    """Read the splits of a folder by name, or one data set under the name of its file."""
    from rankgrad.data import _layout, load, load_splits

    if _layout.is_single(path):
        return {path.name: load(path, fold=fold, missing=missing)}
    return load_splits(path, fold, missing=missing)


def _verify(path: Path) -> None:
    """Raise if a store, the one at the path or one in that folder, differs from its checksums."""
    from rankgrad.data import _layout, store

    _layout.check_exists(path)
    stores = [path] if store.is_store(path) else sorted(filter(store.is_store, path.rglob("*")))
    if not stores:
        raise ValueError(f"{path} holds no store: --verify compares stores with their checksums")
    for folder in stores:
        store.open(folder, verify=True)


def describe(dataset: rankgrad.data.Dataset) -> dict[str, Any]:
    """The size, list lengths, labels and notes of a data set, as values for JSON.

    ``lengths`` and ``label_range`` are ``[lowest, highest]``, None without lists or items.
    ``labels`` is the number of items by label, None if there are many different labels.
    """
    import numpy as np

    lengths = np.diff(dataset.offsets)
    values, counts = np.unique(dataset.labels, return_counts=True)
    labels = {f"{value:g}": int(count) for value, count in zip(values, counts, strict=True)}
    return {
        "lists": len(dataset),
        "items": dataset.n_items,
        "features": dataset.n_features,
        "lengths": [int(lengths.min()), int(lengths.max())] if len(lengths) else None,
        "labels": labels if len(labels) <= _MAX_GRADES else None,
        "label_range": [float(values[0]), float(values[-1])] if len(values) else None,
        "weights": dataset.weights is not None,
        "notes": list(dataset.notes),
    }


def show_data(metadata: dict[str, dict[str, Any]], title: str) -> None:
    """Print a row for each data set, and the notes on how it was read.

    Args:
        metadata: what :func:`describe` gives, by the name of the data set.
        title: the title of the table.
    """
    rows = []
    for name, entry in metadata.items():
        numbers = [f"{entry[key]:,}" for key in ("lists", "items", "features")]
        numbers.append(_format_range(entry["lengths"]))
        rows.append((name, *map(Number, numbers), _format_labels(entry)))
    show_table(("", "lists", "items", "features", "items per list", "labels"), rows, title=title)
    for name, entry in metadata.items():
        show_notes(f"{name}: {note}" for note in entry["notes"])


def _format_range(limits: list[float] | None) -> str:
    return "-" if limits is None else f"{limits[0]:,g} to {limits[1]:,g}"


def _format_labels(entry: dict[str, Any]) -> str:
    """The percentage of each label, or the range of many labels."""
    if entry["labels"] is None:
        return _format_range(entry["label_range"])
    items = max(1, entry["items"])
    return ", ".join(f"{label}: {count / items:.1%}" for label, count in entry["labels"].items())


def _show_catalog(json: bool) -> None:
    if json:
        return show_json([_entry_dict(entry) for entry in rankgrad.data.catalog.ENTRIES])
    rows = []
    for entry in rankgrad.data.catalog.ENTRIES:
        counts = (entry.total.queries, entry.total.documents, entry.features)
        numbers = [*(f"{count:,}" for count in counts), str(entry.folds or "-")]
        rows.append((entry.name, *map(Number, numbers), entry.url))
    show_table(
        ("data set", "lists", "items", "features", "folds", "where a person gets it"),
        rows,
        footer=[
            "A folder of one of these is recognized and checked against its published counts.",
            "rankgrad demo needs none of them: it simulates its own.",
        ],
    )


def _entry_dict(entry: rankgrad.data.catalog.KnownDataset) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "url": entry.url,
        "license": entry.license,
        "lists": entry.total.queries,
        "items": entry.total.documents,
        "features": entry.features,
        "folds": entry.folds,
    }
