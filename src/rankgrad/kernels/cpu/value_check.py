"""The value check of a batch, in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.flat_arrays import Array, flags
from rankgrad.kernels.ops import LARGEST_LABEL

_PLAIN = (Tensor, torch.nn.Parameter)


def check_values(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> Callable[[], bool]:
    """Whether scores are finite, weights finite and not negative, and labels not large either.

    All are flat, and padding is not read. The result is False for tensors that are no arrays, such
    as those of a transform. On a CPU the check is done before the call returns.
    """
    inputs = scores, labels, weights, list_weights
    if not all(tensor is None or _is_array(tensor) for tensor in inputs):
        return lambda: False
    nothing = np.empty(0, scores.detach().numpy().dtype)
    some: list[Array] = [nothing if x is None else x.detach().contiguous().numpy() for x in inputs]
    found = bool(_is_valid(some[0], some[1], some[2], some[3], flags(mask), LARGEST_LABEL))
    return lambda: found


def _is_array(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and not is_functorch_wrapped_tensor(tensor)


@compiled
def _is_valid(
    scores: Array, labels: Array, weights: Array, list_weights: Array, mask: Array, largest: float
) -> bool:
    invalid = _count_invalid(scores, -np.inf, np.inf, mask) + _count_invalid(
        labels, 0.0, largest, mask
    )
    invalid += _count_invalid(weights, 0.0, np.inf, mask) + _count_invalid(
        list_weights, 0.0, np.inf, mask[:0]
    )
    return bool(invalid == 0)


@compiled
def _count_invalid(values: Array, least: float, most: float, mask: Array) -> int:
    """How many are infinite, no number, or outside, padding left out."""
    count = 0
    if mask.size:
        for i in range(values.size):
            right = (values[i] >= least) & (values[i] <= most) & (abs(values[i]) < np.inf)
            count += mask[i] & (not right)
    else:
        for i in range(values.size):
            right = (values[i] >= least) & (values[i] <= most) & (abs(values[i]) < np.inf)
            count += not right
    return count
