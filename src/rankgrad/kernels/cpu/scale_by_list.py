"""Derivatives of items times a factor of their list."""

from __future__ import annotations

import torch
from torch import Tensor

from rankgrad.kernels.ops import scale_arrays


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
    factors = grad.detach().numpy().reshape(-1)
    if factor is not None:
        factors = factors * factor.detach().numpy()
    flat = grad_scores.detach().numpy().reshape(-1)
    product = scale_arrays(factors, flat, offsets.numpy(), max_length)
    return torch.from_numpy(product.reshape(grad_scores.shape))
