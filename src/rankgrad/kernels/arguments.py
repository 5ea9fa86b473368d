"""What backend kernels take: lists in the flat layout, and the options of a metric or of pairs."""

from __future__ import annotations

from typing import NamedTuple

from rankgrad.lists import FlatLists

__all__ = ["LARGEST_LABEL", "FlatLists", "MetricOptions", "PairOptions"]


#: Up to which labels the gain 2^y - 1 and sums of it are safe in float32.
LARGEST_LABEL = 100.0


class MetricOptions(NamedTuple):
    """A metric of :mod:`rankgrad.metrics`, whose eager form says what is computed.

    Attributes:
        name: ``ndcg``, ``dcg``, ``precision``, ``recall``, ``rbp``, ``arp``, ``ap``, ``rr``,
            ``err`` or ``hits``.
        k: the cutoff, 0 for none.
        gain: ``exponential`` or ``linear``, of ndcg and dcg.
        threshold: from which label on an item is relevant, of binary metrics; of err the top of the
            label scale.
        persistence: of rbp.
    """

    name: str
    k: int
    gain: str
    threshold: float
    persistence: float


class PairOptions(NamedTuple):
    """The options of the operation ``pairs`` of :mod:`rankgrad.kernels.ops`.

    Attributes:
        kind: ``ranknet``, ``hinge``, ``lambdarank``, ``ndcg_loss1``, ``ndcg_loss2`` or
            ``ndcg_loss2++``.
        k: the cutoff, 0 for none.
        sigma: σ of logistic pairs; of hinge the margin.
        gain: ``exponential`` or ``linear``, of ndcg.
        truncation: ``corrected`` or ``heuristic``, of LambdaLoss.
        mu: of ``ndcg_loss2++``.
        half: whether RankNet has pairs of equal labels, too.
        metric: of lambda losses.
        threshold: from which label on an item is relevant, of binary metrics.
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
