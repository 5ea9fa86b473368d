"""The sum or the mean over lists."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over lists on which the loss is defined, and normalized weights."""
    each, inside = values.detach().numpy(), defined.numpy()
    weights = inside.astype(np.float64)
    if list_weights is not None:
        np.multiply(weights, list_weights.detach().numpy(), out=weights, where=inside)
    if mean:
        total = weights.sum()
        weights *= 1 / total if total > 0 else 0.0
    # No matrix product: some BLAS libraries add in an order that depends on memory alignment.
    if weights.all():
        terms = each * weights
    else:
        terms = np.zeros_like(weights)
        np.multiply(each, weights, out=terms, where=weights != 0)
    result = np.array(terms.sum(), each.dtype)
    return torch.from_numpy(result), torch.from_numpy(weights.astype(each.dtype))
