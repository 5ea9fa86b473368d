"""ListMLE on GPUs: sort by label, then one scan backward and one forward."""

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
from rankgrad.kernels.gpu._ideal_gain import COUNTED, ROWS, sign_bit, tile
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

_SPAN = 1024
_CHUNK = 4096


def listmle(batch: FlatLists, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """``-Σ_r [s_(r) - log Σ_{l>=r} exp(s_(l))]`` (see :mod:`rankgrad.kernels.ops`).

    Lists of up to a few thousand items count ranks pair by pair; longer ones are sorted.
    """
    scores, labels, mask, weights, offsets, max_length = batch
    values, grad_scores, defined = empty_results(batch)
    lists = len(values)
    if lists == 0:
        return values, grad_scores, defined
    if max_length <= COUNTED:
        order = torch.empty_like(scores, dtype=torch.int32)
        columns, warps, _ = tile(max_length)
        _order[(lists, max(1, cdiv(max_length, ROWS)))](
            labels, mask, offsets, seed, order, grad_scores, ROWS, columns, num_warps=warps
        )
    else:
        keys = torch.empty(lists, max_length, dtype=torch.int64, device=scores.device)
        _lay_keys[(lists, cdiv(max_length, _SPAN))](
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
def _key(label, place, seed):
    """Sort key, larger first: by label; ties by SplitMix64 of the seed and the position."""
    key = (tl.maximum(label, 0.0) + 0.0).to(tl.int32, bitcast=True).to(tl.int64) << 32
    if seed is not None:
        number = tl.load(seed).to(tl.uint64, bitcast=True)
        mixed = number + (place + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
        mixed = mixed ^ (mixed >> 31)
        key |= (mixed >> 32).to(tl.int64)
    return key


@triton.jit
def _real_before(mask, start, first, COLUMNS: tl.constexpr):
    """The number of real items before an item."""
    if mask is not None:
        count = tl.zeros([COLUMNS], tl.int32)
        for left in range(0, first, COLUMNS):
            _, real = positions(mask, start, left, first, COLUMNS)
            count += real.to(tl.int32)
        return tl.sum(count, 0)
    else:
        return first


@triton.jit
def _block_keys(
    labels, mask, offsets, seed, grad_scores, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A block of rows and their sort keys; writes a gradient of 0 to padding."""
    list_index, start, width, row, inside, real = list_block(mask, offsets, ROWS)
    before = _real_before(mask, start, tl.minimum(tl.program_id(1) * ROWS, width), COLUMNS)
    place = before + tl.cumsum(real.to(tl.int32), 0) - 1
    key = _key(tl.load(labels + start + row, mask=real, other=0.0), place, seed)
    if mask is not None:
        tl.store(grad_scores + start + row, tl.zeros([ROWS], tl.float32), mask=inside & (real == 0))
    return list_index, start, width, row, real, key


@cached_launch
@triton.jit
def _order(
    labels, mask, offsets, seed, order, grad_scores, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """Count the ranks of a block of items by label, and write their indices in that order."""
    _, start, width, row, real, key = _block_keys(
        labels, mask, offsets, seed, grad_scores, ROWS, 256
    )
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    passed = 0
    for left in range(0, tl.where(tl.program_id(1) * ROWS < width, width, 0), COLUMNS):
        column, valid = positions(mask, start, left, width, COLUMNS)
        label = tl.load(labels + start + column, mask=valid, other=0.0)
        places = column
        if mask is not None:
            places = passed + tl.cumsum(valid.to(tl.int32), 0) - 1
            passed += tl.sum(valid.to(tl.int32), 0)
        keys = tl.where(valid, _key(label, places, seed), -1)
        earlier = (column[None, :] < row[:, None]).to(tl.int32)
        ahead += sign_bit(key[:, None] - earlier - keys[None, :])
    tl.store(order + start + tl.sum(ahead, 1), row, mask=real)


@cached_launch
@triton.jit(do_not_specialize=["max_length"])
def _lay_keys(
    labels, mask, offsets, seed, keys, grad_scores, max_length, SPAN: tl.constexpr
) -> None:
    """Write the sort keys of a span of a list, in a padded layout; -1 for padding."""
    list_index, _, _, row, real, key = _block_keys(
        labels, mask, offsets, seed, grad_scores, SPAN, 1024
    )
    to = keys + list_index.to(tl.int64) * max_length + row
    tl.store(to, tl.where(real, key, -1), mask=row < max_length)


@triton.jit
def _join(peak, total, other_peak, other_total):
    """The sum of two numbers stored as ``total · exp(peak)``."""
    high = tl.maximum(peak, other_peak)
    mine = total * tl.exp2((peak - high) * 1.4426950408889634)
    return high, mine + other_total * tl.exp2((other_peak - high) * 1.4426950408889634)


@triton.jit
def _load_ordered(scores, weights, order, start, base, at, inside):
    """The indices, scores and weights of the items at these ranks."""
    item = start + tl.load(order + base + at, mask=inside, other=0)
    weight = load_weights(weights, item, inside)
    return item, tl.load(scores + item, mask=inside, other=-1e30), weight


@cached_launch
@triton.jit(do_not_specialize=["max_length", "total_items"])
def _likelihood(
    scores, mask, weights, offsets, order, tails, values, grad_scores, defined, max_length,
    total_items, COUNTED: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """The loss of a list and its gradient.

    Sums of exponentials are stored as ``total · exp(peak)``, with a score as the peak, so that they
    neither overflow nor underflow. With ``t_r = Σ_{l>=r} exp(s_(l))``, the gradient of item l is
    ``exp(s_l) Σ_{r<=l} w_r / t_r - w_l``.
    """
    list_index, start, width = list_span(offsets)
    length = _real_before(mask, start, width, CHUNK)
    base = start
    if not COUNTED:
        base = list_index.to(tl.int64) * max_length
    chunks = tl.cdiv(length, CHUNK)
    value = tl.zeros([CHUNK], tl.float32)
    carried_peak = -1e30
    carried = 0.0
    for chunk in range(0, chunks):
        first = (chunks - 1 - chunk) * CHUNK
        at = first + tl.arange(0, CHUNK)
        inside = at < length
        _, score, weight = _load_ordered(scores, weights, order, start, base, at, inside)
        ones = tl.where(inside, 1.0, 0.0)
        peak, total = tl.associative_scan((score, ones), 0, _join, reverse=True)
        peak, total = _join(peak, total, carried_peak, carried)
        value += tl.where(inside, weight * ((peak - score) + tl.log(total)), 0.0)
        tl.store(tails + start + at, peak, mask=inside)
        tl.store(tails + total_items + start + at, total, mask=inside)
        carried_peak = tl.max(peak, 0)  # at the start of the chunk
        carried = tl.sum(tl.where(at == first, total, 0.0), 0)
    tl.debug_barrier()
    carried_peak = -1e30
    carried = 0.0
    for ahead in range(0, chunks):
        at = ahead * CHUNK + tl.arange(0, CHUNK)
        inside = at < length
        item, score, weight = _load_ordered(scores, weights, order, start, base, at, inside)
        peak = tl.load(tails + start + at, mask=inside, other=1e30)
        total = tl.load(tails + total_items + start + at, mask=inside, other=1.0)
        depth, sums = tl.associative_scan((-peak, weight / total), 0, _join)
        depth, sums = _join(depth, sums, carried_peak, carried)
        grad = sums * tl.exp2((score + depth) * 1.4426950408889634) - weight
        tl.store(grad_scores + item, grad, mask=inside)
        last = tl.minimum(ahead * CHUNK + CHUNK, length) - 1
        carried_peak = tl.sum(tl.where(at == last, depth, 0.0), 0)
        carried = tl.sum(tl.where(at == last, sums, 0.0), 0)
    tl.store(values + list_index, tl.sum(value, 0))
    tl.store(defined + list_index, length > 1)
