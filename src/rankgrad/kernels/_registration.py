"""Registers the operations of :mod:`rankgrad.kernels._backends` in ``torch.ops.rankgrad``.

Code compiled by ``torch.compile`` and transforms of ``torch.func`` call them there. Importing this
module registers them; ``rankgrad.kernels`` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankgrad import _autograd
from rankgrad.kernels.cpu._nan_guard import guarded_loss
from rankgrad.kernels.ops import LOSSES, backends, max_length_of, refuse_large, scaled_by_list

_library = torch.library.Library("rankgrad", "DEF")


def _register(
    name: str, schema: str, fake: Any, autograd: Any = None, nan_guard: Any = None
) -> None:
    """Register an operation.

    Args:
        name: of the operation.
        schema: of its arguments and results.
        fake: gives results of the right shapes and types.
        autograd: the backward pass, and the function that saves tensors for it; None for none.
        nan_guard: protects the CPU kernel from unchecked values.
    """
    _library.define(name + schema)
    for device in ("cpu", "cuda"):
        kernel = backends[name, device].on_device
        if nan_guard and device == "cpu":
            kernel = nan_guard(kernel)
        _library.impl(name, kernel, device.upper())
    torch.library.register_fake(f"rankgrad::{name}", fake, lib=_library)
    if autograd is not None:
        backward, save = autograd
        torch.library.register_autograd(
            f"rankgrad::{name}", backward, setup_context=save, lib=_library
        )


def _empty_values(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of the shapes and types that a loss returns.

    A loss takes scores, labels, mask, weights, offsets, max_length and its options. It returns its
    values ``[lists]``, the derivatives by the scores ``[items]``, and where it is defined
    ``[lists]``.
    """
    offsets = arguments[3]
    lists = offsets.shape[0] - 1
    values = scores.new_empty(lists)
    return values, torch.empty_like(scores), torch.empty_like(values, dtype=torch.bool)


def _save_derivative(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the derivatives that the forward pass of a loss has computed."""
    _, grad_scores, defined = output
    offsets, max_length = inputs[4:6]
    ctx.save_for_backward(grad_scores, offsets)
    ctx.max_length, ctx.n_inputs = max_length, len(inputs)
    ctx.mark_non_differentiable(grad_scores, defined)
    ctx.set_materialize_grads(False)


def _scale_derivative(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    """The backward pass of a loss: the saved derivatives times each list's ``grad`` ``[lists]``."""
    grad_scores, offsets = ctx.saved_tensors
    scaled = None
    if grad is not None:
        _autograd.refuse_second_derivative()
        ragged = ctx.max_length < 0  # compiled code gives -1 for ragged lists
        scale = scaled_by_list if ragged else torch.ops.rankgrad.scale_by_list
        scaled = scale(grad, grad_scores, offsets, ctx.max_length)
    return (scaled, *[None] * (ctx.n_inputs - 1))


for _name, _operation in LOSSES.items():
    _autograd_functions = _scale_derivative, _save_derivative
    _register(_name, _operation.schema, _empty_values, _autograd_functions, guarded_loss)


def _flat_ranks(name: str) -> Callable[..., Tensor]:
    """A function that gives the relaxed ranks of flat lists, ``[items]``, 0 on padding.

    It pads the lists and calls ``torch.ops.rankgrad.rank`` on them.
    """

    def ranks(
        scores: Tensor, mask: Tensor | None, offsets: Tensor, max_length: int, sharpness: float
    ) -> Tensor:
        importlib.import_module("rankgrad.kernels._operators")  # registers rank
        width = max_length_of(offsets) if max_length < 0 else max_length
        starts, lengths = offsets[:-1, None], offsets.diff()
        columns = torch.arange(width, device=scores.device)
        inside = columns < lengths[:, None]  # [lists, width]
        items = (starts + columns).where(inside, 0)
        real = inside if mask is None else inside & mask[items]
        padded: Tensor = torch.ops.rankgrad.rank(scores[items], real, name, [sharpness])
        list_index = torch.arange(len(lengths), device=scores.device).repeat_interleave(
            lengths, output_size=len(scores)
        )
        positions = torch.arange(len(scores), device=scores.device) - offsets[list_index]
        return padded[list_index, positions]

    return ranks


def _vjp_of(ranks: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The vector-Jacobian product of relaxed ranks with respect to the scores."""

    def vjp(grad: Tensor, scores: Tensor, *others: Any) -> Tensor:
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            return torch.autograd.grad(ranks(leaf, *others), leaf, grad)[0]

    return vjp


for _name, _option in (("sigmoid", "alpha"), ("lapsum", "temperature")):
    _lists = f"Tensor scores, Tensor? mask, Tensor offsets, int max_length, float {_option}"
    _ranks = _flat_ranks(_name)
    _library.define(f"{_name}_ranks({_lists}) -> Tensor")
    _library.impl(f"{_name}_ranks", _ranks, "CompositeImplicitAutograd")
    _library.define(f"{_name}_ranks_vjp(Tensor grad, {_lists}) -> Tensor")
    _library.impl(f"{_name}_ranks_vjp", _vjp_of(_ranks), "CompositeExplicitAutograd")


def _too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    """See :func:`rankgrad.kernels.ops.too_large`."""
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

# Multiplies the derivatives of each list's items by the list's gradient and by a common factor.
_register(
    "scale_by_list",
    "(Tensor grad, Tensor grad_scores, Tensor offsets, int max_length, Tensor? factor=None) "
    "-> Tensor",
    lambda grad, grad_scores, *_: torch.empty_like(grad_scores),
)


def _reduce_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    (normalized_weights,) = ctx.saved_tensors
    return grad * normalized_weights, None, None, None


def _save_weights(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


# The weighted sum or mean over lists, and the normalized weight of each list.
_register(
    "reduce",
    "(Tensor values, Tensor defined, Tensor? list_weights, bool mean) "
    "-> (Tensor result, Tensor normalized_weights)",
    lambda values, *_: (values.new_empty(()), torch.empty_like(values)),
    (_reduce_backward, _save_weights),
)
