"""An asynchronous check that the scores, labels and weights of a batch are valid.

The kernel writes the result into pinned host memory. This needs no copy, and the host can do other
work until it needs the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import LARGEST_LABEL
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._parallel_compilation import launch_queued

_SPAN = 1024  # values that a program reads at a time
_PROGRAMS = 128  # the most programs; each writes one result
_POLLS = 256  # reads of the result by the host before it synchronizes


class _Results(threading.local):
    """The results of programs, in memory that device and host share.

    A program writes the number of the check if all its values are valid, else minus that number.
    The number distinguishes the current check from earlier ones.

    Attributes:
        words: ``[_PROGRAMS]`` int32, as a tensor, to which the kernel writes.
        seen: the same memory as an array, which the host reads.
        turn: the number of the last check.
    """

    def __init__(self) -> None:
        self.words = torch.zeros(_PROGRAMS, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        self.seen = self.words.numpy()
        self.turn = 0

    def next_turn(self) -> int:
        """The number of a new check, from 1 to 2^31 - 1, the largest int32; then 1 again."""
        self.turn = self.turn % (2**31 - 1) + 1
        return self.turn


_results = _Results()


def check_values(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> Callable[[], bool]:
    """Start a check, and return a function that waits for its result: whether all are valid.

    Values are valid if scores are finite, weights are finite and not negative, and labels are from
    0 to ``LARGEST_LABEL``. Call the function once, before this thread starts another check:
    otherwise it may return False for valid values.

    Args:
        scores: ``[N]``, flat.
        labels: ``[N]``.
        mask: ``[N]``, False on padding, whose values are not read; None without padding.
        weights: of items, ``[N]``; None for none.
        list_weights: ``[B]``; None for none.
    """
    items = scores.shape[0]
    lists = 0 if list_weights is None else list_weights.shape[0]
    programs = min(_PROGRAMS, cdiv(max(items, lists), _SPAN))
    if programs == 0:
        return lambda: True
    check_number, program_results = _results.next_turn(), _results.seen[:programs]
    if list_weights is None:
        list_weights = scores  # not read: the kernel is compiled once for both cases
    _check[(programs,)](
        scores, labels, mask, weights, list_weights, _results.words, LARGEST_LABEL, items, lists,
        check_number, _SPAN, num_warps=4,
    )  # fmt: skip

    def result() -> bool:
        launch_queued()  # if the check waits for its kernel to be compiled
        for _ in range(_POLLS):
            seen = program_results.tolist()
            if seen.count(check_number) == programs:
                return True
            if seen.count(check_number) + seen.count(-check_number) == programs:
                return False
        if scores.is_cuda:
            torch.cuda.current_stream(scores.device).synchronize()
        return bool((program_results == check_number).all())

    return result


@triton.jit
def _is_finite(value):
    """Whether a value is a finite number."""
    return tl.abs(value) < float("inf")


@cached_launch
@triton.jit(do_not_specialize=["items", "lists", "turn"])
def _check(
    scores, labels, mask, weights, list_weights, results, largest, items, lists, turn,
    SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Check the values of every n-th span of items and of lists, with n the number of programs.

    Writes ``turn``, the number of the check, to ``results[program]`` if all are valid, else
    ``-turn``. ``items`` is the length of ``scores``, ``lists`` that of ``list_weights``, and
    ``largest`` the largest valid label.
    """
    invalid_values = tl.zeros([SPAN], tl.int32)
    stride = tl.num_programs(0) * SPAN
    first = tl.program_id(0) * SPAN
    for span_start in range(first, items, stride):
        at = span_start + tl.arange(0, SPAN)
        real = at < items
        if mask is not None:
            real = tl.load(mask + at, mask=real, other=0) != 0
        score = tl.load(scores + at, mask=real, other=0.0)
        label = tl.load(labels + at, mask=real, other=0.0)
        is_valid = _is_finite(score) & (label >= 0) & (label <= largest)
        if weights is not None:
            weight = tl.load(weights + at, mask=real, other=0.0)
            is_valid = is_valid & _is_finite(weight) & (weight >= 0)
        invalid_values += tl.where(is_valid, 0, 1)
    for span_start in range(first, lists, stride):
        at = span_start + tl.arange(0, SPAN)
        weight = tl.load(list_weights + at, mask=at < lists, other=0.0)
        invalid_values += tl.where(_is_finite(weight) & (weight >= 0), 0, 1)
    tl.store(results + tl.program_id(0), tl.where(tl.sum(invalid_values, 0) == 0, turn, -turn))
