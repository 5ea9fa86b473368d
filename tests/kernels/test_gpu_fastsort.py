"""Metrics through FastSort's ranks on GPUs, against the eager forms in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad.losses import RelaxedMetric
from rankgrad.sorting import FastSort

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _fastsort
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

METRICS = {"ndcg": 0, "ndcg@3": 3, "precision@3": 3, "rbp@5": 5, "arp": 0, "arp@3": 3}
NAMES = {"l2": "fastsort", "entropic": "fastsort_entropic"}


def through(batch, metric, strength, regularization):
    name, options = metric.split("@")[0], (METRICS[metric], "exponential", 1.0, 0.8)
    found = backend_kernel("through_ranks", "gpu")(
        *batch.arguments, NAMES[regularization], 1 / strength, 0.8, name, *options
    )
    loss = RelaxedMetric(metric, FastSort(strength, regularization), beta=0.8)
    return found, batch.reference(loss)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=True, weighted=True)
    assert_matches(batch, *through(batch, metric, 0.7, "l2"))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("regularization", NAMES)
def test_regularizations(regularization, masked):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=masked, weighted=not masked)
    assert_matches(batch, *through(batch, "ndcg@3", 0.7, regularization))


@pytest.mark.parametrize(
    ("strength", "std"), [(1.0, 0.0), (0.01, 1.0), (1.0, 1.0), (50.0, 1.0), (1.0, 300.0)]
)
@pytest.mark.parametrize("regularization", NAMES)
def test_blocks_of_all_sizes(regularization, strength, std):
    batch = FlatBatch.random([40, 5], std=std, ties=True, weighted=True)
    assert_matches(batch, *through(batch, "ndcg", strength, regularization))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("regularization", NAMES)
def test_in_tiles(regularization, masked, monkeypatch):
    monkeypatch.setattr(_fastsort, "_SPAN", 32)
    monkeypatch.setattr(_fastsort, "_TILE", 128)
    batch = FlatBatch.random([70 if masked else 140, 3], masked=masked, std=20.0)
    assert_matches(batch, *through(batch, "arp", 1.0, regularization))


@pytest.mark.parametrize("regularization", NAMES)
def test_even_lists_without_a_relevant_item(regularization):
    batch = FlatBatch.random([8, 8, 8])
    batch.labels[8:16] = 0
    found, wanted = through(batch, "ndcg", 1.0, regularization)
    assert found[2].tolist() == [True, False, True]
    assert_matches(batch, found, wanted)


@pytest.mark.parametrize("regularization", NAMES)
def test_far_scores_have_their_exact_ranks(regularization):
    scores = torch.tensor([0.0, 1e30, -1e30, 5.0], device=DEVICE)
    labels = torch.tensor([1.0, 0.0, 2.0, 0.0], device=DEVICE)
    arguments = scores, labels, None, None, torch.tensor([0, 4], device=DEVICE), 4
    rest = (1e5, 1.0, "arp", 0, "exponential", 1.0, 0.8)
    value, grad_scores, _ = backend_kernel("through_ranks", "gpu")(
        *arguments, NAMES[regularization], *rest
    )
    assert value.item() == pytest.approx((3 + 2 * 4) / 3, rel=1e-6)
    assert (grad_scores == 0).all()


@pytest.mark.parametrize("lists", [0, 2])
def test_nothing(lists):
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(lists + 1, dtype=torch.int64, device=DEVICE)
    rest = ("fastsort", 1.0, 1.0, "ndcg", 0, "exponential", 1.0, 0.8)
    values, grad_scores, defined = backend_kernel("through_ranks", "gpu")(
        empty, empty, None, None, offsets, 0, *rest
    )
    assert len(values) == lists and len(grad_scores) == 0 and not defined.any()
