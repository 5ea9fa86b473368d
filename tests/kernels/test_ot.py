"""Optimal transport's kernels against the eager loss in float64."""

import importlib

import pytest
import torch
from kernel_harness import BACKENDS, DEVICE, FlatBatch, assert_matches

from rankgrad import losses, sorting
from rankgrad.kernels.ops import backend_kernel

RTOL = {"cpu": 1e-9, "gpu": 2e-6}


def kernel_module(backend):
    if backend == "gpu":
        pytest.importorskip("triton")
    return importlib.import_module(f"rankgrad.kernels.{backend}._ot")


def as_computed(backend, batch):
    """The batch in the precision that the kernels of a device are tested in."""
    if backend == "cpu":
        for name in ("scores", "labels", "weights"):
            tensor = getattr(batch, name)
            setattr(batch, name, None if tensor is None else tensor.double())
    return batch


def check_loss(backend, batch, metric="ndcg", k=0, **options):
    kernel_module(backend)
    batch = as_computed(backend, batch)
    epsilon, iterations = options.get("epsilon", 0.1), options.get("iterations", 3)
    tolerance, top = options.get("tolerance", 1e-6), 4.0 if metric == "err" else 1.0
    found = backend_kernel("through_ot", backend)(
        *batch.arguments, epsilon, iterations, tolerance, metric, k, "exponential", top, 0.8
    )
    transport = sorting.OptimalTransport(epsilon, iterations, tolerance)
    loss = losses.get("relaxed", metric=f"{metric}@{k}" if k else metric, relaxation=transport)
    assert_matches(batch, found, batch.reference(loss), rtol=RTOL[backend])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("metric", "k", "weighted"),
    [
        ("ndcg", 0, False),
        ("dcg", 3, True),
        ("precision", 4, False),
        ("rbp", 0, True),
        ("arp", 3, True),
        ("ap", 0, True),
        ("ap", 3, False),
        ("rr", 0, False),
        ("err", 3, True),
        ("hits", 3, False),
    ],
)
def test_every_metric(backend, metric, k, weighted):
    grades = 4 if metric in ("ndcg", "dcg", "arp", "err") else 1
    options = {"masked": not weighted, "weighted": weighted, "ties": weighted}
    batch = FlatBatch.random([7, 1, 0, 5], **options, grades=grades)
    check_loss(backend, batch, metric, k, iterations=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_list_stops_by_itself(backend):
    batch = FlatBatch.random([3, 9, 12], seed=3)
    steps = {iterations_until(scores, 0.05, 0.01) for scores, *_ in batch.lists()}
    assert len(steps) > 1 and max(steps) < 5
    check_loss(backend, batch, epsilon=0.05, iterations=5, tolerance=0.01)


def iterations_until(scores, epsilon, tolerance):
    """After how many iterations all row and column sums of the plan are near one."""
    steps, off = 0, 1.0
    while off >= tolerance:
        steps += 1
        plan = sorting.OptimalTransport(epsilon, steps, tolerance=1e-12)(scores)
        off = float((plan.sum(0) - 1).abs().max())  # rows come last, so they sum to one
    return steps


@pytest.mark.parametrize("epsilon", [0.003, 0.2])
def test_lists_of_several_blocks(monkeypatch, epsilon):
    """Entries far from the diagonal are left out; both ways to add up logits."""
    ot = kernel_module("gpu")
    if DEVICE == "cpu":
        tile = {"BLOCK_M": 4, "BLOCK_N": 8, "num_warps": 1}
        monkeypatch.setattr(ot, "_tile", lambda _: dict(tile))
        monkeypatch.setattr(ot, "_SHARP", 0.1)
    batch = FlatBatch.random([13, 6], masked=True, ties=True)
    check_loss("gpu", batch, epsilon=epsilon, iterations=2)


@pytest.mark.skipif("cpu" not in BACKENDS, reason="CPU kernels run where there is no GPU")
def test_rows_computed_anew_on_cpus():
    scaling = importlib.import_module("rankgrad.kernels.cpu._scaling")
    assert scaling.STORED < 0.9 * 1200**2
    check_loss("cpu", FlatBatch.random([1200]), "ap", epsilon=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("epsilon", [1e-30, 1e-20, 1e-12, 1e-5])
def test_next_to_the_exact_sort(backend, epsilon):
    """No entry overflows, and tied items share their ranks, however small ε is."""
    scores = torch.tensor([1.0, 1.0, 3.0, -2.0, 1.0], device=DEVICE)
    offsets = torch.tensor([0, 5], device=DEVICE)
    operator = kernel_module(backend).OptimalTransportOperator(
        scores, None, offsets, 5, 0, epsilon, 5, 1e-6
    )
    values = torch.tensor([3.0, 6.0, 1.0, 2.0, 9.0], device=DEVICE)
    wanted = torch.tensor([1.0, 6.0, 6.0, 6.0, 2.0], device=DEVICE)
    torch.testing.assert_close(operator.apply(values), wanted, rtol=1e-3, atol=0)
    assert operator.adjoint(values, torch.ones_like(values)).isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("epsilon", [1e-30, 1e-20])
def test_lists_of_several_blocks_next_to_the_exact_sort(backend, epsilon):
    """Rounding errors of logits are far more than one; those of tied items are still equal."""
    scores, values, grad = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores[[3, 20, 21, 22, 39]] = 0.5
    for tied in (scores, torch.full_like(scores, 1e4)):
        operator = kernel_module(backend).OptimalTransportOperator(
            tied, None, torch.tensor([0, 40], device=DEVICE), 40, 0, epsilon, 5, 1e-6
        )
        means = torch.stack([values[tied == score].mean() for score in tied])
        wanted = means[tied.argsort(descending=True)]
        torch.testing.assert_close(operator.apply(values), wanted, rtol=0, atol=1e-6)
        assert operator.adjoint(values, grad).isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [0, 3])
def test_operator_and_adjoint(backend, k):
    batch = as_computed(backend, FlatBatch.random([8, 0, 5], masked=True, seed=1))
    operator = kernel_module(backend).OptimalTransportOperator(
        batch.scores, batch.mask, batch.offsets, batch.max_length, k, 0.1, 3, 1e-6
    )
    values, other, grad = torch.randn(3, len(batch.scores)).to(batch.scores)
    found = operator.apply(values)
    operator.apply(other)
    grad_scores = operator.adjoint(values, grad)
    assert (grad_scores[~batch.mask] == 0).all()
    transport = sorting.OptimalTransport(0.1, 3)
    for b, (scores, _, _, at) in enumerate(batch.lists()):
        n, start = len(at), int(batch.offsets[b])
        end = int(batch.offsets[b + 1])
        cut = min(k or n, n)
        assert (found[start + cut : end] == 0).all()
        if not n:
            continue
        scores.requires_grad_()
        plan = transport(scores, k=cut)
        wanted = plan @ values.cpu().double()[at]
        (slope,) = torch.autograd.grad(wanted @ grad.cpu().double()[start : start + cut], scores)
        near = {"rtol": 0.0, "atol": 10 * RTOL[backend]}
        torch.testing.assert_close(found[start : start + cut].cpu().double(), wanted, **near)
        torch.testing.assert_close(grad_scores.cpu().double()[at], slope, **near)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_lists(backend):
    batch = as_computed(backend, FlatBatch.random([0, 0]))
    check_loss(backend, batch)
    check_loss(backend, as_computed(backend, FlatBatch.random([])))
