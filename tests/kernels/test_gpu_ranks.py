"""Sigmoid ranks and the metrics through them on GPUs, against the eager forms in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad.losses import RelaxedMetric
from rankgrad.sorting import LapSum, SigmoidRanks

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _ranks
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

METRICS = {
    "ndcg": {},
    "ndcg(gain=linear)": {"gain": "linear"},
    "ndcg@3": {"k": 3},
    "dcg@2": {"k": 2},
    "precision@3": {"k": 3},
    "precision(threshold=2)": {"threshold": 2.0},
    "recall@4": {"k": 4},
    "rbp(persistence=0.7)": {"persistence": 0.7},
    "rbp@5": {"k": 5},
    "arp": {},
    "arp@3": {"k": 3},
    "spearman": {},
}


def through(batch, metric, alpha=1.0, beta=1.0, relaxation="sigmoid"):
    options = {"k": 0, "gain": "exponential", "threshold": 1.0, "persistence": 0.8}
    options |= METRICS.get(metric, {})
    name = metric.split("(")[0].split("@")[0]
    found = backend_kernel("through_ranks", "gpu")(
        *batch.arguments, relaxation, alpha, beta, name, *options.values()
    )
    relaxed = LapSum(1 / alpha) if relaxation == "lapsum" else SigmoidRanks(alpha)
    loss = RelaxedMetric(metric, relaxed, beta=beta)
    return found, batch.reference(loss)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("masked", [False, True])
def test_metrics(metric, masked):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=masked, weighted=masked)
    assert_matches(batch, *through(batch, metric, alpha=1.5, beta=0.8))


@pytest.mark.parametrize("metric", ["ndcg", "ndcg@3", "precision@3", "rbp@5", "arp@3", "spearman"])
def test_metrics_through_lapsum(metric):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=True, weighted=True)
    assert_matches(batch, *through(batch, metric, alpha=1.5, beta=0.8, relaxation="lapsum"))


@pytest.mark.parametrize("relaxation", ["sigmoid", "lapsum"])
def test_a_cutoff_keeps_the_gradient_of_many_ties(relaxation):
    batch = FlatBatch.random([240], std=0.0)
    found, wanted = through(batch, "ndcg@3", relaxation=relaxation)
    assert_matches(batch, found, wanted, rtol=2e-6)
    assert found[1].abs().max() > 1e-6


@pytest.mark.parametrize("std", [0.0, 1.0, 300.0, 1e4])
def test_any_range_of_scores(std):
    batch = FlatBatch.random([70, 5], std=std, ties=True, weighted=True)
    assert_matches(batch, *through(batch, "ndcg", alpha=0.7))


@pytest.mark.parametrize(("n", "long"), [(110, 8192), (270, 64), (530, 8192)])
def test_lists_of_many_tiles(n, long, monkeypatch):
    monkeypatch.setattr(_ranks, "_LONG", long)
    batch = FlatBatch.random([n])
    assert_matches(batch, *through(batch, "ndcg@3"))


def test_no_lists():
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    rest = ("sigmoid", 1.0, 1.0, "ndcg", 0, "exponential", 1.0, 0.8)
    values, grad_scores, defined = backend_kernel("through_ranks", "gpu")(
        empty, empty, None, None, offsets, 0, *rest
    )
    assert (len(values), len(grad_scores), len(defined)) == (0, 0, 0)


@pytest.mark.parametrize("std", [1.0, 1e4])
def test_ranks_and_their_product(std):
    batch = FlatBatch.random([40, 0, 1, 7], masked=True, std=std)
    operator = _ranks.SigmoidRanks(batch.scores, batch.mask, batch.offsets, batch.max_length, 1.3)
    found = operator.ranks.cpu()
    grad = torch.randn(len(found), generator=torch.Generator().manual_seed(1))
    vjp = operator.adjoint(grad.to(DEVICE)).cpu()
    for scores, _, _, at in batch.lists():
        scores.requires_grad_()
        wanted = SigmoidRanks(1.3)(scores)
        torch.testing.assert_close(found[at].double(), wanted, rtol=1e-5, atol=1e-5)
        if len(at):
            product = torch.autograd.grad(wanted, scores, grad[at].double())[0]
            assert (vjp[at] - product).norm() <= 1e-4 * product.norm() + 1e-6
    assert (found[~batch.mask.cpu()] == 0).all()
    assert (vjp[~batch.mask.cpu()] == 0).all()
