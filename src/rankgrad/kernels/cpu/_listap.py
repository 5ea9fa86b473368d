"""AP over histograms of the scores' sigmoids.

An item is shared between the two bins around its sigmoid, in proportion to its nearness to their
centers. A histogram has these memberships summed over items; AP is computed over bins in place of
ranks.
"""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, real_items
from rankgrad.kernels.cpu._metric_terms import round_threshold

#: Rows of a histogram: all items, relevant ones, and relevant ones by weight. Rows GRADS + ALL,
#: GRADS + RELEVANT and GRADS + WEIGHTED are the derivatives of AP with respect to these.
ALL, RELEVANT, WEIGHTED, GRADS = range(4)


def listap(lists: FlatArrays, bins: int, threshold: float) -> None:
    """1 - AP over histograms: see :mod:`rankgrad.kernels.ops`."""
    lists.run(_lists, bins, round_threshold(threshold, lists.single), steps=32)


@compiled
def _lists(first: int, last: int, arrays: Arrays, bins: int, threshold: float) -> None:
    """Write the value and gradient of each list."""
    scores, labels, mask, weights, offsets, values, grad_scores, defined = arrays
    histogram = np.empty((2 * GRADS, bins + 1))  # one more bin, for place + 1 of the last
    for b in range(first, last):
        items = real_items(mask, offsets[b], offsets[b + 1])
        histogram[:] = 0.0
        n_relevant = 0
        for i in items:
            relevant = labels[i] >= threshold
            n_relevant += relevant
            place, membership, _ = _place(scores[i], bins)
            weight = weights[i] if weights.size else 1.0
            for at, fraction in ((place, membership), (place + 1, 1.0 - membership)):
                histogram[ALL, at] += fraction
                histogram[RELEVANT, at] += fraction * relevant
                histogram[WEIGHTED, at] += fraction * relevant * weight
        defined[b] = items.size > 1 and n_relevant > 0
        if not defined[b]:
            continue
        values[b] = 1.0 - _average_precision(histogram[:, :bins])
        for i in items:
            place, membership, derivative = _place(scores[i], bins)
            weight = weights[i] if weights.size else 1.0
            low, high = place, place + 1
            if membership == 1.0:  # on a bin's center, whose own membership has no derivative
                low = max(place - 1, 0)
            grad = histogram[GRADS + ALL, high] - histogram[GRADS + ALL, low]
            if labels[i] >= threshold:
                grad += histogram[GRADS + RELEVANT, high] - histogram[GRADS + RELEVANT, low]
                by_weight = histogram[GRADS + WEIGHTED, high] - histogram[GRADS + WEIGHTED, low]
                grad += weight * by_weight
            grad_scores[i] = grad * derivative


@compiled
def _place(score: float, bins: int) -> tuple[int, float, float]:
    """The bin at or above a score's sigmoid, the item's membership in it, and the derivative.

    Bins are numbered from the top. The rest of the membership is the next bin's. The derivative is
    that of the membership in the bin with respect to the score.
    """
    small = math.exp(-abs(score))
    large = 1.0 / (1.0 + small)
    from_top = (bins - 1) * (small * large if score >= 0 else large)
    place = int(from_top)
    return place, 1.0 - (from_top - place), (bins - 1) * small * large * large


@compiled
def _average_precision(histogram: Array) -> float:
    """AP of a histogram ``[6, bins]``; the derivatives are written to its rows from GRADS on.

    Until the second loop writes these rows, ``GRADS + ALL`` holds one over the number of items up
    to a bin, and ``GRADS + WEIGHTED`` the precision there.
    """
    bins, weight, average = histogram.shape[1], 0.0, 0.0
    items, relevant = 0.0, 0.0
    for m in range(bins):
        items += histogram[ALL, m]
        relevant += histogram[RELEVANT, m]
        weight += histogram[WEIGHTED, m]
        inverse = 1.0 / items if items > 0 else 0.0
        histogram[GRADS + ALL, m], histogram[GRADS + WEIGHTED, m] = inverse, relevant * inverse
        average += histogram[WEIGHTED, m] * relevant * inverse
    if weight == 0.0:
        histogram[GRADS:] = 0.0
        return 0.0
    average /= weight
    by_all, by_relevant = 0.0, 0.0
    for m in range(bins - 1, -1, -1):
        precision = histogram[GRADS + WEIGHTED, m]
        by_precision = histogram[WEIGHTED, m] * histogram[GRADS + ALL, m] / weight
        by_relevant += by_precision
        by_all -= by_precision * precision
        histogram[GRADS + ALL, m], histogram[GRADS + RELEVANT, m] = by_all, by_relevant
        histogram[GRADS + WEIGHTED, m] = (precision - average) / weight
    return average
