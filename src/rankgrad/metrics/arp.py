"""Average relevance position (ARP): the mean rank of items, weighted by their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._shapes import Float, ItemMask, ItemValues, ListValues
from rankgrad.metrics._base import metrics
from rankgrad.metrics.linear import LinearMetric


@metrics.register("arp")
@dataclass(frozen=True, kw_only=True)
class ARP(LinearMetric):
    """``Σ_i y_i rank_i / Σ_i y_i`` (Swezey et al. eq. 4), the mean rank weighted by relevance.

    As a :class:`LinearMetric`, its gain is the label, its "discount" the rank itself, and its norm
    the sum of the gains.

    Lower is better. With a cutoff, every rank past it counts as k + 1. (Swezey et al. eq. 11 leaves
    these ranks out, which would reward pushing relevant items below the cutoff.) Items that were
    not retrieved have no rank and count as k + 1, too, so with such items a cutoff must be given.
    As for every metric, lists without relevant items count 0 by default; since lower is better,
    this flatters the mean. ``empty="skip"`` leaves them out.

    Args:
        k: the cutoff; every rank past it counts as k + 1. None for no cutoff.
        empty: the value of lists without a relevant item, 0, 1 or ``"skip"``; see :class:`Metric`.
        ties: of scores, ``"average"`` or ``"stable"``; see :class:`Metric`.

    >>> ARP()(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
    tensor([2.3333])
    """

    capturable: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "arp"
    lower_is_better: ClassVar[bool] = True

    @override
    def gains(self, labels: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return labels

    @override
    def discount(self, ranks: Tensor) -> Tensor:
        return ranks

    def _beyond(self, length: Float[Tensor, "b 1"]) -> Float[Tensor, "b 1"]:
        """What a rank past the cutoff counts: k + 1; 0 in lists that have no such rank."""
        if self.k is None:
            return torch.zeros_like(length)
        return torch.where(length > self.k, self.k + 1.0, 0.0)

    def _unretrieved(self) -> float:
        """What an item that was not retrieved counts: k + 1."""
        if self.k is None:
            raise ValueError(
                "arp needs a cutoff where relevant items were not retrieved, as in arp@1000: these "
                "then count as rank k + 1"
            )
        return self.k + 1.0

    def _norm(self, gains: ItemValues, mask: ItemMask) -> ListValues:
        return gains.sum(-1)
