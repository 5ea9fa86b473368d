"""NeuralSort with Sinkhorn scaling without an n × n tensor: value and gradient in one kernel.

In sorted order, with ``slope_i = n - 1 - 2i`` (i from 0) and ``b_j = Σ_k |s_j - s_k|``, NeuralSort
is ``K_ij = exp((slope_i (s_j - s_i) - (b_j - b_i)) / τ)`` with rows normalised: 1 on the diagonal and
falling away from it on both sides, so that tiles far off the diagonal are left out. Everything runs
on vectors: ``u_0 = 1 / (K 1)``, ``v_t = 1 / (Kᵀ u_{t-1})``, ``u_t = 1 / (K v_t)``; transposed, the
last row step is left out. The value is ``Σ_i w_i u_i Σ_j K_ij v_j g_j``, with w the discounts and g the
gains.

Back, the gradient by log K is ``K_ij Σ_f l_fi r_fj``, two factors (l, r) for each step. Only its
column sums are needed, plain, ``D_j``, and weighed by ``slope_i - slope_j``, ``S_j``, and they come
out of the same sweeps: ``r_fj (Kᵀ l_f)_j``, and the same with ``(slope_i - slope_j) K_ij``.

The rows of a list are shared out over several programs, all of which run at once. Each adds up its
rows' part of the column sums; a barrier; and each reads the columns it needs from all. Sums are in
a fixed order, so the same input gives the same bytes.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-any-return, no-untyped-def, attr-defined"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu.prepare import load_real, prepare, presence

_ROWS, _COLUMNS, _WARPS = 32, 128, 8
_TOGETHER = 8  # parts of a column sum that are read at a time
_FAR = 32.0  # entries below exp(-32) are left out
_SCRATCH = 1 << 22  # floats for the parts of column sums


def through_sinkhorn(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
    metric: str,
    k: int,
    gain: str,
    threshold: float,
    persistence: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of the operation in :mod:`rankgrad.kernels.ops`."""
    gains, scale, lengths, defined = prepare(
        labels, mask, weights, offsets, longest, metric, k, gain, threshold
    )
    lists, slots = offsets.shape[0] - 1, scores.shape[0]
    values, slopes = scores.new_zeros(lists), torch.zeros_like(scores)
    if lists == 0 or slots == 0:
        return values, slopes, defined
    tiles = triton.cdiv(longest, _ROWS)
    shared = _programs(scores, lists, slots, tiles)
    steps = iterations + 1
    order = torch.empty(slots, dtype=torch.int32, device=scores.device)
    above, below = torch.empty_like(order), torch.empty_like(order)
    ranked, worth = torch.empty_like(scores), torch.empty_like(scores)
    distances = torch.empty(slots, dtype=torch.float64, device=scores.device)
    barriers = torch.zeros(lists, 1 + steps, dtype=torch.int32, device=scores.device)
    _rank[(lists, triton.cdiv(longest, 64))](
        scores, presence(mask, scores), gains, offsets, order, above, below, ranked, worth,
        distances, mask is not None, 64, 64, num_warps=4,
    )  # fmt: skip
    rows, columns = scores.new_empty(steps, slots), scores.new_empty(steps, slots)
    parts = scores.new_empty(2, 3, shared, slots)
    limits = torch.empty(lists, tiles, 2, dtype=torch.int32, device=scores.device)
    spans = torch.empty(lists, triton.cdiv(longest, _COLUMNS), 2, dtype=torch.int32,
                        device=scores.device)  # fmt: skip
    pull, sums, tilted = (torch.empty_like(scores) for _ in range(3))
    shares = scores.new_empty(lists, shared)
    _scale[(lists * shared,)](
        ranked, distances, worth, offsets, lengths, scale, defined, above, below,
        rows, columns, parts, limits, spans, pull, sums, tilted, shares, barriers,
        slots, tiles, iterations, tolerance, 1 / temperature, k, persistence,
        _discount(metric), transposed, shared, triton.next_power_of_2(shared), metric == "arp",
        _ROWS, _COLUMNS, _TOGETHER, num_warps=_WARPS,
    )  # fmt: skip
    _finish[(lists,)](
        order, above, below, gains, sums, tilted, shares, offsets, lengths, scale, defined,
        values, slopes, pull, 1 / temperature, k, shared, metric == "arp", _ROWS, 1024, num_warps=4,
    )  # fmt: skip
    return values, slopes, defined


def _discount(metric: str) -> int:
    return {"ndcg": 0, "dcg": 0, "precision": 1, "recall": 1, "rbp": 2, "arp": 3}[metric]


def _programs(scores: Tensor, lists: int, slots: int, tiles: int) -> int:
    """How many programs share a list: all must run at once, since they wait for each other."""
    if not scores.is_cuda:
        return 1  # interpreted, one after another
    return max(1, min(_processors(scores.device.index) // lists, tiles, _SCRATCH // slots))


@functools.cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _rank(
    scores, mask, gains, offsets, order, above, below, ranked, worth, distances,
    MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Bring a block of items to their places in descending order, padding left out.

    Beside each go the sum of its distances to all others and how many are above and below it.
    """
    at_list = tl.program_id(0)
    start = tl.load(offsets + at_list)
    slots = (tl.load(offsets + at_list + 1) - start).to(tl.int32)
    first = tl.program_id(1) * ROWS
    if first < slots:
        row = first + tl.arange(0, ROWS)
        real = load_real(mask, start + row, row < slots, MASKED)
        score = tl.load(scores + start + row, mask=real, other=0.0)
        ahead = tl.zeros([ROWS], tl.int32)
        higher = tl.zeros([ROWS], tl.int32)
        lower = tl.zeros([ROWS], tl.int32)
        distance = tl.zeros([ROWS], tl.float64)
        for left in range(0, slots, COLUMNS):
            column = left + tl.arange(0, COLUMNS)
            there = load_real(mask, start + column, column < slots, MASKED)
            other = tl.load(scores + start + column, mask=there, other=0.0)
            over = (other[None, :] > score[:, None]) & there[None, :]
            same = (other[None, :] == score[:, None]) & there[None, :]
            higher += tl.sum(over.to(tl.int32), 1)
            ahead += tl.sum((over | (same & (column[None, :] < row[:, None]))).to(tl.int32), 1)
            lower += tl.sum((there[None, :] & ~over & ~same).to(tl.int32), 1)
            apart = tl.abs(other.to(tl.float64)[None, :] - score.to(tl.float64)[:, None])
            distance += tl.sum(tl.where(there[None, :], apart, 0.0), 1)
        at = start + ahead
        tl.store(order + at, row, mask=real)
        tl.store(above + at, higher, mask=real)
        tl.store(below + at, lower, mask=real)
        tl.store(ranked + at, score, mask=real)
        tl.store(worth + at, tl.load(gains + start + row, mask=real, other=0.0), mask=real)
        tl.store(distances + at, distance, mask=real)


@triton.jit
def _depth(ranked, distances, base, at, inside, origin_score, origin_distance, origin_slope):
    """How far the logits of the origin's row lie below its maximum, as a pair of floats."""
    score = tl.load(ranked + base + at, mask=inside, other=0.0)
    distance = tl.load(distances + base + at, mask=inside, other=0.0)
    gap = score.to(tl.float64) - origin_score
    depth = (distance - origin_distance) - origin_slope * gap
    high = depth.to(tl.float32)
    return score, high, (depth - high.to(tl.float64)).to(tl.float32)


@triton.jit
def _tile(
    ranked, distances, base, items, first, left, sharpness,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The entries of K for some rows and columns; 0 past the list's end."""
    away = tl.arange(0, ROWS)
    row, column = first + away, left + tl.arange(0, COLUMNS)
    origin_score = tl.load(ranked + base + first).to(tl.float64)
    origin_distance = tl.load(distances + base + first)
    origin_slope = (items - 1 - 2 * first).to(tl.float64)
    score, high, low = _depth(
        ranked, distances, base, row, row < items, origin_score, origin_distance, origin_slope
    )
    other, high_, low_ = _depth(
        ranked, distances, base, column, column < items, origin_score, origin_distance, origin_slope
    )
    twice = (2 * away).to(tl.float32)
    logits = -twice[:, None] * (other[None, :] - score[:, None])
    logits -= (high_[None, :] - high[:, None]) + (low_[None, :] - low[:, None])
    real = (row < items)[:, None] & (column < items)[None, :]
    return tl.exp2(tl.where(real, logits * (sharpness * 1.4426950408889634), float("-inf")))


@triton.jit
def _lean(row, column):
    """By how much the slope of a row is above that of the column's own: ``2 (j - i)``."""
    return (2 * (column[None, :] - row[:, None])).to(tl.float32)


@triton.jit
def _logit(ranked, distances, base, items, row, column):
    """One logit of K, times the temperature."""
    slope = (items - 1 - 2 * row).to(tl.float64)
    gap = tl.load(ranked + base + column).to(tl.float64) - tl.load(ranked + base + row).to(
        tl.float64
    )
    return slope * gap - (tl.load(distances + base + column) - tl.load(distances + base + row))


@triton.jit
def _wait(barriers, at, count, SHARED: tl.constexpr):
    """Until all programs of the list are here; what they wrote before can be read after."""
    tl.debug_barrier()
    if SHARED > 1:
        tl.atomic_add(barriers + at, 1, sem="acq_rel")
        while tl.atomic_add(barriers + at, 0, sem="acq_rel") < count:
            pass
        tl.debug_barrier()


@triton.jit
def _column_sums(
    parts, spans, tile, base, slots, column, inside, WHICH: tl.constexpr, half,
    SHARED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """A column sum: the parts of the programs whose rows reach these columns."""
    first = tl.load(spans + tile * 2)
    last = tl.load(spans + tile * 2 + 1)
    total = tl.zeros_like(column).to(tl.float32)
    for some in range(first, last, TOGETHER):
        program = some + tl.arange(0, TOGETHER)
        at = ((half * 3 + WHICH) * SHARED + program).to(tl.int64) * slots
        found = tl.load(
            parts + at[:, None] + (base + column)[None, :],
            mask=(program < last)[:, None] & inside[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        total += tl.sum(found, 0)
    return total


@triton.jit(do_not_specialize=["slots", "tiles", "iterations", "k"])
def _scale(
    ranked, distances, worth, offsets, lengths, scale, defined, above, below,
    rows, columns, parts, limits, spans, pull, sums, tilted, shares, barriers,
    slots, tiles, iterations, tolerance, sharpness, k, persistence,
    DISCOUNT: tl.constexpr, TRANSPOSED: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr,
    ARP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Scale the rows of one program, there and back."""
    at_list = tl.program_id(0) // SHARED
    mine = tl.program_id(0) % SHARED
    items = tl.load(lengths + at_list)
    base = tl.load(offsets + at_list)
    here = tl.cdiv(items, ROWS)  # tiles of rows of this list
    each = tl.cdiv(here, SHARED)
    sharing = tl.cdiv(here, tl.maximum(each, 1))
    slots = slots.to(tl.int64)
    if (tl.load(defined + at_list) != 0) & (mine < sharing):
        top = mine * each
        end = tl.minimum(top + each, here)
        limits += at_list * tiles * 2
        barriers += at_list * (2 + iterations)
        width = tl.cdiv(items, COLUMNS)
        spans += at_list * tl.cdiv(tiles * ROWS, COLUMNS) * 2
        far = -32.0 / sharpness

        # Which tiles of columns the rows reach, and which programs reach a tile of columns.
        for tile in range(top, end):
            first, last = tile * ROWS, tl.minimum(tile * ROWS + ROWS, items) - 1
            low = first // COLUMNS
            while (low > 0) & (
                _logit(ranked, distances, base, items, first, tl.maximum(low * COLUMNS - 1, 0))
                > far
            ):
                low -= 1
            high = last // COLUMNS + 1
            while (high < width) & (
                _logit(ranked, distances, base, items, last, tl.minimum(high * COLUMNS, items - 1))
                > far
            ):
                high += 1
            tl.store(limits + tile * 2, low)
            tl.store(limits + tile * 2 + 1, high)
        arrived = sharing
        _wait(barriers, 0, arrived, SHARED)
        reach = tl.load(limits + top * 2, cache_modifier=".cg")
        bound = tl.load(limits + end * 2 - 1, cache_modifier=".cg")
        other = tl.arange(0, PADDED)
        those = other < sharing
        ends = tl.minimum(other * each + each, here)
        lowest = tl.load(limits + other * each * 2, those, 0, cache_modifier=".cg")
        highest = tl.load(limits + ends * 2 - 1, those, 0, cache_modifier=".cg")
        for tile in range(reach, bound):
            touches = those & (lowest <= tile) & (tile < highest)
            tl.store(spans + tile * 2, tl.min(tl.where(touches, other, PADDED), 0))
            tl.store(spans + tile * 2 + 1, tl.max(tl.where(touches, other + 1, 0), 0))

        # There. v_0 = 1 wherever it is read.
        for tile in range(reach, bound):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            tl.store(columns + base + column, tl.full([COLUMNS], 1.0, tl.float32), column < items)
        tl.debug_barrier()
        _row_step(ranked, distances, base, items, rows, columns, limits, top, end, 0, slots,
                  sharpness, ROWS, COLUMNS)  # fmt: skip
        step = 0
        running = 1
        while running != 0:
            tl.debug_barrier()
            half = step % 2
            _column_parts(ranked, distances, base, items, rows, pull, parts, limits, top, end,
                          reach, bound, step, slots, half, mine, sharpness, SHARED, ROWS, COLUMNS,
                          False)  # fmt: skip
            arrived += sharing
            _wait(barriers, 0, arrived, SHARED)
            step, running = _stop(barriers, step, running, tolerance, TRANSPOSED)
            if running != 0:
                step += 1
                worst = 0.0
                for tile in range(reach, bound):
                    column = tile * COLUMNS + tl.arange(0, COLUMNS)
                    inside = column < items
                    found = _column_sums(parts, spans, tile, base, slots, column, inside, 0, half,
                                         SHARED, TOGETHER)  # fmt: skip
                    at = columns + step * slots + base + column
                    own = inside & (column >= top * ROWS) & (column < end * ROWS)
                    error = tl.abs(found * tl.load(at - slots, inside, 0.0) - 1)
                    worst = tl.maximum(worst, tl.max(tl.where(own, error, 0.0), 0))
                    tl.store(at, 1 / tl.where(inside, found, 1.0), inside)
                tl.debug_barrier()
                _row_step(ranked, distances, base, items, rows, columns, limits, top, end, step,
                          slots, sharpness, ROWS, COLUMNS)  # fmt: skip
                if TRANSPOSED:
                    tl.debug_barrier()
                    worst = _row_error(rows, base, items, top, end, step, slots, ROWS)
                tl.atomic_max(barriers + 1 + step, worst.to(tl.int32, bitcast=True))
                if step >= iterations:
                    if not TRANSPOSED:
                        arrived += sharing
                        _wait(barriers, 0, arrived, SHARED)
                        step, running = _stop(barriers, step, running, tolerance, TRANSPOSED)
                    running = 0

        # The value, and what its rows and columns say back.
        tl.debug_barrier()
        last_row = step - 1 if TRANSPOSED else step
        share = 0.0
        for tile in range(top, end):
            row = tile * ROWS + tl.arange(0, ROWS)
            inside = row < items
            total = tl.zeros([ROWS, COLUMNS], tl.float32)
            for left in range(tl.load(limits + tile * 2), tl.load(limits + tile * 2 + 1)):
                column = left * COLUMNS + tl.arange(0, COLUMNS)
                entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS,
                                sharpness, ROWS, COLUMNS)  # fmt: skip
                factor = tl.load(columns + step * slots + base + column, column < items, 0.0)
                gain = tl.load(worth + base + column, column < items, 0.0)
                total += entries * (factor * gain)[None, :]
            weight = _weights(row, items, k, persistence, DISCOUNT, ARP)
            weight = tl.where(inside, weight * tl.load(scale + at_list), 0.0)
            by_row = tl.sum(total, 1) * weight
            factor = tl.load(rows + last_row * slots + base + row, inside, 0.0)
            share += tl.sum(by_row * factor, 0)
            tl.store(pull + base + row, by_row, inside)
        tl.store(shares + at_list * SHARED + mine, share)

        # The output's own factor: (w u, v g).
        tl.debug_barrier()
        half = step % 2
        _output_parts(ranked, distances, base, items, rows, parts, limits, scale + at_list, top,
                      end, reach, bound, last_row, slots, half, mine, sharpness, k, persistence,
                      DISCOUNT, ARP, SHARED, ROWS, COLUMNS)  # fmt: skip
        arrived += sharing
        _wait(barriers, 0, arrived, SHARED)
        for tile in range((top * ROWS) // COLUMNS, tl.cdiv(tl.minimum(end * ROWS, items), COLUMNS)):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            own = (column >= top * ROWS) & (column < tl.minimum(end * ROWS, items))
            right = tl.load(columns + step * slots + base + column, own, 0.0)
            right *= tl.load(worth + base + column, own, 0.0)
            plain = _column_sums(parts, spans, tile, base, slots, column, own, 0, half, SHARED,
                                 TOGETHER)  # fmt: skip
            leaning = _column_sums(parts, spans, tile, base, slots, column, own, 1, half, SHARED,
                                   TOGETHER)  # fmt: skip
            tl.store(sums + base + column, right * plain, own)
            tl.store(tilted + base + column, right * leaning, own)
        # Every column's own pull, from the output: g Kᵀ (w u). Kept where v_0 was.
        for tile in range(reach, bound):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            inside = column < items
            plain = _column_sums(parts, spans, tile, base, slots, column, inside, 0, half, SHARED,
                                 TOGETHER)  # fmt: skip
            tl.store(columns + base + column,
                     plain * tl.load(worth + base + column, inside, 0.0), inside)  # fmt: skip

        # Back, the steps in reverse.
        back = step
        while back > 0:
            tl.debug_barrier()
            half = 1 - half
            # Rows of u_back, unless the last row step was left out.
            whole = (not TRANSPOSED) | (back < step)
            if whole:
                _column_parts(ranked, distances, base, items, rows, pull, parts, limits, top, end,
                              reach, bound, back, slots, half, mine, sharpness, SHARED, ROWS,
                              COLUMNS, True)  # fmt: skip
            else:
                _leaning_parts(ranked, distances, base, items, rows, parts, limits, top, end, reach,
                               bound, back, slots, half, mine, sharpness, SHARED, ROWS,
                               COLUMNS)  # fmt: skip
            arrived += sharing
            _wait(barriers, 0, arrived, SHARED)
            for tile in range(reach, bound):
                column = tile * COLUMNS + tl.arange(0, COLUMNS)
                inside = column < items
                factor = tl.load(columns + back * slots + base + column, inside, 0.0)
                plain = _column_sums(parts, spans, tile, base, slots, column, inside, 0, half,
                                     SHARED, TOGETHER)  # fmt: skip
                by_column = plain
                if back == step:
                    by_column += tl.load(columns + base + column, inside, 0.0)
                turned = -by_column * factor * factor
                own = inside & (column >= top * ROWS) & (column < end * ROWS)
                leaning = _column_sums(parts, spans, tile, base, slots, column, own, 1, half,
                                       SHARED, TOGETHER)  # fmt: skip
                earlier = _column_sums(parts, spans, tile, base, slots, column, own, 2, half,
                                       SHARED, TOGETHER)  # fmt: skip
                at = base + column
                straight = factor * plain - by_column * factor
                tl.store(sums + at, tl.load(sums + at, own, 0.0) + straight, own)
                lean = factor * leaning + turned * earlier
                tl.store(tilted + at, tl.load(tilted + at, own, 0.0) + lean, own)
                # v_back is not needed any more: its place takes what the rows are pulled by.
                tl.store(columns + back * slots + at, turned, inside)
            tl.debug_barrier()
            for tile in range(top, end):
                row = tile * ROWS + tl.arange(0, ROWS)
                total = tl.zeros([ROWS, COLUMNS], tl.float32)
                for left in range(tl.load(limits + tile * 2), tl.load(limits + tile * 2 + 1)):
                    column = left * COLUMNS + tl.arange(0, COLUMNS)
                    entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS,
                                    sharpness, ROWS, COLUMNS)  # fmt: skip
                    turned = tl.load(columns + back * slots + base + column, column < items, 0.0)
                    total += entries * turned[None, :]
                fresh = tl.sum(total, 1)
                if TRANSPOSED & (back == step):
                    # u_{step - 1} is the output's own row factor as well.
                    fresh += tl.load(pull + base + row, row < items, 0.0)
                tl.store(pull + base + row, fresh, row < items)
            back -= 1
        # u_0 = 1 / (K 1).
        tl.debug_barrier()
        half = 1 - half
        _column_parts(ranked, distances, base, items, rows, pull, parts, limits, top, end, reach,
                      bound, 0, slots, half, mine, sharpness, SHARED, ROWS, COLUMNS,
                      True)  # fmt: skip
        arrived += sharing
        _wait(barriers, 0, arrived, SHARED)
        for tile in range((top * ROWS) // COLUMNS, tl.cdiv(tl.minimum(end * ROWS, items), COLUMNS)):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            own = (column >= top * ROWS) & (column < tl.minimum(end * ROWS, items))
            plain = _column_sums(parts, spans, tile, base, slots, column, own, 0, half, SHARED,
                                 TOGETHER)  # fmt: skip
            leaning = _column_sums(parts, spans, tile, base, slots, column, own, 1, half, SHARED,
                                   TOGETHER)  # fmt: skip
            at = base + column
            tl.store(sums + at, tl.load(sums + at, own, 0.0) + plain, own)
            tl.store(tilted + at, tl.load(tilted + at, own, 0.0) + leaning, own)


@triton.jit
def _weights(row, items, k, persistence, DISCOUNT: tl.constexpr, ARP: tl.constexpr):
    """What the rank of a row is worth, as it counts in the sum over rows."""
    rank = (row + 1).to(tl.float32)
    inside = (k == 0) | (row < k)
    if DISCOUNT == 0:
        worth = 1 / tl.log2(rank + 1)
    elif DISCOUNT == 1:
        worth = tl.full(rank.shape, 1.0, tl.float32)
    elif DISCOUNT == 2:
        worth = (1 - persistence) * tl.exp2(tl.log2(persistence) * (rank - 1))
    else:
        # Ranks past the cutoff count k + 1 each: here, less what all of them count anyway.
        beyond = tl.where((k > 0) & (items > k), k + 1.0, 0.0)
        worth = rank - beyond
    return tl.where(inside & (row < items), worth, 0.0)


@triton.jit
def _row_step(
    ranked, distances, base, items, rows, columns, limits, top, end, step, slots, sharpness,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``u = 1 / (K v)`` for the rows of this program."""
    for tile in range(top, end):
        row = tile * ROWS + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for left in range(tl.load(limits + tile * 2), tl.load(limits + tile * 2 + 1)):
            column = left * COLUMNS + tl.arange(0, COLUMNS)
            entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS, sharpness,
                            ROWS, COLUMNS)  # fmt: skip
            factor = tl.load(columns + step * slots + base + column, column < items, 0.0)
            total += entries * factor[None, :]
        found = tl.where(row < items, tl.sum(total, 1), 1.0)
        tl.store(rows + step * slots + base + row, 1 / found, row < items)


@triton.jit
def _row_error(rows, base, items, top, end, step, slots, ROWS: tl.constexpr):
    """How far the sums ``u_{step-1} ∘ (K v_step)`` are from one."""
    worst = 0.0
    for tile in range(top, end):
        row = tile * ROWS + tl.arange(0, ROWS)
        at = rows + step * slots + base + row
        error = tl.load(at - slots, row < items, 1.0) / tl.load(at, row < items, 1.0) - 1
        worst = tl.maximum(worst, tl.max(tl.abs(error), 0))
    return worst


@triton.jit
def _stop(barriers, step, running, tolerance, TRANSPOSED: tl.constexpr):
    """Whether all sums were right within the tolerance, found a step later; then that step does not
    count, but for transposed ones, whose row step is not used.
    """
    least = 1 if TRANSPOSED else 2
    if step >= least:
        error = tl.atomic_add(barriers + 1 + step, 0).to(tl.float32, bitcast=True)
        if error < tolerance:
            running = 0
            if not TRANSPOSED:
                step -= 1
    return step, running


@triton.jit
def _column_parts(
    ranked, distances, base, items, rows, pull, parts, limits, top, end, reach, bound, step, slots,
    half, mine, sharpness, SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """The program's part of column sums: there ``Kᵀ u``; back, with ``l = -pull u²``, of
    ``Kᵀ l``, and with K leaning of ``Kᵀ l`` and ``Kᵀ u_{step-1}``.
    """
    for left in range(reach, bound):
        column = left * COLUMNS + tl.arange(0, COLUMNS)
        plain = tl.zeros([ROWS, COLUMNS], tl.float32)
        leaning = tl.zeros([ROWS, COLUMNS], tl.float32)
        earlier = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tile in range(top, end):
            if (tl.load(limits + tile * 2) <= left) & (left < tl.load(limits + tile * 2 + 1)):
                row = tile * ROWS + tl.arange(0, ROWS)
                inside = row < items
                entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS,
                                sharpness, ROWS, COLUMNS)  # fmt: skip
                factor = tl.load(rows + step * slots + base + row, inside, 0.0)
                if BACK:
                    turned = -tl.load(pull + base + row, inside, 0.0) * factor * factor
                    plain += entries * turned[:, None]
                    entries *= _lean(row, column)
                    leaning += entries * turned[:, None]
                    if step > 0:
                        before = tl.load(rows + (step - 1) * slots + base + row, inside, 0.0)
                        earlier += entries * before[:, None]
                else:
                    plain += entries * factor[:, None]
        at = parts + (half * 3 * SHARED + mine).to(tl.int64) * slots + base + column
        tl.store(at, tl.sum(plain, 0), column < items)
        if BACK:
            tl.store(at + SHARED * slots, tl.sum(leaning, 0), column < items)
            tl.store(at + 2 * SHARED * slots, tl.sum(earlier, 0), column < items)


@triton.jit
def _leaning_parts(
    ranked, distances, base, items, rows, parts, limits, top, end, reach, bound, step, slots, half,
    mine, sharpness, SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The program's part of ``Kᵀ u_{step-1}``, K leaning, and nothing for the other two."""
    for left in range(reach, bound):
        column = left * COLUMNS + tl.arange(0, COLUMNS)
        earlier = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tile in range(top, end):
            if (tl.load(limits + tile * 2) <= left) & (left < tl.load(limits + tile * 2 + 1)):
                row = tile * ROWS + tl.arange(0, ROWS)
                entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS,
                                sharpness, ROWS, COLUMNS)  # fmt: skip
                before = tl.load(rows + (step - 1) * slots + base + row, row < items, 0.0)
                earlier += entries * _lean(row, column) * before[:, None]
        at = parts + (half * 3 * SHARED + mine).to(tl.int64) * slots + base + column
        nothing = tl.zeros([COLUMNS], tl.float32)
        tl.store(at, nothing, column < items)
        tl.store(at + SHARED * slots, nothing, column < items)
        tl.store(at + 2 * SHARED * slots, tl.sum(earlier, 0), column < items)


@triton.jit
def _output_parts(
    ranked, distances, base, items, rows, parts, limits, scale, top, end, reach, bound, step, slots,
    half, mine, sharpness, k, persistence, DISCOUNT: tl.constexpr, ARP: tl.constexpr,
    SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The program's part of ``Kᵀ (w u)``, K plain and leaning."""
    for left in range(reach, bound):
        column = left * COLUMNS + tl.arange(0, COLUMNS)
        plain = tl.zeros([ROWS, COLUMNS], tl.float32)
        leaning = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tile in range(top, end):
            if (tl.load(limits + tile * 2) <= left) & (left < tl.load(limits + tile * 2 + 1)):
                row = tile * ROWS + tl.arange(0, ROWS)
                entries = _tile(ranked, distances, base, items, tile * ROWS, left * COLUMNS,
                                sharpness, ROWS, COLUMNS)  # fmt: skip
                weight = _weights(row, items, k, persistence, DISCOUNT, ARP) * tl.load(scale)
                weight *= tl.load(rows + step * slots + base + row, row < items, 0.0)
                plain += entries * weight[:, None]
                leaning += entries * _lean(row, column) * weight[:, None]
        at = parts + (half * 3 * SHARED + mine).to(tl.int64) * slots + base + column
        tl.store(at, tl.sum(plain, 0), column < items)
        tl.store(at + SHARED * slots, tl.sum(leaning, 0), column < items)


@triton.jit(do_not_specialize=["k"])
def _finish(
    order, above, below, gains, sums, tilted, shares, offsets, lengths, scale, defined,
    values, slopes, prefix, sharpness, k, SHARED: tl.constexpr, ARP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of a list, and from the column sums of its gradient the slopes of its items.

    ``τ ds_k = S_k + (slope_k - below_k + above_k) D_k - Σ_{below k} D + Σ_{above k} D``.
    """
    at_list = tl.program_id(0)
    items = tl.load(lengths + at_list)
    base = tl.load(offsets + at_list)
    if tl.load(defined + at_list) != 0:
        each = tl.cdiv(tl.cdiv(items, ROWS), SHARED)
        sharing = tl.cdiv(tl.cdiv(items, ROWS), tl.maximum(each, 1))
        value = 0.0
        for program in range(0, sharing):
            value += tl.load(shares + at_list * SHARED + program)
        if ARP:
            total = 0.0
            slots = tl.load(offsets + at_list + 1) - base
            for left in range(0, slots, BLOCK):
                at = left + tl.arange(0, BLOCK)
                total += tl.sum(tl.load(gains + base + at, at < slots, 0.0), 0)
            beyond = tl.where((k > 0) & (items > k), k + 1.0, 0.0)
            tl.store(values + at_list, value + beyond * total * tl.load(scale + at_list))
        else:
            tl.store(values + at_list, 1 - value)
        before = tl.zeros([1], tl.float64)
        for left in range(0, items, BLOCK):
            at = left + tl.arange(0, BLOCK)
            found = tl.load(sums + base + at, at < items, 0.0).to(tl.float64)
            tl.store(prefix + base + at, (tl.cumsum(found, 0) + before).to(tl.float32), at < items)
            before += tl.sum(found, 0)
        tl.debug_barrier()
        total = tl.sum(before, 0).to(tl.float32)
        for left in range(0, items, BLOCK):
            at = left + tl.arange(0, BLOCK)
            inside = at < items
            over = tl.load(above + base + at, inside, 0)
            under = tl.load(below + base + at, inside, 0)
            higher = tl.load(prefix + base + over - 1, inside & (over > 0), 0.0)
            through = tl.load(prefix + base + items - under - 1, inside, 0.0)
            straight = tl.load(sums + base + at, inside, 0.0)
            slope = tl.load(tilted + base + at, inside, 0.0)
            # Of tied items, the mean slope counts.
            slope += (items - 1 - 2 * at - (under - over)).to(tl.float32) * straight
            slope += higher - (total - through)
            slope *= sharpness if ARP else -sharpness
            tl.store(slopes + base + tl.load(order + base + at, inside, 0), slope, inside)
