"""Preparation: what a network takes in, computed by one compiled pass over flat lists.

Neither PyTorch nor onnxruntime has a sort of many short columns and a search that are as fast:
ranks in lists and quantiles, which the default model begins with, would take longer than its
layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
_KINDS = {"rank": 0, "score": 1}
_ROOT, _TENTH = np.float32(math.sqrt(12)), np.float32(0.1)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@dataclass(frozen=True)
class Preparation:
    """Transforms and columns derived within lists: items ``[N, f]`` to inputs ``[N, width]``.

    Attributes:
        sources: the raw feature of each transformed one, ``[g]``.
        indicates: whether a transformed feature is 1 where the raw one is missing and 0 elsewhere.
        knots: ``[g, 2^p - 1]`` and what belongs to them, or one row of nothing.
        mean, deviation, fill: of each transformed feature, ``[g]``.
        derived: kinds of columns within lists, in their order.
    """

    sources: np.ndarray
    indicates: np.ndarray
    knots: tuple[np.ndarray, ...]
    mean: np.ndarray
    deviation: np.ndarray
    fill: np.ndarray
    derived: np.ndarray

    @classmethod
    def of(cls, ranker: FittedRanker) -> Preparation | None:
        """That of a ranker; None where it has other transforms, or a network of another kind."""
        network, pipeline = ranker.network, ranker.transform
        if type(network) not in (MLPNet, TabMNet) or not isinstance(pipeline, transforms.Pipeline):
            return None
        kinds = [_KINDS.get(kind, -1) for kind in getattr(network, "in_list", ())]
        found = _Columns(np.arange(ranker.n_features))
        if -1 in kinds or not all(found.take(step) for step in pipeline.steps):
            return None
        return found.preparation(np.array(kinds, np.int64))

    @property
    def width(self) -> int:
        """The number of columns it gives."""
        return len(self.sources) * (1 + len(self.derived))

    def __call__(self, items: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The inputs of items, of which list b is the rows ``offsets[b]:offsets[b + 1]``.

        Raises:
            ValueError: a value is infinite.
        """
        if not math.isfinite(items.sum()):
            check_infinite(torch.from_numpy(np.array(items)))
        inputs = np.empty((len(items), self.width), np.float32)
        _prepare(
            items,
            offsets,
            (self.sources, self.indicates, self.mean, self.deviation, self.fill),
            self.knots,
            self.derived,
            inputs,
        )
        return inputs


class _Columns:
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

    def preparation(self, derived: np.ndarray) -> Preparation:
        """All of them."""
        count, more = len(self.sources), len(self.indicated)
        mean, deviation = self.scaling or (np.zeros(count), np.ones(count))
        fill = np.full(count, np.nan) if self.fill is None else self.fill
        knots = self.knots
        tables = (np.empty((0, 0), np.float32),) * 5 if knots is None else (
            *(knots.table, knots.below, knots.gap, knots.index, knots.middle),
        )  # fmt: skip
        sizes = np.empty(0, np.int64) if knots is None else knots.sizes()
        pad = np.zeros(more)
        return Preparation(
            np.concatenate([self.sources, self.sources[self.indicated]]),
            np.arange(count + more) >= count,
            (*tables, np.array([0 if knots is None else knots.last], np.float32), sizes),
            _float32(mean, pad),
            _float32(deviation, pad + 1),
            _float32(fill, pad),
            derived,
        )


def _array(tensor: Any) -> np.ndarray:
    found: np.ndarray = tensor.detach().cpu().numpy().astype(np.float32)
    return found


def _float32(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts).astype(np.float32)


def _prepare_lists(
    items: np.ndarray,
    offsets: np.ndarray,
    columns: tuple[np.ndarray, ...],
    knots: tuple[np.ndarray, ...],
    derived: np.ndarray,
    inputs: np.ndarray,
) -> None:
    """All columns of all lists; one transformed feature of one list at a time."""
    sources, indicates, mean, deviation, fill = columns
    count, max_length = len(sources), 0
    for b in range(len(offsets) - 1):
        max_length = max(max_length, offsets[b + 1] - offsets[b])
    all_values, added = np.empty(max_length, np.float32), np.empty(max_length, np.float32)
    counts = np.empty(max_length, np.int32)
    for b in range(len(offsets) - 1):
        start, n = offsets[b], offsets[b + 1] - offsets[b]
        values = all_values[:n]
        for c in range(count):
            for i in range(n):
                values[i] = items[start + i, sources[c]]
            if indicates[c]:
                for i in range(n):
                    values[i] = _ONE if np.isnan(values[i]) else _ZERO
            else:
                if len(knots[0]) > 0:
                    _fractions(values, c, knots, counts)
                for i in range(n):
                    value = (values[i] - mean[c]) / deviation[c]
                    values[i] = fill[c] if np.isnan(value) else value
            for i in range(n):
                inputs[start + i, c] = values[i]
            for at in range(len(derived)):
                if derived[at] == 0:
                    _ranks(values, counts, added)
                else:
                    _scores(values, added)
                column = (at + 1) * count + c
                for i in range(n):
                    inputs[start + i, column] = added[i]


def _fraction_column(
    values: np.ndarray, c: int, knots: tuple[np.ndarray, ...], places: np.ndarray
) -> None:
    """Fractions of the values of one feature, in place: the search and sums of the ONNX form.

    All values take a step of their searches together, so that none waits for memory.
    """
    table, below, gap, index, middle, last, sizes = knots
    row, n = table[c], len(values)
    for i in range(n):
        places[i] = 0
    step = np.int32(sizes[c] >> 1)
    while step > 0:
        for i in range(n):
            next_ = np.int32(places[i] + step)
            places[i] = next_ if row[np.uint32(next_ - 1)] < values[i] else places[i]
        step = np.int32(step >> 1)
    for i in range(n):
        x, place = values[i], places[i]
        if place < len(row) and row[place] == x:
            values[i] = middle[c, place]
        else:
            values[i] = (index[c, place] + (x - below[c, place]) / gap[c, place]) / last[0]


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


def _score_column(values: np.ndarray, scores: np.ndarray) -> None:
    """:func:`rankgrad.models.in_list.list_scores` of one feature of one list."""
    n, total, squares = len(values), 0.0, 0.0
    for i in range(n):
        total += values[i]
    mean = np.float32(total / max(n, 1))
    for i in range(n):
        squares += (values[i] - mean) * (values[i] - mean)
    deviation = np.float32(math.sqrt(squares / max(n, 1)))
    for i in range(n):
        scores[i] = (values[i] - mean) / (deviation + _TENTH)


_fractions: Any = compile_cached(_fraction_column, nogil=True)
_sorted_ranks: Any = compile_cached(_rank_long_column, nogil=True)
_ranks: Any = compile_cached(_rank_column, nogil=True)
_scores: Any = compile_cached(_score_column, nogil=True, fastmath={"reassoc"})
_prepare: Any = compile_cached(_prepare_lists, nogil=True)
