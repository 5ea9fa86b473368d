"""Relaxations as operators: ``P @ values`` or relaxed ranks, and gradients with respect to scores.

:meth:`rankgrad.sorting.Relaxation.sort` and :meth:`rankgrad.sorting.Relaxation.rank` call
:func:`sort` and :func:`rank`. Metrics written in PyTorch, such as a user's own, go through them, so
that no permutation matrix is built. Metrics that have a kernel need no operator: for them
:func:`relaxed_metric` names one operation that computes relaxation and metric together.

An operator is called in one of two ways. Usually it is the autograd function :class:`_Operation`,
which keeps the operator, with its sorted lists, for the backward pass. Under ``torch.compile`` it
is an operation of ``torch.ops.rankgrad`` (the end of this module), which takes and returns tensors
only, so the backward pass makes the operator again.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from rankgrad import _autograd, kernels
from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.ops import KernelCall, on_device
from rankgrad.lists import row_offsets


class _Operator(NamedTuple):
    """Where the class of an operator is defined: the same module and name in each backend.

    Attributes:
        module: the module of ``kernels.cpu`` and ``kernels.gpu``, without its underscore.
        name: the name of the class.
        types: of its options, which are converted to them: ``torch.ops`` passes all as floats, and
            users may pass an integer for a float.
    """

    module: str
    name: str
    types: tuple[type, ...]


#: The operators behind :func:`sort` and :func:`rank`, by the names of relaxations' kernels.
_SORT = {
    "neuralsort": _Operator("permutation_rows", "NeuralSortOperator", (float,)),
    "softsort": _Operator("permutation_rows", "SoftSortOperator", (float,)),
    "sinkhorn": _Operator("sinkhorn", "SinkhornOperator", (float, int, float, bool)),
    "smoothi": _Operator("smoothi", "SmoothIOperator", (float, float)),
    "ot": _Operator("ot", "OptimalTransportOperator", (float, int, float)),
}
_RANK = {
    "sigmoid": _Operator("ranks", "SigmoidRanks", (float,)),
    "lapsum": _Operator("lapsum", "LapSumRanks", (float,)),
    "fastsort": _Operator("fastsort", "FastSortRanks", (float, bool)),
    "smoothi": _Operator("smoothi", "SmoothIRanks", (float, float)),
}


def relaxed_metric(
    kernel: KernelCall, through: str, beta: float, expect: str, metric: MetricOptions
) -> KernelCall | None:
    """The operation that computes a metric through a relaxation; None if no kernel does.

    Args:
        kernel: the relaxation.
        through: ``"permutation"`` or ``"ranks"``.
        beta: the sharpness with which relaxed ranks are compared with the cutoff and each other.
        expect: ``"gain"`` for the expected gain, ``"label"`` for the gain of the expected label.
        metric: the metric.
    """
    name, options = kernel
    has_ranks = name in ("sigmoid", "lapsum", "fastsort")
    if expect == "label" and (
        name != "smoothi" or through == "ranks" or metric.name not in ("ndcg", "dcg")
    ):
        return None
    if name != "smoothi" and has_ranks != (through == "ranks"):
        return None
    # through_ranks takes a sharpness: alpha of sigmoid ranks, one over the temperature of LapSum,
    # or one over the strength of FastSort.
    if name == "fastsort":
        strength, entropic = options
        relaxation = "fastsort_entropic" if entropic else "fastsort"
        call = KernelCall("through_ranks", (relaxation, 1 / strength, beta))
    elif name == "lapsum":
        call = KernelCall("through_ranks", (name, 1 / options[0], beta))
    elif name == "sigmoid":
        call = KernelCall("through_ranks", (name, *options, beta))
    elif name in ("neuralsort", "softsort"):
        call = KernelCall("through_rows", (name, *options))
    elif name == "smoothi" and through == "ranks":
        call = KernelCall("through_smoothi_ranks", (*options, beta))
    elif name == "smoothi":
        call = KernelCall("through_smoothi", (*options, expect))
    else:
        call = KernelCall(f"through_{name}", options)
    return KernelCall(call.name, (*call.options, *metric))


def sort_ready(kernel: KernelCall, scores: Tensor) -> bool:
    """Whether :func:`sort` has an operator for this relaxation on the scores' device."""
    return _is_ready(_SORT.get(kernel.name), scores)


def ranks_ready(kernel: KernelCall, scores: Tensor) -> bool:
    """Whether :func:`rank` has an operator for this relaxation on the scores' device."""
    return _is_ready(_RANK.get(kernel.name), scores)


def _is_ready(operator: _Operator | None, scores: Tensor) -> bool:
    """Whether there is an operator, and its class is available on the scores' device."""
    return operator is not None and kernels.available(operator.module, operator.name, scores)


def sort(kernel: KernelCall, values: Tensor, scores: Tensor, mask: Tensor, k: int) -> Tensor:
    """``P[:k] @ values``: values softly sorted by the scores.

    Args:
        kernel: the relaxation.
        values: ``[b, c, n]``, not differentiated.
        scores: ``[b, n]``.
        mask: ``[b, n]``.
        k: the number of ranks.

    Returns:
        ``[b, c, k]``.
    """
    sorted_values: Tensor
    if torch.compiler.is_compiling():
        options = list(map(float, kernel.options))
        sorted_values = torch.ops.rankgrad.sort(values, scores, mask, k, kernel.name, options)
    else:
        sorted_values = _autograd.apply(_Operation, values, scores, mask, k, kernel, {})
    return sorted_values


def rank(kernel: KernelCall, scores: Tensor, mask: Tensor) -> Tensor:
    """Relaxed ranks ``[b, n]``, 0 on padding.

    Args:
        kernel: the relaxation.
        scores: ``[b, n]``.
        mask: ``[b, n]``.
    """
    ranks: Tensor
    if torch.compiler.is_compiling():
        options = list(map(float, kernel.options))
        ranks = torch.ops.rankgrad.rank(scores, mask, kernel.name, options)
    else:
        ranks = _autograd.apply(_Operation, None, scores, mask, 0, kernel, {})
    return ranks


class _Operation(_autograd.ListFunction):
    """Values softly sorted by the scores, or relaxed ranks if there are no values.

    ``cache`` is empty before the forward pass, which stores its operator there for the backward
    pass.
    """

    @staticmethod
    def forward(
        values: Tensor | None, scores: Tensor, mask: Tensor, k: int, kernel: KernelCall, cache: Any
    ) -> Tensor:
        return _guarded(lambda safe: _apply(values, safe, mask, k, kernel, cache), scores, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, scores, mask, _, ctx.kernel, ctx.cache = inputs
        ctx.save_for_backward(values, scores, mask)

    @staticmethod
    @_autograd.differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if is_legacy_batchedtensor(grad):  # a batch of gradients, which only torch.ops takes
            relaxation = ctx.kernel.name, list(map(float, ctx.kernel.options))
            product = _registered_vjp(grad, ctx.saved_tensors, relaxation)
        else:
            product = _Adjoint.apply(grad, *ctx.saved_tensors, ctx.kernel, ctx.cache)
        return None, product, None, None, None, None


class _Adjoint(_autograd.ListDerivative):
    """The vector-Jacobian product of :class:`_Operation` with respect to the scores."""

    @staticmethod
    def forward(
        grad: Tensor,
        values: Tensor | None,
        scores: Tensor,
        mask: Tensor,
        kernel: KernelCall,
        cache: Any,
    ) -> Tensor:
        return _guarded(
            lambda safe: _adjoint(grad, values, safe, mask, kernel, cache), scores, mask
        )


def _guarded(compute: Any, scores: Tensor, mask: Tensor) -> Tensor:
    """``compute(scores)``, with NaN as the result of lists that have a score that is not finite.

    In these lists ``compute`` gets scores of 0.
    """
    invalid = ~(scores.isfinite() | ~mask).all(-1)
    result: Tensor = compute(torch.where(invalid[:, None], 0.0, scores))
    return result.masked_fill(invalid.reshape(-1, *[1] * (result.dim() - 1)), torch.nan)


def _registered_vjp(grad: Tensor, saved: Any, relaxation: tuple[str, list[float]]) -> Tensor:
    """The vector-Jacobian product with respect to the scores, by an operation of ``torch.ops``.

    Args:
        grad: the gradient of the output: ``[b, c, k]`` for sort, ``[b, n]`` for rank.
        saved: the tensors of the forward pass: values (for sort only; absent or None for rank),
            scores and mask.
        relaxation: its name and options.
    """
    tensors = [tensor for tensor in saved if tensor is not None]
    vjp = torch.ops.rankgrad.rank_vjp if len(tensors) == 2 else torch.ops.rankgrad.sort_vjp
    product: Tensor = vjp(grad, *tensors, *relaxation)
    return product


def _apply(
    values: Tensor | None, scores: Tensor, mask: Tensor, k: int, kernel: KernelCall, cache: Any
) -> Tensor:
    """The sorted values ``[b, c, k]``, or the ranks ``[b, n]`` if there are no values."""
    with on_device(scores):
        operator = _operator(kernel, values is None, scores, mask, k, cache)
        if values is None:
            ranks: Tensor = operator.ranks
            return ranks.reshape(scores.shape)
        b, c, n = values.shape
        channels = _channels_first(values)
        sorted_channels = torch.stack([operator.apply(channel) for channel in channels])
    return sorted_channels.reshape(c, b, n)[:, :, :k].movedim(0, 1)


def _adjoint(
    grad: Tensor,
    values: Tensor | None,
    scores: Tensor,
    mask: Tensor,
    kernel: KernelCall,
    cache: Any,
) -> Tensor:
    """The vector-Jacobian product of :func:`_apply` with respect to the scores, ``[b, n]``.

    ``grad`` is ``[b, c, k]``, or ``[b, n]`` if there are no values.
    """
    k, n = grad.shape[-1], scores.shape[-1]
    with on_device(scores):
        operator = _operator(kernel, values is None, scores, mask, k, cache)
        if values is None:
            product: Tensor = operator.adjoint(grad.reshape(-1).contiguous())
            return product.reshape(scores.shape)
        grads = _channels_first(torch.nn.functional.pad(grad, (0, n - k)))
        channels = zip(_channels_first(values), grads, strict=True)
        products = [operator.adjoint(channel, channel_grad) for channel, channel_grad in channels]
    return torch.stack(products).sum(0).reshape(scores.shape)


def _channels_first(values: Tensor) -> Tensor:
    """``[b, c, n]`` values as ``[c, b n]``, each channel in the flat layout."""
    return values.movedim(1, 0).reshape(values.shape[1], -1).contiguous()


def _operator(
    kernel: KernelCall, ranks: bool, scores: Tensor, mask: Tensor, k: int, cache: Any
) -> Any:
    """The operator of a relaxation on these scores, from the cache or else constructed.

    Args:
        kernel: the relaxation.
        ranks: whether it computes relaxed ranks; otherwise it sorts.
        scores: ``[b, n]``.
        mask: ``[b, n]``.
        k: the number of ranks, for sorting.
        cache: the operator of this call by the shape of its scores. ``vmap`` over backward passes
            merges them into one on more lists, which needs an operator of its own.
    """
    operator = cache.get(scores.shape)
    if operator is None:
        flat_tensors = scores.detach().reshape(-1).contiguous(), mask.reshape(-1).contiguous()
        described = (_RANK if ranks else _SORT)[kernel.name]
        options = [kind(x) for kind, x in zip(described.types, kernel.options, strict=True)]
        operator_class = _class(described, scores.device.type)
        cutoff = () if ranks else (k,)
        operator = operator_class(*flat_tensors, *row_offsets(scores), *cutoff, *options)
        cache[scores.shape] = operator
    return operator


@functools.cache
def _class(operator: _Operator, device: str) -> Any:
    """The class of an operator on a type of device."""
    package = {"cpu": "cpu", "cuda": "gpu"}[device]
    module = importlib.import_module(f"rankgrad.kernels.{package}._{operator.module}")
    return getattr(module, operator.name)


# The same operations in torch.ops, for torch.compile: there, no operator can be cached for the
# backward pass.

_library = torch.library.Library("rankgrad", "FRAGMENT")
_SCHEMAS = {
    "sort": "Tensor values, Tensor scores, Tensor mask, int k, str relaxation, float[] options",
    "sort_vjp": "Tensor grad, Tensor values, Tensor scores, Tensor mask, str relaxation, "
    "float[] options",
    "rank": "Tensor scores, Tensor mask, str relaxation, float[] options",
    "rank_vjp": "Tensor grad, Tensor scores, Tensor mask, str relaxation, float[] options",
}


def _apply_op(
    values: Tensor | None, scores: Tensor, mask: Tensor, k: int, name: str, options: list[float]
) -> Tensor:
    """The implementation of ``torch.ops.rankgrad.sort``, or of ``rank`` if there are no values."""
    kernel = KernelCall(name, tuple(options))
    result = _guarded(lambda safe: _apply(values, safe, mask, k, kernel, {}), scores, mask)
    return result.contiguous()


def _vjp_op(
    grad: Tensor,
    values: Tensor | None,
    scores: Tensor,
    mask: Tensor,
    name: str,
    options: list[float],
) -> Tensor:
    """The implementation of ``sort_vjp``, or of ``rank_vjp`` if there are no values."""
    kernel = KernelCall(name, tuple(options))

    def product(safe: Tensor) -> Tensor:
        cache: Any = {}
        if values is not None:  # run forward again: an operator may save a state for its adjoint
            _apply(values, safe, mask, grad.shape[-1], kernel, cache)
        return _adjoint(grad, values, safe, mask, kernel, cache)

    return _guarded(product, scores, mask)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the inputs of sort or rank for :func:`_backward`."""
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
    ctx.relaxation = inputs[-2:]  # its name and options


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs of sort or rank: only the scores have one."""
    _autograd.refuse_second_derivative()
    product = _registered_vjp(grad, ctx.saved_tensors, ctx.relaxation)
    if len(ctx.saved_tensors) == 2:  # rank saves scores and mask; sort also saves values
        return product, None, None, None
    return None, product, None, None, None, None


for _name, _run in {
    "sort": _apply_op,
    "sort_vjp": _vjp_op,
    "rank": lambda scores, mask, *relaxation: _apply_op(None, scores, mask, 0, *relaxation),
    "rank_vjp": lambda grad, *others: _vjp_op(grad, None, *others),
}.items():
    _library.define(f"{_name}({_SCHEMAS[_name]}) -> Tensor")
    _library.impl(_name, _run, "CompositeExplicitAutograd")
torch.library.register_fake(
    "rankgrad::sort",
    lambda values, scores, mask, k, *_: values.new_empty(*values.shape[:2], k),
    lib=_library,
)
# The results of these operations have the shape of the scores. The number is the index of the
# scores among the arguments.
for _name, _index in {"sort_vjp": 2, "rank": 0, "rank_vjp": 1}.items():
    torch.library.register_fake(
        f"rankgrad::{_name}",
        lambda *arguments, index=_index: torch.empty_like(arguments[index]),
        lib=_library,
    )
for _name in ("sort", "rank"):
    torch.library.register_autograd(
        f"rankgrad::{_name}", _backward, setup_context=_save, lib=_library
    )
