"""Recall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankgrad._shapes import ItemMask, ItemValues, ListValues
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearBinaryMetric


@metrics.register("recall")
@dataclass(frozen=True, kw_only=True)
class Recall(LinearBinaryMetric):
    """The proportion of the relevant items that is in the top k.

    Without a cutoff it is 1, unless relevant items were not retrieved.

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.

    >>> Recall(2)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.5000])
    """

    kernel: ClassVar[str | None] = "recall"

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        return gains.sum(-1)
