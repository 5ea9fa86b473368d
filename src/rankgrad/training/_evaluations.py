"""How good a ranker is: its validation in training, when that stops training, and evaluations.

An evaluation is saved in the run folder, list by list::

    evaluations/NAME/             NAME is the part of the data, such as test
        evaluation.json           metrics, means, conventions, labels of the run, data checksum
        values.npy    [B, M]      the metrics of each list; NaN where one leaves the list out
        qids.npy      [B]
        offsets.npy   [B + 1]
        labels.npy    [N]
        scores.npy    [N]
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._threads import for_work, passes
from rankgrad.data._dataset import Dataset
from rankgrad.data.batches import Batch, Batches, process_memory
from rankgrad.inputs import as_lists
from rankgrad.metrics import Evaluation, evaluate
from rankgrad.metrics._base import Metric, list_values
from rankgrad.training._settings import AUTO_PATIENCE

EVALUATIONS, METADATA = "evaluations", "evaluation.json"
_FORMAT, _VERSION = "rankgrad evaluation", 1
#: The kind of type and the number of dimensions of each array.
_KINDS = {
    "values": ("f", 2), "qids": ("U", 1), "offsets": ("i", 1), "labels": ("f", 1),
    "scores": ("f", 1),
}  # fmt: skip


class _Metadata(TypedDict):
    """What ``evaluation.json`` holds beside its format."""

    metrics: list[str]
    mean: dict[str, float | None]
    conventions: list[str]
    checksum: str
    labels: dict[str, _schemas.Scalar]


@dataclass(frozen=True)
class EvaluatedLists:
    """The values of some metrics on every list of a data set, with the scores they come from.

    ``labels_of_run`` says what the run is in an experiment: its loss, model, fold and seed.
    ``checksum`` is the data's, so that runs on other data are recognized.
    """

    metrics: tuple[str, ...]
    mean: Mapping[str, float]
    values: NDArray[np.float64]
    qids: NDArray[Any]
    offsets: NDArray[np.int64]
    labels: NDArray[np.float32]
    scores: NDArray[np.float32]
    conventions: tuple[str, ...]
    checksum: str
    labels_of_run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        scores: Any,
        data: Dataset,
        metrics: Iterable[str],
        labels_of_run: Mapping[str, Any] | None = None,
    ) -> EvaluatedLists:
        """Evaluate scores of the items of a data set.

        >>> lists = Dataset(np.eye(2), [1, 0], [0, 2], ["a"])
        >>> EvaluatedLists.of([0.1, 0.2], lists, ["rr"]).mean
        {'rr': 0.5}
        """
        array = np.asarray(scores, np.float32)
        evaluation = evaluate_scores(array, data, list(metrics))
        return cls.of_evaluation(evaluation, array, data, labels_of_run, evaluation.conventions)

    @classmethod
    def of_evaluation(
        cls,
        evaluation: Evaluation,
        scores: Any,
        data: Any,
        labels_of_run: Mapping[str, Any] | None,
        conventions: tuple[str, ...],
    ) -> EvaluatedLists:
        """What was evaluated, with its lists.

        Args:
            evaluation: of the scores.
            scores: ``[N]``.
            data: the lists, with ``qids``, ``offsets``, ``labels`` and ``checksum()``.
            labels_of_run: as above.
            conventions: that the evaluation follows.
        """
        names = tuple(str(metric) for metric in evaluation.metrics)
        columns = [evaluation.per_list[name].double().numpy() for name in names]
        return cls(
            metrics=names,
            mean=dict(evaluation.mean),
            values=np.stack(columns, 1),
            qids=np.array(data.qids),
            offsets=np.array(data.offsets, np.int64),
            labels=np.array(data.labels, np.float32),
            scores=np.asarray(scores, np.float32),
            conventions=conventions,
            checksum=data.checksum(),
            labels_of_run=dict(labels_of_run or {}),
        )

    def save(self, run: str | os.PathLike[str], name: str = "test") -> None:
        """Write it into a run folder, in place of an evaluation of the same name."""
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "metrics": self.metrics,
            "mean": {k: None if np.isnan(v) else v for k, v in self.mean.items()},
            "conventions": self.conventions,
            "checksum": self.checksum,
            "labels": dict(self.labels_of_run),
        }
        arrays = {array: getattr(self, array) for array in _KINDS}
        _schemas.write_arrays(Path(run) / EVALUATIONS / name, METADATA, metadata, arrays)

    @classmethod
    def load(cls, run: str | os.PathLike[str], name: str = "test") -> EvaluatedLists:
        """Read what :meth:`save` wrote."""
        place = Path(run) / EVALUATIONS / name
        if not _files.readable_path(place).is_dir():
            raise FileNotFoundError(f"{run} has no evaluation {name!r}")
        return _files.read_folder(place, METADATA, cls._load)

    @classmethod
    def _load(cls, place: Path) -> EvaluatedLists:
        remedy = "evaluate the run again"
        metadata = _schemas.read_versioned(place / METADATA, _Metadata, _FORMAT, _VERSION, remedy)
        arrays = {
            array: _schemas.read_array(place / f"{array}.npy", metadata, *kind)
            for array, kind in _KINDS.items()
        }
        items, ends = len(arrays["labels"]), arrays["offsets"]
        shape = len(arrays["qids"]), len(metadata["metrics"])
        lengths = len(ends) - 1, len(arrays["scores"])
        if arrays["values"].shape != shape or lengths != (shape[0], items):
            raise _files.damaged(place, "its arrays are of unequal lengths")
        if set(metadata["mean"]) != set(metadata["metrics"]):
            raise _files.damaged(place / METADATA, "it has means of other metrics")
        if ends[0] != 0 or ends[-1] != items or (ends[1:] < ends[:-1]).any():
            raise _files.damaged(place / "offsets.npy", "it is not of these lists")
        return cls(
            metrics=tuple(metadata["metrics"]),
            mean={k: float("nan") if v is None else v for k, v in metadata["mean"].items()},
            conventions=tuple(metadata["conventions"]),
            checksum=metadata["checksum"],
            labels_of_run=metadata["labels"],
            **arrays,
        )

    def of_metric(self, metric: str) -> NDArray[np.float64]:
        """The values of one metric, list by list."""
        if metric not in self.metrics:
            raise KeyError(f"{metric!r} was not evaluated; there are: {', '.join(self.metrics)}")
        return self.values[:, self.metrics.index(metric)]


def evaluate_scores(
    scores: Any, data: Dataset, metrics: str | Metric | Iterable[str | Metric]
) -> Evaluation:
    """Evaluate scores of the items of a data set, as :func:`rankgrad.metrics.evaluate` does."""
    # PyTorch warns of arrays that are read-only, as those of a store are: it gets copies.
    return evaluate(
        scores,
        np.array(data.labels),
        offsets=np.array(data.offsets),
        weights=None if data.weights is None else np.array(data.weights),
        metrics=metrics,
    )


def names(run: str | os.PathLike[str]) -> list[str]:
    """The evaluations that a run folder has."""
    folder = Path(run) / EVALUATIONS
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


_DOCUMENTS = 1 << 15  # items scored at a time, padding included
_GPU_DOCUMENTS = 1 << 20  # the same on a GPU, at most
_GPU_BYTES = 1 << 17  # of a GPU's memory for each of them


@torch.no_grad()
def validate(
    network: nn.Module, batches: Batches, metrics: Sequence[Metric], fabric: Any
) -> dict[str, float]:
    """The mean of each metric over the lists, dropout off. Each process scores its part.

    What is brought together are the values of the lists, so the means do not depend on how the
    lists were shared out.
    """
    rank, ranks = fabric.global_rank, fabric.world_size
    values = torch.zeros(len(metrics), len(batches.dataset), dtype=torch.float64)
    metric_values: list[Tensor] = []
    lists: list[Tensor] = []
    was_training = network.training
    network.eval()
    try:
        for batch in batches.evaluation(_documents(batches.device), rank=rank, ranks=ranks):
            with for_work(passes(network, batch.labels.numel())):
                metric_values.append(_per_list(network, batch, metrics))
            lists.append(batch.lists)
    finally:
        network.train(was_training)
    if metric_values:
        values[:, torch.cat(lists)] = torch.cat(metric_values, -1).cpu().double()
    if ranks > 1:
        values = fabric.all_reduce(values.to(batches.device), reduce_op="sum").cpu()
    return {str(metric): _mean(row) for metric, row in zip(metrics, values, strict=True)}


def score(network: nn.Module, batch: Batch) -> Tensor:
    """The scores of a batch in the layout of its labels; in training, those of each member."""
    inputs = [batch.features] if batch.mask is None else [batch.features, batch.mask]
    scores: Tensor = network(*inputs)
    expected = batch.labels.shape
    members = getattr(network, "members", 1) if network.training else 1
    if members > 1:
        expected = torch.Size([members, *expected])
    if scores.shape != expected:
        raise ValueError(
            f"the network gives scores of shape {tuple(scores.shape)} for features "
            f"{tuple(batch.features.shape)}: they must be {tuple(expected)}"
        )
    return scores


def _documents(device: torch.device) -> int:
    """How many items to score at a time.

    What is free at the moment does not matter: the same data must give the same bytes again.
    """
    if device.type != "cuda":
        return _DOCUMENTS
    return max(_DOCUMENTS, min(_GPU_DOCUMENTS, process_memory(device) // _GPU_BYTES))


def _per_list(network: nn.Module, batch: Batch, metrics: Sequence[Metric]) -> Tensor:
    scores = score(network, batch)
    lists = as_lists(scores, batch.labels, batch.mask, offsets=batch.offsets, weights=batch.weights)
    return torch.stack([values for values, _ in list_values(metrics, lists)])


def _mean(values: Tensor) -> float:
    """Over the lists that count; NaN marks those that do not."""
    return float(values[~values.isnan()].mean())


_EPOCHS = 3  # of which values are averaged
_RISE = 0.005  # relative, of the average
_FEWEST_EPOCHS, _FEWEST_STEPS = 3, 60  # to wait


def is_over(patience: int | Literal["auto"] | None, values: Sequence[float], steps: int) -> bool:
    """Whether training stops after these epochs.

    A number of epochs is how many may pass without a better value than the best one. ``auto`` asks
    for a lasting gain: the average of three values in a row, of fewer at first, is to rise by half
    a percent within two thirds as many epochs as led to the last such rise, and three more. It
    waits for 60 steps at least and 20 epochs at most. How the rule was found:
    ``docs/results/recipe.md``.

    Args:
        patience: as of :class:`~rankgrad.training.Settings`.
        values: validation values of all epochs so far, higher ones better.
        steps: of an epoch.

    >>> rising, flat = [0.1 * n for n in range(1, 9)], [0.8, 0.803, 0.796, 0.801, 0.804, 0.8]
    >>> [is_over("auto", rising + flat[:n], steps=20) for n in (0, 1, 6)]
    [False, False, False]
    >>> is_over("auto", flat, steps=20), is_over("auto", flat, steps=1), is_over(4, flat, steps=20)
    (True, False, False)
    """
    if patience is None or not values:
        return False
    if patience != "auto":
        return len(values) - 1 - values.index(max(values)) >= patience
    last, highest = 0, -math.inf
    for epoch in range(1, len(values) + 1):
        average = math.fsum(values[max(0, epoch - _EPOCHS) : epoch]) / min(epoch, _EPOCHS)
        if last == 0 or average > highest + _RISE * abs(highest):
            last, highest = epoch, average
    fewest = max(2 * last // 3 + _FEWEST_EPOCHS, math.ceil(_FEWEST_STEPS / max(1, steps)))
    return len(values) - last >= min(AUTO_PATIENCE, fewest)
