"""A number for each list times those of its slots."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import quick


def spread(
    grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int, shares: Tensor | None = None
) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b; with shares, ``grad * shares[b]``."""
    product = torch.empty_like(slopes)
    lists = offsets.shape[0] - 1
    if lists > 0:
        span = 256 if longest <= 256 else 1024
        grid = (lists, max(1, triton.cdiv(longest, span)))
        step, shared = (grad.stride(0) if grad.dim() else 0), shares is not None
        _spread[grid](
            grad, step, shares if shared else grad, slopes, offsets, product, shared, span,
            num_warps=4,
        )  # fmt: skip
    return product


@quick
@triton.jit(do_not_specialize=["step"])
def _spread(
    grad, step, shares, slopes, offsets, product, SHARED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    slots = tl.load(offsets + at_list + 1) - start
    slot = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    factor = tl.load(grad + at_list * step)
    if SHARED:
        factor *= tl.load(shares + at_list)
    slope = tl.load(slopes + start + slot, mask=slot < slots, other=0.0)
    tl.store(product + start + slot, slope * factor, mask=slot < slots)
