"""Expected reciprocal rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from rankgrad._padded import exponential_gains
from rankgrad._shapes import ItemValues, Labels, Mask
from rankgrad._validation import check_positive
from rankgrad.inputs import check_exponents
from rankgrad.metrics._base import metrics
from rankgrad.metrics._cascade import CascadeMetric


@metrics.register("err")
@dataclass(frozen=True, kw_only=True)
class ERR(CascadeMetric):
    """``Σ_r (1 / r) R_r Π_{l<r} (1 - R_l)`` with ``R = (2^y - 1) / 2^g`` (Chapelle et al. 2009).

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.
        max_grade: g, the top of the label scale. For a list with a higher label, g is that label.

    >>> ERR()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([0, 4, 2]))
    tensor([0.4727])
    """

    kernel: ClassVar[str | None] = "err"

    max_grade: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("max_grade", self.max_grade)

    @override
    def gains(self, labels: ItemValues) -> ItemValues:
        labels = self.check_labels(labels)
        top = labels.amax(-1, keepdim=True).clamp(min=self.max_grade)
        return exponential_gains(labels) * torch.exp2(-top)

    def misses(self, labels: ItemValues) -> ItemValues:
        """``1 - R``, accurate also where R rounds to 1."""
        labels = self.check_labels(labels)
        top = labels.amax(-1, keepdim=True).clamp(min=self.max_grade)
        return torch.exp2(-top) - torch.expm1((labels - top) * math.log(2))

    @override
    def check_labels(self, labels: Labels, mask: Mask | None = None) -> Labels:
        return check_exponents(labels, mask)
