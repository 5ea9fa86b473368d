"""Which fused operation computes a cell of the grid."""

from __future__ import annotations

from typing import Any

from rankgrad import kernels
from rankgrad.lists import Lists
from rankgrad.losses.base import Fused
from rankgrad.metrics import Metric
from rankgrad.metrics.base import Expectation
from rankgrad.sorting import (
    FastSort,
    LapSum,
    NeuralSort,
    Relaxation,
    SigmoidRanks,
    Sinkhorn,
    SmoothI,
    SoftSort,
)
from rankgrad.sorting.schedules import number

LINEAR = ("ndcg", "dcg", "precision", "recall", "rbp", "arp")


def through(
    relaxation: Relaxation, metric: Metric, lists: Lists, beta: float, expect: Expectation
) -> Fused | None:
    """The operation that computes the loss of each list, or None where nothing fused does."""
    if metric.name not in LINEAR:
        return None
    found = _operation(relaxation, beta, expect)
    if found is None or not kernels.ready(found[0], lists.slots.scores):
        return None
    name, options = found
    return Fused(name, (*options, *_described(metric)))


def _operation(
    relaxation: Relaxation, beta: float, expect: Expectation
) -> tuple[str, tuple[Any, ...]] | None:
    """The operation that goes through this relaxation, and its options."""
    if isinstance(relaxation, SmoothI) and relaxation.stop_gradient:
        return "through_smoothi", (number(relaxation.alpha), relaxation.delta, expect)
    if expect == "label":
        return None
    match relaxation:
        case SigmoidRanks():
            return "through_ranks", ("sigmoid", number(relaxation.alpha), beta)
        case LapSum():
            return "through_ranks", ("lapsum", 1 / number(relaxation.temperature), beta)
        case FastSort():
            name = "fastsort" if relaxation.regularization == "l2" else "fastsort_entropic"
            return "through_ranks", (name, 1 / number(relaxation.strength), beta)
        case NeuralSort():
            return "through_rows", ("neuralsort", number(relaxation.temperature))
        case SoftSort():
            return "through_rows", ("softsort", number(relaxation.temperature))
        case Sinkhorn(base=NeuralSort() as base):
            scaling = (relaxation.iterations, relaxation.tolerance, relaxation.transposed)
            return "through_sinkhorn", (number(base.temperature), *scaling)
    return None


def _described(metric: Any) -> tuple[str, int, str, float, float]:
    """The metric in the words of the operations."""
    return (
        metric.name,
        metric.k or 0,
        getattr(metric, "gain", "linear"),
        getattr(metric, "threshold", 1.0),
        getattr(metric, "persistence", 0.8),
    )
