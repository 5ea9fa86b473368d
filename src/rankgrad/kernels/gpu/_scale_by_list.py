"""Multiply the gradient of every item by a factor of its list: the backward of fused losses."""

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
    """``factor * grad[b] * grad_scores[i]`` for every item i of list b.

    Args:
        grad: ``[lists]``; may be strided, as an expanded scalar is.
        grad_scores: ``[items]``.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.
        factor: a scalar tensor, or None for 1.

    Returns:
        ``[items]``; items after the last list are not written.
    """
    product = torch.empty_like(grad_scores)
    lists = offsets.shape[0] - 1
    if lists > 0:
        span = 256 if max_length <= 256 else 1024
        _scale_by_list[(lists, max(1, cdiv(max_length, span)))](
            grad, grad.stride(0), factor, grad_scores, offsets, product, span, num_warps=4
        )
    return product


@cached_launch
@triton.jit(do_not_specialize=["stride"])
def _scale_by_list(grad, stride, factor, grad_scores, offsets, product, SPAN: tl.constexpr) -> None:
    """Write the product for a span of a list."""
    list_index, start, _, item, inside, _ = list_block(None, offsets, SPAN)
    list_factor = tl.load(grad + list_index.to(tl.int64) * stride)
    if factor is not None:
        list_factor *= tl.load(factor)
    grad_score = tl.load(grad_scores + start + item, mask=inside, other=0.0)
    tl.store(product + start + item, grad_score * list_factor, mask=inside)
