"""Preparation: what a network takes in, computed by one compiled pass over flat lists.

Neither PyTorch nor onnxruntime has a sort of many short columns and a search that are as fast:
ranks in lists and quantiles, which the default model begins with, would take longer than its
layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rankgrad.linking import compile_linked
from rankgrad.data import transforms
from rankgrad.data.blocks import check_infinite
from rankgrad.data.quantile_kernel import Knots
from rankgrad.models.mlp import MLPNet
from rankgrad.models.tabm import TabMNet

if TYPE_CHECKING:
    from rankgrad.training.fitted import FittedRanker

_LONG = 1024  # items from which a list is sorted, not compared pair by pair
_FEW = 8  # items of a list, below which none have a value that counts as that of many
_VECTOR = 16  # values that arrays are padded to a multiple of
_APART = 32  # knots from one pivot to the next
_ROOT, _TENTH = np.float32(math.sqrt(12)), np.float32(0.1)
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

    Attributes:
        knots: ``[g, 1 + 2^p]``: 0, the knots, and infinity; none if there are no quantiles.
        sizes: ``[g]``, a power of 2 above the number of a feature's knots.
        pivots: every 32nd knot.
        ends: ``[g, 1 + 2^p]``: how many quantiles are below a value, by the number of knots.
        last: ``[1]``, that of the knots.
        scale: ``[g]``, that of the knots.
    """

    knots: np.ndarray
    sizes: np.ndarray
    pivots: np.ndarray
    ends: np.ndarray
    last: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, knots: Knots) -> Quantiles:
        """Those of a transform."""
        features, size = knots.index.shape
        table = np.full((features, 1 + max(int(size), 4 * _APART)), np.inf, np.float32)  # 4 pivots
        table[:, 0], table[:, 1:size] = 0, knots.table
        pivots = table[:, _APART::_APART].copy()
        ends = np.full((features, 1 + size), knots.last + 1, np.int32)
        ends[:, :size] = knots.index + 1
        ends[:, 0] = 0
        last, scale = np.array([knots.last], np.float32), knots.scale[:, 0].copy()
        return cls(table, knots.sizes(), pivots, ends, last, scale)

    @classmethod
    def none(cls) -> Quantiles:
        """Those of a ranker without."""
        empty = np.empty((0, 0), np.float32)
        one = np.ones(1, np.float32)
        return cls(empty, np.empty(0, np.int64), empty, empty.astype(np.int32), one, one)


class Entries(NamedTuple):
    """The inputs of one list of n items, by transformed feature.

    Of a feature that many items have the same value of, as counts and flags are, only the others
    are entries, as differences from it; of others, all items are, as differences from the mean.

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


_NO_ENTRIES = Entries(
    np.empty((0, 0), np.int32),
    np.empty((0, 0, 0), np.float32),
    np.empty(0, np.int64),
    np.empty((0, 0), np.float32),
)


@dataclass(frozen=True)
class Preparation:
    """Transforms and columns derived within lists: items ``[N, f]`` to inputs ``[N, width]``.

    Attributes:
        columns: the ``g`` transformed features.
        quantiles: of them.
        in_list: kinds of columns within lists, in their order.
    """

    columns: Columns
    quantiles: Quantiles
    in_list: tuple[str, ...]

    @classmethod
    def of(cls, ranker: FittedRanker) -> Preparation | None:
        """That of a ranker; None where it has other transforms, or a network of another kind."""
        network, pipeline = ranker.network, ranker.transform
        if type(network) not in (MLPNet, TabMNet) or not isinstance(pipeline, transforms.Pipeline):
            return None
        found = _Steps(np.arange(ranker.n_features))
        if not all(found.take(step) for step in pipeline.steps):
            return None
        return cls(*found.tables(), tuple(getattr(network, "in_list", ())))

    @property
    def n_columns(self) -> int:
        """The number of transformed features, ``g``."""
        return len(self.columns.sources)

    @property
    def width(self) -> int:
        """The number of columns it gives."""
        return self.n_columns * (1 + len(self.in_list))

    def __call__(self, items: np.ndarray, offsets: np.ndarray, first: int = 0) -> np.ndarray:
        """The inputs of items, of which list b is the rows ``offsets[b]:offsets[b + 1]``.

        Args:
            items: raw features ``[N, f]``.
            offsets: of the lists.
            first: the number of the first row, by which an error names rows.

        Raises:
            ValueError: a value is infinite.
        """
        if np.isinf(items).any():
            check_infinite(torch.from_numpy(np.array(items)), first)
        inputs = np.empty((len(items), self.width), np.float32)
        places = {kind: self.n_columns * (1 + at) for at, kind in enumerate(self.in_list)}
        starts = places.get("rank", 0), places.get("ties", 0), places.get("score", 0)
        _prepare(items, offsets, self.columns, self.quantiles, starts, inputs, _NO_ENTRIES)
        return inputs

    def entries(self, items: np.ndarray) -> Entries:
        """The inputs of one list, by column and without what most of its items have."""
        kinds = [kind for kind in self.in_list if kind != "score"]
        starts = [kinds.index(kind) + 1 if kind in kinds else 0 for kind in ("rank", "ties")]
        count, size = self.n_columns, _padded(len(items))
        found = Entries(
            np.empty((count, size), np.int32),
            np.empty((count, 1 + len(kinds), size), np.float32),
            np.empty(count, np.int64),
            np.empty((2, count), np.float32),
        )
        offsets, inputs = np.array([0, len(items)]), np.empty((0, 0), np.float32)
        starts.append(int("score" in self.in_list))
        _prepare(items, offsets, self.columns, self.quantiles, tuple(starts), inputs, found)
        return found


class _Steps:
    """Transforms taken one after the other, as long as they come in the order of the pass.

    That is: features left out, quantiles, standardization, missing values replaced.
    """

    def __init__(self, sources: np.ndarray) -> None:
        self.sources = sources
        self.knots: Knots | None = None
        self.scaling: tuple[np.ndarray, np.ndarray] | None = None
        self.fill: np.ndarray | None = None
        self.weights = np.empty((0, 0))
        self.indicated = np.empty(0, np.int64)

    def take(self, step: nn.Module) -> bool:
        """Take in a transform; whether that is possible."""
        late = self.knots is not None or self.scaling is not None or self.fill is not None
        if isinstance(step, transforms.DropConstant) and not late:
            self.sources = self.sources[step.kept.cpu().numpy()]
        elif isinstance(step, transforms.Quantile) and not late and step.output == "uniform":
            self.knots = Knots.of(step.table.cpu().numpy())
        elif (
            isinstance(step, transforms.Standardize) and self.scaling is None and self.fill is None
        ):
            self.scaling = _array(step.mean), _array(step.deviation)
        elif isinstance(step, transforms.Impute) and self.fill is None:
            self.fill, self.indicated = _array(step.values), step.indicated.cpu().numpy()
            if len(step.weights):
                self.weights = _array(step.weights).T.astype(np.float64, order="C")
        else:
            return False
        return True

    def tables(self) -> tuple[Columns, Quantiles]:
        """All of them."""
        count, more = len(self.sources), len(self.indicated)
        mean, deviation = self.scaling or (np.zeros(count), np.ones(count))
        fill = np.full(count, np.nan) if self.fill is None else self.fill
        pad = np.zeros(more)
        columns = Columns(
            np.concatenate([self.sources, self.sources[self.indicated]]),
            np.arange(count + more) >= count,
            _float32(mean, pad),
            _float32(deviation, pad + 1),
            _float32(fill, pad),
            self.weights,
        )
        return columns, Quantiles.none() if self.knots is None else Quantiles.of(self.knots)


def _array(tensor: Any) -> np.ndarray:
    found: np.ndarray = tensor.detach().cpu().numpy().astype(np.float32)
    return found


def _float32(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts).astype(np.float32)


def _prepare_lists(
    items: np.ndarray,
    offsets: np.ndarray,
    columns: Columns,
    quantiles: Quantiles,
    starts: tuple[int, int, int],
    inputs: np.ndarray,
    entries: Entries,
) -> None:
    """All columns of all lists, one transformed feature of one list at a time.

    They are written to ``inputs``, or to ``entries`` where these are wanted. ``starts`` has the
    places there from which ranks, ties and scores are, 0 if they are not wanted.
    """
    max_length = 0
    for b in range(len(offsets) - 1):
        max_length = max(max_length, offsets[b + 1] - offsets[b])
    size = _padded(max_length)
    x, values = np.empty(size, np.float32), np.empty(size, np.float32)
    scratch, whole = np.empty((2, size), np.float32), np.empty((4, size), np.int32)
    sources, indicates, mean, deviation, fill, weights = columns
    filled = np.empty((max_length if len(weights) > 0 else 0, len(sources)), np.float32)
    apart = np.empty(len(weights), np.float64)
    for b in range(len(offsets) - 1):
        start, n = offsets[b], offsets[b + 1] - offsets[b]
        rows = inputs[start : start + n]
        regresses = len(weights) > 0 and _is_missing(items[start : start + n])
        for c in range(len(sources)):
            for i in range(n):
                x[i] = items[start + i, sources[c]] + _ZERO  # which makes -0 equal 0
            if indicates[c]:
                for i in range(n):
                    x[i] = _ONE if np.isnan(x[i]) else _ZERO
            m = _compact(x, n, values, whole[0])
            some, below = values[: _padded(m)], whole[1, : _padded(m)]
            fill_ = np.float32(np.nan) if regresses else fill[c]
            scaling = mean[c], deviation[c], fill_, quantiles.last[0]
            if len(quantiles.knots) == 0 and not indicates[c]:
                _standardize(some, scaling)
            elif not indicates[c]:
                _search(some, c, quantiles, below)
                _interpolate(some, c, quantiles, scaling, below, scratch, whole[2:])
            if regresses:
                _write_column(some, whole[0], m, filled[:n], c)
            else:
                _derive(some, scratch, whole, (c, m, n), starts, rows, entries)
        if regresses:
            for i in range(n):
                _regress(filled[i], fill, weights, apart)
            for c in range(len(sources)):
                for i in range(n):
                    x[i] = filled[i, c]
                m = _compact(x, n, values, whole[0])
                some = values[: _padded(m)]
                _derive(some, scratch, whole, (c, m, n), starts, rows, entries)


def _is_any_missing(items: np.ndarray) -> bool:
    missing = 0
    for i in range(items.shape[0]):
        for j in range(items.shape[1]):
            missing += np.isnan(items[i, j])
    return missing > 0


def _padded_size(count: int) -> int:
    """A size for one entry more, of which vectors leave no rest."""
    return (count // _VECTOR + 1) * _VECTOR


def _compact_column(x: np.ndarray, n: int, some: np.ndarray, places: np.ndarray) -> int:
    """Write a value that many items have, then those of the others; how many others there are.

    The value is the least or the greatest, as 0 is in counts. If fewer than a quarter of the items
    have it, or there are only some items, all count as others.

    Args:
        x: ``x[:n]`` are the values; those behind are written.
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
    if n < _FEW or 4 * max(at_low, at_high) < n:
        some[0] = x[0]
        for i in range(n):
            some[i + 1], places[i + 1] = x[i], i + 1
        m = np.uint32(n + 1)
    else:
        some[:1].view(np.int32)[0] = base
        for i in range(n):
            some[m], places[m] = x[i], i + 1
            m = np.uint32(m + np.uint32(bits[i] != base))
    for t in range(m, _padded(m - 1)):
        some[t] = some[0]
    return np.int64(m) - 1


def _regress_row(
    row: np.ndarray, means: np.ndarray, weights: np.ndarray, apart: np.ndarray
) -> None:
    """Replace the missing values of one item by regression, in an order that is the same for all.

    Sums are in float64 and rounded, as those of :class:`~rankgrad.data.transforms.Impute` are.
    """
    count, missing = len(weights), 0
    for k in range(count):
        absent = np.isnan(row[k])
        missing += absent
        apart[k] = 0.0 if absent else np.float64(row[k]) - np.float64(means[k])
    if missing == 0:
        return
    for j in range(count):
        if np.isnan(row[j]):
            row[j] = np.float32(np.float64(means[j]) + _dot(apart, weights[j]))


def _dot_product(one: np.ndarray, other: np.ndarray) -> float:
    total = 0.0
    for k in range(len(one)):
        total += one[k] * other[k]
    return total


def _derive_columns(
    values: np.ndarray,
    scratch: np.ndarray,
    whole: np.ndarray,
    column: tuple[int, int, int],
    starts: tuple[int, int, int],
    rows: np.ndarray,
    entries: Entries,
) -> None:
    """Write a transformed feature of one list, and what is derived of it within the list.

    ``values`` and ``whole[0]`` have what :func:`_compact_column` found, transformed; ``column`` the
    number of the feature, how many others there are, and how many items.
    """
    c, m, n = column
    of_ranks, of_ties, of_scores = starts
    ranks, ties, places = scratch[0], scratch[1], whole[0]
    mean, factor = _score(values[: m + 1], n)
    if m == n:
        values[0] = mean
    if of_ranks > 0 or of_ties > 0:
        _count(values, m, n, whole[1:])
        for t in range(len(values)):
            twice = np.float32(2 * whole[1, t] + whole[2, t])
            ranks[t] = (twice * _HALF / np.float32(n) - _HALF) * _ROOT
            others = np.float32(whole[2, t]) - _ONE
            ties[t] = (others + others) / (_ONE + others)
        if m == n:
            ranks[0] = ties[0] = _ZERO
    if len(entries.counts) > 0:
        factor = factor if of_scores > 0 else _ZERO
        entries.counts[c] = m + 1
        entries.scores[0, c], entries.scores[1, c] = factor, (values[0] - mean) * factor
        for t in range(1, m + 1):
            entries.places[c, t] = places[t]
        _subtract(values, m, entries.values[c, 0])
        if of_ranks > 0:
            _subtract(ranks, m, entries.values[c, of_ranks])
        if of_ties > 0:
            _subtract(ties, m, entries.values[c, of_ties])
        return
    _write_column(values, places, m, rows, c)
    if of_ranks > 0:
        _write_column(ranks, places, m, rows, of_ranks + c)
    if of_ties > 0:
        _write_column(ties, places, m, rows, of_ties + c)
    if of_scores > 0:
        for t in range(len(values)):
            values[t] = (values[t] - mean) * factor
        _write_column(values, places, m, rows, of_scores + c)


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
    mean, deviation, fill, _ = scaling
    for i in range(len(x)):
        value = (x[i] - mean) / deviation
        x[i] = fill if np.isnan(value) else value


def _search_column(x: np.ndarray, c: int, quantiles: Quantiles, below: np.ndarray) -> None:
    """How many knots are below each value.

    Values are compared with every pivot, which vectors do; between two pivots all values take a
    step of their binary searches together, so that none waits for memory.
    """
    n, knots, pivots = len(x), quantiles.knots, quantiles.pivots
    for i in range(n):
        below[i] = 0
    for k in range(0, quantiles.sizes[c] // _APART, 4):
        p, q, r, s = pivots[c, k], pivots[c, k + 1], pivots[c, k + 2], pivots[c, k + 3]
        for i in range(n):
            value = x[i]
            below[i] += (p < value) + (q < value) + (r < value) + (s < value)
    for i in range(n):
        below[i] *= np.int32(_APART)
    step = np.int32(_APART >> 1)
    while step > 0:
        for i in range(n):
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

    What tables hold is copied first, so that vectors can divide it.
    """
    knots, ends, scale = quantiles.knots, quantiles.ends, quantiles.scale[c]
    mean, deviation, fill, last = scaling
    for i in range(len(x)):
        at = np.uint32(below[i])
        scratch[0, i], scratch[1, i] = knots[c, at], knots[c, at + np.uint32(1)]
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
        found = (fraction - mean) / deviation
        x[i] = fill if np.isnan(found) else found


def _count_column(values: np.ndarray, m: int, n: int, counts: np.ndarray) -> None:
    """How many items of the list are below each value, and how many are as high, itself included.

    Args:
        values: ``values[0]`` is that of ``n - m`` items, ``values[1:m + 1]`` those of the others;
            what is behind is written.
        m: how many others there are.
        n: how many items.
        counts: ``counts[0]`` and ``counts[1]`` are written, ``counts[2]`` used.
    """
    base, below, tied = values[0], counts[0], counts[1]
    if m > _LONG:
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

    Four values at a time are compared with all. Items that as many are below are tied.
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
    if 2 * total == m * (m - 1):  # none are
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
    """The m and a by which :func:`rankgrad.models.in_list.list_scores` is ``a (x - m)``.

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
_padded: Any = compile_linked(_padded_size, **_OPTIONS)
_count_sorted: Any = compile_linked(_count_long_column, **_OPTIONS)
_count_pairs: Any = compile_linked(_count_pairs_of, **_OPTIONS)
_count: Any = compile_linked(_count_column, **_OPTIONS)
_score: Any = compile_linked(_score_column, fastmath={"reassoc"}, **_OPTIONS)
_search: Any = compile_linked(_search_column, **_OPTIONS)
_interpolate: Any = compile_linked(_interpolate_column, **_OPTIONS)
_standardize: Any = compile_linked(_standardize_column, **_OPTIONS)
_dot: Any = compile_linked(_dot_product, fastmath={"reassoc"}, **_OPTIONS)
_regress: Any = compile_linked(_regress_row, **_OPTIONS)
_subtract: Any = compile_linked(_subtract_first, **_OPTIONS)
_write_column: Any = compile_linked(_write_values, **_OPTIONS)
_is_missing: Any = compile_linked(_is_any_missing, **_OPTIONS)
_compact: Any = compile_linked(_compact_column, **_OPTIONS)
_derive: Any = compile_linked(_derive_columns, **_OPTIONS)
_prepare: Any = compile_linked(_prepare_lists, **_OPTIONS)
