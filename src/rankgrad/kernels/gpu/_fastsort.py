"""FastSort's ranks on GPUs: projections onto the permutahedron, and their adjoint.

Lists are sorted by ascending score: then ``a = -s / strength`` and the weights n, ..., 1 descend,
as isotonic regression needs them. In a block of the regression the rank is ``a - mean(a - w)`` or,
with entropic regularization, ``exp(a - LSE(a) + LSE(w))``. The adjoint subtracts from each gradient
the sum over its block times the item's weight in the block: one over the size of the block or, with
entropic regularization, softmax(a).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import ListOperator
from rankgrad.kernels.gpu._isotonic import add_to_blocks, pooled
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._segmented_sort import count_items, sort_lists

_SPAN = 1024
_TILE = 2048  # items that the scan over blocks reads at a time


@dataclass(eq=False)
class FastSortRanks(ListOperator):
    """FastSort's ranks of lists and their adjoint (see :mod:`rankgrad.kernels.gpu._rank_sums`).

    Args:
        strength: of the regularization.
        entropic: project in Kullback-Leibler divergence, not in Euclidean distance.
        lengths: ``[lists]`` int32, the numbers of real items; counted here if None.
    """

    strength: float
    entropic: bool
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        scores, offsets, lists, width = self.scores, self.offsets, self.lists, self.max_length
        self.ranks = torch.empty_like(scores)
        self._options = lists, width, 1 / self.strength, self.entropic
        if not lists:
            return
        lengths = self.lengths
        if lengths is None:
            lengths = count_items(self.mask, offsets, width)
        order = sort_lists(scores, self.mask, offsets, width)
        anchors = torch.empty(2, lists, width, dtype=torch.float64, device=scores.device)
        grid = lists, cdiv(width, _SPAN)
        _lay[grid](order.scores, offsets, lengths, anchors, *self._options, _SPAN, num_warps=4)
        # By ascending score: the start of each item's block and, at that start, its sums and end.
        blocks, sums, ends = pooled(anchors[0], anchors[1], lengths, self.entropic)
        self._sorted = order.scores, order.items, offsets, lengths, blocks, sums, ends
        _rank[grid](*self._sorted, self.ranks, *self._options, _SPAN, num_warps=4)

    def adjoint(self, grad: Tensor) -> Tensor:
        """The vector-Jacobian product with respect to the scores; 0 on padding."""
        grad_scores, lists, width = torch.empty_like(self.ranks), self.lists, self.max_length
        if not lists:
            return grad_scores
        totals = torch.empty(lists, width, dtype=torch.float64, device=grad.device)
        arguments = (*self._sorted, grad.contiguous(), totals, grad_scores, *self._options)
        tile = min(_TILE, max(128, next_power_of_2(width)))
        _add[(lists,)](*arguments, tile, num_warps=min(8, tile // 128))
        _subtract_sums[(lists, cdiv(width, _SPAN))](*arguments, _SPAN, num_warps=4)
        return grad_scores


@triton.jit
def _list_of(offsets, lengths, lists, width):
    """The list of a program: its number, its first item, and how many real items it has.

    Also its offset in padded arrays ``[lists, width]``, and the size of such an array.
    """
    list_index = tl.program_id(0).to(tl.int64)
    far = tl.full([], 1, tl.int64) * lists * width
    start, length = tl.load(offsets + list_index), tl.load(lengths + list_index)
    return list_index, start, length, list_index * width, far


@triton.jit
def _anchor(ranked, place, inside, sharpness):
    """``-s / strength`` in double precision."""
    return -tl.load(ranked + place, mask=inside, other=0.0).to(tl.float64) * sharpness


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _lay(
    ranked, offsets, lengths, anchors, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the anchors and weights of a span of a list as input of the isotonic regression."""
    _, start, length, base, far = _list_of(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    weight = tl.where(inside, length - at, 1).to(tl.float64)
    if ENTROPIC:
        weight = tl.log(weight)
    to = anchors + base + at
    tl.store(to, _anchor(ranked, start + length - 1 - at, inside, sharpness), mask=at < width)
    tl.store(to + far, weight, mask=at < width)


@triton.jit
def _projected(
    ranked, items, blocks, sums, ends, base, far, start, length, at, sharpness,
    ENTROPIC: tl.constexpr,
):  # fmt: skip
    """Soft ranks, the weight of each item in its block, the start of the block, and the item."""
    inside = at < length
    place = start + length - 1 - at
    anchor = _anchor(ranked, place, inside, sharpness)
    block = tl.load(blocks + base + at, mask=inside, other=0)
    left = tl.load(sums + base + block, mask=inside, other=0.0)
    right = tl.load(sums + far + base + block, mask=inside, other=0.0)
    if ENTROPIC:
        weight = tl.exp(anchor - left)
        rank = tl.exp(anchor - left + right)
    else:
        end = tl.load(ends + base + block, mask=inside, other=1)
        weight = 1.0 / tl.where(inside, end - block, 1).to(tl.float64)
        # In a block of one item, a large anchor would cancel the digits of the rank.
        rank = tl.where(weight == 1.0, right, anchor - (left - right) * weight)
    return rank, weight, block, tl.load(items + place, mask=inside, other=0)


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _rank(
    ranked, items, offsets, lengths, blocks, sums, ends, ranks, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The ranks of a span of a list."""
    list_index, start, length, base, far = _list_of(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    rank, _, _, item = _projected(
        ranked, items, blocks, sums, ends, base, far, start, length, at, sharpness, ENTROPIC
    )
    tl.store(ranks + item, rank.to(tl.float32), mask=at < length)
    _store_padding(items, ranks, start, tl.load(offsets + list_index + 1), length, at)


@triton.jit
def _store_padding(items, numbers, start, end, length, at):
    """Write 0 to the padding of a span of a list; padding is sorted last."""
    padding = (at >= length) & (start + at < end)
    item = tl.load(items + start + at, mask=padding, other=0)
    tl.store(numbers + item, at.to(tl.float32) * 0.0, mask=padding)


@triton.jit
def _anchor_grads(grad, item, rank, inside, ENTROPIC: tl.constexpr):
    """Gradients with respect to the log ranks (or ranks)."""
    own_grad = tl.load(grad + item, mask=inside, other=0.0).to(tl.float64)
    if ENTROPIC:
        own_grad = tl.where(inside, own_grad * rank, 0.0)
    return own_grad


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _add(
    ranked, items, offsets, lengths, blocks, sums, ends, grad, totals, grad_scores, lists, width,
    sharpness, ENTROPIC: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the gradients over each block of a list; stored at the block's start."""
    _at_list, start, length, base, far = _list_of(offsets, lengths, lists, width)
    carried = tl.zeros([1], tl.float64)
    for left in range(0, length, TILE):
        at = left + tl.arange(0, TILE)
        rank, _, _, item = _projected(
            ranked, items, blocks, sums, ends, base, far, start, length, at, sharpness, ENTROPIC
        )
        own_grad = _anchor_grads(grad, item, rank, at < length, ENTROPIC)
        last = left + TILE - 1
        carried = add_to_blocks(own_grad, blocks, totals, base, at, last, length, carried)


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _subtract_sums(
    ranked, items, offsets, lengths, blocks, sums, ends, grad, totals, grad_scores, lists, width,
    sharpness, ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of a span of a list: its block's weighted sum, minus its own."""
    list_index, start, length, base, far = _list_of(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    rank, weight, block, item = _projected(
        ranked, items, blocks, sums, ends, base, far, start, length, at, sharpness, ENTROPIC
    )
    own_grad = _anchor_grads(grad, item, rank, inside, ENTROPIC)
    total = tl.load(totals + base + block, mask=inside, other=0.0)
    result = (weight * total - own_grad) * sharpness
    tl.store(grad_scores + item, result.to(tl.float32), mask=inside)
    _store_padding(items, grad_scores, start, tl.load(offsets + list_index + 1), length, at)
