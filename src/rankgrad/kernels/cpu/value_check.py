"""The value check of a batch, in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from rankgrad.kernels.arguments import LARGEST_LABEL
from rankgrad.kernels.cpu.flat_arrays import Array, are_valid, flags

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
    found = bool(are_valid(some[0], some[1], some[2], some[3], flags(mask), LARGEST_LABEL))
    return lambda: found


def _is_array(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and not is_functorch_wrapped_tensor(tensor)
