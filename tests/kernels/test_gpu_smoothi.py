"""SmoothI in Triton against the eager loss in float64."""

import pytest
import torch
from slots import Slots, check

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import smoothi
from rankgrad.kernels.ops import backend_kernel


def fused(given, metric="ndcg", k=0, alpha=1.0, delta=0.1, expect="label", gain="exponential"):
    kernel = backend_kernel("through_smoothi", "gpu")
    return kernel(*given, alpha, delta, expect, metric, k, gain, 1.0, 0.8)


def compare(slots, spec, *arguments, **options):
    check(slots, fused(slots.given, *arguments, **options), slots.eager(losses.get(spec)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_the_eager_loss(masked, weighted):
    slots = Slots.drawn([7, 1, 0, 10], masked=masked, weighted=weighted, ties=weighted == masked)
    compare(slots, "smoothi_ndcg")
    compare(slots, "smoothi_ndcg@3", k=3)


@pytest.mark.parametrize(
    ("metric", "k"), [("ndcg", 0), ("dcg", 3), ("precision", 0), ("recall", 3), ("rbp", 0)]
)
def test_every_metric(metric, k):
    cutoff = f"@{k}" if k else ""
    gain = "expect=gain, " if metric in ("ndcg", "dcg") else ""
    spec = f"smoothi_{metric}{cutoff}({gain}alpha=3.0, delta=0.2)"
    compare(Slots.drawn([6], weighted=True), spec, metric, k, 3.0, 0.2, "gain")


@pytest.mark.parametrize("k", [0, 3])
def test_arp_through_the_permutation(k):
    cutoff = f"@{k}" if k else ""
    spec = f"smoothi_arp{cutoff}(through=permutation)"
    compare(Slots.drawn([6]), spec, "arp", k, expect="gain")


def test_linear_gain_of_the_expected_label():
    compare(Slots.drawn([6], weighted=True), "smoothi_ndcg(gain=linear)", gain="linear")


@pytest.mark.parametrize(("k", "masked"), [(0, False), (3, True)])
def test_lists_too_long_for_one_program(monkeypatch, k, masked):
    monkeypatch.setattr(smoothi, "_LONGEST", 2)
    monkeypatch.setattr(smoothi, "_TILE", 4)
    slots = Slots.drawn([10, 1, 0, 4], masked=masked, weighted=masked, ties=True)
    cutoff = f"@{k}" if k else ""
    compare(slots, f"smoothi_ndcg{cutoff}", k=k)
    compare(slots, f"smoothi_arp{cutoff}(through=permutation)", "arp", k, expect="gain")


@pytest.mark.parametrize("spread", [0.0, 1e4])
def test_extremes_are_finite(spread):
    values, grad_scores, _ = fused(Slots.drawn([6, 3], spread=spread).given)
    assert bool(values.isfinite().all() and grad_scores.isfinite().all())


def test_no_lists():
    empty = torch.zeros(0)
    found = fused((empty, empty, None, None, torch.tensor([0]), 0))
    assert all(len(each) == 0 for each in found)
