"""Backend kernels of the hot paths, Numba on CPUs and Triton on GPUs, and the choice between them.

Every loss has an eager form, plain PyTorch, that says what is computed. Where there is a kernel for
the device it is used by default; :func:`use` chooses otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

import torch

from rankgrad.kernels import ops
from rankgrad.kernels.cpu.isotonic import pool_adjacent
from rankgrad.kernels.declared import DeclaresKernel
from rankgrad.kernels.ops import KernelCall

Mode = Literal["auto", "eager", "fused"]
MODES: tuple[Mode, ...] = get_args(Mode)

__all__ = [
    "MODES",
    "DeclaresKernel",
    "KernelCall",
    "Mode",
    "mode",
    "ops",
    "pool_adjacent",
    "ready",
    "use",
    "using",
]

_Function = TypeVar("_Function", bound=Callable[..., bool])

_mode: Mode = "auto"
_DEVICES = {"cpu": ("cpu", "numba"), "cuda": ("gpu", "triton")}
_TABLES: dict[str, Any] = {**ops.LOSSES, **ops.RANKS, **ops.METRICS, **ops.CHECKS}


def use(mode: Mode) -> None:
    """Choose how losses are computed from now on.

    ``"auto"``: by a kernel where there is one for the device; ``"eager"``: plain PyTorch always;
    ``"fused"``: like auto, but an error where what the kernels need is not installed.

    >>> use("eager")
    >>> mode()
    'eager'
    >>> use("auto")
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}; found {mode!r}")
    _mode = mode


def mode() -> Mode:
    """What :func:`use` chose."""
    return _mode


@contextmanager
def using(mode: Mode) -> Iterator[None]:
    """:func:`use` for a while."""
    before = _mode
    use(mode)
    try:
        yield
    finally:
        use(before)


def ready(name: str, scores: torch.Tensor) -> bool:
    """Whether an operation of :mod:`rankgrad.kernels.ops` is to be used on such scores."""
    return available(_TABLES[name][0], name, scores)


def available(module: str, name: str, scores: torch.Tensor) -> bool:
    """Whether something of a module of the kernels is there and to be used on such scores."""
    device = "cpu" if scores.is_cpu else scores.device.type
    if _mode == "eager" or device not in _DEVICES:
        return False
    package, needed = _DEVICES[device]
    if not _installed(needed):
        if _mode == "fused":
            raise RuntimeError(
                f'kernels.use("fused") on {device} needs {needed}, which is not installed; '
                'kernels.use("auto") works without'
            )
        return False
    if device == "cuda" and scores.dtype != torch.float32:
        return False
    return _written(f"rankgrad.kernels.{package}.{module}", name)


def _constant(function: _Function) -> _Function:
    """Mark a function whose result ``torch.compile`` takes as a constant.

    ``torch.compiler.assume_constant_result`` does the same and takes a second to import.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def _installed(package: str) -> bool:
    return _is_installed(package)


@_constant
def _written(module: str, name: str) -> bool:
    return _is_written(module, name)


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@functools.cache
def _is_written(module: str, name: str) -> bool:
    if importlib.util.find_spec(module) is None:
        return False
    return hasattr(importlib.import_module(module), name)
