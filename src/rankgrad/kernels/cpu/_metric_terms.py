"""Terms of metrics that kernels of losses and metrics share: gains, discounts and norms."""

from __future__ import annotations

import functools

import numpy as np

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._arithmetic import total
from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction
from rankgrad.kernels.cpu._flat_arrays import Array
from rankgrad.kernels.cpu._list_sort import indices, sort_descending

#: A metric as one argument: its code, the cutoff (0 for none), whether gains are linear, the
#: threshold, the persistence and the discounts.
Metric = tuple[int, int, bool, float, float, Array]

_MAX_DISTINCT = 12  # up to so many distinct gains are counted instead of sorted

#: The codes of metrics. The first six, up to ARP, are sums of gain times discount over a norm.
METRICS = {
    name: code
    for code, name in enumerate(
        ("ndcg", "dcg", "precision", "recall", "rbp", "arp", "ap", "rr", "hits", "err", "spearman")
    )
}
NDCG, DCG, PRECISION, RECALL, RBP, ARP, AP, RR, HITS, ERR, SPEARMAN = METRICS.values()


@functools.lru_cache(maxsize=16)
def metric_of(options: MetricOptions, max_length: int, single: bool) -> Metric:
    """A metric as loops over lists take it; ``single`` is whether labels are float32."""
    name, k, gain, threshold, persistence = options
    discount = discounts(name, persistence, max_length)
    return (
        METRICS[name],
        k,
        gain == "linear",
        round_threshold(threshold, single),
        persistence,
        discount,
    )


def round_threshold(threshold: float, single: bool) -> float:
    """A threshold in the precision of labels: a float32 label of 0.7 reaches a threshold of 0.7."""
    return float(np.float32(threshold)) if single else threshold


@functools.lru_cache(maxsize=16)
def discounts(metric: str, persistence: float, max_length: int) -> Array:
    """The discounts ``[max_length]`` of the ranks 1, 2, ...

    The array is cached and must not be modified.
    """
    ranks = np.arange(1, max_length + 1, dtype=np.float64)
    if metric in ("ndcg", "dcg"):
        return np.asarray(1 / np.log2(1 + ranks))
    if metric == "rbp":
        return np.asarray((1 - persistence) * persistence ** (ranks - 1))
    if metric in ("ap", "rr", "err"):
        return np.asarray(1 / ranks)
    return ranks if metric == "arp" else np.ones_like(ranks)


@compiled
def gains_of(labels: Array, metric: int, linear: bool, threshold: float) -> Array:
    """The gains of labels, both ``[items]``.

    For err the gain of a label y is ``(2^y - 1) / 2^g``, the probability that the item satisfies
    the user; g is the largest label or the threshold, whichever is larger.
    """
    gains = np.empty(labels.size)
    top = threshold
    if metric == ERR:
        for i in range(labels.size):
            top = max(top, labels[i])
    for i in range(labels.size):
        if metric == ARP or (linear and metric <= DCG):  # <= DCG: NDCG or DCG
            gains[i] = labels[i]
        elif metric <= DCG:
            gains[i] = np.exp2(labels[i]) - 1.0
        elif metric == ERR:
            gains[i] = np.exp2(labels[i] - top) - np.exp2(-top)
        else:
            gains[i] = 1.0 if labels[i] >= threshold else 0.0
    return gains


@compiled_reduction
def any_relevant(gains: Array, weights: Array) -> bool:
    """Whether an item has a positive gain and a positive weight."""
    count = 0.0
    for i in range(gains.size):
        count += 1.0 if (gains[i] > 0) & (weights[i] > 0) else 0.0
    return count > 0


@compiled
def ideal_dcg(gains: Array, discount: Array, k: int) -> float:
    """The ideal DCG@k: the largest that an order of these gains reaches."""
    end = gains.size if k == 0 else min(k, gains.size)
    distinct, counts = np.empty(_MAX_DISTINCT), np.empty(_MAX_DISTINCT, np.int64)
    n_distinct = _count_distinct(gains, distinct, counts)
    best = 0.0
    if n_distinct <= _MAX_DISTINCT:  # few distinct gains, as of integer labels, need no sort
        r = 0
        for d in range(n_distinct):
            stop = min(r + counts[d], end)
            best += distinct[d] * total(discount[r:stop])
            r = stop
        return best
    order = indices(gains.size)
    sort_descending(gains, order)
    for r in range(end):
        best += gains[order[r]] * discount[r]
    return best


@compiled
def _count_distinct(gains: Array, distinct: Array, counts: Array) -> int:
    """Write the distinct gains, descending, and the count of each; return their number.

    If there are more distinct gains than ``distinct`` can hold, the result exceeds its size.
    """
    n_distinct = 0
    for i in range(gains.size):
        gain, at = gains[i], 0
        while at < n_distinct and distinct[at] > gain:
            at += 1
        if at < n_distinct and distinct[at] == gain:
            counts[at] += 1
            continue
        if n_distinct == distinct.size:
            return n_distinct + 1
        for later in range(n_distinct, at, -1):
            distinct[later], counts[later] = distinct[later - 1], counts[later - 1]
        distinct[at], counts[at] = gain, 1
        n_distinct += 1
    return n_distinct


@compiled
def norm_of(gains: Array, metric: int, k: int, discount: Array) -> float:
    """What a metric divides the sum of weighted gains times discounts by; 0 if it is undefined."""
    if metric == NDCG:
        return ideal_dcg(gains, discount, k)
    if metric == PRECISION:
        return float(gains.size if k == 0 else k)
    if metric in (RECALL, ARP, AP):
        return total(gains)
    return 1.0


@compiled
def beyond_cutoff(metric: int, k: int, n: int) -> float:
    """The discount of every rank past the cutoff."""
    return k + 1.0 if metric == ARP and 0 < k < n else 0.0
