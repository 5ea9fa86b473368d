"""SmoothI with stop-gradient: the rows of a list one after another, value and gradient in one pass.

Row r of the relaxed permutation is the softmax over items j of ``α s_j Π_{l<r} (1 - P_lj - δ)``
(Thonet et al. eq. 4), after the list's lowest score is subtracted from all scores. The products are
constants in the backward pass.

One program holds a short list in registers. Several programs share a long list, with one launch per
row: the sweep that updates the products by row r also computes the sums of row r + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.gpu._flat_lists import ListOperator, is_real, list_span
from rankgrad.kernels.gpu._ideal_gain import ideal_gain
from rankgrad.kernels.gpu._launcher import cached_launch, cdiv, next_power_of_2
from rankgrad.kernels.gpu._linear import as_gradient, as_loss, discount, discount_beyond
from rankgrad.kernels.gpu._metric_steps import STEP_METRICS, SortOperator, through_operator
from rankgrad.kernels.gpu._segmented_sort import count_items

_MAX_LENGTH = 16384  # the longest list that one program holds in registers
_TILE = 1024  # items of a longer list that a program reads at a time


def through_smoothi(
    batch: FlatLists, alpha: float, delta: float, expect: str, metric_options: MetricOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """``1 - metric`` (ARP itself) through SmoothI's indicators; see :mod:`rankgrad.kernels.ops`."""
    scores, labels, mask, weights, offsets, max_length = batch
    metric, k, gain, _, persistence = metric_options
    if metric in STEP_METRICS:
        operator = SmoothIOperator(scores, mask, offsets, max_length, k, alpha, delta)
        return through_operator(operator, batch, metric_options)
    gains, scale, lengths, defined = ideal_gain(batch, metric_options)
    values, grad_scores = torch.empty_like(scale), torch.empty_like(scores)
    by_label = expect == "label"
    weighted = by_label and weights is not None
    tensors = (
        scores, mask, offsets, lengths, labels if by_label else gains,
        weights if weighted else scores, grad_scores, grad_scores, scale, defined, values,
    )  # fmt: skip
    options: dict[str, Any] = {
        "MODE": "loss",
        "METRIC": metric,
        "GAIN": gain if by_label else "none",
        "WEIGHTED": weighted,
    }
    _compute_rows(tensors, (alpha, delta, k, persistence), options, max_length)
    return values, grad_scores, defined


def _compute_rows(
    tensors: tuple[Any, ...], numbers: tuple[Any, ...], options: dict[str, Any], max_length: int
) -> None:
    """Compute the rows: in one launch or, if several programs share a list, in one per row.

    Args:
        tensors: scores, mask, offsets, lengths; inputs, others, results, extras: the inputs and
            outputs of :meth:`SmoothIOperator.run` or, for a loss, the gains or labels, the weights
            (a placeholder if there are none), and the gradient twice; and scales, defined, values
            ``[lists]``, which only a loss uses.
        numbers: alpha, delta, k, persistence.
        options: the compile-time options of the kernels.
        max_length: a bound on the lists' lengths.
    """
    scores, mask, offsets = tensors[:3]
    lists, size, mode, k = offsets.numel() - 1, scores.numel(), options["MODE"], numbers[2]
    if max_length <= _MAX_LENGTH:
        width = max(32, next_power_of_2(max_length))
        warps = min(16, max(1, width // 256))
        _list[(lists,)](*tensors, *numbers, **options, WIDTH=width, num_warps=warps)
        return
    splits = min(256, cdiv(max_length, _TILE))  # programs per list
    grid = (lists, splits)
    shape = {"SPLITS": splits, "WIDE": next_power_of_2(splits), "TILE": _TILE}
    # Of each program's part of a list: the lowest score, and what _add_gradient writes; and, for
    # this row and the one before, the sums of _sweep.
    lowest, partial = scores.new_empty(lists, splits, 3), scores.new_empty(2, lists, splits, 4)
    dtype = torch.float64 if mode == "ranks" else torch.float32
    state = torch.empty(3 if mode == "ranks" else 2, size, dtype=dtype, device=scores.device)
    _lowest[grid](scores, mask, offsets, lowest, SPLITS=splits, TILE=_TILE)
    arguments = (*tensors, *numbers, lowest, partial, state)
    # Sweep r completes row r - 1, so there is one sweep more than there are rows.
    for row in range(1 + (min(k, max_length) if k else max_length)):
        _sweep[grid](*arguments, row, lists, size, **options, **shape)
    if mode not in ("apply", "ranks"):
        _add_gradient[grid](*tensors[:3], lowest, state, size, **shape)
    if mode != "apply":
        _finish[grid](*arguments, size, **options, **shape)


@dataclass(eq=False)
class SmoothIOperator(SortOperator):
    """SmoothI's indicators (Thonet et al. 2022), stop-gradient, as a linear operator.

    The rows of every list are computed one after another and never stored.

    Args:
        alpha: the inverse temperature.
        delta: subtracted from every factor ``1 - P_lj`` of the products.
    """

    alpha: float
    delta: float

    def __post_init__(self) -> None:
        self.lengths = count_items(self.mask, self.offsets, self.max_length)

    def apply(self, values: Tensor) -> Tensor:
        at_rank, self.misses = torch.zeros_like(self.scores), torch.zeros_like(self.scores)
        values = values.contiguous()
        self.run("apply", (values, values), (at_rank, self.misses))
        return at_rank

    def adjoint(self, values: Tensor, grad: Tensor) -> Tensor:
        grad_scores = torch.zeros_like(self.scores)
        inputs = (values.contiguous(), grad.contiguous())
        self.run("adjoint", inputs, (grad_scores, grad_scores))
        return grad_scores

    def run(self, mode: str, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor, Tensor]) -> None:
        """Compute the rows.

        Args:
            mode: ``apply`` and ``adjoint`` of the operator, or ``ranks`` and ``ranks_adjoint``.
            inputs: for apply and adjoint the values ``[items]``, for adjoint also the gradient
                with respect to the sorted values; for ranks_adjoint the gradient with respect to
                the ranks, and the ranks.
            outputs: for apply the sorted values and one minus them; for ranks the ranks and one
                over their weights ``Σ_r P_rj``, which ranks_adjoint reads; for the adjoints the
                gradient with respect to the scores. Each is ``[items]``.
        """
        if not self.lists:
            return
        scores, lengths = self.scores, self.lengths
        unused = (scores, lengths, scores)
        tensors = (scores, self.mask, self.offsets, lengths, *inputs, *outputs, *unused)
        options = {"MODE": mode, "METRIC": "dcg", "GAIN": "none", "WEIGHTED": False}
        _compute_rows(tensors, (self.alpha, self.delta, self.k, 0.0), options, self.max_length)


@dataclass(eq=False)
class SmoothIRanks(ListOperator):
    """The expected ranks of SmoothI's indicators: ``Σ_r r P_rj / Σ_r P_rj``.

    Args:
        alpha: as in :class:`SmoothIOperator`.
        delta: as there.

    Attributes:
        ranks: ``[items]``, 1-based, 0 on padding.
    """

    alpha: float
    delta: float

    def __post_init__(self) -> None:
        scores = self.scores
        lists = scores, self.mask, self.offsets, self.max_length
        self._indicators = SmoothIOperator(*lists, 0, self.alpha, self.delta)
        # The ranks, and one over their weights.
        self.ranks, self._inverse = torch.zeros_like(scores), torch.zeros_like(scores)
        self._indicators.run("ranks", (scores, scores), (self.ranks, self._inverse))

    def adjoint(self, grad: Tensor) -> Tensor:
        """The gradient of ``Σ_j grad_j ranks_j`` with respect to the scores."""
        grad_scores = torch.zeros_like(self.scores)
        inputs = (grad.contiguous(), self.ranks)
        self._indicators.run("ranks_adjoint", inputs, (grad_scores, self._inverse))
        return grad_scores


@triton.jit
def _add_three(a, b, c, d, e, f):
    """The operator of a joint sum of three arrays."""
    return a + d, b + e, c + f


@triton.jit
def _add_two(a, b, c, d):
    """The operator of a joint sum of two arrays."""
    return a + c, b + d


@triton.jit
def _row_loss(
    mean, weight, rank, length, scale, k, persistence,
    METRIC: tl.constexpr, GAIN: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """A rank's term of the metric, and its derivatives with respect to ``mean`` and ``weight``.

    ``mean`` and ``weight`` are the expected value and weight of the item at the rank.
    """
    factor = scale * (discount(rank, METRIC, persistence) - discount_beyond(length, k, METRIC))
    gain, by_value, by_weight = mean, mean * 0.0 + 1.0, mean * 0.0
    if GAIN == "exponential":
        power = tl.exp2(mean)
        gain, by_value = power - 1.0, power * 0.6931471805599453  # ln 2
    if WEIGHTED:
        gain, by_value, by_weight = gain * weight, by_value * weight, gain
    return factor * gain, factor * by_value, factor * by_weight


@triton.jit
def _add_rows(
    base, padding, item_value, ranks, extra, rows, length, scale, k, delta, persistence, others,
    results, extras, LARGE: tl.constexpr, MODE: tl.constexpr, METRIC: tl.constexpr,
    GAIN: tl.constexpr, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the rows of a list, each a softmax; returns the value and two sums of each item.

    :func:`_row_terms` defines these sums. ``base`` are the logits before they are multiplied by the
    products, in units of ln 2; ``padding`` is 0, or -inf on padding. ``item_value``, ``ranks`` and
    ``extra`` are those of :func:`_load_inputs`. The value is the sum of the rows' terms of a loss.
    If LARGE, the maximum is subtracted from logits. A row takes at most one maximum and one joint
    sum.
    """
    product = tl.full([WIDTH], 1.0, tl.float32)
    # Ranks are sums of as many terms as there are rows, all of one sign: use float64.
    sums = tl.zeros([WIDTH], tl.float64 if MODE == "ranks" else tl.float32)
    moments = tl.zeros([WIDTH], tl.float64 if MODE == "ranks" else tl.float32)
    value = scale * 0.0
    for row in range(rows):
        logits = base * product + padding
        if LARGE:
            logits -= tl.max(logits, 0)
        exponentials = tl.exp2(logits)
        row_value = _row_values(item_value, ranks, row, MODE)
        if WEIGHTED or MODE == "apply":
            terms = (exponentials, exponentials * row_value, exponentials * extra)
            total, mean, extra_mean = tl.reduce(terms, 0, _add_three)
        elif MODE == "ranks":
            total = tl.sum(exponentials, 0)
            mean, extra_mean = total, total
        else:
            total, mean = tl.reduce((exponentials, exponentials * row_value), 0, _add_two)
            extra_mean = total
        inverse_sum = 1.0 / total
        mean *= inverse_sum
        extra_mean *= inverse_sum
        row_grad, extra_grad = scale, scale
        if MODE == "loss":
            term, row_grad, extra_grad = _row_loss(
                mean, extra_mean, row + 1.0, length, scale, k, persistence, METRIC, GAIN, WEIGHTED
            )
            value += term
        elif MODE == "adjoint":
            row_grad = tl.load(others + row)
        elif MODE == "apply":
            tl.store(results + row, mean)
            tl.store(extras + row, extra_mean)
        indicator = exponentials * inverse_sum
        by_logit = row_grad * (row_value - mean)
        if WEIGHTED:
            by_logit += extra_grad * (extra - extra_mean)
        sums, moments = _row_terms(indicator, product, by_logit, sums, moments, row, MODE)
        product *= (1.0 - delta) - indicator
    return value, sums, moments


@cached_launch
@triton.jit(do_not_specialize=["k"])
def _list(
    scores, mask, offsets, lengths, inputs, others, results, extras, scales, defined, values, alpha,
    delta, k, persistence, MODE: tl.constexpr, METRIC: tl.constexpr, GAIN: tl.constexpr,
    WEIGHTED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the rows of one list with its items in registers; see :meth:`SmoothIOperator.run`.

    For a loss, ``inputs`` are the gains or labels and ``others`` the weights.
    """
    list_index, begin, count = list_span(offsets)
    item = tl.arange(0, WIDTH)
    inside = item < count
    at = begin + item
    real = is_real(mask, at, inside)
    length = tl.load(lengths + list_index)
    scale = _scale_of(scales, defined, list_index, length, MODE)
    score = tl.load(scores + at, mask=real, other=float("inf"))
    lowest = tl.min(score, 0)
    lowest = tl.where(lowest < float("inf"), lowest, 0.0)  # inf for an empty list
    base = tl.where(real, score - lowest, 0.0) * (alpha * 1.4426950408889634)  # log2(e), for exp2
    padding = tl.where(real, 0.0, float("-inf"))
    item_value, ranks, extra = _load_inputs(inputs, others, extras, at, real, base, MODE, WEIGHTED)
    rows = tl.where(scale > 0, tl.where(k > 0, tl.minimum(k, length), length), 0)
    items = (
        base, padding, item_value, ranks, extra, rows, length, scale, k, delta, persistence,
        others + begin, results + begin, extras + begin,
    )  # fmt: skip
    if tl.max(base, 0) < 60.0:  # |product| <= 1, so exponentials cannot overflow
        value, sums, moments = _add_rows(*items, False, MODE, METRIC, GAIN, WEIGHTED, WIDTH)
    else:
        value, sums, moments = _add_rows(*items, True, MODE, METRIC, GAIN, WEIGHTED, WIDTH)
    if MODE == "ranks":
        rank, inverse = _ranks_of(sums, moments, length)
        tl.store(results + at, rank, mask=real)
        tl.store(extras + at, inverse, mask=real)
    elif MODE != "apply":
        sums *= alpha
        is_lowest = real & (score == lowest)
        lowest_grad = tl.sum(sums, 0) / tl.maximum(tl.sum(is_lowest.to(tl.float32), 0), 1.0)
        sums -= tl.where(is_lowest, lowest_grad, 0.0)
        if MODE == "loss":
            sums = as_gradient(sums, METRIC)
            tl.store(values + list_index, as_loss(value, length, k, scale, METRIC))
        tl.store(results + at, tl.where(real, sums, 0.0), mask=inside)


@cached_launch
@triton.jit
def _lowest(scores, mask, offsets, lowest, SPLITS: tl.constexpr, TILE: tl.constexpr):
    """Write the lowest score of the program's part of a list to ``lowest[list, split, 0]``."""
    list_index, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    minimum = tl.full([TILE], float("inf"), tl.float32)
    for first in range(begin + split * TILE, end, SPLITS * TILE):
        index = first + tl.arange(0, TILE)
        real = is_real(mask, index, index < end)
        minimum = tl.minimum(minimum, tl.load(scores + index, mask=real, other=float("inf")))
    tl.store(lowest + (list_index * SPLITS + split) * 3, tl.min(minimum, 0))


@triton.jit
def _load_lowest(lowest, list_index, SPLITS: tl.constexpr, WIDE: tl.constexpr):
    """The lowest score of a list."""
    part = tl.arange(0, WIDE)
    parts = lowest + (list_index * SPLITS + part) * 3
    return tl.min(tl.load(parts, mask=part < SPLITS, other=float("inf")), 0)


@triton.jit
def _row_values(values, ranks, row, MODE: tl.constexpr):
    """The weights of a row's indicators (row from 0) in the quantity that is differentiated."""
    if MODE == "ranks_adjoint":
        return values * ((row + 1) - ranks)
    else:
        return values


@triton.jit
def _row_terms(indicator, product, by_logit, sums, moments, row, MODE: tl.constexpr):
    """Add a row's terms to the sums of the items.

    For ranks ``sums`` are ``Σ_r P_rj`` and ``moments`` are ``Σ_r r P_rj``, r from 1. Otherwise
    ``sums`` are the gradient with respect to ``α (s_j - lowest)``, and ``moments`` stay 0. For
    apply both stay 0.
    """
    if MODE == "ranks":
        exact = indicator.to(tl.float64)
        sums, moments = sums + exact, moments + exact * (row + 1)
    elif MODE != "apply":
        sums += indicator * product * by_logit
    return sums, moments


@triton.jit
def _load_inputs(
    inputs, others, extras, at, real, unused, MODE: tl.constexpr, WEIGHTED: tl.constexpr
):
    """The values of items, their ranks, and their weights (without weights one minus the values).

    For the adjoint of the ranks the values are gradients divided by the weights of the ranks. What
    the mode does not need is ``unused``.
    """
    item_value, ranks = unused, unused
    if MODE != "ranks":
        item_value = tl.load(inputs + at, mask=real, other=0.0)
    if MODE == "ranks_adjoint":
        item_value *= tl.load(extras + at, mask=real, other=0.0)
        ranks = tl.load(others + at, mask=real, other=0.0)
    extra = 1.0 - item_value
    if WEIGHTED:
        extra = tl.load(others + at, mask=real, other=0.0)
    return item_value, ranks, extra


@triton.jit
def _ranks_of(weight, moment, length):
    """Expected ranks from sums over the rows, and one over the weights.

    An item whose weights all underflow gets the last rank.
    """
    inverse = 1.0 / (weight + 1e-12)
    return ((moment + 1e-12 * length) * inverse).to(tl.float32), inverse.to(tl.float32)


@triton.jit
def _scale_of(scales, defined, list_index, length, MODE: tl.constexpr):
    """One over the norm of a list (0 where the loss is undefined); 1 for an operator."""
    if MODE == "loss":
        return tl.where(tl.load(defined + list_index) != 0, tl.load(scales + list_index), 0.0)
    else:
        return length.to(tl.float32) * 0.0 + 1.0


@cached_launch
@triton.jit(do_not_specialize=["k", "row", "lists", "size"])
def _sweep(
    scores, mask, offsets, lengths, inputs, others, results, extras, scales, defined, values, alpha,
    delta, k, persistence, lowest, partial, state, row, lists, size,
    MODE: tl.constexpr, METRIC: tl.constexpr, GAIN: tl.constexpr, WEIGHTED: tl.constexpr,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Update the state of the items by row - 1, and sum the exponentials of the row (from 0).

    The state is the product and the sums of :func:`_row_terms`. The exponentials are summed alone,
    times the values, and times a third factor: the weights, or one minus the values. ``partial`` is
    ``[2, lists, SPLITS, 4]``: for even and odd rows, the largest logit of the program's part of a
    list, and the three sums relative to it.
    """
    list_index, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    length = tl.load(lengths + list_index)
    scale = _scale_of(scales, defined, list_index, length, MODE)
    size = size.to(tl.int64)
    if MODE == "loss":
        tl.store(values + list_index, 0.0, mask=(row == 0) & (split == 0))
    last = tl.where(k > 0, tl.minimum(k, length), length)
    if (length > 0) & (row <= last) & (scale > 0):
        low = _load_lowest(lowest, list_index, SPLITS, WIDE)
        top, total, mean, extra_mean = low * 0.0, low * 0.0 + 1.0, low * 0.0, low * 0.0
        row_grad, extra_grad = low * 0.0 + 1.0, low * 0.0
        if row > 0:
            part = tl.arange(0, WIDE)
            source = partial + (((row - 1) % 2 * lists + list_index) * SPLITS + part) * 4
            tops = tl.load(source, mask=part < SPLITS, other=float("-inf"))
            top = tl.max(tops, 0)
            rescale = tl.exp2(tops - top)
            total = tl.sum(tl.load(source + 1, mask=part < SPLITS, other=0.0) * rescale, 0)
            mean = tl.sum(tl.load(source + 2, mask=part < SPLITS, other=0.0) * rescale, 0) / total
            extra_mean = tl.load(source + 3, mask=part < SPLITS, other=0.0) * rescale
            extra_mean = tl.sum(extra_mean, 0) / total
            if MODE == "loss":
                term, row_grad, extra_grad = _row_loss(
                    mean, extra_mean, row * 1.0, length, scale, k, persistence,
                    METRIC, GAIN, WEIGHTED,
                )  # fmt: skip
                before = tl.load(values + list_index, mask=split == 0, other=0.0)
                tl.store(values + list_index, before + term, mask=split == 0)
            elif MODE == "adjoint":
                row_grad = tl.load(others + begin + row - 1)
            elif MODE == "apply":
                tl.store(results + begin + row - 1, mean, mask=split == 0)
                tl.store(extras + begin + row - 1, extra_mean, mask=split == 0)
        tops = tl.full([TILE], -1e38, tl.float32)  # finite, as -inf minus -inf is NaN
        exp_sums = tl.zeros([TILE], tl.float32)
        value_sums = tl.zeros([TILE], tl.float32)
        extra_sums = tl.zeros([TILE], tl.float32)
        for first in range(begin + split * TILE, end, SPLITS * TILE):
            at = first + tl.arange(0, TILE)
            real = is_real(mask, at, at < end)
            score = tl.load(scores + at, mask=real, other=0.0)
            base = (score - low) * (alpha * 1.4426950408889634)  # log2(e), for exp2
            item_value, ranks, extra = _load_inputs(
                inputs, others, extras, at, real, base, MODE, WEIGHTED
            )
            product = tl.full([TILE], 1.0, tl.float32)
            sums = tl.zeros([TILE], state.dtype.element_ty)
            moment = tl.zeros([TILE], state.dtype.element_ty)
            if row > 0:
                if row > 1:
                    product = tl.load(state + at, mask=real, other=0.0).to(tl.float32)
                    sums = tl.load(state + size + at, mask=real, other=0.0)
                    if MODE == "ranks":
                        moment = tl.load(state + 2 * size + at, mask=real, other=0.0)
                indicator = tl.exp2(base * product - top) / total
                value = _row_values(item_value, ranks, row - 1, MODE)
                by_logit = row_grad * (value - mean)
                if WEIGHTED:
                    by_logit += extra_grad * (extra - extra_mean)
                sums, moment = _row_terms(indicator, product, by_logit, sums, moment, row - 1, MODE)
                product *= (1.0 - delta) - indicator
                tl.store(state + at, product.to(state.dtype.element_ty), mask=real)
                tl.store(state + size + at, sums, mask=real)
                if MODE == "ranks":
                    tl.store(state + 2 * size + at, moment, mask=real)
            logits = tl.where(real, base * product, float("-inf"))
            higher = tl.maximum(tops, logits)
            decay, entry = tl.exp2(tops - higher), tl.exp2(logits - higher)
            exp_sums = exp_sums * decay + entry
            value_sums = value_sums * decay + entry * _row_values(item_value, ranks, row, MODE)
            if WEIGHTED or MODE == "apply":
                extra_sums = extra_sums * decay + entry * extra
            tops = higher
        top = tl.max(tops, 0)
        rescale = tl.exp2(tops - top)
        target = partial + ((row % 2 * lists + list_index) * SPLITS + split) * 4
        tl.store(target, top)
        tl.store(target + 1, tl.sum(exp_sums * rescale, 0))
        tl.store(target + 2, tl.sum(value_sums * rescale, 0))
        tl.store(target + 3, tl.sum(extra_sums * rescale, 0))


@cached_launch
@triton.jit(do_not_specialize=["size"])
def _add_gradient(
    scores, mask, offsets, lowest, state, size,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sum the gradients over the program's part of a list, and count its items of lowest score.

    Writes the sum and the count to ``lowest[list, split, 1:3]``, from which :func:`_finish`
    computes the gradient through the minimum: it is divided among the items of lowest score.
    """
    list_index, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    low = _load_lowest(lowest, list_index, SPLITS, WIDE)
    total = tl.zeros([TILE], tl.float32)
    count = tl.zeros([TILE], tl.float32)
    for first in range(begin + split * TILE, end, SPLITS * TILE):
        at = first + tl.arange(0, TILE)
        real = is_real(mask, at, at < end)
        total += tl.load(state + size.to(tl.int64) + at, mask=real, other=0.0)
        score = tl.load(scores + at, mask=real, other=float("inf"))
        count += (real & (score == low)).to(tl.float32)
    tl.store(lowest + (list_index * SPLITS + split) * 3 + 1, tl.sum(total, 0))
    tl.store(lowest + (list_index * SPLITS + split) * 3 + 2, tl.sum(count, 0))


@cached_launch
@triton.jit(do_not_specialize=["k", "size"])
def _finish(
    scores, mask, offsets, lengths, inputs, others, results, extras, scales, defined, values, alpha,
    delta, k, persistence, lowest, partial, state, size,
    MODE: tl.constexpr, METRIC: tl.constexpr, GAIN: tl.constexpr, WEIGHTED: tl.constexpr,
    SPLITS: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the ranks; or the gradient, after subtracting its part through the minimum score."""
    list_index, split = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(offsets + list_index), tl.load(offsets + list_index + 1)
    length = tl.load(lengths + list_index)
    scale = _scale_of(scales, defined, list_index, length, MODE)
    size = size.to(tl.int64)
    counted = tl.where(scale > 0, end, begin)  # no items if the loss is undefined
    low, lowest_grad = 0.0, 0.0
    if MODE != "ranks":
        low = _load_lowest(lowest, list_index, SPLITS, WIDE)
        part = tl.arange(0, WIDE)
        parts = lowest + (list_index * SPLITS + part) * 3
        total = tl.sum(tl.load(parts + 1, mask=part < SPLITS, other=0.0), 0)
        count = tl.sum(tl.load(parts + 2, mask=part < SPLITS, other=0.0), 0)
        lowest_grad = total / tl.maximum(count, 1.0)
    for first in range(begin + split * TILE, end, SPLITS * TILE):
        at = first + tl.arange(0, TILE)
        real = is_real(mask, at, at < counted)
        sums = tl.load(state + size + at, mask=real, other=0.0)
        if MODE == "ranks":
            moments = tl.load(state + 2 * size + at, mask=real, other=0.0)
            rank, inverse = _ranks_of(sums, moments, length)
            tl.store(results + at, rank, mask=real)
            tl.store(extras + at, inverse, mask=real)
        else:
            score = tl.load(scores + at, mask=real, other=float("inf"))
            sums = (sums - tl.where(score == low, lowest_grad, 0.0)) * alpha
            if MODE == "loss":
                sums = as_gradient(sums, METRIC)
            tl.store(results + at, tl.where(real, sums, 0.0), mask=at < end)
    if MODE == "loss":
        value = tl.load(values + list_index, mask=split == 0, other=0.0)
        value = as_loss(value, length, k, scale, METRIC)
        tl.store(values + list_index, value, mask=split == 0)
