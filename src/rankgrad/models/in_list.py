"""Where an item stands in its list, feature by feature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankgrad.lists import check_choice

InList = Literal["rank", "score"]


def list_ranks(
    features: Float[Tensor, "*b n f"], mask: Bool[Tensor, "*b n"]
) -> Float[Tensor, "*b n f"]:
    """The rank of each item within its list by each feature, tied items in their middle.

    Of n items, the one with a items below it and b as high as itself, itself included, has
    ``√12 ((a + b / 2) / n - 1/2)``: evenly spread around 0 with a deviation of about 1, whatever
    the length of the list and the scale of the feature. All of them tied, or alone, it is 0.

    Args:
        features: the items of each list.
        mask: True on real items; what is said of others is 0.

    >>> mask = torch.tensor([[True, True, False], [True, True, True]])
    >>> list_ranks(torch.tensor([[[3.0], [9.0], [0.0]], [[1.0], [1.0], [1.0]]]), mask).squeeze(-1)
    tensor([[-0.8660,  0.8660,  0.0000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    n = features.shape[-2]
    if n == 0:
        return features
    by_feature = features.masked_fill(~mask[..., None], float("inf")).mT
    values, order = by_feature.sort(dim=-1)
    places = torch.arange(n, device=features.device)
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[..., 1:] = values[..., 1:] != values[..., :-1]
    ends = begins.roll(-1, -1)
    ends[..., -1] = True
    first = torch.where(begins, places, 0).cummax(-1).values
    last = torch.where(ends, places, n).flip(-1).cummin(-1).values.flip(-1)
    lengths = mask.sum(-1, dtype=features.dtype).clamp(min=1)[..., None, None]
    shares = (first + last + 1) / 2 / lengths
    ranks = torch.empty_like(shares).scatter_(-1, order, shares)
    return ((ranks.mT - 0.5) * math.sqrt(12)).where(mask[..., None], 0.0).to(features.dtype)


def list_scores(
    features: Float[Tensor, "*b n f"], mask: Bool[Tensor, "*b n"]
) -> Float[Tensor, "*b n f"]:
    """How many standard deviations of its list each item is from its list's mean, by each feature.

    A feature that varies little within a list is not blown up: 0.1 is added to the deviation.

    Args:
        features: the items of each list, on a scale of about 1.
        mask: True on real items; what is said of others is 0.

    >>> mask = torch.tensor([[True, True, False]])
    >>> list_scores(torch.tensor([[[3.0], [9.0], [0.0]]]), mask).squeeze(-1)
    tensor([[-0.9677,  0.9677,  0.0000]])
    """
    real = mask[..., None]
    lengths = mask.sum(-1, dtype=features.dtype).clamp(min=1)[..., None, None]
    mean = features.where(real, 0.0).sum(-2, keepdim=True) / lengths
    apart = (features - mean).where(real, 0.0)
    deviation = (apart.square().sum(-2, keepdim=True) / lengths).sqrt()
    scores: Tensor = apart / (deviation + 0.1)
    return scores


IN_LIST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"rank": list_ranks, "score": list_scores}


def check_in_list(option: str, kinds: Any) -> tuple[InList, ...]:
    """Some of the kinds there are, such as ``["rank"]``, each once."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence) or len(set(kinds)) < len(kinds):
        raise ValueError(f"{option} must be a list such as [rank, score], found {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {option}", kind, get_args(InList))
    return tuple(kinds)
