"""Softmax and ListNet on GPUs, against the eager form in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad.losses import ListNet, Softmax

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _cross_entropy as kernel
from rankgrad.kernels.ops import backend_kernel

LOSSES = {"label": Softmax(), "softmax": ListNet()}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [8192, 0])
@pytest.mark.parametrize("std", [1.0, 1e4])
@pytest.mark.parametrize("target", LOSSES)
def test_against_the_eager_form(target, std, limit, weighted, masked, monkeypatch):
    monkeypatch.setattr(kernel, "_SHORT", limit)
    batch = FlatBatch.random([9, 1, 0, 2, 40], masked=masked, weighted=weighted, std=std)
    assert_matches(
        batch,
        backend_kernel("cross_entropy", "gpu")(*batch.arguments, target),
        batch.reference(LOSSES[target]),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("target", LOSSES)
def test_in_spans(target, ties, masked, monkeypatch):
    monkeypatch.setattr(kernel, "_SHORT", 0)
    monkeypatch.setattr(kernel, "_SPAN", 16)
    monkeypatch.setattr(kernel, "_WIDTH", 4)
    batch = FlatBatch.random([150, 1, 0, 16, 5], masked=masked, weighted=True, ties=ties, std=10.0)
    assert_matches(
        batch,
        backend_kernel("cross_entropy", "gpu")(*batch.arguments, target),
        batch.reference(LOSSES[target]),
    )


@pytest.mark.parametrize("limit", [8192, 0])
@pytest.mark.parametrize("target", LOSSES)
def test_where_it_is_defined(target, limit, monkeypatch):
    """Labels of 0, a weight of 0 on all that is relevant, one item, large and equal scores."""
    monkeypatch.setattr(kernel, "_SHORT", limit)
    scores = torch.tensor([0.5, -1, 2, 0, 1, 3, 1e30, 1e30, -1e30, 7e4, 7e4, 7e4])
    labels = torch.tensor([0.0, 0, 0, 2, 1, 1, 1, 0, 0, 4, 0, 100])
    weights = torch.tensor([1.0, 2, 1, 0, 0, 1, 1, 1, 1, 0.5, 1, 2])
    offsets = torch.tensor([0, 3, 5, 6, 9, 12])
    arguments = (tensor.to(DEVICE) for tensor in (scores, labels, weights, offsets))
    scores, labels, weights, offsets = arguments
    batch = FlatBatch(scores, labels, None, weights, offsets, 3)
    found = backend_kernel("cross_entropy", "gpu")(*batch.arguments, target)
    assert found[2].tolist() == [target == "softmax", True, False, True, True]
    assert_matches(batch, found, batch.reference(LOSSES[target]))


def test_no_lists():
    batch = FlatBatch.random([])
    values, grad_scores, defined = backend_kernel("cross_entropy", "gpu")(*batch.arguments, "label")
    assert values.shape == grad_scores.shape == defined.shape == (0,)
