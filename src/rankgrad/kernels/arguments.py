"""What backend kernels take: lists in the flat layout, and a metric."""

from __future__ import annotations

from typing import NamedTuple

from rankgrad.lists import FlatLists

__all__ = ["LARGEST_LABEL", "FlatLists", "MetricOptions"]

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
