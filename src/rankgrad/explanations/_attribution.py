"""Why one item stands above another: integrated gradients of the difference of their scores.

The attribution of a feature to ``D = s_A - s_B``, the difference of the scores of items A and B, is
its integrated gradient (Sundararajan et al. 2017) along the straight path from a baseline to the
items as they are::

    a_j = (x_j - x'_j) ∫ ∂D/∂x_j (x' + t (x - x')) dt,  t from 0 to 1;    Σ_j a_j = D(x) - D(x')

The baseline x' is made for the pair: in every feature, both items have the mean of their two
values or, of a category, of its two embeddings; the other items of the list are unchanged. At the
baseline the two items are equal, so ``D(x') = 0`` unless the model uses positions, and a feature
with equal values in both gets 0.

A model may use the rank of an item by a feature within its list. Such ranks jump along the path, so
their gradient is 0 and attributions would not add up. Therefore the path is through the inputs of
the layers (:meth:`rankgrad.models.Scorer.inputs`): transformed features and the columns derived
from them, each from its value at the baseline to its value in the item. The attribution of a raw
feature is the sum of those of its columns.

Boosted trees have no gradients. Their attributions are the differences of TreeSHAP values (Lundberg
et al. 2018) between the two items, which also add up to the difference of the scores.

Shapes: ``n`` items of a list, ``F`` raw features, ``g`` columns after the transforms, ``w`` inputs
of the layers, ``P`` pairs, ``s`` positions on the path.
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
_TOLERANCE = 3e-4  # error of the sum of attributions, relative to the sum of their absolute values
_MAX_INPUTS = 1 << 22  # numbers that are scored at a time


@dataclass(frozen=True)
class Attributions:
    """What each feature adds to the difference of the scores of two items, for several pairs.

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
        """The absolute error of integration, ``[P]``."""
        return np.asarray(np.abs(self.values.sum(1) + self.baselines - self.differences))


def pair_attributions(
    ranker: FittedRanker, features: NDArray[Any], pairs: Sequence[tuple[int, int]]
) -> Attributions:
    """Attribute the differences of scores within one list to features.

    Args:
        ranker: the trained ranker.
        features: ``[n, F]`` raw features of all items of the list.
        pairs: ``(upper, lower)`` items, counting from 0.

    Returns:
        What each feature adds to the difference of each pair, ``[P, F]``, with the differences.

    Raises:
        ValueError: a pair is not two items of the list.

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
    if not pairs:  # the list may be empty, which tree libraries do not take
        return Attributions(np.zeros((0, features.shape[1])), np.zeros(0), np.zeros(0))
    items = torch.from_numpy(np.array(features, np.float32))
    sources = ranker.transform.sources.cpu()  # the raw feature of each transformed column
    with torch.no_grad():
        transformed = copy.deepcopy(ranker.transform).to("cpu").transform(items)
        if isinstance(ranker.network, TreeScorer):
            return _from_tree_shap(ranker.network, transformed, pairs, sources, features.shape[1])
        scorer, columns = _Scorer(ranker.network), transformed.double()
        embedded = scorer.network
        if hasattr(embedded, "expand_sources"):  # a categorical feature has several columns
            columns, sources = embedded.embed(columns), embedded.expand_sources(sources)
            scorer = _Scorer(embedded.network)
        paths = [_Path.of(scorer, columns, pair) for pair in pairs]
    values = np.zeros((len(paths), features.shape[1]))
    for row, path in zip(values, paths, strict=True):
        # Input c of the layers is derived from column c % g after the transforms.
        input_sources = sources.repeat(path.change.shape[1] // max(1, len(sources)))
        row[:] = _integrate(path, input_sources, len(row)).numpy()
    return Attributions(
        values=values,
        differences=np.array([path.end for path in paths]),
        baselines=np.array([path.start for path in paths]),
    )


def _from_tree_shap(
    trees: TreeScorer,
    transformed: Float[Tensor, "n g"],
    pairs: Sequence[tuple[int, int]],
    sources: Int[Tensor, " g"],
    n_features: int,
) -> Attributions:
    """The attributions of raw features by their TreeSHAP values in the two items.

    Args:
        trees: the ranker.
        transformed: features of the list.
        pairs: ``(upper, lower)`` items.
        sources: the raw feature of each transformed column.
        n_features: the number of raw features.
    """
    upper, lower = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    by_column, scores = trees.contributions(transformed), trees(transformed).double()
    by_feature = by_column.new_zeros(len(by_column), n_features).index_add(1, sources, by_column)
    return Attributions(
        values=(by_feature[upper] - by_feature[lower]).numpy(),
        differences=(scores[upper] - scores[lower]).numpy(),
        baselines=np.zeros(len(pairs)),
    )


class _Scorer:
    """The scores of a list as a function of the inputs of the layers, in float64.

    A network without the methods ``inputs`` and ``score_inputs`` has its features as inputs.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network: Any = copy.deepcopy(network).to("cpu").double().eval()
        self.network.requires_grad_(False)
        self._has_inputs = hasattr(network, "score_inputs")

    def inputs(self, features: Float[Tensor, "n g"]) -> Float[Tensor, "n w"]:
        """The inputs of the layers for one list."""
        if not self._has_inputs:
            return features
        mask = torch.ones(1, len(features), dtype=torch.bool)
        inputs: Tensor = self.network.inputs(features[None], mask)[0]
        return inputs

    def __call__(self, inputs: Float[Tensor, "s n w"]) -> Float[Tensor, "s n"]:
        mask = torch.ones(inputs.shape[:-1], dtype=torch.bool)
        score = self.network.score_inputs if self._has_inputs else self.network
        scores: Tensor = score(inputs, mask)
        return scores


@dataclass(frozen=True)
class _Path:
    """The straight path from the baseline of a pair to the items as they are.

    If the score of an item depends on its own inputs only, the path has only the two items of the
    pair instead of the whole list.

    Attributes:
        scorer: computes the scores of the list from inputs.
        origin: the inputs at the baseline.
        change: the inputs of the items as they are, less those at the baseline.
        upper: the row of the upper item.
        lower: the row of the lower item.
    """

    scorer: _Scorer
    origin: Float[Tensor, "n w"]
    change: Float[Tensor, "n w"]
    upper: int
    lower: int

    @classmethod
    def of(cls, scorer: _Scorer, transformed: Float[Tensor, "n g"], pair: tuple[int, int]) -> _Path:
        """The path of a pair of items in a list."""
        rows = list(pair)
        baseline = transformed.clone()
        baseline[rows] = transformed[rows].mean(0)
        end, origin = scorer.inputs(transformed), scorer.inputs(baseline)
        pair_alone = scorer(torch.stack([end[rows], origin[rows]]))
        pair_in_list = scorer(torch.stack([end, origin]))[:, rows]
        if torch.allclose(pair_alone, pair_in_list, rtol=1e-9, atol=1e-9):
            end, origin, rows = end[rows], origin[rows], [0, 1]
        return cls(scorer, origin, end - origin, rows[0], rows[1])

    def difference(self, positions: Float[Tensor, " s"]) -> tuple[Tensor, Tensor]:
        """At positions from 0 to 1, the score differences ``[s]`` and the inputs ``[s, n, w]``."""
        points = self.origin + positions[:, None, None] * self.change
        points.requires_grad_()
        scores = self.scorer(points)
        return scores[:, self.upper] - scores[:, self.lower], points

    @property
    def start(self) -> float:
        """The difference of the scores at the baseline."""
        return self.difference(torch.zeros(1, dtype=torch.float64))[0].item()

    @property
    def end(self) -> float:
        """The difference of the scores of the items as they are."""
        return self.difference(torch.ones(1, dtype=torch.float64))[0].item()


def _integrate(path: _Path, sources: Int[Tensor, " w"], n_features: int) -> Float[Tensor, " F"]:
    """The attribution of each raw feature.

    The number of steps doubles until attributions add up to the change of the difference of the
    scores along the path.

    Args:
        path: of the integration.
        sources: the raw feature that each input of the layers is derived from.
        n_features: the number of raw features.
    """
    total = path.end - path.start
    steps = _STEPS
    while True:
        by_input = _midpoint_rule(path, steps)
        values = by_input.new_zeros(n_features).index_add(0, sources, by_input)
        error, size = abs(float(values.sum()) - total), float(values.abs().sum())
        if error <= _TOLERANCE * size or steps >= _MAX_STEPS:
            return values
        steps *= 2


def _midpoint_rule(path: _Path, steps: int) -> Float[Tensor, " w"]:
    """The attribution of each input of the layers, integrated by the midpoint rule."""
    positions = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    total = torch.zeros_like(path.change)
    for chunk in positions.split(max(1, _MAX_INPUTS // max(1, path.change.numel()))):
        differences, points = path.difference(chunk)
        (gradient,) = torch.autograd.grad(differences.sum(), points)
        total += gradient.sum(0)
    return (total / steps * path.change).sum(0)
