"""A number for each list times those of its items."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def spread(
    grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int, factor: Tensor | None = None
) -> Tensor:
    """``grad[b] * slopes[i]`` for every item i of list b, all of them times the factor.

    Items after the last list get 0.
    """
    # NumPy is several times faster on small arrays than PyTorch, and has nothing to compile.
    lists, given = grad.detach().numpy().reshape(-1), slopes.detach().numpy()
    if factor is not None:
        lists = lists * factor.detach().numpy()
    if lists.size * longest == given.size:
        product = given.reshape(lists.size, -1) * lists[:, None] if given.size else given
        return torch.from_numpy(product.reshape(given.shape))
    bounds, flat = offsets.numpy(), given.reshape(-1)
    product = np.zeros_like(flat)
    some = slice(bounds[0], bounds[-1])
    np.multiply(flat[some], np.repeat(lists, np.diff(bounds)), out=product[some])
    return torch.from_numpy(product.reshape(given.shape))
