"""What is trained: collections, losses, recipes, and the order of all runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankgrad.text._text_settings import TextSettings

#: Collections, and the files of their documents.
COLLECTIONS = {"cranfield": "cran.all.1400", "cisi": "CISI.ALL"}
DEPTH, FOLDS, SEEDS = 100, 5, (0, 1, 2)
METRIC, AP = "ndcg@10(gain=linear)", "ap"
BM25, UNTRAINED, CHOSEN = "BM25", "MiniLM, untrained", "chosen per fold"
LAMBDA = "LambdaLoss of sentence-transformers"

#: What tables call them, and their specs; None is the one that is not ours.
LOSSES: dict[str, str | None] = {
    "bce": "bce",
    "hinge": "hinge",
    "margin_mse": "margin_mse",
    LAMBDA: None,
    "softmax": "softmax",
    "approx_ndcg": "approx_ndcg",
    "smoothi_ndcg": "smoothi_ndcg",
    "neural_ndcg": "neural_ndcg",
    "lambdaloss@10": "lambdaloss@10",
}

#: What all runs share. Every step has whole lists, by gradient caching. 128 tokens of each text
#: are what the encoder was trained with.
RECIPE: dict[str, Any] = {
    "metric": METRIC,
    "metrics": [AP],
    "head": "embedding",
    "max_length": 128,
    "patience": 1,
    "head_learning_rate": 5e-3,
    "documents": None,
    "cache": True,
    "precision": "bf16-mixed",
}

#: As many steps for both collections, 2 x 34 of 4 queries and 3 x 23 of 2 queries, and two
#: mini-batches a step.
OF_COLLECTION: dict[str, dict[str, Any]] = {
    "cranfield": {"epochs": 2, "lists_per_step": 4, "mini_batch_size": 200},
    "cisi": {"epochs": 3, "lists_per_step": 2, "mini_batch_size": 100},
}

#: What each fold chooses among on its own validation queries, for all losses alike.
CHOICES: dict[str, dict[str, Any]] = {
    "attention 0.1, 5e-5": {"cross_attention": 0.1, "learning_rate": 5e-5},
    "attention 0.1, 2e-5": {"cross_attention": 0.1, "learning_rate": 2e-5},
    "attention 1, 5e-5": {"cross_attention": 1.0, "learning_rate": 5e-5},
}
#: The losses that are trained with every choice, with seed 0; their mean decides.
DECIDING = ("bce", "lambdaloss@10")


@dataclass(frozen=True)
class Task:
    """One training: a loss on a fold of a collection with a seed, by one of the choices."""

    collection: str
    fold: int  # from 1
    seed: int
    loss: str
    choice: str

    @property
    def key(self) -> str:
        """What it is called in results."""
        return json.dumps([self.collection, self.fold, self.seed, self.loss, self.choice])

    @classmethod
    def of(cls, key: str) -> Task:
        """The task of a key."""
        return cls(*json.loads(key))

    def settings(self, model: str, changes: Mapping[str, Any]) -> TextSettings:
        """Of its training."""
        values = {**RECIPE, **OF_COLLECTION[self.collection], **CHOICES[self.choice], **changes}
        # The loss that is not ours is given to training as a function.
        loss = LOSSES[self.loss] or "lambdaloss@10"
        return TextSettings(**values, model=model, loss=loss, seed=self.seed)


def choosing_tasks(collections: Iterable[str]) -> list[Task]:
    """The runs that choose the recipe of each fold."""
    names = list(collections)
    return [
        Task(name, fold, 0, loss, choice)
        for fold in range(1, FOLDS + 1)
        for name in names
        for loss in DECIDING
        for choice in CHOICES
    ]


def choose(results: Mapping[str, Mapping[str, Any]], collection: str, fold: int) -> str | None:
    """The choice with the best mean validation value on a fold; None while runs are missing."""
    values = {}
    for choice in CHOICES:
        tasks = [Task(collection, fold, 0, loss, choice) for loss in DECIDING]
        if any(task.key not in results for task in tasks):
            return None
        found = [results[task.key].get("best_value") for task in tasks]
        values[choice] = float(np.mean([-1.0 if value is None else value for value in found]))
    return max(values, key=lambda choice: values[choice])


def main_tasks(collections: Iterable[str], results: Mapping[str, Mapping[str, Any]]) -> list[Task]:
    """Every run of the study on folds that have chosen; those of one seed first."""
    names = list(collections)
    chosen = {
        (name, fold): choose(results, name, fold) for name in names for fold in range(1, FOLDS + 1)
    }
    return [
        Task(name, fold, seed, loss, choice)
        for seed in SEEDS
        for fold in range(1, FOLDS + 1)
        for name in names
        for loss in LOSSES
        if (choice := chosen[name, fold]) is not None
    ]
