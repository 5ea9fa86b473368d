"""ListMLE on GPUs (Xia et al. 2008): ``-Σ_r [s_(r) - log Σ_{l>=r} exp(s_(l))]`` of every list.

Items are sorted by descending label; (r) is the item at rank r. Ties in labels are broken at random
with a seed, or by input order. One program per list then computes the likelihood: a scan from the
last rank to the first for the sums of exponentials, and one from the first to the last for the
gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._flat_lists import (
    chunk_size,
    empty_results,
    list_block,
    list_span,
    load_weights,
    positions,
)
from rankgrad.kernels.gpu._ideal_gain import COUNTED, ROWS, is_ahead, tile
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

_SPAN = 1024  # items of which one program writes the sort keys
_CHUNK = 4096  # the most items that the likelihood scans at a time


def listmle(batch: FlatLists, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """``-Σ_r w_(r) [s_(r) - log Σ_{l>=r} exp(s_(l))]`` of every list.

    Lists of up to a few thousand items count ranks pair by pair; longer ones are sorted.

    Args:
        batch: the lists.
        seed: one int64, by which ties in labels are ordered; None for input order.

    Returns:
        values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """
    scores, labels, mask, weights, offsets, max_length = batch
    values, grad_scores, defined = empty_results(batch)
    lists = len(values)
    if max_length <= COUNTED:
        order = torch.empty_like(scores, dtype=torch.int32)
        columns, warps, _ = tile(max_length)
        _count_ranks[(lists, cdiv(max_length, ROWS))](
            labels, mask, offsets, seed, order, grad_scores, ROWS, columns, num_warps=warps
        )
    else:
        keys = torch.empty(lists, max_length, dtype=torch.int64, device=scores.device)
        _write_keys[(lists, cdiv(max_length, _SPAN))](
            labels, mask, offsets, seed, keys, grad_scores, max_length, SPAN=_SPAN, num_warps=4
        )
        order = keys.sort(dim=-1, descending=True, stable=True).indices
    chunk = chunk_size(max_length, _CHUNK)
    tails = scores.new_empty(2, scores.numel())
    _likelihood[(lists,)](
        scores, mask, weights, offsets, order, tails, values, grad_scores, defined, max_length,
        scores.numel(), COUNTED=max_length <= COUNTED, CHUNK=chunk,
        num_warps=min(16, max(1, chunk // 64)),
    )  # fmt: skip
    return values, grad_scores, defined


@triton.jit
def _key(label, position, seed):
    """Sort keys (the largest ranks first): the label, then SplitMix64 of the seed and position.

    The upper 32 bits are those of the label, which order as integers since it is not negative
    (adding 0.0 turns -0.0 into 0.0). The lower 32 are the upper half of the hash. Positions do not
    count padding, so that padding does not change the order.
    """
    key = (tl.maximum(label, 0.0) + 0.0).to(tl.int32, bitcast=True).to(tl.int64) << 32
    if seed is not None:
        bits = tl.load(seed).to(tl.uint64, bitcast=True)
        mixed = bits + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
        mixed = mixed ^ (mixed >> 31)
        key |= (mixed >> 32).to(tl.int64)
    return key


@triton.jit
def _real_before(mask, start, end, COLUMNS: tl.constexpr):
    """The number of real items of a list before the position ``end``, by COLUMNS at a time."""
    if mask is not None:
        count = tl.zeros([COLUMNS], tl.int32)
        for first_column in range(0, end, COLUMNS):
            _, real = positions(mask, start, first_column, end, COLUMNS)
            count += real.to(tl.int32)
        return tl.sum(count, 0)
    else:
        return end


@triton.jit
def _block_keys(
    labels, mask, offsets, seed, grad_scores, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A block of rows and their sort keys; also writes a gradient of 0 for padding."""
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    real_before = _real_before(mask, start, tl.minimum(tl.program_id(1) * ROWS, width), COLUMNS)
    real_position = real_before + tl.cumsum(real.to(tl.int32), 0) - 1
    key = _key(tl.load(labels + start + row, mask=real, other=0.0), real_position, seed)
    if mask is not None:
        tl.store(grad_scores + start + row, tl.zeros([ROWS], tl.float32), mask=inside & (real == 0))
    return list_index, start, width, row, real, key


@cached_launch
@triton.jit
def _count_ranks(
    labels, mask, offsets, seed, order, grad_scores, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """Write the positions of a block of items in label order: ``order[start + rank] = position``.

    The rank of an item is the number of items with a larger key, or an equal key and an earlier
    position.
    """
    _, start, width, row, real, key = _block_keys(
        labels, mask, offsets, seed, grad_scores, ROWS, 256
    )
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    real_before = 0
    for first_column in range(0, tl.where(tl.program_id(1) * ROWS < width, width, 0), COLUMNS):
        column, valid = positions(mask, start, first_column, width, COLUMNS)
        label = tl.load(labels + start + column, mask=valid, other=0.0)
        column_position = column
        if mask is not None:
            column_position = real_before + tl.cumsum(valid.to(tl.int32), 0) - 1
            real_before += tl.sum(valid.to(tl.int32), 0)
        column_key = tl.where(valid, _key(label, column_position, seed), -1)
        ahead += is_ahead(key, column_key, row, column, 0)
    tl.store(order + start + tl.sum(ahead, 1), row, mask=real)


@cached_launch
@triton.jit(do_not_specialize=["max_length"])
def _write_keys(
    labels, mask, offsets, seed, keys, grad_scores, max_length, SPAN: tl.constexpr
) -> None:
    """Write the keys of a span of a list to ``keys`` ``[lists, max_length]``; -1 for padding."""
    list_index, _, _, row, real, key = _block_keys(
        labels, mask, offsets, seed, grad_scores, SPAN, 1024
    )
    target = keys + list_index.to(tl.int64) * max_length + row
    tl.store(target, tl.where(real, key, -1), mask=row < max_length)


@triton.jit
def _add_scaled(peak_a, total_a, peak_b, total_b):
    """The sum of two numbers that are stored as ``total · exp(peak)``; 1.4427 is log2(e)."""
    peak = tl.maximum(peak_a, peak_b)
    rescaled_a = total_a * tl.exp2((peak_a - peak) * 1.4426950408889634)
    return peak, rescaled_a + total_b * tl.exp2((peak_b - peak) * 1.4426950408889634)


@triton.jit
def _load_ordered(scores, weights, order, start, base, rank, inside):
    """The indices, scores and weights of the items at these ranks (from 0).

    ``order + base`` is where the order of the list begins.
    """
    item = start + tl.load(order + base + rank, mask=inside, other=0)
    weight = load_weights(weights, item, inside)
    return item, tl.load(scores + item, mask=inside, other=-1e30), weight


@cached_launch
@triton.jit(do_not_specialize=["max_length", "total_items"])
def _likelihood(
    scores, mask, weights, offsets, order, tails, values, grad_scores, defined, max_length,
    total_items, COUNTED: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Write the loss of a list and its gradient.

    With ``t_r = Σ_{l>=r} exp(s_(l))``, the gradient of the item at rank l is
    ``exp(s_(l)) Σ_{r<=l} w_(r) / t_r - w_(l)``. Sums of exponentials are stored as
    ``total · exp(peak)``, with a score as the peak, so that they neither overflow nor underflow.
    ``tails`` ``[2, items]`` has the peak and total of every t_r.
    """
    list_index, start, width = list_span(offsets)
    length = _real_before(mask, start, width, CHUNK)
    base = start  # where the list begins in ``order``: flat if counted, else [lists, max_length]
    if not COUNTED:
        base = list_index.to(tl.int64) * max_length
    n_chunks = tl.cdiv(length, CHUNK)
    value = tl.zeros([CHUNK], tl.float32)
    carried_peak = -1e30
    carried = 0.0
    for reverse_index in range(0, n_chunks):
        first = (n_chunks - 1 - reverse_index) * CHUNK
        rank = first + tl.arange(0, CHUNK)
        inside = rank < length
        _, score, weight = _load_ordered(scores, weights, order, start, base, rank, inside)
        exp_term = tl.where(inside, 1.0, 0.0)
        peak, total = tl.associative_scan((score, exp_term), 0, _add_scaled, reverse=True)
        peak, total = _add_scaled(peak, total, carried_peak, carried)
        value += tl.where(inside, weight * ((peak - score) + tl.log(total)), 0.0)
        tl.store(tails + start + rank, peak, mask=inside)
        tl.store(tails + total_items + start + rank, total, mask=inside)
        # The peak and total of the chunk's first rank; it has the largest peak of the chunk.
        carried_peak = tl.max(peak, 0)
        carried = tl.sum(tl.where(rank == first, total, 0.0), 0)
    tl.debug_barrier()  # below, threads read tails that others have written
    carried_peak = -1e30
    carried = 0.0
    for chunk_index in range(0, n_chunks):
        rank = chunk_index * CHUNK + tl.arange(0, CHUNK)
        inside = rank < length
        item, score, weight = _load_ordered(scores, weights, order, start, base, rank, inside)
        peak = tl.load(tails + start + rank, mask=inside, other=1e30)
        total = tl.load(tails + total_items + start + rank, mask=inside, other=1.0)
        inverse_peak, inverse_sum = tl.associative_scan((-peak, weight / total), 0, _add_scaled)
        inverse_peak, inverse_sum = _add_scaled(inverse_peak, inverse_sum, carried_peak, carried)
        grad = inverse_sum * tl.exp2((score + inverse_peak) * 1.4426950408889634) - weight
        tl.store(grad_scores + item, grad, mask=inside)
        last = tl.minimum(chunk_index * CHUNK + CHUNK, length) - 1
        carried_peak = tl.sum(tl.where(rank == last, inverse_peak, 0.0), 0)
        carried = tl.sum(tl.where(rank == last, inverse_sum, 0.0), 0)
    tl.store(values + list_index, tl.sum(value, 0))
    tl.store(defined + list_index, length > 1)
