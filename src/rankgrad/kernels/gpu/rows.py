"""Metrics through the rows of NeuralSort or SoftSort, value and slopes in one operation.

The gradient by every row's expected gain is known beforehand, so what has to be known of a row is
the sum of its exponentials with and without the gains; then each item gathers its slope from the
rows. No row is ever stored. Short lists are not sorted: ranks and sums over all other items are
counted, pair by pair. Long ones are sorted once.

NeuralSort's logits are of size n |s| and cancel near the maximum of a row, hence float64 up to
there. With ``t_rj`` the derivative by the logit of item j in row r, item i has the slope

    Σ_r (slope_r - below_i + above_i) t_ri - Σ_j sign(s_i - s_j) Σ_r t_rj,

in which nothing of size n is left to cancel: above and below count the items strictly so.
"""

# mypy: disable-error-code="import-untyped, no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu.launch import cdiv, quick
from rankgrad.kernels.gpu.linear import as_loss, beyond, discount, is_real
from rankgrad.kernels.gpu.order import COUNTED, sort_lists, tie_end, tie_start
from rankgrad.kernels.gpu.prepare import (
    IDEAL,
    gain_kind,
    list_sums,
    load_gains,
    norm_kind,
    prepare,
    presence,
    scale_of,
)

_PROGRAMS = 528  # four for each multiprocessor of a large GPU
_CHUNK = 1024  # of a long list, in sorted order


def through_rows(
    batch: FlatLists,
    relaxation: str,
    temperature: float,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through relaxed rows; see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, longest = batch
    metric, k, gain, threshold, persistence = metric_options
    lists = offsets.numel() - 1
    values, slopes = scores.new_empty(lists), torch.empty_like(scores)
    if lists == 0 or scores.numel() == 0:
        return values.zero_(), slopes.zero_(), torch.zeros_like(values, dtype=torch.bool)
    soft, few = relaxation == "softsort", 0 < k < longest
    rows = k if few else longest
    given = (labels, mask, weights, offsets, longest, metric, k, gain, threshold)
    place = _count if longest <= COUNTED else _sort
    items = place(scores, given, soft)
    options = {"metric": metric, "few": few, "soft": soft, "ranked": items.slots is not None}
    numbers = (temperature, persistence, k, rows, scores.numel())
    sums = _sum_rows(items, offsets, numbers, longest, options)
    _gather(items, sums, offsets, numbers, longest, options, values, slopes)
    return values, slopes, items.defined


@dataclass(frozen=True)
class _Items:
    """Items, in slot order (short lists) or sorted; and the same by rank, for the rows.

    Args:
        numbers: ``[7, slots]``: score, gain, and below - above (SoftSort: the size of the tie);
            by rank the score, two more, and the gain. Those two are for SoftSort, by rank, tilt
            within and size of the tie, and for NeuralSort what the rows will pull.
        distances: ``[slots]`` float64, ``Σ_k |s_j - s_k|``, inf on padding; in slot order followed
            by the same by rank.
        slots: of sorted items, which slot each comes from; None in slot order.
        known: scale and length of each list; or, of short lists, nothing yet.
        defined: where the loss is.
        parts: of short lists, what blocks of items add to their list.
        norm: which norm those parts are for.
    """

    numbers: Tensor
    distances: Tensor
    slots: Tensor | None
    known: tuple[Tensor, Tensor]
    defined: Tensor
    parts: Tensor
    norm: int

    @property
    def of_lists(self) -> tuple[Any, ...]:
        """What kernels need to know each list."""
        return (*self.known, self.defined, self.parts, self.parts.shape[1])


def _count(scores: Tensor, given: tuple[Any, ...], soft: bool) -> _Items:
    labels, mask, weights, offsets, longest, metric, k, gain, threshold = given
    lists, slots = offsets.numel() - 1, scores.numel()
    blocks = cdiv(longest, 32)
    numbers = scores.new_empty(7, slots)
    distances = torch.empty(0 if soft else 2 * slots, dtype=torch.float64, device=scores.device)
    parts = scores.new_empty(lists, blocks, 4)
    defined = torch.empty(lists, dtype=torch.bool, device=scores.device)
    norm = norm_kind(metric, k)
    _count_pairs[(lists, blocks)](
        scores, labels, presence(mask, scores), presence(weights, scores), offsets,
        numbers, distances, parts, threshold, k, slots,
        kind=gain_kind(metric, gain), ideal=norm == IDEAL, masked=mask is not None,
        weighted=weights is not None, soft=soft, height=32, width=32,
    )  # fmt: skip
    return _Items(numbers, distances, None, (parts, parts), defined, parts, norm)


def _sort(scores: Tensor, given: tuple[Any, ...], soft: bool) -> _Items:
    gains, scale, lengths, defined = prepare(*given)
    mask, offsets, longest = given[1], given[3], given[4]
    lists, slots = offsets.numel() - 1, scores.numel()
    ranked = sort_lists(scores, mask, offsets, longest)
    chunks = torch.empty(slots // _CHUNK + lists + 1, dtype=torch.float64, device=scores.device)
    numbers = scores.new_empty(7, slots)
    distances = torch.empty(0 if soft else slots, dtype=torch.float64, device=scores.device)
    grid = (lists, cdiv(longest, _CHUNK))
    if not soft:
        _add_chunks[grid](ranked.scores, offsets, lengths, chunks, 0, chunk=_CHUNK)
    _place_sorted[grid](
        ranked.scores, ranked.slots, gains, offsets, lengths, chunks, numbers, distances, slots,
        longest.bit_length() + 1, soft=soft, chunk=_CHUNK,
    )  # fmt: skip
    parts = scores.new_empty(0, 0, 4)
    return _Items(numbers, distances, ranked.slots, (scale, lengths), defined, parts, 0)


def _tile(rows: int) -> tuple[int, int]:
    """Rows and items that a program looks at together: what its registers hold."""
    return (16, 64) if rows <= 16 else (32, 32)


def _sum_rows(
    items: _Items,
    offsets: Tensor,
    numbers: tuple[Any, ...],
    longest: int,
    options: dict[str, Any],
) -> Tensor:
    """For every row: its factor over the sum, mean, worth; SoftSort: its pulls on tied items."""
    lists, rows, slots = offsets.numel() - 1, *numbers[-2:]
    height, width = _tile(rows)
    blocks = cdiv(rows, height)
    splits = max(1, min(_PROGRAMS // (lists * blocks), cdiv(longest, 4 * width)))
    total = lists * rows if options["few"] else slots
    sums = items.numbers.new_empty(5, total)
    parts = items.numbers.new_empty(5, splits, total) if splits > 1 else sums
    arguments = (*items.of_lists, offsets, items.numbers, items.distances, parts, sums)
    shared = {**options, "norm": items.norm, "height": height}
    _rows[(lists, blocks, splits)](
        *arguments, *numbers, total, splits, **shared, whole=splits == 1, width=width
    )
    if splits > 1:
        _finish_rows[(lists, blocks)](*arguments, *numbers, total, splits, **shared)
    return sums


def _gather(
    items: _Items,
    sums: Tensor,
    offsets: Tensor,
    numbers: tuple[Any, ...],
    longest: int,
    options: dict[str, Any],
    values: Tensor,
    slopes: Tensor,
) -> None:
    """The slope of every item from the rows, and the values."""
    lists, rows, slots = offsets.numel() - 1, *numbers[-2:]
    order = offsets if items.slots is None else items.slots
    height, width = _tile(rows)
    _gather_rows[(lists, cdiv(longest, width))](
        *items.of_lists, offsets, items.numbers, items.distances, sums, order, values, slopes,
        *numbers, sums.shape[1],
        **options, norm=items.norm, height=height, width=width,
    )  # fmt: skip
    if options["soft"]:
        return
    temperature, metric = numbers[0], options["metric"]
    if items.slots is None:
        _through_pairs[(lists, cdiv(longest, 32))](
            items.numbers, items.distances, offsets, slopes, temperature, slots,
            metric=metric, height=32, width=64,
        )  # fmt: skip
        return
    chunks = torch.empty(slots // _CHUNK + lists + 1, dtype=torch.float64, device=slopes.device)
    prefix = torch.empty(slots + lists, dtype=torch.float64, device=slopes.device)
    grid = (lists, cdiv(longest, _CHUNK))
    lengths = items.known[1]
    _add_chunks[grid](items.numbers, offsets, lengths, chunks, 5 * slots, chunk=_CHUNK)
    _prefix[grid](items.numbers, offsets, lengths, chunks, prefix, 5 * slots, chunk=_CHUNK)
    _through_sorted[grid](
        items.numbers, prefix, order, offsets, lengths, slopes, temperature, slots,
        longest.bit_length() + 1, metric=metric, chunk=_CHUNK,
    )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["k", "slots"])
def _count_pairs(
    scores, labels, mask, weights, offsets, numbers, distances, parts, threshold, k, slots,
    kind: tl.constexpr, ideal: tl.constexpr, masked: tl.constexpr, weighted: tl.constexpr,
    soft: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Ranks, ties and sums of distances of some items, by looking at all of their list.

    And what they add to the norm: the place of their gains in the ideal order is counted, too.
    """
    place = tl.program_id(0)
    begin = tl.load(offsets + place)
    count = (tl.load(offsets + place + 1) - begin).to(tl.int32)
    item = tl.program_id(1) * height + tl.arange(0, height)
    inside = item < count
    real = is_real(mask, begin + item, inside, masked)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    gain = load_gains(labels, weights, begin + item, real, threshold, kind, weighted)
    exact = score.to(tl.float64)
    above = tl.zeros([height, width], tl.int32)
    before = tl.zeros([height, width], tl.int32)
    ties = tl.zeros([height, width], tl.int32)  # or below - above
    ahead = tl.zeros([height, width], tl.int32)
    distance = tl.zeros([height, width], tl.float64)
    for first in range(0, tl.where(tl.program_id(1) * height < count, count, 0), width):
        column = first + tl.arange(0, width)
        there = is_real(mask, begin + column, column < count, masked)
        other = tl.load(scores + begin + column, mask=there, other=float("nan"))
        earlier = column[None, :] < item[:, None]
        same = other[None, :] == score[:, None]
        over = (other[None, :] > score[:, None]).to(tl.int32)
        above += over
        before += (same & earlier).to(tl.int32)
        if soft:
            ties += same.to(tl.int32)
        else:
            ties += (other[None, :] < score[:, None]).to(tl.int32) - over
            gap = tl.abs(other.to(tl.float64)[None, :] - exact[:, None])
            distance += tl.where(there[None, :], gap, 0.0)
        if ideal:
            worth = load_gains(labels, weights, begin + column, there, threshold, kind, weighted)
            equal = (worth[None, :] == gain[:, None]) & earlier
            ahead += ((worth[None, :] > gain[:, None]) | equal).to(tl.int32)
    earlier = tl.sum(before, 1)
    tied = tl.sum(ties, 1).to(tl.float32)
    slot, rank = begin + item, begin + tl.sum(above, 1) + earlier
    worth = tl.where(real, gain, 0.0)
    tl.store(numbers + slots + slot, worth, mask=inside)
    tl.store(numbers + 2 * slots + slot, tied, mask=inside)
    tl.store(numbers + 3 * slots + rank, score, mask=real)
    tl.store(numbers + 6 * slots + rank, worth, mask=real)
    if soft:
        tilt = (tied - 1.0 - 2.0 * earlier) / tl.maximum(tied, 1.0)
        tl.store(numbers + slot, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 4 * slots + rank, tilt, mask=real)
        tl.store(numbers + 5 * slots + rank, tied, mask=real)
    else:
        total = tl.sum(distance, 1)
        tl.store(numbers + slot, score, mask=inside)
        tl.store(distances + slot, tl.where(real, total, float("inf")), mask=inside)
        tl.store(distances + slots + rank, total, mask=real)
    best = 0.0
    if ideal:
        at = tl.sum(ahead, 1)
        counted = real & ((k == 0) | (at < k))
        best = tl.sum(tl.where(counted, worth / tl.log2(at + 2.0), 0.0), 0)
    mine = parts + (place * tl.num_programs(1) + tl.program_id(1)) * 4
    tl.store(mine, best)
    tl.store(mine + 1, tl.sum(worth, 0))
    tl.store(mine + 2, tl.sum(real.to(tl.float32), 0))
    tl.store(mine + 3, tl.sum((worth > 0).to(tl.float32), 0))


@triton.jit
def _chunk_of(offsets, lengths, chunk: tl.constexpr):
    """The list, its first slot, the first of its chunks, and the places of this chunk."""
    place = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + place)
    chunks = begin // chunk + place
    at = tl.program_id(1).to(tl.int64) * chunk + tl.arange(0, chunk)
    return place, begin, chunks, at, tl.load(lengths + place).to(tl.int64)


@quick
@triton.jit(do_not_specialize=["skip"])
def _add_chunks(numbers, offsets, lengths, chunks, skip, chunk: tl.constexpr):
    """The sums over the chunks of each list."""
    _, begin, first, at, length = _chunk_of(offsets, lengths, chunk)
    if tl.program_id(1) * chunk < length:
        number = tl.load(numbers + skip + begin + at, mask=at < length, other=0.0)
        tl.store(chunks + first + tl.program_id(1), tl.sum(number.to(tl.float64), 0))


@triton.jit
def _around(chunks, first, mine, count):
    """The sums over the chunks before this one, and over all."""
    before = tl.zeros([1024], tl.float64)
    total = tl.zeros([1024], tl.float64)
    for left in range(0, count, 1024):
        some = left + tl.arange(0, 1024)
        part = tl.load(chunks + first + some, mask=some < count, other=0.0)
        total += part
        before += tl.where(some < mine, part, 0.0)
    return tl.sum(before, 0), tl.sum(total, 0)


@quick
@triton.jit(do_not_specialize=["slots", "steps"])
def _place_sorted(
    ranked, order, gains, offsets, lengths, chunks, numbers, distances, slots, steps,
    soft: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """What :func:`_count_pairs` says, of sorted items."""
    place, begin, first, at, length = _chunk_of(offsets, lengths, chunk)
    inside = at < tl.load(offsets + place + 1) - begin
    real = at < length
    slot = begin + at
    score = tl.load(ranked + slot, mask=real, other=0.0)
    source = tl.load(order + slot, mask=real, other=0)
    gain = tl.load(gains + source, mask=real, other=0.0)
    previous = tl.load(ranked + slot - 1, mask=real & (at > 0), other=float("inf"))
    following = tl.load(ranked + slot + 1, mask=real & (at + 1 < length), other=float("-inf"))
    tied = real & ((previous == score) | (following == score))
    start = tie_start(ranked, begin, slot, score, tied, steps) - begin
    end = tie_end(ranked, begin + length, slot, score, tied, steps) - begin
    tl.store(numbers + slots + slot, gain, mask=inside)
    tl.store(numbers + 3 * slots + slot, score, mask=inside)
    tl.store(numbers + 6 * slots + slot, gain, mask=inside)
    if soft:
        size = (end - start).to(tl.float32)
        tilt = ((end - 1 - at) - (at - start)).to(tl.float32) / size
        tl.store(numbers + slot, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 2 * slots + slot, size, mask=inside)
        tl.store(numbers + 4 * slots + slot, tilt, mask=inside)
        tl.store(numbers + 5 * slots + slot, size, mask=inside)
    else:
        exact = score.to(tl.float64)
        before, total = _around(chunks, first, tl.program_id(1), (length + chunk - 1) // chunk)
        prefix = before + tl.cumsum(exact, 0)
        over, under = at.to(tl.float64), (length - 1 - at).to(tl.float64)
        distance = (prefix - exact - over * exact) + (under * exact - (total - prefix))
        tilt = ((length - end) - start).to(tl.float32)
        tl.store(numbers + slot, score, mask=inside)
        tl.store(numbers + 2 * slots + slot, tilt, mask=inside)
        tl.store(distances + slot, tl.where(real, distance, float("inf")), mask=inside)


@triton.jit
def _entries(
    score, distance, row_score, row_distance, slope, strength, soft: tl.constexpr
):  # fmt: skip
    """The exponentials of a tile of rows and items, 1 at a row's maximum."""
    if soft:
        return tl.exp2(tl.abs(row_score[:, None] - score[None, :]) * -strength)
    else:
        exact, row_exact = score.to(tl.float64), row_score.to(tl.float64)
        logits = slope.to(tl.float64)[:, None] * (exact[None, :] - row_exact[:, None])
        logits -= distance[None, :] - row_distance[:, None]
        return tl.exp2(tl.minimum(logits.to(tl.float32) * strength, 0.0))


@triton.jit
def _list_of(
    scales, lengths, defined, parts, blocks, place, k, ranked: tl.constexpr, norm: tl.constexpr
):  # fmt: skip
    """The scale of a list, 0 where the loss is undefined, its length, and how many rows count."""
    if ranked:
        scale = tl.where(tl.load(defined + place) != 0, tl.load(scales + place), 0.0)
        length = tl.load(lengths + place)
    else:
        ideal, total, items, counting = list_sums(parts, place, blocks, 256)
        length = items.to(tl.int32)
        scale = scale_of(ideal, total, items, k, norm)
        scale = tl.where((counting > 0) & (length > 1), scale, 0.0)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    return scale, length, tl.where(scale > 0, rows, 0)


@triton.jit
def _write_row(
    total, mean, sided, sided_gain, tied_gain, numbers, sums, at, by, row, inside, scale, past,
    temperature, persistence, slots, many, metric: tl.constexpr, soft: tl.constexpr,
):  # fmt: skip
    """What the items need to know of a row.

    Gains are counted from that of the item which stands at the row's rank: where nearly all of the
    row is on it, what is left would be lost in the sum.
    """
    factor = scale * (discount(row + 1.0, metric, persistence) - past)
    total = tl.where(inside, total, 1.0)
    mean = mean / total
    weight = factor / total
    tl.store(sums + at, weight, mask=inside)
    tl.store(sums + many + at, mean, mask=inside)
    row_gain = tl.load(numbers + 6 * slots + by, mask=inside, other=0.0)
    tl.store(sums + 2 * many + at, factor * (row_gain + mean), mask=inside)
    if soft:
        # By the distances, of which the logits are minus 1 / τ.
        weight = -weight / temperature
        tilt = tl.load(numbers + 4 * slots + by, mask=inside, other=0.0)
        size = tl.load(numbers + 5 * slots + by, mask=inside, other=0.0)
        tl.store(sums + 3 * many + at, weight * (sided_gain - mean * sided), mask=inside)
        tl.store(sums + 4 * many + at, weight * tilt * (tied_gain - mean * size), mask=inside)


@quick
@triton.jit(do_not_specialize=["blocks", "k", "rows", "slots", "many", "splits"])
def _rows(
    scales, lengths, defined, of_blocks, blocks, offsets, numbers, distances, parts, sums,
    temperature, persistence, k, rows, slots, many, splits,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr, ranked: tl.constexpr,
    norm: tl.constexpr, height: tl.constexpr, whole: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Sums over the items for some rows of a list; all of them, or one part of several."""
    place, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    scale, length, last = _list_of(
        scales, lengths, defined, of_blocks, blocks, place, k, ranked, norm
    )
    row = tl.program_id(1) * height + tl.arange(0, height)
    if tl.program_id(1) * height < last:
        inside = row < last
        by = begin + row
        row_score = tl.load(numbers + 3 * slots + by, mask=inside, other=0.0)
        row_distance = row_score.to(tl.float64)
        if not soft:
            by_rank = distances if ranked else distances + slots
            row_distance = tl.load(by_rank + by, mask=inside, other=0.0)
        row_gain = tl.load(numbers + 6 * slots + by, mask=inside, other=0.0)
        slope = (length - 1 - 2 * row).to(tl.float32)
        strength = 1.4426950408889634 / temperature
        total = tl.zeros([height, width], tl.float32)
        mean = tl.zeros([height, width], tl.float32)
        sided = tl.zeros([height, width], tl.float32)
        sided_gain = tl.zeros([height, width], tl.float32)
        tied_gain = tl.zeros([height, width], tl.float32)
        for first in range(begin + split * width, end, splits * width):
            slot = first + tl.arange(0, width)
            there = slot < end
            score = tl.load(numbers + slot, mask=there, other=float("inf"))
            gain = tl.load(numbers + slots + slot, mask=there, other=0.0)
            distance = score.to(tl.float64)
            if not soft:
                score = tl.where(there, score, 0.0)
                distance = tl.load(distances + slot, mask=there, other=float("inf"))
            entry = _entries(score, distance, row_score, row_distance, slope, strength, soft)
            total += entry
            more = gain[None, :] - row_gain[:, None]
            mean += entry * more
            if soft:
                higher = row_score[:, None] > score[None, :]
                same = row_score[:, None] == score[None, :]
                signed = tl.where(same, 0.0, tl.where(higher, entry, -entry))
                sided += signed
                sided_gain += signed * more
                tied_gain += tl.where(same, more, 0.0)
        at = row + (place * rows if few else begin)
        total, mean = tl.sum(total, 1), tl.sum(mean, 1)
        sided, sided_gain, tied_gain = tl.sum(sided, 1), tl.sum(sided_gain, 1), tl.sum(tied_gain, 1)
        if whole:
            _write_row(
                total, mean, sided, sided_gain, tied_gain, numbers, sums, at, by, row, inside,
                scale, beyond(length, k, metric), temperature, persistence, slots, many,
                metric, soft,
            )  # fmt: skip
        else:
            tl.store(parts + (0 * splits + split) * many + at, total, mask=inside)
            tl.store(parts + (1 * splits + split) * many + at, mean, mask=inside)
            if soft:
                tl.store(parts + (2 * splits + split) * many + at, sided, mask=inside)
                tl.store(parts + (3 * splits + split) * many + at, sided_gain, mask=inside)
                tl.store(parts + (4 * splits + split) * many + at, tied_gain, mask=inside)


@triton.jit
def _add_parts(
    parts, at, inside, many, splits, height: tl.constexpr
):  # fmt: skip
    """The sums over the parts of some rows, in float64."""
    total = tl.zeros([height, 64], tl.float64)
    for left in range(0, splits, 64):
        split = (left + tl.arange(0, 64)).to(tl.int64)
        there = inside[:, None] & (split < splits)[None, :]
        part = tl.load(parts + split[None, :] * many + at[:, None], mask=there, other=0.0)
        total += part.to(tl.float64)
    return tl.sum(total, 1).to(tl.float32)


@quick
@triton.jit(do_not_specialize=["blocks", "k", "rows", "slots", "many", "splits"])
def _finish_rows(
    scales, lengths, defined, of_blocks, blocks, offsets, numbers, distances, parts, sums,
    temperature, persistence, k, rows, slots, many, splits,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr, ranked: tl.constexpr,
    norm: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """Add up the parts of rows."""
    place = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + place)
    scale, length, last = _list_of(
        scales, lengths, defined, of_blocks, blocks, place, k, ranked, norm
    )
    row = tl.program_id(1) * height + tl.arange(0, height)
    if tl.program_id(1) * height < last:
        inside = row < last
        at = row + (place * rows if few else begin)
        total = _add_parts(parts, at, inside, many, splits, height)
        mean = _add_parts(parts + splits * many, at, inside, many, splits, height)
        sided, sided_gain, tied_gain = total, total, total
        if soft:
            sided = _add_parts(parts + 2 * splits * many, at, inside, many, splits, height)
            sided_gain = _add_parts(parts + 3 * splits * many, at, inside, many, splits, height)
            tied_gain = _add_parts(parts + 4 * splits * many, at, inside, many, splits, height)
        _write_row(
            total, mean, sided, sided_gain, tied_gain, numbers, sums, at,
            begin + row, row, inside, scale, beyond(length, k, metric), temperature, persistence,
            slots, many, metric, soft,
        )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["blocks", "k", "rows", "slots", "many"])
def _gather_rows(
    scales, lengths, defined, of_blocks, blocks, offsets, numbers, distances,
    sums, order, values, slopes, temperature, persistence, k, rows, slots, many,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr, ranked: tl.constexpr,
    norm: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """What some items gather from all rows; the first program of a list also adds its value."""
    place = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    scale, length, last = _list_of(
        scales, lengths, defined, of_blocks, blocks, place, k, ranked, norm
    )
    base = place * rows if few else begin
    if tl.program_id(1) == 0:
        worth = tl.zeros([256], tl.float32)
        for first in range(0, last, 256):
            row = first + tl.arange(0, 256)
            worth += tl.load(sums + 2 * many + base + row, mask=row < last, other=0.0)
        tl.store(values + place, as_loss(tl.sum(worth, 0), length, k, scale, metric))
        if not ranked:
            tl.store(defined + place, scale > 0)
    slot = begin + tl.program_id(1) * width + tl.arange(0, width)
    there = slot < end
    score = tl.load(numbers + slot, mask=there, other=0.0)
    gain = tl.load(numbers + slots + slot, mask=there, other=0.0)
    ties = tl.load(numbers + 2 * slots + slot, mask=there, other=1.0)
    distance = score.to(tl.float64)
    if not soft:
        distance = tl.load(distances + slot, mask=there, other=float("inf"))
    strength = 1.4426950408889634 / temperature
    one = tl.zeros([height, width], tl.float32)
    two = tl.zeros([height, width], tl.float32)
    of_rank = tl.zeros([height, width], tl.float32)
    of_tie = tl.zeros([height, width], tl.float32)
    for first in range(0, last, height):
        row = first + tl.arange(0, height)
        inside = row < last
        by, at = begin + row, base + row
        row_score = tl.load(numbers + 3 * slots + by, mask=inside, other=0.0)
        row_distance = row_score.to(tl.float64)
        if not soft:
            by_rank = distances if ranked else distances + slots
            row_distance = tl.load(by_rank + by, mask=inside, other=0.0)
        row_gain = tl.load(numbers + 6 * slots + by, mask=inside, other=0.0)
        weight = tl.load(sums + at, mask=inside, other=0.0)
        mean = tl.load(sums + many + at, mask=inside, other=0.0)
        slope = (length - 1 - 2 * row).to(tl.float32)
        entry = _entries(score, distance, row_score, row_distance, slope, strength, soft)
        more = gain[None, :] - row_gain[:, None]
        pull = entry * weight[:, None] * (more - mean[:, None])
        if soft:
            tilt = tl.load(numbers + 4 * slots + by, mask=inside, other=0.0)
            rank_pull = tl.load(sums + 3 * many + at, mask=inside, other=0.0)
            tie_pull = tl.load(sums + 4 * many + at, mask=inside, other=0.0)
            higher = row_score[:, None] > score[None, :]
            same = row_score[:, None] == score[None, :]
            one += tl.where(same, 0.0, tl.where(higher, pull, -pull))
            two += tl.where(same, pull * tilt[:, None], 0.0)
            of_rank += tl.where(same, rank_pull[:, None], 0.0)
            of_tie += tl.where(same, tie_pull[:, None], 0.0)
        else:
            one += pull * (slope[:, None] - ties[None, :])
            two += pull
    apart, tied = tl.sum(one, 0), tl.sum(two, 0)
    if soft:
        apart, tied = -apart / temperature, -tied / temperature
        result = tl.sum(of_rank, 0) / tl.maximum(ties, 1.0) - apart - tied
        result += (tl.sum(of_tie, 0) - tied) / tl.maximum(ties - 1.0, 1.0)
        if metric != "arp":
            result = -result
        result = tl.where(score == float("inf"), 0.0, result)
        target = tl.load(order + slot, mask=there, other=0) if ranked else slot
        tl.store(slopes + target, result, mask=there)
    else:
        tl.store(numbers + 4 * slots + slot, apart, mask=there)
        tl.store(numbers + 5 * slots + slot, tied, mask=there)


@quick
@triton.jit(do_not_specialize=["slots"])
def _through_pairs(
    numbers, distances, offsets, slopes, temperature, slots,
    metric: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Through the sums of distances: what all items of the list above and below pull."""
    place = tl.program_id(0)
    begin = tl.load(offsets + place)
    count = (tl.load(offsets + place + 1) - begin).to(tl.int32)
    item = tl.program_id(1) * height + tl.arange(0, height)
    inside = item < count
    slot = begin + item
    score = tl.load(numbers + slot, mask=inside, other=0.0)
    result = tl.zeros([height, width], tl.float64)
    for first in range(0, count, width):
        column = first + tl.arange(0, width)
        other = tl.load(numbers + begin + column, mask=column < count, other=0.0)
        pull = tl.load(numbers + 5 * slots + begin + column, mask=column < count, other=0.0)
        exact = pull.to(tl.float64)[None, :]
        higher = other[None, :] > score[:, None]
        lower = other[None, :] < score[:, None]
        result += tl.where(higher, exact, tl.where(lower, -exact, 0.0))
    slope = tl.load(numbers + 4 * slots + slot, mask=inside, other=0.0).to(tl.float64) + tl.sum(
        result, 1
    )
    slope = slope.to(tl.float32) / temperature
    if metric != "arp":
        slope = -slope
    real = tl.load(distances + slot, mask=inside, other=float("inf")) < float("inf")
    tl.store(slopes + slot, tl.where(real, slope, 0.0), mask=inside)


@quick
@triton.jit(do_not_specialize=["skip"])
def _prefix(numbers, offsets, lengths, chunks, prefix, skip, chunk: tl.constexpr):
    """The sums over the items before each place of a list, its end included."""
    place, begin, first, at, length = _chunk_of(offsets, lengths, chunk)
    if tl.program_id(1) * chunk < length:
        count = (length + chunk - 1) // chunk
        before, total = _around(chunks, first, tl.program_id(1), count)
        number = tl.load(numbers + skip + begin + at, mask=at < length, other=0.0).to(tl.float64)
        sums = before + tl.cumsum(number, 0) - number
        tl.store(prefix + begin + place + at, sums, mask=at < length)
        if tl.program_id(1) == count - 1:
            tl.store(prefix + begin + place + length, total)


@quick
@triton.jit(do_not_specialize=["slots", "steps"])
def _through_sorted(
    numbers, prefix, order, offsets, lengths, slopes, temperature, slots, steps,
    metric: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """What :func:`_through_pairs` says, of sorted items."""
    place, begin, _, at, length = _chunk_of(offsets, lengths, chunk)
    inside = at < tl.load(offsets + place + 1) - begin
    real = at < length
    slot = begin + at
    score = tl.load(numbers + slot, mask=real, other=0.0)
    previous = tl.load(numbers + slot - 1, mask=real & (at > 0), other=float("inf"))
    following = tl.load(numbers + slot + 1, mask=real & (at + 1 < length), other=float("-inf"))
    tied = real & ((previous == score) | (following == score))
    start = tie_start(numbers, begin, slot, score, tied, steps)
    end = tie_end(numbers, begin + length, slot, score, tied, steps)
    total = tl.load(prefix + begin + place + length, mask=length > 0, other=0.0)
    above = tl.load(prefix + place + start, mask=real, other=0.0)
    below = total - tl.load(prefix + place + end, mask=real, other=0.0)
    slope = tl.load(numbers + 4 * slots + slot, mask=real, other=0.0).to(tl.float64) + (
        above - below
    )
    slope = slope.to(tl.float32) / temperature
    if metric != "arp":
        slope = -slope
    target = tl.load(order + slot, mask=inside, other=0)
    tl.store(slopes + target, tl.where(real, slope, 0.0), mask=inside)
