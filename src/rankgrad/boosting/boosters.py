"""boost: grow trees with LightGBM or XGBoost on any loss, and stop early by any exact metric.

:func:`boost` is called by :mod:`rankgrad.training._tree_fitting`, which adds run folders and
logging, and by comparisons with the libraries' own objectives. For both libraries the class
:class:`_Rounds` evaluates each round on the validation lists and decides when to stop, so that the
two differ only in how a tree is grown.

In shapes, N is the number of items of a data set and F the number of features.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from rankgrad.boosting import lightgbm as lightgbm_adapter
from rankgrad.boosting import xgboost as xgboost_adapter
from rankgrad.boosting.objectives import library
from rankgrad.data._blocks import block_height
from rankgrad.data._dataset import Dataset
from rankgrad.losses import Loss, losses
from rankgrad.metrics import evaluate, metrics
from rankgrad.metrics._base import undefined_message

__all__ = [
    "BUILT_IN",
    "KINDS",
    "MISSING_ATTRIBUTE",
    "VALI",
    "BoostedTrees",
    "BoostingConfig",
    "BoostingState",
    "Kind",
    "Round",
    "boost",
    "contributor",
    "predictor",
    "seeded_loss",
    "unused_options",
]

Kind = Literal["lightgbm", "xgboost"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The name of each library's own ranking objective.
BUILT_IN: Mapping[Kind, str] = {"lightgbm": "lambdarank", "xgboost": "rank:ndcg"}

#: The attribute of a saved XGBoost model that lists, as JSON, the indices of the features that had
#: missing values in training. Models of LightGBM have that information in their trees.
MISSING_ATTRIBUTE = "missing_features"

#: The name of the validation lists in the scores of a round.
VALI = "vali"


class Round(NamedTuple):
    """A finished round of boosting, as a callback gets it.

    Attributes:
        number: the number of the round, counted from 1.
        scores: the scores ``[N]`` of each evaluated data set by its name, which is ``vali`` for the
            validation lists, if there are any.
        state: a function that returns the state to resume from. It saves all trees, so it is called
            only when a checkpoint is written.
    """

    number: int
    scores: Mapping[str, Any]
    state: Callable[[], BoostingState]


#: The largest label that both libraries' own objectives take with the gain ``2^y - 1``: LightGBM's
#: table of gains ends there, and XGBoost takes 31. One limit for both gives them the same gains.
_LARGEST_LABEL = 30

#: A function from features ``[N, F]`` to scores ``[N]`` or contributions ``[N, F + 1]``.
_Predictor = Callable[[Any], Any]

#: A callback after each round. It returns True to end boosting.
_OnRound = Callable[[Round], bool | None]


@dataclass(frozen=True)
class BoostingState:
    """What boosting resumes from.

    Attributes:
        saved: all trees, in the library's own format.
        curve: the validation metric after each round; empty without validation lists.
        trees: the number of trees after each round. LightGBM may grow no tree in a round.
        best: for DART with validation lists only, the trees as they were after the best round,
            since later rounds change their weights.
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
        loss: a loss, or its spec; None for the library's own objective, which ``options`` may name.
        metric: the spec of the metric that stops boosting and chooses the best round, on validation
            lists.
        options: parameters of the library, by its names.
        rounds: the largest number of rounds; each grows one tree.
        patience: stop after this many rounds without a better value; None to never stop early.
        seed: the seed of the library, and of a loss that is given as a spec.
        threads: the number of threads the library uses.
        label_gain: ``label_gain[y]`` is the gain of label y, in place of the loss's own gains; the
            library's own objective ignores it.
        device: where the loss is computed for XGBoost; for LightGBM it is always the CPU.
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
    """The result of :func:`boost`.

    Attributes:
        kind: the library.
        saved: the trees up to the best round, in the library's own format.
        best_round: the number of the best round, counted from 1.
        state: the state to resume from, with all trees.
    """

    kind: Kind
    saved: bytes
    best_round: int
    state: BoostingState

    @property
    def curve(self) -> list[float]:
        """The validation metric after each round; empty without validation lists."""
        return self.state.curve

    def predict(self, features: Any) -> Any:
        """The scores ``[N]`` of items with features ``[N, F]``.

        Args:
            features: ``[N, F]``.

        Returns:
            The scores, ``[N]``.
        """
        return predictor(self.kind, self.saved)(features)


def boost(
    train: Dataset,
    vali: Dataset | None,
    config: BoostingConfig,
    on_round: _OnRound | None = None,
    start: BoostingState | None = None,
    others: Mapping[str, Dataset] | None = None,
) -> BoostedTrees:
    """Grow trees on the training lists, and return those up to the round with the best metric.

    Resuming from a state gives the same trees as boosting without a break, unless the library draws
    random numbers (fractions of items or features, DART, GOSS). The libraries do not save their
    random state, so trees grown after resuming use a new seed. The generators of a loss that draws
    random numbers are not part of the state: the caller restores them
    (:func:`rankgrad.losses._base.generators_of`).

    Args:
        train: the training lists. Item weights multiply the terms of the loss.
        vali: the validation lists that stop boosting; without them all rounds are run.
        config: how to boost.
        on_round: called after each round; if it returns True, boosting ends.
        start: the state to resume from; None for a new start.
        others: further data sets by name; they are only scored for ``on_round``.

    Returns:
        The trees up to the best round, and the state to resume from.

    Raises:
        ImportError: the library is not installed.
        ValueError: the library refuses an option or the data; all features are constant; the metric
            is undefined on every validation list; the items have weights, which XGBoost's own
            objective cannot take.
    """
    _check_varies(train)
    rounds = _Rounds(vali, config, on_round, start)
    evaluated = ({} if vali is None else {VALI: vali}) | dict(others or {})
    grow = _boost_lightgbm if config.kind == "lightgbm" else _boost_xgboost
    try:
        grow(train, evaluated, rounds)
    except _error_class(config.kind) as error:
        if "num_features()) > (0)" in str(error):  # LightGBM has dropped all features
            raise ValueError(
                f"lightgbm refuses it: no feature can be split so that min_data_in_leaf of the "
                f"{train.n_items} training items, 20 by default, are on either side. Give a lower "
                "min_data_in_leaf"
            ) from error
        raise _refusal(config.kind, error) from error
    return BoostedTrees(config.kind, rounds.best_trees(), rounds.best_round, rounds.state())


def _check_varies(train: Dataset) -> None:
    """Raise if all training items have the same features."""
    height, first = block_height(train.n_features), train.features[:1]
    for start in range(0, train.n_items, height):
        block = np.asarray(train.features[start : start + height])
        if not ((block == first) | (np.isnan(block) & np.isnan(first))).all():
            return
    raise ValueError(
        f"all {train.n_features} features are constant in the training data, so there is nothing "
        "to learn from"
    )


def _refusal(kind: Kind, error: Exception) -> ValueError:
    """The error for an error of the library, without its source file or stack trace."""
    message = str(error).partition(" at /")[0].partition("Stack trace:")[0]
    return ValueError(f"{kind} refuses it: {' '.join(message.split())}")


def unused_options(kind: Kind, options: Mapping[str, Any]) -> list[str]:
    """The names of options that the library would ignore, as it does with misspelt ones.

    Args:
        kind: the library.
        options: values by name.

    Returns:
        The names, sorted.

    Raises:
        ImportError: the library is not installed.
        ValueError: the library refuses the value of an option.
    """
    package = library(kind)
    if kind == "lightgbm":
        aliases = package.basic._ConfigAliases._get_all_param_aliases()
        return sorted(set(options) - set(aliases).union(*aliases.values()))
    matrix = package.DMatrix(np.zeros((1, 1)))  # XGBoost configures nothing without features
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checked = {"verbosity": 1, "validate_parameters": True}
        try:
            package.Booster({**options, **checked}, [matrix]).save_config()
        except _error_class(kind) as error:
            raise _refusal(kind, error) from error
    names = [re.search(r"Parameters: \{ (.*) \} are not used", str(w.message)) for w in caught]
    return sorted(name for found in names if found for name in json.loads(f"[{found[1]}]"))


def _error_class(kind: Kind) -> Any:
    """The class of the library's own errors."""
    package = library(kind)
    return package.basic.LightGBMError if kind == "lightgbm" else package.core.XGBoostError


def predictor(kind: Kind, saved: bytes, threads: int = 1) -> _Predictor:
    """A function that scores features with saved trees.

    Args:
        kind: the library.
        saved: the trees, in the library's own format.
        threads: the number of threads the library uses.

    Returns:
        A function from features ``[N, F]`` to scores ``[N]``.
    """
    return _prediction_function(kind, saved, threads, contributions=False)


def contributor(kind: Kind, saved: bytes, threads: int = 1) -> _Predictor:
    """A function that attributes the scores of saved trees to the features, by TreeSHAP.

    See Lundberg et al. 2018. The contributions of an item add up to its score; the last column is
    the constant that all items share.

    Args:
        kind: the library.
        saved: the trees, in the library's own format.
        threads: the number of threads the library uses.

    Returns:
        A function from features ``[N, F]`` to contributions ``[N, F + 1]``.
    """
    return _prediction_function(kind, saved, threads, contributions=True)


def seeded_loss(spec: str, seed: int) -> Loss:
    """A new loss from its spec.

    Args:
        spec: the spec of the loss.
        seed: the seed of the loss, if it draws random numbers and its spec has no seed.

    Returns:
        The loss.
    """
    parsed = losses.parse(spec)
    takes_seed = "seed" in inspect.signature(losses.factory(parsed.name)).parameters
    if takes_seed and parsed.options.get("seed") is None:
        return losses.get(spec, seed=seed)
    return losses.get(spec)


def _prediction_function(kind: Kind, saved: bytes, threads: int, contributions: bool) -> _Predictor:
    """A function from features to scores, or to contributions of the features."""
    package = library(kind)
    if kind == "lightgbm":
        booster = package.Booster(model_str=saved.decode())
        return partial(booster.predict, pred_contrib=contributions, num_threads=threads)
    booster = package.Booster({"nthread": threads}, model_file=bytearray(saved))
    return lambda features: booster.predict(
        _dmatrix(features, None, booster.feature_types, threads), pred_contribs=contributions
    )


def _dmatrix(features: Any, labels: Any, types: Sequence[str] | None, threads: int) -> Any:
    """Features ``[N, F]`` and labels ``[N]``, or None, as a DMatrix of XGBoost.

    ``types`` ``[F]`` is ``"c"`` for a categorical feature and ``"q"`` for another one.
    """
    options: dict[str, Any] = {"nthread": threads}
    if types is not None and "c" in types:
        options |= {"feature_types": types, "enable_categorical": True}
    return library("xgboost").DMatrix(features, labels, **options)


#: Seeds are below this, since LightGBM reads them as signed 32-bit integers.
_SEED_LIMIT = 2**31

#: The options of LightGBM that seed the random numbers it draws while growing trees. Its option
#: ``seed`` would also change the bins of features.
_TREE_SEEDS = ("bagging_seed", "feature_fraction_seed", "drop_seed", "extra_seed")

#: Options that are the fraction of items or features drawn at random; 1 draws nothing.
_SAMPLED_FRACTIONS = (
    *("bagging_fraction", "feature_fraction", "feature_fraction_bynode"),
    *("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
)


def _is_random(config: BoostingConfig) -> bool:
    """Whether the library draws random numbers while it grows trees."""
    options = config.options
    is_sampled = any(options.get(name, 1) < 1 for name in _SAMPLED_FRACTIONS)
    is_goss = options.get("data_sample_strategy") == "goss"
    return bool(config.is_dart or is_sampled or is_goss or options.get("extra_trees"))


class _Rounds:
    """The rounds of one call of :func:`boost`: evaluates them, reports them, says when to stop.

    The function that grows the trees sets :attr:`save` before the first round ends. In each round
    it calls :meth:`take_scores` for every evaluated data set, and then :meth:`end`.

    Attributes:
        save: a function ``save(n)`` that returns the first n trees in the library's own format.
        loss: the loss that is boosted; None for the library's own objective.
        curve: the validation metric after each round.
        trees: the number of trees after each round.
    """

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
        self.save: Callable[[int], bytes]
        self._lower_is_better = metrics.get(config.metric).lower_is_better
        self._best_dart_trees = start.best if start is not None and start.curve else None
        self._on_round = on_round
        #: Of the validation lists: labels ``[N]``, offsets ``[B + 1]``, and weights ``[N]`` or None
        self._lists: tuple[Any, Any, Any] | None = None
        self._scores: dict[str, Any] = {}
        if vali is not None:
            weights = None if vali.weights is None else np.array(vali.weights)
            self._lists = (np.array(vali.labels), np.array(vali.offsets), weights)
        self._set_progress()

    @property
    def done(self) -> int:
        """The number of finished rounds."""
        return len(self.trees)

    @property
    def remaining(self) -> int:
        """The largest number of rounds that may follow."""
        return 0 if self._out_of_patience() else max(0, self.config.rounds - self.done)

    def resumed_seed(self) -> int | None:
        """The seed for trees grown after resuming; None if none is needed.

        With the first seed, the library would draw the same random numbers as for the first trees.
        """
        if self.start is None or not _is_random(self.config):
            return None
        numbers = [self.config.seed, len(self.start.trees)]
        return int(np.random.SeedSequence(numbers).generate_state(1)[0]) % _SEED_LIMIT

    @property
    def best_round(self) -> int:
        """The round with the best metric, the first of equal ones; the last without validation."""
        if not self.curve:
            return self.done
        return int(np.argmin(self.curve) if self._lower_is_better else np.argmax(self.curve)) + 1

    def state(self) -> BoostingState:
        """The state to resume from."""
        curve, trees = list(self.curve), list(self.trees)
        return BoostingState(self.save(self.trees[-1]), curve, trees, self._best_dart_trees)

    def best_trees(self) -> bytes:
        """The trees up to the best round."""
        return self._best_dart_trees or self.save(self.trees[self.best_round - 1])

    def take_scores(self, name: str, scores: Any) -> None:
        """Take the scores ``[N]`` of a data set after a round, and evaluate those of ``vali``."""
        self._scores[name] = scores = np.asarray(scores, np.float32)
        if name != VALI:
            return
        assert self._lists is not None
        labels, offsets, weights = self._lists
        evaluation = evaluate(
            scores, labels, offsets=offsets, weights=weights, metrics=self.config.metric
        )
        self.curve.append(next(iter(evaluation.mean.values())))
        if np.isnan(self.curve[-1]):
            raise ValueError(undefined_message(self.config.metric))

    def end(self, trees: int) -> bool:
        """End a round after which there are ``trees`` trees; returns whether to stop."""
        self.trees.append(trees)
        self._set_progress()
        if self.config.is_dart and self.curve and self.best_round == self.done:
            self._best_dart_trees = self.save(trees)
        stop = False
        if self._on_round is not None:
            stop = bool(self._on_round(Round(self.done, self._scores, self.state)))
        return stop or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        patience = self.config.patience
        return bool(self.curve) and patience is not None and self.done - self.best_round >= patience

    def _set_progress(self) -> None:
        """Set the loss's progress, from 0 to 1, for schedules such as that of a temperature."""
        if self.loss is not None:
            self.loss.progress = min(1.0, self.done / self.config.rounds)


def _boost_lightgbm(train: Dataset, evaluated: Mapping[str, Dataset], rounds: _Rounds) -> None:
    """Grow the remaining rounds with LightGBM."""
    package, config = library("lightgbm"), rounds.config
    labels, gains = train.labels, {}
    if _takes_linear_gain(train, config):
        # The gain of each label is listed, so that labels may be large, and fractions.
        listed, labels = np.unique(train.labels, return_inverse=True)
        gains["label_gain"] = listed.tolist()
    options = {
        "metric": "none",
        "verbosity": -1,
        "num_threads": config.threads,
        "deterministic": True,
        "force_row_wise": True,
        "seed": config.seed % _SEED_LIMIT,
        "objective": BUILT_IN["lightgbm"],
        **gains,
        **config.options,
    }
    if rounds.loss is not None:
        objective = lightgbm_adapter.objective(rounds.loss, label_gain=config.label_gain)
        # LightGBM deep-copies its options. That would copy the objective with its loss, whose
        # progress ``rounds`` sets; a function is not copied.
        options["objective"] = lambda scores, data: objective(scores, data)
    if (seed := rounds.resumed_seed()) is not None:
        options |= dict.fromkeys(_TREE_SEEDS, seed)
    train_set = package.Dataset(
        np.asarray(train.features),
        labels,
        group=_group_sizes(train),
        weight=train.weights,
        categorical_feature=_categorical_columns(train),
    )
    names: dict[Any, str] = {}  # of the evaluated data sets, by LightGBM's Dataset
    for name, lists in evaluated.items():
        features, group = np.asarray(lists.features), _group_sizes(lists)
        names[train_set.create_valid(features, lists.labels, group=group)] = name

    def feval(scores: Any, data: Any) -> list[Any]:
        """Pass on the scores of a data set; LightGBM takes this for a metric without values."""
        rounds.take_scores(names[data], scores)
        return []

    arguments: dict[str, Any] = {"valid_sets": list(names), "feval": feval}
    if rounds.start is not None:
        first_trees = package.Booster(model_str=rounds.start.saved.decode())
        rounds.save = _lightgbm_saver(first_trees, config)
        arguments["init_model"] = first_trees

    def end_round(env: Any) -> None:
        rounds.save = _lightgbm_saver(env.model, config)
        if rounds.end(env.model.num_trees()):
            raise package.callback.EarlyStopException(env.iteration, [])

    if rounds.remaining:
        package.train(options, train_set, rounds.remaining, callbacks=[end_round], **arguments)


def _takes_linear_gain(train: Dataset, config: BoostingConfig) -> bool:
    """Whether the library's own objective gets the linear gain of the validation metric.

    It does if labels are fractions or too large for its gain ``2^y - 1``, unless the options name
    an objective or gains.

    Raises:
        ValueError: they are, and the metric has another gain.
    """
    if config.loss is not None or {"objective", "label_gain", "ndcg_exp_gain"} & {*config.options}:
        return False
    largest, is_whole = float(train.labels.max()), not (train.labels % 1).any()
    if is_whole and largest <= _LARGEST_LABEL:
        return False
    if getattr(metrics.get(config.metric), "gain", None) == "linear":
        return True
    found = f"the largest is {largest:g}" if is_whole else "there are fractions"
    raise ValueError(
        f"the objective of the library itself takes whole labels up to {_LARGEST_LABEL} with the "
        f"gain 2^y - 1, and {found}: validate by a metric with gain=linear "
        "(rankgrad compare --validation-metric 'ndcg@10(gain=linear)'), or use other labels"
    )


def _lightgbm_saver(booster: Any, config: BoostingConfig) -> Callable[[int], bytes]:
    """A function that saves the first trees of a booster: see :attr:`_Rounds.save`."""

    def save(trees: int) -> bytes:
        text = booster.model_to_string(num_iteration=trees)
        # In a resumed booster, the text has the number of rounds that remained. Write the number of
        # all rounds instead, so that the same trees are saved as the same bytes.
        line = f"[num_iterations: {config.rounds}]"
        return re.sub(r"(?m)^\[num_iterations: \d+\]$", line, text).encode()

    return save


def _boost_xgboost(train: Dataset, evaluated: Mapping[str, Dataset], rounds: _Rounds) -> None:
    """Grow the remaining rounds with XGBoost."""
    package, config = library("xgboost"), rounds.config
    options = {
        "tree_method": "hist",
        "grow_policy": "lossguide",  # leaf by leaf, as LightGBM grows trees
        "max_depth": 0,  # no limit
        "nthread": config.threads,
        "seed": rounds.resumed_seed() or config.seed % _SEED_LIMIT,
        "verbosity": 0,
        "disable_default_eval_metric": 1,
        "ndcg_exp_gain": not _takes_linear_gain(train, config),
        **config.options,
    }
    objective = None
    if rounds.loss is None:
        options.setdefault("objective", BUILT_IN["xgboost"])
        if train.weights is not None:
            raise ValueError(
                "XGBoost's ranker takes no weights of items: leave them out of the data"
            )
    else:
        objective = xgboost_adapter.objective(
            rounds.loss,
            item_weights=train.weights,
            label_gain=config.label_gain,
            device=config.device,
        )
    train_set = _list_matrix(train, config)
    matrices = {name: _list_matrix(lists, config) for name, lists in evaluated.items()}
    booster = package.Booster(
        options,
        [train_set, *matrices.values()],
        model_file=None if rounds.start is None else bytearray(rounds.start.saved),
    )
    missing = np.flatnonzero(np.isnan(train.features).any(0)).tolist()
    booster.set_attr(**{MISSING_ATTRIBUTE: json.dumps(missing)})
    rounds.save = lambda trees: bytes(booster[:trees].save_raw("json"))
    for number in range(rounds.done, rounds.done + rounds.remaining):
        booster.update(train_set, number, fobj=objective)
        for name, matrix in matrices.items():
            rounds.take_scores(name, booster.predict(matrix, output_margin=True))
        if rounds.end(booster.num_boosted_rounds()):
            break


def _list_matrix(lists: Dataset, config: BoostingConfig) -> Any:
    """A data set as a DMatrix of XGBoost, with its group sizes."""
    categorical = _categorical_columns(lists)
    types = ["c" if column in categorical else "q" for column in range(lists.n_features)]
    matrix = _dmatrix(np.asarray(lists.features), lists.labels, types, config.threads)
    matrix.set_group(_group_sizes(lists))
    return matrix


def _categorical_columns(lists: Dataset) -> list[int]:
    """The indices of the categorical features."""
    return [column for column, names in enumerate(lists.categories or ()) if names is not None]


def _group_sizes(lists: Dataset) -> Any:
    """The lengths of the lists that are not empty."""
    return lists.lengths[lists.lengths > 0]
