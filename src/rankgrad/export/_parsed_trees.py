"""Trees of LightGBM and XGBoost in one form, and as an ONNX node.

``_onnx_networks`` adds them to ONNX graphs, ``_engines`` writes them for search engines.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from rankgrad.boosting.boosters import MISSING_ATTRIBUTE
from rankgrad.boosting.objectives import library
from rankgrad.export._onnx_graph import NoFormError, OnnxGraph
from rankgrad.training._fitted import TreeScorer

#: The error for categorical splits.
_CATEGORIES = (
    "these trees split by categories, which no format here takes: write each category as a column "
    "of 0 and 1 and train on those, or serve the trees as they are, with rankgrad serve"
)


@dataclass(frozen=True)
class Leaf:
    """A leaf, whose value is added to the score."""

    value: float


@dataclass(frozen=True)
class Split:
    """A split, which sends an item left if its feature is below the threshold, in float32.

    A missing value (NaN) goes left if ``missing_left`` is set.
    """

    feature: int
    threshold: np.float32
    missing_left: bool
    left: Node
    right: Node


Node = Leaf | Split


@dataclass(frozen=True)
class Trees:
    """Boosted trees: a score is ``base`` plus the value of one leaf of each tree.

    Attributes:
        roots: the roots of the trees.
        base: the constant of all scores.
        missing: the features that had missing values in training.
    """

    roots: tuple[Node, ...]
    base: float = 0.0
    missing: frozenset[int] = frozenset()

    @classmethod
    def of(cls, scorer: TreeScorer) -> Trees:
        """The trees of a ranker.

        Raises:
            NoFormError: there are categorical splits, which have no threshold.
        """
        if scorer.model.name == "lightgbm":
            dump = _dump_lightgbm(scorer)
            return cls(tuple(map(_lightgbm_node, dump)), missing=_missing_in_lightgbm(dump))
        learner = json.loads(scorer.saved)["learner"]
        base = learner["learner_model_param"]["base_score"].strip("[]")
        roots = tuple(_xgboost_node(tree, 0, weight) for tree, weight in _xgboost_trees(learner))
        return cls(roots, float(base), _missing_in_xgboost(learner))

    def least(self) -> np.float32:
        """A lower bound of all scores, with float32 values of leaves added in order.

        It is the sum of the lowest leaf of each tree, because rounding keeps the order of sums.
        """
        total = np.float32(self.base)
        for root in self.roots:
            total += np.float32(min(node.value for node in walk(root) if isinstance(node, Leaf)))
        return total

    def shifted(self, by: float) -> Trees:
        """The trees with ``base`` and the constant ``by`` added to the leaves of the first tree."""
        first, *others = self.roots or (Leaf(0.0),)
        shifted = _map_nodes(first, leaf=lambda leaf: Leaf(leaf.value + self.base + by))
        return Trees((shifted, *others), missing=self.missing)

    def non_negative(self) -> Trees:
        """The trees plus a constant, so that no float32 sum of their leaves is below 0."""
        by, trees = 0.0, self.shifted(0.0)
        while (lowest := float(trees.least())) < 0:  # again where rounding leaves a sum below 0
            by = float(np.nextafter(np.float32(by - lowest), np.float32(np.inf)))
            trees = self.shifted(by)
        return trees

    def on_raw_features(self, sources: np.ndarray) -> Trees:
        """The trees on raw features; feature j of these trees is the raw feature ``sources[j]``.

        If a feature had no missing values in training, a missing value goes where 0 goes: depending
        on their version, engines send 0 or NaN for it.
        """

        def to_raw(split: Split) -> Split:
            left = split.missing_left if split.feature in self.missing else split.threshold > 0
            return replace(split, feature=int(sources[split.feature]), missing_left=bool(left))

        roots = tuple(_map_nodes(root, split=to_raw) for root in self.roots)
        return Trees(roots, self.base, frozenset(int(sources[feature]) for feature in self.missing))

    def add(self, graph: OnnxGraph, items: str) -> str:
        """Add the trees to an ONNX graph; return the name of the scores, ``[items, 1]``."""
        attributes: defaultdict[str, list[Any]] = defaultdict(list)
        for tree, root in enumerate(self.roots or (Leaf(0.0),)):
            _add_nodes(root, tree, count(), attributes)
        options: dict[str, Any] = {
            "domain": "ai.onnx.ml",
            "n_targets": 1,
            "base_values": [self.base],
        }
        return graph.add("TreeEnsembleRegressor", items, **options, **attributes)


def walk(node: Node) -> Iterator[Node]:
    """A node and all nodes below it."""
    yield node
    if isinstance(node, Split):
        yield from walk(node.left)
        yield from walk(node.right)


def _lightgbm_node(node: dict[str, Any]) -> Node:
    """A node of LightGBM's dump, with all nodes below it."""
    if "leaf_value" in node:
        return Leaf(float(node["leaf_value"]))
    if node["decision_type"] != "<=":
        raise NoFormError(_CATEGORIES)
    # An item goes left if x <= t, in float64. For a float32 x that is x < the next float32 after t.
    threshold = np.float32(node["threshold"])
    if threshold <= node["threshold"]:
        threshold = np.nextafter(threshold, np.float32(np.inf))
    # With missing type "None", LightGBM reads NaN as 0, which goes left if 0 < threshold.
    by_missing_type = {"NaN": node["default_left"], "None": bool(threshold > 0)}
    missing_left = by_missing_type.get(node["missing_type"])
    if missing_left is None:
        raise NoFormError("these trees of LightGBM take 0 for missing, which no format here does")
    return Split(
        int(node["split_feature"]),
        threshold,
        bool(missing_left),
        _lightgbm_node(node["left_child"]),
        _lightgbm_node(node["right_child"]),
    )


def _xgboost_trees(learner: dict[str, Any]) -> list[tuple[dict[str, Any], float]]:
    """The trees as XGBoost saves them, each with the weight of its leaves.

    DART gives each tree a weight of its own; other weights are 1.
    """
    booster = learner["gradient_booster"]
    if booster["name"] == "dart":
        return list(zip(booster["gbtree"]["model"]["trees"], booster["weight_drop"], strict=True))
    return [(tree, 1.0) for tree in booster["model"]["trees"]]


def _xgboost_node(tree: dict[str, Any], node: int, weight: float) -> Node:
    """A node of a tree as XGBoost saves it, by its number, with all nodes below it.

    ``weight`` multiplies the values of leaves.
    """
    left = tree["left_children"][node]
    value = tree["split_conditions"][node]
    if left == -1:
        return Leaf(weight * float(value))
    if tree["split_type"][node]:
        raise NoFormError(_CATEGORIES)
    return Split(
        int(tree["split_indices"][node]),
        np.float32(value),
        bool(tree["default_left"][node]),
        _xgboost_node(tree, left, weight),
        _xgboost_node(tree, tree["right_children"][node], weight),
    )


def features_with_missing(scorer: TreeScorer) -> frozenset[int]:
    """The features that had missing values in training.

    Unlike :meth:`Trees.of`, it accepts trees with categorical splits.
    """
    if scorer.model.name == "lightgbm":
        return _missing_in_lightgbm(_dump_lightgbm(scorer))
    return _missing_in_xgboost(json.loads(scorer.saved)["learner"])


def _dump_lightgbm(scorer: TreeScorer) -> list[dict[str, Any]]:
    """The roots of LightGBM's trees."""
    booster = library("lightgbm").Booster(model_str=scorer.saved.decode())
    return [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]


def _missing_in_lightgbm(nodes: list[dict[str, Any]]) -> frozenset[int]:
    """Features with missing values in training, by the splits of these nodes and those below."""
    splits = [node for node in nodes if "split_feature" in node]
    if not splits:
        return frozenset()
    children = [node[side] for node in splits for side in ("left_child", "right_child")]
    by_nan = (int(node["split_feature"]) for node in splits if node["missing_type"] == "NaN")
    return _missing_in_lightgbm(children).union(by_nan)


def _missing_in_xgboost(learner: dict[str, Any]) -> frozenset[int]:
    """Features with missing values in training, by an attribute of the booster.

    Boosters of earlier versions lack it. In their trees these are the features whose missing values
    go left in any split, because XGBoost sends them right if there were none in training.
    """
    recorded = learner["attributes"].get(MISSING_ATTRIBUTE)
    if recorded is not None:
        return frozenset(json.loads(recorded))
    features: set[int] = set()
    for tree, _ in _xgboost_trees(learner):
        nodes = zip(tree["split_indices"], tree["default_left"], tree["left_children"], strict=True)
        features |= {feature for feature, left, child in nodes if left and child != -1}
    return frozenset(features)


def _map_nodes(
    node: Node,
    leaf: Callable[[Leaf], Leaf] = lambda leaf: leaf,
    split: Callable[[Split], Split] = lambda split: split,
) -> Node:
    """The tree with ``leaf`` applied to all leaves, and ``split`` to all splits."""
    if isinstance(node, Leaf):
        return leaf(node)
    left, right = _map_nodes(node.left, leaf, split), _map_nodes(node.right, leaf, split)
    return replace(split(node), left=left, right=right)


def _add_nodes(
    node: Node, tree: int, numbers: Iterator[int], attributes: dict[str, list[Any]]
) -> int:
    """Add a node and all below it to an ONNX operator's attributes; return its number.

    Args:
        node: the node.
        tree: the number of its tree.
        numbers: yields the numbers of new nodes.
        attributes: the attributes of ``TreeEnsembleRegressor``, which have an entry per node.
    """
    number, row = next(numbers), len(attributes["nodes_nodeids"])
    # A leaf has the attributes of a split, too.
    split = node if isinstance(node, Split) else Split(0, np.float32(0), False, node, node)
    values = {
        "treeids": tree,
        "nodeids": number,
        "modes": "BRANCH_LT" if node is split else "LEAF",
        "featureids": split.feature,
        "values": float(split.threshold),
        "missing_value_tracks_true": int(split.missing_left),
        "truenodeids": 0,
        "falsenodeids": 0,
        "hitrates": 1.0,
    }
    for name, value in values.items():
        attributes[f"nodes_{name}"].append(value)
    if isinstance(node, Leaf):
        target = {"treeids": tree, "nodeids": number, "ids": 0, "weights": node.value}
        for name, value in target.items():
            attributes[f"target_{name}"].append(value)
        return number
    for name, child in (("truenodeids", node.left), ("falsenodeids", node.right)):
        attributes[f"nodes_{name}"][row] = _add_nodes(child, tree, numbers, attributes)
    return number
