"""Trees: LightGBM and XGBoost as entries, on the same data and tuned alike.

Both boost trees on any loss, or on their own LambdaRank gradients of NDCG, and stop early by the
comparison's own validation metric, not by their own, which count lists without relevant items as 1.
Values are chosen on the validation data of each fold: those of a small grid, or by as many trials
as the losses have where a comparison is tuned. A run folder has ``run.json``, ``metrics.jsonl`` (a
line per tree) and the model in its library's own format beside ``evaluations``.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankgrad import _files
from rankgrad._validation import check_choice
from rankgrad.boosting.boosters import (
    BUILT_IN,
    KINDS,
    BoostedTrees,
    BoostingConfig,
    Kind,
    boost,
    predictor,
)
from rankgrad.boosting.objectives import library
from rankgrad.experiments.plans import Plan, ProgressCallback, Splits, Task
from rankgrad.experiments.tuning import Grid, Range, Space, finish, search
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.training import Settings
from rankgrad.training.run import METRICS, RUN, run_metadata

_MODEL = {"lightgbm": "model.txt", "xgboost": "model.json"}
#: The values that are tried without ``--tune``: every combination, 24 for each library.
_GRID: Mapping[str, tuple[tuple[Mapping[str, Any], ...], ...]] = {
    "lightgbm": (
        tuple({"num_leaves": leaves} for leaves in (7, 15, 31)),
        tuple({"learning_rate": rate} for rate in (0.1, 0.03)),
        tuple({"min_data_in_leaf": items} for items in (20, 80)),
        (
            {"feature_fraction": 1.0, "bagging_fraction": 1.0},
            {"feature_fraction": 0.5, "bagging_fraction": 0.7},
        ),
    ),
    "xgboost": (
        tuple({"max_leaves": leaves} for leaves in (7, 15, 31)),
        tuple({"learning_rate": rate} for rate in (0.1, 0.03)),
        tuple({"min_child_weight": weight} for weight in (0.1, 1.0)),
        ({"colsample_bytree": 1.0, "subsample": 1.0}, {"colsample_bytree": 0.5, "subsample": 0.7}),
    ),
}
#: What ``--tune`` searches, and the values of the first trial.
_SPACE: Mapping[str, Mapping[str, tuple[Range, float]]] = {
    "lightgbm": {
        "num_leaves": (Range(4, 128, integer=True), 31),
        "learning_rate": (Range(0.01, 0.3), 0.1),
        "min_data_in_leaf": (Range(5, 200, integer=True), 20),
        "lambda_l2": (Range(1e-3, 100.0), 1e-3),
        "feature_fraction": (Range(0.3, 1.0, log=False), 1.0),
        "bagging_fraction": (Range(0.3, 1.0, log=False), 1.0),
    },
    "xgboost": {
        "max_leaves": (Range(4, 128, integer=True), 31),
        "learning_rate": (Range(0.01, 0.3), 0.1),
        "min_child_weight": (Range(0.01, 20.0), 1.0),
        "lambda": (Range(1e-3, 100.0), 1.0),
        "colsample_bytree": (Range(0.3, 1.0, log=False), 1.0),
        "subsample": (Range(0.3, 1.0, log=False), 1.0),
    },
}


@dataclass(frozen=True)
class TreeEntry:
    """Boosted trees to compare with.

    Args:
        name: what tables show.
        kind: ``"lightgbm"`` or ``"xgboost"``.
        options: of the library, which are then not tuned.
        rounds: trees, at most.
        patience: stop after this many trees without a better value of the validation metric.
        loss: the spec of a loss to boost trees with; None for the library's own objective.

    >>> from rankgrad.experiments.compare import TreeEntry
    >>> TreeEntry("LightGBM", options={"num_leaves": 31}).labels(Settings())
    {'loss': 'lambdarank', 'model': 'lightgbm'}
    """

    name: str
    kind: Kind = "lightgbm"
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1000
    patience: int = 50
    loss: str | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        if self.loss is not None:
            object.__setattr__(self, "loss", str(losses.get(self.loss)))

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """All that its runs depend on."""
        return {
            "kind": self.kind,
            "options": dict(self.options),
            "rounds": self.rounds,
            "patience": self.patience,
            "metric": shared.metric,
            **({} if self.loss is None else {"loss": self.loss}),
        }

    def labels(self, shared: Settings) -> dict[str, Any]:
        """What is boosted, and by which library."""
        return {"loss": self.loss or BUILT_IN[self.kind], "model": self.kind}

    def is_tuned(self, plan: Plan) -> bool:
        """Wherever there is something to choose: these are the baselines to beat."""
        return plan.tune is not None or len(self._grid()) > 1

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Search leaves, learning rate and the like on validation data."""
        library(self.kind)
        plan = task.plan
        metric, seed = plan.settings.metric, plan.seeds[0]
        lower = metrics.get(metric).lower_is_better

        def objective(parameters: Mapping[str, Any]) -> float:
            curve = self.boost(data, metric, seed, parameters).curve
            return min(curve) if lower else max(curve)

        space: Space | Grid = Grid(self._grid())
        if plan.tune is not None:
            free = {k: v for k, v in _SPACE[self.kind].items() if k not in self.options}
            ranges = {name: option_range for name, (option_range, _) in free.items()}
            first = {name: value for name, (_, value) in free.items()}
            space = Space(ranges, first, plan.tune, seed)
        finish(task.trial_log, search(space, objective, metric, task.trial_log, on_progress))

    @property
    def combinations(self) -> int:
        """How many are tried where the comparison is not tuned."""
        return len(self._grid())

    def _grid(self) -> list[dict[str, Any]]:
        """Every combination of the grid, less the options that are given."""
        points: dict[str, dict[str, Any]] = {}
        for values in itertools.product(*_GRID[self.kind]):
            point = {k: v for choice in values for k, v in choice.items() if k not in self.options}
            points.setdefault(repr(point), point)
        return list(points.values())

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Boost with the chosen values, or take the model that is there, and score test lists."""
        features = np.asarray(data["test"].features)
        model = task.path / _MODEL[self.kind]
        if model.exists():
            saved = _files.read_part(model, _files.read_json(task.path / RUN))
            return predictor(self.kind, saved)(features)
        on_progress("boosting")
        settings = task.plan.settings
        started = time.perf_counter()
        done = self.boost(data, settings.metric, task.seed, task.values)
        metadata = {
            **run_metadata({name: data[name] for name in ("train", "vali")}),
            "kind": self.kind,
            "settings": {**self.metadata(settings), "seed": task.seed, "values": dict(task.values)},
            "best_epoch": done.best_round,
            "seconds": round(time.perf_counter() - started, 3),
        }
        lines = (
            json.dumps({"epoch": at, settings.metric: value}) + "\n"
            for at, value in enumerate(done.curve, start=1)
        )
        with _files.atomic_folder(task.path) as place:
            _files.write(place / _MODEL[self.kind], done.saved)
            _files.write(place / METRICS, "".join(lines))
            _files.write_json(place / RUN, metadata, [_MODEL[self.kind], METRICS])
        return done.predict(features)

    def boost(
        self, data: Splits, metric: str, seed: int, parameters: Mapping[str, Any]
    ) -> BoostedTrees:
        """Train on the training lists, stop by the validation metric."""
        if "bagging_fraction" in parameters:
            parameters = {"bagging_freq": 1, **parameters}  # without it LightGBM draws no items
        config = BoostingConfig(
            self.kind,
            self.loss,
            metric,
            options={**parameters, **self.options},
            rounds=self.rounds,
            patience=self.patience,
            seed=seed,
        )
        return boost(data["train"], data["vali"], config)
