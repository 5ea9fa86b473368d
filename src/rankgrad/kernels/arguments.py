"""What backend kernels take: lists in the flat layout, and a metric."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class FlatLists(NamedTuple):
    """Lists in the flat layout: list ``b`` is ``offsets[b]:offsets[b + 1]`` of every tensor.

    Padded ``[b, n]`` tensors are flat as they lie, with ``offsets = 0, n, 2n, ...`` and a mask.

    Attributes:
        scores: ``[items]``.
        labels: ``[items]``, of the scores' type.
        mask: ``[items]``, False on padding, or None without padding. What padding holds is never
            read, nor what comes after the last list.
        weights: ``[items]``, of the scores' type, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths, padding included, that the host knows: nothing
            waits for the device. If lists times it is all items, every list has so many.
    """

    scores: Tensor
    labels: Tensor
    mask: Tensor | None
    weights: Tensor | None
    offsets: Tensor
    max_length: int


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
