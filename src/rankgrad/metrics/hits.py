"""Hits, which trec_eval calls success: whether a relevant item is in the top k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad.metrics._base import metrics
from rankgrad.metrics._cascade import BinaryCascadeMetric


@metrics.register("hits")
@dataclass(frozen=True, kw_only=True)
class Hits(BinaryCascadeMetric):
    """1 if any relevant item is in the top k (trec_eval's success).

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.

    >>> Hits(1)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([0, 1, 2]))
    tensor([0.])
    """

    kernel: ClassVar[str | None] = "hits"
    # Without a cutoff every order of the items hits, so that a loss would be constant.
    loss_cutoff: ClassVar[int | None] = 1

    @override
    def discount(self, ranks: Tensor) -> Tensor:
        return torch.ones_like(ranks)
