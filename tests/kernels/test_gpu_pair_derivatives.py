"""Gradient and Hessian of lambda losses on GPUs, against the eager forms in float64."""

import pytest
import torch

from rankgrad import kernels, losses
from rankgrad.lists import FlatLists

pytest.importorskip("triton")
from rankgrad.kernels.gpu._pair_derivatives import pair_derivatives

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SPECS = [
    *["lambdarank@3", "lambdaloss", "lambdarank@3(norm=true, sigma=2.0)", "lambdaloss@3"],
    *["lambdaloss@3(truncation=heuristic)", "lambdaloss@3(scheme=ndcg_loss2++, gain=linear)"],
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("at", "spec"), list(enumerate(SPECS)))
def test_the_kernel_computes_what_the_eager_form_does(at, spec):
    std, weighted = (0.0, 1.0, 300.0)[at % 3], at % 2 == 0
    generator = torch.Generator().manual_seed(at)
    lengths = torch.tensor([0, 1, 14, 3])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    items = int(offsets[-1])
    scores = (torch.randn(items, generator=generator) * std).round(decimals=1)  # some are equal
    labels = torch.randint(0, 4, (items,), generator=generator).float()
    labels[15:] = 1.0  # no pair
    drawn = torch.randint(1, 4, (items,), generator=generator) / 2
    check(losses.get(spec), scores, labels, drawn if weighted else None, offsets)


def check(loss, scores, labels, weights, offsets):
    tensors = (scores, labels, None, weights, offsets)
    moved = [None if x is None else x.to(DEVICE) for x in tensors]
    lists = FlatLists(*moved, int(offsets.diff().max()))
    found = pair_derivatives(lists, loss.newton_kernel())
    with kernels.using("eager"):
        wanted = loss.gradient_and_hessian(
            scores.double(), labels.double(), offsets=offsets, weights=weights
        )
    for one, other in zip(found, wanted, strict=True):
        least = 1e-6 * float(other.abs().max()) + 1e-9
        torch.testing.assert_close(one.cpu().double(), other, rtol=2e-5, atol=least)


def test_a_list_longer_than_a_tile_and_ties_throughout():
    labels = (torch.arange(70) % 4).float()
    check(losses.get("lambdaloss@10"), torch.zeros(70), labels, None, torch.tensor([0, 70]))


@pytest.mark.parametrize("weighted", [False, True])
def test_lists_of_several_ranges_of_lengths(weighted, monkeypatch):
    monkeypatch.setattr("rankgrad.kernels.gpu._pair_derivatives._FIRST_RANGE", 16)
    monkeypatch.setattr("rankgrad.kernels.gpu._pair_derivatives._ONE_RANGE", 16)
    lengths = torch.tensor([20, 0, 5, 40, 16, 64])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(int(offsets[-1]), generator=generator).round(decimals=1)
    labels = torch.randint(0, 4, scores.shape, generator=generator).float()
    drawn = torch.randint(1, 4, scores.shape, generator=generator) / 2 if weighted else None
    check(losses.get("lambdaloss@10"), scores, labels, drawn, offsets)
