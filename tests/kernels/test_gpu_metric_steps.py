"""Steps of ap, rr, err and hits in Triton against autograd through the eager metrics."""

from types import SimpleNamespace

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch

from rankgrad import metrics
from rankgrad.inputs import as_lists
from rankgrad.kernels.arguments import FlatLists, MetricOptions

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _metric_steps

METRICS = {"ap": 1.0, "rr": 2.0, "err": 4.0, "hits": 1.0}


def options(metric, k=0):
    return MetricOptions(metric, k, "exponential", METRICS[metric], 0.8)


def eager(metric, k):
    named = {"max_grade" if metric == "err" else "threshold": METRICS[metric]}
    return type(metrics.get(metric))(k or None, **named)


@pytest.fixture(autouse=True)
def in_chunks(monkeypatch):
    monkeypatch.setattr(_metric_steps, "_CHUNK", 32)


@pytest.mark.parametrize("metric", METRICS)
def test_values_of_items(metric):
    batch = FlatBatch.random([40, 1, 0, 3, 9], masked=True, weighted=True, grades=6)
    found = _metric_steps.step_values(FlatLists(*batch.arguments), options(metric))
    assert found.lengths.tolist() == [40, 1, 0, 3, 9]
    for at, (scores, labels, weights, items) in enumerate(batch.lists()):
        if len(items) == 0:
            assert not found.defined[at]
            continue
        lists = as_lists(scores, labels, weights=weights)
        gains = eager(metric, 0).gains(labels[None])[0]
        torch.testing.assert_close(found.values.cpu()[items].double(), gains, rtol=1e-6, atol=1e-7)
        weighted = found.weighted.cpu()[items].double()
        torch.testing.assert_close(weighted, gains * weights, rtol=1e-6, atol=1e-7)
        defined = bool(eager(metric, 0).relevant(lists)) and len(items) > 1
        assert bool(found.defined[at]) == defined
        norm = float((gains * weights).sum()) if metric == "ap" else 1.0
        assert float(found.scale[at]) == pytest.approx(defined / (norm or 1.0), rel=1e-6)
    assert (found.values.cpu()[~batch.mask.cpu()] == 0).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [0, 5, 33])
@pytest.mark.parametrize("metric", METRICS)
def test_values_and_derivatives(metric, k, weighted):
    batch = FlatBatch.random([70, 2, 31], weighted=weighted, seed=3)
    flat = FlatLists(*batch.arguments)
    inputs = _metric_steps.step_values(flat, options(metric, k))
    at_rank = torch.rand(2, len(batch.scores), generator=torch.Generator().manual_seed(0)) * 0.6
    at_rank[0, 3], at_rank[0, 4], at_rank[0, 40] = 1.0, 1.5, 0.0  # nobody goes on; clamped; all do
    ranked = at_rank.to(DEVICE)
    values, grad, grad_weighted = _metric_steps.metric_step(
        ranked[0], ranked[1] if weighted else None, None, inputs, batch.offsets,
        batch.max_length, options(metric, k),
    )  # fmt: skip
    start = 0
    for at, (scores, labels, weights, items) in enumerate(batch.lists()):
        ranks = min(k or len(items), len(items))
        leaf = at_rank[: 1 + weighted, start : start + ranks].double().requires_grad_()
        sort = SimpleNamespace(sort=lambda *_, leaf=leaf: leaf[None])
        lists = as_lists(scores, labels, weights=weights)
        loss = 1 - eager(metric, k)._through_permutation(sort, lists, "gain")
        (right,) = torch.autograd.grad(loss.sum(), leaf)
        assert float(values[at]) == pytest.approx(loss.item(), abs=2e-6)
        found = torch.stack([grad, grad_weighted] if weighted else [grad]).cpu().double()
        found = found[:, start : start + ranks]
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
        start += len(items)


def test_misses_of_nearly_certain_stops():
    """What is left of a chance near one counts, though one minus it is all rounding."""
    batch = FlatLists(*(torch.zeros(3), torch.ones(3), None, None, torch.tensor([0, 3]), 3))
    batch = FlatLists(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in batch))
    misses = torch.tensor([1e-12, 0.5, 0.5], device=DEVICE)
    inputs = _metric_steps.step_values(batch, options("hits"))
    values, grad, _ = _metric_steps.metric_step(
        1 - misses, None, misses, inputs, batch.offsets, 3, options("hits")
    )
    torch.testing.assert_close(grad[1:].cpu(), torch.tensor([-5e-13, -5e-13]), rtol=1e-5, atol=0.0)
    assert float(values[0]) == pytest.approx(2.5e-13, rel=1e-6)
    assert float(grad[0]) == pytest.approx(-0.25, rel=1e-6)
