"""Boosted trees of LightGBM and XGBoost as models: the libraries' options under their own names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

from rankgrad.models.base import Model, models
from rankgrad.validation import check_positive, check_whole


@dataclass(frozen=True, kw_only=True)
class TreeModel(Model):
    """Boosted trees. A training's ``epochs`` are trees, and its ``patience`` counts trees."""

    #: The name of the trees in a folder of a saved model, in the library's own format.
    file: ClassVar[str]

    def options(self) -> dict[str, Any]:
        """What the library is given."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def build(self, n_features: int) -> NoReturn:
        """Trees are no network: they are made by ``rankgrad.training.fit``."""
        raise TypeError(f"{self} is no network: trees are grown by rankgrad.training.fit")


@models.register("lightgbm")
@dataclass(frozen=True, kw_only=True)
class LightGBM(TreeModel):
    """Trees of LightGBM, boosted on any loss. The options are LightGBM's.

    Args:
        num_leaves: of a tree, at most.
        learning_rate: what each tree is multiplied by.
        min_data_in_leaf: items.
        min_sum_hessian_in_leaf: of the loss, summed over items.
        lambda_l2: the penalty of large leaf values.
        feature_fraction: of the features, drawn for each tree.
        bagging_fraction: of the items, drawn for each tree.

    >>> print(models.get("lightgbm(num_leaves=15)"))
    lightgbm(num_leaves=15)
    """

    name: ClassVar[str] = "lightgbm"
    file: ClassVar[str] = "trees.txt"

    num_leaves: int = 31
    learning_rate: float = 0.1
    min_data_in_leaf: int = 20
    min_sum_hessian_in_leaf: float = 1e-3
    lambda_l2: float = 0.0
    feature_fraction: float = 1.0
    bagging_fraction: float = 1.0

    def __post_init__(self) -> None:
        check_whole("num_leaves", self.num_leaves, least=2)
        check_positive("learning_rate", self.learning_rate)
        check_whole("min_data_in_leaf", self.min_data_in_leaf)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "bagging_freq": int(self.bagging_fraction < 1)}


@models.register("xgboost")
@dataclass(frozen=True, kw_only=True)
class XGBoost(TreeModel):
    """Trees of XGBoost, grown leaf by leaf and boosted on any loss. The options are XGBoost's.

    Args:
        max_leaves: of a tree.
        learning_rate: what each tree is multiplied by.
        min_child_weight: the least Hessian of the loss in a leaf.
        reg_lambda: the penalty of large leaf values.
        colsample_bytree: of the features, drawn for each tree.
        subsample: of the items, drawn for each tree.

    >>> print(models.get("xgboost(max_leaves=15)"))
    xgboost(max_leaves=15)
    """

    name: ClassVar[str] = "xgboost"
    file: ClassVar[str] = "trees.json"

    max_leaves: int = 31
    learning_rate: float = 0.1
    min_child_weight: float = 1.0
    reg_lambda: float = 1.0
    colsample_bytree: float = 1.0
    subsample: float = 1.0

    def __post_init__(self) -> None:
        check_whole("max_leaves", self.max_leaves, least=2)
        check_positive("learning_rate", self.learning_rate)
