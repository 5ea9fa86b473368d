"""The sum or the mean over lists."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import next_power_of_2, quick
from rankgrad.kernels.gpu.spread import multiply, spans_of, spread_into

_WIDTH = 1024


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over the lists that are defined, and the share of each in it."""
    lists = values.shape[0]
    result, shares = values.new_empty(()), torch.empty_like(values)
    weighted = list_weights is not None
    width = _width(lists)
    _reduce[(1,)](
        values, defined, list_weights if weighted else values, result, shares, lists,
        mean, weighted, width, num_warps=4 if width > 128 else 1,
    )  # fmt: skip
    return result, shares


def share(
    values: Tensor,
    slopes: Tensor,
    defined: Tensor,
    list_weights: Tensor | None,
    mean: bool,
    offsets: Tensor,
    longest: int,
) -> Tensor:
    """The same sum or mean; the slopes are multiplied by the shares of their lists, in place.

    Of few lists every program adds up the weights itself, which takes less than a second launch.
    """
    lists = values.shape[0]
    if not 0 < lists <= _WIDTH:
        result, shares = reduce(values, defined, list_weights, mean)
        spread_into(slopes, shares, slopes, offsets, longest)
        return result
    result, weighted = values.new_empty(()), list_weights is not None
    span, spans = spans_of(longest)
    _share[(lists, spans)](
        values, defined, list_weights if weighted else values, result, slopes, offsets, lists,
        mean, weighted, _width(lists), span, num_warps=4,
    )  # fmt: skip
    return result


def _width(lists: int) -> int:
    """How many lists are added up at a time."""
    return min(_WIDTH, max(32, next_power_of_2(lists)))


@triton.jit
def _weight(defined, list_weights, at, inside, WEIGHTED: tl.constexpr):
    """The weights of lists, 0 for those left out."""
    counts = tl.load(defined + at, mask=inside, other=0) != 0
    weight = counts.to(tl.float64)
    if WEIGHTED:
        weight *= tl.load(list_weights + at, mask=counts, other=0.0).to(tl.float64)
    return weight


@triton.jit
def _over(total, MEAN: tl.constexpr):
    """What sums over lists are multiplied by, the total of the weights being known."""
    over = total * 0.0 + 1.0
    if MEAN:
        over = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    return over


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
    over = _over(tl.sum(totals, 0), MEAN)
    tl.store(result, (tl.sum(sums, 0) * over).to(result.dtype.element_ty))
    for left in range(0, lists, WIDTH):
        at = left + tl.arange(0, WIDTH)
        weight = _weight(defined, list_weights, at, at < lists, WEIGHTED)
        tl.store(shares + at, (weight * over).to(shares.dtype.element_ty), mask=at < lists)


@quick
@triton.jit(do_not_specialize=["lists"])
def _share(
    values, defined, list_weights, result, slopes, offsets, lists,
    MEAN: tl.constexpr, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """A span of a list times its share; the first program gives the sum over lists as well."""
    at_list = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    weight = _weight(defined, list_weights, at, at < lists, WEIGHTED)
    over = _over(tl.sum(weight, 0), MEAN)
    if (at_list == 0) & (tl.program_id(1) == 0):
        value = tl.load(values + at, mask=(at < lists) & (weight != 0), other=0.0)
        total = tl.sum(weight * value.to(tl.float64), 0)
        tl.store(result, (total * over).to(result.dtype.element_ty))
    own = _weight(defined, list_weights, at_list, at_list < lists, WEIGHTED)
    factor = (own * over).to(slopes.dtype.element_ty)
    multiply(factor, slopes, offsets, slopes, at_list, tl.program_id(1), SPAN)
