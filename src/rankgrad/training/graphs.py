"""CUDA graphs of training's passes: launched at once, where a host would ask for each kernel.

A small network's kernels are over sooner than the host has asked for the next one. A graph of all
kernels of a forward and a backward pass has to be asked for once. It works on the memory and the
numbers of items that it was captured with, so there is one for each size of batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankgrad.data.batches import Batch
from rankgrad.lists import Lists
from rankgrad.losses import Loss
from rankgrad.models import Scorer

_MOST = 48  # sizes of batches that are captured

Passes = Callable[[Batch], Tensor]


class Graphs:
    """Forward and backward passes over batches, of which those of a size seen before are replayed.

    The first batch of a size goes through ``passes`` itself, which makes sure that all kernels are
    compiled; the second is captured. All of it is to run on a stream of its own.

    Args:
        passes: leaves gradients at the parameters, which had none, and gives some sums.
        parameters: those of the network.
    """

    def __init__(self, passes: Passes, parameters: Sequence[nn.Parameter]) -> None:
        self._passes, self._parameters = passes, [p for p in parameters if p.requires_grad]
        self._captured: dict[Any, _Captured | None] = {}
        self._pool: Any = None

    def __call__(self, batch: Batch) -> Tensor:
        """What ``passes`` gives and leaves; the sums are those of the next batch later on."""
        size = _size(batch)
        if size not in self._captured:
            if len(self._captured) < _MOST:
                self._captured[size] = None
            return self._passes(batch)
        found = self._captured[size]
        if found is None:
            found = self._captured[size] = self._capture(batch)
        return found.again(batch, self._parameters)

    def __len__(self) -> int:
        """How many sizes were captured."""
        return sum(found is not None for found in self._captured.values())

    def _capture(self, batch: Batch) -> _Captured:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        copies: dict[str, Any] = {name: value.clone() for name, value in _tensors(batch).items()}
        own = replace(batch, **copies)
        graph = torch.cuda.CUDAGraph()
        # Another thread may be reading ahead into memory that it asks CUDA for.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            sums = self._passes(own)
        finally:
            graph.capture_end()
        gradients = [parameter.grad for parameter in self._parameters]
        return _Captured(graph, own, sums, gradients)


@dataclass(frozen=True)
class _Captured:
    """A graph, and the memory that it reads a batch from and leaves its outcome in."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    sums: Tensor
    gradients: list[Tensor | None]

    def again(self, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        given = _tensors(batch)
        for name, value in _tensors(self.batch).items():
            value.copy_(given[name])
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.sums


def capturable(network: nn.Module, loss: Loss, device: torch.device) -> bool:
    """Whether passes of such a network and loss do the same at each step, and without waiting.

    That is known of the networks of this package and of steady losses with a fused form.
    """
    if device.type != "cuda" or not (isinstance(network, Scorer) and network.capturable):
        return False
    few = torch.zeros(1, 2, device=device)
    return loss.steady and loss.fused(Lists.trusted(few, few)) is not None


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream that nothing else works on, as capturing demands."""
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """Those of a batch that are on the device."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "lists"}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _size(batch: Batch) -> tuple[Any, ...]:
    """All that launches depend on."""
    shapes = [(name, tuple(value.shape)) for name, value in _tensors(batch).items()]
    return batch.longest, *shapes
