"""Dropout whose random numbers come from a given generator."""

from __future__ import annotations

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
    """Dropout with 16 random bits for each value: on a CPU several times faster than PyTorch's.

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
        numbers = torch.empty(values.numel() // 4 + 1, dtype=torch.int64, device=values.device)
        numbers.random_(-(2**63), None, generator=self.generator)
        bits = numbers.view(torch.int16)[: values.numel()]
        kept = bits.view(values.shape) >= self.dropped - 2**15
        return values * (kept * (2**16 / (2**16 - self.dropped)))

    @override
    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def draw_from(network: nn.Module, generator: torch.Generator | None) -> None:
    """Have every dropout layer of this package draw from ``generator``; None for PyTorch's own."""
    for layer in network.modules():
        if isinstance(layer, Dropout | FastDropout):
            layer.generator = generator
