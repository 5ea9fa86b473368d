"""Items of many lists in any order, brought together list by list in one pass."""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.flat_arrays import Array


def group(codes: Array, scores: Array, labels: Array) -> tuple[Array, Array, Array]:
    """A counting sort of items by their list, stable.

    Args:
        codes: ``[N]`` the list of each item, whole numbers from 0; some may be of no item.
        scores: ``[N]``.
        labels: ``[N]``.

    Returns:
        The sorted scores and labels, ``[N]``, and the number of items of each list ``[max + 1]``.
    """
    lengths = np.bincount(codes)
    ordered = np.empty_like(scores), np.empty_like(labels)
    _scatter(codes, lengths.cumsum() - lengths, scores, labels, *ordered)
    return *ordered, lengths


@compiled
def _scatter(
    codes: Array, places: Array, scores: Array, labels: Array, to_scores: Array, to_labels: Array
) -> None:
    for i in range(codes.size):
        place = places[codes[i]]
        places[codes[i]] += 1
        to_scores[place] = scores[i]
        to_labels[place] = labels[i]
