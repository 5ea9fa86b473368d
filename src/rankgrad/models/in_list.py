"""Features relative to the list: ranks and standardized scores of each feature within its list."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankgrad.shapes import Bool, Float
from rankgrad.validation import check_choice

InList = Literal["rank", "score"]


def list_ranks(
    features: Float[Tensor, "*b n f"], mask: Bool[Tensor, "*b n"]
) -> Float[Tensor, "*b n f"]:
    """The rank of each item within its list by each feature, tied items in their middle.

    Of n items, the one with a items below it and b as high as itself, itself included, has
    ``√12 ((a + b / 2) / n - 1/2)``: evenly spaced around 0 with a deviation of about 1, whatever
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
    # A GPU would have to be waited for to find the real items, so there all are sorted.
    on_cpu = features.device.type == "cpu" and features.dtype == torch.float32
    if on_cpu and not torch.compiler.is_exporting() and 2 * int(mask.sum()) < mask.numel():
        return _ranks_of_few(features, mask)
    by_feature = features.masked_fill(~mask[..., None], float("inf")).mT
    values, order = by_feature.sort(dim=-1)
    places = torch.arange(n, device=features.device)
    before = values.index_select(-1, (places - 1).clamp(min=0))
    after = values.index_select(-1, (places + 1).clamp(max=n - 1))
    begins, ends = (places == 0) | (values != before), (places == n - 1) | (values != after)
    first = torch.where(begins, places, 0).cummax(-1).values
    last = torch.where(ends, places, n).flip(-1).cummin(-1).values.flip(-1)
    lengths = mask.sum(-1, dtype=features.dtype).clamp(min=1)[..., None, None]
    shares = (first + last + 1) / 2 / lengths
    ranks = torch.empty_like(shares).scatter_(-1, order, shares)
    return ((ranks.mT - 0.5) * math.sqrt(12)).where(mask[..., None], 0.0).to(features.dtype)


def _ranks_of_few(
    features: Float[Tensor, "*b n f"], mask: Bool[Tensor, "*b n"]
) -> Float[Tensor, "*b n f"]:
    """:func:`list_ranks` to the last bit, where most places are padding: only items are sorted.

    All lists are sorted at once, by a whole number of which the upper half is the list and the
    lower half the bits of the value, turned so that they order as the values do.
    """
    items = features[mask]
    count, width = items.shape
    lengths = mask.sum(-1).flatten()
    lists = torch.arange(len(lengths)).repeat_interleave(lengths)
    bits = (items + 0.0).view(torch.int32)  # -0.0 is 0.0
    bits ^= (bits >> 31) & 0x7FFFFFFF
    values, order = ((lists[:, None] << 32) + bits).mT.contiguous().sort(dim=-1)
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    tie = begins.flatten().cumsum(0) - 1
    first = begins.flatten().nonzero()[:, 0]
    twice = (2 * first + first.diff(append=first.new_tensor([begins.numel()])))[tie]
    starts = (lengths.cumsum(0) - lengths)[lists] + torch.arange(width)[:, None] * count
    shares = (twice.view(width, count) - 2 * starts) / 2 / lengths[lists].to(features.dtype)
    ranks = torch.empty_like(shares).scatter_(-1, order, shares)
    found = torch.zeros_like(features)
    found[mask] = (ranks.mT - 0.5) * math.sqrt(12)
    return found


def list_scores(
    features: Float[Tensor, "*b n f"], mask: Bool[Tensor, "*b n"]
) -> Float[Tensor, "*b n f"]:
    """How many standard deviations of its list each item is from its list's mean, by each feature.

    0.1 is added to the deviation, so that features that vary little are not amplified.

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
    """Check a selection of the kinds, such as ``["rank"]``, each at most once."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence) or len(set(kinds)) < len(kinds):
        raise ValueError(f"{option} must be a list such as [rank, score], found {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {option}", kind, get_args(InList))
    return tuple(kinds)
