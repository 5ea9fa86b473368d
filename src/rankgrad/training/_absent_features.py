"""Features of a ranker that data lack: a sign of another file, or of other feature ids.

Features that a row of a LETOR file does not name are 0. A file that lacks most of the features of
the training data can therefore be scored, but the scores mean little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankgrad._quoting import listing
from rankgrad.data._blocks import block_height
from rankgrad.data._dataset import names_of_features

if TYPE_CHECKING:
    from rankgrad._shapes import Array
    from rankgrad.data._dataset import Dataset
    from rankgrad.training._fitted import FittedRanker

_MAX_CHANCE = 0.05  # that a feature of the training data is absent by chance
_MAX_NAMED = 5  # features that the sentence names


def feature_presence(data: Dataset) -> list[float]:
    """For each feature, the share of lists in which some item has it: not 0, and not missing.

    It is 0 for a feature that is the same on all items, from which nothing is learned.

    Args:
        data: the training lists; lists without items do not count.

    Returns:
        ``[F]`` shares.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training._absent_features import feature_presence
    >>> feature_presence(Dataset(np.eye(4)[:, :3], np.zeros(4), [0, 2, 4], ["a", "b"]))
    [0.5, 0.5, 0.5]
    """
    bounds = np.unique(data.offsets)  # without empty lists
    counts = np.zeros(data.n_features, np.int64)
    varies = np.zeros(data.n_features, bool)
    height, first = block_height(data.n_features), 0
    while first < len(bounds) - 1:  # lists first:last, as many as fit into a block
        last = int(np.searchsorted(bounds, bounds[first] + height, side="right")) - 1
        last = max(last, first + 1)
        rows = np.asarray(data.features[bounds[first] : bounds[last]])
        is_present = (rows != 0) & ~np.isnan(rows)
        varies |= (rows != data.features[bounds[0]]).any(0)
        counts += np.logical_or.reduceat(is_present, bounds[first:last] - bounds[first]).sum(0)
        first = last
    shares: list[float] = (counts * varies / max(1, len(bounds) - 1)).tolist()
    return shares


def describe_absent(ranker: FittedRanker, data: Dataset) -> str | None:
    """A sentence about the features that no item has, if they are half of the ranker's.

    For the half, only features count that so many lists would hardly lack by chance.

    Args:
        ranker: a trained ranker.
        data: lists that were read with its features.

    Returns:
        The sentence; None for data with fewer such features, for those from a file that is not
        sparse, and for rankers of earlier versions, which do not save what they learned from.
    """
    if ranker.feature_presence is None or data.zero_based is None:
        return None
    shares: Array = np.array(ranker.feature_presence)
    is_learned = shares > 0
    if ranker.categories is not None:  # 0 is one of the categories
        is_learned &= np.array([names is None for names in ranker.categories])
    is_surprising = (1 - shares) ** np.count_nonzero(data.lengths) < _MAX_CHANCE
    is_absent, n_learned = is_learned.copy(), np.count_nonzero(is_learned)
    if not data.n_items or not n_learned:
        return None
    height = block_height(data.n_features)
    for start in range(0, data.n_items, height):
        is_absent &= ~np.asarray(data.features[start : start + height].any(axis=0))
        if 2 * np.count_nonzero(is_absent & is_surprising) < n_learned:
            return None
    absent, names = np.flatnonzero(is_absent), names_of_features(ranker)
    return (
        f"{len(absent):,} of the {n_learned:,} features that the ranker learned from are in no "
        f"item ({listing([names[column] for column in absent], _MAX_NAMED)}); they count as 0: "
        "check that these are the right data and that feature ids are those of the training data"
    )
