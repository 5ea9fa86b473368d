"""LightGBM and XGBoost as models: the libraries' options under their own names.

They have specs like networks, such as ``lightgbm(num_leaves=15)``;
:mod:`rankgrad.training._tree_fitting` grows the trees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NoReturn, get_args, get_origin, get_type_hints

from typing_extensions import override

from rankgrad._quoting import quote
from rankgrad._validation import check_choice, check_flag, check_positive, check_whole
from rankgrad.models._base import Model, models


def _aliases(names: Mapping[str, str]) -> dict[str, str]:
    """Turn ``{option: "alias alias ..."}`` into ``{alias: option}``."""
    return {alias: option for option, aliases in names.items() for alias in aliases.split()}


@dataclass(frozen=True, kw_only=True)
class TreeModel(Model):
    """Boosted trees. The training settings ``epochs`` and ``patience`` count trees."""

    #: ``{alias: option}``: the aliases that the library has, and the other library's names.
    option_aliases: ClassVar[Mapping[str, str]] = {}

    #: ``{option of a library: training setting}``, for options that are settings of rankgrad.
    settings_instead: ClassVar[Mapping[str, str]] = _aliases(
        {
            "epochs": "n_estimators num_iterations num_iteration n_iter num_trees num_round "
            "num_rounds nrounds num_boost_round max_iter",
            "patience": "early_stopping_rounds early_stopping_round n_iter_no_change",
            "seed": "random_state random_seed seed",
            "loss": "objective application",
            "metric": "metric eval_metric metrics",
        }
    )

    #: The name of the file in a saved model that has the trees, in the library's own format.
    file: ClassVar[str]

    #: The gain of each whole label in place of ``2^y - 1``, for losses with gains.
    label_gain: tuple[float, ...] | None = None

    @property
    def loss_device(self) -> str:
        """Where the loss is computed."""
        return "cpu"

    def options(self) -> dict[str, Any]:
        """The options for the library. Those that are None are omitted, for its defaults.

        Returns:
            The values by name.
        """
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        return {k: v for k, v in values.items() if v is not None and k != "label_gain"}

    def build(self, n_features: int) -> NoReturn:
        """Raise: trees are not a network; ``rankgrad.training.fit`` trains them.

        Args:
            n_features: not used.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self} is no network: trees are grown by rankgrad.training.fit")


def _check_options(model: TreeModel, fractions: Sequence[str]) -> None:
    """Check options by their types, and turn lists into tuples.

    Args:
        model: whose options are checked.
        fractions: the options that must be above 0 and at most 1; other numbers must be at least 0,
            except ``max_depth``.
    """
    hints = get_type_hints(type(model))
    for option in fields(model):
        name, value, kind = option.name, getattr(model, option.name), hints[option.name]
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        elif kind is bool:
            check_flag(name, value)
        elif value is None:
            continue
        elif "tuple" in option.type:  # annotations are strings here
            if not isinstance(value, list | tuple) or not all(map(_is_number, value)):
                raise ValueError(f"{name} must be a list of numbers, found {quote(value)}")
            if name == "monotone_constraints" and not set(value) <= {-1, 0, 1}:
                raise ValueError(f"each of {name} must be -1, 0 or 1, found {quote(value)}")
            object.__setattr__(model, name, tuple(value))
        elif not _is_number(value):
            raise ValueError(f"{name} must be a number, found {quote(value)}")
        elif name in fractions and not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, found {value}")
        elif name != "max_depth" and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0, found {value}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@models.register("lightgbm")
@dataclass(frozen=True, kw_only=True)
class LightGBM(TreeModel):
    """Trees of LightGBM, boosted on any loss. The options are LightGBM's, by any of their names.

    Args:
        num_leaves: the most leaves of a tree.
        max_depth: the most levels of a tree; -1 for any number.
        learning_rate: the factor of each tree.
        min_data_in_leaf: the fewest items of a leaf.
        min_sum_hessian_in_leaf: the least Hessian of the loss in a leaf, summed over its items.
        min_gain_to_split: what a split must gain.
        lambda_l1: the penalty of the absolute values of leaves.
        lambda_l2: the penalty of the squares of leaf values.
        feature_fraction: the fraction of features drawn for each tree.
        bagging_fraction: the fraction of items drawn for each tree.
        bagging_freq: draw items anew after this many trees; None for 1 if ``bagging_fraction`` is
            below 1.
        feature_fraction_bynode: the fraction of features drawn for each split.
        extra_trees: whether thresholds of splits are drawn at random.
        boosting: ``gbdt`` or ``dart``.
        drop_rate: of ``dart``: the fraction of trees left out.
        skip_drop: of ``dart``: the probability of leaving out none.
        max_drop: of ``dart``: the most trees left out.
        data_sample_strategy: ``bagging`` or ``goss``.
        top_rate: of ``goss``: the fraction of items with the largest gradients, which are all used.
        other_rate: of ``goss``: the fraction drawn from all other items.
        max_bin: the most bins that the values of a feature are put into.
        path_smooth: how much the values of leaves are smoothed towards their parents'.
        cat_smooth: how much the statistics of categories with few items are smoothed.
        cat_l2: ``lambda_l2`` of splits by categories.
        monotone_constraints: of each feature: 1 if scores rise with it, -1 if they fall, else 0.
        device_type: ``cpu``, ``gpu`` or ``cuda``, where LightGBM is built for it.
        label_gain: the gain of each whole label in place of 2^y - 1, for losses with gains.

    None leaves an option to LightGBM.

    >>> print(models.get("lightgbm(num_leaves=15, reg_alpha=0.5)"))
    lightgbm(num_leaves=15, lambda_l1=0.5)
    """

    file: ClassVar[str] = "trees.txt"
    option_aliases: ClassVar[Mapping[str, str]] = _aliases(
        {
            "num_leaves": "num_leaf max_leaves max_leaf max_leaf_nodes",
            "learning_rate": "shrinkage_rate eta",
            "min_data_in_leaf": "min_data_per_leaf min_data min_child_samples min_samples_leaf",
            "min_sum_hessian_in_leaf": "min_sum_hessian_per_leaf min_sum_hessian min_hessian "
            "min_child_weight",
            "min_gain_to_split": "min_split_gain gamma min_split_loss",
            "lambda_l1": "reg_alpha l1_regularization",
            "lambda_l2": "reg_lambda lambda l2_regularization",
            "feature_fraction": "sub_feature colsample_bytree",
            "bagging_fraction": "sub_row subsample bagging",
            "bagging_freq": "subsample_freq",
            "feature_fraction_bynode": "sub_feature_bynode colsample_bynode",
            "extra_trees": "extra_tree",
            "boosting": "boosting_type boost booster",
            "drop_rate": "rate_drop",
            "max_bin": "max_bins",
            "monotone_constraints": "mc monotone_constraint monotonic_cst",
            "device_type": "device",
        }
    )

    num_leaves: int = 31
    max_depth: int = -1
    learning_rate: float = 0.1
    min_data_in_leaf: int = 20
    min_sum_hessian_in_leaf: float = 1e-3
    min_gain_to_split: float = 0.0
    lambda_l1: float = 0.0
    lambda_l2: float = 0.0
    feature_fraction: float = 1.0
    bagging_fraction: float = 1.0
    bagging_freq: int | None = None
    feature_fraction_bynode: float | None = None
    extra_trees: bool = False
    boosting: Literal["gbdt", "dart"] = "gbdt"
    drop_rate: float | None = None
    skip_drop: float | None = None
    max_drop: int | None = None
    data_sample_strategy: Literal["bagging", "goss"] = "bagging"
    top_rate: float | None = None
    other_rate: float | None = None
    max_bin: int | None = None
    path_smooth: float | None = None
    cat_smooth: float | None = None
    cat_l2: float | None = None
    monotone_constraints: tuple[int, ...] | None = None
    device_type: Literal["cpu", "gpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        check_whole("num_leaves", self.num_leaves, least=2)
        check_whole("max_depth", self.max_depth, least=-1)
        check_positive("learning_rate", self.learning_rate)
        check_whole("min_data_in_leaf", self.min_data_in_leaf)
        _check_options(self, ("feature_fraction", "bagging_fraction", "feature_fraction_bynode"))

    @override
    def options(self) -> dict[str, Any]:
        bagging_freq = int(self.bagging_fraction < 1)  # if it was not set
        return {"bagging_freq": bagging_freq, **super().options()}


@models.register("xgboost")
@dataclass(frozen=True, kw_only=True)
class XGBoost(TreeModel):
    """Trees of XGBoost, grown leaf by leaf and boosted on any loss. The options are XGBoost's.

    Args:
        max_leaves: the most leaves of a tree.
        max_depth: the most levels of a tree; 0 for any number.
        learning_rate: the factor of each tree.
        min_child_weight: the least Hessian of the loss in a leaf.
        gamma: what a split must gain.
        reg_alpha: the penalty of the absolute values of leaves.
        reg_lambda: the penalty of the squares of leaf values.
        colsample_bytree: the fraction of features drawn for each tree.
        subsample: the fraction of items drawn for each tree.
        colsample_bylevel: the fraction of features drawn for each level.
        colsample_bynode: the fraction of features drawn for each split.
        sampling_method: ``uniform``, or ``gradient_based`` on a GPU.
        tree_method: ``hist``, ``approx`` or ``exact``.
        grow_policy: ``lossguide``, leaf by leaf, or ``depthwise``.
        max_bin: the most bins that the values of a feature are put into.
        max_delta_step: the largest value of a leaf; 0 for any.
        booster: ``gbtree`` or ``dart``.
        rate_drop: of ``dart``: the fraction of trees left out.
        skip_drop: of ``dart``: the probability of leaving out none.
        one_drop: of ``dart``: whether at least one tree is left out.
        max_cat_to_onehot: features of fewer categories are split one category against the others.
        max_cat_threshold: the most categories on one side of a split.
        monotone_constraints: of each feature: 1 if scores rise with it, -1 if they fall, else 0.
        device: ``cpu``, or ``cuda`` where XGBoost is built for it; the loss is computed there too.
        label_gain: the gain of each whole label in place of 2^y - 1, for losses with gains.

    None leaves an option to XGBoost.

    >>> print(models.get("xgboost(max_leaves=15)"))
    xgboost(max_leaves=15)
    """

    file: ClassVar[str] = "trees.json"
    option_aliases: ClassVar[Mapping[str, str]] = _aliases(
        {
            "max_leaves": "num_leaves",
            "learning_rate": "eta",
            "min_child_weight": "min_sum_hessian_in_leaf",
            "gamma": "min_split_loss min_gain_to_split",
            "reg_alpha": "alpha lambda_l1",
            "reg_lambda": "lambda lambda_l2",
            "colsample_bytree": "feature_fraction",
            "subsample": "bagging_fraction",
            "colsample_bynode": "feature_fraction_bynode",
            "booster": "boosting boosting_type",
            "rate_drop": "drop_rate",
            "device": "device_type",
        }
    )

    max_leaves: int = 31
    max_depth: int = 0
    learning_rate: float = 0.1
    min_child_weight: float = 1.0
    gamma: float = 0.0
    reg_alpha: float = 0.0
    reg_lambda: float = 1.0
    colsample_bytree: float = 1.0
    subsample: float = 1.0
    colsample_bylevel: float | None = None
    colsample_bynode: float | None = None
    sampling_method: Literal["uniform", "gradient_based"] = "uniform"
    tree_method: Literal["hist", "approx", "exact"] = "hist"
    grow_policy: Literal["lossguide", "depthwise"] = "lossguide"
    max_bin: int | None = None
    max_delta_step: float | None = None
    booster: Literal["gbtree", "dart"] = "gbtree"
    rate_drop: float | None = None
    skip_drop: float | None = None
    one_drop: bool = False
    max_cat_to_onehot: int | None = None
    max_cat_threshold: int | None = None
    monotone_constraints: tuple[int, ...] | None = None
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        check_whole("max_leaves", self.max_leaves, least=2)
        check_whole("max_depth", self.max_depth, least=0)
        check_positive("learning_rate", self.learning_rate)
        fractions = ("colsample_bytree", "colsample_bylevel", "colsample_bynode", "subsample")
        _check_options(self, fractions)

    @property
    @override
    def loss_device(self) -> str:
        return self.device

    @override
    def options(self) -> dict[str, Any]:
        options = super().options()
        if options.pop("one_drop"):
            options["one_drop"] = 1  # XGBoost takes a number; False is its default
        return options
