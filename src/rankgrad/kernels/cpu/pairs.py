"""Sums over pairs of sorted items: ranknet, hinge, lambdarank and the NDCG-Loss schemes."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists
from rankgrad.kernels.cpu.arithmetic import log_one_plus
from rankgrad.kernels.cpu.compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu.prepare import (
    APART,
    NDCG,
    Array,
    Slots,
    gains_of,
    ideal,
    new_block,
    real_slots,
    sort_descending,
    take,
)
from rankgrad.kernels.cpu.ranks import REACH, exponentials, reach_of

KINDS = {
    "ranknet": 0,
    "hinge": 1,
    "lambdarank": 2,
    "ndcg_loss1": 3,
    "ndcg_loss2": 4,
    "ndcg_loss2++": 5,
}
RANKNET, HINGE, LAMBDARANK, LOSS1, LOSS2, LOSS2PP = range(6)


def pairs(
    batch: FlatLists,
    kind: str,
    k: int,
    sigma: float,
    gain: str,
    truncation: str,
    mu: float,
    half: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ λ_ij φ(s_i - s_j)`` over the pairs ``y_i > y_j``: see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    slots = Slots.of(scores, labels, mask, weights, offsets)
    ranks = np.arange(1.0, longest + 3)
    discount = 1 / np.log2(1 + ranks)
    corrected = truncation == "corrected"
    # Of the later item: eq. 17's factor past the cutoff; with no cutoff, or another rule, 1.
    later = np.ones(longest)
    if k and corrected and kind.startswith("ndcg_loss"):
        later[k:] = 1 / (1 - discount[k:longest])
    # Ranks past the cutoff are worth nothing in LambdaRank's weights; eq. 15 masks pairs instead.
    worth = discount[:longest].copy()
    if k and (kind == "lambdarank" or corrected):
        worth[k:] = 0.0
    # Pairs with both items past the cutoff count in eq. 17 only.
    everywhere = k == 0 or (corrected and kind.startswith("ndcg_loss"))
    slots.each(
        _lists,
        KINDS[kind],
        0 if everywhere else k,
        k,
        sigma,
        gain == "linear",
        {"ndcg_loss2": 1.0, "ndcg_loss2++": mu}.get(kind, 0.0),
        0.0 if kind == "ndcg_loss2" else 1.0,
        0.5 if half else 0.0,
        discount,
        discount[:-1] - discount[1:],
        later,
        worth,
        power=2,
    )
    return slots.results(scores)


@compiled
def _lists(
    first: int,
    last: int,
    scores: Array,
    labels: Array,
    mask: Array,
    weights: Array,
    offsets: Array,
    values: Array,
    slopes: Array,
    defined: Array,
    kind: int,
    rows: int,
    k: int,
    sigma: float,
    linear: bool,
    by_distance: float,
    by_worth: float,
    half: float,
    discount: Array,
    delta: Array,
    later: Array,
    worth: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        n = slots.size
        # By descending score, of equal ones the less relevant first.
        order = np.arange(n)
        sort_descending(-take(labels, slots), order)
        slots = slots[order]
        sort_descending(scores, slots)
        y = take(labels, slots)
        defined[b] = _differ(y)
        if not defined[b]:
            continue
        block = new_block(7, n)
        z, w, out = block[0, :n], block[2, :n], block[3, :n]
        z[:], block[1, :n], w[:] = take(scores, slots), y, take(weights, slots)
        end = n if rows == 0 else min(rows, n)
        if kind == HINGE:
            values[b] = _hinge(block, sigma, end)
        else:
            z *= sigma
            if kind == RANKNET:
                values[b] = _one_weighted(block, half, later, end)
            else:
                gains = gains_of(y, NDCG, linear, 1.0)
                norm = ideal(gains, discount, k)
                gains /= norm if norm > 0 else 1.0
                if kind == LOSS1:
                    for i in range(n):
                        w[i] *= gains[i] * discount[i]
                    values[b] = _one_weighted(block, 0.0, later, end)
                else:
                    by_rank = delta, by_distance * later, worth
                    values[b] = _lambdas(block, gains, by_rank, by_worth, end)
            out *= sigma
        _share_alike(scores, labels, weights, slots, out)
        for i in range(n):
            slopes[slots[i]] = out[i]


@compiled
def _differ(y: Array) -> bool:
    """Whether two labels are unequal."""
    found = False
    for i in range(1, y.size):
        found = found or y[i] != y[0]
    return found


# Inner loops take slices, whose indices the compiler knows to be in range: they become vectors.
# Each gives its item's sum of values and its slope, and adds to the slopes of the others. What they
# write lies in one block with what they read, as compiled_reduction asks: its rows are scores,
# labels, weights and slopes of the items, and room for exponentials and the weights of pairs.


@compiled
def _hinge(block: Array, margin: float, end: int) -> float:
    n = block.shape[1] - APART
    z, y, w, out = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
    total = 0.0
    for i in range(end):
        j = i + 1
        value, pushed = _hinge_row(z[i], y[i], w[i], margin, z[j:], y[j:], w[j:], out[j:])
        total += value
        out[i] -= pushed
    return total


@compiled_reduction
def _hinge_row(
    own: float,
    label: float,
    weight: float,
    margin: float,
    z: Array,
    y: Array,
    w: Array,
    out: Array,
) -> tuple[float, float]:
    total, pushed = 0.0, 0.0
    for j in range(z.size):
        gap = own - z[j]
        right = weight if label > y[j] else 0.0
        wrong = w[j] if label < y[j] else 0.0
        right = right if gap < margin else 0.0
        total += right * (margin - gap) + wrong * (margin + gap)
        pull = right - wrong
        pushed += pull
        out[j] += pull
    return total, pushed


@compiled
def _one_weighted(block: Array, half: float, later: Array, end: int) -> float:
    """Pairs that weigh as their preferred item does, times a factor of the later one's rank."""
    n = block.shape[1] - APART
    z, y, w, out = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
    e, right, wrong = block[4, :n], block[5, :n], block[6, :n]
    total, start = 0.0, 0
    while start < end:
        near, far = reach_of(z, start)
        centre = z[start] - REACH
        exponentials(z, start, far, centre, e)
        for i in range(start, min(near, end)):
            j = i + 1
            _weigh_ones(y[i], w[i], half, y[j:], w[j:], later[j:n], right[j:], wrong[j:])
            total += _pair_row(i, far, math.exp(centre - z[i]), z, e, right, wrong, out)
        start = near
    return total


@compiled
def _weigh_ones(
    label: float,
    weight: float,
    half: float,
    y: Array,
    w: Array,
    later: Array,
    right: Array,
    wrong: Array,
) -> None:
    for j in range(y.size):
        equal = half if label == y[j] else 0.0
        right[j] = (1.0 if label > y[j] else equal) * weight * later[j]
        wrong[j] = (1.0 if label < y[j] else equal) * w[j] * later[j]


@compiled
def _lambdas(
    block: Array, gains: Array, by_rank: tuple[Array, Array, Array], by_worth: float, end: int
) -> float:
    """Pairs that weigh by their gap in gains times what a swap of their ranks would do."""
    n = block.shape[1] - APART
    z, y, w, out = block[0, :n], block[1, :n], block[2, :n], block[3, :n]
    e, right, wrong = block[4, :n], block[5, :n], block[6, :n]
    delta, scaled, worth = by_rank
    total, start = 0.0, 0
    while start < end:
        near, far = reach_of(z, start)
        centre = z[start] - REACH
        exponentials(z, start, far, centre, e)
        for i in range(start, min(near, end)):
            own, some = (y[i], w[i], gains[i], worth[i]), slice(i + 1, n)
            others = y[some], w[some], gains[some], worth[some], delta, scaled[some]
            _weigh_lambdas(own, others, by_worth, right[some], wrong[some])
            total += _pair_row(i, far, math.exp(centre - z[i]), z, e, right, wrong, out)
        start = near
    return total


@compiled
def _weigh_lambdas(
    own: tuple[float, float, float, float],
    others: tuple[Array, Array, Array, Array, Array, Array],
    by_worth: float,
    right: Array,
    wrong: Array,
) -> None:
    label, weight, gain, top = own
    y, w, gains, worth, delta, later = others
    for j in range(right.size):
        swap = (delta[j] * later[j] + by_worth * (top - worth[j])) * abs(gain - gains[j])
        right[j] = swap * weight if label > y[j] else 0.0
        wrong[j] = swap * w[j] if label < y[j] else 0.0


@compiled
def _pair_row(
    i: int,
    far: int,
    inverse: float,
    z: Array,
    e: Array,
    right: Array,
    wrong: Array,
    out: Array,
) -> float:
    """The logistic pairs of item i and those below it, up to far by their exponentials."""
    some, rest = slice(i + 1, far), slice(max(far, i + 1), z.size)
    total, pushed = _near_row(z[i], inverse, z[some], e[some], right[some], wrong[some], out[some])
    beyond, moved = _far_row(z[i], z[rest], wrong[rest], out[rest])
    out[i] -= pushed + moved
    return total + beyond


@compiled_reduction
def _near_row(
    own: float, inverse: float, z: Array, e: Array, right: Array, wrong: Array, out: Array
) -> tuple[float, float]:
    """With ``x = exp(z_j - z_i)``, ``log(1 + x)`` if i is preferred; plus ``z_i - z_j`` if j is."""
    total, pushed = 0.0, 0.0
    for j in range(z.size):
        x = e[j] * inverse
        both = 1.0 / ((1.0 + x) * (2.0 + x))
        weight = right[j] + wrong[j]
        total += weight * log_one_plus(x, both * (1.0 + x)) + wrong[j] * (own - z[j])
        pull = (right[j] * x - wrong[j]) * (both * (2.0 + x))
        pushed += pull
        out[j] += pull
    return total, pushed


@compiled_reduction
def _far_row(own: float, z: Array, wrong: Array, out: Array) -> tuple[float, float]:
    """The same where x is 0."""
    total, pushed = 0.0, 0.0
    for j in range(z.size):
        total += wrong[j] * (own - z[j])
        pushed -= wrong[j]
        out[j] -= wrong[j]
    return total, pushed


@compiled
def _share_alike(scores: Array, labels: Array, weights: Array, slots: Array, out: Array) -> None:
    """Give items that nothing tells apart, equal in score, label and weight, their mean."""
    start = 0
    for i in range(1, slots.size + 1):
        if i < slots.size:
            one, other = slots[i], slots[start]
            if scores[one] == scores[other] and labels[one] == labels[other]:
                continue
        if i - start > 1:
            _share_run(weights, slots[start:i], out[start:i])
        start = i


@compiled
def _share_run(weights: Array, slots: Array, out: Array) -> None:
    """The same within items of equal score and label."""
    order = np.arange(slots.size)
    own = take(weights, slots)
    if weights.size:
        sort_descending(own, order)
    start = 0
    for i in range(1, order.size + 1):
        if i < order.size and own[order[i]] == own[order[start]]:
            continue
        mean = 0.0
        for j in range(start, i):
            mean += out[order[j]]
        mean /= i - start
        for j in range(start, i):
            out[order[j]] = mean
        start = i
