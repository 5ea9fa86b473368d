"""Dropout layers whose random numbers come from a generator of their own.

PyTorch's dropout draws from one generator that all threads share, so two trainings in threads would
affect each other. :class:`Dropout` draws the same numbers from a generator it is given;
:class:`FastDropout`, which TabM uses, hashes a seed with compiled code, on a CPU
(:func:`_drop_by_hash`) and on a GPU (:mod:`rankgrad.models._gpu_dropout`). Training gives all
layers of a network their generator by :func:`draw_from`.
"""

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

    On a CPU it draws the numbers that PyTorch's layer would draw from that generator. Without a
    generator it is PyTorch's layer.

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
        if self.generator is None or not self.training or self.p in (0, 1):  # draws nothing
            return super().forward(values)
        is_kept = torch.empty_like(values).bernoulli_(1 - self.p, generator=self.generator)
        return values * is_kept.div_(1 - self.p)


class FastDropout(nn.Module):
    """Dropout by 16 random bits for each value: a hash of the value's position and of a seed.

    On a CPU it is many times faster than PyTorch's; on a GPU it is one kernel together with the
    activation before it. The backward pass computes the hash again, so no mask is saved.

    Args:
        rate: the fraction of the values set to 0 in training.
    """

    generator: torch.Generator | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.dropped = round(rate * 2**16)  # how many of 65,536 values are dropped

    @override
    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        if gpu_kernel_applies(values):
            return self.after(nn.Identity(), values)
        if cpu_kernel_applies(values):
            output: Tensor = _Drop.apply(values, int(self.draw("cpu")), self.dropped)
            return output
        # Other devices and types, and traced programs: each random 64-bit number gives four values
        # 16 bits each, from -2^15 to below 2^15.
        numbers = torch.empty(values.numel() // 4 + 1, dtype=torch.int64, device=values.device)
        numbers.random_(-(2**63), None, generator=self.generator)
        bits = numbers.view(torch.int16)[: values.numel()]
        # The limit may be 2^15, which is no int16.
        is_kept = bits.view(values.shape).int() >= self.dropped - 2**15
        return torch.where(is_kept, values * scale_of_kept(self.dropped), 0.0)

    def after(self, activation: nn.Module, values: Tensor) -> Tensor:
        """``dropout(activation(values))``; on a GPU in training, both in one kernel."""
        if not self.training or not gpu_kernel_applies(values):
            output: Tensor = self(activation(values))
            return output
        from rankgrad.models._gpu_dropout import KINDS, ActivationDropout

        if type(activation) not in KINDS:
            activation, values = nn.Identity(), activation(values)
        # The kernel takes [members, N, width], as TabM's ensemble has them; others are one member.
        rows = values if values.dim() == 3 else values.reshape(1, -1, values.shape[-1])
        seed, kind = self.draw(values.device), KINDS[type(activation)]
        output = ActivationDropout.apply(rows, seed, self.dropped, kind)
        return output.view(values.shape)

    def draw(self, device: torch.device | str) -> Tensor:
        """Draw the seed of one pass, from 0 to below 2^63, as a scalar on the device."""
        seed = torch.empty((), dtype=torch.int64, device=device)
        return seed.random_(generator=self.generator)

    @override
    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def scale_of_kept(dropped: int) -> float:
    """The factor ``1 / (1 - rate)`` of kept values, if ``dropped`` of 65,536 values are dropped.

    If all are dropped, no value is multiplied by the factor, but it must be finite.
    """
    return 2**16 / max(1, 2**16 - dropped)


class _Drop(torch.autograd.Function):
    """:func:`_drop_by_hash` with its derivative, which drops the same gradients."""

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
    """:func:`_drop_by_hash` of a tensor of any shape, in its order in memory."""
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    numbers = np.uint64(seed), np.uint32(dropped), np.float32(scale_of_kept(dropped))
    _kernel()(values.view(-1).numpy(), *numbers, out.view(-1).numpy())
    return out


@cache
def _kernel() -> Any:
    """:func:`_drop_by_hash`, compiled at the first use."""
    from rankgrad._compilation import compile_cached

    return compile_cached(_drop_by_hash, nogil=True)


def _drop_by_hash(
    values: np.ndarray, seed: np.uint64, dropped: np.uint32, scale: np.float32, out: np.ndarray
) -> None:
    """``out = values * is_kept / (1 - rate)``; the hash is lowbias32 by C. Wellons.

    Only the high 16 bits of the hash are used, which its last step, omitted here, does not change.
    :mod:`rankgrad.models._gpu_dropout` and :mod:`rankgrad.models._perceptrons` compute the same.

    Args:
        values: ``[N]`` float32.
        seed: below 2^63. Its low half is added to the position i, its high half is XORed in between
            the two rounds of the hash.
        dropped: how many of 65,536 values are dropped.
        scale: the factor of the values that are not dropped.
        out: ``[N]``, written.
    """
    low, high = np.uint32(seed & np.uint64(0xFFFFFFFF)), np.uint32(seed >> np.uint64(32))
    for i in range(len(values)):
        x = np.uint32(np.uint32(i) + low)  # Numba adds in 64 bits
        x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ high
        x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
        is_kept = np.uint32(x >> np.uint32(16)) >= dropped
        out[i] = values[i] * scale if is_kept else np.float32(0)


def cpu_kernel_applies(values: Tensor) -> bool:
    """Whether functions compiled for CPUs take these values."""
    fits = values.device.type == "cpu" and values.dtype == torch.float32
    return fits and not _is_traced()


def gpu_kernel_applies(values: Tensor) -> bool:
    """Whether GPU kernels take these values; the kernels compute in float32."""
    fits = values.is_cuda and values.dtype != torch.float64
    return fits and _has_triton() and not _is_traced()


def _is_traced() -> bool:
    """Whether PyTorch is compiling, exporting or transforming: it cannot see into kernels."""
    traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return traced or torch._C._are_functorch_transforms_active()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def draw_from(network: nn.Module, generator: torch.Generator | None) -> None:
    """Make the network's dropout layers draw from ``generator``; None for PyTorch's shared one."""
    for layer in network.modules():
        if isinstance(layer, Dropout | FastDropout):
            layer.generator = generator
