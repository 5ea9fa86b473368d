"""Trees of LightGBM and XGBoost in one form, and as ONNX nodes."""

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
from rankgrad.export._graph import NoFormError, OnnxGraph
from rankgrad.training._fitted import TreeScorer

_CATEGORIES = (
    "these trees split by categories, which no format here takes: write each category as a column "
    "of 0 and 1 and train on those, or serve the trees as they are, with rankgrad serve"
)


@dataclass(frozen=True)
class Leaf:
    """A leaf."""

    value: float


@dataclass(frozen=True)
class Split:
    """An item goes left if its feature is below the threshold, in float32.

    A missing value (NaN) goes left if ``missing_left``.
    """

    feature: int
    threshold: np.float32
    missing_left: bool
    left: Node
    right: Node


Node = Leaf | Split


@dataclass(frozen=True)
class Trees:
    """Boosted trees: a score is the sum of a leaf of each tree, and of ``base``.

    Attributes:
        roots: the trees.
        base: what is added to all scores.
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
            dumped = _dump_lightgbm(scorer)
            missing = _missing_in_lightgbm(dumped)
            return cls(tuple(map(_of_lightgbm, dumped)), missing=missing)
        learner = json.loads(scorer.saved)["learner"]
        base = learner["learner_model_param"]["base_score"].strip("[]")
        saved = learner["gradient_booster"]["model"]["trees"]
        missing = _missing_in_xgboost(learner["attributes"], saved)
        return cls(tuple(_of_xgboost(tree, 0) for tree in saved), float(base), missing)

    def least(self) -> np.float32:
        """The number that no score is below, where float32 values of leaves are added in order.

        Rounding keeps the order of sums, so it is the sum of the least leaf of each tree.
        """
        total = np.float32(self.base)
        for root in self.roots:
            total += np.float32(min(node.value for node in walk(root) if isinstance(node, Leaf)))
        return total

    def shifted(self, by: float) -> Trees:
        """The trees with ``base`` and ``by`` in the leaves of the first one."""
        first, *others = self.roots or (Leaf(0.0),)
        changed = _map_nodes(first, leaf=lambda leaf: Leaf(leaf.value + self.base + by))
        return Trees((changed, *others), missing=self.missing)

    def non_negative(self) -> Trees:
        """The trees plus a constant with which no float32 sum of their leaves is below 0."""
        by, trees = 0.0, self.shifted(0.0)
        while (least := float(trees.least())) < 0:
            by = float(np.nextafter(np.float32(by - least), np.float32(np.inf)))
            trees = self.shifted(by)
        return trees

    def on_raw_features(self, sources: np.ndarray) -> Trees:
        """The trees on raw features, of which feature j of these is number ``sources[j]``.

        A feature that had no missing values in training goes, where it is missing, the way of 0:
        engines send 0 for it, or NaN, by their version.
        """

        def moved(split: Split) -> Split:
            left = split.missing_left if split.feature in self.missing else split.threshold > 0
            return replace(split, feature=int(sources[split.feature]), missing_left=bool(left))

        roots = tuple(_map_nodes(root, split=moved) for root in self.roots)
        return Trees(roots, self.base, frozenset(int(sources[feature]) for feature in self.missing))

    def add(self, graph: OnnxGraph, items: str) -> str:
        """Add the trees to an ONNX graph; return the name of the scores, ``[items, 1]``."""
        attributes: defaultdict[str, list[Any]] = defaultdict(list)
        for tree, root in enumerate(self.roots or (Leaf(0.0),)):
            _add_nodes(root, tree, count(), attributes)
        return graph.add(
            "TreeEnsembleRegressor",
            items,
            domain="ai.onnx.ml",
            n_targets=1,
            base_values=[self.base],
            **attributes,
        )


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    if isinstance(node, Split):
        yield from walk(node.left)
        yield from walk(node.right)


def _of_lightgbm(node: dict[str, Any]) -> Node:
    if "leaf_value" in node:
        return Leaf(float(node["leaf_value"]))
    if node["decision_type"] != "<=":
        raise NoFormError(_CATEGORIES)
    # An item goes left if x <= t, in float64. For a float32 x that is x < the first float32 above.
    limit = np.float32(node["threshold"])
    if limit <= node["threshold"]:
        limit = np.nextafter(limit, np.float32(np.inf))
    missing = {"NaN": node["default_left"], "None": bool(limit > 0)}.get(node["missing_type"])
    if missing is None:
        raise NoFormError("these trees of LightGBM take 0 for missing, which no format here does")
    return Split(
        int(node["split_feature"]),
        limit,
        bool(missing),
        _of_lightgbm(node["left_child"]),
        _of_lightgbm(node["right_child"]),
    )


def _of_xgboost(tree: dict[str, Any], node: int) -> Node:
    left = tree["left_children"][node]
    value = tree["split_conditions"][node]
    if left == -1:
        return Leaf(float(value))
    if tree["split_type"][node]:
        raise NoFormError(_CATEGORIES)
    return Split(
        int(tree["split_indices"][node]),
        np.float32(value),
        bool(tree["default_left"][node]),
        _of_xgboost(tree, left),
        _of_xgboost(tree, tree["right_children"][node]),
    )


def features_with_missing(scorer: TreeScorer) -> frozenset[int]:
    """The features that had missing values in training, of trees that split by categories too."""
    if scorer.model.name != "lightgbm":
        return Trees.of(scorer).missing
    return _missing_in_lightgbm(_dump_lightgbm(scorer))


def _dump_lightgbm(scorer: TreeScorer) -> list[dict[str, Any]]:
    """The roots of LightGBM's trees."""
    booster = library("lightgbm").Booster(model_str=scorer.saved.decode())
    return [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]


def _missing_in_lightgbm(nodes: list[dict[str, Any]]) -> frozenset[int]:
    """Features with missing values in training, among these nodes of LightGBM and those below."""
    splits = [node for node in nodes if "split_feature" in node]
    if not splits:
        return frozenset()
    children = [node[side] for node in splits for side in ("left_child", "right_child")]
    by_nan = (int(node["split_feature"]) for node in splits if node["missing_type"] == "NaN")
    return _missing_in_lightgbm(children).union(by_nan)


def _missing_in_xgboost(attributes: dict[str, str], trees: list[dict[str, Any]]) -> frozenset[int]:
    """Features with missing values in training, by an attribute of the booster.

    In trees of earlier versions, those that are sent left anywhere: without any, XGBoost sends none
    there.
    """
    recorded = attributes.get(MISSING_ATTRIBUTE)
    if recorded is not None:
        return frozenset(json.loads(recorded))
    columns = ("split_indices", "default_left", "left_children")
    nodes = [node for tree in trees for node in zip(*(tree[c] for c in columns), strict=True)]
    return frozenset(feature for feature, left, child in nodes if left and child != -1)


def _map_nodes(
    node: Node,
    leaf: Callable[[Leaf], Leaf] = lambda leaf: leaf,
    split: Callable[[Split], Split] = lambda split: split,
) -> Node:
    """A tree whose leaves and splits are replaced."""
    if isinstance(node, Leaf):
        return leaf(node)
    left, right = _map_nodes(node.left, leaf, split), _map_nodes(node.right, leaf, split)
    return replace(split(node), left=left, right=right)


#: What the operator says of a leaf as a node.
_LEAF: dict[str, Any] = {
    "modes": "LEAF",
    "featureids": 0,
    "values": 0.0,
    "truenodeids": 0,
    "falsenodeids": 0,
    "missing_value_tracks_true": 0,
    "hitrates": 1.0,
}


def _add_nodes(
    node: Node, tree: int, numbers: Iterator[int], attributes: dict[str, list[Any]]
) -> int:
    """Add a node and those below it to the attributes of the operator; return its number."""
    number, row = next(numbers), len(attributes["nodes_nodeids"])
    values = _LEAF | {"treeids": tree, "nodeids": number}
    if isinstance(node, Split):
        values |= {
            "modes": "BRANCH_LT",
            "featureids": node.feature,
            "values": float(node.threshold),
            "missing_value_tracks_true": int(node.missing_left),
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
