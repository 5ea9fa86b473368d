"""Isotonic regression by pooling adjacent violators: one program per list.

The twin of :mod:`rankgrad.kernels.cpu.isotonic`. The last block is held in registers, those before
it on a stack in memory.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def pool(z: Tensor, w: Tensor, lengths: Tensor, entropic: bool) -> Tensor:
    """The blocks of the isotonic regression, each named by the place of its first item.

    Args:
        z: ``[b, n]`` anchors, descending.
        w: ``[b, n]`` weights, descending.
        lengths: ``[b]``; places past a list's end are blocks of their own.
        entropic: by log-sum-exp instead of by sums.
    """
    lists, width = z.shape
    blocks = torch.empty(lists, width, dtype=torch.int64, device=z.device)
    if z.numel() == 0:
        return blocks
    z, w = z.detach().double().contiguous(), w.detach().double().contiguous()
    stack = torch.empty(2, lists, width, dtype=torch.float64, device=z.device)
    first = torch.empty(lists, width, dtype=torch.int64, device=z.device)
    _pool[(lists,)](
        z, w, lengths, stack, first, blocks, lists, width, entropic=entropic, tile=128, num_warps=1
    )
    return blocks


def block_sums(values: Tensor, blocks: Tensor) -> Tensor:
    """For each item the sum over its block, added up in the same order every time."""
    lists, width = values.shape
    sums = torch.empty_like(values, memory_format=torch.contiguous_format)
    if values.numel() == 0:
        return sums
    _add[(lists,)](values.contiguous(), blocks, sums, width, tile=512, num_warps=4)
    return sums.gather(-1, blocks)


@triton.jit
def _log_add(a, b):
    """``log(exp(a) + exp(b))``, either of which may be 0."""
    top, low = tl.maximum(a, b), tl.minimum(a, b)
    empty = top == float("-inf")
    gap = tl.where(empty, 0.0, low) - tl.where(empty, 0.0, top)
    return tl.where(empty, top, top + tl.log(1.0 + tl.exp(gap)))


@triton.jit
def _pool(
    z, w, lengths, stack, first, blocks, lists, width, entropic: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    """Merge neighbouring blocks until their values decrease."""
    place = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + place).to(tl.int64)
    base = place * width
    z, w, first, blocks = z + base, w + base, first + base, blocks + base
    left_of, right_of = stack + base, stack + (lists.to(tl.int64) * width + base)
    count = length * 0  # of blocks on the stack, the last of which is also held here
    a_start, a_left, a_right = count, tl.load(z), tl.load(w)
    for item in range(length):
        start, left, right = item + count * 0, tl.load(z + item), tl.load(w + item)
        going = count > 0
        while going:
            if entropic:
                going = a_left - a_right < left - right
            else:
                size_a, size = (start - a_start).to(tl.float64), (item + 1 - start).to(tl.float64)
                going = (a_left - a_right) * size < (left - right) * size_a
            if going:
                if entropic:
                    left, right = _log_add(a_left, left), _log_add(a_right, right)
                else:
                    left, right = a_left + left, a_right + right
                start = a_start
                count -= 1
                going = count > 0
                if going:
                    a_start = tl.load(first + count - 1)
                    a_left = tl.load(left_of + count - 1)
                    a_right = tl.load(right_of + count - 1)
        tl.store(first + count, start)
        tl.store(left_of + count, left)
        tl.store(right_of + count, right)
        tl.debug_barrier()
        a_start, a_left, a_right = start, left, right
        count += 1
    end = length
    for back in range(count):
        start = tl.load(first + count - 1 - back)
        for left_end in range(start, end, tile):
            at = left_end + tl.arange(0, tile)
            tl.store(blocks + at, tl.zeros([tile], tl.int64) + start, mask=at < end)
        end = start
    for left_end in range(length, width, tile):
        at = left_end + tl.arange(0, tile)
        tl.store(blocks + at, at, mask=at < width)


@triton.jit
def _segmented(a, starts_a, b, starts_b):
    """Sums that begin anew where a block starts."""
    return tl.where(starts_b != 0, b, a + b), starts_a | starts_b


@triton.jit
def _add(values, blocks, sums, width, tile: tl.constexpr):
    """The sum over each block of a list, where the block starts."""
    base = tl.program_id(0).to(tl.int64) * width
    carried = tl.load(values + base) * 0.0
    for left in range(0, width, tile):
        at = left + tl.arange(0, tile)
        inside = at < width
        value = tl.load(values + base + at, mask=inside, other=0.0)
        block = tl.load(blocks + base + at, mask=inside, other=-1)
        following = tl.load(blocks + base + at + 1, mask=at + 1 < width, other=-1)
        starts = (block == at).to(tl.int32)
        running, begun = tl.associative_scan((value, starts), 0, _segmented)
        running = tl.where(begun != 0, running, running + carried)
        tl.store(sums + base + block, running, mask=inside & (following != block))
        carried = tl.sum(tl.where(at == left + tile - 1, running, 0.0), 0)
