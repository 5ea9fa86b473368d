import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches

from rankgrad.kernels.ops import backend_kernel

cross_entropy = backend_kernel("cross_entropy", "cpu")


LOSSES = {"softmax": "label", "listnet": "softmax"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_eager_form(loss, kind):
    batch = FlatBatch.of_kind(kind)
    assert_matches(
        batch, cross_entropy(*batch.arguments, LOSSES[loss]), batch.reference(loss), 1e-9, 1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_float32(loss, kind):
    batch = FlatBatch.of_kind(kind, torch.float32)
    found = cross_entropy(*batch.arguments, LOSSES[loss])
    assert found[0].dtype == found[1].dtype == torch.float32
    assert_matches(batch, found, batch.reference(loss), grad_atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_of_0_and_lists_without_a_relevant_item(loss):
    scores = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, 3.0, 3.0], dtype=torch.float64)
    labels = torch.tensor([0.0, 0, 0, 2, 1, 1, 0], dtype=torch.float64)
    weights = torch.tensor([1.0, 2, 1, 0, 0, 0, 1], dtype=torch.float64)
    batch = FlatBatch(scores, labels, None, weights, torch.tensor([0, 3, 5, 7]), 3)
    found = cross_entropy(*batch.arguments, LOSSES[loss])
    assert_matches(batch, found, batch.reference(loss), 1e-9, 1e-9)
    assert found[2].tolist() == [loss == "listnet", True, True]
