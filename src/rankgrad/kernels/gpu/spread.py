"""A number for each list times those of its slots."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def spread(grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b."""
    product = torch.empty_like(slopes)
    lists = offsets.shape[0] - 1
    if lists > 0:
        span = 256 if longest <= 256 else 1024
        grid = (lists, max(1, triton.cdiv(longest, span)))
        _spread[grid](grad, grad.stride(0), slopes, offsets, product, span, num_warps=4)
    return product


@triton.jit(do_not_specialize=["step"])
def _spread(grad, step, slopes, offsets, product, SPAN: tl.constexpr) -> None:
    at_list = tl.program_id(0)
    start = tl.load(offsets + at_list)
    slots = tl.load(offsets + at_list + 1) - start
    slot = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    slope = tl.load(slopes + start + slot, mask=slot < slots, other=0.0)
    tl.store(product + start + slot, slope * tl.load(grad + at_list * step), mask=slot < slots)
