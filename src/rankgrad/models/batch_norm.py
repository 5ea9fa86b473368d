"""Batch normalization of the real items of a batch, in one process or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rankgrad._shapes import Bool, Float


class BatchNorm(nn.BatchNorm1d):
    """``(x - mean) / sqrt(variance + ε) · weight + bias`` over the items ``[N, width]`` of a batch.

    It differs from PyTorch's layer in three ways that matter to ranking. The running statistics,
    which count in evaluation, start as plain means over the batches seen and turn into moving ones,
    so that they are right from the first batch on, however long their memory. A batch of fewer than
    two items, such as a list with one item, is normalized with the running statistics instead of
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

    def forward(
        self, items: Float[Tensor, "N width"], real: Bool[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N width"]:
        """Normalize; where ``real`` is given, items on which it is False count for nothing."""
        if not self.training:
            return self._by_running_statistics(items)
        if real is not None or _processes() > 1:
            return self._by_parts(items, real)
        if len(items) < 2:
            return self._by_running_statistics(items)
        return self._whole_batch(items, max(1 / self._count(), self.momentum or 0.0))

    def _by_running_statistics(self, items: Tensor) -> Tensor:
        # shape[0], not len(): len() would fix the number of items in an exported program.
        return items if items.shape[0] == 0 else self._whole_batch(items)

    def _whole_batch(self, items: Tensor, share: float | None = None) -> Tensor:
        """Normalize by the batch, which counts so much for the running statistics, or by these."""
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(items, *tensors, share is not None, share or 0.0, self.eps)

    def _count(self) -> int:
        """The number of this batch, tracked on the host to avoid synchronizing."""
        counted, tracked = self._counted, self.num_batches_tracked
        if counted is not None and counted[0] is tracked and counted[1] == tracked._version:
            seen = counted[2]
        else:  # the first batch, or other code has changed the buffer
            seen = int(tracked)
        tracked += 1
        self._counted = tracked, tracked._version, seen + 1
        return seen + 1

    def _by_parts(self, items: Tensor, real: Tensor | None) -> Tensor:
        """Mean and variance of a batch with padding or split over processes, on the device."""
        values = items.to(self.weight.dtype)
        normal, mean, variance, count = _normalize(
            values, self.weight, self.bias, real, self.running_mean, self.running_var, self.eps
        )
        unbiased = variance * count / (count - 1).clamp(min=1)
        self._remember(mean, unbiased, (count > 1).to(self.num_batches_tracked))
        return normal.to(items.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, counts: Tensor) -> None:
        """Update the running statistics; ``counts`` is 1, or 0 to leave them. All on the device."""
        self.num_batches_tracked += counts
        share = (1.0 / self.num_batches_tracked.clamp(min=1)).clamp(min=self.momentum) * counts
        self.running_mean.lerp_(mean, share.to(mean.dtype))
        self.running_var.lerp_(variance, share.to(mean.dtype))


class _Normalize(torch.autograd.Function):
    """The items of this process, normalized by mean and variance of the real ones of all processes.

    With n of those, centered values c, and ``r = 1 / sqrt(variance + ε)``, a gradient g becomes
    ``w r (g - Σg / n - c r² Σgc / n)`` (Ioffe and Szegedy 2015), which is written out since PyTorch
    would go over the items twice as often. Padding becomes the bias; its gradient is to be 0, and
    then is passed on as 0. Of fewer than two items, the statistics are the running ones.

    Gives the normalized items; and the mean, the variance and the number of real items.
    """

    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        weight: Tensor,
        bias: Tensor,
        real: Tensor | None,
        running_mean: Tensor,
        running_variance: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = None if real is None else real[:, None]
        real_items = items if rows is None else items.where(rows, 0.0)
        number = items.new_full((1,), len(items)) if real is None else real.sum()[None]
        sums = _over_processes(torch.cat([real_items.sum(0), number.to(items)]))
        count = sums[-1]
        enough = count > 1
        mean = torch.where(enough, sums[:-1] / count.clamp(min=1), running_mean)
        centered = items - mean
        if rows is not None:
            centered = centered.where(rows, 0.0)
        squares = _over_processes(centered.square().sum(0))
        variance = torch.where(enough, squares / count.clamp(min=1), running_variance)
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(centered, real, weight, inverse, enough / count.clamp(min=1))
        ctx.mark_non_differentiable(mean, variance, count)
        return torch.addcmul(bias, centered, weight * inverse), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        centered, real, weight, inverse, share = ctx.saved_tensors
        local_sums = torch.stack([gradient.sum(0), (gradient * centered).sum(0)])
        sums = _over_processes(local_sums.clone())
        scale = weight * inverse
        shift, tilt = -scale * share * torch.stack([sums[0], sums[1] * inverse.square()])
        grad_inputs = torch.addcmul(gradient * scale, centered, tilt)
        if real is None:
            grad_inputs += shift
        else:
            grad_inputs.addcmul_(real[:, None], shift)
        return grad_inputs, local_sums[1] * inverse, local_sums[0], None, None, None, None


_normalize: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _Normalize.apply


def _over_processes(sums: Tensor) -> Tensor:
    """Sum tensors over all processes, in place."""
    if _processes() > 1:
        distributed.all_reduce(sums)
    return sums


def _processes() -> int:
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
