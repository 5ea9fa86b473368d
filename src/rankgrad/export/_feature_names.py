"""The names of a ranker's features, and whether they may be missing."""

from __future__ import annotations

from rankgrad.data.transforms import Impute, Pipeline
from rankgrad.export._trees import features_with_missing
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer


def feature_names(ranker: FittedRanker) -> list[str]:
    """The names of a ranker's features, in its order.

    They are those of the training data, or the numbers of features in a file without names.
    """
    if ranker.feature_names is not None:
        return list(ranker.feature_names)
    first = 0 if ranker.zero_based else 1
    return [str(first + i) for i in range(ranker.n_features)]


def takes_missing_values(ranker: FittedRanker) -> bool:
    """Whether features that are numbers may be NaN.

    They may if there were missing values in the training data, or the settings say how to impute
    them.
    """
    if any(isinstance(step, Impute) for step in Pipeline(ranker.settings.transforms).modules()):
        return True
    imputations = [step for step in ranker.transform.modules() if isinstance(step, Impute)]
    if any(len(step.indicated) or len(step.weights) for step in imputations):
        return True
    if not isinstance(ranker.network, TreeScorer):
        return False
    sources, categories = ranker.transform.sources.tolist(), ranker.categories
    missing = {sources[feature] for feature in features_with_missing(ranker.network)}
    return any(categories is None or categories[feature] is None for feature in missing)
