"""LapSum's ranks in Triton against the eager relaxation in float64."""

import pytest
import torch
from gpu_twins import slots

from rankgrad.sorting import LapSum

pytest.importorskip("triton")
from rankgrad.kernels.gpu import lapsum


@pytest.fixture(params=["pairs", "sorted"])
def way(request, monkeypatch):
    if request.param == "sorted":
        monkeypatch.setattr(lapsum, "COUNTED", 0)
        monkeypatch.setattr(lapsum, "_CHUNK", 16)
    return request.param


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_as_the_eager_ranks(way, padded, tied):
    scores, _, mask, _, offsets, longest = slots([7, 1, 0, 70, 2], padded=padded, tied=tied)
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(scores)
    if mask is not None:
        grad[~mask] = float("nan")
    ranks = lapsum.lapsum_ranks(scores, mask, offsets, longest, 0.3)
    product = lapsum.lapsum_ranks_vjp(grad, scores, mask, offsets, longest, 0.3)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        real = slice(None) if mask is None else mask[begin:end].cpu()
        leaf = scores[begin:end].cpu()[real].double().requires_grad_()
        expected = LapSum(temperature=0.3)(leaf)
        expected.backward(grad[begin:end].cpu()[real].double())
        torch.testing.assert_close(
            ranks[begin:end].cpu()[real].double(), expected.detach(), rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            product[begin:end].cpu()[real].double(), leaf.grad, rtol=1e-5, atol=1e-5
        )
        if mask is not None:
            assert not ranks[begin:end].cpu()[~real].any()
            assert not product[begin:end].cpu()[~real].any()


def test_even_lists(way):
    scores, _, _, _, offsets, longest = slots([40, 40, 40])
    ranks = lapsum.lapsum_ranks(scores, None, offsets, longest, 1.0)
    expected = LapSum()(scores.double().view(3, 40)).flatten()
    torch.testing.assert_close(ranks.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [0.0, 1e4])
def test_extremes_are_finite(way, spread):
    scores, _, mask, _, offsets, longest = slots([40, 5], spread=spread, padded=True)
    ranks = lapsum.lapsum_ranks(scores, mask, offsets, longest, 1e-5)
    product = lapsum.lapsum_ranks_vjp(torch.ones_like(ranks), scores, mask, offsets, longest, 1e-5)
    assert bool(ranks.isfinite().all() and product.isfinite().all())
