"""Data and helpers for the tests of tree libraries."""

import json

import numpy as np

from rankgrad import losses
from rankgrad.losses._base import losses as registry
from rankgrad.specs import takes_cutoff


def ranking_data(lists=60, max_length=14, features=5, seed=0, min_length=2):
    """Lists of unequal lengths whose labels the first feature tells: features, labels, sizes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(min_length, max_length + 1, lists)
    X = random.normal(size=(int(sizes.sum()), features)).astype(np.float32)
    y = np.clip(np.round(X[:, 0] + 0.5 * random.normal(size=len(X)) + 0.5), 0, 4)
    return X, y, sizes


def every_loss():
    """A spec of every loss in the registry.

    Precision and recall of a whole list do not depend on its order: they are taken with a cutoff.
    """
    return [
        f"{name}@3" if name.endswith(("_precision", "_recall")) else name
        for name in losses.names()
        if takes_cutoff(registry.factory(name)) or not name.endswith(("_precision", "_recall"))
    ]


def lightgbm_trees(booster):
    """Splits and leaf values of each tree."""
    return [_walk_lightgbm(t["tree_structure"]) for t in booster.dump_model()["tree_info"]]


def xgboost_trees(booster):
    """Splits and leaf values of each tree."""
    return [_walk_xgboost(json.loads(tree)) for tree in booster.get_dump(dump_format="json")]


def _walk_lightgbm(node):
    if "split_feature" not in node:
        return [], [node["leaf_value"]]
    return _joined(
        (node["split_feature"], node["threshold"]),
        *(_walk_lightgbm(node[side]) for side in ("left_child", "right_child")),
    )


def _walk_xgboost(node):
    if "split" not in node:
        return [], [node["leaf"]]
    return _joined((node["split"], node["split_condition"]), *map(_walk_xgboost, node["children"]))


def _joined(split, left, right):
    return [split, *left[0], *right[0]], [*left[1], *right[1]]


def assert_same_trees(found, wanted):
    assert len(found) == len(wanted) > 0
    for (splits, leaves), (other_splits, other_leaves) in zip(found, wanted, strict=True):
        assert len(splits) > 1
        assert splits == other_splits
        np.testing.assert_allclose(leaves, other_leaves, rtol=1e-3)
