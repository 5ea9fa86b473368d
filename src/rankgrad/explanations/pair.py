"""Why one item of a query stands above another: what ``rankgrad explain --query`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad._quoting import quote
from rankgrad.data import Dataset
from rankgrad.data._dataset import names_of_features
from rankgrad.explanations._attribution import pair_attributions
from rankgrad.training import FittedRanker


@dataclass(frozen=True)
class PairExplanation:
    """What each feature adds to the difference of the scores of two items of a list.

    ``attributions.sum() + baseline`` is ``difference``, up to ``residual``.

    Attributes:
        qid: of the list.
        items: the upper and the lower item, counting from 0.
        labels: of the two items.
        scores: of the two items.
        features: the names of the features.
        values: ``[2, F]`` raw features of the two items.
        attributions: ``[F]``, what each feature adds to the difference.
        difference: the score of the upper item less that of the lower one.
        baseline: the part of the difference that no feature explains: 0 unless the model uses the
            positions of items.
        residual: the absolute error of the sum, from numerical integration.
    """

    qid: str
    items: tuple[int, int]
    labels: tuple[float, float]
    scores: tuple[float, float]
    features: tuple[str, ...]
    values: NDArray[np.float32]
    attributions: NDArray[np.float64]
    difference: float
    baseline: float
    residual: float

    @property
    def order(self) -> str:
        """Whether ``items[0]`` is ``"above"``, ``"below"`` or ``"tied with"`` ``items[1]``."""
        first, second = self.scores
        if first == second:
            return "tied with"
        return "above" if first > second else "below"

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Name, upper value, lower value and attribution of each feature.

        The feature with the largest absolute attribution is first.

        Returns:
            The rows.
        """
        order = np.argsort(-np.abs(self.attributions), kind="stable")
        return [
            (self.features[f], *map(float, self.values[:, f]), float(self.attributions[f]))
            for f in order
        ]

    def to_dict(self) -> dict[str, Any]:
        """The explanation for JSON; items count from 1.

        Returns:
            The query, both items, their scores and labels, and a row for each feature.
        """
        columns = ("feature", "upper_value", "lower_value", "attribution")
        return {
            "query": self.qid,
            "upper_item": self.items[0] + 1,
            "lower_item": self.items[1] + 1,
            "labels": list(self.labels),
            "scores": list(self.scores),
            "order": self.order,
            "score_difference": self.difference,
            "not_of_features": self.baseline,
            "integration_error": self.residual,
            "attributions": [dict(zip(columns, row, strict=True)) for row in self.rows()],
        }


def explain_pair(
    ranker: FittedRanker, data: Dataset, qid: str, items: tuple[int, int] | None = None
) -> PairExplanation:
    """Explain why an item of a query stands above another.

    Args:
        ranker: the trained ranker.
        data: the lists; one of them is the query's.
        qid: the id of the query.
        items: the upper and the lower item, counting from 0. None for the first two neighbors in
            the ranking that are in the wrong order. If there are none, the first two neighbors that
            are not tied; if all are tied, the first two.

    Returns:
        The scores, the labels and the values ``[2, F]`` of both items, and what each feature adds
        to the difference of the scores ``[F]``.

    Raises:
        ValueError: there is no such query or item.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    >>> lists = Dataset(features, [0, 2, 1, 0, 1, 0], [0, 3, 6], ["a", "b"])
    >>> ranker = FittedRanker.new(Settings(), features)
    >>> explanation = explain_pair(ranker, lists, "b", (0, 2))
    >>> explanation.items, explanation.attributions.shape
    ((0, 2), (3,))
    """
    qid = str(qid)  # as data sets have them
    matches = np.flatnonzero(np.asarray(data.qids) == qid)
    if not len(matches):
        first_qids = ", ".join(map(str, data.qids[:5]))
        raise ValueError(f"there is no query {quote(qid)} in the data; the first are {first_qids}")
    b = int(matches[0])
    span = slice(int(data.offsets[b]), int(data.offsets[b + 1]))
    features, labels = np.array(data.features[span]), np.array(data.labels[span])
    if len(features) < 2:
        raise ValueError(f"query {quote(qid)} has {len(features)} items: there is no pair of them")
    scores = ranker.predict(features)
    pair = _first_mistake(scores, labels) if items is None else items
    if pair[0] == pair[1] or max(pair) >= len(features) or min(pair) < 0:
        raise ValueError(
            f"a pair must be two items of the {len(features)} of query {quote(qid)}; found "
            f"{pair[0] + 1} and {pair[1] + 1}, counting from 1"
        )
    result = pair_attributions(ranker, features, [pair])
    upper, lower = pair
    return PairExplanation(
        qid=qid,
        items=(upper, lower),
        labels=(float(labels[upper]), float(labels[lower])),
        scores=(float(scores[upper]), float(scores[lower])),
        features=names_of_features(data),
        values=features[[upper, lower]],
        attributions=result.values[0],
        difference=float(result.differences[0]),
        baseline=float(result.baselines[0]),
        residual=float(result.residuals[0]),
    )


def _first_mistake(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> tuple[int, int]:
    """The first two neighbors in the ranking that are in the wrong order.

    If there are none, the first two neighbors that are not tied; if all are tied, the first two.

    Args:
        scores: ``[n]``.
        labels: ``[n]``.

    Returns:
        The upper and the lower item, counting from 0.
    """
    order = [int(item) for item in np.argsort(-scores, kind="stable")]
    neighbors = list(pairwise(order))
    not_tied = [(a, b) for a, b in neighbors if scores[a] > scores[b]]
    wrong = [(a, b) for a, b in not_tied if labels[a] < labels[b]]
    return [*wrong, *not_tied, *neighbors][0]
