"""Gradient and Hessian diagonal of pairwise losses in one pass, by a backend kernel.

:meth:`rankgrad.losses.pairwise.PairwiseLoss.derivatives_of_flat` calls :func:`usable`, then
:func:`compute`, for gradient boosting. Where no kernel is usable, the eager form takes over:
:meth:`rankgrad.losses.pairwise.PairwiseLoss.derivatives`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankgrad.kernels import ops
from rankgrad.kernels.arguments import FlatLists, PairOptions

#: On a GPU one Triton program sorts a whole list; lists longer than this use the eager form.
MAX_LENGTH_ON_GPU = 2048

#: The values of ``PairOptions.kind`` that have a GPU kernel; the CPU kernel has every kind. The
#: metric is not checked here: lambda losses ask for this kernel only if their metric is NDCG
#: (``newton_kernel`` in :mod:`rankgrad.losses.lambdaloss`).
_KINDS_ON_GPU = ("lambdarank", "lambdarank_norm", "ndcg_loss2", "ndcg_loss2++")


def usable(lists: FlatLists, options: PairOptions) -> bool:
    """Whether there is a kernel for these lists and :func:`rankgrad.kernels.use` allows it."""
    device = lists.scores.device.type
    if ops.mode() == "eager" or device not in ("cpu", "cuda"):
        return False
    if device == "cpu":
        return ops.installed("numba")
    # The GPU kernel computes in float32. The CPU kernel computes in float64, whatever the type.
    fits = lists.scores.dtype == torch.float32 and lists.max_length <= MAX_LENGTH_ON_GPU
    return options.kind in _KINDS_ON_GPU and fits and ops.installed("triton")


def compute(lists: FlatLists, options: PairOptions) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian diagonal of the sum of the lists' losses, by each score.

    Call it only if :func:`usable` is True for these arguments.

    Args:
        lists: without a mask, as every item is real; the scores are finite. A pair is multiplied by
            the item weight of its preferred item.
        options: which pairs count and how they are weighted, with the cutoff and σ.

    Returns:
        The gradient and the Hessian diagonal, ``[items]`` each.
    """
    if lists.scores.is_cuda:
        from rankgrad.kernels.gpu._pair_derivatives import pair_derivatives as on_gpu

        return on_gpu(lists, options)
    from rankgrad.kernels.cpu._pairs import pair_derivatives as on_cpu

    return on_cpu(lists, options)
