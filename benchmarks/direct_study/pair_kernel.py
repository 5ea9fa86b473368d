"""The sums of ``pair_field`` on a GPU: pairs are never written down."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 16, 64
_WEIGHTS = {"none": 0, "swap": 1, "distance": 2, "tangent": 3}


def sum_pairs(scores: Tensor, items: Tensor, weights: str, slope: str) -> tuple[Tensor, Tensor]:
    """As ``sum_pairs_eager`` of :mod:`candidates`, of lists with their padding at the end."""
    lists, n = scores.shape
    scores, items = scores.detach().contiguous(), items.contiguous()
    lengths = items[-1].sum(-1).to(torch.int32)
    blocks = triton.cdiv(n, _ROWS)
    values = scores.new_empty(lists, blocks)
    gradient = torch.zeros_like(scores)
    _sum_pairs[(lists, blocks)](
        scores, items, lengths, values, gradient, lists * n, n, blocks,
        _WEIGHTS[weights], slope == "logistic", _ROWS, _COLUMNS, num_warps=2,
    )  # fmt: skip
    return values.sum(-1), gradient


@triton.jit
def _load(items, plane, at, inside):
    """Label, gain, discount or tangent, rank and factor of some items."""
    label = tl.load(items + at, mask=inside, other=0.0)
    gain = tl.load(items + plane + at, mask=inside, other=0.0)
    second = tl.load(items + 2 * plane + at, mask=inside, other=0.0)
    rank = tl.load(items + 3 * plane + at, mask=inside, other=0.0)
    past = tl.load(items + 4 * plane + at, mask=inside, other=0.0)
    return label, gain, second, rank, past


@triton.jit(do_not_specialize=["plane", "n", "blocks"])
def _sum_pairs(
    scores, items, lengths, values, gradient, plane, n, blocks,
    WEIGHTS: tl.constexpr, LOGISTIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    at_list, block = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + at_list)
    start = at_list.to(tl.int64) * n
    wide = plane.to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < length
    score = tl.load(scores + start + row, mask=inside, other=0.0)
    label, gain, second, rank, past = _load(items, wide, start + row, inside)
    pulls = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    tiles = tl.cdiv(length, COLUMNS) * (block * ROWS < length).to(tl.int32)
    for tile in range(0, tiles):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        real = column < length
        other = tl.load(scores + start + column, mask=real, other=0.0)
        labels, gains, seconds, ranks, pasts = _load(items, wide, start + column, real)
        pair = (inside[:, None] & real[None, :]).to(tl.float32)
        gap = score[:, None] - other[None, :]
        if WEIGHTS == 3:
            apart = (row[:, None] != column[None, :]).to(tl.float32) * pair
            gap = tl.minimum(tl.maximum(gap, -60.0), 60.0)
            chance = 1.0 / (1.0 + tl.exp(gap))
            if LOGISTIC:
                steep = second[:, None] * chance - seconds[None, :] * (1.0 - chance)
                term = tl.log(1.0 + tl.exp(-tl.abs(gap))) + tl.maximum(-gap, 0.0)
            else:
                steep = (second[:, None] - seconds[None, :]) * chance * (1.0 - chance)
                term = chance
            pulls -= apart * steep
            total += apart * second[:, None] * term
        else:
            higher = (label[:, None] > labels[None, :]).to(tl.float32)
            sign = (higher - (label[:, None] < labels[None, :]).to(tl.float32)) * pair
            weight = tl.abs(sign)
            if WEIGHTS != 0:
                weight *= tl.abs(gain[:, None] - gains[None, :])
            if WEIGHTS == 1:
                weight *= tl.abs(second[:, None] - seconds[None, :])
            if WEIGHTS == 2:
                distance = tl.maximum(tl.abs(rank[:, None] - ranks[None, :]), 1.0)
                weight *= 1.0 / tl.log2(1.0 + distance) - 1.0 / tl.log2(2.0 + distance)
                lower = rank[:, None] > ranks[None, :]
                weight *= tl.where(lower, past[:, None], pasts[None, :])
            gap = tl.minimum(tl.maximum(gap * sign, -60.0), 60.0)
            chance = 1.0 / (1.0 + tl.exp(gap))
            if LOGISTIC:
                steep = chance
                term = tl.log(1.0 + tl.exp(-tl.abs(gap))) + tl.maximum(-gap, 0.0)
            else:
                steep = chance * (1.0 - chance)
                term = chance
            pulls -= sign * weight * steep
            total += 0.5 * weight * term
    tl.store(gradient + start + row, tl.sum(pulls, 1), mask=inside)
    tl.store(values + at_list * blocks + block, tl.sum(tl.sum(total, 1), 0))
