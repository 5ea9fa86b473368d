"""Columns derived within a list: each feature's rank, standardized value and ties among the items.

:class:`~rankgrad.models.tabm.TabM` takes them in beside the features (its option ``in_list``). In
prediction on a CPU, :mod:`rankgrad.data._preparation_kernel` computes the same columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankgrad._shapes import Features, Int, Mask
from rankgrad._validation import check_choice

InList = Literal["rank", "score", "ties"]

#: For each item and feature, the first and the last position, from 0, that the items with the same
#: value take if the list is sorted by that feature.
_TieSpans = tuple[Int[Tensor, "*b n f"], Int[Tensor, "*b n f"]]


def list_ranks(features: Features, mask: Mask, spans: _TieSpans | None = None) -> Features:
    """The rank of each item within its list by each feature; tied items share their mean rank.

    In a list of n items, an item with a items below it and b items of the same value (itself
    included) gets ``√12 ((a + b / 2) / n - 1/2)``. Ranks are evenly spaced around 0 with a standard
    deviation of about 1, whatever the length of the list and the scale of the feature. If all items
    are tied, or there is only one, the rank is 0.

    Args:
        features: ``[*b, n, f]``, the features of padded lists.
        mask: ``[*b, n]``, True on real items; padding gets 0.
        spans: the tie spans of the features, if they are already computed.

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
    """A measure of how many other items of the list have the same value of a feature.

    For c such items it is ``2 c / (1 + c)``: 0 for a unique value, 1 if one other item has it, and
    close to 2 if many do. Duplicates of an item are tied in every feature; in a feature of few
    values, many items are tied.

    Args:
        features: ``[*b, n, f]``, the features of padded lists.
        mask: ``[*b, n]``, True on real items; padding gets 0.
        spans: the tie spans of the features, if they are already computed.

    >>> mask = torch.tensor([[True, True, True, False]])
    >>> list_ties(torch.tensor([[[3.0], [9.0], [3.0], [9.0]]]), mask).squeeze(-1)
    tensor([[1., 0., 1., 0.]])
    """
    first, last = spans or _tie_spans(features, mask)
    others = (last - first).to(features.dtype)
    return (2 * others / (1 + others)).where(mask[..., None], 0.0)


def _tie_spans(features: Features, mask: Mask) -> _TieSpans:
    """The tie spans of each item by each feature; padding is sorted behind the items."""
    n = features.shape[-2]
    if n == 0:
        return features.long(), features.long()
    # If less than half of a float32 batch are real items, sort only these. On a GPU padding is
    # always sorted too, since counting the real items would wait for the GPU.
    on_cpu = features.device.type == "cpu" and features.dtype == torch.float32
    if on_cpu and not torch.compiler.is_exporting() and 2 * int(mask.sum()) < mask.numel():
        return _sparse_tie_spans(features, mask)
    by_feature = features.masked_fill(~mask[..., None], float("inf")).mT
    values, order = by_feature.sort(dim=-1)
    positions = torch.arange(n, device=features.device)
    before = values.index_select(-1, (positions - 1).clamp(min=0))
    after = values.index_select(-1, (positions + 1).clamp(max=n - 1))
    # Whether a sorted position is the first or the last of its tie group.
    begins, ends = (positions == 0) | (values != before), (positions == n - 1) | (values != after)
    first = torch.where(begins, positions, 0).cummax(-1).values
    last = torch.where(ends, positions, n).flip(-1).cummin(-1).values.flip(-1)
    unsorted = torch.empty_like(order)
    return unsorted.scatter(-1, order, first).mT, unsorted.scatter(-1, order, last).mT


def _sparse_tie_spans(features: Features, mask: Mask) -> _TieSpans:
    """:func:`_tie_spans` for batches that are mostly padding: sorts the real items only.

    One sort per feature orders the items of all lists. Its keys are 64-bit integers: the list in
    the upper half, the bits of the value in the lower half, changed so that they order as integers
    as the values do.
    """
    items = features[mask]
    count, width = items.shape
    lengths = mask.sum(-1).flatten()
    list_of_item = torch.arange(len(lengths)).repeat_interleave(lengths)
    bits = (items + 0.0).view(torch.int32)  # the addition turns -0.0 into 0.0
    bits ^= (bits >> 31) & 0x7FFFFFFF  # negative floats order in reverse as integers
    keys, order = ((list_of_item[:, None] << 32) + bits).mT.contiguous().sort(dim=-1)
    # Tie groups of all features are numbered in one sequence, feature after feature.
    begins = torch.ones_like(keys, dtype=torch.bool)
    begins[:, 1:] = keys[:, 1:] != keys[:, :-1]
    group = begins.flatten().cumsum(0) - 1
    first = begins.flatten().nonzero()[:, 0]
    last = first + first.diff(append=first.new_tensor([begins.numel()])) - 1
    # Where the list of each sorted item starts in that sequence of count · width positions.
    starts = (lengths.cumsum(0) - lengths)[list_of_item] + torch.arange(width)[:, None] * count
    spans = []
    for bound in (first, last):  # of each group
        sorted_bounds = bound[group].view(width, count) - starts
        padded = torch.zeros_like(features, dtype=torch.int64)
        padded[mask] = torch.empty_like(order).scatter_(-1, order, sorted_bounds).mT
        spans.append(padded)
    return spans[0], spans[1]


def list_scores(features: Features, mask: Mask) -> Features:
    """Each feature standardized within the list: ``(x - mean) / (deviation + 0.1)``.

    0.1 is added to the standard deviation so that features that vary little are not amplified.

    Args:
        features: ``[*b, n, f]``, the features of padded lists, on a scale of about 1.
        mask: ``[*b, n]``, True on real items; padding gets 0.

    >>> mask = torch.tensor([[True, True, False]])
    >>> list_scores(torch.tensor([[[3.0], [9.0], [0.0]]]), mask).squeeze(-1)
    tensor([[-0.9677,  0.9677,  0.0000]])
    """
    is_real = mask[..., None]
    lengths = mask.sum(-1, dtype=features.dtype).clamp(min=1)[..., None, None]
    # In float32, the mean of a constant feature far from 0 is off by rounding, and the division
    # amplifies the difference; so prediction sums in float64. Training sums in the features' own
    # type, which is faster.
    exact = torch.is_inference_mode_enabled() or torch.compiler.is_exporting()
    dtype = torch.float64 if exact else features.dtype
    total = features.where(is_real, 0.0).sum(-2, keepdim=True, dtype=dtype)
    mean = (total / lengths).to(features.dtype)
    centered = (features - mean).where(is_real, 0.0)
    variance = centered.square().sum(-2, keepdim=True) / lengths
    # Embeddings have gradients, and that of a root at 0 would be infinite.
    varies = variance > 0
    deviation = variance.where(varies, 1.0).sqrt().where(varies, 0.0)
    scores: Tensor = centered / (deviation + 0.1)
    return scores


def in_list_columns(features: Features, mask: Mask, kinds: Sequence[InList]) -> list[Features]:
    """The derived columns of each kind; features are sorted once for ranks and ties.

    Args:
        features: ``[*b, n, f]``, the features of padded lists.
        mask: ``[*b, n]``, True on real items.
        kinds: ``rank``, ``score`` or ``ties``, in the order of the columns.

    Returns:
        One tensor for each kind, of the shape of the features.
    """
    spans = _tie_spans(features, mask) if {"rank", "ties"} & set(kinds) else None
    by_spans = {"rank": list_ranks, "ties": list_ties}
    return [
        list_scores(features, mask) if kind == "score" else by_spans[kind](features, mask, spans)
        for kind in kinds
    ]


def check_in_list(option: str, kinds: Any) -> tuple[InList, ...]:
    """Check a selection of the kinds, such as ``["rank"]``, each at most once."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence):
        raise ValueError(f"{option} must be a list such as [rank, score], found {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {option}", kind, get_args(InList))
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"{option} must have each kind at most once, found {kinds!r}")
    return tuple(kinds)
