"""The mean over lists on GPUs, against the plain one."""

import pytest
import torch
from slots import DEVICE

from rankgrad.kernels import ops
from rankgrad.lists import Lists, reduce

pytest.importorskip("triton")
from rankgrad.kernels.gpu import mean as kernel


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lists", [1, 7, 70])
def test_mean_of_what_is_defined(lists, weighted, monkeypatch):
    monkeypatch.setattr(kernel, "_SPAN", 32)
    random = torch.Generator().manual_seed(lists)
    values = torch.rand(lists, generator=random)
    defined = torch.rand(lists, generator=random) < 0.6
    weights = torch.rand(lists, generator=random) if weighted else None
    given = Lists.of(torch.zeros(lists, 2), torch.zeros(lists, 2), weights=weights)
    values.requires_grad_()
    wanted = reduce(values, defined, given, "mean")
    shares = torch.autograd.grad(wanted, values)[0]
    there = None if weights is None else weights.to(DEVICE)
    found = kernel.mean(values.detach().to(DEVICE), defined.to(DEVICE), there)
    torch.testing.assert_close(found[0].cpu(), wanted.detach())
    torch.testing.assert_close(found[1].cpu(), shares)


def test_gradient():
    values = torch.tensor([1.0, 2.0, 6.0], device=DEVICE, requires_grad=True)
    defined = torch.tensor([True, False, True], device=DEVICE)
    weights = torch.ones(1, device=DEVICE).expand(3)
    value = ops.mean(values, defined, weights)
    (3 * value).backward()
    assert value == 3.5
    assert values.grad.tolist() == [1.5, 0.0, 1.5]


def test_nothing_defined():
    values = torch.ones(3, device=DEVICE)
    total, shares = kernel.mean(values, torch.zeros(3, dtype=torch.bool, device=DEVICE), None)
    assert total == 0 and (shares == 0).all()
