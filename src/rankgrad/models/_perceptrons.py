"""Perceptrons side by side, of which training on a CPU does the end in one pass over the items."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from rankgrad._shapes import Float
from rankgrad.models._dropout import FastDropout, is_plain

_ROUNDING = 1e-6  # relative, of a sum in float32


class Perceptrons(nn.Sequential):
    """Layers that take and give ``[members, N, width]``; the last one has a single output.

    In training on a CPU, a ReLU, dropout and the output layer at their end are one autograd
    function, which reads and writes what is hidden once. On a GPU each activation is one with the
    dropout after it. Values are those of the layers, to rounding, and dropout drops the same.
    """

    @override
    def forward(self, items: Float[Tensor, "m N w"]) -> Float[Tensor, "m N 1"]:
        layers: list[Any] = [*self]
        output = layers.pop()
        while layers:
            layer = layers.pop(0)
            dropout = layers.pop(0) if layers and isinstance(layers[0], FastDropout) else None
            if self.training and not layers and isinstance(layer, nn.ReLU):
                return _relu_dropout_dot(items, layer, dropout, output)
            items = layer(items) if dropout is None else dropout.after(layer, items)
        scores: Tensor = output(items)
        return scores


def _relu_dropout_dot(
    items: Float[Tensor, "m N w"], relu: nn.ReLU, dropout: FastDropout | None, output: Any
) -> Float[Tensor, "m N 1"]:
    """``output(dropout(relu(items)))``."""
    if not is_plain(items) or not is_plain(output.weight):
        scores: Tensor = output(relu(items) if dropout is None else dropout.after(relu, items))
        return scores
    seed = 0 if dropout is None else int(dropout.draw("cpu"))
    dropped = 0 if dropout is None else dropout.dropped
    scores = _ReLUDropoutDot.apply(items, output.weight, output.bias, seed, dropped)
    return scores


def bias_gradient(grad: Float[Tensor, "m N 1"]) -> Float[Tensor, "m 1 1"]:
    """The gradient of the bias of a single output, 0 within rounding of 0.

    Losses that do not change with the mean score give that bias no gradient but rounding, which
    Adam would scale up to steps like any other.
    """
    found, size = (each.sum(1, keepdim=True) for each in (grad, grad.abs()))
    return found.where(found.abs() > _ROUNDING * size, 0.0)


class _ReLUDropoutDot(torch.autograd.Function):
    """``dropout(relu(x)) @ weight + bias`` with a single output."""

    @staticmethod
    @override
    def forward(
        ctx: Any, items: Tensor, weight: Tensor, bias: Tensor, seed: int, dropped: int
    ) -> Tensor:
        items, weight = items.contiguous(), weight.contiguous()
        hidden, scores = torch.empty_like(items), items.new_empty(*items.shape[:-1], 1)
        ctx.save_for_backward(hidden, weight)
        ctx.scale = np.float32(2**16 / (2**16 - dropped))
        inputs, outputs = (items, weight), (hidden, scores)
        numbers = np.uint64(seed), np.uint32(dropped), ctx.scale
        _compiled(_forward)(*_arrays(*inputs), *numbers, *_arrays(*outputs))
        return scores.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_items, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        inputs, outputs = (hidden, weight, grad), (of_items, of_weight)
        _compiled(_backward)(*_arrays(*inputs), ctx.scale, *_arrays(*outputs))
        return of_items, of_weight, bias_gradient(grad), None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [each.detach().numpy() for each in tensors]


@cache
def _compiled(function: Any) -> Any:
    from rankgrad._compilation import compile_cached

    # Sums may be reordered, so that they vectorize: no loop over hidden values both adds them up
    # and writes to an array, since where arrays lie would then decide the order.
    return compile_cached(function, nogil=True, fastmath={"contract", "reassoc", "nsz"})


def _forward(
    items: np.ndarray,
    weight: np.ndarray,
    seed: np.uint64,
    dropped: np.uint32,
    scale: np.float32,
    hidden: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Write the hidden values, dropped by the hash of their places, and products with the weights.

    Args:
        items: ``[m, N, w]`` float32, before the ReLU.
        weight: ``[m, w, 1]``.
        seed: below 2^63, as :class:`rankgrad.models._dropout.FastDropout` draws it.
        dropped: how many of 65,536 values are dropped.
        scale: of those that are not.
        hidden: ``[m, N, w]``, written.
        scores: ``[m, N, 1]``, written.
    """
    members, count, width = items.shape
    low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
    for m in range(members):
        for i in range(count):
            first = np.uint32((m * count + i) * width) + low
            for j in range(width):
                x = np.uint32(j) + first
                x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
                x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
                kept = np.uint32(x >> np.uint32(16)) >= dropped
                value = items[m, i, j]
                is_zero = value <= np.float32(0)  # not where it is NaN
                hidden[m, i, j] = value * scale if kept & (not is_zero) else np.float32(0)
            score = np.float32(0)
            for j in range(width):
                score += hidden[m, i, j] * weight[m, j, 0]
            scores[m, i, 0] = score


def _backward(
    hidden: np.ndarray,
    weight: np.ndarray,
    grad: np.ndarray,
    scale: np.float32,
    of_items: np.ndarray,
    of_weight: np.ndarray,
) -> None:
    """Write the gradients of the items ``[m, N, w]`` and add to those of the weights, 0 before."""
    members, count, width = hidden.shape
    for m in range(members):
        for i in range(count):
            of_score = grad[m, i, 0]
            scaled = of_score * scale
            for j in range(width):
                value = hidden[m, i, j]
                is_zero = value <= np.float32(0)
                of_items[m, i, j] = np.float32(0) if is_zero else scaled * weight[m, j, 0]
                of_weight[m, j, 0] += of_score * value
