"""Whether lists are sound, at one glance of the host."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import quick
from rankgrad.kernels.ops import LARGEST_LABEL

_SPAN = 1024
_PROGRAMS = 128


def sound(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> bool:
    """Whether scores are finite, weights finite and not negative, and labels not large either.

    All are flat; what padding holds is not looked at. Waits for the device.
    """
    slots = scores.shape[0]
    lists = 0 if list_weights is None else list_weights.shape[0]
    programs = min(_PROGRAMS, triton.cdiv(max(slots, lists), _SPAN))
    if programs == 0:
        return True
    flaws = torch.empty(programs, dtype=torch.int32, device=scores.device)
    _look[(programs,)](
        scores, labels, scores if mask is None else mask, scores if weights is None else weights,
        scores if list_weights is None else list_weights, flaws, LARGEST_LABEL, slots, lists,
        mask is not None, weights is not None, _SPAN, num_warps=4,
    )  # fmt: skip
    return not any(flaws.tolist())


@triton.jit
def _finite(number):
    return tl.abs(number) < float("inf")


@quick
@triton.jit(do_not_specialize=["slots", "lists"])
def _look(
    scores, labels, mask, weights, list_weights, flaws, largest, slots, lists,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The number of flaws in the spans of a program."""
    found = tl.zeros([SPAN], tl.int32)
    step = tl.num_programs(0) * SPAN
    first = tl.program_id(0) * SPAN
    for left in range(first, slots, step):
        at = left + tl.arange(0, SPAN)
        real = at < slots
        if MASKED:
            real = tl.load(mask + at, mask=real, other=0) != 0
        score = tl.load(scores + at, mask=real, other=0.0)
        label = tl.load(labels + at, mask=real, other=0.0)
        right = _finite(score) & (label >= 0) & (label <= largest)
        if WEIGHTED:
            weight = tl.load(weights + at, mask=real, other=0.0)
            right = right & _finite(weight) & (weight >= 0)
        found += tl.where(right, 0, 1)
    for left in range(first, lists, step):
        at = left + tl.arange(0, SPAN)
        weight = tl.load(list_weights + at, mask=at < lists, other=0.0)
        found += tl.where(_finite(weight) & (weight >= 0), 0, 1)
    tl.store(flaws + tl.program_id(0), tl.sum(found, 0))
