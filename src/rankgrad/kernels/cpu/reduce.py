"""The sum or the mean over lists."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and the share of each in it."""
    each = values.detach().numpy()
    shares = defined.numpy().astype(np.float64)
    if list_weights is not None:
        shares = np.where(defined.numpy(), list_weights.detach().numpy(), 0.0).astype(np.float64)
    if mean:
        total = shares.sum()
        shares *= 1 / total if total > 0 else 0.0
    # Not as a product of matrices: there are BLAS whose order of adding depends on alignment.
    result = (np.where(shares != 0, each, 0.0) * shares).sum()
    return values.new_tensor(result), torch.from_numpy(shares.astype(each.dtype))
