"""Groups items by their list, with a counting sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array


@compiled
def index_range(indexes: Array) -> tuple[int, int, bool]:
    """The lowest and the highest of ``[N]`` indexes, N >= 1, and whether they never decrease."""
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
    next_places = lengths.cumsum() - lengths
    for indexes, scores, labels in parts:
        _scatter(indexes, lowest, next_places, scores, labels, *grouped)
    return *grouped, lengths


@compiled
def _count(indexes: Array, lowest: int, lengths: Array) -> None:
    """Add the number of items of each list to ``lengths``."""
    for i in range(indexes.size):
        lengths[indexes[i] - lowest] += 1


@compiled
def _scatter(
    indexes: Array,
    lowest: int,
    next_places: Array,
    scores: Array,
    labels: Array,
    to_scores: Array,
    to_labels: Array,
) -> None:
    """Copy items to the next free place of their list, and advance ``next_places`` ``[count]``."""
    for i in range(indexes.size):
        place = next_places[indexes[i] - lowest]
        next_places[indexes[i] - lowest] += 1
        to_scores[place] = scores[i]
        to_labels[place] = labels[i]
