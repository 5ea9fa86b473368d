"""The last step of all losses: the sum or mean over lists; and the backward pass of losses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._flat_lists import list_block
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2

_WIDTH = 1024  # lists that are summed at a time


def reduce(
    values: Tensor, defined: Tensor, list_weights: Tensor | None, mean: bool
) -> tuple[Tensor, Tensor]:
    """The weighted sum or mean over defined lists, and the normalized weight of each list.

    Args:
        values: ``[lists]``, the loss of each list.
        defined: ``[lists]`` bool; other lists are left out.
        list_weights: ``[lists]``, or None for equal weights.
        mean: whether to divide by the sum of the weights; 0 if that is 0.

    Returns:
        A scalar, and ``[lists]``: its derivative with respect to each value.
    """
    lists = values.shape[0]
    result, normalized_weights = values.new_empty(()), torch.empty_like(values)
    width = min(_WIDTH, max(32, next_power_of_2(lists)))
    _reduce[(1,)](
        values, defined, list_weights, result, normalized_weights, lists,
        mean, width, num_warps=4 if width > 128 else 1,
    )  # fmt: skip
    return result, normalized_weights


@triton.jit
def _weigh_lists(values, defined, list_weights, list_index, lists):
    """The weights of some lists (0 where undefined), and their values times the weights."""
    inside = list_index < lists
    is_defined = tl.load(defined + list_index, mask=inside, other=0) != 0
    value = tl.load(values + list_index, mask=inside, other=0.0)
    weight = is_defined.to(tl.float64)
    if list_weights is not None:
        list_weight = tl.load(list_weights + list_index, mask=inside, other=0.0)
        weight *= tl.where(is_defined, list_weight, 0.0).to(tl.float64)
    return weight, weight * tl.where(weight != 0, value, 0.0).to(tl.float64)


@cached_launch
@triton.jit(do_not_specialize=["lists"])
def _reduce(
    values, defined, list_weights, result, normalized_weights, lists,
    MEAN: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Reduce all lists in one program, in float64 and in a fixed order."""
    lane = tl.arange(0, WIDTH)
    weights, weighted_values = _weigh_lists(values, defined, list_weights, lane, lists)
    weight_sums, value_sums = weights, weighted_values
    for first_list in range(WIDTH, lists, WIDTH):
        weight, term = _weigh_lists(values, defined, list_weights, first_list + lane, lists)
        weight_sums += weight
        value_sums += term
    factor = 1.0
    if MEAN:
        weight_sum = tl.sum(weight_sums, 0)
        factor = tl.where(weight_sum > 0, 1.0 / tl.where(weight_sum > 0, weight_sum, 1.0), 0.0)
    tl.store(result, (tl.sum(value_sums, 0) * factor).to(result.dtype.element_ty))
    tl.store(
        normalized_weights + lane, (weights * factor).to(normalized_weights.dtype.element_ty),
        mask=lane < lists,
    )  # fmt: skip
    for first_list in range(WIDTH, lists, WIDTH):
        list_index = first_list + lane
        weight, _ = _weigh_lists(values, defined, list_weights, list_index, lists)
        tl.store(
            normalized_weights + list_index,
            (weight * factor).to(normalized_weights.dtype.element_ty), mask=list_index < lists,
        )  # fmt: skip


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
