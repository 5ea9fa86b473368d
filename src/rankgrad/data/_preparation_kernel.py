"""The compiled pass that turns raw features into the inputs of a network.

For each feature of each list it applies the fitted transforms (quantiles, standardization, missing
values replaced) and derives the columns of :mod:`rankgrad.models._in_list`: ranks, ties and scores.
In PyTorch or onnxruntime the sorts and searches would take longer than the layers of the default
model. Here all steps of one feature of one list run one after the other, on a few kilobytes that
stay in the processor's cache.

Features of web search have many equal values, mostly 0. So each column is first made sparse
(:class:`Entries`), and the later steps compute on its entries only.

:class:`rankgrad.training._preparation.Preparation` builds the tables and calls :func:`prepare`.

Sizes: f raw features, g transformed features, n items of a list. Indices: b of lists, c of
transformed features, i of items, t of entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba.core.options import DefaultOptions

from rankgrad._compilation import compile_cached
from rankgrad.data._quantile_kernel import Knots

_MAX_PAIRWISE = 1024  # longer lists are sorted, not compared pair by pair
_MIN_SPARSE = 8  # shorter lists have no common value: every item is an entry
_VECTOR_SIZE = 16  # buffers are padded to a multiple of it
_CELLS = 256  # of the grid over the range of a feature's knots
_LAST_CELL = np.float32(_CELLS - 1)
_SQRT12, _TENTH = np.float32(math.sqrt(12)), np.float32(0.1)  # of list_ranks and list_scores
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_INFINITY = np.float32(np.inf)
_MAX_INT32 = np.int32(0x7FFFFFFF)

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function, *, allocates: bool = False, **options: Any) -> Function:
    """Compile a function, without reference counting of arrays unless it allocates some."""
    if hasattr(DefaultOptions, "_nrt"):
        options["_nrt"] = allocates
    # With Python's error model a division may raise an error, and its loop is not vectorized.
    return compile_cached(function, nogil=True, error_model="numpy", **options)


_compiled_reduction = partial(_compiled, fastmath={"reassoc"})


class Columns(NamedTuple):
    """The transformed features, ``[g]`` each.

    Attributes:
        sources: the raw feature that each is computed from.
        indicates: whether it is 1 where the raw feature is missing and 0 elsewhere.
        mean: subtracted to standardize it.
        deviation: divides it after that.
        fill: replaces a missing value; with ``weights``, the mean in the regression.
        weights: ``[f, f]`` float64: row j has the weights W_kj of
            :class:`~rankgrad.data.transforms.Impute`. Empty if ``fill`` replaces all missing
            values.
    """

    sources: np.ndarray
    indicates: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    fill: np.ndarray
    weights: np.ndarray


class Quantiles(NamedTuple):
    """The quantiles of each transformed feature, and where to search for a value among them.

    Knots are the distinct quantiles. The range from the first knot to the last is divided into
    cells of equal width; the cell of a value says where its binary search starts.

    Attributes:
        knots: ``[g, 2 * 2^p]``, p as in :class:`~rankgrad.data._quantile_kernel.Knots`: 0, the
            knots, and infinity. Empty if there are no quantiles.
        n_below: ``[g, 1 + 2^p]``: the number of quantiles below a value, by the number of knots
            below it.
        tied_below: ``[g]``: the number of quantiles minus the number of knots below a value, if it
            is the same for all values above the first knot (because at most the first knot stands
            for several quantiles); else -1.
        cell_starts: ``[g, 256]``: by cell, the number of knots in the cells before it.
        grid: ``[2, g]``: the first knot, and the number of cells per unit of the feature.
        search_widths: ``[g]``: a power of 2 above the number of knots in any cell.
        last: ``[1]``: the index of the last quantile.
        scale: ``[g]``: 1/2 if a difference of values may exceed float32, else 1.
    """

    knots: np.ndarray
    n_below: np.ndarray
    tied_below: np.ndarray
    cell_starts: np.ndarray
    grid: np.ndarray
    search_widths: np.ndarray
    last: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, knots: Knots) -> Quantiles:
        """The tables of a fitted transform."""
        features, size = knots.index.shape  # size is 2^p
        table = np.full((features, 2 * int(size)), np.inf, np.float32)
        table[:, 0], table[:, 1:size] = 0, knots.table
        n_below = np.full((features, 1 + size), knots.last + 1, np.int32)
        n_below[:, 0], n_below[:, 1:size] = 0, knots.index[:, 1:] + 1
        tied_below = np.full(features, -1, np.int32)
        cell_starts, widths = np.zeros((features, _CELLS), np.int32), np.ones(features, np.int32)
        grid = np.zeros((2, features), np.float32)
        for c, row in enumerate(knots.table):
            finite = row[np.isfinite(row)]
            if len(finite) > 1 and knots.scale[c] == 1:
                # At most 1e30, so that it is finite in float32 however close the knots are.
                per_unit = np.minimum((_CELLS - 1) / (finite[-1] - finite[0]), 1e30)
                grid[:, c] = finite[0], per_unit
            if (np.diff(n_below[c, 1 : len(finite) + 1]) == 1).all():
                tied_below[c] = n_below[c, 1] - 1
            cells = np.clip((finite - grid[0, c]) * grid[1, c], 0, _CELLS - 1).astype(np.int64)
            counts = np.bincount(cells, minlength=_CELLS)
            cell_starts[c, 1:] = np.cumsum(counts)[:-1]
            widths[c] = 1 << int(counts.max()).bit_length()
        last, scale = np.array([knots.last], np.float32), knots.scale[:, 0].copy()
        return cls(table, n_below, tied_below, cell_starts, grid, widths, last, scale)

    @classmethod
    def none(cls) -> Quantiles:
        """Empty tables, for a ranker without quantiles."""
        floats, integers = np.empty((0, 0), np.float32), np.empty((0, 0), np.int32)
        none, one = np.empty(0, np.int32), np.ones(1, np.float32)
        return cls(floats, integers, none, integers, floats, none, one, one)


class Entries(NamedTuple):
    """The inputs of one list of n items in a sparse layout, by transformed feature.

    A value that many items share (``fill_value`` of a pandas ``SparseArray``) is stored once, at
    position 0; the other items are entries, stored as differences from it. Where no value is
    common, all items are entries and position 0 has the mean.

    Attributes:
        rows: ``[g, n + 1 or more]``: 1 + the index of each entry's item.
        values: ``[g, k, n + 1 or more]``: the feature, its columns within the list except scores,
            and the functions of an encoding, which the preparation leaves to be written.
        counts: ``[g]``: the number of entries, position 0 included.
        scores: ``[2, g]``: the factor a and the summand s by which an entry's score within the list
            is ``a values[:, 0] + s``.
    """

    rows: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    scores: np.ndarray


NO_ENTRIES = Entries(
    np.empty((0, 0), np.int32),
    np.empty((0, 0, 0), np.float32),
    np.empty(0, np.int64),
    np.empty((0, 0), np.float32),
)


class Buffers(NamedTuple):
    """The memory of the pass, which allocates none itself: reference counting would take time.

    Below, ``size`` is the padded length of a list. With regression of missing values, the entries
    of all features are in memory at a time (k = g), otherwise those of one (k = 1).

    Attributes:
        raw: ``[size]``: the raw values of a feature.
        values, rows: ``[k, size]``: its entries.
        entry_counts: ``[k]``: the number of entries, without position 0.
        scratch: ``[2, size]``, for the steps of one feature.
        counts: ``[3, size]``, likewise.
        centered: ``[n, f]``: values minus their means, for the regression.
    """

    raw: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    entry_counts: np.ndarray
    scratch: np.ndarray
    counts: np.ndarray
    centered: np.ndarray

    @classmethod
    def of(cls, columns: Columns, max_length: int) -> Buffers:
        """Memory for lists of up to ``max_length`` items."""
        size, regresses = padded_size(max_length), len(columns.weights) > 0
        features = len(columns.sources) if regresses else 1
        return cls(
            np.empty(size, np.float32),
            np.empty((features, size), np.float32),
            np.empty((features, size), np.int32),
            np.empty(features, np.int64),
            np.empty((2, size), np.float32),
            np.empty((3, size), np.int32),
            np.empty((max_length if regresses else 0, len(columns.weights))),
        )


@_compiled
def padded_size(count: int) -> int:
    """The smallest multiple of 16 above ``count``."""
    return (count // _VECTOR_SIZE + 1) * _VECTOR_SIZE


@_compiled
def prepare(
    items: np.ndarray,
    offsets: np.ndarray,
    tables: tuple[Columns, Quantiles],
    starts: tuple[int, int, int],
    inputs: np.ndarray,
    entries: Entries,
    buffers: Buffers,
) -> None:
    """Write the inputs of all lists, one transformed feature of one list at a time.

    Args:
        items: raw features ``[N, f]``.
        offsets: ``[B + 1]``.
        tables: the fitted transforms.
        starts: the first column of ``inputs`` for ranks, ties and scores, or their index in
            ``entries.values``; 0 for those that are not inputs of the network.
        inputs: ``[N, width]``, written if ``entries`` is empty.
        entries: written if not empty; then there is a single list.
        buffers: overwritten.
    """
    columns, quantiles = tables
    sources, indicates, mean, deviation, fill, weights = columns
    raw, all_values, all_rows, entry_counts, scratch, counts, centered = buffers
    regresses = len(weights) > 0
    for b in range(len(offsets) - 1):
        start, n = offsets[b], offsets[b + 1] - offsets[b]
        dense = inputs[start : start + n]
        for c in range(len(sources)):
            feature = c if regresses else 0
            _read_raw(items, start, n, sources[c], indicates[c], raw)
            n_entries = _to_sparse(raw, n, all_values[feature], all_rows[feature])
            values, rows = all_values[feature, : padded_size(n_entries)], all_rows[feature]
            if not indicates[c]:
                scaling = mean[c], deviation[c], quantiles.last[0]
                _transform(values, c, quantiles, scaling, scratch, counts)
            if regresses:
                entry_counts[c] = n_entries
                if not indicates[c]:
                    _center(values, rows, n_entries, fill[c], centered[:n, c])
            else:
                for t in range(len(values)):
                    values[t] = fill[c] if np.isnan(values[t]) else values[t]
                _write_inputs(
                    values, rows, scratch, counts, (c, n_entries, n), starts, dense, entries
                )
        for c in range(len(sources) if regresses else 0):
            n_entries, rows = entry_counts[c], all_rows[c]
            values = all_values[c, : padded_size(n_entries)]
            if not indicates[c]:
                _regress(values[: n_entries + 1], rows, fill[c], weights[c], centered)
            _write_inputs(values, rows, scratch, counts, (c, n_entries, n), starts, dense, entries)


@_compiled
def _read_raw(
    items: np.ndarray, start: int, n: int, source: int, indicates: bool, raw: np.ndarray
) -> None:
    """Write the raw values of a feature or, for an indicator, whether they are missing."""
    for i in range(n):
        raw[i] = items[start + i, source] + _ZERO  # turns -0 into 0
    if indicates:
        for i in range(n):
            raw[i] = _ONE if np.isnan(raw[i]) else _ZERO


@_compiled
def _to_sparse(raw: np.ndarray, n: int, values: np.ndarray, rows: np.ndarray) -> int:
    """Write a common value and then the entries of a column; return the number of entries.

    The common value is the smallest or the largest: in counts, 0. All items are entries if fewer
    than a quarter of them have the common value, if the list is short, or if the value is NaN.

    Args:
        raw: ``raw[:n]`` are the values of items; it is overwritten after them.
        n: the number of items.
        values: written, and padded by zeros to a multiple of 16.
        rows: written: 1 + the index of each entry's item.
    """
    size, bits = padded_size(n), raw.view(np.int32)
    for i in range(n, size):
        raw[i] = raw[0] if n > 0 else _ZERO
    # Values are compared by their bits as integers. For negative numbers these have the reverse
    # order, so all bits but the sign are flipped.
    low, high = _MAX_INT32, np.int32(-0x80000000)
    for i in range(size):
        ordered = bits[i] ^ ((bits[i] >> 31) & _MAX_INT32)
        low, high = min(low, ordered), max(high, ordered)
    low ^= (low >> 31) & _MAX_INT32
    high ^= (high >> 31) & _MAX_INT32
    n_low, n_high = np.int32(0), np.int32(0)
    for i in range(size):
        n_low += bits[i] == low
        n_high += bits[i] == high
    # The padding repeats raw[0] and is not counted.
    n_low -= size - n if bits[0] == low else 0
    n_high -= size - n if bits[0] == high else 0
    common, end = low if n_low >= n_high else high, np.uint32(1)  # end: where to write next
    values[:1].view(np.int32)[0] = common
    if n < _MIN_SPARSE or 4 * max(n_low, n_high) < n or np.isnan(values[0]):
        for i in range(n):
            values[i + 1], rows[i + 1] = raw[i], i + 1
        end = np.uint32(n + 1)
    else:
        for i in range(n):  # branch-free: a common value is overwritten by the next entry
            values[end], rows[end] = raw[i], i + 1
            end = np.uint32(end + np.uint32(bits[i] != common))
    n_entries = int(np.int64(end)) - 1
    for t in range(n_entries + 1, padded_size(n_entries)):
        values[t] = _ZERO
    return n_entries


@_compiled
def _to_dense(
    values: np.ndarray, rows: np.ndarray, n_entries: int, dense: np.ndarray, column: int
) -> None:
    """Write the values of all items to a column of ``dense``."""
    n = len(dense)
    if n_entries < n:
        for i in range(n):
            dense[i, column] = values[0]
    for t in range(1, n_entries + 1):
        dense[rows[t] - 1, column] = values[t]


@_compiled
def _transform(
    values: np.ndarray,
    c: int,
    quantiles: Quantiles,
    scaling: tuple[np.float32, np.float32, np.float32],
    scratch: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Replace values by their quantiles, if there are tables of them, and standardize.

    ``scaling`` has the mean, the deviation, and the index of the last quantile.
    """
    if len(quantiles.knots) == 0:
        for i in range(len(values)):
            values[i] = (values[i] - scaling[0]) / scaling[1]
    else:
        below = counts[0, : len(values)]
        _count_knots_below(values, c, quantiles, below)
        _interpolate(values, c, quantiles, scaling, below, scratch, counts[1:])


@_compiled
def _count_knots_below(values: np.ndarray, c: int, quantiles: Quantiles, below: np.ndarray) -> None:
    """Write the number of knots below each value.

    The binary searches of all values advance together, so that none waits for memory.
    """
    knots, first, per_unit = quantiles.knots, quantiles.grid[0, c], quantiles.grid[1, c]
    for i in range(len(values)):
        cell = (values[i] - first) * per_unit
        cell = cell if cell > _ZERO else _ZERO  # also if it is NaN
        cell = cell if cell < _LAST_CELL else _LAST_CELL
        below[i] = quantiles.cell_starts[c, np.uint32(np.int32(cell))]
    step = np.int32(quantiles.search_widths[c] >> 1)
    while step > 0:
        for i in range(len(values)):
            next_ = np.int32(below[i] + step)
            below[i] = next_ if knots[c, np.uint32(next_)] < values[i] else below[i]
        step = np.int32(step >> 1)


@_compiled
def _interpolate(
    values: np.ndarray,
    c: int,
    quantiles: Quantiles,
    scaling: tuple[np.float32, np.float32, np.float32],
    below: np.ndarray,
    bounds: np.ndarray,
    up_to: np.ndarray,
) -> None:
    """Replace values of one feature by their quantiles, standardized.

    Table entries are copied to buffers first, so that the division is vectorized: the knots around
    each value to ``bounds`` ``[2, size]``, and the numbers of quantiles up to these knots to
    ``up_to`` ``[2, size]``. A value equal to a knot gets the middle of the quantiles equal to it.
    """
    knots, n_below, tied_below = quantiles.knots, quantiles.n_below, quantiles.tied_below[c]
    scale = quantiles.scale[c]
    mean, deviation, last = scaling
    for i in range(len(values)):
        knot = np.uint32(below[i])
        bounds[0, i], bounds[1, i] = knots[c, knot], knots[c, knot + np.uint32(1)]
    if tied_below >= 0:
        for i in range(len(values)):
            up_to[0, i] = below[i] + tied_below if below[i] > 0 else 0
            up_to[1, i] = below[i] + tied_below + 1
    else:
        for i in range(len(values)):
            knot = np.uint32(below[i])
            up_to[0, i], up_to[1, i] = n_below[c, knot], n_below[c, knot + np.uint32(1)]
    if scale < _ONE:
        for i in range(len(values)):
            values[i] *= scale
            bounds[0, i] *= scale
            bounds[1, i] *= scale
    for i in range(len(values)):
        value, low, high = values[i], bounds[0, i], bounds[1, i]
        # value - value is 0, or NaN for a missing value
        part = (value - low) / (high - low) if below[i] > 0 else value - value
        middle = np.float32(up_to[0, i] + up_to[1, i] - 1) * _HALF
        index = np.float32(up_to[0, i] - 1) if below[i] > 0 else _ZERO
        fraction = (middle if high == value else index + part) / last
        values[i] = (fraction - mean) / deviation


@_compiled
def _center(
    values: np.ndarray, rows: np.ndarray, n_entries: int, mean: np.float32, centered: np.ndarray
) -> None:
    """Write the values of items minus their mean; 0 for missing values."""
    if n_entries < len(centered):
        for i in range(len(centered)):
            centered[i] = np.float64(values[0]) - np.float64(mean)
    for t in range(1, n_entries + 1):
        difference = np.float64(values[t]) - np.float64(mean)
        centered[rows[t] - 1] = 0.0 if np.isnan(difference) else difference


@_compiled
def _regress(
    values: np.ndarray,
    rows: np.ndarray,
    mean: np.float32,
    weights: np.ndarray,
    centered: np.ndarray,
) -> None:
    """Replace missing values by regression; terms are added in the same order for all items.

    Sums are in float64 and then rounded, as in :class:`~rankgrad.data.transforms.Impute`.
    """
    for t in range(1, len(values)):
        if np.isnan(values[t]):
            terms = _dot(centered[rows[t] - 1], weights)
            values[t] = np.float32(np.float64(mean) + terms)


@_compiled_reduction
def _dot(left: np.ndarray, right: np.ndarray) -> float:
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@_compiled
def _write_inputs(
    values: np.ndarray,
    rows: np.ndarray,
    scratch: np.ndarray,
    counts: np.ndarray,
    column: tuple[int, int, int],
    starts: tuple[int, int, int],
    dense: np.ndarray,
    entries: Entries,
) -> None:
    """Write a transformed feature of one list, and the columns derived from it within the list.

    Args:
        values: as :func:`_to_sparse` writes them, then transformed; overwritten.
        rows: as :func:`_to_sparse` writes them.
        scratch: overwritten, as ``counts`` is.
        counts: overwritten.
        column: the index of the feature, the number of its entries, and the number of items.
        starts: as in :func:`prepare`.
        dense: ``[n, width]``, written if ``entries`` is empty.
        entries: written if not empty.
    """
    c, n_entries, n = column
    ranks_at, ties_at, scores_at = starts
    ranks, ties = scratch[0], scratch[1]
    mean, factor = _score_scaling(values[: n_entries + 1], n)
    if n_entries == n:
        values[0] = mean
    if ranks_at > 0 or ties_at > 0:
        _rank(values, n_entries, n, scratch, counts)
    if len(entries.counts) > 0:
        factor = factor if scores_at > 0 else _ZERO
        entries.counts[c] = n_entries + 1
        entries.scores[0, c], entries.scores[1, c] = factor, (values[0] - mean) * factor
        for t in range(1, n_entries + 1):
            entries.rows[c, t] = rows[t]
        _write_differences(values, n_entries, entries.values[c, 0])
        if ranks_at > 0:
            _write_differences(ranks, n_entries, entries.values[c, ranks_at])
        if ties_at > 0:
            _write_differences(ties, n_entries, entries.values[c, ties_at])
        return
    _to_dense(values, rows, n_entries, dense, c)
    if ranks_at > 0:
        _to_dense(ranks, rows, n_entries, dense, ranks_at + c)
    if ties_at > 0:
        _to_dense(ties, rows, n_entries, dense, ties_at + c)
    if scores_at > 0:
        for t in range(len(values)):
            values[t] = (values[t] - mean) * factor
        _to_dense(values, rows, n_entries, dense, scores_at + c)


@_compiled
def _write_differences(values: np.ndarray, n_entries: int, differences: np.ndarray) -> None:
    """Copy the common value, and write the differences of entries from it."""
    differences[0] = values[0]
    for t in range(1, n_entries + 1):
        differences[t] = values[t] - values[0]


@_compiled_reduction
def _score_scaling(values: np.ndarray, n: int) -> tuple[np.float32, np.float32]:
    """The mean m and factor a: :func:`rankgrad.models._in_list.list_scores` of x is ``a (x - m)``.

    ``values[0]`` is the value of all items without an entry.
    """
    n_common = n - len(values) + 1
    total, squares = 0.0, 0.0
    for t in range(1, len(values)):
        total += values[t]
    if n_common > 0:
        total += n_common * np.float64(values[0])
    mean = np.float32(total / max(n, 1))
    for t in range(1, len(values)):
        squares += (values[t] - mean) * (values[t] - mean)
    if n_common > 0:
        squares += n_common * ((values[0] - mean) * (values[0] - mean))
    return mean, _ONE / (np.float32(math.sqrt(squares / max(n, 1))) + _TENTH)


@_compiled
def _rank(
    values: np.ndarray, n_entries: int, n: int, scratch: np.ndarray, counts: np.ndarray
) -> None:
    """Write ``list_ranks`` and ``list_ties`` of :mod:`rankgrad.models._in_list` to ``scratch``.

    Where no value is common, both are 0 at position 0.
    """
    ranks, ties = scratch[0], scratch[1]
    _count_items(values, n_entries, n, counts)
    for t in range(len(values)):
        twice_mean_rank = np.float32(2 * counts[0, t] + counts[1, t])
        ranks[t] = (twice_mean_rank * _HALF / np.float32(n) - _HALF) * _SQRT12
        others = np.float32(counts[1, t]) - _ONE
        ties[t] = (others + others) / (_ONE + others)
    if n_entries == n:
        ranks[0] = ties[0] = _ZERO


@_compiled
def _count_items(values: np.ndarray, n_entries: int, n: int, counts: np.ndarray) -> None:
    """Write how many items of the list are below each value, and how many have it.

    Args:
        values: ``values[0]`` is the value of ``n - n_entries`` items; the padding after the entries
            is overwritten.
        n_entries: the number of entries.
        n: the number of items.
        counts: ``counts[0]`` and ``counts[1]`` are written, ``counts[2]`` is overwritten.
    """
    common, below, tied = values[0], counts[0], counts[1]
    if n_entries > _MAX_PAIRWISE:
        _count_sorted(values[1 : n_entries + 1], below[1:], tied[1:])
    else:
        values[0] = _INFINITY
        for t in range(n_entries + 1, len(values)):
            values[t] = _INFINITY
        _count_pairwise(values, n_entries, counts)
        values[0] = common
    common_below, common_tied = 0, n - n_entries
    for t in range(1, n_entries + 1):
        value = values[t]
        common_below += value < common
        common_tied += value == common
        below[t] += n - n_entries if common < value else 0
        tied[t] += n - n_entries if common == value else 0
    below[0], tied[0] = common_below, common_tied


@_compiled
def _count_pairwise(values: np.ndarray, n_entries: int, counts: np.ndarray) -> None:
    """:func:`_count_items` among entries only; ``values`` is infinite before and after them.

    Four values at a time are compared with all others. Entries are tied if they have the same
    number of entries below them, which is the place in sorted order where their tie group begins.
    """
    below, tied, group_sizes = counts[0], counts[1], counts[2]  # group_sizes: by place
    for i in range(len(values)):
        below[i], tied[i] = 0, 1
    for j in range(0, n_entries + 1, 4):
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        for i in range(len(values)):
            value = values[i]
            below[i] += (a < value) + (b < value) + (c < value) + (d < value)
    total = 0
    for i in range(1, n_entries + 1):
        total += below[i]
    if 2 * total == n_entries * (n_entries - 1):  # there are no ties
        return
    for i in range(n_entries):
        group_sizes[i] = 0
    for i in range(1, n_entries + 1):
        group_sizes[np.uint32(below[i])] = 1  # until the next loop: a group begins here
    end = np.int32(n_entries)
    for place in range(n_entries - 1, -1, -1):
        begins = group_sizes[place]
        group_sizes[place] = end - place
        end = np.int32(place) if begins else end
    for i in range(1, n_entries + 1):
        tied[i] = group_sizes[np.uint32(below[i])]


@partial(_compiled, allocates=True)
def _count_sorted(values: np.ndarray, below: np.ndarray, tied: np.ndarray) -> None:
    """:func:`_count_items` among entries only, by sorting them."""
    n = len(values)
    order = np.argsort(values)
    first = 0
    while first < n:
        end = first + 1
        while end < n and values[order[end]] == values[order[first]]:
            end += 1
        for place in range(first, end):
            below[order[place]], tied[order[place]] = first, end - first
        first = end
