"""Sort lists by descending score, and find groups of tied items.

Short lists count ranks pair by pair. Long lists use PyTorch's sort: of a matrix if all lists have
one length, otherwise of 64-bit keys that hold the list and the score.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import chunk_size, is_real
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

COUNTED = 8192  # up to this length, callers of this module count pairs and need no sorted order
_TILE = 1024  # items of a list that one program handles at a time
_SHORT = 1024  # up to this length, sort_lists finds ranks by counting pairs


@dataclass(frozen=True)
class Sorted:
    """Items by list and descending score, ties in input order.

    Padding and scores of NaN and -inf come last in their list, as ties.

    Args:
        scores: ``[items]``, sorted; -inf on padding.
        items: ``[items]``, the index of each sorted item in the batch.
    """

    scores: Tensor
    items: Tensor


def sort_lists(scores: Tensor, mask: Tensor | None, offsets: Tensor, max_length: int) -> Sorted:
    """Sort every list by descending score, without synchronizing to read lengths.

    Args:
        scores: ``[items]`` float32; NaN sorts as -inf.
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.
    """
    lists, size = offsets.numel() - 1, scores.numel()
    if max_length <= _SHORT:
        ranked = torch.empty_like(scores)
        order = torch.empty(size, dtype=torch.int64, device=scores.device)
        _place[(lists, cdiv(max_length, 64))](
            scores, mask, offsets, ranked, order, ROWS=64, COLUMNS=64
        )
        return Sorted(ranked, order)
    has_equal_lengths = size == lists * max_length
    grid = (lists, cdiv(max_length, _TILE))
    cleaned = torch.empty_like(scores)
    n_keys = 0 if has_equal_lengths else size
    # Items after the last list, if any, have the largest key and so stay last.
    keys = torch.full((n_keys,), torch.iinfo(torch.int64).max, device=scores.device)
    _prepare_sort[grid](
        scores, mask, offsets, cleaned, keys, EQUAL_LENGTHS=has_equal_lengths, TILE=_TILE
    )
    if has_equal_lengths:
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
    """Write the number of real items of one list."""
    list_index = tl.program_id(0)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    length = (end - begin).to(tl.int32)
    if mask is not None:
        real_items = tl.zeros([TILE], tl.int32)
        for first in range(begin, end, TILE):
            at = first + tl.arange(0, TILE)
            real_items += is_real(mask, at, at < end).to(tl.int32)
        length = tl.sum(real_items, 0)
    tl.store(lengths + list_index, length)


@triton.jit
def _load_scores(scores, mask, index, inside):
    """Load scores: -inf for padding and NaN; 0 for -0, whose bits differ though the two tie."""
    real = is_real(mask, index, inside)
    score = tl.load(scores + index, mask=real, other=float("-inf"))
    score = tl.where(score == score, score, float("-inf"))
    return tl.where(score == 0, 0.0, score)


@cached_launch
@triton.jit
def _place(scores, mask, offsets, ranked, order, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write a block of items to their ranks: the scores to ``ranked``, the indices to ``order``.

    The rank of an item is the number of items that score higher, or tie with it and come earlier.
    """
    begin, end = tl.load(offsets + tl.program_id(0)), tl.load(offsets + tl.program_id(0) + 1)
    first = begin + tl.program_id(1) * ROWS
    if first < end:
        index = first + tl.arange(0, ROWS)
        score = _load_scores(scores, mask, index, index < end)
        ahead = tl.zeros([ROWS], tl.int32)
        for first_column in range(begin, end, COLUMNS):
            column = first_column + tl.arange(0, COLUMNS)
            column_score = _load_scores(scores, mask, column, column < end)
            is_ahead = column_score[None, :] > score[:, None]
            is_tied = column_score[None, :] == score[:, None]
            is_ahead |= is_tied & (column[None, :] < index[:, None])
            ahead += tl.sum((is_ahead & (column < end)[None, :]).to(tl.int32), 1)
        tl.store(ranked + begin + ahead, score, mask=index < end)
        tl.store(order + begin + ahead, index, mask=index < end)


@triton.jit
def ordered_bits(number):
    """Integers in the same order as the float32 numbers."""
    bits = number.to(tl.int32, bitcast=True)
    # The bits of negative floats sort in reverse order; flipping them restores it.
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@cached_launch
@triton.jit
def _prepare_sort(
    scores, mask, offsets, cleaned, keys, EQUAL_LENGTHS: tl.constexpr, TILE: tl.constexpr
):
    """Write the scores of a tile of a list, cleaned for sorting.

    Unless all lists have one length, also write keys that sort by list, then by descending score:
    the list in the upper 32 bits, the score in the lower ones.
    """
    list_index = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    index = begin + tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = index < end
    score = _load_scores(scores, mask, index, inside)
    tl.store(cleaned + index, score, mask=inside)
    if not EQUAL_LENGTHS:
        # From 0 for the highest score to 2**32 - 1 for the lowest.
        descending_bits = (-1 - ordered_bits(score)).to(tl.int64) + 0x80000000
        tl.store(keys + index, list_index * 0x100000000 + descending_bits, mask=inside)


@triton.jit
def tie_group(ranked, begin, end, at, score, inside, steps):
    """The group of ties of sorted items: the index of its first item, and one past its last.

    Args:
        ranked: sorted scores.
        begin: the index of the first item of the list.
        end: one past its last item.
        at: the indices of the items.
        score: their scores.
        inside: which of them exist.
        steps: of the binary search, as many as the length of the longest list has bits.
    """
    previous_score = tl.load(ranked + at - 1, mask=inside & (at > begin), other=float("inf"))
    next_score = tl.load(ranked + at + 1, mask=inside & (at + 1 < end), other=float("-inf"))
    is_tied = inside & ((score == previous_score) | (score == next_score))
    start = _search(ranked, tl.where(is_tied, begin, at), at, score, is_tied, steps, False)
    bound = tl.where(is_tied, end, at + 1)
    return start, _search(ranked, at + 1, bound, score, is_tied, steps, True)


@triton.jit
def _search(ranked, low, high, score, is_tied, steps, PAST: tl.constexpr):
    """Between low and high, the first index with the same score; with PAST, one past the last."""
    if tl.max(is_tied.to(tl.int32), 0) > 0:
        for _ in range(steps):
            middle = (low + high) // 2
            searching = is_tied & (low < high)
            # With PAST, the middle of a finished search may lie past the list; without, it is at
            # most the item itself, which can be read.
            middle_score = tl.load(ranked + middle, mask=searching if PAST else is_tied, other=0.0)
            moves_up = searching & ((middle_score == score) if PAST else (middle_score > score))
            low, high = tl.where(moves_up, middle + 1, low), tl.where(moves_up, high, middle)
            high = tl.maximum(low, high)
    return low
