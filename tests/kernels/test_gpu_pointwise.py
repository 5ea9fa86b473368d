"""Pointwise losses on GPUs, against the eager forms in float64."""

import pytest
import torch
from kernel_harness import FlatBatch, assert_matches

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _pointwise as kernel
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SPECS = {
    "mse": ("mse", 0.0),
    "rmse(levels=4)": ("rmse", 4.0),
    "bce(threshold=2.0)": ("bce", 2.0),
    "ordinal": ("ordinal", 5.0),
}


def both(batch, spec):
    found = backend_kernel("pointwise", "gpu")(*batch.arguments, *SPECS[spec])
    return found, batch.reference(losses.get(spec))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("std", [1.0, 1e4])
def test_as_the_eager_losses(spec, masked, std):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=masked, weighted=masked, std=std)
    assert_matches(batch, *both(batch, spec), rtol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_lists_of_many_spans(spec, monkeypatch):
    monkeypatch.setattr(kernel, "_SPAN", 32)
    monkeypatch.setattr(kernel, "_WIDTH", 2)
    batch = FlatBatch.random([100, 0, 33, 5], masked=True, weighted=True)
    assert_matches(batch, *both(batch, spec), rtol=1e-6)


def test_certain_items_keep_their_small_terms():
    batch = FlatBatch.random([30])
    batch.scores = -(batch.scores.abs()) * 5 - 5
    batch.labels = torch.zeros_like(batch.labels)
    assert_matches(batch, *both(batch, "bce(threshold=2.0)"), rtol=1e-6)


def test_rmse_without_error_has_no_gradient():
    batch = FlatBatch.random([3])
    batch.scores, batch.labels = torch.zeros_like(batch.scores), batch.labels * 0 + 2.0
    values, grad_scores, defined = both(batch, "rmse(levels=4)")[0]
    assert values.tolist() == [0.0] and not grad_scores.any() and defined.all()
