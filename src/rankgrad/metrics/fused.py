"""Exact metrics by their kernel, where they declare one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankgrad.given import largest_exponent
from rankgrad.kernels import ops, ready
from rankgrad.lists import Lists


def values_of(
    metrics: Sequence[Any], lists: Lists
) -> list[tuple[Float[Tensor, " b"], Bool[Tensor, " b"]] | None]:
    """Each metric's values and where it is defined, or None where nothing fused computes it."""
    scores = lists.slots.scores
    result: list[tuple[Tensor, Tensor] | None] = [None] * len(metrics)
    if torch.compiler.is_compiling() or not ready("exact_metrics", scores):
        return result
    covered = [i for i, metric in enumerate(metrics) if _is_covered(metric, lists)]
    if not covered:
        return result
    described = [_described(metrics[i]) for i in covered]
    values, relevant = ops.exact_metrics(*lists.slots, described)
    for row, i in enumerate(covered):
        result[i] = values[row], relevant[row]
    return result


def _is_covered(metric: Any, lists: Lists) -> bool:
    """Whether the kernel computes the metric.

    Labels too large for their gain are left to the eager form, which says so.
    """
    if metric.fused is None or not metric.kernel_applies:
        return False
    if metric.fused != "err" and getattr(metric, "gain", "linear") == "linear":
        return True
    labels, mask = lists.slots.labels, lists.slots.mask
    if labels.is_cuda:  # a GPU is not asked again: labels were seen when the lists were made
        return not lists.large
    highest = labels if mask is None else labels[mask]
    return highest.numel() == 0 or float(highest.max()) <= largest_exponent(labels.dtype)


def _described(metric: Any) -> tuple[str, int, bool, bool, float, float]:
    """The metric as the kernel takes it."""
    number = getattr(metric, "threshold", getattr(metric, "max_grade", 1.0))
    linear = getattr(metric, "gain", "") == "linear"
    persistence = getattr(metric, "persistence", 0.8)
    return metric.fused, metric.k or 0, metric.ties == "average", linear, number, persistence
