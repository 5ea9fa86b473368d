"""Features of a ranker that data lack: a sign of another file, or of other feature ids.

Features that a row of a LETOR file does not name are 0. A file that lacks most of the features of
the training data can therefore be scored, but the scores mean little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankgrad._quoting import listing
from rankgrad.boosting.boosters import split_features
from rankgrad.data._dataset import names_of_features
from rankgrad.data.transforms import DropConstant, Log1p, Pipeline, Quantile, Standardize
from rankgrad.training._fitted import FittedRanker, TreeScorer

if TYPE_CHECKING:
    from rankgrad._shapes import Array
    from rankgrad.data._dataset import Dataset

_MAX_CHANCE = 0.05  # that a feature which is present in training is absent by chance
_MAX_NAMED = 5  # features that the sentence names
_ROWS = 1 << 12  # items that are searched at a time


def describe_absent(ranker: FittedRanker, data: Dataset) -> str | None:
    """A sentence about the features that are 0 in all items, if they are half of the ranker's.

    Only features that varied in training count, or those that trees split by; and for the half,
    only those that so many lists would hardly lack by chance.

    Args:
        ranker: a trained ranker.
        data: lists that were read with its features.

    Returns:
        The sentence; None for data with fewer such features, or from a file that is not sparse.
    """
    columns, zero_shares = _trained_features(ranker)
    if data.zero_based is None or not data.n_items or not len(columns):
        return None
    # As if a feature were 0 in all items of a list or in none: items of a list are alike.
    is_surprising = zero_shares ** len(data) < _MAX_CHANCE
    is_absent = np.ones(len(columns), bool)
    for start in range(0, data.n_items, _ROWS):
        rows = data.features[start : start + _ROWS]
        is_absent &= ~np.asarray(rows.any(axis=0))[columns]
        if 2 * np.count_nonzero(is_absent & is_surprising) < len(columns):
            return None
    absent, names = columns[is_absent], names_of_features(ranker)
    return (
        f"no item has {len(absent):,} of the {len(columns):,} features that the ranker learned "
        f"from (feature ids {listing([names[column] for column in absent], _MAX_NAMED)}), which "
        "count as 0: check that these are the right data, and that their feature ids are those of "
        "the training data"
    )


def _trained_features(ranker: FittedRanker) -> tuple[Array, Array]:
    """The features that the ranker learned from, and in which share of items each was 0.

    A share that is not known is 0. Features that were constant in training are left out; if they
    are not known, there are no features.
    """
    transform = ranker.transform
    columns = np.arange(ranker.n_features)
    if not isinstance(transform, Pipeline):  # columns of numbers beside categorical ones
        columns = columns[[size == 0 for size in transform.sizes]]
        transform = transform.numbers
    if isinstance(ranker.network, TreeScorer) and not len(transform.steps):
        network = ranker.network
        columns = split_features(network.model.name, network.saved)  # type: ignore[arg-type]
        return columns, np.zeros(len(columns))
    shares, is_known = np.zeros(len(columns)), False
    for step in transform.steps:
        if isinstance(step, DropConstant):
            kept = step.kept.cpu().numpy()
            columns, shares, is_known = columns[kept], shares[kept], True
        elif isinstance(step, Quantile):
            shares, is_known = (step.table == 0).double().mean(1).cpu().numpy(), True
            break
        elif isinstance(step, Standardize):  # a feature that is always 0 has these two numbers
            always_zero = (step.mean == 0) & (step.deviation == 1)
            shares, is_known = np.maximum(shares, always_zero.double().cpu().numpy()), True
            break
        elif not isinstance(step, Log1p):  # zeros may become other values
            break
    varies = (shares < 1) & is_known
    return columns[varies], shares[varies]
