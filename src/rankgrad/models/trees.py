"""Boosted trees of LightGBM and XGBoost as models: the libraries' options under their own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

from typing_extensions import override

from rankgrad.models.base import Model, models
from rankgrad.quoting import quote
from rankgrad.validation import check_positive, check_whole


def _aliases(names: Mapping[str, str]) -> dict[str, str]:
    """From ``{option: "other names of it"}`` to ``{other name: option}``."""
    return {alias: option for option, aliases in names.items() for alias in aliases.split()}


@dataclass(frozen=True, kw_only=True)
class TreeModel(Model):
    """Boosted trees. A training's ``epochs`` are trees, and its ``patience`` counts trees."""

    #: Other names of the options: those of the library, and of the other one.
    option_aliases: ClassVar[Mapping[str, str]] = {}

    #: What the libraries call settings of a training.
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

    #: The name of the trees in a folder of a saved model, in the library's own format.
    file: ClassVar[str]

    def options(self) -> dict[str, Any]:
        """What the library is given."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def build(self, n_features: int) -> NoReturn:
        """Trees are no network: they are made by ``rankgrad.training.fit``."""
        raise TypeError(f"{self} is no network: trees are grown by rankgrad.training.fit")


def _check_numbers(model: TreeModel, fractions: Sequence[str]) -> None:
    """Fractions are above 0 and at most 1, other numbers at least 0."""
    for option in fields(model):
        value = getattr(model, option.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{option.name} must be a number, found {quote(value)}")
        if option.name in fractions and not 0 < value <= 1:
            raise ValueError(f"{option.name} must be above 0 and at most 1, found {value}")
        if option.name != "max_depth" and not 0 <= value < math.inf:
            raise ValueError(f"{option.name} must be at least 0, found {value}")


@models.register("lightgbm")
@dataclass(frozen=True, kw_only=True)
class LightGBM(TreeModel):
    """Trees of LightGBM, boosted on any loss. The options are LightGBM's, by any of their names.

    Args:
        num_leaves: of a tree, at most.
        max_depth: of a tree; -1 for any.
        learning_rate: what each tree is multiplied by.
        min_data_in_leaf: items.
        min_sum_hessian_in_leaf: of the loss, summed over items.
        min_gain_to_split: what a split must gain.
        lambda_l1: the penalty of the absolute values of leaves.
        lambda_l2: the penalty of the squares of leaf values.
        feature_fraction: of the features, drawn for each tree.
        bagging_fraction: of the items, drawn for each tree.

    >>> print(models.get("lightgbm(num_leaves=15, reg_alpha=0.5)"))
    lightgbm(num_leaves=15, lambda_l1=0.5)
    """

    name: ClassVar[str] = "lightgbm"
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

    def __post_init__(self) -> None:
        check_whole("num_leaves", self.num_leaves, least=2)
        check_whole("max_depth", self.max_depth, least=-1)
        check_positive("learning_rate", self.learning_rate)
        check_whole("min_data_in_leaf", self.min_data_in_leaf)
        _check_numbers(self, ("feature_fraction", "bagging_fraction"))

    @override
    def options(self) -> dict[str, Any]:
        return {**super().options(), "bagging_freq": int(self.bagging_fraction < 1)}


@models.register("xgboost")
@dataclass(frozen=True, kw_only=True)
class XGBoost(TreeModel):
    """Trees of XGBoost, grown leaf by leaf and boosted on any loss. The options are XGBoost's.

    Args:
        max_leaves: of a tree.
        max_depth: of a tree; 0 for any.
        learning_rate: what each tree is multiplied by.
        min_child_weight: the least Hessian of the loss in a leaf.
        gamma: what a split must gain.
        reg_alpha: the penalty of the absolute values of leaves.
        reg_lambda: the penalty of the squares of leaf values.
        colsample_bytree: of the features, drawn for each tree.
        subsample: of the items, drawn for each tree.

    >>> print(models.get("xgboost(max_leaves=15)"))
    xgboost(max_leaves=15)
    """

    name: ClassVar[str] = "xgboost"
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

    def __post_init__(self) -> None:
        check_whole("max_leaves", self.max_leaves, least=2)
        check_whole("max_depth", self.max_depth, least=0)
        check_positive("learning_rate", self.learning_rate)
        _check_numbers(self, ("colsample_bytree", "subsample"))
