"""Rankers in the JSON formats of Solr and of the LTR plugins of OpenSearch and Elasticsearch.

Engines send raw features, so transforms that scale are folded into the weights of a perceptron, and
trees are rewritten for raw features. ``_readers`` scores with these formats as the engines do.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from rankgrad.data import transforms
from rankgrad.data._dataset import names_of_features
from rankgrad.data.transforms import Transform
from rankgrad.export._onnx_networks import norm_coefficients
from rankgrad.export._onnx_transforms import steps_of
from rankgrad.export._parsed_trees import Leaf, Node, Trees
from rankgrad.models._dropout import Dropout
from rankgrad.models.batch_norm import BatchNorm
from rankgrad.models.mlp import MLPNet
from rankgrad.training import FittedRanker
from rankgrad.training._fitted import TreeScorer

#: Activations of Solr's NeuralNetworkModel. Its leaky ReLU has the slope of PyTorch's, 0.01.
_SOLR_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.LeakyReLU: "leakyrelu",
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}
#: The constant that Solr adds to each threshold of a tree.
SOLR_SLACK = np.float32(1e-6)

_STUDENT = "train a student, which can be exported: rankgrad distill RUN DATA -o RUN2"
#: The transform that replaces missing values by 0, as engines do.
ZERO_FILL = "impute(fill=0, indicator=false)"

Layer = tuple[np.ndarray, np.ndarray, str]  # matrix [out, in], bias [out], activation


def to_solr(ranker: FittedRanker, name: str = "rankgrad") -> str:
    """The JSON of a model that Solr's model store takes.

    A perceptron is a ``NeuralNetworkModel`` with all scaling folded into its weights, and trees are
    a ``MultipleAdditiveTreesModel``.

    Args:
        ranker: a perceptron after transforms that scale, or trees.
        name: the name of the model in Solr.

    Returns:
        The text of the file: a JSON object.

    Raises:
        ValueError: the format cannot express the ranker; the message has the reason and a remedy.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=[]), features)
    >>> json.loads(to_solr(ranker, "mine"))["class"]
    'org.apache.solr.ltr.model.NeuralNetworkModel'
    """
    names = names_of_features(ranker)
    if isinstance(ranker.network, TreeScorer):
        java_class, params = "MultipleAdditiveTreesModel", _solr_trees(raw_trees(ranker), names)
    else:
        layers = [
            {"matrix": _numbers(matrix), "bias": _numbers(bias), "activation": activation}
            for matrix, bias, activation in folded_layers(ranker, "Solr's networks")
        ]
        java_class, params = "NeuralNetworkModel", {"layers": layers}
    model = {
        "class": f"org.apache.solr.ltr.model.{java_class}",
        "name": name,
        "features": [{"name": feature} for feature in names],
        "params": params,
    }
    return json.dumps(model, indent=1)


def to_linear(ranker: FittedRanker) -> str:
    """The JSON of a linear model of the LTR plugins, ``model/linear``: a weight for each feature.

    The plugins have no constant term, so scores are the ranker's minus a constant; the order is the
    same.

    Args:
        ranker: a perceptron without hidden layers, with transforms that scale.

    Returns:
        The text of the file: a JSON object of weights by the name of the feature.

    Raises:
        ValueError: the ranker is not linear in its raw features.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=[]), features)
    >>> len(json.loads(to_linear(ranker)))
    2
    """
    # With categories, folded_layers raises an error that explains them.
    is_perceptron = isinstance(ranker.network, MLPNet) or ranker.categories is not None
    layers = folded_layers(ranker, "linear models") if is_perceptron else []
    if len(layers) != 1 or layers[0][2] != "identity":
        raise ValueError(
            f"{ranker.settings.model} is not linear: train mlp(hidden=[]) without an output "
            "function, or a student that is: rankgrad distill RUN DATA -o RUN2 --model "
            "'mlp(hidden=[])'"
        )
    weights = map(_number, layers[0][0][0])
    return json.dumps(dict(zip(names_of_features(ranker), weights, strict=True)), indent=1)


def to_xgboost_json(ranker: FittedRanker, non_negative: bool = False) -> str:
    """The JSON of trees as the LTR plugins of OpenSearch and Elasticsearch take it.

    It is the dump of XGBoost, ``model/xgboost+json``; trees of LightGBM are written the same way.

    Args:
        ranker: a ranker of trees.
        non_negative: add a constant so that no score is below 0, in the float32 sums of the
            plugins, because Lucene refuses negative scores.

    Returns:
        The text of the file: a JSON list of trees.

    Raises:
        ValueError: the ranker is not of trees, or has transforms that change values.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training import Settings, fit
    >>> lists = Dataset(np.eye(4), [2, 0, 1, 0], [0, 2, 4], ["a", "b"], feature_names=list("wxyz"))
    >>> settings = Settings(model="lightgbm(min_data_in_leaf=1)", transforms=[], epochs=1)
    >>> (tree,) = json.loads(to_xgboost_json(fit(settings, lists, lists).model))
    >>> tree["split"], tree["missing"], tree["children"][1]
    ('w', 1, {'nodeid': 4, 'leaf': 0.2})
    """
    if not isinstance(ranker.network, TreeScorer):
        raise ValueError(
            f"xgboost-json is for trees, and this ranker is {ranker.settings.model}: train a "
            "student of trees, rankgrad distill RUN DATA -o RUN2 --model lightgbm"
        )
    raw = raw_trees(ranker)
    # Both add the base score to the leaves of the first tree; the format has no base score.
    trees = raw.non_negative() if non_negative else raw.shifted(0)
    names = names_of_features(ranker)
    return json.dumps([_xgboost_tree(root, names) for root in trees.roots])


def engine_notes(ranker: FittedRanker, format: str) -> list[str]:
    """Notes on what an engine needs besides the file, if trees were trained on missing values.

    Args:
        ranker: a ranker that can be exported in the format.
        format: a format of :func:`rankgrad.export.export`.

    Returns:
        A sentence for each note; none for other rankers and formats.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=[]), features)
    >>> engine_notes(ranker, "linear")
    []
    """
    if format not in ("solr", "xgboost-json") or not isinstance(ranker.network, TreeScorer):
        return []
    features = sorted(raw_trees(ranker).missing)
    if not features:
        return []
    names = ", ".join(names_of_features(ranker)[feature] for feature in features[:5])
    names += ", ..." if len(features) > 5 else ""
    reason = f"the trees were trained with missing values in {len(features)} features ({names})"
    if format == "solr":
        return [
            f'{reason}: Solr 9.2 or later takes the file, and needs "defaultValue": "NaN" among '
            "the params of these features"
        ]
    return [
        f"{reason}: the Elasticsearch plugin since 2024 and that of OpenSearch since July 2026 "
        "send them the way they went in training; earlier ones take 0, or always go to 'no'. For "
        f"those, train with --transform '{ZERO_FILL}'"
    ]


def raw_trees(ranker: FittedRanker) -> Trees:
    """The trees of a ranker on raw features.

    Raises:
        ValueError: a transform before the trees changes values.
    """
    assert isinstance(ranker.network, TreeScorer)
    for step in steps_of(ranker.transform):
        if not (isinstance(step, transforms.DropConstant) or _fills_zero(step)):
            raise ValueError(
                f"the trees were trained after the transform {step}, which engines do not have: "
                "trees need no transforms, so train them again without --transform"
            )
    return Trees.of(ranker.network).on_raw_features(ranker.transform.sources.numpy())


def folded_layers(ranker: FittedRanker, target: str) -> list[Layer]:
    """The layers of a perceptron on raw features, with all scaling folded into their weights.

    Args:
        ranker: a perceptron, with transforms that are affine.
        target: the models that the layers are for, such as ``"linear models"``, for errors.

    Raises:
        ValueError: a transform or a layer cannot be folded.
    """
    network = ranker.network
    if ranker.categories is not None:
        raise ValueError(
            f"{target} have no categorical features: write each as columns of 0 and 1, one for a "
            "category, and train on those"
        )
    if not isinstance(network, MLPNet):
        raise ValueError(
            f"{target} are plain perceptrons that score one item at a time, and this ranker is "
            f"{ranker.settings.model}: {_STUDENT}"
        )
    # The affine map from raw features, or from the last activation, to the values so far
    matrix, bias = np.eye(ranker.n_features), np.zeros(ranker.n_features)
    is_raw = True  # whether the values of features are still those of the data
    for step in steps_of(ranker.transform):
        scale, shift = _affine(step, target, is_raw)
        matrix, bias = scale @ matrix, scale @ bias + shift
        is_raw = is_raw and not isinstance(step, transforms.Standardize)
    layers: list[Layer] = []
    is_pending = False  # whether matrix and bias are of a linear layer that is not in layers yet
    for layer in network.layers:
        if isinstance(layer, Dropout | nn.Identity | nn.Flatten):
            continue
        if isinstance(layer, nn.Linear):
            weight = _float64_array(layer.weight)
            matrix, bias = weight @ matrix, weight @ bias + _float64_array(layer.bias)
            is_pending = True
        elif isinstance(layer, BatchNorm):
            factor, shift = norm_coefficients(layer)
            matrix, bias = factor[:, None] * matrix, factor * bias + shift
        elif type(layer) in _SOLR_ACTIVATIONS:
            layers.append((matrix, bias, _SOLR_ACTIVATIONS[type(layer)]))
            matrix, bias, is_pending = np.eye(len(bias)), np.zeros(len(bias)), False
        else:
            raise ValueError(f"{target} have no activation {layer}: {_STUDENT}")
    return [*layers, (matrix, bias, "identity")] if is_pending else layers


def _affine(step: Transform, target: str, is_raw: bool) -> tuple[np.ndarray, np.ndarray]:
    """The matrix ``scale [out, in]`` and the vector ``shift [out]`` of ``scale x + shift``.

    Args:
        step: the transform.
        target: the models that the transform is folded for, for errors.
        is_raw: whether the values of features are those of the data, so that 0 is what engines
            send for a missing value.
    """
    if isinstance(step, transforms.DropConstant):
        return np.eye(step.n_features)[step.kept.numpy()], np.zeros(step.n_outputs)
    if isinstance(step, transforms.Standardize):
        scale = 1 / _float64_array(step.deviation)
        return np.diag(scale), -_float64_array(step.mean) * scale
    if isinstance(step, transforms.Impute):
        none_missing = step.indicator and not len(step.indicated)
        if none_missing or (is_raw and _fills_zero(step)):
            return np.eye(step.n_features), np.zeros(step.n_features)
        raise ValueError(
            f"the training data have missing values, for which engines send 0, and this ranker "
            f"replaces them by {step}. Let it take them for 0: train with --transform "
            f"'{ZERO_FILL}' --transform standardize, or a student, which does so: rankgrad distill "
            "RUN DATA -o RUN2"
        )
    raise ValueError(
        f"the transform {step} is not a scaling, so it cannot be folded into the weights of "
        f"{target}: {_STUDENT}"
    )


def _fills_zero(step: Transform) -> bool:
    """Whether a transform is :data:`ZERO_FILL`."""
    return isinstance(step, transforms.Impute) and step.fill == 0 and not step.indicator


def _solr_trees(trees: Trees, names: Sequence[str]) -> dict[str, Any]:
    """The parameters of a ``MultipleAdditiveTreesModel``."""
    roots = [_solr_node(root, names, trees.missing) for root in trees.shifted(0).roots]
    # Solr before 9.2 has no missing values and refuses the option, so it is written only if needed.
    option = {"isNullSameAsZero": False} if trees.missing else {}
    return {**option, "trees": [{"weight": "1", "root": root} for root in roots]}


def _solr_node(node: Node, names: Sequence[str], missing: frozenset[int]) -> dict[str, Any]:
    """A node and all below it; ``missing`` are the features that had missing values in training."""
    if isinstance(node, Leaf):
        return {"value": str(np.float32(node.value))}
    direction = {"missing": "left" if node.missing_left else "right"} if missing else {}
    return {
        "feature": names[node.feature],
        "threshold": str(_solr_threshold(node.threshold)),
        **direction,
        "left": _solr_node(node.left, names, missing),
        "right": _solr_node(node.right, names, missing),
    }


def _solr_threshold(limit: np.float32) -> np.float32:
    """The threshold with which Solr sends items below ``limit`` to the left, and no others.

    Solr adds 1e-6 to a threshold t, in float32, and sends an item left if ``x <= t + 1e-6``. So t
    is the largest number for which ``t + 1e-6 < limit``. Because of rounding, millions of numbers
    may be between it and ``limit - 1e-6``, so it is found by bisection over all float32 numbers.
    """
    indices = range(_ordinal(np.float32(-np.inf)), _ordinal(limit))
    first_too_large = bisect_left(
        indices, True, key=lambda i: bool(_number_at(i) + SOLR_SLACK >= limit)
    )
    return _number_at(indices[first_too_large - 1])


def _ordinal(number: np.float32) -> int:
    """The index of a number among all float32 numbers in ascending order; 0 has the index 0."""
    index = int(np.abs(number).view(np.int32))
    return -index if number < 0 else index


def _number_at(index: int) -> np.float32:
    """The float32 number with an index, the inverse of :func:`_ordinal`."""
    number = np.int32(abs(index)).view(np.float32)
    return -number if index < 0 else number


def _xgboost_tree(root: Node, names: Sequence[str]) -> dict[str, Any]:
    """A tree as XGBoost dumps it; nodes are numbered in depth-first order."""
    numbers = count()

    def dump(node: Node, depth: int) -> dict[str, Any]:
        number = next(numbers)
        if isinstance(node, Leaf):
            return {"nodeid": number, "leaf": _number(node.value)}
        left, right = dump(node.left, depth + 1), dump(node.right, depth + 1)
        return {
            "nodeid": number,
            "depth": depth,
            "split": names[node.feature],
            "split_condition": _number(node.threshold),
            "yes": left["nodeid"],
            "no": right["nodeid"],
            "missing": (left if node.missing_left else right)["nodeid"],
            "children": [left, right],
        }

    return dump(root, 0)


def _numbers(values: np.ndarray) -> Any:
    """The numbers of an array in nested lists, each as :func:`_number` gives it."""
    return values.astype(np.float32).astype(str).astype(np.float64).tolist()


def _number(value: Any) -> float:
    """The shortest decimal that is this number in float32, in which engines compute."""
    return float(str(np.float32(value)))


def _float64_array(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().double().numpy())
