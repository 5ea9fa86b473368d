import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches

from rankgrad import kernels, sorting
from rankgrad.kernels.cpu._lapsum import LapSumRanks
from rankgrad.kernels.cpu._ranks import SigmoidRanks
from rankgrad.kernels.ops import backend_kernel
from rankgrad.losses import RelaxedMetric

through_ranks = backend_kernel("through_ranks", "cpu")
through_smoothi_ranks = backend_kernel("through_smoothi_ranks", "cpu")

METRICS = {
    "ndcg": ("ndcg", 0, "exponential", 1.0, 0.8),
    "ndcg@5(gain=linear)": ("ndcg", 5, "linear", 1.0, 0.8),
    "dcg@3": ("dcg", 3, "exponential", 1.0, 0.8),
    "precision@4": ("precision", 4, "exponential", 1.0, 0.8),
    "recall@4(threshold=2.0)": ("recall", 4, "exponential", 2.0, 0.8),
    "rbp@6(persistence=0.5)": ("rbp", 6, "exponential", 1.0, 0.5),
    "arp": ("arp", 0, "exponential", 1.0, 0.8),
    "arp@5": ("arp", 5, "exponential", 1.0, 0.8),
    "ap": ("ap", 0, "linear", 1.0, 0.8),
    "ap@4(threshold=2.0)": ("ap", 4, "linear", 2.0, 0.8),
    "rr": ("rr", 0, "linear", 1.0, 0.8),
    "rr@4(threshold=2.0)": ("rr", 4, "linear", 2.0, 0.8),
    "err": ("err", 0, "linear", 4.0, 0.8),
    "err@4(max_grade=2.0)": ("err", 4, "linear", 2.0, 0.8),
    "hits@4(threshold=2.0)": ("hits", 4, "linear", 2.0, 0.8),
    "spearman": ("spearman", 0, "linear", 1.0, 0.8),
}


def relaxed(relaxation, metric, **options):
    return RelaxedMetric(metric, relaxation, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
def test_sigmoid(metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_ranks(*batch.arguments, "sigmoid", 2.0, 0.7, *METRICS[metric])
    assert_matches(
        batch, found, batch.reference(relaxed("sigmoid(alpha=2.0)", metric, beta=0.7)), 1e-9, 1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", ["arp", "ndcg@5(gain=linear)", "ap", "spearman"])
def test_mean_ranks_of_smoothi(metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_smoothi_ranks(*batch.arguments, 2.0, 0.2, 0.7, *METRICS[metric])
    loss = relaxed("smoothi(alpha=2.0, delta=0.2)", metric, through="ranks", beta=0.7)
    assert_matches(batch, found, batch.reference(loss), 1e-9, 1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
def test_lapsum(metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_ranks(*batch.arguments, "lapsum", 2.0, 0.7, *METRICS[metric])
    assert_matches(
        batch,
        found,
        batch.reference(relaxed("lapsum(temperature=0.5)", metric, beta=0.7)),
        1e-9,
        1e-9,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("strength", [0.05, 2.0])
@pytest.mark.parametrize("regularization", ["l2", "entropic"])
def test_fastsort(regularization, strength, metric, kind):
    batch = FlatBatch.of_kind(kind)
    relaxation = {"l2": "fastsort", "entropic": "fastsort_entropic"}[regularization]
    found = through_ranks(*batch.arguments, relaxation, 1 / strength, 0.7, *METRICS[metric])
    sort = f"fastsort(strength={strength}, regularization={regularization})"
    assert_matches(batch, found, batch.reference(relaxed(sort, metric, beta=0.7)), 1e-9, 1e-8)


@pytest.mark.parametrize("regularization", ["l2", "entropic"])
def test_fastsort_of_far_scores_is_the_exact_rank(regularization):
    scores = torch.tensor([0.0, 1e30, -1e30, 5.0], dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    lists = scores, labels, None, None, torch.tensor([0, 4]), 4
    relaxation = {"l2": "fastsort", "entropic": "fastsort_entropic"}[regularization]
    value, grad_scores, _ = through_ranks(*lists, relaxation, 1e5, 1.0, *METRICS["arp"])
    torch.testing.assert_close(value, torch.tensor([(3 + 2 * 4) / 3], dtype=torch.float64))
    assert (grad_scores == 0).all()


@pytest.mark.parametrize(
    "metric", ["ndcg", "precision", "recall", "rbp", "ap", "rr", "err", "hits"]
)
@pytest.mark.parametrize("relaxation", ["sigmoid", "lapsum", "fastsort", "fastsort_entropic"])
def test_a_cutoff_keeps_a_gradient_on_long_lists_of_ties(relaxation, metric):
    labels = torch.randint(0, 4, (240,), generator=torch.Generator().manual_seed(0)).float()
    lists = torch.zeros(240), labels, None, None, torch.tensor([0, 240]), 240, relaxation, 1.0, 1.0
    # Among ties, without a cutoff the number of hits does not depend on the order.
    whole = "ndcg" if metric in ("precision", "recall", "hits") else metric
    (largest, found) = (
        through_ranks(*lists, name, k, "exponential", 1.0, 0.8)[1].abs().max()
        for name, k in ((whole, 0), (metric, 10))
    )
    assert found > 1e-6 * largest > 0


@pytest.mark.parametrize("kind", ["plain", "ragged", "weighted", "extreme"])
def test_float32(kind):
    batch = FlatBatch.of_kind(kind, torch.float32)
    found = through_ranks(*batch.arguments, "sigmoid", 1.0, 1.0, "ndcg", 0, "exponential", 1.0, 0.8)
    assert found[0].dtype == found[1].dtype == torch.float32
    assert_matches(batch, found, batch.reference("approx_ndcg"), grad_atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relaxation", ["sigmoid(alpha=2.0)", "lapsum(temperature=2.0)"])
def test_ranks_and_their_gradient(relaxation, kind):
    scores, _, mask, _, offsets, _ = FlatBatch.of_kind(kind).arguments
    kernel = SigmoidRanks if relaxation.startswith("sigmoid") else LapSumRanks
    grad = torch.randn(len(scores), generator=torch.Generator().manual_seed(1)).double()
    operator = kernel(scores, mask, offsets, 61, 2.0)
    ranks, grad_scores = operator.ranks, operator.adjoint(grad)
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        some = slice(first, last)
        here = None if mask is None else mask[some]
        own = scores[some].clone().requires_grad_()
        with kernels.using("eager"):
            wanted = sorting.get(relaxation).ranks(own, here)
        torch.testing.assert_close(ranks[some], wanted.detach(), rtol=1e-9, atol=1e-9)
        wanted.backward(grad[some])
        torch.testing.assert_close(grad_scores[some], own.grad, rtol=1e-9, atol=1e-9)
