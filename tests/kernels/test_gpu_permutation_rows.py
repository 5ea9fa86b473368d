"""Rows of NeuralSort and SoftSort in Triton against the eager losses in float64."""

import pytest
import torch
from kernel_harness import FlatBatch, assert_matches

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _permutation_rows
from rankgrad.kernels.ops import backend_kernel

METRIC = ("exponential", 1.0, 0.8)  # gain, threshold, persistence
SPECS = {"neuralsort": "pirank", "softsort": "softsort"}


def fused(arguments, relaxation, metric="ndcg", k=0, temperature=1.0):
    kernel = backend_kernel("through_rows", "gpu")
    return kernel(*arguments, relaxation, temperature, metric, k, *METRIC)


def compare(batch, relaxation, metric="ndcg", k=0, temperature=1.0):
    cutoff = f"@{k}" if k else ""
    loss = losses.get(f"{SPECS[relaxation]}_{metric}{cutoff}(temperature={temperature})")
    found = fused(batch.arguments, relaxation, metric, k, temperature)
    assert_matches(batch, found, batch.reference(loss))


@pytest.fixture(params=["counted", "sorted"])
def way(request, monkeypatch):
    if request.param == "sorted":
        monkeypatch.setattr(_permutation_rows, "COUNTED", 0)
        monkeypatch.setattr(_permutation_rows, "_CHUNK", 16)
    return request.param


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("masked", [False, True])
def test_as_the_eager_loss(way, relaxation, masked):
    batch = FlatBatch.random([7, 1, 0, 18, 2], masked=masked, weighted=masked, ties=masked)
    compare(batch, relaxation, k=0 if masked else 5, temperature=0.3)


@pytest.mark.parametrize("relaxation", SPECS)
def test_even_lists_and_constant_scores(way, relaxation):
    batch = FlatBatch.random([18, 18])
    batch.scores[:18] = 0.5
    compare(batch, relaxation, k=4)


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("metric", ["dcg", "precision", "recall", "rbp", "arp"])
def test_every_metric(relaxation, metric):
    batch = FlatBatch.random([9, 4], weighted=True)
    compare(batch, relaxation, metric, k=0 if metric in ("precision", "rbp") else 4)


@pytest.mark.parametrize("relaxation", SPECS)
def test_extremes_are_finite(way, relaxation):
    values, grad_scores, _ = fused(FlatBatch.random([12, 5], std=1e4).arguments, relaxation, k=3)
    assert bool(values.isfinite().all() and grad_scores.isfinite().all())


@pytest.mark.parametrize("relaxation", SPECS)
def test_a_list_in_parts(monkeypatch, relaxation):
    monkeypatch.setattr(_permutation_rows, "_tile", lambda _: (16, 16))
    compare(FlatBatch.random([130], ties=True), relaxation, k=3)


def test_no_lists():
    empty = torch.zeros(0)
    found = fused((empty, empty, None, None, torch.tensor([0]), 0), "softsort")
    assert all(len(each) == 0 for each in found)
