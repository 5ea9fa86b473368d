"""How many lists a loss needs: its statistical efficiency at the best scores.

Scores that are estimated from labels with noise differ from the best ones by chance. Near the best
scores u of the simulator, let a model have one parameter θ, which adds ``θ φ(x)`` to them. A loss
with gradient ψ estimates θ = 0 from N lists with the variance ``V / (N J²)``, where V is the
variance of ``φ · ψ`` over lists and J the derivative of its mean with respect to θ (the sandwich
formula of M-estimators, Huber 1967). So ``V / J²`` says how many lists the loss needs. It is
computed for random functions φ of the features. Scores are ``a u``, where the scale a is the one
with the lowest mean loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import candidates  # noqa: F401 (registers its losses)
import numpy as np
import torch
from data import Data
from plan import EXACT_FORWARD, LAMBDA, LEVELS, TEMPERED
from torch import Tensor

from rankgrad import losses
from rankgrad.data import Dataset, synthetic

LOSSES = (
    *(LAMBDA, LEVELS, "level_likelihood", "ndcg_bound@10", "softmax", "ranknet", "lambdarank@10"),
    *("listmle", "top_likelihood@10", "smoothi_ndcg@10", "neural_ndcg", "softsort_ndcg@10"),
    *("approx_ndcg", TEMPERED, "simulator_likelihood"),
)
#: Losses that are also measured at each scale of scores.
BY_SCALE = (LAMBDA, "approx_ndcg", "neural_ndcg", "smoothi_ndcg@10", EXACT_FORWARD, TEMPERED)
SCALES = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 32.0, 64.0)
_SHOWN_SCALES = (0.25, 1.0, 4.0, 16.0, 64.0)
_STEP = 0.15  # of θ in differences, in units of the deviation of φ


def run(path: Path, *, lists: int = 60, draws: int = 16, directions: int = 16) -> None:
    """Write ``V / J²`` of each loss and function, and the scale of its scores.

    Args:
        path: the JSON file to write.
        lists: the number of lists.
        draws: how often their labels are drawn.
        directions: the number of functions φ.
    """
    problem = Problem.simulated(lists, draws, directions)
    results: dict[str, Any] = {"lists": lists, "draws": draws, "directions": directions}
    results["losses"] = {spec: problem.best_scale(spec) for spec in LOSSES}
    results["scales"] = {
        spec: {str(scale): problem.variances(spec, scale) for scale in _SHOWN_SCALES}
        for spec in BY_SCALE
    }
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def relative(results: Mapping[str, Any], variances: Sequence[float]) -> float:
    """How many times as many lists as lambdaloss@10 a loss needs: the median over functions."""
    return float(np.median(np.divide(variances, results["losses"][LAMBDA]["variances"])))


class Problem:
    """Lists with the best scores and labels, and functions of their items.

    Args:
        utility: the best scores, ``[items]``.
        labels: ``[items]``.
        functions: φ, ``[functions, items]``.
        lengths: of the lists.
    """

    def __init__(
        self, utility: np.ndarray, labels: np.ndarray, functions: np.ndarray, lengths: np.ndarray
    ) -> None:
        self.utility, self.labels = torch.from_numpy(utility), torch.from_numpy(labels)
        self.functions = torch.from_numpy(functions)
        self.offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        self.list_of_item = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
        self.count = len(lengths)

    @classmethod
    def simulated(cls, lists: int, draws: int, directions: int) -> Problem:
        """Test lists of the simulator, each with several draws of its labels."""
        dataset = Data((1, 1, lists), features=len(synthetic.INFORMATIVE)).make("test")
        random = np.random.default_rng(18)
        labels = np.concatenate([_labels(dataset, random) for _ in range(draws)])
        utility = np.tile(synthetic.oracle(dataset), draws)
        functions = np.tile(_functions(dataset, directions, random), (1, draws))
        return cls(utility, labels, functions, np.tile(dataset.lengths, draws))

    def best_scale(self, spec: str) -> dict[str, Any]:
        """The scale with the lowest mean loss, and the variances there."""
        loss = losses.get(spec)

        def mean_loss(scale: float) -> float:
            with torch.no_grad():
                return float(loss(scale * self.utility, self.labels, offsets=self.offsets))

        scale = min(SCALES, key=mean_loss)
        return {"scale": scale, "variances": self.variances(spec, scale)}

    def variances(self, spec: str, scale: float) -> list[float]:
        """``V / J²`` of each function, with scores of this scale."""
        loss = losses.get(spec)
        products = (self.functions * self._gradient(loss, scale, 0.0)).T
        by_list = torch.zeros(self.count, len(self.functions), dtype=torch.float64)
        by_list.index_add_(0, self.list_of_item, products)
        derivatives = []
        for phi in self.functions:
            more, less = (
                (phi * self._gradient(loss, scale, step * phi)).sum() for step in (_STEP, -_STEP)
            )
            derivatives.append((more - less) / (2 * _STEP) / self.count)
        variances = by_list.var(0) / torch.stack(derivatives).square()
        return [float(f"{value:.4g}") for value in variances.tolist()]

    def _gradient(self, loss: Any, scale: float, change: Tensor | float) -> Tensor:
        """The gradient of the sum over lists with respect to ``change``, ``[items]``.

        The scores are ``scale * (utility + change)``.
        """
        scores = (scale * (self.utility + change)).requires_grad_()
        torch.manual_seed(0)  # differences of listmle, which orders ties at random, have no noise
        value = loss(scores, self.labels, offsets=self.offsets) * self.count
        (gradient,) = torch.autograd.grad(value, scores)
        return scale * gradient


def _labels(dataset: Dataset, random: np.random.Generator) -> np.ndarray:
    """Labels by the simulator's rule, drawn anew."""
    generosity = 0.56 * random.standard_normal(len(dataset))
    judgments = synthetic.oracle(dataset) + np.repeat(generosity, dataset.lengths)
    judgments += synthetic._NOISE * random.standard_normal(dataset.n_items)
    return np.searchsorted(synthetic._THRESHOLDS, judgments).astype(np.float64)


def _functions(dataset: Dataset, count: int, random: np.random.Generator) -> np.ndarray:
    """Random functions ``[count, items]`` of the features, of mean 0 and deviation 1."""
    features = np.log1p(np.abs(dataset.features.astype(np.float64)))
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    width = features.shape[1]
    weights = random.standard_normal((width, count)) / math.sqrt(width)
    values = np.tanh(2 * features @ weights + random.standard_normal(count)).T
    return (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
