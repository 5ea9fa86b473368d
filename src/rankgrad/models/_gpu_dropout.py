"""An activation and dropout in one Triton kernel, for ``FastDropout`` of :mod:`._dropout`.

Which values are dropped is decided by a hash of each value's position and a seed. The backward pass
computes the hash again, so that no mask is saved. Forward and backward pass are the same kernel,
:func:`_activate_and_drop`: with ``IS_BACKWARD`` it takes the activation's derivative, and
multiplies by the gradient of the output.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from rankgrad._shapes import Float
from rankgrad.models._dropout import scale_of_kept

#: The number of each activation layer in the kernel; only layers with default options.
KINDS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.ReLU: 1, nn.SiLU: 2, nn.GELU: 3}
_VALUES = 2048  # values that one program computes
_WIDTH = 1024  # the most columns of a row that one program computes


class ActivationDropout(torch.autograd.Function):
    """``activation(x) * is_kept / (1 - rate)``; the same seed keeps the same values as on a CPU.

    ``apply`` takes the values ``[m, N, w]``, for m members (as of an ensemble) of N items
    with w columns; the seed, a whole number from 0 to below 2^63, as a scalar on their device; how
    many of 65,536 values are dropped (65,536 · rate); and the kind of activation, a value of
    :data:`KINDS`.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, values: Float[Tensor, "m N w"], seed: Tensor, dropped: int, kind: int
    ) -> Float[Tensor, "m N w"]:
        values = values if values.stride(-1) == 1 else values.contiguous()
        ctx.save_for_backward(values, seed)
        ctx.options = dropped, kind
        results = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        _launch(values, values, seed, results, ctx.options, is_backward=False)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        values, seed = ctx.saved_tensors
        # Like empty_strided, but members that share their values get gradients of their own.
        results = torch.empty_like(values)
        _launch(values, grads[0].contiguous(), seed, results, ctx.options, is_backward=True)
        return results, None, None, None


def _launch(
    values: Tensor,
    grad: Tensor,
    seed: Tensor,
    results: Tensor,
    options: tuple[int, int],
    is_backward: bool,
) -> None:
    """Run the kernel on ``[m, N, w]`` values and, in the backward pass, contiguous gradients.

    ``options`` are ``dropped`` and ``kind`` of :class:`ActivationDropout`. The forward pass does
    not read ``grad``.
    """
    members, n_items, width = values.shape
    dropped, kind = options
    columns = min(triton.next_power_of_2(max(width, 1)), _WIDTH)
    rows = max(1, _VALUES // columns)
    with torch.cuda.device_of(values):
        _activate_and_drop[(triton.cdiv(members * n_items, rows), triton.cdiv(width, columns))](
            values, grad, seed, results, n_rows=members * n_items, n_items=n_items, width=width,
            value_member_stride=values.stride(0), value_item_stride=values.stride(1),
            result_member_stride=results.stride(0), result_item_stride=results.stride(1),
            dropped=dropped, scale=scale_of_kept(dropped),
            KIND=kind, IS_BACKWARD=is_backward, ROWS=rows, COLUMNS=columns,
        )  # fmt: skip


@triton.jit
def _activate(x, KIND: tl.constexpr, IS_BACKWARD: tl.constexpr):
    """The activation of x, or its derivative; KIND is a value of KINDS. NaN stays NaN."""
    # x * 0.0 + 1.0 is 1, and NaN where x is NaN.
    if KIND == 0:  # identity
        result = x * 0.0 + 1.0 if IS_BACKWARD else x
    elif KIND == 1:  # ReLU
        result = tl.where(x <= 0, 0.0, x * 0.0 + 1.0 if IS_BACKWARD else x)
    elif KIND == 2:  # SiLU
        sigmoid = 1.0 / (1.0 + tl.exp(-x))
        result = sigmoid * (1.0 + x * (1.0 - sigmoid)) if IS_BACKWARD else x * sigmoid
    else:  # GELU
        cdf = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))  # of the normal distribution; 1 / √2
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)  # 1 / √(2π)
        result = cdf + x * density if IS_BACKWARD else x * cdf
    return result


@triton.jit
def _activate_and_drop(
    values, grad, seed, results, n_rows, n_items, width,
    value_member_stride, value_item_stride, result_member_stride, result_item_stride,
    dropped, scale, KIND: tl.constexpr, IS_BACKWARD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program's part of the work: a tile of ROWS rows times COLUMNS columns.

    A row is an item of a member: the tensors ``[m, N, w]`` are seen as matrices of m N rows and w
    columns. Members and items have strides, columns have stride 1; ``grad`` is contiguous. The hash
    is that of ``_drop_by_hash`` in :mod:`rankgrad.models._dropout`, of the position in the
    contiguous tensor.
    """
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < n_rows) & (column < width)
    member, item = row // n_items, row % n_items
    position = row * width + column
    seed_bits = tl.load(seed).to(tl.uint64)
    bits = position.to(tl.uint32) + seed_bits.to(tl.uint32)
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ (seed_bits >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    is_kept = (bits >> 16) >= dropped  # the upper 16 bits: 65,536 equally likely numbers
    source = member * value_member_stride + item * value_item_stride + column
    x = tl.load(values + source, mask=inside).to(tl.float32)
    result = _activate(x, KIND, IS_BACKWARD) * scale
    if IS_BACKWARD:
        result *= tl.load(grad + position, mask=inside).to(tl.float32)
    target = member * result_member_stride + item * result_item_stride + column
    tl.store(results + target, tl.where(is_kept, result, 0.0), mask=inside)
