"""Rows of NeuralSort and SoftSort in Triton against the eager losses in float64."""

import pytest
import torch
from slots import Slots, check

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import rows
from rankgrad.kernels.ops import backend_kernel

METRIC = ("exponential", 1.0, 0.8)  # gain, threshold, persistence
SPECS = {"neuralsort": "pirank", "softsort": "softsort"}


def fused(given, relaxation, metric="ndcg", k=0, temperature=1.0):
    kernel = backend_kernel("through_rows", "gpu")
    return kernel(*given, relaxation, temperature, metric, k, *METRIC)


def compare(slots, relaxation, metric="ndcg", k=0, temperature=1.0):
    cutoff = f"@{k}" if k else ""
    loss = losses.get(f"{SPECS[relaxation]}_{metric}{cutoff}(temperature={temperature})")
    found = fused(slots.given, relaxation, metric, k, temperature)
    check(slots, found, slots.eager(loss))


@pytest.fixture(params=["counted", "sorted"])
def way(request, monkeypatch):
    if request.param == "sorted":
        monkeypatch.setattr(rows, "COUNTED", 0)
        monkeypatch.setattr(rows, "_CHUNK", 16)
    return request.param


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("masked", [False, True])
def test_as_the_eager_loss(way, relaxation, masked):
    slots = Slots.drawn([7, 1, 0, 18, 2], masked=masked, weighted=masked, ties=masked)
    compare(slots, relaxation, k=0 if masked else 5, temperature=0.3)


@pytest.mark.parametrize("relaxation", SPECS)
def test_even_lists_and_constant_scores(way, relaxation):
    slots = Slots.drawn([18, 18])
    slots.scores[:18] = 0.5
    compare(slots, relaxation, k=4)


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("metric", ["dcg", "precision", "recall", "rbp", "arp"])
def test_every_metric(relaxation, metric):
    slots = Slots.drawn([9, 4], weighted=True)
    compare(slots, relaxation, metric, k=0 if metric in ("precision", "rbp") else 4)


@pytest.mark.parametrize("relaxation", SPECS)
def test_extremes_are_finite(way, relaxation):
    values, grad_scores, _ = fused(Slots.drawn([12, 5], spread=1e4).given, relaxation, k=3)
    assert bool(values.isfinite().all() and grad_scores.isfinite().all())


@pytest.mark.parametrize("relaxation", SPECS)
def test_a_list_in_parts(monkeypatch, relaxation):
    monkeypatch.setattr(rows, "_tile", lambda _: (16, 16))
    compare(Slots.drawn([130], ties=True), relaxation, k=3)


def test_no_lists():
    empty = torch.zeros(0)
    found = fused((empty, empty, None, None, torch.tensor([0]), 0), "softsort")
    assert all(len(each) == 0 for each in found)
