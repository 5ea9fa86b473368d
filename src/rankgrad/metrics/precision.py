"""Precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rankgrad._shapes import ItemMask, ItemValues, ListValues
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearBinaryMetric


@metrics.register("precision")
@dataclass(frozen=True, kw_only=True)
class Precision(LinearBinaryMetric):
    """``P@k = (1 / k) Σ_{r<=k} rel_r`` (Thonet et al. eq. 1).

    It divides by k even if the list is shorter. Without a cutoff, k is the list's length, and the
    order of the items does not matter.

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.

    >>> Precision(2)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.5000])
    """

    kernel: ClassVar[str | None] = "precision"

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        if self.k is None:
            return mask.sum(-1).to(gains.dtype)
        return torch.full_like(gains[:, 0], float(self.k))
