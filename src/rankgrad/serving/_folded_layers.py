"""FoldedLayers: the layers of a TabM network, applied to the sparse inputs of one list.

Serving scores long lists with it. Most features have one value for many items of a list, such as 0,
so the first layer multiplies few numbers by its weights; onnxruntime would compute one dense matrix
product. The file goes from Python to machine code:

- :class:`FoldedLayers` arranges the weights, and calls the first layer and then onnxruntime.
- :func:`_first_layer`, compiled by Numba, goes through the features and adds their products.
- :func:`_add_columns`, its inner loop, is written in LLVM instructions; its docstring has the same
  loop in NumPy.
"""

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
from rankgrad.export._onnx_format import session
from rankgrad.export._onnx_graph import OnnxGraph, Shape
from rankgrad.export._onnx_networks import (
    add_after_first,
    add_similar_items,
    input_layer,
    member_layers,
    side_by_side,
)
from rankgrad.export._onnx_transforms import float32_array
from rankgrad.models._encoding import PeriodicEncoding, PiecewiseLinearEncoding
from rankgrad.models._periodic_kernel import encode_entries
from rankgrad.models._similar_items import SimilarItems
from rankgrad.models.tabm import TabMNet

_MAX_WEIGHTS = 1 << 20  # a larger first layer is faster as one matrix product of all lists
_MAX_FUNCTIONS = 16  # of each feature in an encoding; more take long to compile
_ROWS = 256  # rows of the buffers that calls reuse
_LANES = 16  # float32 numbers per LLVM vector; LLVM splits it if registers are shorter
_INPUTS = 6  # added at a time, such as two features with their ranks and ties
#: Hidden units that are computed at a time, few enough that the weights of these inputs stay in
#: registers.
_UNITS = 64 if binding.get_host_cpu_features().get("avx512f") else 32


class FoldedLayers:
    r"""All members' layers, with the weights of in-list scores folded into those of the features.

    The in-list score of a feature x is ``s = a (x - m)``, with one a and one m per list. With the
    weights V of features and W of in-list scores, for any y,
    ``x V + s W = (x - y) (V + a W) + y V + a (y - m) W``. The last two terms are the same for all
    items of a list, so the first layer needs no columns for scores. If y is the value that many
    items have, as in :class:`~rankgrad.data._preparation_kernel.Entries`, only the other items are
    multiplied. The functions of a periodic encoding are inputs of the same kind: most features
    have one value for many items, and so have their functions. The first layer of the attention, if
    there is one, has the same inputs but for the functions, and is computed with it. What follows
    the first layers runs in onnxruntime.

    Args:
        network: a :class:`~rankgrad.models.tabm.TabMNet` with in-list scores among its inputs.
        threads: the number of threads of onnxruntime.
    """

    def __init__(self, network: TabMNet, threads: int = 1) -> None:
        layers, kinds = member_layers(network), network.in_list
        first = layers[0]
        assert isinstance(first, tuple)
        weight, self._bias = side_by_side(*first)
        self._encoding: tuple[np.ndarray, ...] = ()
        n_encoded, encoding = 0, network.encoding
        if encoding is not None:
            assert isinstance(encoding, PeriodicEncoding)
            n_encoded = encoding.width
            self._encoding = tuple(map(float32_array, encoding.coefficients))
        unencoded, encoded = np.split(weight, [len(weight) - n_encoded])
        by_feature = encoded.reshape(network.n_features, -1)
        has_functions = (by_feature != 0).any(1)
        # An L1 penalty of inputs leaves the functions of many features without weight.
        self._encoded, self._plain = np.flatnonzero(has_functions), np.flatnonzero(~has_functions)
        graph, hidden = OnnxGraph(), "hidden"
        self._attends = network.attention is not None
        if network.attention is not None:
            unencoded, attended = np.split(unencoded, [len(unencoded) - network.attention.width])
            hidden = _add_attended(network.attention, attended, graph, hidden)
            own_weight, own_bias = input_layer(network.attention)
            unencoded = np.concatenate([unencoded, own_weight], 1)
            encoded = np.pad(encoded, [(0, 0), (0, len(own_bias))])
            self._bias = np.concatenate([self._bias, own_bias])
        width = len(self._bias)
        # [1 + kinds, g, width]: the weights of features, then of each kind of in-list columns
        by_kind = unencoded.reshape(1 + len(kinds), -1, width)
        functions = encoded.reshape(by_kind.shape[1], -1, width).transpose(1, 0, 2)
        score = 1 + kinds.index("score")
        # The weights of scores are the first; then in the order of Entries.values.
        by_kind = np.concatenate([by_kind[[score]], np.delete(by_kind, score, 0), functions])
        by_kind = np.pad(by_kind, [(0, 0), (0, 0), (0, -width % _UNITS)])
        # [blocks, g, 1 + kinds, units]: the weights that are used together lie together
        tiled = by_kind.reshape(*by_kind.shape[:2], -1, _UNITS).transpose(2, 1, 0, 3)
        self._weight = _aligned(tiled.shape)
        self._weight[:] = tiled
        # Three numbers must be known when code is compiled. They are passed as lengths of tuples,
        # which are part of Numba's types; the contents of the tuples are not used.
        with_functions, without = tuple(range(len(by_kind) - 1)), tuple(range(len(kinds)))
        self._sizes = with_functions, without, tuple(range(_UNITS // _LANES))
        # Pairs (tile, hidden) of buffers for _first_layer that no call is using.
        self._free_buffers: list[tuple[np.ndarray, np.ndarray]] = []
        scores = add_after_first(layers, graph, hidden)
        inputs: dict[str, Shape] = {"hidden": ["items", width]}
        if self._attends:
            inputs["mask"] = ["lists", "mask_items"]
        content = graph.model(scores, inputs, ["items", 1], {})
        self._run = session(content, threads, prepack=False).run

    @staticmethod
    def fits(network: nn.Module) -> bool:
        """Whether a network has in-list scores, no ramps, and not many weights."""
        if not isinstance(network, TabMNet) or "score" not in network.in_list:
            return False
        if isinstance(network.encoding, PiecewiseLinearEncoding):
            return False
        if network.encoding is not None and network.encoding.weight.shape[-1] > _MAX_FUNCTIONS:
            return False
        first, *others = member_layers(network)
        return len(others) > 0 and isinstance(first, tuple) and first[0].size <= _MAX_WEIGHTS

    def __call__(self, entries: Entries, n: int) -> np.ndarray:
        """The scores of one list of n items, ``[n]``; writes the functions among the entries."""
        # Padded to a multiple of 8, as the last n % 8 rows of a matrix product round differently
        rows = n + -n % 8
        buffers = self._take_buffers(rows)
        tile, hidden = buffers[0], buffers[1][:rows]
        if self._encoding:
            encode_entries(entries.values, entries.counts, self._encoded, *self._encoding)
        features = self._encoded, self._plain
        _first_layer(entries, features, self._weight, self._bias, self._sizes, n, tile, hidden)
        inputs = {"hidden": hidden}
        if self._attends:
            inputs["mask"] = np.arange(rows)[None] < n
        scores: np.ndarray = self._run(["scores"], inputs)[0][:n, 0]
        if rows <= _ROWS:
            self._free_buffers.append(buffers)
        return scores

    def _take_buffers(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Buffers for a list of ``rows`` rows that no other call uses: free ones, or new ones."""
        if rows <= _ROWS:
            try:
                return self._free_buffers.pop()
            except IndexError:  # a check beforehand would let another thread take the last ones
                pass
        size = max(rows, _ROWS)
        return _aligned((1 + size, _UNITS)), np.empty((size, len(self._bias)), np.float32)


def _add_attended(
    attention: SimilarItems, weight: np.ndarray, graph: OnnxGraph, hidden: str
) -> str:
    """The outputs of the members' first layers, ``[items, members · out]``, of one list.

    Args:
        attention: the attention.
        weight: ``[attention.width, members · out]``, of its outputs in these layers.
        graph: the graph that nodes are added to, with the input ``mask``, ``[1, items]``.
        hidden: what other inputs add to these outputs, then the outputs of the attention's first
            layer.
    """
    sizes = np.array([weight.shape[1], len(attention.input_bias)])
    own, attending = graph.add_several("Split", 2, hidden, sizes, axis=-1)
    one_list = graph.add("Unsqueeze", attending, np.array([0]))
    attended = add_similar_items(attention, graph, one_list, "mask")
    product = graph.add("MatMul", graph.add("Squeeze", attended, np.array([0])), weight)
    return graph.add("Add", own, product)


def _aligned(shape: Sequence[int]) -> np.ndarray:
    """A float32 array that begins at a cache line (64 bytes), so that no vector crosses one."""
    size = 4 * int(np.prod(shape))
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


@partial(compile_cached, nogil=True)
def _first_layer(
    entries: Entries,
    features: tuple[np.ndarray, np.ndarray],
    weight: np.ndarray,
    bias: np.ndarray,
    sizes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    n: int,
    tile: np.ndarray,
    hidden: np.ndarray,
) -> None:
    """Write the output of the first layer for one list.

    Args:
        entries: the sparse inputs of the list.
        features: the indices of features with functions, then of those without.
        weight: ``[blocks, g, k + 1, units]``: for each of g features the weights of its score, then
            of its k ``entries.values``.
        bias: ``[width]``.
        sizes: tuples of the length k, of k without the functions, and of ``units / _LANES``.
        n: the number of items.
        tile: ``[rows + 1, units]``, a buffer: row 0 is the part that is common to all items, the
            other rows are added to it.
        hidden: ``[rows, width]``, the output; ``rows`` is n or more.
    """
    rows, width = hidden.shape
    units, (encoded, plain, vectors) = tile.shape[1], sizes
    for block in range(weight.shape[0]):
        start = block * units
        count = min(units, width - start)
        for i in range(rows + 1):
            row = tile[i]
            for j in range(units):
                row[j] = np.float32(0)
        for j in range(count):
            tile[0, j] = bias[start + j]
        _add_features(tile, entries, features[0], weight, (encoded, vectors), n, block)
        _add_features(tile, entries, features[1], weight, (plain, vectors), n, block)
        common = tile[0]
        for i in range(rows):
            row, units_of_item = tile[i + 1], hidden[i, start : start + count]
            for j in range(len(units_of_item)):
                units_of_item[j] = row[j] + common[j]


@partial(compile_cached, nogil=True)
def _add_features(
    tile: np.ndarray,
    entries: Entries,
    features: np.ndarray,
    weight: np.ndarray,
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    n: int,
    block: int,
) -> None:
    """Add the products of some features with their weights to the rows of a tile.

    ``features`` has their indices; the other arguments are those of :func:`_first_layer` and
    :func:`_add_columns`.
    """
    # Columns with an entry for each item are added in pairs. ``dense`` is such a column that waits
    # for a second one; -1 for none.
    dense = -1
    for c in features:
        if entries.counts[c] <= n:  # counts include position 0: not every item has an entry
            _add_columns(tile, entries, weight, sizes, block, (c,))
        elif dense < 0:
            dense = c
        else:
            _add_columns(tile, entries, weight, sizes, block, (dense, c))
            dense = -1
    if dense >= 0:
        _add_columns(tile, entries, weight, sizes, block, (dense,))


@intrinsic
def _add_columns(
    context: Any, tile: Any, entries: Any, weight: Any, sizes: Any, block: Any, columns: Any
) -> Any:
    """Add the products of one or two features with their weights to the rows of a tile.

    ``columns`` is a tuple of one or two indices of features; two must have entries of the same
    items. ``sizes`` are tuples of the number of values that are added, k or fewer, and of the
    length ``units / _LANES``. The other arguments are those of :func:`_first_layer`. In NumPy::

        for c in columns:
            score_weights, *weights = weight[block, c]  # k + 1 rows of units
            factor, summand = entries.scores[:, c]
            tile[0] += entries.values[c, :, 0] @ weights + summand * score_weights
            weights[0] += factor * score_weights  # folds the score into the feature
            for entry in range(1, entries.counts[c]):
                tile[entries.rows[c, entry]] += entries.values[c, :, entry] @ weights

    A loop over entries adds several inputs of both columns at once, so that it loads and stores
    each row of the tile once for them. Compiled from this code, it would also load the weights
    again for each entry, since Numba cannot know that they do not overlap the tile: hence the LLVM
    instructions.

    A Numba intrinsic is called with the types of its arguments. It returns its signature, and a
    function that gets the arguments as LLVM values and emits the instructions.
    """
    kinds, n_vectors = range(len(sizes[0])), len(sizes[1])

    def emit(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _VectorCode(target, builder, n_vectors)
        fields = cgutils.unpack_tuple(builder, arguments[1])
        rows, values, counts, scores = map(code.array, signature.args[1].types, fields)
        tile = code.array(signature.args[0], arguments[0])
        weight = code.array(signature.args[2], arguments[2])
        block, columns = arguments[4], cgutils.unpack_tuple(builder, arguments[5])
        folded = []
        for c in columns:
            score_weights, *weights = [
                code.load(weight, block, c, kind) for kind in range(len(kinds) + 1)
            ]
            common = [code.broadcast(values, c, kind, 0) for kind in kinds]
            common.append(code.broadcast(scores, 1, c))
            code.add_products(tile, cgutils.intp_t(0), common, [*weights, score_weights])
            weights[0] = code.multiply_add(code.broadcast(scores, 0, c), score_weights, weights[0])
            folded += weights
        count, one = builder.load(code.pointer(counts, columns[0])), cgutils.intp_t(1)
        inputs = [(c, kind) for c in columns for kind in kinds]
        for start in range(0, len(inputs), _INPUTS):
            part = slice(start, start + _INPUTS)
            with cgutils.for_range_slice(builder, one, count, one, cgutils.intp_t) as (entry, _):
                row = builder.load(code.pointer(rows, columns[0], entry))
                factors = [code.broadcast(values, c, kind, entry) for c, kind in inputs[part]]
                code.add_products(tile, builder.sext(row, cgutils.intp_t), factors, folded[part])
        return target.get_dummy_value()

    return types.void(tile, entries, weight, sizes, block, columns), emit


class _VectorCode:
    """LLVM instructions on rows of ``n_vectors`` vectors, which are lists of LLVM values."""

    def __init__(self, target: Any, builder: Any, n_vectors: int) -> None:
        self._target, self._builder = target, builder
        self._starts = range(0, _LANES * n_vectors, _LANES)
        self._vector = ir.VectorType(ir.FloatType(), _LANES)

    def array(self, numba_type: Any, value: Any) -> tuple[Any, Any]:
        """The type of a Numba array, and its structure in LLVM."""
        return numba_type, self._target.make_array(numba_type)(self._target, self._builder, value)

    def pointer(self, array: tuple[Any, Any], *indices: Any) -> Any:
        """The pointer to an element of an array."""
        position = [cgutils.intp_t(index) if isinstance(index, int) else index for index in indices]
        return cgutils.get_item_pointer(self._target, self._builder, *array, position)

    def broadcast(self, array: tuple[Any, Any], *indices: Any) -> Any:
        """A vector that repeats one element of an array."""
        number = self._builder.load(self.pointer(array, *indices))
        undefined, integer = self._vector(ir.Undefined), ir.IntType(32)
        lane = self._builder.insert_element(undefined, number, integer(0))
        zeros = ir.VectorType(integer, _LANES)([0] * _LANES)
        return self._builder.shuffle_vector(lane, undefined, zeros)

    def load(self, array: tuple[Any, Any], *indices: Any) -> list[Any]:
        """A row of an array."""
        pointers = self._row_pointers(array, *indices)
        return [self._builder.load(pointer, align=4) for pointer in pointers]

    def multiply_add(self, factor: Any, row: list[Any], summands: list[Any]) -> list[Any]:
        """``factor * row + summands``."""
        contract = {"flags": ("contract",)}
        products = [self._builder.fmul(factor, vector, **contract) for vector in row]
        pairs = zip(products, summands, strict=True)
        return [self._builder.fadd(product, summand, **contract) for product, summand in pairs]

    def add_products(
        self, array: tuple[Any, Any], row: Any, factors: list[Any], weights: list[list[Any]]
    ) -> None:
        """Add the products of factors and rows of weights to a row of an array."""
        pointers = self._row_pointers(array, row)
        totals = [self._builder.load(pointer, align=4) for pointer in pointers]
        for factor, weights_row in zip(factors, weights, strict=True):
            totals = self.multiply_add(factor, weights_row, totals)
        for pointer, total in zip(pointers, totals, strict=True):
            self._builder.store(total, pointer, align=4)

    def _row_pointers(self, array: tuple[Any, Any], *indices: Any) -> list[Any]:
        """Pointers to the vectors of a row of an array."""
        starts = [self.pointer(array, *indices, start) for start in self._starts]
        return [self._builder.bitcast(start, self._vector.as_pointer()) for start in starts]
