"""Multiply the gradient of every item by a factor of its list."""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launcher import cached_launch, cdiv


def scale_by_list(
    grad: Tensor,
    grad_scores: Tensor,
    offsets: Tensor,
    max_length: int,
    factor: Tensor | None = None,
) -> Tensor:
    """``factor * grad[b] * grad_scores[i]`` for every item i of list b."""
    product = torch.empty_like(grad_scores)
    lists = offsets.shape[0] - 1
    if lists > 0:
        span = 256 if max_length <= 256 else 1024
        scaled = factor is not None
        _scale_by_list[(lists, max(1, cdiv(max_length, span)))](
            grad, grad.stride(0), factor if scaled else grad, grad_scores, offsets, product,
            scaled, span, num_warps=4,
        )  # fmt: skip
    return product


@cached_launch
@triton.jit(do_not_specialize=["step"])
def _scale_by_list(
    grad, step, factor, grad_scores, offsets, product, SCALED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    """Multiply a span of a list by its factor."""
    at_list = tl.program_id(0).to(tl.int64)
    start = tl.load(offsets + at_list)
    length = tl.load(offsets + at_list + 1) - start
    number = tl.load(grad + at_list * step)
    if SCALED:
        number *= tl.load(factor)
    item = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    grad_score = tl.load(grad_scores + start + item, mask=item < length, other=0.0)
    tl.store(product + start + item, grad_score * number, mask=item < length)
