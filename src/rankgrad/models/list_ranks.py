"""Where an item stands in its list, feature by feature."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def list_ranks(items: Float[Tensor, "N f"], lists: Int[Tensor, " N"]) -> Float[Tensor, "N f"]:
    """The rank of each item within its list by each feature, tied items in their middle.

    Of n items, the one with a items below it and b as high as itself, itself included, has
    ``√12 ((a + b / 2) / n - 1/2)``: evenly spread around 0 with a deviation of about 1, whatever
    the length of the list and the scale of the feature. All of them tied, or alone, it is 0.

    Args:
        items: the items of all lists, one list after the other.
        lists: the list of each item, ascending.

    >>> list_ranks(torch.tensor([[3.0], [9.0], [1.0], [1.0]]), torch.tensor([0, 0, 1, 1])).T
    tensor([[-0.8660,  0.8660,  0.0000,  0.0000]])
    """
    n = len(items)
    if n == 0:
        return items
    # By value, and then by list: both sorts are stable, so each list ends up in order.
    values, order = items.T.contiguous().sort(dim=-1)
    again = lists[order].sort(dim=-1, stable=True).indices
    values, order = values.gather(-1, again), order.gather(-1, again)
    places = torch.arange(n, device=items.device)
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[:, 1:] = (values[:, 1:] != values[:, :-1]) | (lists[1:] != lists[:-1])
    ends = begins.roll(-1, -1)
    ends[:, -1] = True
    first = torch.where(begins, places, 0).cummax(-1).values
    last = torch.where(ends, places, n).flip(-1).cummin(-1).values.flip(-1)
    _, at, lengths = lists.unique_consecutive(return_inverse=True, return_counts=True)
    starts, lengths = (lengths.cumsum(0) - lengths)[at], lengths[at]
    shares = ((first + last + 1) / 2 - starts) / lengths
    ranks = torch.empty_like(shares).scatter_(-1, order, shares)
    return ((ranks.T - 0.5) * math.sqrt(12)).to(items.dtype)
