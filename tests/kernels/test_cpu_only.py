"""Listwise and pairwise losses that have a kernel on CPUs only, against the eager form."""

import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches

from rankgrad.kernels.ops import backend_kernel

LOSSES = {
    "listap": (20, 1.0),
    "listap(bins=2, threshold=2.0)": (2, 2.0),
    "listap(bins=5, threshold=0.5)": (5, 0.5),
    "ndcg_bound": (0, "exponential"),
    "ndcg_bound@3(gain=linear)": (3, "linear"),
    "ordered_logit": (5,),
    "ordered_logit(levels=3)": (3,),
    "margin_mse": (),
    "neuralsort_ce": (0, 1.0),
    "neuralsort_ce@2(temperature=0.3)": (2, 0.3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_eager_form(loss, kind):
    batch = FlatBatch.of_kind(kind)
    kernel = backend_kernel(loss.partition("@")[0].partition("(")[0], "cpu")
    found = kernel(*batch.arguments, *LOSSES[loss])
    assert_matches(batch, found, batch.reference(loss), 1e-9, 1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_scores_on_the_centers_of_bins_and_weights_of_0(loss):
    scores = torch.tensor([0.0, 0.0, 1.0, 40.0, -40.0, 0.0, 2.0], dtype=torch.float64)
    labels = torch.tensor([2.0, 0, 1, 0, 2, 2, 1], dtype=torch.float64)
    weights = torch.tensor([1.0, 2, 1, 0.5, 3, 0, 0], dtype=torch.float64)
    batch = FlatBatch(scores, labels, None, weights, torch.tensor([0, 5, 7]), 5)
    kernel = backend_kernel(loss.partition("@")[0].partition("(")[0], "cpu")
    found = kernel(*batch.arguments, *LOSSES[loss])
    assert_matches(batch, found, batch.reference(loss), 1e-9, 1e-8)
