"""Rank-biased precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import divide
from rankgrad._shapes import Float, ItemMask, ItemValues, ListValues
from rankgrad._validation import check_between, check_flag
from rankgrad.kernels.arguments import MetricOptions
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearBinaryMetric


@metrics.register("rbp")
@dataclass(frozen=True, kw_only=True)
class RBP(LinearBinaryMetric):
    """``(1 - p) Σ_r p^{r-1} rel_r`` (Moffat and Zobel 2008).

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        threshold: the label from which an item is relevant.
        persistence: p in (0, 1), the probability that the user goes on to the next item.
        graded: whether ``rel = y / max y``, as in trec_eval, where the maximum is over the list and
            includes items that were not retrieved; else relevance is binary.

    >>> RBP(persistence=0.5)(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([0.6250])
    """

    kernel: ClassVar[str | None] = "rbp"

    persistence: float = 0.8
    graded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("persistence", self.persistence, 0, 1)
        check_flag("graded", self.graded)

    @override
    def kernel_options(self) -> MetricOptions | None:
        return None if self.graded else super().kernel_options()  # kernels have binary relevance

    @override
    def gains(self, labels: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        if not self.graded:
            return super().gains(labels)
        return divide(labels, labels.amax(-1, keepdim=True))

    @override
    def discount(self, ranks: Tensor) -> Tensor:
        return (1 - self.persistence) * self.persistence ** (ranks - 1)

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        return torch.ones_like(gains[:, 0])
