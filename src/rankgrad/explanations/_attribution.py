"""Why one item stands above another: integrated gradients of the difference of their scores.

Integrated gradients (Sundararajan et al. 2017) of ``F = s_A - s_B`` go along a straight path from a
baseline to the items as they are. The baseline is made for the pair: both items have the mean of
their two values in every feature, and the other items of the list stay. There the two are the same
item, so ``F = 0`` for models without positions; and a feature in which they do not differ gets
nothing.

A model may look at where a feature puts an item in its list, and such ranks jump along the way: the
gradient does not see it, and attributions would not add up. So the path goes through what the
layers take in (:meth:`rankgrad.models.Scorer.inputs`): features after their transforms and all
that is derived of them, each column from its value at the baseline to its value now. What the
columns of one raw feature get is what the feature gets.

Boosted trees have no gradients. Of them, a feature gets the difference of its TreeSHAP values
(Lundberg et al. 2018) in the two items, which also add up to the difference of the scores.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankgrad._shapes import Float, Int
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer

_STEPS, _MOST = 32, 2048  # of the path, at first and at most
_CLOSE = 3e-4  # of all attributions, their sum may be off by, before steps are doubled
_VALUES = 1 << 22  # inputs scored at a time


@dataclass(frozen=True)
class Attributions:
    """What each feature adds to the difference of the scores of pairs of items.

    ``values.sum(1) + baselines`` is ``differences`` up to ``residuals``, the error of integration.

    Attributes:
        values: ``[P, F]`` by pair and raw feature.
        differences: ``[P]`` the score of the upper item less that of the lower one.
        baselines: ``[P]`` the difference at the baseline, which is no feature's: 0 unless the model
            knows the positions of items.
        residuals: ``[P]``.
    """

    values: NDArray[np.float64]
    differences: NDArray[np.float64]
    baselines: NDArray[np.float64]
    residuals: NDArray[np.float64]


def pair_attributions(
    ranker: FittedRanker, features: NDArray[Any], pairs: Sequence[tuple[int, int]]
) -> Attributions:
    """Attribute the differences of scores within one list to features.

    Args:
        ranker: the trained ranker.
        features: ``[n, F]`` of all items of the list, raw.
        pairs: ``(upper, lower)`` items, counting from 0.

    Returns:
        What each feature adds to the difference of each pair, ``[P, F]``, with the differences.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(), features)
    >>> found = pair_attributions(ranker, features, [(0, 1), (2, 5)])
    >>> scores = ranker.predict(features)
    >>> np.allclose(found.values.sum(1), [scores[0] - scores[1], scores[2] - scores[5]], atol=1e-3)
    True
    """
    n = len(features)
    for pair in pairs:
        if len(set(pair)) < 2 or not all(0 <= item < n for item in pair):
            raise ValueError(f"a pair must be two of the {n} items of the list, found {pair}")
    items = torch.from_numpy(np.array(features, np.float32))
    with torch.no_grad():
        transform = copy.deepcopy(ranker.transform).to("cpu")
        transformed = transform.transform(items)
        if isinstance(ranker.network, TreeScorer):
            sources = ranker.transform.sources.cpu()
            return _of_trees(ranker.network, transformed, pairs, sources, features.shape[1])
        scores = _Scores(ranker.network)
        paths = [_Path.of(scores, transformed.double(), pair) for pair in pairs]
    values = np.zeros((len(paths), features.shape[1]))
    for row, path in zip(values, paths, strict=True):
        # Column c of the inputs is derived of column c % g after the transforms.
        sources = ranker.transform.sources.cpu()
        expand: Any = getattr(ranker.network, "expand_sources", None)
        if expand is not None:  # a categorical feature has several columns
            sources = expand(sources)
        raw = sources.repeat(path.change.shape[1] // max(1, len(sources)))
        row[:] = _integrate(path, raw, len(row)).numpy()
    ends = np.array([[path.start.item(), path.end.item()] for path in paths]).reshape(-1, 2)
    differences, baselines = ends[:, 1], ends[:, 0]
    return Attributions(
        values=values,
        differences=differences,
        baselines=baselines,
        residuals=np.abs(values.sum(1) + baselines - differences),
    )


def _of_trees(
    trees: TreeScorer,
    transformed: Float[Tensor, "n g"],
    pairs: Sequence[tuple[int, int]],
    sources: Int[Tensor, " g"],
    count: int,
) -> Attributions:
    """What each of ``count`` raw features adds, by its TreeSHAP values in the two items."""
    upper, lower = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    columns, scores = trees.contributions(transformed), trees(transformed).double()
    parts = columns.new_zeros(len(columns), count).index_add(1, sources, columns)
    values = (parts[upper] - parts[lower]).numpy()
    differences = (scores[upper] - scores[lower]).numpy()
    return Attributions(
        values=values,
        differences=differences,
        baselines=np.zeros(len(values)),
        residuals=np.abs(values.sum(1) - differences),
    )


class _Scores:
    """The scores of a list by what the layers take in, in float64."""

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).to("cpu").double().eval()
        for parameter in self.network.parameters():
            parameter.requires_grad_(False)
        self._split = hasattr(network, "score_inputs")

    def inputs(self, features: Float[Tensor, "n g"]) -> Float[Tensor, "n w"]:
        """What the layers take in of a list."""
        if not self._split:
            return features
        every = torch.ones(1, len(features), dtype=torch.bool)
        network: Any = self.network
        found: Tensor = network.inputs(features[None], every)[0]
        return found

    def __call__(self, inputs: Float[Tensor, "s n w"]) -> Float[Tensor, "s n"]:
        every = torch.ones(inputs.shape[:-1], dtype=torch.bool)
        network: Any = self.network
        scores: Tensor = (network.score_inputs if self._split else network)(inputs, every)
        return scores


@dataclass(frozen=True)
class _Path:
    """The way from the baseline of a pair to the items as they are.

    Of a model whose scores depend on an item's own inputs alone, only those of the pair are here.
    """

    scores: _Scores
    origin: Float[Tensor, "n w"]
    change: Float[Tensor, "n w"]
    upper: int
    lower: int

    @classmethod
    def of(cls, scores: _Scores, transformed: Float[Tensor, "n g"], pair: tuple[int, int]) -> _Path:
        rows = list(pair)
        alike = transformed.clone()
        alike[rows] = transformed[rows].mean(0)
        now, origin = scores.inputs(transformed), scores.inputs(alike)
        alone = torch.stack([now[rows], origin[rows]])
        every = scores(torch.stack([now, origin]))[:, rows]
        if torch.allclose(scores(alone), every, rtol=1e-9, atol=1e-9):
            now, origin, rows = now[rows], origin[rows], [0, 1]
        return cls(scores, origin, now - origin, rows[0], rows[1])

    def difference(self, at: Float[Tensor, " s"]) -> tuple[Tensor, Tensor]:
        """The difference of the scores at some points of the way, and the points."""
        points = self.origin + at[:, None, None] * self.change
        points.requires_grad_()
        scores = self.scores(points)
        return scores[:, self.upper] - scores[:, self.lower], points

    @property
    def start(self) -> Tensor:
        return self.difference(torch.zeros(1, dtype=torch.float64))[0].detach()

    @property
    def end(self) -> Tensor:
        return self.difference(torch.ones(1, dtype=torch.float64))[0].detach()


def _integrate(path: _Path, raw: Int[Tensor, " w"], count: int) -> Float[Tensor, " f"]:
    """What each raw feature adds, by the midpoint rule; steps double until it adds up.

    Args:
        path: the way.
        raw: which raw feature each column of the inputs is derived of.
        count: the number of raw features.
    """
    whole = float(path.end - path.start)
    steps = _STEPS
    while True:
        columns = _midpoints(path, steps)
        values = columns.new_zeros(count).index_add(0, raw, columns)
        error, size = abs(float(values.sum()) - whole), float(values.abs().sum())
        if error <= _CLOSE * size or steps >= _MOST:
            return values
        steps *= 2


def _midpoints(path: _Path, steps: int) -> Float[Tensor, " w"]:
    places = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    total = torch.zeros_like(path.change)
    for some in places.split(max(1, _VALUES // max(1, path.change.numel()))):
        difference, points = path.difference(some)
        (gradient,) = torch.autograd.grad(difference.sum(), points)
        total += gradient.sum(0)
    return (total / steps * path.change).sum(0)
