"""Gradient and Hessian diagonal of pairwise losses in one pass, by a backend kernel.

:meth:`rankgrad.losses.pairwise.PairwiseLoss.derivatives_of_flat` calls it for gradient boosting.
The eager form is :meth:`rankgrad.losses.pairwise.PairwiseLoss.derivatives`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankgrad.kernels import ops
from rankgrad.kernels.arguments import FlatLists, PairOptions

#: The longest list that the GPU kernel sorts within one program.
MAX_LENGTH_ON_GPU = 2048

#: The losses that the GPU kernel computes; the CPU kernel computes all.
_KINDS_ON_GPU = ("lambdarank", "lambdarank_norm", "ndcg_loss2", "ndcg_loss2++")


def usable(lists: FlatLists, options: PairOptions) -> bool:
    """Whether there is a kernel for these lists and :func:`rankgrad.kernels.use` allows it."""
    device = lists.scores.device.type
    if ops.mode() == "eager" or device not in ("cpu", "cuda"):
        return False
    if device == "cpu":
        return ops.installed("numba")
    fits = lists.scores.dtype == torch.float32 and lists.max_length <= MAX_LENGTH_ON_GPU
    return options.kind in _KINDS_ON_GPU and fits and ops.installed("triton")


def compute(lists: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian diagonal of every list's value.

    Args:
        lists: without a mask; the scores are finite. A pair is multiplied by the item weight of
            its preferred item.
        options: which pairs count, and their weights.

    Returns:
        The gradient and the Hessian diagonal, ``[items]`` each.
    """
    if lists.scores.is_cuda:
        from rankgrad.kernels.gpu._pair_derivatives import pair_derivatives as on_gpu

        return on_gpu(lists, options)
    from rankgrad.kernels.cpu._pair_derivatives import pair_derivatives as on_cpu

    return on_cpu(lists, options)
