"""Items of many lists in any order, grouped by list in one pass."""

from __future__ import annotations

from collections.abc import Sequence

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


Items = tuple[Array, Array, Array]  # the list of each item, its score and its label: [N] each


def group(parts: Sequence[Items], lowest: int, count: int) -> tuple[Array, Array, Array]:
    """A counting sort of items by their list, stable.

    Args:
        parts: of the items, one after the other; lists are from ``lowest`` to
            ``lowest + count - 1``.
        lowest: of the indexes.
        count: of the lists, some of which may have no item.

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
