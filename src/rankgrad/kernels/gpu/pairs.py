"""Sums over pairs on GPUs: RankNet, hinge, LambdaRank and LambdaLoss for NDCG.

Three launches. The first counts where every item stands and lays the items out in that order; in
it the sign of every score gap is known, and ``δ(|π_i - π_j|)`` lies along the diagonals. The second
sums over the pairs of each item, the third shares slopes among items that nothing tells apart.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.prepare import EXPONENTIAL, LINEAR, load_real, presence

KINDS = {
    "ranknet": 0,
    "hinge": 1,
    "lambdarank": 2,
    "ndcg_loss1": 3,
    "ndcg_loss2": 4,
    "ndcg_loss2++": 5,
}

#: How a cutoff weighs a pair: not, as eqs. 16-17, or by whether its upper item is inside.
_WHOLE, _CORRECTED, _INSIDE = 0, 1, 2
_COLUMNS = 32
_LOG2E = math.log2(math.e)


def pairs(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    kind: str,
    k: int,
    sigma: float,
    gain: str,
    truncation: str,
    mu: float,
    half: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ_{y_i > y_j} weight_ij φ(s_i - s_j)`` of every list (see :mod:`rankgrad.kernels.ops`)."""
    lists, slots = offsets.shape[0] - 1, scores.numel()
    values = scores.new_empty(lists)
    slopes = torch.empty_like(scores)
    defined = torch.empty(lists, dtype=torch.bool, device=scores.device)
    if lists == 0:
        return values, slopes, defined
    rows = 32 if longest <= 512 else 64
    blocks = max(1, triton.cdiv(longest, rows))
    grid, warps = (lists, blocks), rows // 16
    code = KINDS[kind]
    table = scores.new_empty(blocks * rows + 1)
    ranked = scores.new_empty(4, slots)  # scores, labels, weights and slopes in the items' order
    origin = torch.empty_like(scores, dtype=torch.int32)
    parts = scores.new_empty(lists, blocks, 4)
    sums = scores.new_empty(lists, blocks)
    gains = EXPONENTIAL if gain == "exponential" else LINEAR
    mask_, weights_ = presence(mask, scores), presence(weights, scores)
    masked, weighted = mask is not None, weights is not None
    _stand[grid](
        scores, labels, mask_, weights_, offsets, ranked, origin, parts, table, slots, k,
        gains, code >= 2, masked, weighted, rows, _COLUMNS, num_warps=warps,
    )  # fmt: skip
    _sum_pairs[grid](
        ranked, offsets, parts, table, sums, slots, k, sigma, mu,
        code, gains, _cut(code, k, truncation), half and code == 0, masked, weighted,
        rows, _COLUMNS, num_warps=warps,
    )  # fmt: skip
    _share[grid](
        ranked, origin, mask_, offsets, parts, sums, values, slopes, defined, slots,
        code >= 2, masked, weighted, rows, _COLUMNS, num_warps=warps,
    )  # fmt: skip
    return values, slopes, defined


def _cut(code: int, k: int, truncation: str) -> int:
    if k == 0 or code == KINDS["lambdarank"]:
        return _WHOLE
    if code < KINDS["lambdarank"] or truncation == "heuristic":
        return _INSIDE
    return _CORRECTED


@triton.jit
def log1p(small):
    """``log(1 + t)`` for t in [0, 1], to 2e-7 of itself."""
    series = -0.00853920411
    series = series * small + 0.0440896162
    series = series * small - 0.107681692
    series = series * small + 0.1774524
    series = series * small - 0.244954623
    series = series * small + 0.332754797
    series = series * small - 0.499974054
    series = series * small + 0.999999806
    return series * small


@triton.jit
def _standing_key(score, label):
    """Larger for items that stand higher: by score and, of equal ones, the less relevant first."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (ordered << 32) | (0x7FFFFFFF - (label + 0.0).to(tl.int32, bitcast=True)).to(tl.int64)


@triton.jit
def _gain(label, GAIN: tl.constexpr):
    if GAIN == 0:
        return tl.exp2(label) - 1.0
    else:
        return label


@triton.jit(do_not_specialize=["slots_in_all", "k"])
def _stand(
    scores, labels, mask, weights, offsets, ranked, origin, parts, table, slots_in_all, k,
    GAIN: tl.constexpr, LAMBDA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Count where a block of items stands, by score and ideally, and lay it out by score."""
    at_list = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(offsets + at_list)
    slots = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    if LAMBDA:  # δ of eq. 13 at every distance, once for all lists
        apart = tl.maximum(row, 1).to(tl.float32)
        step = 1.4426950408889634 * log1p(1.0 / (1.0 + apart))
        delta = step / (tl.log2(1.0 + apart) * tl.log2(2.0 + apart))
        tl.store(table + row, delta, mask=(row >= 0) & (at_list == 0))
    real = load_real(mask, start + row, row < slots, MASKED)
    score = tl.load(scores + start + row, mask=real, other=0.0)
    label = tl.load(labels + start + row, mask=real, other=0.0)
    key = _standing_key(score, label)
    ahead = tl.zeros([ROWS, COLUMNS], tl.int32)
    better = tl.zeros([ROWS, COLUMNS], tl.int32)
    last = tl.where(first < slots, slots, 0)
    for left in range(0, last, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        there = load_real(mask, start + column, column < slots, MASKED)
        other = tl.load(scores + start + column, mask=there, other=0.0)
        grade = tl.load(labels + start + column, mask=there, other=-1.0)
        # Padding stands below everything.
        keys = tl.where(there, _standing_key(other, grade), -0x7FFFFFFFFFFFFFFF)
        if left + COLUMNS <= first:  # what is equal goes by place
            ahead += (keys[None, :] >= key[:, None]).to(tl.int32)
            if LAMBDA:
                better += (grade[None, :] >= label[:, None]).to(tl.int32)
        elif left >= first + ROWS:
            ahead += (keys[None, :] > key[:, None]).to(tl.int32)
            if LAMBDA:
                better += (grade[None, :] > label[:, None]).to(tl.int32)
        else:
            earlier = column[None, :] < row[:, None]
            tied = (keys[None, :] == key[:, None]) & earlier
            ahead += ((keys[None, :] > key[:, None]) | tied).to(tl.int32)
            if LAMBDA:
                tied = (grade[None, :] == label[:, None]) & earlier
                better += ((grade[None, :] > label[:, None]) | tied).to(tl.int32)
    at = start + tl.sum(ahead, 1)
    tl.store(ranked + at, score, mask=real)
    tl.store(ranked + slots_in_all + at, label, mask=real)
    if WEIGHTED:
        weight = tl.load(weights + start + row, mask=real, other=0.0)
        tl.store(ranked + 2 * slots_in_all.to(tl.int64) + at, weight, mask=real)
    tl.store(origin + at, row, mask=real)
    ideal = 0.0
    if LAMBDA:
        place = tl.sum(better, 1)
        counted = real & ((k == 0) | (place < k))
        worth = _gain(label, GAIN) / tl.log2(place.to(tl.float32) + 2.0)
        ideal = tl.sum(tl.where(counted, worth, 0.0), 0)
    to = parts + (at_list * tl.num_programs(1) + block) * 4
    tl.store(to, ideal)
    tl.store(to + 1, tl.sum(real.to(tl.float32), 0))
    tl.store(to + 2, tl.max(tl.where(real, label, -1.0), 0))
    tl.store(to + 3, tl.min(tl.where(real, label, float("inf")), 0))


@triton.jit
def _list_parts(parts, at_list, WIDTH: tl.constexpr):
    """The ideal DCG, the number of items, the highest and the lowest label of a list."""
    blocks = tl.num_programs(1)
    ideal = tl.zeros([WIDTH], tl.float32)
    items = tl.zeros([WIDTH], tl.float32)
    high = tl.full([WIDTH], -1.0, tl.float32)
    low = tl.full([WIDTH], float("inf"), tl.float32)
    for left in range(0, blocks, WIDTH):
        block = left + tl.arange(0, WIDTH)
        at = parts + (at_list * blocks + block) * 4
        ideal += tl.load(at, mask=block < blocks, other=0.0)
        items += tl.load(at + 1, mask=block < blocks, other=0.0)
        high = tl.maximum(high, tl.load(at + 2, mask=block < blocks, other=-1.0))
        low = tl.minimum(low, tl.load(at + 3, mask=block < blocks, other=float("inf")))
    return tl.sum(ideal, 0), tl.sum(items, 0).to(tl.int32), tl.max(high, 0), tl.min(low, 0)


@triton.jit
def _length(parts, at_list, slots, MASKED: tl.constexpr, WIDTH: tl.constexpr):
    """The number of real items of a list."""
    if MASKED:
        blocks = tl.num_programs(1)
        items = tl.zeros([WIDTH], tl.float32)
        for left in range(0, blocks, WIDTH):
            block = left + tl.arange(0, WIDTH)
            at = parts + (at_list * blocks + block) * 4 + 1
            items += tl.load(at, mask=block < blocks, other=0.0)
        return tl.sum(items, 0).to(tl.int32)
    else:
        return slots


@triton.jit
def _load_item(
    ranked, start, at, inside, slots_in_all, k,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """All that a pair takes of one of its items: score, label, gain, weight, worth, cutoff."""
    score = tl.load(ranked + start + at, mask=inside, other=0.0)
    # Past the end a label is NaN, which is neither above nor below any other.
    label = tl.load(ranked + slots_in_all + start + at, mask=inside, other=float("nan"))
    weight = score * 0.0 + 1.0
    if WEIGHTED:
        weight = tl.load(
            ranked + 2 * slots_in_all.to(tl.int64) + start + at, mask=inside, other=0.0
        )
    gain = label
    worth = weight
    if KIND >= 2:
        gain = _gain(label, GAIN)
    rank = at.to(tl.float32) + 1.0
    if (KIND == 2) | (KIND == 3) | (KIND == 5):
        worth = 1.0 / tl.log2(1.0 + rank)
        if KIND == 3:  # what the item is worth where it stands
            worth *= gain
        elif CUT != 2:  # of no worth past LambdaRank's cutoff, which eq. 15 has not
            worth = tl.where((k == 0) | (at < k), worth, 0.0)
    cut = weight
    if CUT == 1:
        past = 1.0 / (1.0 - 1.0 / tl.log2(1.0 + tl.maximum(rank, 2.0)))
        cut = tl.where(at < k, 1.0, past)
    elif CUT == 2:
        cut = tl.where(at < k, 1.0, 0.0)
    return score, label, gain, weight, worth, cut


@triton.jit
def _pair_tile(
    row, column, score, label, gain, weight, worth, cut,
    scores, labels, gains, weights, worths, cuts, table, sigma, mu,
    KIND: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr, WEIGHTED: tl.constexpr,
    SIDE: tl.constexpr,
):  # fmt: skip
    """Forces on the rows of a tile and, where its columns stand below, the terms of the sum.

    SIDE is 1 if all columns stand below all rows, -1 if above, 0 if mixed.
    """
    higher = label[:, None] > labels[None, :]
    lower = label[:, None] < labels[None, :]
    gap = tl.abs(score[:, None] - scores[None, :])
    if SIDE == 1:
        right = higher  # the more relevant item stands above
        upper_cut, lower_cut = cut[:, None], cuts[None, :]
    elif SIDE == -1:
        right = lower
        upper_cut, lower_cut = cuts[None, :], cut[:, None]
    else:
        below = column[None, :] > row[:, None]
        right = (higher & below) | (lower & (column[None, :] < row[:, None]))
        upper_cut = tl.where(below, cut[:, None], cuts[None, :])
        lower_cut = tl.where(below, cuts[None, :], cut[:, None])
    if KIND == 1:
        away = tl.where(right, -gap, gap)
        term = tl.maximum(sigma + away, 0.0)
        slope = tl.where(sigma + away > 0.0, 1.0, 0.0)
    else:
        small = tl.exp2(gap * (-1.4426950408889634 * sigma))
        root = tl.math.rsqrt(1.0 + small)
        over = root * root
        slope = tl.where(right, small, 1.0) * over
        term = log1p(small) + tl.where(right, 0.0, gap * sigma)
    if KIND == 3:
        factor = tl.where(higher, worth[:, None], worths[None, :])
    elif KIND >= 2:
        factor = tl.abs(gain[:, None] - gains[None, :])
        if KIND == 2:
            factor *= tl.abs(worth[:, None] - worths[None, :])
        else:
            delta = tl.load(table + tl.abs(row[:, None] - column[None, :]))
            if CUT == 1:
                delta *= lower_cut
            if KIND == 5:
                delta = mu * delta + tl.abs(worth[:, None] - worths[None, :])
            factor *= delta
    else:
        factor = tl.where(gap >= 0.0, 1.0, 1.0)
    if (CUT == 1) & (KIND == 3):
        factor *= lower_cut
    if CUT == 2:
        factor *= upper_cut
    if WEIGHTED:
        factor *= tl.where(higher, weight[:, None], weights[None, :])
    factor = tl.where(higher | lower, factor, 0.0)
    slope *= factor
    force = tl.where(higher, -slope, slope)
    if HALF:  # pairs of equal labels, half each way
        equal = (label[:, None] == labels[None, :]) & (row[:, None] != column[None, :])
        halves = tl.where(equal, 0.5, 0.0)
        if CUT == 2:
            halves *= upper_cut
        under = score[:, None] < scores[None, :]
        push = tl.where(under, 1.0, small) * over
        pull = tl.where(under, small, 1.0) * over
        force += halves * (weights[None, :] * pull - weight[:, None] * push)
        flat = log1p(small)
        mine = flat + tl.where(under, gap * sigma, 0.0)
        theirs = flat + tl.where(under, 0.0, gap * sigma)
        both = halves * (weight[:, None] * mine + weights[None, :] * theirs)
        term = term * factor + both
    else:
        term = term * factor
    if SIDE == 0:
        term = tl.where(column[None, :] > row[:, None], term, 0.0)
    return force, term


@triton.jit(do_not_specialize=["slots_in_all", "k"])
def _sum_pairs(
    ranked, offsets, parts, table, sums, slots_in_all, k, sigma, mu,
    KIND: tl.constexpr, GAIN: tl.constexpr, CUT: tl.constexpr, HALF: tl.constexpr,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """The forces on a block of items in their order, and its part of the sum over pairs."""
    at_list = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(offsets + at_list)
    slots = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    length = _length(parts, at_list, slots, MASKED, 128)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    score, label, gain, weight, worth, cut = _load_item(
        ranked, start, row, row < length, slots_in_all, k, KIND, GAIN, CUT, WEIGHTED
    )
    force = tl.zeros([ROWS, COLUMNS], tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for left in range(0, tl.where(first < length, length, 0), COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        scores, labels, gains, weights, worths, cuts = _load_item(
            ranked, start, column, column < length, slots_in_all, k, KIND, GAIN, CUT, WEIGHTED
        )
        if left + COLUMNS <= first:
            forces, _ = _pair_tile(
                row, column, score, label, gain, weight, worth, cut,
                scores, labels, gains, weights, worths, cuts, table, sigma, mu,
                KIND, CUT, HALF, WEIGHTED, -1,
            )  # fmt: skip
            force += forces
        elif left >= first + ROWS:
            forces, terms = _pair_tile(
                row, column, score, label, gain, weight, worth, cut,
                scores, labels, gains, weights, worths, cuts, table, sigma, mu,
                KIND, CUT, HALF, WEIGHTED, 1,
            )  # fmt: skip
            force += forces
            total += terms
        else:
            forces, terms = _pair_tile(
                row, column, score, label, gain, weight, worth, cut,
                scores, labels, gains, weights, worths, cuts, table, sigma, mu,
                KIND, CUT, HALF, WEIGHTED, 0,
            )  # fmt: skip
            force += forces
            total += terms
    slope = tl.sum(force, 1)
    if KIND != 1:
        slope *= sigma
    to = ranked + 3 * slots_in_all.to(tl.int64) + start + row
    tl.store(to, slope, mask=row < length)
    tl.store(sums + at_list * tl.num_programs(1) + block, tl.sum(tl.sum(total, 1), 0))


@triton.jit(do_not_specialize=["slots_in_all"])
def _share(
    ranked, origin, mask, offsets, parts, sums, values, slopes, defined, slots_in_all,
    LAMBDA: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Slopes where the items came from, those of items alike (score, label, weight) averaged."""
    at_list = tl.program_id(0)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    start = tl.load(offsets + at_list)
    slots = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    ideal, length, high, low = _list_parts(parts, at_list, 128)
    there = high > low
    scale = tl.where(there, 1.0, 0.0)
    if LAMBDA:
        scale = tl.where(there & (ideal > 0), 1.0 / tl.where(ideal > 0, ideal, 1.0), 0.0)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    inside = row < length
    labelled = ranked + slots_in_all
    weighted = ranked + 2 * slots_in_all.to(tl.int64)
    sloped = ranked + 3 * slots_in_all.to(tl.int64)
    score = tl.load(ranked + start + row, mask=inside, other=0.0)
    label = tl.load(labelled + start + row, mask=inside, other=-1.0)
    slope = tl.load(sloped + start + row, mask=inside, other=0.0)
    before, after = inside & (row > 0), row + 1 < length
    alike = before & (tl.load(labelled + start + row - 1, mask=before, other=-2.0) == label)
    alike &= tl.load(ranked + start + row - 1, mask=before, other=0.0) == score
    next_alike = after & (tl.load(labelled + start + row + 1, mask=after, other=-2.0) == label)
    next_alike &= tl.load(ranked + start + row + 1, mask=after, other=0.0) == score
    if tl.max((alike | next_alike).to(tl.int32), 0) > 0:
        top = tl.max(tl.where(inside, score, float("-inf")), 0)
        bottom = tl.min(tl.where(inside, score, float("inf")), 0)
        weight = label
        if WEIGHTED:
            weight = tl.load(weighted + start + row, mask=inside, other=0.0)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        count = tl.zeros([ROWS, COLUMNS], tl.float32)
        for left in range(0, length, COLUMNS):
            end = tl.minimum(left + COLUMNS, length) - 1
            near = tl.load(ranked + start + left) >= bottom
            near &= tl.load(ranked + start + end) <= top
            if near:
                column = left + tl.arange(0, COLUMNS)
                held = column < length
                same = score[:, None] == tl.load(ranked + start + column, mask=held)[None, :]
                labels = tl.load(labelled + start + column, mask=held, other=-2.0)
                same &= label[:, None] == labels[None, :]
                if WEIGHTED:
                    weights = tl.load(weighted + start + column, mask=held, other=-1.0)
                    same &= weight[:, None] == weights[None, :]
                others = tl.load(sloped + start + column, mask=held, other=0.0)
                total += tl.where(same, others[None, :], 0.0)
                count += tl.where(same, 1.0, 0.0)
        slope = tl.sum(total, 1) / tl.maximum(tl.sum(count, 1), 1.0)
    to = tl.load(origin + start + row, mask=inside, other=0)
    tl.store(slopes + start + to, slope * scale, mask=inside)
    if MASKED:
        padding = (row < slots) & (tl.load(mask + start + row, mask=row < slots, other=1) == 0)
        tl.store(slopes + start + row, tl.zeros([ROWS], tl.float32), mask=padding)
    if block == 0:
        terms = tl.zeros([128], tl.float32)
        for left in range(0, blocks, 128):
            at = left + tl.arange(0, 128)
            terms += tl.load(sums + at_list * blocks + at, mask=at < blocks, other=0.0)
        tl.store(values + at_list, tl.sum(terms, 0) * scale)
        tl.store(defined + at_list, there)
