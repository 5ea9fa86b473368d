"""FastSort's ranks on GPUs: projections onto the permutahedron, and their adjoint.

Lists are sorted by ascending score: then ``a = -s / strength`` and the weights n, ..., 1 descend,
as isotonic regression needs them. In a block of the regression the rank is ``a - mean(a - w)`` or,
with entropic regularization, ``exp(a - LSE(a) + LSE(w))``. The adjoint subtracts from each gradient
the sum over its block times the item's weight in the block: one over the size of the block or, with
entropic regularization, softmax(a).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._isotonic import add_to_blocks, pooled
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._segmented_sort import count_items, sort_lists

_SPAN = 1024
_TILE = 2048  # items that the scan over blocks reads at a time


class FastSortRanks:
    """FastSort's ranks of lists and their adjoint (see :mod:`rankgrad.kernels.gpu._rank_sums`).

    Args:
        scores: ``[items]``, in the flat layout.
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.
        strength: of the regularization.
        entropic: project in Kullback-Leibler divergence, not in Euclidean distance.
        lengths: ``[lists]`` int32, the numbers of real items; counted here if None.
    """

    def __init__(
        self,
        scores: Tensor,
        mask: Tensor | None,
        offsets: Tensor,
        max_length: int,
        strength: float,
        entropic: bool,
        lengths: Tensor | None = None,
    ) -> None:
        self.ranks = torch.empty_like(scores)
        self._width, self._options = max_length, (1 / strength, entropic)
        self._sorted: tuple[Tensor, ...] | None = None
        if max_length == 0 or offsets.numel() == 1:
            return
        if lengths is None:
            lengths = count_items(mask, offsets, max_length)
        order = sort_lists(scores, mask, offsets, max_length)
        lists, spans = len(lengths), cdiv(max_length, _SPAN)
        anchors = torch.empty(2, lists, max_length, dtype=torch.float64, device=scores.device)
        _lay[(lists, spans)](
            order.scores, offsets, lengths, anchors, lists, max_length, *self._options, _SPAN,
            num_warps=4,
        )  # fmt: skip
        # By ascending score: the start of each item's block and, at that start, its sums and end.
        blocks, sums, ends = pooled(anchors[0], anchors[1], lengths, entropic)
        self._sorted = order.scores, order.items, offsets, lengths, blocks, sums, ends
        _rank[(lists, spans)](
            *self._sorted, self.ranks, lists, max_length, *self._options, _SPAN, num_warps=4
        )

    def adjoint(self, grad: Tensor) -> Tensor:
        """The vector-Jacobian product with respect to the scores; 0 on padding."""
        grad_scores, width = torch.empty_like(self.ranks), self._width
        if self._sorted is None:
            return grad_scores
        lists = len(self._sorted[3])
        totals = torch.empty(lists, width, dtype=torch.float64, device=grad.device)
        grads = grad.contiguous(), totals, grad_scores
        arguments = (*self._sorted, *grads, lists, width, *self._options)
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
    blocks, sums, ends, base, far, anchor, at, inside, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Soft ranks, the weight of each item in its block, and the start of the block."""
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
    return rank, weight, block


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _rank(
    ranked, items, offsets, lengths, blocks, sums, ends, ranks, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The ranks of a span of a list."""
    list_index, start, length, base, far = _list_of(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    place = start + length - 1 - at
    anchor = _anchor(ranked, place, inside, sharpness)
    rank, _, _ = _projected(blocks, sums, ends, base, far, anchor, at, inside, ENTROPIC)
    item = tl.load(items + place, mask=inside, other=0)
    tl.store(ranks + item, rank.to(tl.float32), mask=inside)
    _store_padding(items, ranks, start, tl.load(offsets + list_index + 1), length, at)


@triton.jit
def _store_padding(items, numbers, start, end, length, at):
    """Write 0 to the padding of a span of a list; padding is sorted last."""
    padding = (at >= length) & (start + at < end)
    item = tl.load(items + start + at, mask=padding, other=0)
    tl.store(numbers + item, at.to(tl.float32) * 0.0, mask=padding)


@triton.jit
def _anchor_grads(
    ranked, items, blocks, sums, ends, grad, base, far, start, length, at, sharpness,
    ENTROPIC: tl.constexpr,
):  # fmt: skip
    """Gradients with respect to the log ranks (or ranks), with weight, block and item."""
    inside = at < length
    place = start + length - 1 - at
    anchor = _anchor(ranked, place, inside, sharpness)
    rank, weight, block = _projected(blocks, sums, ends, base, far, anchor, at, inside, ENTROPIC)
    item = tl.load(items + place, mask=inside, other=0)
    own_grad = tl.load(grad + item, mask=inside, other=0.0).to(tl.float64)
    if ENTROPIC:
        own_grad = tl.where(inside, own_grad * rank, 0.0)
    return own_grad, weight, block, item


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
        own_grad, _, _, _ = _anchor_grads(
            ranked, items, blocks, sums, ends, grad, base, far, start, length, at, sharpness,
            ENTROPIC,
        )  # fmt: skip
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
    own_grad, weight, block, item = _anchor_grads(
        ranked, items, blocks, sums, ends, grad, base, far, start, length, at, sharpness, ENTROPIC
    )
    total = tl.load(totals + base + block, mask=inside, other=0.0)
    result = (weight * total - own_grad) * sharpness
    tl.store(grad_scores + item, result.to(tl.float32), mask=inside)
    _store_padding(items, grad_scores, start, tl.load(offsets + list_index + 1), length, at)
