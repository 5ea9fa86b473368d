"""Lists in the flat layout on GPUs: how kernels find and load items, and memory for results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._launcher import next_power_of_2


def empty_results(batch: FlatLists) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what a loss returns: values, grad_scores and defined."""
    values = batch.scores.new_empty(batch.offsets.shape[0] - 1)
    return values, torch.empty_like(batch.scores), torch.empty_like(values, dtype=torch.bool)


def or_placeholder(optional: Tensor | None, stand_in: Tensor) -> Tensor:
    """An optional tensor, or a placeholder that the kernel does not read."""
    return stand_in if optional is None else optional


def chunk_size(length: int, most: int) -> int:
    """Items that a program reads at a time: a power of two from 32 to ``most``."""
    return min(most, max(32, next_power_of_2(length)))


@triton.jit
def list_span(offsets):
    """The list of this program, its first item, and its length, padding included."""
    list_index = tl.program_id(0)
    start = tl.load(offsets + list_index)
    return list_index, start, (tl.load(offsets + list_index + 1) - start).to(tl.int32)


@triton.jit
def is_real(mask, at, inside, MASKED: tl.constexpr):
    """Which positions hold a real item: inside the list, and not padding."""
    if MASKED:
        return inside & (tl.load(mask + at, mask=inside, other=0) != 0)
    else:
        return inside


@triton.jit
def list_block(mask, offsets, MASKED: tl.constexpr, ROWS: tl.constexpr):
    """The list of this program (see :func:`list_span`), and its block of rows.

    Returns also the rows' positions in the list, which of them are inside the list, and which of
    them hold a real item.
    """
    list_index, start, length = list_span(offsets)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < length
    return list_index, start, length, row, inside, is_real(mask, start + row, inside, MASKED)


@triton.jit
def load_weights(weights, at, real, WEIGHTED: tl.constexpr):
    """The weights of items, 1 if there are none; 0 where there is no item."""
    if WEIGHTED:
        return tl.load(weights + at, mask=real, other=0.0)
    else:
        return tl.where(real, 1.0, 0.0)
