"""Lists in the flat layout on GPUs: kernels' arguments, how they load items, results.

A tensor that a batch may lack, such as the mask or the weights, is None as an argument of a kernel.
Triton compiles the kernel once with and once without it, so ``mask is None`` costs nothing there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._launcher import next_power_of_2


@dataclass(eq=False)
class ListOperator:
    """The lists on which a relaxation is an operator: the base class of all operators.

    Args:
        scores: ``[items]``, float32, in the flat layout (see :mod:`rankgrad.kernels.ops`).
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``, the start and end of each list.
        max_length: a bound on the lists' lengths.
    """

    scores: Tensor
    mask: Tensor | None
    offsets: Tensor
    max_length: int

    @property
    def lists(self) -> int:
        """The number of lists; 0 if none of them has an item."""
        return self.offsets.numel() - 1 if self.scores.numel() and self.max_length else 0


def empty_results(batch: FlatLists) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what a loss returns: values, grad_scores and defined."""
    values = batch.scores.new_empty(batch.offsets.shape[0] - 1)
    return values, torch.empty_like(batch.scores), torch.empty_like(values, dtype=torch.bool)


def empty_norms(batch: FlatLists) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for one over the norm of each list, its length, and whether the loss is defined."""
    scale = batch.labels.new_empty(batch.offsets.shape[0] - 1)
    lengths = torch.empty_like(scale, dtype=torch.int32)
    return scale, lengths, torch.empty_like(scale, dtype=torch.bool)


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
def is_real(mask, at, inside):
    """Which positions hold a real item: inside the list, and not padding."""
    if mask is None:
        return inside
    else:
        return inside & (tl.load(mask + at, mask=inside, other=0) != 0)


@triton.jit
def positions(mask, start, left, length, WIDTH: tl.constexpr):
    """The positions of a list from ``left`` on, and which of them hold a real item."""
    at = left + tl.arange(0, WIDTH)
    return at, is_real(mask, start + at, at < length)


@triton.jit
def list_block(mask, offsets, ROWS: tl.constexpr):
    """The list of this program (see :func:`list_span`), and its block of rows.

    Returns also the rows' positions in the list, which of them are inside the list, and which of
    them hold a real item.
    """
    list_index, start, length = list_span(offsets)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < length
    return list_index, start, length, row, inside, is_real(mask, start + row, inside)


@triton.jit
def load_weights(weights, at, real):
    """The weights of items, 1 if there are none; 0 where there is no item."""
    if weights is None:
        return tl.where(real, 1.0, 0.0)
    else:
        return tl.load(weights + at, mask=real, other=0.0)
