"""What callers give as lists: turned into tensors, and named where it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankgrad.kernels import ops


def as_tensor(argument: str, value: Any) -> Tensor:
    """A dense tensor of real numbers from a tensor, an array or nested lists."""
    try:
        tensor: Tensor = value if type(value) is Tensor else torch.as_tensor(value)
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
    """The offsets on the device of the scores, and the length of the longest list."""
    if mask is not None:
        raise ValueError("give either mask (padded lists) or offsets (flat lists), not both")
    given = as_tensor("offsets", offsets)
    if given.dim() != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(
            f"offsets must be whole numbers in one dimension, found {given.dtype} {shape_of(given)}"
        )
    if scores.dim() != 1:
        raise ValueError(f"with offsets, scores must have one dimension, found {shape_of(scores)}")
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


def unseen(tensor: Tensor) -> bool:
    """Whether values cannot be looked at now: compiled code, a captured CUDA graph, no values."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def largest_exponent(dtype: torch.dtype) -> float:
    """Up to which labels ``2^y``, sums of it and its inverse are safe: 120 in float32."""
    return round(math.log2(torch.finfo(dtype).max)) - 8


def check_exponents(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Labels of which ``2^y`` is to be taken: an error if one is too large for it.

    Compiled code says so as well, on CPUs. On a GPU it cannot without waiting: such a label becomes
    infinite there, so that the loss or metric of its list is NaN.
    """
    most = largest_exponent(labels.dtype)
    if labels.is_meta or labels.numel() == 0:
        return labels
    if unseen(labels):
        return labels.masked_fill(ops.too_large(labels.detach(), mask, most), math.inf)
    ops.refuse_large(labels, mask, most)
    return labels


def _any_large(labels: Tensor, mask: Tensor | None) -> bool:
    if labels.numel() == 0:
        return False
    inside = labels if mask is None else torch.where(mask, labels, 0.0)
    return bool(inside.max() > ops.LARGEST_LABEL)


class Look:
    """A look at the values of lists, as the caller gave them.

    ``verdict`` waits for a twin to say whether there is nothing wrong at all.
    """

    verdict: Callable[[], bool]

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        item_weights: Tensor | None,
        list_weights: Tensor | None,
    ) -> None:
        self.scores, self.labels, self.mask = scores, labels, mask
        self.item_weights, self.list_weights = item_weights, list_weights

    def closely(self) -> tuple[bool, bool]:
        """Whether scores are finite, and labels large; an error that says where they are wrong."""
        finite = _check_values(self.scores, self.labels, self.mask)
        _check_weights(self.item_weights, self.mask)
        _check_weights(self.list_weights, None)
        return finite, _any_large(self.labels, self.mask)


def _check_values(scores: Tensor, labels: Tensor, mask: Tensor | None) -> bool:
    """An error that says where a score or a label is wrong; whether all scores are finite."""
    if scores.numel() == 0:
        return True
    # All at a glance: roots are NaN for negative labels, and sums finite for finite numbers only.
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
    """Item weights and list weights, told apart by shape.

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


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's shape, as errors say it."""
    return tuple(tensor.shape)
