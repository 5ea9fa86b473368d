"""Preparation: what a network takes in, computed by one compiled pass over flat lists.

Neither PyTorch nor onnxruntime has a sort of many short columns and a search that are as fast:
ranks in lists and quantiles, which the default model begins with, would take longer than its
layers. Columns are computed one after the other, so the result is transposed: ``[width, N]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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

_LONG = 256  # items from which a list is sorted, not compared pair by pair
_FEW_KNOTS = 128  # features of at most this many have few distinct values in a list, as counts do
_FEW_VALUES = 24  # distinct values that are taken one by one, at most
_ROOT, _TENTH = np.float32(math.sqrt(12)), np.float32(0.1)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LAST_KEY, _SIGNLESS = np.int32(2**31 - 1), np.int32(2**31 - 1)


class Columns(NamedTuple):
    """The transformed features, ``[g]`` each.

    Attributes:
        sources: the raw feature of each.
        indicates: whether it is 1 where the raw one is missing and 0 elsewhere.
        mean, deviation: by which it is standardized.
        fill: in place of a missing value.
    """

    sources: np.ndarray
    indicates: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    fill: np.ndarray


class Quantiles(NamedTuple):
    """Quantiles, as a table by the number of knots below a value.

    Attributes:
        knots: ``[g, 2^p - 1]``; none if there are no quantiles.
        sizes: ``[g]``, a power of 2 above the number of a feature's knots.
        cells: ``[g, 2^p, 5]``, beside each other in memory: the next knot, the fraction at this
            knot, and ``below``, ``gap`` and ``index`` of
            :class:`~rankgrad.export.transforms.Knots`.
        last: ``[1]``, that of the knots.
    """

    knots: np.ndarray
    sizes: np.ndarray
    cells: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, knots: Knots) -> Quantiles:
        """Those of a transform."""
        cells = np.full((*knots.index.shape, 5), np.nan, np.float32)
        cells[:, :-1, 0] = knots.table
        for at, part in enumerate((knots.middle, knots.below, knots.gap, knots.index)):
            cells[..., 1 + at] = part
        return cls(knots.table, knots.sizes(), cells, np.array([knots.last], np.float32))

    @classmethod
    def none(cls) -> Quantiles:
        """Those of a ranker without."""
        empty = np.empty((0, 0), np.float32)
        return cls(empty, np.empty(0, np.int64), empty[..., None], np.ones(1, np.float32))


@dataclass(frozen=True)
class Preparation:
    """Transforms and columns derived within lists: items ``[N, f]`` to inputs ``[width, N]``.

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
        return self.in_list == ("rank", "score") and len(self.quantiles.knots) > 0

    def __call__(self, items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The inputs of items, of which list b is the rows ``offsets[b]:offsets[b + 1]``.

        Raises:
            ValueError: a value is infinite.
        """
        if not math.isfinite(items.sum()):
            check_infinite(torch.from_numpy(np.array(items)))
        inputs = np.empty((self.width, len(items)), np.float32)
        places = {kind: self.n_columns * (1 + at) for at, kind in enumerate(self.in_list)}
        affine = np.empty((2, self.n_columns), np.float32)
        derived = places.get("rank", -1), places.get("score", -1), places.get("ties", -1)
        _prepare(items, offsets, self.columns, self.quantiles, derived, inputs, affine)
        return inputs

    def folded(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inputs of one list but for scores within it, and what these are.

        Returns:
            Features and ranks ``[2 g, n]``; and ``[2, g]``, the factor and the summand that make of
            a feature its score in the list.
        """
        inputs = np.empty((2 * self.n_columns, len(items)), np.float32)
        affine = np.empty((2, self.n_columns), np.float32)
        derived = self.n_columns, 0, -1
        offsets = np.array([0, len(items)])
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
        self.indicated = np.empty(0, np.int64)

    def take(self, step: nn.Module) -> bool:
        """Take in a transform; whether that is possible."""
        late = self.knots is not None or self.scaling is not None or self.fill is not None
        if isinstance(step, transforms.DropConstant) and not late:
            self.sources = self.sources[step.kept.numpy()]
        elif isinstance(step, transforms.Quantile) and not late and step.output == "uniform":
            self.knots = Knots.of(step.table.cpu().numpy())
        elif (
            isinstance(step, transforms.Standardize) and self.scaling is None and self.fill is None
        ):
            self.scaling = _array(step.mean), _array(step.deviation)
        elif isinstance(step, transforms.Impute) and self.fill is None and not len(step.weights):
            self.fill, self.indicated = _array(step.values), step.indicated.numpy()
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

    ``derived`` has the rows of ``inputs`` from which ranks, scores and ties are: -1 if they are
    not wanted; 0 for scores of which only ``affine`` is wanted.
    """
    max_length = 0
    for b in range(len(offsets) - 1):
        max_length = max(max_length, offsets[b + 1] - offsets[b])
    raw, counts = np.empty(max_length, np.float32), np.empty(max_length, np.int32)
    sources, indicates, mean, deviation, fill = columns
    knots, sizes, cells, last = quantiles
    for b in range(len(offsets) - 1):
        start, stop = offsets[b], offsets[b + 1]
        x, places = raw[: stop - start], counts[: stop - start]
        for c in range(len(sources)):
            for i in range(stop - start):
                x[i] = items[start + i, sources[c]] + _ZERO  # which makes -0 equal 0
            values = inputs[c, start:stop]
            ranks = inputs[max(derived[0], 0) + c, start:stop]
            scaling = mean[c], deviation[c], fill[c], last[0]
            ranked = False
            if indicates[c]:
                for i in range(stop - start):
                    values[i] = _ONE if np.isnan(x[i]) else _ZERO
            elif len(knots) == 0:
                _standardize(x, scaling, values)
            else:
                table = knots[c], cells[c]
                if derived[0] > 0 and sizes[c] <= _FEW_KNOTS:
                    ranked = _few(x, table, sizes[c], scaling, places, values, ranks)
                if not ranked:
                    _transform(x, table, sizes[c], scaling, places, values)
            if derived[0] > 0 and not ranked:
                _ranks(values, places, ranks)
            if derived[1] >= 0:
                _score(values, affine[:, c], inputs[derived[1] + c, start:stop], derived[1] > 0)
            if derived[2] > 0:
                _ties(values, inputs[derived[2] + c, start:stop])


def _standardize_column(x: np.ndarray, scaling: tuple[np.float32, ...], values: np.ndarray) -> None:
    mean, deviation, fill, _ = scaling
    for i in range(len(x)):
        value = (x[i] - mean) / deviation
        values[i] = fill if np.isnan(value) else value


def _transform_column(
    x: np.ndarray,
    table: tuple[np.ndarray, np.ndarray],
    size: int,
    scaling: tuple[np.float32, ...],
    places: np.ndarray,
    values: np.ndarray,
) -> None:
    """The quantiles of one feature of one list, standardized.

    All values take a step of their searches together, so that none waits for memory.
    """
    knots, cell = table
    mean, deviation, fill, last = scaling
    n = len(x)
    for i in range(n):
        places[i] = 0
    step = np.int32(size >> 1)
    while step > 0:
        for i in range(n):
            next_ = np.int32(places[i] + step)
            places[i] = next_ if knots[np.uint32(next_ - 1)] < x[i] else places[i]
        step = np.int32(step >> 1)
    for i in range(n):
        at, value = np.uint32(places[i]), x[i]
        between = (cell[at, 4] + (value - cell[at, 2]) / cell[at, 3]) / last
        found = ((cell[at, 1] if cell[at, 0] == value else between) - mean) / deviation
        values[i] = fill if np.isnan(found) else found


def _transform_few(
    x: np.ndarray,
    table: tuple[np.ndarray, np.ndarray],
    size: int,
    scaling: tuple[np.float32, ...],
    keys: np.ndarray,
    values: np.ndarray,
    ranks: np.ndarray,
) -> bool:
    """:func:`_transform_column` and ranks of a feature that has few distinct values in the list.

    These are taken from the smallest on, as integers of the same order. False if there are many,
    one is missing, or two of them become one.
    """
    n, bits, next_ = len(x), x.view(np.int32), _LAST_KEY
    for i in range(n):
        keys[i] = bits[i] ^ ((bits[i] >> np.int32(31)) & _SIGNLESS)
        next_ = min(next_, keys[i])
    knots, cell = table
    mean, deviation, _, last = scaling
    done, before, one = np.int32(0), np.float32(-np.inf), np.empty(1, np.int32)
    for _ in range(_FEW_VALUES):
        key, next_, count = next_, _LAST_KEY, np.int32(0)
        for i in range(n):
            count += np.int32(keys[i] == key)
            next_ = min(next_, keys[i] if keys[i] > key else _LAST_KEY)
        one[0] = key ^ ((key >> np.int32(31)) & _SIGNLESS)
        value, at, step = one.view(np.float32)[0], 0, size >> 1
        while step > 0:
            at += step if knots[at + step - 1] < value else 0
            step >>= 1
        between = (cell[at, 4] + (value - cell[at, 2]) / cell[at, 3]) / last
        found = ((cell[at, 1] if cell[at, 0] == value else between) - mean) / deviation
        if not found > before:
            return False
        rank = (np.float32(2 * done + count) * _HALF / np.float32(n) - _HALF) * _ROOT
        for i in range(n):
            values[i] = found if keys[i] == key else values[i]
            ranks[i] = rank if keys[i] == key else ranks[i]
        done, before = done + count, found
        if next_ == _LAST_KEY:
            return bool(done == n)
    return False


def _rank_column(values: np.ndarray, twice: np.ndarray, ranks: np.ndarray) -> None:
    """:func:`rankgrad.models.in_list.list_ranks` of one feature of one list.

    ``twice`` counts items below and items not above. Four items at a time are compared with all.
    """
    n = len(values)
    if n > _LONG:
        _sorted_ranks(values, ranks)
        return
    for i in range(n):
        twice[i] = 0
    even = n - n % 4
    for j in range(0, even, 4):
        a, b, c, d = values[j], values[j + 1], values[j + 2], values[j + 3]
        for i in range(n):
            x = values[i]
            twice[i] += (
                (a < x) + (a <= x) + (b < x) + (b <= x) + (c < x) + (c <= x) + (d < x) + (d <= x)
            )
    for j in range(even, n):
        a = values[j]
        for i in range(n):
            twice[i] += (a < values[i]) + (a <= values[i])
    for i in range(n):
        ranks[i] = (np.float32(twice[i]) * _HALF / np.float32(n) - _HALF) * _ROOT


def _rank_long_column(values: np.ndarray, ranks: np.ndarray) -> None:
    n = len(values)
    order = np.argsort(values)
    first = 0
    while first < n:
        end = first + 1
        while end < n and values[order[end]] == values[order[first]]:
            end += 1
        fraction = np.float32(first + end) * _HALF / np.float32(n)
        for place in range(first, end):
            ranks[order[place]] = (fraction - _HALF) * _ROOT
        first = end


def _score_column(values: np.ndarray, affine: np.ndarray, scores: np.ndarray, wanted: bool) -> None:
    """:func:`rankgrad.models.in_list.list_scores` of one feature of one list."""
    n, total, squares = len(values), 0.0, 0.0
    for i in range(n):
        total += values[i]
    mean = np.float32(total / max(n, 1))
    for i in range(n):
        squares += (values[i] - mean) * (values[i] - mean)
    factor = _ONE / (np.float32(math.sqrt(squares / max(n, 1))) + _TENTH)
    affine[0], affine[1] = factor, -mean * factor
    if wanted:
        for i in range(n):
            scores[i] = (values[i] - mean) * factor


def _tie_column(values: np.ndarray, ties: np.ndarray) -> None:
    """:func:`rankgrad.models.in_list.list_ties` of one feature of one list."""
    n = len(values)
    order = np.argsort(values)
    first = 0
    while first < n:
        end = first + 1
        while end < n and values[order[end]] == values[order[first]]:
            end += 1
        others = np.float32(end - first - 1)
        for place in range(first, end):
            ties[order[place]] = (others + others) / (_ONE + others)
        first = end


#: Without the error model a division raises where Python's does, and its loop is not vectorized.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_sorted_ranks: Any = compile_cached(_rank_long_column, **_OPTIONS)
_ranks: Any = compile_cached(_rank_column, **_OPTIONS)
_ties: Any = compile_cached(_tie_column, **_OPTIONS)
_score: Any = compile_cached(_score_column, fastmath={"reassoc"}, **_OPTIONS)
_transform: Any = compile_cached(_transform_column, **_OPTIONS)
_standardize: Any = compile_cached(_standardize_column, **_OPTIONS)
_few: Any = compile_cached(_transform_few, **_OPTIONS)
_prepare: Any = compile_cached(_prepare_lists, **_OPTIONS)
