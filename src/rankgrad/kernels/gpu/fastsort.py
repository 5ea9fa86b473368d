"""FastSort's ranks on GPUs: projections onto the permutahedron, and the way back.

Lists are sorted; from their last item on, ``a = -s / strength`` and the weights n, ..., 1 descend,
as isotonic regression takes them. On a block of it the rank is ``a`` less the mean of ``a - w`` or,
entropic, ``exp(a - LSE(a) + LSE(w))``; on the way back, what a block has in common is taken off.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.isotonic import pooled, segmented
from rankgrad.kernels.gpu.launch import cdiv, next_power_of_2, quick
from rankgrad.kernels.gpu.order import sort_lists

_SPAN = 1024
_TILE = 2048  # items whose blocks are added up at a time


@dataclass(frozen=True)
class Projection:
    """Lists in order with the blocks of their projection.

    Args:
        ranks: of the slots; anything on padding.
        ranked: scores in descending order.
        slots: which slot stands where.
        offsets: where the lists begin and end.
        lengths: the numbers of real items.
        blocks: ``[b, n]``, by ascending score: where the block of an item begins.
        sums: ``[2, b, n]``: where a block begins, the sum or log-sum-exp of a and of w over it.
        ends: ``[2, b, n]``: there, where it ends.
        sharpness: one over the strength.
        entropic: in Kullback-Leibler divergence.
    """

    ranks: Tensor
    ranked: Tensor
    slots: Tensor
    offsets: Tensor
    lengths: Tensor
    blocks: Tensor
    sums: Tensor
    ends: Tensor
    sharpness: float
    entropic: bool

    @classmethod
    def of(
        cls,
        scores: Tensor,
        mask: Tensor | None,
        offsets: Tensor,
        longest: int,
        lengths: Tensor,
        sharpness: float,
        entropic: bool,
    ) -> Projection:
        """Sort, pool, and rank; there is an item at least."""
        order = sort_lists(scores, mask, offsets, longest)
        lists, spans = len(lengths), cdiv(longest, _SPAN)
        anchors = torch.empty(2, lists, longest, dtype=torch.float64, device=scores.device)
        _lay[(lists, spans)](
            order.scores, offsets, lengths, anchors, lists, longest, sharpness, entropic, _SPAN,
            num_warps=4,
        )  # fmt: skip
        blocks, sums, ends = pooled(anchors[0], anchors[1], lengths, entropic)
        ranks = torch.empty_like(scores)
        _rank[(lists, spans)](
            order.scores, order.slots, offsets, lengths, blocks, sums, ends, ranks, lists, longest,
            sharpness, entropic, _SPAN, num_warps=4,
        )  # fmt: skip
        return cls(
            ranks, order.scores, order.slots, offsets, lengths, blocks, sums, ends, sharpness,
            entropic,
        )  # fmt: skip

    def back(self, grad: Tensor) -> Tensor:
        """A gradient by ranks as one by scores; 0 on padding."""
        lists, width = self.blocks.shape
        totals = torch.empty(lists, width, dtype=torch.float64, device=grad.device)
        slopes = torch.empty_like(grad)
        given = (
            self.ranked, self.slots, self.offsets, self.lengths, self.blocks, self.sums, self.ends,
            grad, totals, slopes, lists, width, self.sharpness, self.entropic,
        )  # fmt: skip
        tile = min(_TILE, max(128, next_power_of_2(width)))
        _add[(lists,)](*given, tile, num_warps=min(8, tile // 128))
        _take_off[(lists, cdiv(width, _SPAN))](*given, _SPAN, num_warps=4)
        return slopes


@triton.jit
def _anchor(ranked, place, inside, sharpness):
    """``-s / strength`` in double precision."""
    return -tl.load(ranked + place, mask=inside, other=0.0).to(tl.float64) * sharpness


@quick
@triton.jit(do_not_specialize=["lists", "width"])
def _lay(
    ranked, offsets, lengths, anchors, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Anchors and weights of a span of a list, in its rows of what will be pooled."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    length = tl.load(lengths + at_list)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    weight = tl.where(inside, length - at, 1).to(tl.float64)
    if ENTROPIC:
        weight = tl.log(weight)
    to = anchors + at_list * width + at
    tl.store(to, _anchor(ranked, start + length - 1 - at, inside, sharpness), mask=at < width)
    tl.store(to + (tl.full([], 1, tl.int64) * lists * width), weight, mask=at < width)


@triton.jit
def _projected(
    blocks, sums, ends, base, far, anchor, at, inside, ENTROPIC: tl.constexpr
):  # fmt: skip
    """Soft ranks, the share of each item in its block, and the block."""
    block = tl.load(blocks + base + at, mask=inside, other=0)
    left = tl.load(sums + base + block, mask=inside, other=0.0)
    right = tl.load(sums + far + base + block, mask=inside, other=0.0)
    if ENTROPIC:
        share = tl.exp(anchor - left)
        rank = tl.exp(anchor - left + right)
    else:
        end = tl.load(ends + base + block, mask=inside, other=1)
        share = 1.0 / tl.where(inside, end - block, 1).to(tl.float64)
        # A single item may be so far that its rank is lost beside it.
        rank = tl.where(share == 1.0, right, anchor - (left - right) * share)
    return rank, share, block


@quick
@triton.jit(do_not_specialize=["lists", "width"])
def _rank(
    ranked, slots, offsets, lengths, blocks, sums, ends, ranks, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The ranks of a span of a list."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    length = tl.load(lengths + at_list)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    place = start + length - 1 - at
    anchor = _anchor(ranked, place, inside, sharpness)
    far = tl.full([], 1, tl.int64) * lists * width
    rank, _, _ = _projected(
        blocks, sums, ends, at_list * width, far, anchor, at, inside, ENTROPIC
    )  # fmt: skip
    slot = tl.load(slots + place, mask=inside, other=0)
    tl.store(ranks + slot, rank.to(tl.float32), mask=inside)


@triton.jit
def _pulled(
    ranked, slots, blocks, sums, ends, grad, base, far, start, length, at, sharpness,
    ENTROPIC: tl.constexpr,
):  # fmt: skip
    """The gradients by ranks as they come to the anchors; with share, block and slot."""
    inside = at < length
    place = start + length - 1 - at
    anchor = _anchor(ranked, place, inside, sharpness)
    rank, share, block = _projected(
        blocks, sums, ends, base, far, anchor, at, inside, ENTROPIC
    )  # fmt: skip
    slot = tl.load(slots + place, mask=inside, other=0)
    pull = tl.load(grad + slot, mask=inside, other=0.0).to(tl.float64)
    if ENTROPIC:
        pull = tl.where(inside, pull * rank, 0.0)
    return pull, share, block, slot


@quick
@triton.jit(do_not_specialize=["lists", "width"])
def _add(
    ranked, slots, offsets, lengths, blocks, sums, ends, grad, totals, slopes, lists, width,
    sharpness, ENTROPIC: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """The sum of the pulls of each block of a list, where the block begins."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    length = tl.load(lengths + at_list)
    base = at_list * width
    far = tl.full([], 1, tl.int64) * lists * width
    carried = tl.zeros([1], tl.float64)
    for left in range(0, length, TILE):
        at = left + tl.arange(0, TILE)
        pull, _, block, _ = _pulled(
            ranked, slots, blocks, sums, ends, grad, base, far, start, length, at, sharpness,
            ENTROPIC,
        )  # fmt: skip
        following = tl.load(blocks + base + at + 1, mask=at + 1 < length, other=-1)
        begins = (block == at).to(tl.int32)
        running, begun = tl.associative_scan((pull, begins), 0, segmented)
        running = tl.where(begun != 0, running, running + carried)
        tl.store(totals + base + block, running, mask=(at < length) & (following != block))
        carried = tl.sum(tl.where(at == left + TILE - 1, running, 0.0), 0, keep_dims=True)


@quick
@triton.jit(do_not_specialize=["lists", "width"])
def _take_off(
    ranked, slots, offsets, lengths, blocks, sums, ends, grad, totals, slopes, lists, width,
    sharpness, ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The slopes of a span of a list."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    all_slots = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    length = tl.load(lengths + at_list)
    base = at_list * width
    far = tl.full([], 1, tl.int64) * lists * width
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    pull, share, block, slot = _pulled(
        ranked, slots, blocks, sums, ends, grad, base, far, start, length, at, sharpness, ENTROPIC
    )
    total = tl.load(totals + base + block, mask=inside, other=0.0)
    slope = (share * total - pull) * sharpness
    tl.store(slopes + slot, slope.to(tl.float32), mask=inside)
    padding = (at >= length) & (at < all_slots)  # padding stands behind the items
    slot = tl.load(slots + start + at, mask=padding, other=0)
    tl.store(slopes + slot, tl.zeros([SPAN], tl.float32), mask=padding)
