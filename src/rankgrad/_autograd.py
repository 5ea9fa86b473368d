"""Base classes of autograd functions that also work under ``torch.func`` and batched gradients.

The eager relaxations and the kernels' operators are such functions. Under ``torch.func.vmap`` each
of them runs once, on the lists of all calls (:class:`ListFunction`). Their backward passes are not
differentiable: a second derivative is an error instead of a wrong number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

Backward = TypeVar("Backward", bound=Callable[..., Any])

_SECOND_DERIVATIVE = "rankgrad's losses and relaxations can be differentiated once only"


class ListFunction(torch.autograd.Function):
    """A function of tensors ``[lists, ...]`` that treats each list by itself.

    So ``vmap`` over several calls is one call on the lists of all of them. A subclass defines
    ``forward`` without ``ctx``, ``setup_context`` and ``backward``.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the inputs: tensors for ``ctx.saved_tensors``, all others in ``ctx.options``."""
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.options = tuple(value for value in inputs if not isinstance(value, Tensor))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """Compute all calls as one call on more lists."""
        merged = [
            merge(argument, dim, info.batch_size)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]
        outputs = cls.apply(*merged)
        if isinstance(outputs, Tensor):
            return split(outputs, info.batch_size), 0
        return tuple(split(output, info.batch_size) for output in outputs), (0,) * len(outputs)


def merge(argument: Any, dim: int | None, calls: int) -> Any:
    """One tensor ``[calls * lists, ...]`` of an argument of several calls.

    Args:
        argument: a tensor, or anything else, which is returned as it is.
        dim: the dimension of the tensor that counts the calls; None if all calls share the tensor.
        calls: how many calls there are.
    """
    if not isinstance(argument, Tensor):
        return argument
    if dim is None:
        return argument.expand(calls, *argument.shape).flatten(0, 1)
    return argument.movedim(dim, 0).flatten(0, 1)


def split(tensor: Tensor, calls: int) -> Tensor:
    """A result ``[calls * lists, ...]`` as ``[calls, lists, ...]``: undoes :func:`merge`."""
    per_call: Tensor = tensor.unflatten(0, (calls, -1))
    return per_call


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply`` without the binding of arguments by name, which takes long.

    Only transforms of ``torch.func`` and compilers need the binding.
    """
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def is_transformed(*tensors: Tensor | None) -> bool:
    """Whether a tensor is batched, or wrapped by a ``torch.func`` transform."""
    return any(
        tensor is not None
        and (is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor))
        for tensor in tensors
    )


def refuse_second_derivative(grad_of_derivative: Tensor | None = None) -> None:
    """Raise if a second derivative is computed; a backward pass calls this first.

    Autograd records a backward pass (``create_graph=True``) only to differentiate it again.
    ``torch.func`` records every backward pass, so there only ``grad_of_derivative`` tells.

    Args:
        grad_of_derivative: the gradient with respect to the first derivative, for functions that
            return this derivative as an output. If it is not None, a second one is computed.
    """
    recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if grad_of_derivative is not None or (
        recorded and not torch._C._are_functorch_transforms_active()
    ):
        raise RuntimeError(_SECOND_DERIVATIVE)


def differentiable_once(backward: Backward) -> Backward:
    """A decorator of ``backward``: it disables autocast, and a second derivative is an error.

    Some of the decorated functions use saved derivatives or operations in place, through which
    autograd cannot differentiate: without the error, second derivatives could be silently wrong.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivative()
        with torch.autocast(grads[0].device.type, enabled=False):
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return results
        # torch.func records this pass: the gradients raise an error if they are differentiated.
        results = results if isinstance(results, tuple) else (results,)
        return tuple(None if grad is None else _NotDifferentiable.apply(grad) for grad in results)

    return checked  # type: ignore[return-value]


class ListDerivative(ListFunction):
    """A function that computes a derivative; its own derivative is an error."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        """Raise an error."""
        raise RuntimeError(_SECOND_DERIVATIVE)


class _NotDifferentiable(ListDerivative):
    """The identity, whose derivative is an error."""

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)
