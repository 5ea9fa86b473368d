"""The compiled pass of :class:`rankgrad.training._preparation.Preparation`, and its tables."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.core.options import DefaultOptions

from rankgrad._compilation import compile_cached
from rankgrad.data._quantile_kernel import Knots

_SORTED = 1024  # longer lists are sorted, not compared pair by pair
_FEW = 8  # shorter lists have no common value: every item is an entry
_VECTOR = 16  # values that arrays are padded to a multiple of
_CELLS = 256  # that a feature's range of values is divided into
_LAST_CELL = np.float32(_CELLS - 1)
_SQRT12, _TENTH = np.float32(math.sqrt(12)), np.float32(0.1)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


class Columns(NamedTuple):
    """The transformed features, ``[g]`` each.

    Attributes:
        sources: the raw feature of each.
        indicates: whether it is 1 where the raw one is missing and 0 elsewhere.
        mean, deviation: by which it is standardized.
        fill: in place of a missing value.
        weights: ``[f, f]`` float64, none if all missing values are replaced by ``fill``; row j has
            the weights W_kj of :class:`~rankgrad.data.transforms.Impute`.
    """

    sources: np.ndarray
    indicates: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    fill: np.ndarray
    weights: np.ndarray


class Quantiles(NamedTuple):
    """Quantiles, as a table by the number of knots below a value.

    Between its first and last knot a feature has cells of equal width. Where a search begins is
    known by the cell of a value.

    Attributes:
        knots: ``[g, w]``: 0, the knots, and infinity; none if there are no quantiles.
        ends: ``[g, 1 + 2^p]``: how many quantiles are below a value, by the number of knots.
        more: ``[g]``: how many more than knots, where that is one number, as it is if only the
            first quantiles are tied; else -1.
        cells: ``[g, 256]``: how many knots are in the cells before each.
        grid: ``[2, g]``: the first knot, and how many cells there are to a unit.
        steps: ``[g]``, of the search in a cell: a power of 2 above the number of its knots.
        last: ``[1]``, that of the knots.
        scale: ``[g]``, that of the knots.
    """

    knots: np.ndarray
    ends: np.ndarray
    more: np.ndarray
    cells: np.ndarray
    grid: np.ndarray
    steps: np.ndarray
    last: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, knots: Knots) -> Quantiles:
        """The tables of a fitted transform."""
        features, size = knots.index.shape
        table = np.full((features, 2 * int(size)), np.inf, np.float32)
        table[:, 0], table[:, 1:size] = 0, knots.table
        ends = np.full((features, 1 + size), knots.last + 1, np.int32)
        ends[:, 0], ends[:, 1:size] = 0, knots.index[:, 1:] + 1
        more = np.full(features, -1, np.int32)
        cells, steps = np.zeros((features, _CELLS), np.int32), np.ones(features, np.int32)
        grid = np.zeros((2, features), np.float32)
        for c, row in enumerate(knots.table):
            own = row[np.isfinite(row)]
            if len(own) > 1 and knots.scale[c] == 1:
                grid[:, c] = own[0], np.minimum((_CELLS - 1) / (own[-1] - own[0]), 1e30)
            if (np.diff(ends[c, 1 : len(own) + 1]) == 1).all():
                more[c] = ends[c, 1] - 1
            at = np.clip((own - grid[0, c]) * grid[1, c], 0, _CELLS - 1).astype(np.int64)
            counts = np.bincount(at, minlength=_CELLS)
            cells[c, 1:], steps[c] = np.cumsum(counts)[:-1], 1 << int(counts.max()).bit_length()
        last, scale = np.array([knots.last], np.float32), knots.scale[:, 0].copy()
        return cls(table, ends, more, cells, grid, steps, last, scale)

    @classmethod
    def none(cls) -> Quantiles:
        """Empty tables, for a ranker without quantiles."""
        floats, whole = np.empty((0, 0), np.float32), np.empty((0, 0), np.int32)
        none, one = np.empty(0, np.int32), np.ones(1, np.float32)
        return cls(floats, whole, none, whole, floats, none, one, one)


class Entries(NamedTuple):
    """The inputs of one list of n items in a sparse layout, by transformed feature.

    A value that many items share (``fill_value`` of a pandas ``SparseArray``) is stored once, at
    position 0; the other items are entries, stored as differences from it. Where no value is
    common, all items are entries and position 0 has the mean.

    Attributes:
        places: ``[g, n + 1 or more]``: 1 + the item of each entry.
        values: ``[g, k, n + 1 or more]`` of the feature and of what is derived of it but scores;
            those of the first are what the others are differences from.
        counts: ``[g]``: how many entries there are, the first included.
        scores: ``[2, g]``: the score of a value is the first times the difference, plus the second.
    """

    places: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    scores: np.ndarray


NO_ENTRIES = Entries(
    np.empty((0, 0), np.int32),
    np.empty((0, 0, 0), np.float32),
    np.empty(0, np.int64),
    np.empty((0, 0), np.float32),
)


class Memory(NamedTuple):
    """What the pass uses, since it allocates nothing: reference counts would take a quarter more.

    Attributes:
        x: raw values of a feature.
        values, places: what :func:`_compact_column` writes, of one feature or of all.
        scratch, counts: for the steps of one feature.
        others: how many values :func:`_compact_column` found.
        centered: ``[n, f]``, values less their means, where missing ones are regressed.
    """

    x: np.ndarray
    values: np.ndarray
    scratch: np.ndarray
    places: np.ndarray
    counts: np.ndarray
    others: np.ndarray
    centered: np.ndarray

    @classmethod
    def of(cls, columns: Columns, max_length: int) -> Memory:
        """For lists of up to so many items."""
        size, regresses = padded_size(max_length), len(columns.weights) > 0
        together = len(columns.sources) if regresses else 1  # columns at a time
        return cls(
            np.empty(size, np.float32),
            np.empty((together, size), np.float32),
            np.empty((2, size), np.float32),
            np.empty((together, size), np.int32),
            np.empty((3, size), np.int32),
            np.empty(together, np.int64),
            np.empty((max_length if regresses else 0, len(columns.weights))),
        )


def _prepare_lists(
    items: np.ndarray,
    offsets: np.ndarray,
    tables: tuple[Columns, Quantiles],
    starts: tuple[int, int, int],
    inputs: np.ndarray,
    entries: Entries,
    memory: Memory,
) -> None:
    """All columns of all lists, one transformed feature of one list at a time.

    They are written to ``entries``, or to ``inputs`` if that is empty. ``starts`` has the
    first places there for ranks, ties and scores, 0 where there are none.
    """
    columns, quantiles = tables
    sources, indicates, mean, deviation, fill, weights = columns
    regresses = len(weights) > 0
    x, values, scratch, places, counts, others, centered = memory
    for b in range(len(offsets) - 1):
        start, n = offsets[b], offsets[b + 1] - offsets[b]
        rows = inputs[start : start + n]
        for c in range(len(sources)):
            for i in range(n):
                x[i] = items[start + i, sources[c]] + _ZERO  # which makes -0 equal 0
            if indicates[c]:
                for i in range(n):
                    x[i] = _ONE if np.isnan(x[i]) else _ZERO
            k = c if regresses else 0
            m = _compact(x, n, values[k], places[k])
            some, below = values[k, : _padded(m)], counts[0, : _padded(m)]
            scaling = mean[c], deviation[c], quantiles.last[0]
            if len(quantiles.knots) == 0 and not indicates[c]:
                _standardize(some, scaling)
            elif not indicates[c]:
                _search(some, c, quantiles, below)
                _interpolate(some, c, quantiles, scaling, below, scratch, counts[1:])
            if not regresses:
                for t in range(len(some)):
                    some[t] = fill[c] if np.isnan(some[t]) else some[t]
                _derive(some, places[k], scratch, counts, (c, m, n), starts, rows, entries)
                continue
            others[c] = m
            if not indicates[c]:
                _center(some, places[k], m, fill[c], centered[:n, c])
        for c in range(len(sources) if regresses else 0):
            m = others[c]
            some = values[c, : _padded(m)]
            if not indicates[c]:
                _regress(some[: m + 1], places[c], fill[c], weights[c], centered)
            _derive(some, places[c], scratch, counts, (c, m, n), starts, rows, entries)


def _center_values(
    values: np.ndarray, places: np.ndarray, m: int, mean: np.float32, centered: np.ndarray
) -> None:
    """Write the values of items less their mean, 0 where they are missing."""
    if m < len(centered):
        for i in range(len(centered)):
            centered[i] = np.float64(values[0]) - np.float64(mean)
    for t in range(1, m + 1):
        difference = np.float64(values[t]) - np.float64(mean)
        centered[places[t] - 1] = 0.0 if np.isnan(difference) else difference


def _regress_column(
    values: np.ndarray,
    places: np.ndarray,
    mean: np.float32,
    weights: np.ndarray,
    centered: np.ndarray,
) -> None:
    """Replace missing values by regression, in an order that is the same for all items.

    Sums are in float64 and rounded, as those of :class:`~rankgrad.data.transforms.Impute` are.
    """
    for t in range(1, len(values)):
        if np.isnan(values[t]):
            found = np.float64(mean) + _dot(centered[places[t] - 1], weights)
            values[t] = np.float32(found)


def padded_size(count: int) -> int:
    """The next multiple of 16 above ``count``."""
    return (count // _VECTOR + 1) * _VECTOR


def _compact_column(x: np.ndarray, n: int, some: np.ndarray, places: np.ndarray) -> int:
    """Write a value that many items have, then those of the others; how many others there are.

    The value is the least or the greatest, as 0 is in counts. All items count as others if fewer
    than a quarter of them have it, if the list is short, or if it is NaN.

    Args:
        x: ``x[:n]`` are the values; those after them are written.
        n: how many items.
        some: written, up to a multiple of 16.
        places: written; 1 + the item of each value.
    """
    size, bits = _padded(n), x.view(np.int32)
    for i in range(n, size):
        x[i] = x[0] if n > 0 else _ZERO
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(size):
        ordered = bits[i] ^ ((bits[i] >> 31) & np.int32(0x7FFFFFFF))  # as the values are
        low, high = min(low, ordered), max(high, ordered)
    low ^= (low >> 31) & np.int32(0x7FFFFFFF)
    high ^= (high >> 31) & np.int32(0x7FFFFFFF)
    at_low, at_high = np.int32(0), np.int32(0)
    for i in range(size):
        at_low += bits[i] == low
        at_high += bits[i] == high
    at_low -= size - n if bits[0] == low else 0
    at_high -= size - n if bits[0] == high else 0
    base, m = low if at_low >= at_high else high, np.uint32(1)
    some[:1].view(np.int32)[0] = base
    if n < _FEW or 4 * max(at_low, at_high) < n or np.isnan(some[0]):
        for i in range(n):
            some[i + 1], places[i + 1] = x[i], i + 1
        m = np.uint32(n + 1)
    else:
        for i in range(n):
            some[m], places[m] = x[i], i + 1
            m = np.uint32(m + np.uint32(bits[i] != base))
    for t in range(m, _padded(m - 1)):
        some[t] = _ZERO
    return int(np.int64(m)) - 1


def _dot_product(one: np.ndarray, other: np.ndarray) -> float:
    total = 0.0
    for k in range(len(one)):
        total += one[k] * other[k]
    return total


def _derive_columns(
    values: np.ndarray,
    places: np.ndarray,
    scratch: np.ndarray,
    counts: np.ndarray,
    column: tuple[int, int, int],
    starts: tuple[int, int, int],
    rows: np.ndarray,
    entries: Entries,
) -> None:
    """Write a transformed feature of one list, and the columns derived from it within the list.

    ``values`` and ``places`` are what :func:`_compact_column` found, transformed; ``column`` is the
    number of the feature, how many others there are, and how many items.
    """
    c, m, n = column
    rank_columns, tie_columns, score_columns = starts
    ranks, ties = scratch[0], scratch[1]
    mean, factor = _score(values[: m + 1], n)
    if m == n:
        values[0] = mean
    if rank_columns > 0 or tie_columns > 0:
        _count(values, m, n, counts)
        for t in range(len(values)):
            twice = np.float32(2 * counts[0, t] + counts[1, t])
            ranks[t] = (twice * _HALF / np.float32(n) - _HALF) * _SQRT12
            others = np.float32(counts[1, t]) - _ONE
            ties[t] = (others + others) / (_ONE + others)
        if m == n:
            ranks[0] = ties[0] = _ZERO
    if len(entries.counts) > 0:
        factor = factor if score_columns > 0 else _ZERO
        entries.counts[c] = m + 1
        entries.scores[0, c], entries.scores[1, c] = factor, (values[0] - mean) * factor
        for t in range(1, m + 1):
            entries.places[c, t] = places[t]
        _subtract(values, m, entries.values[c, 0])
        if rank_columns > 0:
            _subtract(ranks, m, entries.values[c, rank_columns])
        if tie_columns > 0:
            _subtract(ties, m, entries.values[c, tie_columns])
        return
    _write_column(values, places, m, rows, c)
    if rank_columns > 0:
        _write_column(ranks, places, m, rows, rank_columns + c)
    if tie_columns > 0:
        _write_column(ties, places, m, rows, tie_columns + c)
    if score_columns > 0:
        for t in range(len(values)):
            values[t] = (values[t] - mean) * factor
        _write_column(values, places, m, rows, score_columns + c)


def _subtract_first(values: np.ndarray, m: int, found: np.ndarray) -> None:
    found[0] = values[0]
    for t in range(1, m + 1):
        found[t] = values[t] - values[0]


def _write_values(
    values: np.ndarray, places: np.ndarray, m: int, rows: np.ndarray, column: int
) -> None:
    """Write the values of all items to a column."""
    n = len(rows)
    if m < n:
        for i in range(n):
            rows[i, column] = values[0]
    for t in range(1, m + 1):
        rows[places[t] - 1, column] = values[t]


def _standardize_column(x: np.ndarray, scaling: tuple[np.float32, ...]) -> None:
    mean, deviation, _ = scaling
    for i in range(len(x)):
        x[i] = (x[i] - mean) / deviation


def _search_column(x: np.ndarray, c: int, quantiles: Quantiles, below: np.ndarray) -> None:
    """How many knots are below each value.

    The binary searches of all values take each step together, so that none waits for memory.
    """
    knots, first, factor = quantiles.knots, quantiles.grid[0, c], quantiles.grid[1, c]
    for i in range(len(x)):
        cell = (x[i] - first) * factor
        cell = cell if cell > _ZERO else _ZERO  # also of NaN
        cell = cell if cell < _LAST_CELL else _LAST_CELL
        below[i] = quantiles.cells[c, np.uint32(np.int32(cell))]
    step = np.int32(quantiles.steps[c] >> 1)
    while step > 0:
        for i in range(len(x)):
            next_ = np.int32(below[i] + step)
            below[i] = next_ if knots[c, np.uint32(next_)] < x[i] else below[i]
        step = np.int32(step >> 1)


def _interpolate_column(
    x: np.ndarray,
    c: int,
    quantiles: Quantiles,
    scaling: tuple[np.float32, ...],
    below: np.ndarray,
    scratch: np.ndarray,
    between: np.ndarray,
) -> None:
    """Replace values of one feature by their quantiles, standardized.

    The entries of the tables are copied first, so that the division is vectorized.
    """
    knots, ends, more = quantiles.knots, quantiles.ends, quantiles.more[c]
    scale = quantiles.scale[c]
    mean, deviation, last = scaling
    for i in range(len(x)):
        at = np.uint32(below[i])
        scratch[0, i], scratch[1, i] = knots[c, at], knots[c, at + np.uint32(1)]
    if more >= 0:
        for i in range(len(x)):
            between[0, i] = below[i] + more if below[i] > 0 else 0
            between[1, i] = below[i] + more + 1
    else:
        for i in range(len(x)):
            at = np.uint32(below[i])
            between[0, i], between[1, i] = ends[c, at], ends[c, at + np.uint32(1)]
    if scale < _ONE:
        for i in range(len(x)):
            x[i] *= scale
            scratch[0, i] *= scale
            scratch[1, i] *= scale
    for i in range(len(x)):
        value, low, high = x[i], scratch[0, i], scratch[1, i]
        part = (value - low) / (high - low) if below[i] > 0 else value - value
        middle = np.float32(between[0, i] + between[1, i] - 1) * _HALF
        index = np.float32(between[0, i] - 1) if below[i] > 0 else _ZERO
        fraction = (middle if high == value else index + part) / last
        x[i] = (fraction - mean) / deviation


def _count_column(values: np.ndarray, m: int, n: int, counts: np.ndarray) -> None:
    """How many items of the list are below each value, and how many are as high, itself included.

    Args:
        values: ``values[0]`` is that of ``n - m`` items, ``values[1:m + 1]`` those of the others;
            what is after them is written.
        m: how many others there are.
        n: how many items.
        counts: ``counts[0]`` and ``counts[1]`` are written, ``counts[2]`` used.
    """
    base, below, tied = values[0], counts[0], counts[1]
    if m > _SORTED:
        _count_sorted(values[1 : m + 1], below[1:], tied[1:])
    else:
        values[0] = np.float32(np.inf)
        for t in range(m + 1, len(values)):
            values[t] = np.float32(np.inf)
        _count_pairs(values, m, counts)
        values[0] = base
    base_below, base_tied = 0, n - m
    for t in range(1, m + 1):
        value = values[t]
        base_below += value < base
        base_tied += value == base
        below[t] += n - m if base < value else 0
        tied[t] += n - m if base == value else 0
    below[0], tied[0] = base_below, base_tied


def _count_pairs_of(values: np.ndarray, m: int, counts: np.ndarray) -> None:
    """:func:`_count_column` of the others alone, infinity around them.

    Four values at a time are compared with all. Items with the same number of items below them are
    tied.
    """
    below, tied, ends = counts[0], counts[1], counts[2]
    for i in range(len(values)):
        below[i], tied[i] = 0, 1
    for j in range(0, m + 1, 4):
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        for i in range(len(values)):
            value = values[i]
            below[i] += (a < value) + (b < value) + (c < value) + (d < value)
    total = 0
    for i in range(1, m + 1):
        total += below[i]
    if 2 * total == m * (m - 1):  # there are no ties
        return
    for i in range(m):
        ends[i] = 0
    for i in range(1, m + 1):
        ends[np.uint32(below[i])] = 1
    end = np.int32(m)
    for place in range(m - 1, -1, -1):
        begins = ends[place]
        ends[place] = end - place
        end = np.int32(place) if begins else end
    for i in range(1, m + 1):
        tied[i] = ends[np.uint32(below[i])]


def _count_long_column(values: np.ndarray, below: np.ndarray, tied: np.ndarray) -> None:
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


def _score_column(values: np.ndarray, n: int) -> tuple[np.float32, np.float32]:
    """The m and a by which :func:`rankgrad.models._in_list.list_scores` is ``a (x - m)``.

    ``values[0]`` is that of all items but the others.
    """
    more = n - len(values) + 1
    total, squares = 0.0, 0.0
    for i in range(1, len(values)):
        total += values[i]
    if more > 0:
        total += more * np.float64(values[0])
    mean = np.float32(total / max(n, 1))
    for i in range(1, len(values)):
        squares += (values[i] - mean) * (values[i] - mean)
    if more > 0:
        squares += more * ((values[0] - mean) * (values[0] - mean))
    return mean, _ONE / (np.float32(math.sqrt(squares / max(n, 1))) + _TENTH)


#: Without the error model a division raises where Python's does, and its loop is not vectorized.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
#: What allocates nothing needs no reference counts of arrays.
_COUNTED = hasattr(DefaultOptions, "_nrt")
_count_sorted: Any = compile_cached(
    _count_long_column, **_OPTIONS, **({"_nrt": True} if _COUNTED else {})
)
_OPTIONS |= {"_nrt": False} if _COUNTED else {}
_padded: Any = compile_cached(padded_size, **_OPTIONS)
_count_pairs: Any = compile_cached(_count_pairs_of, **_OPTIONS)
_count: Any = compile_cached(_count_column, **_OPTIONS)
_score: Any = compile_cached(_score_column, fastmath={"reassoc"}, **_OPTIONS)
_search: Any = compile_cached(_search_column, **_OPTIONS)
_interpolate: Any = compile_cached(_interpolate_column, **_OPTIONS)
_standardize: Any = compile_cached(_standardize_column, **_OPTIONS)
_dot: Any = compile_cached(_dot_product, fastmath={"reassoc"}, **_OPTIONS)
_center: Any = compile_cached(_center_values, **_OPTIONS)
_regress: Any = compile_cached(_regress_column, **_OPTIONS)
_subtract: Any = compile_cached(_subtract_first, **_OPTIONS)
_write_column: Any = compile_cached(_write_values, **_OPTIONS)
_compact: Any = compile_cached(_compact_column, **_OPTIONS)
_derive: Any = compile_cached(_derive_columns, **_OPTIONS)
prepare: Any = compile_cached(_prepare_lists, **_OPTIONS)
