"""Isotonic regression by pooling adjacent violators: one program per list.

Computes the same as :mod:`rankgrad.kernels.cpu._isotonic`, by divide and conquer. When two
neighboring parts of a list are solved, only the blocks at their common border can violate the
order. If they do, they merge, and the merged block absorbs neighbors on both sides until the order
holds. All parts of one size are joined in parallel, then all parts of twice the size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._launcher import cached_launch, next_power_of_2


def pool(z: Tensor, w: Tensor, lengths: Tensor, entropic: bool) -> Tensor:
    """The blocks of the isotonic regression, each identified by the position of its first item.

    Args:
        z: ``[b, n]`` anchors, descending.
        w: ``[b, n]`` weights, descending.
        lengths: ``[b]``; every position past a list's end is a block of its own.
        entropic: pool log-sum-exps instead of sums.
    """
    return pooled(z.detach().double(), w.detach().double(), lengths, entropic)[0]


def pooled(z: Tensor, w: Tensor, lengths: Tensor, entropic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`pool` for float64 input, which also returns the sums and ends of the blocks.

    Returns:
        blocks ``[b, n]``; the sums (or log-sum-exps) of z and of w over each block ``[2, b, n]``,
        stored at its start; and ``[2, b, n]``, whose first half has the block's end at its start.
    """
    lists, width = z.shape
    blocks = torch.empty(lists, width, dtype=torch.int64, device=z.device)
    sums = torch.empty(2, lists, width, dtype=torch.float64, device=z.device)
    ends = torch.empty(2, lists, width, dtype=torch.int32, device=z.device)
    if z.numel():
        lanes = min(1024, max(32, next_power_of_2(width) // 2))
        _pool[(lists,)](
            z.contiguous(), w.contiguous(), lengths, sums, ends, blocks, lists, width,
            ENTROPIC=entropic, LANES=lanes, num_warps=max(1, lanes // 128),
        )  # fmt: skip
    return blocks, sums, ends


def block_sums(values: Tensor, blocks: Tensor) -> Tensor:
    """For each item the sum over its block. The order of summation is fixed."""
    lists, width = values.shape
    sums = torch.empty_like(values, memory_format=torch.contiguous_format)
    if values.numel() == 0:
        return sums
    tile = min(4096, max(128, next_power_of_2(width)))
    warps = min(8, tile // 128)
    _add[(lists,)](values.contiguous(), blocks, sums, width, TILE=tile, num_warps=warps)
    return sums.gather(-1, blocks)


@triton.jit
def _log_add(a, b):
    """``log(exp(a) + exp(b))``; a or b may be -inf."""
    top, low = tl.maximum(a, b), tl.minimum(a, b)
    empty = top == float("-inf")
    difference = tl.where(empty, 0.0, low) - tl.where(empty, 0.0, top)
    return tl.where(empty, top, top + tl.log(1.0 + tl.exp(difference)))


@triton.jit
def _join(a, b, ENTROPIC: tl.constexpr):
    """The sum, or log-sum-exp, over the union of two blocks."""
    return _log_add(a, b) if ENTROPIC else a + b


@triton.jit
def _violates(
    left_a, right_a, size_a, left_b, right_b, size_b, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Whether a block's value is below that of the next block."""
    if ENTROPIC:
        return left_a - right_a < left_b - right_b
    else:
        return (left_a - right_a) * size_b < (left_b - right_b) * size_a


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _pool(
    z, w, lengths, sums, ends, blocks, lists, width, ENTROPIC: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Merge neighboring blocks until their values decrease.

    The start of a block stores its sums and its end (0 once the block has been merged into another
    one). The end of a block stores its start.
    """
    place = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + place).to(tl.int32)
    base = place * width
    z, w, blocks = z + base, w + base, blocks + base
    left_of, right_of = sums + base, sums + (lists * tl.full([], 1, tl.int64) * width + base)
    end_of, start_of = ends + base, ends + (lists * tl.full([], 1, tl.int64) * width + base)
    for first in range(0, width, LANES):
        at = first + tl.arange(0, LANES)
        inside = at < width
        tl.store(left_of + at, tl.load(z + at, mask=inside, other=0.0), mask=inside)
        tl.store(right_of + at, tl.load(w + at, mask=inside, other=0.0), mask=inside)
        tl.store(end_of + at, at + 1, mask=inside)
        tl.store(start_of + at, at, mask=inside)
    tl.debug_barrier()
    half = length * 0 + 1
    while half < length:
        span = 2 * half.to(tl.int64)
        for first in range(0, length, tl.minimum(span * LANES, 1 << 30).to(tl.int32)):
            wide = first + tl.arange(0, LANES) * span
            joined = wide < length - half
            low = tl.where(joined, wide, 0).to(tl.int32)
            _join_parts(
                left_of, right_of, end_of, start_of, low, low + half,
                tl.minimum(low + 2 * half, length), joined, ENTROPIC,
            )  # fmt: skip
        tl.debug_barrier()
        half *= 2
    latest = length * 0
    for first in range(0, width, LANES):
        at = first + tl.arange(0, LANES)
        alive = tl.load(end_of + at, mask=at < width, other=0) > 0
        block = tl.maximum(tl.associative_scan(tl.where(alive, at, 0), 0, _larger), latest)
        tl.store(blocks + at, block.to(tl.int64), mask=at < width)
        latest = tl.max(block, 0)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _join_parts(
    left_of, right_of, end_of, start_of, low, middle, high, joined, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Join the parts ``low:middle`` and ``middle:high`` of a list, for every lane."""
    start = tl.load(start_of + middle - 1, mask=joined, other=0)
    end = tl.load(end_of + middle, mask=joined, other=0)
    left_a = tl.load(left_of + start, mask=joined, other=0.0)
    right_a = tl.load(right_of + start, mask=joined, other=0.0)
    left = tl.load(left_of + middle, mask=joined, other=0.0)
    right = tl.load(right_of + middle, mask=joined, other=0.0)
    merged = joined & _violates(
        left_a, right_a, middle - start, left, right, end - middle, ENTROPIC
    )
    left, right = _join(left_a, left, ENTROPIC), _join(right_a, right, ENTROPIC)
    tl.store(end_of + middle, tl.zeros_like(end), mask=merged)
    going = merged
    while tl.max(going.to(tl.int32), 0) > 0:
        exists = going & (start > low)
        start_a = tl.load(start_of + start - 1, mask=exists, other=0)
        left_a = tl.load(left_of + start_a, mask=exists, other=0.0)
        right_a = tl.load(right_of + start_a, mask=exists, other=0.0)
        before = exists & _violates(
            left_a, right_a, start - start_a, left, right, end - start, ENTROPIC
        )
        left = tl.where(before, _join(left_a, left, ENTROPIC), left)
        right = tl.where(before, _join(right_a, right, ENTROPIC), right)
        tl.store(end_of + start, tl.zeros_like(start), mask=before)
        start = tl.where(before, start_a, start)
        exists = going & (end < high)
        end_b = tl.load(end_of + end, mask=exists, other=0)
        left_b = tl.load(left_of + end, mask=exists, other=0.0)
        right_b = tl.load(right_of + end, mask=exists, other=0.0)
        after = exists & _violates(left, right, end - start, left_b, right_b, end_b - end, ENTROPIC)
        left = tl.where(after, _join(left, left_b, ENTROPIC), left)
        right = tl.where(after, _join(right, right_b, ENTROPIC), right)
        tl.store(end_of + end, tl.zeros_like(end), mask=after)
        end = tl.where(after, end_b, end)
        going = before | after
    tl.store(left_of + start, left, mask=merged)
    tl.store(right_of + start, right, mask=merged)
    tl.store(end_of + start, end, mask=merged)
    tl.store(start_of + end - 1, start, mask=merged)


@triton.jit
def _segmented(a, starts_a, b, starts_b):
    """The operator of a segmented scan: sums restart where a block starts."""
    return tl.where(starts_b != 0, b, a + b), starts_a | starts_b


@triton.jit
def add_to_blocks(values, blocks, sums, base, at, last, length, carried):
    """Sum a tile of values over blocks, and store a block's sum at its start when it ends.

    ``carried`` is the sum so far of the block that the tile before it did not finish; returns that
    of this tile, at its position ``last``.
    """
    inside = at < length
    block = tl.load(blocks + base + at, mask=inside, other=-1)
    following = tl.load(blocks + base + at + 1, mask=at + 1 < length, other=-1)
    starts = (block == at).to(tl.int32)
    running, has_start = tl.associative_scan((values, starts), 0, _segmented)
    running = tl.where(has_start != 0, running, running + carried)
    tl.store(sums + base + block, running, mask=inside & (following != block))
    return tl.sum(tl.where(at == last, running, 0.0), 0, keep_dims=True)


@cached_launch
@triton.jit(do_not_specialize=["width"])
def _add(values, blocks, sums, width, TILE: tl.constexpr):
    """The sum over each block of a list, stored at its start."""
    base = tl.program_id(0).to(tl.int64) * width
    carried = tl.zeros([1], values.dtype.element_ty)
    for left in range(0, width, TILE):
        at = left + tl.arange(0, TILE)
        value = tl.load(values + base + at, mask=at < width, other=0.0)
        carried = add_to_blocks(value, blocks, sums, base, at, left + TILE - 1, width, carried)
