"""The sum or the mean over lists."""

from __future__ import annotations

import torch
from torch import Tensor


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and the share of each in it."""
    shares = defined.to(torch.float64)
    if list_weights is not None:
        shares = shares * list_weights
    if mean:
        total = shares.sum()
        shares = shares / torch.where(total > 0, total, 1.0)
    counting = torch.where(shares != 0, values, 0.0)
    return (counting.double() @ shares).to(values.dtype), shares.to(values.dtype)
