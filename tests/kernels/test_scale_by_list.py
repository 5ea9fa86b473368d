"""A number for each list times those of its items."""

import pytest
import torch
from kernel_harness import BACKENDS, DEVICE, kernel_function


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_item_is_multiplied(backend):
    offsets = torch.tensor([0, 3, 3, 4, 304], device=DEVICE)
    grad_scores = torch.arange(304.0, device=DEVICE)
    grad = torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE)
    wanted = grad_scores * torch.tensor([1.0] * 3 + [3.0] + [4.0] * 300, device=DEVICE)
    assert kernel_function(backend, "scale_by_list")(grad, grad_scores, offsets, 300).equal(wanted)
    assert kernel_function(backend, "scale_by_list")(
        grad[:1].expand(4), grad_scores, offsets, 300
    ).equal(grad_scores)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("lists", "most"), [(1, 600), (7, 3000), (7, 3), (300, 1)])
def test_all_times_a_factor(backend, lists, most):
    generator = torch.Generator().manual_seed(lists)
    lengths = torch.randint(0, most + 1, (lists,), generator=generator)
    lengths[0] = most
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(DEVICE)
    grad_scores = torch.randn(int(lengths.sum()), generator=generator).to(DEVICE)
    grad = torch.randn(lists, generator=generator).to(DEVICE)
    factor = torch.tensor(-2.5, device=DEVICE)
    wanted = grad_scores * (factor * grad).repeat_interleave(lengths.to(DEVICE))
    assert kernel_function(backend, "scale_by_list")(
        grad, grad_scores, offsets, most, factor
    ).equal(wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_lists(backend):
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    assert kernel_function(backend, "scale_by_list")(empty, empty, offsets, 0).shape == (0,)
    assert kernel_function(backend, "scale_by_list")(
        empty, empty, offsets, 0, torch.tensor(2.0, device=DEVICE)
    ).shape == (0,)
