"""Softmax and ListNet on GPUs, against the eager form in float64."""

import pytest
import torch
from slots import DEVICE, Slots, check

from rankgrad.losses import ListNet, Softmax

pytest.importorskip("triton")
from rankgrad.kernels.gpu import cross_entropy as kernel
from rankgrad.kernels.ops import backend_kernel

LOSSES = {"label": Softmax(), "softmax": ListNet()}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("whole", [8192, 0])
@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("target", LOSSES)
def test_against_the_eager_form(target, spread, whole, weighted, masked, monkeypatch):
    monkeypatch.setattr(kernel, "_WHOLE", whole)
    slots = Slots.drawn([9, 1, 0, 2, 40], masked=masked, weighted=weighted, spread=spread)
    check(
        slots,
        backend_kernel("cross_entropy", "gpu")(*slots.given, target),
        slots.eager(LOSSES[target]),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("target", LOSSES)
def test_in_spans(target, ties, masked, monkeypatch):
    monkeypatch.setattr(kernel, "_WHOLE", 0)
    monkeypatch.setattr(kernel, "_SPAN", 16)
    monkeypatch.setattr(kernel, "_WIDTH", 4)
    slots = Slots.drawn([150, 1, 0, 16, 5], masked=masked, weighted=True, ties=ties, spread=10.0)
    check(
        slots,
        backend_kernel("cross_entropy", "gpu")(*slots.given, target),
        slots.eager(LOSSES[target]),
    )


@pytest.mark.parametrize("whole", [8192, 0])
@pytest.mark.parametrize("target", LOSSES)
def test_where_it_is_defined(target, whole, monkeypatch):
    """Labels of 0, a weight of 0 on all that is relevant, one item, large and equal scores."""
    monkeypatch.setattr(kernel, "_WHOLE", whole)
    scores = torch.tensor([0.5, -1, 2, 0, 1, 3, 1e30, 1e30, -1e30, 7e4, 7e4, 7e4])
    labels = torch.tensor([0.0, 0, 0, 2, 1, 1, 1, 0, 0, 4, 0, 100])
    weights = torch.tensor([1.0, 2, 1, 0, 0, 1, 1, 1, 1, 0.5, 1, 2])
    offsets = torch.tensor([0, 3, 5, 6, 9, 12])
    given = (tensor.to(DEVICE) for tensor in (scores, labels, weights, offsets))
    scores, labels, weights, offsets = given
    slots = Slots(scores, labels, None, weights, offsets, 3)
    found = backend_kernel("cross_entropy", "gpu")(*slots.given, target)
    assert found[2].tolist() == [target == "softmax", True, False, True, True]
    check(slots, found, slots.eager(LOSSES[target]))


def test_no_lists():
    slots = Slots.drawn([])
    values, slopes, defined = backend_kernel("cross_entropy", "gpu")(*slots.given, "label")
    assert values.shape == slopes.shape == defined.shape == (0,)
