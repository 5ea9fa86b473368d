"""Where an item stands in its list, feature by feature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankgrad.lists import check_choice

InList = Literal["rank", "score"]


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


def list_scores(items: Float[Tensor, "N f"], lists: Int[Tensor, " N"]) -> Float[Tensor, "N f"]:
    """How many standard deviations of its list each item is from its list's mean, by each feature.

    A feature that varies little within a list is not blown up: 0.1 is added to the deviation.

    Args:
        items: the items of all lists, on a scale of about 1.
        lists: the list of each item, ascending.

    >>> list_scores(torch.tensor([[3.0], [9.0], [1.0], [1.0]]), torch.tensor([0, 0, 1, 1])).T
    tensor([[-0.9677,  0.9677,  0.0000,  0.0000]])
    """
    _, at, lengths = lists.unique_consecutive(return_inverse=True, return_counts=True)
    sums = items.new_zeros(len(lengths), items.shape[-1])
    counts = lengths[:, None]
    apart = items - (sums.index_add(0, at, items) / counts)[at]
    deviation = (sums.index_add(0, at, apart.square()) / counts).sqrt()
    scores: Tensor = apart / (deviation + 0.1)[at]
    return scores


IN_LIST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"rank": list_ranks, "score": list_scores}


def check_in_list(option: str, kinds: Any) -> tuple[InList, ...]:
    """Some of the kinds there are, such as ``["rank"]``, each once."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence) or len(set(kinds)) < len(kinds):
        raise ValueError(f"{option} must be a list such as [rank, score], found {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {option}", kind, get_args(InList))
    return tuple(kinds)
