"""Isotonic regression in Triton against Numba's."""

import numpy as np
import pytest
import torch

from rankgrad.kernels import _isotonic as choice
from rankgrad.kernels import pool_adjacent
from rankgrad.sorting import FastSort

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _isotonic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize("std", [0.0, 1.0, 8.0, 30.0, 1e4])
def test_the_same_blocks(entropic, std):
    lengths = torch.tensor([0, 1, 2, 30, 17])
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, 30, generator=generator, dtype=torch.float64) * std
    z = z.sort(descending=True).values
    w = (lengths[:, None] - torch.arange(30)).clamp(min=1).double()
    if entropic:
        w = w.log()
        w[4, 8:] = -float("inf")  # the 8 best of 17
    blocks = np.tile(np.arange(30), (5, 1))
    pool_adjacent(z.numpy(), w.numpy(), lengths.numpy(), entropic, blocks)
    found = _isotonic.pool(z.to(DEVICE), w.to(DEVICE), lengths.to(DEVICE), entropic)
    assert found.cpu().equal(torch.from_numpy(blocks))


def test_sums_over_blocks():
    values = torch.randn(2, 600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    starts = torch.zeros(2, 600, dtype=torch.long)
    starts[0, [5, 6, 511, 512, 513]] = 1
    starts[1, [100, 599]] = 1
    blocks = torch.where(starts > 0, torch.arange(600), 0).cummax(-1).values
    expected = torch.zeros_like(values).scatter_add(-1, blocks, values).gather(-1, blocks)
    found = _isotonic.block_sums(values.to(DEVICE), blocks.to(DEVICE))
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("regularization", ["l2", "entropic"])
def test_fastsort_by_them(monkeypatch, regularization):
    relaxation = FastSort(0.5, regularization)
    scores = torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    pull = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).view(2, 12)
    results = []
    for on_gpu in (False, True):
        monkeypatch.setattr(choice, "_has_gpu_kernel", lambda _, on_gpu=on_gpu: on_gpu)
        leaf = scores.to(DEVICE if on_gpu else "cpu").requires_grad_()
        ranks = relaxation(leaf, mask.to(leaf.device))
        results += [ranks.detach(), *torch.autograd.grad(ranks, leaf, pull.to(leaf.device))]
    torch.testing.assert_close(results[2].cpu(), results[0])
    torch.testing.assert_close(results[3].cpu(), results[1])
