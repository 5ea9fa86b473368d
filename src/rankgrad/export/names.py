"""What features are called outside of Python."""

from __future__ import annotations

from rankgrad.export.transforms import steps_of
from rankgrad.training import FittedRanker
from rankgrad.training.fitted import TreeScorer


def feature_names(ranker: FittedRanker) -> list[str]:
    """The names of a ranker's features, in the order it takes them in.

    Those of the training data; features of a file without names have their numbers there.
    """
    if ranker.feature_names is not None:
        return list(ranker.feature_names)
    first = 0 if ranker.zero_based else 1
    return [str(first + at) for at in range(ranker.n_features)]


def takes_missing_values(ranker: FittedRanker) -> bool:
    """Whether features may be NaN: trees know what to do with it, networks impute it."""
    if isinstance(ranker.network, TreeScorer):
        return True
    return any(step.name in ("impute", "split_columns") for step in steps_of(ranker.transform))
