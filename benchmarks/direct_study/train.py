"""One worker: it trains run after run, and measures each on test lists."""

from __future__ import annotations

import base64
import copy
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import candidates  # noqa: F401 (registers its losses)
import numpy as np
import torch
from data import Data, load, prepare
from diagnose import Diagnosis
from networks import PreparedNet
from plan import METRIC, Task
from torch import Tensor

from rankgrad.data import Dataset
from rankgrad.metrics import metrics
from rankgrad.models import Model, Scorer, models
from rankgrad.models.tabm import TabM
from rankgrad.training import Settings, _evaluations, fit

_ITEMS = 1 << 16  # scored at a time
#: Before a loss: a new network is trained on the scores of the one before.
AGAIN = "born again: "
_TRAINING_LISTS = 2000  # on which training NDCG is measured


class Worker:
    """Trains one task after another on one device.

    Args:
        cache: where data are, or are made.
        changes: of the settings of every run, for a trial.
        memory: the share of a GPU's memory that it may take. Training sizes its CUDA graphs,
            features on the device and batches of validation lists by that.
    """

    def __init__(self, cache: Path, changes: dict[str, Any], memory: float = 1.0) -> None:
        self.cache, self.changes = cache, changes
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._loaded: tuple[Path, dict[str, Dataset], dict[str, Tensor]] | None = None
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.cuda.set_per_process_memory_fraction(memory)
            _evaluations._GPU_BYTES = 1 << 20  # networks with attention take more for an item

    def perform(self, task: Task) -> dict[str, Any]:
        """Train on training lists, choose the epoch on validation lists, measure on test lists."""
        began = time.perf_counter()
        folder, splits, inputs = self._data(task.data)
        train = load(folder, "train", task.budget or None)
        found: dict[str, Any] = {"losses": list(task.losses)}
        network, width = None, train.n_features
        torch.manual_seed(task.seed)
        history: list[dict[str, float]] = []
        for number, spec in enumerate(task.losses):
            again, lists = spec.startswith(AGAIN), train
            if again:
                assert network is not None
                spec, lists = spec.removeprefix(AGAIN), taught(network.to(self.device), train)
            settings = task.settings(spec, self.changes)
            if network is None or again:
                network = build(models.get(task.model), width)
            diagnosis = Diagnosis(network, spec, train, self.device) if task.diagnosed else None
            done = self._fit(settings, lists, splits["vali"], network, diagnosis)
            network = done.model.network
            history += [{**line, "stage": number} for line in done.history]
            if diagnosis is not None:
                found["diagnosis"] = found.get("diagnosis", []) + diagnosis.lines
            found["best_epoch"], found["best_value"] = done.best_epoch, done.best_value
        assert network is not None
        found["fit_seconds"] = round(time.perf_counter() - began, 2)
        network.to(self.device).eval()
        for part in ("test", "train"):
            own = inputs[part] if part == "test" else inputs[part][: train.n_items]
            lists = train if part == "train" else splits[part]
            scores = score(network, own, lists.offsets)
            values = ndcg(scores, lists)
            found[part] = float(values.mean())
            if part == "test":
                found["per_query"] = encode(values)
        found["curve"] = [round(line[METRIC], 5) for line in history]
        found["loss_curve"] = [float(f"{line['loss']:.5g}") for line in history]
        ends = [line["seconds"] for line in done.history]
        found["epoch_seconds"] = round(float(np.median(np.diff([0.0, *ends]))), 3)
        found["seconds"] = round(time.perf_counter() - began, 2)
        return found

    def release(self) -> None:
        """Give memory that is not in use back to the GPU."""
        gc.collect()  # a run that failed leaves its tensors in a traceback
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _fit(
        self,
        settings: Settings,
        train: Dataset,
        vali: Dataset,
        network: Scorer,
        diagnosis: Diagnosis | None,
    ) -> Any:
        """A training; where no CUDA graph can be made of a loss, without graphs."""
        before = copy.deepcopy(network)
        try:
            return fit(settings, train, vali, network=network, on_epoch=diagnosis)
        except RuntimeError as error:
            if "captur" not in str(error) or not settings.graphs:
                raise
            torch.cuda.synchronize()
            network.load_state_dict(before.state_dict())
            if diagnosis is not None:
                diagnosis.lines.clear()
            plain = settings.model_copy(update={"graphs": False})
            return fit(plain, train, vali, network=network, on_epoch=diagnosis)

    def _data(self, data: Data) -> tuple[Path, dict[str, Dataset], dict[str, Tensor]]:
        if self._loaded is None or self._loaded[0].name != data.key:
            self._loaded = None
            folder = prepare(data, self.cache, self.device)
            splits = {part: load(folder, part) for part in ("vali", "test")}
            some = load(folder, "train", min(_TRAINING_LISTS, data.lists[0]))
            inputs = {
                "test": torch.from_numpy(splits["test"].features).to(self.device),
                "train": torch.from_numpy(some.features).to(self.device),
            }
            self._loaded = (folder, splits, inputs)
        return self._loaded


def build(model: Model, n_features: int) -> Scorer:
    """A new network on prepared inputs."""
    return PreparedNet(model, n_features) if type(model) is TabM else model.build(n_features)


@torch.no_grad()
def score(network: Scorer, inputs: Tensor, offsets: np.ndarray) -> Tensor:
    """The mean score of the members, of the items of the lists that ``inputs`` has all of."""
    if isinstance(network, PreparedNet):
        parts = inputs.split(_ITEMS)
        return torch.cat([network.score_inputs(part[None], None)[0] for part in parts])
    offsets = offsets[offsets <= len(inputs)]
    found = inputs.new_zeros(int(offsets[-1]))
    for lists in _of_like_length(np.diff(offsets)):
        places, mask = _padded(offsets, lists)
        rows, real = (torch.from_numpy(each).to(inputs.device) for each in (places, mask))
        found[rows[real]] = network(inputs[rows], real)[real].float()
    return found


def _of_like_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Lists of like length together, the longest first, so few pairs of items at a time."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, _ITEMS // 8 // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def _padded(offsets: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.diff(offsets)[lists]
    places = np.arange(int(lengths.max()))
    mask = places < lengths[:, None]
    return np.where(mask, offsets[:-1][lists][:, None] + places, 0), mask


@torch.no_grad()
def taught(network: Scorer, lists: Dataset) -> Dataset:
    """The lists with a trained network's scores in place of labels (born-again networks).

    Scores are brought to mean 0 and deviation 1 in their list, and those below -1 to 0: an affine
    function of scores, not below 0, which Qin et al. (2021) found better as the target of softmax
    than probabilities.
    """
    device = next(network.parameters()).device
    network.eval()
    inputs = torch.from_numpy(np.ascontiguousarray(lists.features)).to(device)
    scores = score(network, inputs, lists.offsets).double().cpu().numpy()
    of_list = np.repeat(np.arange(len(lists)), lists.lengths)
    count = np.maximum(lists.lengths, 1)
    scores -= (np.bincount(of_list, scores, len(lists)) / count)[of_list]
    spread = np.sqrt(np.bincount(of_list, scores * scores, len(lists)) / count)
    labels = np.maximum(scores / (spread[of_list] + 1e-6) + 1, 0).astype(np.float32)
    return Dataset(lists.features, labels, lists.offsets, lists.qids, check=False)


def ndcg(scores: Tensor, lists: Dataset) -> np.ndarray:
    """NDCG@10 of the first lists, as many as there are scores for."""
    ends = lists.offsets[lists.offsets <= len(scores)]
    labels = torch.from_numpy(lists.labels[: ends[-1]]).to(scores.device)
    offsets = torch.from_numpy(ends).to(scores.device)
    values: Tensor = metrics.get(METRIC)(scores, labels, offsets=offsets)
    return values.cpu().numpy()


def encode(values: np.ndarray) -> str:
    """Float16 as text."""
    return base64.b64encode(values.astype("<f2").tobytes()).decode()


def decode(text: str) -> np.ndarray:
    """What :func:`encode` was given."""
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float64)
