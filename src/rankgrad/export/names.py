"""What features are called outside of Python."""

from __future__ import annotations

from rankgrad.training import FittedRanker


def feature_names(ranker: FittedRanker) -> list[str]:
    """The names of a ranker's features, in the order it takes them in.

    Those of the training data; features of a file without names have their numbers there.
    """
    if ranker.feature_names is not None:
        return list(ranker.feature_names)
    first = 0 if ranker.zero_based else 1
    return [str(first + at) for at in range(ranker.n_features)]
