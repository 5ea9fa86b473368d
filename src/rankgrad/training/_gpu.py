"""Training steps that do not wait for the GPU: CUDA graphs, few operations, asynchronous copies.

A small network's kernels finish before the host has launched the next one. A CUDA graph launches
all kernels of a forward and a backward pass at once. It works on the memory and the shapes that it
was captured with, so there is one graph for each size of batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad.data.batches import Batch, process_memory
from rankgrad.inputs import unchecked_lists
from rankgrad.losses import Loss
from rankgrad.models import Scorer


class AsyncScalars:
    """Scalars copied from GPU to host without blocking; :meth:`wait` gives them.

    >>> few = torch.tensor([1.0, 2.0])
    >>> later = AsyncScalars(few)
    >>> few += 1
    >>> later.ready(), later.wait()
    (True, [1.0, 2.0])
    """

    def __init__(self, scalars: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if not scalars.is_cuda:
            self._host = scalars.detach().clone()
            return
        self._host = torch.empty_like(scalars, device="cpu", pin_memory=True)
        self._host.copy_(scalars.detach(), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(scalars.device))

    def ready(self) -> bool:
        """Whether the copy is complete."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> list[float]:
        """The scalars, once the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._host.tolist()
        return values


class Finite(torch.autograd.Function):
    """Scores, with 0 in place of those that are not finite; gradients pass as they are.

    >>> Finite.apply(torch.tensor([1.0, torch.inf, torch.nan])).tolist()
    [1.0, 0.0, 0.0]
    """

    @staticmethod
    @override
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return scores.nan_to_num(0.0, 0.0, 0.0)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def sums_of(values: Tensor, defined: Tensor, nan_flag: Tensor, members: int) -> Tensor:
    """The sum of lists' losses, the number of those with a loss, and ``nan_flag``, in float64.

    All are divided by the number of members that scored each list. They are not differentiated.

    >>> losses, defined = torch.tensor([0.5, 2.0, 9.0]), torch.tensor([True, True, False])
    >>> sums_of(losses, defined, torch.tensor(0.0), 1).tolist()
    [2.5, 2.0, 0.0]
    """
    total = torch.where(defined, values.detach(), 0.0).sum(dtype=torch.float64)
    sums = torch.stack([total, defined.sum(dtype=torch.float64), nan_flag.double()])
    return sums.div_(members) if members > 1 else sums


_MOST = 48  # sizes of batches that are captured
_FRACTION = 0.25  # of the GPU's memory that graphs may take

Passes = Callable[[Batch], Tensor]


class Graphs:
    """Forward and backward passes over batches, of which those of a size seen before are replayed.

    The first batch of a size goes through ``passes`` itself, which makes sure that all kernels are
    compiled; the second is captured. All of it is to run on a stream of its own. Where memory does
    not suffice for another graph, batches go through ``passes``; where it does not suffice for
    those, all graphs are freed.

    Args:
        passes: leaves gradients at the parameters, which had none, and gives some sums.
        network: whose parameters those are.
    """

    def __init__(self, passes: Passes, network: nn.Module) -> None:
        self._passes = passes
        self._parameters = [each for each in network.parameters() if each.requires_grad]
        self._fixed = [*network.parameters(), *network.buffers()]  # where graphs expect them
        self._captured: dict[Any, _Captured] = {}
        self._seen: set[Any] = set()
        self._pool: Any = None
        self._free_bytes = 0  # bytes for further graphs

    def __call__(self, batch: Batch) -> Tensor:
        """What ``passes`` gives and leaves. The next call overwrites it."""
        # All that launches depend on.
        size = batch.max_length, *((name, tensor.shape) for name, tensor in batch.tensors.items())
        captured = self._captured.get(size)
        if captured is None and size in self._seen:
            captured = self._capture(size, batch)
        self._seen.add(size)
        if captured is not None and captured.addresses == _addresses(self._fixed):
            return captured.replay(batch, self._parameters)
        try:
            return self._passes(batch)
        except torch.cuda.OutOfMemoryError:
            if not self._captured:
                raise
        self._free_graphs()
        return self._passes(batch)

    def __len__(self) -> int:
        """How many sizes were captured."""
        return len(self._captured)

    def _free_graphs(self) -> None:
        """Free the memory of the graphs, and capture no more."""
        torch.cuda.synchronize()  # the last one may still run
        self._captured.clear()
        self._free_bytes = 0
        for parameter in self._parameters:
            parameter.grad = None
        torch.cuda.empty_cache()

    def _capture(self, size: Any, batch: Batch) -> _Captured | None:
        """A graph, or None where there is not enough memory for it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._free_bytes = int(_FRACTION * process_memory(batch.features.device))
        if self._free_bytes <= 0 or len(self._captured) >= _MOST:
            return None
        torch.cuda.empty_cache()  # what passes have left there a graph cannot use
        before = torch.cuda.memory_reserved()
        try:
            captured = self._captured[size] = self._make(batch)
        except torch.cuda.OutOfMemoryError:
            self._free_graphs()
            return None
        self._free_bytes -= torch.cuda.memory_reserved() - before
        return captured

    def _make(self, batch: Batch) -> _Captured:
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in batch.tensors.items()}
        static_batch = replace(batch, **copies)
        graph = torch.cuda.CUDAGraph()
        # Another thread may be reading ahead into memory that it asks CUDA for.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            sums = self._passes(static_batch)
        finally:
            graph.capture_end()
        gradients = [parameter.grad for parameter in self._parameters]
        return _Captured(graph, static_batch, sums, gradients, _addresses(self._fixed))


@dataclass(frozen=True)
class _Captured:
    """A graph, and the memory of its inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    sums: Tensor
    gradients: list[Tensor | None]
    addresses: list[int]  # of the network's parameters and buffers

    def replay(self, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        tensors = batch.tensors
        for name, tensor in self.batch.tensors.items():
            tensor.copy_(tensors[name])
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.sums


def capturable(network: nn.Module, loss: Loss, device: torch.device) -> bool:
    """Whether passes of such a network and loss do the same at each step, and without waiting.

    Networks say so of themselves, and losses that are stationary.
    """
    if device.type != "cuda" or not (isinstance(network, Scorer) and network.capturable):
        return False
    parameter = next(network.parameters(), None)
    if parameter is None or not loss.is_stationary or torch.is_anomaly_enabled():
        return False
    few = torch.zeros(1, 2, device=device, dtype=parameter.dtype)
    return loss.never_waits(unchecked_lists(few, few))


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on another stream than the default one, as capturing demands."""
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
