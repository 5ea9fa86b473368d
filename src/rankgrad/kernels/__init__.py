"""Backend kernels of the hot paths, Numba on CPUs and Triton on GPUs, and the choice between them.

Every loss, metric and relaxation has an eager form in plain PyTorch, which defines what is
computed. By default it uses the kernel of its device if there is one; :func:`use` changes that.

Read ``declared.py`` (which class has a kernel), ``_backends.py`` (the table of operations) and
``ops.py`` (how they are called) first.
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
