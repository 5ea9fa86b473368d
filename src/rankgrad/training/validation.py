"""Validation: exact metrics of a network over all lists in full, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from rankgrad.data.batches import Batch, Batches, process_memory
from rankgrad.inputs import as_lists
from rankgrad.metrics.base import Metric
from rankgrad.metrics.evaluate import list_values
from rankgrad.threads import for_work, passes

_DOCUMENTS = 1 << 15  # items scored at a time, padding included
_GPU_DOCUMENTS = 1 << 20  # the same on a GPU, at most
_GPU_BYTES = 1 << 17  # of a GPU's memory for each of them


class Processes(Protocol):
    """What is asked of Lightning Fabric, or of anything else that several processes share."""

    @property
    def global_rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    def all_reduce(self, data: Tensor, *, reduce_op: str) -> Tensor:
        """Reduce a tensor over all processes."""


@torch.no_grad()
def validate(
    network: nn.Module, batches: Batches, metrics: Sequence[Metric], processes: Processes
) -> dict[str, float]:
    """The mean of each metric over the lists, dropout off. Each process scores its part.

    What is brought together are the values of the lists, so the means do not depend on how the
    lists were shared out.
    """
    rank, ranks = processes.global_rank, processes.world_size
    values = torch.zeros(len(metrics), len(batches.dataset), dtype=torch.float64)
    found: list[Tensor] = []
    lists: list[Tensor] = []
    was_training = network.training
    network.eval()
    try:
        for batch in batches.evaluation(_documents(batches.device), rank=rank, ranks=ranks):
            with for_work(passes(network, batch.labels.numel())):
                found.append(_per_list(network, batch, metrics))
            lists.append(batch.lists)
    finally:
        network.train(was_training)
    if found:
        values[:, torch.cat(lists)] = torch.cat(found, -1).cpu().double()
    if ranks > 1:
        values = processes.all_reduce(values.to(batches.device), reduce_op="sum").cpu()
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
    lists = as_lists(
        score(network, batch),
        batch.labels,
        batch.mask,
        offsets=batch.offsets,
        weights=batch.weights,
    )
    return torch.stack([values for values, _ in list_values(metrics, lists)])


def _mean(values: Tensor) -> float:
    """Over the lists that count; NaN marks those that do not."""
    return float(values[~values.isnan()].mean())
