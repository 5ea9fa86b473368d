"""Rows of NeuralSort and SoftSort in Triton against the eager losses in float64."""

import pytest
import torch
from gpu_twins import check, eager, slots

pytest.importorskip("triton")
from rankgrad.kernels.gpu import rows
from rankgrad.kernels.ops import backend_kernel

METRIC = {"gain": "exponential", "threshold": 1.0, "persistence": 0.8}
SPECS = {"neuralsort": "pirank", "softsort": "softsort"}


def fused(lists, relaxation, metric="ndcg", k=0, temperature=1.0, **options):
    return backend_kernel("through_rows", "gpu")(
        *lists, relaxation, temperature, metric, k, *(METRIC | options).values()
    )


def spec(relaxation, metric="ndcg", k=0, **options):
    listed = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{SPECS[relaxation]}_{metric}" + (f"@{k}" if k else "") + f"({listed})"


@pytest.fixture(params=["counted", "sorted"])
def way(request, monkeypatch):
    if request.param == "sorted":
        monkeypatch.setattr(rows, "COUNTED", 0)
        monkeypatch.setattr(rows, "_CHUNK", 16)
    return request.param


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("padded", [False, True])
def test_as_the_eager_loss(way, relaxation, padded):
    lists = slots([7, 1, 0, 35, 2], padded=padded, weighted=padded, tied=padded)
    k = 0 if padded else 5
    found = fused(lists, relaxation, k=k, temperature=0.3)
    check(found, eager(spec(relaxation, k=k, temperature=0.3), *lists))


@pytest.mark.parametrize("relaxation", SPECS)
def test_even_lists_and_constant_scores(way, relaxation):
    lists = slots([18, 18])
    lists[0][:18] = 0.5
    check(fused(lists, relaxation, k=4), eager(spec(relaxation, k=4), *lists))


@pytest.mark.parametrize("relaxation", SPECS)
@pytest.mark.parametrize("metric", ["dcg", "precision", "recall", "rbp", "arp"])
def test_every_metric(relaxation, metric):
    lists = slots([9, 4], weighted=True)
    k = 0 if metric in ("precision", "rbp") else 4
    check(fused(lists, relaxation, metric, k), eager(spec(relaxation, metric, k), *lists))


@pytest.mark.parametrize("relaxation", SPECS)
def test_extremes_are_finite(way, relaxation):
    values, slopes, _ = fused(slots([12, 5], spread=1e4), relaxation, k=3)
    assert bool(values.isfinite().all() and slopes.isfinite().all())


@pytest.mark.parametrize("relaxation", SPECS)
def test_a_list_in_parts(monkeypatch, relaxation):
    monkeypatch.setattr(rows, "_tile", lambda _: (16, 16))
    lists = slots([130], tied=True)
    check(fused(lists, relaxation, k=3), eager(spec(relaxation, k=3), *lists))


def test_no_lists():
    empty = torch.zeros(0)
    values, slopes, defined = fused((empty, empty, None, None, torch.tensor([0]), 0), "softsort")
    assert len(values) == len(slopes) == len(defined) == 0
