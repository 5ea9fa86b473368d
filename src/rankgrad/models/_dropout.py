"""Dropout whose random numbers come from a given generator."""

from __future__ import annotations

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
    """Dropout with 16 random bits for each value, many times faster than PyTorch's on a CPU.

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
        if is_plain(values):
            dropped: Tensor = _Drop.apply(values, self.draw(), self.dropped)
            return dropped
        numbers = torch.empty(values.numel() // 4 + 1, dtype=torch.int64, device=values.device)
        numbers.random_(-(2**63), None, generator=self.generator)
        bits = numbers.view(torch.int16)[: values.numel()]
        kept = bits.view(values.shape) >= self.dropped - 2**15
        return values * (kept * (2**16 / (2**16 - self.dropped)))

    def draw(self) -> int:
        """A seed below 2^63 of the values that are dropped."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))

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
    traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    traced = traced or torch._C._are_functorch_transforms_active()
    return values.device.type == "cpu" and values.dtype == torch.float32 and not traced


def draw_from(network: nn.Module, generator: torch.Generator | None) -> None:
    """Have every dropout layer of this package draw from ``generator``; None for PyTorch's own."""
    for layer in network.modules():
        if isinstance(layer, Dropout | FastDropout):
            layer.generator = generator
