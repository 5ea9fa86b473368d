"""The CPU kernel of :class:`~rankgrad.models._encoding.PeriodicEncoding`, forward and backward.

PyTorch writes every intermediate value of every feature to memory. The kernel computes blocks of
items in the processor's cache, a feature at a time, and the sines and cosines again in the backward
pass.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from rankgrad._compilation import compile_cached

# ``reassoc`` lets sums vectorize by reordering them. No loop both sums and writes to an array: see
# :func:`rankgrad.models._perceptrons._compiled`.
_compiled = partial(compile_cached, nogil=True, fastmath={"contract", "reassoc", "nsz"})

_BLOCK = 64  # items that are computed together
# Taylor coefficients of sin(πx)/x and cos(πx) in x²: for |x| ≤ 1/2 the rest is below 6e-8.
_TAYLOR = [np.float32(math.pi**n / math.factorial(n) * (-1) ** (n // 2)) for n in range(13)]
_SIN, _COS = tuple(_TAYLOR[1::2]), tuple(_TAYLOR[::2])
_ONE, _TWO = np.float32(1), np.float32(2)
_TWO_PI = np.float32(2 * math.pi)


class PeriodicFunctions(torch.autograd.Function):
    """``relu(W_f [sin(2π c_f x), cos(2π c_f x)] + b_f)`` of each feature f, in float32.

    ``apply`` takes features ``[N, f]``, which get no gradient, frequencies c ``[f, 1, k]``, weights
    ``[f, 2k, s]`` and biases ``[f, 1, s]``; it gives ``[N, f · s]``.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, features: Tensor, frequency: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        inputs = [tensor.contiguous() for tensor in (features, frequency, weight, bias)]
        outputs = features.new_empty(len(features), bias.numel())
        ctx.save_for_backward(*inputs[:3], outputs)
        _forward(*_arrays(*inputs, outputs))
        return outputs

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        features, frequency, weight, outputs = ctx.saved_tensors
        grad_frequency, grad_weight = torch.zeros_like(frequency), torch.zeros_like(weight)
        grad_bias = torch.zeros_like(weight[:, :1])
        inputs = (features, frequency, weight, outputs, grads[0].contiguous())
        _backward(*_arrays(*inputs, grad_frequency, grad_weight, grad_bias))
        return None, grad_frequency, grad_weight, grad_bias


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    """The memory of the tensors as NumPy arrays."""
    return [tensor.detach().numpy() for tensor in tensors]


@_compiled
def _write_waves(
    features: np.ndarray,
    first: int,
    f: int,
    frequency: np.ndarray,
    values: np.ndarray,
    waves: np.ndarray,
) -> None:
    """Write a feature of a block of items, and its sines and cosines.

    Args:
        features: ``[N, f]``.
        first: the first item of the block. Behind the last item the block is filled with zeros.
        f: the feature.
        frequency: ``[f, 1, k]``.
        values: ``[_BLOCK]``, written.
        waves: ``[2k, _BLOCK]``, written.
    """
    count = min(_BLOCK, len(features) - first)
    for i in range(count):
        values[i] = features[first + i, f]
    for i in range(count, _BLOCK):
        values[i] = np.float32(0)
    k = frequency.shape[2]
    for j in range(k):
        turns_per_unit = frequency[f, 0, j]
        for i in range(_BLOCK):
            turns = values[i] * turns_per_unit
            x = turns - np.float32(np.rint(turns))  # within ±1/2
            y = x * x
            sin = _SIN[5]
            sin = sin * y + _SIN[4]
            sin = sin * y + _SIN[3]
            sin = sin * y + _SIN[2]
            sin = sin * y + _SIN[1]
            sin = (sin * y + _SIN[0]) * x  # of half the angle
            cos = _COS[6]
            cos = cos * y + _COS[5]
            cos = cos * y + _COS[4]
            cos = cos * y + _COS[3]
            cos = cos * y + _COS[2]
            cos = cos * y + _COS[1]
            cos = cos * y + _COS[0]
            waves[j, i] = _TWO * sin * cos
            waves[k + j, i] = _ONE - _TWO * sin * sin


@_compiled
def _write_functions(
    waves: np.ndarray, f: int, weight: np.ndarray, bias: np.ndarray, functions: np.ndarray
) -> None:
    """Write the functions of a feature of a block of items, before relu.

    Args:
        waves: ``[2k, _BLOCK]``, from :func:`_write_waves`; 2k is a multiple of 4.
        f: the feature.
        weight: ``[f, 2k, s]``.
        bias: ``[f, 1, s]``.
        functions: ``[s, _BLOCK]``, written.
    """
    for s in range(len(functions)):
        for i in range(_BLOCK):
            functions[s, i] = bias[f, 0, s]
    for j in range(0, len(waves), 4):  # four at a time, so that a function is stored less often
        wave, wave_1, wave_2, wave_3 = waves[j], waves[j + 1], waves[j + 2], waves[j + 3]
        for s in range(len(functions)):
            factor, factor_1 = weight[f, j, s], weight[f, j + 1, s]
            factor_2, factor_3 = weight[f, j + 2, s], weight[f, j + 3, s]
            function = functions[s]
            for i in range(_BLOCK):
                total = function[i] + factor * wave[i] + factor_1 * wave_1[i]
                function[i] = total + factor_2 * wave_2[i] + factor_3 * wave_3[i]


@_compiled
def _relu(value: np.float32) -> np.float32:
    # A comparison with NaN is False, so NaN stays NaN.
    return np.float32(0) if value < np.float32(0) else value


@_compiled
def _forward(
    features: np.ndarray,
    frequency: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Write the functions of all features.

    Args:
        features: ``[N, f]``.
        frequency: ``[f, 1, k]``.
        weight: ``[f, 2k, s]``.
        bias: ``[f, 1, s]``.
        outputs: ``[N, f · s]``, written.
    """
    n_features, n_waves, size = weight.shape
    values = np.empty(_BLOCK, np.float32)
    waves = np.empty((n_waves, _BLOCK), np.float32)
    functions = np.empty((size, _BLOCK), np.float32)
    for first in range(0, len(features), _BLOCK):
        count = min(_BLOCK, len(features) - first)
        for f in range(n_features):
            _write_waves(features, first, f, frequency, values, waves)
            _write_functions(waves, f, weight, bias, functions)
            for i in range(count):
                for s in range(size):
                    outputs[first + i, f * size + s] = _relu(functions[s, i])


@_compiled
def encode_entries(
    entries: np.ndarray,
    counts: np.ndarray,
    features: np.ndarray,
    frequency: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
) -> None:
    """Write the functions of some features of one list in the layout of the features.

    A feature and a function have a value at position 0, which many items share. The other entries
    are differences from it: see :class:`~rankgrad.data._preparation_kernel.Entries`.

    Args:
        entries: ``[f, s + 1 or more, entries]``: the feature is the first row of the second
            dimension, and its functions are written to the last s rows.
        counts: ``[f]``: the number of entries of each feature, position 0 included.
        features: the indices of the features whose functions are written.
        frequency: ``[f, 1, k]``.
        weight: ``[f, 2k, s]``.
        bias: ``[f, 1, s]``.
    """
    _, n_waves, size = weight.shape
    feature = np.empty((entries.shape[2], 1), np.float32)
    values = np.empty(_BLOCK, np.float32)
    waves = np.empty((n_waves, _BLOCK), np.float32)
    functions = np.empty((size, _BLOCK), np.float32)
    for f in features:
        rows, count = entries[f], counts[f]
        outputs = rows[len(rows) - size :]
        feature[0, 0] = rows[0, 0]
        for t in range(1, count):
            feature[t, 0] = rows[0, 0] + rows[0, t]
        for first in range(0, count, _BLOCK):
            _write_waves(feature[:count], first, 0, frequency[f : f + 1], values, waves)
            _write_functions(waves, f, weight, bias, functions)
            for s in range(size):
                output, function = outputs[s, first:count], functions[s]
                for i in range(min(_BLOCK, len(output))):
                    output[i] = _relu(function[i])
        for s in range(size):
            output = outputs[s]
            for t in range(1, count):
                output[t] -= output[0]


@_compiled
def _sum_of_products(first: np.ndarray, second: np.ndarray) -> np.float32:
    """``Σ_i first[i] second[i]`` over a block."""
    total = np.float32(0)
    for i in range(_BLOCK):
        total += first[i] * second[i]
    return total


@_compiled
def _backward(
    features: np.ndarray,
    frequency: np.ndarray,
    weight: np.ndarray,
    outputs: np.ndarray,
    grad_outputs: np.ndarray,
    grad_frequency: np.ndarray,
    grad_weight: np.ndarray,
    grad_bias: np.ndarray,
) -> None:
    """Add the gradients of :func:`_forward`.

    Args:
        features: ``[N, f]``.
        frequency: ``[f, 1, k]``.
        weight: ``[f, 2k, s]``.
        outputs: ``[N, f · s]``, as :func:`_forward` wrote them; 0 where no gradient passes.
        grad_outputs: ``[N, f · s]``.
        grad_frequency: ``[f, 1, k]``, zeros; added to.
        grad_weight: ``[f, 2k, s]``, zeros; added to.
        grad_bias: ``[f, 1, s]``, zeros; added to.
    """
    n_features, n_waves, size = weight.shape
    k = frequency.shape[2]
    values, ones = np.empty(_BLOCK, np.float32), np.ones(_BLOCK, np.float32)
    waves = np.empty((n_waves, _BLOCK), np.float32)
    grad_waves = np.empty((n_waves, _BLOCK), np.float32)
    grads = np.zeros((size, _BLOCK), np.float32)
    for first in range(0, len(features), _BLOCK):
        count = min(_BLOCK, len(features) - first)
        for f in range(n_features):
            _write_waves(features, first, f, frequency, values, waves)
            for i in range(count):
                for s in range(size):
                    is_zero = outputs[first + i, f * size + s] <= np.float32(0)
                    grad = grad_outputs[first + i, f * size + s]
                    grads[s, i] = np.float32(0) if is_zero else grad
            for s in range(size):
                for i in range(count, _BLOCK):
                    grads[s, i] = np.float32(0)
                grad_bias[f, 0, s] += _sum_of_products(grads[s], ones)
            for j in range(n_waves):
                grad_wave = grad_waves[j]
                for i in range(_BLOCK):
                    grad_wave[i] = np.float32(0)
                for s in range(size):
                    grad_weight[f, j, s] += _sum_of_products(waves[j], grads[s])
                    factor = weight[f, j, s]
                    for i in range(_BLOCK):
                        grad_wave[i] += factor * grads[s, i]
            for j in range(k):
                grad_turns = grad_waves[j]
                for i in range(_BLOCK):
                    change = grad_waves[j, i] * waves[k + j, i] - grad_waves[k + j, i] * waves[j, i]
                    grad_turns[i] = _TWO_PI * change
                grad_frequency[f, 0, j] += _sum_of_products(grad_turns, values)
