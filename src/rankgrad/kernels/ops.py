"""The operations of backend kernels, registered with PyTorch for autograd and ``torch.compile``.

Those of losses take lists in the flat layout, :class:`rankgrad.lists.FlatLists`, as their first
arguments, and give in one pass, for each list its value and whether the loss is defined there, and
for each item the derivative of its list's value (0 on padding, and throughout lists on which the
loss is undefined): the backward pass is one product.

A metric is ``metric`` (``ndcg``, ``dcg``, ``precision``, ``recall``, ``rbp``, ``arp``, ``ap``,
``rr``, ``err`` or ``hits``), ``k`` (0 for none), ``gain`` (``exponential`` or ``linear``),
``threshold`` (of err: the top of the label scale) and ``persistence``, as in
:mod:`rankgrad.metrics`, whose eager forms say what is computed here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad import autograd
from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.nan_guard import guarded_loss, guarded_product, guarded_ranks

_LISTS = (
    "Tensor scores, Tensor labels, Tensor? mask, Tensor? weights, Tensor offsets, int max_length"
)
_METRIC = "str metric, int k, str gain, float threshold, float persistence"
_VALUES = "(Tensor values, Tensor grad_scores, Tensor defined)"

#: Losses: values [lists], grad_scores [items] and defined [lists]; and the module of the kernels.
LOSSES = {
    # 1 - metric through relaxed ranks; relaxation "sigmoid" (sharpness alpha), "lapsum" (1 / τ),
    # "fastsort" or "fastsort_entropic" (1 / strength).
    "through_ranks": (
        "ranks",
        f"({_LISTS}, str relaxation, float sharpness, float beta, {_METRIC}) -> {_VALUES}",
    ),
    # 1 - metric through the rows of a relaxed permutation: "neuralsort" or "softsort".
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
    # Sums over pairs: "ranknet", "hinge" (sigma is the margin), "lambdarank", "ndcg_loss1",
    # "ndcg_loss2" or "ndcg_loss2++", for NDCG. Half: RankNet's pairs of equal labels, too. Of
    # other metrics ("precision", "recall", "ap", "rr", "arp": binary ones from a threshold on):
    # "lambdarank", or "ndcg_loss2" for LambdaLoss.
    "pairs": (
        "pairs",
        f"({_LISTS}, str kind, int k, float sigma, str gain, str truncation, float mu, bool half, "
        f'str metric="ndcg", float threshold=1.0) -> {_VALUES}',
    ),
    # ListMLE; ties in labels by a hash of the seed (one int64 on the device) and the place of the
    # item among the real ones, or in input order without a seed.
    "listmle": ("listmle", f"({_LISTS}, Tensor? seed) -> {_VALUES}"),
    # Cross-entropies; the target is the "label" itself, as for softmax, or the labels' "softmax",
    # as for ListNet.
    "cross_entropy": ("cross_entropy", f"({_LISTS}, str target) -> {_VALUES}"),
    # Means over items: "mse"; "rmse" and "ordinal", where number is the levels; "bce", where it is
    # the threshold.
    "pointwise": ("pointwise", f"({_LISTS}, str kind, float number) -> {_VALUES}"),
}

_OF_METRICS = {name for name, (_, schema) in LOSSES.items() if _METRIC in schema}

#: Relaxed ranks [items], 0 on padding, and the vector-Jacobian product by scores.
RANKS = {
    "sigmoid_ranks": (
        "ranks",
        "(Tensor scores, Tensor? mask, Tensor offsets, int max_length, float alpha) -> Tensor",
        "(Tensor grad, Tensor scores, Tensor? mask, Tensor offsets, int max_length, float alpha) "
        "-> Tensor",
    ),
    "lapsum_ranks": (
        "lapsum",
        "(Tensor scores, Tensor? mask, Tensor offsets, int max_length, float temperature) "
        "-> Tensor",
        "(Tensor grad, Tensor scores, Tensor? mask, Tensor offsets, int max_length, "
        "float temperature) -> Tensor",
    ),
}

#: Exact metrics, which nothing differentiates or compiles: a plain function of the module.
METRICS = {"exact_metrics": ("metrics",)}

#: Checks of the values of lists, likewise.
CHECKS = {"check_values": ("value_check",)}

Reduction = Literal["mean", "sum", "none"]

_library = torch.library.Library("rankgrad", "DEF")
_SAME_DEVICE: AbstractContextManager[Any] = nullcontext()
_PLAIN = (Tensor, torch.nn.Parameter)  # not what stands for something else, as in a transform


class KernelCall(NamedTuple):
    """A call of an operation of this module, but for the lists: its name and its options."""

    name: str
    options: tuple[Any, ...]


class _Backend:
    """The kernel of an operation on a kind of device, imported when it is first needed."""

    def __init__(self, name: str, module: str, package: str) -> None:
        self.name, self.module = name, f"rankgrad.kernels.{package}.{module}"
        self.records = package == "gpu" and name not in (*METRICS, *CHECKS)
        self.found: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.found is None:
            self.found = self.find()
        return self.found(*arguments)

    def find(self) -> Callable[..., Any]:
        """The kernel as a function of the operation's arguments; on GPUs its calls are recorded."""
        found = getattr(importlib.import_module(self.module), self.name)
        if self.name in LOSSES:
            on_arrays = self.module.startswith("rankgrad.kernels.cpu")
            found = _grouped(_flat_arrays().takes_lists(found) if on_arrays else found, self.name)
        return _recorded(found) if self.records else found

    def on_device(self, first: Tensor, *arguments: Any) -> Any:
        """The same on the device of the first tensor: PyTorch's registry does not go there."""
        with on_device(first):
            return self(first, *arguments)


def _grouped(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A kernel of a loss as a function of the operation's arguments, which PyTorch has in a row."""

    def call(*arguments: Any) -> Any:
        lists, options = FlatLists(*arguments[:6]), arguments[6:]
        if lists.max_length < 0:  # compiled code does not know it
            lists = lists._replace(max_length=max_length_of(lists.offsets))
        return kernel(lists, *_with_metric(name, options))

    return call


def _with_metric(name: str, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options of a loss as its kernel takes them: those of a metric as one."""
    if name not in _OF_METRICS:
        return options
    return *options[:-5], MetricOptions(*options[-5:])


@functools.cache
def _flat_arrays() -> Any:
    """What needs Numba, imported when it is first needed."""
    return importlib.import_module("rankgrad.kernels.cpu.flat_arrays")


def max_length_of(offsets: Tensor) -> int:
    """The largest length of the lists."""
    return int(offsets.diff().max()) if offsets.numel() > 1 else 0


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches on GPUs, where calls that come again are recorded and replayed."""
    module = importlib.import_module("rankgrad.kernels.gpu.launch_cache")
    found: Callable[..., Any] = module.cached_launches(function)
    return found


_PACKAGES = {"cpu": "cpu", "cuda": "gpu"}
_backends: dict[tuple[str, str], _Backend] = {
    (name, device): _Backend(name, module, package)
    for name, (module,) in {**METRICS, **CHECKS}.items()
    for device, package in _PACKAGES.items()
}


def _register(name: str, module: str, schema: str, guard: Any = None) -> None:
    """Register an operation; a NaN guard of its CPU kernel is for callers that check no values."""
    _library.define(name + schema)
    for device, package in _PACKAGES.items():
        backend = _backends[name, device] = _Backend(name, module, package)
        run = guard(backend.on_device) if guard and package == "cpu" else backend.on_device
        _library.impl(name, run, device.upper())


def backend_kernel(name: str, package: str) -> Callable[..., Any]:
    """The kernel of an operation in ``cpu`` or ``gpu``, as a function of its arguments."""
    return next(
        backend.find()
        for (known, device), backend in _backends.items()
        if known == name and _PACKAGES[device] == package
    )


def loss(
    call: KernelCall,
    lists: FlatLists,
    checked: bool = True,
) -> tuple[Tensor, Tensor]:
    """One of :data:`LOSSES` and its derivative by the scores, as one step of autograd.

    The same as ``torch.ops.rankgrad.NAME``, without PyTorch's registry, which costs as much as a
    small loss itself.

    Args:
        call: the operation and its options.
        lists: the lists.
        checked: whether values are known to be right.

    Returns:
        The values ``[lists]`` and where they are defined.
    """
    if torch.compiler.is_compiling():
        return _compiled_loss(call, lists)
    details = _Details(*call, lists.max_length, "none", checked)
    values, _, defined = autograd.apply(_Loss, *_flat(lists), None, details)
    return values, defined


def reduced_loss(
    call: KernelCall,
    lists: FlatLists,
    reduction: Reduction,
    list_weights: Tensor | None = None,
    checked: bool = True,
) -> Tensor:
    """The mean or sum over lists of one of :data:`LOSSES`, as one step of autograd.

    Lists on which the loss is undefined are left out, as in :func:`rankgrad.lists.reduce`.

    Args:
        call: the operation and its options.
        lists: the lists.
        reduction: ``"mean"`` or ``"sum"``.
        list_weights: of the mean or sum, or None. They are not differentiated.
        checked: whether values are known to be right.
    """
    if torch.compiler.is_compiling():
        values, defined = _compiled_loss(call, lists)
        mean = reduction == "mean"
        result: Tensor = torch.ops.rankgrad.reduce(values, defined, list_weights, mean)[0]
        return result
    if checked and lists.scores.is_cpu:
        found = reduced_on_cpu(call, lists, reduction, list_weights)
        if found is not None:
            return found
    details = _Details(*call, lists.max_length, reduction, checked)
    result = autograd.apply(_Loss, *_flat(lists), list_weights, details)[0]
    return result


def reduced_on_cpu(
    call: KernelCall, lists: FlatLists, reduction: Reduction, list_weights: Tensor | None
) -> Tensor | None:
    """:func:`reduced_loss` on a CPU; None in transforms, and where a value is not allowed."""
    if torch._C._are_functorch_transforms_active():
        return None
    for tensor in (*lists[:4], list_weights):
        if tensor is not None and type(tensor) not in _PLAIN:
            return None
    arrays = _flat_arrays().FlatArrays(lists, list_weights)
    if not arrays.valid:
        return None
    result: Tensor = _apply_on_cpu(lists.scores, arrays, call, reduction == "mean")
    return result


def _flat(lists: FlatLists) -> list[Tensor | None]:
    """The tensors of lists, in one dimension."""
    return [None if tensor is None else tensor.reshape(-1) for tensor in lists[:5]]


def _compiled_loss(call: KernelCall, lists: FlatLists) -> tuple[Tensor, Tensor]:
    """The values and where they are defined, by an operation that compilers know."""
    if (lists.offsets.shape[0] - 1) * lists.max_length != lists.scores.shape[0]:
        lists = lists._replace(max_length=-1)  # of ragged lists, which the operation finds out
    values, _, defined = getattr(torch.ops.rankgrad, call.name)(*lists, *call.options)
    return values, defined


class _Details(NamedTuple):
    """What :class:`_Loss` takes beside tensors."""

    name: str
    options: tuple[Any, ...]
    max_length: int
    reduction: Reduction
    checked: bool


class _Loss(torch.autograd.Function):
    """A loss of every list, or the mean or sum of it; the derivative is computed on the way.

    Results are the values and where they are defined, or the mean or sum and each list's weight
    in it; between them the derivative by the scores, so that a second one can be refused.
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
        name, options, max_length, reduction, checked = details
        lists = scores, labels, mask, weights, offsets, max_length
        if not checked:
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
            reduced = _reduced_on_gpu() if scores.is_cuda else _reduced
            found = reduced(scores, name, reduction == "mean", list_weights, *lists[1:], *options)
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
        autograd.refuse_second_derivative(grad_of_derivative)
        nothing = (None,) * 6
        if grad is None:
            return None, *nothing
        grad_scores, per_list, offsets = ctx.saved_tensors
        max_length, reduction = ctx.details.max_length, ctx.details.reduction
        if autograd.is_transformed(grad_scores, per_list):
            factors = grad if reduction == "none" else grad * per_list
            return _scaled_by_list(factors, grad_scores, offsets, max_length), *nothing
        scale = _backend("scale_by_list", grad_scores)
        several = autograd.is_transformed(grad)
        if reduction != "none" and several:
            return scale(per_list, grad_scores, offsets, max_length) * grad, *nothing
        if several:
            return _scaled_by_list(grad, grad_scores, offsets, max_length), *nothing
        factors, factor = (grad, None) if reduction == "none" else (per_list, grad)
        return scale(factors, grad_scores, offsets, max_length, factor), *nothing

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call on the lists of all calls, each of which is reduced by itself."""
        calls, details = info.batch_size, arguments[-1]
        merged = [
            autograd.merge(argument, dim, calls)
            for argument, dim in zip(arguments[:4], in_dims[:4], strict=True)
        ]
        items = merged[0].shape[0] // calls
        offsets, dim = arguments[4], in_dims[4]
        each = offsets.expand(calls, -1) if dim is None else offsets.movedim(dim, 0)
        starts = each[:, :-1] + items * torch.arange(calls, device=each.device)[:, None]
        merged.append(F.pad(starts.flatten(), (0, 1), value=calls * items))
        none = details._replace(reduction="none", checked=False)
        values, grad_scores, defined = (
            autograd.split(found, calls) for found in _Loss.apply(*merged, None, none)
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
    """The mean or sum on a CPU, outside of transforms: the same as :class:`_Loss` in less time.

    The lists are arrays already, and the derivative is scaled in the forward pass, so that there is
    one tensor to save.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, arrays: Any, call: KernelCall, mean: bool) -> Tensor:
        name, options = call
        _cpu_kernel(name)(arrays, *_with_metric(name, options))
        result: Tensor
        result, grad_scores = arrays.reduced(mean)
        ctx.save_for_backward(grad_scores)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        autograd.refuse_second_derivative()
        return ctx.saved_tensors[0] * grad, None, None, None


#: ``_ReducedOnCPU.apply``, less its binding of arguments by name, which transforms need.
_apply_on_cpu: Any = super(torch.autograd.Function, _ReducedOnCPU).apply


@functools.cache
def _cpu_kernel(name: str) -> Callable[..., None]:
    """The CPU kernel of a loss as a function of arrays, to which it writes its results."""
    module = importlib.import_module(f"rankgrad.kernels.cpu.{LOSSES[name][0]}")
    found: Callable[..., None] = getattr(module, name)
    return found


def _reduced(
    scores: Tensor, name: str, mean: bool, list_weights: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean or the sum, the derivatives of each list's value, and each list's weight."""
    values, grad_scores, defined = _backend(name, scores)(scores, *others)
    result, normalized_weights = _backend("reduce", scores)(values, defined, list_weights, mean)
    return result, grad_scores, normalized_weights


@functools.cache
def _reduced_on_gpu() -> Callable[..., Any]:
    return _recorded(_reduced)


def _scaled_by_list(
    factors: Tensor, grad_scores: Tensor, offsets: Tensor, max_length: int
) -> Tensor:
    """Each list's factor times the derivatives of its items, in plain PyTorch."""
    lists, items = factors.shape[-1], grad_scores.shape[-1]
    if lists * max_length == items:  # not of ragged lists
        rows = grad_scores.reshape(*grad_scores.shape[:-1], lists, max_length)
        return (factors.unsqueeze(-1) * rows).reshape(*factors.shape[:-1], items)
    places = torch.arange(items, device=offsets.device)
    of_item = torch.searchsorted(offsets[1:].contiguous(), places, right=True)
    inside = of_item < lists
    return torch.where(inside, factors[..., of_item.clamp(max=lists - 1)] * grad_scores, 0.0)


def check_values(scores: Tensor, *others: Tensor | None) -> Callable[[], bool]:
    """Start a check of values, and give what waits for its result, to be called once.

    That is whether scores are finite, weights finite and not negative, and labels not large either.
    After the scores: labels, mask, weights and list weights, all flat.
    """
    with on_device(scores):
        result: Callable[[], bool] = _backend("check_values", scores)(scores, *others)
    return result


def too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    """Which labels are too large to take ``2^y`` of them, as an operation of compiled code.

    On a CPU, one that is too large is an error.
    """
    found: Tensor = torch.ops.rankgrad.too_large(labels, mask, most)
    return found


def refuse_large(labels: Tensor, mask: Tensor | None, most: float) -> None:
    """An error if a label is too large to take ``2^y`` of it."""
    real = labels.detach() if mask is None else labels.detach().where(mask, 0)
    highest = float(real.max())
    if highest > most:
        raise ValueError(
            f"a label of {highest:g} is too large for the gain 2^y - 1, which ends at {most:g} in "
            f"{labels.dtype}: use labels on a small scale, or gain=linear where the metric has it"
        )


def exact_metrics(scores: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """The values of metrics ``[metrics, lists]``, and whether a list has an item that counts.

    After the scores: labels, mask, weights, offsets and a bound on the lists' lengths, as above;
    and the metrics, as :mod:`rankgrad.kernels.cpu.metrics` describes them.
    """
    with on_device(scores):
        found: tuple[Tensor, Tensor] = _backend("exact_metrics", scores)(scores, *others)
    return found


def _backend(name: str, tensor: Tensor) -> Any:
    """The kernel for the device of a tensor."""
    backend = _backends[name, tensor.device.type]
    return backend.found or backend


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the present one, where kernels are launched."""
    if not tensor.is_cuda or _one_device() or tensor.get_device() == torch.cuda.current_device():
        return _SAME_DEVICE
    return torch.cuda.device_of(tensor)


@functools.cache
def _one_device() -> bool:
    return torch.cuda.device_count() == 1


def _empty_values(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    lists = arguments[3].shape[0] - 1
    values = scores.new_empty(lists)
    return values, torch.empty_like(scores), torch.empty_like(values, dtype=torch.bool)


def _save_derivative(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], inputs[4])
    ctx.max_length, ctx.inputs = inputs[5], len(inputs)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _scale_derivative(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    grad_scores, offsets = ctx.saved_tensors
    scaled = None
    if grad is not None:
        autograd.refuse_second_derivative()
        ragged = ctx.max_length < 0
        scale = _scaled_by_list if ragged else torch.ops.rankgrad.scale_by_list
        scaled = scale(grad, grad_scores, offsets, ctx.max_length)
    return (scaled, *[None] * (ctx.inputs - 1))


for _name, (_module, _schema) in LOSSES.items():
    _register(_name, _module, _schema, guarded_loss)
    torch.library.register_fake(f"rankgrad::{_name}", _empty_values, lib=_library)
    torch.library.register_autograd(
        f"rankgrad::{_name}", _scale_derivative, setup_context=_save_derivative, lib=_library
    )


def _rank_gradient(name: str) -> Any:
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        autograd.refuse_second_derivative()
        scores, mask, offsets = ctx.saved_tensors
        product = getattr(torch.ops.rankgrad, f"{name}_vjp")
        return product(grad, scores, mask, offsets, *ctx.rest), None, None, None, None

    return backward


def _save_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


for _name, (_module, _schema, _product) in RANKS.items():
    _register(_name, _module, _schema, guarded_ranks)
    _register(f"{_name}_vjp", _module, _product, guarded_product)
    for _each in (_name, f"{_name}_vjp"):
        torch.library.register_fake(
            f"rankgrad::{_each}", lambda first, *_: torch.empty_like(first), lib=_library
        )
    torch.library.register_autograd(
        f"rankgrad::{_name}", _rank_gradient(_name), setup_context=_save_scores, lib=_library
    )


def _too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    if labels.numel() and not labels.is_cuda:
        refuse_large(labels, mask, most)
    return labels > most if mask is None else (labels > most) & mask


_library.define("too_large(Tensor labels, Tensor? mask, float most) -> Tensor")
_library.impl("too_large", _too_large, "CompositeExplicitAutograd")
torch.library.register_fake(
    "rankgrad::too_large",
    lambda labels, *_: torch.empty_like(labels, dtype=torch.bool),
    lib=_library,
)

# The derivatives of the items of each list times the factor of the list, and one of all lists.
_register(
    "scale_by_list",
    "scale_by_list",
    "(Tensor grad, Tensor grad_scores, Tensor offsets, int max_length, Tensor? factor=None) "
    "-> Tensor",
)
torch.library.register_fake(
    "rankgrad::scale_by_list",
    lambda grad, grad_scores, *_: torch.empty_like(grad_scores),
    lib=_library,
)


def _reduce_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    (normalized_weights,) = ctx.saved_tensors
    return grad * normalized_weights, None, None, None


def _save_weights(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


# The weighted sum or mean over lists, and the normalized weight of each.
_register(
    "reduce",
    "reduce",
    "(Tensor values, Tensor defined, Tensor? list_weights, bool mean) "
    "-> (Tensor result, Tensor normalized_weights)",
)
torch.library.register_fake(
    "rankgrad::reduce",
    lambda values, *_: (values.new_empty(()), torch.empty_like(values)),
    lib=_library,
)
torch.library.register_autograd(
    "rankgrad::reduce", _reduce_backward, setup_context=_save_weights, lib=_library
)
