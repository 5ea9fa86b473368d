"""Sample lists, on which ``_exporting`` compares a file's scores with the ranker's."""

from __future__ import annotations

from itertools import chain

import numpy as np

from rankgrad.data import transforms
from rankgrad.data._dataset import Dataset
from rankgrad.export._onnx_transforms import steps_of
from rankgrad.export._parsed_trees import Split, Trees, walk
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer

_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)  # of the random lists
_MAX_ITEMS = 1000  # of a sample of data
_MISSING_FRACTION = 0.1  # of the values of features that may be missing


def sample_of(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The first lists of data: padded features ``[lists, items, f]``, mask ``[lists, items]``."""
    if not data.n_items:
        raise ValueError("the data to compare scores on have no items")
    first = int(np.argmax(data.lengths > 0))  # the first list that has items; it is always taken
    count = max(first + 1, int(np.searchsorted(data.offsets, _MAX_ITEMS, side="right")) - 1)
    lists = data.select(np.arange(min(count, len(data))))
    return _pad(np.asarray(lists.features), lists.lengths)


def sample_without_data(ranker: FittedRanker) -> tuple[np.ndarray, np.ndarray]:
    """Random lists of several lengths, padded, with values near those that the ranker learned.

    Returns:
        Features ``[lists, items, f]``, and a mask ``[lists, items]``.
    """
    random = np.random.default_rng(0)
    items = sum(_LENGTHS)
    columns = random.normal(size=(items, ranker.n_features)).astype(np.float32)
    for feature, learned in enumerate(_learned_values(ranker)):
        if len(learned):
            columns[:, feature] = _values_near(learned, items, random)
    for feature, names in enumerate(ranker.categories or ()):
        if names is not None:
            codes = random.integers(-1, len(names), items).astype(np.float32)
            columns[:, feature] = np.where(codes < 0, np.nan, codes)
    columns[(random.random(columns.shape) < _MISSING_FRACTION) & _may_be_missing(ranker)] = np.nan
    lengths = np.array(_LENGTHS)
    ends = lengths.cumsum()[lengths > 2]
    # The last item of a list is a copy of the first, so that they tie.
    columns[ends - 1] = columns[ends - lengths[lengths > 2]]
    return _pad(columns, lengths)


def _number_steps(ranker: FittedRanker) -> tuple[list[transforms.Transform], np.ndarray]:
    """The transforms of numerical features, and the indices of these features, ``[n]``."""
    transform = ranker.transform
    if isinstance(transform, transforms.SplitColumns):
        return steps_of(transform.numbers), np.flatnonzero(np.array(transform.sizes) == 0)
    return steps_of(transform), np.arange(ranker.n_features)


def _may_be_missing(ranker: FittedRanker) -> np.ndarray:
    """Which raw features may be missing, ``[n_features]``."""
    missing = np.zeros(ranker.n_features, bool)
    if isinstance(ranker.network, TreeScorer):
        missing[ranker.transform.sources.numpy()[list(Trees.of(ranker.network).missing)]] = True
    steps, numbers = _number_steps(ranker)
    for step in steps:
        # With indicators, none is indicated if the training data had no missing values; without
        # them, it is not known.
        if isinstance(step, transforms.Impute) and (len(step.indicated) or not step.indicator):
            missing[numbers] = True
    return missing


def _learned_values(ranker: FittedRanker) -> list[np.ndarray]:
    """For each raw feature, the values ``[n]`` that were learned, or none, ``[0]``.

    They are those of the first transform that has learned values, else the thresholds of the trees.
    """
    values_by_feature: list[np.ndarray] = [np.empty(0)] * ranker.n_features
    steps, sources = _number_steps(ranker)  # sources: the raw feature behind each column
    for step in steps:
        learned = _learned_by(step)
        if learned is not None:
            for source, values in zip(sources, learned, strict=True):
                values_by_feature[source] = values
            return values_by_feature
        sources = sources[step.sources.numpy()]
    if isinstance(ranker.network, TreeScorer):
        thresholds: list[list[float]] = [[] for _ in values_by_feature]
        for node in chain.from_iterable(map(walk, Trees.of(ranker.network).roots)):
            if isinstance(node, Split):
                thresholds[sources[node.feature]].append(float(node.threshold))
        values_by_feature = [np.array(values) for values in thresholds]
    return values_by_feature


def _learned_by(step: transforms.Transform) -> np.ndarray | None:
    """Values ``[features, n]`` in the range that a transform has learned; None for others."""
    if isinstance(step, transforms.Quantile):
        return step.table.cpu().numpy()
    if isinstance(step, transforms.Clip):
        return np.linspace(step.low.cpu().numpy(), step.high.cpu().numpy(), 9, axis=1)
    if isinstance(step, transforms.Standardize):
        mean, deviation = step.mean.cpu().numpy(), step.deviation.cpu().numpy()
        return mean[:, None] + deviation[:, None] * np.linspace(-2, 2, 9)
    return None


def _values_near(learned: np.ndarray, items: int, random: np.random.Generator) -> np.ndarray:
    """Values ``[items]``: learned ones, values between two learned ones, and values beyond them.

    ``learned`` is ``[n]``.
    """
    first, second = random.choice(learned, items), random.choice(learned, items)
    fraction = random.choice([0.0, 0.0, 0.25, 0.5, 1.25], items)
    return np.asarray(first + fraction * (second - first), np.float32)


def _pad(items: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pad flat items ``[N, f]``: features ``[lists, items, f]`` and a mask ``[lists, items]``."""
    mask = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
    features = np.zeros((*mask.shape, items.shape[1]), np.float32)
    features[mask] = items
    return features, mask
