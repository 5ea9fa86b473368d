"""Trees: LightGBM's and XGBoost's rankers as candidates, on the same data and tuned alike.

Both boost trees on LambdaRank gradients of NDCG and stop early by the comparison's own validation
metric, not by their own, which count lists without relevant items as 1. Values are chosen on
validation data, on each fold anew: those of a small grid, or by as many trials as the losses have
where a comparison is tuned. A run folder has ``run.json``, ``metrics.jsonl`` (a line per tree) and
the model in its library's own format beside ``evaluations``.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankgrad import files
from rankgrad.data.dataset import Dataset
from rankgrad.experiments.plans import Plan, Scored, Task, Tell
from rankgrad.experiments.tuning import Range, finish, search
from rankgrad.metrics import evaluate, metrics
from rankgrad.options import check_choice
from rankgrad.training import Settings
from rankgrad.training.run import METRICS, RUN, facts_of

Kind = Literal["lightgbm", "xgboost"]

_LOSS = {"lightgbm": "lambdarank", "xgboost": "rank:ndcg"}
_MODEL = {"lightgbm": "model.txt", "xgboost": "model.json"}
_GRID: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "lightgbm": {
        "num_leaves": (7, 15, 31),
        "learning_rate": (0.1, 0.03),
        "min_data_in_leaf": (20, 80),
    },
    "xgboost": {
        "max_leaves": (7, 15, 31),
        "learning_rate": (0.1, 0.03),
        "min_child_weight": (0.1, 1.0),
    },
}
_SPACE: Mapping[str, Mapping[str, Range]] = {
    "lightgbm": {
        "num_leaves": Range(4, 128, whole=True),
        "learning_rate": Range(0.01, 0.3),
        "min_data_in_leaf": Range(5, 200, whole=True),
        "lambda_l2": Range(1e-3, 100.0),
        "feature_fraction": Range(0.3, 1.0, log=False),
    },
    "xgboost": {
        "max_leaves": Range(4, 128, whole=True),
        "learning_rate": Range(0.01, 0.3),
        "min_child_weight": Range(0.01, 20.0),
        "lambda": Range(1e-3, 100.0),
        "colsample_bytree": Range(0.3, 1.0, log=False),
    },
}
_FIRST: Mapping[str, Mapping[str, Any]] = {
    "lightgbm": {
        "num_leaves": 31,
        "learning_rate": 0.1,
        "min_data_in_leaf": 20,
        "lambda_l2": 1e-3,
        "feature_fraction": 1.0,
    },
    "xgboost": {
        "max_leaves": 31,
        "learning_rate": 0.1,
        "min_child_weight": 1.0,
        "lambda": 1.0,
        "colsample_bytree": 1.0,
    },
}


@dataclass(frozen=True)
class Boosted:
    """Boosted trees: their scores of features, the validation metric after each, and a file."""

    predict: Callable[[Any], Any]
    save: Callable[[Path], None]
    curve: list[float]
    best_round: int


@dataclass(frozen=True)
class TreeCandidate:
    """Boosted trees to compare with.

    Args:
        name: what tables show.
        kind: ``"lightgbm"`` or ``"xgboost"``.
        options: of the library, which are then not tuned.
        rounds: trees, at most.
        patience: stop after so many trees without a better value of the validation metric.

    >>> from rankgrad.experiments.trees import TreeCandidate
    >>> TreeCandidate("LightGBM", options={"num_leaves": 31}).labels(Settings())
    {'loss': 'lambdarank', 'model': 'lightgbm'}
    """

    name: str
    kind: Kind = "lightgbm"
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1000
    patience: int = 50

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, tuple(_LOSS))

    def facts(self, shared: Settings) -> dict[str, Any]:
        """All that its runs depend on."""
        return {
            "kind": self.kind,
            "options": dict(self.options),
            "rounds": self.rounds,
            "patience": self.patience,
            "metric": shared.metric,
        }

    def labels(self, shared: Settings) -> dict[str, Any]:
        """What is boosted, and by which library."""
        return {"loss": _LOSS[self.kind], "model": self.kind}

    def is_tuned(self, plan: Plan) -> bool:
        """Always: these are the baselines to beat."""
        return True

    def tune(self, plan: Plan, data: Mapping[str, Dataset], journal: Path, tell: Tell) -> None:
        """Search leaves, learning rate and the like on validation data."""
        library(self.kind)
        metric, seed = plan.settings.metric, plan.seeds[0]
        lower = metrics.get(metric).lower_is_better

        def objective(parameters: Mapping[str, Any]) -> float:
            curve = self.boost(data, metric, seed, parameters).curve
            return min(curve) if lower else max(curve)

        points = None if plan.tune is not None else self._grid()
        best = search(
            {name: one for name, one in _SPACE[self.kind].items() if name not in self.options},
            objective,
            plan.tune or len(self._grid()),
            journal,
            first={k: v for k, v in _FIRST[self.kind].items() if k not in self.options},
            metric=metric,
            seed=seed,
            tell=tell,
            points=points,
        )
        finish(journal, best)

    @property
    def combinations(self) -> int:
        """How many are tried where the comparison is not tuned."""
        return len(self._grid())

    def _grid(self) -> list[dict[str, Any]]:
        free = {k: v for k, v in _GRID[self.kind].items() if k not in self.options}
        return [
            dict(zip(free, values, strict=True)) for values in itertools.product(*free.values())
        ]

    def score(self, task: Task, data: Mapping[str, Dataset], tell: Tell) -> Scored:
        """Boost with the chosen values, or take the model that is there, and score test lists."""
        features = np.asarray(data["test"].features)
        model = task.path / _MODEL[self.kind]
        if model.exists():
            saved = files.read_part(model, files.read_json(task.path / RUN))
            return Scored(_loaded(self.kind, saved)(features))
        tell("boosting")
        settings = task.plan.settings
        done = self.boost(data, settings.metric, task.seed, task.values)
        facts = {
            **facts_of({name: data[name] for name in ("train", "vali")}),
            "kind": self.kind,
            "settings": {**self.facts(settings), "seed": task.seed, "values": dict(task.values)},
            "best_epoch": done.best_round,
        }
        lines = (
            json.dumps({"epoch": at, settings.metric: value}) + "\n"
            for at, value in enumerate(done.curve, start=1)
        )
        with files.folder(task.path) as place:
            done.save(place / _MODEL[self.kind])
            files.write(place / METRICS, "".join(lines))
            files.write_json(place / RUN, facts, [_MODEL[self.kind], METRICS])
        return Scored(done.predict(features))

    def boost(
        self, data: Mapping[str, Dataset], metric: str, seed: int, parameters: Mapping[str, Any]
    ) -> Boosted:
        """Train on the training lists, stop by the validation metric."""
        make = _lightgbm if self.kind == "lightgbm" else _xgboost
        chosen = {**parameters, **self.options}
        return make(data["train"], data["vali"], metric, seed, chosen, self.rounds, self.patience)


def library(kind: Kind) -> Any:
    """The library, or an error that says how to get it."""
    try:
        return importlib.import_module(kind)
    except ImportError:
        raise ImportError(f"{kind} is not installed: pip install 'rankgrad[trees]'") from None


def _lightgbm(
    train: Dataset,
    vali: Dataset,
    metric: str,
    seed: int,
    parameters: Mapping[str, Any],
    rounds: int,
    patience: int,
) -> Boosted:
    lightgbm = library("lightgbm")
    options = {
        "objective": "lambdarank",
        "metric": "none",
        "verbosity": -1,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed % 2**31,
        **parameters,
    }
    curve: list[float] = []
    value, lower = _validation(vali, metric)

    def measured(scores: Any, _: Any) -> tuple[str, float, bool]:
        curve.append(value(scores))
        return metric, curve[-1], not lower

    learn = lightgbm.Dataset(
        np.asarray(train.features), train.labels, group=_sizes(train), weight=train.weights
    )
    check = learn.create_valid(
        np.asarray(vali.features), vali.labels, group=_sizes(vali), weight=vali.weights
    )
    stop = lightgbm.early_stopping(patience, verbose=False)
    booster = lightgbm.train(
        options, learn, rounds, valid_sets=[check], feval=measured, callbacks=[stop]
    )
    best = booster.best_iteration
    return Boosted(
        predict=lambda features: booster.predict(features, num_iteration=best, num_threads=1),
        save=lambda path: files.write(path, booster.model_to_string(num_iteration=best)),
        curve=curve,
        best_round=best,
    )


def _xgboost(
    train: Dataset,
    vali: Dataset,
    metric: str,
    seed: int,
    parameters: Mapping[str, Any],
    rounds: int,
    patience: int,
) -> Boosted:
    xgboost = library("xgboost")
    options = {
        "objective": "rank:ndcg",
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_depth": 0,
        "nthread": 1,
        "seed": seed % 2**31,
        "verbosity": 0,
        "disable_default_eval_metric": 1,
        **parameters,
    }
    curve: list[float] = []
    value, lower = _validation(vali, metric)

    def measured(scores: Any, _: Any) -> tuple[str, float]:
        curve.append(value(scores))
        return metric, curve[-1]

    learn, check = (_matrix(xgboost, lists) for lists in (train, vali))
    booster = xgboost.train(
        options,
        learn,
        rounds,
        evals=[(check, "vali")],
        custom_metric=measured,
        maximize=not lower,
        early_stopping_rounds=patience,
        verbose_eval=False,
    )
    best = booster.best_iteration + 1
    booster = booster[:best]
    return Boosted(
        predict=lambda features: booster.predict(xgboost.DMatrix(features, nthread=1)),
        save=lambda path: files.write(path, bytes(booster.save_raw("json"))),
        curve=curve,
        best_round=best,
    )


def _matrix(xgboost: Any, lists: Dataset) -> Any:
    if lists.weights is not None:
        raise ValueError("XGBoost's ranker takes no weights of items: leave them out of the data")
    matrix = xgboost.DMatrix(np.asarray(lists.features), lists.labels, nthread=1)
    matrix.set_group(_sizes(lists))
    return matrix


def _loaded(kind: Kind, saved: bytes) -> Callable[[Any], Any]:
    """What predicts with a model that was saved."""
    made = library(kind)
    if kind == "lightgbm":
        booster = made.Booster(model_str=saved.decode())
        return lambda features: booster.predict(features, num_threads=1)
    booster = made.Booster({"nthread": 1}, model_file=bytearray(saved))
    return lambda features: booster.predict(made.DMatrix(features, nthread=1))


def _validation(vali: Dataset, metric: str) -> tuple[Callable[[Any], float], bool]:
    """The validation metric of scores, and whether lower is better."""
    labels, offsets = np.array(vali.labels), np.array(vali.offsets)
    weights = None if vali.weights is None else np.array(vali.weights)

    def value(scores: Any) -> float:
        found = evaluate(
            np.asarray(scores, np.float32), labels, offsets=offsets, weights=weights, metrics=metric
        )
        return next(iter(found.mean.values()))

    return value, metrics.get(metric).lower_is_better


def _sizes(lists: Dataset) -> Any:
    return lists.lengths[lists.lengths > 0]
