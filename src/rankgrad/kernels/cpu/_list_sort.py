"""Stable sorts of the items of one list, by descending score or label."""

from __future__ import annotations

import math

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array

_RUN = 64  # length of the runs that are sorted by counting before they are merged
_COUNTED_LABELS = 32  # integer labels below it are sorted by counting


@compiled
def indices(n: int) -> Array:
    """``0, ..., n - 1``."""
    result = np.empty(n, np.int64)
    for i in range(n):
        result[i] = i
    return result


@compiled
def sort_descending(keys: Array, items: Array) -> None:
    """Sort ``items`` in place by descending ``keys[item]``, stable.

    Short runs are sorted by counting, then merged two by two. ``items`` is also the spare buffer of
    the merges.
    """
    n, run = items.size, _RUN
    sorted_keys, sorted_items = np.empty(n), np.empty(n, np.int64)
    spare_keys, spare_items = np.empty(n), items
    for i in range(n):
        spare_keys[i] = keys[items[i]]
    for start in range(0, n, run):
        run_keys = spare_keys[start : min(start + run, n)]
        for i in range(run_keys.size):
            place = start + _count_ahead(run_keys, i)
            sorted_keys[place], sorted_items[place] = run_keys[i], items[start + i]
    while run < n:
        for start in range(0, n, 2 * run):
            end = min(start + 2 * run, n)
            two_runs = slice(start, end)
            _merge(
                sorted_keys[two_runs],
                sorted_items[two_runs],
                min(run, end - start),
                spare_keys[two_runs],
                spare_items[two_runs],
            )
        sorted_keys, spare_keys = spare_keys, sorted_keys
        sorted_items, spare_items = spare_items, sorted_items
        run *= 2
    for i in range(n):
        items[i] = sorted_items[i]


@compiled
def _count_ahead(keys: Array, at: int) -> int:
    """How many keys are sorted before ``keys[at]``.

    No branch depends on the keys, so the processor mispredicts none.
    """
    count, key = 0, keys[at]
    for j in range(keys.size):
        count += (keys[j] > key) | ((keys[j] == key) & (j < at))
    return count


@compiled
def _merge(keys: Array, items: Array, middle: int, merged_keys: Array, merged_items: Array) -> None:
    """Merge the sorted keys before ``middle`` with those from it on, and their items with them."""
    a, b = 0, middle
    for i in range(keys.size):
        take_a = b == keys.size or (a < middle and keys[a] >= keys[b])
        at = a if take_a else b
        merged_keys[i], merged_items[i] = keys[at], items[at]
        a += take_a
        b += not take_a


@compiled
def sort_by_label(labels: Array, items: Array) -> None:
    """Sort ``items`` in place by descending ``labels[item]``, stable."""
    counts = np.zeros(_COUNTED_LABELS + 1, np.int64)
    for i in range(items.size):
        label = labels[items[i]]
        if not 0 <= label < _COUNTED_LABELS or label != math.floor(label):
            sort_descending(labels, items)
            return
        counts[np.int64(label)] += 1
    # counts[value + 1] becomes the number of larger labels, which is where the first item of label
    # `value` goes.
    for value in range(_COUNTED_LABELS - 1, -1, -1):
        counts[value] += counts[value + 1]
    for item in items.copy():
        at = np.int64(labels[item]) + 1
        items[counts[at]] = item
        counts[at] += 1
