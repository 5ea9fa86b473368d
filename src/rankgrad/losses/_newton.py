"""Gradient and Hessian diagonal of a sum over lists, as gradient boosting takes them.

:meth:`rankgrad.losses.Loss.gradient_and_hessian` calls this module with a whole training set in the
flat layout. The plain PyTorch code of losses takes padded lists, so lists of similar length are
padded and computed in groups; padding and memory stay small however large the set is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rankgrad._shapes import Float, Int, ItemMask, ItemValues, ListValues
from rankgrad._threads import for_work
from rankgrad.lists import Lists

#: A function of padded lists that gives the gradient and Hessian diagonal of each list's value.
Derivatives = Callable[[Lists], tuple[ItemValues, ItemValues]]

#: A lower bound of the second derivative of a term. Newton steps divide by the second derivative;
#: with this bound they stay finite where a sigmoid is flat.
LEAST_CURVATURE = 1e-16

#: The largest number of pairs, or items, in a group of lists.
_MAX_PAIRS, _MAX_ITEMS = 1 << 22, 1 << 18


def derivatives_of_lists(
    lists: Lists, derive: Derivatives, quadratic: bool
) -> tuple[Float[Tensor, " items"], Float[Tensor, " items"]]:
    """Gradient and Hessian diagonal of the items of flat lists, before weighting by list.

    Args:
        lists: in the flat layout.
        derive: computes both for padded lists; its results for padding are not read.
        quadratic: whether the memory of ``derive`` grows with the pairs of a list, not its items.

    Returns:
        The gradient and the Hessian diagonal, ``[items]`` each.
    """
    scores, labels, _, weights, offsets, _ = lists.flat
    gradient, hessian = torch.zeros_like(scores), torch.zeros_like(scores)
    for index, mask in _groups(offsets, quadratic):
        padded_scores, padded_labels = (x[index].where(mask, 0.0) for x in (scores, labels))
        item_weights = None if weights is None else weights[index].where(mask, 0.0)
        group = Lists.from_padded(padded_scores, padded_labels, mask, item_weights)
        with for_work(operations=1.0):  # in one thread, as groups are small
            group_gradient, group_hessian = derive(group)
        gradient[index[mask]] = group_gradient[mask]
        hessian[index[mask]] = group_hessian[mask]
    return gradient, hessian


def _groups(
    offsets: Int[Tensor, " c"], quadratic: bool
) -> Iterator[tuple[Int[Tensor, "b n"], ItemMask]]:
    """Groups of lists of similar length: the flat indices of their padded items, and the mask.

    ``offsets`` is ``[lists + 1]``; padding has the index 0. Empty lists are in no group.
    """
    lengths = offsets.diff()
    by_length = lengths.argsort(stable=True)
    by_length = by_length[lengths[by_length] > 0]
    sorted_lengths = lengths[by_length].tolist()
    last = len(sorted_lengths)
    while last > 0:  # from the longest lists to the shortest
        max_length = sorted_lengths[last - 1]
        max_lists = _MAX_PAIRS // max_length**2 if quadratic else _MAX_ITEMS // max_length
        first = max(0, last - max(1, max_lists))
        group = by_length[first:last]
        columns = torch.arange(max_length, device=offsets.device)
        mask = columns < lengths[group, None]
        yield (offsets[group, None] + columns).where(mask, 0), mask
        last = first


def sigmoid_derivative(logits: Tensor) -> Tensor:
    """``σ(x) (1 - σ(x))``, without cancellation at large x.

    >>> from rankgrad.losses._newton import sigmoid_derivative
    >>> sigmoid_derivative(torch.tensor([0.0, 40.0]))
    tensor([2.5000e-01, 4.2484e-18])
    """
    return logits.sigmoid() * (-logits).sigmoid()


def expand_lists(per_list: ListValues, offsets: Int[Tensor, " c"]) -> Float[Tensor, " N"]:
    """Give each item the value of its list; ``per_list`` is ``[lists]``.

    >>> from rankgrad.losses._newton import expand_lists
    >>> expand_lists(torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 3])).tolist()
    [1.0, 2.0, 2.0]
    """
    return per_list.repeat_interleave(offsets.diff())
