"""Groups items by their list, with a counting sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array


@compiled
def index_range(indexes: Array) -> tuple[int, int, bool]:
    """The lowest and the highest index, and whether indexes never decrease; needs at least one."""
    lowest, highest, rising = indexes[0], indexes[0], True
    for i in range(1, indexes.size):
        rising &= indexes[i] >= indexes[i - 1]
        lowest = min(lowest, indexes[i])
        highest = max(highest, indexes[i])
    return lowest, highest, rising


Items = tuple[Array, Array, Array]  # the list of each item, its score and its label: [N] each


def group(parts: Sequence[Items], lowest: int, count: int) -> tuple[Array, Array, Array]:
    """Sort items by their list with a stable counting sort.

    Args:
        parts: the items, in several parts; list indexes run from ``lowest`` to
            ``lowest + count - 1``.
        lowest: the lowest list index.
        count: the number of lists, some of which may be empty.

    Returns:
        The sorted scores and labels, ``[N]``, and the number of items of each list ``[count]``.
    """
    lengths = np.zeros(count, np.int64)
    for indexes, _, _ in parts:
        _count(indexes, lowest, lengths)
    _, scores, labels = parts[0]
    total = sum(len(indexes) for indexes, _, _ in parts)
    grouped = np.empty(total, scores.dtype), np.empty(total, labels.dtype)
    places = lengths.cumsum() - lengths
    for part in parts:
        _scatter(part[0], lowest, places, part[1], part[2], *grouped)
    return *grouped, lengths


@compiled
def _count(indexes: Array, lowest: int, lengths: Array) -> None:
    for i in range(indexes.size):
        lengths[indexes[i] - lowest] += 1


@compiled
def _scatter(
    indexes: Array,
    lowest: int,
    places: Array,
    scores: Array,
    labels: Array,
    to_scores: Array,
    to_labels: Array,
) -> None:
    for i in range(indexes.size):
        place = places[indexes[i] - lowest]
        places[indexes[i] - lowest] += 1
        to_scores[place] = scores[i]
        to_labels[place] = labels[i]
