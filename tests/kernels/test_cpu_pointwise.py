import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches

from rankgrad import kernels, losses
from rankgrad.kernels.ops import backend_kernel

pointwise = backend_kernel("pointwise", "cpu")

LOSSES = {
    "mse": ("mse", 0.0),
    "rmse": ("rmse", 5.0),
    "bce(threshold=2.0)": ("bce", 2.0),
    "ordinal(levels=4)": ("ordinal", 4.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_eager_form(loss, kind):
    batch = FlatBatch.of_kind(kind)
    assert_matches(
        batch, pointwise(*batch.arguments, *LOSSES[loss]), batch.reference(loss), 1e-9, 1e-9
    )


def test_an_error_of_0_has_no_gradient():
    scores, labels = torch.zeros(2, dtype=torch.float64), torch.full((2,), 2.5).double()
    found = pointwise(scores, labels, None, None, torch.tensor([0, 2]), 2, *LOSSES["rmse"])
    assert found[0].tolist() == [0.0] and found[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("loss", LOSSES)
def test_float32(loss):
    batch = FlatBatch.of_kind("weighted", torch.float32)
    found = pointwise(*batch.arguments, *LOSSES[loss])
    assert found[0].dtype == found[1].dtype == torch.float32
    assert_matches(batch, found, batch.reference(loss), grad_atol=1e-12)


def test_a_label_reaches_the_threshold_that_it_is():
    scores, labels = torch.tensor([0.3, 0.2]), torch.tensor([0.7, 0.0])
    found = pointwise(scores, labels, None, None, torch.tensor([0, 2]), 2, "bce", 0.7)
    with kernels.using("eager"):
        wanted = losses.get("bce(threshold=0.7)")(scores, labels)
    torch.testing.assert_close(found[0][0], wanted)
