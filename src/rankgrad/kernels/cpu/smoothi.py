"""SmoothI's indicators, one softmax after another, and metrics through them."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rankgrad.kernels.cpu.arithmetic import exp, exp_near_zero
from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.prepare import (
    ARP,
    METRICS,
    Array,
    Slots,
    any_relevant,
    beyond_cutoff,
    discounts,
    finish,
    gains_of,
    norm_of,
    real_slots,
    take,
)

NEAR_ZERO = 1.0 / 128  # up to which a shorter polynomial will do
SAFE = 300.0  # up to which an exponential needs no shift


def through_smoothi(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    alpha: float,
    delta: float,
    expect: str,
    metric: str,
    k: int,
    gain: str,
    threshold: float,
    persistence: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 - metric through SmoothI's indicators: see :mod:`rankgrad.kernels.ops`."""
    slots = Slots.of(scores, labels, mask, weights, offsets)
    slots.each(
        _lists,
        alpha,
        delta,
        expect == "label",
        METRICS[metric],
        k,
        gain == "linear",
        threshold,
        discounts(metric, persistence, longest),
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
    alpha: float,
    delta: float,
    by_label: bool,
    metric: int,
    k: int,
    linear: bool,
    threshold: float,
    discount: Array,
) -> None:
    for b in range(first, last):
        slots = real_slots(mask, offsets[b], offsets[b + 1])
        n = slots.size
        y, w = take(labels, slots), take(weights, slots)
        gains = gains_of(y, metric, linear, threshold)
        defined[b] = n > 1 and any_relevant(gains, w)
        if not defined[b]:
            continue
        gains *= w
        norm = norm_of(gains, metric, k, discount)
        if norm <= 0:
            norm = np.inf
        scaled = take(scores, slots)
        lowest = scaled.min()
        ties = 0
        for i in range(n):
            ties += scaled[i] == lowest
            scaled[i] = alpha * (scaled[i] - lowest)
        beyond = beyond_cutoff(metric, k, n)
        worth = (discount - beyond) / norm
        rows = n if k == 0 else min(k, n)
        out = np.zeros(n)
        total = _indicators(
            scaled,
            y if by_label else gains,
            w,
            worth,
            rows,
            delta,
            by_label,
            linear,
            by_label and weights.size > 0,
            out,
        )
        values[b] = finish(total + beyond * gains.sum() / norm, metric)
        sign = alpha if metric == ARP else -alpha
        lifted = out.sum() / ties  # the lowest score is subtracted from all
        for i in range(n):
            slopes[slots[i]] = sign * (out[i] - (lifted if scores[slots[i]] == lowest else 0.0))


@compiled
def _indicators(
    scaled: Array,
    values: Array,
    weights: Array,
    worth: Array,
    rows: int,
    delta: float,
    by_label: bool,
    linear: bool,
    weighted: bool,
    out: Array,
) -> float:
    """The sum over ranks of worth times the expected value, or the gain of the expected value.

    The products are constants on the way back, so the derivative by the scaled scores is known as
    soon as a row is, and nothing is kept.
    """
    n = scaled.size
    product, row = np.ones(n), np.empty(n)
    bound, total = scaled.max(), 0.0
    for r in range(rows):
        inverse = 1.0 / _exponentials(scaled, product, bound, row)
        mean = _dot(row, values) * inverse
        own, own_weight, mean_weight = worth[r], 0.0, 1.0
        if by_label:
            gain = mean if linear else 2.0**mean - 1.0
            if weighted:
                mean_weight = _dot(row, weights) * inverse
                own_weight = own * gain
            total += own * gain * mean_weight
            own *= mean_weight * (1.0 if linear else math.log(2.0) * (gain + 1.0))
        else:
            total += own * mean
        if weighted:
            for j in range(n):
                pull = own * (values[j] - mean) + own_weight * (weights[j] - mean_weight)
                out[j] += row[j] * inverse * pull * product[j]
        else:
            for j in range(n):
                out[j] += row[j] * (inverse * own) * (values[j] - mean) * product[j]
        for j in range(n):
            product[j] *= (1.0 - delta) - row[j] * inverse
        bound *= 1.0 - delta
    return total


@compiled
def _dot(first: Array, second: Array) -> float:
    total = 0.0
    for j in range(first.size):
        total += first[j] * second[j]
    return total


@compiled
def _exponentials(scaled: Array, product: Array, bound: float, row: Array) -> float:
    """Exponentials of ``scaled · product``, of size at most the bound, and their sum."""
    n = scaled.size
    total = 0.0
    if bound <= NEAR_ZERO:
        for j in range(n):
            row[j] = exp_near_zero(scaled[j] * product[j])
            total += row[j]
        return total
    shift = 0.0
    if bound > SAFE:
        shift = (scaled * product).max()
    for j in range(n):
        row[j] = exp(scaled[j] * product[j] - shift)
        total += row[j]
    return total
