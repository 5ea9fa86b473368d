"""Why one item stands above another: integrated gradients of the difference of their scores.

Integrated gradients (Sundararajan et al. 2017) of ``F = s_A - s_B`` go along a straight path from a
baseline to the items as they are. The baseline is made for the pair: both items have the mean of
their two values in every feature, and the other items of the list stay. There the two are the same
item, so ``F = 0`` for models without positions; and a feature in which they do not differ gets
nothing.

A model may use the rank of an item by a feature within its list. Such ranks jump along the path,
their gradient is 0, and attributions would not add up. So the path is one of the inputs of the
layers (:meth:`rankgrad.models.Scorer.inputs`): transformed features and the columns derived from
them, each from its value at the baseline to its value in the item. The attribution of a raw feature
is the sum of those of its columns.

Boosted trees have no gradients. There the attribution of a feature is the difference of its
TreeSHAP values (Lundberg et al. 2018) in the two items, which also add up to that of the scores.
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

_STEPS, _MAX_STEPS = 32, 2048  # of the integration, at first and at most
_TOLERANCE = 3e-4  # of the sum of attributions, relative to the sum of their sizes
_VALUES = 1 << 22  # the most inputs scored at a time


@dataclass(frozen=True)
class Attributions:
    """The part of each feature in the difference of the scores of two items, for several pairs.

    ``values.sum(1) + baselines`` is ``differences`` up to ``residuals``.

    Attributes:
        values: ``[P, F]`` by pair and raw feature.
        differences: ``[P]`` the score of the upper item less that of the lower one.
        baselines: ``[P]`` the difference at the baseline, which no feature explains: 0 unless the
            model uses the positions of items.
    """

    values: NDArray[np.float64]
    differences: NDArray[np.float64]
    baselines: NDArray[np.float64]

    @property
    def residuals(self) -> NDArray[np.float64]:
        """The error of integration, ``[P]``."""
        return np.asarray(np.abs(self.values.sum(1) + self.baselines - self.differences))


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
    >>> parts = pair_attributions(ranker, features, [(0, 1), (2, 5)])
    >>> scores = ranker.predict(features)
    >>> np.allclose(parts.values.sum(1), [scores[0] - scores[1], scores[2] - scores[5]], atol=1e-3)
    True
    """
    n = len(features)
    for pair in pairs:
        if len(set(pair)) < 2 or not all(0 <= item < n for item in pair):
            raise ValueError(f"a pair must be two of the {n} items of the list, found {pair}")
    items = torch.from_numpy(np.array(features, np.float32))
    sources = ranker.transform.sources.cpu()
    with torch.no_grad():
        transform = copy.deepcopy(ranker.transform).to("cpu")
        transformed = transform.transform(items)
        if isinstance(ranker.network, TreeScorer):
            return _of_trees(ranker.network, transformed, pairs, sources, features.shape[1])
        scores = _Scores(ranker.network)
        paths = [_Path.of(scores, transformed.double(), pair) for pair in pairs]
    expand: Any = getattr(ranker.network, "expand_sources", None)
    if expand is not None:  # a categorical feature has several columns
        sources = expand(sources)
    values = np.zeros((len(paths), features.shape[1]))
    for row, path in zip(values, paths, strict=True):
        # Column c of the inputs is derived from column c % g after the transforms.
        raw = sources.repeat(path.change.shape[1] // max(1, len(sources)))
        row[:] = _integrate(path, raw, len(row)).numpy()
    return Attributions(
        values=values,
        differences=np.array([path.end for path in paths]),
        baselines=np.array([path.start for path in paths]),
    )


def _of_trees(
    trees: TreeScorer,
    transformed: Float[Tensor, "n g"],
    pairs: Sequence[tuple[int, int]],
    sources: Int[Tensor, " g"],
    count: int,
) -> Attributions:
    """The attributions of ``count`` raw features by their TreeSHAP values in the two items."""
    upper, lower = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    columns, scores = trees.contributions(transformed), trees(transformed).double()
    parts = columns.new_zeros(len(columns), count).index_add(1, sources, columns)
    return Attributions(
        values=(parts[upper] - parts[lower]).numpy(),
        differences=(scores[upper] - scores[lower]).numpy(),
        baselines=np.zeros(len(pairs)),
    )


class _Scores:
    """The scores of a list as a function of the inputs of the layers, in float64."""

    def __init__(self, network: nn.Module) -> None:
        self.network: Any = copy.deepcopy(network).to("cpu").double().eval()
        self.network.requires_grad_(False)
        self._split = hasattr(network, "score_inputs")

    def inputs(self, features: Float[Tensor, "n g"]) -> Float[Tensor, "n w"]:
        """The inputs of the layers for one list."""
        if not self._split:
            return features
        mask = torch.ones(1, len(features), dtype=torch.bool)
        inputs: Tensor = self.network.inputs(features[None], mask)[0]
        return inputs

    def __call__(self, inputs: Float[Tensor, "s n w"]) -> Float[Tensor, "s n"]:
        mask = torch.ones(inputs.shape[:-1], dtype=torch.bool)
        score = self.network.score_inputs if self._split else self.network
        scores: Tensor = score(inputs, mask)
        return scores


@dataclass(frozen=True)
class _Path:
    """The straight path from the baseline of a pair to the items as they are.

    If the score of an item depends on its own inputs only, it has the inputs of the pair alone.
    """

    scores: _Scores
    origin: Float[Tensor, "n w"]
    change: Float[Tensor, "n w"]
    upper: int
    lower: int

    @classmethod
    def of(cls, scores: _Scores, transformed: Float[Tensor, "n g"], pair: tuple[int, int]) -> _Path:
        rows = list(pair)
        baseline = transformed.clone()
        baseline[rows] = transformed[rows].mean(0)
        now, origin = scores.inputs(transformed), scores.inputs(baseline)
        pair_inputs = torch.stack([now[rows], origin[rows]])
        pair_scores = scores(torch.stack([now, origin]))[:, rows]
        if torch.allclose(scores(pair_inputs), pair_scores, rtol=1e-9, atol=1e-9):
            now, origin, rows = now[rows], origin[rows], [0, 1]
        return cls(scores, origin, now - origin, rows[0], rows[1])

    def difference(self, positions: Float[Tensor, " s"]) -> tuple[Tensor, Tensor]:
        """The difference of the scores at some positions from 0 to 1, and the inputs there."""
        points = self.origin + positions[:, None, None] * self.change
        points.requires_grad_()
        scores = self.scores(points)
        return scores[:, self.upper] - scores[:, self.lower], points

    @property
    def start(self) -> float:
        return self.difference(torch.zeros(1, dtype=torch.float64))[0].item()

    @property
    def end(self) -> float:
        return self.difference(torch.ones(1, dtype=torch.float64))[0].item()


def _integrate(path: _Path, raw: Int[Tensor, " w"], count: int) -> Float[Tensor, " f"]:
    """The attribution of each raw feature, by the midpoint rule; steps double until they add up.

    Args:
        path: of the integration.
        raw: the raw feature that each column of the inputs is derived from.
        count: the number of raw features.
    """
    total = path.end - path.start
    steps = _STEPS
    while True:
        columns = _midpoints(path, steps)
        values = columns.new_zeros(count).index_add(0, raw, columns)
        error, size = abs(float(values.sum()) - total), float(values.abs().sum())
        if error <= _TOLERANCE * size or steps >= _MAX_STEPS:
            return values
        steps *= 2


def _midpoints(path: _Path, steps: int) -> Float[Tensor, " w"]:
    positions = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    total = torch.zeros_like(path.change)
    for part in positions.split(max(1, _VALUES // max(1, path.change.numel()))):
        difference, points = path.difference(part)
        (gradient,) = torch.autograd.grad(difference.sum(), points)
        total += gradient.sum(0)
    return (total / steps * path.change).sum(0)
