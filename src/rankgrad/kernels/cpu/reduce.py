"""The sum or the mean over lists."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and the share of each in it."""
    each, inside = values.detach().numpy(), defined.numpy()
    normalized_weights = inside.astype(np.float64)
    if list_weights is not None:
        np.multiply(
            normalized_weights, list_weights.detach().numpy(), out=normalized_weights, where=inside
        )
    if mean:
        total = normalized_weights.sum()
        normalized_weights *= 1 / total if total > 0 else 0.0
    # Not as a product of matrices: there are BLAS whose order of adding depends on alignment.
    terms = np.zeros_like(normalized_weights)
    np.multiply(each, normalized_weights, out=terms, where=normalized_weights != 0)
    result = np.array(terms.sum(), each.dtype)
    return torch.from_numpy(result), torch.from_numpy(normalized_weights.astype(each.dtype))
