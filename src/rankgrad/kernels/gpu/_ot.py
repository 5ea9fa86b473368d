"""Optimal transport (Cuturi et al. 2019) without an n × n tensor: K is computed tile by tile.

In sorted order (ranks r and items j from 0, x the squashed scores) the matrix is
``K_rj = exp((S_r - S_j - 2 (r - j) x_j) / ((n - 1) ε))`` with ``S_r = Σ_{l<r} (x_l + x_{l+1})``:
1 on the diagonal and decreasing away from it (:mod:`rankgrad.sorting.optimal_transport`; the first
scaling cancels any factor of a whole column). Sinkhorn's scalings are ``u_0 = 1``,
``v_t = 1 / (Kᵀ u_{t-1})`` and ``u_t = 1 / (K v_t)``, and the relaxed permutation is
``P = diag(u) K diag(v)``. Each scaling is one launch, in which a program sums over K for its own
rows or columns. Convergence of a list is recorded on the device, and later launches skip the list.

In the backward pass, the gradient with respect to log K is ``K_rj Σ_f l_fr m_fj``, with two factors
(l, m) for each iteration. In its sums over rows and over columns the factors of successive steps
cancel: the column sums are 0, and the row sums are the gradient with respect to u_0. So only the
column sums weighted by ``j - r`` have to be computed.

Logits far from the diagonal are differences of large numbers. A program splits them at the middle p
of its own rows or columns: into ``-2 (r - p) (x_j - x_p)``, and one term of r and one of j that are
computed in float64 and rounded once. All three are small near the diagonal. If ε is so small that
they are not, few entries matter, and logits are summed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import chunk_size, is_real
from rankgrad.kernels.gpu._ideal_gain import ideal_gain
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv
from rankgrad.kernels.gpu._linear import as_gradient, as_loss, discount, discount_beyond
from rankgrad.kernels.gpu._metric_steps import (
    STEP_METRICS,
    SortOperator,
    step_values,
    through_operator,
)
from rankgrad.kernels.gpu._segmented_sort import sort_lists, tie_group

_CHUNK = 1024  # items of a list that a program reads at a time
_SHARP = 1.0  # if ε times the longest length is less, logits are summed in float64
_LEAST = 1e-30  # a smaller ε sorts as exactly, and gradients would exceed the largest float32


def through_ot(
    batch: FlatLists,
    epsilon: float,
    iterations: int,
    tolerance: float,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through optimal transport; see :mod:`rankgrad.kernels.ops`."""
    scores, _, mask, _, offsets, max_length = batch
    k = metric_options.k
    options = (scores, mask, offsets, max_length, k, epsilon, iterations, tolerance)
    if metric_options.name in STEP_METRICS:
        items = step_values(batch, metric_options)
        operator = OptimalTransportOperator(*options, items.defined)
        return through_operator(operator, batch, metric_options, items)
    gains, scale, lengths, defined = ideal_gain(batch, metric_options)
    operator = OptimalTransportOperator(*options, defined)
    at_rank = operator.apply(gains)
    values, grad = scale.new_empty(scale.shape), torch.empty_like(at_rank)
    _linear_step[(len(scale),)](
        at_rank, offsets, lengths, scale, defined, values, grad, k, metric_options.persistence,
        METRIC=metric_options.name, CHUNK=chunk_size(max_length, _CHUNK),
    )  # fmt: skip
    return values, operator.adjoint(gains, grad), defined


@dataclass(eq=False)
class OptimalTransportOperator(SortOperator):
    """The relaxed permutation of every list as a linear operator.

    Args:
        epsilon: strength of the entropy.
        iterations: the most scalings.
        tolerance: stop when every column sum of a list is this close to one.
        defined: ``[lists]``, False on lists to skip, whose results are 0; or None.

    Attributes:
        ranked: ``[items]``, the scores of each list in descending order.
        order: ``[items]``, the index of each sorted item.
        items: the number of items of all lists, padding included.
        points: ``[3 items]`` float64, what :func:`_squash` writes, in sorted order.
        moments: ``[2 lists]`` float64, of each list the mean of the scores, and one over their
            standard deviation.
        counts: ``[2 lists]``, of each list the number of real items, and of iterations.
        rows: ``[(iterations + 1) items]``, the row scalings u of every iteration, u_0 first.
        columns: ``[(iterations + 1) items]``, the column scalings v of every iteration from 1 on.
        launch: the constants of launches over K: :func:`_tile`, and ``PRECISE``, whether logits are
            summed in float64.
        grid: lists, and blocks of ``BLOCK_M`` rows or columns of the longest list.
        limits: ``[lists, blocks, 4]`` int32, what :func:`_find_limits` writes.
    """

    epsilon: float
    iterations: int
    tolerance: float
    defined: Tensor | None = None

    def __post_init__(self) -> None:
        scores, lists, items = self.scores, self.lists, self.scores.numel()
        self.epsilon = max(self.epsilon, _LEAST)
        if not lists:
            return
        ranked = sort_lists(scores, self.mask, self.offsets, self.max_length)
        self.ranked, self.order, self.items = ranked.scores, ranked.items, items
        self.points = torch.empty(3 * items, dtype=torch.float64, device=scores.device)
        self.moments = torch.empty(2 * lists, dtype=torch.float64, device=scores.device)
        self.counts = torch.empty(2 * lists, dtype=torch.int32, device=scores.device)
        self.rows = scores.new_empty((self.iterations + 1) * items)
        self.columns = scores.new_empty((self.iterations + 1) * items)
        self.launch = _tile(self.max_length)
        self.grid = lists, cdiv(self.max_length, self.launch["BLOCK_M"])
        self.launch["PRECISE"] = self.epsilon * self.max_length < _SHARP
        size = 4 * lists * self.grid[1]
        self.limits = torch.empty(size, dtype=torch.int32, device=scores.device)
        self._set_up()
        self._scale()

    def apply(self, values: Tensor) -> Tensor:
        return self.apply_all([values])[0]

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        return self.adjoint_all([(values, grad)])

    def apply_all(self, channels: list[Tensor]) -> list[Tensor]:
        return self._sort(channels, change=False)

    def adjoint_all(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        grad_scores = torch.zeros_like(self.scores)
        if not self.lists:
            return grad_scores
        (first, grad), (second, grad_second) = pairs[0], pairs[-1]
        changes = self._sort([values for values, _ in pairs], change=True)
        # Three parts: the gradient with respect to u, the column factors (``grad_sums``), and the
        # column sums weighted by j - r (``grad_points``).
        work = self.scores.new_empty(3 * self.items)
        for step in range(self.iterations, 0, -1):
            _backward_columns[self.grid](
                *self._list_arguments, first, second, grad, grad_second, self.order, self.rows,
                self.columns, changes[0], changes[-1], work, self.k, step, self.items,
                LAST=step == self.iterations, TWO=len(pairs) == 2, **self.launch,
            )  # fmt: skip
            _backward_rows[self.grid](*self._list_arguments, work, step, self.items, **self.launch)
        sums = torch.empty(2 * self.items, dtype=torch.float64, device=self.scores.device)
        _finish[(self.lists,)](
            self.ranked, self.order, self.mask, self.offsets, self.counts, self.moments,
            work, sums, grad_scores, self.items, 1 / self.epsilon, self.max_length.bit_length(),
            CHUNK=chunk_size(self.max_length, _CHUNK),
        )  # fmt: skip
        return grad_scores

    @property
    def _list_arguments(self) -> tuple[Tensor, ...]:
        """The first arguments of kernels over K."""
        return self.points, self.offsets, self.counts, self.limits

    def _set_up(self) -> None:
        """Fill ``points``, ``moments``, ``counts``, u_0 and ``limits``."""
        _squash[(self.lists,)](
            self.ranked, self.mask, self.defined, self.offsets, self.points, self.moments,
            self.counts, self.rows, self.items, self.iterations, math.log2(math.e) / self.epsilon,
            CHUNK=chunk_size(self.max_length, _CHUNK),
        )  # fmt: skip
        _find_limits[(self.lists, cdiv(self.grid[1], 64))](
            *self._list_arguments, self.items, self.grid[1], self.max_length.bit_length(),
            BLOCK_M=self.launch["BLOCK_M"], WIDTH=64,
        )  # fmt: skip

    def _scale(self) -> None:
        """Run all iterations, which fill ``rows`` and ``columns``."""
        # By iteration and list, the largest error of the column sums: the bits of a float32, since
        # those of non-negative floats are ordered as integers are (for tl.atomic_max).
        size = (self.iterations + 1) * self.lists
        errors = torch.zeros(size, dtype=torch.int32, device=self.scores.device)
        for step in range(1, self.iterations + 1):
            for side in ("columns", "rows"):
                _half_step[self.grid](
                    *self._list_arguments, self.rows, self.columns, errors, step, self.items,
                    self.tolerance, SIDE=side, **self.launch,
                )  # fmt: skip

    def _sort(self, channels: list[Tensor], change: bool) -> list[Tensor]:
        """Sort one or two vectors of values; with ``change``, minus the exactly sorted values."""
        results = [torch.zeros_like(values) for values in channels]
        if self.lists:
            _sort[self.grid](
                *self._list_arguments, channels[0], channels[-1], self.order, self.rows,
                self.columns, results[0], results[-1], self.k, self.items,
                TWO=len(channels) == 2, CHANGE=change, **self.launch,
            )  # fmt: skip
        return results


def _tile(max_length: int) -> dict[str, int]:
    """The sizes of a tile of K, and the warps of a program.

    BLOCK_M is the number of rows (or columns) for which a program computes sums, BLOCK_N the
    number of columns (or rows) that it reads at a time.

    With long lists a program has more rows, since it loads all columns for them. With short lists
    it has fewer threads, since the sum over threads costs more.
    """
    if max_length <= 1024:
        return {"BLOCK_M": 16, "BLOCK_N": 64, "num_warps": 2}
    return {"BLOCK_M": 16 if max_length <= 4096 else 32, "BLOCK_N": 128, "num_warps": 4}


@cached_launch
@triton.jit(do_not_specialize=["items", "iterations"])
def _squash(
    ranked, mask, defined, offsets, points, moments, counts, rows, items, iterations, sharpness,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the squashed scores x of one list and their sums, scaled so that ``K = exp2(logits)``.

    x is the sigmoid of the standardized score. Writes x, S and ``2 j x_j - S_j`` to ``points``; the
    mean of the scores and one over their standard deviation to ``moments``; the number of items and
    the most iterations to ``counts``; and u_0 = 1 to ``rows``. ``sharpness`` is ``log2(e) / ε``.
    """
    list_index = tl.program_id(0)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    items = items.to(tl.int64)
    count = 0
    for chunk_start in range(begin, end, CHUNK):
        at = chunk_start + tl.arange(0, CHUNK)
        count += tl.sum(is_real(mask, at, at < end).to(tl.int32), 0)
    total = tl.zeros([CHUNK], tl.float64)
    for chunk_start in range(0, count, CHUNK):
        at = chunk_start + tl.arange(0, CHUNK)
        total += tl.load(ranked + begin + at, mask=at < count, other=0.0).to(tl.float64)
    length = tl.maximum(count, 1).to(tl.float64)
    mean = tl.sum(total, 0) / length
    squares = tl.zeros([CHUNK], tl.float64)
    for chunk_start in range(0, count, CHUNK):
        at = chunk_start + tl.arange(0, CHUNK)
        score = tl.load(ranked + begin + at, mask=at < count, other=0.0).to(tl.float64)
        squares += tl.where(at < count, (score - mean) * (score - mean), 0.0)
    # 1e-6 as in rankgrad.sorting.optimal_transport
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / length + 1e-6)
    tl.store(moments + list_index * 2, mean)
    tl.store(moments + list_index * 2 + 1, scale)
    tl.store(counts + list_index * 2, count)
    max_steps = tl.where(count > 0, iterations, 0)
    if defined is not None:
        max_steps = tl.where(tl.load(defined + list_index) != 0, max_steps, 0)
    tl.store(counts + list_index * 2 + 1, max_steps)

    unit = sharpness / tl.maximum(count - 1, 1).to(tl.float64)
    sum_before = tl.zeros([1], tl.float64)
    first_x = tl.zeros([1], tl.float64)
    for chunk_start in range(0, count, CHUNK):
        at = chunk_start + tl.arange(0, CHUNK)
        inside = at < count
        score = tl.load(ranked + begin + at, mask=inside, other=0.0).to(tl.float64)
        negated_z = tl.where(inside, (mean - score) * scale, 0.0)
        x = tl.where(inside, unit / (1.0 + tl.exp(negated_z)), 0.0)
        if chunk_start == 0:
            first_x = tl.sum(tl.where(at == 0, x, 0.0), 0) + tl.zeros([1], tl.float64)
        sums = 2.0 * (tl.cumsum(x, 0) + sum_before) - x - first_x
        sum_before += tl.sum(x, 0)
        target = points + begin + at
        tl.store(target, x, mask=inside)
        tl.store(target + items, sums, mask=inside)
        tl.store(target + 2 * items, 2.0 * at.to(tl.float64) * x - sums, mask=inside)
        tl.store(rows + begin + at, tl.full([CHUNK], 1.0, tl.float32), mask=inside)


@triton.jit
def _is_large_entry(points, items, begin, at, other, least, OF_ROWS: tl.constexpr):
    """Whether the logits of single entries of K exceed ``least``; smaller entries are skipped."""
    row, column = at, other
    if not OF_ROWS:
        row, column = other, at
    x = tl.load(points + begin + column)
    term = tl.load(points + 2 * items + begin + column)
    return tl.load(points + items + begin + row) + term - 2.0 * row.to(tl.float64) * x > least


@cached_launch
@triton.jit(do_not_specialize=["items", "blocks", "steps"])
def _find_limits(
    points, offsets, counts, limits, items, blocks, steps,
    BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Find the entries that count, for WIDTH blocks of a list, by binary search.

    Writes to ``limits`` ``[lists, blocks, 4]`` the first and one past the last row in which the
    block's columns exceed 2^-64, then the same of the columns for the block's rows. Entries
    decrease away from the diagonal, so the outer rows or columns of a block set its range.
    """
    list_index = tl.program_id(0)
    begin, count = tl.load(offsets + list_index), tl.load(counts + list_index * 2)
    items = items.to(tl.int64)
    block = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = (block < blocks) & (block * BLOCK_M < count)
    last = tl.maximum(count - 1, 0)
    first = tl.where(inside, block * BLOCK_M, 0)
    last_in_block = tl.where(inside, tl.minimum(first + BLOCK_M - 1, last), 0)
    if count > 0:
        least = -64.0 - _rounding(points + items + begin, count)
        for of_rows in tl.static_range(2):
            low, high = tl.zeros_like(first), first
            down, up = last_in_block, tl.where(inside, last, 0)
            for _ in range(steps):
                middle = (low + high) // 2
                is_near = _is_large_entry(points, items, begin, first, middle, least, of_rows)
                is_open = low < high
                high = tl.where(is_open & is_near, middle, high)
                low = tl.where(is_open & (is_near == 0), middle + 1, low)
                middle = (down + up + 1) // 2
                is_near = _is_large_entry(
                    points, items, begin, last_in_block, middle, least, of_rows
                )
                is_open = down < up
                down = tl.where(is_open & is_near, middle, down)
                up = tl.where(is_open & (is_near == 0), middle - 1, up)
            target = limits + (list_index * blocks + block) * 4 + 2 * of_rows
            tl.store(target, low, mask=inside)
            tl.store(target + 1, down + 1, mask=inside)


class _Block(NamedTuple):
    """The rows or columns of a program, in device code."""

    points: Any
    items: Any  # the number of items of all lists
    begin: Any  # the first item of the list
    count: Any  # the number of real items
    first: Any  # the first row or column
    steps: Any  # the iterations of the list
    low: Any  # the first column or row with entries that count
    high: Any  # one past the last


class _Center(NamedTuple):
    """The position p at which a program splits logits, in device code."""

    middle: Any  # p
    x: Any  # at p
    sums: Any  # S at p
    rounding: Any  # a bound of the rounding errors of logits in float64


@triton.jit
def _block(points, offsets, counts, limits, items, SIDE: tl.constexpr, BLOCK_M: tl.constexpr):
    """The rows or columns of this program."""
    list_index, block = tl.program_id(0), tl.program_id(1)
    begin, count = tl.load(offsets + list_index), tl.load(counts + list_index * 2)
    place = limits + (list_index * tl.num_programs(1) + block) * 4 + (2 if SIDE == "rows" else 0)
    # Loaded for blocks past the list's end, too: waiting for the count would cost time.
    low, high = tl.load(place), tl.load(place + 1)
    steps = tl.load(counts + list_index * 2 + 1)
    return _Block(points, items.to(tl.int64), begin, count, block * BLOCK_M, steps, low, high)


@triton.jit
def _center(block, BLOCK_M: tl.constexpr):
    """The position p in the middle of the program's rows or columns."""
    middle = tl.minimum(block.first + BLOCK_M // 2, block.count - 1)
    x = tl.load(block.points + block.begin + middle)
    sums = block.points + block.items + block.begin
    rounding = _rounding(sums, block.count)
    return _Center(middle, x, tl.load(sums + middle), rounding)


@triton.jit
def _rounding(sums, count):
    """A bound of the rounding errors of a list's logits in float64: 2^-46 of the largest S."""
    return tl.load(sums + count - 1) * 1.4210854715202004e-14


@triton.jit
def _row_terms(block, center, row, PRECISE: tl.constexpr):
    """For rows r: the distance ``r - p``, and the row term of the logits (see the module).

    If PRECISE, the term has a bound of rounding errors added, so that logits of 0 do not become
    negative: if ε is tiny, they would be far below 0.
    """
    inside = row < block.count
    sums = tl.load(block.points + block.items + block.begin + row, mask=inside, other=0.0)
    distance = row - center.middle
    term = (sums - center.sums) - (2.0 * center.x) * distance.to(tl.float64)
    if PRECISE:
        term += center.rounding
    term = tl.where(inside, term, -1e30)  # entries past the list's end are 0
    return distance.to(tl.float32), term if PRECISE else term.to(tl.float32)


@triton.jit
def _column_terms(block, center, column, PRECISE: tl.constexpr):
    """For columns j: ``-2 (x_j - x_p)``, the factor of ``r - p``, and the column term of logits."""
    inside = column < block.count
    points, begin = block.points, block.begin
    x = tl.load(points + begin + column, mask=inside, other=0.0)
    column_sum = tl.load(points + 2 * block.items + begin + column, mask=inside, other=0.0)
    term = (column_sum + center.sums) - (2.0 * center.middle.to(tl.float64)) * x
    term = tl.where(inside, term, -1e30)
    factor = tl.where(inside, 2.0 * (center.x - x), 0.0)
    return (factor, term) if PRECISE else (factor.to(tl.float32), term.to(tl.float32))


@triton.jit
def _entries(factor, term, other_factor, other_term, PRECISE: tl.constexpr):
    """A tile of K; its first axis is that of the program's own rows or columns.

    Logits are at most 0; positive ones are rounding errors, and the bound of them.
    """
    logits = term[:, None] + other_term[None, :] + factor[:, None] * other_factor[None, :]
    if PRECISE:
        logits = tl.minimum(logits, 0.0).to(tl.float32)
    return tl.exp2(logits)


@triton.jit
def _inverse(sums):
    """One over the sums; 0 where all entries underflow."""
    return tl.where(sums == 0, 0.0, 1.0 / tl.where(sums == 0, 1.0, sums))


@triton.jit
def _product(
    block, vector,
    SIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """``K vector`` for the program's rows, or ``Kᵀ vector`` for its columns."""
    center = _center(block, BLOCK_M)
    at = block.first + tl.arange(0, BLOCK_M)
    if SIDE == "rows":
        factor, term = _row_terms(block, center, at, PRECISE)
    else:
        factor, term = _column_terms(block, center, at, PRECISE)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first_other in range(block.low, block.high, BLOCK_N):
        other = first_other + tl.arange(0, BLOCK_N)
        if SIDE == "rows":
            other_factor, other_term = _column_terms(block, center, other, PRECISE)
        else:
            other_factor, other_term = _row_terms(block, center, other, PRECISE)
        weight = tl.load(vector + block.begin + other, mask=other < block.count, other=0.0)
        total += _entries(factor, term, other_factor, other_term, PRECISE) * weight[None, :]
    return tl.sum(total, 1)


@cached_launch
@triton.jit(do_not_specialize=["step", "items"])
def _half_step(
    points, offsets, counts, limits, rows, columns, errors, step, items, tolerance,
    SIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write ``v = 1 / (Kᵀ u)`` for the program's columns, or ``u = 1 / (K v)`` for its rows.

    The column sums give the error of the iteration before. If it is within the tolerance, that
    iteration is the last one: the new v is not used, and the row step stores the number of
    iterations.
    """
    block = _block(points, offsets, counts, limits, items, SIDE, BLOCK_M)
    at, items = block.first + tl.arange(0, BLOCK_M), block.items
    inside = at < block.count
    error_place = errors + step * tl.num_programs(0) + tl.program_id(0)
    running = (step <= block.steps) & (block.first < block.count)
    if SIDE == "rows":
        error = tl.load(error_place).to(tl.float32, bitcast=True)
        is_last = (step > 1) & (error < tolerance)
        if running & is_last & (block.first == 0):
            tl.store(counts + tl.program_id(0) * 2 + 1, step - 1)
        # Lists whose error is NaN go on.
        running &= (step <= 1) | (error >= tolerance) | (error != error)
    if running:
        vector = columns + step * items if SIDE == "rows" else rows + (step - 1) * items
        sums = _product(block, vector, SIDE, BLOCK_M, BLOCK_N, PRECISE)
        if SIDE == "rows":
            target = rows + step * items + block.begin + at
        else:
            target = columns + step * items + block.begin + at
            if step > 1:
                previous = tl.load(target - items, mask=inside, other=1.0)
                error = tl.max(tl.where(inside, tl.abs(sums * previous - 1.0), 0.0), 0)
                tl.atomic_max(error_place, error.to(tl.int32, bitcast=True))
        tl.store(target, _inverse(sums), mask=inside)


@triton.jit
def _counted_ranks(count, k):
    """The number of ranks that count: up to the cutoff k, or all if k is 0."""
    return tl.where(k > 0, tl.minimum(k, count), count)


@cached_launch
@triton.jit(do_not_specialize=["k", "items"])
def _sort(
    points, offsets, counts, limits, values, second, order, rows, columns, result, result_second,
    k, items, TWO: tl.constexpr, CHANGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write ``Σ_j P_rj value_j`` for the program's ranks r, of one or TWO vectors of values.

    With CHANGE it is ``Σ_j P_rj (value_j - value_r)``, small where the sort is nearly exact.
    """
    block = _block(points, offsets, counts, limits, items, "rows", BLOCK_M)
    begin, count, steps, items = block.begin, block.count, block.steps, block.items
    cut = _counted_ranks(count, k)
    if (steps > 0) & (block.first < cut):
        center = _center(block, BLOCK_M)
        row = block.first + tl.arange(0, BLOCK_M)
        inside = row < cut
        factor, term = _row_terms(block, center, row, PRECISE)
        item = tl.load(order + begin + row, mask=inside & CHANGE, other=0)
        value = tl.load(values + item, mask=inside & CHANGE, other=0.0)
        value_second = value
        if TWO:
            value_second = tl.load(second + item, mask=inside & CHANGE, other=0.0)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        total_second = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first_column in range(block.low, block.high, BLOCK_N):
            column = first_column + tl.arange(0, BLOCK_N)
            valid = column < count
            column_factor, column_term = _column_terms(block, center, column, PRECISE)
            scale = tl.load(columns + steps * items + begin + column, mask=valid, other=0.0)
            entries = _entries(factor, term, column_factor, column_term, PRECISE) * scale[None, :]
            column_item = tl.load(order + begin + column, mask=valid, other=0)
            column_value = tl.load(values + column_item, mask=valid, other=0.0)
            total += entries * (column_value[None, :] - value[:, None])
            if TWO:
                column_value = tl.load(second + column_item, mask=valid, other=0.0)
                total_second += entries * (column_value[None, :] - value_second[:, None])
        target = begin + row
        scale = tl.load(rows + steps * items + target, mask=inside, other=0.0)
        tl.store(result + target, tl.sum(total, 1) * scale, mask=inside)
        if TWO:
            tl.store(result_second + target, tl.sum(total_second, 1) * scale, mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["k", "step", "items"])
def _backward_columns(
    points, offsets, counts, limits, values, second, grad, grad_second, order, rows, columns,
    changes, changes_second, work, k, step, items, LAST: tl.constexpr, TWO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Backward through an iteration ``v = 1 / (Kᵀ u)``, ``u = 1 / (K v)``, for its columns.

    Before the last iteration comes the sort. It and the last row step together are
    ``K_rj u_r grad_r (value_j - Σ_l P_rl value_l)``, in which the large terms next to the diagonal
    cancel before rounding.
    """
    block = _block(points, offsets, counts, limits, items, "columns", BLOCK_M)
    begin, count, items = block.begin, block.count, block.items
    if LAST:
        running, step = block.steps > 0, block.steps
    else:
        running = step < block.steps
    if running & (block.first < count):
        center = _center(block, BLOCK_M)
        column = block.first + tl.arange(0, BLOCK_M)
        inside = column < count
        factor, term = _column_terms(block, center, column, PRECISE)
        value, value_second = term, term
        if LAST:
            item = tl.load(order + begin + column, mask=inside, other=0)
            value = tl.load(values + item, mask=inside, other=0.0)
            if TWO:
                value_second = tl.load(second + item, mask=inside, other=0.0)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        distance_sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        earlier_sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first_row in range(block.low, block.high, BLOCK_N):
            row = first_row + tl.arange(0, BLOCK_N)
            valid = row < count
            distance, row_term = _row_terms(block, center, row, PRECISE)
            entries = _entries(factor, term, distance, row_term, PRECISE)
            row_scales = rows + step * items + begin + row
            scale = tl.load(row_scales, mask=valid, other=0.0)
            earlier_weight = tl.load(row_scales - items, mask=valid, other=0.0) * distance
            if LAST:
                row_item = tl.load(order + begin + row, mask=valid, other=0)
                at, is_counted = begin + row, row < _counted_ranks(count, k)
                weight = _sort_vjp(values, grad, changes, value, row_item, at, valid, is_counted)
                if TWO:
                    weight += _sort_vjp(
                        second, grad_second, changes_second, value_second, row_item, at, valid,
                        is_counted,
                    )  # fmt: skip
                weight *= entries * scale[None, :]
                sums += weight
                distance_sums += weight * distance[None, :]
            else:
                weight = -scale * scale * tl.load(work + begin + row, mask=valid, other=0.0)
                sums += entries * weight[None, :]
                distance_sums += entries * (weight * distance)[None, :]
            earlier_sums += entries * earlier_weight[None, :]
        grad_points = tl.zeros([BLOCK_M], tl.float32)
        if not LAST:
            grad_points = tl.load(work + 2 * items + begin + column, mask=inside, other=0.0)
        _store_columns(
            columns + step * items, work, items, begin, column, inside, center.middle,
            tl.sum(sums, 1), tl.sum(distance_sums, 1), tl.sum(earlier_sums, 1), grad_points,
        )  # fmt: skip


@triton.jit
def _sort_vjp(values, grad, changes, value, item, place, valid, counting):
    """``grad_r (value_j - Σ_l P_rl value_l)`` for columns j with these values and some rows r."""
    row_value = tl.load(values + item, mask=valid, other=0.0)
    change = tl.load(changes + place, mask=counting, other=0.0)
    difference = (value[:, None] - row_value[None, :]) - change[None, :]
    return difference * tl.load(grad + place, mask=counting, other=0.0)[None, :]


@triton.jit
def _store_columns(
    columns, work, items, begin, column, inside, middle, sums, distance_sums, earlier_sums,
    grad_points,
):  # fmt: skip
    """Store the column factors, and add an iteration to the sums weighted by ``j - r``.

    Args:
        columns: v of the iteration.
        work: scratch of the backward pass.
        items: the number of items of all lists.
        begin: the first item of the list.
        column: columns of K.
        inside: which of the columns exist.
        middle: the position that row distances are relative to.
        sums: ``Kᵀ l``, with ``l = -u² ∘ grad_u``.
        distance_sums: ``Kᵀ l`` with rows weighted by their distance from the middle.
        earlier_sums: ``Kᵀ u`` with the same weights, u from the iteration before.
        grad_points: the sums of later iterations.
    """
    scale = tl.load(columns + begin + column, mask=inside, other=1.0)
    distance = (column - middle).to(tl.float32)
    grad_sums = -sums * scale * scale
    grad_points += scale * (distance * sums - distance_sums)
    grad_points += grad_sums * (distance * _inverse(scale) - earlier_sums)
    tl.store(work + items + begin + column, grad_sums, mask=inside)
    tl.store(work + 2 * items + begin + column, grad_points, mask=inside)


@cached_launch
@triton.jit(do_not_specialize=["step", "items"])
def _backward_rows(
    points, offsets, counts, limits, work, step, items,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Write the gradient with respect to u of the iteration before, for the program's rows.

    It is the product of K and the column factors of :func:`_store_columns`.
    """
    block = _block(points, offsets, counts, limits, items, "rows", BLOCK_M)
    if (step <= block.steps) & (block.first < block.count):
        grad_rows = _product(block, work + block.items, "rows", BLOCK_M, BLOCK_N, PRECISE)
        row = block.first + tl.arange(0, BLOCK_M)
        tl.store(work + block.begin + row, grad_rows, mask=row < block.count)


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _linear_step(
    at_rank, offsets, lengths, scale, defined, values, grad, k, persistence,
    METRIC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the loss of a list for a linear metric, and its derivatives by sorted gains."""
    list_index = tl.program_id(0)
    begin, count = tl.load(offsets + list_index), tl.load(lengths + list_index)
    norm = tl.load(scale + list_index)
    norm = tl.where(tl.load(defined + list_index) != 0, norm, 0.0)
    cut = _counted_ranks(count, k)
    beyond = discount_beyond(count, k, METRIC)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, cut, CHUNK):
        rank = first + tl.arange(0, CHUNK)
        inside = rank < cut
        weight = norm * (discount((rank + 1).to(tl.float32), METRIC, persistence) - beyond)
        total += weight * tl.load(at_rank + begin + rank, mask=inside, other=0.0)
        tl.store(grad + begin + rank, as_gradient(weight, METRIC), mask=inside)
    tl.store(values + list_index, as_loss(tl.sum(total, 0), count, k, norm, METRIC))


@cached_launch
@triton.jit(do_not_specialize=["items", "steps"])
def _finish(
    ranked, order, mask, offsets, counts, moments, work, sums, grad_scores, items, sharpness, steps,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a list with respect to its scores, from ``grad_points`` and R.

    R is the gradient with respect to u_0. The gradient with respect to x is
    ``2 grad_points_j + 2 Σ_{r>j} R_r + R_j``, whose terms of R are averaged over tied items. It is
    then propagated through the sigmoid and the standardization. ``sums`` is scratch of two parts.
    ``sharpness`` is ``1 / ε``; ``steps`` bounds the binary search for tied items.
    """
    list_index = tl.program_id(0)
    begin, count = tl.load(offsets + list_index), tl.load(counts + list_index * 2)
    items = items.to(tl.int64)
    end = begin + count
    grad_points, tie_sums = work + 2 * items, sums + items
    mean, scale = tl.load(moments + list_index * 2), tl.load(moments + list_index * 2 + 1)
    unit = sharpness / tl.maximum(count - 1, 1).to(tl.float64)
    if tl.load(counts + list_index * 2 + 1) > 0:
        chunk_sums = tl.zeros([CHUNK], tl.float64)
        for chunk_start in range(begin, end, CHUNK):
            at = chunk_start + tl.arange(0, CHUNK)
            chunk_sums += tl.load(work + at, mask=at < end, other=0.0).to(tl.float64)
        sum_after = tl.sum(chunk_sums, 0) + tl.zeros([1], tl.float64)
        sum_before = tl.zeros([1], tl.float64)
        for chunk_start in range(begin, end, CHUNK):
            at = chunk_start + tl.arange(0, CHUNK)
            row_grad = tl.load(work + at, mask=at < end, other=0.0).to(tl.float64)
            part = tl.where(at < end, 2.0 * (sum_after - tl.cumsum(row_grad, 0)) + row_grad, 0.0)
            sum_after -= tl.sum(row_grad, 0)
            tl.store(tie_sums + at, tl.cumsum(part, 0) + sum_before, mask=at < end)
            sum_before += tl.sum(part, 0)
        tl.debug_barrier()
        total = tl.zeros([CHUNK], tl.float64)
        z_products = tl.zeros([CHUNK], tl.float64)
        for chunk_start in range(begin, end, CHUNK):
            at = chunk_start + tl.arange(0, CHUNK)
            inside = at < end
            score = tl.load(ranked + at, mask=inside, other=0.0)
            start, stop = tie_group(ranked, begin, end, at, score, inside, steps)
            part = tl.load(tie_sums + stop - 1, mask=inside, other=0.0)
            part -= tl.load(tie_sums + start - 1, mask=inside & (start > begin), other=0.0)
            grad_x = 2.0 * tl.load(grad_points + at, mask=inside, other=0.0).to(tl.float64)
            grad_x += part / tl.where(inside, stop - start, 1).to(tl.float64)
            z = (score.to(tl.float64) - mean) * scale
            decay = tl.exp(-tl.abs(z))
            grad_z = unit * grad_x * decay / ((1.0 + decay) * (1.0 + decay))
            grad_z = tl.where(inside, grad_z, 0.0)
            tl.store(sums + at, grad_z, mask=inside)
            total += grad_z
            z_products += tl.where(inside, grad_z * z, 0.0)
        length = count.to(tl.float64)
        mean_grad, mean_product = tl.sum(total, 0) / length, tl.sum(z_products, 0) / length
        tl.debug_barrier()
        for chunk_start in range(begin, end, CHUNK):
            at = chunk_start + tl.arange(0, CHUNK)
            inside = at < end
            score = tl.load(ranked + at, mask=inside, other=0.0).to(tl.float64)
            grad_z = tl.load(sums + at, mask=inside, other=0.0)
            grad_score = scale * (grad_z - mean_grad - mean_product * (score - mean) * scale)
            item = tl.load(order + at, mask=inside, other=0)
            real = is_real(mask, item, inside)
            tl.store(grad_scores + item, grad_score.to(tl.float32), mask=real)
