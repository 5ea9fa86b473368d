"""What the training loop needs on a GPU: CUDA graphs, and values copied without waiting.

The host launches kernels more slowly than a GPU runs the small ones of a small network. A CUDA
graph launches all kernels of a forward and a backward pass at once. A graph is tied to the memory
and the shapes that it was captured with, so :class:`Graphs` has one for each size of batch.
Anything that waits for the GPU, such as reading a loss, would stop the host from launching ahead:
hence :class:`AsyncScalars` and :class:`Finite`.
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
    get finite scores.

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
    """The sum of the losses, the number of lists with a loss, and ``nan_flag``: ``[3]``, float64.

    The members of an ensemble each score all lists. The three numbers are divided by ``members``,
    so that a list counts once. They have no gradient.

    Args:
        values: the loss of each list as each member scored it, ``[members · lists]``.
        defined: whether the loss is defined, of the same shape.
        nan_flag: a scalar, NaN if a score is not finite, else 0.
        members: the number of members; 1 for a single network.

    >>> losses, defined = torch.tensor([0.5, 2.0, 9.0]), torch.tensor([True, True, False])
    >>> sums_of(losses, defined, torch.tensor(0.0), 1).tolist()
    [2.5, 2.0, 0.0]
    """
    total = torch.where(defined, values.detach(), 0.0).sum(dtype=torch.float64)
    sums = torch.stack([total, defined.sum(dtype=torch.float64), nan_flag.double()])
    return sums.div_(members) if members > 1 else sums


_MOST = 48  # the most sizes of batches that are captured
_MEMORY_FRACTION = 0.25  # of the GPU's memory that graphs may take

#: A forward and a backward pass over a batch: sets gradients, and returns the tensor of
#: :func:`sums_of`.
Passes = Callable[[Batch], Tensor]


class Graphs:
    """Forward and backward passes over batches, as CUDA graphs where possible.

    For the first batch of a size, ``passes`` is called, which compiles all kernels. For the second,
    a graph is captured; it is replayed for this and all later batches of the size. If memory does
    not suffice for another graph, ``passes`` is called without one. If memory does not suffice for
    that call either, all graphs are freed, and it is repeated. Calls must be within
    :func:`own_stream`.

    Args:
        passes: sets the gradients of the parameters. Before each call they must be None.
        network: the network with these parameters.
    """

    def __init__(self, passes: Passes, network: nn.Module) -> None:
        self._passes = passes
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        # Graphs expect these tensors at the addresses that they had when captured.
        self._fixed = [*network.parameters(), *network.buffers()]
        self._captured: dict[Any, _Captured] = {}
        self._seen_sizes: set[Any] = set()
        self._pool: Any = None  # the memory pool that all graphs share
        self._free_bytes = 0  # bytes that further graphs may take

    def __call__(self, batch: Batch) -> Tensor:
        """Set the gradients and return the sums of ``passes``. The next call overwrites both."""
        # Batches of the same size launch the same kernels.
        size = batch.max_length, *((name, tensor.shape) for name, tensor in batch.tensors.items())
        captured = self._captured.get(size)
        if captured is None and size in self._seen_sizes:
            captured = self._capture(size, batch)
        self._seen_sizes.add(size)
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
        """The number of captured sizes."""
        return len(self._captured)

    def _free_graphs(self) -> None:
        """Free the memory of the graphs, and capture no more."""
        torch.cuda.synchronize()  # the last graph may still be running
        self._captured.clear()
        self._free_bytes = 0
        for parameter in self._parameters:
            parameter.grad = None
        torch.cuda.empty_cache()

    def _capture(self, size: Any, batch: Batch) -> _Captured | None:
        """Capture a graph for batches of this size; None if there is not enough memory."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._free_bytes = int(_MEMORY_FRACTION * process_memory(batch.features.device))
        if self._free_bytes <= 0 or len(self._captured) >= _MOST:
            return None
        torch.cuda.empty_cache()  # graphs cannot use the memory that PyTorch caches for passes
        before = torch.cuda.memory_reserved()
        try:
            captured = self._captured[size] = self._record(batch)
        except torch.cuda.OutOfMemoryError:
            self._free_graphs()
            return None
        self._free_bytes -= torch.cuda.memory_reserved() - before
        return captured

    def _record(self, batch: Batch) -> _Captured:
        """Record the passes over a copy of the batch, whose memory later batches are copied to."""
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in batch.tensors.items()}
        static_batch = replace(batch, **copies)
        graph = torch.cuda.CUDAGraph()
        # thread_local, since a thread that loads the next batches may allocate memory meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            sums = self._passes(static_batch)
        finally:
            graph.capture_end()
        gradients = [parameter.grad for parameter in self._parameters]
        return _Captured(graph, static_batch, sums, gradients, _addresses(self._fixed))


@dataclass(frozen=True)
class _Captured:
    """A graph with its inputs and outputs.

    Attributes:
        graph: the captured passes.
        batch: the graph's inputs; the memory that :meth:`replay` copies a batch to.
        sums: an output, as ``passes`` returned it.
        gradients: outputs, one for each parameter.
        addresses: where the network's parameters and buffers were.
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

    The passes must launch the same kernels at each step and never wait for the GPU. Networks
    declare this as ``capturable``, losses by ``is_stationary`` and ``never_waits``.
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
    """A context on a new stream: graphs cannot be captured on the default stream."""
    outer = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
