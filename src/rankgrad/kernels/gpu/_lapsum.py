"""LapSum's soft ranks (Struski et al. 2025) and their vector-Jacobian product.

The rank of item i is ``1/2 + Σ_j F((s_j - s_i) / τ)`` with F the CDF of the Laplace distribution:
``F(x) = exp(x) / 2`` for x <= 0 and ``1 - exp(-x) / 2`` for x > 0. :mod:`rankgrad.sorting.lapsum`
defines it; :mod:`rankgrad.kernels.gpu._ranks` uses it.

Short lists sum over all pairs. Long lists are sorted and cut into chunks. Across chunks the
exponentials factorize, ``exp(-(s_j - s_i) / τ) = exp(-(s_j - c) / τ) exp(-(c - s_i) / τ)`` for c
between the scores. So a chunk needs only the sum of another chunk's exponentials, relative to the
nearest score c of that chunk. Pairs are summed within chunks only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import ListOperator, list_block, positions
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._segmented_sort import COUNTED, sort_lists

_CHUNK = 256  # items of a sorted list in a chunk, which one program sums


@dataclass(eq=False)
class LapSumRanks(ListOperator):
    """``1/2 + Σ_j F((s_j - s_i) / τ)``, F the Laplace CDF, and its vector-Jacobian product.

    Args:
        temperature: τ.

    Attributes:
        ranks: ``[items]``, 0 on padding.
    """

    temperature: float

    def __post_init__(self) -> None:
        # Lists that are too long to sum over all pairs are sorted once, for both passes.
        lists = self.scores, self.mask, self.offsets, self.max_length
        self._order = sort_lists(*lists) if self.max_length > COUNTED else None
        self.ranks = self._sum(None)

    def adjoint(self, grad: Tensor) -> Tensor:
        """``Σ_j (g_j - g_i) exp(-|s_i - s_j| / τ) / 2τ``; 0 on padding."""
        return self._sum(grad.contiguous())

    def _sum(self, grad: Tensor | None) -> Tensor:
        """The ranks or, if ``grad`` is given, the vector-Jacobian product."""
        scores, lists, order = self.scores, self.lists, self._order
        result = torch.empty_like(scores)
        if not lists:
            return result
        if order is None:
            _sum_all_pairs[(lists, cdiv(self.max_length, 32))](
                scores, grad, self.mask, self.offsets, result, self.temperature, HEIGHT=32, WIDTH=64
            )
            return result
        stride = scores.numel() // _CHUNK + lists + 1
        chunks = scores.new_empty(6, stride)
        grid = (lists, cdiv(self.max_length, _CHUNK))
        sorted_ = (order.scores, order.items, grad, self.offsets, chunks, self.temperature, stride)
        _summarize_chunks[grid](*sorted_, CHUNK=_CHUNK)
        _sum_chunk[grid](*sorted_, result, CHUNK=_CHUNK, WIDTH=min(16, _CHUNK))
        return result


@triton.jit
def _load_grads(grads, index, real):
    """The gradients of items; zeros, which are not used, if ``grads`` is None."""
    if grads is None:
        return tl.where(real, 0.0, 0.0)
    else:
        return tl.load(grads + index, mask=real, other=0.0)


@cached_launch
@triton.jit
def _sum_all_pairs(
    scores, grads, mask, offsets, result, temperature, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """Write the ranks of a block of items or, if ``grads`` is given, the vector-Jacobian product.

    One program sums over the pairs of HEIGHT items with all items of their list.
    """
    _, begin, count, item, inside, real = list_block(mask, offsets, HEIGHT)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    grad = _load_grads(grads, begin + item, real)
    steepness = 1.4426950408889634 / temperature  # log2(e) / τ, for exp2
    terms = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first_column in range(0, count, WIDTH):
        column, valid = positions(mask, begin, first_column, count, WIDTH)
        column_score = tl.load(scores + begin + column, mask=valid, other=float("-inf"))
        column_grad = _load_grads(grads, begin + column, valid)
        terms += _terms(score, grad, column_score, column_grad, steepness, grads is not None)
    sums = tl.sum(terms, 1)
    sums = sums / (2.0 * temperature) if grads is not None else sums + 0.5
    tl.store(result + begin + item, tl.where(real, sums, 0.0), mask=inside)


@triton.jit
def _terms(score, grad, column_score, column_grad, steepness, BACKWARD: tl.constexpr):
    """The terms of a tile of pairs: of the ranks ``F((s_j - s_i) / τ)``, or of their VJP times 2τ.

    Column scores are -inf on padding, so that its terms are 0.
    """
    difference = column_score[None, :] - score[:, None]
    decay = tl.exp2(tl.abs(difference) * -steepness)
    if BACKWARD:
        return decay * (column_grad[None, :] - grad[:, None])
    else:
        return tl.where(difference > 0, 1.0 - 0.5 * decay, 0.5 * decay)


@triton.jit
def _load_chunk(ranked, order, grads, offsets, CHUNK: tl.constexpr):
    """Load a chunk of a sorted list.

    Returns the index of the list's first item; the column of its first chunk in ``chunks``; and of
    the chunk's positions, the items, whether they are inside the list, whether they are real, the
    scores and the gradients. Each list has one column to spare, for a chunk that is not full.
    """
    list_index = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + list_index)
    at = tl.program_id(1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = at < tl.load(offsets + list_index + 1) - begin
    score = tl.load(ranked + begin + at, mask=inside, other=float("-inf"))
    real = score > float("-inf")
    item = tl.load(order + begin + at, mask=inside, other=0)
    grad = _load_grads(grads, item, real)
    return begin, begin // CHUNK + list_index, item, inside, real, score, grad


@cached_launch
@triton.jit(do_not_specialize=["stride"])
def _summarize_chunks(
    ranked, order, grads, offsets, chunks, temperature, stride, CHUNK: tl.constexpr
):
    """Write a chunk's highest and lowest score, and sums of exponentials relative to each.

    ``chunks`` is ``[6, stride]``, with one column per chunk of all lists: ``Σ exp((min - s) / τ)``,
    ``Σ exp((s - max) / τ)``, both sums with terms times the gradients, the highest and the lowest
    score. Chunks with lower scores use the sums relative to the minimum, higher ones the others.
    """
    _, base, _, inside, real, score, grad = _load_chunk(ranked, order, grads, offsets, CHUNK)
    steepness = 1.4426950408889634 / temperature  # log2(e) / τ, for exp2
    if tl.max(inside.to(tl.int32), 0) > 0:
        max_score = tl.max(score, 0)
        min_score = tl.minimum(tl.min(tl.where(real, score, float("inf")), 0), max_score)
        # A chunk of padding alone has sums of 0; any finite reference score will do.
        finite_max = tl.where(max_score > float("-inf"), max_score, 0.0)
        finite_min = tl.where(max_score > float("-inf"), min_score, 0.0)
        score = tl.where(real, score, finite_max)
        decay_above = tl.where(real, tl.exp2((finite_min - score) * steepness), 0.0)
        decay_below = tl.where(real, tl.exp2((score - finite_max) * steepness), 0.0)
        chunk = chunks + base + tl.program_id(1)
        tl.store(chunk, tl.sum(decay_above, 0))
        tl.store(chunk + stride, tl.sum(decay_below, 0))
        if grads is not None:
            tl.store(chunk + 2 * stride, tl.sum(decay_above * grad, 0))
            tl.store(chunk + 3 * stride, tl.sum(decay_below * grad, 0))
        tl.store(chunk + 4 * stride, max_score)
        tl.store(chunk + 5 * stride, min_score)


@cached_launch
@triton.jit(do_not_specialize=["stride"])
def _sum_chunk(
    ranked, order, grads, offsets, chunks, temperature, stride, result,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the ranks, or the vector-Jacobian product, of a chunk of a sorted list.

    The program sums over the pairs within the chunk, then adds the sums of all other chunks.
    """
    begin, base, item, inside, real, score, grad = _load_chunk(ranked, order, grads, offsets, CHUNK)
    steepness = 1.4426950408889634 / temperature  # log2(e) / τ, for exp2
    chunk_index = tl.program_id(1)
    sums = tl.zeros([CHUNK], tl.float32)
    if tl.max(real.to(tl.int32), 0) > 0:
        max_score = tl.load(chunks + base + chunk_index + 4 * stride)
        min_score = tl.load(chunks + base + chunk_index + 5 * stride)
        n_chunks = tl.cdiv(tl.load(offsets + tl.program_id(0) + 1) - begin, CHUNK)
        above, below, above_grad, below_grad = _sum_other_chunks(
            chunks + base, chunk_index, n_chunks, max_score, min_score, steepness, stride,
            grads is not None,
        )  # fmt: skip
        score = tl.where(real, score, min_score)
        grad = tl.where(real, grad, 0.0)
        from_above = tl.exp2((score - max_score) * steepness)
        from_below = tl.exp2((min_score - score) * steepness)
        terms = tl.zeros([CHUNK, WIDTH], tl.float32)
        first = begin + chunk_index.to(tl.int64) * CHUNK
        end = tl.load(offsets + tl.program_id(0) + 1)
        for offset in range(0, CHUNK, WIDTH):
            column = first + offset + tl.arange(0, WIDTH)
            valid = column < end
            column_score = tl.load(ranked + column, mask=valid, other=float("-inf"))
            column_item = tl.load(order + column, mask=valid, other=0)
            column_grad = _load_grads(grads, column_item, column_score > float("-inf"))
            terms += _terms(score, grad, column_score, column_grad, steepness, grads is not None)
        sums = tl.sum(terms, 1)
        if grads is not None:
            sums += from_above * (above_grad - grad * above)
            sums += from_below * (below_grad - grad * below)
            sums = sums / (2.0 * temperature)
        else:
            # An item of a higher chunk adds 1 - exp(-|x|) / 2, one of a lower chunk exp(-|x|) / 2.
            sums += 0.5 * (from_below * below - from_above * above)
            sums += chunk_index * CHUNK + 0.5
    tl.store(result + item, tl.where(real, sums, 0.0), mask=inside)


@triton.jit
def _sum_other_chunks(
    chunks, chunk_index, n_chunks, max_score, min_score, steepness, stride, BACKWARD: tl.constexpr
):
    """Sums of exponentials of the chunks with higher and with lower scores than this chunk.

    Those of higher chunks are relative to this chunk's highest score, those of lower chunks to its
    lowest score. The last two of the four sums have terms times the gradients. Chunks are read 512
    at a time.
    """
    above = tl.zeros([512], tl.float64)
    below = tl.zeros([512], tl.float64)
    above_grad = tl.zeros([512], tl.float64)
    below_grad = tl.zeros([512], tl.float64)
    for first in range(0, n_chunks, 512):
        chunk = first + tl.arange(0, 512)
        higher, lower = chunk < chunk_index, (chunk > chunk_index) & (chunk < n_chunks)
        min_above = tl.load(chunks + 5 * stride + chunk, mask=higher, other=float("inf"))
        max_below = tl.load(chunks + 4 * stride + chunk, mask=lower, other=float("-inf"))
        from_above = tl.exp2((max_score - min_above) * steepness)
        from_below = tl.exp2((max_below - min_score) * steepness)
        above += from_above * tl.load(chunks + chunk, mask=higher, other=0.0)
        below += from_below * tl.load(chunks + stride + chunk, mask=lower, other=0.0)
        if BACKWARD:
            above_grad += from_above * tl.load(chunks + 2 * stride + chunk, mask=higher, other=0.0)
            below_grad += from_below * tl.load(chunks + 3 * stride + chunk, mask=lower, other=0.0)
    return (
        tl.sum(above, 0).to(tl.float32), tl.sum(below, 0).to(tl.float32),
        tl.sum(above_grad, 0).to(tl.float32), tl.sum(below_grad, 0).to(tl.float32),
    )  # fmt: skip
