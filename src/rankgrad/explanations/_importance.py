"""Permutation importance: how much a metric falls when the values of a feature are permuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rankgrad._validation import check_choice, check_whole
from rankgrad.data import Dataset
from rankgrad.data._dataset import names_of_features
from rankgrad.metrics import Metric, metrics
from rankgrad.significance import Interval, bootstrap_interval
from rankgrad.training import FittedRanker

Permute = Literal["within", "across"]
PERMUTE: tuple[Permute, ...] = get_args(Permute)
Scope = Literal["within lists", "whole lists", "across lists", "not used"]

_POINTS = 100.0  # of a metric from 0 to 1


@dataclass(frozen=True)
class Importance:
    """How much each feature matters to a metric, list by list.

    Attributes:
        metric: its spec.
        mean: of the metric over the lists, features as they are.
        features: their names.
        scopes: among which items the values of each were permuted.
        drops: ``[F, B]`` in points: 100 times the metric minus its mean over repeats with the
            feature permuted. NaN where the metric leaves the list out.
        repeats: permutations of each feature.
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
        """The mean drop of each feature over the lists that count, ``[F]``."""
        drops = self.drops[:, self._counted].astype(np.float64)
        return drops.mean(1) if drops.shape[1] else np.zeros(len(self.features))

    @property
    def _counted(self) -> NDArray[np.bool_]:
        return np.asarray(~np.isnan(self.drops).any(0))

    @property
    def order(self) -> NDArray[np.int64]:
        """The features, the most important first."""
        return np.argsort(-self.values, kind="stable")

    def interval(self, feature: int) -> Interval:
        """The 95% bootstrap interval over lists of a feature's mean drop."""
        return bootstrap_interval(self.drops[feature])


def permutation_importance(
    ranker: FittedRanker,
    data: Dataset,
    metric: str | Metric = "ndcg@10",
    *,
    repeats: int = 5,
    permute: Permute = "within",
    seed: int = 0,
    on_feature: Callable[[int, int], None] | None = None,
) -> Importance:
    """How much a metric falls on each list when the values of a feature are permuted.

    A ranking compares the items of one list. So by default the values are permuted among the items
    of each list (``within``): what the feature says of an item against the others of its list is
    gone, and all that depends on the query alone stays, such as the range its values have for that
    query. Permuted across lists instead (``across``), an item would get values that no item of its
    query could have, and a feature whose range differs by query would seem to matter for that. A
    feature that is the same for all items of each list orders nothing by itself, but a model may
    combine it with others: its values are exchanged between whole lists.

    This says what the model relies on, not what the data know: of two features that say the same,
    a model may use either, or half of each.

    Args:
        ranker: the trained ranker.
        data: test data with labels.
        metric: the spec of a metric, or a metric.
        repeats: permutations of each feature, over which drops are averaged; the same ones for all
            features.
        permute: ``"within"`` lists or ``"across"`` them.
        seed: of the permutations.
        on_feature: called with the number of features that are done and that of all.

    Returns:
        The drops ``[F, lists]`` of the metric, NaN where a list has no value, and how each feature
        was permuted.

    Raises:
        ValueError: ``permute``, ``repeats`` or the metric is none that exists.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> random = np.random.default_rng(0)
    >>> lists = Dataset(random.random((20, 3)), np.arange(20) % 3, [0, 10, 20], ["a", "b"])
    >>> importance = permutation_importance(FittedRanker.new(Settings(), lists.features), lists)
    >>> importance.drops.shape
    (3, 2)
    """
    check_choice("permute", permute, PERMUTE)
    check_whole("repeats", repeats)
    chosen = metrics.get(metric)
    orders = _Orders(data, permute, seed)
    features = np.array(data.features, np.float32)
    before = _values(ranker, chosen, data, features)
    used = set(ranker.transform.sources.tolist())
    drops = np.zeros((data.n_features, len(data)), np.float32)
    drops[:, np.isnan(before)] = np.nan
    scopes: list[Scope] = []
    for feature in range(data.n_features):
        column = features[:, feature].copy()
        scope = orders.scope(column) if feature in used else "not used"
        scopes.append(scope)
        if scope != "not used":
            after = np.zeros(len(data))
            for repeat in range(repeats):
                features[:, feature] = column[orders.order(scope, repeat)]
                after += _values(ranker, chosen, data, features) / repeats
            features[:, feature] = column
            sign = -1.0 if chosen.lower_is_better else 1.0
            drops[feature] = sign * _POINTS * (before - after)
        if on_feature is not None:
            on_feature(feature + 1, data.n_features)
    defined = before[~np.isnan(before)]
    return Importance(
        metric=str(chosen),
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
    """The metric of each list, with these features in the place of those of the data."""
    values = metric(
        ranker.predict(features, data.offsets),
        np.array(data.labels),
        offsets=np.array(data.offsets),
        weights=None if data.weights is None else np.array(data.weights),
    )
    return np.asarray(values.double().numpy())


class _Orders:
    """The permutations of items: one for each repeat and scope."""

    def __init__(self, data: Dataset, permute: Permute, seed: int) -> None:
        self._lengths, self._offsets = data.lengths, np.asarray(data.offsets)
        self._lists = np.repeat(np.arange(len(data)), data.lengths)
        self._permute, self._seed = permute, seed

    def scope(self, column: NDArray[np.float32]) -> Scope:
        """Among which items the values of a feature are permuted."""
        if self._permute == "across":
            return "across lists"
        inside = self._lists[1:] == self._lists[:-1]
        varies = bool(((column[1:] != column[:-1]) & inside).any())
        return "within lists" if varies else "whole lists"

    def order(self, scope: Scope, repeat: int) -> NDArray[np.int64]:
        """The rows that the values come from."""
        random = np.random.default_rng([self._seed, repeat])
        items = len(self._lists)
        if scope == "across lists":
            return random.permutation(items)
        if scope == "within lists":
            return np.lexsort((random.random(items), self._lists))
        # The value of a list is that of its first item; a list without any gives none.
        full = np.flatnonzero(self._lengths)
        source = np.zeros(len(self._lengths), np.int64)
        source[full] = self._offsets[:-1][random.permutation(full)]
        return source[self._lists]
