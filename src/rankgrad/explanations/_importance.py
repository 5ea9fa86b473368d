"""Permutation importance: how much a metric falls when the values of a feature are permuted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rankgrad._validation import check_choice, check_whole
from rankgrad.data import Dataset
from rankgrad.data._dataset import names_of_features
from rankgrad.metrics import Metric, metrics
from rankgrad.metrics.evaluate import check_labels
from rankgrad.significance import Interval, bootstrap_interval
from rankgrad.training import FittedRanker

Permute = Literal["within", "across"]
PERMUTE: tuple[Permute, ...] = get_args(Permute)
#: Among which items the values of a feature were permuted. ``"whole lists"``: all items of a list
#: got the value of a list drawn at random. ``"not used"``: nothing was permuted, since the model
#: does not read the feature.
Scope = Literal["within lists", "whole lists", "across lists", "not used"]

_POINTS = 100.0  # drops are in points: 100 times the metric


class ImportanceRow(NamedTuple):
    """A feature in tables: its mean drop, the ends of the drop's interval, and its scope."""

    feature: str
    drop: float
    low: float
    high: float
    permuted: Scope


@dataclass(frozen=True)
class Importance:
    """How much each feature matters to a metric, list by list.

    Attributes:
        metric: its spec.
        mean: of the metric over the lists, without any permutation.
        features: their names.
        scopes: of each feature: among which items its values were permuted.
        drops: ``[F, B]`` by feature and list: the metric without permutation minus its mean over
            repeats with the feature permuted, times 100 (points). The sign is reversed for metrics
            of which lower is better, so a positive drop always means that permuting does harm.
            NaN for lists on which the metric is undefined.
        repeats: the number of permutations of each feature.
        seed: of the permutations.
    """

    metric: str
    mean: float
    features: tuple[str, ...]
    scopes: tuple[Scope, ...]
    drops: NDArray[np.float32]
    repeats: int
    seed: int

    @property
    def n_lists(self) -> int:
        """The number of lists that count: those on which the metric is defined."""
        return int(self._counted.sum())

    @property
    def values(self) -> NDArray[np.float64]:
        """The mean drop of each feature over the lists that count, ``[F]``; NaN if none counts."""
        drops = self.drops[:, self._counted].astype(np.float64)
        return drops.mean(1) if drops.shape[1] else np.full(len(self.features), np.nan)

    @property
    def _counted(self) -> NDArray[np.bool_]:
        """Whether each list counts, ``[B]``."""
        return np.asarray(~np.isnan(self.drops).any(0))

    @property
    def order(self) -> NDArray[np.int64]:
        """The indices of the features, the most important first, ``[F]``."""
        return np.argsort(-self.values, kind="stable")

    def interval(self, feature: int) -> Interval:
        """The 95% bootstrap interval over lists of a feature's mean drop.

        Args:
            feature: its index.

        Returns:
            The low and the high end, in points.
        """
        return bootstrap_interval(self.drops[feature])


def permutation_importance(
    ranker: FittedRanker,
    data: Dataset,
    metric: str | Metric | None = None,
    *,
    repeats: int = 5,
    permute: Permute = "within",
    seed: int = 0,
    on_feature: Callable[[int, int], None] | None = None,
) -> Importance:
    """How much a metric falls on each list when the values of a feature are permuted.

    A ranking compares the items of one list. By default, therefore, values are permuted among the
    items of each list (``within``): this removes how an item differs from the others of its list,
    and preserves everything that depends on the query alone, such as the range of the values for
    that query. If values are permuted across lists instead (``across``), an item may get values
    that no item of its query could have, and a feature whose range differs from query to query
    seems important for that reason alone. A feature that is equal for all items of each list
    cannot order them by itself, but a model may combine it with others: its values are exchanged
    between whole lists.

    Importance shows what the model relies on, not what the data contain: of two features with the
    same information, a model may use either, or both in part.

    Args:
        ranker: the trained ranker.
        data: test data with labels.
        metric: the spec of a metric, or a metric; None for that of the ranker's settings.
        repeats: the number of permutations, over which drops are averaged; all features of the
            same scope have the same permutations.
        permute: ``"within"`` lists or ``"across"`` them.
        seed: of the permutations.
        on_feature: called with the number of features that are done, and the number of all.

    Returns:
        The drops ``[F, B]`` of the metric, NaN for lists on which it is undefined, and how each
        feature was permuted.

    Raises:
        ValueError: ``permute``, ``repeats``, ``seed`` or the metric is not valid.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> random = np.random.default_rng(0)
    >>> lists = Dataset(random.random((20, 3)), np.arange(20) % 3, [0, 10, 20], ["a", "b"])
    >>> importance = permutation_importance(FittedRanker.new(Settings(), lists.features), lists)
    >>> importance.drops.shape
    (3, 2)
    """
    check_choice("permute", permute, PERMUTE)
    check_whole("repeats", repeats)
    check_whole("seed", seed, least=0, most=math.inf)
    metric = metrics.get(ranker.settings.metric if metric is None else metric)
    check_labels([metric], torch.tensor(data.labels))
    lists = np.repeat(np.arange(len(data)), data.lengths)  # of each item
    features = np.array(data.features, np.float32)
    before = _values(ranker, metric, data, features)
    used = set(ranker.transform.sources.tolist())  # columns that the model reads
    drops = np.zeros((data.n_features, len(data)), np.float32)
    drops[:, np.isnan(before)] = np.nan
    scopes: list[Scope] = []
    for feature in range(data.n_features):
        column = features[:, feature].copy()
        scope: Scope = "not used"
        if feature in used:
            scope = "across lists" if permute == "across" else _scope(column, lists)
        scopes.append(scope)
        if scope != "not used":
            after = np.zeros(len(data))
            for repeat in range(repeats):
                random = np.random.default_rng([seed, repeat])
                features[:, feature] = column[_permuted_rows(scope, data, lists, random)]
                after += _values(ranker, metric, data, features) / repeats
            features[:, feature] = column
            sign = -1.0 if metric.lower_is_better else 1.0
            drops[feature] = sign * _POINTS * (before - after)
        if on_feature is not None:
            on_feature(feature + 1, data.n_features)
    defined = before[~np.isnan(before)]
    return Importance(
        metric=str(metric),
        mean=float(defined.mean()) if len(defined) else float("nan"),
        features=names_of_features(data),
        scopes=tuple(scopes),
        drops=drops,
        repeats=repeats,
        seed=seed,
    )


def _values(
    ranker: FittedRanker, metric: Metric, data: Dataset, features: NDArray[np.float32]
) -> NDArray[np.float64]:
    """The metric of each list ``[B]``, with these features instead of those of the data."""
    values = metric(
        ranker.predict(features, data.offsets),
        np.array(data.labels),
        offsets=np.array(data.offsets),
        weights=None if data.weights is None else np.array(data.weights),
    )
    return np.asarray(values.double().numpy())


def _scope(column: NDArray[np.float32], lists: NDArray[np.int64]) -> Scope:
    """Among which items the values ``[N]`` of a feature are permuted; ``lists`` are of items."""
    missing = np.isnan(column)
    equal = (column[1:] == column[:-1]) | (missing[1:] & missing[:-1])
    varies = (~equal & (lists[1:] == lists[:-1])).any()
    return "within lists" if varies else "whole lists"


def _permuted_rows(
    scope: Scope, data: Dataset, lists: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """For each item the row that its value is taken from, ``[N]``; ``lists`` are of items."""
    if scope == "across lists":
        return random.permutation(len(lists))
    if scope == "within lists":
        return np.lexsort((random.random(len(lists)), lists))
    # Each list that is not empty is assigned such a list at random, maybe itself; all its items
    # take the value of the first item there.
    not_empty = np.flatnonzero(data.lengths)
    first_items = np.zeros(len(data), np.int64)
    first_items[not_empty] = np.asarray(data.offsets)[random.permutation(not_empty)]
    return first_items[lists]
