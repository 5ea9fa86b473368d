"""A third world, in which every feature counts: does the default, which selects inputs, lose there?

Pages and features are the simulator's. The utility is a sum of as many terms as there are features,
each a saturated sum of two features, by their normal quantiles, with random weights; so it says
nothing of the other pages of a list. Its deviation, the noise of judgments and the frequencies of
labels are those of the simulator.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trees
from data import _GENEROSITY
from scipy.special import ndtr, ndtri
from train import encode, expected_ndcg, ndcg

from rankgrad.data import Dataset, synthetic
from rankgrad.training import Settings, fit
from rankgrad.training._settings import for_data

LISTS = {"train": 1000, "vali": 300, "test": 2000}
_QUERIES, _UTILITY = 31, 5  # seeds
#: How many of all labels are below each threshold, as in WEB30K.
_FREQUENCIES = (0.515, 0.84, 0.974, 0.993)
#: Changes of the settings of the default, by name.
VARIANTS: dict[str, dict[str, Any]] = {
    "the default": {},
    "`adamw(l1=0.1)`": {"optimizer": "adamw(l1=0.1)"},
    "without the L1 penalty": {"optimizer": "adamw"},
    "weight decay 0.3, without the L1 penalty": {"optimizer": "adamw", "weight_decay": 0.3},
    "`softmax`": {"loss": "softmax"},
}
#: Points of LightGBM by name: its defaults, and the best on the second world's features.
_POINTS = {"LightGBM": 0, "LightGBM, tuned at small size": 4}


def run(output: Path, threads: int) -> None:
    """Train LightGBM and variants of the default, and write what they reach.

    Args:
        output: a file of JSON.
        threads: of both libraries.
    """
    torch.set_num_threads(threads)
    lists, gains, utility = make()
    test = lists["test"]
    found: list[dict[str, Any]] = []

    def add(name: str, scores: np.ndarray) -> None:
        values = torch.from_numpy(np.asarray(scores, np.float32))
        exact, expected = ndcg(values, test), expected_ndcg(values, test, gains)
        own = {"name": name, "test": float(exact.mean()), "expected": float(expected.mean())}
        found.append(own | {"expected_per_query": encode(1 - expected)})
        print(f"{name}: {own['test']:.4f}, regret {100 * (1 - own['expected']):.2f} %", flush=True)
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    add("the best achievable", utility)
    for name, number in _POINTS.items():
        booster = trees.boost(trees.points()[number], lists["train"], lists["vali"], threads)
        add(name, booster.predict(test.features))
    default, _ = for_data(Settings(), lists["train"], explicit=())
    for name, changes in VARIANTS.items():
        settings = Settings(**default.model_dump() | changes)
        model = fit(settings, lists["train"], lists["vali"]).model
        add(name, np.asarray(model.predict(test.features, test.offsets)))


def make() -> tuple[dict[str, Dataset], np.ndarray, np.ndarray]:
    """The lists by part, and of the test lists the expected gains and the utility, ``[items]``."""
    parts = {part: synthetic.make(n, seed=_QUERIES, split=part) for part, n in LISTS.items()}
    train = parts["train"].features
    varied = np.flatnonzero(train.std(0) > 0)
    utility = _Utility(train[:, varied], synthetic.oracle(parts["train"], world="pointwise").std())
    lists, thresholds = {}, np.zeros(0)
    for number, (part, own) in enumerate(parts.items()):
        random = np.random.default_rng([9, number])
        generosity = np.repeat(_GENEROSITY * random.standard_normal(len(own)), own.lengths)
        judgments = utility(own.features[:, varied]) + generosity
        judgments += synthetic._NOISE * random.standard_normal(own.n_items)
        if part == "train":
            thresholds = np.quantile(judgments, _FREQUENCIES)
        labels = np.searchsorted(thresholds, judgments).astype(np.float32)
        lists[part] = Dataset(own.features, labels, own.offsets, own.qids)
    best = utility(parts["test"].features[:, varied])
    margins = (best[:, None] - thresholds) / math.hypot(_GENEROSITY, synthetic._NOISE)
    return lists, ndtr(margins) @ 2.0 ** np.arange(len(thresholds)), best


class _Utility:
    """The utility of items by features that vary ``[items, f]``, ``[items]``.

    Args:
        train: the features of training items, whose quantiles and deviation count.
        deviation: of the utility of training items.
    """

    def __init__(self, train: np.ndarray, deviation: float) -> None:
        random = np.random.default_rng(_UTILITY)
        self._sorted = np.sort(train, 0)
        order = random.permutation(train.shape[1])
        self._pairs = np.stack([order, np.roll(order, -1)])
        # By term: the weights of both features, the position of the step, and its direction.
        self._weights = random.standard_normal((3, len(order)))
        self._signs = random.choice([-1.0, 1.0], len(order))
        self._mean, self._scale = 0.0, 1.0
        raw = self(train)
        self._mean, self._scale = float(raw.mean()), deviation / float(raw.std())

    def __call__(self, features: np.ndarray) -> np.ndarray:
        normal = np.empty(features.shape)
        n = len(self._sorted)
        for column, reference in enumerate(self._sorted.T):
            values = features[:, column]
            rank = np.searchsorted(reference, values) + np.searchsorted(reference, values, "right")
            normal[:, column] = ndtri((rank + 1) / (2 * n + 2))
        total = np.zeros(len(features))
        for term, (first, second) in enumerate(self._pairs.T):
            a, b, c = self._weights[:, term]
            steps = np.tanh(a * normal[:, first] + b * normal[:, second] + 0.5 * c)
            total += self._signs[term] * steps
        return (total - self._mean) * self._scale
