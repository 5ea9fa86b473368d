"""Trees of LightGBM and XGBoost in one form, and what engines and ONNX take of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankgrad.boosting.objectives import library
from rankgrad.export.graph import NoFormError, OnnxGraph
from rankgrad.training.fitted import TreeScorer


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
    """Boosted trees: a score is the sum of a leaf of each tree, and of ``base``."""

    roots: tuple[Node, ...]
    base: float = 0.0

    @classmethod
    def of(cls, scorer: TreeScorer) -> Trees:
        """The trees of a ranker.

        Raises:
            NoFormError: there are categorical splits, which have no threshold.
        """
        if scorer.model.name == "lightgbm":
            booster = library("lightgbm").Booster(model_str=scorer.saved.decode())
            dumped = booster.dump_model()["tree_info"]
            return cls(tuple(_of_lightgbm(tree["tree_structure"]) for tree in dumped))
        learner = json.loads(scorer.saved)["learner"]
        base = learner["learner_model_param"]["base_score"].strip("[]")
        saved = learner["gradient_booster"]["model"]["trees"]
        return cls(tuple(_of_xgboost(tree, 0) for tree in saved), float(base))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The scores of items, ``[n]``, one item at a time: slow, and plain to read."""
        return np.array(
            [self.base + sum(_walk(root, row) for root in self.roots) for row in features]
        )

    def least(self) -> float:
        """A number that no score is below."""
        return self.base + sum(min(leaf.value for leaf in leaves(root)) for root in self.roots)

    def shifted(self, by: float) -> Trees:
        """The trees with ``base`` and ``by`` in the leaves of the first one."""
        if not self.roots:
            return Trees((Leaf(self.base + by),))
        return Trees((_plus(self.roots[0], self.base + by), *self.roots[1:]))

    def mapped(self, sources: np.ndarray) -> Trees:
        """The trees on raw features, of which feature j of these is number ``sources[j]``."""
        return Trees(tuple(_mapped(root, sources) for root in self.roots), self.base)

    def add(self, graph: OnnxGraph, items: str) -> str:
        """Add them to an ONNX graph; the name of the scores, ``[items, 1]``."""
        nodes: dict[str, list[Any]] = {name: [] for name in _NODES}
        targets: dict[str, list[Any]] = {"treeids": [], "nodeids": [], "ids": [], "weights": []}
        for at, root in enumerate(self.roots or (Leaf(0.0),)):
            _add_nodes(root, at, nodes, targets)
        return graph.add(
            "TreeEnsembleRegressor",
            items,
            domain="ai.onnx.ml",
            n_targets=1,
            base_values=[self.base],
            **{f"nodes_{name}": values for name, values in nodes.items()},
            **{f"target_{name}": values for name, values in targets.items()},
        )


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves of a tree."""
    if isinstance(node, Leaf):
        yield node
    else:
        yield from leaves(node.left)
        yield from leaves(node.right)


def _of_lightgbm(node: dict[str, Any]) -> Node:
    if "leaf_value" in node:
        return Leaf(float(node["leaf_value"]))
    if node["decision_type"] != "<=":
        raise NoFormError(
            "these trees of LightGBM split by categories, which no format here takes: train them "
            "on numbers"
        )
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


def _of_xgboost(tree: dict[str, Any], at: int) -> Node:
    left = tree["left_children"][at]
    value = tree["split_conditions"][at]
    if left == -1:
        return Leaf(float(value))
    if tree["split_type"][at]:
        raise NoFormError(
            "these trees of XGBoost split by categories, which no format here takes: train them "
            "on numbers"
        )
    return Split(
        int(tree["split_indices"][at]),
        np.float32(value),
        bool(tree["default_left"][at]),
        _of_xgboost(tree, left),
        _of_xgboost(tree, tree["right_children"][at]),
    )


def _walk(node: Node, row: np.ndarray) -> float:
    while isinstance(node, Split):
        value = np.float32(row[node.feature])
        left = node.missing_left if np.isnan(value) else value < node.threshold
        node = node.left if left else node.right
    return node.value


def _plus(node: Node, by: float) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.value + by)
    return Split(
        node.feature, node.threshold, node.missing_left, _plus(node.left, by), _plus(node.right, by)
    )


def _mapped(node: Node, sources: np.ndarray) -> Node:
    if isinstance(node, Leaf):
        return node
    return Split(
        int(sources[node.feature]),
        node.threshold,
        node.missing_left,
        _mapped(node.left, sources),
        _mapped(node.right, sources),
    )


_NODES = (
    *("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"),
    *("missing_value_tracks_true", "hitrates"),
)


def _add_nodes(
    node: Node, tree: int, nodes: dict[str, list[Any]], targets: dict[str, list[Any]]
) -> int:
    """Add a node and those under it to the attributes of the operator; its number in the tree."""
    first = not nodes["treeids"] or nodes["treeids"][-1] != tree
    number = 0 if first else nodes["nodeids"][-1] + 1
    split = isinstance(node, Split)
    row = {
        "treeids": tree,
        "nodeids": number,
        "featureids": node.feature if isinstance(node, Split) else 0,
        "values": float(node.threshold) if isinstance(node, Split) else 0.0,
        "modes": "BRANCH_LT" if split else "LEAF",
        "truenodeids": 0,
        "falsenodeids": 0,
        "missing_value_tracks_true": int(isinstance(node, Split) and node.missing_left),
        "hitrates": 1.0,
    }
    for name, value in row.items():
        nodes[name].append(value)
    at = len(nodes["treeids"]) - 1
    if isinstance(node, Split):
        nodes["truenodeids"][at] = _add_nodes(node.left, tree, nodes, targets)
        nodes["falsenodeids"][at] = _add_nodes(node.right, tree, nodes, targets)
    else:
        for name, value in zip(targets, (tree, number, 0, node.value), strict=True):
            targets[name].append(value)
    return number
