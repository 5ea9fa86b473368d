"""Gains and norms on GPUs, against the eager metrics in float64."""

import pytest
import torch
from kernel_harness import FlatBatch

from rankgrad import metrics
from rankgrad.kernels.arguments import FlatLists, MetricOptions

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _ideal_gain as kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


COUNTED = ["ndcg", "ndcg@3", "dcg", "precision", "precision@3", "recall", "rbp", "arp"]


@pytest.mark.parametrize("limit", [256, 0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "counted"), [*((name, 4096) for name in COUNTED), ("ndcg", 0), ("ndcg@3", 0)]
)
def test_gains_and_norms(name, counted, masked, limit, monkeypatch):
    monkeypatch.setattr(kernel, "_SHORT", limit)
    monkeypatch.setattr(kernel, "COUNTED", counted)
    batch = FlatBatch.random([5, 0, 1, 2, 19], masked=masked, weighted=masked)
    metric = metrics.get(name)
    options = MetricOptions(metric.name, metric.k or 0, "exponential", 1.0, 0.8)
    gains, scale, lengths, defined = kernel.ideal_gain(FlatLists(*batch.arguments), options)
    for b, (_, labels, weights, at) in enumerate(batch.lists()):
        wanted = metric.gains(labels[None])[0] * (1 if weights is None else weights)
        torch.testing.assert_close(gains.cpu()[at].double(), wanted, rtol=1e-6, atol=0)
        assert lengths[b] == len(at)
        assert defined[b] == (len(at) > 1 and bool((wanted > 0).any()))
        if len(at):
            norm = metric._norm(wanted[None], torch.ones(1, len(at), dtype=torch.bool))
            right = torch.where(norm > 0, 1 / norm, 0.0)[0]
            torch.testing.assert_close(scale.cpu()[b].double(), right, rtol=1e-5, atol=0)
    if masked:
        assert (gains[~batch.mask] == 0).all()
