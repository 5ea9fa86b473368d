"""Sort lists by descending score, and find groups of tied items."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import chunk_size, is_real
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

COUNTED = 8192  # callers count pairs, instead of sorting, in lists up to this length
_TILE = 1024
_SHORT = 1024  # lists up to this length are sorted by counting pairs


@dataclass(frozen=True)
class Sorted:
    """Items by list and descending score, ties in input order, padding last in its list.

    Args:
        scores: ``[items]``, sorted; -inf on padding.
        items: ``[items]``, the index of each sorted item in the batch.
    """

    scores: Tensor
    items: Tensor


def sort_lists(scores: Tensor, mask: Tensor | None, offsets: Tensor, max_length: int) -> Sorted:
    """Sort every list, without synchronizing to read lengths."""
    lists, size = offsets.numel() - 1, scores.numel()
    if max_length <= _SHORT:
        ranked = torch.empty_like(scores)
        order = torch.empty(size, dtype=torch.int64, device=scores.device)
        _place[(lists, cdiv(max_length, 64))](
            scores, mask, offsets, ranked, order, ROWS=64, COLUMNS=64
        )
        return Sorted(ranked, order)
    even = size == lists * max_length
    grid = (lists, cdiv(max_length, _TILE))
    cleaned = torch.empty_like(scores)
    # Items after the last list keep their position.
    keys = torch.full((0 if even else size,), torch.iinfo(torch.int64).max, device=scores.device)
    _keys[grid](scores, mask, offsets, cleaned, keys, EVEN=even, TILE=_TILE)
    if even:
        ranked, order = cleaned.view(lists, max_length).sort(dim=-1, descending=True, stable=True)
        if lists > 1:
            order = order + offsets[:-1, None]
        return Sorted(ranked.view(-1), order.view(-1))
    order = keys.sort(stable=True).indices
    return Sorted(cleaned[order], order)


def count_items(mask: Tensor | None, offsets: Tensor, max_length: int) -> Tensor:
    """The number of real items of every list, ``[lists]`` int32."""
    lists = offsets.numel() - 1
    lengths = torch.empty(lists, dtype=torch.int32, device=offsets.device)
    if lists:
        _count_items[(lists,)](mask, offsets, lengths, TILE=chunk_size(max_length, _TILE))
    return lengths


@cached_launch
@triton.jit
def _count_items(mask, offsets, lengths, TILE: tl.constexpr):
    """Count the real items of one list."""
    list_index = tl.program_id(0)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    length = (end - begin).to(tl.int32)
    if mask is not None:
        found = tl.zeros([TILE], tl.int32)
        for first in range(begin, end, TILE):
            at = first + tl.arange(0, TILE)
            found += is_real(mask, at, at < end).to(tl.int32)
        length = tl.sum(found, 0)
    tl.store(lengths + list_index, length)


@triton.jit
def _score(scores, mask, index, inside):
    """Scores, with -inf for padding and NaN, and 0 for -0."""
    real = is_real(mask, index, inside)
    score = tl.load(scores + index, mask=real, other=float("-inf"))
    score = tl.where(score == score, score, float("-inf"))
    return tl.where(score == 0, 0.0, score)


@cached_launch
@triton.jit
def _place(scores, mask, offsets, ranked, order, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write some items of a list to their ranks, found by counting the items ahead of them."""
    begin, end = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    first = begin + tl.program_id(1) * ROWS
    if first < end:
        index = first + tl.arange(0, ROWS)
        score = _score(scores, mask, index, index < end)
        ahead = tl.zeros([ROWS], tl.int32)
        for left in range(begin, end, COLUMNS):
            other = left + tl.arange(0, COLUMNS)
            against = _score(scores, mask, other, other < end)
            before = against[None, :] > score[:, None]
            tied = (against[None, :] == score[:, None]) & (other[None, :] < index[:, None])
            ahead += tl.sum(((before | tied) & (other < end)[None, :]).to(tl.int32), 1)
        tl.store(ranked + begin + ahead, score, mask=index < end)
        tl.store(order + begin + ahead, index, mask=index < end)


@triton.jit
def ordered_bits(number):
    """Integers that sort as float32 numbers do."""
    bits = number.to(tl.int32, bitcast=True)
    # The bits of negative floats sort in reverse order; flipping them restores it.
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@cached_launch
@triton.jit
def _keys(scores, mask, offsets, cleaned, keys, EVEN: tl.constexpr, TILE: tl.constexpr):
    """The scores to sort; and, for uneven lists, integer keys that sort by list, then score."""
    list_index = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    index = begin + tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = index < end
    score = _score(scores, mask, index, inside)
    tl.store(cleaned + index, score, mask=inside)
    if not EVEN:
        falling = (-1 - ordered_bits(score)).to(tl.int64) + 2147483648
        tl.store(keys + index, list_index * 4294967296 + falling, mask=inside)


@triton.jit
def tie_group(ranked, begin, end, at, score, inside, steps):
    """The first position of the items that tie with each sorted item, and one past the last."""
    above = tl.load(ranked + at - 1, mask=inside & (at > begin), other=float("inf"))
    below = tl.load(ranked + at + 1, mask=inside & (at + 1 < end), other=float("-inf"))
    tied = inside & ((score == above) | (score == below))
    start = _search(ranked, tl.where(tied, begin, at), at, score, tied, steps, False)
    return start, _search(ranked, at + 1, tl.where(tied, end, at + 1), score, tied, steps, True)


@triton.jit
def _search(ranked, low, high, score, tied, steps, PAST: tl.constexpr):
    """Between low and high, the first position with the same score, or PAST the last one."""
    if tl.max(tied.to(tl.int32), 0) > 0:
        for _ in range(steps):
            middle = (low + high) // 2
            searching = tied & (low < high)
            # Up to the item itself, every position can be read.
            other = tl.load(ranked + middle, mask=searching if PAST else tied, other=0.0)
            before = searching & ((other == score) if PAST else (other > score))
            low, high = tl.where(before, middle + 1, low), tl.where(before, high, middle)
            high = tl.maximum(low, high)
    return low
