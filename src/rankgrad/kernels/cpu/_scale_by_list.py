"""Multiplies the derivatives of items by a factor of their list."""

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

    Items after the last list get 0.
    """
    # NumPy is several times faster than PyTorch on small arrays, and needs no compilation.
    lists, values = grad.detach().numpy().reshape(-1), grad_scores.detach().numpy()
    if factor is not None:
        lists = lists * factor.detach().numpy()
    if lists.size * max_length == values.size:
        product = values.reshape(lists.size, -1) * lists[:, None] if values.size else values
        return torch.from_numpy(product.reshape(values.shape))
    bounds, flat = offsets.numpy(), values.reshape(-1)
    product = np.zeros_like(flat)
    some = slice(bounds[0], bounds[-1])
    np.multiply(flat[some], np.repeat(lists, np.diff(bounds)), out=product[some])
    return torch.from_numpy(product.reshape(values.shape))
