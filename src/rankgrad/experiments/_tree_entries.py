"""Trees: LightGBM and XGBoost as entries of a comparison, on the same data as networks.

Both libraries boost trees with any loss, or with their own LambdaRank objective of NDCG. They stop
early by the comparison's validation metric, not by their own NDCG, which counts lists without
relevant items as 1.
Hyperparameters are chosen on the validation data of each fold: from a small grid or, in a tuned
comparison, by as many trials as networks have. A run folder has ``run.json``, ``metrics.jsonl`` (a
line per tree), the model in its library's own format, and ``evaluations``.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rankgrad import _files
from rankgrad._quoting import quote
from rankgrad._validation import check_choice, check_whole
from rankgrad.boosting import boosters
from rankgrad.boosting.objectives import library
from rankgrad.experiments.plans import Plan, ProgressCallback, Splits, Task
from rankgrad.experiments.tuning import Grid, Range, Space, finish, search
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.training import Settings
from rankgrad.training.run import METRICS, RUN, run_metadata

#: The name of the model's file in a run folder, by library.
_MODEL = {"lightgbm": "model.txt", "xgboost": "model.json"}
#: The grid without ``--tune``, an axis per line: every combination is tried, 24 for each library.
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
#: The range of each hyperparameter that ``--tune`` searches, and its value in the first trial.
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
    """Boosted trees as an entry of a comparison.

    Args:
        name: the name in tables.
        kind: ``"lightgbm"`` or ``"xgboost"``.
        options: hyperparameters of the library, by any of their names; these are not tuned.
            ``objective`` names another of the library's own objectives, such as ``rank:pairwise``.
        rounds: the number of trees, at most.
        patience: stop after this many trees without a better value of the validation metric.
        loss: the spec of a loss to boost trees with; None for the library's own objective.

    Raises:
        ValueError: a number is out of range, the library has no such option or refuses its value
            (if the library is installed), or there are both a loss and an objective.

    >>> from rankgrad.experiments.compare import TreeEntry
    >>> TreeEntry("LightGBM", options={"num_leaves": 31}).labels(Settings())
    {'loss': 'lambdarank', 'model': 'lightgbm'}
    """

    name: str
    kind: boosters.Kind = "lightgbm"
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1000
    patience: int = 50
    loss: str | None = None
    note: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, boosters.KINDS)
        for name in ("rounds", "patience"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name)))
        # NumPy's numbers would not be JSON.
        values = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.options.items()}
        object.__setattr__(self, "options", values)
        if self.loss is not None:
            object.__setattr__(self, "loss", str(losses.get(self.loss)))
        if len(self._fixed()) < len(self.options):
            names = ", ".join(self.options)
            raise ValueError(f"two of these are names of one option, leave one out: {names}")
        if self.loss is not None and "objective" in self.options:
            raise ValueError("loss and the option objective are both objectives: leave one out")
        self._check_used()

    def _check_used(self) -> None:
        """Raise if the library would ignore an option; without the library nothing is checked."""
        if not self.options:
            return
        own = {} if self.loss is not None else {"objective": boosters.BUILT_IN[self.kind]}
        try:
            unused = boosters.unused_options(self.kind, {**own, **self._fixed()})
        except ImportError:
            return
        if unused:
            names = ", ".join(map(quote, unused))
            raise ValueError(f"{self.kind} does not use these options: {names}")

    def check(self, shared: Settings) -> None:
        """Do nothing: its options were checked when it was made, and it takes no other settings."""

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """The settings of its runs, as JSON values."""
        return {
            "kind": self.kind,
            "options": dict(self.options),
            "rounds": self.rounds,
            "patience": self.patience,
            "metric": shared.metric,
            **({} if self.loss is None else {"loss": self.loss}),
        }

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its loss, and its library as the model."""
        objective = self.options.get("objective", boosters.BUILT_IN[self.kind])
        return {"loss": self.loss or objective, "model": self.kind}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether hyperparameters are chosen on validation data, so that it is a strong baseline.

        That is so even without ``--tune``, unless ``options`` sets all hyperparameters of the grid.
        """
        return plan.tune is not None or len(self._grid()) > 1

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Search hyperparameters such as the number of leaves on validation data."""
        library(self.kind)  # an error with the install line if it is missing
        plan = task.plan
        metric, seed = plan.settings.metric, plan.seeds[0]
        best = min if metrics.get(metric).lower_is_better else max

        def objective(parameters: Mapping[str, Any]) -> float:
            return best(self.boost(data, metric, seed, parameters).curve)

        space: Space | Grid = Grid(self._grid())
        if plan.tune is not None:
            fixed, options = self._fixed(), _SPACE[self.kind]
            free = {k: v for k, v in options.items() if self._resolve_alias(k) not in fixed}
            ranges = {name: option_range for name, (option_range, _) in free.items()}
            first = {name: value for name, (_, value) in free.items()}
            space = Space(ranges, first, plan.tune, seed)
        finish(task.trial_log, search(space, objective, metric, task.trial_log, on_progress))

    @property
    def combinations(self) -> int:
        """How many points of the grid are tried if the comparison is not tuned."""
        return len(self._grid())

    def first_point(self) -> TreeEntry:
        """An entry without a search: hyperparameters have the values of the grid's first point."""
        return replace(self, options={**self._grid()[0], **self.options})

    def _grid(self) -> list[dict[str, Any]]:
        """Every combination of the grid's hyperparameters that ``options`` does not set, once."""
        points: list[dict[str, Any]] = []
        fixed = self._fixed()
        for choices in itertools.product(*_GRID[self.kind]):
            point = {k: v for choice in choices for k, v in choice.items() if k not in fixed}
            if point not in points:
                points.append(point)
        return points

    def _fixed(self) -> dict[str, Any]:
        """``options`` by their own names in place of aliases."""
        return {self._resolve_alias(name): value for name, value in self.options.items()}

    def _resolve_alias(self, name: str) -> str:
        """The name of an option in the model of the library, for this name or alias of it."""
        aliases: Mapping[str, str] = getattr(models.factory(self.kind), "option_aliases", {})
        return aliases.get(name, name)

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Boost with the chosen values, or load the saved model, and score the test lists.

        Returns:
            The scores of the test items, ``[N]``.
        """
        features = np.asarray(data["test"].features)
        model = task.path / _MODEL[self.kind]
        if model.exists():
            saved = _files.read_part(model, _files.read_json(task.path / RUN))
            return boosters.predictor(self.kind, saved)(features)
        on_progress("boosting")
        settings = task.plan.settings
        started = time.perf_counter()
        trees = self.boost(data, settings.metric, task.seed, task.values)
        metadata = {
            **run_metadata({name: data[name] for name in ("train", "vali")}),
            "kind": self.kind,
            "settings": {**self.metadata(settings), "seed": task.seed, "values": dict(task.values)},
            "best_epoch": trees.best_round,
            "seconds": round(time.perf_counter() - started, 3),
        }
        lines = (
            json.dumps({"epoch": number, settings.metric: value}) + "\n"
            for number, value in enumerate(trees.curve, start=1)
        )
        with _files.atomic_folder(task.path) as folder:
            _files.write(folder / _MODEL[self.kind], trees.saved)
            _files.write(folder / METRICS, "".join(lines))
            _files.write_json(folder / RUN, metadata, [_MODEL[self.kind], METRICS])
        return trees.predict(features)

    def boost(
        self, data: Splits, metric: str, seed: int, parameters: Mapping[str, Any]
    ) -> boosters.BoostedTrees:
        """Train on the training lists; stop early by the validation metric."""
        options = {**parameters, **self._fixed()}
        if "bagging_fraction" in options:
            options = {"bagging_freq": 1, **options}  # its default 0 turns bagging off
        config = boosters.BoostingConfig(
            self.kind,
            self.loss,
            metric,
            options=options,
            rounds=self.rounds,
            patience=self.patience,
            seed=seed,
        )
        return boosters.boost(data["train"], data["vali"], config)
