"""Preparation: the inputs of a network, computed from raw features by one compiled pass.

The default model begins with quantiles and with ranks within lists. In PyTorch or onnxruntime these
would take longer than the network's layers, since neither has a fast sort of many short columns or
a fast search. The pass is in :mod:`rankgrad.data._preparation_kernel`; this module translates a
ranker's transforms to the tables that it takes. :class:`~rankgrad.training.FittedRanker` uses it in
prediction on a CPU, and so does serving.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from rankgrad.data import transforms
from rankgrad.data._blocks import check_not_infinite
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
    """Transforms and columns derived within lists: raw items ``[N, f]`` to inputs ``[N, width]``.

    Attributes:
        columns: how each of the ``g`` transformed features is computed.
        quantiles: the tables of the quantile transform.
        in_list: the kinds of columns derived within lists, in their order.
        n_functions: the number of functions of each feature that the network computes itself.
    """

    columns: Columns
    quantiles: Quantiles
    in_list: tuple[str, ...]
    n_functions: int

    @classmethod
    def of(cls, ranker: FittedRanker) -> Preparation | None:
        """The preparation of a ranker; None if the pass cannot compute its network's inputs."""
        network, pipeline = ranker.network, ranker.transform
        if type(network) not in (MLPNet, TabMNet) or not isinstance(pipeline, transforms.Pipeline):
            return None
        tables = _tables(ranker.n_features, pipeline.steps)
        if tables is None:
            return None
        in_list, encoding = getattr(network, "in_list", ()), getattr(network, "encoding", None)
        n_functions = 0 if encoding is None else encoding.width // encoding.n_features
        return cls(*tables, tuple(in_list), n_functions)

    @property
    def n_columns(self) -> int:
        """The number of transformed features, ``g``."""
        return len(self.columns.sources)

    @property
    def width(self) -> int:
        """The number of columns of the inputs."""
        return self.n_columns * (1 + len(self.in_list))

    def __call__(self, items: np.ndarray, offsets: np.ndarray, first: int = 0) -> np.ndarray:
        """The inputs ``[N, width]`` of items.

        Args:
            items: raw features ``[N, f]``.
            offsets: ``[B + 1]``: list b is the rows ``offsets[b]:offsets[b + 1]``.
            first: the number of the first row, for the error that names a row.

        Raises:
            ValueError: a value is infinite.
        """
        if np.isinf(items).any():
            check_not_infinite(torch.from_numpy(np.array(items)), first)
        inputs = np.empty((len(items), self.width), np.float32)
        self._compute(items, offsets, self.in_list, self.n_columns, inputs, NO_ENTRIES)
        return inputs

    def entries(self, items: np.ndarray) -> Entries:
        """The inputs of one list of items ``[n, f]``, in the sparse layout of :class:`Entries`.

        The functions of an encoding are not written, but have their place.
        """
        kinds = tuple(kind for kind in self.in_list if kind != "score")
        count, size = self.n_columns, padded_size(len(items))
        entries = Entries(
            np.empty((count, size), np.int32),
            np.empty((count, 1 + len(kinds) + self.n_functions, size), np.float32),
            np.empty(count, np.int64),
            np.empty((2, count), np.float32),
        )
        offsets, inputs = np.array([0, len(items)]), np.empty((0, 0), np.float32)
        self._compute(items, offsets, (*kinds, "score"), 1, inputs, entries)
        return entries

    def _compute(
        self,
        items: np.ndarray,
        offsets: np.ndarray,
        kinds: tuple[str, ...],
        spacing: int,
        inputs: np.ndarray,
        entries: Entries,
    ) -> None:
        """Run the pass, which writes to ``inputs`` or to ``entries``.

        Args:
            items: raw features ``[N, f]``.
            offsets: ``[B + 1]``.
            kinds: the kinds of derived columns, in their order.
            spacing: the number of columns between the first columns of two kinds.
            inputs: ``[N, width]``, written; empty for entries.
            entries: the sparse layout, written; ``NO_ENTRIES`` for inputs.
        """

        def start(kind: str) -> int:
            return (1 + kinds.index(kind)) * spacing if kind in kinds else 0

        starts = start("rank"), start("ties"), start("score")
        buffers = Buffers.of(self.columns, int((offsets[1:] - offsets[:-1]).max(initial=0)))
        tables = self.columns, self.quantiles
        prepare(items, offsets, tables, starts, inputs, entries, buffers)


def _tables(n_features: int, steps: Iterable[nn.Module]) -> tuple[Columns, Quantiles] | None:
    """The tables of the pass that applies these transforms; None if it cannot apply them.

    They must come in the order of the pass: drop features, quantiles, standardization, missing
    values replaced. ``g`` features are not dropped.
    """
    sources = np.arange(n_features)  # [g], the raw feature of each column
    quantiles = scaling = fill = None  # scaling: mean and deviation, [g] both; fill: [g]
    # [g, g], by which the other features predict a missing value (see transforms.Impute), or empty.
    weights = np.empty((0, 0))
    indicated = np.empty(0, np.int64)  # the columns that get an indicator of missing values
    for step in steps:
        unscaled = scaling is None and fill is None
        first = unscaled and quantiles is None
        if isinstance(step, transforms.DropConstant) and first:
            sources = sources[step.kept.cpu().numpy()]
        elif isinstance(step, transforms.Quantile) and first and step.output == "uniform":
            quantiles = Quantiles.of(Knots(step.table.cpu().numpy()))
        elif isinstance(step, transforms.Standardize) and unscaled:
            scaling = _array(step.mean), _array(step.deviation)
        elif isinstance(step, transforms.Impute) and fill is None:
            fill, indicated = _array(step.values), step.indicated.cpu().numpy()
            if len(step.weights):
                weights = _array(step.weights).T.astype(np.float64, order="C")
        else:
            return None
    count, n_indicators = len(sources), len(indicated)
    mean, deviation = scaling or (np.zeros(count), np.ones(count))
    zeros = np.zeros(n_indicators)  # mean 0 and deviation 1 leave indicators as they are
    columns = Columns(
        np.concatenate([sources, sources[indicated]]),
        np.arange(count + n_indicators) >= count,
        _float32(mean, zeros),
        _float32(deviation, zeros + 1),
        _float32(np.full(count, np.nan) if fill is None else fill, zeros),
        weights,
    )
    return columns, quantiles or Quantiles.none()


def _array(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy().astype(np.float32)
    return array


def _float32(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts).astype(np.float32)
