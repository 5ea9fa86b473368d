"""A number for each list times those of its slots."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import cdiv, quick


def spread(grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b."""
    product = torch.empty_like(slopes)
    spread_into(product, grad, slopes, offsets, longest)
    return product


def spread_into(
    product: Tensor, grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int
) -> None:
    """The same into memory that is there, be it the slopes' own."""
    lists = offsets.shape[0] - 1
    if lists > 0:
        span, spans = spans_of(longest)
        _spread[(lists, spans)](
            grad, grad.stride(0), slopes, offsets, product, span, num_warps=4
        )  # fmt: skip


def spans_of(longest: int) -> tuple[int, int]:
    """How many slots a program multiplies, and how many programs a list takes."""
    span = 256 if longest <= 256 else 1024
    return span, max(1, cdiv(longest, span))


@triton.jit
def multiply(factor, slopes, offsets, product, at_list, at_span, SPAN: tl.constexpr):
    """A span of a list times a number."""
    start = tl.load(offsets + at_list)
    slots = tl.load(offsets + at_list + 1) - start
    slot = at_span * SPAN + tl.arange(0, SPAN)
    slope = tl.load(slopes + start + slot, mask=slot < slots, other=0.0)
    tl.store(product + start + slot, slope * factor, mask=slot < slots)


@quick
@triton.jit(do_not_specialize=["step"])
def _spread(grad, step, slopes, offsets, product, SPAN: tl.constexpr) -> None:
    at_list = tl.program_id(0).to(tl.int64)
    factor = tl.load(grad + at_list * step)
    multiply(factor, slopes, offsets, product, at_list, tl.program_id(1), SPAN)
