"""Calls of operations: which of them run a backend kernel, and the autograd functions of losses.

:mod:`rankgrad.kernels._backends` has the table of operations. Losses call :func:`reduced_loss` or
:func:`loss`, exact metrics :func:`exact_metrics`, and checks of inputs :func:`check_values`.

A loss is one autograd function. Its forward pass also computes the derivative with respect to the
scores, and its backward pass multiplies that by the incoming gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.nn import functional as F

from rankgrad import _autograd
from rankgrad.kernels._backends import (
    LOSSES,
    METRICS,
    OPERATIONS,
    PACKAGES,
    REQUIRES,
    backend_kernel,
    backend_of,
    backends,
    cpu_kernel,
    gpu_module,
    has_kernel,
    is_installed,
    max_length_of,
    on_device,
    recorded,
)
from rankgrad.kernels.arguments import ExactMetric, FlatLists, KernelCall, MetricOptions

__all__ = [
    "LINEAR_GAIN",
    "LOSSES",
    "METRICS",
    "MODES",
    "InvalidValuesError",
    "KernelCall",
    "Mode",
    "Validity",
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

_Reduction = Literal["mean", "sum", "none"]
#: The arguments of :class:`_ReducedOnCPU` besides the scores: the operation and its options, the
#: lists, the list weights, the reduction, and whether the values were checked. A named tuple takes
#: five times as long to create, at every call.
_CpuArguments = tuple[KernelCall, FlatLists, Tensor | None, _Reduction, bool]
#: What is known of the values of lists. ``"valid"``: they were checked. ``"unknown"``: the kernel
#: checks them. ``"unreadable"``: they cannot be read now, so CPU kernels run with NaN guards.
Validity = Literal["valid", "unknown", "unreadable"]

Mode = Literal["auto", "eager", "fused"]
MODES: tuple[Mode, ...] = get_args(Mode)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_mode: Mode = "auto"
#: Whether the running backward pass retains its graph; assumed where PyTorch does not tell.
_is_retained = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


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
        ValueError: there is no such mode.

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
    return available(OPERATIONS[name].module, name, scores)


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
    if _mode == "eager" or device not in PACKAGES:
        return False
    if _mode == "fused" and not installed(REQUIRES[device]):
        raise RuntimeError(
            f'kernels.use("fused") on {device} needs {REQUIRES[device]}, which is not installed; '
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
    return is_installed(package)


@_constant
def _has_kernel(device: str, module: str, name: str) -> bool:
    return has_kernel(device, module, name)


class InvalidValuesError(Exception):
    """A value is invalid, or a label is too large for kernels."""


def loss(
    call: KernelCall,
    lists: FlatLists,
    validity: Validity = "valid",
) -> tuple[Tensor, Tensor]:
    """One of :data:`LOSSES` per list, as one autograd function.

    This equals ``torch.ops.rankgrad.NAME``, but skips PyTorch's registry, whose overhead is as
    large as a small loss.

    Args:
        call: the operation and its options.
        lists: the lists.
        validity: what is known of their values.

    Returns:
        The values ``[lists]``, and where they are defined ``[lists]``.
    """
    if torch.compiler.is_compiling():
        return _compiled_loss(call, lists)
    details = _Details(*call, lists.max_length, "none", validity)
    values, _, defined = _autograd.apply(_Loss, *_flat(lists), None, details)
    return values, defined


def _flat(lists: FlatLists) -> list[Tensor | None]:
    """Scores, labels, mask, weights and offsets, flattened to one dimension."""
    return [None if tensor is None else tensor.reshape(-1) for tensor in lists[:5]]


def reduced_loss(
    call: KernelCall,
    lists: FlatLists,
    reduction: _Reduction,
    list_weights: Tensor | None = None,
    validity: Validity = "valid",
) -> Tensor:
    """The mean or sum over lists of one of :data:`LOSSES`, as one autograd function.

    Lists on which the loss is undefined are left out, as in :func:`rankgrad.losses._base.reduce`.

    Args:
        call: the operation and its options.
        lists: the lists.
        reduction: ``"mean"`` or ``"sum"``.
        list_weights: ``[lists]`` or None; they are not differentiated.
        validity: what is known of the values of the lists and of these weights.

    Raises:
        InvalidValuesError: the validity was unknown, and the check found an invalid value.
    """
    # Compiled code cannot read values, so it does not check them either.
    if validity != "unknown" and torch.compiler.is_compiling():
        values, defined = _compiled_loss(call, lists)
        mean = reduction == "mean"
        result: Tensor = torch.ops.rankgrad.reduce(values, defined, list_weights, mean)[0]
        return result
    transformed = torch._C._are_functorch_transforms_active()
    if lists.scores.is_cpu and validity != "unreadable" and not transformed:
        checked = validity == "valid"
        result = _apply_on_cpu(lists.scores, (call, lists, list_weights, reduction, checked))
        return result
    details = _Details(*call, lists.max_length, reduction, validity)
    result = _autograd.apply(_Loss, *_flat(lists), list_weights, details)[0]
    return result


def _compiled_loss(call: KernelCall, lists: FlatLists) -> tuple[Tensor, Tensor]:
    """The values and where they are defined, by the operation registered in ``torch.ops``."""
    if (lists.offsets.shape[0] - 1) * lists.max_length != lists.scores.shape[0]:
        lists = lists._replace(max_length=-1)  # ragged: the operation computes the maximum
    values, _, defined = getattr(torch.ops.rankgrad, call.name)(*lists, *call.options)
    return values, defined


class _Details(NamedTuple):
    """The arguments of :class:`_Loss` that are not tensors."""

    name: str
    options: tuple[Any, ...]
    max_length: int
    reduction: _Reduction
    validity: Validity


class _Loss(torch.autograd.Function):
    """A loss per list, or its mean or sum; the forward pass also computes the derivative.

    The outputs are the values ``[lists]``, their derivative with respect to the scores ``[items]``,
    and where the values are defined ``[lists]``. For a mean or sum they are the result ``[]``, the
    same derivative, and each list's weight in the result ``[lists]``. The derivative is an output
    so that a second differentiation raises an error.
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
        name, options, max_length, reduction, validity = details
        lists = scores, labels, mask, weights, offsets, max_length
        if validity == "unreadable":
            values, grad_scores, defined = getattr(torch.ops.rankgrad, name)(*lists, *options)
            if reduction == "none":
                return values, grad_scores, defined
            mean = reduction == "mean"
            result, normalized_weights = torch.ops.rankgrad.reduce(
                values, defined, list_weights, mean
            )
            return result, grad_scores, normalized_weights
        with on_device(scores):
            outputs: tuple[Tensor, Tensor, Tensor]
            if reduction == "none":
                outputs = backend_of(name, scores)(*lists, *options)
                return outputs
            # A GPU checks the values while the host launches the kernels, valid or not.
            is_valid = check_values(*lists[:4], list_weights) if validity == "unknown" else None
            reduced = _reduced_on_gpu() if scores.is_cuda else _reduced
            outputs = reduced(scores, name, reduction == "mean", list_weights, *lists[1:], *options)
            if is_valid is not None and not is_valid():
                raise InvalidValuesError
            return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, grad_scores, per_list = output  # per list: whether it is defined, or its weight
        ctx.save_for_backward(grad_scores, per_list, inputs[4])
        ctx.details = inputs[-1]
        ctx.mark_non_differentiable(per_list)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_of_derivative: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        _autograd.refuse_second_derivative(grad_of_derivative)
        no_grads = (None,) * 6
        if grad is None:
            return None, *no_grads
        grad_scores, per_list, offsets = ctx.saved_tensors
        max_length, reduced = ctx.details.max_length, ctx.details.reduction != "none"
        # Kernels take no tensors of torch.func's transforms: those are scaled in plain PyTorch.
        if _autograd.is_transformed(grad_scores, per_list):
            factors = grad * per_list if reduced else grad
            return scaled_by_list(factors, grad_scores, offsets, max_length), *no_grads
        scale = backend_of("scale_by_list", grad_scores)
        if _autograd.is_transformed(grad):
            if reduced:
                return scale(per_list, grad_scores, offsets, max_length) * grad, *no_grads
            return scaled_by_list(grad, grad_scores, offsets, max_length), *no_grads
        factors, factor = (per_list, grad) if reduced else (grad, None)
        return scale(factors, grad_scores, offsets, max_length, factor), *no_grads

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        """Run the operation once on the lists of all calls in the batch, then reduce each call."""
        calls, details = info.batch_size, arguments[-1]
        merged = [
            _autograd.merge(argument, dim, calls)
            for argument, dim in zip(arguments[:4], in_dims[:4], strict=True)
        ]
        items = merged[0].shape[0] // calls
        offsets, dim = arguments[4], in_dims[4]
        by_call = offsets.expand(calls, -1) if dim is None else offsets.movedim(dim, 0)
        starts = by_call[:, :-1] + items * torch.arange(calls, device=by_call.device)[:, None]
        merged.append(F.pad(starts.flatten(), (0, 1), value=calls * items))
        unreduced = details._replace(reduction="none", validity="unreadable")
        values, grad_scores, defined = (
            _autograd.split(output, calls) for output in _Loss.apply(*merged, None, unreduced)
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
    """The mean or sum on a CPU, faster than :class:`_Loss`; not for ``torch.func``'s transforms.

    The forward pass multiplies the derivative by each list's weight, so only one tensor is saved.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, arguments: _CpuArguments) -> Tensor:
        call, lists, list_weights, reduction, checked = arguments
        arrays_for, kernel, reduce_lists, has_metric = cpu_kernel(call.name)
        flat = arrays_for(lists, list_weights)
        if not (checked or flat.valid):
            raise InvalidValuesError
        # ``repeat`` runs the last loop on these arrays again, if the last call was the same.
        if not flat.repeat(call):
            options = call.options
            if has_metric:  # the last five options are the fields of MetricOptions
                options = *options[:-5], MetricOptions(*options[-5:])
            kernel(flat, *options)
        # PyTorch allocates the results, not NumPy: the backward pass uses its allocator next, which
        # is then in the instruction cache.
        grad_scores, result = torch.empty_like(scores), torch.empty_like(flat.scalar)
        addresses = grad_scores.data_ptr(), result.data_ptr(), scores.numel()
        reduce_lists(flat.arrays, flat.list_weights, reduction == "mean", addresses, flat.like)
        ctx.save_for_backward(grad_scores)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            _autograd.refuse_second_derivative()
        (grad_scores,) = ctx.saved_tensors
        # In most calls the gradient is 1; a product costs a third of an empty autograd function. A
        # retained graph needs a copy, as the caller may write to the tensor that is returned.
        if (
            type(grad) is Tensor
            and not is_functorch_wrapped_tensor(grad)
            and not is_legacy_batchedtensor(grad)
            and grad.item() == 1.0
            and not _is_retained()
        ):
            return grad_scores, None
        return grad_scores * grad, None


#: ``_ReducedOnCPU.apply`` without its slow binding of arguments; see
#: :func:`rankgrad._autograd.apply`.
_apply_on_cpu = super(torch.autograd.Function, _ReducedOnCPU).apply


def _reduced(
    scores: Tensor, name: str, mean: bool, list_weights: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean or sum, the derivatives of each list's value, and the normalized weights.

    ``others`` are labels, mask, weights, offsets, the maximal length, and the options.
    """
    values, grad_scores, defined = backend_of(name, scores)(scores, *others)
    result, normalized_weights = backend_of("reduce", scores)(values, defined, list_weights, mean)
    return result, grad_scores, normalized_weights


@functools.cache
def _reduced_on_gpu() -> Callable[..., Any]:
    """:func:`_reduced`, whose kernel launches are recorded once and then replayed."""
    compile_ahead = gpu_module("parallel_compilation").compile_ahead

    def reduced(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        result, grad_scores, per_list = _reduced(scores, *arguments)
        # The kernel of the backward pass is compiled together with those of the forward pass.
        # The arguments before the offsets: name, mean, list weights, labels, mask, weights.
        offsets, max_length = arguments[6:8]
        scale = backend_of("scale_by_list", scores)
        compile_ahead(scale, per_list, grad_scores, offsets, max_length, result)
        return result, grad_scores, per_list

    return recorded(reduced)


def scaled_by_list(
    factors: Tensor, grad_scores: Tensor, offsets: Tensor, max_length: int
) -> Tensor:
    """Multiply the derivatives of each list's items by the list's factor, in plain PyTorch.

    Args:
        factors: ``[..., lists]``.
        grad_scores: ``[..., items]``.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.

    Returns:
        ``[..., items]``.
    """
    lists, items = factors.shape[-1], grad_scores.shape[-1]
    if lists * max_length == items:  # the lists are not ragged
        rows = grad_scores.reshape(*grad_scores.shape[:-1], lists, max_length)
        return (factors.unsqueeze(-1) * rows).reshape(*factors.shape[:-1], items)
    positions = torch.arange(items, device=offsets.device)
    list_index = torch.searchsorted(offsets[1:].contiguous(), positions, right=True)
    inside = list_index < lists  # memory may go on after the last list
    return torch.where(inside, factors[..., list_index.clamp(max=lists - 1)] * grad_scores, 0.0)


def check_values(scores: Tensor, *others: Tensor | None) -> Callable[[], bool]:
    """Start a value check; call the returned function once to wait for its result.

    The result is True if all scores are finite, all weights are finite and not negative, and all
    labels are between 0 and ``LARGEST_LABEL`` of :mod:`rankgrad.kernels.arguments`. The arguments
    after the scores are labels, mask, weights and list weights, all flat.
    """
    with on_device(scores):
        result: Callable[[], bool] = backend_of("check_values", scores)(scores, *others)
    return result


def too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    """Which labels are above ``most``, so too large for ``2^y``; an operation for compiled code.

    On a CPU, a label that is too large raises an error.
    """
    large: Tensor = torch.ops.rankgrad.too_large(labels, mask, most)
    return large


#: The second remedy for large labels; where the metric or loss is known, its spec is better.
LINEAR_GAIN = ", or gain=linear where that is an option"


def refuse_large(labels: Tensor, mask: Tensor | None, most: float) -> None:
    """Raise an error if a label is above ``most``, so too large for ``2^y``."""
    real = labels.detach() if mask is None else labels.detach().where(mask, 0)
    highest = float(real.max())
    if highest > most:
        raise ValueError(
            f"a label of {highest:g} is too large for the gain 2^y - 1, which ends at {most:g} in "
            f"{labels.dtype}: use labels on a small scale{LINEAR_GAIN}"
        )


def exact_metrics(lists: FlatLists, metrics: Sequence[ExactMetric]) -> tuple[Tensor, Tensor]:
    """The values of metrics, and whether a list has a relevant item of positive weight.

    Both are ``[metrics, lists]``.
    """
    with on_device(lists.scores):
        values: Tensor
        values, relevant = backend_of("exact_metrics", lists.scores)(lists, metrics)
    return values, relevant
