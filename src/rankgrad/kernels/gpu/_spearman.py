"""Gains and norms of Spearman's correlation, which is linear in the relaxed ranks r of the items.

With ranks q by label and item weights w the correlation is ``Σ_i w_i (q_i - mean q) r_i``, divided
by ``sqrt(Σ_i w_i (q_i - mean q)²) sqrt(Σ_i w_i (p_i - mean p)²)`` with p the exact ranks by score.
:mod:`rankgrad.kernels.gpu._ranks` computes the sum. Exact ranks are counted in tiles of pairs:
O(n²) work, O(n) memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.gpu._flat_lists import (
    chunk_size,
    empty_norms,
    is_real,
    list_block,
    list_span,
    load_weights,
    positions,
)
from rankgrad.kernels.gpu._ideal_gain import ROWS, tile
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv

_CHUNK = 4096  # items of a list that one program reads at a time


def spearman_gains(batch: FlatLists) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gains ``w_i (q_i - mean q)`` and norms of lists.

    Returns:
        gains ``[items]``, scale ``[lists]`` (one over the norm), lengths ``[lists]`` and defined
        ``[lists]``, as :func:`rankgrad.kernels.gpu._ideal_gain.ideal_gain` does. A list is defined
        if two labels differ among its items of positive weight.
    """
    scores, labels, mask, weights, offsets, max_length = batch
    gains, by_score, norms = torch.empty_like(labels), torch.empty_like(labels), empty_norms(batch)
    lists, (columns, warps, _) = len(norms[0]), tile(max_length)
    _count_ranks[(lists, cdiv(max_length, ROWS))](
        scores, labels, mask, offsets, gains, by_score, ROWS, columns, num_warps=warps
    )
    chunk = chunk_size(max_length, _CHUNK)
    _write_gains[(lists,)](
        gains, by_score, mask, weights, offsets, *norms, chunk,
        num_warps=max(1, min(8, chunk // 128)),
    )  # fmt: skip
    return gains, *norms


@cached_launch
@triton.jit
def _count_ranks(
    scores, labels, mask, offsets, by_label, by_score, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """Write the ranks of a block of items: by label (ties: their mean), by score (in input order).

    Ranks by label are 1-based; those by score are 0-based.
    """
    _, start, length, row, inside, _ = list_block(mask, offsets, ROWS)
    label = tl.load(labels + start + row, mask=inside, other=0.0)[:, None]
    score = tl.load(scores + start + row, mask=inside, other=0.0)[:, None]
    # An item with a higher label counts twice; one with an equal label, the item included, once.
    twice_ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    higher_items = tl.zeros([ROWS, COLUMNS], tl.int32)
    # A block past the end of its list reads no columns.
    last = tl.where(tl.program_id(1) * ROWS < length, length, 0)
    for first_column in range(0, last, COLUMNS):
        column, real = positions(mask, start, first_column, length, COLUMNS)
        column_label = tl.load(labels + start + column, mask=real, other=float("-inf"))[None, :]
        twice_ahead += (column_label > label).to(tl.int32) + (column_label >= label).to(tl.int32)
        column_score = tl.load(scores + start + column, mask=real, other=float("-inf"))[None, :]
        is_earlier_tie = (column_score == score) & (column[None, :] < row[:, None])
        higher_items += ((column_score > score) | is_earlier_tie).to(tl.int32)
    mean_rank = (tl.sum(twice_ahead, 1) + 1).to(tl.float32) * 0.5
    tl.store(by_label + start + row, mean_rank, mask=inside)
    tl.store(by_score + start + row, tl.sum(higher_items, 1).to(tl.float32), mask=inside)


@cached_launch
@triton.jit
def _write_gains(
    gains, by_score, mask, weights, offsets, scale, lengths, defined, CHUNK: tl.constexpr
) -> None:
    """Replace the ranks by label of a list, in ``gains``, by gains; write its scale and length."""
    list_index, start, length = list_span(offsets)
    items = tl.zeros([CHUNK], tl.int32)
    weight_sum = tl.zeros([CHUNK], tl.float32)
    rank_sum = tl.zeros([CHUNK], tl.float32)
    score_rank_sum = tl.zeros([CHUNK], tl.float32)
    squares = tl.zeros([CHUNK], tl.float32)
    score_squares = tl.zeros([CHUNK], tl.float32)
    # The extreme ranks by label among items of positive weight.
    lowest = tl.full([CHUNK], float("inf"), tl.float32)
    highest = tl.zeros([CHUNK], tl.float32)
    mean, mean_by_score = 0.0, 0.0
    for centering in tl.static_range(2):  # first the means, then the sums of squares
        for first in range(0, length, CHUNK):
            row = first + tl.arange(0, CHUNK)
            inside = row < length
            real = is_real(mask, start + row, inside)
            weight = load_weights(weights, start + row, real)
            rank = tl.load(gains + start + row, mask=inside, other=0.0)
            score_rank = tl.load(by_score + start + row, mask=inside, other=0.0)
            if centering:
                rank -= mean
                score_rank -= mean_by_score
                squares += weight * rank * rank
                score_squares += weight * score_rank * score_rank
                tl.store(gains + start + row, weight * rank, mask=inside)
            else:
                items += real.to(tl.int32)
                weight_sum += weight
                rank_sum += weight * rank
                score_rank_sum += weight * score_rank
                lowest = tl.where(weight > 0, tl.minimum(lowest, rank), lowest)
                highest = tl.where(weight > 0, tl.maximum(highest, rank), highest)
        total_weight = tl.sum(weight_sum, 0)
        inverse_weight = 1.0 / tl.where(total_weight > 0, total_weight, 1.0)
        mean = tl.sum(rank_sum, 0) * inverse_weight
        mean_by_score = tl.sum(score_rank_sum, 0) * inverse_weight
    valid = tl.max(highest, 0) > tl.min(lowest, 0)
    norm = tl.sqrt(tl.sum(squares, 0)) * tl.sqrt(tl.sum(score_squares, 0))
    tl.store(scale + list_index, tl.where(valid, 1.0 / tl.where(valid, norm, 1.0), 0.0))
    tl.store(lengths + list_index, tl.sum(items, 0))
    tl.store(defined + list_index, valid)
