"""NeuralSort with Sinkhorn scaling on GPUs, without an n × n tensor in memory.

**Formulas.** This is the relaxation of NeuralNDCG (Pobrotyn and Białobrzeski eqs. 3, 5 and 6). In
sorted order (i from 0), with ``b_j = Σ_k |s_j - s_k|`` and ``c_j = b_j - (n - 1) s_j``, NeuralSort
is ``K_ij = exp(-(2 i (s_j - s_i) + c_j - c_i) / τ)`` with normalized rows. K is 1 on the diagonal
and decreases on both sides of it, so tiles far from the diagonal are skipped. Sinkhorn scaling
multiplies the rows of K by u and its columns by v, and iterates on these vectors:
``u_0 = 1 / (K 1)``, ``v_t = 1 / (Kᵀ u_{t-1})``, ``u_t = 1 / (K v_t)``. Transposed scaling skips the
last row step. With w the discounts and g the gains, the value of a linear metric is
``Σ_i w_i u_i Σ_j K_ij v_j g_j``.

**Gradient.** The gradient with respect to log K is ``G_ij = K_ij Σ_f l_fi r_fj``. Each row step and
each column step adds one outer product f of a row factor l with a column factor r, and so does the
value itself. The rows of G sum to 0, because u_0 cancels any factor of a row of K. So only the
column sums of G are needed: the plain sums ``D_j``, and the sums ``S_j`` weighted by the rank
offset ``2 (j - i)``. The outer product f adds ``r_fj (Kᵀ l_f)_j`` to ``D_j``, and the same with
``2 (j - i) K_ij`` in place of ``K_ij`` to ``S_j``.

**Programs.** Several programs share the rows of a list, and all of them run at once. Each program
sums over its rows, which gives its part of the column sums. Then it waits at a barrier for the
other programs, and adds up the parts of all of them for the columns that it needs. The order of
summation is fixed, so the same input gives the same bits. Every sweep over K computes K again. If K
fits in registers, :mod:`rankgrad.kernels.gpu._register_resident` computes the scaling instead.

**Launches.** :func:`_rank` sorts the lists, :func:`_scale` runs the scaling and its backward pass,
and :func:`_finish` computes the gradient with respect to the scores from D and S. One launch of
``_scale`` is enough for a linear metric and its gradient. The operator P and its adjoint are two
launches: the first stores u and v of every step for the second.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import chunk_size, list_span, positions
from rankgrad.kernels.gpu._ideal_gain import ideal_gain
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._linear import discount_beyond
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, SortOperator, through_operator
from rankgrad.kernels.gpu._register_resident import (
    ResidentLayout,
    at_once,
    entries_of,
    load_places,
    rank_offset,
    rank_weights,
    wait,
)
from rankgrad.kernels.gpu._segmented_sort import count_items

_ROWS, _COLUMNS, _WARPS = 64, 64, 8  # rows and columns of a tile of K, and warps per program
_RESIDENT, _REGISTERS = 1, 255  # programs per multiprocessor, and registers per thread
_TOGETHER = 16  # programs whose parts of a column sum are loaded at the same time
_SCRATCH = 1 << 22  # at most so many floats for all programs' parts of one kind of column sum


def through_sinkhorn(
    batch: FlatLists,
    temperature: float,
    iterations: int,
    tolerance: float,
    transposed: bool,
    metric_options: MetricOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss ``1 - metric``, or ARP itself, through the scaled matrix.

    :mod:`rankgrad.kernels.ops` describes the arguments.

    Returns:
        The values ``[lists]``, their gradient with respect to the scores ``[items]``, and whether
        the loss is defined ``[lists]``.
    """
    scores, _, mask, _, offsets, max_length = batch
    metric, k, _, _, persistence = metric_options
    scaling = temperature, iterations, tolerance, transposed
    operator = SinkhornOperator(scores, mask, offsets, max_length, k, *scaling)
    if metric in STEP_METRICS:
        return through_operator(operator, batch, metric_options)
    gains, scale, lengths, defined = ideal_gain(batch, metric_options)
    values, grad_scores = torch.empty_like(scale), torch.empty_like(scores)
    operator.rank(gains, lengths, (values, grad_scores))
    weighing = _Weighing("loss", False, metric, persistence)
    at_rank = (values, values)  # placeholders: the mode "loss" neither reads nor writes them
    operator.differentiate(weighing, (scale, defined), at_rank, values, grad_scores)
    return values, grad_scores, defined


class _Weighing(NamedTuple):
    """What a launch computes, and so what the rows of the scaled matrix are weighted by.

    Attributes:
        mode: ``loss``: a linear metric and its gradient; rows are weighted by discounts. ``apply``:
            the operator; rows are not weighted. ``adjoint``: the operator's adjoint; rows are
            weighted by the gradient with respect to its result.
        scaled: whether an earlier launch has computed u and v.
        metric: the metric whose discounts a loss uses.
        persistence: the parameter of rbp.
    """

    mode: str
    scaled: bool
    metric: str = "dcg"
    persistence: float = 0.0


@dataclass(eq=False)
class SinkhornOperator(SortOperator):
    """NeuralSort with Sinkhorn scaling as a linear operator and its adjoint.

    The first call of ``apply`` scales the lists, and saves u and v of every step for later calls.
    :func:`through_sinkhorn` uses :meth:`rank` and :meth:`differentiate` for linear metrics, which
    need no saved u and v.

    Args:
        temperature: τ of NeuralSort.
        iterations: the maximum number of iterations of the scaling.
        tolerance: a list has converged if the error of its row or column sums is smaller.
        transposed: whether columns, not rows, are normalized last.
    """

    temperature: float
    iterations: int
    tolerance: float
    transposed: bool

    def __post_init__(self) -> None:
        # The values that were last written to ``places``. _place recognizes them by their address.
        # This reference keeps them alive, so that no other tensor can get the same address.
        self._values: Tensor | None = None

    def apply(self, values: Tensor) -> Tensor:
        at_rank, self.misses = torch.zeros_like(self.scores), torch.zeros_like(self.scores)
        if self.lists:
            weighing = _Weighing("apply", scaled=self._values is not None)
            self._place(values, at_rank)
            # The lengths select the lists to compute: those of length 0 are skipped.
            self.scale(weighing, (at_rank, self.lengths), (at_rank, self.misses))
        return at_rank

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        grad_scores = torch.zeros_like(self.scores)
        if self.lists:
            if self._values is None:
                self.apply(values)
            self._place(values, grad_scores)
            weighing, grad = _Weighing("adjoint", scaled=True), grad.contiguous()
            self.differentiate(weighing, (grad, self.lengths), (grad, grad), grad, grad_scores)
        return grad_scores

    def _place(self, values: Tensor, zeros: Tensor) -> None:
        """Write the values to ``places`` in sorted order; the first call also sorts the lists.

        Args:
            values: ``[items]``, in input order.
            zeros: ``[items]``, zeros, which the first call writes again.
        """
        values = values.contiguous()
        if self._values is None:
            lengths = count_items(self.mask, self.offsets, self.max_length)
            self.rank(values, lengths, (self.scores.new_empty(self.lists), zeros))
            # v of every step, then u of every step. If K stays in registers, one more vector is
            # between them: see _scale_resident.
            self.scalings = values.new_empty(2 * self.iterations + 3, self.size)
            self.taken = self.numbers.new_empty(self.lists)
        elif self._values.data_ptr() != values.data_ptr():
            _place[(self.lists, cdiv(self.max_length, 256))](
                values, self.numbers, self.places, self.offsets, self.lengths, self.size, 256
            )
        self._values = values

    def rank(self, gains: Tensor, lengths: Tensor, zeroed: tuple[Tensor, Tensor]) -> None:
        """Sort the lists by descending score, and allocate the tensors that kernels share.

        Args:
            gains: ``[items]``, in input order.
            lengths: ``[lists]``, the number of real items.
            zeroed: ``[lists]`` and ``[items]``, which are filled with zeros by the same launch.
        """
        scores, lists, size = self.scores, self.lists, self.scores.numel()
        self.gains, self.lengths, self.size = gains, lengths, size
        # How the register-resident kernel distributes the lists; None if K does not fit.
        self.layout = ResidentLayout.of(scores, lists, self.max_length)
        # For each sorted item: its index in the list, and how many items score strictly higher,
        # and strictly lower. Kernels call this tensor ``order``.
        self.numbers = torch.empty(3, size, dtype=torch.int32, device=scores.device)
        # For each sorted item: its score, c as the sum of two floats (high and low part), and its
        # gain. _rank and _scale call this tensor ``ranked``.
        self.places = scores.new_empty(4, size)
        # For each list: a counter of arrivals at barriers and, if K does not stay in registers,
        # the error of each step (see _forward).
        counters = 1 if self.layout is not None else 2 + self.iterations
        self.barriers = self.numbers.new_empty(lists * counters)  # which _rank zeros
        _rank[(lists, cdiv(self.max_length, 64))](
            scores, self.mask, gains, self.offsets, lengths, self.numbers, self.places,
            *zeroed, self.barriers, size, counters, 64, 64, num_warps=4,
        )  # fmt: skip
        # Placeholders, which a loss does not use. For the operator, _place replaces them by memory
        # for u and v of every step, and for the number of steps of each list.
        self.scalings, self.taken = self.places, self.numbers

    @property
    def shared(self) -> int:
        """The number of programs per list.

        If there are several, they wait for each other, so those of all lists must run at once.
        """
        if self.layout is not None:
            return self.layout.shared
        most = _RESIDENT * at_once(self.places) // self.lists
        return max(1, min(most, cdiv(self.max_length, _ROWS), _SCRATCH // self.size))

    def scale(
        self, weighing: _Weighing, chosen: tuple[Tensor, Tensor], at_rank: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Scale the lists, and compute what ``weighing.mode`` says except for the last step.

        Args:
            weighing: what to compute.
            chosen: two tensors: the scale of each list, ``[lists]``, which only a loss reads; and
                ``[lists]``, 0 for lists to skip.
            at_rank: two tensors ``[items]``, by rank. For ``apply``: the result and one minus the
                result, written. For ``adjoint``: the first is the gradient with respect to the
                result, the second is not used.

        Returns:
            For :func:`_finish`: scratch ``[items]`` for prefix sums; and memory with the column
            sums D and S, and after them the programs' parts of the value.
        """
        mode, scaled, metric, persistence = weighing
        iterations, sharpness = self.iterations, 1 / self.temperature
        of_lists = (self.offsets, self.lengths, *chosen)
        scalars = (iterations, self.tolerance, sharpness, self.k, persistence)
        options = (metric, self.transposed, mode, scaled)
        barriers = torch.zeros_like(self.barriers) if scaled else self.barriers
        places, lists, size, layout = self.places, self.lists, self.size, self.layout
        if layout is not None:
            floats = layout.floats(lists, size, iterations, mode)
            work = places.new_empty(floats + size)
            layout.launch(
                places, work, barriers, self.scalings, self.taken, *at_rank, *of_lists, size,
                lists, *scalars, *options,
            )  # fmt: skip
            return work[floats:], work
        shared = self.shared
        tiles, width = cdiv(self.max_length, _ROWS), cdiv(self.max_length, _COLUMNS)
        scalings = self.scalings
        if mode == "loss":
            scalings = places.new_empty(2 * iterations + 2, size)
        # Three scratch vectors, the column sums D and S, and the programs' parts of the value.
        work = places.new_empty(5 * size + lists * shared)
        _scale[(lists * shared,)](
            places, scalings, work, places.new_empty(2, 3, shared, size),
            self.numbers.new_empty(lists, tiles, 2), self.numbers.new_empty(lists, width, 2),
            barriers, self.taken, *at_rank, *of_lists, size, tiles, width, *scalars, *options,
            shared, next_power_of_2(shared), _ROWS, _COLUMNS,
            min(_TOGETHER, next_power_of_2(shared)), num_warps=_WARPS, maxnreg=_REGISTERS,
            launch_cooperative_grid=shared > 1,
        )  # fmt: skip
        return work[2 * size :], work[3 * size :]

    def differentiate(
        self,
        weighing: _Weighing,
        chosen: tuple[Tensor, Tensor],
        at_rank: tuple[Tensor, Tensor],
        values: Tensor,
        grad_scores: Tensor,
    ) -> None:
        """Scale the lists, then compute the gradient and, for a loss, also the values.

        Args:
            weighing: what to compute: a loss or the adjoint.
            chosen: as in :meth:`scale`.
            at_rank: as in :meth:`scale`.
            values: ``[lists]``, written for a loss; otherwise any tensor.
            grad_scores: ``[items]``, written, in input order.
        """
        prefix, sums = self.scale(weighing, chosen, at_rank)
        layout = self.layout
        rows, parts = (layout.rows, layout.shared) if layout is not None else (_ROWS, 1)
        kind = weighing.metric if weighing.mode == "loss" else "operator"
        _finish[(self.lists,)](
            self.numbers, self.gains, prefix, sums, self.offsets, self.lengths, *chosen, values,
            grad_scores, self.size, 1 / self.temperature, self.k, self.shared,
            kind if kind in ("arp", "operator") else "loss", rows, parts,
            chunk_size(self.max_length, 1024), num_warps=4,
        )  # fmt: skip


@triton.jit
def _nan_last(score):
    """The score; NaN becomes -inf, so that every item has a distinct rank."""
    return tl.where(score == score, score, float("-inf"))


@cached_launch
@triton.jit(do_not_specialize=["total", "counters"])
def _rank(
    scores, mask, gains, offsets, lengths, order, ranked, values, grad_scores, barriers, total,
    counters, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sort a block of ROWS items of a list: write each item to its rank by descending score.

    The rank of an item is the number of items ahead of it: those of higher score, and those of
    equal score before it in input order. Padding has no rank. The attributes ``numbers`` and
    ``places`` of :meth:`SinkhornOperator.rank` describe what is written to ``order`` and
    ``ranked``. The kernel also zeros the barriers, the values and the gradient.
    """
    list_index, start, count = list_span(offsets)
    total = total.to(tl.int64)
    above, below = order + total, order + 2 * total
    high, low, ranked_gains = ranked + total, ranked + 2 * total, ranked + 3 * total
    if tl.program_id(1) == 0:
        tl.store(values + list_index, 0.0)
        for target in range(list_index * counters, list_index * counters + counters):
            tl.store(barriers + target, 0)
    first = tl.program_id(1) * ROWS
    if first < count:
        row, real = positions(mask, start, first, count, ROWS)
        tl.store(grad_scores + start + row, tl.zeros([ROWS], tl.float32), mask=row < count)
        score = tl.load(scores + start + row, mask=real, other=0.0)
        key = _nan_last(score)
        ahead = tl.zeros([ROWS], tl.int32)
        higher = tl.zeros([ROWS], tl.int32)
        lower = tl.zeros([ROWS], tl.int32)
        distance = tl.zeros([ROWS], tl.float64)
        for first_column in range(0, count, COLUMNS):
            column, valid = positions(mask, start, first_column, count, COLUMNS)
            column_score = tl.load(scores + start + column, mask=valid, other=0.0)
            column_key = _nan_last(column_score)
            over = (column_key[None, :] > key[:, None]) & valid[None, :]
            tied = (column_key[None, :] == key[:, None]) & valid[None, :]
            higher += tl.sum(over.to(tl.int32), 1)
            ahead += tl.sum((over | (tied & (column[None, :] < row[:, None]))).to(tl.int32), 1)
            lower += tl.sum((valid[None, :] & ~over & ~tied).to(tl.int32), 1)
            apart = tl.abs(column_score.to(tl.float64)[None, :] - score.to(tl.float64)[:, None])
            distance += tl.sum(tl.where(valid[None, :], apart, 0.0), 1)
        target = start + ahead
        tl.store(order + target, row, mask=real)
        tl.store(above + target, higher, mask=real)
        tl.store(below + target, lower, mask=real)
        tl.store(ranked + target, score, mask=real)
        gain = tl.load(gains + start + row, mask=real, other=0.0)
        tl.store(ranked_gains + target, gain, mask=real)
        exact = distance - (tl.load(lengths + list_index) - 1).to(tl.float64) * score.to(tl.float64)
        high_part = exact.to(tl.float32)
        tl.store(high + target, high_part, mask=real)
        tl.store(low + target, (exact - high_part.to(tl.float64)).to(tl.float32), mask=real)


@cached_launch
@triton.jit(do_not_specialize=["size"])
def _place(values, order, places, offsets, lengths, size, BLOCK: tl.constexpr):
    """For a block of ranks, overwrite the gains in ``places`` with the values of the same items."""
    list_index = tl.program_id(0)
    size = size.to(tl.int64)
    base = tl.load(offsets + list_index)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.load(lengths + list_index)
    item = tl.load(order + base + at, inside, 0)
    value = tl.load(values + base + item, inside, 0.0)
    tl.store(places + 3 * size + base + at, value, inside)


class _Matrix(NamedTuple):
    """K of one list, in device code."""

    scores: Any  # [4, size]: of sorted items, the scores, both parts of c, and the gains
    base: Any  # where the list begins in a vector
    items: Any  # the number of real items of the list
    size: Any  # the length of a vector: the number of items of all lists
    sharpness: Any  # one over the temperature
    limits: Any  # [row tiles, 2]: the first column tile with entries, and one past the last


class _Part(NamedTuple):
    """The rows of K that a program computes, and how it exchanges column sums with others."""

    top: Any  # the first row tile of the program
    end: Any  # one past the last row tile
    reach: Any  # the first column tile with entries in these rows
    bound: Any  # one past the last such column tile
    mine: Any  # the index of this program among those of the list
    sharing: Any  # the number of programs of the list that have rows
    sums: Any  # [2, 3, SHARED, size]: by half and kind, every program's part of the column sums
    spans: Any  # [column tiles, 2]: the first program with entries in it, and one past the last
    barriers: Any  # of the list: a counter of arrivals and, at 1 + step, the error of each step


@triton.jit
def _load_places(matrix, at):
    """The scores and both parts of c at some positions; past the list's end, they make K zero."""
    high, low = matrix.scores + matrix.size, matrix.scores + 2 * matrix.size
    return load_places(matrix.scores, high, low, matrix.base, at, matrix.items)


@triton.jit
def _entries(matrix, row, row_places, column_places):
    """A tile of K, from the results of :func:`_load_places` for its rows and its columns."""
    score, high, low = row_places
    column_score, column_high, column_low = column_places
    return entries_of(
        row[:, None], score[:, None], high[:, None], low[:, None],
        column_score[None, :], column_high[None, :], column_low[None, :], matrix.sharpness,
    )  # fmt: skip


@triton.jit
def _logit(matrix, row, column):
    """``τ log K_ij`` for one row i and one column j, in float64."""
    base, ranked = matrix.base, matrix.scores
    high, low = ranked + matrix.size, ranked + 2 * matrix.size
    difference = tl.load(ranked + base + column).to(tl.float64) - tl.load(ranked + base + row)
    main = tl.load(high + base + column).to(tl.float64) - tl.load(high + base + row)
    rest = tl.load(low + base + column) - tl.load(low + base + row)
    return -(2 * row * difference + main + rest)


@triton.jit
def _column_sums(
    matrix, part, tile, column, inside, WHICH: tl.constexpr, half,
    SHARED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Add up the parts of column sums that the programs wrote, for the columns of one tile.

    Only programs whose rows have entries in these columns wrote a part. WHICH is 0, 1 or 2 for the
    first, second or third kind of sum that :func:`_column_parts` wrote. Successive sweeps write to
    alternate halves of ``part.sums``, so that a program that is one sweep ahead does not overwrite
    what others still read.
    """
    first = tl.load(part.spans + tile * 2)
    last = tl.load(part.spans + tile * 2 + 1)
    total = tl.zeros_like(column).to(tl.float32)
    for first_program in range(first, last, TOGETHER):
        program = first_program + tl.arange(0, TOGETHER)
        at = ((half * 3 + WHICH) * SHARED + program).to(tl.int64) * matrix.size
        parts = tl.load(
            part.sums + at[:, None] + (matrix.base + column)[None, :],
            mask=(program < last)[:, None] & inside[None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        total += tl.sum(parts, 0)
    return total


@cached_launch
@triton.jit(do_not_specialize=["size", "tiles", "stride", "iterations", "k"])
def _scale(
    ranked, columns, work, parts, limits, spans, barriers, steps_taken, at_rank, misses, offsets,
    lengths, scale, defined, size, tiles, stride, iterations, tolerance, sharpness, k, persistence,
    METRIC: tl.constexpr, TRANSPOSED: tl.constexpr, MODE: tl.constexpr, SCALED: tl.constexpr,
    SHARED: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Scale one list, forward and backward; this program computes some tiles of its rows.

    SHARED programs are launched for each list; the first ``sharing`` of them have rows. PADDED is
    the smallest power of two that is not less than SHARED. For the MODE see :class:`_Weighing`.

    - ``columns`` is ``[2 (iterations + 1), size]``: v of every step, then u of every step, which is
      called ``rows`` here. If SCALED, an earlier launch has computed them, and ``steps_taken``,
      ``[lists]``.
    - ``work`` is ``[5, size]``: two scratch vectors, the derivatives with respect to u, and the
      column sums D and S. After them are the programs' parts of the value, ``[lists, SHARED]``.
    - ``parts`` is ``part.sums`` of :class:`_Part`.
    - ``limits`` is ``[lists, tiles, 2]`` and ``spans`` is ``[lists, stride, 2]``, for each list as
      in :class:`_Matrix` and :class:`_Part`.
    """
    list_index = tl.program_id(0) // SHARED
    program = tl.program_id(0) % SHARED
    items = tl.load(lengths + list_index)
    base = tl.load(offsets + list_index)
    row_tiles = tl.cdiv(items, ROWS)  # the number of row tiles of this list
    each = tl.maximum(tl.cdiv(row_tiles, SHARED), 1)
    sharing = tl.cdiv(row_tiles, each)
    size = size.to(tl.int64)
    rows = columns + (iterations + 1) * size
    grad_rows = work + 2 * size
    if (tl.load(defined + list_index) != 0) & (program < sharing):
        top = program * each
        end = tl.minimum(top + each, row_tiles)
        limits += list_index * tiles * 2
        spans += list_index * stride * 2
        barriers += list_index * (2 + iterations)
        arrived = sharing
        matrix = _Matrix(ranked, base, items, size, sharpness, limits)
        _find_band(matrix, top, end, ROWS, COLUMNS)
        wait(barriers, arrived, SHARED)
        reach = tl.load(limits + top * 2, cache_modifier=".cg")
        bound = tl.load(limits + end * 2 - 1, cache_modifier=".cg")
        part = _Part(top, end, reach, bound, program, sharing, parts, spans, barriers)
        _find_spans(matrix, part, each, row_tiles, PADDED)
        if SCALED:
            step = tl.load(steps_taken + list_index)
        else:
            step, arrived = _forward(
                matrix, part, rows, columns, grad_rows, arrived, iterations, tolerance, TRANSPOSED,
                SHARED, ROWS, COLUMNS, TOGETHER,
            )  # fmt: skip
        tl.debug_barrier()
        last_row = step - 1 if TRANSPOSED else step
        if MODE == "apply":
            _write_ranks(
                matrix, part, columns + step * size, rows + last_row * size, at_rank, misses, k,
                TRANSPOSED, ROWS, COLUMNS,
            )  # fmt: skip
            tl.store(steps_taken + list_index, step)
        else:
            partial = 0.0
            for tile in range(top, end):
                row = tile * ROWS + tl.arange(0, ROWS)
                weight = rank_weights(
                    row, items, k, persistence, scale + list_index, at_rank + base, METRIC, MODE
                )
                by_row = weight * _row_sums(matrix, columns + step * size, tile, 1, ROWS, COLUMNS)
                factor = tl.load(rows + last_row * size + base + row, row < items, 0.0)
                partial += tl.sum(by_row * factor, 0)
                # The value's own outer product is that of w u with v g. _backward expects w u at
                # the start of ``work``.
                tl.store(work + base + row, weight * factor, row < items)
                tl.store(grad_rows + base + row, by_row, row < items)
            tl.store(work + 5 * size + list_index * SHARED + program, partial)
            _backward(
                matrix, part, rows, columns, work, grad_rows, arrived, step, TRANSPOSED, SHARED,
                ROWS, COLUMNS, TOGETHER,
            )  # fmt: skip


@triton.jit
def _forward(
    matrix, part, rows, columns, grad_rows, arrived, iterations, tolerance,
    TRANSPOSED: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Run the scaling; returns the number of steps, and the number of arrivals at barriers.

    Each program computes v for all columns that its rows need, so several programs may compute and
    write the same numbers. The programs share the largest error of a step at
    ``part.barriers + 1 + step``; in it, each column counts for the program that owns it.
    """
    base, items, size = matrix.base, matrix.items, matrix.size
    # The program owns the columns with the same positions as its rows.
    first, last = part.top * ROWS, tl.minimum(part.end * ROWS, items)
    # v_0 = 1 in the columns that this program reads.
    for block in range(part.reach, part.bound):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        tl.store(columns + base + column, tl.full([COLUMNS], 1.0, tl.float32), column < items)
    tl.debug_barrier()
    _row_step(matrix, part, rows, columns, 0, ROWS, COLUMNS)
    step = 0
    half = 0
    running = 1
    while running != 0:
        tl.debug_barrier()
        half = step % 2
        _column_parts(matrix, part, rows, grad_rows, step, half, SHARED, ROWS, COLUMNS, 1)
        arrived = wait(part.barriers, arrived + part.sharing, SHARED)
        step, running = _stop(part.barriers, step, running, tolerance, TRANSPOSED)
        if running != 0:
            step += 1
            max_error = 0.0
            for block in range(part.reach, part.bound):
                column = block * COLUMNS + tl.arange(0, COLUMNS)
                inside = column < items
                sums = _column_sums(matrix, part, block, column, inside, 0, half, SHARED, TOGETHER)
                at = columns + step * size + base + column
                owned = (column >= first) & (column < last)
                error = tl.abs(sums * tl.load(at - size, inside, 0.0) - 1)
                max_error = tl.maximum(max_error, tl.max(tl.where(owned, error, 0.0), 0))
                tl.store(at, 1 / tl.where(inside, sums, 1.0), inside)
            tl.debug_barrier()
            _row_step(matrix, part, rows, columns, step, ROWS, COLUMNS)
            if TRANSPOSED:
                tl.debug_barrier()
                max_error = _row_error(matrix, part, rows, step, ROWS)
            # Floats that are not negative have the same order as their bits read as integers.
            tl.atomic_max(part.barriers + 1 + step, max_error.to(tl.int32, bitcast=True))
            if step >= iterations:
                if not TRANSPOSED:
                    arrived = wait(part.barriers, arrived + part.sharing, SHARED)
                    step, running = _stop(part.barriers, step, running, tolerance, TRANSPOSED)
                running = 0
    return step, arrived


@triton.jit
def _backward(
    matrix, part, rows, columns, work, grad_rows, arrived, step, TRANSPOSED: tl.constexpr,
    SHARED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Run the steps in reverse order, and add up the column sums D and S of the module's docstring.

    At the start, ``work`` begins with the row factors ``w u`` of the value, and ``grad_rows`` is
    the derivative of the value with respect to u. Each program adds to D and S of its own columns.
    """
    base, items, size = matrix.base, matrix.items, matrix.size
    # The program owns the columns with the same positions as its rows.
    first, last = part.top * ROWS, tl.minimum(part.end * ROWS, items)
    totals, offset_totals = work + 3 * size, work + 4 * size
    tl.debug_barrier()
    half = step % 2
    _column_parts(matrix, part, work, grad_rows, 0, half, SHARED, ROWS, COLUMNS, 2)
    arrived = wait(part.barriers, arrived + part.sharing, SHARED)
    for block in range(part.reach, part.bound):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        inside, owned = column < items, (column >= first) & (column < last)
        at = base + column
        sums = _column_sums(matrix, part, block, column, inside, 0, half, SHARED, TOGETHER)
        weighted = _column_sums(matrix, part, block, column, owned, 1, half, SHARED, TOGETHER)
        gain = tl.load(matrix.scores + 3 * size + at, inside, 0.0)
        factor = gain * tl.load(columns + step * size + at, inside, 0.0)
        tl.store(totals + at, factor * sums, owned)
        tl.store(offset_totals + at, factor * weighted, owned)
        # The derivative of the value with respect to v, g Kᵀ (w u), overwrites v_0, which is not
        # needed any more.
        tl.store(columns + at, gain * sums, inside)

    at_step = step
    while at_step > 0:
        tl.debug_barrier()
        half = 1 - half
        if TRANSPOSED and (at_step == step):  # its row step was skipped, so it adds nothing
            _column_parts(matrix, part, rows, grad_rows, at_step, half, SHARED, ROWS, COLUMNS, 4)
        else:
            _column_parts(matrix, part, rows, grad_rows, at_step, half, SHARED, ROWS, COLUMNS, 3)
        arrived = wait(part.barriers, arrived + part.sharing, SHARED)
        for block in range(part.reach, part.bound):
            column = block * COLUMNS + tl.arange(0, COLUMNS)
            inside, owned = column < items, (column >= first) & (column < last)
            at = base + column
            factor = tl.load(columns + at_step * size + at, inside, 0.0)
            sums = _column_sums(matrix, part, block, column, inside, 0, half, SHARED, TOGETHER)
            column_grad = sums
            if at_step == step:
                column_grad += tl.load(columns + at, inside, 0.0)
            grad_sums = -column_grad * factor * factor
            weighted = _column_sums(matrix, part, block, column, owned, 1, half, SHARED, TOGETHER)
            earlier = _column_sums(matrix, part, block, column, owned, 2, half, SHARED, TOGETHER)
            _add_to(totals + at, factor * sums - column_grad * factor, owned)
            _add_to(offset_totals + at, factor * weighted + grad_sums * earlier, owned)
            tl.store(work + half * size + at, grad_sums, inside)
        tl.debug_barrier()
        for tile in range(part.top, part.end):
            row = tile * ROWS + tl.arange(0, ROWS)
            row_grad = _row_sums(matrix, work + half * size, tile, 0, ROWS, COLUMNS)
            if TRANSPOSED and (at_step == step):
                # The value uses u_{step - 1} too.
                row_grad += tl.load(grad_rows + base + row, row < items, 0.0)
            tl.store(grad_rows + base + row, row_grad, row < items)
        at_step -= 1
    # The first row step, u_0 = 1 / (K 1), whose column factor is 1.
    tl.debug_barrier()
    half = 1 - half
    _column_parts(matrix, part, rows, grad_rows, 0, half, SHARED, ROWS, COLUMNS, 3)
    arrived = wait(part.barriers, arrived + part.sharing, SHARED)
    for block in range(part.reach, part.bound):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        owned = (column >= first) & (column < last)
        sums = _column_sums(matrix, part, block, column, owned, 0, half, SHARED, TOGETHER)
        weighted = _column_sums(matrix, part, block, column, owned, 1, half, SHARED, TOGETHER)
        at = base + column
        _add_to(totals + at, sums, owned)
        _add_to(offset_totals + at, weighted, owned)


@triton.jit
def _add_to(at, change, inside):
    """Add numbers to those in memory; no other program may write to the same addresses."""
    tl.store(at, tl.load(at, inside, 0.0) + change, inside)


@triton.jit
def _find_band(matrix, top, end, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Find the column tiles of each row tile in which entries exceed exp(-32), about 1e-14.

    Entries decrease on both sides of the diagonal. So a tile is skipped if its entry next to the
    diagonal is small: the last column of the tile for the first row, or the first column for the
    last row.
    """
    far, items = -32.0 / matrix.sharpness, matrix.items
    width = tl.cdiv(items, COLUMNS)
    for tile in range(top, end):
        first, last = tile * ROWS, tl.minimum(tile * ROWS + ROWS, items) - 1
        low = first // COLUMNS
        near = tl.maximum(low * COLUMNS - 1, 0)
        while (low > 0) & (_logit(matrix, first, near) > far):
            low -= 1
            near = tl.maximum(low * COLUMNS - 1, 0)
        high = last // COLUMNS + 1
        near = tl.minimum(high * COLUMNS, items - 1)
        while (high < width) & (_logit(matrix, last, near) > far):
            high += 1
            near = tl.minimum(high * COLUMNS, items - 1)
        tl.store(matrix.limits + tile * 2, low)
        tl.store(matrix.limits + tile * 2 + 1, high)


@triton.jit
def _find_spans(matrix, part, each, row_tiles, PADDED: tl.constexpr):
    """For each column tile that this program needs, find the programs with entries in it.

    Each program has ``each`` row tiles; the last one may have fewer.
    """
    program = tl.arange(0, PADDED)
    exists = program < part.sharing
    ends = tl.minimum(program * each + each, row_tiles)
    lowest = tl.load(matrix.limits + program * each * 2, exists, 0, cache_modifier=".cg")
    highest = tl.load(matrix.limits + ends * 2 - 1, exists, 0, cache_modifier=".cg")
    for block in range(part.reach, part.bound):
        touches = exists & (lowest <= block) & (block < highest)
        tl.store(part.spans + block * 2, tl.min(tl.where(touches, program, PADDED), 0))
        tl.store(part.spans + block * 2 + 1, tl.max(tl.where(touches, program + 1, 0), 0))


@triton.jit
def _row_step(matrix, part, rows, columns, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute ``u = 1 / (K v)`` of a step for the rows of the program."""
    factors = step * matrix.size
    for tile in range(part.top, part.end):
        row = tile * ROWS + tl.arange(0, ROWS)
        sums = _row_sums(matrix, columns + factors, tile, 0, ROWS, COLUMNS)
        sums = tl.where(row < matrix.items, sums, 1.0)
        tl.store(rows + factors + matrix.base + row, 1 / sums, row < matrix.items)


@triton.jit
def _row_sums(
    matrix, factors, tile, GAINS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """``K f`` for a tile of rows; with GAINS 1, ``K (f g)``; with 2, ``K (f (1 - g))``."""
    base, items = matrix.base, matrix.items
    gains, limits = matrix.scores + 3 * matrix.size, matrix.limits + tile * 2
    row = tile * ROWS + tl.arange(0, ROWS)
    row_places = _load_places(matrix, tl.minimum(row, items - 1))
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(tl.load(limits), tl.load(limits + 1)):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        column_places = _load_places(matrix, column)
        factor = tl.load(factors + base + column, column < items, 0.0)
        if GAINS == 1:
            factor *= tl.load(gains + base + column, column < items, 0.0)
        elif GAINS == 2:
            factor *= 1 - tl.load(gains + base + column, column < items, 0.0)
        total += _entries(matrix, row, row_places, column_places) * factor[None, :]
    return tl.sum(total, 1)


@triton.jit
def _write_ranks(
    matrix, part, columns, rows, at_rank, misses, k,
    TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the sorted gains ``at_rank`` of the program's rows, and one minus them, ``misses``.

    If rows were scaled last, a row sums to one, and one minus its gain is the row's sum over
    ``1 - g``, in which nothing cancels. In transposed scaling, one minus the row's sum is added.
    """
    for tile in range(part.top, part.end):
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = (row < matrix.items) & ((k == 0) | (row < k))
        u = tl.load(rows + matrix.base + row, row < matrix.items, 0.0)
        value = u * _row_sums(matrix, columns, tile, 1, ROWS, COLUMNS)
        missed = u * _row_sums(matrix, columns, tile, 2, ROWS, COLUMNS)
        if TRANSPOSED:
            missed += 1 - u * _row_sums(matrix, columns, tile, 0, ROWS, COLUMNS)
        tl.store(at_rank + matrix.base + row, value, inside)
        tl.store(misses + matrix.base + row, missed, inside)


@triton.jit
def _column_parts(
    matrix, part, rows, grad_rows, step, half, SHARED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WHICH: tl.constexpr,
):  # fmt: skip
    """Write the program's part of up to three kinds of column sums to one half of ``part.sums``.

    "Weighted" sums have ``2 (j - i) K_ij`` in place of ``K_ij``. With ``u = rows[step]`` and
    ``l = -grad_rows u²``, WHICH says which kinds:

    - 1: ``Kᵀ u``;
    - 2: ``Kᵀ u``, and ``Kᵀ u`` weighted;
    - 3: ``Kᵀ l``, ``Kᵀ l`` weighted, and ``Kᵀ u_{step-1}`` weighted;
    - 4: 0, 0, and ``Kᵀ u_{step-1}`` weighted.
    """
    items, size, limits = matrix.items, matrix.size, matrix.limits
    to = part.sums + (half * 3 * SHARED + part.mine).to(tl.int64) * size + matrix.base
    for block in range(part.reach, part.bound):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        column_places = _load_places(matrix, column)
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        offset_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        earlier_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for tile in range(part.top, part.end):
            low, high = tl.load(limits + tile * 2), tl.load(limits + tile * 2 + 1)
            if (low <= block) & (block < high):
                row = tile * ROWS + tl.arange(0, ROWS)
                factor, earlier_factor = _factors(matrix, rows, grad_rows, row, step, WHICH)
                row_places = _load_places(matrix, tl.minimum(row, items - 1))
                entries = _entries(matrix, row, row_places, column_places)
                if WHICH != 4:
                    sums += entries * factor[:, None]
                if WHICH != 1:
                    offset_entries = entries * rank_offset(row[:, None], column[None, :])
                    if WHICH != 4:
                        offset_sums += offset_entries * factor[:, None]
                    if WHICH != 2:
                        earlier_sums += offset_entries * earlier_factor[:, None]
        tl.store(to + column, tl.sum(sums, 0), column < items)
        if WHICH != 1:
            at = to + SHARED * size + column
            tl.store(at, tl.sum(offset_sums, 0), column < items)
            if WHICH != 2:
                tl.store(at + SHARED * size, tl.sum(earlier_sums, 0), column < items)


@triton.jit
def _factors(matrix, rows, grad_rows, row, step, WHICH: tl.constexpr):
    """The factors of rows in column sums: u or l (see :func:`_column_parts`), and u_{step-1}."""
    base, size, inside = matrix.base, matrix.size, row < matrix.items
    factor = tl.load(rows + step * size + base + row, inside, 0.0)
    earlier_factor = factor
    if WHICH >= 3:
        factor *= -tl.load(grad_rows + base + row, inside, 0.0) * factor
        valid = inside & (row + step > row)  # only if step > 0: no step is before the first
        earlier_factor = tl.load(rows + (step - 1) * size + base + row, valid, 0.0)
    return factor, earlier_factor


@triton.jit
def _row_error(matrix, part, rows, step, ROWS: tl.constexpr):
    """The largest error of the row sums ``u_{step-1} ∘ (K v_step)``, which should be one.

    Since ``u_step = 1 / (K v_step)``, they are ``u_{step-1} / u_step``.
    """
    max_error = 0.0
    for tile in range(part.top, part.end):
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = row < matrix.items
        at = rows + step * matrix.size + matrix.base + row
        error = tl.load(at - matrix.size, inside, 1.0) / tl.load(at, inside, 1.0) - 1
        max_error = tl.maximum(max_error, tl.max(tl.abs(error), 0))
    return max_error


@triton.jit
def _stop(barriers, step, running, tolerance, TRANSPOSED: tl.constexpr):
    """Return the last step that counts, and whether to go on (1) or not (0).

    Step t finds the error of the column sums of K scaled by ``u_{t-1}`` and ``v_{t-1}``. If it is
    small enough, these are the result, and step t is discarded. In transposed scaling, step t finds
    the error of the row sums of K scaled by ``u_{t-1}`` and ``v_t``. If it is small enough, these
    are the result, and step t counts.
    """
    least = 1 if TRANSPOSED else 2  # v_{t-1} of step 1 is v_0 = 1, before any column was scaled
    if step >= least:
        error = tl.atomic_add(barriers + 1 + step, 0).to(tl.float32, bitcast=True)
        if error < tolerance:
            running = 0
            if not TRANSPOSED:
                step -= 1
    return step, running


@triton.jit
def _sum_programs(sums, size, base, position, items, sharing, PARTS: tl.constexpr):
    """The sum of a vector over the parts of all programs; with PARTS 1 there is only one part."""
    total = tl.load(sums + base + position, position < items, 0.0)
    if PARTS > 1:
        for program in range(1, sharing):
            total += tl.load(sums + program * size + base + position, position < items, 0.0)
    return total


@cached_launch
@triton.jit(do_not_specialize=["size", "k"])
def _finish(
    order, gains, prefix, sums, offsets, lengths, scale, defined, values, grad_scores, size,
    sharpness, k, SHARED: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of a list, and its gradient with respect to the scores from the column sums.

    In sorted order (j from 0) the gradient of the value times τ is
    ``S_j + (n - 1 - 2 j - below_j + above_j) D_j - Σ_{below j} D + Σ_{above j} D``. Items below and
    above j have strictly lower and higher scores; below_j and above_j are their numbers. The sums
    over them are differences of prefix sums.

    ``sums`` is D ``[PARTS, size]``, then S ``[PARTS, size]``, then the programs' parts of the value
    ``[lists, SHARED]``. ``prefix`` is scratch, ``[size]``. The KIND is "operator" for the adjoint,
    "arp", or "loss" for all other metrics, whose loss is one minus the value.
    """
    list_index = tl.program_id(0)
    items = tl.load(lengths + list_index)
    base = tl.load(offsets + list_index)
    size = size.to(tl.int64)
    above, below = order + size, order + 2 * size
    offset_sums, partial_values = sums + PARTS * size, sums + 2 * PARTS * size
    if tl.load(defined + list_index) != 0:
        tiles_per_program = tl.cdiv(tl.cdiv(items, ROWS), SHARED)
        sharing = tl.cdiv(tl.cdiv(items, ROWS), tl.maximum(tiles_per_program, 1))
        if KIND != "operator":
            value = 0.0
            for program in range(0, sharing):
                value += tl.load(partial_values + list_index * SHARED + program)
            if KIND == "arp":
                total = 0.0
                end = tl.load(offsets + list_index + 1) - base
                for first in range(0, end, BLOCK):
                    at = first + tl.arange(0, BLOCK)
                    total += tl.sum(tl.load(gains + base + at, at < end, 0.0), 0)
                total *= discount_beyond(items, k, KIND)
                tl.store(values + list_index, value + total * tl.load(scale + list_index))
            else:
                tl.store(values + list_index, 1 - value)
        before = tl.zeros([1], tl.float64)
        for first in range(0, items, BLOCK):
            at = first + tl.arange(0, BLOCK)
            wide = _sum_programs(sums, size, base, at, items, sharing, PARTS).to(tl.float64)
            tl.store(prefix + base + at, (tl.cumsum(wide, 0) + before).to(tl.float32), at < items)
            before += tl.sum(wide, 0)
        tl.debug_barrier()
        total = tl.sum(before, 0).to(tl.float32)
        for first in range(0, items, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < items
            n_above = tl.load(above + base + at, inside, 0)
            n_below = tl.load(below + base + at, inside, 0)
            higher = tl.load(prefix + base + n_above - 1, inside & (n_above > 0), 0.0)
            through = tl.load(prefix + base + items - n_below - 1, inside, 0.0)
            plain_sum = _sum_programs(sums, size, base, at, items, sharing, PARTS)
            derivative = _sum_programs(offset_sums, size, base, at, items, sharing, PARTS)
            # Without ties, below_j is n - 1 - j and above_j is j, so this term is 0. At a tie,
            # |s_j - s_k| has the derivative 0.
            derivative += (items - 1 - 2 * at - (n_below - n_above)).to(tl.float32) * plain_sum
            derivative += higher - (total - through)
            derivative *= -sharpness if KIND == "loss" else sharpness
            tl.store(grad_scores + base + tl.load(order + base + at, inside, 0), derivative, inside)
