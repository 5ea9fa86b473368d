"""Metrics through the rows of NeuralSort or SoftSort, value and gradient in one operation.

Row r (from 1) of NeuralSort is ``softmax_j(((n + 1 - 2 r) s_j - Σ_k |s_j - s_k|) / τ)`` (Pobrotyn
and Białobrzeski eq. 3, Swezey et al. eq. 12), and of SoftSort ``softmax_j(-|s_(r) - s_j| / τ)``
with the r-th largest score s_(r) (Prillo and Eisenschlos 2020). The expected gain at rank r is the
mean of the gains under row r, and a linear metric is ``Σ_r discount_r gain_r``, divided by its
norm.

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
from rankgrad.kernels.gpu._flat_lists import list_block, positions
from rankgrad.kernels.gpu._ideal_gain import (
    gain_kind,
    ideal_gain,
    list_sums,
    load_gains,
    norm_kind,
    scale_of,
    store_sums,
)
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._linear import as_gradient, as_loss, discount, discount_beyond
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, SortOperator, through_operator
from rankgrad.kernels.gpu._segmented_sort import COUNTED, Sorted, count_items, sort_lists, tie_group

_PROGRAMS = 528  # four for each multiprocessor of a large GPU
_CHUNK = 1024  # items of a sorted list that one program reads
_REMEMBERED = 4  # vectors of values whose sums an operator caches
_SUM_OF_VALUES = MetricOptions("dcg", 0, "linear", 0.0, 0.0)  # the gain of an item is its value


def through_rows(
    batch: FlatLists, relaxation: str, temperature: float, metric_options: MetricOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through relaxed rows; see :mod:`rankgrad.kernels.ops`."""
    scores, _, mask, _, offsets, max_length = batch
    metric, k, _, _, persistence = metric_options
    operator = SoftSortOperator if relaxation == "softsort" else NeuralSortOperator
    options = (scores, mask, offsets, max_length, k, temperature)
    if metric in STEP_METRICS:
        return through_operator(operator(*options), batch, metric_options)
    rows = operator(*options, metric, persistence)
    values, grad_scores = scores.new_empty(rows.lists), torch.empty_like(scores)
    if max_length <= COUNTED:
        items = rows.count_pairs(batch, metric_options)
    else:
        gains, scale, lengths, defined = ideal_gain(batch, metric_options)
        order = sort_lists(scores, mask, offsets, max_length)
        items = rows.place_sorted(order, gains, (scale, lengths), defined)
    rows.gather(items, rows.sum(items, (None, None)), None, (values, grad_scores))
    return values, grad_scores, items.defined


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
        known: scale and length of each list; None for short lists.
        defined: ``[lists]``, whether the loss is defined.
        parts: partial sums of the blocks of short lists, for scale and length; None for long ones.
        norm: the kind of norm that ``parts`` are for.
    """

    numbers: Tensor
    distances: Tensor
    order: Tensor | None
    known: tuple[Tensor | None, Tensor | None]
    defined: Tensor
    parts: Tensor | None
    norm: str

    @property
    def of_lists(self) -> tuple[Any, ...]:
        """The arguments of kernels that describe the lists."""
        blocks = 0 if self.parts is None else self.parts.shape[1]
        return (*self.known, self.defined, self.parts, blocks)


@dataclass(eq=False)
class _RowsOperator(SortOperator):
    """The rows of NeuralSort or SoftSort: a linear operator, or weighted by a linear metric.

    Args:
        temperature: of the relaxation.
        metric: the linear metric, or ``operator``.
        persistence: of the metric rbp.
    """

    temperature: float
    metric: str = "operator"
    persistence: float = 0.0

    soft: ClassVar[bool]

    def __post_init__(self) -> None:
        self._sorted: tuple[Sorted, Tensor] | None = None  # long lists, and their lengths
        # A cache of the items and row sums of recent values, keyed by the values' address. It holds
        # a reference to the values, so that no other tensor gets the address.
        self._applied: dict[int, tuple[Tensor, _Items, Tensor]] = {}

    def apply(self, values: Tensor) -> Tensor:
        at_rank, self.misses = torch.zeros_like(self.scores), torch.zeros_like(self.scores)
        if self.lists:
            values = values.contiguous()
            items = self._items(values)
            if len(self._applied) == _REMEMBERED:
                del self._applied[next(iter(self._applied))]
            sums = self.sum(items, (at_rank, self.misses))
            self._applied[values.data_ptr()] = values, items, sums
        return at_rank

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        if not self.lists:
            return torch.zeros_like(self.scores)
        values = values.contiguous()
        if values.data_ptr() not in self._applied:
            self.apply(values)
        _, items, sums = self._applied[values.data_ptr()]
        grad_scores = torch.empty_like(self.scores)
        self.gather(items, sums, grad.contiguous(), (None, grad_scores))
        return grad_scores

    def _items(self, values: Tensor) -> _Items:
        """The items, with these values as their gains."""
        lists = self.mask, self.offsets, self.max_length
        if self.max_length <= COUNTED:
            batch = FlatLists(self.scores, values, self.mask, None, *lists[1:])
            return self.count_pairs(batch, _SUM_OF_VALUES)
        if self._sorted is None:
            self._sorted = sort_lists(self.scores, *lists), count_items(*lists)
        order, lengths = self._sorted
        # Kernels read neither scale nor ``defined`` for an operator: the lengths fill their places.
        return self.place_sorted(order, values, (lengths, lengths), lengths)

    def count_pairs(self, batch: FlatLists, metric_options: MetricOptions) -> _Items:
        """The items of short lists, in input order."""
        metric, k, gain, threshold, _ = metric_options
        scores, size, blocks = self.scores, self.scores.numel(), cdiv(self.max_length, 32)
        numbers, distances = self._memory(2 * size)
        parts = scores.new_empty(self.lists, blocks, 4)
        defined = torch.empty(self.lists, dtype=torch.bool, device=scores.device)
        norm = norm_kind(metric, k)
        _count_pairs[(self.lists, blocks)](
            *batch[:5], numbers, distances, parts, threshold, k, size, GAIN=gain_kind(metric, gain),
            IDEAL=norm == "ideal", SOFT=self.soft, HEIGHT=32, WIDTH=32,
        )  # fmt: skip
        return _Items(numbers, distances, None, (None, None), defined, parts, norm)

    def place_sorted(
        self, order: Sorted, gains: Tensor, known: tuple[Tensor, Tensor], defined: Tensor
    ) -> _Items:
        """The items of sorted lists; their gains are in input order."""
        size, lengths = gains.numel(), known[1]
        chunks = self._chunks()
        numbers, distances = self._memory(size)
        grid = (self.lists, cdiv(self.max_length, _CHUNK))
        if not self.soft:
            _add_chunks[grid](order.scores, self.offsets, lengths, chunks, 0, CHUNK=_CHUNK)
        _place_sorted[grid](
            order.scores, order.items, gains, self.offsets, lengths, chunks, numbers, distances,
            size, self.max_length.bit_length() + 1, SOFT=self.soft, CHUNK=_CHUNK,
        )  # fmt: skip
        return _Items(numbers, distances, order.items, known, defined, None, "none")

    def _memory(self, size: int) -> tuple[Tensor, Tensor]:
        """Memory for the numbers and the distances of :class:`_Items`."""
        numbers = self.scores.new_empty(7, self.scores.numel())
        return numbers, numbers.new_empty(0 if self.soft else size, dtype=torch.float64)

    def _chunks(self) -> Tensor:
        """Memory for one number per chunk of the lists, each where :func:`_chunk_of` says."""
        most = self.scores.numel() // _CHUNK + self.lists + 1
        return self.scores.new_empty(most, dtype=torch.float64)

    @property
    def few(self) -> bool:
        """Whether the cutoff is shorter than the lists."""
        return 0 < self.k < self.max_length

    @property
    def count(self) -> int:
        """The largest number of rows of a list."""
        return self.k if self.few else self.max_length

    def _options(self, items: _Items) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The scalars, of which the number of items is the last, and the constants of kernels."""
        scalars = (self.temperature, self.persistence, self.k, self.count, items.numbers.shape[1])
        options = {
            "METRIC": self.metric,
            "FEW": self.few,
            "SOFT": self.soft,
            "RANKED": items.order is not None,
            "NORM": items.norm,
        }
        return scalars, options

    def sum(self, items: _Items, at_rank: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """The sums of every row that :meth:`gather` needs.

        ``[5, rows]``: weight over the sum of exponentials; mean gain, minus that of the item at the
        rank; weighted expected gain; and, for SoftSort, two derivatives with respect to the score
        at the rank. An operator writes the expected gains, and one minus them, to ``at_rank``.
        """
        scalars, options = self._options(items)
        height, width = _tile(self.count)
        blocks = cdiv(self.count, height)
        # If lists and blocks are few, programs share the items of a row, about four tiles or more
        # for each.
        splits = max(1, min(_PROGRAMS // (self.lists * blocks), cdiv(self.max_length, 4 * width)))
        total = self.lists * self.count if self.few else scalars[-1]
        sums = items.numbers.new_empty(5, total)
        parts = items.numbers.new_empty(5, splits, total) if splits > 1 else sums
        for stage in ("parts", "join") if splits > 1 else ("all",):
            _sum_rows[(self.lists, blocks, 1 if stage == "join" else splits)](
                *items.of_lists, self.offsets, items.numbers, items.distances, parts, sums,
                *at_rank, *scalars, total, splits, **options, STAGE=stage, HEIGHT=height,
                WIDTH=width,
            )  # fmt: skip
        return sums

    def gather(
        self,
        items: _Items,
        sums: Tensor,
        grads: Tensor | None,
        results: tuple[Tensor | None, Tensor],
    ) -> None:
        """Write the results: for a metric the values, and the gradient, summed over the rows."""
        scalars, options = self._options(items)
        lists, size, grad_scores = self.lists, scalars[-1], results[1]
        height, width = _tile(self.count)
        _gather_rows[(lists, cdiv(self.max_length, width))](
            *items.of_lists, self.offsets, items.numbers, items.distances, sums, grads,
            items.order, *results, *scalars, sums.shape[1], **options, HEIGHT=height, WIDTH=width,
        )  # fmt: skip
        if self.soft:
            return
        if items.order is None:
            _through_pairs[(lists, cdiv(self.max_length, 32))](
                items.numbers, items.distances, self.offsets, grad_scores, self.temperature, size,
                METRIC=self.metric, HEIGHT=32, WIDTH=64,
            )  # fmt: skip
            return
        chunks = self._chunks()
        prefix = chunks.new_empty(size + lists)
        grid = (lists, cdiv(self.max_length, _CHUNK))
        of_chunks = (items.numbers, self.offsets, items.known[1], chunks)
        _add_chunks[grid](*of_chunks, 5 * size, CHUNK=_CHUNK)
        _prefix[grid](*of_chunks, prefix, 5 * size, CHUNK=_CHUNK)
        _through_sorted[grid](
            items.numbers, prefix, items.order, self.offsets, items.known[1], grad_scores,
            self.temperature, size, self.max_length.bit_length() + 1,
            METRIC=self.metric, CHUNK=_CHUNK,
        )  # fmt: skip


class NeuralSortOperator(_RowsOperator):
    """NeuralSort (Grover et al. 2019) as a linear operator and its adjoint."""

    soft = False


class SoftSortOperator(_RowsOperator):
    """SoftSort (Prillo and Eisenschlos 2020) as a linear operator and its adjoint."""

    soft = True


def _tile(rows: int) -> tuple[int, int]:
    """Rows and items of a tile that fits in the registers of a program."""
    return (16, 64) if rows <= 16 else (32, 32)


@cached_launch
@triton.jit(do_not_specialize=["k", "size"])
def _count_pairs(
    scores, labels, mask, weights, offsets, numbers, distances, parts, threshold, k, size,
    GAIN: tl.constexpr, IDEAL: tl.constexpr, SOFT: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the numbers and distances of :class:`_Items` for a block of items of a short list.

    Ranks, ties and sums of distances are counted over all pairs with the items of the list. Also
    writes the block's part of the norm, for which ideal ranks are counted.
    """
    list_index, begin, count, item, inside, real = list_block(mask, offsets, HEIGHT)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    gain = load_gains(labels, weights, begin + item, real, threshold, GAIN)
    exact = score.to(tl.float64)
    above = tl.zeros([HEIGHT, WIDTH], tl.int32)
    before = tl.zeros([HEIGHT, WIDTH], tl.int32)  # tied items earlier in input order
    ties = tl.zeros([HEIGHT, WIDTH], tl.int32)  # NeuralSort: below - above
    ahead = tl.zeros([HEIGHT, WIDTH], tl.int32)  # items before this one in the ideal order
    distance = tl.zeros([HEIGHT, WIDTH], tl.float64)
    for first_column in range(0, tl.where(tl.program_id(1) * HEIGHT < count, count, 0), WIDTH):
        column, valid = positions(mask, begin, first_column, count, WIDTH)
        column_score = tl.load(scores + begin + column, mask=valid, other=float("nan"))
        earlier = column[None, :] < item[:, None]
        is_tied = column_score[None, :] == score[:, None]
        is_above = (column_score[None, :] > score[:, None]).to(tl.int32)
        above += is_above
        before += (is_tied & earlier).to(tl.int32)
        if SOFT:
            ties += is_tied.to(tl.int32)
        else:
            ties += (column_score[None, :] < score[:, None]).to(tl.int32) - is_above
            difference = tl.abs(column_score.to(tl.float64)[None, :] - exact[:, None])
            distance += tl.where(valid[None, :], difference, 0.0)
        if IDEAL:
            column_gain = load_gains(labels, weights, begin + column, valid, threshold, GAIN)
            is_tied_gain = (column_gain[None, :] == gain[:, None]) & earlier
            ahead += ((column_gain[None, :] > gain[:, None]) | is_tied_gain).to(tl.int32)
    tied_before = tl.sum(before, 1)
    tied = tl.sum(ties, 1).to(tl.float32)
    index, rank = begin + item, begin + tl.sum(above, 1) + tied_before
    real_gain = tl.where(real, gain, 0.0)
    tl.store(numbers + size + index, real_gain, mask=inside)
    tl.store(numbers + 2 * size + index, tied, mask=inside)
    tl.store(numbers + 3 * size + rank, score, mask=real)
    tl.store(numbers + 6 * size + rank, real_gain, mask=real)
    if SOFT:
        tie_offset = (tied - 1.0 - 2.0 * tied_before) / tl.maximum(tied, 1.0)
        tl.store(numbers + index, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 4 * size + rank, tie_offset, mask=real)
        tl.store(numbers + 5 * size + rank, tied, mask=real)
    else:
        total = tl.sum(distance, 1)
        tl.store(numbers + index, score, mask=inside)
        tl.store(distances + index, tl.where(real, total, float("inf")), mask=inside)
        tl.store(distances + size + rank, total, mask=real)
    ideal = 0.0
    if IDEAL:
        ideal_position = tl.sum(ahead, 1)
        counted = real & ((k == 0) | (ideal_position < k))
        ideal = tl.sum(tl.where(counted, real_gain / tl.log2(ideal_position + 2.0), 0.0), 0)
    store_sums(parts, list_index * tl.num_programs(1) + tl.program_id(1), ideal, gain, real)


@triton.jit
def _chunk_of(offsets, lengths, CHUNK: tl.constexpr):
    """The chunk of a sorted list that this program reads.

    Returns the list, the index of its first item, that of its first chunk, the positions of this
    chunk in the list, and the number of real items of the list.
    """
    list_index = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + list_index)
    # A list of n items has at most n // CHUNK + 1 chunks, so chunks of lists do not overlap.
    first_chunk = begin // CHUNK + list_index
    at = tl.program_id(1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    return list_index, begin, first_chunk, at, tl.load(lengths + list_index).to(tl.int64)


@cached_launch
@triton.jit(do_not_specialize=["skip"])
def _add_chunks(numbers, offsets, lengths, chunks, skip, CHUNK: tl.constexpr):
    """Write the sum over a chunk of a list of the numbers from ``skip`` on."""
    _, begin, first, at, length = _chunk_of(offsets, lengths, CHUNK)
    if tl.program_id(1) * CHUNK < length:
        number = tl.load(numbers + skip + begin + at, mask=at < length, other=0.0)
        tl.store(chunks + first + tl.program_id(1), tl.sum(number.to(tl.float64), 0))


@triton.jit
def _around(chunks, first, chunk, count):
    """The sum over the chunks before this one, and over all chunks of the list."""
    before = tl.zeros([1024], tl.float64)
    total = tl.zeros([1024], tl.float64)
    for first_chunk in range(0, count, 1024):
        other_chunk = first_chunk + tl.arange(0, 1024)
        part = tl.load(chunks + first + other_chunk, mask=other_chunk < count, other=0.0)
        total += part
        before += tl.where(other_chunk < chunk, part, 0.0)
    return tl.sum(before, 0), tl.sum(total, 0)


@cached_launch
@triton.jit(do_not_specialize=["size", "steps"])
def _place_sorted(
    ranked, order, gains, offsets, lengths, chunks, numbers, distances, size, steps,
    SOFT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the numbers and distances of :class:`_Items` for a chunk of a sorted list.

    In descending order, ``Σ_k |s_j - s_k|`` of item j (from 0) follows from prefix sums:
    ``(Σ_{k<j} s_k - j s_j) + ((n - 1 - j) s_j - Σ_{k>j} s_k)``.
    """
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
        n_above, n_below = at.to(tl.float64), (length - 1 - at).to(tl.float64)
        distance = (prefix - exact - n_above * exact) + (n_below * exact - (total - prefix))
        below_minus_above = ((length - end) - start).to(tl.float32)
        tl.store(numbers + index, score, mask=inside)
        tl.store(numbers + 2 * size + index, below_minus_above, mask=inside)
        tl.store(distances + index, tl.where(real, distance, float("inf")), mask=inside)


@triton.jit
def _entries(
    score, distance, row_score, row_distance, score_factor, strength, SOFT: tl.constexpr
):  # fmt: skip
    """The exponentials of a tile of rows and items, relative to each row's maximum.

    That maximum is at the item whose rank is the row's. ``score_factor`` is ``n - 1 - 2 r`` for the
    row r (from 0), the factor of the scores in the logits. ``strength`` is ``log2(e) / τ``.
    """
    if SOFT:
        return tl.exp2(tl.abs(row_score[:, None] - score[None, :]) * -strength)
    else:
        exact, row_exact = score.to(tl.float64), row_score.to(tl.float64)
        logits = score_factor.to(tl.float64)[:, None] * (exact[None, :] - row_exact[:, None])
        logits -= distance[None, :] - row_distance[:, None]
        return tl.exp2(tl.minimum(logits.to(tl.float32) * strength, 0.0))


@triton.jit
def _list_of(
    scales, lengths, defined, parts, blocks, list_index, k,
    METRIC: tl.constexpr, RANKED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The scale of a list (0 where the loss is undefined), its length and its number of rows.

    Sorted lists (RANKED) have scale and length in memory; others sum ``parts``. The scale of an
    operator is 1.
    """
    if RANKED:
        length = tl.load(lengths + list_index)
        scale = length.to(tl.float32) * 0.0 + 1.0
        if METRIC != "operator":
            scale = tl.where(tl.load(defined + list_index) != 0, tl.load(scales + list_index), 0.0)
    else:
        ideal, gain_sum, items, gaining_items = list_sums(parts, list_index, blocks, 256)
        length = items.to(tl.int32)
        scale = length.to(tl.float32) * 0.0 + 1.0
        if METRIC != "operator":
            scale = scale_of(ideal, gain_sum, items, k, NORM)
            scale = tl.where((gaining_items > 0) & (length > 1), scale, 0.0)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    return scale, length, tl.where(scale > 0, rows, 0)


@triton.jit
def _write_row(
    row_sums, numbers, sums, at_rank, misses, at, rank_index, row, inside, scale, beyond,
    temperature, persistence, size, stride, METRIC: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """Write the sums of some rows that :func:`_gather_rows` reads, from those of the items.

    Gains are relative to the gain of the item at the row's rank. If nearly all of the row's weight
    is on that item, the rest would otherwise be lost to rounding. ``at`` is the index of a row in
    ``sums``, ``rank_index`` that of its rank in ``numbers``, and ``row_sums`` are those of
    :func:`_sum_items`.
    """
    total, mean, sided, sided_gain, tied_gain = row_sums
    factor = scale * (discount(row + 1.0, METRIC, persistence) - beyond)
    total = tl.where(inside, total, 1.0)
    mean = mean / total
    weight = factor / total
    tl.store(sums + at, weight, mask=inside)
    tl.store(sums + stride + at, mean, mask=inside)
    row_gain = tl.load(numbers + 6 * size + rank_index, mask=inside, other=0.0)
    if METRIC == "operator":
        tl.store(at_rank + rank_index, row_gain + mean, mask=inside)
        tl.store(misses + rank_index, (1.0 - row_gain) - mean, mask=inside)
    else:
        tl.store(sums + 2 * stride + at, factor * (row_gain + mean), mask=inside)
    if SOFT:
        # Derivatives with respect to the score at the rank: logits are -|s_r - s_j| / τ.
        weight = -weight / temperature
        tie_offset = tl.load(numbers + 4 * size + rank_index, mask=inside, other=0.0)
        ties = tl.load(numbers + 5 * size + rank_index, mask=inside, other=0.0)
        tl.store(sums + 3 * stride + at, weight * (sided_gain - mean * sided), mask=inside)
        tie_grad = weight * tie_offset * (tied_gain - mean * ties)
        tl.store(sums + 4 * stride + at, tie_grad, mask=inside)


@triton.jit
def _load_rows(
    numbers, distances, rank_index, inside, size, SOFT: tl.constexpr, RANKED: tl.constexpr
):  # fmt: skip
    """The score, sum of distances and gain of the item at the rank of each row."""
    score = tl.load(numbers + 3 * size + rank_index, mask=inside, other=0.0)
    distance = score.to(tl.float64)
    if not SOFT:
        by_rank = distances if RANKED else distances + size
        distance = tl.load(by_rank + rank_index, mask=inside, other=0.0)
    return score, distance, tl.load(numbers + 6 * size + rank_index, mask=inside, other=0.0)


@triton.jit
def _sum_items(
    numbers, distances, begin, end, split, splits, rank_index, row, inside, length, temperature,
    size, SOFT: tl.constexpr, RANKED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The sums of some rows over the items of a list, or over every ``splits``-th tile of them.

    Returns the sums of the exponentials and of their products with the gains. For SoftSort also
    both sums with the sign of the row's score minus the item's, and the sum of the gains of items
    that tie with the item at the rank. Gains are relative to that item's.
    """
    row_score, row_distance, row_gain = _load_rows(
        numbers, distances, rank_index, inside, size, SOFT, RANKED
    )
    score_factor = (length - 1 - 2 * row).to(tl.float32)
    strength = 1.4426950408889634 / temperature
    total = tl.zeros([HEIGHT, WIDTH], tl.float32)
    mean = tl.zeros([HEIGHT, WIDTH], tl.float32)
    sided = tl.zeros([HEIGHT, WIDTH], tl.float32)
    sided_gain = tl.zeros([HEIGHT, WIDTH], tl.float32)
    tied_gain = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first_item in range(begin + split * WIDTH, end, splits * WIDTH):
        index = first_item + tl.arange(0, WIDTH)
        valid = index < end
        score = tl.load(numbers + index, mask=valid, other=float("inf"))
        gain = tl.load(numbers + size + index, mask=valid, other=0.0)
        distance = score.to(tl.float64)
        if not SOFT:
            score = tl.where(valid, score, 0.0)
            distance = tl.load(distances + index, mask=valid, other=float("inf"))
        entry = _entries(score, distance, row_score, row_distance, score_factor, strength, SOFT)
        total += entry
        gain_difference = gain[None, :] - row_gain[:, None]
        mean += entry * gain_difference
        if SOFT:
            is_higher = row_score[:, None] > score[None, :]
            is_tied = row_score[:, None] == score[None, :]
            signed = tl.where(is_tied, 0.0, tl.where(is_higher, entry, -entry))
            sided += signed
            sided_gain += signed * gain_difference
            tied_gain += tl.where(is_tied, gain_difference, 0.0)
    total, mean = tl.sum(total, 1), tl.sum(mean, 1)
    return total, mean, tl.sum(sided, 1), tl.sum(sided_gain, 1), tl.sum(tied_gain, 1)


@triton.jit
def _add_parts(parts, channel, at, inside, stride, splits, HEIGHT: tl.constexpr):
    """One of the sums (a channel) of some rows, from its parts, added in float64."""
    parts += channel * splits * stride
    total = tl.zeros([HEIGHT, 64], tl.float64)
    for first_split in range(0, splits, 64):
        split = (first_split + tl.arange(0, 64)).to(tl.int64)
        valid = inside[:, None] & (split < splits)[None, :]
        part = tl.load(parts + split[None, :] * stride + at[:, None], mask=valid, other=0.0)
        total += part.to(tl.float64)
    return tl.sum(total, 1).to(tl.float32)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k", "rows", "size", "stride", "splits"])
def _sum_rows(
    scales, lengths, defined, block_sums, blocks, offsets, numbers, distances, parts, sums,
    at_rank, misses, temperature, persistence, k, rows, size, stride, splits,
    METRIC: tl.constexpr, FEW: tl.constexpr, SOFT: tl.constexpr, RANKED: tl.constexpr,
    NORM: tl.constexpr, STAGE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the sums ``[5, rows]`` of some rows of a list over its items.

    The STAGE is "all", or "parts" where several programs share the items, and then "join".
    """
    list_index, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    scale, length, row_count = _list_of(
        scales, lengths, defined, block_sums, blocks, list_index, k, METRIC, RANKED, NORM
    )
    row = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    if tl.program_id(1) * HEIGHT < row_count:
        inside = row < row_count
        rank_index, at = begin + row, row + (list_index * rows if FEW else begin)
        if STAGE == "join":
            total = _add_parts(parts, 0, at, inside, stride, splits, HEIGHT)
            mean = _add_parts(parts, 1, at, inside, stride, splits, HEIGHT)
            row_sums = (total, mean, total, total, total)
            if SOFT:
                sided = _add_parts(parts, 2, at, inside, stride, splits, HEIGHT)
                sided_gain = _add_parts(parts, 3, at, inside, stride, splits, HEIGHT)
                tied_gain = _add_parts(parts, 4, at, inside, stride, splits, HEIGHT)
                row_sums = (total, mean, sided, sided_gain, tied_gain)
        else:
            row_sums = _sum_items(
                numbers, distances, begin, end, split, splits, rank_index, row, inside, length,
                temperature, size, SOFT, RANKED, HEIGHT, WIDTH,
            )  # fmt: skip
        if STAGE == "parts":
            for channel in tl.static_range(5 if SOFT else 2):
                target = parts + (channel * splits + split) * stride + at
                tl.store(target, row_sums[channel], mask=inside)
        else:
            _write_row(
                row_sums, numbers, sums, at_rank, misses, at, rank_index, row, inside, scale,
                discount_beyond(length, k, METRIC), temperature, persistence, size, stride,
                METRIC, SOFT,
            )  # fmt: skip


@triton.jit
def _write_value(
    values, defined, terms, list_index, row_count, length, k, scale,
    METRIC: tl.constexpr, RANKED: tl.constexpr,
):  # fmt: skip
    """Write the value of a list, the sum over its rows, by the first program of the list."""
    if tl.program_id(1) == 0:
        total = tl.zeros([256], tl.float32)
        for first_row in range(0, row_count, 256):
            row = first_row + tl.arange(0, 256)
            total += tl.load(terms + row, mask=row < row_count, other=0.0)
        tl.store(values + list_index, as_loss(tl.sum(total, 0), length, k, scale, METRIC))
        if not RANKED:
            tl.store(defined + list_index, scale > 0)


@cached_launch
@triton.jit(do_not_specialize=["blocks", "k", "rows", "size", "stride"])
def _gather_rows(
    scales, lengths, defined, block_sums, blocks, offsets, numbers, distances,
    sums, grads, order, values, grad_scores, temperature, persistence, k, rows, size, stride,
    METRIC: tl.constexpr, FEW: tl.constexpr, SOFT: tl.constexpr, RANKED: tl.constexpr,
    NORM: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of some items over all rows; the first program also writes the value.

    For SoftSort the gradient is written. For NeuralSort two sums of every item are written to
    ``numbers[4:6]``: of the derivatives t times their factors (the first sum of the module's
    formula), and of t alone, from which the second sum follows.
    """
    list_index = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    scale, length, row_count = _list_of(
        scales, lengths, defined, block_sums, blocks, list_index, k, METRIC, RANKED, NORM
    )
    base = list_index * rows if FEW else begin
    if METRIC != "operator":
        _write_value(
            values, defined, sums + 2 * stride + base, list_index, row_count, length, k, scale,
            METRIC, RANKED,
        )  # fmt: skip
    index = begin + tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    valid = index < end
    score = tl.load(numbers + index, mask=valid, other=0.0)
    gain = tl.load(numbers + size + index, mask=valid, other=0.0)
    ties = tl.load(numbers + 2 * size + index, mask=valid, other=1.0)  # NeuralSort: below - above
    distance = score.to(tl.float64)
    if not SOFT:
        distance = tl.load(distances + index, mask=valid, other=float("inf"))
    strength = 1.4426950408889634 / temperature
    # NeuralSort: t times its factor, and t. SoftSort: t with the sign of row minus item, and, over
    # rows whose score ties with the item, t times the tie offset, and the two derivatives with
    # respect to the row's score.
    signed_sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    logit_sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    rank_sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    tie_sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for first_row in range(0, row_count, HEIGHT):
        row = first_row + tl.arange(0, HEIGHT)
        inside = row < row_count
        rank_index, at = begin + row, base + row
        row_score, row_distance, row_gain = _load_rows(
            numbers, distances, rank_index, inside, size, SOFT, RANKED
        )
        weight = tl.load(sums + at, mask=inside, other=0.0)
        row_grad = weight
        if METRIC == "operator":
            row_grad = tl.load(grads + rank_index, mask=inside, other=0.0)
            weight *= row_grad
        mean = tl.load(sums + stride + at, mask=inside, other=0.0)
        score_factor = (length - 1 - 2 * row).to(tl.float32)
        entry = _entries(score, distance, row_score, row_distance, score_factor, strength, SOFT)
        gain_difference = gain[None, :] - row_gain[:, None]
        by_logit = entry * weight[:, None] * (gain_difference - mean[:, None])
        if SOFT:
            tie_offset = tl.load(numbers + 4 * size + rank_index, mask=inside, other=0.0)
            rank_grad = tl.load(sums + 3 * stride + at, mask=inside, other=0.0)
            tie_grad = tl.load(sums + 4 * stride + at, mask=inside, other=0.0)
            if METRIC == "operator":
                rank_grad *= row_grad
                tie_grad *= row_grad
            is_higher = row_score[:, None] > score[None, :]
            is_tied = row_score[:, None] == score[None, :]
            signed_sums += tl.where(is_tied, 0.0, tl.where(is_higher, by_logit, -by_logit))
            logit_sums += tl.where(is_tied, by_logit * tie_offset[:, None], 0.0)
            rank_sums += tl.where(is_tied, rank_grad[:, None], 0.0)
            tie_sums += tl.where(is_tied, tie_grad[:, None], 0.0)
        else:
            signed_sums += by_logit * (score_factor[:, None] - ties[None, :])
            logit_sums += by_logit
    signed_sum, logit_sum = tl.sum(signed_sums, 0), tl.sum(logit_sums, 0)
    if SOFT:
        apart, tied = -signed_sum / temperature, -logit_sum / temperature
        result = tl.sum(rank_sums, 0) / tl.maximum(ties, 1.0) - apart - tied
        result += (tl.sum(tie_sums, 0) - tied) / tl.maximum(ties - 1.0, 1.0)
        result = as_gradient(result, METRIC)
        result = tl.where(score == float("inf"), 0.0, result)
        target = tl.load(order + index, mask=valid, other=0) if RANKED else index
        tl.store(grad_scores + target, result, mask=valid)
    else:
        tl.store(numbers + 4 * size + index, signed_sum, mask=valid)
        tl.store(numbers + 5 * size + index, logit_sum, mask=valid)


@triton.jit
def _with_distances(derivative, by_distance, temperature, METRIC: tl.constexpr):
    """The gradient of the scores, with its part through ``Σ_k |s_j - s_k|`` in float64."""
    total = (derivative.to(tl.float64) + by_distance).to(tl.float32)
    return as_gradient(total / temperature, METRIC)


@cached_launch
@triton.jit(do_not_specialize=["size"])
def _through_pairs(
    numbers, distances, offsets, grad_scores, temperature, size,
    METRIC: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a block of items, with its part through ``Σ_k |s_j - s_k|``.

    That part is ``-Σ_j sign(s_i - s_j) Σ_r t_rj``, summed over all pairs of the list.
    """
    _, begin, count, item, inside, _ = list_block(None, offsets, HEIGHT)
    index = begin + item
    score = tl.load(numbers + index, mask=inside, other=0.0)
    result = tl.zeros([HEIGHT, WIDTH], tl.float64)
    for first_column in range(0, count, WIDTH):
        column = first_column + tl.arange(0, WIDTH)
        column_score = tl.load(numbers + begin + column, mask=column < count, other=0.0)
        by_logit = tl.load(numbers + 5 * size + begin + column, mask=column < count, other=0.0)
        exact = by_logit.to(tl.float64)[None, :]
        is_higher = column_score[None, :] > score[:, None]
        is_lower = column_score[None, :] < score[:, None]
        result += tl.where(is_higher, exact, tl.where(is_lower, -exact, 0.0))
    derivative = tl.load(numbers + 4 * size + index, mask=inside, other=0.0)
    derivative = _with_distances(derivative, tl.sum(result, 1), temperature, METRIC)
    real = tl.load(distances + index, mask=inside, other=float("inf")) < float("inf")
    tl.store(grad_scores + index, tl.where(real, derivative, 0.0), mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["skip"])
def _prefix(numbers, offsets, lengths, chunks, prefix, skip, CHUNK: tl.constexpr):
    """Write exclusive prefix sums over a chunk of a list; after the last chunk also the total.

    So ``prefix`` has one number more per list than there are items.
    """
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
    """:func:`_through_pairs` for a chunk of a sorted list, by prefix sums."""
    list_index, begin, _, at, length = _chunk_of(offsets, lengths, CHUNK)
    inside = at < tl.load(offsets + list_index + 1) - begin
    real = at < length
    index = begin + at
    score = tl.load(numbers + index, mask=real, other=0.0)
    start, end = tie_group(numbers, begin, begin + length, index, score, real, steps)
    total = tl.load(prefix + begin + list_index + length, mask=length > 0, other=0.0)
    above = tl.load(prefix + list_index + start, mask=real, other=0.0)
    below = total - tl.load(prefix + list_index + end, mask=real, other=0.0)
    derivative = tl.load(numbers + 4 * size + index, mask=real, other=0.0)
    derivative = _with_distances(derivative, above - below, temperature, METRIC)
    target = tl.load(order + index, mask=inside, other=0)
    tl.store(grad_scores + target, tl.where(real, derivative, 0.0), mask=inside)
