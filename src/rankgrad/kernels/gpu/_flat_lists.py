"""Lists in the flat layout on GPUs: memory for results, and how kernels find and load their items.

All kernel modules use these helpers. A tensor that a batch may lack, such as the mask or the
weights, is None as an argument of a kernel. Triton compiles the kernel once with and once without
it, so ``mask is None`` costs nothing at run time.
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
    """A relaxation of some lists: the base class of all operators, which holds the lists.

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
    """Memory for what a loss returns: values [lists], grad_scores [items], defined [lists]."""
    values = batch.scores.new_empty(batch.offsets.shape[0] - 1)
    return values, torch.empty_like(batch.scores), torch.empty_like(values, dtype=torch.bool)


def empty_norms(batch: FlatLists) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for one over the norm of each list, its length, and whether the loss is defined.

    All have the shape ``[lists]``; their dtypes are that of the labels, int32 and bool.
    """
    scale = batch.labels.new_empty(batch.offsets.shape[0] - 1)
    lengths = torch.empty_like(scale, dtype=torch.int32)
    return scale, lengths, torch.empty_like(scale, dtype=torch.bool)


def chunk_size(length: int, maximum: int) -> int:
    """How many items a program reads at a time: a power of two from 32 to ``maximum``."""
    return min(maximum, max(32, next_power_of_2(length)))


@triton.jit
def list_span(offsets):
    """The list of this program, the index of its first item, and its length with padding."""
    list_index = tl.program_id(0)
    start = tl.load(offsets + list_index)
    return list_index, start, (tl.load(offsets + list_index + 1) - start).to(tl.int32)


@triton.jit
def is_real(mask, index, inside):
    """Which indices hold a real item: those inside the list that are not padding."""
    if mask is None:
        return inside
    else:
        return inside & (tl.load(mask + index, mask=inside, other=0) != 0)


@triton.jit
def positions(mask, start, first, length, WIDTH: tl.constexpr):
    """The WIDTH positions of a list from ``first`` on, and which of them hold a real item."""
    position = first + tl.arange(0, WIDTH)
    return position, is_real(mask, start + position, position < length)


@triton.jit
def list_block(mask, offsets, ROWS: tl.constexpr):
    """The list of this program, as :func:`list_span` returns it, and its block of rows.

    The block is given by three arrays ``[ROWS]``: the positions of the rows in the list, which of
    them are inside the list, and which of them hold a real item.
    """
    list_index, start, length = list_span(offsets)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < length
    return list_index, start, length, row, inside, is_real(mask, start + row, inside)


@triton.jit
def load_weights(weights, index, real):
    """The weights of items; 1 for every item if ``weights`` is None. 0 where there is no item."""
    if weights is None:
        return tl.where(real, 1.0, 0.0)
    else:
        return tl.load(weights + index, mask=real, other=0.0)
