"""FastSort's ranks on GPUs: projections onto the permutahedron (Blondel et al. 2020, eq. 6).

:mod:`rankgrad.sorting.fastsort` defines the ranks; :mod:`rankgrad.kernels.gpu._ranks` uses them.
Isotonic regression needs anchors ``a = -s / strength`` and weights ``w = n, ..., 1`` in descending
order, so it takes the items in ascending order of their scores, from the last to the first of the
sorted list. The regression partitions them into blocks.
The rank of an item is ``a - mean(a - w)`` with the mean over its block or, with entropic
regularization, ``exp(a - LSE(a) + LSE(w))`` with log-sum-exps (LSE) over its block. (The weights of
the regression are then ``log n, ..., log 1``.)

The adjoint, with g the gradient with respect to the rank (entropic: to the log of the rank), is
``(β_i Σ_l g_l - g_i) / strength``. The sum is over the block of item i, and β_i is the weight of
item i in it: one over the size of the block or, with entropic regularization, softmax(a)_i over it.

In the kernels ``ranked`` and ``items`` are the scores and indices of the items, ``[items]``, each
list by descending score with padding last. ``sharpness`` is one over the strength, and ``at`` are
positions in ascending order of scores. ``blocks``, ``sums`` and ``ends`` are the results of
:func:`~rankgrad.kernels.gpu._isotonic.pooled`.
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

_SPAN = 1024  # items of a list that one program computes
_TILE = 2048  # items that the scan over blocks reads at a time


@dataclass(eq=False)
class FastSortRanks(ListOperator):
    """FastSort's ranks of lists and their adjoint (see :mod:`rankgrad.kernels.gpu._rank_sums`).

    Args:
        strength: of the regularization.
        entropic: project in Kullback-Leibler divergence, not in Euclidean distance.
        lengths: ``[lists]`` int32, the numbers of real items; counted here if None.

    Attributes:
        ranks: ``[items]``, 1-based, 0 on padding.
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
        regression_inputs = torch.empty(2, lists, width, dtype=torch.float64, device=scores.device)
        grid = lists, cdiv(width, _SPAN)
        tensors = order.scores, offsets, lengths, regression_inputs
        _write_inputs[grid](*tensors, *self._options, _SPAN, num_warps=4)
        # In ascending order of scores: the start of each item's block, and at the start of a block
        # its sums and its end.
        blocks, sums, ends = pooled(
            regression_inputs[0], regression_inputs[1], lengths, self.entropic
        )
        self._sorted = order.scores, order.items, offsets, lengths, blocks, sums, ends
        _rank[grid](*self._sorted, self.ranks, *self._options, _SPAN, num_warps=4)

    def adjoint(self, grad: Tensor) -> Tensor:
        """The vector-Jacobian product with respect to the scores, ``[items]``; 0 on padding."""
        grad_scores, lists, width = torch.empty_like(self.ranks), self.lists, self.max_length
        if not lists:
            return grad_scores
        block_grads = torch.empty(lists, width, dtype=torch.float64, device=grad.device)
        arguments = (*self._sorted, grad.contiguous(), block_grads, grad_scores, *self._options)
        tile = min(_TILE, max(128, next_power_of_2(width)))
        _sum_grads[(lists,)](*arguments, tile, num_warps=min(8, tile // 128))
        _write_grads[(lists, cdiv(width, _SPAN))](*arguments, _SPAN, num_warps=4)
        return grad_scores


@triton.jit
def _padded_list(offsets, lengths, lists, width):
    """The list of this program, in the flat layout and in padded arrays ``[lists, width]``.

    Returns the index of the list, the index of its first item, its number of real items; the start
    of its row in a padded array, and the size of such an array.
    """
    list_index = tl.program_id(0).to(tl.int64)
    stride = tl.full([], 1, tl.int64) * lists * width
    start, length = tl.load(offsets + list_index), tl.load(lengths + list_index)
    return list_index, start, length, list_index * width, stride


@triton.jit
def _load_anchors(ranked, index, inside, sharpness):
    """The anchors ``-s / strength`` of sorted items, in float64."""
    return -tl.load(ranked + index, mask=inside, other=0.0).to(tl.float64) * sharpness


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _write_inputs(
    ranked, offsets, lengths, regression_inputs, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the inputs of the isotonic regression for a span of a list.

    ``regression_inputs`` is ``[2, lists, width]``: anchors and weights, in ascending order of
    scores.
    """
    _, start, length, base, stride = _padded_list(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    weight = tl.where(inside, length - at, 1).to(tl.float64)
    if ENTROPIC:
        weight = tl.log(weight)
    target = regression_inputs + base + at
    anchor = _load_anchors(ranked, start + length - 1 - at, inside, sharpness)
    tl.store(target, anchor, mask=at < width)
    tl.store(target + stride, weight, mask=at < width)


@triton.jit
def _project(
    ranked, items, blocks, sums, ends, base, stride, start, length, at, sharpness,
    ENTROPIC: tl.constexpr,
):  # fmt: skip
    """The results of the regression at some positions, in ascending order of scores.

    Returns the soft ranks, the weights β of the items in their blocks, the starts of the blocks,
    and the indices of the items. If ENTROPIC, the "sums" over blocks are log-sum-exps.
    """
    inside = at < length
    index = start + length - 1 - at
    anchor = _load_anchors(ranked, index, inside, sharpness)
    block = tl.load(blocks + base + at, mask=inside, other=0)
    anchor_sum = tl.load(sums + base + block, mask=inside, other=0.0)
    weight_sum = tl.load(sums + stride + base + block, mask=inside, other=0.0)
    if ENTROPIC:
        block_weight = tl.exp(anchor - anchor_sum)
        rank = tl.exp(anchor - anchor_sum + weight_sum)
    else:
        end = tl.load(ends + base + block, mask=inside, other=1)
        block_weight = 1.0 / tl.where(inside, end - block, 1).to(tl.float64)
        # In a block of one item, a large anchor would cancel the digits of the rank.
        shifted = anchor - (anchor_sum - weight_sum) * block_weight
        rank = tl.where(block_weight == 1.0, weight_sum, shifted)
    return rank, block_weight, block, tl.load(items + index, mask=inside, other=0)


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _rank(
    ranked, items, offsets, lengths, blocks, sums, ends, ranks, lists, width, sharpness,
    ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the ranks of a span of a list, in input order."""
    list_index, start, length, base, stride = _padded_list(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    rank, _, _, item = _project(
        ranked, items, blocks, sums, ends, base, stride, start, length, at, sharpness, ENTROPIC
    )
    tl.store(ranks + item, rank.to(tl.float32), mask=at < length)
    _store_padding(items, ranks, start, tl.load(offsets + list_index + 1), length, at)


@triton.jit
def _store_padding(items, target, start, end, length, at):
    """Write 0 for the padding of a span of a list; padding is sorted last."""
    padding = (at >= length) & (start + at < end)
    item = tl.load(items + start + at, mask=padding, other=0)
    tl.store(target + item, at.to(tl.float32) * 0.0, mask=padding)


@triton.jit
def _anchor_grads(grad, item, rank, inside, ENTROPIC: tl.constexpr):
    """Gradients with respect to the ranks; if ENTROPIC, to their logarithms."""
    rank_grad = tl.load(grad + item, mask=inside, other=0.0).to(tl.float64)
    if ENTROPIC:
        rank_grad = tl.where(inside, rank_grad * rank, 0.0)
    return rank_grad


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _sum_grads(
    ranked, items, offsets, lengths, blocks, sums, ends, grad, block_grads, grad_scores, lists,
    width, sharpness, ENTROPIC: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Sum the gradients over each block of a list, and store the sum at the start of the block.

    ``block_grads`` is ``[lists, width]``.
    """
    _list_index, start, length, base, stride = _padded_list(offsets, lengths, lists, width)
    carried = tl.zeros([1], tl.float64)
    for first in range(0, length, TILE):
        at = first + tl.arange(0, TILE)
        rank, _, _, item = _project(
            ranked, items, blocks, sums, ends, base, stride, start, length, at, sharpness, ENTROPIC
        )
        rank_grad = _anchor_grads(grad, item, rank, at < length, ENTROPIC)
        last = first + TILE - 1
        carried = add_to_blocks(rank_grad, blocks, block_grads, base, at, last, length, carried)


@cached_launch
@triton.jit(do_not_specialize=["lists", "width"])
def _write_grads(
    ranked, items, offsets, lengths, blocks, sums, ends, grad, block_grads, grad_scores, lists,
    width, sharpness, ENTROPIC: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write the gradient of a span of a list with respect to the scores, in input order."""
    list_index, start, length, base, stride = _padded_list(offsets, lengths, lists, width)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = at < length
    rank, block_weight, block, item = _project(
        ranked, items, blocks, sums, ends, base, stride, start, length, at, sharpness, ENTROPIC
    )
    rank_grad = _anchor_grads(grad, item, rank, inside, ENTROPIC)
    block_grad = tl.load(block_grads + base + block, mask=inside, other=0.0)
    result = (block_weight * block_grad - rank_grad) * sharpness
    tl.store(grad_scores + item, result.to(tl.float32), mask=inside)
    _store_padding(items, grad_scores, start, tl.load(offsets + list_index + 1), length, at)
