"""takes_missing_values: whether numerical features may be missing, for ``rankgrad.serving``."""

from __future__ import annotations

from rankgrad.data.transforms import Impute, Pipeline
from rankgrad.export._parsed_trees import features_with_missing
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer


def takes_missing_values(ranker: FittedRanker) -> bool:
    """Whether features that are numbers may be NaN, which is a missing value.

    They may if the training data had missing values, or if the settings impute them.
    """
    if any(isinstance(step, Impute) for step in Pipeline(ranker.settings.transforms).modules()):
        return True
    imputations = [step for step in ranker.transform.modules() if isinstance(step, Impute)]
    if any(len(step.indicated) or len(step.weights) for step in imputations):
        return True
    if not isinstance(ranker.network, TreeScorer):
        return False
    sources, categories = ranker.transform.sources.tolist(), ranker.categories
    with_missing = {sources[feature] for feature in features_with_missing(ranker.network)}
    return any(categories is None or categories[feature] is None for feature in with_missing)
