"""Whether lists are sound, at one glance of the host.

The verdict is written into the host's own memory, so that nothing has to be fetched, and the host
may do something else until it needs to know.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import cdiv, quick
from rankgrad.kernels.ops import LARGEST_LABEL

_SPAN = 1024
_PROGRAMS = 128
_GLANCES = 256  # how often the host looks before it waits for the device


class _Verdicts(threading.local):
    """What programs found: the number of the turn if nothing, and minus that if something.

    Turns tell what is written late from what is asked now. Device and host both see the memory.
    """

    def __init__(self) -> None:
        self.words = torch.zeros(_PROGRAMS, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        self.seen = self.words.numpy()
        self.turn = 0

    def next_turn(self) -> int:
        """A number that no other check of late has."""
        self.turn = self.turn % (2**31 - 1) + 1
        return self.turn


_verdicts = _Verdicts()


def look(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> Callable[[], bool]:
    """Begin to look, and give what waits for the verdict, to be called once.

    Lists are sound if scores are finite, weights finite and not negative, and labels not large
    either. All are flat; what padding holds is not looked at. Two looks begun at once are not told
    apart, and found unsound.
    """
    slots = scores.shape[0]
    lists = 0 if list_weights is None else list_weights.shape[0]
    programs = min(_PROGRAMS, cdiv(max(slots, lists), _SPAN))
    if programs == 0:
        return lambda: True
    turn, found = _verdicts.next_turn(), _verdicts.seen[:programs]
    _look[(programs,)](
        scores, labels, scores if mask is None else mask, scores if weights is None else weights,
        scores if list_weights is None else list_weights, _verdicts.words, LARGEST_LABEL,
        slots, lists, turn, mask is not None, weights is not None, _SPAN, num_warps=4,
    )  # fmt: skip

    def verdict() -> bool:
        for _ in range(_GLANCES):
            words = found.tolist()
            if words.count(turn) == programs:
                return True
            if words.count(turn) + words.count(-turn) == programs:
                return False
        if scores.is_cuda:
            torch.cuda.current_stream(scores.device).synchronize()
        return bool((found == turn).all())

    return verdict


@triton.jit
def _finite(number):
    return tl.abs(number) < float("inf")


@quick
@triton.jit(do_not_specialize=["slots", "lists", "turn"])
def _look(
    scores, labels, mask, weights, list_weights, verdicts, largest, slots, lists, turn,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The verdict on the spans of a program."""
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
    tl.store(verdicts + tl.program_id(0), tl.where(tl.sum(found, 0) == 0, turn, -turn))
