"""The sum or the mean over lists."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import quick

_WIDTH = 1024


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and the share of each in it."""
    lists = values.shape[0]
    result, shares = values.new_empty(()), torch.empty_like(values)
    weighted = list_weights is not None
    width = min(_WIDTH, max(32, triton.next_power_of_2(lists)))
    _reduce[(1,)](
        values, defined, list_weights if weighted else values, result, shares, lists,
        mean, weighted, width, num_warps=4 if width > 128 else 1,
    )  # fmt: skip
    return result, shares


@triton.jit
def _weight(defined, list_weights, at, inside, WEIGHTED: tl.constexpr):
    """The weights of lists, 0 for those left out."""
    counts = tl.load(defined + at, mask=inside, other=0) != 0
    weight = counts.to(tl.float64)
    if WEIGHTED:
        weight *= tl.load(list_weights + at, mask=counts, other=0.0).to(tl.float64)
    return weight


@quick
@triton.jit(do_not_specialize=["lists"])
def _reduce(
    values, defined, list_weights, result, shares, lists,
    MEAN: tl.constexpr, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """All lists by one program, in double precision, always in the same order."""
    totals = tl.zeros([WIDTH], tl.float64)
    sums = tl.zeros([WIDTH], tl.float64)
    for left in range(0, lists, WIDTH):
        at = left + tl.arange(0, WIDTH)
        weight = _weight(defined, list_weights, at, at < lists, WEIGHTED)
        value = tl.load(values + at, mask=(at < lists) & (weight != 0), other=0.0)
        totals += weight
        sums += weight * value.to(tl.float64)
    over = tl.sum(totals, 0) * 0.0 + 1.0
    if MEAN:
        total = tl.sum(totals, 0)
        over = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(result, (tl.sum(sums, 0) * over).to(result.dtype.element_ty))
    for left in range(0, lists, WIDTH):
        at = left + tl.arange(0, WIDTH)
        weight = _weight(defined, list_weights, at, at < lists, WEIGHTED)
        tl.store(shares + at, (weight * over).to(shares.dtype.element_ty), mask=at < lists)
