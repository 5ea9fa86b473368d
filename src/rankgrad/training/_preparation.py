"""Preparation: what a network takes in, computed by one compiled pass over flat lists.

Neither PyTorch nor onnxruntime has a sort of many short columns and a search that are as fast:
ranks in lists and quantiles, which the default model begins with, would take longer than its
layers. The pass is in :mod:`rankgrad.data._preparation_kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from rankgrad.data import transforms
from rankgrad.data._blocks import check_infinite
from rankgrad.data._preparation_kernel import (
    NO_ENTRIES,
    Buffers,
    Columns,
    Entries,
    Quantiles,
    padded_size,
    prepare,
)
from rankgrad.data._quantile_kernel import Knots
from rankgrad.models.mlp import MLPNet
from rankgrad.models.tabm import TabMNet

if TYPE_CHECKING:
    from rankgrad.training._fitted import FittedRanker


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
        self._compute(items, offsets, self.in_list, self.n_columns, inputs, NO_ENTRIES)
        return inputs

    def entries(self, items: np.ndarray) -> Entries:
        """The inputs of one list, by column and without what most of its items have."""
        kinds = tuple(kind for kind in self.in_list if kind != "score")
        count, size = self.n_columns, padded_size(len(items))
        found = Entries(
            np.empty((count, size), np.int32),
            np.empty((count, 1 + len(kinds), size), np.float32),
            np.empty(count, np.int64),
            np.empty((2, count), np.float32),
        )
        offsets, inputs = np.array([0, len(items)]), np.empty((0, 0), np.float32)
        self._compute(items, offsets, (*kinds, "score"), 1, inputs, found)
        return found

    def _compute(
        self,
        items: np.ndarray,
        offsets: np.ndarray,
        kinds: tuple[str, ...],
        spacing: int,
        inputs: np.ndarray,
        entries: Entries,
    ) -> None:
        """Run the pass, which writes columns of the kinds, so many apart."""

        def start(kind: str) -> int:
            return (1 + kinds.index(kind)) * spacing if kind in kinds else 0

        starts = start("rank"), start("ties"), start("score")
        buffers = Buffers.of(self.columns, int((offsets[1:] - offsets[:-1]).max(initial=0)))
        tables = self.columns, self.quantiles
        prepare(items, offsets, tables, starts, inputs, entries, buffers)


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
        unscaled = self.scaling is None and self.fill is None
        first = unscaled and self.knots is None
        if isinstance(step, transforms.DropConstant) and first:
            self.sources = self.sources[step.kept.cpu().numpy()]
        elif isinstance(step, transforms.Quantile) and first and step.output == "uniform":
            self.knots = Knots(step.table.cpu().numpy())
        elif isinstance(step, transforms.Standardize) and unscaled:
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
