"""What is no number, kept from loops that would not end on it or leave their arrays.

Losses look at values before they call a twin. Compiled code does not, and calls it by way of
PyTorch's registry: here. A list with a score, label or weight that is not allowed has no number for
its value, nor for its slopes or ranks; other lists are as they would be without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def guarded_loss(twin: Callable[..., Any]) -> Callable[..., Any]:
    """A twin of one of :data:`rankgrad.kernels.ops.LOSSES`."""

    def loss(
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        weights: Tensor | None,
        offsets: Tensor,
        *others: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from rankgrad.kernels.cpu.check import look  # with Numba, which the twin needs, too

        if look(scores, labels, mask, weights, None)():
            found: tuple[Tensor, Tensor, Tensor] = twin(
                scores, labels, mask, weights, offsets, *others
            )
            return found
        right = scores.isfinite() & _allowed(labels)
        if weights is not None:
            right &= _allowed(weights)
        if mask is not None:
            right |= ~mask
        kept = [None if x is None else x.where(right, 0) for x in (scores, labels, weights)]
        values, slopes, defined = twin(kept[0], kept[1], mask, kept[2], offsets, *others)
        flawed = _flawed(right, offsets)
        values = values.masked_fill(flawed, torch.nan)
        return values, _without(slopes, flawed, mask, offsets), defined | flawed

    return loss


def guarded_ranks(twin: Callable[..., Any]) -> Callable[..., Any]:
    """A twin of one of :data:`rankgrad.kernels.ops.RANKS`."""

    def ranks(scores: Tensor, mask: Tensor | None, offsets: Tensor, *others: Any) -> Tensor:
        return _guarded(lambda safe: twin(safe, mask, offsets, *others), scores, mask, offsets)

    return ranks


def guarded_product(twin: Callable[..., Any]) -> Callable[..., Any]:
    """A twin of the vector-Jacobian product of such ranks."""

    def product(
        grad: Tensor, scores: Tensor, mask: Tensor | None, offsets: Tensor, *others: Any
    ) -> Tensor:
        return _guarded(
            lambda safe: twin(grad, safe, mask, offsets, *others), scores, mask, offsets
        )

    return product


def _guarded(
    of: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None, offsets: Tensor
) -> Tensor:
    right = scores.isfinite()
    if mask is not None:
        right |= ~mask
    if right.all():
        return of(scores)
    return _without(of(scores.where(right, 0)), _flawed(right, offsets), mask, offsets)


def _allowed(numbers: Tensor) -> Tensor:
    return numbers.isfinite() & (numbers >= 0)


def _flawed(right: Tensor, offsets: Tensor) -> Tensor:
    """Which lists have a slot that is not right."""
    wrong = F.pad((~right).cumsum(0), (1, 0))[offsets.long()]
    return wrong.diff() > 0


def _without(numbers: Tensor, flawed: Tensor, mask: Tensor | None, offsets: Tensor) -> Tensor:
    """Those of slots, none in real items of flawed lists."""
    of_list = flawed.repeat_interleave(offsets.diff())
    of_list = F.pad(of_list, (0, len(numbers) - len(of_list)))  # what comes after the last list
    return numbers.masked_fill(of_list if mask is None else of_list & mask, torch.nan)
