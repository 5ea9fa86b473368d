"""One worker: it trains run after run, and measures each on test lists."""

from __future__ import annotations

import base64
import copy
import gc
import time
from pathlib import Path
from typing import Any

import candidates  # noqa: F401 (registers its losses)
import numpy as np
import torch
from data import Data, load, prepare
from diagnose import Diagnosis
from plan import METRIC, Task
from torch import Tensor

from rankgrad.data import Dataset
from rankgrad.metrics import metrics
from rankgrad.models import Model, models
from rankgrad.models.tabm import TabM, TabMNet
from rankgrad.training import Settings, fit

_ITEMS = 1 << 16  # scored at a time
_TRAINING_LISTS = 2000  # on which training NDCG is measured


class PreparedNet(TabMNet):
    """The default network on inputs that are there already.

    It takes lists as a whole although it scores item by item: training makes CUDA graphs of that.
    """

    capturable = True

    def __init__(self, model: TabM, n_features: int) -> None:
        super().__init__(model, n_features)
        self.per_item = not torch.cuda.is_available()


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
            settings = task.settings(spec, self.changes)
            if network is None:
                network = build(models.get(task.model), width)
            diagnosis = Diagnosis(network, spec, train, self.device)
            done = self._fit(settings, train, splits["vali"], network, diagnosis)
            network = done.model.network
            history += [{**line, "stage": number} for line in done.history]
            found["diagnosis"] = found.get("diagnosis", []) + diagnosis.lines
            found["best_epoch"], found["best_value"] = done.best_epoch, done.best_value
        assert network is not None
        found["fit_seconds"] = round(time.perf_counter() - began, 2)
        network.to(self.device).eval()
        for part in ("test", "train"):
            own = inputs[part] if part == "test" else inputs[part][: train.n_items]
            scores = score(network, own)
            values = ndcg(scores, train if part == "train" else splits[part])
            found[part] = float(values.mean())
            if part == "test":
                found["per_query"] = encode(values)
        found["curve"] = [round(line[METRIC], 5) for line in history]
        found["loss_curve"] = [float(f"{line['loss']:.5g}") for line in history]
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
        network: TabMNet,
        diagnosis: Diagnosis,
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


def build(model: Model, n_features: int) -> TabMNet:
    """A new network on prepared inputs."""
    assert isinstance(model, TabM)
    return PreparedNet(model, n_features)


@torch.no_grad()
def score(network: TabMNet, inputs: Tensor) -> Tensor:
    """The mean score of the members, item by item."""
    parts = inputs.split(_ITEMS)
    return torch.cat([network.score_inputs(part[None], None)[0] for part in parts])


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
