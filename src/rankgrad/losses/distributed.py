"""The mean of a loss over the lists of several processes.

For users who write their own training loop under ``DistributedDataParallel``; rankgrad's trainer
does the same by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from rankgrad._shapes import Float
from rankgrad.inputs import as_lists
from rankgrad.losses._base import Loss, reduce


def distributed_mean(
    loss: Loss,
    scores: Any,
    labels: Any,
    mask: Any = None,
    *,
    offsets: Any = None,
    lengths: Any = None,
    qid: Any = None,
    weights: Any = None,
    group: Any = None,
) -> Float[Tensor, ""]:
    """The mean of a loss over the lists of all processes, to be differentiated under DDP.

    ``DistributedDataParallel`` averages the gradients of its processes. If each process took the
    mean over its own lists, a list would weigh more in a process that has few lists on which the
    loss is defined. So process p of P gives ``P Σ_{lists of p} w_l loss_l / Σ_{all lists} w_l``,
    over lists on which the loss is defined. The average of these values and gradients over the
    processes is that of one process with all the lists. In a single process it is the loss with
    ``reduction="mean"``.

    All processes of the group call this together, once a step; a process without lists passes the
    empty tensors that its network gives for them. Fabric, Lightning and Accelerate average
    gradients as DDP does. ``rankgrad train --devices N`` does not need this function.

    Args:
        loss: from :mod:`rankgrad.losses`; its own reduction is not used.
        scores: ``[..., n]`` padded, or ``[N]`` flat, of this process.
        labels: of the same shape.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
        qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
        weights: one per list (a weighted mean), or one per item.
        group: the process group; by default all processes.

    Returns:
        A scalar; its mean over the processes is the loss.

    Raises:
        ValueError: a value is invalid, or shapes do not agree.

    >>> from rankgrad import losses
    >>> loss = losses.get("softmax")
    >>> lists = torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 0, 2]])
    >>> losses.distributed_mean(loss, *lists) == loss(*lists)
    tensor(True)
    """
    lists = as_lists(
        scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
    )
    with torch.autocast(lists.flat.scores.device.type, enabled=False):
        values, defined = loss.values(lists)
        total = reduce(values, defined, lists, "sum")
    list_weights = defined.double()
    if lists.list_weights is not None:
        list_weights = list_weights * lists.list_weights.detach()
    total_weight, processes = list_weights.sum(), 1
    if distributed.is_available() and distributed.is_initialized():
        processes = distributed.get_world_size(group)
        distributed.all_reduce(total_weight, group=group)
    return total * (processes / torch.where(total_weight > 0, total_weight, 1.0)).to(total.dtype)
