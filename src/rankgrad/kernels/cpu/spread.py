"""A number for each list times those of its slots."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.cpu.compiled import compiled
from rankgrad.kernels.cpu.prepare import Array


def spread(
    grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int, factor: Tensor | None = None
) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b, all of them times the factor."""
    lists = grad.detach() if factor is None else grad.detach() * factor.detach()
    given = slopes.detach().contiguous().numpy()
    result = np.empty_like(given)
    bounds = offsets.to(torch.int64).contiguous().numpy()
    _spread(lists.contiguous().numpy(), given.reshape(-1), bounds, result.reshape(-1))
    return torch.from_numpy(result)


@compiled
def _spread(lists: Array, slopes: Array, offsets: Array, out: Array) -> None:
    for b in range(lists.size):
        some = slice(offsets[b], offsets[b + 1])
        _times(lists[b], slopes[some], out[some])


@compiled
def _times(factor: float, slopes: Array, out: Array) -> None:
    for i in range(slopes.size):
        out[i] = factor * slopes[i]
