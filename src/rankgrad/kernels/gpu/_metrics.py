"""Exact metrics on GPUs: each list is sorted once, and no list is padded.

:mod:`rankgrad.metrics` defines the metrics. For lists on CUDA it calls :func:`exact_metrics`,
through :mod:`rankgrad.kernels.ops`. If ties are averaged, a metric is its expected value over the
orders of tied items. One program per list reads the sorted list span by span. Values are summed in
float64 and stored as float32. No call synchronizes with the host.

The kernels share names. These are tensors ``[items]`` in the order of the sort: ``ranked`` has the
scores, -inf on padding; ``order`` has the index of each item in the batch; ``start`` and ``end``
have its group of ties, or are None. ``begin`` is the index of a list's first item, and ``at`` are
ranks from 0 within the list. Ranks from ``cut`` on count nothing; in arp they count as rank
cut + 1. ``row`` is the metric's row of the results. 2147483647 is the largest int32: as ``cut`` it
means no cutoff (``_NO_CUTOFF``, written out, as kernels do not read Python globals), as a rank that
there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import ExactMetric, FlatLists
from rankgrad.kernels.gpu._flat_lists import chunk_size, list_span, load_weights
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._segmented_sort import Sorted, sort_lists, tie_group

_SPAN = 2048  # the most ranks that a program reads at a time
_TILE = 256  # ranks of a program where several programs share a list
_NO_CUTOFF = 2**31 - 1  # the largest int32


def exact_metrics(batch: FlatLists, metrics: Sequence[ExactMetric]) -> tuple[Tensor, Tensor]:
    """The value of each metric on each list, and whether the list has a relevant item.

    A relevant item has a positive weight and a positive gain, as the metric defines it; without one
    the value is 0. Both results are ``[metrics, lists]``.
    """
    scores, labels, mask, weights, offsets, max_length = batch
    values = scores.new_zeros(len(metrics), offsets.shape[0] - 1)
    relevant = torch.zeros_like(values, dtype=torch.bool)
    if values.numel() == 0 or max_length == 0:
        return values, relevant
    # A score of -inf ties with the lowest finite number, as in eager mode; so -inf in ``ranked``
    # means padding only (see _is_item).
    ranked = scores.detach().clamp(min=torch.finfo(scores.dtype).min)
    by_score = sort_lists(ranked, mask, offsets, max_length)
    ordered = _Batch(labels, mask, weights, offsets, max_length, by_score)
    for row, metric in enumerate(metrics):
        launch = _launch_err if metric.name == "err" else _launch
        launch(ordered, metric, row, values, relevant)
    return values, relevant


@dataclass
class _Batch:
    """Sorted lists, and what several metrics need of them, computed on first use.

    ``labels``, ``mask``, ``weights``, ``offsets`` and ``max_length`` are those of
    :class:`~rankgrad.kernels.arguments.FlatLists`; ``by_score`` has the lists sorted by score.
    """

    labels: Tensor
    mask: Tensor | None
    weights: Tensor | None
    offsets: Tensor
    max_length: int
    by_score: Sorted
    _ideal: dict[str, Tensor] = field(default_factory=dict)

    @property
    def lists(self) -> int:
        """The number of lists."""
        return self.offsets.shape[0] - 1

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """The first arguments of every kernel."""
        return self.labels, self.weights, self.offsets, self.by_score.scores, self.by_score.items

    def options(self, most: int) -> dict[str, Any]:
        """The constants of a kernel that reads at most this many ranks at a time."""
        span = chunk_size(self.max_length, most)
        warps = min(16, max(1, span // 128))
        return {"MASKED": self.mask is not None, "SPAN": span, "num_warps": warps}

    def tie_groups(self, averaged: bool) -> tuple[Tensor | None, Tensor | None]:
        """The start and end of each rank's group of ties, ``[items]``; None if not averaged.

        They are ranks from 0 within the list; the end is one past the group's last rank.
        """
        return self._tie_groups if averaged else (None, None)

    @cached_property
    def _tie_groups(self) -> tuple[Tensor, Tensor]:
        start, end = self._two_rows(torch.int32)
        options, steps = self.options(_TILE), self.max_length.bit_length() + 1
        _write_tie_groups[(self.lists, cdiv(self.max_length, options["SPAN"]))](
            self.offsets, self.by_score.scores, start, end, steps, **options
        )
        return start, end

    def ideal(self, gain: str) -> Tensor:
        """The items ``[items]`` of each list in descending order of their weighted gains."""
        # Without weights, the order by any gain is that by label: gains increase with labels.
        kind = "labels" if self.weights is None else gain
        if kind not in self._ideal:
            keys = self.labels
            if self.weights is not None:
                # In float32, 2^y - 1 would lose the digits of small labels.
                keys = keys.double() if gain == "linear" else torch.exp2(keys.double()) - 1
                keys = (keys * self.weights).to(self.labels.dtype)
            self._ideal[kind] = sort_lists(keys, self.mask, self.offsets, self.max_length).items
        return self._ideal[kind]

    @cached_property
    def discounts(self) -> Tensor:
        """``Σ_{r<=p} 1 / log2(1 + r)`` for p from 0 to the largest length, ``[max_length + 1]``."""
        ranks = torch.arange(1, self.max_length + 2, dtype=torch.float64, device=self.labels.device)
        terms = ranks.log2_().reciprocal_()
        terms[:1] = 0.0  # before the first rank
        return terms.cumsum(0)

    @cached_property
    def scratch(self) -> Tensor:
        """Two rows ``[2, items]`` that a metric may overwrite; all metrics use the same memory."""
        return self._two_rows(torch.float64)

    def _two_rows(self, dtype: torch.dtype) -> Tensor:
        """A new tensor ``[2, items]`` whose rows begin at multiples of 16 bytes.

        Triton compiles kernels separately for pointers that are not aligned to 16 bytes.
        """
        items = self.labels.numel()
        rows = torch.empty(2, cdiv(items, 4) * 4, dtype=dtype, device=self.labels.device)
        return rows[:, :items]


def _launch(batch: _Batch, metric: ExactMetric, row: int, values: Tensor, relevant: Tensor) -> None:
    """Write one metric other than err to a row of the results, with one program per list."""
    name, k, averaged, linear, threshold, persistence = metric
    grid, sorted_lists = (batch.lists,), (*batch.arrays, *batch.tie_groups(averaged))
    cut_and_row, options = (_counted_ranks(k), row), batch.options(_SPAN)
    threshold = float(threshold)
    if name == "ap":
        scratch = batch.scratch if averaged else (None, None)
        _ap[grid](*sorted_lists, *scratch, values, relevant, threshold, *cut_and_row, **options)
    elif name in ("rr", "hits"):
        _first_relevant[grid](
            *sorted_lists, values, relevant, threshold, *cut_and_row, METRIC=name, **options
        )
    else:
        gain = "binary"
        if name in ("ndcg", "dcg", "arp"):
            gain = "linear" if linear or name == "arp" else "exponential"
        ideal_order = batch.ideal(gain) if name == "ndcg" else None
        discounts = batch.discounts if name in ("ndcg", "dcg") else None
        rounded = _round_to_float32(persistence)
        _discounted_sum[grid](
            *sorted_lists, ideal_order, discounts, values, relevant, threshold, rounded,
            persistence - rounded, *cut_and_row, METRIC=name, GAIN=gain, **options,
        )  # fmt: skip


def _launch_err(
    batch: _Batch, metric: ExactMetric, row: int, values: Tensor, relevant: Tensor
) -> None:
    """Write err to a row of the results; several programs of a list compute its probabilities."""
    k, grade = metric.k, float(metric.threshold)  # for err, the threshold is the top grade
    tops = torch.empty(batch.lists, dtype=torch.float64, device=values.device)
    stops, passes = batch.scratch
    one_program, options = batch.options(_SPAN), batch.options(_TILE)
    _write_top_grades[(batch.lists,)](*batch.arrays, tops, relevant, grade, row, **one_program)
    _write_probabilities[(batch.lists, cdiv(batch.max_length, options["SPAN"]))](
        *batch.arrays, *batch.tie_groups(metric.average_ties), tops, stops, passes,
        _counted_ranks(k), **options,
    )  # fmt: skip
    _cascade[(batch.lists,)](
        batch.offsets, batch.by_score.scores, stops, passes, values, _counted_ranks(k), row,
        **one_program,
    )  # fmt: skip


def _counted_ranks(k: int) -> int:
    """How many ranks count at cutoff k, where 0 means no cutoff."""
    return min(k, _NO_CUTOFF) if k else _NO_CUTOFF


def _round_to_float32(number: float) -> float:
    """A number rounded to float32, the precision of kernel arguments."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


@triton.jit
def _is_item(ranked, begin, length, at, MASKED: tl.constexpr):
    """Which ranks of a sorted list hold a real item."""
    real = at < length
    if MASKED:
        score = tl.load(ranked + begin + at, mask=real, other=float("-inf"))
        real = real & (score > float("-inf"))
    return real


@triton.jit
def _load_ranks(ranked, order, begin, length, span_start, MASKED: tl.constexpr, SPAN: tl.constexpr):
    """A span of ranks (from 0) of a sorted list, which of them hold a real item, and the items."""
    at = span_start + tl.arange(0, SPAN)
    real = _is_item(ranked, begin, length, at, MASKED)
    return at, real, tl.load(order + begin + at, mask=real, other=0)


@triton.jit
def _gain(labels, item, real, threshold, GAIN: tl.constexpr):
    """Gains of items in float64; 0 where there is no item.

    GAIN "stop" is ERR's stopping probability ``(2^y - 1) / 2^top``; ``threshold`` is then ``top``.
    """
    label = tl.load(labels + item, mask=real, other=0.0)
    if GAIN == "binary":
        return tl.where(real & (label >= threshold), 1.0, 0.0).to(tl.float64)
    elif GAIN == "linear":
        return label.to(tl.float64)
    elif GAIN == "stop":
        return tl.exp2(label.to(tl.float64) - threshold) - tl.exp2(-threshold)
    else:
        return tl.exp2(label.to(tl.float64)) - 1.0


@triton.jit
def _weight(weights, item, real):
    """Weights of items in float64; 0 where there is no item."""
    return load_weights(weights, item, real).to(tl.float64)


@triton.jit
def _load_tie_group(start, end, begin, at, real):
    """The ranks ``low:high`` of each item's group of ties; its own if ties are not averaged."""
    if start is None:
        return at, at + 1
    else:
        low = tl.load(start + begin + at, mask=real, other=0)
        return low, tl.load(end + begin + at, mask=real, other=1)


@triton.jit
def _store(results, row, result):
    """Store a result of this program's list, in a row of ``results`` ``[metrics, lists]``."""
    tl.store(results + row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0), result)


@cached_launch
@triton.jit(do_not_specialize=["steps"])
def _write_tie_groups(
    offsets, ranked, start, end, steps, MASKED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    """Write the start and end of each rank's group of equal scores, for a span of ranks."""
    _, begin, length = list_span(offsets)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    real = _is_item(ranked, begin, length, at, MASKED)
    index = begin + at
    score = tl.load(ranked + index, mask=real, other=0.0)
    low, high = tie_group(ranked, begin, begin + length, index, score, real, steps)
    tl.store(start + index, (low - begin).to(tl.int32), mask=real)
    tl.store(end + index, (high - begin).to(tl.int32), mask=real)


@triton.jit
def _mean_rank_value(discounts, low, high, cut, persistence, METRIC: tl.constexpr):
    """The mean, over the ranks ``low:high`` (from 0), of what the metric counts at a rank.

    That is its discount, and 0 from ``cut`` on. For arp it is the rank from 1, and cut + 1 from
    ``cut`` on. ``discounts`` are the cumulative sums of NDCG's discounts.
    """
    a, b = tl.minimum(low, cut), tl.minimum(high, cut)  # the ranks a:b are before the cutoff
    size = (high - low).to(tl.float64)
    if METRIC == "ndcg" or METRIC == "dcg":
        return (tl.load(discounts + b) - tl.load(discounts + a)) / size
    elif METRIC == "rbp":  # Σ_{a<=r<b} (1 - p) p^r = p^a - p^b
        step = tl.log2(persistence)
        return (tl.exp2(a.to(tl.float64) * step) - tl.exp2(b.to(tl.float64) * step)) / size
    elif METRIC == "arp":  # the sum of the ranks; those past the cutoff count cut + 1
        a, b = a.to(tl.float64), b.to(tl.float64)
        past = size - (b - a)
        return ((b * (b + 1.0) - a * (a + 1.0)) * 0.5 + past * (cut.to(tl.float64) + 1.0)) / size
    else:  # precision and recall: 1 at each rank before the cutoff
        return (b - a).to(tl.float64) / size


@cached_launch
@triton.jit(do_not_specialize=["cut", "row"])
def _discounted_sum(
    labels, weights, offsets, ranked, order, start, end, ideal_order, discounts, values, relevant,
    threshold, persistence, persistence_rest, cut, row,
    METRIC: tl.constexpr, GAIN: tl.constexpr, MASKED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """A linear metric of one list: ``Σ_i w_i gain_i discount_i``, divided by its norm.

    The norm is the ideal DCG for ndcg, the cutoff or else the number of items for precision, 1 for
    dcg and rbp, and ``Σ_i w_i gain_i`` for arp and recall. The discount of an item is the mean over
    the ranks of its group of ties; for arp, the rank itself takes its place. The persistence of rbp
    is the sum of two float32 numbers, as kernel arguments are float32.
    """
    _, begin, length = list_span(offsets)
    exact_persistence = tl.full([], 0.0, tl.float64) + persistence + persistence_rest
    total = tl.zeros([SPAN], tl.float64)
    norms = tl.zeros([SPAN], tl.float64)
    relevant_items = tl.zeros([SPAN], tl.int32)
    for span_start in range(0, length, SPAN):
        at, real, item = _load_ranks(ranked, order, begin, length, span_start, MASKED, SPAN)
        gain = _gain(labels, item, real, threshold, GAIN)
        weight = _weight(weights, item, real)
        relevant_items += ((gain > 0) & (weight > 0)).to(tl.int32)
        low, high = _load_tie_group(start, end, begin, at, real)
        # Loads of ``discounts`` stay in bounds where there is no item.
        low, high = tl.where(real, low, 0), tl.where(real, high, 1)
        rank_value = _mean_rank_value(discounts, low, high, cut, exact_persistence, METRIC)
        total += gain * weight * rank_value
        if METRIC == "ndcg":
            # Padding is last in both orders, so ``real`` holds for this one, too.
            ideal_item = tl.load(ideal_order + begin + at, mask=real, other=0)
            gain = _gain(labels, ideal_item, real, threshold, GAIN)
            weight = _weight(weights, ideal_item, real)
            low = tl.where(real, at, 0)
            rank_value = _mean_rank_value(discounts, low, low + 1, cut, exact_persistence, METRIC)
            norms += gain * weight * rank_value
        elif METRIC == "precision":
            norms += tl.where(real, 1.0, 0.0)
        else:
            norms += gain * weight
    norm = tl.sum(norms, 0)
    if METRIC == "precision":
        norm = tl.where(cut < 2147483647, cut.to(tl.float64), norm)
    elif METRIC == "dcg" or METRIC == "rbp":
        norm = norm * 0.0 + 1.0  # 1 as a float64 tensor, like the other norms
    has_relevant = tl.sum(relevant_items, 0) > 0
    value = tl.sum(total, 0) / tl.where(norm > 0, norm, 1.0)
    _store(values, row, tl.where(has_relevant & (norm > 0), value, 0.0).to(tl.float32))
    _store(relevant, row, has_relevant)


@cached_launch
@triton.jit(do_not_specialize=["cut", "row"])
def _ap(
    labels, weights, offsets, ranked, order, start, end, relevance_sums, weight_sums, values,
    relevant, threshold, cut, row, MASKED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Average precision of one list: ``Σ_r w_r y_r (y_1 + ... + y_r) / r``, divided by a norm.

    The sum is over the ranks before ``cut``; the norm is ``Σ_r w_r y_r`` of the whole list.

    Ties are averaged as in McSherry and Najork 2008 (see :class:`rankgrad.metrics.AP`): in a group
    of m items, R of them relevant, the expected number of relevant items up to its j-th rank (from
    0), given that the item there is relevant, is ``ahead + 1 + j (R - 1) / (m - 1)``, where
    ``ahead`` is the number of relevant items before the group. For this, a first loop writes
    cumulative sums over the ranks: of relevant items to ``relevance_sums``, of their weights to
    ``weight_sums``, both ``[items]``.
    """
    _, begin, length = list_span(offsets)
    total = tl.zeros([SPAN], tl.float64)
    relevant_items = tl.zeros([SPAN], tl.int32)
    count_before = tl.full([], 0.0, tl.float64)
    norm = tl.full([], 0.0, tl.float64)
    for span_start in range(0, length, SPAN):
        at, real, item = _load_ranks(ranked, order, begin, length, span_start, MASKED, SPAN)
        relevance = _gain(labels, item, real, threshold, "binary")
        weight = relevance * _weight(weights, item, real)
        relevant_items += (weight > 0).to(tl.int32)
        count = count_before + tl.cumsum(relevance, 0)
        if start is not None:
            tl.store(relevance_sums + begin + at, count, mask=real)
            tl.store(weight_sums + begin + at, norm + tl.cumsum(weight, 0), mask=real)
        else:
            precision = count / (at + 1).to(tl.float64)
            total += tl.where(at < cut, weight * precision, 0.0)
        count_before += tl.sum(relevance, 0)
        norm += tl.sum(weight, 0)
    if start is not None:
        tl.debug_barrier()  # the next loop reads what other threads wrote
        for span_start in range(0, length, SPAN):
            at = span_start + tl.arange(0, SPAN)
            real = _is_item(ranked, begin, length, at, MASKED)
            low, high = _load_tie_group(start, end, begin, at, real)
            has_before = real & (low > 0)
            ahead = tl.load(relevance_sums + begin + low - 1, mask=has_before, other=0.0)
            group_count = tl.load(relevance_sums + begin + high - 1, mask=real, other=0.0) - ahead
            group_weight = tl.load(weight_sums + begin + high - 1, mask=real, other=0.0)
            group_weight -= tl.load(weight_sums + begin + low - 1, mask=has_before, other=0.0)
            size = (high - low).to(tl.float64)
            step = (group_count - 1.0) / tl.maximum(size - 1.0, 1.0)
            count = ahead + 1.0 + (at - low).to(tl.float64) * step
            counted = real & (at < cut) & (group_count > 0)
            expected_weight = tl.where(counted, group_weight / size, 0.0)
            total += expected_weight * count / (at + 1).to(tl.float64)
    has_relevant = tl.sum(relevant_items, 0) > 0
    value = tl.sum(total, 0) / tl.where(norm > 0, norm, 1.0)
    _store(values, row, tl.where(has_relevant, value, 0.0).to(tl.float32))
    _store(relevant, row, has_relevant)


@triton.jit
def _discount(at, METRIC: tl.constexpr):
    """The discount of stopping at a rank (from 0): 1 for hits, one over the 1-based rank for rr."""
    if METRIC == "hits":
        return at.to(tl.float64) * 0.0 + 1.0  # ones, of the shape of ``at``
    else:
        return 1.0 / (at.to(tl.float64) + 1.0)


@cached_launch
@triton.jit(do_not_specialize=["cut", "row"])
def _first_relevant(
    labels, weights, offsets, ranked, order, start, end, values, relevant, threshold, cut, row,
    METRIC: tl.constexpr, MASKED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """RR or hits of one list: the expected weighted discount of its first relevant rank.

    That rank is in the first group of ties with a relevant item.
    """
    _, begin, length = list_span(offsets)
    first_ranks = tl.full([SPAN], 2147483647, tl.int32)
    relevant_items = tl.zeros([SPAN], tl.int32)
    for span_start in range(0, length, SPAN):
        at, real, item = _load_ranks(ranked, order, begin, length, span_start, MASKED, SPAN)
        relevance = _gain(labels, item, real, threshold, "binary")
        relevant_items += (relevance * _weight(weights, item, real) > 0).to(tl.int32)
        first_ranks = tl.minimum(first_ranks, tl.where(relevance > 0, at, 2147483647))
    first_rank = tl.min(first_ranks, 0)
    exists = first_rank < length
    low = tl.where(exists, first_rank, 0)
    high = tl.where(exists, first_rank + 1, 0)
    if start is not None:
        low = tl.load(start + begin + first_rank, mask=exists, other=0)
        high = tl.load(end + begin + first_rank, mask=exists, other=0)
    value = _first_relevant_in_group(
        labels, weights, order, begin, low, high, threshold, cut, METRIC, SPAN
    )
    _store(values, row, value.to(tl.float32))
    _store(relevant, row, tl.sum(relevant_items, 0) > 0)


@triton.jit
def _first_relevant_in_group(
    labels, weights, order, begin, low, high, threshold, cut,
    METRIC: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The expected discount of the first relevant rank in a group of ties, over its orders.

    It is multiplied by the mean weight of the group's relevant items. In a group of m items, R of
    them relevant, the j-th item (from 0) is not relevant with probability
    ``(m - R - j) / (m - j)``, given that none before it was.
    """
    relevance_sums = tl.zeros([SPAN], tl.float64)
    weight_sums = tl.zeros([SPAN], tl.float64)
    for span_start in range(low, high, SPAN):
        at = span_start + tl.arange(0, SPAN)
        item = tl.load(order + begin + at, mask=at < high, other=0)
        relevance = _gain(labels, item, at < high, threshold, "binary")
        relevance_sums += relevance
        weight_sums += relevance * _weight(weights, item, at < high)
    n_relevant = tl.sum(relevance_sums, 0)
    total = tl.zeros([SPAN], tl.float64)
    passed = tl.full([], 1.0, tl.float64)
    for span_start in range(low, tl.minimum(high, cut), SPAN):
        at = span_start + tl.arange(0, SPAN)
        counted = (at < high) & (at < cut)
        # ``left`` items of the group are left at the previous rank, which is passed with
        # ``pass_probability``: the product at a rank is over the ranks before it.
        left = (high - at + 1).to(tl.float64)
        pass_probability = tl.maximum((left - n_relevant) / tl.maximum(left, 1.0), 0.0)
        reached = passed * tl.cumprod(tl.where((at > low) & (at < high), pass_probability, 1.0), 0)
        stop = tl.minimum(n_relevant / tl.maximum(left - 1.0, 1.0), 1.0)
        total += tl.where(counted, reached * stop * _discount(at, METRIC), 0.0)
        passed = tl.min(reached, 0)  # the last one: probabilities never increase
    return tl.sum(total, 0) * tl.sum(weight_sums, 0) / tl.maximum(n_relevant, 1.0)


@cached_launch
@triton.jit(do_not_specialize=["row"])
def _write_top_grades(
    labels, weights, offsets, ranked, order, tops, relevant, grade, row,
    MASKED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write ERR's top grade of one list, and whether the list has a relevant item.

    The top grade is the given one, or the list's largest label if that is larger.
    """
    _, begin, length = list_span(offsets)
    highest = tl.zeros([SPAN], tl.float32) + grade
    for span_start in range(0, length, SPAN):
        _at, real, item = _load_ranks(ranked, order, begin, length, span_start, MASKED, SPAN)
        highest = tl.maximum(highest, tl.load(labels + item, mask=real, other=0.0))
    top = tl.max(highest, 0).to(tl.float64)
    relevant_items = tl.zeros([SPAN], tl.int32)
    for span_start in range(0, length, SPAN):
        _at, real, item = _load_ranks(ranked, order, begin, length, span_start, MASKED, SPAN)
        stop = _gain(labels, item, real, top, "stop")
        relevant_items += ((stop > 0) & (_weight(weights, item, real) > 0)).to(tl.int32)
    tl.store(tops + tl.program_id(0), top)
    _store(relevant, row, tl.sum(relevant_items, 0) > 0)


@cached_launch
@triton.jit(do_not_specialize=["cut"])
def _write_probabilities(
    labels, weights, offsets, ranked, order, start, end, tops, stops, passes, cut,
    MASKED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Write ERR's probabilities for a span of ranks: ``stops`` and ``passes``, both ``[items]``.

    ``stops`` has the probability of stopping at each rank, given that its group of ties is reached,
    times the weight of the item. At a group's last rank, ``passes`` has the probability of passing
    the whole group; elsewhere 1.
    """
    _, begin, length = list_span(offsets)
    span_start = tl.program_id(1) * SPAN
    if (span_start < length) & (span_start < cut):
        top = tl.load(tops + tl.program_id(0))
        at = span_start + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, length, at, MASKED) & (at < cut)
        item = tl.load(order + begin + at, mask=real, other=0)
        stop = _gain(labels, item, real, top, "stop")
        low, high = _load_tie_group(start, end, begin, at, real)
        is_single = real & (high - low == 1)
        weight = _weight(weights, item, real)
        tl.store(stops + begin + at, stop * weight, mask=is_single)
        tl.store(passes + begin + at, 1.0 - stop, mask=is_single)
        if start is not None:
            is_group_start = real & (low == at) & (high - low > 1)
            # The first ranks of the groups that begin in this span, one after the other
            group = tl.min(tl.where(is_group_start, at, 2147483647), 0)
            while group < cut:
                size = tl.load(end + begin + group) - group
                _average_orders(
                    labels, weights, order + begin + group, stops + begin + group,
                    passes + begin + group, size, tl.minimum(size, cut - group), top, SPAN,
                )  # fmt: skip
                group = tl.min(tl.where(is_group_start & (at > group), at, 2147483647), 0)


@triton.jit
def _average_orders(labels, weights, order, stops, products, size, reach, top, SPAN: tl.constexpr):
    """Write the mean probabilities over the orders of a group of ties.

    ``order``, ``stops`` and ``products`` (in ``passes``) point to the group's first rank. Only the
    first ``reach`` ranks are written. products_j is the mean of ``Π (1 - stop)`` over subsets of j
    items. stops_j is the mean of ``w stop`` of the j-th item times that product over the items
    before it. Both are updated as items join the group one at a time (see
    :mod:`rankgrad.metrics._cascade`), and stored at j - 1.
    """
    for m in range(1, size + 1):
        item = tl.load(order + m - 1)
        stop = _gain(labels, item, item >= 0, top, "stop")  # the mask is always true
        weighted_stop = stop * _weight(weights, item, item >= 0)
        n_ranks = tl.minimum(m, reach)
        blocks = tl.cdiv(n_ranks, SPAN)
        for block in range(0, blocks):  # last block first: each needs the old values before it
            j = (blocks - 1 - block) * SPAN + 1 + tl.arange(0, SPAN)
            has_old, has_previous = j < m, (j > 1) & (j <= n_ranks)
            old_stop = tl.load(stops + j - 1, mask=has_old & (j <= n_ranks), other=0.0)
            old_product = tl.load(products + j - 1, mask=has_old & (j <= n_ranks), other=0.0)
            previous_stop = tl.load(stops + j - 2, mask=has_previous, other=0.0)
            previous_product = tl.load(products + j - 2, mask=has_previous, other=1.0)
            tl.debug_barrier()  # all threads have read
            rank, rest, passing = j.to(tl.float64), (m - j).to(tl.float64), 1.0 - stop
            new_stop = (
                rest * old_stop
                + (rank - 1.0) * passing * previous_stop
                + weighted_stop * previous_product
            )
            new_product = rest * old_product + rank * passing * previous_product
            tl.store(stops + j - 1, new_stop / m, mask=j <= n_ranks)
            tl.store(products + j - 1, new_product / m, mask=j <= n_ranks)
            tl.debug_barrier()  # all threads have written
    # The product of all items, at the group's last rank, is the probability of passing the group.
    # The others become 1.
    for span_start in range(0, reach, SPAN):
        at = span_start + tl.arange(0, SPAN)
        ones = at.to(tl.float64) * 0.0 + 1.0
        tl.store(products + at, ones, mask=(at < reach) & (at < size - 1))


@cached_launch
@triton.jit(do_not_specialize=["cut", "row"])
def _cascade(
    offsets, ranked, stops, passes, values, cut, row, MASKED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    """ERR of one list: ``Σ_r stop_r / r · Π_{l<r} pass_l`` (see :func:`_write_probabilities`)."""
    _, begin, length = list_span(offsets)
    total = tl.zeros([SPAN], tl.float64)
    passed = tl.full([], 1.0, tl.float64)
    for span_start in range(0, tl.minimum(length, cut), SPAN):
        at = span_start + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, length, at, MASKED) & (at < cut)
        stop = tl.load(stops + begin + at, mask=real, other=0.0)
        passing = tl.load(passes + begin + at - 1, mask=real & (at > 0), other=1.0)
        reached = passed * tl.cumprod(passing, 0)
        total += tl.where(real, stop * reached / (at + 1).to(tl.float64), 0.0)
        passed = tl.min(reached, 0)  # the last one: probabilities never increase
    _store(values, row, tl.sum(total, 0).to(tl.float32))
