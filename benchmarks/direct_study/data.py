"""The simulated data of the study, and the inputs of its networks, computed once and cached."""

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
_GENEROSITY = 0.56  # of judges: the deviation of the shift of a query's judgments
_ITEMS = 1 << 17  # how many items are transformed at a time


@dataclass(frozen=True)
class Data:
    """A simulated data set.

    Args:
        lists: the numbers of training, validation and test lists that are simulated.
        seed: the seed of the queries.
        features: the number of features.
        noise: the deviation of the noise of judgments, relative to that of the simulator.
        shift: added to every judgment: below 0, few items are relevant; above 0, many are.
        length: lists are cut to this many items, drawn at random; 0 for whole lists.
        least: lists of fewer items are left out.
        world: ``listwise``, or ``pointwise``, where no term of the utility compares items.
        in_list: inputs of models besides the features: where they place an item in its list.
        transforms: pipelines of transforms of the features, specs with ``"; "`` between them. Their
            outputs are concatenated. Empty for the default pipeline.
    """

    lists: tuple[int, int, int]
    seed: int = 0
    features: int = len(synthetic.NAMES)
    noise: float = 1.0
    shift: float = 0.0
    length: int = 0
    least: int = 0
    world: str = "listwise"
    in_list: tuple[str, ...] = ("rank", "score")
    transforms: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of its folder: what differs from the defaults."""
        parts = ["-".join(map(str, self.lists)), f"s{self.seed}", f"f{self.features}"]
        if self.noise != 1:
            parts.append(f"noise{self.noise:g}")
        if self.shift != 0:
            parts.append(f"shift{self.shift:g}")
        if self.length != 0:
            parts.append(f"length{self.length}")
        if self.least != 0:
            parts.append(f"least{self.least}")
        if self.world != "listwise":
            parts.append(self.world)
        if self.in_list != ("rank", "score"):
            parts.append("-".join(("in", *self.in_list)))
        if self.transforms:
            parts.append("-".join(re.findall(r"[a-z]+", " ".join(self.transforms))))
        return "_".join(parts)

    @property
    def is_original(self) -> bool:
        """Whether labels are the simulator's own."""
        return self.noise == 1 and self.shift == 0 and self.length == 0

    def make(self, part: str) -> Dataset:
        """Simulate a part: lists with raw features and labels."""
        count = self.lists[PARTS.index(part)]
        dataset = synthetic.make(
            count, seed=self.seed, features=self.features, split=part, world=self.world
        )
        if self.least:
            dataset = dataset.select(np.flatnonzero(dataset.lengths >= self.least))
        return dataset if self.is_original else self._change(dataset, PARTS.index(part))

    def _change(self, dataset: Dataset, part: int) -> Dataset:
        """Cut the lists, and draw their labels again by the simulator's rule, changed."""
        random = np.random.default_rng([self.seed, part, 18])
        if self.world != "listwise":
            raise ValueError("noise, shift and length are of the listwise world")
        if self.length:
            dataset = _cut(dataset, self.length, random)
        lengths = np.diff(dataset.offsets)
        generosity = _GENEROSITY * random.standard_normal(len(lengths))
        judgments = synthetic.oracle(dataset) + np.repeat(generosity, lengths) + self.shift
        judgments += self.noise * synthetic._NOISE * random.standard_normal(dataset.n_items)
        labels = np.searchsorted(synthetic._THRESHOLDS, judgments).astype(np.float32)
        names = dataset.feature_names
        return Dataset(dataset.features, labels, dataset.offsets, dataset.qids, feature_names=names)


def _cut(dataset: Dataset, length: int, random: np.random.Generator) -> Dataset:
    """At most ``length`` random items of each list, in their order."""
    lists = np.repeat(np.arange(len(dataset)), dataset.lengths)
    order = np.lexsort((random.random(dataset.n_items), lists))
    position = np.arange(dataset.n_items) - np.repeat(dataset.offsets[:-1], dataset.lengths)
    rows = np.sort(order[position < length])
    offsets = np.concatenate([[0], np.minimum(dataset.lengths, length).cumsum()])
    names = dataset.feature_names
    return Dataset(
        dataset.features[rows], dataset.labels[rows], offsets, dataset.qids, feature_names=names
    )


_DEFAULT = "; ".join(Settings().transforms)


class Union:
    """Several pipelines of transforms, whose outputs are concatenated.

    Args:
        pipelines: the specs of the transforms of each.
    """

    def __init__(self, pipelines: Sequence[Sequence[str]]) -> None:
        self.pipelines = [Pipeline(specs) for specs in pipelines]

    def fit(self, train: Dataset, device: str) -> None:
        """Fit all pipelines on training lists, and move them to a device."""
        self.pipelines = [p.fit(train.features, train.offsets).to(device) for p in self.pipelines]

    @property
    def n_outputs(self) -> int:
        """The number of columns of all outputs."""
        return sum(pipeline.n_outputs for pipeline in self.pipelines)

    def transform(self, raw: torch.Tensor) -> torch.Tensor:
        """Features ``[items, features]`` to outputs ``[items, n_outputs]``."""
        return torch.cat([pipeline.transform(raw) for pipeline in self.pipelines], -1)


def prepare(data: Data, cache: Path, device: str) -> Path:
    """Simulate the data and compute the inputs of the networks, unless the cache has them.

    The inputs are what the network of the default settings computes from features in every step:
    transformed features, their ranks and their scores in the list. To compute them once changes no
    result, and runs take a fraction of the time.

    Returns:
        The folder of the data in the cache.
    """
    folder = cache / data.key
    if (folder / "done.json").is_file():
        return folder
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = None
    for part in PARTS:
        dataset = data.make(part)
        if pipeline is None:  # the first part is the training lists
            pipeline = Union([specs.split("; ") for specs in data.transforms or (_DEFAULT,)])
            pipeline.fit(dataset, device)
        np.save(folder / f"{part}_labels.npy", dataset.labels)
        np.save(folder / f"{part}_offsets.npy", dataset.offsets)
        best_scores = synthetic.oracle(dataset, world=data.world)
        np.save(folder / f"{part}_oracle.npy", best_scores.astype(np.float32))
        width = (1 + len(data.in_list)) * pipeline.n_outputs
        inputs = np.lib.format.open_memmap(
            folder / f"{part}_inputs.npy", "w+", np.float32, (dataset.n_items, width)
        )
        _write_inputs(inputs, dataset, pipeline, data.in_list, device)
    seconds = round(time.perf_counter() - began, 2)
    text = json.dumps({**asdict(data), "seconds": seconds})
    temporary = folder / f".done{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(folder / "done.json")
    return folder


@torch.no_grad()
def _write_inputs(
    inputs: np.ndarray, dataset: Dataset, pipeline: Union, in_list: Any, device: str
) -> None:
    """Compute inputs ``[items, width]`` in batches of lists of similar length, to pad little."""
    order = np.argsort(dataset.lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, _ITEMS // max(1, int(dataset.lengths[order[start]])))
        while count > 1 and count * dataset.lengths[order[start : start + count]].max() > _ITEMS:
            count = math.ceil(count / 2)
        lists = order[start : start + count]
        start += count
        lengths = dataset.lengths[lists]
        positions = np.arange(int(lengths.max()))
        mask = positions < lengths[:, None]
        rows = np.where(mask, dataset.offsets[:-1][lists][:, None] + positions, 0)
        raw = torch.from_numpy(dataset.features[rows[mask]]).to(device)
        device_mask = torch.from_numpy(mask).to(device)
        values = pipeline.transform(raw)
        padded = values.new_zeros(*mask.shape, values.shape[-1])
        padded[device_mask] = values
        columns = torch.cat([padded, *in_list_columns(padded, device_mask, in_list)], -1)
        inputs[rows[mask]] = columns[device_mask].cpu().numpy()


def expected_gains(utility: np.ndarray, data: Data) -> np.ndarray:
    """The mean of 2^label - 1 over judges and their noise, for items of a utility ``[N]``."""
    pointwise = data.world == "pointwise"
    thresholds = synthetic._POINTWISE_THRESHOLDS if pointwise else synthetic._THRESHOLDS
    deviation = math.hypot(_GENEROSITY, data.noise * synthetic._NOISE)
    # The label passes a threshold t with probability Φ((u - t) / deviation).
    margins = torch.from_numpy(utility[:, None] + data.shift - thresholds) / deviation
    return (torch.special.ndtr(margins) @ (2.0 ** torch.arange(len(thresholds)).double())).numpy()


def load(folder: Path, part: str, lists: int | None = None) -> Dataset:
    """Read the inputs and labels of a part, or of its first lists, from the cache."""
    offsets = np.load(folder / f"{part}_offsets.npy")
    offsets = offsets[: (lists or len(offsets)) + 1]
    inputs = np.load(folder / f"{part}_inputs.npy", mmap_mode="c")[: offsets[-1]]
    labels = np.load(folder / f"{part}_labels.npy")[: offsets[-1]]
    qids = np.arange(len(offsets) - 1).astype(np.str_)
    return Dataset(inputs, labels, offsets, qids, check=False)
