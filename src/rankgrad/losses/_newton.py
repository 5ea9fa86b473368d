"""Gradient and Hessian diagonal of a sum over lists, as gradient boosting takes them.

Lists come flat. They are gone through in groups of like length, so that padding and the memory of
an eager form stay bounded on data sets of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rankgrad._shapes import Float, Int, ListValues
from rankgrad._threads import for_work
from rankgrad.lists import Lists

#: Gradient and Hessian diagonal of the value of each list, ``[b, n]``.
Derivatives = Callable[[Lists], tuple[Tensor, Tensor]]

#: The least second derivative of a term: where a sigmoid is flat, steps must stay finite.
LEAST_CURVATURE = 1e-16

#: Pairs, or items, that a group of lists has at most.
_PAIRS, _ITEMS = 1 << 22, 1 << 18


def derivatives_of_lists(
    lists: Lists, derive: Derivatives, quadratic: bool
) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian diagonal of the items of flat lists, ``[N]``, not yet weighed by list.

    Args:
        lists: in flat layout.
        derive: of padded lists; what it gives for padding is not read.
        quadratic: whether its memory grows with the pairs of a list, not with its items.
    """
    scores, labels, _, weights, offsets, _ = lists.flat
    gradient, hessian = torch.zeros_like(scores), torch.zeros_like(scores)
    for index, mask in _groups(offsets, quadratic):
        padded = [one[index].where(mask, 0.0) for one in (scores, labels)]
        item_weights = None if weights is None else weights[index].where(mask, 0.0)
        with for_work(operations=1.0):  # groups are small
            first, second = derive(Lists.from_padded(padded[0], padded[1], mask, item_weights))
        gradient[index[mask]] = first[mask]
        hessian[index[mask]] = second[mask]
    return gradient, hessian


def _groups(
    offsets: Int[Tensor, " c"], quadratic: bool
) -> Iterator[tuple[Int[Tensor, "b n"], Tensor]]:
    """Groups of lists of like length: where their items are, and which of those places are real."""
    lengths = offsets.diff()
    order = lengths.argsort(stable=True)
    order = order[lengths[order] > 0]
    sizes = lengths[order].tolist()
    last = len(sizes)
    while last > 0:  # longest first: the first list of a group has its width
        max_length = sizes[last - 1]
        fit = _PAIRS // max_length**2 if quadratic else _ITEMS // max_length
        first = max(0, last - max(1, fit))
        chosen = order[first:last]
        places = torch.arange(max_length, device=offsets.device)
        mask = places < lengths[chosen, None]
        yield (offsets[chosen, None] + places).where(mask, 0), mask
        last = first


def sigmoid_derivative(logits: Tensor) -> Tensor:
    """``σ(x) (1 - σ(x))``, without cancellation at large x.

    >>> from rankgrad.losses._newton import sigmoid_derivative
    >>> sigmoid_derivative(torch.tensor([0.0, 40.0]))
    tensor([2.5000e-01, 4.2484e-18])
    """
    return logits.sigmoid() * (-logits).sigmoid()


def expand_lists(per_list: ListValues, offsets: Int[Tensor, " c"]) -> Float[Tensor, " N"]:
    """A value per list as one per item.

    >>> from rankgrad.losses._newton import expand_lists
    >>> expand_lists(torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 3])).tolist()
    [1.0, 2.0, 2.0]
    """
    return per_list.repeat_interleave(offsets.diff())
