"""Isotonic regression by pooling adjacent violators: one Triton program per list.

The regression takes anchors z and weights w, and partitions a list into blocks of neighboring
items. A block has one value, ``mean(z) - mean(w)`` or, with entropic regularization,
``LSE(z) - LSE(w)`` with log-sum-exps (LSE) over the block. Values do not increase
from block to block.

This module computes the same blocks as :mod:`rankgrad.kernels.cpu._isotonic`, by divide and
conquer. When two neighboring parts of a list are solved, only the blocks at their common border can
violate the order. If they do, they merge, and the merged block absorbs neighbors on both sides
until the order holds. All parts of one size are joined in parallel, then all parts of twice the
size. :mod:`rankgrad.kernels._isotonic` and :mod:`rankgrad.kernels.gpu._fastsort` call it.
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

    Returns:
        ``[b, n]`` int64, the first position of each item's block.
    """
    return pooled(z.detach().double(), w.detach().double(), lengths, entropic)[0]


def pooled(z: Tensor, w: Tensor, lengths: Tensor, entropic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`pool` for float64 input, which also returns the sums and ends of the blocks.

    Returns:
        blocks: ``[b, n]`` int64, as in :func:`pool`.
        sums: ``[2, b, n]`` float64, the sums (or log-sum-exps) of z and of w over each block,
            stored at the first position of the block; other positions hold no result.
        ends: ``[2, b, n]`` int32. ``ends[0]`` has one past the last position of each block, stored
            at its first position, and 0 elsewhere. ``ends[1]`` is scratch space of the kernel.
    """
    lists, width = z.shape
    blocks = torch.empty(lists, width, dtype=torch.int64, device=z.device)
    sums = torch.empty(2, lists, width, dtype=torch.float64, device=z.device)
    ends = torch.empty(2, lists, width, dtype=torch.int32, device=z.device)
    if z.numel():
        # The first step joins width / 2 pairs of items, one pair on each lane.
        lanes = min(1024, max(32, next_power_of_2(width) // 2))
        _pool[(lists,)](
            z.contiguous(), w.contiguous(), lengths, sums, ends, blocks, lists, width,
            ENTROPIC=entropic, LANES=lanes, num_warps=max(1, lanes // 128),
        )  # fmt: skip
    return blocks, sums, ends


def block_sums(values: Tensor, blocks: Tensor) -> Tensor:
    """For each item the sum of ``values`` over its block, ``[b, n]``, in a fixed order.

    Args:
        values: ``[b, n]``.
        blocks: ``[b, n]``, the first position of each item's block.
    """
    lists, width = values.shape
    sums = torch.empty_like(values, memory_format=torch.contiguous_format)
    if values.numel() == 0:
        return sums
    tile = min(4096, max(128, next_power_of_2(width)))
    warps = min(8, tile // 128)
    _sum_blocks[(lists,)](values.contiguous(), blocks, sums, width, TILE=tile, num_warps=warps)
    return sums.gather(-1, blocks)


@triton.jit
def _log_add(a, b):
    """``log(exp(a) + exp(b))``; a or b may be -inf."""
    larger, smaller = tl.maximum(a, b), tl.minimum(a, b)
    both_zero = larger == float("-inf")  # exp(a) = exp(b) = 0; -inf - -inf would be NaN
    difference = tl.where(both_zero, 0.0, smaller) - tl.where(both_zero, 0.0, larger)
    return tl.where(both_zero, larger, larger + tl.log(1.0 + tl.exp(difference)))


@triton.jit
def _join_sums(a, b, ENTROPIC: tl.constexpr):
    """The sum (or log-sum-exp) over the union of two blocks, from the sum of each."""
    return _log_add(a, b) if ENTROPIC else a + b


@triton.jit
def _violates(
    z_a, w_a, size_a, z_b, w_b, size_b, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Whether the value of block a is below that of the next block, b.

    ``z_a`` and ``w_a`` are the sums (or log-sum-exps) over block a, which has ``size_a`` items.
    """
    if ENTROPIC:
        return z_a - w_a < z_b - w_b
    else:
        return (z_a - w_a) * size_b < (z_b - w_b) * size_a


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _pool(
    z, w, lengths, sums, ends, blocks, lists, width, ENTROPIC: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Find the blocks of one list: at first every item is one, then neighbors are merged.

    ``sums`` and ``ends`` are ``[2, lists, width]``. At the first position of a block, ``sums`` has
    its sums of z and w, and ``ends[0]`` its end (0 once it has been merged into the block on its
    left). At the last position of a block, ``ends[1]`` has its first position.
    """
    list_index = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + list_index).to(tl.int32)
    base = list_index * width
    z, w, blocks = z + base, w + base, blocks + base
    # The products are taken in int64: lists * width may exceed int32.
    z_sums, w_sums = sums + base, sums + (lists * tl.full([], 1, tl.int64) * width + base)
    block_ends, block_starts = ends + base, ends + (lists * tl.full([], 1, tl.int64) * width + base)
    for first in range(0, width, LANES):
        at = first + tl.arange(0, LANES)
        inside = at < width
        tl.store(z_sums + at, tl.load(z + at, mask=inside, other=0.0), mask=inside)
        tl.store(w_sums + at, tl.load(w + at, mask=inside, other=0.0), mask=inside)
        tl.store(block_ends + at, at + 1, mask=inside)
        tl.store(block_starts + at, at, mask=inside)
    tl.debug_barrier()
    part_size = length * 0 + 1  # 1 as an int32 tensor
    while part_size < length:
        stride = 2 * part_size.to(tl.int64)
        # The step is computed in int64, and bounded so that it fits int32.
        for first in range(0, length, tl.minimum(stride * LANES, 1 << 30).to(tl.int32)):
            part_start = first + tl.arange(0, LANES) * stride
            has_next = part_start < length - part_size
            left_start = tl.where(has_next, part_start, 0).to(tl.int32)
            _join_parts(
                z_sums, w_sums, block_ends, block_starts, left_start, left_start + part_size,
                tl.minimum(left_start + 2 * part_size, length), has_next, ENTROPIC,
            )  # fmt: skip
        tl.debug_barrier()
        part_size *= 2
    # The block of an item is the last start of a block at or before it.
    last_start = length * 0
    for first in range(0, width, LANES):
        at = first + tl.arange(0, LANES)
        is_start = tl.load(block_ends + at, mask=at < width, other=0) > 0
        block = tl.maximum(tl.associative_scan(tl.where(is_start, at, 0), 0, _larger), last_start)
        tl.store(blocks + at, block.to(tl.int64), mask=at < width)
        last_start = tl.max(block, 0)


@triton.jit
def _larger(a, b):
    """The larger of two values, for a scan."""
    return tl.maximum(a, b)


@triton.jit
def _join_parts(
    z_sums, w_sums, block_ends, block_starts, low, middle, high, has_next, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Join the parts ``low:middle`` and ``middle:high`` of a list, two parts for every lane.

    If the blocks on both sides of ``middle`` violate the order, they merge. The merged block
    ``start:end`` then absorbs neighbors, left and right in turn, until none violates the order.
    ``has_next`` is False on lanes without a right part, which do nothing. ``z_sum`` and ``w_sum``
    are those of the merged block, ``_a`` those of its left neighbor, ``_b`` of its right one.
    """
    start = tl.load(block_starts + middle - 1, mask=has_next, other=0)
    end = tl.load(block_ends + middle, mask=has_next, other=0)
    z_a = tl.load(z_sums + start, mask=has_next, other=0.0)
    w_a = tl.load(w_sums + start, mask=has_next, other=0.0)
    z_sum = tl.load(z_sums + middle, mask=has_next, other=0.0)
    w_sum = tl.load(w_sums + middle, mask=has_next, other=0.0)
    is_merged = has_next & _violates(z_a, w_a, middle - start, z_sum, w_sum, end - middle, ENTROPIC)
    z_sum, w_sum = _join_sums(z_a, z_sum, ENTROPIC), _join_sums(w_a, w_sum, ENTROPIC)
    tl.store(block_ends + middle, tl.zeros_like(end), mask=is_merged)
    is_growing = is_merged
    while tl.max(is_growing.to(tl.int32), 0) > 0:
        has_neighbor = is_growing & (start > low)
        neighbor_start = tl.load(block_starts + start - 1, mask=has_neighbor, other=0)
        z_a = tl.load(z_sums + neighbor_start, mask=has_neighbor, other=0.0)
        w_a = tl.load(w_sums + neighbor_start, mask=has_neighbor, other=0.0)
        joins_left = has_neighbor & _violates(
            z_a, w_a, start - neighbor_start, z_sum, w_sum, end - start, ENTROPIC
        )
        z_sum = tl.where(joins_left, _join_sums(z_a, z_sum, ENTROPIC), z_sum)
        w_sum = tl.where(joins_left, _join_sums(w_a, w_sum, ENTROPIC), w_sum)
        tl.store(block_ends + start, tl.zeros_like(start), mask=joins_left)
        start = tl.where(joins_left, neighbor_start, start)
        has_neighbor = is_growing & (end < high)
        neighbor_end = tl.load(block_ends + end, mask=has_neighbor, other=0)
        z_b = tl.load(z_sums + end, mask=has_neighbor, other=0.0)
        w_b = tl.load(w_sums + end, mask=has_neighbor, other=0.0)
        joins_right = has_neighbor & _violates(
            z_sum, w_sum, end - start, z_b, w_b, neighbor_end - end, ENTROPIC
        )
        z_sum = tl.where(joins_right, _join_sums(z_sum, z_b, ENTROPIC), z_sum)
        w_sum = tl.where(joins_right, _join_sums(w_sum, w_b, ENTROPIC), w_sum)
        tl.store(block_ends + end, tl.zeros_like(end), mask=joins_right)
        end = tl.where(joins_right, neighbor_end, end)
        is_growing = joins_left | joins_right
    tl.store(z_sums + start, z_sum, mask=is_merged)
    tl.store(w_sums + start, w_sum, mask=is_merged)
    tl.store(block_ends + start, end, mask=is_merged)
    tl.store(block_starts + end - 1, start, mask=is_merged)


@triton.jit
def _restart_at_starts(sum_a, has_start_a, sum_b, has_start_b):
    """The operator of a segmented scan, on ranges a and b: sums restart where blocks start."""
    return tl.where(has_start_b != 0, sum_b, sum_a + sum_b), has_start_a | has_start_b


@triton.jit
def add_to_blocks(values, blocks, sums, base, at, last, length, carried):
    """Sum a tile of values over blocks; store the sum of each block that ends within the tile.

    The sum is stored at the first position of the block.

    Args:
        values: the values at positions ``at`` of a list of ``length`` items.
        blocks: a pointer; from ``base`` on it has the first position of each item's block.
        sums: a pointer; the sums are written from ``base`` on.
        base: where the list starts in ``blocks`` and ``sums``.
        at: the positions of the tile.
        last: the last of these positions.
        length: of the list.
        carried: the sum so far of the block of the item before the tile.

    Returns:
        The sum so far of the block at ``last``: ``carried`` of the next tile.
    """
    inside = at < length
    block = tl.load(blocks + base + at, mask=inside, other=-1)
    next_block = tl.load(blocks + base + at + 1, mask=at + 1 < length, other=-1)
    is_start = (block == at).to(tl.int32)
    running, has_start = tl.associative_scan((values, is_start), 0, _restart_at_starts)
    running = tl.where(has_start != 0, running, running + carried)
    tl.store(sums + base + block, running, mask=inside & (next_block != block))
    return tl.sum(tl.where(at == last, running, 0.0), 0, keep_dims=True)


@cached_launch
@triton.jit(do_not_specialize=["width"])
def _sum_blocks(values, blocks, sums, width, TILE: tl.constexpr):
    """Sum the values of a list over each of its blocks; store the sum at the block's start."""
    base = tl.program_id(0).to(tl.int64) * width
    carried = tl.zeros([1], values.dtype.element_ty)
    for first in range(0, width, TILE):
        at = first + tl.arange(0, TILE)
        value = tl.load(values + base + at, mask=at < width, other=0.0)
        carried = add_to_blocks(value, blocks, sums, base, at, first + TILE - 1, width, carried)
