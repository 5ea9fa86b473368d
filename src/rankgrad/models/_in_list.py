"""Features relative to the list: ranks and standardized scores of each feature within its list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankgrad._shapes import Features, Int, Mask
from rankgrad._validation import check_choice

InList = Literal["rank", "score", "ties"]

#: The first and last place, from 0, of the items that an item is tied with, by each feature.
_TieSpans = tuple[Int[Tensor, "*b n f"], Int[Tensor, "*b n f"]]


def list_ranks(features: Features, mask: Mask, spans: _TieSpans | None = None) -> Features:
    """The rank of each item within its list by each feature, tied items in their middle.

    Of n items, the one with a items below it and b as high as itself, itself included, has
    ``√12 ((a + b / 2) / n - 1/2)``: evenly spaced around 0 with a deviation of about 1, whatever
    the length of the list and the scale of the feature. All of them tied, or alone, it is 0.

    Args:
        features: the items of each list.
        mask: True on real items; what is said of others is 0.
        spans: of the features, if they are known.

    >>> mask = torch.tensor([[True, True, False], [True, True, True]])
    >>> list_ranks(torch.tensor([[[3.0], [9.0], [0.0]], [[1.0], [1.0], [1.0]]]), mask).squeeze(-1)
    tensor([[-0.8660,  0.8660,  0.0000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    first, last = spans or _tie_spans(features, mask)
    lengths = mask.sum(-1, dtype=features.dtype).clamp(min=1)[..., None, None]
    ranks = (first + last + 1) / 2 / lengths
    return ((ranks - 0.5) * math.sqrt(12)).where(mask[..., None], 0.0).to(features.dtype)


def list_ties(features: Features, mask: Mask, spans: _TieSpans | None = None) -> Features:
    """Whether other items of the list have the same value of a feature, which copies do.

    With c others it is ``2 c / (1 + c)``: 0 for a value that no other item has, 1 where one other
    has it, and close to 2 where many do, as with a feature of few values.

    Args:
        features: the items of each list.
        mask: True on real items; what is said of others is 0.
        spans: of the features, if they are known.

    >>> mask = torch.tensor([[True, True, True, False]])
    >>> list_ties(torch.tensor([[[3.0], [9.0], [3.0], [9.0]]]), mask).squeeze(-1)
    tensor([[1., 0., 1., 0.]])
    """
    first, last = spans or _tie_spans(features, mask)
    others = (last - first).to(features.dtype)
    return (2 * others / (1 + others)).where(mask[..., None], 0.0)


def _tie_spans(features: Features, mask: Mask) -> _TieSpans:
    n = features.shape[-2]
    if n == 0:
        return features.long(), features.long()
    # A GPU would have to be waited for to find the real items, so there all are sorted.
    on_cpu = features.device.type == "cpu" and features.dtype == torch.float32
    if on_cpu and not torch.compiler.is_exporting() and 2 * int(mask.sum()) < mask.numel():
        return _spans_of_few(features, mask)
    by_feature = features.masked_fill(~mask[..., None], float("inf")).mT
    values, order = by_feature.sort(dim=-1)
    places = torch.arange(n, device=features.device)
    before = values.index_select(-1, (places - 1).clamp(min=0))
    after = values.index_select(-1, (places + 1).clamp(max=n - 1))
    begins, ends = (places == 0) | (values != before), (places == n - 1) | (values != after)
    first = torch.where(begins, places, 0).cummax(-1).values
    last = torch.where(ends, places, n).flip(-1).cummin(-1).values.flip(-1)
    unsorted = torch.empty_like(order)
    return unsorted.scatter(-1, order, first).mT, unsorted.scatter(-1, order, last).mT


def _spans_of_few(features: Features, mask: Mask) -> _TieSpans:
    """:func:`_tie_spans` where most places are padding: only items are sorted.

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
    last = first + first.diff(append=first.new_tensor([begins.numel()])) - 1
    starts = (lengths.cumsum(0) - lengths)[lists] + torch.arange(width)[:, None] * count
    found = []
    for place in (first, last):
        here = torch.zeros_like(features, dtype=torch.int64)
        sorted_places = place[tie].view(width, count) - starts
        here[mask] = torch.empty_like(order).scatter_(-1, order, sorted_places).mT
        found.append(here)
    return found[0], found[1]


def list_scores(features: Features, mask: Mask) -> Features:
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
    # Where a feature is constant in a list and far from 0, what rounding leaves of it is amplified.
    # In training, where the time counts, the sums are of the features' own type.
    exact = torch.is_inference_mode_enabled() or torch.compiler.is_exporting()
    dtype = torch.float64 if exact else features.dtype
    total = features.where(real, 0.0).sum(-2, keepdim=True, dtype=dtype)
    mean = (total / lengths).to(features.dtype)
    apart = (features - mean).where(real, 0.0)
    deviation = (apart.square().sum(-2, keepdim=True) / lengths).sqrt()
    scores: Tensor = apart / (deviation + 0.1)
    return scores


def in_list_columns(features: Features, mask: Mask, kinds: Sequence[InList]) -> list[Features]:
    """The columns of each kind; where several need the features sorted, they are sorted once.

    Args:
        features: the items of each list.
        mask: True on real items.
        kinds: ``rank``, ``score`` or ``ties``, in the order of the columns.
    """
    spans = _tie_spans(features, mask) if {"rank", "ties"} & set(kinds) else None
    by_spans = {"rank": list_ranks, "ties": list_ties}
    return [
        list_scores(features, mask) if kind == "score" else by_spans[kind](features, mask, spans)
        for kind in kinds
    ]


def check_in_list(option: str, kinds: Any) -> tuple[InList, ...]:
    """Check a selection of the kinds, such as ``["rank"]``, each at most once."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence) or len(set(kinds)) < len(kinds):
        raise ValueError(f"{option} must be a list such as [rank, score], found {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {option}", kind, get_args(InList))
    return tuple(kinds)
