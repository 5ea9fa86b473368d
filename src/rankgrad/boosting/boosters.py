"""boost: trees of LightGBM or XGBoost on lists, with any loss, stopped by any exact metric."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from rankgrad.boosting import lightgbm as for_lightgbm
from rankgrad.boosting import xgboost as for_xgboost
from rankgrad.boosting.objectives import library, undefined_message
from rankgrad.data._dataset import Dataset
from rankgrad.losses import Loss, losses
from rankgrad.metrics import evaluate, metrics

__all__ = [
    "BUILT_IN",
    "KINDS",
    "MISSING_ATTRIBUTE",
    "BoostedTrees",
    "BoostingConfig",
    "BoostingState",
    "Kind",
    "Round",
    "boost",
    "contributor",
    "predictor",
    "seeded_loss",
]

Kind = Literal["lightgbm", "xgboost"]
KINDS: tuple[Kind, ...] = ("lightgbm", "xgboost")

#: What each library calls its own objective.
BUILT_IN: Mapping[Kind, str] = {"lightgbm": "lambdarank", "xgboost": "rank:ndcg"}

#: The attribute of XGBoost's trees that names features with missing values in training; trees of
#: LightGBM say so themselves.
MISSING_ATTRIBUTE = "missing_features"


class Round(NamedTuple):
    """A round of boosting that is done.

    Attributes:
        number: from 1 on.
        scores: of the validation lists, ``[N]``; None without them.
        state: gives what boosting can go on from.
    """

    number: int
    scores: Any
    state: Callable[[], BoostingState]


#: Called after each round. True ends boosting there.
_OnRound = Callable[[Round], bool | None]


@dataclass(frozen=True)
class BoostingState:
    """How far boosting has come.

    Attributes:
        saved: all trees, in the library's own format.
        curve: the validation metric after each round; empty without validation lists.
        trees: how many trees there are after each round: LightGBM may grow none in one.
        best: of DART, the trees after the best round as they were then.
    """

    saved: bytes
    curve: list[float]
    trees: list[int]
    best: bytes | None = None


@dataclass(frozen=True)
class BoostingConfig:
    """How trees are boosted.

    Args:
        kind: the library.
        loss: a loss, or the spec of one, drawing by the seed; None for the library's own objective.
        metric: stops and chooses the number of trees, on validation lists.
        options: of the library.
        rounds: trees, at most.
        patience: stop after this many trees without a better value; None for never.
        seed: of what is random in the library, and in the loss.
        threads: that the library uses.
        label_gain: of whole labels, for the loss.
        device: where the loss is computed.
    """

    kind: Kind
    loss: str | Loss | None = None
    metric: str = "ndcg@10"
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1000
    patience: int | None = 50
    seed: int = 0
    threads: int = 1
    label_gain: Sequence[float] | None = None
    device: str = "cpu"

    @property
    def is_dart(self) -> bool:
        """Whether later trees change the weights of earlier ones."""
        return "dart" in (self.options.get("boosting"), self.options.get("booster"))


@dataclass(frozen=True)
class BoostedTrees:
    """Trees up to the best round in their library's own format, and how far boosting has come."""

    kind: Kind
    saved: bytes
    best_round: int
    state: BoostingState

    @property
    def curve(self) -> list[float]:
        """The validation metric after each round."""
        return self.state.curve

    def predict(self, features: Any) -> Any:
        """The scores of items, ``[N]``."""
        return predictor(self.kind, self.saved)(features)


def boost(
    train: Dataset,
    vali: Dataset | None,
    config: BoostingConfig,
    on_round: _OnRound | None = None,
    start: BoostingState | None = None,
) -> BoostedTrees:
    """Boost trees on the training lists; and keep those up to the best validation value.

    Going on from a state gives the trees that boosting without a break gives, unless the library
    draws random numbers (fractions of items or features, DART, GOSS): it saves no random state, so
    that later trees have draws of their own.

    Args:
        train: what to learn from. Weights of items are those of the loss.
        vali: what stops; without it all rounds are grown.
        config: see :class:`BoostingConfig`.
        on_round: called after each round.
        start: what to go on from; None to begin.

    Returns:
        The trees, and what boosting can go on from.

    Raises:
        ImportError: the library is not installed.
        ValueError: the library refuses an option or the data; the metric is undefined on every
            validation list; the built-in objective of XGBoost cannot take weights of items.
    """
    rounds = _Rounds(vali, config, on_round, start)
    grow = _lightgbm if config.kind == "lightgbm" else _xgboost
    try:
        saved = grow(train, vali, config, rounds)
    except _errors(config.kind) as error:
        message = str(error).partition(" at /")[0]  # LightGBM goes on with a line of its source
        raise ValueError(f"{config.kind} refuses it: {' '.join(message.split())}") from error
    return BoostedTrees(config.kind, saved, rounds.best, rounds.state())


def _errors(kind: Kind) -> type[Exception]:
    """What the library raises."""
    package = library(kind)
    error: type[Exception] = (
        package.basic.LightGBMError if kind == "lightgbm" else package.core.XGBoostError
    )
    return error


def predictor(kind: Kind, saved: bytes, threads: int = 1) -> Callable[[Any], Any]:
    """What scores features with saved trees.

    Args:
        kind: the library.
        saved: the trees, in its format.
        threads: that it uses.

    Returns:
        A function of features ``[N, F]``, which gives scores ``[N]``.
    """
    return _caller(kind, saved, threads, contributions=False)


def contributor(kind: Kind, saved: bytes, threads: int = 1) -> Callable[[Any], Any]:
    """What gives the part of each feature in the scores of saved trees, ``[N, F + 1]``.

    The parts are TreeSHAP's (Lundberg et al. 2018). The last column is what all items share, and a
    row adds up to the score.

    Args:
        kind: the library.
        saved: the trees, in its format.
        threads: that it uses.

    Returns:
        A function of features ``[N, F]``.
    """
    return _caller(kind, saved, threads, contributions=True)


def _caller(kind: Kind, saved: bytes, threads: int, contributions: bool) -> Callable[[Any], Any]:
    """What calls saved trees with features, for scores or for the parts of features in them."""
    package = library(kind)
    if kind == "lightgbm":
        booster = package.Booster(model_str=saved.decode())
        return partial(booster.predict, pred_contrib=contributions, num_threads=threads)
    booster = package.Booster({"nthread": threads}, model_file=bytearray(saved))
    return lambda features: booster.predict(
        _dmatrix(features, None, booster.feature_types, threads), pred_contribs=contributions
    )


def _dmatrix(features: Any, labels: Any, types: Sequence[str] | None, threads: int) -> Any:
    """Features for XGBoost; the type of a categorical one is ``"c"``."""
    options: dict[str, Any] = {"nthread": threads}
    if types is not None and "c" in types:
        options |= {"feature_types": types, "enable_categorical": True}
    return library("xgboost").DMatrix(features, labels, **options)


class _Rounds:
    """The rounds of one boosting: evaluates them, reports them, says when to stop."""

    def __init__(
        self,
        vali: Dataset | None,
        config: BoostingConfig,
        on_round: _OnRound | None,
        start: BoostingState | None,
    ) -> None:
        self.config, self.start = config, start
        self.curve = [] if start is None else list(start.curve)
        self.trees = [] if start is None else list(start.trees)
        loss = config.loss
        self.loss = seeded_loss(loss, config.seed) if isinstance(loss, str) else loss
        self.save: Callable[[int], bytes]  # the first trees, in the library's format
        self._lower = metrics.get(config.metric).lower_is_better
        self._best = None if start is None else start.best
        self._on_round, self._lists = on_round, None
        self._scores: Any = None
        if vali is not None:
            weights = None if vali.weights is None else np.array(vali.weights)
            self._lists = (np.array(vali.labels), np.array(vali.offsets), weights)
        self._set_progress()

    @property
    def done(self) -> int:
        """How many rounds are done."""
        return len(self.trees)

    @property
    def left(self) -> int:
        """How many rounds there may be yet."""
        return 0 if self.done and self._waited_enough() else self.config.rounds - self.done

    def resumed_seed(self) -> int | None:
        """The seed of random draws after resuming, other than that of the first trees; or None."""
        if self.start is None or not _is_random(self.config):
            return None
        numbers = [self.config.seed, len(self.start.trees)]
        return int(np.random.SeedSequence(numbers).generate_state(1)[0]) % 2**31

    @property
    def best(self) -> int:
        """The first of the best rounds, as both libraries choose; without a metric the last."""
        if not self.curve:
            return self.done
        return int(np.argmin(self.curve) if self._lower else np.argmax(self.curve)) + 1

    def state(self) -> BoostingState:
        """What boosting can go on from."""
        curve, trees = list(self.curve), list(self.trees)
        return BoostingState(self.save(self.trees[-1]), curve, trees, self._best)

    def saved(self) -> bytes:
        """The trees up to the best round."""
        return self._best or self.save(self.trees[self.best - 1])

    def evaluate(self, scores: Any) -> None:
        """Take the validation scores of the round that is about to end."""
        assert self._lists is not None
        labels, offsets, weights = self._lists
        self._scores = np.asarray(scores, np.float32)
        evaluation = evaluate(
            self._scores, labels, offsets=offsets, weights=weights, metrics=self.config.metric
        )
        self.curve.append(next(iter(evaluation.mean.values())))
        if np.isnan(self.curve[-1]):
            raise ValueError(undefined_message(self.config.metric))

    def feval(self, scores: Any, _: Any) -> tuple[str, float, bool]:
        """:meth:`evaluate` as LightGBM calls a metric; what stops boosting is :meth:`end`."""
        self.evaluate(scores)
        return self.config.metric, self.curve[-1], True

    def end(self, trees: int) -> bool:
        """End a round; ``trees`` are grown so far. Returns whether to stop."""
        self.trees.append(trees)
        self._set_progress()
        if self.config.is_dart and self.best == self.done:
            self._best = self.save(trees)
        stop = False
        if self._on_round is not None:
            stop = bool(self._on_round(Round(self.done, self._scores, self.state)))
        return stop or self._waited_enough()

    def _waited_enough(self) -> bool:
        patience = self.config.patience
        return bool(self.curve) and patience is not None and self.done - self.best >= patience

    def _set_progress(self) -> None:
        if self.loss is not None:
            self.loss.progress = min(1.0, self.done / self.config.rounds)


#: Seeds of LightGBM's draws for trees; others are of the bins of features.
_DRAWING_SEEDS = ("bagging_seed", "feature_fraction_seed", "drop_seed", "extra_seed")

#: Options that are fractions of what is drawn from, 1 for all of it.
_FRACTIONS = (
    *("bagging_fraction", "feature_fraction", "feature_fraction_bynode"),
    *("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
)


def _is_random(config: BoostingConfig) -> bool:
    """Whether the library draws random numbers while it grows trees."""
    options = config.options
    drawn = options.get("extra_trees") or options.get("data_sample_strategy") == "goss"
    return bool(config.is_dart or drawn or any(options.get(name, 1) < 1 for name in _FRACTIONS))


def _lightgbm(
    train: Dataset, vali: Dataset | None, config: BoostingConfig, rounds: _Rounds
) -> bytes:
    package = library("lightgbm")
    options = {
        "metric": "none",
        "verbosity": -1,
        "num_threads": config.threads,
        "deterministic": True,
        "force_row_wise": True,
        "seed": config.seed % 2**31,
        **config.options,
        "objective": BUILT_IN["lightgbm"],
    }
    if rounds.loss is not None:
        objective = for_lightgbm.objective(rounds.loss, label_gain=config.label_gain)
        # A function: LightGBM copies any other object, and with it the state of the loss.
        options["objective"] = lambda scores, data: objective(scores, data)
    if (seed := rounds.resumed_seed()) is not None:
        options |= dict.fromkeys(_DRAWING_SEEDS, seed)
    learn = package.Dataset(
        np.asarray(train.features),
        train.labels,
        group=_sizes(train),
        weight=train.weights,
        categorical_feature=_categorical(train),
    )
    checked: dict[str, Any] = {}
    if vali is not None:
        check = learn.create_valid(np.asarray(vali.features), vali.labels, group=_sizes(vali))
        checked = {"valid_sets": [check], "feval": rounds.feval}
    before = None
    if rounds.start is not None:
        before = package.Booster(model_str=rounds.start.saved.decode())
        rounds.save = _lightgbm_saver(before, config)

    def end_round(env: Any) -> None:
        rounds.save = _lightgbm_saver(env.model, config)
        if rounds.end(env.model.num_trees()):
            raise package.callback.EarlyStopException(env.iteration, [])

    if rounds.left:
        called = [end_round]
        package.train(options, learn, rounds.left, callbacks=called, init_model=before, **checked)
    return rounds.saved()


def _lightgbm_saver(booster: Any, config: BoostingConfig) -> Callable[[int], bytes]:
    def save(trees: int) -> bytes:
        text = booster.model_to_string(num_iteration=trees)
        # It writes down how many rounds were left, where boosting went on.
        rounds = f"[num_iterations: {config.rounds}]"
        return re.sub(r"(?m)^\[num_iterations: \d+\]$", rounds, text).encode()

    return save


def _xgboost(
    train: Dataset, vali: Dataset | None, config: BoostingConfig, rounds: _Rounds
) -> bytes:
    package = library("xgboost")
    options = {
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_depth": 0,
        "nthread": config.threads,
        "seed": rounds.resumed_seed() or config.seed % 2**31,
        "verbosity": 0,
        "disable_default_eval_metric": 1,
        **config.options,
    }
    objective = None
    if rounds.loss is None:
        options["objective"] = BUILT_IN["xgboost"]
        if train.weights is not None:
            raise ValueError(
                "XGBoost's ranker takes no weights of items: leave them out of the data"
            )
    else:
        objective = for_xgboost.objective(
            rounds.loss,
            item_weights=train.weights,
            label_gain=config.label_gain,
            device=config.device,
        )
    learn = _matrix(train, config)
    check = None if vali is None else _matrix(vali, config)
    booster = package.Booster(
        options,
        [learn] if check is None else [learn, check],
        model_file=None if rounds.start is None else bytearray(rounds.start.saved),
    )
    missing = np.flatnonzero(np.isnan(train.features).any(0)).tolist()
    booster.set_attr(**{MISSING_ATTRIBUTE: json.dumps(missing)})
    rounds.save = lambda trees: bytes(booster[:trees].save_raw("json"))
    for number in range(rounds.done, rounds.done + rounds.left):
        booster.update(learn, number, fobj=objective)
        if check is not None:
            rounds.evaluate(booster.predict(check, output_margin=True))
        if rounds.end(booster.num_boosted_rounds()):
            break
    return rounds.saved()


def _categorical(lists: Dataset) -> list[int]:
    """Which columns are codes of categories."""
    return [at for at, names in enumerate(lists.categories or ()) if names is not None]


def seeded_loss(spec: str, seed: int) -> Loss:
    """The loss; one that draws random numbers and has no seed of its own draws by this one.

    Args:
        spec: of the loss.
        seed: of its draws.

    Returns:
        A new loss.
    """
    parsed = losses.parse(spec)
    random = "seed" in inspect.signature(losses.factory(parsed.name)).parameters
    if random and parsed.options.get("seed") is None:
        return losses.get(spec, seed=seed)
    return losses.get(spec)


def _matrix(lists: Dataset, config: BoostingConfig) -> Any:
    chosen = _categorical(lists)
    types = ["c" if at in chosen else "q" for at in range(lists.n_features)]
    matrix = _dmatrix(np.asarray(lists.features), lists.labels, types, config.threads)
    matrix.set_group(_sizes(lists))
    return matrix


def _sizes(lists: Dataset) -> Any:
    return lists.lengths[lists.lengths > 0]
