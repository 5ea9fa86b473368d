"""A number for each list times those of its slots, on GPUs."""

import pytest
import torch
from slots import DEVICE

pytest.importorskip("triton")
from rankgrad.kernels.gpu.spread import spread


def test_spread():
    offsets = torch.tensor([0, 3, 3, 4, 304], device=DEVICE)
    slopes = torch.arange(304.0, device=DEVICE)
    grad = torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE)
    wanted = slopes * torch.tensor([1.0] * 3 + [3.0] + [4.0] * 300, device=DEVICE)
    assert spread(grad, slopes, offsets, 300).equal(wanted)
    assert spread(grad[:1].expand(4), slopes, offsets, 300).equal(slopes)
