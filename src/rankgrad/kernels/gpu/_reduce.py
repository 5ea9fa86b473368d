"""The sum or the mean over lists."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._launcher import cached_launch, next_power_of_2

_WIDTH = 1024  # lists that are summed at a time


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over defined lists, and the normalized weight of each list."""
    lists = values.shape[0]
    result, normalized_weights = values.new_empty(()), torch.empty_like(values)
    width = min(_WIDTH, max(32, next_power_of_2(lists)))
    _reduce[(1,)](
        values, defined, list_weights, result, normalized_weights, lists,
        mean, width, num_warps=4 if width > 128 else 1,
    )  # fmt: skip
    return result, normalized_weights


@triton.jit
def _weighed(values, defined, list_weights, at, lists):
    """The weights of some lists (0 if undefined), and their weighted values."""
    inside = at < lists
    counts = tl.load(defined + at, mask=inside, other=0) != 0
    value = tl.load(values + at, mask=inside, other=0.0)
    weight = counts.to(tl.float64)
    if list_weights is not None:
        list_weight = tl.load(list_weights + at, mask=inside, other=0.0)
        weight *= tl.where(counts, list_weight, 0.0).to(tl.float64)
    return weight, weight * tl.where(weight != 0, value, 0.0).to(tl.float64)


@cached_launch
@triton.jit(do_not_specialize=["lists"])
def _reduce(
    values, defined, list_weights, result, normalized_weights, lists,
    MEAN: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Reduce all lists in one program, in float64 and in a fixed order."""
    first = tl.arange(0, WIDTH)
    weights, terms = _weighed(values, defined, list_weights, first, lists)
    totals, sums = weights, terms
    for left in range(WIDTH, lists, WIDTH):
        weight, term = _weighed(values, defined, list_weights, left + first, lists)
        totals += weight
        sums += term
    over = 1.0
    if MEAN:
        total = tl.sum(totals, 0)
        over = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(result, (tl.sum(sums, 0) * over).to(result.dtype.element_ty))
    tl.store(
        normalized_weights + first,
        (weights * over).to(normalized_weights.dtype.element_ty),
        mask=first < lists,
    )
    for left in range(WIDTH, lists, WIDTH):
        at = left + first
        weight, _ = _weighed(values, defined, list_weights, at, lists)
        tl.store(
            normalized_weights + at,
            (weight * over).to(normalized_weights.dtype.element_ty),
            mask=at < lists,
        )
