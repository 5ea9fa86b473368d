"""FoldedLayers: the layers of a network, applied to the sparse inputs of one list."""

# mypy: disable-error-code="call-arg, import-untyped"
# Numba itself passes the first argument of an intrinsic.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import nn

from rankgrad._compilation import compile_cached
from rankgrad.data._preparation_kernel import Entries
from rankgrad.export._graph import OnnxGraph
from rankgrad.export._networks import add_after_first, member_layers, side_by_side
from rankgrad.export._onnx_format import session
from rankgrad.models.tabm import TabMNet

_MAX_WEIGHTS = 1 << 20  # a larger first layer is faster as one matrix product of all lists
_ROWS = 256  # rows of the buffers that calls reuse
_LANES = 16  # float32 numbers per LLVM vector, split by LLVM where registers are shorter
#: Hidden units computed at a time: the weights of two columns stay in registers.
_UNITS = 64 if binding.get_host_cpu_features().get("avx512f") else 32


class FoldedLayers:
    r"""All members' layers, with the weights of in-list scores folded into those of the features.

    The score of a feature x in its list is ``s = a (x - m)``, with one a and one m per list. So for
    any y, ``x V + s W = (x - y) (V + a W) + y V + a (y - m) W``, and the last two terms are the
    same for all items. The first layer has fewer columns then, and where many items have the value
    y, as in :class:`~rankgrad.data._preparation_kernel.Entries`, it multiplies only the others. The
    layers after it run in onnxruntime.

    Args:
        network: a :class:`~rankgrad.models.tabm.TabMNet` that takes in scores in the list.
        threads: of onnxruntime.
    """

    def __init__(self, network: TabMNet, threads: int = 1) -> None:
        layers, kinds = member_layers(network), network.in_list
        first = layers[0]
        assert isinstance(first, tuple)
        weight, self._bias = side_by_side(*first)
        width = len(self._bias)
        by_kind = weight.reshape(1 + len(kinds), -1, width)  # of features, then of in-list columns
        order = [i for i in range(1 + len(kinds)) if i == 0 or kinds[i - 1] != "score"]
        by_kind = by_kind[[*order, 1 + kinds.index("score")]]
        by_kind = np.pad(by_kind, [(0, 0), (0, 0), (0, -width % _UNITS)])
        tiled = by_kind.reshape(*by_kind.shape[:2], -1, _UNITS).transpose(2, 1, 0, 3)
        self._weight = _aligned(tiled.shape)
        self._weight[:] = tiled
        # Compiled code depends on both numbers, so they are lengths of tuples, which are types.
        self._sizes = tuple(range(len(order))), tuple(range(_UNITS // _LANES))
        self._free_buffers: list[tuple[np.ndarray, np.ndarray]] = []
        graph = OnnxGraph()
        scores = add_after_first(layers, graph, "hidden")
        content = graph.model(scores, {"hidden": ["items", width]}, ["items", 1], {})
        self._run = session(content, threads, prepack=False).run

    @staticmethod
    def fits(network: nn.Module) -> bool:
        """Whether a network is of this kind, and small enough for it to take less time."""
        if not isinstance(network, TabMNet) or "score" not in network.in_list:
            return False
        first, *others = member_layers(network)
        return len(others) > 0 and isinstance(first, tuple) and first[0].size <= _MAX_WEIGHTS

    def __call__(self, entries: Entries, n: int) -> np.ndarray:
        """The scores of one list of n items, ``[n]``."""
        rows = n + -n % 8  # the last rows of a matrix-vector product round differently: no items
        buffers = self._free_buffers.pop() if self._free_buffers and rows <= _ROWS else None
        if buffers is None:
            size = max(rows, _ROWS)
            buffers = _aligned((1 + size, _UNITS)), np.empty((size, len(self._bias)), np.float32)
        tile, hidden = buffers[0], buffers[1][:rows]
        _first_layer(entries, self._weight, self._bias, self._sizes, n, tile, hidden)
        scores: np.ndarray = self._run(["scores"], {"hidden": hidden})[0][:n, 0]
        if rows <= _ROWS:
            self._free_buffers.append(buffers)
        return scores


def _aligned(shape: Sequence[int]) -> np.ndarray:
    """An array that begins at a cache line, so that no vector of it is in two of them."""
    size = 4 * int(np.prod(shape))
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


@partial(compile_cached, nogil=True)
def _first_layer(
    entries: Entries,
    weight: np.ndarray,
    bias: np.ndarray,
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    n: int,
    tile: np.ndarray,
    hidden: np.ndarray,
) -> None:
    """Write the first layer of one list.

    Args:
        entries: of the list.
        weight: ``[blocks, g, k + 1, units]``: the weights of ``entries.values``, of which there are
            k per feature, and of scores.
        bias: ``[width]``.
        sizes: a tuple of length k, and one of as many numbers as vectors make up ``units``.
        n: the number of items.
        tile: ``[rows + 1, units]``, overwritten: row 0 is common to all items, the others are added
            to it.
        hidden: ``[rows, width]``, written, ``rows`` n or more.
    """
    rows, width = hidden.shape
    units = tile.shape[1]
    for block in range(weight.shape[0]):
        start = block * units
        count = min(units, width - start)
        for i in range(rows + 1):
            row = tile[i]
            for j in range(units):
                row[j] = np.float32(0)
        for j in range(count):
            tile[0, j] = bias[start + j]
        dense = -1  # a column with an entry for each item; it waits for the next such column
        for c in range(weight.shape[1]):
            if entries.counts[c] <= n:
                _add_columns(tile, entries, weight, sizes, block, (c,))
            elif dense < 0:
                dense = c
            else:
                _add_columns(tile, entries, weight, sizes, block, (dense, c))
                dense = -1
        if dense >= 0:
            _add_columns(tile, entries, weight, sizes, block, (dense,))
        common = tile[0]
        for i in range(rows):
            row, units_of_item = tile[i + 1], hidden[i, start : start + count]
            for j in range(len(units_of_item)):
                units_of_item[j] = row[j] + common[j]


@intrinsic
def _add_columns(
    context: Any, tile: Any, entries: Any, weight: Any, sizes: Any, block: Any, columns: Any
) -> Any:
    """Add the products of one or two columns with their weights to the rows of a tile.

    Both columns have entries of the same items. The LLVM code is built here because Numba would
    load the weights again for each item: it cannot know that the tile does not overlap them.
    """
    kinds, n_vectors = range(len(sizes[0])), len(sizes[1])

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _VectorCode(target, builder, n_vectors)
        fields = cgutils.unpack_tuple(builder, arguments[1])
        rows, values, counts, scores = map(code.array, signature.args[1].types, fields)
        tile = code.array(signature.args[0], arguments[0])
        weight = code.array(signature.args[2], arguments[2])
        block, columns = arguments[4], cgutils.unpack_tuple(builder, arguments[5])
        folded = []
        for c in columns:
            *weights, score_weights = [
                code.load(weight, block, c, kind) for kind in range(len(kinds) + 1)
            ]
            common = [code.broadcast(values, c, kind, 0) for kind in kinds]
            common.append(code.broadcast(scores, 1, c))
            code.add_products(tile, cgutils.intp_t(0), common, [*weights, score_weights])
            weights[0] = code.multiply_add(code.broadcast(scores, 0, c), score_weights, weights[0])
            folded += weights
        count, one = builder.load(code.pointer(counts, columns[0])), cgutils.intp_t(1)
        with cgutils.for_range_slice(builder, one, count, one, cgutils.intp_t) as (entry, _):
            row = builder.sext(builder.load(code.pointer(rows, columns[0], entry)), cgutils.intp_t)
            factors = [code.broadcast(values, c, kind, entry) for c in columns for kind in kinds]
            code.add_products(tile, row, factors, folded)
        return target.get_dummy_value()

    return types.void(tile, entries, weight, sizes, block, columns), build


class _VectorCode:
    """LLVM instructions on rows of ``n_vectors`` vectors, which are lists of LLVM values."""

    def __init__(self, target: Any, builder: Any, n_vectors: int) -> None:
        self._target, self._builder = target, builder
        self._starts = range(0, _LANES * n_vectors, _LANES)
        self._vector = ir.VectorType(ir.FloatType(), _LANES)

    def array(self, kind: Any, value: Any) -> tuple[Any, Any]:
        """A Numba array, with its type."""
        return kind, self._target.make_array(kind)(self._target, self._builder, value)

    def pointer(self, array: tuple[Any, Any], *indices: Any) -> Any:
        """Where an element of an array is."""
        position = [cgutils.intp_t(index) if isinstance(index, int) else index for index in indices]
        return cgutils.get_item_pointer(self._target, self._builder, *array, position)

    def broadcast(self, array: tuple[Any, Any], *indices: Any) -> Any:
        """A vector of which all numbers are one element of an array."""
        number = self._builder.load(self.pointer(array, *indices))
        undefined, integer = self._vector(ir.Undefined), ir.IntType(32)
        lane = self._builder.insert_element(undefined, number, integer(0))
        zeros = ir.VectorType(integer, _LANES)([0] * _LANES)
        return self._builder.shuffle_vector(lane, undefined, zeros)

    def load(self, array: tuple[Any, Any], *indices: Any) -> list[Any]:
        """The row of an array."""
        return [self._builder.load(place, align=4) for place in self._places(array, *indices)]

    def multiply_add(self, factor: Any, row: list[Any], summands: list[Any]) -> list[Any]:
        """``factor * row + summands``."""
        contract = {"flags": ("contract",)}
        products = [self._builder.fmul(factor, vector, **contract) for vector in row]
        pairs = zip(products, summands, strict=True)
        return [self._builder.fadd(product, summand, **contract) for product, summand in pairs]

    def add_products(
        self, array: tuple[Any, Any], row: Any, factors: list[Any], weights: list[list[Any]]
    ) -> None:
        """Add products of factors and rows of weights to a row of an array."""
        places = self._places(array, row)
        totals = [self._builder.load(place, align=4) for place in places]
        for factor, each in zip(factors, weights, strict=True):
            totals = self.multiply_add(factor, each, totals)
        for place, total in zip(places, totals, strict=True):
            self._builder.store(total, place, align=4)

    def _places(self, array: tuple[Any, Any], *indices: Any) -> list[Any]:
        pointers = [self.pointer(array, *indices, start) for start in self._starts]
        return [self._builder.bitcast(each, self._vector.as_pointer()) for each in pointers]
