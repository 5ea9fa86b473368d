"""Readers of engines' formats that compute scores as the engine does, in plain NumPy.

``_exporting`` scores items with them before it writes a file, and compares with the model's own
scores. They see what the engine will see: what the file says, and not the model. NaN is a feature
for which an engine has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

#: From items ``[N, n_features]`` in float32 to scores ``[N]``.
Predict = Callable[[np.ndarray], np.ndarray]

_SOLR_SLACK = np.float32(1e-6)  # NODE_SPLIT_SLACK, which Solr adds to each threshold

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
        model: the JSON object.
        columns: the column of each feature, by name.
    """
    params = model["params"]
    if model["class"].endswith("NeuralNetworkModel"):
        indices = [columns[feature["name"]] for feature in model["features"]]
        return lambda items: _network_scores(params["layers"], items[:, indices])
    missing_is_zero = params.get("isNullSameAsZero", True)

    def sends_left(node: Mapping[str, Any], items: np.ndarray) -> np.ndarray:
        values = items[:, columns[node["feature"]]]
        values = np.nan_to_num(values) if missing_is_zero else values
        below: np.ndarray = values <= np.float32(node["threshold"]) + _SOLR_SLACK
        return np.where(np.isnan(values), node.get("missing") == "left", below)

    trees = [(np.float32(tree["weight"]), tree["root"]) for tree in params["trees"]]
    return lambda items: _sum(
        weight * _leaf_values(root, items, sends_left) for weight, root in trees
    )


def read_xgboost_json(trees: list[Mapping[str, Any]], columns: Mapping[str, int]) -> Predict:
    """A function that scores items with a dump of XGBoost.

    The LTR plugins of Elasticsearch and OpenSearch read such dumps.
    Missing values go to the child that the dump names.

    Args:
        trees: the JSON list.
        columns: the column of each feature, by name.
    """

    def sends_left(node: Mapping[str, Any], items: np.ndarray) -> np.ndarray:
        values = items[:, columns[node["split"]]]
        below: np.ndarray = np.float32(node["split_condition"]) > values
        return np.where(np.isnan(values), node["missing"] == node["yes"], below)

    return lambda items: _sum(_leaf_values(tree, items, sends_left) for tree in trees)


def read_linear(weights: Mapping[str, float], columns: Mapping[str, int]) -> Predict:
    """A function that scores items with a linear model of the LTR plugins.

    Missing values count as 0.

    Args:
        weights: the JSON object.
        columns: the column of each feature, by name.
    """
    indices = [columns[name] for name in weights]
    coefficients = np.array(list(weights.values()))
    # In float64: the sum does not depend on the order in which an engine adds.
    return lambda items: np.nan_to_num(items[:, indices]).astype(np.float64) @ coefficients


def _leaf_values(
    node: Mapping[str, Any],
    items: np.ndarray,
    sends_left: Callable[[Mapping[str, Any], np.ndarray], np.ndarray],
) -> np.ndarray:
    """The value of the leaf that each item reaches, ``[N]`` in float32.

    Args:
        node: the root of a tree, of Solr or of XGBoost.
        items: ``[N, n_features]``.
        sends_left: returns which items a split sends left, ``[N]``.
    """
    value = node.get("leaf", node.get("value"))  # of XGBoost, of Solr
    if value is not None:
        return np.full(len(items), np.float32(value))
    goes_left, values = sends_left(node, items), np.empty(len(items), np.float32)
    # XGBoost lists the child "yes" first.
    left_child, right_child = node.get("children") or (node["left"], node["right"])
    values[goes_left] = _leaf_values(left_child, items[goes_left], sends_left)
    values[~goes_left] = _leaf_values(right_child, items[~goes_left], sends_left)
    return values


def _sum(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of arrays in float32, added one after the other, as in engines."""
    return reduce(np.add, parts)


def _network_scores(layers: list[Mapping[str, Any]], values: np.ndarray) -> np.ndarray:
    """The scores ``[N]`` of features ``[N, f]`` by Solr's ``NeuralNetworkModel``."""
    values = np.nan_to_num(values)
    for layer in layers:
        matrix = np.array(layer["matrix"], np.float32)
        linear = values.astype(np.float32) @ matrix.T + np.array(layer["bias"], np.float32)
        values = _ACTIVATIONS[layer["activation"]](linear)
    return values[:, 0]
