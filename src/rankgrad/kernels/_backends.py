"""The table of operations that have backend kernels, and the kernel of each on each type of device.

:mod:`rankgrad.kernels.ops` calls these kernels, and :mod:`rankgrad.kernels._registration` registers
them in ``torch.ops.rankgrad``.

Operations of losses take lists in the flat layout, :class:`rankgrad.lists.FlatLists`, as their
first arguments. In one pass they return the value of each list, for each item the derivative of its
list's value, and whether the loss is defined on the list. The derivative is 0 on padding and in
lists on which the loss is undefined.

A metric is five arguments, the fields of :class:`rankgrad.kernels.arguments.MetricOptions`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions


class Operation(NamedTuple):
    """Where the kernels of an operation are; they are functions with the operation's name.

    Attributes:
        module: the module of these functions: ``"ranks"`` for ``kernels/cpu/_ranks.py`` and
            ``kernels/gpu/_ranks.py``.
        schema: PyTorch's schema of a loss. Metrics and checks are plain functions, neither
            differentiated nor compiled, and have none.
    """

    module: str
    schema: str = ""


_LISTS = (
    "Tensor scores, Tensor labels, Tensor? mask, Tensor? weights, Tensor offsets, int max_length"
)
_METRIC = "str metric, int k, str gain, float threshold, float persistence"
_VALUES = "(Tensor values, Tensor grad_scores, Tensor defined)"

#: Losses, which return values [lists], grad_scores [items] and defined [lists].
LOSSES = {
    # 1 - metric through relaxed ranks. The relaxation is "sigmoid" (sharpness alpha), "lapsum"
    # (sharpness 1 / τ), "fastsort" or "fastsort_entropic" (sharpness 1 / strength).
    "through_ranks": Operation(
        "ranks",
        f"({_LISTS}, str relaxation, float sharpness, float beta, {_METRIC}) -> {_VALUES}",
    ),
    # 1 - metric through the rows of a relaxed permutation, "neuralsort" or "softsort".
    "through_rows": Operation(
        "permutation_rows",
        f"({_LISTS}, str relaxation, float temperature, {_METRIC}) -> {_VALUES}",
    ),
    # The same through NeuralSort with Sinkhorn scaling.
    "through_sinkhorn": Operation(
        "sinkhorn",
        f"({_LISTS}, float temperature, int iterations, float tolerance, bool transposed, "
        f"{_METRIC}) -> {_VALUES}",
    ),
    # The same through SmoothI's indicators, with its stop-gradient. With expect "gain", a rank has
    # the expected gain; with "label", the gain of the expected label.
    "through_smoothi": Operation(
        "smoothi",
        f"({_LISTS}, float alpha, float delta, str expect, {_METRIC}) -> {_VALUES}",
    ),
    # The same through the mean rank of each item over SmoothI's indicators; on CPUs only.
    "through_smoothi_ranks": Operation(
        "smoothi",
        f"({_LISTS}, float alpha, float delta, float beta, {_METRIC}) -> {_VALUES}",
    ),
    # The same through entropic optimal transport.
    "through_ot": Operation(
        "ot",
        f"({_LISTS}, float epsilon, int iterations, float tolerance, {_METRIC}) -> {_VALUES}",
    ),
    # Sums over pairs. For NDCG the kind is "ranknet", "hinge" (sigma is the margin), "lambdarank",
    # "ndcg_loss1", "ndcg_loss2" or "ndcg_loss2++". With half, RankNet also counts pairs of equal
    # labels. For other metrics ("precision", "recall", "ap", "rr", "arp"; an item is relevant to a
    # binary one if its label reaches the threshold) the kind is "lambdarank", or "ndcg_loss2" for
    # LambdaLoss.
    "pairs": Operation(
        "pairs",
        f"({_LISTS}, str kind, int k, float sigma, str gain, str truncation, float mu, bool half, "
        f'str metric="ndcg", float threshold=1.0) -> {_VALUES}',
    ),
    # ListMLE. Items of equal labels are ordered by a hash of the seed (one int64 on the device) and
    # of the item's position among the real items, or in input order without a seed.
    "listmle": Operation("listmle", f"({_LISTS}, Tensor? seed) -> {_VALUES}"),
    # Cross-entropies. The target is the "label" itself (the softmax loss), or the "softmax" of the
    # labels (ListNet).
    "cross_entropy": Operation("cross_entropy", f"({_LISTS}, str target) -> {_VALUES}"),
    # Σ_i G_i log(1 / softmax(s)_i) over the ideal DCG@k of the gains G; on CPUs only.
    "ndcg_bound": Operation("cross_entropy", f"({_LISTS}, int k, str gain) -> {_VALUES}"),
    # The likelihood of label levels, with an intercept of the list at each; on CPUs only.
    "ordered_logit": Operation("ordered_logit", f"({_LISTS}, int levels) -> {_VALUES}"),
    # The cross-entropy of the labels' permutation matrix and NeuralSort's, over the first k ranks;
    # on CPUs only.
    "neuralsort_ce": Operation(
        "permutation_rows", f"({_LISTS}, int k, float temperature) -> {_VALUES}"
    ),
    # 1 - AP over histograms of the scores' sigmoids; on CPUs only.
    "listap": Operation("listap", f"({_LISTS}, int bins, float threshold) -> {_VALUES}"),
    # The mean over pairs of ((s_i - s_j) - (y_i - y_j))²; on CPUs only.
    "margin_mse": Operation("pointwise", f"({_LISTS}) -> {_VALUES}"),
    # Means over items. The number is the count of levels for "rmse" and "ordinal", the threshold
    # for "bce", and unused for "mse".
    "pointwise": Operation("pointwise", f"({_LISTS}, str kind, float number) -> {_VALUES}"),
}

#: Exact metrics.
METRICS = {"exact_metrics": Operation("metrics")}

#: Checks of the values of lists.
_CHECKS = {"check_values": Operation("value_check")}

OPERATIONS = {**LOSSES, **METRICS, **_CHECKS}

#: The package with the kernels for each type of device, and the library that they need.
PACKAGES = {"cpu": "cpu", "cuda": "gpu"}
REQUIRES = {"cpu": "numba", "cuda": "triton"}
_NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


@functools.cache
def is_installed(package: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(package) is not None


@functools.cache
def has_kernel(device: str, module: str, name: str) -> bool:
    """Whether a device's kernel module defines this name, and what it needs is installed."""
    path = f"rankgrad.kernels.{PACKAGES[device]}._{module}"
    if not is_installed(REQUIRES[device]) or importlib.util.find_spec(path) is None:
        return False
    return hasattr(importlib.import_module(path), name)


class _Backend:
    """The kernel of an operation on one type of device, imported at its first call.

    Attributes:
        records: whether launches are recorded and replayed: on GPUs, except metrics and checks.
    """

    def __init__(self, name: str, module: str, package: str) -> None:
        self.name, self.module = name, f"rankgrad.kernels.{package}._{module}"
        self.records = package == "gpu" and name not in (*METRICS, *_CHECKS)
        self.kernel: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.kernel is None:
            self.kernel = self.load()
        return self.kernel(*arguments)

    def load(self) -> Callable[..., Any]:
        """The kernel as a function of the operation's arguments; GPU launches are recorded."""
        kernel = getattr(importlib.import_module(self.module), self.name)
        if self.name in LOSSES:
            kernel = _grouped(kernel if self.records else _on_arrays(kernel), self.name)
        return recorded(kernel) if self.records else kernel

    def on_device(self, first: Tensor, *arguments: Any) -> Any:
        """Call the kernel with the first tensor's device current; ``torch.ops`` does not set it."""
        with on_device(first):
            return self(first, *arguments)


def _grouped(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A loss kernel as a function of the operation's flat argument list, as PyTorch passes it.

    The kernel is called if there is at least one item; no loss is defined on empty lists.
    """
    has_metric = _METRIC in LOSSES[name].schema

    def call(*arguments: Any) -> Any:
        lists, options = FlatLists(*arguments[:6]), arguments[6:]
        if lists.max_length < 0:  # compiled code on ragged lists does not know the maximum
            lists = lists._replace(max_length=max_length_of(lists.offsets))
        n_lists = len(lists.offsets) - 1
        if min(n_lists, lists.max_length, lists.scores.numel()) == 0:
            values = lists.scores.new_zeros(n_lists)
            defined = torch.zeros_like(values, dtype=torch.bool)
            return values, torch.zeros_like(lists.scores), defined
        if has_metric:
            return kernel(lists, *options[:-5], MetricOptions(*options[-5:]))
        return kernel(lists, *options)

    return call


def _on_arrays(kernel: Callable[..., None]) -> Callable[..., Any]:
    """A CPU kernel, which writes its results to :class:`FlatArrays`, as a function of lists."""
    from rankgrad.kernels.cpu._flat_arrays import FlatArrays

    def call(lists: FlatLists, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
        arrays = FlatArrays.of(lists)
        kernel(arrays, *options)
        return arrays.results()

    return call


class CpuKernel(NamedTuple):
    """The functions that compute a loss on a CPU and reduce it.

    Attributes:
        arrays_for: makes the arrays of lists, which the kernel reads and writes.
        kernel: computes the loss.
        reduce_lists: computes the mean or sum over lists.
        has_metric: whether the kernel's last argument is a :class:`MetricOptions`.
    """

    arrays_for: Callable[..., Any]
    kernel: Callable[..., None]
    reduce_lists: Callable[..., None]
    has_metric: bool


@functools.cache
def cpu_kernel(name: str) -> CpuKernel:
    """The CPU kernel of a loss, and what goes with it; importing it needs Numba."""
    from rankgrad.kernels.cpu._flat_arrays import arrays_for, reduce_lists

    kernel = getattr(importlib.import_module(backends[name, "cpu"].module), name)
    return CpuKernel(arrays_for, kernel, reduce_lists, _METRIC in LOSSES[name].schema)


def max_length_of(offsets: Tensor) -> int:
    """The length of the longest list; on a GPU this synchronizes."""
    return int(offsets.diff().max()) if offsets.numel() > 1 else 0


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches GPU kernels, with its launches recorded and replayed."""
    replaying: Callable[..., Any] = gpu_module("launch_cache").cached_launches(function)
    return replaying


def gpu_module(name: str) -> Any:
    """A module of GPU kernels, which needs Triton."""
    return importlib.import_module(f"rankgrad.kernels.gpu._{name}")


#: The kernel of each operation, and of the two that serve all losses, on each type of device.
backends: dict[tuple[str, str], _Backend] = {
    (name, device): _Backend(name, operation.module, package)
    for name, operation in {
        **OPERATIONS,
        "reduce": Operation("reduce"),
        "scale_by_list": Operation("reduce"),
    }.items()
    for device, package in PACKAGES.items()
}


def backend_kernel(name: str, package: str) -> Callable[..., Any]:
    """An operation's kernel from the package ``cpu`` or ``gpu``, as a function of its arguments."""
    device = next(device for device in PACKAGES if PACKAGES[device] == package)
    return backends[name, device].load()


def backend_of(name: str, tensor: Tensor) -> Any:
    """The kernel of an operation on a tensor's device."""
    backend = backends[name, tensor.device.type]
    return backend.kernel or backend  # the backend itself, if its kernel is not imported yet


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which the tensor's device is current, so kernels are launched there.

    On a GPU, the kernels that are launched in it are compiled in parallel.
    """
    if not tensor.is_cuda:
        return _NO_CONTEXT
    if _one_device() or tensor.get_device() == torch.cuda.current_device():
        return _gpu_call()
    return _on_other_device(tensor)


@contextmanager
def _on_other_device(tensor: Tensor) -> Iterator[None]:
    with torch.cuda.device_of(tensor), _gpu_call():
        yield


@functools.cache
def _gpu_call() -> AbstractContextManager[Any]:
    """The context in which the kernels of one call are compiled in parallel."""
    scope: AbstractContextManager[Any] = gpu_module("parallel_compilation").CallScope()
    return scope


@functools.cache
def _one_device() -> bool:
    return torch.cuda.device_count() == 1
