"""Trains the tasks of the plan one after the other, and evaluates each on test lists."""

from __future__ import annotations

import base64
import copy
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import candidates  # noqa: F401 (registers its losses)
import muon  # noqa: F401 (registers its optimizer)
import numpy as np
import torch
from data import Data, expected_gains, load, prepare
from diagnose import Diagnosis
from networks import PreparedNet
from plan import LAST, METRIC, Task
from torch import Tensor

from rankgrad.data import Dataset
from rankgrad.metrics import metrics
from rankgrad.models import Model, Scorer, models
from rankgrad.models.tabm import TabM
from rankgrad.training import Settings, _evaluations, fit

_ITEMS = 1 << 16  # how many items are scored at a time
#: A prefix of a loss: a new network is trained on the scores of the previous one.
AGAIN = "born again: "
_TRAINING_LISTS = 2000  # the first lists, on which training NDCG is measured


class Worker:
    """Trains one task after another on one device.

    Args:
        cache: the folder of simulated data.
        changes: settings of all runs that differ from the plan, for a trial.
        memory: the share of a GPU's memory that this process may use. Training sizes its CUDA
            graphs, features on the device and batches of validation lists by it.
    """

    def __init__(self, cache: Path, changes: dict[str, Any], memory: float = 1.0) -> None:
        self.cache, self.changes = cache, changes
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._loaded: tuple[Path, dict[str, Dataset], dict[str, Tensor]] | None = None
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.cuda.set_per_process_memory_fraction(memory)
            _evaluations._GPU_BYTES = 1 << 20  # networks with attention need more memory per item

    def perform(self, task: Task) -> dict[str, Any]:
        """Train on training lists, choose the epoch on validation lists, evaluate on test lists."""
        start = time.perf_counter()
        folder, splits, inputs = self._data(task.data)
        vali = None if task.recipe == LAST else splits["vali"]
        train = load(folder, "train", task.budget or None)
        result: dict[str, Any] = {"losses": list(task.losses)}
        network, width = None, train.n_features
        torch.manual_seed(task.seed)
        history: list[dict[str, float]] = []
        for stage, spec in enumerate(task.losses):
            is_again, lists = spec.startswith(AGAIN), train
            if is_again:
                assert network is not None
                spec = spec.removeprefix(AGAIN)
                lists = label_by_network(network.to(self.device), train)
            settings = task.settings(spec, self.changes)
            if network is None or is_again:
                network = build(models.get(task.model), width)
            diagnosis = Diagnosis(network, spec, train, self.device) if task.diagnosed else None
            fitted = self._fit(settings, lists, vali, network, diagnosis)
            network = fitted.model.network
            history += [{**epoch, "stage": stage} for epoch in fitted.history]
            if diagnosis is not None:
                result["diagnosis"] = result.get("diagnosis", []) + diagnosis.lines
            result["best_epoch"], result["best_value"] = fitted.best_epoch, fitted.best_value
        assert network is not None
        result["fit_seconds"] = round(time.perf_counter() - start, 2)
        network.to(self.device).eval()
        test_scores = score(network, inputs["test"], splits["test"].offsets)
        test_values = ndcg(test_scores, splits["test"])
        train_scores = score(network, inputs["train"][: train.n_items], train.offsets)
        result["test"], result["per_query"] = float(test_values.mean()), encode(test_values)
        vali_inputs = torch.from_numpy(splits["vali"].features).to(self.device)
        vali_scores = score(network, vali_inputs, splits["vali"].offsets)
        expected = {}
        for part, own in {"vali": vali_scores, "test": test_scores}.items():
            gains = expected_gains(np.load(folder / f"{part}_oracle.npy"), task.data)
            expected[part] = expected_ndcg(own, splits[part], gains)
        result["expected"] = float(expected["vali"].mean())
        result["expected_per_query"] = encode(1 - expected["test"])
        if vali is None:
            result["best_value"] = float(ndcg(vali_scores, splits["vali"]).mean())
        result["train"] = float(ndcg(train_scores, train).mean())
        result["curve"] = [round(epoch[METRIC], 5) for epoch in history if METRIC in epoch]
        result["loss_curve"] = [float(f"{epoch['loss']:.5g}") for epoch in history]
        ends = [epoch["seconds"] for epoch in fitted.history]
        result["epoch_seconds"] = round(float(np.median(np.diff([0.0, *ends]))), 3)
        result["seconds"] = round(time.perf_counter() - start, 2)
        return result

    def release(self) -> None:
        """Release GPU memory that is not in use."""
        gc.collect()  # the traceback of a run that failed refers to its tensors
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _fit(
        self,
        settings: Settings,
        train: Dataset,
        vali: Dataset | None,
        network: Scorer,
        diagnosis: Diagnosis | None,
    ) -> Any:
        """Train; if the loss cannot be captured in a CUDA graph, start again without graphs."""
        initial = copy.deepcopy(network)
        try:
            return fit(settings, train, vali, network=network, on_epoch=diagnosis)
        except RuntimeError as error:
            if "captur" not in str(error) or not settings.graphs:
                raise
            torch.cuda.synchronize()
            network.load_state_dict(initial.state_dict())
            if diagnosis is not None:
                diagnosis.lines.clear()
            settings = settings.model_copy(update={"graphs": False})
            return fit(settings, train, vali, network=network, on_epoch=diagnosis)

    def _data(self, data: Data) -> tuple[Path, dict[str, Dataset], dict[str, Tensor]]:
        """The folder, the validation and test lists, and inputs on the device for evaluation.

        They stay in memory until a task with other data comes.
        """
        if self._loaded is None or self._loaded[0].name != data.key:
            self._loaded = None
            folder = prepare(data, self.cache, self.device)
            splits = {part: load(folder, part) for part in ("vali", "test")}
            train_sample = load(folder, "train", min(_TRAINING_LISTS, data.lists[0]))
            inputs = {
                "test": torch.from_numpy(splits["test"].features).to(self.device),
                "train": torch.from_numpy(train_sample.features).to(self.device),
            }
            self._loaded = (folder, splits, inputs)
        return self._loaded


def build(model: Model, n_features: int) -> Scorer:
    """A new network on prepared inputs."""
    return PreparedNet(model, n_features) if type(model) is TabM else model.build(n_features)


@torch.no_grad()
def score(network: Scorer, inputs: Tensor, offsets: np.ndarray) -> Tensor:
    """The scores ``[items]``, means over members, of the lists that are completely in ``inputs``.

    Args:
        network: the network.
        inputs: ``[items, width]``, of the first lists.
        offsets: ``[lists + 1]``, of these lists and further ones.
    """
    if isinstance(network, PreparedNet) and network.attention is None:
        parts = inputs.split(_ITEMS)
        return torch.cat([network.score_inputs(part[None], None)[0] for part in parts])
    offsets = offsets[offsets <= len(inputs)]
    scores = inputs.new_zeros(int(offsets[-1]))
    for lists in _batches(np.diff(offsets)):
        rows, mask = (
            torch.from_numpy(array).to(inputs.device) for array in _padded_rows(offsets, lists)
        )
        scores[rows[mask]] = network(inputs[rows], mask)[mask].float()
    return scores


def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Batches of lists of similar length, the longest first, with a bounded number of items."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, _ITEMS // 8 // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def _padded_rows(offsets: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the items of lists as ``[b, n]``, and the mask."""
    lengths = np.diff(offsets)[lists]
    positions = np.arange(int(lengths.max()))
    mask = positions < lengths[:, None]
    return np.where(mask, offsets[:-1][lists][:, None] + positions, 0), mask


@torch.no_grad()
def label_by_network(network: Scorer, lists: Dataset) -> Dataset:
    """The lists with labels from the scores of a trained network (born-again networks)."""
    device = next(network.parameters()).device
    network.eval()
    inputs = torch.from_numpy(np.ascontiguousarray(lists.features)).to(device)
    scores = score(network, inputs, lists.offsets).double().cpu().numpy()
    return label_by_scores(scores, lists)


def label_by_scores(scores: np.ndarray, lists: Dataset) -> Dataset:
    """The lists with labels from a teacher's scores.

    A label is max(z + 1, 0), where z is the score standardized within its list. Qin et al. (2021)
    found such an affine function of scores, cut off at 0, a better target of softmax than
    probabilities.
    """
    labels = np.maximum(standardized(scores, lists) + 1, 0).astype(np.float32)
    return Dataset(lists.features, labels, lists.offsets, lists.qids, check=False)


def standardized(scores: np.ndarray, lists: Dataset) -> np.ndarray:
    """Scores with mean 0 and deviation 1 in each list."""
    list_of_item = np.repeat(np.arange(len(lists)), lists.lengths)
    count = np.maximum(lists.lengths, 1)
    centered = scores - (np.bincount(list_of_item, scores, len(lists)) / count)[list_of_item]
    deviation = np.sqrt(np.bincount(list_of_item, centered * centered, len(lists)) / count)
    return centered / (deviation[list_of_item] + 1e-6)


def ndcg(scores: Tensor, lists: Dataset) -> np.ndarray:
    """NDCG@10 of the first lists, as many as there are scores ``[items]`` for, ``[lists]``."""
    scored = lists.offsets[lists.offsets <= len(scores)]
    labels = torch.from_numpy(lists.labels[: scored[-1]]).to(scores.device)
    offsets = torch.from_numpy(scored).to(scores.device)
    values: Tensor = metrics.get(METRIC)(scores, labels, offsets=offsets)
    return values.cpu().numpy()


def expected_ndcg(scores: Tensor, lists: Dataset, gains: np.ndarray) -> np.ndarray:
    """The expected DCG@10 of each list, ``[lists]``, relative to that of the best ranking.

    It has no noise of labels, so that it tells smaller differences than NDCG does.

    Args:
        scores: ``[items]``.
        lists: the lists.
        gains: ``[items]``, the expected gains.
    """
    offsets = torch.from_numpy(lists.offsets).to(scores.device)
    labels = torch.from_numpy(gains).to(scores)
    values: Tensor = metrics.get("ndcg@10(gain=linear)")(scores, labels, offsets=offsets)
    return values.cpu().numpy()


def encode(values: np.ndarray) -> str:
    """Values as text: base64 of float16."""
    return base64.b64encode(values.astype("<f2").tobytes()).decode()


def decode(text: str) -> np.ndarray:
    """The values of a text of :func:`encode`."""
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float64)
