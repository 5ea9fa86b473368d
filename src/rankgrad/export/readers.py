"""Readers of engines' formats that compute scores as the engine does, in plain NumPy.

They read the file and nothing else, so that a score of theirs is what the engine would give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """What scores items with a model of Solr's model store.

    Args:
        model: the JSON.
        columns: the column of each feature, by name.
    """
    features = [columns[feature["name"]] for feature in model["features"]]
    if model["class"].endswith("NeuralNetworkModel"):
        return lambda items: _network(model["params"]["layers"], items[:, features])
    names = {feature["name"]: at for at, feature in enumerate(model["features"])}

    def walk(node: Mapping[str, Any], row: np.ndarray) -> float:
        while "value" not in node:
            threshold = np.float32(node["threshold"]) + np.float32(1e-6)
            node = node["left"] if row[names[node["feature"]]] <= threshold else node["right"]
        return float(node["value"])

    trees = [(float(tree["weight"]), tree["root"]) for tree in model["params"]["trees"]]
    return lambda items: np.array(
        [sum(weight * walk(root, row) for weight, root in trees) for row in items[:, features]]
    )


def read_xgboost_json(trees: list[Mapping[str, Any]], columns: Mapping[str, int]) -> Predict:
    """What scores items with a dump of XGBoost, as the LTR plugins do.

    Args:
        trees: the JSON.
        columns: the column of each feature, by name.
    """

    def walk(node: Mapping[str, Any], row: np.ndarray) -> float:
        while "leaf" not in node:
            value = row[columns[node["split"]]]
            left = np.float32(node["split_condition"]) > value
            if np.isnan(value):
                left = node["missing"] == node["yes"]
            node = node["children"][0 if left else 1]
        return float(node["leaf"])

    return lambda items: np.array([sum(walk(tree, row) for tree in trees) for row in items])


def read_linear(weights: Mapping[str, float], columns: Mapping[str, int]) -> Predict:
    """What scores items with a linear model of the LTR plugins.

    Args:
        weights: the JSON.
        columns: the column of each feature, by name.
    """
    places = [columns[name] for name in weights]
    return lambda items: items[:, places].astype(np.float64) @ np.array(list(weights.values()))


def _network(layers: list[Mapping[str, Any]], values: np.ndarray) -> np.ndarray:
    for layer in layers:
        matrix = np.array(layer["matrix"], np.float32)
        linear = values.astype(np.float32) @ matrix.T + np.array(layer["bias"], np.float32)
        values = _ACTIVATIONS[layer["activation"]](linear)
    return values[:, 0]
