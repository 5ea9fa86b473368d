"""The data of the study: simulated, made once, with everything a model takes in beside it."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankgrad.data import Dataset, synthetic
from rankgrad.data.transforms import Pipeline
from rankgrad.models._in_list import in_list_columns
from rankgrad.training import Settings

PARTS = ("train", "vali", "test")
_ITEMS = 1 << 17  # transformed at a time


@dataclass(frozen=True)
class Data:
    """Some lists of the simulated world.

    Args:
        lists: of training, validation and test.
        seed: of the queries.
        features: of an item.
        noise: deviation of the judgement's noise, times that of the simulator.
        shift: added to every judgement: below 0, few items are relevant; above 0, many are.
        length: lists are cut to so many items, drawn at random; 0 for whole lists.
        world: ``listwise``, or ``pointwise``, where no term of the utility compares items.
        in_list: what models take in beside features of where they put an item in its list.
        transforms: of features, in a row with ``"; "`` between them; the columns of several such
            rows stand side by side. Empty for the default ones.
    """

    lists: tuple[int, int, int]
    seed: int = 0
    features: int = len(synthetic.NAMES)
    noise: float = 1.0
    shift: float = 0.0
    length: int = 0
    world: str = "listwise"
    in_list: tuple[str, ...] = ("rank", "score")
    transforms: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What its folder is called."""
        lists = "-".join(map(str, self.lists))
        own = [f"s{self.seed}", f"f{self.features}"]
        own += [f"noise{self.noise:g}"] * (self.noise != 1)
        own += [f"shift{self.shift:g}"] * (self.shift != 0)
        own += [f"length{self.length}"] * (self.length != 0)
        own += [self.world] * (self.world != "listwise")
        own += ["-".join(("in", *self.in_list))] * (self.in_list != ("rank", "score"))
        own += ["-".join(re.findall(r"[a-z]+", " ".join(self.transforms)))] * bool(self.transforms)
        return "_".join([lists, *own])

    @property
    def is_original(self) -> bool:
        """Whether labels are the simulator's own."""
        return self.noise == 1 and self.shift == 0 and self.length == 0

    def make(self, part: str) -> Dataset:
        """Lists with raw features; labels as the simulator's or drawn again by its rule."""
        count = self.lists[PARTS.index(part)]
        made = synthetic.make(
            count, seed=self.seed, features=self.features, split=part, world=self.world
        )
        return made if self.is_original else self._change(made, PARTS.index(part))

    def _change(self, made: Dataset, part: int) -> Dataset:
        random = np.random.default_rng([self.seed, part, 18])
        if self.world != "listwise":
            raise ValueError("noise, shift and length are of the listwise world")
        if self.length:
            made = _cut(made, self.length, random)
        lengths = np.diff(made.offsets)
        generosity = 0.56 * random.standard_normal(len(lengths))
        judged = synthetic.oracle(made) + np.repeat(generosity, lengths) + self.shift
        judged += self.noise * synthetic._NOISE * random.standard_normal(made.n_items)
        labels = np.searchsorted(synthetic._THRESHOLDS, judged).astype(np.float32)
        names = made.feature_names
        return Dataset(made.features, labels, made.offsets, made.qids, feature_names=names)


def _cut(made: Dataset, length: int, random: np.random.Generator) -> Dataset:
    """So many items of each list, in the order they stand in."""
    lists = np.repeat(np.arange(len(made)), made.lengths)
    order = np.lexsort((random.random(made.n_items), lists))
    place = np.arange(made.n_items) - np.repeat(made.offsets[:-1], made.lengths)
    rows = np.sort(order[place < length])
    offsets = np.concatenate([[0], np.minimum(made.lengths, length).cumsum()])
    names = made.feature_names
    return Dataset(made.features[rows], made.labels[rows], offsets, made.qids, feature_names=names)


_DEFAULT = "; ".join(Settings().transforms)


class Union:
    """Columns of several pipelines of transforms, side by side.

    Args:
        pipelines: each the specs of its transforms.
    """

    def __init__(self, pipelines: Sequence[Sequence[str]]) -> None:
        self.pipelines = [Pipeline(each) for each in pipelines]

    def fit(self, made: Dataset, device: str) -> None:
        """Learn from training lists."""
        self.pipelines = [p.fit(made.features, made.offsets).to(device) for p in self.pipelines]

    @property
    def n_outputs(self) -> int:
        """The number of columns."""
        return sum(each.n_outputs for each in self.pipelines)

    def transform(self, raw: torch.Tensor) -> torch.Tensor:
        """All columns."""
        return torch.cat([each.transform(raw) for each in self.pipelines], -1)


def prepare(data: Data, cache: Path, device: str) -> Path:
    """Make the data and the inputs of the default model, unless they are there.

    Inputs are what the network of the default settings computes from features in every step:
    transformed features, their ranks and their scores in the list. Computed once, runs are the
    same and take a fraction of the time.
    """
    folder = cache / data.key
    if (folder / "done.json").is_file():
        return folder
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = None
    for part in PARTS:
        made = data.make(part)
        if pipeline is None:
            pipeline = Union([each.split("; ") for each in data.transforms or (_DEFAULT,)])
            pipeline.fit(made, device)
        np.save(folder / f"{part}_labels.npy", made.labels)
        np.save(folder / f"{part}_offsets.npy", made.offsets)
        best = synthetic.oracle(made, world=data.world)
        np.save(folder / f"{part}_oracle.npy", best.astype(np.float32))
        width = (1 + len(data.in_list)) * pipeline.n_outputs
        inputs = np.lib.format.open_memmap(
            folder / f"{part}_inputs.npy", "w+", np.float32, (made.n_items, width)
        )
        _write_inputs(inputs, made, pipeline, data.in_list, device)
    seconds = round(time.perf_counter() - began, 2)
    text = json.dumps({**asdict(data), "seconds": seconds})
    temporary = folder / f".done{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(folder / "done.json")
    return folder


@torch.no_grad()
def _write_inputs(
    inputs: np.ndarray, made: Dataset, pipeline: Union, in_list: Any, device: str
) -> None:
    """Lists of like length together, so that little is padding."""
    order = np.argsort(made.lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, _ITEMS // max(1, int(made.lengths[order[start]])))
        while count > 1 and count * made.lengths[order[start : start + count]].max() > _ITEMS:
            count = math.ceil(count / 2)
        lists = order[start : start + count]
        start += count
        lengths = made.lengths[lists]
        width = int(lengths.max())
        places = np.arange(width)
        mask = places < lengths[:, None]
        rows = np.where(mask, made.offsets[:-1][lists][:, None] + places, 0)
        raw = torch.from_numpy(made.features[rows[mask]]).to(device)
        here = torch.from_numpy(mask).to(device)
        values = pipeline.transform(raw)
        padded = values.new_zeros(*mask.shape, values.shape[-1])
        padded[here] = values
        found = torch.cat([padded, *in_list_columns(padded, here, in_list)], -1)
        inputs[rows[mask]] = found[here].cpu().numpy()


def load(folder: Path, part: str, lists: int | None = None) -> Dataset:
    """The inputs and labels of a part, or of its first lists."""
    offsets = np.load(folder / f"{part}_offsets.npy")
    offsets = offsets[: (lists or len(offsets)) + 1]
    inputs = np.load(folder / f"{part}_inputs.npy", mmap_mode="c")[: offsets[-1]]
    labels = np.load(folder / f"{part}_labels.npy")[: offsets[-1]]
    qids = np.arange(len(offsets) - 1).astype(np.str_)
    return Dataset(inputs, labels, offsets, qids, check=False)
