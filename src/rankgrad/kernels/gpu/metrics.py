"""Exact metrics on GPUs: each list is sorted once, and no list is padded.

Kernels walk along the places of the sorted lists, a program for each list. All sums are in float64:
values are reported. Nothing is waited for.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.launch import cdiv, next_power_of_2, quick
from rankgrad.kernels.gpu.order import Sorted, sort_lists, tie_end, tie_start
from rankgrad.kernels.gpu.prepare import presence

#: A metric: its name, cutoff (0 for none), whether ties are averaged, whether gains are linear, its
#: threshold or top grade, and its persistence.
Described = tuple[str, int, bool, bool, float, float]

_SPAN = 2048  # places that a walk along a list looks at together, at most
_TILE = 256  # places of a program where several share a list
_NO_CUTOFF = 2**31 - 1


def exact_metrics(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    described: Sequence[Described],
) -> tuple[Tensor, Tensor]:
    """The value of each metric on each list, and whether the list has an item that counts.

    The slots are those of :mod:`rankgrad.kernels.ops`. Where nothing counts the value is 0.
    """
    lists = offsets.shape[0] - 1
    values = torch.zeros(len(described), lists, dtype=scores.dtype, device=scores.device)
    relevant = torch.zeros(len(described), lists, dtype=torch.bool, device=scores.device)
    if values.numel() == 0 or longest == 0:
        return values, relevant
    # Minus infinity is as low as the lowest number, as in the eager form.
    ranked = scores.detach().clamp(min=torch.finfo(scores.dtype).min)
    given = _Given(
        labels, mask, weights, offsets, longest, sort_lists(ranked, mask, offsets, longest)
    )
    for row, metric in enumerate(described):
        name = metric[0]
        if name == "ap":
            _launch_ap(given, metric, row, values, relevant)
        elif name == "err":
            _launch_err(given, metric, row, values, relevant)
        elif name in ("rr", "hits"):
            _launch_first(given, metric, row, values, relevant)
        else:
            _launch_linear(given, metric, row, values, relevant)
    return values, relevant


@dataclass
class _Given:
    """Lists in order, and what several metrics need of them, made when it is first asked for."""

    labels: Tensor
    mask: Tensor | None
    weights: Tensor | None
    offsets: Tensor
    longest: int
    order: Sorted
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def lists(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """What every kernel takes first."""
        weights = presence(self.weights, self.labels)
        return self.labels, weights, self.offsets, self.order.scores, self.order.slots

    def options(self, most: int, **more: Any) -> dict[str, Any]:
        """The constants of kernels that look at so many places together, at most."""
        span = min(most, max(32, next_power_of_2(self.longest)))
        warps = min(16, max(1, span // 128))
        return {"MASKED": self.mask is not None, **more, "SPAN": span, "num_warps": warps}

    def walking(self) -> dict[str, Any]:
        """The constants of kernels with a program for each list."""
        return self.options(_SPAN, WEIGHTED=self.weights is not None)

    def groups(self, averaged: bool) -> tuple[Tensor, Tensor]:
        """Where the group of ties of each place begins and ends; unread if ties do not matter."""
        if not averaged:
            return self.offsets, self.offsets
        if "groups" not in self._made:
            start, end = torch.empty(
                2, self.labels.numel(), dtype=torch.int32, device=self.labels.device
            )
            options = self.options(_TILE)
            _groups[(self.lists, cdiv(self.longest, options["SPAN"]))](
                self.offsets, self.order.scores, start, end, self.longest.bit_length() + 1,
                **options,
            )  # fmt: skip
            self._made["groups"] = start, end
        found: tuple[Tensor, Tensor] = self._made["groups"]
        return found

    def ideal(self, gain: str) -> Tensor:
        """The slots of each list in descending order of their gains."""
        kind = "labels" if self.weights is None else gain  # gains rise with labels
        if kind not in self._made:
            keys = self.labels
            if self.weights is not None:
                keys = (keys if gain == "linear" else torch.exp2(keys) - 1) * self.weights
            self._made[kind] = sort_lists(keys, self.mask, self.offsets, self.longest).slots
        found: Tensor = self._made[kind]
        return found

    def discounts(self) -> Tensor:
        """``Σ_{r<=p} 1 / log2(1 + r)`` for p from 0 on."""
        if "discounts" not in self._made:
            ranks = torch.arange(
                1, self.longest + 2, dtype=torch.float64, device=self.labels.device
            )
            sums = ranks.log2_().reciprocal_()
            sums[:1] = 0.0  # before the first rank
            self._made["discounts"] = sums.cumsum(0)
        found: Tensor = self._made["discounts"]
        return found

    def scratch(self) -> tuple[Tensor, Tensor]:
        """Two numbers for each place, for one metric after the other."""
        if "scratch" not in self._made:
            shape = 2, self.labels.numel()
            self._made["scratch"] = torch.empty(
                shape, dtype=torch.float64, device=self.labels.device
            )
        one, other = self._made["scratch"]
        return one, other


def _launch_linear(
    given: _Given, metric: Described, row: int, values: Tensor, relevant: Tensor
) -> None:
    name, k, averaged, linear, threshold, persistence = metric
    gain = "binary"
    if name in ("ndcg", "dcg", "arp"):
        gain = "linear" if linear or name == "arp" else "exponential"
    high = _single(persistence)
    _linear[(given.lists,)](
        *given.arrays, *given.groups(averaged),
        given.ideal(gain) if name == "ndcg" else given.offsets,
        given.discounts() if name in ("ndcg", "dcg") else given.labels,
        values, relevant, float(threshold), high, persistence - high, _cut(k), row,
        METRIC=name, GAIN=gain, TIED=averaged, **given.walking(),
    )  # fmt: skip


def _launch_ap(
    given: _Given, metric: Described, row: int, values: Tensor, relevant: Tensor
) -> None:
    _, k, averaged, _, threshold, _ = metric
    scratch = given.scratch() if averaged else (given.labels, given.labels)
    _ap[(given.lists,)](
        *given.arrays, *given.groups(averaged), *scratch, values, relevant, float(threshold),
        _cut(k), row, TIED=averaged, **given.walking(),
    )  # fmt: skip


def _launch_first(
    given: _Given, metric: Described, row: int, values: Tensor, relevant: Tensor
) -> None:
    name, k, averaged, _, threshold, _ = metric
    _first[(given.lists,)](
        *given.arrays, *given.groups(averaged), values, relevant, float(threshold), _cut(k), row,
        METRIC=name, TIED=averaged, **given.walking(),
    )  # fmt: skip


def _launch_err(
    given: _Given, metric: Described, row: int, values: Tensor, relevant: Tensor
) -> None:
    _, k, averaged, _, grade, _ = metric
    tops = torch.empty(given.lists, dtype=torch.float64, device=values.device)
    hits, misses = given.scratch()
    _tops[(given.lists,)](*given.arrays, tops, relevant, float(grade), row, **given.walking())
    options = given.options(_TILE, WEIGHTED=given.weights is not None)
    _chances[(given.lists, cdiv(given.longest, options["SPAN"]))](
        *given.arrays, *given.groups(averaged), tops, hits, misses, _cut(k), TIED=averaged,
        **options,
    )  # fmt: skip
    _cascade[(given.lists,)](
        given.offsets, given.order.scores, hits, misses, values, _cut(k), row,
        **given.options(_SPAN),
    )  # fmt: skip


def _cut(k: int) -> int:
    """How many ranks count."""
    return min(k, _NO_CUTOFF) if k else _NO_CUTOFF


def _single(number: float) -> float:
    """The nearest number of single precision, in which kernels are given theirs."""
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


@triton.jit
def _walk(offsets):
    """Where the list of this program begins, and its number of slots."""
    place = tl.program_id(0)
    begin = tl.load(offsets + place)
    return begin, (tl.load(offsets + place + 1) - begin).to(tl.int32)


@triton.jit
def _is_item(ranked, begin, slots, at, MASKED: tl.constexpr):
    """Which places of a sorted list hold an item."""
    real = at < slots
    if MASKED:
        score = tl.load(ranked + begin + at, mask=real, other=float("-inf"))
        real = real & (score > float("-inf"))
    return real


@triton.jit
def _gain(labels, slot, real, number, GAIN: tl.constexpr):
    """What items are worth by their labels; 0 where there is none."""
    label = tl.load(labels + slot, mask=real, other=0.0)
    if GAIN == "binary":
        return tl.where(real & (label >= number), 1.0, 0.0).to(tl.float64)
    elif GAIN == "linear":
        return label.to(tl.float64)
    elif GAIN == "stop":  # ERR's chance that an item satisfies; the number is the top grade
        return tl.exp2(label.to(tl.float64) - number) - tl.exp2(-number)
    else:
        return tl.exp2(label.to(tl.float64)) - 1.0


@triton.jit
def _weight(weights, slot, real, WEIGHTED: tl.constexpr):
    if WEIGHTED:
        return tl.load(weights + slot, mask=real, other=0.0).to(tl.float64)
    else:
        return tl.where(real, 1.0, 0.0).to(tl.float64)


@triton.jit
def _group(start, end, begin, at, real, TIED: tl.constexpr):
    """The places of an item's group of ties, which is the item alone where ties do not matter."""
    if TIED:
        low = tl.load(start + begin + at, mask=real, other=0)
        return low, tl.load(end + begin + at, mask=real, other=1)
    else:
        return at, at + 1


@quick
@triton.jit(do_not_specialize=["steps"])
def _groups(offsets, ranked, start, end, steps, MASKED: tl.constexpr, SPAN: tl.constexpr) -> None:
    """Where each place's group of equal scores begins and ends."""
    begin, slots = _walk(offsets)
    at = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    real = _is_item(ranked, begin, slots, at, MASKED)
    here = begin + at
    score = tl.load(ranked + here, mask=real, other=0.0)
    previous = tl.load(ranked + here - 1, mask=real & (at > 0), other=float("-inf"))
    following = tl.load(ranked + here + 1, mask=real & (at + 1 < slots), other=float("-inf"))
    tied = real & ((previous == score) | (following == score))
    low = tie_start(ranked, begin, here, score, tied, steps) - begin
    high = tie_end(ranked, begin + slots, here, score, tied, steps) - begin
    tl.store(start + here, low.to(tl.int32), mask=real)
    tl.store(end + here, high.to(tl.int32), mask=real)


@triton.jit
def _mean_worth(discounts, low, high, cut, persistence, METRIC: tl.constexpr):
    """What the places from low to high are worth on average."""
    first, last = tl.minimum(low, cut), tl.minimum(high, cut)
    size = (high - low).to(tl.float64)
    if METRIC == "ndcg" or METRIC == "dcg":
        return (tl.load(discounts + last) - tl.load(discounts + first)) / size
    elif METRIC == "rbp":
        step = tl.log2(persistence)
        return (tl.exp2(first.to(tl.float64) * step) - tl.exp2(last.to(tl.float64) * step)) / size
    elif METRIC == "arp":  # the sum of the ranks, which past the cutoff are all k + 1
        a, b = first.to(tl.float64), last.to(tl.float64)
        past = size - (b - a)
        return ((b * (b + 1.0) - a * (a + 1.0)) * 0.5 + past * (cut.to(tl.float64) + 1.0)) / size
    else:
        return (last - first).to(tl.float64) / size


@quick
@triton.jit(do_not_specialize=["cut", "row"])
def _linear(
    labels, weights, offsets, ranked, order, start, end, best, discounts, values, relevant,
    threshold, persistence, rest, cut, row,
    METRIC: tl.constexpr, GAIN: tl.constexpr, TIED: tl.constexpr, MASKED: tl.constexpr,
    WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The sum of the gains times the mean worth of their places, over the norm."""
    begin, slots = _walk(offsets)
    lasting = tl.full([], 0.0, tl.float64) + persistence + rest
    total = tl.zeros([SPAN], tl.float64)
    norms = tl.zeros([SPAN], tl.float64)
    counting = tl.zeros([SPAN], tl.int32)
    for left in range(0, slots, SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED)
        slot = tl.load(order + begin + at, mask=real, other=0)
        gain = _gain(labels, slot, real, threshold, GAIN)
        weight = _weight(weights, slot, real, WEIGHTED)
        counting += ((gain > 0) & (weight > 0)).to(tl.int32)
        low, high = _group(start, end, begin, at, real, TIED)
        low, high = tl.where(real, low, 0), tl.where(real, high, 1)
        total += gain * weight * _mean_worth(discounts, low, high, cut, lasting, METRIC)
        if METRIC == "ndcg":
            top = tl.load(best + begin + at, mask=real, other=0)
            gain = _gain(labels, top, real, threshold, GAIN)
            weight = _weight(weights, top, real, WEIGHTED)
            low = tl.where(real, at, 0)
            norms += gain * weight * _mean_worth(discounts, low, low + 1, cut, lasting, METRIC)
        elif METRIC == "precision":
            norms += tl.where(real, 1.0, 0.0)
        else:
            norms += gain * weight
    norm = tl.sum(norms, 0)
    if METRIC == "precision":
        norm = tl.where(cut < 2147483647, cut.to(tl.float64), norm)
    elif METRIC == "dcg" or METRIC == "rbp":
        norm = norm * 0.0 + 1.0
    counts = tl.sum(counting, 0) > 0
    value = tl.sum(total, 0) / tl.where(norm > 0, norm, 1.0)
    to = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + to, tl.where(counts & (norm > 0), value, 0.0).to(tl.float32))
    tl.store(relevant + to, counts)


@quick
@triton.jit(do_not_specialize=["cut", "row"])
def _ap(
    labels, weights, offsets, ranked, order, start, end, seen, heavy, values, relevant,
    threshold, cut, row,
    TIED: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Average precision; ties as McSherry and Najork 2008 (see :class:`rankgrad.metrics.AP`)."""
    begin, slots = _walk(offsets)
    total = tl.zeros([SPAN], tl.float64)
    counting = tl.zeros([SPAN], tl.int32)
    before = tl.full([], 0.0, tl.float64)
    norm = tl.full([], 0.0, tl.float64)
    for left in range(0, slots, SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED)
        slot = tl.load(order + begin + at, mask=real, other=0)
        relevance = _gain(labels, slot, real, threshold, "binary")
        weight = relevance * _weight(weights, slot, real, WEIGHTED)
        counting += (weight > 0).to(tl.int32)
        count = before + tl.cumsum(relevance, 0)
        if TIED:
            tl.store(seen + begin + at, count, mask=real)
            tl.store(heavy + begin + at, norm + tl.cumsum(weight, 0), mask=real)
        else:
            precision = count / (at + 1).to(tl.float64)
            total += tl.where(at < cut, weight * precision, 0.0)
        before += tl.sum(relevance, 0)
        norm += tl.sum(weight, 0)
    if TIED:
        tl.debug_barrier()  # what other threads wrote is read
        for left in range(0, slots, SPAN):
            at = left + tl.arange(0, SPAN)
            real = _is_item(ranked, begin, slots, at, MASKED)
            low, high = _group(start, end, begin, at, real, TIED)
            later = real & (low > 0)
            ahead = tl.load(seen + begin + low - 1, mask=later, other=0.0)
            inside = tl.load(seen + begin + high - 1, mask=real, other=0.0) - ahead
            weight = tl.load(heavy + begin + high - 1, mask=real, other=0.0) - tl.load(
                heavy + begin + low - 1, mask=later, other=0.0
            )
            size = (high - low).to(tl.float64)
            step = (inside - 1.0) / tl.maximum(size - 1.0, 1.0)
            count = ahead + 1.0 + (at - low).to(tl.float64) * step
            chance = tl.where(real & (at < cut) & (inside > 0), weight / size, 0.0)
            total += chance * count / (at + 1).to(tl.float64)
    counts = tl.sum(counting, 0) > 0
    value = tl.sum(total, 0) / tl.where(norm > 0, norm, 1.0)
    to = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + to, tl.where(counts, value, 0.0).to(tl.float32))
    tl.store(relevant + to, counts)


@triton.jit
def _worth(at, METRIC: tl.constexpr):
    """What it is worth to stop at a place."""
    if METRIC == "hits":
        return at.to(tl.float64) * 0.0 + 1.0
    else:
        return 1.0 / (at.to(tl.float64) + 1.0)


@quick
@triton.jit(do_not_specialize=["cut", "row"])
def _first(
    labels, weights, offsets, ranked, order, start, end, values, relevant, threshold, cut, row,
    METRIC: tl.constexpr, TIED: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The worth of the first relevant rank: it is in the first group that has a relevant item."""
    begin, slots = _walk(offsets)
    firsts = tl.full([SPAN], 2147483647, tl.int32)
    counting = tl.zeros([SPAN], tl.int32)
    for left in range(0, slots, SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED)
        slot = tl.load(order + begin + at, mask=real, other=0)
        relevance = _gain(labels, slot, real, threshold, "binary")
        counting += (relevance * _weight(weights, slot, real, WEIGHTED) > 0).to(tl.int32)
        firsts = tl.minimum(firsts, tl.where(relevance > 0, at, 2147483647))
    first = tl.min(firsts, 0)
    found = first < slots
    low = tl.where(found, first, 0)
    high = tl.where(found, first + 1, 0)
    if TIED:
        low = tl.load(start + begin + first, mask=found, other=0)
        high = tl.load(end + begin + first, mask=found, other=0)
    value = _first_of_group(
        labels, weights, order, begin, low, high, threshold, cut, METRIC, WEIGHTED, SPAN
    )
    to = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + to, value.to(tl.float32))
    tl.store(relevant + to, tl.sum(counting, 0) > 0)


@triton.jit
def _first_of_group(
    labels, weights, order, begin, low, high, threshold, cut,
    METRIC: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The worth of the first relevant rank of a group of ties, the mean over its orders.

    Of m items, R of them relevant, the j-th (from 0) is passed by one who got there with
    probability ``(m - R - j) / (m - j)``.
    """
    insides = tl.zeros([SPAN], tl.float64)
    heavies = tl.zeros([SPAN], tl.float64)
    for left in range(low, high, SPAN):
        at = left + tl.arange(0, SPAN)
        slot = tl.load(order + begin + at, mask=at < high, other=0)
        relevance = _gain(labels, slot, at < high, threshold, "binary")
        insides += relevance
        heavies += relevance * _weight(weights, slot, at < high, WEIGHTED)
    inside = tl.sum(insides, 0)
    total = tl.zeros([SPAN], tl.float64)
    passed = tl.full([], 1.0, tl.float64)
    for left in range(low, tl.minimum(high, cut), SPAN):
        at = left + tl.arange(0, SPAN)
        counted = (at < high) & (at < cut)
        # How likely one goes on from the place before this one: products then are of those before.
        more = (high - at + 1).to(tl.float64)
        onward = tl.maximum((more - inside) / tl.maximum(more, 1.0), 0.0)
        reached = passed * tl.cumprod(tl.where((at > low) & (at < high), onward, 1.0), 0)
        stop = tl.minimum(inside / tl.maximum(more - 1.0, 1.0), 1.0)
        total += tl.where(counted, reached * stop * _worth(at, METRIC), 0.0)
        passed = tl.min(reached, 0)  # they never rise
    return tl.sum(total, 0) * tl.sum(heavies, 0) / tl.maximum(inside, 1.0)


@quick
@triton.jit(do_not_specialize=["row"])
def _tops(
    labels, weights, offsets, ranked, order, tops, relevant, grade, row,
    MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The top grade of ERR in each list, and whether an item counts."""
    begin, slots = _walk(offsets)
    highest = tl.zeros([SPAN], tl.float32) + grade
    for left in range(0, slots, SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED)
        slot = tl.load(order + begin + at, mask=real, other=0)
        highest = tl.maximum(highest, tl.load(labels + slot, mask=real, other=0.0))
    top = tl.max(highest, 0).to(tl.float64)
    counting = tl.zeros([SPAN], tl.int32)
    for left in range(0, slots, SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED)
        slot = tl.load(order + begin + at, mask=real, other=0)
        stop = _gain(labels, slot, real, top, "stop")
        counting += ((stop > 0) & (_weight(weights, slot, real, WEIGHTED) > 0)).to(tl.int32)
    tl.store(tops + tl.program_id(0), top)
    to = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(relevant + to, tl.sum(counting, 0) > 0)


@quick
@triton.jit(do_not_specialize=["cut"])
def _chances(
    labels, weights, offsets, ranked, order, start, end, tops, hits, misses, cut,
    TIED: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """ERR's chance to stop at each place for one who reached its group, and to pass the place.

    All of a group's chance to be passed is noted at its last place.
    """
    begin, slots = _walk(offsets)
    first = tl.program_id(1) * SPAN
    if (first < slots) & (first < cut):
        top = tl.load(tops + tl.program_id(0))
        at = first + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED) & (at < cut)
        slot = tl.load(order + begin + at, mask=real, other=0)
        stop = _gain(labels, slot, real, top, "stop")
        low, high = _group(start, end, begin, at, real, TIED)
        alone = real & (high - low == 1)
        weight = _weight(weights, slot, real, WEIGHTED)
        tl.store(hits + begin + at, stop * weight, mask=alone)
        tl.store(misses + begin + at, 1.0 - stop, mask=alone)
        if TIED:
            opens = real & (low == at) & (high - low > 1)
            group = tl.min(tl.where(opens, at, 2147483647), 0)
            while group < cut:
                size = tl.load(end + begin + group) - group
                _mix(
                    labels, weights, order + begin + group, hits + begin + group,
                    misses + begin + group, size, tl.minimum(size, cut - group), top,
                    WEIGHTED, SPAN,
                )  # fmt: skip
                group = tl.min(tl.where(opens & (at > group), at, 2147483647), 0)


@triton.jit
def _mix(
    labels, weights, order, hits, products, size, reach, top,
    WEIGHTED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The chances of a group of ties, the mean over its orders, up to the place in reach.

    products_j is the mean of ``Π (1 - stop)`` over subsets of j items, and hits_j the mean of
    ``w stop`` of the j-th item times that product over those before it; both grow as the group
    takes in one item at a time (see :mod:`rankgrad.metrics.cascade`). They are held at j - 1.
    """
    for m in range(1, size + 1):
        slot = tl.load(order + m - 1)
        stop = _gain(labels, slot, slot >= 0, top, "stop")
        hit = stop * _weight(weights, slot, slot >= 0, WEIGHTED)
        most = tl.minimum(m, reach)
        blocks = tl.cdiv(most, SPAN)
        for back in range(0, blocks):  # from the last on: each needs what the one before it was
            j = (blocks - 1 - back) * SPAN + 1 + tl.arange(0, SPAN)
            there, later = j < m, (j > 1) & (j <= most)
            old = tl.load(hits + j - 1, mask=there & (j <= most), other=0.0)
            kept = tl.load(products + j - 1, mask=there & (j <= most), other=0.0)
            before = tl.load(hits + j - 2, mask=later, other=0.0)
            previous = tl.load(products + j - 2, mask=later, other=1.0)
            tl.debug_barrier()  # all have read
            rank, rest = j.to(tl.float64), (m - j).to(tl.float64)
            stopped = rest * old + (rank - 1.0) * (1.0 - stop) * before + hit * previous
            passed = rest * kept + rank * (1.0 - stop) * previous
            tl.store(hits + j - 1, stopped / m, mask=j <= most)
            tl.store(products + j - 1, passed / m, mask=j <= most)
            tl.debug_barrier()  # all have written
    for left in range(0, reach, SPAN):
        at = left + tl.arange(0, SPAN)
        tl.store(products + at, at.to(tl.float64) * 0.0 + 1.0, mask=(at < reach) & (at < size - 1))


@quick
@triton.jit(do_not_specialize=["cut", "row"])
def _cascade(
    offsets, ranked, hits, misses, values, cut, row, MASKED: tl.constexpr, SPAN: tl.constexpr
) -> None:
    """``Σ_r hit_r / r · Π_{l<r} miss_l``."""
    begin, slots = _walk(offsets)
    total = tl.zeros([SPAN], tl.float64)
    passed = tl.full([], 1.0, tl.float64)
    for left in range(0, tl.minimum(slots, cut), SPAN):
        at = left + tl.arange(0, SPAN)
        real = _is_item(ranked, begin, slots, at, MASKED) & (at < cut)
        hit = tl.load(hits + begin + at, mask=real, other=0.0)
        miss = tl.load(misses + begin + at - 1, mask=real & (at > 0), other=1.0)
        reached = passed * tl.cumprod(miss, 0)
        total += tl.where(real, hit * reached / (at + 1).to(tl.float64), 0.0)
        passed = tl.min(reached, 0)  # they never rise
    to = row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + to, tl.sum(total, 0).to(tl.float32))
