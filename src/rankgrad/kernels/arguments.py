"""Arguments of backend kernels: lists in the flat layout, and a call with its options.

Losses, metrics and relaxations make them; :mod:`rankgrad.kernels.ops` and the kernels take them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rankgrad.lists import FlatLists

__all__ = [
    "LARGEST_LABEL",
    "ExactMetric",
    "FlatLists",
    "KernelCall",
    "MetricOptions",
    "PairOptions",
]


#: The largest label for which sums of gains 2^y - 1 do not overflow in float32.
LARGEST_LABEL = 100.0


class KernelCall(NamedTuple):
    """A call of an operation: its name, and its arguments after the lists.

    A loss names an operation of :data:`rankgrad.kernels.ops.LOSSES`, a relaxation an operator of
    :mod:`rankgrad.kernels._operators`.
    """

    name: str
    options: tuple[Any, ...]


class MetricOptions(NamedTuple):
    """Which metric of :mod:`rankgrad.metrics` to compute; the eager PyTorch form there defines it.

    Attributes:
        name: ``ndcg``, ``dcg``, ``precision``, ``recall``, ``rbp``, ``arp``, ``ap``, ``rr``,
            ``err`` or ``hits``; for losses through relaxed ranks also ``spearman``.
        k: the cutoff, 0 for none.
        gain: ``exponential`` or ``linear``, for ndcg and dcg.
        threshold: for binary metrics, the lowest label of a relevant item; for err, the top of the
            label scale.
        persistence: the persistence of rbp.
    """

    name: str
    k: int
    gain: str
    threshold: float
    persistence: float


class ExactMetric(NamedTuple):
    """A metric of the operation ``exact_metrics``, which computes several at once.

    Attributes:
        name: as in :class:`MetricOptions`, without ``spearman``.
        k: the cutoff, 0 for none.
        average_ties: whether the value is the mean over the orders of tied items.
        linear: whether the gains of ndcg and dcg are linear.
        threshold: as in :class:`MetricOptions`.
        persistence: as in :class:`MetricOptions`.
    """

    name: str
    k: int
    average_ties: bool
    linear: bool
    threshold: float
    persistence: float


class PairOptions(NamedTuple):
    """Which pairs a pairwise loss sums over, and their weights.

    These are the options of the operation ``pairs`` (:mod:`rankgrad.kernels.ops`), which computes
    the loss, and of its gradient and Hessian (:mod:`rankgrad.kernels._pair_derivatives`).

    Attributes:
        kind: ``ranknet``, ``hinge``, ``lambdarank``, ``ndcg_loss1``, ``ndcg_loss2`` or
            ``ndcg_loss2++``. For gradient and Hessian also ``lambdarank_norm``: LambdaRank
            normalized as in LightGBM.
        k: the cutoff, 0 for none.
        sigma: σ of the logistic losses; the margin of hinge.
        gain: ``exponential`` or ``linear``, for ndcg.
        truncation: ``corrected`` or ``heuristic``, for LambdaLoss.
        mu: μ of ``ndcg_loss2++``.
        half: whether RankNet also counts pairs of equal labels, with a target of one half.
        metric: the metric of lambda losses.
        threshold: for binary metrics, the lowest label of a relevant item.
    """

    kind: str
    k: int = 0
    sigma: float = 1.0
    gain: str = ""
    truncation: str = ""
    mu: float = 0.0
    half: bool = False
    metric: str = "ndcg"
    threshold: float = 1.0
