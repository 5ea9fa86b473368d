"""LapSum's soft ranks and their vector-Jacobian product.

Short lists sum over all pairs. Long lists are sorted and cut into chunks. Across chunks the
exponentials factorize, so a chunk needs only the sum of another chunk's exponentials, relative to
that chunk's nearest score. Pairs are summed within chunks only.
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

_CHUNK = 256


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
            _pairs[(lists, cdiv(self.max_length, 32))](
                scores, grad, self.mask, self.offsets, result, self.temperature, HEIGHT=32, WIDTH=64
            )
            return result
        many = scores.numel() // _CHUNK + lists + 1
        chunks = scores.new_empty(6, many)
        grid = (lists, cdiv(self.max_length, _CHUNK))
        sorted_ = (order.scores, order.items, grad, self.offsets, chunks, self.temperature, many)
        _chunks[grid](*sorted_, CHUNK=_CHUNK)
        _chunked[grid](*sorted_, result, CHUNK=_CHUNK, WIDTH=min(16, _CHUNK))
        return result


@cached_launch
@triton.jit
def _pairs(
    scores, grads, mask, offsets, result, temperature, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """Sum over all pairs of a block of items."""
    _, begin, count, item, inside, real = list_block(mask, offsets, HEIGHT)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    grad = score
    if grads is not None:
        grad = tl.load(grads + begin + item, mask=real, other=0.0)
    strength = 1.4426950408889634 / temperature
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first in range(0, count, WIDTH):
        column, valid = positions(mask, begin, first, count, WIDTH)
        other = tl.load(scores + begin + column, mask=valid, other=float("-inf"))
        other_grad = other
        if grads is not None:
            other_grad = tl.load(grads + begin + column, mask=valid, other=0.0)
        total += _terms(score, grad, other, other_grad, strength, grads is not None)
    number = tl.sum(total, 1)
    number = number / (2.0 * temperature) if grads is not None else number + 0.5
    tl.store(result + begin + item, tl.where(real, number, 0.0), mask=inside)


@triton.jit
def _terms(score, grad, other, other_grad, strength, BACKWARD: tl.constexpr):
    """Terms of the ranks, or of the gradient, of pairs; other scores are -inf on padding."""
    difference = other[None, :] - score[:, None]
    near = tl.exp2(tl.abs(difference) * -strength)
    if BACKWARD:
        return near * (other_grad[None, :] - grad[:, None])
    else:
        return tl.where(difference > 0, 1.0 - 0.5 * near, 0.5 * near)


@triton.jit
def _load_chunk(ranked, order, grads, offsets, CHUNK: tl.constexpr):
    """Load a chunk of a sorted list: its first item and chunk, items, scores and gradients."""
    place = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + place)
    at = tl.program_id(1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = at < tl.load(offsets + place + 1) - begin
    score = tl.load(ranked + begin + at, mask=inside, other=float("-inf"))
    real = score > float("-inf")
    grad = score
    item = tl.load(order + begin + at, mask=inside, other=0)
    if grads is not None:
        grad = tl.load(grads + item, mask=real, other=0.0)
    return begin, begin // CHUNK + place, item, inside, real, score, grad


@cached_launch
@triton.jit(do_not_specialize=["many"])
def _chunks(ranked, order, grads, offsets, chunks, temperature, many, CHUNK: tl.constexpr):
    """The highest and lowest score of each chunk, and sums of exponentials relative to both."""
    _, base, _, inside, real, score, grad = _load_chunk(ranked, order, grads, offsets, CHUNK)
    strength = 1.4426950408889634 / temperature
    if tl.max(inside.to(tl.int32), 0) > 0:
        top = tl.max(score, 0)
        low = tl.minimum(tl.min(tl.where(real, score, float("inf")), 0), top)
        # A chunk of padding alone has sums of 0; any finite reference score will do.
        high = tl.where(top > float("-inf"), top, 0.0)
        near_end = tl.where(top > float("-inf"), low, 0.0)
        score = tl.where(real, score, high)
        over = tl.where(real, tl.exp2((near_end - score) * strength), 0.0)
        under = tl.where(real, tl.exp2((score - high) * strength), 0.0)
        mine = chunks + base + tl.program_id(1)
        tl.store(mine, tl.sum(over, 0))
        tl.store(mine + many, tl.sum(under, 0))
        if grads is not None:
            tl.store(mine + 2 * many, tl.sum(over * grad, 0))
            tl.store(mine + 3 * many, tl.sum(under * grad, 0))
        tl.store(mine + 4 * many, top)
        tl.store(mine + 5 * many, low)


@cached_launch
@triton.jit(do_not_specialize=["many"])
def _chunked(
    ranked, order, grads, offsets, chunks, temperature, many, result,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum over the pairs within a chunk, then add the sums of all other chunks."""
    begin, base, item, inside, real, score, grad = _load_chunk(ranked, order, grads, offsets, CHUNK)
    strength = 1.4426950408889634 / temperature
    mine = tl.program_id(1)
    number = tl.zeros([CHUNK], tl.float32)
    if tl.max(real.to(tl.int32), 0) > 0:
        top = tl.load(chunks + base + mine + 4 * many)
        low = tl.load(chunks + base + mine + 5 * many)
        count = tl.cdiv(tl.load(offsets + tl.program_id(0) + 1) - begin, CHUNK)
        above, below, above_grad, below_grad = _others(
            chunks + base, mine, count, top, low, strength, many, grads is not None
        )
        score = tl.where(real, score, low)
        grad = tl.where(real, grad, 0.0)
        from_above = tl.exp2((score - top) * strength)
        from_below = tl.exp2((low - score) * strength)
        total = tl.zeros([CHUNK, WIDTH], tl.float32)
        first = begin + mine.to(tl.int64) * CHUNK
        end = tl.load(offsets + tl.program_id(0) + 1)
        for left in range(0, CHUNK, WIDTH):
            column = first + left + tl.arange(0, WIDTH)
            valid = column < end
            other = tl.load(ranked + column, mask=valid, other=float("-inf"))
            other_grad = other
            if grads is not None:
                which = tl.load(order + column, mask=valid, other=0)
                other_grad = tl.load(grads + which, mask=other > float("-inf"), other=0.0)
            total += _terms(score, grad, other, other_grad, strength, grads is not None)
        number = tl.sum(total, 1)
        if grads is not None:
            number += from_above * (above_grad - grad * above)
            number += from_below * (below_grad - grad * below)
            number = number / (2.0 * temperature)
        else:
            number += 0.5 * (from_below * below - from_above * above)
            number += mine * CHUNK + 0.5
    tl.store(result + item, tl.where(real, number, 0.0), mask=inside)


@triton.jit
def _others(chunks, mine, count, top, low, strength, many, BACKWARD: tl.constexpr):
    """Sums of exponentials of the chunks above and below, relative to this chunk's ends."""
    above = tl.zeros([512], tl.float64)
    below = tl.zeros([512], tl.float64)
    above_grad = tl.zeros([512], tl.float64)
    below_grad = tl.zeros([512], tl.float64)
    for left in range(0, count, 512):
        other = left + tl.arange(0, 512)
        over, under = other < mine, (other > mine) & (other < count)
        from_above = tl.load(chunks + 5 * many + other, mask=over, other=float("inf"))
        from_below = tl.load(chunks + 4 * many + other, mask=under, other=float("-inf"))
        from_above = tl.exp2((top - from_above) * strength)
        from_below = tl.exp2((from_below - low) * strength)
        above += from_above * tl.load(chunks + other, mask=over, other=0.0)
        below += from_below * tl.load(chunks + many + other, mask=under, other=0.0)
        if BACKWARD:
            above_grad += from_above * tl.load(chunks + 2 * many + other, mask=over, other=0.0)
            below_grad += from_below * tl.load(chunks + 3 * many + other, mask=under, other=0.0)
    return (
        tl.sum(above, 0).to(tl.float32),
        tl.sum(below, 0).to(tl.float32),
        tl.sum(above_grad, 0).to(tl.float32),
        tl.sum(below_grad, 0).to(tl.float32),
    )
