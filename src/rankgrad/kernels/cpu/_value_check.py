"""The value check of a batch, in one pass; losses and NaN guards call it before a kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.cpu._flat_arrays import FlatArrays

_PLAIN = (Tensor, torch.nn.Parameter)


def check_values(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> Callable[[], bool]:
    """Check that scores are finite, weights finite and not negative, and labels in range.

    Labels range from 0 to ``LARGEST_LABEL``. All tensors are flat, and values on padding do not
    count. The returned function gives the result; on a CPU the check is done before the call
    returns. The result is False for tensor subclasses and for tensors of ``torch.func`` transforms,
    whose memory is not that of a plain array.
    """
    inputs = scores, labels, weights, list_weights
    if not all(tensor is None or _is_array(tensor) for tensor in inputs):
        return lambda: False
    lists = 0 if list_weights is None else list_weights.numel()
    no_offsets = torch.zeros(lists + 1, dtype=torch.int64)
    batch = FlatLists(scores, labels, mask, weights, no_offsets, 0)
    valid = FlatArrays.of(batch, list_weights).valid
    return lambda: valid


def _is_array(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and not is_functorch_wrapped_tensor(tensor)
