"""Models: networks that map the features of a list's items to scores, and boosted trees.

A :class:`Model` is a configuration that a spec names; its ``build`` makes the network, a
:class:`Scorer`. Trees (:class:`TreeModel`) are configurations too; ``rankgrad.training.fit`` grows
them.

>>> net = models.get("mlp(hidden=[64, 32])").build(n_features=136)
>>> net(torch.randn(2, 5, 136), torch.ones(2, 5, dtype=torch.bool)).shape
torch.Size([2, 5])
"""

from rankgrad.models._base import Model, Scorer, models
from rankgrad.models._embedded import EmbeddedScorer
from rankgrad.models.batch_norm import BatchNorm
from rankgrad.models.context_aware import ContextAware
from rankgrad.models.mlp import MLP
from rankgrad.models.presets import (
    comparison,
    lambdaloss,
    neuralndcg_istella,
    neuralndcg_web30k,
    pirank,
    smoothi,
)
from rankgrad.models.tabm import TabM
from rankgrad.models.trees import LightGBM, TreeModel, XGBoost

get = models.get
names = models.names

__all__ = [
    "MLP",
    "BatchNorm",
    "ContextAware",
    "EmbeddedScorer",
    "LightGBM",
    "Model",
    "Scorer",
    "TabM",
    "TreeModel",
    "XGBoost",
    "comparison",
    "get",
    "lambdaloss",
    "models",
    "names",
    "neuralndcg_istella",
    "neuralndcg_web30k",
    "pirank",
    "smoothi",
]
