"""Backend kernels of the hot paths, Numba on CPUs and Triton on GPUs, and the choice between them.

Every loss has an eager form in plain PyTorch, which defines what is computed. By default a loss
uses the kernel of its device if there is one; :func:`use` changes that.
"""

from __future__ import annotations

from rankgrad.kernels import (
    _registration,  # noqa: F401 (torch.ops.rankgrad)
    ops,
)
from rankgrad.kernels.cpu._isotonic import pool_adjacent
from rankgrad.kernels.declared import DeclaresKernel
from rankgrad.kernels.ops import MODES, KernelCall, Mode, available, mode, ready, use, using

__all__ = [
    "MODES",
    "DeclaresKernel",
    "KernelCall",
    "Mode",
    "available",
    "mode",
    "ops",
    "pool_adjacent",
    "ready",
    "use",
    "using",
]
