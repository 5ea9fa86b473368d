"""Discounted cumulative gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rankgrad._shapes import ItemMask, ItemValues, ListValues
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearGradedMetric


@metrics.register("dcg")
@dataclass(frozen=True, kw_only=True)
class DCG(LinearGradedMetric):
    """``DCG@k = Σ_{r<=k} (2^{y_r} - 1) / log2(1 + r)`` (Järvelin and Kekäläinen 2002).

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        gain: ``"exponential"``, ``2^y - 1``, or ``"linear"``, y.

    >>> DCG(2)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([1.])
    """

    kernel: ClassVar[str | None] = "dcg"

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        return torch.ones_like(gains[:, 0])
