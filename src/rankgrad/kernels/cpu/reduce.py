"""The sum or the mean over lists."""

from __future__ import annotations

import torch
from torch import Tensor

from rankgrad.kernels.ops import reduce_arrays


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and their normalized weights."""
    weights = None if list_weights is None else list_weights.detach().numpy()
    result, normalized = reduce_arrays(values.detach().numpy(), defined.numpy(), weights, mean)
    return torch.tensor(result, dtype=values.dtype), torch.from_numpy(normalized).to(values.dtype)
