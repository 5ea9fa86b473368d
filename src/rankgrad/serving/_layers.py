"""FoldedLayers: the layers of a network, applied to the sparse inputs of one list."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from collections.abc import Sequence
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

_WEIGHTS = 1 << 20  # first layers larger than this are faster as one matrix product of all lists
_ROWS = 256  # rows of the buffers that calls reuse
_LANES = 16  # float32 numbers per LLVM vector, split by LLVM where registers are shorter
#: Hidden units computed at a time: the weights of two columns stay in registers.
_UNITS = 64 if binding.get_host_cpu_features().get("avx512f") else 32


class FoldedLayers:
    r"""All members' layers, with the weights of in-list scores folded into those of the features.

    The score of a feature in its list is ``s = a (x - m)`` with one a and m for all items of the
    list, so ``x V + s W`` is ``(x - y) (V + a W)`` and what all items have in common, for any y. So
    the first layer has fewer columns, and of a feature of which many items have the same value y
    only the other items are multiplied. The layers after it run in onnxruntime.

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
        blocks = weight.reshape(1 + len(kinds), -1, width)  # of features, and of each kind
        order = [at for at in range(1 + len(kinds)) if at == 0 or kinds[at - 1] != "score"]
        blocks = blocks[[*order, 1 + kinds.index("score")]]
        blocks = np.pad(blocks, [(0, 0), (0, 0), (0, -width % _UNITS)])
        tiled = blocks.reshape(*blocks.shape[:2], -1, _UNITS).transpose(2, 1, 0, 3)
        self._weight = _aligned(tiled.shape)
        self._weight[:] = tiled
        # Compiled code depends on both numbers, so they are lengths of tuples, which are types.
        self._sizes = tuple(range(len(order))), tuple(range(_UNITS // _LANES))
        self._free: list[tuple[np.ndarray, np.ndarray]] = []
        graph = OnnxGraph()
        scores = add_after_first(layers, graph, "hidden")
        content = graph.part(scores, {"hidden": ["items", width]})
        self._run = session(content, threads, prepack=False).run

    @staticmethod
    def fits(network: nn.Module) -> bool:
        """Whether a network is of this kind, and small enough for it to take less time."""
        if not isinstance(network, TabMNet) or "score" not in network.in_list:
            return False
        first, *others = member_layers(network)
        return len(others) > 0 and isinstance(first, tuple) and first[0].size <= _WEIGHTS

    def __call__(self, entries: Entries, n: int) -> np.ndarray:
        """The scores of one list of n items, ``[n]``."""
        rows = n + -n % 8  # the last rows of a product with one column round differently: no items
        memory = self._free.pop() if self._free and rows <= _ROWS else None
        if memory is None:
            size = max(rows, _ROWS)
            memory = _aligned((1 + size, _UNITS)), np.empty((size, len(self._bias)), np.float32)
        tile, hidden = memory[0], memory[1][:rows]
        _first_layer(entries, self._weight, self._bias, self._sizes, n, tile, hidden)
        scores: np.ndarray = self._run(["scores"], {"hidden": hidden})[0][:n, 0]
        if rows <= _ROWS:
            self._free.append(memory)
        return scores


def _aligned(shape: Sequence[int]) -> np.ndarray:
    """An array that begins at a cache line, so that no vector of it is in two of them."""
    size = 4 * int(np.prod(shape))
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def _first_layer_of(
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
        weight: ``[blocks, g, k + 1, units]``: those of features, of what is derived of them, and of
            their scores.
        bias: ``[width]``.
        sizes: k numbers; and as many as vectors make up the units of a block.
        n: how many items the list has.
        tile: ``[rows + 1, units]``, used: what all items have in common, then each.
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
        full = -1  # a column that all items have entries in: the next such one is its pair
        for c in range(weight.shape[1]):
            if entries.counts[c] <= n:
                _add_columns(tile, entries, weight, sizes, block, (c,))
            elif full < 0:
                full = c
            else:
                _add_columns(tile, entries, weight, sizes, block, (full, c))
                full = -1
        if full >= 0:
            _add_columns(tile, entries, weight, sizes, block, (full,))
        base = tile[0]
        for i in range(rows):
            row, found = tile[i + 1], hidden[i, start : start + count]
            for j in range(len(found)):
                found[j] = row[j] + base[j]


def _add_columns_of(
    context: Any, tile: Any, entries: Any, weight: Any, sizes: Any, block: Any, columns: Any
) -> Any:
    """Add the products of one or more columns with their weights to the rows of a tile.

    All columns have entries of the same items. Numba would load the weights anew for each item, as
    for all it knows the tile might be where they are.
    """
    vector = ir.VectorType(ir.FloatType(), _LANES)
    kinds = range(len(sizes[0]))
    parts = range(0, _LANES * len(sizes[1]), _LANES)

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds_of = (*signature.args[1].types, signature.args[0], signature.args[2])
        values_of = (*cgutils.unpack_tuple(builder, arguments[1]), arguments[0], arguments[2])
        arrays = [
            (kind, target.make_array(kind)(target, builder, value))
            for kind, value in zip(kinds_of, values_of, strict=True)
        ]
        places, values, counts, scores, tile, weight = arrays

        def pointer(array: Any, *at: Any) -> Any:
            indices = [cgutils.intp_t(one) if isinstance(one, int) else one for one in at]
            return cgutils.get_item_pointer(target, builder, array[0], array[1], indices)

        def splat(array: Any, *at: Any) -> Any:
            number = builder.load(pointer(array, *at))
            lane = builder.insert_element(vector(ir.Undefined), number, ir.IntType(32)(0))
            zeros = ir.VectorType(ir.IntType(32), _LANES)([0] * _LANES)
            return builder.shuffle_vector(lane, vector(ir.Undefined), zeros)

        def vectors(array: Any, *at: Any) -> list[Any]:
            return [
                builder.bitcast(pointer(array, *at, part), vector.as_pointer()) for part in parts
            ]

        def multiply_add(one: Any, other: Any, summand: Any) -> Any:
            product = builder.fmul(one, other, flags=("contract",))
            return builder.fadd(product, summand, flags=("contract",))

        def add(row: Any, factors: list[Any], weights: list[list[Any]]) -> None:
            at = vectors(tile, row)
            totals = [builder.load(place, align=4) for place in at]
            for factor, own in zip(factors, weights, strict=True):
                totals = [multiply_add(factor, *pair) for pair in zip(own, totals, strict=True)]
            for place, total in zip(at, totals, strict=True):
                builder.store(total, place, align=4)

        names = cgutils.unpack_tuple(builder, arguments[5])
        weights = []
        for c in names:
            *own, of_scores = [
                [builder.load(place, align=4) for place in vectors(weight, arguments[4], c, kind)]
                for kind in range(len(kinds) + 1)
            ]
            first = [splat(values, c, kind, 0) for kind in kinds]
            add(cgutils.intp_t(0), [*first, splat(scores, 1, c)], [*own, of_scores])
            factor = splat(scores, 0, c)
            own[0] = [multiply_add(factor, *pair) for pair in zip(of_scores, own[0], strict=True)]
            weights += own
        count = builder.load(pointer(counts, names[0]))
        with cgutils.for_range_slice(
            builder, cgutils.intp_t(1), count, cgutils.intp_t(1), cgutils.intp_t
        ) as (entry, _):
            row = builder.sext(builder.load(pointer(places, names[0], entry)), cgutils.intp_t)
            factors = [splat(values, c, kind, entry) for c in names for kind in kinds]
            add(row, factors, weights)
        return target.get_dummy_value()

    return types.void(tile, entries, weight, sizes, block, columns), build


_add_columns: Any = intrinsic(_add_columns_of)
_first_layer: Any = compile_cached(_first_layer_of, nogil=True)
