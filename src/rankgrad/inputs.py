"""What callers pass: made tensors and lists, checked, and named where it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad.kernels import ops, ready
from rankgrad.kernels.arguments import LARGEST_LABEL
from rankgrad.lists import FlatLists, Lists, contiguous, flatten, is_unchecked
from rankgrad.quoting import quote
from rankgrad.shapes import Bool, Float, Int


def as_tensor(argument: str, value: Any) -> Tensor:
    """A dense tensor of real numbers from a tensor, an array or nested lists."""
    if type(value) is Tensor and value.layout is torch.strided and not value.dtype.is_complex:
        return value
    try:
        tensor: Tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise ValueError(
            f"{argument} must be a tensor, an array or lists of equal lengths (for ragged lists "
            f"give flat values and offsets); found {kind}: {error}"
        ) from None
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise ValueError(
            f"{argument} must be dense real numbers, found {tensor.dtype}, {tensor.layout}"
        )
    return tensor


def as_scores(scores: Any) -> Tensor:
    """Scores as a floating-point tensor of at least one dimension; half precision becomes float32.

    Whole numbers become float64, which tells all below 2^53 apart.

    >>> as_scores([1, 2]).dtype, as_scores(torch.zeros(2, dtype=torch.bfloat16)).dtype
    (torch.float64, torch.float32)
    """
    tensor = as_tensor("scores", scores)
    if tensor.dim() == 0:
        raise ValueError("scores must have at least one dimension, the items; found one number")
    if tensor.dtype == torch.bool:
        raise ValueError(f"scores must be real numbers, found {tensor.dtype}")
    if not tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor.to(torch.float32) if tensor.dtype.itemsize < 4 else tensor


def check_column(scores: Tensor) -> None:
    """Refuse ``[B, n, 1]``, as a model with one output gives it: lists of one item each.

    All losses of such lists are 0, whatever the scores are. ``[B, 1]`` are single items on purpose.
    """
    if scores.dim() > 2 and scores.shape[-1] == 1 and scores.shape[-2] > 1:
        raise ValueError(
            f"scores have shape {shape_of(scores)}: the last dimension is the items of a list, so "
            "every list would have one item. Give scores.squeeze(-1), and labels, mask and weights "
            "alike; lists that do have one item each are of shape [lists, 1]"
        )


def check_mask(mask: Any, scores: Tensor) -> Bool[Tensor, "*b n"]:
    """The mask of padded scores, all True when there is none."""
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    tensor = as_tensor("mask", mask).to(scores.device)
    if tensor.dtype != torch.bool:
        raise ValueError(f"mask must be boolean (True = real item), found {tensor.dtype}")
    if tensor.shape != scores.shape:
        raise ValueError(
            f"mask has shape {shape_of(tensor)}, scores {shape_of(scores)}: they must agree"
        )
    return tensor


def check_offsets(offsets: Any, scores: Tensor, mask: Any) -> tuple[Int[Tensor, " c"], int]:
    """The offsets on the device of the scores, and the length of the longest list.

    In compiled code and under ``torch.func`` values are not read: the bound is then all items.
    """
    if mask is not None:
        raise ValueError("give either mask (padded lists) or offsets (flat lists), not both")
    given = as_tensor("offsets", offsets)
    if given.dim() != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(
            f"offsets must be whole numbers in one dimension, found {given.dtype} {shape_of(given)}"
        )
    if scores.dim() != 1:
        raise ValueError(f"with offsets, scores must have one dimension, found {shape_of(scores)}")
    if is_unchecked(given):
        return given.to(scores.device, torch.int64), scores.shape[0]
    host = given.to("cpu", torch.int64)
    if len(host) < 1 or host[0] != 0 or host[-1] != len(scores):
        ends = "nothing" if len(host) < 1 else f"{int(host[0])} to {int(host[-1])}"
        raise ValueError(
            f"offsets must run from 0 to the number of items, {len(scores)}; found {ends}"
        )
    if (host.diff() < 0).any():
        at = int((host.diff() < 0).nonzero()[0]) + 1
        raise ValueError(
            f"offsets must not fall; offsets[{at}] = {int(host[at])} follows {int(host[at - 1])}"
        )
    longest = int(host.diff().max()) if len(host) > 1 else 0
    return given.to(scores.device, torch.int64, non_blocking=True), longest


def as_offsets(offsets: Any = None, lengths: Any = None, qid: Any = None) -> Any:
    """The offsets of flat lists, from the one argument of three that says where lists end.

    Args:
        offsets: ``[B + 1]``, given back as they are.
        lengths: ``[B]``, the number of items of each list.
        qid: ``[N]``, the query of each item, numbers or text; the items of a query are together.

    Returns:
        The offsets, or None if there are no arguments.

    Raises:
        ValueError: more than one is given, a length is negative, or a query comes twice.

    >>> as_offsets(lengths=[2, 1]), as_offsets(qid=["a", "a", "b"])
    (tensor([0, 2, 3]), tensor([0, 2, 3]))
    """
    if lengths is None and qid is None:
        return offsets
    if (offsets is not None) + (lengths is not None) + (qid is not None) > 1:
        raise ValueError("give one of offsets, lengths and qid, not several")
    if lengths is not None:
        sizes = as_tensor("lengths", lengths)
        if sizes.dim() != 1 or sizes.is_floating_point() or sizes.dtype == torch.bool:
            raise ValueError(
                f"lengths must be whole numbers in one dimension, found {sizes.dtype} "
                f"{shape_of(sizes)}"
            )
        return F.pad(sizes.to(torch.int64).cumsum(0), (1, 0))
    queries = np.asarray(qid.cpu() if isinstance(qid, Tensor) else qid)
    if queries.ndim != 1:
        raise ValueError(f"qid must have one dimension, one query per item, found {queries.shape}")
    starts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1]])[: len(queries)])
    _, first, counts = np.unique(queries[starts], return_index=True, return_counts=True)
    if (counts > 1).any():
        again = queries[starts][first[counts > 1][0]]
        raise ValueError(
            f"the items of qid {quote(again.item())} are not together: sort the items by qid"
        )
    return torch.as_tensor(np.append(starts, len(queries)))


def largest_exponent(dtype: torch.dtype) -> float:
    """Up to which labels ``2^y``, sums of it and its inverse are safe: 120 in float32."""
    return round(math.log2(torch.finfo(dtype).max)) - 8


def check_exponents(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Labels of which ``2^y`` is to be taken: an error if one is too large for it.

    Compiled code says so as well, on CPUs. On a GPU it cannot without waiting, nor can
    ``torch.func``: such a label becomes infinite there, so that its list's loss or metric is NaN.
    """
    most = largest_exponent(labels.dtype)
    if labels.is_meta or labels.numel() == 0:
        return labels
    if is_unchecked(labels):
        too_large = ops.too_large if torch.compiler.is_compiling() else _exceeds
        return labels.masked_fill(too_large(labels.detach(), mask, most), math.inf)
    ops.refuse_large(labels, mask, most)
    return labels


def _exceeds(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    return labels > most if mask is None else (labels > most) & mask


def _any_large(labels: Tensor, mask: Tensor | None) -> bool:
    if labels.numel() == 0:
        return False
    inside = labels if mask is None else torch.where(mask, labels, 0.0)
    return bool(inside.max() > LARGEST_LABEL)


class ValueCheck:
    """A check of the values of lists, as the caller passed them.

    A backend kernel says first whether everything is right, as it nearly always is. On a GPU it
    does so while the host goes on; on a CPU when it is asked, as kernels of losses check values
    themselves.
    """

    def __init__(self, lists: Lists, *passed: Tensor | None) -> None:
        self._lists, self._passed = lists, passed
        self._all_right = self._start() if lists.flat.scores.is_cuda else None

    def _start(self) -> Callable[[], bool] | None:
        if not ready("check_values", self._lists.flat.scores):
            return None
        return ops.check_values(*self._lists.flat[:4], self._lists.list_weights)

    def result(self) -> tuple[bool, bool]:
        """Whether scores are finite, and labels large; an error says what is wrong, and where."""
        all_right = self._all_right or self._start()
        if all_right is not None and all_right():
            return True, False
        scores, labels, mask, item_weights, list_weights = self._passed
        assert scores is not None
        assert labels is not None
        finite = _check_values(scores, labels, mask)
        _check_weights(item_weights, mask)
        _check_weights(list_weights, None)
        return finite, _any_large(labels, mask)


class PendingLists(NamedTuple):
    """Lists of which the values may still be checked, on a GPU.

    Attributes:
        lists: not to be used for results before :meth:`wait`.
        check: of their values; None where they are not checked.
    """

    lists: Lists
    check: ValueCheck | None

    def wait(self) -> Lists:
        """The lists once their values are known to be right; an error that says what is wrong."""
        if self.check is None:
            return self.lists
        finite, large = self.check.result()
        return replace(self.lists, finite=finite, large=large)


def as_lists(
    scores: Any,
    labels: Any,
    mask: Any = None,
    *,
    offsets: Any = None,
    lengths: Any = None,
    qid: Any = None,
    weights: Any = None,
    check: bool = True,
) -> Lists:
    """Check the arguments of a loss or metric and bring them into the common layout.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape, not negative.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
        qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
        weights: one per list, or one per item.
        check: whether to check the values. They are never checked in compiled code, where a CUDA
            graph is captured and under ``torch.func``: values cannot be read there.
    """
    pending = start_lists(
        scores,
        labels,
        mask,
        offsets=as_offsets(offsets, lengths, qid),
        weights=weights,
        check=check,
    )
    return pending.wait()


def start_lists(
    scores: Any,
    labels: Any,
    mask: Any = None,
    *,
    offsets: Any = None,
    lengths: Any = None,
    qid: Any = None,
    weights: Any = None,
    check: bool = True,
) -> PendingLists:
    """:func:`as_lists` without waiting for a GPU that checks the values."""
    if lengths is not None or qid is not None:
        offsets = as_offsets(offsets, lengths, qid)
    scores, labels = as_scores(scores), as_tensor("labels", labels)
    if labels.shape != scores.shape:
        raise ValueError(
            f"labels have shape {shape_of(labels)}, scores {shape_of(scores)}: they must agree"
        )
    max_length = 0
    if offsets is not None:
        offsets, max_length = check_offsets(offsets, scores, mask)
    else:
        check_column(scores)
        if mask is not None:
            mask = check_mask(mask, scores)
    if labels.dtype != scores.dtype or labels.device != scores.device:
        labels = labels.to(scores)
    item_weights, list_weights = split_weights(weights, scores, offsets)
    if offsets is not None:
        flat = contiguous(FlatLists(scores, labels, None, item_weights, offsets, max_length))
        shape: tuple[int, ...] = (len(offsets) - 1,)
    else:
        flat = flatten(scores, labels, mask, item_weights)
        shape = tuple(scores.shape[:-1]) or (1,)
    per_list = None if list_weights is None else list_weights.reshape(-1).contiguous()
    lists = Lists(flat, per_list, shape, ragged=offsets is not None)
    if not check or is_unchecked(scores, labels):
        return PendingLists(lists, None)
    return PendingLists(lists, ValueCheck(lists, scores, labels, mask, item_weights, list_weights))


def unchecked_lists(
    scores: Float[Tensor, "*items"],
    labels: Float[Tensor, "*items"],
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    offsets: Int[Tensor, " bounds"] | None = None,
    max_length: int = 0,
    weights: Float[Tensor, "*items"] | None = None,
) -> Lists:
    """:func:`as_lists` for what is known to be right: nothing is checked, so nothing waited for.

    All tensors are on one device. With offsets, ``max_length`` bounds the lists' lengths, and the
    last list may be followed by further memory, as :class:`rankgrad.lists.FlatLists` says.
    """
    scores = as_scores(scores)
    labels, weights = labels.to(scores), None if weights is None else weights.to(scores)
    if offsets is None:
        flat = flatten(scores, labels, mask, weights)
        return Lists(flat, None, tuple(scores.shape[:-1]) or (1,), finite=True)
    flat = contiguous(FlatLists(scores, labels, None, weights, offsets, max_length))
    return Lists(flat, None, (len(offsets) - 1,), ragged=True, finite=True)


def _check_values(scores: Tensor, labels: Tensor, mask: Tensor | None) -> bool:
    """An error that says where a score or a label is wrong; whether all scores are finite."""
    if scores.numel() == 0:
        return True
    # One reduction checks all: roots of negative labels are NaN, as are sums with a NaN.
    glance = labels.detach().sqrt() + scores.detach() / 2
    if mask is not None:
        glance = torch.where(mask, glance, 0.0)
    if math.isfinite(float(torch.linalg.vector_norm(glance, math.inf))):
        return True
    bad_scores, bad_labels = scores.isnan(), ~(labels >= 0) | labels.isinf()
    if mask is not None:
        bad_scores, bad_labels = bad_scores & mask, bad_labels & mask
    if not (bad_scores | bad_labels).any():
        return False
    name, tensor, bad = ("scores", scores, bad_scores)
    wanted = "scores must be numbers"
    if not bad_scores.any():
        name, tensor, bad = ("labels", labels, bad_labels)
        wanted = "labels must be finite and not negative (mark padding with mask, not with a label)"
    at = tuple(bad.nonzero()[0].tolist())
    where = ", ".join(map(str, at))
    raise ValueError(f"{name}[{where}] = {tensor[at].item():g}: {wanted}")


def split_weights(
    weights: Any, scores: Tensor, offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Item weights and list weights, distinguished by shape.

    Flat lists that are as many as their items have per-item weights; a column says per list.
    """
    if weights is None:
        return None, None
    weights = as_tensor("weights", weights).to(scores)
    per_list = scores.shape[:-1] if offsets is None else torch.Size([len(offsets) - 1])
    if weights.shape == scores.shape:
        return weights, None
    column = offsets is not None and weights.shape == (*per_list, 1)
    if column or weights.shape == per_list or (not per_list and weights.shape == (1,)):
        return None, weights
    raise ValueError(
        f"weights have shape {shape_of(weights)}: give one per item, {shape_of(scores)}, "
        f"or one per list, {tuple(per_list)}"
    )


def _check_weights(weights: Tensor | None, mask: Tensor | None) -> None:
    if weights is None:
        return
    bad = ~((weights >= 0) & weights.isfinite())
    if mask is not None:
        bad = bad & mask
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        where = ", ".join(map(str, at))
        raise ValueError(
            f"weights[{where}] = {weights[at].item():g}: weights must be finite and not negative"
        )


def check_finite(lists: Lists) -> None:
    """Refuse infinite scores, which exact metrics take and nothing else does."""
    if lists.finite or is_unchecked(lists.flat.scores):
        return
    bad = ~lists.scores.isfinite()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        number = lists.scores[at].item()
        raise ValueError(f"scores must be finite; item {at[1]} of list {at[0]} is {number:g}")


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's shape, as errors say it."""
    return tuple(tensor.shape)
