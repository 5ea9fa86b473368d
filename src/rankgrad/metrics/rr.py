"""Reciprocal rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankgrad.metrics._base import metrics
from rankgrad.metrics._cascade import BinaryCascadeMetric


@metrics.register("rr")
@dataclass(frozen=True, kw_only=True)
class RR(BinaryCascadeMetric):
    """``1 / rank`` of the first relevant item; 0 if it is past the cutoff.

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.

    >>> RR()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([0, 1, 2]))
    tensor([0.5000])
    """

    kernel: ClassVar[str | None] = "rr"
