"""Readers of engines' formats that compute scores as the engine does, in plain NumPy.

They read nothing but the file, so their scores are those of the engine. NaN is a feature that an
engine has no value of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leakyrelu": lambda x: np.where(x < 0, np.float32(0.01) * x, x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def read_solr(model: Mapping[str, Any], columns: Mapping[str, int]) -> Predict:
    """A function that scores items with a model of Solr's model store.

    Args:
        model: the JSON.
        columns: the column of each feature, by name.
    """
    names = [feature["name"] for feature in model["features"]]
    params = model["params"]
    if model["class"].endswith("NeuralNetworkModel"):
        return lambda items: _network(params["layers"], items[:, [columns[name] for name in names]])
    zero = params.get("isNullSameAsZero", True)
    trees = [(np.float32(tree["weight"]), tree["root"]) for tree in params["trees"]]
    return lambda items: _sum(
        weight * _leaves(root, items, lambda node, items: _solr_left(node, items, columns, zero))
        for weight, root in trees
    )


def _solr_left(
    node: Mapping[str, Any], items: np.ndarray, columns: Mapping[str, int], zero: bool
) -> np.ndarray:
    """Which items a split of Solr's sends left; ``zero`` is whether a missing value is 0."""
    values = items[:, columns[node["feature"]]]
    left: np.ndarray = (np.nan_to_num(values) if zero else values) <= (
        np.float32(node["threshold"]) + np.float32(1e-6)
    )
    return left if zero else np.where(np.isnan(values), node["missing"] == "left", left)


def read_xgboost_json(trees: list[Mapping[str, Any]], columns: Mapping[str, int]) -> Predict:
    """A function that scores items with a dump of XGBoost, as LTR plugins do.

    Missing values go the way that the dump says.

    Args:
        trees: the JSON.
        columns: the column of each feature, by name.
    """

    def left(node: Mapping[str, Any], items: np.ndarray) -> np.ndarray:
        values = items[:, columns[node["split"]]]
        below: np.ndarray = np.float32(node["split_condition"]) > values
        return np.where(np.isnan(values), node["missing"] == node["yes"], below)

    return lambda items: _sum(_leaves(tree, items, left) for tree in trees)


def read_linear(weights: Mapping[str, float], columns: Mapping[str, int]) -> Predict:
    """A function that scores items with a linear model of the LTR plugins.

    Args:
        weights: the JSON.
        columns: the column of each feature, by name.
    """
    indices = [columns[name] for name in weights]
    values = np.array(list(weights.values()))
    return lambda items: np.nan_to_num(items[:, indices]).astype(np.float64) @ values


def _leaves(
    node: Mapping[str, Any],
    items: np.ndarray,
    left: Callable[[Mapping[str, Any], np.ndarray], np.ndarray],
) -> np.ndarray:
    """The value of the leaf that each item reaches, in float32."""
    value = node.get("leaf", node.get("value"))
    if value is not None:
        return np.full(len(items), np.float32(value))
    goes_left, values = left(node, items), np.empty(len(items), np.float32)
    yes, no = node.get("children") or (node["left"], node["right"])
    values[goes_left] = _leaves(yes, items[goes_left], left)
    values[~goes_left] = _leaves(no, items[~goes_left], left)
    return values


def _sum(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum in float32, one after the other, as engines add."""
    return reduce(np.add, parts)


def _network(layers: list[Mapping[str, Any]], values: np.ndarray) -> np.ndarray:
    values = np.nan_to_num(values)
    for layer in layers:
        matrix = np.array(layer["matrix"], np.float32)
        linear = values.astype(np.float32) @ matrix.T + np.array(layer["bias"], np.float32)
        values = _ACTIVATIONS[layer["activation"]](linear)
    return values[:, 0]
