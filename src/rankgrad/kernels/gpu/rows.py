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

from rankgrad.kernels.gpu.linear import as_loss, beyond, discount, is_real
from rankgrad.kernels.gpu.order import COUNTED, sort_lists, tie_end, tie_start
from rankgrad.kernels.gpu.prepare import prepare

_PROGRAMS = 528  # four for each multiprocessor of a large GPU
_ITEMS = 64  # of a tile
_CHUNK = 1024  # of a long list, in sorted order


def through_rows(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    relaxation: str,
    temperature: float,
    metric: str,
    k: int,
    gain: str,
    threshold: float,
    persistence: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through relaxed rows; see :mod:`rankgrad.kernels.ops`."""
    gains, *known = prepare(labels, mask, weights, offsets, longest, metric, k, gain, threshold)
    lists, defined = offsets.numel() - 1, known[2]
    values, slopes = scores.new_empty(lists), torch.empty_like(scores)
    if lists == 0 or scores.numel() == 0:
        return values.zero_(), slopes.zero_(), defined
    soft = relaxation == "softsort"
    place = _count if longest <= COUNTED else _sort
    items = place(scores, gains, mask, offsets, known[1], longest, soft)
    few = 0 < k < longest
    rows = k if few else longest
    options = {"metric": metric, "few": few, "soft": soft}
    numbers = (temperature, persistence, k, rows)
    sums = _sum_rows(items, offsets, known, numbers, longest, options)
    _gather(items, sums, offsets, known, numbers, longest, options, mask, values, slopes)
    return values, slopes, defined


@dataclass(frozen=True)
class _Items:
    """Items, in slot order (short lists) or sorted; and the same by rank, for the rows.

    Args:
        numbers: ``[3, slots]`` score, gain, and below - above (or, SoftSort, the size of the tie).
        distances: ``[slots]`` float64, ``Σ_k |s_j - s_k|``; inf on padding.
        by_rank: ``[3, slots]`` score and, for SoftSort, tilt within and size of the tie.
        distances_by_rank: as it says.
        slots: of sorted items, which slot each comes from; None in slot order.
    """

    numbers: Tensor
    distances: Tensor
    by_rank: Tensor
    distances_by_rank: Tensor
    slots: Tensor | None


def _count(
    scores: Tensor,
    gains: Tensor,
    mask: Tensor | None,
    offsets: Tensor,
    lengths: Tensor,
    longest: int,
    soft: bool,
) -> _Items:
    lists, slots = offsets.numel() - 1, scores.numel()
    numbers = scores.new_empty(6, slots)
    distances = torch.empty(2, slots, dtype=torch.float64, device=scores.device)
    _count_pairs[(lists, triton.cdiv(longest, 32))](
        scores, gains, scores if mask is None else mask, offsets, numbers, distances, slots,
        masked=mask is not None, soft=soft, height=32, width=64,
    )  # fmt: skip
    return _Items(numbers[:3], distances[0], numbers[3:], distances[1], None)


def _sort(
    scores: Tensor,
    gains: Tensor,
    mask: Tensor | None,
    offsets: Tensor,
    lengths: Tensor,
    longest: int,
    soft: bool,
) -> _Items:
    lists, slots = offsets.numel() - 1, scores.numel()
    ranked = sort_lists(scores, mask, offsets, longest)
    chunks = torch.empty(slots // _CHUNK + lists + 1, dtype=torch.float64, device=scores.device)
    numbers = scores.new_empty(6, slots)
    distances = torch.empty(slots, dtype=torch.float64, device=scores.device)
    grid = (lists, triton.cdiv(longest, _CHUNK))
    if not soft:
        _add_chunks[grid](ranked.scores, offsets, lengths, chunks, chunk=_CHUNK)
    _place_sorted[grid](
        ranked.scores, ranked.slots, gains, offsets, lengths, chunks, numbers, distances, slots,
        longest.bit_length() + 1, soft=soft, chunk=_CHUNK,
    )  # fmt: skip
    return _Items(numbers[:3], distances, numbers[3:], distances, ranked.slots)


def _sum_rows(
    items: _Items,
    offsets: Tensor,
    known: list[Tensor],
    numbers: tuple[Any, ...],
    longest: int,
    options: dict[str, Any],
) -> Tensor:
    """For every row: its factor over the sum, mean, worth; SoftSort: its pulls on tied items."""
    lists, rows, slots = offsets.numel() - 1, numbers[-1], items.numbers.shape[1]
    height = 16 if rows <= 16 else 32
    blocks = triton.cdiv(rows, height)
    splits = max(1, min(_PROGRAMS // (lists * blocks), triton.cdiv(longest, 4 * _ITEMS)))
    total = lists * rows if options["few"] else slots
    sums = items.numbers.new_empty(5, total)
    parts = items.numbers.new_empty(5, splits if splits > 1 else 0, total)
    shared = {**options, "splits": splits, "height": height}
    row_tensors = (*known, offsets, items.by_rank, items.distances_by_rank, parts, sums)
    _rows[(lists, blocks, splits)](
        *row_tensors, items.numbers, items.distances, *numbers, slots, total,
        **shared, width=_ITEMS,
    )  # fmt: skip
    if splits > 1:
        _finish_rows[(lists, blocks)](*row_tensors, *numbers, slots, total, **shared)
    return sums


def _gather(
    items: _Items,
    sums: Tensor,
    offsets: Tensor,
    known: list[Tensor],
    numbers: tuple[Any, ...],
    longest: int,
    options: dict[str, Any],
    mask: Tensor | None,
    values: Tensor,
    slopes: Tensor,
) -> None:
    """The slope of every item from the rows, and the values."""
    lists, slots, total = offsets.numel() - 1, slopes.numel(), sums.shape[1]
    height = 16 if numbers[-1] <= 16 else 32
    soft, ranked = options["soft"], items.slots is not None
    order = items.slots if items.slots is not None else offsets
    pulled = slopes.new_empty(0 if soft else 2, slots)
    _gather_rows[(lists, triton.cdiv(longest, _ITEMS))](
        *known, offsets, items.by_rank, items.distances_by_rank, items.numbers, items.distances,
        sums, order, pulled, values, slopes, *numbers, slots, total,
        **options, ranked=ranked, height=height, width=_ITEMS,
    )  # fmt: skip
    if soft:
        return
    if not ranked:
        _through_pairs[(lists, triton.cdiv(longest, 32))](
            items.numbers, items.distances, pulled, offsets, slopes, numbers[0], slots,
            metric=options["metric"], height=32, width=64,
        )  # fmt: skip
        return
    chunks = torch.empty(slots // _CHUNK + lists + 1, dtype=torch.float64, device=slopes.device)
    prefix = torch.empty(slots + lists, dtype=torch.float64, device=slopes.device)
    grid = (lists, triton.cdiv(longest, _CHUNK))
    _add_chunks[grid](pulled[1], offsets, known[1], chunks, chunk=_CHUNK)
    _prefix[grid](pulled[1], offsets, known[1], chunks, prefix, chunk=_CHUNK)
    _through_sorted[grid](
        items.numbers, pulled, prefix, order, offsets, known[1], slopes, numbers[0],
        longest.bit_length() + 1, metric=options["metric"], chunk=_CHUNK,
    )  # fmt: skip


@triton.jit
def _count_pairs(
    scores, gains, mask, offsets, numbers, distances, slots,
    masked: tl.constexpr, soft: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Ranks, ties and sums of distances of some items, by looking at all of their list."""
    place = tl.program_id(0)
    begin = tl.load(offsets + place)
    count = (tl.load(offsets + place + 1) - begin).to(tl.int32)
    item = tl.program_id(1) * height + tl.arange(0, height)
    inside = item < count
    real = is_real(mask, begin + item, inside, masked)
    score = tl.load(scores + begin + item, mask=real, other=0.0)
    exact = score.to(tl.float64)
    above = tl.zeros([height, width], tl.int32)
    before = tl.zeros([height, width], tl.int32)
    same = tl.zeros([height, width], tl.int32)
    below = tl.zeros([height, width], tl.int32)
    distance = tl.zeros([height, width], tl.float64)
    for first in range(0, count, width):
        column = first + tl.arange(0, width)
        there = is_real(mask, begin + column, column < count, masked)
        other = tl.load(scores + begin + column, mask=there, other=float("nan"))
        ties = other[None, :] == score[:, None]
        above += (other[None, :] > score[:, None]).to(tl.int32)
        below += (other[None, :] < score[:, None]).to(tl.int32)
        before += (ties & (column[None, :] < item[:, None])).to(tl.int32)
        if soft:
            same += ties.to(tl.int32)
        else:
            gap = tl.abs(other.to(tl.float64)[None, :] - exact[:, None])
            distance += tl.where(there[None, :], gap, 0.0)
    start = tl.sum(above, 1)
    earlier = tl.sum(before, 1)
    slot, rank = begin + item, begin + start + earlier
    tl.store(numbers + slots + slot, tl.load(gains + slot, mask=real, other=0.0), mask=inside)
    tl.store(numbers + 3 * slots + rank, score, mask=real)
    if soft:
        size = tl.sum(same, 1).to(tl.float32)
        tilt = (size - 1.0 - 2.0 * earlier) / tl.maximum(size, 1.0)
        tl.store(numbers + slot, tl.where(real, score, float("inf")), mask=inside)
        tl.store(numbers + 2 * slots + slot, size, mask=inside)
        tl.store(numbers + 4 * slots + rank, tilt, mask=real)
        tl.store(numbers + 5 * slots + rank, size, mask=real)
    else:
        total = tl.sum(distance, 1)
        under = tl.sum(below, 1)
        tl.store(numbers + slot, score, mask=inside)
        tl.store(numbers + 2 * slots + slot, (under - start).to(tl.float32), mask=inside)
        tl.store(distances + slot, tl.where(real, total, float("inf")), mask=inside)
        tl.store(distances + slots + rank, total, mask=real)


@triton.jit
def _chunk_of(offsets, lengths, chunk: tl.constexpr):
    """The list, its first slot, the first of its chunks, and the places of this chunk."""
    place = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + place)
    chunks = begin // chunk + place
    at = tl.program_id(1).to(tl.int64) * chunk + tl.arange(0, chunk)
    return place, begin, chunks, at, tl.load(lengths + place).to(tl.int64)


@triton.jit
def _add_chunks(numbers, offsets, lengths, chunks, chunk: tl.constexpr):
    """The sums over the chunks of each list."""
    _, begin, first, at, length = _chunk_of(offsets, lengths, chunk)
    if tl.program_id(1) * chunk < length:
        number = tl.load(numbers + begin + at, mask=at < length, other=0.0)
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


@triton.jit
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
def _list_of(scales, lengths, defined, place, k):
    """The scale of a list, its length, and how many of its rows count."""
    scale = tl.where(tl.load(defined + place) != 0, tl.load(scales + place), 0.0)
    length = tl.load(lengths + place)
    rows = tl.where(k > 0, tl.minimum(k, length), length)
    return scale, length, tl.where(scale > 0, rows, 0)


@triton.jit
def _write_row(
    total, mean, sided, sided_gain, tied_gain, by_rank, sums, at, by, row, inside, scale, past,
    temperature, persistence, slots, many, metric: tl.constexpr, soft: tl.constexpr,
):  # fmt: skip
    """What the items need to know of a row."""
    factor = scale * (discount(row + 1.0, metric, persistence) - past)
    total = tl.where(inside, total, 1.0)
    mean = mean / total
    weight = factor / total
    tl.store(sums + at, weight, mask=inside)
    tl.store(sums + many + at, mean, mask=inside)
    tl.store(sums + 2 * many + at, factor * mean, mask=inside)
    if soft:
        # By the distances, of which the logits are minus 1 / τ.
        weight = -weight / temperature
        tilt = tl.load(by_rank + slots + by, mask=inside, other=0.0)
        size = tl.load(by_rank + 2 * slots + by, mask=inside, other=0.0)
        tl.store(sums + 3 * many + at, weight * (sided_gain - mean * sided), mask=inside)
        tl.store(sums + 4 * many + at, weight * tilt * (tied_gain - mean * size), mask=inside)


@triton.jit
def _rows(
    scales, lengths, defined, offsets, by_rank, distances_by_rank, parts, sums, numbers, distances,
    temperature, persistence, k, rows, slots, many,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr,
    splits: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Sums over the items for some rows of a list; all of them, or one part of several."""
    place, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    scale, length, last = _list_of(scales, lengths, defined, place, k)
    row = tl.program_id(1) * height + tl.arange(0, height)
    if tl.program_id(1) * height < last:
        inside = row < last
        by = begin + row
        row_score = tl.load(by_rank + by, mask=inside, other=0.0)
        row_distance = row_score.to(tl.float64)
        if not soft:
            row_distance = tl.load(distances_by_rank + by, mask=inside, other=0.0)
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
            mean += entry * gain[None, :]
            if soft:
                higher = row_score[:, None] > score[None, :]
                same = row_score[:, None] == score[None, :]
                signed = tl.where(same, 0.0, tl.where(higher, entry, -entry))
                sided += signed
                sided_gain += signed * gain[None, :]
                tied_gain += tl.where(same, gain[None, :], 0.0)
        at = row + (place * rows if few else begin)
        total, mean = tl.sum(total, 1), tl.sum(mean, 1)
        sided, sided_gain, tied_gain = tl.sum(sided, 1), tl.sum(sided_gain, 1), tl.sum(tied_gain, 1)
        if splits == 1:
            _write_row(
                total, mean, sided, sided_gain, tied_gain, by_rank, sums, at, by, row, inside,
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
    parts, at, inside, many, splits: tl.constexpr, height: tl.constexpr
):  # fmt: skip
    """The sums over the parts of some rows, in float64."""
    total = tl.zeros([height, 64], tl.float64)
    for left in range(0, splits, 64):
        split = (left + tl.arange(0, 64)).to(tl.int64)
        there = inside[:, None] & (split < splits)[None, :]
        part = tl.load(parts + split[None, :] * many + at[:, None], mask=there, other=0.0)
        total += part.to(tl.float64)
    return tl.sum(total, 1).to(tl.float32)


@triton.jit
def _finish_rows(
    scales, lengths, defined, offsets, by_rank, distances_by_rank, parts, sums,
    temperature, persistence, k, rows, slots, many,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr,
    splits: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """Add up the parts of rows."""
    place = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + place)
    scale, length, last = _list_of(scales, lengths, defined, place, k)
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
            total, mean, sided, sided_gain, tied_gain, by_rank, sums, at,
            begin + row, row, inside, scale, beyond(length, k, metric), temperature, persistence,
            slots, many, metric, soft,
        )  # fmt: skip


@triton.jit
def _gather_rows(
    scales, lengths, defined, offsets, by_rank, distances_by_rank, numbers, distances,
    sums, order, pulled, values, slopes, temperature, persistence, k, rows, slots, many,
    metric: tl.constexpr, few: tl.constexpr, soft: tl.constexpr, ranked: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """What some items gather from all rows; the first program of a list also adds its value."""
    place = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + place), tl.load(offsets + place + 1)
    scale, length, last = _list_of(scales, lengths, defined, place, k)
    base = place * rows if few else begin
    if tl.program_id(1) == 0:
        worth = tl.zeros([256], tl.float32)
        for first in range(0, last, 256):
            row = first + tl.arange(0, 256)
            worth += tl.load(sums + 2 * many + base + row, mask=row < last, other=0.0)
        tl.store(values + place, as_loss(tl.sum(worth, 0), length, k, scale, metric))
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
        row_score = tl.load(by_rank + by, mask=inside, other=0.0)
        row_distance = row_score.to(tl.float64)
        if not soft:
            row_distance = tl.load(distances_by_rank + by, mask=inside, other=0.0)
        weight = tl.load(sums + at, mask=inside, other=0.0)
        mean = tl.load(sums + many + at, mask=inside, other=0.0)
        slope = (length - 1 - 2 * row).to(tl.float32)
        entry = _entries(score, distance, row_score, row_distance, slope, strength, soft)
        pull = entry * weight[:, None] * (gain[None, :] - mean[:, None])
        if soft:
            tilt = tl.load(by_rank + slots + by, mask=inside, other=0.0)
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
        tl.store(pulled + slot, apart, mask=there)
        tl.store(pulled + slots + slot, tied, mask=there)


@triton.jit
def _through_pairs(
    numbers, distances, pulled, offsets, slopes, temperature, slots,
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
        pull = tl.load(pulled + slots + begin + column, mask=column < count, other=0.0)
        exact = pull.to(tl.float64)[None, :]
        higher = other[None, :] > score[:, None]
        lower = other[None, :] < score[:, None]
        result += tl.where(higher, exact, tl.where(lower, -exact, 0.0))
    slope = tl.load(pulled + slot, mask=inside, other=0.0).to(tl.float64) + tl.sum(result, 1)
    slope = slope.to(tl.float32) / temperature
    if metric != "arp":
        slope = -slope
    real = tl.load(distances + slot, mask=inside, other=float("inf")) < float("inf")
    tl.store(slopes + slot, tl.where(real, slope, 0.0), mask=inside)


@triton.jit
def _prefix(numbers, offsets, lengths, chunks, prefix, chunk: tl.constexpr):
    """The sums over the items before each place of a list, its end included."""
    place, begin, first, at, length = _chunk_of(offsets, lengths, chunk)
    if tl.program_id(1) * chunk < length:
        count = (length + chunk - 1) // chunk
        before, total = _around(chunks, first, tl.program_id(1), count)
        number = tl.load(numbers + begin + at, mask=at < length, other=0.0).to(tl.float64)
        sums = before + tl.cumsum(number, 0) - number
        tl.store(prefix + begin + place + at, sums, mask=at < length)
        if tl.program_id(1) == count - 1:
            tl.store(prefix + begin + place + length, total)


@triton.jit
def _through_sorted(
    numbers, pulled, prefix, order, offsets, lengths, slopes, temperature, steps,
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
    slope = tl.load(pulled + slot, mask=real, other=0.0).to(tl.float64) + (above - below)
    slope = slope.to(tl.float32) / temperature
    if metric != "arp":
        slope = -slope
    target = tl.load(order + slot, mask=inside, other=0)
    tl.store(slopes + target, tl.where(real, slope, 0.0), mask=inside)
