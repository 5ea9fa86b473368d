"""What :mod:`rankgrad.training.trainer` needs on a GPU: CUDA graphs, and no waiting.

A small network has small kernels, which a GPU runs faster than the host launches them. A CUDA graph
launches all kernels of a forward and a backward pass at once. A graph is tied to the memory and the
shapes that it was captured with, so :class:`Graphs` has a graph for each size of batch.

The host stays ahead of the GPU only if it never waits for a result, such as the value of a loss.
Hence :class:`AsyncScalars` copies results in the background, :func:`loss_sums` leaves them on the
GPU, and :class:`Finite` lets training go on when scores are not finite, until the loop notices.
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

    >>> scalars = torch.tensor([1.0, 2.0])
    >>> copied = AsyncScalars(scalars)
    >>> scalars += 1
    >>> copied.ready(), copied.wait()
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
    """Scores with 0 in place of NaN and infinities; gradients pass unchanged.

    If training diverges on a GPU, the loop notices only at the end of the epoch. Until then, losses
    need finite scores.

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


def loss_sums(values: Tensor, defined: Tensor, nan_flag: Tensor, members: int) -> Tensor:
    """The sum of the losses, the number of lists with a loss, and ``nan_flag``: ``[3]``, float64.

    Each member of an ensemble scores all lists. The three numbers are divided by ``members``, so
    that a list counts once. They have no gradient.

    Args:
        values: ``[members · lists]``, the loss of each list by the scores of each member.
        defined: ``[members · lists]``, whether the loss is defined.
        nan_flag: a scalar, NaN if a score is not finite, else 0.
        members: the number of members; 1 for a single network.

    >>> losses, defined = torch.tensor([0.5, 2.0, 9.0]), torch.tensor([True, True, False])
    >>> loss_sums(losses, defined, torch.tensor(0.0), 1).tolist()
    [2.5, 2.0, 0.0]
    """
    total = torch.where(defined, values.detach(), 0.0).sum(dtype=torch.float64)
    sums = torch.stack([total, defined.sum(dtype=torch.float64), nan_flag.double()])
    return sums.div_(members) if members > 1 else sums


_MAX_GRAPHS = 48
_MEMORY_FRACTION = 0.25  # of the GPU's memory, which graphs may take

#: A function that makes a forward and a backward pass over a batch. It sets the gradients of the
#: parameters, which must be None before, and returns the tensor of :func:`loss_sums`.
Passes = Callable[[Batch], Tensor]


class Graphs:
    """Forward and backward passes over batches, as CUDA graphs where possible.

    For the first batch of a size, ``passes`` is called, which compiles all kernels. For the second
    batch of this size, a graph is captured. The graph is replayed for this batch and all later ones
    of the size.

    In these cases ``passes`` is called without a graph:

    - There are ``_MAX_GRAPHS`` graphs, or they have used up their fraction of the memory: no
      further size is captured.
    - A parameter or a buffer of the network has moved in memory since the graph was captured.
    - The GPU runs out of memory, in a capture or in a call of ``passes``: all graphs are freed, no
      size is captured from then on, and ``passes`` is called again. A call of ``passes`` that
      fails without any graph to free raises its error.

    Calls must be within :func:`own_stream`.

    Args:
        passes: the passes to capture, or to call. It sets the gradients of the parameters, which
            must be None before each call of the graphs.
        network: the network with these parameters.
    """

    def __init__(self, passes: Passes, network: nn.Module) -> None:
        self._passes = passes
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        # A graph reads these tensors at the addresses that they had when it was captured.
        self._fixed_tensors = [*network.parameters(), *network.buffers()]
        self._captured: dict[Any, _Captured] = {}
        self._seen_sizes: set[Any] = set()
        self._pool: Any = None  # the memory pool that all graphs share
        self._budget = 0  # bytes that further graphs may take; set at the first capture

    def __call__(self, batch: Batch) -> Tensor:
        """Set the gradients, and return the sums of ``passes``.

        Both are in memory that the next call may overwrite.
        """
        # Batches that agree in all of this launch the same kernels, with the same shapes.
        size = batch.max_length, *((name, tensor.shape) for name, tensor in batch.tensors.items())
        captured = self._captured.get(size)
        if captured is None and size in self._seen_sizes:
            captured = self._capture(size, batch)
        self._seen_sizes.add(size)
        if captured is not None and captured.addresses == _addresses(self._fixed_tensors):
            return captured.replay(batch, self._parameters)
        try:
            return self._passes(batch)
        except torch.cuda.OutOfMemoryError:
            if not self._captured:
                raise
        self._free_graphs()
        return self._passes(batch)

    def __len__(self) -> int:
        """The number of graphs, each of another size of batch."""
        return len(self._captured)

    def _free_graphs(self) -> None:
        """Free the memory of all graphs and their gradients, and capture no more."""
        torch.cuda.synchronize()  # the last graph may still be running
        self._captured.clear()
        self._budget = 0
        for parameter in self._parameters:
            parameter.grad = None
        torch.cuda.empty_cache()

    def _capture(self, size: Any, batch: Batch) -> _Captured | None:
        """Capture a graph for batches of this size; None if no further graph is possible."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._budget = int(_MEMORY_FRACTION * process_memory(batch.features.device))
        if self._budget <= 0 or len(self._captured) >= _MAX_GRAPHS:
            return None
        torch.cuda.empty_cache()  # graphs cannot use what PyTorch caches outside of their pool
        reserved_before = torch.cuda.memory_reserved()
        try:
            captured = self._captured[size] = self._record(batch)
        except torch.cuda.OutOfMemoryError:
            self._free_graphs()
            return None
        self._budget -= torch.cuda.memory_reserved() - reserved_before
        return captured

    def _record(self, batch: Batch) -> _Captured:
        """Record the passes over a copy of the batch.

        To replay them, a batch is copied to the memory of that copy.
        """
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in batch.tensors.items()}
        static_batch = replace(batch, **copies)
        graph = torch.cuda.CUDAGraph()
        # "thread_local", because the thread that loads the next batches may allocate memory during
        # the capture. In the default mode, an allocation in any thread makes the capture fail.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            sums = self._passes(static_batch)
        finally:
            graph.capture_end()
        gradients = [parameter.grad for parameter in self._parameters]
        return _Captured(graph, static_batch, sums, gradients, _addresses(self._fixed_tensors))


@dataclass(frozen=True)
class _Captured:
    """A graph with its inputs and outputs, which stay in the same memory.

    Attributes:
        graph: the captured passes.
        batch: the graph's inputs, which :meth:`replay` overwrites with those of another batch.
        sums: an output: what ``passes`` returned.
        gradients: the other outputs, one for each parameter; None if it has no gradient.
        addresses: the addresses of the network's parameters and buffers during the capture.
    """

    graph: torch.cuda.CUDAGraph
    batch: Batch
    sums: Tensor
    gradients: list[Tensor | None]
    addresses: list[int]

    def replay(self, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Run the passes on a batch of the same size; sets gradients, and returns the sums."""
        tensors = batch.tensors
        for name, tensor in self.batch.tensors.items():
            tensor.copy_(tensors[name])
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.sums


def capturable(network: nn.Module, loss: Loss, device: torch.device) -> bool:
    """Whether a CUDA graph can capture the passes of a network and a loss.

    The passes must launch the same kernels at each step, and never wait for the GPU. A network
    declares this by ``capturable``, a loss by ``is_stationary`` and ``never_waits``.
    """
    if device.type != "cuda" or not (isinstance(network, Scorer) and network.capturable):
        return False
    parameter = next(network.parameters(), None)
    if parameter is None or not loss.is_stationary or torch.is_anomaly_enabled():
        return False
    probe = torch.zeros(1, 2, device=device, dtype=parameter.dtype)
    return loss.never_waits(unchecked_lists(probe, probe))


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A context in which work is on a new stream, as graphs cannot be captured on the default one.

    The new stream waits for the work before the context, and the outer stream for that within it.
    """
    outer = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    """The memory address of each tensor."""
    return [tensor.data_ptr() for tensor in tensors]
