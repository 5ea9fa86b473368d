"""Boosted trees and a network together, at small size: the mean of their scores, and a student.

The mean is that of scores standardized in the list, with the weight of LightGBM's that is best on
validation lists. The student is the default network, trained on that mean in place of labels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trees
from train import encode, label_by_scores, ndcg, standardized

from rankgrad.data import Dataset
from rankgrad.training import Settings, fit
from rankgrad.training._settings import for_data

WEIGHTS = np.linspace(0, 1, 11).round(1).tolist()  # of LightGBM's scores
#: Whether LightGBM has the list's columns, and its point: those best on validation lists.
LIGHTGBM = {"listwise": (True, 0), "pointwise": (False, 4)}
Splits = dict[str, Dataset]
Scores = dict[str, np.ndarray]  # of each split


def run(output: Path, world: str, threads: int) -> None:
    """Train LightGBM, the default network and a student, and add a line to the results.

    Args:
        output: a file.
        world: of the simulator.
        threads: of both libraries.
    """
    torch.set_num_threads(threads)
    in_list, point = LIGHTGBM[world]
    splits = {
        part: trees.features(trees.Trees("small", 0, world, False), part) for part in trees.PARTS
    }
    columns = {part: trees.with_columns(own) if in_list else own for part, own in splits.items()}
    booster = trees.boost(trees.points()[point], columns["train"], columns["vali"], threads)
    boosted = {part: booster.predict(own.features) for part, own in columns.items()}
    network = _train_network(splits["train"], splits)
    weight, mean = _best_mean(boosted, network, splits)
    student = _train_network(label_by_scores(mean["train"], splits["train"]), splits)
    line: dict[str, Any] = {"world": world, "in_list": in_list, "weight": weight}
    models = {"lightgbm": boosted, "network": network, "mean": mean, "student": student}
    for name, scores in models.items():
        values = _ndcg(scores["test"], splits["test"])
        validation = float(_ndcg(scores["vali"], splits["vali"]).mean())
        line[name] = {"validation": validation, "test": float(values.mean())}
        print(f"{world}, {name}: validation {validation:.4f}, test {values.mean():.4f}", flush=True)
        line[name]["per_query"] = encode(values)
    with output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _train_network(train: Dataset, splits: Splits) -> Scores:
    """Scores of the default network, as the rules choose it; the epoch is by ``splits["vali"]``."""
    settings, _ = for_data(Settings(), train, explicit=())
    model = fit(settings, train, splits["vali"]).model
    return {
        part: np.asarray(model.predict(own.features, own.offsets)) for part, own in splits.items()
    }


def _best_mean(boosted: Scores, network: Scores, splits: Splits) -> tuple[float, Scores]:
    """The weight of LightGBM's scores that is best on validation lists, and the weighted mean."""
    means = {weight: _mean(weight, boosted, network, splits) for weight in WEIGHTS}
    best = max(WEIGHTS, key=lambda weight: _ndcg(means[weight]["vali"], splits["vali"]).mean())
    return best, means[best]


def _mean(weight: float, boosted: Scores, network: Scores, splits: Splits) -> Scores:
    return {
        part: weight * standardized(boosted[part], own)
        + (1 - weight) * standardized(network[part], own)
        for part, own in splits.items()
    }


def _ndcg(scores: np.ndarray, lists: Dataset) -> np.ndarray:
    return ndcg(torch.from_numpy(scores.astype(np.float32)), lists)
