"""A number for each list times those of its slots."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import cdiv, quick


def spread(
    grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int, factor: Tensor | None = None
) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b, all of them times the factor."""
    product = torch.empty_like(slopes)
    lists = offsets.shape[0] - 1
    if lists > 0:
        span = 256 if longest <= 256 else 1024
        scaled = factor is not None
        _spread[(lists, max(1, cdiv(longest, span)))](
            grad, grad.stride(0), factor if scaled else grad, slopes, offsets, product,
            scaled, span, num_warps=4,
        )  # fmt: skip
    return product


@quick
@triton.jit(do_not_specialize=["step"])
def _spread(
    grad, step, factor, slopes, offsets, product, SCALED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    """A span of a list times its number."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    slots = tl.load(offsets + at_list + 1) - start
    number = tl.load(grad + at_list * step)
    if SCALED:
        number *= tl.load(factor)
    slot = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    slope = tl.load(slopes + start + slot, mask=slot < slots, other=0.0)
    tl.store(product + start + slot, slope * number, mask=slot < slots)
