"""BatchNorm: batch normalization over the real items of a batch, in one process or several.

The networks of the LambdaLoss, SmoothI and PiRank papers use it: see :class:`rankgrad.models.MLP`.
"""

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
    which evaluation uses, start as the plain mean over the batches so far and turn into a moving
    average, so they are correct from the first batch on, for any decay. A batch of fewer than two
    items, such as a list with one item, is normalized by the running statistics instead of being an
    error. And if training runs in several processes, on any device, the statistics are those of the
    whole batch, as in one process.

    Args:
        width: the number of columns.
        decay: the weight of the old running statistics when they are updated with a batch.
            TensorFlow calls it momentum; PyTorch's momentum is ``1 - decay``.

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
        # The buffer ``num_batches_tracked``, its version, and its value, as the host last saw them.
        self._host_count: tuple[Tensor, int, int] | None = None

    def forward(
        self, items: Float[Tensor, "N width"], real: Bool[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N width"]:
        """Normalize the items; those on which ``real`` is False do not enter the statistics.

        Args:
            items: ``[N, width]``.
            real: ``[N]``; None if all items are real.

        Returns:
            ``[N, width]``: in training normalized by the statistics of the batch if it has two
            real items or more, otherwise by the running statistics.
        """
        if not self.training:
            return self._by_running_statistics(items)
        if real is not None or _processes() > 1:
            return self._masked_or_distributed(items, real)
        if len(items) < 2:
            return self._by_running_statistics(items)
        # The weight of this batch: 1 / count keeps a plain mean, until the momentum is larger.
        return self._batch_norm(items, max(1 / self._count_batch(), self.momentum or 0.0))

    def _by_running_statistics(self, items: Tensor) -> Tensor:
        # shape[0], not len(): len() would fix the number of items in an exported program.
        return items if items.shape[0] == 0 else self._batch_norm(items)

    def _batch_norm(self, items: Tensor, momentum: float | None = None) -> Tensor:
        """Normalize the items ``[N, width]``, at least one.

        With a momentum, by the statistics of the items, which also update the running statistics.
        Without one, by the running statistics.
        """
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(items, *tensors, momentum is not None, momentum or 0.0, self.eps)

    def _count_batch(self) -> int:
        """Count a batch; returns the number of batches so far.

        The number is also kept on the host, since reading the buffer would wait for a GPU.
        """
        count, tracked = self._host_count, self.num_batches_tracked
        if count is not None and count[0] is tracked and count[1] == tracked._version:
            previous = count[2]
        else:  # the first batch, or other code has changed the buffer
            previous = int(tracked)
        tracked += 1
        self._host_count = tracked, tracked._version, previous + 1
        return previous + 1

    def _masked_or_distributed(self, items: Tensor, real: Tensor | None) -> Tensor:
        """Normalize a batch with padding, or split over processes, without waiting for a GPU."""
        values = items.to(self.weight.dtype)
        normalized, mean, variance, count = _normalize(
            values, self.weight, self.bias, real, self.running_mean, self.running_var, self.eps
        )
        unbiased = variance * count / (count - 1).clamp(min=1)
        self._update_statistics(mean, unbiased, (count > 1).to(self.num_batches_tracked))
        return normalized.to(items.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, counted: Tensor) -> None:
        """Update the running statistics by a batch, on the device.

        Args:
            mean: ``[width]``.
            variance: ``[width]``, unbiased.
            counted: a scalar: 1, or 0 for a batch of fewer than two items, which changes nothing.
        """
        self.num_batches_tracked += counted
        momentum = (1.0 / self.num_batches_tracked.clamp(min=1)).clamp(min=self.momentum) * counted
        self.running_mean.lerp_(mean, momentum.to(mean.dtype))
        self.running_var.lerp_(variance, momentum.to(mean.dtype))


class _Normalize(torch.autograd.Function):
    """Normalize the items of this process by the statistics of the real items of all processes.

    For n real items, centered values c and ``r = 1 / sqrt(variance + ε)``, the gradient g of an
    output becomes ``w r (g - Σg / n - c r² Σgc / n)`` (Ioffe and Szegedy 2015). The formula is
    written out because autograd would pass over the items twice as often. Padding is normalized to
    the bias. The caller must give this output the gradient 0; then the gradient of the padding is
    0, too. If there are fewer than two real items, the running statistics are used.

    ``apply`` takes items ``[N, width]``, weight w and bias ``[width]``, ``real`` ``[N]`` or None,
    the running mean and variance ``[width]`` and ε. It returns the normalized items ``[N, width]``,
    the mean ``[width]``, the biased variance ``[width]`` and the number of real items, a scalar.
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
        is_real = None if real is None else real[:, None]
        real_items = items if is_real is None else items.where(is_real, 0.0)
        local_count = items.new_full((1,), len(items)) if real is None else real.sum()[None]
        sums = _sum_over_processes(torch.cat([real_items.sum(0), local_count.to(items)]))
        count = sums[-1]
        enough = count > 1
        mean = torch.where(enough, sums[:-1] / count.clamp(min=1), running_mean)
        centered = items - mean
        if is_real is not None:
            centered = centered.where(is_real, 0.0)
        squares = _sum_over_processes(centered.square().sum(0))
        variance = torch.where(enough, squares / count.clamp(min=1), running_variance)
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(centered, real, weight, inverse, enough / count.clamp(min=1))
        ctx.mark_non_differentiable(mean, variance, count)
        return torch.addcmul(bias, centered, weight * inverse), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        # ``per_item`` is 1 / n, or 0 if the statistics were the running ones, which are constants.
        centered, real, weight, inverse, per_item = ctx.saved_tensors
        local_sums = torch.stack([gradient.sum(0), (gradient * centered).sum(0)])
        sums = _sum_over_processes(local_sums.clone())
        scale = weight * inverse
        # The terms of Σg, the same for all items, and of Σgc, proportional to the centered values.
        shift, tilt = -scale * per_item * torch.stack([sums[0], sums[1] * inverse.square()])
        grad_inputs = torch.addcmul(gradient * scale, centered, tilt)
        if real is None:
            grad_inputs += shift
        else:
            grad_inputs.addcmul_(real[:, None], shift)
        return grad_inputs, local_sums[1] * inverse, local_sums[0], None, None, None, None


_normalize: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _Normalize.apply


def _sum_over_processes(sums: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place."""
    if _processes() > 1:
        distributed.all_reduce(sums)
    return sums


def _processes() -> int:
    """The number of processes that train together."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()
