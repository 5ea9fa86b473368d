"""Preparation: what a network takes in, computed by one compiled pass over flat lists.

Neither PyTorch nor onnxruntime has a sort of many short columns and a search that are as fast:
ranks in lists and quantiles, which the default model begins with, would take longer than its
layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rankgrad.compilation import compile_cached
from rankgrad.data import transforms
from rankgrad.data.blocks import check_infinite
from rankgrad.data.quantile_kernel import Knots
from rankgrad.models.mlp import MLPNet
from rankgrad.models.tabm import TabMNet

if TYPE_CHECKING:
    from rankgrad.training.fitted import FittedRanker

_SORTED = 1024  # longer lists are sorted, not compared pair by pair
_SPACING = 32  # knots from one pivot to the next
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

    Attributes:
        knots: ``[g, 1 + 2^p]``: 0, the knots, and infinity; none if there are no quantiles.
        sizes: ``[g]``, a power of 2 above the number of a feature's knots.
        pivots: every 32nd knot.
        cells: ``[g, 2^p, 2]``: ``index`` and ``middle`` of
            :class:`~rankgrad.data.quantile_kernel.Knots`.
        last: ``[1]``, that of the knots.
        scale: ``[g]``, that of the knots.
    """

    knots: np.ndarray
    sizes: np.ndarray
    pivots: np.ndarray
    cells: np.ndarray
    last: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, knots: Knots) -> Quantiles:
        """Those of a transform."""
        features, size = knots.index.shape
        width = 1 + max(int(size), 4 * _SPACING)  # 4 pivots at least
        table = np.full((features, width), np.inf, np.float32)
        table[:, 0], table[:, 1:size] = 0, knots.table
        pivots = table[:, _SPACING::_SPACING].copy()
        cells = np.stack([knots.index, knots.middle], -1)
        last, scale = np.array([knots.last], np.float32), knots.scale[:, 0].copy()
        return cls(table, knots.sizes(), pivots, cells, last, scale)

    @classmethod
    def none(cls) -> Quantiles:
        """Those of a ranker without."""
        empty = np.empty((0, 0), np.float32)
        one = np.ones(1, np.float32)
        return cls(empty, np.empty(0, np.int64), empty, empty[..., None], one, one)


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

    @property
    def folds(self) -> bool:
        """Whether :meth:`folded` can be used: values are within some deviations of 0."""
        return "score" in self.in_list and len(self.quantiles.knots) > 0

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
        return self._computed(items, offsets, self.in_list)[0]

    def folded(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inputs of one list but for scores within it, and what these are.

        Returns:
            Inputs ``[n, width - g]``; and ``[2, g]``, the factor and the summand that make of a
            feature its score in the list.
        """
        return self._computed(items, np.array([0, len(items)]), self._beside_scores)

    @cached_property
    def _beside_scores(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.in_list if kind != "score")

    def _computed(
        self, items: np.ndarray, offsets: np.ndarray, kinds: tuple[str, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        count = self.n_columns
        inputs = np.empty((len(items), count * (1 + len(kinds))), np.float32)
        affine = np.empty((2, count), np.float32)
        places = {kind: count * (1 + at) for at, kind in enumerate(kinds)}
        folded = 0 if "score" in self.in_list else -1
        derived = places.get("rank", -1), places.get("score", folded), places.get("ties", -1)
        _prepare(items, offsets, self.columns, self.quantiles, derived, inputs, affine)
        return inputs, affine


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
        follows = self.knots is not None or self.scaling is not None or self.fill is not None
        if isinstance(step, transforms.DropConstant) and not follows:
            self.sources = self.sources[step.kept.cpu().numpy()]
        elif isinstance(step, transforms.Quantile) and not follows and step.output == "uniform":
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
    derived: tuple[int, int, int],
    inputs: np.ndarray,
    affine: np.ndarray,
) -> None:
    """All columns of all lists; one transformed feature of one list at a time.

    ``derived`` has the first columns of ``inputs`` for ranks, scores and ties: -1 where there are
    none; 0 for scores of which only ``affine`` is computed.
    """
    max_length = 0
    for b in range(len(offsets) - 1):
        max_length = max(max_length, offsets[b + 1] - offsets[b])
    numbers, scratch = np.empty((2, max_length), np.float32), np.empty((4, max_length), np.float32)
    counts = np.empty((3, max_length), np.int32)
    sources, indicates, mean, deviation, fill, weights = columns
    regresses = len(weights) > 0
    centered = np.empty(len(weights), np.float64)
    for b in range(len(offsets) - 1):
        start, n = offsets[b], offsets[b + 1] - offsets[b]
        x, values, below = numbers[0, :n], numbers[1, :n], counts[0, :n]
        rows = inputs[start : start + n]
        for c in range(len(sources)):
            for i in range(n):
                x[i] = items[start + i, sources[c]] + _ZERO  # which makes -0 equal 0
            filled = np.float32(np.nan) if regresses else fill[c]
            scaling = mean[c], deviation[c], filled, quantiles.last[0]
            if indicates[c]:
                for i in range(n):
                    values[i] = _ONE if np.isnan(x[i]) else _ZERO
            elif len(quantiles.knots) == 0:
                _standardize(x, scaling, values)
            else:
                _search(x, c, quantiles, below)
                _interpolate(x, c, quantiles, scaling, below, scratch, values)
            if regresses:
                for i in range(n):
                    rows[i, c] = values[i]
            else:
                _derive(values, c, derived, counts, scratch, rows, affine)
        if regresses:
            for i in range(n):
                _regress(rows[i], fill, weights, centered)
            for c in range(len(sources)):
                for i in range(n):
                    values[i] = rows[i, c]
                _derive(values, c, derived, counts, scratch, rows, affine)


def _regress_row(
    row: np.ndarray, means: np.ndarray, weights: np.ndarray, centered: np.ndarray
) -> None:
    """Replace the missing values of one item by regression, in an order that is the same for all.

    Sums are in float64 and rounded, as those of :class:`~rankgrad.data.transforms.Impute` are.
    """
    count, missing = len(weights), 0
    for k in range(count):
        absent = np.isnan(row[k])
        missing += absent
        centered[k] = 0.0 if absent else np.float64(row[k]) - np.float64(means[k])
    if missing == 0:
        return
    for j in range(count):
        if np.isnan(row[j]):
            row[j] = np.float32(np.float64(means[j]) + _dot(centered, weights[j]))


def _dot_product(one: np.ndarray, other: np.ndarray) -> float:
    total = 0.0
    for k in range(len(one)):
        total += one[k] * other[k]
    return total


def _derive_columns(
    values: np.ndarray,
    c: int,
    derived: tuple[int, int, int],
    counts: np.ndarray,
    scratch: np.ndarray,
    inputs: np.ndarray,
    affine: np.ndarray,
) -> None:
    """Write a transformed feature of one list, and the columns derived from it within the list."""
    n = len(values)
    rank_columns, score_columns, tie_columns = derived
    mean, factor = _ZERO, _ONE
    if rank_columns > 0 or tie_columns > 0:
        _count(values, counts)
        for i in range(n):
            twice = np.float32(2 * counts[0, i] + counts[1, i])
            scratch[0, i] = (twice * _HALF / np.float32(n) - _HALF) * _SQRT12
    if tie_columns > 0:
        for i in range(n):
            others = np.float32(counts[1, i]) - _ONE
            scratch[1, i] = (others + others) / (_ONE + others)
    if score_columns >= 0:
        mean, factor = _score(values)
        affine[0, c], affine[1, c] = factor, -mean * factor
    for i in range(n):
        inputs[i, c] = values[i]
        if rank_columns > 0:
            inputs[i, rank_columns + c] = scratch[0, i]
        if score_columns > 0:
            inputs[i, score_columns + c] = (values[i] - mean) * factor
        if tie_columns > 0:
            inputs[i, tie_columns + c] = scratch[1, i]


def _standardize_column(x: np.ndarray, scaling: tuple[np.float32, ...], values: np.ndarray) -> None:
    mean, deviation, fill, _ = scaling
    for i in range(len(x)):
        value = (x[i] - mean) / deviation
        values[i] = fill if np.isnan(value) else value


def _search_column(x: np.ndarray, c: int, quantiles: Quantiles, below: np.ndarray) -> None:
    """How many knots are below each value.

    Values are compared with every pivot, in vector instructions; between two pivots, the binary
    searches of all values take each step together, so that none waits for memory.
    """
    n, knots, pivots = len(x), quantiles.knots, quantiles.pivots
    for i in range(n):
        below[i] = 0
    for k in range(0, quantiles.sizes[c] // _SPACING, 4):
        p, q, r, s = pivots[c, k], pivots[c, k + 1], pivots[c, k + 2], pivots[c, k + 3]
        for i in range(n):
            value = x[i]
            below[i] += (p < value) + (q < value) + (r < value) + (s < value)
    for i in range(n):
        below[i] *= np.int32(_SPACING)
    step = np.int32(_SPACING >> 1)
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
    values: np.ndarray,
) -> None:
    """The quantiles of one feature of one list, standardized.

    The entries of the tables are copied first, so that the division is vectorized.
    """
    knots, cells, scale = quantiles.knots, quantiles.cells, quantiles.scale[c]
    mean, deviation, fill, last = scaling
    for i in range(len(x)):
        at = np.uint32(below[i])
        scratch[0, i], scratch[1, i] = knots[c, at], knots[c, at + np.uint32(1)]
        scratch[2, i], scratch[3, i] = cells[c, at, 0], cells[c, at, 1]
    if scale < _ONE:
        for i in range(len(x)):
            x[i] *= scale
            scratch[0, i] *= scale
            scratch[1, i] *= scale
    for i in range(len(x)):
        value, low, high = x[i], scratch[0, i], scratch[1, i]
        part = (value - low) / (high - low) if below[i] > 0 else value - value
        fraction = scratch[3, i] if high == value else (scratch[2, i] + part) / last
        found = (fraction - mean) / deviation
        values[i] = fill if np.isnan(found) else found


def _count_column(values: np.ndarray, counts: np.ndarray) -> None:
    """How many items of the list are below each, and how many are as high, itself included.

    Items with the same number of items below them are tied. In short lists four items at a time are
    compared with all.
    """
    n, below, tied, ends = len(values), counts[0], counts[1], counts[2]
    if n > _SORTED:
        _count_sorted(values, below, tied)
        return
    for i in range(n):
        below[i] = 0
    even = n - n % 4
    for j in range(0, even, 4):
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        for i in range(n):
            value = values[i]
            below[i] += (a < value) + (b < value) + (c < value) + (d < value)
    for j in range(even, n):
        a = values[j]
        for i in range(n):
            below[i] += a < values[i]
    total = 0
    for i in range(n):
        total += below[i]
        tied[i] = 1
    if 2 * total == n * (n - 1):  # there are no ties
        return
    for i in range(n):
        ends[i] = 0
    for i in range(n):
        ends[np.uint32(below[i])] = 1
    end = np.int32(n)
    for place in range(n - 1, -1, -1):
        begins = ends[place]
        ends[place] = end - place
        end = np.int32(place) if begins else end
    for i in range(n):
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


def _score_column(values: np.ndarray) -> tuple[np.float32, np.float32]:
    """The m and a by which :func:`rankgrad.models.in_list.list_scores` is ``a (x - m)``."""
    n, total, squares = len(values), 0.0, 0.0
    for i in range(n):
        total += values[i]
    mean = np.float32(total / max(n, 1))
    for i in range(n):
        squares += (values[i] - mean) * (values[i] - mean)
    return mean, _ONE / (np.float32(math.sqrt(squares / max(n, 1))) + _TENTH)


#: Without the error model a division raises where Python's does, and its loop is not vectorized.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_count_sorted: Any = compile_cached(_count_long_column, **_OPTIONS)
_count: Any = compile_cached(_count_column, **_OPTIONS)
_score: Any = compile_cached(_score_column, fastmath={"reassoc"}, **_OPTIONS)
_search: Any = compile_cached(_search_column, **_OPTIONS)
_interpolate: Any = compile_cached(_interpolate_column, **_OPTIONS)
_standardize: Any = compile_cached(_standardize_column, **_OPTIONS)
_dot: Any = compile_cached(_dot_product, fastmath={"reassoc"}, **_OPTIONS)
_regress: Any = compile_cached(_regress_row, **_OPTIONS)
_derive: Any = compile_cached(_derive_columns, **_OPTIONS)
_prepare: Any = compile_cached(_prepare_lists, **_OPTIONS)
