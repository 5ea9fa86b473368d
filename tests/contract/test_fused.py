"""The contract of fused kernels, for every loss that has one: in float32 as eagerly in float64."""

import pytest
import torch
from devices import DEVICE
from registry import clone, is_random, loss_specs, make_loss

from rankgrad import kernels, losses
from rankgrad.inputs import unchecked_lists


def has_kernel(spec):
    scores = torch.zeros(2, device=DEVICE)
    return losses.get(spec).kernel_call(unchecked_lists(scores, scores)) is not None


every_fused_loss = pytest.mark.parametrize(
    "spec", [s for s in loss_specs() if not is_random(s) and has_kernel(s)]
)


def values_and_gradient(spec, scores, labels, mask=None, **more):
    scores = clone(scores)
    values = make_loss(spec, reduction="none")(scores, labels, mask, **more)
    mean = make_loss(spec)(scores, labels, mask, **more)
    return values.detach(), torch.autograd.grad(mean, scores)[0]


def check(spec, scores, labels, *more, **named):
    found = values_and_gradient(spec, scores.float(), labels.float(), *more, **named)
    with kernels.using("eager"):
        values, gradient = values_and_gradient(spec, scores, labels, *more, **named)
    torch.testing.assert_close(found[0].double(), values, rtol=1e-5, atol=1e-5)
    off = (found[1].double() - gradient).norm()
    # Where the loss does not depend on the order, what is left is rounding; of optimal transport,
    # how far its plan is from being doubly stochastic.
    constant = spec in ("ot_precision", "ot_recall")
    assert off <= (1e-4 if constant else 1e-4 * gradient.norm() + 1e-7)
    return found


@every_fused_loss
def test_flat_and_padded_lists(spec, example):
    # Items that round to the same float32 would be ties there alone.
    scores = example.scores.float().double()
    check(spec, scores, example.labels, offsets=example.offsets)
    padded, labels, mask = example.padded(11, seed=5)
    _, gradient = check(spec, padded.float().double(), labels, mask)
    assert (gradient[~mask] == 0).all()


@every_fused_loss
def test_weights_and_ties(spec, example):
    weights = torch.rand(example.scores.shape, generator=torch.Generator().manual_seed(3))
    weights = weights.double()
    given = ((2 * example.scores).round() / 2, example.labels)
    check(spec, *given, offsets=example.offsets, weights=weights)
    check(spec, *given, offsets=example.offsets, weights=weights[: len(example.lists)])
