"""The sum or the mean over lists."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over lists on which the loss is defined, and normalized weights.

    Values, ``defined`` and all weights are ``[lists]``.
    """
    list_values, is_defined = values.detach().numpy(), defined.numpy()
    weights = is_defined.astype(np.float64)
    if list_weights is not None:
        np.multiply(weights, list_weights.detach().numpy(), out=weights, where=is_defined)
    if mean:
        total = weights.sum()
        weights *= 1 / total if total > 0 else 0.0
    # No matrix product: some BLAS libraries add in an order that depends on memory alignment.
    if weights.all():
        terms = list_values * weights
    else:
        terms = np.zeros_like(weights)
        np.multiply(list_values, weights, out=terms, where=weights != 0)
    result = np.array(terms.sum(), list_values.dtype)
    return torch.from_numpy(result), torch.from_numpy(weights.astype(list_values.dtype))
