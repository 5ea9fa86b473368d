"""Items of many lists in any order, grouped by list in one pass."""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.flat_arrays import Array


@compiled
def index_range(indexes: Array) -> tuple[int, int, bool]:
    """The lowest and the highest index, and whether they never fall; of at least one."""
    lowest, highest, rising = indexes[0], indexes[0], True
    for i in range(1, indexes.size):
        rising &= indexes[i] >= indexes[i - 1]
        lowest = min(lowest, indexes[i])
        highest = max(highest, indexes[i])
    return lowest, highest, rising


def group(
    indexes: Array, lowest: int, count: int, scores: Array, labels: Array
) -> tuple[Array, Array, Array]:
    """A counting sort of items by their list, stable.

    Args:
        indexes: ``[N]`` the list of each item, from ``lowest`` to ``lowest + count - 1``.
        lowest: of the indexes.
        count: of the lists, some of which may have no item.
        scores: ``[N]``.
        labels: ``[N]``.

    Returns:
        The sorted scores and labels, ``[N]``, and the number of items of each list ``[count]``.
    """
    lengths = _count(indexes, lowest, count)
    grouped = np.empty_like(scores), np.empty_like(labels)
    _scatter(indexes, lowest, lengths.cumsum() - lengths, scores, labels, *grouped)
    return *grouped, lengths


@compiled
def _count(indexes: Array, lowest: int, count: int) -> Array:
    lengths = np.zeros(count, np.int64)
    for i in range(indexes.size):
        lengths[indexes[i] - lowest] += 1
    return lengths


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
