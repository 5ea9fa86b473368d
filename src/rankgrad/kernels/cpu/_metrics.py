"""Exact metrics of many lists; each list is sorted at most once, and none is padded.

:func:`rankgrad.kernels.ops.exact_metrics` calls it with all metrics that are wanted of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import ExactMetric, FlatLists
from rankgrad.kernels.cpu._arithmetic import dot
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array, Arrays, FlatArrays, numbers, real_items, take
from rankgrad.kernels.cpu._list_sort import sort_descending
from rankgrad.kernels.cpu._metric_terms import (
    AP,
    ARP,
    DCG,
    ERR,
    METRICS,
    any_relevant,
    beyond_cutoff,
    discounts,
    gains_of,
    norm_of,
)

_FEW_RELEVANT = 32  # finding the ranks of so few items by counting is faster than sorting

#: Metrics as the loop takes them: the metric's code, the cutoff, and whether ties are averaged and
#: gains are linear ``[metrics, 4]``; thresholds or (for err) top grades ``[metrics]``; discounts by
#: rank ``[metrics, max_length]``.
Options = tuple[Array, Array, Array]


def exact_metrics(batch: FlatLists, metrics: Sequence[ExactMetric]) -> tuple[Tensor, Tensor]:
    """The value of each metric on each list, and whether the list has a relevant item.

    A relevant item has a positive gain and a positive weight; without one the value is 0. Both
    results are ``[metrics, lists]``.
    """
    scores, max_length = batch.scores, batch.max_length
    # Minus infinity ties with the lowest finite number, as in the eager form.
    ranked = scores.detach().clamp(min=torch.finfo(scores.dtype).min)
    flat = FlatArrays.of(batch._replace(scores=ranked))
    lists = len(flat.offsets) - 1
    values = np.zeros((len(metrics), lists))
    relevant = np.zeros((len(metrics), lists), np.bool_)
    discount = np.zeros((len(metrics), max_length))
    for row, metric in zip(discount, metrics, strict=True):
        row[:] = discounts(metric.name, metric.persistence, max_length)
    table = [(METRICS[m.name], m.k, m.average_ties, m.linear) for m in metrics]
    # Thresholds are rounded as labels are, so that a label of 0.7 reaches a threshold of 0.7.
    levels = numbers(torch.tensor([metric.threshold for metric in metrics], dtype=scores.dtype))
    options = np.array(table, np.int64).reshape(-1, 4), levels, discount
    flat.run(_lists, options, values, relevant)
    return torch.from_numpy(values).to(scores.dtype), torch.from_numpy(relevant)


@compiled
def _lists(
    first: int, last: int, arrays: Arrays, options: Options, values: Array, relevant: Array
) -> None:
    """Write the columns of lists ``first:last`` in ``values`` and ``relevant``.

    Both are ``[metrics, lists]``, see :func:`exact_metrics`.
    """
    scores, labels, mask, weights, offsets, _, _, _ = arrays
    table, levels, discount = options
    max_length = 0
    for b in range(first, last):
        max_length = max(max_length, offsets[b + 1] - offsets[b])
    ranks, ones = np.arange(max_length + 1), np.ones(max_length)
    ranked_labels = np.empty(max_length)
    for b in range(first, last):
        n = offsets[b + 1] - offsets[b]
        tied = untied = ranks[: n + 1]  # edges of tie groups, see _edges; here of one item each
        y, w = ranked_labels[:n], ones[:n]  # labels and weights by rank
        in_list = slice(offsets[b], offsets[b + 1])
        if mask.size or weights.size or not _place_relevant(scores[in_list], labels[in_list], y):
            items = real_items(mask, offsets[b], offsets[b + 1])
            n = items.size
            sort_descending(scores, items)
            y, w = take(labels, items), take(weights, items)
            tied, untied = _edges(scores, items), ranks[: n + 1]
        if n == 0:
            continue
        gains, has_relevant = y, False
        for m in range(len(table)):
            metric, k = table[m, 0], table[m, 1]
            edges = tied if table[m, 2] else untied
            if not (m and _same_gains(table[m - 1], table[m], levels[m - 1], levels[m])):
                gains = gains_of(y, metric, table[m, 3] != 0, levels[m])
                has_relevant = any_relevant(gains, w)
            relevant[m, b] = has_relevant
            if not has_relevant:
                continue
            end = n if k == 0 else min(k, n)
            if metric <= ARP:  # the codes up to ARP are of sums of gain × discount
                weighted = gains * w if weights.size else gains
                values[m, b] = _linear(weighted, edges, metric, k, discount[m])
            elif metric == AP:
                values[m, b] = _ap(gains, w, edges, discount[m, :end])
            elif metric == ERR:
                values[m, b] = _cascade(gains, w, edges, discount[m, :end])
            else:  # RR or HITS
                values[m, b] = _first_hit(gains, w, edges, discount[m, :end])


@compiled
def _place_relevant(scores: Array, labels: Array, ranked: Array) -> bool:
    """Write the labels of a list by rank without sorting; labels of 0 have no gain in any order.

    Args:
        scores: ``[n]``.
        labels: ``[n]``.
        ranked: ``[n]``, the output.

    Returns:
        False if many labels are above 0, or a score of such an item is tied; then sort instead.
    """
    ranked[:] = 0.0
    count = 0
    for i in range(labels.size):
        if labels[i] > 0:
            count += 1
            place = int(_count_above(scores, scores[i]))
            if count > _FEW_RELEVANT or place < 0:
                return False
            ranked[place] = labels[i]
    return True


@compiled_reduction
def _count_above(scores: Array, score: float) -> float:
    """How many scores are above this one; -1 if another score equals it."""
    above, not_below = 0.0, 0.0
    for i in range(scores.size):
        above += 1.0 if scores[i] > score else 0.0
        not_below += 1.0 if scores[i] >= score else 0.0
    return above if not_below - above < 1.5 else -1.0


@compiled
def _same_gains(last: Array, now: Array, last_level: float, level: float) -> bool:
    """Whether a metric has the same gains as the previous one, which can then be reused.

    Args:
        last: the previous metric's row of the options' table, ``[4]``.
        now: this metric's row, ``[4]``.
        last_level: the previous metric's threshold or top grade.
        level: this metric's threshold or top grade.
    """
    if last[0] <= DCG or now[0] <= DCG:  # NDCG or DCG
        return bool(last[0] <= DCG and now[0] <= DCG and last[3] == now[3])
    special = last[0] == ERR or now[0] == ERR or last[0] == ARP or now[0] == ARP
    return bool(not special and last_level == level)


@compiled
def _edges(scores: Array, items: Array) -> Array:
    """The first position of each group of tied scores, and at last the list's length."""
    n = items.size
    edges = np.empty(n + 1, np.int64)
    count, last = 0, np.inf
    for i in range(n):
        score = scores[items[i]]
        edges[count] = i
        count += (i == 0) | (score != last)
        last = score
    edges[count] = n
    return edges[: count + 1]


@compiled
def _linear(gains: Array, edges: Array, metric: int, k: int, discount: Array) -> float:
    """The sum over tie groups of gain times mean discount, divided by the norm."""
    n = gains.size
    norm = norm_of(gains, metric, k, discount)
    beyond = beyond_cutoff(metric, k, n)
    end = n if k == 0 else min(k, n)
    total = 0.0
    for g in range(edges.size - 1):
        start, stop = edges[g], edges[g + 1]
        if start >= end and beyond == 0:
            break
        gain_sum, discount_sum = 0.0, 0.0
        for i in range(start, stop):
            gain_sum += gains[i]
            discount_sum += discount[i] if i < end else beyond
        total += gain_sum * (discount_sum / (stop - start))
    return total / norm if norm > 0 else 0.0


@compiled
def _ap(relevance: Array, w: Array, edges: Array, discount: Array) -> float:
    """Average precision, with ties as in McSherry and Najork 2008; see :class:`metrics.AP`.

    ``before`` counts the relevant items above a rank or tie group, ``inside`` those in the group.
    """
    total, norm, before = 0.0, 0.0, 0.0
    if edges.size == relevance.size + 1:  # no ties
        norm = dot(relevance, w)
        for i in range(discount.size):
            before += relevance[i]
            total += relevance[i] * w[i] * before * discount[i]
        return total / norm if norm > 0 else 0.0
    end = discount.size
    for g in range(edges.size - 1):
        start, stop = edges[g], edges[g + 1]
        size = stop - start
        inside, weighted = 0.0, 0.0
        for i in range(start, stop):
            inside += relevance[i]
            weighted += relevance[i] * w[i]
        norm += weighted
        if weighted > 0:
            # If the item at rank i is relevant, before + 1 + (i - start) * step is the expected
            # number of relevant items up to rank i.
            step = (inside - 1.0) / max(size - 1, 1)
            for i in range(start, min(stop, end)):
                total += (weighted / size) * (before + 1.0 + (i - start) * step) * discount[i]
        before += inside
    return total / norm if norm > 0 else 0.0


@compiled
def _first_hit(relevance: Array, w: Array, edges: Array, discount: Array) -> float:
    """The expected discount of the first relevant rank, times the weight of the item there.

    ``passed`` is the probability that all items so far are irrelevant. In a tie group of m items, R
    of them relevant, let the first j be irrelevant. Then the next one is irrelevant too with
    probability ``(m - R - j) / (m - j)``.
    """
    total, passed = 0.0, 1.0
    for g in range(edges.size - 1):
        start, stop = edges[g], edges[g + 1]
        if start >= discount.size or passed <= 0:
            break
        inside, weighted = 0.0, 0.0
        for i in range(start, stop):
            inside += relevance[i]
            weighted += relevance[i] * w[i]
        if inside == 0:
            continue
        for i in range(start, stop):
            miss = max((stop - i - inside) / (stop - i), 0.0)
            if i < discount.size:
                total += passed * (1.0 - miss) * (weighted / inside) * discount[i]
            passed *= miss
    return total


@compiled
def _cascade(stops: Array, w: Array, edges: Array, discount: Array) -> float:
    """``Σ_r discount_r stop_r Π_{l<r} (1 - stop_l)``, averaged over the orders of ties.

    ``stops [n]`` are the probabilities that a user stops at an item, by rank; ``passed`` is the
    probability of not stopping before the tie group. Within a tie group, products_j is the mean of
    ``Π (1 - stop)`` over subsets of j items. hits_j is the mean of ``w stop`` of the j-th item
    times that product over the items before it. Both are updated as items are added to the group
    one by one (see :mod:`rankgrad.metrics._cascade`).
    """
    total, passed = 0.0, 1.0
    for g in range(edges.size - 1):
        start, end = edges[g], edges[g + 1]
        if start >= discount.size:
            break
        size = end - start
        products, hits = np.zeros(size + 1), np.zeros(size + 1)
        products[0] = 1.0
        for m in range(1, size + 1):
            miss = 1.0 - stops[start + m - 1]
            hit = stops[start + m - 1] * w[start + m - 1]
            for j in range(m, 0, -1):
                before = (m - j) * hits[j] + (j - 1) * miss * hits[j - 1]
                hits[j] = (before + hit * products[j - 1]) / m
                products[j] = ((m - j) * products[j] + j * miss * products[j - 1]) / m
        for j in range(1, size + 1):
            if start + j - 1 < discount.size:
                total += hits[j] * passed * discount[start + j - 1]
        passed *= products[size]
    return total
