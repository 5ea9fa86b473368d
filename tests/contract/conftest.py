"""Lists that the contract tests run every loss, metric and relaxation on."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from devices import DEVICE, entries, moved
from torch import Tensor

from rankgrad import kernels


@dataclass(frozen=True)
class Example:
    """The same ragged lists: flat, and with padding strewn among the items."""

    scores: Tensor
    labels: Tensor
    offsets: Tensor

    @property
    def lists(self) -> list[tuple[Tensor, Tensor]]:
        bounds = self.offsets.tolist()
        spans = list(itertools.pairwise(bounds))
        return [(self.scores[a:b], self.labels[a:b]) for a, b in spans]

    def padded(self, width: int, seed: int, *more: Tensor) -> list[Tensor]:
        """Scores, labels, further item values and a mask; the padding holds nonsense."""
        generator = torch.Generator().manual_seed(seed)
        bounds = self.offsets.tolist()
        mask = torch.zeros(len(bounds) - 1, width, dtype=torch.bool)
        for row, (a, b) in enumerate(itertools.pairwise(bounds)):
            places = torch.randperm(width, generator=generator)[: b - a].sort().values
            mask[row, places] = True
        padded = []
        for values, junk in (
            (self.scores, float("nan")),
            (self.labels, -1.0),
            *((m, 7.0) for m in more),
        ):
            full = torch.full(mask.shape, junk, dtype=values.dtype)
            padded.append(full.masked_scatter(mask, values))
        return [*padded, mask]


def make(lengths: list[int], seed: int, dtype: torch.dtype = torch.float64) -> Example:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    labels = torch.randint(0, 5, (total,), generator=generator).to(dtype)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    # Lists with nothing to learn from: all labels zero, and all labels equal.
    if len(lengths) > 5:
        labels[offsets[4] : offsets[5]] = 0
        labels[offsets[5] : offsets[6]] = 2
    return Example(torch.randn(total, generator=generator, dtype=dtype), labels, offsets)


@pytest.fixture
def example() -> Example:
    return make([5, 1, 8, 3, 4, 4, 0, 2], seed=0)


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    """On a device other than the CPU, everything is called there, with fused kernels on."""
    if DEVICE == "cpu":
        yield
        return
    for owner, name in entries():
        monkeypatch.setattr(owner, name, moved(getattr(owner, name), DEVICE))
    with kernels.using("fused"):
        yield
