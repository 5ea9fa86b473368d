"""Multiply the gradient of every item by a factor of its list."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import list_block
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv


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
        _scale_by_list[(lists, max(1, cdiv(max_length, span)))](
            grad, grad.stride(0), factor, grad_scores, offsets, product, span, num_warps=4
        )
    return product


@cached_launch
@triton.jit(do_not_specialize=["step"])
def _scale_by_list(grad, step, factor, grad_scores, offsets, product, SPAN: tl.constexpr) -> None:
    """Multiply a span of a list by its factor."""
    list_index, start, _, item, inside, _ = list_block(None, offsets, SPAN)
    number = tl.load(grad + list_index.to(tl.int64) * step)
    if factor is not None:
        number *= tl.load(factor)
    grad_score = tl.load(grad_scores + start + item, mask=inside, other=0.0)
    tl.store(product + start + item, grad_score * number, mask=inside)
