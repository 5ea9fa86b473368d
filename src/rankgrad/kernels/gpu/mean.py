"""The mean of the losses of lists, those on which a loss is undefined left out, in one launch."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.prepare import presence

_SPAN = 1024


def mean(values: Tensor, defined: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weighted mean over the lists that are in, and the share of each list in it.

    As :func:`rankgrad.lists.reduce` has it: 0 where there are none.
    """
    total, shares = values.new_empty(()), torch.empty_like(values)
    if weights is not None:
        weights = weights.contiguous()
    span = min(_SPAN, max(32, triton.next_power_of_2(len(values))))
    _mean[(1,)](
        values, defined, presence(weights, values), total, shares, len(values),
        weights is not None, span, num_warps=max(1, span // 256),
    )  # fmt: skip
    return total, shares


@triton.jit
def _load_weight(defined, weights, at, inside, WEIGHTED: tl.constexpr):
    weight = (tl.load(defined + at, mask=inside, other=0) != 0).to(tl.float32)
    if WEIGHTED:
        weight *= tl.load(weights + at, mask=inside, other=0.0)
    return weight


@triton.jit(do_not_specialize=["lists"])
def _mean(
    values, defined, weights, total, shares, lists, WEIGHTED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    amount = tl.zeros([SPAN], tl.float32)
    whole = tl.zeros([SPAN], tl.float32)
    for left in range(0, lists, SPAN):
        at = left + tl.arange(0, SPAN)
        weight = _load_weight(defined, weights, at, at < lists, WEIGHTED)
        whole += weight
        amount += weight * tl.load(values + at, mask=at < lists, other=0.0)
    norm = tl.sum(whole, 0)
    part = tl.where(norm > 0, 1.0 / tl.where(norm > 0, norm, 1.0), 0.0)
    tl.store(total, tl.sum(amount, 0) * part)
    for left in range(0, lists, SPAN):
        at = left + tl.arange(0, SPAN)
        weight = _load_weight(defined, weights, at, at < lists, WEIGHTED)
        tl.store(shares + at, weight * part, mask=at < lists)
