"""A number for each list times those of its slots."""

import pytest
import torch
from slots import DEVICE, ROOMS, twin


@pytest.mark.parametrize("room", ROOMS)
def test_spread(room):
    offsets = torch.tensor([0, 3, 3, 4, 304], device=DEVICE)
    slopes = torch.arange(304.0, device=DEVICE)
    grad = torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE)
    wanted = slopes * torch.tensor([1.0] * 3 + [3.0] + [4.0] * 300, device=DEVICE)
    assert twin(room, "spread")(grad, slopes, offsets, 300).equal(wanted)
    assert twin(room, "spread")(grad[:1].expand(4), slopes, offsets, 300).equal(slopes)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(("lists", "most"), [(1, 600), (7, 3000), (7, 3), (300, 1)])
def test_all_times_a_factor(room, lists, most):
    generator = torch.Generator().manual_seed(lists)
    lengths = torch.randint(0, most + 1, (lists,), generator=generator)
    lengths[0] = most
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(DEVICE)
    slopes = torch.randn(int(lengths.sum()), generator=generator).to(DEVICE)
    grad = torch.randn(lists, generator=generator).to(DEVICE)
    factor = torch.tensor(-2.5, device=DEVICE)
    wanted = slopes * (factor * grad).repeat_interleave(lengths.to(DEVICE))
    assert twin(room, "spread")(grad, slopes, offsets, most, factor).equal(wanted)


@pytest.mark.parametrize("room", ROOMS)
def test_no_lists(room):
    empty = torch.zeros(0, device=DEVICE)
    offsets = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    assert twin(room, "spread")(empty, empty, offsets, 0).shape == (0,)
    assert twin(room, "spread")(
        empty, empty, offsets, 0, torch.tensor(2.0, device=DEVICE)
    ).shape == (0,)
