import numpy as np
import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches
from kernels.test_cpu_ranks import METRICS, relaxed

from rankgrad import losses
from rankgrad.kernels.cpu import _relaxed, _scaling
from rankgrad.kernels.ops import backend_kernel

through_sinkhorn = backend_kernel("through_sinkhorn", "cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "metric",
    [
        "ndcg",
        "ndcg@5(gain=linear)",
        "recall@4(threshold=2.0)",
        "arp@5",
        "ap",
        "rr",
        "err@4(max_grade=2.0)",
    ],
)
@pytest.mark.parametrize("transposed", ["false", "true"])
def test_sinkhorn(transposed, metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_sinkhorn(
        *batch.arguments, 0.7, 30, 1e-6, transposed == "true", *METRICS[metric]
    )
    sort = f"sinkhorn(base=neuralsort(temperature=0.7), transposed={transposed})"
    wanted = batch.reference(relaxed(sort, metric))
    assert_matches(batch, found, wanted, 1e-9, 1e-8)


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_and_float32(iterations):
    batch = FlatBatch.of_kind("weighted", torch.float32)
    found = through_sinkhorn(*batch.arguments, 2.0, iterations, 1e-9, False, *METRICS["ndcg"])
    assert found[0].dtype == found[1].dtype == torch.float32
    options = f"temperature=2.0, iterations={iterations}, tolerance=1e-9"
    assert_matches(batch, found, batch.reference(f"neural_ndcg({options})"), grad_atol=1e-12)


@pytest.mark.parametrize("transposed", ["false", "true"])
def test_rows_computed_anew(transposed):
    torch.manual_seed(0)
    scores = torch.randn(1200, dtype=torch.float64)
    labels = torch.randint(0, 5, (1200,)).double()
    batch = FlatBatch(scores, labels, None, None, torch.tensor([0, 1200]), 1200)
    found = through_sinkhorn(*batch.arguments, 900.0, 3, 1e-9, transposed == "true", *METRICS["ap"])
    base = f"neuralsort(temperature=900.0), iterations=3, transposed={transposed}"
    wanted = batch.reference(relaxed(f"sinkhorn(base={base})", "ap"))
    assert_matches(batch, found, wanted, 1e-9, 1e-8)


def test_the_state_of_many_lists_is_not_saved_and_changes_no_bits(monkeypatch):
    scores, labels = torch.randn(40, 10), torch.randint(0, 2, (40, 10)).float()
    loss, gradients = losses.get("neural_ap"), []
    for most in (1 << 20, 0):
        monkeypatch.setattr(_relaxed, "_MOST_STATE", most)
        leaf = scores.clone().requires_grad_()
        loss(leaf, labels).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    offsets = np.arange(0, 40_001, 10)
    _, (_, memory, _) = _relaxed.Permutation(None, state_rows=lambda _: 402).with_state(
        ("option",), offsets, 0, 4000
    )
    assert memory.size == 0


@pytest.mark.parametrize(
    "spec",
    ["neural_ndcg(temperature=1e-30)", "neural_ap(temperature=1e-30)", "ot_ndcg(epsilon=1e-30)"],
)
def test_next_to_the_exact_sort_there_is_no_gradient(spec):
    """Rounding errors, which are divided by the temperature, would be gradients of 1e13."""
    torch.manual_seed(0)
    scores = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    losses.get(spec)(scores, torch.randint(0, 4, (3, 20)).double()).backward()
    assert scores.grad.abs().max() < 1e-200


def test_iterations_below_one_are_an_error():
    batch = FlatBatch.of_kind("plain")
    with pytest.raises(ValueError, match="iterations must be at least 1, found 0"):
        through_sinkhorn(*batch.arguments, 1.0, 0, 1e-6, False, *METRICS["ndcg"])


@pytest.mark.parametrize(("n", "stored"), [(2000, True), (100_000, False)])
def test_no_more_of_a_matrix_is_stored_than_allowed(n, stored):
    """Panels of a narrow band have more numbers than the band: 16 for each of its rows."""
    _, _, _, entries = _scaling._matrix(np.arange(n, 0, -1) * 100.0)
    assert entries.size <= _scaling.STORED
    assert (entries.size > 0) == stored
