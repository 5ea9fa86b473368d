"""The operations that have backend kernels, the choice of a kernel, and one autograd function.

Operations of losses take lists in the flat layout, :class:`rankgrad.lists.FlatLists`, as their
first arguments. In one pass they return the value of each list, whether the loss is defined on the
list, and for each item the derivative of its list's value. The derivative is 0 on padding and in
lists on which the loss is undefined. The backward pass is one product with it.

A metric is ``metric`` (``ndcg``, ``dcg``, ``precision``, ``recall``, ``rbp``, ``arp``, ``ap``,
``rr``, ``err`` or ``hits``; through ranks also ``spearman``), ``k`` (0 for none), ``gain``
(``exponential`` or ``linear``), ``threshold`` (for err, the top of the label scale) and
``persistence``, as in :mod:`rankgrad.metrics`, whose eager forms define what is computed here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.nn import functional as F

from rankgrad import _autograd
from rankgrad.kernels.arguments import FlatLists, MetricOptions

__all__ = [
    "LOSSES",
    "METRICS",
    "MODES",
    "InvalidValuesError",
    "KernelCall",
    "Mode",
    "Values",
    "available",
    "backend_kernel",
    "backends",
    "check_values",
    "exact_metrics",
    "installed",
    "loss",
    "max_length_of",
    "mode",
    "on_device",
    "ready",
    "reduced_loss",
    "refuse_large",
    "scaled_by_list",
    "too_large",
    "use",
    "using",
]

_LISTS = (
    "Tensor scores, Tensor labels, Tensor? mask, Tensor? weights, Tensor offsets, int max_length"
)
_METRIC = "str metric, int k, str gain, float threshold, float persistence"
_VALUES = "(Tensor values, Tensor grad_scores, Tensor defined)"

#: Losses: the module of the kernels and the schema, which returns values [lists], grad_scores
#: [items] and defined [lists].
LOSSES = {
    # 1 - metric through relaxed ranks. The relaxation is "sigmoid" (sharpness alpha), "lapsum"
    # (sharpness 1 / τ), "fastsort" or "fastsort_entropic" (sharpness 1 / strength).
    "through_ranks": (
        "ranks",
        f"({_LISTS}, str relaxation, float sharpness, float beta, {_METRIC}) -> {_VALUES}",
    ),
    # 1 - metric through the rows of a relaxed permutation, "neuralsort" or "softsort".
    "through_rows": (
        "permutation_rows",
        f"({_LISTS}, str relaxation, float temperature, {_METRIC}) -> {_VALUES}",
    ),
    # The same through NeuralSort with Sinkhorn scaling.
    "through_sinkhorn": (
        "sinkhorn",
        f"({_LISTS}, float temperature, int iterations, float tolerance, bool transposed, "
        f"{_METRIC}) -> {_VALUES}",
    ),
    # The same through SmoothI's indicators, stop-gradient; expect "gain" or "label".
    "through_smoothi": (
        "smoothi",
        f"({_LISTS}, float alpha, float delta, str expect, {_METRIC}) -> {_VALUES}",
    ),
    # The same through entropic optimal transport.
    "through_ot": (
        "ot",
        f"({_LISTS}, float epsilon, int iterations, float tolerance, {_METRIC}) -> {_VALUES}",
    ),
    # Sums over pairs. For NDCG the kind is "ranknet", "hinge" (sigma is the margin), "lambdarank",
    # "ndcg_loss1", "ndcg_loss2" or "ndcg_loss2++". With half, RankNet also counts pairs of equal
    # labels. For other metrics ("precision", "recall", "ap", "rr", "arp"; an item is relevant to a
    # binary one if its label reaches the threshold) the kind is "lambdarank", or "ndcg_loss2" for
    # LambdaLoss.
    "pairs": (
        "pairs",
        f"({_LISTS}, str kind, int k, float sigma, str gain, str truncation, float mu, bool half, "
        f'str metric="ndcg", float threshold=1.0) -> {_VALUES}',
    ),
    # ListMLE. Items of equal labels are ordered by a hash of the seed (one int64 on the device) and
    # of the item's position among the real items, or in input order without a seed.
    "listmle": ("listmle", f"({_LISTS}, Tensor? seed) -> {_VALUES}"),
    # Cross-entropies. The target is the "label" itself (the softmax loss), or the "softmax" of the
    # labels (ListNet).
    "cross_entropy": ("cross_entropy", f"({_LISTS}, str target) -> {_VALUES}"),
    # Σ_i G_i log(1 / softmax(s)_i) over the ideal DCG@k of the gains G; on CPUs only.
    "ndcg_bound": ("cross_entropy", f"({_LISTS}, int k, str gain) -> {_VALUES}"),
    # 1 - AP over histograms of the scores' sigmoids; on CPUs only.
    "listap": ("listap", f"({_LISTS}, int bins, float threshold) -> {_VALUES}"),
    # The mean over pairs of ((s_i - s_j) - (y_i - y_j))²; on CPUs only.
    "margin_mse": ("pointwise", f"({_LISTS}) -> {_VALUES}"),
    # Means over items. The number is the count of levels for "rmse" and "ordinal", the threshold
    # for "bce", and unused for "mse".
    "pointwise": ("pointwise", f"({_LISTS}, str kind, float number) -> {_VALUES}"),
}

#: Exact metrics: a plain function of the module, as they are neither differentiated nor compiled.
METRICS = {"exact_metrics": ("metrics",)}

#: Value checks: plain functions too.
_CHECKS = {"check_values": ("value_check",)}

_Reduction = Literal["mean", "sum", "none"]
#: What is known of the values of lists. ``"valid"``: they were checked. ``"unknown"``: the kernel
#: checks them. ``"unreadable"``: they cannot be read now, so CPU kernels run with NaN guards.
Values = Literal["valid", "unknown", "unreadable"]

Mode = Literal["auto", "eager", "fused"]
MODES: tuple[Mode, ...] = get_args(Mode)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_mode: Mode = "auto"
_PACKAGES = {"cpu": "cpu", "cuda": "gpu"}
_NEEDED = {"cpu": "numba", "cuda": "triton"}
_TABLES: dict[str, Any] = {**LOSSES, **METRICS, **_CHECKS}
#: Whether the backward pass under way retains its graph; taken for granted if PyTorch cannot say.
_is_retained = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
_NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_SAME_DEVICE: AbstractContextManager[Any] = nullcontext()


class KernelCall(NamedTuple):
    """The name and the options of a call of an operation of this module, without the lists."""

    name: str
    options: tuple[Any, ...]


def use(mode: Mode) -> None:
    """Choose how losses are computed from now on.

    ``"auto"`` uses a kernel where the device has one. ``"eager"`` always uses plain PyTorch.
    ``"fused"`` is like auto, but raises an error if Numba or Triton is needed and not installed.

    Args:
        mode: ``"auto"``, ``"eager"`` or ``"fused"``.

    Raises:
        ValueError: it is none of these.

    >>> from rankgrad.kernels import mode, use
    >>> use("eager")
    >>> mode()
    'eager'
    >>> use("auto")
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}; found {mode!r}")
    _mode = mode


def mode() -> Mode:
    """The mode that :func:`use` chose.

    Returns:
        ``"auto"``, ``"eager"`` or ``"fused"``.

    >>> from rankgrad.kernels import mode
    >>> mode()
    'auto'
    """
    return _mode


@contextmanager
def using(mode: Mode) -> Iterator[None]:
    """A context manager that calls :func:`use` and restores the previous mode at its end.

    Args:
        mode: as in :func:`use`.

    Returns:
        A context manager whose value is None.

    Raises:
        ValueError: the mode is none that exists.

    >>> from rankgrad.kernels import mode, using
    >>> with using("eager"):
    ...     mode()
    'eager'
    >>> mode()
    'auto'
    """
    before = _mode
    use(mode)
    try:
        yield
    finally:
        use(before)


def ready(name: str, scores: Tensor) -> bool:
    """Whether an operation of this module has a kernel for these scores that the mode allows.

    Args:
        name: of the operation, such as ``pairs``.
        scores: of any shape; their device and dtype count.

    Returns:
        True if the operation would run a kernel, False if plain PyTorch.

    Raises:
        KeyError: there is no such operation.
        RuntimeError: the mode is ``"fused"``, and Numba (CPU) or Triton (GPU) is not installed.

    >>> from rankgrad.kernels import ready, using
    >>> with using("eager"):
    ...     ready("pairs", torch.zeros(3))
    False
    """
    return available(_TABLES[name][0], name, scores)


def available(module: str, name: str, scores: Tensor) -> bool:
    """Whether a kernel module defines this name for these scores and the mode allows it.

    Args:
        module: the name of the kernel module, such as ``pairs``.
        name: of a function in it.
        scores: of any shape; their device and dtype count.

    Returns:
        True if there is such a kernel, False if plain PyTorch is to be used.

    Raises:
        RuntimeError: the mode is ``"fused"``, and Numba (CPU) or Triton (GPU) is not installed.

    >>> from rankgrad.kernels import available
    >>> available("pairs", "no_such_kernel", torch.zeros(3))
    False
    """
    device = "cpu" if scores.is_cpu else scores.device.type
    if _mode == "eager" or device not in _PACKAGES:
        return False
    if _mode == "fused" and not installed(_NEEDED[device]):
        raise RuntimeError(
            f'kernels.use("fused") on {device} needs {_NEEDED[device]}, which is not installed; '
            'kernels.use("auto") works without'
        )
    if device == "cuda" and scores.dtype != torch.float32:
        return False
    return _has_kernel(device, module, name)


def _constant(function: _Function) -> _Function:
    """Mark a function whose result ``torch.compile`` treats as a constant.

    ``torch.compiler.assume_constant_result`` does the same, but takes a second to import.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def installed(package: str) -> bool:
    """Whether a package is installed; ``torch.compile`` treats the result as a constant."""
    return _is_installed(package)


@_constant
def _has_kernel(device: str, module: str, name: str) -> bool:
    return _is_written(device, module, name)


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@functools.cache
def _is_written(device: str, module: str, name: str) -> bool:
    path = f"rankgrad.kernels.{_PACKAGES[device]}._{module}"
    if not _is_installed(_NEEDED[device]) or importlib.util.find_spec(path) is None:
        return False
    return hasattr(importlib.import_module(path), name)


class InvalidValuesError(Exception):
    """A value is invalid, or a label is too large for kernels."""


class _Backend:
    """The kernel of an operation on one type of device, imported at its first call."""

    def __init__(self, name: str, module: str, package: str) -> None:
        self.name, self.module = name, f"rankgrad.kernels.{package}._{module}"
        self.records = package == "gpu" and name not in (*METRICS, *_CHECKS)
        self.found: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.found is None:
            self.found = self.find()
        return self.found(*arguments)

    def find(self) -> Callable[..., Any]:
        """The kernel as a function of the operation's arguments; GPU launches are recorded."""
        found = getattr(importlib.import_module(self.module), self.name)
        if self.name in LOSSES:
            found = _grouped(found if self.records else _on_arrays(found), self.name)
        return _recorded(found) if self.records else found

    def on_device(self, first: Tensor, *arguments: Any) -> Any:
        """Call the kernel with the first tensor's device current, which the registry does not."""
        with on_device(first):
            return self(first, *arguments)


def _grouped(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A loss kernel as a function of the operation's flat argument list, as PyTorch passes it."""
    has_metric = _METRIC in LOSSES[name][1]

    def call(*arguments: Any) -> Any:
        lists, options = FlatLists(*arguments[:6]), arguments[6:]
        if lists.max_length < 0:  # compiled code of ragged lists does not know it
            lists = lists._replace(max_length=max_length_of(lists.offsets))
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


@functools.cache
def _cpu_kernel(name: str) -> tuple[Any, Callable[..., None], Callable[..., float], bool]:
    """What a loss on a CPU needs; importing it needs Numba.

    Returns the function that makes its arrays, the loss's kernel, :func:`_reduce_lists` compiled,
    and whether the kernel's last argument is a metric.
    """
    from rankgrad.kernels.cpu._flat_arrays import arrays_for

    kernel = getattr(importlib.import_module(backends[name, "cpu"].module), name)
    return arrays_for, kernel, _compiled_reduce(), _METRIC in LOSSES[name][1]


@functools.cache
def _compiled_reduce() -> Callable[..., float]:
    from rankgrad.kernels.cpu._compiled import compiled

    return compiled(_reduce_lists)


def max_length_of(offsets: Tensor) -> int:
    """The length of the longest list; on a GPU this synchronizes."""
    return int(offsets.diff().max()) if offsets.numel() > 1 else 0


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches GPU kernels; repeated calls are recorded and replayed."""
    found: Callable[..., Any] = _gpu_module("launch_cache").cached_launches(function)
    return found


def _gpu_module(name: str) -> Any:
    return importlib.import_module(f"rankgrad.kernels.gpu._{name}")


#: The kernel of each operation on each type of device.
backends: dict[tuple[str, str], _Backend] = {
    (name, device): _Backend(name, module, package)
    for name, module in {
        **{name: entry[0] for name, entry in _TABLES.items()},
        "reduce": "reduce",
        "scale_by_list": "scale_by_list",
    }.items()
    for device, package in _PACKAGES.items()
}


def backend_kernel(name: str, package: str) -> Callable[..., Any]:
    """An operation's kernel from the package ``cpu`` or ``gpu``, a function of its arguments."""
    return next(
        backend.find()
        for (known, device), backend in backends.items()
        if known == name and _PACKAGES[device] == package
    )


def loss(
    call: KernelCall,
    lists: FlatLists,
    known: Values = "valid",
) -> tuple[Tensor, Tensor]:
    """One of :data:`LOSSES` per list, as one autograd function.

    This equals ``torch.ops.rankgrad.NAME``, but skips PyTorch's registry, whose overhead is as
    large as a small loss.

    Args:
        call: the operation and its options.
        lists: the lists.
        known: what is known of their values.

    Returns:
        The values ``[lists]``, and where they are defined ``[lists]``.
    """
    if torch.compiler.is_compiling():
        return _compiled_loss(call, lists)
    details = _Details(*call, lists.max_length, "none", known)
    values, _, defined = _autograd.apply(_Loss, *_flat(lists), None, details)
    return values, defined


def _flat(lists: FlatLists) -> list[Tensor | None]:
    """The tensors of lists, flattened to one dimension."""
    return [None if tensor is None else tensor.reshape(-1) for tensor in lists[:5]]


def reduced_loss(
    call: KernelCall,
    lists: FlatLists,
    reduction: _Reduction,
    list_weights: Tensor | None = None,
    known: Values = "valid",
) -> Tensor:
    """The mean or sum over lists of one of :data:`LOSSES`, as one autograd function.

    Lists on which the loss is undefined are left out, as in :func:`rankgrad.losses._base.reduce`.

    Args:
        call: the operation and its options.
        lists: the lists.
        reduction: ``"mean"`` or ``"sum"``.
        list_weights: ``[lists]`` or None; they are not differentiated.
        known: what is known of the values of the lists and of these weights.

    Raises:
        InvalidValuesError: the values were unknown, and the check found an invalid one.
    """
    if torch.compiler.is_compiling():
        values, defined = _compiled_loss(call, lists)
        mean = reduction == "mean"
        result: Tensor = torch.ops.rankgrad.reduce(values, defined, list_weights, mean)[0]
        return result
    transformed = torch._C._are_functorch_transforms_active()
    if lists.scores.is_cpu and known != "unreadable" and not transformed:
        result = _apply_on_cpu(lists.scores, lists, list_weights, call, reduction, known)
        return result
    details = _Details(*call, lists.max_length, reduction, known)
    result = _autograd.apply(_Loss, *_flat(lists), list_weights, details)[0]
    return result


def _compiled_loss(call: KernelCall, lists: FlatLists) -> tuple[Tensor, Tensor]:
    """The values and where they are defined, by a registered operation that compiles."""
    if (lists.offsets.shape[0] - 1) * lists.max_length != lists.scores.shape[0]:
        lists = lists._replace(max_length=-1)  # ragged: the operation computes it
    values, _, defined = getattr(torch.ops.rankgrad, call.name)(*lists, *call.options)
    return values, defined


class _Details(NamedTuple):
    """The arguments of :class:`_Loss` that are not tensors."""

    name: str
    options: tuple[Any, ...]
    max_length: int
    reduction: _Reduction
    known: Values


class _Loss(torch.autograd.Function):
    """A loss per list, or its mean or sum; the forward pass also computes the derivative.

    The outputs are the values, the derivative with respect to the scores, and where the values are
    defined. For a mean or sum they are the result, the derivative and each list's weight in the
    result. The derivative is an output so that a second differentiation raises an error.
    """

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        weights: Tensor | None,
        offsets: Tensor,
        list_weights: Tensor | None,
        details: _Details,
    ) -> tuple[Tensor, Tensor, Tensor]:
        name, options, max_length, reduction, known = details
        lists = scores, labels, mask, weights, offsets, max_length
        if known == "unreadable":
            values, grad_scores, defined = getattr(torch.ops.rankgrad, name)(*lists, *options)
            if reduction == "none":
                return values, grad_scores, defined
            mean = reduction == "mean"
            result, normalized_weights = torch.ops.rankgrad.reduce(
                values, defined, list_weights, mean
            )
            return result, grad_scores, normalized_weights
        with on_device(scores):
            if reduction == "none":
                found: tuple[Tensor, Tensor, Tensor] = _backend(name, scores)(*lists, *options)
                return found
            # A GPU checks the values while the host launches the kernels, valid or not.
            is_valid = check_values(*lists[:4], list_weights) if known == "unknown" else None
            reduced = _reduced_on_gpu() if scores.is_cuda else _reduced
            found = reduced(scores, name, reduction == "mean", list_weights, *lists[1:], *options)
            if is_valid is not None and not is_valid():
                raise InvalidValuesError
            return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, grad_scores, per_list = output
        ctx.save_for_backward(grad_scores, per_list, inputs[4])
        ctx.details = inputs[-1]
        ctx.mark_non_differentiable(per_list)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_of_derivative: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        _autograd.refuse_second_derivative(grad_of_derivative)
        nothing = (None,) * 6
        if grad is None:
            return None, *nothing
        grad_scores, per_list, offsets = ctx.saved_tensors
        max_length, reduction = ctx.details.max_length, ctx.details.reduction
        if _autograd.is_transformed(grad_scores, per_list):
            factors = grad if reduction == "none" else grad * per_list
            return scaled_by_list(factors, grad_scores, offsets, max_length), *nothing
        scale = _backend("scale_by_list", grad_scores)
        several = _autograd.is_transformed(grad)
        if reduction != "none" and several:
            return scale(per_list, grad_scores, offsets, max_length) * grad, *nothing
        if several:
            return scaled_by_list(grad, grad_scores, offsets, max_length), *nothing
        factors, factor = (grad, None) if reduction == "none" else (per_list, grad)
        return scale(factors, grad_scores, offsets, max_length, factor), *nothing

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        """Merge the lists of all batch entries into one call, then reduce each entry by itself."""
        calls, details = info.batch_size, arguments[-1]
        merged = [
            _autograd.merge(argument, dim, calls)
            for argument, dim in zip(arguments[:4], in_dims[:4], strict=True)
        ]
        items = merged[0].shape[0] // calls
        offsets, dim = arguments[4], in_dims[4]
        each = offsets.expand(calls, -1) if dim is None else offsets.movedim(dim, 0)
        starts = each[:, :-1] + items * torch.arange(calls, device=each.device)[:, None]
        merged.append(F.pad(starts.flatten(), (0, 1), value=calls * items))
        none = details._replace(reduction="none", known="unreadable")
        values, grad_scores, defined = (
            _autograd.split(found, calls) for found in _Loss.apply(*merged, None, none)
        )
        if details.reduction == "none":
            return (values, grad_scores, defined), (0, 0, 0)
        list_weights, dim = arguments[5], in_dims[5]
        normalized_weights = defined.to(values)
        if list_weights is not None:
            normalized_weights = normalized_weights * (
                list_weights if dim is None else list_weights.movedim(dim, 0)
            )
        if details.reduction == "mean":
            total = normalized_weights.sum(-1, keepdim=True)
            normalized_weights = normalized_weights / torch.where(total > 0, total, 1.0)
        return ((values * normalized_weights).sum(-1), grad_scores, normalized_weights), (0, 0, 0)


class _ReducedOnCPU(torch.autograd.Function):
    """The mean or sum on a CPU outside of transforms, faster than :class:`_Loss`.

    The forward pass scales the derivative, so only one tensor is saved.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lists: FlatLists,
        list_weights: Tensor | None,
        call: KernelCall,
        reduction: _Reduction,
        known: Values,
    ) -> Tensor:
        arrays_for, kernel, reduce_lists, has_metric = _cpu_kernel(call.name)
        flat = arrays_for(call, lists, list_weights)
        if known == "unknown" and not flat.valid:
            raise InvalidValuesError
        if not flat.repeat():
            options = call.options
            if has_metric:
                options = *options[:-5], MetricOptions(*options[-5:])
            kernel(flat, *options)
        grad_scores = np.empty(scores.shape, np.float32 if flat.single else np.float64)
        result = np.empty((), grad_scores.dtype)
        mean, scaled = reduction == "mean", grad_scores.reshape(-1)
        result[()] = reduce_lists(flat.arrays, flat.list_weights, mean, scaled)
        ctx.save_for_backward(torch.from_numpy(grad_scores))
        return torch.from_numpy(result)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            _autograd.refuse_second_derivative()
        (grad_scores,) = ctx.saved_tensors
        # Mostly the gradient is 1, and a product costs as much as a third of an empty function. A
        # retained graph keeps its tensor, since the caller may write to the one that is returned.
        scaled = grad_scores if _is_one(grad) and not _is_retained() else grad_scores * grad
        return scaled, None, None, None, None, None


def _is_one(grad: Tensor) -> bool:
    """Whether a scalar's gradient is known to be 1; reads it faster than ``Tensor.item`` does."""
    if type(grad) is not Tensor or is_functorch_wrapped_tensor(grad):
        return False
    number = _NUMBERS.get(grad.dtype)
    if number is None or is_legacy_batchedtensor(grad):
        return False
    return bool(number.from_address(grad.data_ptr()).value == 1.0)


def _reduce_lists(arrays: Any, list_weights: Any, mean: bool, scaled: Any) -> float:
    """The weighted sum or mean over lists; writes the scores' gradient to ``scaled``.

    Lists on which the loss is undefined have derivatives of 0, and their values are not read.
    """
    offsets, values, grad_scores, defined = arrays[4:]
    lists, weight = values.size, 0.0
    for b in range(lists):
        weight += list_weights[b] if defined[b] else 0.0
    scale = 1.0
    if mean:
        scale = 1.0 / weight if weight > 0 else 0.0
    result = 0.0
    for b in range(lists):
        factor = scale * list_weights[b] if defined[b] else 0.0
        if factor != 0:
            result += factor * values[b]
        own = grad_scores[offsets[b] : offsets[b + 1]]
        to = scaled[offsets[b] : offsets[b + 1]]
        for i in range(own.size):
            to[i] = factor * own[i]
    for i in range(offsets[lists], scaled.size):
        scaled[i] = 0.0
    return result


#: ``_ReducedOnCPU.apply`` without its slow binding of arguments:
#: see :func:`rankgrad._autograd.apply`.
_apply_on_cpu = super(torch.autograd.Function, _ReducedOnCPU).apply


def _reduced(
    scores: Tensor, name: str, mean: bool, list_weights: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean or sum, the derivatives of each list's value, and the normalized weights."""
    values, grad_scores, defined = _backend(name, scores)(scores, *others)
    result, normalized_weights = _backend("reduce", scores)(values, defined, list_weights, mean)
    return result, grad_scores, normalized_weights


@functools.cache
def _reduced_on_gpu() -> Callable[..., Any]:
    compile_ahead = _gpu_module("parallel_compilation").compile_ahead

    def reduced(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        found = result, grad_scores, per_list = _reduced(scores, *arguments)
        # The kernel of the backward pass is compiled together with those of the forward pass.
        offsets, max_length = arguments[6:8]
        scale = _backend("scale_by_list", scores)
        compile_ahead(scale, per_list, grad_scores, offsets, max_length, result)
        return found

    return _recorded(reduced)


def scaled_by_list(
    factors: Tensor, grad_scores: Tensor, offsets: Tensor, max_length: int
) -> Tensor:
    """Multiply the derivatives of each list's items by the list's factor, in plain PyTorch."""
    lists, items = factors.shape[-1], grad_scores.shape[-1]
    if lists * max_length == items:  # the lists are not ragged
        rows = grad_scores.reshape(*grad_scores.shape[:-1], lists, max_length)
        return (factors.unsqueeze(-1) * rows).reshape(*factors.shape[:-1], items)
    places = torch.arange(items, device=offsets.device)
    of_item = torch.searchsorted(offsets[1:].contiguous(), places, right=True)
    inside = of_item < lists
    return torch.where(inside, factors[..., of_item.clamp(max=lists - 1)] * grad_scores, 0.0)


def check_values(scores: Tensor, *others: Tensor | None) -> Callable[[], bool]:
    """Start a value check; call the returned function once to wait for its result.

    The result is whether scores are finite, weights finite and not negative, and labels from 0 to
    ``LARGEST_LABEL``. The arguments after the scores are labels, mask, weights and list weights,
    all flat.
    """
    with on_device(scores):
        result: Callable[[], bool] = _backend("check_values", scores)(scores, *others)
    return result


def too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    """Which labels are too large for ``2^y``, as an operation for compiled code.

    On a CPU, a label that is too large raises an error.
    """
    found: Tensor = torch.ops.rankgrad.too_large(labels, mask, most)
    return found


def refuse_large(labels: Tensor, mask: Tensor | None, most: float) -> None:
    """Raise an error if a label is too large for ``2^y``."""
    real = labels.detach() if mask is None else labels.detach().where(mask, 0)
    highest = float(real.max())
    if highest > most:
        raise ValueError(
            f"a label of {highest:g} is too large for the gain 2^y - 1, which ends at {most:g} in "
            f"{labels.dtype}: use labels on a small scale, or gain=linear where the metric has it"
        )


def exact_metrics(lists: FlatLists, described: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The values of metrics, and whether a list has a relevant item of positive weight.

    Both are ``[metrics, lists]``. :mod:`rankgrad.kernels.cpu._metrics` defines ``described``.
    """
    with on_device(lists.scores):
        found: tuple[Tensor, Tensor] = _backend("exact_metrics", lists.scores)(lists, described)
    return found


def _backend(name: str, tensor: Tensor) -> Any:
    """The kernel of an operation on a tensor's device."""
    backend = backends[name, tensor.device.type]
    return backend.found or backend


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which the tensor's device is current, so kernels are launched there.

    On a GPU, the kernels that are launched in it are compiled at the same time.
    """
    if not tensor.is_cuda:
        return _SAME_DEVICE
    if _one_device() or tensor.get_device() == torch.cuda.current_device():
        return _gpu_call()
    return _on_other_device(tensor)


@contextmanager
def _on_other_device(tensor: Tensor) -> Iterator[None]:
    with torch.cuda.device_of(tensor), _gpu_call():
        yield


@functools.cache
def _gpu_call() -> AbstractContextManager[Any]:
    scope: AbstractContextManager[Any] = _gpu_module("parallel_compilation").CallScope()
    return scope


@functools.cache
def _one_device() -> bool:
    return torch.cuda.device_count() == 1
