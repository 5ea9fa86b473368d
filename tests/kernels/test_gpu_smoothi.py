"""SmoothI in Triton against the eager loss in float64."""

import pytest
import torch
from gpu_twins import check, eager, slots

pytest.importorskip("triton")
from rankgrad.kernels.gpu import smoothi
from rankgrad.kernels.ops import backend_kernel

METRIC = {"gain": "exponential", "threshold": 1.0, "persistence": 0.8}


def fused(lists, metric="ndcg", k=0, alpha=1.0, delta=0.1, expect="label", **options):
    return backend_kernel("through_smoothi", "gpu")(
        *lists, alpha, delta, expect, metric, k, *(METRIC | options).values()
    )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_the_eager_loss(padded, weighted):
    lists = slots([7, 1, 0, 10], padded=padded, weighted=weighted, tied=weighted == padded)
    check(fused(lists), eager("smoothi_ndcg", *lists))
    check(fused(lists, k=3), eager("smoothi_ndcg@3", *lists))


@pytest.mark.parametrize(
    ("metric", "k"), [("ndcg", 0), ("dcg", 3), ("precision", 0), ("recall", 3), ("rbp", 0)]
)
def test_every_metric(metric, k):
    lists = slots([6], weighted=True)
    cut = f"@{k}" if k else ""
    gain = "expect=gain, " if metric in ("ndcg", "dcg") else ""
    spec = f"smoothi_{metric}{cut}({gain}alpha=3.0, delta=0.2)"
    found = fused(lists, metric, k, 3.0, 0.2, "gain")
    check(found, eager(spec, *lists))


@pytest.mark.parametrize("k", [0, 3])
def test_arp_through_the_permutation(k):
    lists = slots([6])
    cut = f"@{k}" if k else ""
    check(
        fused(lists, "arp", k, expect="gain"),
        eager(f"smoothi_arp{cut}(through=permutation)", *lists),
    )


def test_linear_gain_of_the_expected_label():
    lists = slots([6], weighted=True)
    check(fused(lists, gain="linear"), eager("smoothi_ndcg(gain=linear)", *lists))


@pytest.mark.parametrize(("k", "padded"), [(0, False), (3, True)])
def test_lists_too_long_for_one_program(monkeypatch, k, padded):
    monkeypatch.setattr(smoothi, "_LONGEST", 2)
    monkeypatch.setattr(smoothi, "_TILE", 4)
    lists = slots([10, 1, 0, 4], padded=padded, weighted=padded, tied=True)
    check(fused(lists, k=k), eager("smoothi_ndcg" + (f"@{k}" if k else ""), *lists))
    check(
        fused(lists, "arp", k, expect="gain"),
        eager("smoothi_arp" + (f"@{k}" if k else "") + "(through=permutation)", *lists),
    )


@pytest.mark.parametrize("spread", [0.0, 1e4])
def test_extremes_are_finite(spread):
    lists = slots([6, 3], spread=spread)
    values, slopes, _ = fused(lists)
    assert bool(values.isfinite().all() and slopes.isfinite().all())


def test_no_lists():
    empty = torch.zeros(0)
    values, slopes, defined = fused((empty, empty, None, None, torch.tensor([0]), 0))
    assert len(values) == len(slopes) == len(defined) == 0
