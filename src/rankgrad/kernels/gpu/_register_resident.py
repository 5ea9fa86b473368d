"""Register-resident Sinkhorn scaling: K stays in registers, forward and backward.

:mod:`rankgrad.kernels.gpu._sinkhorn` defines K and the scaling. One program computes a list, or a
few programs share its rows and sum their parts of the column sums at a barrier. Each program
processes one list after another, with scratch of its own.

The gradient with respect to log K is ``K_ij M_ij``. M is a sum of outer products, of u with r and
of l with v: the forward pass stores the scaling factors u and v of each step, the backward pass r
and l. At the end, when the registers of K are free, the kernel sums M and computes K again, for
the column sums of ``K M`` weighted by rank offsets. The plain column sums of ``K M`` need no M. In
each step, those of u with r cancel the others, since ``r = -v² g`` and ``Kᵀ u = 1 / v``, with g the
gradient of v. Only the sums of the first row step, ``u_0 = 1 / (K 1)``, remain.

One launch computes a linear metric and its gradient. Two launches of the same kernel compute the
operator P and its adjoint: the first stores u and v of every step for the second.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._linear import discount, discount_beyond

#: By number of columns: programs that share the rows, warps per program, registers per thread.
RESIDENT: dict[int, tuple[int, int, int]] = {
    32: (1, 4, 128),
    64: (1, 4, 255),
    128: (1, 8, 255),
    256: (2, 8, 255),
}
#: Warps to launch per multiprocessor if each list has one program, so that none waits for another.
WARPS = 32


@dataclass(frozen=True)
class ResidentLayout:
    """How lists are distributed over programs.

    Args:
        columns: the columns of a tile, at least the length of any list.
        shared: the number of programs per list, each with ``columns / shared`` rows.
        warps: the number of warps per program.
        registers: the most registers of a thread.
        groups: the number of groups of programs. A group processes one list after another.
    """

    columns: int
    shared: int
    warps: int
    registers: int
    groups: int

    @classmethod
    def of(cls, scores: Tensor, lists: int, max_length: int) -> ResidentLayout | None:
        """The layout; None if K does not fit, or if the programs of a list cannot run at once."""
        running = at_once(scores)
        for columns, (shared, warps, registers) in sorted(RESIDENT.items()):
            if max_length <= columns:
                if shared == 1:
                    running *= max(1, WARPS // warps)
                groups = min(lists, running // shared)
                return cls(columns, shared, warps, registers, groups) if groups else None
        return None

    @property
    def rows(self) -> int:
        """The rows of a tile."""
        return self.columns // self.shared

    def floats(self, lists: int, size: int, iterations: int, mode: str) -> int:
        """The size of ``work`` in floats: column sums, partial values, and scratch of programs.

        It is a multiple of 4, so that what follows is aligned to 16 bytes; Triton would compile
        kernels anew for other addresses.
        """
        factors = (iterations + 1) * (self.rows + self.columns)
        # r and l; in mode "loss" also v and u, which has one entry more: see _scale_resident.
        stored = {"loss": 2 * factors + self.rows, "apply": 0, "adjoint": factors}[mode]
        scratch = stored + 2 * (self.columns + 1)
        floats = 2 * self.shared * size + lists * self.shared + self.groups * self.shared * scratch
        return cdiv(floats, 4) * 4

    def launch(self, *arguments: Any) -> None:
        """Launch :func:`_scale_resident`; the arguments are those before its constants."""
        _scale_resident[(self.groups * self.shared,)](
            *arguments, self.shared, self.rows, self.columns, self.warps, num_warps=self.warps,
            maxnreg=self.registers, launch_cooperative_grid=self.shared > 1,
        )  # fmt: skip


def at_once(scores: Tensor) -> int:
    """The number of programs of any size that run at once: one per multiprocessor."""
    return _processors(scores.device.index) if scores.is_cuda else 1


@functools.cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def load_places(ranked, high, low, base, at, items):
    """The scores and c (a pair of floats) at some positions in sorted order.

    Past the list's end they are numbers that make K zero.
    """
    inside = at < items
    score = tl.load(ranked + base + at, inside, 0.0)
    return score, tl.load(high + base + at, inside, 1e30), tl.load(low + base + at, inside, 0.0)


@triton.jit
def entries_of(row, score, high, low, column_score, column_high, column_low, sharpness):
    """A tile of K: ``exp(-(2 i (s_j - s_i) + c_j - c_i) / τ)``, with c the sum of high and low.

    Differences of close numbers are exact, and fma does not round its product.
    """
    difference = column_score - score
    main = tl.fma(
        tl.broadcast_to((-2 * row).to(tl.float32), difference.shape), difference, high - column_high
    )
    return tl.exp2((main + (low - column_low)) * (sharpness * 1.4426950408889634))  # log2(e)


@triton.jit
def rank_offset(row, column):
    """``2 (j - i)``: the rank offset of a row, relative to that of the column's own rank."""
    return (2 * column).to(tl.float32) - (2 * row).to(tl.float32)


@triton.jit
def rank_weights(
    row, items, k, persistence, scale, at_rank, METRIC: tl.constexpr, MODE: tl.constexpr
):
    """The weights of rows: the gradient at their ranks, or a metric's discounts.

    The discount past the cutoff is subtracted here, and added later.
    """
    inside = ((k == 0) | (row < k)) & (row < items)
    if MODE == "loss":
        weight = discount((row + 1).to(tl.float32), METRIC, persistence)
        weight -= discount_beyond(items, k, METRIC)
        return tl.where(inside, weight, 0.0) * tl.load(scale)
    else:
        return tl.load(at_rank + row, inside, 0.0)


@triton.jit
def wait(barrier, count, SHARED: tl.constexpr):
    """Wait until all programs of a list have arrived, after which their writes can be read.

    ``count`` is the number of arrivals to wait for, those at earlier barriers included. It is
    returned, for the next barrier to add to.
    """
    tl.debug_barrier()
    if SHARED > 1:
        arrivals = tl.atomic_add(barrier, 1, sem="acq_rel") + 1
        while arrivals < count:
            arrivals = tl.atomic_add(barrier, 0, sem="acq_rel")
        tl.debug_barrier()
    return count


@triton.jit
def _by_row(factor):
    """One number per row, broadcast to the layout of K."""
    return factor[None, :, :, None]


@triton.jit
def _by_column(factor):
    """One number per column, broadcast to the layout of K."""
    return factor[:, None, None, :]


@triton.jit
def _row_sums(entries):
    """The sum over the columns of the program's rows of K."""
    return tl.sum(tl.sum(entries, 0), 2)


@triton.jit
def _column_sums(entries):
    """The sum over the program's rows of K."""
    return tl.sum(tl.sum(entries, 1), 1)


@triton.jit
def _tile(places, size, base, row, column, items, sharpness):
    """The program's rows of K; 0 past the list's end."""
    high, low = places + size, places + 2 * size
    score, main, rest = load_places(places, high, low, base, tl.minimum(row, items - 1), items)
    main = tl.where(row < items, main, -1e30)
    column_score, column_main, column_rest = load_places(places, high, low, base, column, items)
    return entries_of(
        _by_row(row), _by_row(score), _by_row(main), _by_row(rest),
        _by_column(column_score), _by_column(column_main), _by_column(column_rest), sharpness,
    )  # fmt: skip


@triton.jit
def _sum_over_programs(
    part, max_error, parts, barrier, column, arrived, program, SHARED: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Column sums over all programs of a list, added in a fixed order; and the largest error.

    Also returns ``arrived``, the arrivals at the barrier. The programs write to one half of
    ``parts`` and, at the next barrier, to the other half.
    """
    if SHARED > 1:
        place = parts + (arrived // SHARED % 2) * SHARED * (COLUMNS + 1)
        tl.store(place + program * COLUMNS + column, part)
        tl.store(place + SHARED * COLUMNS + program, max_error)
        arrived = wait(barrier, arrived + SHARED, SHARED)
        if SHARED == 2:  # add the other program's part; two terms have the same sum in any order
            part += tl.load(place + (1 - program) * COLUMNS + column, cache_modifier=".cg")
        else:
            programs = tl.arange(0, SHARED)
            at = programs[:, None, None] * COLUMNS + column[None, :, :]
            part = tl.sum(tl.load(place + at, cache_modifier=".cg"), 0)
        errors = place + SHARED * COLUMNS + tl.arange(0, SHARED)
        max_error = tl.max(tl.load(errors, cache_modifier=".cg"), 0)
    return part, max_error, arrived


@triton.jit
def _inverse(sums, inside):
    """One over the sums; 0 past the list's end."""
    return tl.where(inside, 1 / tl.where(inside, sums, 1.0), 0.0)


@triton.jit
def _save(at, factor, inside, SAVED: tl.constexpr):
    """Store factors: in the program's scratch or, if SAVED, in memory of the operator.

    The latter needs a mask, since factors of other lists are next to them.
    """
    if SAVED:
        tl.store(at, factor, inside)
    else:
        tl.store(at, factor)


@triton.jit
def _restore(at, inside, SAVED: tl.constexpr):
    """Load factors that :func:`_save` stored."""
    if SAVED:
        return tl.load(at, inside, 0.0)
    else:
        return tl.load(at)


@triton.jit
def _forward(
    entries, real, valid, local, column, us, vs, u_stride, v_stride, parts, barrier, arrived,
    program, iterations, tolerance, TRANSPOSED: tl.constexpr, SAVED: tl.constexpr,
    SHARED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Run the scaling; returns the last row and column factors and the number of steps.

    ``local`` is the index of a row in the program, ``real`` marks rows within the list, and
    ``valid`` columns within it. Entry t of ``vs`` is v of step t; entry t + 1 of ``us`` is u of it.
    """
    u = _inverse(_row_sums(entries), real)
    v = tl.where(valid, 1.0, 0.0)
    _save(us + u_stride + local, u, real, SAVED)
    _save(vs + column, v, valid, SAVED)
    step = 0
    max_error = 0.0
    running = 1
    while running != 0:
        part = _column_sums(entries * _by_row(u))
        column_sums, error, arrived = _sum_over_programs(
            part, max_error, parts, barrier, column, arrived, program, SHARED, COLUMNS
        )
        if not TRANSPOSED:
            error = tl.max(tl.where(valid, tl.abs(column_sums * v - 1), 0.0))
        if (step > 0) & (error < tolerance):
            running = 0
        else:
            step += 1
            v = _inverse(column_sums, valid)
            _save(vs + step * v_stride + column, v, valid, SAVED)
            row_sums = _row_sums(entries * _by_column(v))
            if TRANSPOSED:
                max_error = tl.max(tl.where(real, tl.abs(row_sums * u - 1), 0.0))
            u = _inverse(row_sums, real)
            _save(us + (step + 1) * u_stride + local, u, real, SAVED)
            if step >= iterations:
                running = 0
    tl.debug_barrier()
    if TRANSPOSED:  # without the last row step
        u = _restore(us + step * u_stride + local, real, SAVED)
    return u, v, step, arrived


@triton.jit
def _backward(
    entries, part, grad_rows, step, real, valid, local, column, us, vs, ls, rs, u_stride,
    v_stride, parts, barrier, arrived, program, SAVED: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Run the steps in reverse order; returns the program's part of the first step's column sums.

    ``part`` is the program's part of the derivative with respect to the last column factors, and
    ``grad_rows`` the derivative with respect to the row factors before them.
    """
    at_step = step
    while at_step > 0:
        column_grad, _, arrived = _sum_over_programs(
            part, 0.0, parts, barrier, column, arrived, program, SHARED, COLUMNS
        )
        v = _restore(vs + at_step * v_stride + column, valid, SAVED)
        r_factor = -column_grad * v * v
        tl.store(rs + at_step * COLUMNS + column, r_factor)
        u = _restore(us + at_step * u_stride + local, real, SAVED)
        l_factor = -(grad_rows + _row_sums(entries * _by_column(r_factor))) * u * u
        grad_rows = tl.zeros_like(grad_rows)
        at_step -= 1
        tl.store(ls + at_step * ROWS + local, l_factor)
        part = _column_sums(entries * _by_row(l_factor))
    tl.debug_barrier()
    return part, arrived


@triton.jit
def _sum_products(
    step, real, valid, local, column, us, vs, ls, rs, u_stride, v_stride, SAVED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The program's rows of M: the sum over t of ``us[t] rs[t] + ls[t] vs[t]``."""
    products = tl.zeros([COLUMNS // 32, ROWS // WARPS, WARPS, 32], tl.float32)
    step_index = 0
    while step_index <= step:
        column_factor = tl.load(rs + step_index * COLUMNS + column)
        row_factor = _restore(us + step_index * u_stride + local, real, SAVED)
        products += _by_row(row_factor) * _by_column(column_factor)
        column_factor = _restore(vs + step_index * v_stride + column, valid, SAVED)
        products += _by_row(tl.load(ls + step_index * ROWS + local)) * _by_column(column_factor)
        step_index += 1
    return products


@triton.jit
def _write_ranks(
    entries, u, v, gain, at_rank, misses, rank, inside, TRANSPOSED: tl.constexpr
):  # fmt: skip
    """Write the sorted gains, and one minus them: rows sum to one if they were scaled last."""
    tl.store(at_rank + rank, u * _row_sums(entries * _by_column(gain * v)), inside)
    missed = u * _row_sums(entries * _by_column(v - gain * v))
    if TRANSPOSED:
        missed += 1 - u * _row_sums(entries * _by_column(v))
    tl.store(misses + rank, missed, inside)


@cached_launch
@triton.jit(do_not_specialize=["size", "lists", "iterations", "k"])
def _scale_resident(
    places, work, barriers, scalings, steps_taken, at_rank, misses, offsets, lengths, scale,
    defined, size, lists, iterations, tolerance, sharpness, k, persistence, METRIC: tl.constexpr,
    TRANSPOSED: tl.constexpr, MODE: tl.constexpr, SCALED: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Scale the rows of one program in one list after another.

    The mode is "loss" for a linear metric, or "apply" or "adjoint" of the operator, which saves the
    scalings of all lists. If SCALED, an earlier launch has saved them. ``places`` is ``[4, size]``:
    scores, both floats of c, and gains, in sorted order. ``scalings`` is v ``[steps, size]``, then
    u ``[steps + 1, size]``. ``work`` is scratch of :meth:`ResidentLayout.floats` floats. Each group
    of programs has a counter, zeroed, in ``barriers``.
    """
    SAVED: tl.constexpr = MODE != "loss"
    size = size.to(tl.int64)
    program = tl.program_id(0) % SHARED
    group = tl.program_id(0) // SHARED
    groups = tl.num_programs(0) // SHARED
    steps = iterations + 1
    partial_values = work + 2 * SHARED * size
    parts = partial_values + lists * SHARED + group * (2 * SHARED * (COLUMNS + 1))
    # The factors of M are u with r, and l with v. Entry 0 of us and rs is from the output, so u of
    # step t is entry t + 1.
    rs = partial_values + lists * SHARED + groups * (2 * SHARED * (COLUMNS + 1))
    factors = steps * (ROWS + COLUMNS)
    rs += tl.program_id(0).to(tl.int64) * (factors if SAVED else 2 * factors + ROWS)
    ls = rs + steps * COLUMNS
    vs = ls + steps * ROWS
    us = vs + steps * COLUMNS
    barrier = barriers + group
    # Triton's default layout distributes the last axis over the threads of a warp, and the one
    # before it over warps. So a thread has some columns of some rows, and their factors and sums
    # take few registers. With whole rows or columns per thread, they would fill the registers.
    local = tl.arange(0, ROWS // WARPS)[:, None] * WARPS + tl.arange(0, WARPS)[None, :]
    column = tl.arange(0, COLUMNS // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    row = program * ROWS + local
    arrived = 0
    list_index = group
    while list_index < lists:
        if tl.load(defined + list_index) != 0:
            items = tl.load(lengths + list_index)
            base = tl.load(offsets + list_index)
            real, valid = row < items, column < items
            list_us, list_vs, u_stride, v_stride = us, vs, ROWS, COLUMNS
            if SAVED:
                list_vs = scalings + base
                list_us = list_vs + steps * size + program * ROWS
                u_stride, v_stride = size, size
            entries = _tile(places, size, base, row, column, items, sharpness)
            tl.debug_barrier()  # wait until the factors of the previous list are read
            if SCALED:
                step = tl.load(steps_taken + list_index)
                u = _restore(
                    list_us + (step if TRANSPOSED else step + 1) * u_stride + local, real, SAVED
                )
                v = _restore(list_vs + step * v_stride + column, valid, SAVED)
            else:
                u, v, step, arrived = _forward(
                    entries, real, valid, local, column, list_us, list_vs, u_stride, v_stride,
                    parts, barrier, arrived, program, iterations, tolerance, TRANSPOSED, SAVED,
                    SHARED, COLUMNS,
                )  # fmt: skip
            gain = tl.load(places + 3 * size + base + column, valid, 0.0)
            if MODE == "apply":
                counted = real & ((k == 0) | (row < k))
                _write_ranks(entries, u, v, gain, at_rank, misses, base + row, counted, TRANSPOSED)
                tl.store(steps_taken + list_index, step)
            else:
                # The value, and its derivatives with respect to the last factors.
                weight = rank_weights(
                    row, items, k, persistence, scale + list_index, at_rank + base, METRIC, MODE
                )
                grad_rows = weight * _row_sums(entries * _by_column(gain * v))
                tl.store(partial_values + list_index * SHARED + program, tl.sum(grad_rows * u))
                _save(list_us + local, weight * u, real, SAVED)
                tl.store(rs + column, gain * v)
                part = gain * _column_sums(entries * _by_row(weight * u))
                l_factor = tl.zeros_like(grad_rows)
                if not TRANSPOSED:  # transposed output uses u of the step before
                    l_factor = -grad_rows * u * u
                    part += _column_sums(entries * _by_row(l_factor))
                    grad_rows = tl.zeros_like(grad_rows)
                tl.store(ls + step * ROWS + local, l_factor)
                part, arrived = _backward(
                    entries, part, grad_rows, step, real, valid, local, column, list_us,
                    list_vs, ls, rs, u_stride, v_stride, parts, barrier, arrived, program, SAVED,
                    SHARED, ROWS, COLUMNS,
                )  # fmt: skip
                tl.store(work + program * size + base + column, part, valid)

                products = _sum_products(
                    step, real, valid, local, column, list_us, list_vs, ls, rs, u_stride,
                    v_stride, SAVED, ROWS, COLUMNS, WARPS,
                )  # fmt: skip
                products *= _tile(places, size, base, row, column, items, sharpness)
                part = _column_sums(products * rank_offset(_by_row(row), _by_column(column)))
                tl.store(work + (SHARED + program) * size + base + column, part, valid)
        list_index += groups
