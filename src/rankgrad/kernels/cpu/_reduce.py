"""The last step of all losses: the sum or mean over lists; and the backward pass of losses."""

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


def scale_by_list(
    grad: Tensor,
    grad_scores: Tensor,
    offsets: Tensor,
    max_length: int,
    factor: Tensor | None = None,
) -> Tensor:
    """``factor * grad[b] * grad_scores[i]`` for every item i of list b.

    ``grad`` and ``factor`` are ``[lists]``, or one number for all; ``grad_scores`` is ``[items]``.
    Items after the last list get 0.
    """
    # NumPy is several times faster than PyTorch on small arrays, and needs no compilation.
    factors, values = grad.detach().numpy().reshape(-1), grad_scores.detach().numpy()
    if factor is not None:
        factors = factors * factor.detach().numpy()
    if factors.size * max_length == values.size:
        product = values.reshape(factors.size, -1) * factors[:, None] if values.size else values
        return torch.from_numpy(product.reshape(values.shape))
    bounds, flat = offsets.numpy(), values.reshape(-1)
    product = np.zeros_like(flat)
    in_lists = slice(bounds[0], bounds[-1])
    np.multiply(flat[in_lists], np.repeat(factors, np.diff(bounds)), out=product[in_lists])
    return torch.from_numpy(product.reshape(values.shape))
