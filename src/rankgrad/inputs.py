"""Checks of the values in the lists that callers pass; an error names the argument and the item.

:func:`rankgrad.lists.make_lists` makes the lists, and checks types and shapes; this module checks
values. Metrics call :func:`as_lists`, which does both. The kernel of a loss checks the values that
it reads anyway; a loss calls :func:`check_values` if that kernel finds an invalid value, or if
there is no kernel. The training loop, whose data are valid, calls :func:`unchecked_lists`.
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
        check: whether to check the values. Where they cannot be read, they are never checked: in
            compiled code, while a CUDA graph is captured, and under ``torch.func``.
        options: ``offsets``, ``lengths``, ``qid`` and ``weights``.

    Returns:
        The lists.

    Raises:
        ValueError: a value is not valid, or shapes do not agree.
    """
    lists = make_lists(scores, labels, mask, **options)
    return check_values(lists) if check and lists.readable else lists


def check_values(lists: Lists) -> Lists:
    """Check the values of lists, and set whether all scores are finite and any label is large.

    A kernel checks all values in one pass. If it finds an invalid value, an infinite score or a
    large label, PyTorch checks the values again, to tell these cases apart and to find the
    invalid item.

    Args:
        lists: the result of :func:`rankgrad.lists.make_lists`.

    Returns:
        The same lists, with ``finite`` and ``large`` set.

    Raises:
        ValueError: a value is not valid; the message names the argument and the item.
    """
    flat = lists.flat  # its first four fields are scores, labels, mask and weights
    # ops.check_values starts the check; calling the function that it returns waits for the result.
    if ready("check_values", flat.scores) and ops.check_values(*flat[:4], lists.list_weights)():
        return replace(lists, finite=True)
    scores, labels, mask, item_weights, list_weights = lists.arguments
    assert scores is not None  # only mask and weights may be None
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
    """:func:`as_lists` for tensors that are known to be valid.

    Nothing is checked, so the host does not wait for the device. All tensors must be on one device.
    Flat tensors may go on after the last list, as :class:`rankgrad.lists.FlatLists` says.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        max_length: flat lists: an upper bound of their lengths.
        weights: one per item, of the same shape as the scores.

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
    """Raise if a score is not finite.

    Losses and relaxed metrics call this; exact metrics allow infinite scores.

    Args:
        lists: the lists with these scores. Where values cannot be read, they are not checked.

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


def largest_exponent(dtype: torch.dtype) -> float:
    """The largest label y for which ``2^y``, and a sum of 255 such terms, are finite.

    Args:
        dtype: the type of labels and gains.

    Returns:
        The label: 120 in float32.
    """
    return round(math.log2(torch.finfo(dtype).max)) - 8


def check_exponents(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Check that no label y is too large for ``2^y``, and return the labels.

    In eager code, and in compiled code on a CPU, a label that is too large is an error. In compiled
    code on a GPU, while a CUDA graph is captured, and under ``torch.func``, values cannot be read
    on the host. There, such a label becomes infinite, so that the loss or metric of its list is
    NaN.

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


def _check_items(scores: Tensor, labels: Tensor, mask: Tensor | None) -> bool:
    """Raise if a score is NaN or a label not valid; return whether all scores are finite."""
    if scores.numel() == 0:
        return True
    # One reduction, for speed, finds whether any value needs the checks below: the square root of a
    # negative label is NaN, and a sum with NaN or an infinity is not finite. Scores are halved so
    # that the sum of finite numbers cannot overflow.
    combined = labels.detach().sqrt() + scores.detach() / 2
    if mask is not None:
        combined = torch.where(mask, combined, 0.0)
    if math.isfinite(float(torch.linalg.vector_norm(combined, math.inf))):
        return True
    invalid_scores, invalid_labels = scores.isnan(), ~(labels >= 0) | labels.isinf()
    if mask is not None:
        invalid_scores, invalid_labels = invalid_scores & mask, invalid_labels & mask
    if not (invalid_scores | invalid_labels).any():
        return False  # some scores are infinite, and nothing is invalid
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
    """Whether a label is above ``LARGEST_LABEL``, for which kernels may overflow in 2^y."""
    if labels.numel() == 0:
        return False
    real_labels = labels if mask is None else torch.where(mask, labels, 0.0)
    return bool(real_labels.max() > LARGEST_LABEL)


def _exceeds(labels: Tensor, mask: Tensor | None, limit: float) -> Tensor:
    """Whether each label is above the limit, ``[..., n]``; False on padding."""
    return labels > limit if mask is None else (labels > limit) & mask
