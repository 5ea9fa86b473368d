"""A number for each list times those of its slots."""

from __future__ import annotations

from torch import Tensor


def spread(grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b."""
    lengths = offsets.diff()
    return grad.repeat_interleave(lengths, output_size=slopes.numel()) * slopes
