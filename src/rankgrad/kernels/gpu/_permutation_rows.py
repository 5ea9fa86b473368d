"""Metrics through the rows of NeuralSort or SoftSort, value and gradient in one operation.

The derivative with respect to every row's expected gain is known beforehand, the discount of its
rank. So a first pass sums the exponentials of every row, with and without the gains, and a second
pass sums the gradient of every item over the rows. No row is stored. Short lists are not sorted:
ranks and sums over all other items are counted pair by pair. Long lists are sorted once.

NeuralSort's logits are of size n |s| and cancel near the maximum of a row, so they are computed in
float64 until the maximum is subtracted. With ``t_rj`` the derivative with respect to the logit of
item j in row r (from 0), item i has the gradient

    Σ_r (n - 1 - 2 r - below_i + above_i) t_ri - Σ_j sign(s_i - s_j) Σ_r t_rj,

in which no terms of size n cancel. ``above_i`` and ``below_i`` count the items that score strictly
higher and lower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import is_real, list_block, or_placeholder
from rankgrad.kernels.gpu._ideal_gain import (
    IDEAL,
    gain_kind,
    ideal_gain,
    list_sums,
    load_gains,
    norm_kind,
    scale_of,
    store_sums,
)
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._linear import as_gradient, as_loss, beyond, discount
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, through_operator
from rankgrad.kernels.gpu._segmented_sort import (
    COUNTED,
    Sorted,
    count_items,
    sort_lists,
    tie_group,
)

_PROGRAMS = 528  # four for each multiprocessor of a large GPU
_CHUNK = 1024  # items of a sorted list that one program reads
_REMEMBERED = 4  # vectors of values whose sums an operator caches
_SUM_OF_VALUES = MetricOptions("dcg", 0, "linear", 0.0, 0.0)  # the gain of an item is its value


def through_rows(
    batch: FlatLists,
    relaxation: str,
    temperature: float,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through relaxed rows; see :mod:`rankgrad.kernels.ops`."""
    scores, _, mask, _, offsets, max_length = batch
    metric, k, _, _, persistence = metric_options
    soft = relaxation == "softsort"
    if metric in STEP_METRICS:
        operator = (SoftSortOperator if soft else NeuralSortOperator)(
            scores, mask, offsets, max_length, k, temperature
        )
        return through_operator(operator, batch, metric_options)
    lists = offsets.numel() - 1
    values, grad_scores = scores.new_empty(lists), torch.empty_like(scores)
    if lists == 0 or scores.numel() == 0:
        return values.zero_(), grad_scores.zero_(), torch.zeros_like(values, dtype=torch.bool)
    rows = _WeightedRows(offsets, max_length, k, temperature, soft, metric, persistence)
    if max_length <= COUNTED:
        items = _count(batch, metric_options, soft)
    else:
        gains, scale, lengths, defined = ideal_gain(batch, metric_options)
        order = sort_lists(scores, mask, offsets, max_length)
        items = _place(rows, order, gains, (scale, lengths), defined)
    sums = rows.sum(items, (items.numbers, items.numbers))
    rows.gather(items, sums, sums, values, grad_scores)
    return values, grad_scores, items.defined


class _RowsOperator:
    """The rows of NeuralSort or SoftSort as a linear operator.

    Args:
        scores: ``[items]``, float32.
        mask: ``[items]``, False on padding, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths.
        k: the number of rows, 0 for all.
        temperature: of the relaxation.
    """

    soft: ClassVar[bool]
    misses: Tensor | None = None  #: one minus the last result of ``apply``, without cancellation

    def __init__(
        self,
        scores: Tensor,
        mask: Tensor | None,
        offsets: Tensor,
        max_length: int,
        k: int,
        temperature: float,
    ) -> None:
        self.scores, self.mask = scores, mask
        self._rows = _WeightedRows(offsets, max_length, k, temperature, self.soft, "operator", 0.0)
        self._sorted: tuple[Sorted, Tensor] | None = None  # long lists, and their lengths
        # A cache of the items and row sums of recent values, keyed by the values' address. It holds
        # a reference to the values, so that no other tensor gets the address.
        self._applied: dict[int, tuple[Tensor, _Items, Tensor]] = {}

    def apply(self, values: Tensor) -> Tensor:
        """``P values``: rank r (from 0) of list b at ``offsets[b] + r``, 0 past the last rank."""
        at_rank, misses = torch.zeros_like(self.scores), torch.zeros_like(self.scores)
        if self._rows.lists and self.scores.numel():
            values = values.contiguous()
            items = self._place(values)
            if len(self._applied) == _REMEMBERED:
                del self._applied[next(iter(self._applied))]
            sums = self._rows.sum(items, (at_rank, misses))
            self._applied[values.data_ptr()] = values, items, sums
        self.misses = misses
        return at_rank

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        """The gradient of ``Σ_r grad_r (P values)_r`` with respect to the scores."""
        if not (self._rows.lists and self.scores.numel()):
            return torch.zeros_like(self.scores)
        values = values.contiguous()
        if values.data_ptr() not in self._applied:
            self.apply(values)
        _, items, sums = self._applied[values.data_ptr()]
        grad_scores = torch.empty_like(self.scores)
        self._rows.gather(items, sums, grad.contiguous(), sums, grad_scores)
        return grad_scores

    def _place(self, values: Tensor) -> _Items:
        offsets, max_length = self._rows.offsets, self._rows.max_length
        if max_length <= COUNTED:
            batch = FlatLists(self.scores, values, self.mask, None, offsets, max_length)
            return _count(batch, _SUM_OF_VALUES, self.soft)
        if self._sorted is None:
            order = sort_lists(self.scores, self.mask, offsets, max_length)
            self._sorted = order, count_items(self.mask, offsets, max_length)
        order, lengths = self._sorted
        return _place(self._rows, order, values, (lengths, lengths), lengths)


class NeuralSortOperator(_RowsOperator):
    """NeuralSort (Grover et al. 2019) as a linear operator and its adjoint."""

    soft = False


class SoftSortOperator(_RowsOperator):
    """SoftSort (Prillo and Eisenschlos 2020) as a linear operator and its adjoint."""

    soft = True


@dataclass(frozen=True)
class _Items:
    """Items in input order (short lists) or sorted (long lists), and by rank, for the rows.

    Args:
        numbers: ``[7, items]``. By item: 0, score; 1, gain; 2, below - above (SoftSort: the size of
            the tie). By rank: 3, score; 6, gain. 4 and 5: for SoftSort, by rank, ``(after - before)
            / size`` within the tie and its size; for NeuralSort, by item, the sums that
            :func:`_gather_rows` writes.
        distances: float64, ``Σ_k |s_j - s_k|``, inf on padding: ``[items]`` of sorted items, or
            ``[2 items]``, in input order followed by rank.
        order: the index of each sorted item; None in input order.
        known: scale and length of each list; a placeholder for short lists.
        defined: ``[lists]``, whether the loss is defined.
        parts: partial sums of the blocks of short lists, for scale and length.
        norm: the kind of norm that ``parts`` are for.
    """

    numbers: Tensor
    distances: Tensor
    order: Tensor | None
    known: tuple[Tensor, Tensor]
    defined: Tensor
    parts: Tensor
    norm: int

    @property
    def of_lists(self) -> tuple[Any, ...]:
        """The arguments of kernels that describe the lists."""
        return (*self.known, self.defined, self.parts, self.parts.shape[1])


def _count(batch: FlatLists, metric_options: MetricOptions, soft: bool) -> _Items:
    """The items of short lists, in input order."""
    scores, labels, mask, weights, offsets, max_length = batch
    metric, k, gain, threshold, _ = metric_options
    lists, size = offsets.numel() - 1, scores.numel()
    blocks = cdiv(max_length, 32)
    numbers = scores.new_empty(7, size)
    distances = torch.empty(0 if soft else 2 * size, dtype=torch.float64, device=scores.device)
    parts = scores.new_empty(lists, blocks, 4)
    defined = torch.empty(lists, dtype=torch.bool, device=scores.device)
    norm = norm_kind(metric, k)
    _count_pairs[(lists, blocks)](
        scores, labels, or_placeholder(mask, scores), or_placeholder(weights, scores), offsets,
        numbers, distances, parts, threshold, k, size,
        KIND=gain_kind(metric, gain), IDEAL=norm == IDEAL, MASKED=mask is not None,
        WEIGHTED=weights is not None, SOFT=soft, HEIGHT=32, WIDTH=32,
    )  # fmt: skip
    return _Items(numbers, distances, None, (parts, parts), defined, parts, norm)


def _place(
    rows: _WeightedRows, order: Sorted, gains: Tensor, known: tuple[Tensor, Tensor], defined: Tensor
) -> _Items:
    """The items of sorted lists; their gains are in input order."""
    size, soft, lengths = gains.numel(), rows.soft, known[1]
    chunks = torch.empty(rows.chunks_of(size), dtype=torch.float64, device=gains.device)
    numbers = gains.new_empty(7, size)
    distances = torch.empty(0 if soft else size, dtype=torch.float64, device=gains.device)
    grid = (rows.lists, cdiv(rows.max_length, _CHUNK))
    if not soft:
        _add_chunks[grid](order.scores, rows.offsets, lengths, chunks, 0, CHUNK=_CHUNK)
    _place_sorted[grid](
        order.scores, order.items, gains, rows.offsets, lengths, chunks, numbers, distances, size,
        rows.max_length.bit_length() + 1, SOFT=soft, CHUNK=_CHUNK,
    )  # fmt: skip
    return _Items(numbers, distances, order.items, known, defined, gains.new_empty(0, 0, 4), 0)


def _tile(rows: int) -> tuple[int, int]:
    """Rows and items of a tile that fits in the registers of a program."""
    return (16, 64) if rows <= 16 else (32, 32)


@dataclass(frozen=True)
class _WeightedRows:
    """The rows of every list, and their weights: those of a linear metric, or "operator"."""

    offsets: Tensor
    max_length: int
    k: int
    temperature: float
    soft: bool
    metric: str
    persistence: float

    @property
    def lists(self) -> int:
        return self.offsets.numel() - 1

    @property
    def few(self) -> bool:
        """Whether the cutoff is shorter than the lists."""
        return 0 < self.k < self.max_length

    @property
    def count(self) -> int:
        """The largest number of rows of a list."""
        return self.k if self.few else self.max_length

    def chunks_of(self, size: int) -> int:
        """An upper bound of the number of chunks of all lists."""
        return size // _CHUNK + self.lists + 1

    def _options(self, items: _Items) -> tuple[tuple[Any, ...], dict[str, Any]]:
        numbers = (self.temperature, self.persistence, self.k, self.count, items.numbers.shape[1])
        options = {
            "METRIC": self.metric,
            "FEW": self.few,
            "SOFT": self.soft,
            "RANKED": items.order is not None,
            "NORM": items.norm,
        }
        return numbers, options

    def sum(self, items: _Items, at_rank: tuple[Tensor, Tensor]) -> Tensor:
        """The sums of every row that :meth:`gather` needs.

        ``[5, rows]``: weight over the sum of exponentials; mean gain, minus that of the item at the
        rank; weighted expected gain; and, for SoftSort, two derivatives with respect to the score
        at the rank. An operator writes the expected gains, and one minus them, to ``at_rank``.
        """
        numbers, options = self._options(items)
        height, width = _tile(self.count)
        blocks = cdiv(self.count, height)
        splits = max(1, min(_PROGRAMS // (self.lists * blocks), cdiv(self.max_length, 4 * width)))
        total = self.lists * self.count if self.few else numbers[-1]
        sums = items.numbers.new_empty(5, total)
        parts = items.numbers.new_empty(5, splits, total) if splits > 1 else sums
        for stage in ("parts", "join") if splits > 1 else ("all",):
            _sum_rows[(self.lists, blocks, 1 if stage == "join" else splits)](
                *items.of_lists, self.offsets, items.numbers, items.distances, parts, sums,
                *at_rank, *numbers, total, splits, **options, STAGE=stage, HEIGHT=height,
                WIDTH=width,
            )  # fmt: skip
        return sums

    def gather(
        self, items: _Items, sums: Tensor, grads: Tensor, values: Tensor, grad_scores: Tensor
    ) -> None:
        """The gradient of every item, summed over the rows; for a metric also the values."""
        numbers, options = self._options(items)
        lists, size = self.lists, numbers[-1]
        order = self.offsets if items.order is None else items.order
        height, width = _tile(self.count)
        _gather_rows[(lists, cdiv(self.max_length, width))](
            *items.of_lists, self.offsets, items.numbers, items.distances, sums, grads, order,
            values, grad_scores, *numbers, sums.shape[1], **options, HEIGHT=height, WIDTH=width,
        )  # fmt: skip
        if self.soft:
            return
        if items.order is None:
            _through_pairs[(lists, cdiv(self.max_length, 32))](
                items.numbers, items.distances, self.offsets, grad_scores, self.temperature, size,
                METRIC=self.metric, HEIGHT=32, WIDTH=64,
            )  # fmt: skip
            return
        device = grad_scores.device
        chunks = torch.empty(self.chunks_of(size), dtype=torch.float64, device=device)
        prefix = torch.empty(size + lists, dtype=torch.float64, device=device)
        grid = (lists, cdiv(self.max_length, _CHUNK))
        of_chunks = (items.numbers, self.offsets, items.known[1], chunks)
        _add_chunks[grid](*of_chunks, 5 * size, CHUNK=_CHUNK)
        _prefix[grid](*of_chunks, prefix, 5 * size, CHUNK=_CHUNK)
        _through_sorted[grid](
            items.numbers, prefix, order, self.offsets, items.known[1], grad_scores,
            self.temperature, size, self.max_length.bit_length() + 1,
            METRIC=self.metric, CHUNK=_CHUNK,
        )  # fmt: skip


@cached_launch
@triton.jit(do_not_specialize=["k", "size"])
def _count_pairs(
    scores, labels, mask, weights, offsets, numbers, distances, parts, threshold, k, size,
    KIND: tl.constexpr, IDEAL: tl.constexpr, MASKED: tl.constexpr, WEIGHTED: tl.constexpr,
    SOFT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Ranks, ties and sums of distances of some items, counted over all pairs of their list.

    Also their part of the norm, for which ideal ranks are counted.
    """
    list_index, begin, count, item, inside, real = list_block(mask, offsets, MASKED, HEIGHT)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    gain = load_gains(labels, weights, begin + item, real, threshold, KIND, WEIGHTED)
    exact = score.to(tl.float64)
    above = tl.zeros([HEIGHT, WIDTH], tl.int32)
    before = tl.zeros([HEIGHT, WIDTH], tl.int32)
    ties = tl.zeros([HEIGHT, WIDTH], tl.int32)  # NeuralSort: below - above
    ahead = tl.zeros([HEIGHT, WIDTH], tl.int32)
    distance = tl.zeros([HEIGHT, WIDTH], tl.float64)
    for first in range(0, tl.where(tl.program_id(1) * HEIGHT < count, count, 0), WIDTH):
        column = first + tl.arange(0, WIDTH)
        valid = is_real(mask, begin + column, column < count, MASKED)
        other = tl.load(scores + begin + column, mask=valid, other=float("nan"))
        earlier = column[None, :] < item[:, None]
        same = other[None, :] == score[:, None]
        over = (other[None, :] > score[:, None]).to(tl.int32)
        above += over
        before += (same & earlier).to(tl.int32)
        if SOFT:
            ties += same.to(tl.int32)
        else:
            ties += (other[None, :] < score[:, None]).to(tl.int32) - over
            difference = tl.abs(other.to(tl.float64)[None, :] - exact[:, None])
            distance += tl.where(valid[None, :], difference, 0.0)
        if IDEAL:
            gains = load_gains(labels, weights, begin + column, valid, threshold, KIND, WEIGHTED)
            equal = (gains[None, :] == gain[:, None]) & earlier
            ahead += ((gains[None, :] > gain[:, None]) | equal).to(tl.int32)
    earlier = tl.sum(before, 1)
    tied = tl.sum(ties, 1).to(tl.float32)
    index, rank = begin + item, begin + tl.sum(above, 1) + earlier
    gains = tl.where(real, gain, 0.0)
    tl.store(numbers + size + index, gains, mask=inside)
    tl.store(numbers + 2 * size + index, tied, mask=inside)
    tl.store(numbers + 3 * size + rank, score, mask=real)
    tl.store(numbers + 6 * size + rank, gains, mask=real)
    if SOFT:
        tie_offset = (tied - 1.0 - 2.0 * earlier) / tl.maximum(tied, 1.0)
        tl.store(numbers + index, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 4 * size + rank, tie_offset, mask=real)
        tl.store(numbers + 5 * size + rank, tied, mask=real)
    else:
        total = tl.sum(distance, 1)
        tl.store(numbers + index, score, mask=inside)
        tl.store(distances + index, tl.where(real, total, float("inf")), mask=inside)
        tl.store(distances + size + rank, total, mask=real)
    best = 0.0
    if IDEAL:
        at = tl.sum(ahead, 1)
        counted = real & ((k == 0) | (at < k))
        best = tl.sum(tl.where(counted, gains / tl.log2(at + 2.0), 0.0), 0)
    store_sums(parts, list_index * tl.num_programs(1) + tl.program_id(1), best, gain, real)


@triton.jit
def _chunk_of(offsets, lengths, CHUNK: tl.constexpr):
    """The list, its first item, its first chunk, the positions of this chunk, and the length."""
    list_index = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + list_index)
    chunks = begin // CHUNK + list_index
    at = tl.program_id(1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    return list_index, begin, chunks, at, tl.load(lengths + list_index).to(tl.int64)


@cached_launch
@triton.jit(do_not_specialize=["skip"])
def _add_chunks(numbers, offsets, lengths, chunks, skip, CHUNK: tl.constexpr):
    """The sum over each chunk of each list."""
    _, begin, first, at, length = _chunk_of(offsets, lengths, CHUNK)
    if tl.program_id(1) * CHUNK < length:
        number = tl.load(numbers + skip + begin + at, mask=at < length, other=0.0)
        tl.store(chunks + first + tl.program_id(1), tl.sum(number.to(tl.float64), 0))


@triton.jit
def _around(chunks, first, mine, count):
    """The sum over the chunks before this one, and over all chunks of the list."""
    before = tl.zeros([1024], tl.float64)
    total = tl.zeros([1024], tl.float64)
    for left in range(0, count, 1024):
        some = left + tl.arange(0, 1024)
        part = tl.load(chunks + first + some, mask=some < count, other=0.0)
        total += part
        before += tl.where(some < mine, part, 0.0)
    return tl.sum(before, 0), tl.sum(total, 0)


@cached_launch
@triton.jit(do_not_specialize=["size", "steps"])
def _place_sorted(
    ranked, order, gains, offsets, lengths, chunks, numbers, distances, size, steps,
    SOFT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """:func:`_count_pairs` for sorted items, without the norm."""
    list_index, begin, first, at, length = _chunk_of(offsets, lengths, CHUNK)
    inside = at < tl.load(offsets + list_index + 1) - begin
    real = at < length
    index = begin + at
    score = tl.load(ranked + index, mask=real, other=0.0)
    source = tl.load(order + index, mask=real, other=0)
    gain = tl.load(gains + source, mask=real, other=0.0)
    start, end = tie_group(ranked, begin, begin + length, index, score, real, steps)
    start, end = start - begin, end - begin
    tl.store(numbers + size + index, gain, mask=inside)
    tl.store(numbers + 3 * size + index, score, mask=inside)
    tl.store(numbers + 6 * size + index, gain, mask=inside)
    if SOFT:
        ties = (end - start).to(tl.float32)
        tie_offset = ((end - 1 - at) - (at - start)).to(tl.float32) / ties
        tl.store(numbers + index, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 2 * size + index, ties, mask=inside)
        tl.store(numbers + 4 * size + index, tie_offset, mask=inside)
        tl.store(numbers + 5 * size + index, ties, mask=inside)
    else:
        exact = score.to(tl.float64)
        before, total = _around(chunks, first, tl.program_id(1), (length + CHUNK - 1) // CHUNK)
        prefix = before + tl.cumsum(exact, 0)
        over, under = at.to(tl.float64), (length - 1 - at).to(tl.float64)
        distance = (prefix - exact - over * exact) + (under * exact - (total - prefix))
        tie_offset = ((length - end) - start).to(tl.float32)
        tl.store(numbers + index, score, mask=inside)
        tl.store(numbers + 2 * size + index, tie_offset, mask=inside)
        tl.store(distances + index, tl.where(real, distance, float("inf")), mask=inside)


@triton.jit
def _entries(
    score, distance, row_score, row_distance, derivative, strength, SOFT: tl.constexpr
):  # fmt: skip
    """The exponentials of a tile of rows and items, relative to each row's maximum."""
    if SOFT:
        return tl.exp2(tl.abs(row_score[:, None] - score[None, :]) * -strength)
    else:
        exact, row_exact = score.to(tl.float64), row_score.to(tl.float64)
        logits = derivative.to(tl.float64)[:, None] * (exact[None, :] - row_exact[:, None])
        logits -= distance[None, :] - row_distance[:, None]
        return tl.exp2(tl.minimum(logits.to(tl.float32) * strength, 0.0))


@triton.jit
def _list_of(
    scales, lengths, defined, parts, blocks, list_index, k,
    METRIC: tl.constexpr, RANKED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The scale of a list (0 where the loss is undefined), its length and its number of rows."""
    if RANKED:
        length = tl.load(lengths + list_index)
        scale = length.to(tl.float32) * 0.0 + 1.0
        if METRIC != "operator":
            scale = tl.where(tl.load(defined + list_index) != 0, tl.load(scales + list_index), 0.0)
    else:
        ideal, total, items, counting = list_sums(parts, list_index, blocks, 256)
        length = items.to(tl.int32)
        scale = length.to(tl.float32) * 0.0 + 1.0
        if METRIC != "operator":
            scale = scale_of(ideal, total, items, k, NORM)
            scale = tl.where((counting > 0) & (length > 1), scale, 0.0)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    return scale, length, tl.where(scale > 0, rows, 0)


@triton.jit
def _write_row(
    total, mean, sided, sided_gain, tied_gain, numbers, sums, at_rank, misses, at, by, row, inside,
    scale, past, temperature, persistence, size, many, METRIC: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """Write the sums of a row that the items need.

    Gains are relative to the gain of the item at the row's rank. If nearly all of the row's weight
    is on that item, the rest would otherwise be lost to rounding.
    """
    factor = scale * (discount(row + 1.0, METRIC, persistence) - past)
    total = tl.where(inside, total, 1.0)
    mean = mean / total
    weight = factor / total
    tl.store(sums + at, weight, mask=inside)
    tl.store(sums + many + at, mean, mask=inside)
    row_gain = tl.load(numbers + 6 * size + by, mask=inside, other=0.0)
    if METRIC == "operator":
        tl.store(at_rank + by, row_gain + mean, mask=inside)
        tl.store(misses + by, (1.0 - row_gain) - mean, mask=inside)
    else:
        tl.store(sums + 2 * many + at, factor * (row_gain + mean), mask=inside)
    if SOFT:
        # Derivatives with respect to the score at the rank: logits are -|s_r - s_j| / τ.
        weight = -weight / temperature
        tie_offset = tl.load(numbers + 4 * size + by, mask=inside, other=0.0)
        ties = tl.load(numbers + 5 * size + by, mask=inside, other=0.0)
        tl.store(sums + 3 * many + at, weight * (sided_gain - mean * sided), mask=inside)
        tl.store(sums + 4 * many + at, weight * tie_offset * (tied_gain - mean * ties), mask=inside)


@triton.jit
def _sum_items(
    numbers, distances, begin, end, split, splits, by, row, inside, length, temperature, size,
    SOFT: tl.constexpr, RANKED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum over the items of a list, or over one of several parts, for some rows.

    Returns the sums of the exponentials and of their products with the gains. For SoftSort also
    both sums with signs, and the sum of the gains of items that tie with the item at the rank.
    """
    row_score = tl.load(numbers + 3 * size + by, mask=inside, other=0.0)
    row_distance = row_score.to(tl.float64)
    if not SOFT:
        by_rank = distances if RANKED else distances + size
        row_distance = tl.load(by_rank + by, mask=inside, other=0.0)
    row_gain = tl.load(numbers + 6 * size + by, mask=inside, other=0.0)
    derivative = (length - 1 - 2 * row).to(tl.float32)
    strength = 1.4426950408889634 / temperature
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    mean = tl.zeros([HEIGHT, WIDTH], tl.float32)
    sided = tl.zeros([HEIGHT, WIDTH], tl.float32)
    sided_gain = tl.zeros([HEIGHT, WIDTH], tl.float32)
    tied_gain = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first in range(begin + split * WIDTH, end, splits * WIDTH):
        index = first + tl.arange(0, WIDTH)
        valid = index < end
        score = tl.load(numbers + index, mask=valid, other=float("inf"))
        gain = tl.load(numbers + size + index, mask=valid, other=0.0)
        distance = score.to(tl.float64)
        if not SOFT:
            score = tl.where(valid, score, 0.0)
            distance = tl.load(distances + index, mask=valid, other=float("inf"))
        entry = _entries(score, distance, row_score, row_distance, derivative, strength, SOFT)
        total += entry
        more = gain[None, :] - row_gain[:, None]
        mean += entry * more
        if SOFT:
            higher = row_score[:, None] > score[None, :]
            same = row_score[:, None] == score[None, :]
            signed = tl.where(same, 0.0, tl.where(higher, entry, -entry))
            sided += signed
            sided_gain += signed * more
            tied_gain += tl.where(same, more, 0.0)
    total, mean = tl.sum(total, 1), tl.sum(mean, 1)
    return total, mean, tl.sum(sided, 1), tl.sum(sided_gain, 1), tl.sum(tied_gain, 1)


@triton.jit
def _add_parts(parts, at, inside, many, splits, HEIGHT: tl.constexpr):
    """Sum the parts of some rows in float64."""
    total = tl.zeros([HEIGHT, 64], tl.float64)
    for left in range(0, splits, 64):
        split = (left + tl.arange(0, 64)).to(tl.int64)
        valid = inside[:, None] & (split < splits)[None, :]
        part = tl.load(parts + split[None, :] * many + at[:, None], mask=valid, other=0.0)
        total += part.to(tl.float64)
    return tl.sum(total, 1).to(tl.float32)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k", "rows", "size", "many", "splits"])
def _sum_rows(
    scales, lengths, defined, of_blocks, blocks, offsets, numbers, distances, parts, sums,
    at_rank, misses, temperature, persistence, k, rows, size, many, splits,
    METRIC: tl.constexpr, FEW: tl.constexpr, SOFT: tl.constexpr, RANKED: tl.constexpr,
    NORM: tl.constexpr, STAGE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The sums of some rows of a list over its items.

    The stage is "all", or "parts" where several programs share the items, and then "join".
    """
    list_index, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    scale, length, last = _list_of(
        scales, lengths, defined, of_blocks, blocks, list_index, k, METRIC, RANKED, NORM
    )
    row = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    if tl.program_id(1) * HEIGHT < last:
        inside = row < last
        by, at = begin + row, row + (list_index * rows if FEW else begin)
        if STAGE == "join":
            total = _add_parts(parts, at, inside, many, splits, HEIGHT)
            mean = _add_parts(parts + splits * many, at, inside, many, splits, HEIGHT)
            sided, sided_gain, tied_gain = total, total, total
            if SOFT:
                sided = _add_parts(parts + 2 * splits * many, at, inside, many, splits, HEIGHT)
                sided_gain = _add_parts(parts + 3 * splits * many, at, inside, many, splits, HEIGHT)
                tied_gain = _add_parts(parts + 4 * splits * many, at, inside, many, splits, HEIGHT)
        else:
            total, mean, sided, sided_gain, tied_gain = _sum_items(
                numbers, distances, begin, end, split, splits, by, row, inside, length,
                temperature, size, SOFT, RANKED, HEIGHT, WIDTH,
            )  # fmt: skip
        if STAGE == "parts":
            found = (total, mean, sided, sided_gain, tied_gain)
            for which in tl.static_range(5 if SOFT else 2):
                tl.store(parts + (which * splits + split) * many + at, found[which], mask=inside)
        else:
            _write_row(
                total, mean, sided, sided_gain, tied_gain, numbers, sums, at_rank, misses, at, by,
                row, inside, scale, beyond(length, k, METRIC), temperature, persistence, size,
                many, METRIC, SOFT,
            )  # fmt: skip


@triton.jit
def _write_value(
    values, defined, terms, list_index, last, length, k, scale,
    METRIC: tl.constexpr, RANKED: tl.constexpr,
):  # fmt: skip
    """Write the value of a list, the sum over its rows, by the first program of the list."""
    if tl.program_id(1) == 0:
        total = tl.zeros([256], tl.float32)
        for first in range(0, last, 256):
            row = first + tl.arange(0, 256)
            total += tl.load(terms + row, mask=row < last, other=0.0)
        tl.store(values + list_index, as_loss(tl.sum(total, 0), length, k, scale, METRIC))
        if not RANKED:
            tl.store(defined + list_index, scale > 0)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k", "rows", "size", "many"])
def _gather_rows(
    scales, lengths, defined, of_blocks, blocks, offsets, numbers, distances,
    sums, grads, order, values, grad_scores, temperature, persistence, k, rows, size, many,
    METRIC: tl.constexpr, FEW: tl.constexpr, SOFT: tl.constexpr, RANKED: tl.constexpr,
    NORM: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of some items over all rows; the first program also writes the value."""
    list_index = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    scale, length, last = _list_of(
        scales, lengths, defined, of_blocks, blocks, list_index, k, METRIC, RANKED, NORM
    )
    base = list_index * rows if FEW else begin
    if METRIC != "operator":
        _write_value(
            values,
            defined,
            sums + 2 * many + base,
            list_index,
            last,
            length,
            k,
            scale,
            METRIC,
            RANKED,
        )
    index = begin + tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    valid = index < end
    score = tl.load(numbers + index, mask=valid, other=0.0)
    gain = tl.load(numbers + size + index, mask=valid, other=0.0)
    ties = tl.load(numbers + 2 * size + index, mask=valid, other=1.0)
    distance = score.to(tl.float64)
    if not SOFT:
        distance = tl.load(distances + index, mask=valid, other=float("inf"))
    strength = 1.4426950408889634 / temperature
    one = tl.zeros([HEIGHT, WIDTH], tl.float32)
    two = tl.zeros([HEIGHT, WIDTH], tl.float32)
    of_rank = tl.zeros([HEIGHT, WIDTH], tl.float32)
    of_tie = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first in range(0, last, HEIGHT):
        row = first + tl.arange(0, HEIGHT)
        inside = row < last
        by, at = begin + row, base + row
        row_score = tl.load(numbers + 3 * size + by, mask=inside, other=0.0)
        row_distance = row_score.to(tl.float64)
        if not SOFT:
            by_rank = distances if RANKED else distances + size
            row_distance = tl.load(by_rank + by, mask=inside, other=0.0)
        row_gain = tl.load(numbers + 6 * size + by, mask=inside, other=0.0)
        weight = tl.load(sums + at, mask=inside, other=0.0)
        row_grad = weight
        if METRIC == "operator":
            row_grad = tl.load(grads + by, mask=inside, other=0.0)
            weight *= row_grad
        mean = tl.load(sums + many + at, mask=inside, other=0.0)
        derivative = (length - 1 - 2 * row).to(tl.float32)
        entry = _entries(score, distance, row_score, row_distance, derivative, strength, SOFT)
        more = gain[None, :] - row_gain[:, None]
        by_logit = entry * weight[:, None] * (more - mean[:, None])
        if SOFT:
            tie_offset = tl.load(numbers + 4 * size + by, mask=inside, other=0.0)
            rank_grad = tl.load(sums + 3 * many + at, mask=inside, other=0.0)
            tie_grad = tl.load(sums + 4 * many + at, mask=inside, other=0.0)
            if METRIC == "operator":
                rank_grad *= row_grad
                tie_grad *= row_grad
            higher = row_score[:, None] > score[None, :]
            same = row_score[:, None] == score[None, :]
            one += tl.where(same, 0.0, tl.where(higher, by_logit, -by_logit))
            two += tl.where(same, by_logit * tie_offset[:, None], 0.0)
            of_rank += tl.where(same, rank_grad[:, None], 0.0)
            of_tie += tl.where(same, tie_grad[:, None], 0.0)
        else:
            one += by_logit * (derivative[:, None] - ties[None, :])
            two += by_logit
    apart, tied = tl.sum(one, 0), tl.sum(two, 0)
    if SOFT:
        apart, tied = -apart / temperature, -tied / temperature
        result = tl.sum(of_rank, 0) / tl.maximum(ties, 1.0) - apart - tied
        result += (tl.sum(of_tie, 0) - tied) / tl.maximum(ties - 1.0, 1.0)
        result = as_gradient(result, METRIC)
        result = tl.where(score == float("inf"), 0.0, result)
        target = tl.load(order + index, mask=valid, other=0) if RANKED else index
        tl.store(grad_scores + target, result, mask=valid)
    else:
        tl.store(numbers + 4 * size + index, apart, mask=valid)
        tl.store(numbers + 5 * size + index, tied, mask=valid)


@cached_launch
@triton.jit(do_not_specialize=["size"])
def _through_pairs(
    numbers, distances, offsets, grad_scores, temperature, size,
    METRIC: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the gradient through ``Σ_k |s_j - s_k|``, over all pairs of a list."""
    _, begin, count, item, inside, _ = list_block(offsets, offsets, False, HEIGHT)
    index = begin + item
    score = tl.load(numbers + index, mask=inside, other=0.0)
    result = tl.zeros([HEIGHT, WIDTH], tl.float64)
    for first in range(0, count, WIDTH):
        column = first + tl.arange(0, WIDTH)
        other = tl.load(numbers + begin + column, mask=column < count, other=0.0)
        by_logit = tl.load(numbers + 5 * size + begin + column, mask=column < count, other=0.0)
        exact = by_logit.to(tl.float64)[None, :]
        higher = other[None, :] > score[:, None]
        lower = other[None, :] < score[:, None]
        result += tl.where(higher, exact, tl.where(lower, -exact, 0.0))
    derivative = tl.load(numbers + 4 * size + index, mask=inside, other=0.0).to(
        tl.float64
    ) + tl.sum(result, 1)
    derivative = derivative.to(tl.float32) / temperature
    derivative = as_gradient(derivative, METRIC)
    real = tl.load(distances + index, mask=inside, other=float("inf")) < float("inf")
    tl.store(grad_scores + index, tl.where(real, derivative, 0.0), mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["skip"])
def _prefix(numbers, offsets, lengths, chunks, prefix, skip, CHUNK: tl.constexpr):
    """Exclusive prefix sums over a list, followed by its total."""
    list_index, begin, first, at, length = _chunk_of(offsets, lengths, CHUNK)
    if tl.program_id(1) * CHUNK < length:
        count = (length + CHUNK - 1) // CHUNK
        before, total = _around(chunks, first, tl.program_id(1), count)
        number = tl.load(numbers + skip + begin + at, mask=at < length, other=0.0).to(tl.float64)
        sums = before + tl.cumsum(number, 0) - number
        tl.store(prefix + begin + list_index + at, sums, mask=at < length)
        if tl.program_id(1) == count - 1:
            tl.store(prefix + begin + list_index + length, total)


@cached_launch
@triton.jit(do_not_specialize=["size", "steps"])
def _through_sorted(
    numbers, prefix, order, offsets, lengths, grad_scores, temperature, size, steps,
    METRIC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """:func:`_through_pairs` for sorted items, by prefix sums."""
    list_index, begin, _, at, length = _chunk_of(offsets, lengths, CHUNK)
    inside = at < tl.load(offsets + list_index + 1) - begin
    real = at < length
    index = begin + at
    score = tl.load(numbers + index, mask=real, other=0.0)
    start, end = tie_group(numbers, begin, begin + length, index, score, real, steps)
    total = tl.load(prefix + begin + list_index + length, mask=length > 0, other=0.0)
    above = tl.load(prefix + list_index + start, mask=real, other=0.0)
    below = total - tl.load(prefix + list_index + end, mask=real, other=0.0)
    derivative = tl.load(numbers + 4 * size + index, mask=real, other=0.0).to(tl.float64) + (
        above - below
    )
    derivative = derivative.to(tl.float32) / temperature
    derivative = as_gradient(derivative, METRIC)
    target = tl.load(order + index, mask=inside, other=0)
    tl.store(grad_scores + target, tl.where(real, derivative, 0.0), mask=inside)
