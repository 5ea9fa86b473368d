"""Checks: what training cannot go on with is said before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rankgrad.data.dataset import Dataset
from rankgrad.training import processes
from rankgrad.training.run import RunFolder
from rankgrad.training.settings import Settings

_VALUES = 1 << 22  # values of features checked at a time


def check_data(
    train: Dataset, vali: Dataset | None, others: Mapping[str, Dataset] | None = None
) -> None:
    """Say at once what training cannot go on with."""
    taken = {"train", "vali"} & set(others or {})
    if taken:
        raise ValueError(f"others must have names of their own, found {taken.pop()!r}")
    further = {"validation": vali} | dict(others or {})
    beside = {name: data for name, data in further.items() if data is not None}
    for name, data in {"training": train, **beside}.items():
        if data.n_items == 0:
            raise ValueError(f"there are no items in the {name} data")
    for name, data in beside.items():
        _check_same_features(train, name, data)
    for name, data in {"training": train, **beside}.items():
        _check_infinite(name, data)


def _check_same_features(train: Dataset, name: str, data: Dataset) -> None:
    if data.n_features != train.n_features:
        raise ValueError(
            f"the training data have {train.n_features} features, the {name} data "
            f"{data.n_features}: they must be the same ones"
        )
    if train.feature_names and data.feature_names:
        pairs = zip(train.feature_names, data.feature_names, strict=True)
        for at, (one, other) in enumerate(pairs):
            if one != other:
                raise ValueError(
                    f"feature {at} (counting from 0) is {one!r} in the training data and {other!r} "
                    f"in the {name} data: they must be the same ones in the same order"
                )


def _check_infinite(name: str, data: Dataset) -> None:
    height = max(1, _VALUES // max(1, data.n_features))
    for start in range(0, data.n_items, height):
        infinite = np.isinf(data.features[start : start + height])
        if not infinite.any():
            continue
        row, column = np.argwhere(infinite)[0].tolist()
        item = start + row
        at = int(np.searchsorted(data.offsets, item, side="right")) - 1
        named = f" {data.feature_names[column]!r}" if data.feature_names else ""
        raise ValueError(
            f"the {name} data have an infinite feature: feature{named} at index {column} "
            f"(counting from 0) of item {item} (list {at}, qid {str(data.qids[at])!r}) is "
            f"{data.features[item, column]}. Give a finite value, or NaN for a missing one"
        )


def check_run(settings: Settings, folder: Path, resume: bool) -> None:
    """Say what a run cannot start with, or go on with, before its data are read."""
    processes.check_devices(settings)
    if processes.launched():
        return  # another of the processes may have made the folder already
    if resume:
        run = RunFolder.open(folder)
        run.check_free()
        run.check_settings(settings)
    else:
        RunFolder.check_new(folder)
