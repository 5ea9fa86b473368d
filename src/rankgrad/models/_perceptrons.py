"""Perceptrons: the layers of TabM's members, with fused kernels for the slow parts of training.

On a CPU the ReLU, dropout and output layer at the end are one compiled pass over the items
(:func:`_forward`, :func:`_backward`). On a GPU each activation is fused with the dropout after it
(:mod:`rankgrad.models._gpu_dropout`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from rankgrad._shapes import Float
from rankgrad.models._dropout import FastDropout, cpu_kernel_applies, scale_of_kept

_ROUNDING = 1e-6  # relative error of a sum in float32


class Perceptrons(nn.Sequential):
    """A sequence of layers from items, which all members share, to ``[members, N, 1]``.

    In training, fused kernels replace several layers (see the module's docstring). They give the
    same values as the layers, to rounding, and drop the same values.
    """

    @override
    def forward(self, *parts: Float[Tensor, "N _"]) -> Float[Tensor, "m N 1"]:
        """The scores of each member.

        Args:
            parts: columns of the items; side by side they are the inputs of the first layer.
        """
        layers: list[Any] = [*self]
        output = layers.pop()
        is_adapted = bool(layers) and isinstance(layers[0], AdaptedLinear)
        if self.training and is_adapted and not parts[0].is_cuda:
            items = layers.pop(0).of_shared(*parts)  # faster on a CPU, not measured on GPUs
        else:
            columns = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
            items = columns.expand(len(output.weight), *columns.shape)
        while layers:
            layer = layers.pop(0)
            dropout = layers.pop(0) if layers and isinstance(layers[0], FastDropout) else None
            if self.training and not layers and isinstance(layer, nn.ReLU):
                return _relu_dropout_dot(items, layer, dropout, output)
            items = layer(items) if dropout is None else dropout.after(layer, items)
        scores: Tensor = output(items)
        return scores


class AdaptedLinear(nn.Module):
    """A linear layer that all members share: ``s_m ∘ W (r_m ∘ x) + b_m`` for member m.

    Args:
        members: the number of members.
        width: the number of inputs.
        size: the number of outputs.
        random_signs: whether the scales r_m of the inputs start as random signs, or at 1.
        rate: the factor of the learning rate of r_m. The parameter is r_m divided by it: steps of
            Adam and Adagrad do not depend on the scale of a gradient, so those of r_m are as much
            larger. SGD's are larger by the square of it.
    """

    undecayed = "bias", "scale_out"  # have no weight decay
    l1_parameters: tuple[str, ...] = ()  # have an L1 penalty, where the optimizer has one

    def __init__(
        self, members: int, width: int, size: int, *, random_signs: bool = False, rate: float = 1.0
    ) -> None:
        super().__init__()
        limit = 1 / math.sqrt(width)
        scale = torch.ones(members, 1, width)
        if random_signs:
            scale = torch.randint(2, (members, 1, width)) * 2.0 - 1
        self.rate = rate
        self.scale_in = nn.Parameter(scale / rate)
        self.weight = nn.Parameter(torch.empty(size, width).uniform_(-limit, limit))
        self.scale_out = nn.Parameter(torch.ones(members, 1, size))
        self.bias = nn.Parameter(torch.empty(members, 1, size).uniform_(-limit, limit))

    @property
    def input_scales(self) -> Float[Tensor, "m 1 w"]:
        """The r_m of all members."""
        return self.scale_in if self.rate == 1 else self.rate * self.scale_in

    def forward(self, items: Float[Tensor, "m N w"]) -> Float[Tensor, "m N s"]:
        if items.is_cuda and items.stride(0) == 0:  # expanded: all members have the same items
            return self.of_shared(items[0])
        if items.is_cuda or (self.training and (len(items) == 1 or not items.requires_grad)):
            return torch.baddbmm(self.bias, items, self._scaled_weights())
        mixed = nn.functional.linear(items * self.input_scales, self.weight)
        return torch.addcmul(self.bias, mixed, self.scale_out)

    def of_shared(self, *parts: Float[Tensor, "N _"]) -> Float[Tensor, "m N s"]:
        """:meth:`forward` of items that all members share: one product computes all members.

        Args:
            parts: columns of the items, ``width`` in all. Parts that need no gradient cost none.
        """
        weight = self._scaled_weights()
        members, width, size = weight.shape
        side_by_side = weight.transpose(0, 1).reshape(width, members * size)
        mixed = self.bias.flatten()
        for part, own in zip(parts, side_by_side.split([p.shape[-1] for p in parts]), strict=True):
            mixed = torch.addmm(mixed, part, own)
        return mixed.view(-1, members, size).transpose(0, 1)

    def _scaled_weights(self) -> Float[Tensor, "m w s"]:
        """The weights of each member, with both scales.

        To scale the weights and not the items is faster with more items than weights. And in
        training the gradient of ``scale_in`` then follows from that of the weights, without one for
        the scaled items.
        """
        return self.input_scales.mT * self.weight.mT * self.scale_out


def _relu_dropout_dot(
    items: Float[Tensor, "m N w"], relu: nn.ReLU, dropout: FastDropout | None, output: Any
) -> Float[Tensor, "m N 1"]:
    """``output(dropout(relu(items)))``."""
    if not cpu_kernel_applies(items) or not cpu_kernel_applies(output.weight):
        scores: Tensor = output(relu(items) if dropout is None else dropout.after(relu, items))
        return scores
    seed = 0 if dropout is None else int(dropout.draw("cpu"))
    dropped = 0 if dropout is None else dropout.dropped
    scores = _ReLUDropoutDot.apply(items, output.weight, output.bias, seed, dropped)
    return scores


def bias_gradient(grad: Float[Tensor, "m N 1"]) -> Float[Tensor, "m 1 1"]:
    """The gradient of an output layer's bias; exactly 0 if it is 0 within rounding.

    Many losses do not depend on the mean score, so the true gradient of the bias is 0. Adam would
    scale the rounding error up to a step as large as any other.
    """
    total, magnitude = grad.sum(1, keepdim=True), grad.abs().sum(1, keepdim=True)
    return total.where(total.abs() > _ROUNDING * magnitude, 0.0)


class _ReLUDropoutDot(torch.autograd.Function):
    """``dropout(relu(items)) @ weight + bias`` with a single output.

    ``apply`` takes items ``[m, N, w]``, weight ``[m, w, 1]``, bias ``[m, 1, 1]``, the seed and how
    many of 65,536 values are dropped; it gives ``[m, N, 1]``.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, items: Tensor, weight: Tensor, bias: Tensor, seed: int, dropped: int
    ) -> Tensor:
        items, weight = items.contiguous(), weight.contiguous()
        hidden, scores = torch.empty_like(items), items.new_empty(*items.shape[:-1], 1)
        ctx.save_for_backward(hidden, weight)
        # Kept values are divided by the fraction that is kept, as dropout does.
        ctx.scale = np.float32(scale_of_kept(dropped))
        inputs, outputs = (items, weight), (hidden, scores)
        numbers = np.uint64(seed), np.uint32(dropped), ctx.scale
        _compiled(_forward)(*_arrays(*inputs), *numbers, *_arrays(*outputs))
        return scores.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden, weight = ctx.saved_tensors
        grad_scores = grads[0].contiguous()
        grad_items, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        inputs, outputs = (hidden, weight, grad_scores), (grad_items, grad_weight)
        _compiled(_backward)(*_arrays(*inputs), ctx.scale, *_arrays(*outputs))
        return grad_items, grad_weight, bias_gradient(grad_scores), None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    """The memory of the tensors as NumPy arrays."""
    return [tensor.detach().numpy() for tensor in tensors]


@cache
def _compiled(function: Any) -> Any:
    """The function, compiled at the first use."""
    from rankgrad._compilation import compile_cached

    # ``reassoc`` lets sums vectorize by reordering them. A loop that both sums and writes to an
    # array would be vectorized or not depending on whether arrays overlap in memory, which would
    # make the order of the sum, and its last bits, depend on addresses: so no loop does both.
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
    """Write ``hidden = dropout(relu(items))`` and ``scores = hidden @ weight``.

    The hash that drops values is that of ``rankgrad.models._dropout._drop_by_hash``.

    Args:
        items: ``[m, N, w]`` float32, before the ReLU.
        weight: ``[m, w, 1]``.
        seed: below 2^63, as :class:`rankgrad.models._dropout.FastDropout` draws it.
        dropped: how many of 65,536 values are dropped.
        scale: the factor of the values that are not dropped.
        hidden: ``[m, N, w]``, written.
        scores: ``[m, N, 1]``, written; the bias is not added.
    """
    members, count, width = items.shape
    # The halves of the seed.
    low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
    for m in range(members):
        for i in range(count):
            first = np.uint32(np.uint32((m * count + i) * width) + low)  # Numba adds in 64 bits
            for j in range(width):
                x = np.uint32(np.uint32(j) + first)
                x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
                x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
                is_kept = np.uint32(x >> np.uint32(16)) >= dropped
                value = items[m, i, j]
                is_zero = value <= np.float32(0)  # False for NaN, which stays NaN
                hidden[m, i, j] = value * scale if is_kept & (not is_zero) else np.float32(0)
            score = np.float32(0)
            for j in range(width):
                score += hidden[m, i, j] * weight[m, j, 0]
            scores[m, i, 0] = score


def _backward(
    hidden: np.ndarray,
    weight: np.ndarray,
    grad_scores: np.ndarray,
    scale: np.float32,
    grad_items: np.ndarray,
    grad_weight: np.ndarray,
) -> None:
    """Write the gradients of :func:`_forward`.

    Args:
        hidden: ``[m, N, w]``, as :func:`_forward` wrote it; 0 where no gradient passes.
        weight: ``[m, w, 1]``.
        grad_scores: ``[m, N, 1]``.
        scale: the factor of the values that were not dropped.
        grad_items: ``[m, N, w]``, written.
        grad_weight: ``[m, w, 1]``, zeros; added to.
    """
    members, count, width = hidden.shape
    for m in range(members):
        for i in range(count):
            grad_score = grad_scores[m, i, 0]
            scaled = grad_score * scale
            for j in range(width):
                value = hidden[m, i, j]
                is_zero = value <= np.float32(0)
                grad_items[m, i, j] = np.float32(0) if is_zero else scaled * weight[m, j, 0]
                grad_weight[m, j, 0] += grad_score * value
