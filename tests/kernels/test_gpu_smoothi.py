"""SmoothI in Triton against the eager loss in float64."""

import pytest
import torch
from kernel_harness import FlatBatch, assert_matches

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _smoothi
from rankgrad.kernels.ops import backend_kernel


def fused(arguments, metric="ndcg", k=0, alpha=1.0, delta=0.1, expect="label", gain="exponential"):
    kernel = backend_kernel("through_smoothi", "gpu")
    return kernel(*arguments, alpha, delta, expect, metric, k, gain, 1.0, 0.8)


def compare(batch, spec, *arguments, **options):
    assert_matches(
        batch, fused(batch.arguments, *arguments, **options), batch.reference(losses.get(spec))
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_the_eager_loss(masked, weighted):
    batch = FlatBatch.random(
        [7, 1, 0, 10], masked=masked, weighted=weighted, ties=weighted == masked
    )
    compare(batch, "smoothi_ndcg")
    compare(batch, "smoothi_ndcg@3", k=3)


@pytest.mark.parametrize(
    ("metric", "k"), [("ndcg", 0), ("dcg", 3), ("precision", 0), ("recall", 3), ("rbp", 0)]
)
def test_every_metric(metric, k):
    cutoff = f"@{k}" if k else ""
    gain = "expect=gain, " if metric in ("ndcg", "dcg") else ""
    spec = f"smoothi_{metric}{cutoff}({gain}alpha=3.0, delta=0.2)"
    compare(FlatBatch.random([6], weighted=True), spec, metric, k, 3.0, 0.2, "gain")


@pytest.mark.parametrize("k", [0, 3])
def test_arp_through_the_permutation(k):
    cutoff = f"@{k}" if k else ""
    spec = f"smoothi_arp{cutoff}(through=permutation)"
    compare(FlatBatch.random([6]), spec, "arp", k, expect="gain")


def test_linear_gain_of_the_expected_label():
    compare(FlatBatch.random([6], weighted=True), "smoothi_ndcg(gain=linear)", gain="linear")


@pytest.mark.parametrize(("k", "masked"), [(0, False), (3, True)])
def test_lists_too_long_for_one_program(monkeypatch, k, masked):
    monkeypatch.setattr(_smoothi, "_MAX_LENGTH", 2)
    monkeypatch.setattr(_smoothi, "_TILE", 4)
    batch = FlatBatch.random([10, 1, 0, 4], masked=masked, weighted=masked, ties=True)
    cutoff = f"@{k}" if k else ""
    compare(batch, f"smoothi_ndcg{cutoff}", k=k)
    compare(batch, f"smoothi_arp{cutoff}(through=permutation)", "arp", k, expect="gain")


@pytest.mark.parametrize("std", [0.0, 1e4])
def test_extremes_are_finite(std):
    values, grad_scores, _ = fused(FlatBatch.random([6, 3], std=std).arguments)
    assert bool(values.isfinite().all() and grad_scores.isfinite().all())


def test_no_lists():
    empty = torch.zeros(0)
    found = fused((empty, empty, None, None, torch.tensor([0]), 0))
    assert all(len(each) == 0 for each in found)
