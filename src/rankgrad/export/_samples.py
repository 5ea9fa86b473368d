"""Lists on which an exported ranker is compared with the one it comes from."""

from __future__ import annotations

from itertools import chain

import numpy as np

from rankgrad.data import transforms
from rankgrad.data._dataset import Dataset
from rankgrad.export._transforms import steps_of
from rankgrad.export._trees import Split, Trees, walk
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer

_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
_ITEMS = 1000  # of data, at most
_MISSING = 0.1  # of the values of features that may be missing


def sample_of(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The first lists of data, padded: features ``[lists, items, f]`` and a mask."""
    if not data.n_items:
        raise ValueError("the data to compare scores on have no items")
    count = max(1, int(np.searchsorted(data.offsets, _ITEMS, side="right")) - 1)
    lists = data.select(np.arange(min(count, len(data))))
    return _padded(np.asarray(lists.features), lists.lengths)


def sample_without_data(ranker: FittedRanker) -> tuple[np.ndarray, np.ndarray]:
    """Random lists of several lengths, with values around those that the ranker has learned."""
    random = np.random.default_rng(0)
    items = sum(_LENGTHS)
    columns = random.normal(size=(items, ranker.n_features)).astype(np.float32)
    for feature, learned in enumerate(_learned_values(ranker)):
        if len(learned):
            columns[:, feature] = _near(learned, items, random)
    for feature, names in enumerate(ranker.categories or ()):
        if names is not None:
            codes = random.integers(-1, len(names), items).astype(np.float32)
            columns[:, feature] = np.where(codes < 0, np.nan, codes)
    columns[(random.random(columns.shape) < _MISSING) & _may_be_missing(ranker)] = np.nan
    lengths = np.array(_LENGTHS)
    ends = lengths.cumsum()[lengths > 2]
    columns[ends - 1] = columns[ends - lengths[lengths > 2]]  # copies, which are tied
    return _padded(columns, lengths)


def _number_steps(ranker: FittedRanker) -> tuple[list[transforms.Transform], np.ndarray]:
    """The transforms of features that are numbers, and which raw features these are."""
    split = ranker.transform
    if isinstance(split, transforms.SplitColumns):
        return steps_of(split.numbers), np.flatnonzero(np.array(split.sizes) == 0)
    return steps_of(split), np.arange(ranker.n_features)


def _may_be_missing(ranker: FittedRanker) -> np.ndarray:
    """Which raw features may be missing, ``[n_features]``."""
    missing = np.zeros(ranker.n_features, bool)
    if isinstance(ranker.network, TreeScorer):
        missing[ranker.transform.sources.numpy()[list(Trees.of(ranker.network).missing)]] = True
    steps, numbers = _number_steps(ranker)
    for step in steps:
        if isinstance(step, transforms.Impute) and (len(step.indicated) or not step.indicator):
            missing[numbers] = True
    return missing


def _learned_values(ranker: FittedRanker) -> list[np.ndarray]:
    """The values of each raw feature that transforms or trees have learned, maybe none."""
    values_of: list[np.ndarray] = [np.empty(0)] * ranker.n_features
    steps, sources = _number_steps(ranker)
    for step in steps:
        learned = _learned(step)
        if learned is not None:
            for source, values in zip(sources, learned, strict=True):
                values_of[source] = values
            return values_of
        sources = sources[step.sources.numpy()]
    if isinstance(ranker.network, TreeScorer):
        thresholds: list[list[float]] = [[] for _ in values_of]
        for node in chain.from_iterable(map(walk, Trees.of(ranker.network).roots)):
            if isinstance(node, Split):
                thresholds[sources[node.feature]].append(float(node.threshold))
        values_of = [np.array(values) for values in thresholds]
    return values_of


def _learned(step: transforms.Transform) -> np.ndarray | None:
    """Values ``[features, n]`` that a transform has learned, or None."""
    if isinstance(step, transforms.Quantile):
        return step.table.cpu().numpy()
    if isinstance(step, transforms.Clip):
        return np.linspace(step.low.cpu().numpy(), step.high.cpu().numpy(), 9, axis=1)
    if isinstance(step, transforms.Standardize):
        mean, deviation = step.mean.cpu().numpy(), step.deviation.cpu().numpy()
        return mean[:, None] + deviation[:, None] * np.linspace(-2, 2, 9)
    return None


def _near(learned: np.ndarray, items: int, random: np.random.Generator) -> np.ndarray:
    """Learned values, values between two of them, and values beyond."""
    first, second = random.choice(learned, items), random.choice(learned, items)
    part = random.choice([0.0, 0.0, 0.25, 0.5, 1.25], items)
    return np.asarray(first + part * (second - first), np.float32)


def _padded(items: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists of these lengths, padded: features ``[lists, items, f]`` and a mask."""
    mask = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
    features = np.zeros((*mask.shape, items.shape[1]), np.float32)
    features[mask] = items
    return features, mask
