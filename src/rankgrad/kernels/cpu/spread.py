"""A number for each list times those of its slots."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.prepare import Array


def spread(grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b."""
    given = slopes.detach().contiguous().numpy()
    result = np.empty_like(given)
    spread_into(result, grad.detach().contiguous().numpy(), given, offsets)
    return torch.from_numpy(result)


def spread_into(result: Array, lists: Array, slopes: Array, offsets: Tensor) -> None:
    """The same into memory that is there, be it the slopes' own."""
    bounds = offsets.to(torch.int64).contiguous().numpy()
    _spread(lists, slopes.reshape(-1), bounds, result.reshape(-1))


@compiled
def _spread(lists: Array, slopes: Array, offsets: Array, out: Array) -> None:
    for b in range(lists.size):
        some = slice(offsets[b], offsets[b + 1])
        _times(lists[b], slopes[some], out[some])


@compiled
def _times(factor: float, slopes: Array, out: Array) -> None:
    for i in range(slopes.size):
        out[i] = factor * slopes[i]
