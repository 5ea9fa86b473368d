"""Train a ranker directly on the metric you report."""

from rankgrad import lists, losses, metrics, sorting, specs
from rankgrad.losses import (
    ApproxNDCG,
    LambdaLoss,
    LambdaRank,
    ListMLE,
    ListNet,
    NeuralNDCG,
    PiRank,
    RankNet,
    RelaxedMetric,
    SmoothI,
)
from rankgrad.metrics import evaluate

__version__ = "0.1.0"

__all__ = [
    "ApproxNDCG",
    "LambdaLoss",
    "LambdaRank",
    "ListMLE",
    "ListNet",
    "NeuralNDCG",
    "PiRank",
    "RankNet",
    "RelaxedMetric",
    "SmoothI",
    "__version__",
    "evaluate",
    "lists",
    "losses",
    "metrics",
    "sorting",
    "specs",
]
