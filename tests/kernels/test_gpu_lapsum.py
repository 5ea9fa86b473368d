"""LapSum's ranks in Triton against the eager relaxation in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch

from rankgrad.sorting import LapSum

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _lapsum


@pytest.fixture(params=["pairs", "sorted"], autouse=True)
def way(request, monkeypatch):
    if request.param == "sorted":
        monkeypatch.setattr(_lapsum, "COUNTED", 0)
        monkeypatch.setattr(_lapsum, "_CHUNK", 16)


def of(batch, temperature):
    """The ranks and their adjoint, as the operator gives them."""
    grad = torch.randn(batch.scores.shape, generator=torch.Generator().manual_seed(1))
    if batch.mask is not None:
        grad[~batch.mask.cpu()] = float("nan")
    lists = batch.scores, batch.mask, batch.offsets, batch.max_length
    operator = _lapsum.LapSumRanks(*lists, temperature)
    return operator.ranks.cpu(), grad, operator.adjoint(grad.to(DEVICE)).cpu()


@pytest.mark.parametrize(
    ("lengths", "masked"), [([7, 1, 0, 70, 2], False), ([7, 1, 0, 40, 2], True), ([40] * 3, False)]
)
@pytest.mark.parametrize("ties", [False, True])
def test_as_the_eager_ranks(lengths, masked, ties):
    batch = FlatBatch.random(lengths, masked=masked, ties=ties)
    ranks, grad, product = of(batch, 0.3)
    for scores, _, _, at in batch.lists():
        leaf = scores.requires_grad_()
        expected = LapSum(temperature=0.3)(leaf)
        expected.backward(grad[at].double())
        torch.testing.assert_close(ranks[at].double(), expected.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(product[at].double(), leaf.grad, rtol=1e-5, atol=1e-5)
    if masked:
        assert not ranks[~batch.mask.cpu()].any() and not product[~batch.mask.cpu()].any()


@pytest.mark.parametrize("std", [0.0, 1e4])
def test_extremes_are_finite(std):
    batch = FlatBatch.random([40, 5], std=std, masked=True)
    ranks, _, product = of(batch, 1e-5)
    assert bool(ranks.isfinite().all() and product.isfinite().all())
