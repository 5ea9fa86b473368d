"""NaN guards: they keep invalid values out of loops that would run forever or out of bounds.

In eager code, losses check values before they call a kernel. Code of ``torch.compile`` does not
check; it calls the operators registered with PyTorch, whose CPU kernels are wrapped in these
guards. A list with an invalid score, label or weight gets NaN for its value and its grad_scores.
Other lists are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def guarded_loss(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Guard a kernel of one of :data:`rankgrad.kernels.ops.LOSSES`.

    The kernel and the guarded one take flat lists, scores ``[items]`` and offsets ``[lists + 1]``,
    and return values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``.
    """

    def loss(
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        weights: Tensor | None,
        offsets: Tensor,
        *others: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from rankgrad.kernels.cpu._value_check import (
            check_values,  # imports Numba, which the kernel needs too
        )

        if check_values(scores, labels, mask, weights, None)():
            results: tuple[Tensor, Tensor, Tensor] = kernel(
                scores, labels, mask, weights, offsets, *others
            )
            return results
        valid = scores.isfinite() & _finite_and_not_negative(labels)
        if weights is not None:
            valid &= _finite_and_not_negative(weights)
        if mask is not None:
            valid |= ~mask
        safe_inputs = [None if x is None else x.where(valid, 0) for x in (scores, labels, weights)]
        values, grad_scores, defined = kernel(
            safe_inputs[0], safe_inputs[1], mask, safe_inputs[2], offsets, *others
        )
        invalid_lists = _invalid_lists(valid, offsets)
        values = values.masked_fill(invalid_lists, torch.nan)
        return values, _with_nan(grad_scores, invalid_lists, mask, offsets), defined | invalid_lists

    return loss


def _finite_and_not_negative(numbers: Tensor) -> Tensor:
    return numbers.isfinite() & (numbers >= 0)


def _invalid_lists(valid: Tensor, offsets: Tensor) -> Tensor:
    """Whether each list has an invalid item, ``[lists]``, from whether each item is valid."""
    invalid_before = F.pad((~valid).cumsum(0), (1, 0))[offsets.long()]
    return invalid_before.diff() > 0


def _with_nan(numbers: Tensor, invalid: Tensor, mask: Tensor | None, offsets: Tensor) -> Tensor:
    """The numbers ``[items]``, with NaN for the real items of invalid lists.

    ``invalid`` is ``[lists]``, from :func:`_invalid_lists`.
    """
    is_nan = invalid.repeat_interleave(offsets.diff())
    is_nan = F.pad(is_nan, (0, len(numbers) - len(is_nan)))  # False for items after the last list
    return numbers.masked_fill(is_nan if mask is None else is_nan & mask, torch.nan)
