"""Batch normalisation of the real items of a batch, in one process or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.nn import functional as F


class BatchNorm(nn.BatchNorm1d):
    """``(x - mean) / sqrt(variance + ε) · weight + bias`` over the items ``[N, width]`` of a batch.

    It differs from PyTorch's layer in three ways that matter to ranking. The running statistics,
    which count in evaluation, start as plain means over the batches seen and turn into moving ones,
    so that they are right from the first batch on, however long their memory. A batch of fewer than
    two items, such as a list with one item, is normalised with the running statistics instead of
    being an error. And where training runs in several processes, on any device, the statistics are
    those of the whole batch, as they would be in one process.

    Args:
        width: the number of columns.
        decay: what the moving statistics keep of themselves at each batch. This is what TensorFlow
            calls momentum; PyTorch's momentum is ``1 - decay``.

    >>> norm = BatchNorm(1, decay=0.999)
    >>> _ = norm(torch.tensor([[1.0], [3.0]]))
    >>> norm.running_mean.tolist(), norm.running_var.tolist()
    ([2.0], [2.0])
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, width: int, decay: float) -> None:
        super().__init__(width, momentum=1 - decay)
        self._counted: tuple[Tensor, int, int] | None = None

    def forward(self, items: Float[Tensor, "N width"]) -> Float[Tensor, "N width"]:
        if not self.training:
            return self._by_running_statistics(items)
        if _processes() > 1:
            return self._across_processes(items)
        if len(items) < 2:
            return self._by_running_statistics(items)
        share = max(1 / self._count(), self.momentum or 0.0)
        return F.batch_norm(
            items,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            True,
            share,
            self.eps,
        )

    def _by_running_statistics(self, items: Tensor) -> Tensor:
        if len(items) == 0:
            return items
        return F.batch_norm(
            items, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )

    def _count(self) -> int:
        """The number of this batch, which the host knows without asking the device each time."""
        kept, tracked = self._counted, self.num_batches_tracked
        if kept is not None and kept[0] is tracked and kept[1] == tracked._version:
            seen = kept[2]
        else:  # the first batch, or someone else has changed the number
            seen = int(tracked)
        tracked += 1
        self._counted = tracked, tracked._version, seen + 1
        return seen + 1

    def _across_processes(self, items: Tensor) -> Tensor:
        values = items.to(self.weight.dtype)
        sums = _over_processes(torch.cat([values.sum(0), values.new_full((1,), len(values))]))
        count = sums[-1].detach()
        mean = sums[:-1] / count.clamp(min=1)
        variance = _over_processes((values - mean).square().sum(0)) / count.clamp(min=1)
        enough = count > 1
        unbiased = (variance * count / (count - 1).clamp(min=1)).detach()
        used_mean = torch.where(enough, mean, self.running_mean.clone())
        used_variance = torch.where(enough, variance, self.running_var.clone())
        self._remember(mean.detach(), unbiased, enough.to(self.num_batches_tracked))
        scale = self.weight * (used_variance + self.eps).rsqrt()
        return ((values - used_mean) * scale + self.bias).to(items.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, counts: Tensor) -> None:
        """Update the running statistics; ``counts`` is 1, or 0 to leave them. All on the device."""
        self.num_batches_tracked += counts
        share = (1.0 / self.num_batches_tracked.clamp(min=1)).clamp(min=self.momentum) * counts
        self.running_mean.lerp_(mean, share.to(mean.dtype))
        self.running_var.lerp_(variance, share.to(mean.dtype))


class _Sum(torch.autograd.Function):
    """The sum over processes; so is its gradient, since each process's loss depends on it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        distributed.all_reduce(total)
        return total


_over_processes: Callable[[Tensor], Tensor] = _Sum.apply


def _processes() -> int:
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
