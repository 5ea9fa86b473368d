"""Autograd functions that also work under ``torch.func`` and with batched gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

Backward = TypeVar("Backward", bound=Callable[..., Any])

_ONCE = "rankgrad's losses and relaxations can be differentiated once only"


class ListFunction(torch.autograd.Function):
    """A function of tensors ``[lists, ...]``: a vectorized call is one on more lists.

    A subclass has ``forward`` without a context, ``setup_context`` and ``backward``.
    """

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call on the lists of all calls."""
        merged = [
            merge(argument, dim, info.batch_size)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]
        found = cls.apply(*merged)
        if isinstance(found, Tensor):
            return split(found, info.batch_size), 0
        return tuple(split(each, info.batch_size) for each in found), (0,) * len(found)


def merge(argument: Any, dim: int | None, calls: int) -> Any:
    """The tensors of several calls as one, the calls' lists one after another."""
    if not isinstance(argument, Tensor):
        return argument
    if dim is None:
        return argument.expand(calls, *argument.shape).flatten(0, 1)
    return argument.movedim(dim, 0).flatten(0, 1)


def split(tensor: Tensor, calls: int) -> Tensor:
    """A result on the lists of several calls, one row for each call."""
    rows: Tensor = tensor.unflatten(0, (calls, -1))
    return rows


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply`` without the time-consuming binding of arguments by name.

    Only transforms of ``torch.func`` and compilers need it.
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
    """An error in a backward pass that is itself to be differentiated.

    ``torch.func`` records every backward pass, so there only a second one counts: it has a gradient
    by what the first one was computed from.
    """
    recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if grad_of_derivative is not None or (
        recorded and not torch._C._are_functorch_transforms_active()
    ):
        raise RuntimeError(_ONCE)


def differentiable_once(backward: Backward) -> Backward:
    """For the backward pass of an autograd function: no second derivative, and no autocast.

    What it computes is not recorded, so a second derivative would be silently wrong.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        refuse_second_derivative()
        with torch.autocast(grads[0].device.type, enabled=False):
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        some = found if isinstance(found, tuple) else (found,)
        return tuple(None if each is None else _Final.apply(each) for each in some)

    return checked  # type: ignore[return-value]


class ListDerivative(ListFunction):
    """A function that computes a derivative; its own derivative is an error."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        """Raise an error."""
        raise RuntimeError(_ONCE)


class _Final(ListDerivative):
    """The identity."""

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)
