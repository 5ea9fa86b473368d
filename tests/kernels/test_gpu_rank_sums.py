"""AP, RR, ERR and hits through relaxed ranks on GPUs, against the eager forms in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad.losses import RelaxedMetric
from rankgrad.sorting import FastSort, LapSum, SigmoidRanks

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _rank_sums as kernel
from rankgrad.kernels.gpu._fastsort import FastSortRanks
from rankgrad.kernels.gpu._lapsum import LapSumRanks
from rankgrad.kernels.gpu._ranks import SigmoidRanks as SigmoidRankOperator
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

METRICS = {
    "ap": ("ap", 0, 1.0),
    "ap@3(threshold=2)": ("ap", 3, 2.0),
    "rr": ("rr", 0, 1.0),
    "rr@3(threshold=2)": ("rr", 3, 2.0),
    "err": ("err", 0, 4.0),
    "err@3(max_grade=3)": ("err", 3, 3.0),  # the highest label is above it
    "hits@3(threshold=2)": ("hits", 3, 2.0),
}
RELAXATIONS = {
    "sigmoid": (SigmoidRanks(1.5), 1.5),
    "lapsum": (LapSum(0.7), 1 / 0.7),
    "fastsort": (FastSort(0.7, "l2"), 1 / 0.7),
    "fastsort_entropic": (FastSort(0.7, "entropic"), 1 / 0.7),
}


def through(batch, metric, relaxation="sigmoid", beta=0.8):
    relaxed, sharpness = RELAXATIONS[relaxation]
    name, k, threshold = METRICS[metric]
    found = backend_kernel("through_ranks", "gpu")(
        *batch.arguments, relaxation, sharpness, beta, name, k, "exponential", threshold, 0.8
    )
    return found, batch.reference(RelaxedMetric(metric, relaxed, beta=beta))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("masked", [False, True])
def test_metrics(metric, masked):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=masked, weighted=masked, ties=masked)
    assert_matches(batch, *through(batch, metric), rtol=2e-6)


@pytest.mark.parametrize("metric", ["ap@3(threshold=2)", "rr", "err", "hits@3(threshold=2)"])
@pytest.mark.parametrize("relaxation", list(RELAXATIONS)[1:])
def test_metrics_through_other_ranks(metric, relaxation):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=True, weighted=True)
    assert_matches(batch, *through(batch, metric, relaxation), rtol=2e-6)


@pytest.mark.parametrize("metric", ["ap", "rr", "err"])
@pytest.mark.parametrize("std", [0.0, 1e4])
def test_any_range_of_scores(metric, std):
    batch = FlatBatch.random([40, 5], std=std, ties=True)
    assert_matches(batch, *through(batch, metric), rtol=2e-6)


@pytest.mark.parametrize("metric", ["ap@3(threshold=2)", "rr", "err@3(max_grade=3)"])
def test_lists_of_many_tiles_and_chunks(metric, monkeypatch):
    monkeypatch.setattr(kernel, "_CHUNK", 32)
    batch = FlatBatch.random([150, 17])
    assert_matches(batch, *through(batch, metric), rtol=2e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_lists_without_a_relevant_item(metric):
    batch = FlatBatch.random([8, 8, 8])
    batch.labels[8:16] = 0
    found, wanted = through(batch, metric)
    assert found[2].tolist() == [True, False, True]
    assert_matches(batch, found, wanted)


@pytest.mark.parametrize("relaxation", ["sigmoid", "fastsort"])
@pytest.mark.parametrize("metric", ["rr@3(threshold=2)", "hits@3(threshold=2)"])
def test_items_far_past_the_cutoff_keep_their_gradient(metric, relaxation):
    batch = FlatBatch.random([240], std=0.1)
    assert_matches(batch, *through(batch, metric, relaxation), rtol=2e-6)


def test_almost_certain_hits_keep_their_gradient():
    batch = FlatBatch.random([40], std=30.0)
    batch.labels[batch.scores.argmax()] = 4.0
    found, wanted = through(batch, "hits@3(threshold=2)", beta=4.0)
    assert wanted[0] < 1e-4
    torch.testing.assert_close(found[0].cpu().double(), wanted[0], rtol=1e-4, atol=0.0)
    assert (found[1].cpu() - wanted[1]).norm() <= 2e-5 * wanted[1].norm()


def test_a_user_who_surely_stops_is_not_passed():
    batch = FlatBatch.random([12], grades=90)
    assert_matches(batch, *through(batch, "err"), rtol=2e-6)


OPERATORS = {
    "sigmoid": (SigmoidRankOperator, (1.5,), SigmoidRanks(1.5)),
    "lapsum": (LapSumRanks, (0.7,), LapSum(0.7)),
    "fastsort": (FastSortRanks, (0.7, False), FastSort(0.7, "l2")),
    "fastsort_entropic": (FastSortRanks, (0.7, True), FastSort(0.7, "entropic")),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("masked", [False, True])
def test_operators(name, masked):
    make, options, relaxed = OPERATORS[name]
    batch = FlatBatch.random([20, 0, 1, 7], masked=masked)
    operator = make(batch.scores, batch.mask, batch.offsets, batch.max_length, *options)
    grad = torch.randn(len(batch.scores), generator=torch.Generator().manual_seed(1))
    if masked:
        grad[~batch.mask.cpu()] = float("nan")
    ranks, grad_scores = operator.ranks.cpu(), operator.adjoint(grad.to(DEVICE)).cpu()
    for scores, _, _, at in batch.lists():
        if len(at) == 0:
            continue
        scores.requires_grad_()
        wanted = relaxed(scores)
        torch.testing.assert_close(ranks[at].double(), wanted, rtol=2e-6, atol=2e-6)
        product = torch.autograd.grad(wanted, scores, grad[at].double())[0]
        assert (grad_scores[at] - product).norm() <= 2e-5 * product.norm() + 1e-6
    if masked:
        assert not ranks[~batch.mask.cpu()].any() and not grad_scores[~batch.mask.cpu()].any()


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("lists", [0, 2])
def test_operators_of_nothing(name, lists):
    make, options, _ = OPERATORS[name]
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(lists + 1, dtype=torch.int64, device=DEVICE)
    operator = make(empty, None, offsets, 0, *options)
    assert len(operator.ranks) == 0 and len(operator.adjoint(empty)) == 0
