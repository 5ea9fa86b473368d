"""Any metric through any relaxation, and relaxations as operators.

A relaxation is one or two loops over lists, which know no metric. A relaxed permutation P has one:

- ``loop(first, last, lists, options, rows, grad_scores)`` reads values v in sorted order from the
  row ``VALUES`` and writes ``P v`` to the row ``SORTED``. Unless ``grad_scores`` is empty, it adds
  to ``grad_scores`` the derivative of ``Σ_r g_r (P v)_r``, for g in the row ``GRAD``.

Relaxed ranks have two:

- ``forward(first, last, lists, options, rows)`` writes the relaxed ranks of sorted items to the
  row ``RANKS``, and what the adjoint needs to the two rows from ``STATE`` on;
- ``adjoint(first, last, lists, options, rows, grad_scores)`` adds the vector-Jacobian product of
  the row ``GRAD`` to ``grad_scores``.

Loops compute the lists ``first:last``; ``options`` are those of the relaxation, such as a
temperature. ``grad_scores [items]`` is in input order. ``rows`` are rows of a block, which
:mod:`rankgrad.kernels.cpu._metric_steps` names; a row holds the number of rank or sorted item r of
list b at ``offsets[b] + r``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from rankgrad.kernels.arguments import MetricOptions
from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import (
    APART,
    Array,
    FlatArrays,
    bounds,
    each_list,
    find_items,
    flags,
    numbers,
    tensor_like,
)
from rankgrad.kernels.cpu._list_sort import sort_descending
from rankgrad.kernels.cpu._metric_steps import (
    GRAD,
    RANKS,
    ROWS,
    SORTED,
    VALUES,
    WEIGHTED,
    Ranked,
    finish_linear,
    start_metric,
    start_spearman,
    step_linear_ranks,
    step_ranks,
    step_sorted,
)
from rankgrad.kernels.cpu._metric_terms import ARP, SPEARMAN, metric_of

#: Scores, offsets, the items of each list by descending score, the number of items per list, and
#: the cutoff (0 for none).
Lists = tuple[Array, Array, Array, Array, int]

NOTHING = np.empty(0)  # in place of grad_scores: no gradient is computed
# Numbers (8 MiB). A larger state is not saved: computing it anew in each call is faster.
_MOST_STATE = 1 << 20


class Permutation(NamedTuple):
    """A relaxed permutation; see the module's docstring.

    Attributes:
        loop: the operator and its adjoint.
        steps: elementary steps per item.
        power: a list of length n costs ``steps * n + n**power`` elementary steps.
        in_order: whether the loop needs items by descending score, or takes any order.
        state_rows: from the options, how many numbers per item the loop saves for its later calls
            on the same scores; the loop takes such a state as its last option.
    """

    loop: Callable[..., None]
    steps: int = 16
    power: int = 1
    in_order: bool = True
    state_rows: Callable[[tuple[Any, ...]], int] | None = None

    def with_state(
        self, options: tuple[Any, ...], offsets: Array, first: int = 0, last: int = 0
    ) -> tuple[Any, ...]:
        """The options, followed by a new state for the lists ``first:last`` if the loop takes one.

        The state has no memory if there are no lists, or if it would be too large. The loop then
        saves nothing.
        """
        if self.state_rows is None:
            return options
        items = int(offsets[last] - offsets[first]) + APART * (last - first)
        size = self.state_rows(options) * items
        memory = np.empty(size if size <= _MOST_STATE else 0)
        return *options, (first, memory, np.zeros(last - first, np.int64))


class Ranking(NamedTuple):
    """Relaxed ranks; see the module's docstring, and :class:`Permutation` for the costs."""

    forward: Callable[..., None]
    adjoint: Callable[..., None]
    steps: int = 16
    power: int = 1


def through_permutation(
    relaxation: Permutation,
    options: tuple[Any, ...],
    flat: FlatArrays,
    metric_options: MetricOptions,
) -> None:
    """Write the loss through a relaxed permutation, and its gradient, to ``flat.arrays``.

    The loss is ``1 - metric``; for arp, of which lower is better, it is the metric.
    """
    metric = metric_of(metric_options, flat.max_length, flat.single)
    code, k = metric[:2]
    ranked = workspace(flat)
    arrays, lists, block = flat.arrays, sorted_lists(flat, ranked, k), ranked[3]
    weights, grad_scores = arrays[3], arrays[6]
    gain_rows, weighted_rows = block[:WEIGHTED], block[WEIGHTED:]
    sorted_rows = (gain_rows, weighted_rows) if weights.size else (gain_rows,)
    stateless_options = relaxation.with_state(options, flat.offsets)

    def linear(first: int, last: int) -> None:
        """Value and gradient in one call of the loop, which needs no saved state."""
        start_metric(first, last, arrays, ranked, metric, relaxation.in_order)
        relaxation.loop(first, last, lists, stateless_options, weighted_rows, grad_scores)
        finish_linear(first, last, arrays, ranked, metric)

    def cumulative(first: int, last: int) -> None:
        """The loop sorts gains, the metric gives their derivatives, the loop gives those of scores.

        The second call of the loop uses the state that the first one saved.
        """
        start_metric(first, last, arrays, ranked, metric, relaxation.in_order)
        call = first, last, lists, relaxation.with_state(options, flat.offsets, first, last)
        for rows in sorted_rows:
            relaxation.loop(*call, rows, NOTHING)
        step_sorted(first, last, arrays, ranked, metric)
        for rows in sorted_rows:
            relaxation.loop(*call, rows, grad_scores)

    work = linear if code <= ARP else cumulative  # metrics up to ARP are linear in sorted gains
    flat.each_list(work, relaxation.steps, relaxation.power)


def through_ranking(
    relaxation: Ranking,
    options: tuple[Any, ...],
    beta: float,
    flat: FlatArrays,
    metric_options: MetricOptions,
) -> None:
    """Write the loss through relaxed ranks, and its gradient, to ``flat.arrays``.

    The loss is that of :func:`through_permutation`; ``beta`` is the sharpness with which relaxed
    ranks are compared with each other and with the cutoff.
    """
    metric = metric_of(metric_options, flat.max_length, flat.single)
    code = metric[0]
    ranked = workspace(flat)
    arrays, lists, block = flat.arrays, sorted_lists(flat, ranked, 0), ranked[3]
    grad_scores = arrays[6]
    start = start_spearman if code == SPEARMAN else start_metric
    step = step_linear_ranks if code in (*range(ARP + 1), SPEARMAN) else step_ranks

    def work(first: int, last: int) -> None:
        start(first, last, arrays, ranked, metric, True)
        relaxation.forward(first, last, lists, options, block)
        step(first, last, arrays, ranked, metric, beta)
        relaxation.adjoint(first, last, lists, options, block, grad_scores)

    flat.each_list(work, relaxation.steps, relaxation.power)


def workspace(flat: FlatArrays) -> Ranked:
    """The arrays that the loops write to: order, counts, norms and block, see ``Ranked``."""
    items, lists = len(flat.arrays[0]), len(flat.offsets) - 1
    block = np.empty((ROWS, items + APART))
    return np.empty(items, np.int64), np.zeros(lists, np.int64), np.empty(lists), block


def sorted_lists(flat: FlatArrays, ranked: Ranked, k: int) -> Lists:
    """The lists as relaxations take them, with the cutoff k.

    Their order and counts are arrays of ``ranked``, which ``start_metric`` or ``start_spearman``
    fills in later.
    """
    return flat.arrays[0], flat.offsets, ranked[0], ranked[1], k


@compiled
def _sort_lists(first: int, last: int, mask: Array, lists: Lists) -> None:
    """Write the items of each list by descending score, and their number."""
    scores, offsets, order, counts, _ = lists
    for b in range(first, last):
        start = offsets[b]
        counts[b] = find_items(mask, start, offsets[b + 1], order[start:])
        sort_descending(scores, order[start : start + counts[b]])


class _Operator:
    """Base class of operators: sorts the lists once, for the operator and its adjoint."""

    fixed: ClassVar[tuple[Any, ...]] = ()  # constant options, which loops take after the others

    def __init__(
        self, scores: Tensor, mask: Tensor | None, offsets: Tensor, k: int, options: tuple[Any, ...]
    ) -> None:
        self._scores, self._offsets = scores, bounds(offsets)
        self._options = (*options, *self.fixed)
        items, lists = scores.numel(), len(self._offsets) - 1
        order, counts = np.zeros(items, np.int64), np.zeros(lists, np.int64)
        self._lists: Lists = (numbers(scores), self._offsets, order, counts, k)
        is_item = flags(mask)
        each_list(self._offsets, lambda a, b: _sort_lists(a, b, is_item, self._lists))

    def _rows(self, rows: int) -> Array:
        """A block of zeros ``[rows, items + APART]``."""
        return np.zeros((rows, self._scores.numel() + APART))

    def _tensor(self, array: Array) -> Tensor:
        """A row as a tensor of the scores' dtype and shape."""
        return tensor_like(self._scores, array[: self._scores.numel()]).view(self._scores.shape)

    def _sorted(self, values: Tensor, row: Array) -> None:
        """Write the values ``[items]`` of all lists to a row, in sorted order."""
        gather(0, len(self._offsets) - 1, self._lists, numbers(values), row)


@compiled
def gather(first: int, last: int, lists: Lists, values: Array, row: Array) -> None:
    """Write the values of items in sorted order."""
    _, offsets, order, counts, _ = lists
    for b in range(first, last):
        for i in range(offsets[b], offsets[b] + counts[b]):
            row[i] = values[order[i]]


@compiled
def _scatter(row: Array, lists: Lists, values: Array) -> None:
    """The inverse of :func:`gather`, for all lists."""
    _, offsets, order, counts, _ = lists
    for b in range(counts.size):
        for i in range(offsets[b], offsets[b] + counts[b]):
            values[order[i]] = row[i]


class SortOperator(_Operator):
    """A relaxed permutation P as a linear operator on values of the items.

    Args:
        scores: ``[items]``.
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``.
        max_length: an upper bound of list lengths; not used on a CPU.
        k: the cutoff, 0 for all ranks.
        options: the options of the relaxation.

    Attributes:
        relaxation: the loops of the relaxation.
    """

    relaxation: Permutation

    def __init__(
        self,
        scores: Tensor,
        mask: Tensor | None,
        offsets: Tensor,
        max_length: int,
        k: int,
        *options: Any,
    ) -> None:
        super().__init__(scores, mask, offsets, k, options)
        lists = len(self._offsets) - 1
        self._options = self.relaxation.with_state(self._options, self._offsets, 0, lists)

    def apply(self, values: Tensor) -> Tensor:
        """``P v``: rank r of list b is at ``offsets[b] + r``, 0 past the cutoff and list's end."""
        rows = self._rows(WEIGHTED)
        self._loop(values, rows, NOTHING)
        return self._tensor(rows[SORTED])

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        """The derivative of ``Σ_r grad_r (P v)_r`` by the scores; 0 on padding."""
        rows, grad_scores = self._rows(WEIGHTED), np.zeros(self._scores.numel())
        rows[GRAD, : grad.numel()] = numbers(grad)
        self._loop(values, rows, grad_scores)
        return self._tensor(grad_scores)

    def _loop(self, values: Tensor, rows: Array, grad_scores: Array) -> None:
        loop, steps, power, *_ = self.relaxation
        self._sorted(values, rows[VALUES])
        arguments = self._lists, self._options, rows, grad_scores
        each_list(self._offsets, lambda a, b: loop(a, b, *arguments), steps, power)


class RankOperator(_Operator):
    """Relaxed ranks, and their vector-Jacobian product with respect to the scores.

    Args:
        scores: ``[items]``.
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``.
        max_length: an upper bound of list lengths; not used on a CPU.
        options: the options of the relaxation.

    Attributes:
        relaxation: the loops of the relaxation.
        ranks: ``[items]``, 1-based, and 0 on padding.
    """

    relaxation: ClassVar[Ranking]

    def __init__(
        self, scores: Tensor, mask: Tensor | None, offsets: Tensor, max_length: int, *options: Any
    ) -> None:
        super().__init__(scores, mask, offsets, 0, options)
        self._block = self._rows(ROWS)
        forward = type(self).relaxation.forward
        self._run(lambda a, b: forward(a, b, self._lists, self._options, self._block))
        ranks = np.zeros(scores.numel())
        _scatter(self._block[RANKS], self._lists, ranks)
        self.ranks = self._tensor(ranks)

    def adjoint(self, grad: Tensor) -> Tensor:
        """The gradient with respect to the scores, from that of the ranks; 0 on padding."""
        row, grad_scores = self._block[GRAD], np.zeros(self._scores.numel())
        self._sorted(grad, row)
        # Loops may multiply a gradient by exponentials up to e^600. A power of two, which rounds
        # nothing, scales it to at most 1, so that no product overflows.
        scale = 2.0 ** min(max(math.frexp(np.abs(row).max(initial=0.0))[1], 0), 1023)
        row /= scale
        adjoint = type(self).relaxation.adjoint
        self._run(lambda a, b: adjoint(a, b, self._lists, self._options, self._block, grad_scores))
        return self._tensor(grad_scores * scale)

    def _run(self, work: Callable[[int, int], None]) -> None:
        relaxation = type(self).relaxation
        each_list(self._offsets, work, relaxation.steps, relaxation.power)
