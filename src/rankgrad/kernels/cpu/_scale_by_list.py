"""Multiplies the derivatives of items by a factor of their list: the backward pass of losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
