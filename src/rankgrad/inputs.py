"""Checks of the values that callers pass as lists; an error names the argument and the item.

:mod:`rankgrad.lists` checks types and shapes first. Losses and metrics call :func:`as_lists`, or
leave the check of the values to the kernel that reads them anyway.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankgrad._quoting import value_error
from rankgrad._shapes import Float, Int, ItemMask
from rankgrad.kernels import ops, ready
from rankgrad.kernels.arguments import LARGEST_LABEL
from rankgrad.lists import (
    FlatLists,
    Lists,
    as_scores,
    contiguous,
    flatten,
    is_unchecked,
    make_lists,
)

__all__ = [
    "as_lists",
    "check_exponents",
    "check_finite",
    "check_values",
    "largest_exponent",
    "unchecked_lists",
]


def as_lists(
    scores: Any, labels: Any, mask: Any = None, *, check: bool = True, **options: Any
) -> Lists:
    """:func:`rankgrad.lists.make_lists` of the same arguments, with the values checked.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape, not negative.
        mask: padded lists: True on real items.
        check: whether to check the values. They are never checked in compiled code, where a CUDA
            graph is captured and under ``torch.func``: values cannot be read there.
        options: ``offsets``, ``lengths``, ``qid`` and ``weights``.

    Returns:
        The lists.

    Raises:
        ValueError: a value is not valid, or shapes do not agree.
    """
    lists = make_lists(scores, labels, mask, **options)
    return check_values(lists) if check and lists.readable else lists


def check_values(lists: Lists) -> Lists:
    """Check the values of lists, and note whether all scores are finite and any label is large.

    A kernel checks all values at once. Only if it finds something unusual are they checked again in
    PyTorch, to find the invalid item.

    Args:
        lists: as :func:`rankgrad.lists.make_lists` gives them.

    Returns:
        The same lists, with ``finite`` and ``large`` set.

    Raises:
        ValueError: a value is not valid; the message names the argument and the item.
    """
    flat = lists.flat  # its first four fields are scores, labels, mask and weights
    if ready("check_values", flat.scores) and ops.check_values(*flat[:4], lists.list_weights)():
        return replace(lists, finite=True)
    scores, labels, mask, item_weights, list_weights = lists.arguments
    assert scores is not None
    assert labels is not None
    finite = _check_items(scores, labels, mask)
    _check_weights(item_weights, mask)
    _check_weights(list_weights, None)
    return replace(lists, finite=finite, large=_any_large(labels, mask))


def unchecked_lists(
    scores: Float[Tensor, "*items"],
    labels: Float[Tensor, "*items"],
    mask: ItemMask | None = None,
    *,
    offsets: Int[Tensor, " bounds"] | None = None,
    max_length: int = 0,
    weights: Float[Tensor, "*items"] | None = None,
) -> Lists:
    """:func:`as_lists` for tensors that are known to be valid: no check, so no synchronization.

    All tensors are on one device. With offsets, ``max_length`` bounds the lists' lengths, and the
    last list may be followed by further memory, as :class:`rankgrad.lists.FlatLists` says.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        max_length: flat lists: a bound of their lengths.
        weights: one per item.

    Returns:
        The lists.
    """
    scores = as_scores(scores)
    labels, weights = labels.to(scores), None if weights is None else weights.to(scores)
    if offsets is None:
        flat = flatten(scores, labels, mask, weights)
        return Lists(flat, None, tuple(scores.shape[:-1]) or (1,), finite=True)
    flat = contiguous(FlatLists(scores, labels, None, weights, offsets, max_length))
    return Lists(flat, None, (len(offsets) - 1,), ragged=True, finite=True)


def check_finite(lists: Lists) -> None:
    """Raise if a score is not finite; only exact metrics take infinite scores.

    Args:
        lists: whose scores are checked, where values can be read.

    Raises:
        ValueError: a score is not finite; the message names the item.
    """
    if lists.finite or is_unchecked(lists.flat.scores):
        return
    not_finite = ~lists.scores.isfinite()
    if bool(not_finite.any()):
        row, item = not_finite.nonzero()[0].tolist()
        score = lists.scores[row, item].item()
        raise ValueError(f"scores must be finite; item {item} of list {row} is {score:g}")


def _check_items(scores: Tensor, labels: Tensor, mask: Tensor | None) -> bool:
    """Raise if a score is NaN or a label not valid; return whether all scores are finite."""
    if scores.numel() == 0:
        return True
    # One reduction checks both: the root of a negative label is NaN, and so is a sum with NaN.
    combined = labels.detach().sqrt() + scores.detach() / 2
    if mask is not None:
        combined = torch.where(mask, combined, 0.0)
    if math.isfinite(float(torch.linalg.vector_norm(combined, math.inf))):
        return True
    invalid_scores, invalid_labels = scores.isnan(), ~(labels >= 0) | labels.isinf()
    if mask is not None:
        invalid_scores, invalid_labels = invalid_scores & mask, invalid_labels & mask
    if not (invalid_scores | invalid_labels).any():
        return False
    if invalid_scores.any():
        raise value_error("scores", scores, invalid_scores, "scores must be numbers")
    rule = "labels must be finite and not negative (mark padding with mask, not with a label)"
    raise value_error("labels", labels, invalid_labels, rule)


def _check_weights(weights: Tensor | None, mask: Tensor | None) -> None:
    """Raise if a weight, of an item or of a list, is negative or not finite."""
    if weights is None:
        return
    invalid = ~((weights >= 0) & weights.isfinite())
    if mask is not None:
        invalid = invalid & mask
    if invalid.any():
        raise value_error("weights", weights, invalid, "weights must be finite and not negative")


def _any_large(labels: Tensor, mask: Tensor | None) -> bool:
    """Whether a label is too large for kernels to compute 2^y - 1 without a check."""
    if labels.numel() == 0:
        return False
    real_labels = labels if mask is None else torch.where(mask, labels, 0.0)
    return bool(real_labels.max() > LARGEST_LABEL)


def largest_exponent(dtype: torch.dtype) -> float:
    """The largest label y: 120 in float32, so that ``2^y`` and sums of 255 of them are finite.

    Args:
        dtype: of labels and gains.

    Returns:
        The label.
    """
    return round(math.log2(torch.finfo(dtype).max)) - 8


def check_exponents(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Check that ``2^y`` of each label is finite, and return the labels.

    Eager code raises an error, and so does compiled code on a CPU. In compiled code on a GPU, while
    a CUDA graph is captured and under ``torch.func``, values cannot be read on the host: there, a
    label that is too large becomes infinite, so that its list's loss or metric is NaN.

    Args:
        labels: ``[..., n]``.
        mask: ``[..., n]``, True on real items; None if all are.

    Returns:
        The labels, ``[..., n]``.

    Raises:
        ValueError: a label is too large; the message names it.
    """
    limit = largest_exponent(labels.dtype)
    if labels.is_meta or labels.numel() == 0:
        return labels
    if is_unchecked(labels):
        too_large = ops.too_large if torch.compiler.is_compiling() else _exceeds
        return labels.masked_fill(too_large(labels.detach(), mask, limit), math.inf)
    ops.refuse_large(labels, mask, limit)
    return labels


def _exceeds(labels: Tensor, mask: Tensor | None, limit: float) -> Tensor:
    """Whether each label is above the limit, ``[..., n]``; False on padding."""
    return labels > limit if mask is None else (labels > limit) & mask
