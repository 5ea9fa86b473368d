"""Dropout whose random numbers come from a given generator."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override


class Dropout(nn.Dropout):
    """PyTorch's dropout with a ``generator``, so that trainings in threads have one each.

    PyTorch's layer draws from a generator that all threads share. Without a generator this one does
    too; with one, on a CPU, it draws the same numbers as PyTorch's would from it.

    >>> layer = Dropout(0.5)
    >>> layer.generator = torch.Generator().manual_seed(0)
    >>> first = layer(torch.ones(4))
    >>> _ = layer.generator.manual_seed(0)
    >>> torch.equal(first, layer(torch.ones(4)))
    True
    """

    generator: torch.Generator | None = None

    @override
    def forward(self, values: Tensor) -> Tensor:
        if self.generator is None or not self.training or self.p == 0:
            return super().forward(values)
        scale = torch.empty_like(values).bernoulli_(1 - self.p, generator=self.generator)
        return values * scale.div_(1 - self.p)


class FastDropout(nn.Module):
    """Dropout with 16 random bits for each value, a hash of its position and of a seed.

    Many times faster than PyTorch's on a CPU, and on a GPU one kernel with the activation before
    it. The backward pass computes the bits again, so none are saved.

    Args:
        rate: the share of the values set to 0 in training.
    """

    generator: torch.Generator | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.dropped = round(rate * 2**16)

    @override
    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        if is_on_gpu(values):
            return self.after(nn.Identity(), values)
        if is_plain(values):
            dropped: Tensor = _Drop.apply(values, int(self.draw("cpu")), self.dropped)
            return dropped
        numbers = torch.empty(values.numel() // 4 + 1, dtype=torch.int64, device=values.device)
        numbers.random_(-(2**63), None, generator=self.generator)
        bits = numbers.view(torch.int16)[: values.numel()]
        kept = bits.view(values.shape) >= self.dropped - 2**15
        return values * (kept * (2**16 / (2**16 - self.dropped)))

    def after(self, activation: nn.Module, values: Tensor) -> Tensor:
        """Dropout of an activation; on a GPU and in training both are one kernel."""
        if not self.training or not is_on_gpu(values):
            dropped: Tensor = self(activation(values))
            return dropped
        from rankgrad.models._gpu_dropout import KINDS, ActivationDropout

        if type(activation) not in KINDS:
            activation, values = nn.Identity(), activation(values)
        rows = values if values.dim() == 3 else values.reshape(1, -1, values.shape[-1])
        seed, kind = self.draw(values.device), KINDS[type(activation)]
        dropped = ActivationDropout.apply(rows, seed, self.dropped, kind)
        return dropped.view(values.shape)

    def draw(self, device: torch.device | str) -> Tensor:
        """A seed below 2^63 of the values that are dropped."""
        seed = torch.empty((), dtype=torch.int64, device=device)
        return seed.random_(generator=self.generator)

    @override
    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class _Drop(torch.autograd.Function):
    """Dropout by a hash of each value's position, which the backward pass computes again."""

    @staticmethod
    @override
    def forward(ctx: Any, values: Tensor, seed: int, dropped: int) -> Tensor:
        ctx.seed, ctx.dropped = seed, dropped
        return _drop(values, seed, dropped)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _drop(grads[0], ctx.seed, ctx.dropped), None, None


def _drop(values: Tensor, seed: int, dropped: int) -> Tensor:
    values = values.detach().contiguous()
    left = torch.empty_like(values)
    _kernel()(values.view(-1).numpy(), np.uint64(seed), np.uint32(dropped), left.view(-1).numpy())
    return left


@cache
def _kernel() -> Any:
    from rankgrad._compilation import compile_cached

    return compile_cached(_drop_by_hash, nogil=True)


def _drop_by_hash(
    values: np.ndarray, seed: np.uint64, dropped: np.uint32, left: np.ndarray
) -> None:
    """``left = values * kept / (1 - rate)``; the hash is the lowbias32 of C. Wellons.

    Args:
        values: ``[N]`` float32.
        seed: below 2^63; each half of it is mixed in.
        dropped: how many of 65,536 values are dropped.
        left: ``[N]``, written.
    """
    scale = np.float32(65536 / (65536 - dropped))
    low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
    for i in range(len(values)):
        x = np.uint32(i) + low
        x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
        x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
        kept = np.uint32(x >> np.uint32(16)) >= dropped
        left[i] = values[i] * scale if kept else np.float32(0)


def is_plain(values: Tensor) -> bool:
    """Whether functions compiled for CPUs take these values."""
    on_cpu = values.device.type == "cpu" and values.dtype == torch.float32
    return on_cpu and not _is_traced()


def is_on_gpu(values: Tensor) -> bool:
    """Whether GPU kernels take these values; they compute in float32."""
    on_gpu = values.is_cuda and values.dtype != torch.float64
    return on_gpu and _has_triton() and not _is_traced()


def _is_traced() -> bool:
    traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return traced or torch._C._are_functorch_transforms_active()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def draw_from(network: nn.Module, generator: torch.Generator | None) -> None:
    """Have every dropout layer of this package draw from ``generator``; None for PyTorch's own."""
    for layer in network.modules():
        if isinstance(layer, Dropout | FastDropout):
            layer.generator = generator
