"""Metrics through FastSort's ranks on GPUs, against the eager forms in float64."""

import pytest
import torch
from slots import DEVICE, Slots, check

from rankgrad.losses import RelaxedMetric
from rankgrad.sorting import FastSort

pytest.importorskip("triton")
from rankgrad.kernels.gpu import fastsort
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

METRICS = {"ndcg": 0, "ndcg@3": 3, "precision@3": 3, "rbp@5": 5, "arp": 0, "arp@3": 3}
NAMES = {"l2": "fastsort", "entropic": "fastsort_entropic"}


def through(slots, metric, strength, regularization):
    name, options = metric.split("@")[0], (METRICS[metric], "exponential", 1.0, 0.8)
    found = backend_kernel("through_ranks", "gpu")(
        *slots.given, NAMES[regularization], 1 / strength, 0.8, name, *options
    )
    loss = RelaxedMetric(metric, FastSort(strength, regularization), beta=0.8)
    return found, slots.eager(loss)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric):
    slots = Slots.drawn([9, 1, 0, 2, 20], masked=True, weighted=True)
    check(slots, *through(slots, metric, 0.7, "l2"))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("regularization", NAMES)
def test_regularizations(regularization, masked):
    slots = Slots.drawn([9, 1, 0, 2, 20], masked=masked, weighted=not masked)
    check(slots, *through(slots, "ndcg@3", 0.7, regularization))


@pytest.mark.parametrize(
    ("strength", "spread"), [(1.0, 0.0), (0.01, 1.0), (1.0, 1.0), (50.0, 1.0), (1.0, 300.0)]
)
@pytest.mark.parametrize("regularization", NAMES)
def test_blocks_of_all_sizes(regularization, strength, spread):
    slots = Slots.drawn([40, 5], spread=spread, ties=True, weighted=True)
    check(slots, *through(slots, "ndcg", strength, regularization))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("regularization", NAMES)
def test_in_tiles(regularization, masked, monkeypatch):
    monkeypatch.setattr(fastsort, "_SPAN", 32)
    monkeypatch.setattr(fastsort, "_TILE", 128)
    slots = Slots.drawn([70 if masked else 140, 3], masked=masked, spread=20.0)
    check(slots, *through(slots, "arp", 1.0, regularization))


@pytest.mark.parametrize("regularization", NAMES)
def test_even_lists_without_a_relevant_item(regularization):
    slots = Slots.drawn([8, 8, 8])
    slots.labels[8:16] = 0
    found, wanted = through(slots, "ndcg", 1.0, regularization)
    assert found[2].tolist() == [True, False, True]
    check(slots, found, wanted)


@pytest.mark.parametrize("regularization", NAMES)
def test_far_scores_have_their_exact_ranks(regularization):
    scores = torch.tensor([0.0, 1e30, -1e30, 5.0], device=DEVICE)
    labels = torch.tensor([1.0, 0.0, 2.0, 0.0], device=DEVICE)
    given = scores, labels, None, None, torch.tensor([0, 4], device=DEVICE), 4
    rest = (1e5, 1.0, "arp", 0, "exponential", 1.0, 0.8)
    value, slopes, _ = backend_kernel("through_ranks", "gpu")(*given, NAMES[regularization], *rest)
    assert value.item() == pytest.approx((3 + 2 * 4) / 3, rel=1e-6)
    assert (slopes == 0).all()


@pytest.mark.parametrize("lists", [0, 2])
def test_nothing(lists):
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(lists + 1, dtype=torch.int64, device=DEVICE)
    rest = ("fastsort", 1.0, 1.0, "ndcg", 0, "exponential", 1.0, 0.8)
    values, slopes, defined = backend_kernel("through_ranks", "gpu")(
        empty, empty, None, None, offsets, 0, *rest
    )
    assert len(values) == lists and len(slopes) == 0 and not defined.any()
