"""The sums over pairs of ``pair_field`` on a GPU, in tiles: no ``n × n`` matrix is in memory.

Each program sums the pairs of a block of rows of one list, tile by tile.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 16, 64  # of a tile
#: The weights as numbers for the kernel.
_WEIGHTS = {"none": 0, "swap": 1, "distance": 2, "tangent": 3}


def sum_pairs(scores: Tensor, items: Tensor, weights: str, surrogate: str) -> tuple[Tensor, Tensor]:
    """``sum_pairs_eager`` of :mod:`candidates`, for lists whose padding is at the end."""
    lists, n = scores.shape
    scores, items = scores.detach().contiguous(), items.contiguous()
    lengths = items[-1].sum(-1).to(torch.int32)
    blocks = triton.cdiv(n, _ROWS)
    values = scores.new_empty(lists, blocks)
    gradient = torch.zeros_like(scores)
    _sum_pairs[(lists, blocks)](
        scores, items, lengths, values, gradient, lists * n, n, blocks,
        _WEIGHTS[weights], surrogate == "logistic", _ROWS, _COLUMNS, num_warps=2,
    )  # fmt: skip
    return values.sum(-1), gradient


@triton.jit
def _load(items, plane, index, mask):
    """Label, gain, discount or tangent, rank and factor past the cutoff of some items."""
    label = tl.load(items + index, mask=mask, other=0.0)
    gain = tl.load(items + plane + index, mask=mask, other=0.0)
    discount = tl.load(items + 2 * plane + index, mask=mask, other=0.0)
    rank = tl.load(items + 3 * plane + index, mask=mask, other=0.0)
    past_cutoff = tl.load(items + 4 * plane + index, mask=mask, other=0.0)
    return label, gain, discount, rank, past_cutoff


@triton.jit(do_not_specialize=["plane", "n", "blocks"])
def _sum_pairs(
    scores, items, lengths, values, gradient, plane, n, blocks,
    WEIGHTS: tl.constexpr, LOGISTIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``items`` has 6 planes of ``plane`` numbers each; names in the plural are of the columns."""
    list_index, block = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + list_index)
    start = list_index.to(tl.int64) * n
    plane_size = plane.to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    is_row = row < length
    score = tl.load(scores + start + row, mask=is_row, other=0.0)
    label, gain, discount, rank, past_cutoff = _load(items, plane_size, start + row, is_row)
    gradients = tl.zeros([ROWS, COLUMNS], tl.float32)
    totals = tl.zeros([ROWS, COLUMNS], tl.float32)
    tiles = tl.cdiv(length, COLUMNS) * (block * ROWS < length).to(tl.int32)
    for tile in range(0, tiles):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < length
        column_scores = tl.load(scores + start + column, mask=is_column, other=0.0)
        labels, gains, discounts, ranks, past_cutoffs = _load(
            items, plane_size, start + column, is_column
        )
        pair = (is_row[:, None] & is_column[None, :]).to(tl.float32)
        gap = score[:, None] - column_scores[None, :]
        if WEIGHTS == 3:
            is_pair = (row[:, None] != column[None, :]).to(tl.float32) * pair
            gap = tl.minimum(tl.maximum(gap, -60.0), 60.0)
            probability = 1.0 / (1.0 + tl.exp(gap))
            if LOGISTIC:
                derivative = discount[:, None] * probability - discounts[None, :] * (
                    1.0 - probability
                )
                term = tl.log(1.0 + tl.exp(-tl.abs(gap))) + tl.maximum(-gap, 0.0)
            else:
                derivative = (
                    (discount[:, None] - discounts[None, :]) * probability * (1.0 - probability)
                )
                term = probability
            gradients -= is_pair * derivative
            totals += is_pair * discount[:, None] * term
        else:
            higher = (label[:, None] > labels[None, :]).to(tl.float32)
            sign = (higher - (label[:, None] < labels[None, :]).to(tl.float32)) * pair
            weight = tl.abs(sign)
            if WEIGHTS != 0:
                weight *= tl.abs(gain[:, None] - gains[None, :])
            if WEIGHTS == 1:
                weight *= tl.abs(discount[:, None] - discounts[None, :])
            if WEIGHTS == 2:
                distance = tl.maximum(tl.abs(rank[:, None] - ranks[None, :]), 1.0)
                weight *= 1.0 / tl.log2(1.0 + distance) - 1.0 / tl.log2(2.0 + distance)
                lower = rank[:, None] > ranks[None, :]
                weight *= tl.where(lower, past_cutoff[:, None], past_cutoffs[None, :])
            gap = tl.minimum(tl.maximum(gap * sign, -60.0), 60.0)
            probability = 1.0 / (1.0 + tl.exp(gap))
            if LOGISTIC:
                derivative = probability
                term = tl.log(1.0 + tl.exp(-tl.abs(gap))) + tl.maximum(-gap, 0.0)
            else:
                derivative = probability * (1.0 - probability)
                term = probability
            gradients -= sign * weight * derivative
            totals += 0.5 * weight * term
    tl.store(gradient + start + row, tl.sum(gradients, 1), mask=is_row)
    tl.store(values + list_index * blocks + block, tl.sum(tl.sum(totals, 1), 0))
