"""A number for each list times those of its slots."""

from __future__ import annotations

from torch import Tensor


def spread(
    grad: Tensor, slopes: Tensor, offsets: Tensor, longest: int, shares: Tensor | None = None
) -> Tensor:
    """``grad[b] * slopes[i]`` for every slot i of list b; with shares, ``grad * shares[b]``."""
    lists = grad if shares is None else grad * shares
    return lists.repeat_interleave(offsets.diff(), output_size=slopes.numel()) * slopes
