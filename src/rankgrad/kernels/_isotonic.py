"""Isotonic regression of sorted lists: its blocks, and sums over blocks.

:mod:`rankgrad.sorting.fastsort` projects onto the permutahedron with these two functions (Blondel
et al. 2020). On a GPU both run Triton kernels. Elsewhere :func:`pool` runs a CPU kernel,
and :func:`block_sums` plain PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad import kernels
from rankgrad.kernels.cpu._isotonic import pool_adjacent


def pool(z: Tensor, w: Tensor, lengths: Tensor, entropic: bool) -> Tensor:
    """The blocks of the decreasing isotonic regression of ``z - w``: runs of equal fitted values.

    Args:
        z: ``[b, n]``, each row descending: the points to project.
        w: ``[b, n]``, each row descending: its permutations span the permutahedron.
        lengths: ``[b]``; each position past a row's length is a block of one.
        entropic: a block's fitted value is ``LSE(z) - LSE(w)`` (log-sum-exp) instead of the mean of
            ``z - w``.

    Returns:
        ``[b, n]``: for each position, the position of the first item of its block.

    >>> z, w = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 0.0]])
    >>> pool(z, w, torch.tensor([3]), entropic=False)
    tensor([[0, 0, 0]])
    """
    if _has_gpu_kernel(z):
        with kernels.ops.on_device(z):
            blocks: Tensor = _gpu_kernels().pool(z, w, lengths, entropic)
        return blocks
    z_array, w_array = (x.detach().to("cpu", torch.float64).numpy() for x in (z, w))
    block_starts = np.tile(np.arange(z.shape[1]), (len(z), 1))  # pool_adjacent changes it
    pool_adjacent(z_array, w_array, lengths.to("cpu").numpy(), entropic, block_starts)
    return torch.from_numpy(block_starts).to(z.device)


def block_sums(values: Tensor, blocks: Tensor) -> Tensor:
    """The sum over each item's block, differentiable.

    Args:
        values: ``[b, n]``.
        blocks: ``[b, n]``, as :func:`pool` gives them.

    Returns:
        ``[b, n]``.

    >>> block_sums(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0, 0, 2]]))
    tensor([[3., 3., 3.]])
    """
    if _has_gpu_kernel(values):
        sums: Tensor = _BlockSums.apply(values, blocks)
        return sums
    return torch.zeros_like(values).scatter_add(-1, blocks, values).gather(-1, blocks)


class _BlockSums(torch.autograd.Function):
    """Deterministic block sums on a GPU, where ``scatter_add`` adds in an arbitrary order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blocks: Tensor) -> Tensor:
        ctx.save_for_backward(blocks)
        with kernels.ops.on_device(values):
            sums: Tensor = _gpu_kernels().block_sums(values, blocks)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # Block sums are a symmetric linear map: the gradient is the block sums of the gradient.
        return _BlockSums.apply(grad, *ctx.saved_tensors), None


def _has_gpu_kernel(values: Tensor) -> bool:
    return values.is_cuda and kernels.mode() != "eager" and kernels.ops.installed("triton")


def _gpu_kernels() -> Any:
    """The Triton kernels, imported only when used, as Triton may not be installed."""
    return importlib.import_module("rankgrad.kernels.gpu._isotonic")
