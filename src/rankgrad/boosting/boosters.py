"""boost: trees of LightGBM or XGBoost on lists, with any loss, stopped by any exact metric."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rankgrad.boosting import lightgbm as for_lightgbm
from rankgrad.boosting import xgboost as for_xgboost
from rankgrad.boosting.objectives import library, undefined
from rankgrad.data.dataset import Dataset
from rankgrad.losses import Loss, losses
from rankgrad.metrics import evaluate, metrics

Kind = Literal["lightgbm", "xgboost"]
KINDS: tuple[Kind, ...] = ("lightgbm", "xgboost")

#: What each library calls its own objective.
BUILT_IN: Mapping[Kind, str] = {"lightgbm": "lambdarank", "xgboost": "rank:ndcg"}

#: The attribute of XGBoost's trees that names features with missing values in training; trees of
#: LightGBM say so themselves.
MISSING_ATTRIBUTE = "missing_features"

#: Called after each tree, with its number from 1 on and the validation scores, None without data.
OnRound = Callable[[int, Any], None]


@dataclass(frozen=True)
class BoostingConfig:
    """How trees are boosted.

    Args:
        kind: the library.
        loss: the spec of a loss; None for the library's own objective.
        metric: stops and chooses the number of trees, on validation lists.
        options: of the library.
        rounds: trees, at most.
        patience: stop after so many trees without a better value; None for never.
        seed: of what is random in the library, and in the loss.
        threads: that the library uses.
    """

    kind: Kind
    loss: str | None = None
    metric: str = "ndcg@10"
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1000
    patience: int | None = 50
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class BoostedTrees:
    """Trees: the model in its library's own format, and the validation metric after each tree."""

    kind: Kind
    saved: bytes
    curve: list[float]
    best_round: int

    def predict(self, features: Any) -> Any:
        """The scores of items, ``[N]``."""
        return predictor(self.kind, self.saved)(features)


def boost(
    train: Dataset, vali: Dataset | None, config: BoostingConfig, on_round: OnRound | None = None
) -> BoostedTrees:
    """Boost trees on the training lists; and keep those up to the best validation value.

    Args:
        train: what to learn from. Weights of items are those of the loss.
        vali: what stops; without it all rounds are grown.
        config: see :class:`BoostingConfig`.
        on_round: called after each tree.

    Raises:
        ImportError: the library is not installed.
        ValueError: the library refuses an option or the data; the metric is undefined on every
            validation list; the built-in objective of XGBoost cannot take weights of items.
    """
    validation = _ValidationCurve(vali, config, on_round)
    make = _lightgbm if config.kind == "lightgbm" else _xgboost
    try:
        saved, best = make(train, vali, config, validation)
    except _errors(config.kind) as error:
        message = str(error).partition(" at /")[0]  # LightGBM goes on with a line of its source
        raise ValueError(f"{config.kind} refuses it: {' '.join(message.split())}") from error
    return BoostedTrees(config.kind, saved, validation.curve, best)


def _errors(kind: Kind) -> type[Exception]:
    """What the library raises."""
    package = library(kind)
    error: type[Exception] = (
        package.basic.LightGBMError if kind == "lightgbm" else package.core.XGBoostError
    )
    return error


def predictor(kind: Kind, saved: bytes, threads: int = 1) -> Callable[[Any], Any]:
    """What scores features with saved trees."""
    package = library(kind)
    if kind == "lightgbm":
        booster = package.Booster(model_str=saved.decode())
        return lambda features: booster.predict(features, num_threads=threads)
    booster = package.Booster({"nthread": threads}, model_file=bytearray(saved))
    return lambda features: booster.predict(_with_types(package, booster, features, threads))


def contributor(kind: Kind, saved: bytes, threads: int = 1) -> Callable[[Any], Any]:
    """What gives the part of each feature in the scores of saved trees, ``[N, F + 1]``.

    The parts are TreeSHAP's (Lundberg et al. 2018). The last column is what all items share, and a
    row adds up to the score.
    """
    package = library(kind)
    if kind == "lightgbm":
        booster = package.Booster(model_str=saved.decode())
        return lambda features: booster.predict(features, pred_contrib=True, num_threads=threads)
    booster = package.Booster({"nthread": threads}, model_file=bytearray(saved))
    return lambda features: booster.predict(
        _with_types(package, booster, features, threads), pred_contribs=True
    )


def _with_types(package: Any, booster: Any, features: Any, threads: int) -> Any:
    """Features for XGBoost, with the types of those that it was trained on."""
    types = booster.feature_types
    categorical = types is not None and "c" in types
    return package.DMatrix(
        features,
        nthread=threads,
        feature_types=types if categorical else None,
        enable_categorical=categorical,
    )


class _ValidationCurve:
    """The validation metric after each tree."""

    def __init__(
        self, vali: Dataset | None, config: BoostingConfig, on_round: OnRound | None
    ) -> None:
        self.metric, self.curve = config.metric, list[float]()
        self.higher = not metrics.get(config.metric).lower_is_better
        self._on_round, self._counted = on_round, 0
        self._lists = None if vali is None else (np.array(vali.labels), np.array(vali.offsets))
        self._weights = None if vali is None or vali.weights is None else np.array(vali.weights)

    def __call__(self, scores: Any, _: Any) -> float:
        assert self._lists is not None
        labels, offsets = self._lists
        scores = np.asarray(scores, np.float32)
        found = evaluate(
            scores, labels, offsets=offsets, weights=self._weights, metrics=self.metric
        )
        self.curve.append(next(iter(found.mean.values())))
        if np.isnan(self.curve[-1]):
            raise ValueError(undefined(self.metric))
        if self._on_round is not None:
            self._on_round(len(self.curve), scores)
        return self.curve[-1]

    def count(self, trees: int) -> None:
        """Tell of a tree where there are no validation lists; LightGBM may grow none in a round."""
        if self._on_round is not None and trees > self._counted:
            self._on_round(trees, None)
        self._counted = trees


def _lightgbm(
    train: Dataset, vali: Dataset | None, config: BoostingConfig, validation: _ValidationCurve
) -> tuple[bytes, int]:
    package = library("lightgbm")
    options = {
        "metric": "none",
        "verbosity": -1,
        "num_threads": config.threads,
        "deterministic": True,
        "force_row_wise": True,
        "seed": config.seed % 2**31,
        **config.options,
        "objective": BUILT_IN["lightgbm"]
        if config.loss is None
        else for_lightgbm.objective(_seeded(config.loss, config.seed)),
    }
    learn = package.Dataset(
        np.asarray(train.features),
        train.labels,
        group=_sizes(train),
        weight=train.weights,
        categorical_feature=_categorical(train),
    )
    if vali is None:
        booster = package.train(
            options,
            learn,
            config.rounds,
            callbacks=[lambda state: validation.count(state.model.num_trees())],
        )
        return booster.model_to_string().encode(), booster.num_trees()
    check = learn.create_valid(np.asarray(vali.features), vali.labels, group=_sizes(vali))
    stop = [package.early_stopping(config.patience, verbose=False)] if config.patience else []
    booster = package.train(
        options,
        learn,
        config.rounds,
        valid_sets=[check],
        feval=lambda scores, data: (config.metric, validation(scores, data), validation.higher),
        callbacks=stop,
    )
    best = _best_round(validation)
    return booster.model_to_string(num_iteration=best).encode(), best


def _xgboost(
    train: Dataset, vali: Dataset | None, config: BoostingConfig, validation: _ValidationCurve
) -> tuple[bytes, int]:
    package = library("xgboost")
    options = {
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_depth": 0,
        "nthread": config.threads,
        "seed": config.seed % 2**31,
        "verbosity": 0,
        "disable_default_eval_metric": 1,
        **config.options,
    }
    objective = None
    if config.loss is None:
        options["objective"] = BUILT_IN["xgboost"]
        if train.weights is not None:
            raise ValueError(
                "XGBoost's ranker takes no weights of items: leave them out of the data"
            )
    else:
        objective = for_xgboost.objective(
            _seeded(config.loss, config.seed), item_weights=train.weights
        )
    learn = _matrix(package, train, config)
    checked: dict[str, Any] = {"callbacks": [_counter(package, validation)]}
    name = for_xgboost.name_of_metric(config.metric)
    if vali is not None:
        checked = {
            "evals": [(_matrix(package, vali, config), "vali")],
            "custom_metric": lambda scores, data: (name, validation(scores, data)),
            "maximize": validation.higher,
            "early_stopping_rounds": config.patience,
        }
    booster = package.train(
        options, learn, config.rounds, obj=objective, verbose_eval=False, **checked
    )
    best = booster.num_boosted_rounds() if vali is None else _best_round(validation)
    missing = np.flatnonzero(np.isnan(train.features).any(0)).tolist()
    booster.set_attr(**{MISSING_ATTRIBUTE: json.dumps(missing)})
    return bytes(booster[:best].save_raw("json")), best


def _counter(package: Any, validation: _ValidationCurve) -> Any:
    """The callback of XGBoost that tells of each tree."""

    class Counter(package.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            validation.count(model.num_boosted_rounds())
            return False

    return Counter()


def _categorical(lists: Dataset) -> list[int]:
    """Which columns are codes of categories."""
    return [at for at, names in enumerate(lists.categories or ()) if names is not None]


def _seeded(spec: str, seed: int) -> Loss:
    """The loss; one that draws random numbers and has no seed of its own draws by this one."""
    parsed = losses.parse(spec)
    random = "seed" in inspect.signature(losses.factory(parsed.name)).parameters
    if random and parsed.options.get("seed") is None:
        return losses.get(spec, seed=seed)
    return losses.get(spec)


def _best_round(validation: _ValidationCurve) -> int:
    """The first of the best, as both libraries choose."""
    best = np.argmax(validation.curve) if validation.higher else np.argmin(validation.curve)
    return int(best) + 1


def _matrix(package: Any, lists: Dataset, config: BoostingConfig) -> Any:
    chosen = _categorical(lists)
    types = ["c" if at in chosen else "q" for at in range(lists.n_features)] if chosen else None
    matrix = package.DMatrix(
        np.asarray(lists.features),
        lists.labels,
        nthread=config.threads,
        feature_types=types,
        enable_categorical=bool(chosen),
    )
    matrix.set_group(_sizes(lists))
    return matrix


def _sizes(lists: Dataset) -> Any:
    return lists.lengths[lists.lengths > 0]
