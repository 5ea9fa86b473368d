"""Evaluation of rankers: validation in training, early stopping, and saved evaluations of runs.

:func:`validate` and :func:`is_over` are called by the training loop after each epoch.
:class:`EvaluatedLists` is an evaluation of a finished run, which experiments and reports compare.
It is saved in the run folder, list by list::

    evaluations/NAME/             NAME is the part of the data, such as test
        evaluation.json           metrics, means, conventions, labels of the run, data checksum
        values.npy    [B, M]      the metrics of each list; NaN where a metric is undefined
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
#: The saved arrays: the kind of their NumPy type, and their number of dimensions.
_ARRAYS = {
    "values": ("f", 2), "qids": ("U", 1), "offsets": ("i", 1), "labels": ("f", 1),
    "scores": ("f", 1),
}  # fmt: skip


class _Metadata(TypedDict):
    """The contents of ``evaluation.json``, besides format and version."""

    metrics: list[str]
    mean: dict[str, float | None]
    conventions: list[str]
    checksum: str
    labels: dict[str, _schemas.Scalar]


@dataclass(frozen=True)
class EvaluatedLists:
    """The values of M metrics on the B lists of a data set, with the scores they come from.

    Attributes:
        metrics: the specs of the metrics.
        mean: the mean of each metric over the lists on which it is defined.
        values: ``[B, M]``; NaN where a metric is undefined.
        qids: ``[B]``, the queries.
        offsets: ``[B + 1]``: list b is the items ``offsets[b]:offsets[b + 1]``.
        labels: ``[N]``.
        scores: ``[N]``.
        conventions: how the metrics treat ties and lists without relevant items, in words.
        checksum: of the data set, so that runs on different data are not compared.
        labels_of_run: what the run is in an experiment: its loss, model, fold and seed.
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
        """Evaluate the scores ``[N]`` of the items of a data set.

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
        """Put an evaluation together with its lists.

        Args:
            evaluation: of the scores.
            scores: ``[N]``.
            data: the lists, with ``qids``, ``offsets``, ``labels`` and ``checksum()``.
            labels_of_run: what the run is in an experiment.
            conventions: the conventions of the metrics, in words.
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
        arrays = {array: getattr(self, array) for array in _ARRAYS}
        _schemas.write_arrays(Path(run) / EVALUATIONS / name, METADATA, metadata, arrays)

    @classmethod
    def load(cls, run: str | os.PathLike[str], name: str = "test") -> EvaluatedLists:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such evaluation.
            FileError: one of its files is damaged or missing.
        """
        folder = Path(run) / EVALUATIONS / name
        if not _files.readable_path(folder).is_dir():
            raise FileNotFoundError(f"{run} has no evaluation {name!r}")
        try:
            return _files.read_folder(folder, METADATA, cls._load)
        except FileNotFoundError as error:
            missing = folder / Path(error.filename or METADATA).name
            raise _files.damaged(missing, "it is missing") from None

    @classmethod
    def _load(cls, folder: Path) -> EvaluatedLists:
        """Read a folder, and check that its arrays belong together."""
        remedy = "evaluate the run again"
        metadata = _schemas.read_versioned(folder / METADATA, _Metadata, _FORMAT, _VERSION, remedy)
        arrays = {
            array: _schemas.read_array(folder / f"{array}.npy", metadata, *kind)
            for array, kind in _ARRAYS.items()
        }
        n_items, n_lists, offsets = len(arrays["labels"]), len(arrays["qids"]), arrays["offsets"]
        shapes = arrays["values"].shape, len(offsets), len(arrays["scores"])
        if shapes != ((n_lists, len(metadata["metrics"])), n_lists + 1, n_items):
            raise _files.damaged(folder, "its arrays are of unequal lengths")
        if set(metadata["mean"]) != set(metadata["metrics"]):
            raise _files.damaged(folder / METADATA, "it has means of other metrics")
        if offsets[0] != 0 or offsets[-1] != n_items or (offsets[1:] < offsets[:-1]).any():
            raise _files.damaged(folder / "offsets.npy", "it is not of these lists")
        return cls(
            metrics=tuple(metadata["metrics"]),
            mean={k: float("nan") if v is None else v for k, v in metadata["mean"].items()},
            conventions=tuple(metadata["conventions"]),
            checksum=metadata["checksum"],
            labels_of_run=metadata["labels"],
            **arrays,
        )

    def of_metric(self, metric: str) -> NDArray[np.float64]:
        """The values ``[B]`` of one metric."""
        if metric not in self.metrics:
            raise KeyError(f"{metric!r} was not evaluated; there are: {', '.join(self.metrics)}")
        return self.values[:, self.metrics.index(metric)]


def evaluate_scores(
    scores: Any, data: Dataset, metrics: str | Metric | Iterable[str | Metric]
) -> Evaluation:
    """Evaluate the scores ``[N]`` of a data set by :func:`rankgrad.metrics.evaluate`."""
    # Copies, since PyTorch warns about read-only arrays, such as those of a store.
    return evaluate(
        scores,
        np.array(data.labels),
        offsets=np.array(data.offsets),
        weights=None if data.weights is None else np.array(data.weights),
        metrics=metrics,
    )


def names(run: str | os.PathLike[str]) -> list[str]:
    """The names of the evaluations in a run folder."""
    folder = Path(run) / EVALUATIONS
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


_DOCUMENTS = 1 << 15  # items scored at a time, padding included
_GPU_DOCUMENTS = 1 << 20  # the most items scored at a time on a GPU
_GPU_BYTES = 1 << 17  # of GPU memory that each item may take


@torch.no_grad()
def validate(
    network: nn.Module, batches: Batches, metrics: Sequence[Metric], fabric: Any
) -> dict[str, float]:
    """The mean of each metric over all lists, with dropout off; each process scores some lists.

    The processes exchange the value of every list, so the means do not depend on how the lists are
    distributed.

    Raises:
        FloatingPointError: a score is NaN.
    """
    rank, ranks = fabric.global_rank, fabric.world_size
    values = torch.zeros(len(metrics), len(batches.dataset), dtype=torch.float64)
    metric_values: list[Tensor] = []  # of each batch, [metrics, lists]
    lists: list[Tensor] = []  # of each batch, the indices of its lists in the data set
    was_training = network.training
    network.eval()
    try:
        n_items = _items_at_a_time(batches.device)
        for batch in batches.evaluation(n_items, rank=rank, ranks=ranks):
            with for_work(passes(network, batch.labels.numel())):
                metric_values.append(_per_list(network, batch, metrics))
            lists.append(batch.lists)
    finally:
        network.train(was_training)
    if metric_values:
        values[:, torch.cat(lists)] = torch.cat(metric_values, -1).cpu().double()
    if ranks > 1:
        values = fabric.all_reduce(values.to(batches.device), reduce_op="sum").cpu()
    # NaN marks the lists on which a metric is undefined.
    means = [float(row[~row.isnan()].mean()) for row in values]
    return {str(metric): mean for metric, mean in zip(metrics, means, strict=True)}


def score(network: nn.Module, batch: Batch, members: int = 1) -> Tensor:
    """The scores of a batch, in the shape of its labels.

    With several members, as an ensemble in training has, ``[members, ...]``.
    """
    inputs = [batch.features] if batch.mask is None else [batch.features, batch.mask]
    scores: Tensor = network(*inputs)
    expected = batch.labels.shape
    if members > 1:
        expected = torch.Size([members, *expected])
    if scores.shape != expected:
        raise ValueError(
            f"the network gives scores of shape {tuple(scores.shape)} for features "
            f"{tuple(batch.features.shape)}: they must be {tuple(expected)}"
        )
    return scores


def _items_at_a_time(device: torch.device) -> int:
    """How many items to score at a time.

    It depends on the GPU's total memory and not on the free memory, so that the same data are
    batched, and scored, in the same way each time.
    """
    if device.type != "cuda":
        return _DOCUMENTS
    return max(_DOCUMENTS, min(_GPU_DOCUMENTS, process_memory(device) // _GPU_BYTES))


def _per_list(network: nn.Module, batch: Batch, metrics: Sequence[Metric]) -> Tensor:
    """The values of the metrics on the lists of a batch, ``[metrics, lists]``."""
    scores = score(network, batch)
    try:
        lists = as_lists(
            scores, batch.labels, batch.mask, offsets=batch.offsets, weights=batch.weights
        )
        return torch.stack([values for values, _ in list_values(metrics, lists)])
    except ValueError:
        if scores.isnan().any():
            raise FloatingPointError("the network gives scores that are NaN") from None
        raise


# The rule of ``patience="auto"``.
_AVERAGED_EPOCHS = 3  # epochs whose values are averaged
_MIN_RISE = 0.005  # relative rise of the average that counts as a gain
_MIN_EPOCHS, _MIN_STEPS = 3, 60  # to wait for the next gain


def is_over(patience: int | Literal["auto"] | None, values: Sequence[float], steps: int) -> bool:
    """Whether training stops after these epochs.

    If ``patience`` is a number p, training stops after p epochs without a value above the best one.

    ``auto`` asks for lasting gains. It averages the last three values (fewer at first); an epoch e
    is a gain if that average is half a percent above the average at the last gain. After a gain at
    epoch e, the next one must come within 2/3 e + 3 epochs. It waits for at least 60 steps and at
    most 20 epochs. ``docs/results/recipe.md`` says how the rule was found.

    Args:
        patience: as in :class:`~rankgrad.training.Settings`; None never stops.
        values: validation values of all epochs so far; higher is better.
        steps: the number of steps of an epoch.

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
    last_gain, highest = 0, -math.inf
    for epoch in range(1, len(values) + 1):
        recent = values[max(0, epoch - _AVERAGED_EPOCHS) : epoch]
        average = math.fsum(recent) / len(recent)
        if last_gain == 0 or average > highest + _MIN_RISE * abs(highest):
            last_gain, highest = epoch, average
    wait = max(2 * last_gain // 3 + _MIN_EPOCHS, math.ceil(_MIN_STEPS / max(1, steps)))
    return len(values) - last_gain >= min(AUTO_PATIENCE, wait)
