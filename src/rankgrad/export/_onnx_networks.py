"""Networks as ONNX nodes: the evaluation mode of each class in ``rankgrad.models``, and trees.

Functions take and return names of tensors in an :class:`~rankgrad.export._onnx_graph.OnnxGraph`.
Shapes in docstrings are those of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import nn

from rankgrad.export._onnx_graph import BOOL, DOUBLE, FLOAT, INT32, INT64, NoFormError, OnnxGraph
from rankgrad.export._onnx_transforms import float32_array
from rankgrad.export._parsed_trees import Trees
from rankgrad.models._dropout import Dropout, FastDropout
from rankgrad.models._embedded import EmbeddedScorer
from rankgrad.models._encoding import PeriodicEncoding, PiecewiseLinearEncoding
from rankgrad.models._perceptrons import AdaptedLinear
from rankgrad.models._similar_items import MIN_NORM, SimilarItems
from rankgrad.models.batch_norm import BatchNorm
from rankgrad.models.context_aware import ContextAwareNet
from rankgrad.models.mlp import MLPNet
from rankgrad.models.tabm import TabMNet
from rankgrad.training._fitted import TreeScorer

#: One layer of all members of an ensemble (TabM): an activation, or the members' linear layers, as
#: weights ``[members, in, out]`` and biases ``[members, 1, out]``.
MemberLayer = nn.Module | tuple[np.ndarray, np.ndarray]

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ELU: "Elu",
    nn.LeakyReLU: "LeakyRelu",
    nn.ReLU: "Relu",
    nn.SELU: "Selu",
    nn.Sigmoid: "Sigmoid",
    nn.Tanh: "Tanh",
}


@singledispatch
def add_network(network: Any, graph: OnnxGraph, values: str, mask: str) -> str:
    """Add the nodes of a network in evaluation mode.

    Args:
        network: the network of a ranker.
        graph: the graph that nodes are added to.
        values: the name of the input, ``[lists, items, features]``.
        mask: the name of the mask, ``[lists, items]``.

    Returns:
        The name of the scores, ``[lists, items]``; the scores of padding are arbitrary.

    Raises:
        NoFormError: there is no ONNX form of this network.
    """
    raise NoFormError(
        f"{type(network).__qualname__} has no ONNX form here: export it with torch.onnx.export, or "
        "register a form with rankgrad.export._onnx_networks.add_network.register"
    )


@add_network.register
def _(network: MLPNet, graph: OnnxGraph, values: str, mask: str) -> str:
    return graph.reshape_as(add_layers(network.layers, graph, _flatten_items(graph, values)), mask)


@add_network.register
def _(network: EmbeddedScorer, graph: OnnxGraph, values: str, mask: str) -> str:
    columns = [graph.add("Gather", values, np.arange(network.n_numbers), axis=-1)]
    for column, table in enumerate(network.tables.parameters(), start=network.n_numbers):
        weight = table.detach().cpu().numpy()
        code = graph.add("Gather", values, np.array(column), axis=-1)
        code = graph.add("Where", mask, code, 0.0)  # padding may have any values
        code = graph.add("Clip", code, 0.0, float(len(weight) - 1))
        columns.append(graph.add("Gather", weight, graph.add("Cast", code, to=INT64), axis=0))
    return add_network(network.network, graph, graph.add("Concat", *columns, axis=-1), mask)


@add_network.register
def _(network: TreeScorer, graph: OnnxGraph, values: str, mask: str) -> str:
    return graph.reshape_as(Trees.of(network).add(graph, _flatten_items(graph, values)), mask)


@add_network.register
def _(network: TabMNet, graph: OnnxGraph, values: str, mask: str) -> str:
    adders = {"rank": _add_list_ranks, "score": _add_list_scores, "ties": _add_list_ties}
    inputs = [values, *(adders[kind](graph, values, mask) for kind in network.in_list)]
    joined = graph.add("Concat", *inputs, axis=-1) if len(inputs) > 1 else values
    return graph.reshape_as(add_input_scores(network, graph, joined, mask), mask)


@add_network.register
def _(network: ContextAwareNet, graph: OnnxGraph, values: str, mask: str) -> str:
    real = graph.add("Unsqueeze", mask, np.array([-1]))
    hidden = add_layers(network.fc, graph, graph.add("Where", real, values, 0.0))
    if network.positional is not None:
        hidden = graph.add("Add", hidden, _add_positions(network, graph, mask))
    attention_mask = _add_attention_mask(graph, mask)
    for block in network.blocks:
        hidden = _add_block(block, graph, hidden, attention_mask)
    hidden = _add_layer(network.norm, graph, hidden)
    return graph.add("Squeeze", add_layers(network.head, graph, hidden), np.array([-1]))


def add_layers(layers: nn.Sequential, graph: OnnxGraph, values: str) -> str:
    """Add layers in sequence; return the name of the output."""
    for layer in layers:
        values = _add_layer(layer, graph, values)
    return values


def _add_layer(layer: nn.Module, graph: OnnxGraph, values: str) -> str:
    """Add the nodes of a layer, in evaluation mode; return the name of the output."""
    # Flatten is left out: add_network reshapes the scores of an MLP at the end.
    if isinstance(layer, Dropout | FastDropout | nn.Identity | nn.Flatten):
        return values
    if isinstance(layer, nn.Linear):
        weight, bias = float32_array(layer.weight), float32_array(layer.bias)
        return _add_linear(graph, values, weight.T, bias)
    if isinstance(layer, BatchNorm):
        scale, shift = norm_coefficients(layer)
        return graph.add("Add", graph.add("Mul", values, scale), shift)
    if isinstance(layer, nn.LayerNorm):
        weight, bias = float32_array(layer.weight), float32_array(layer.bias)
        return graph.add("LayerNormalization", values, weight, bias, axis=-1, epsilon=layer.eps)
    return add_activation(layer, graph, values)


def add_activation(layer: nn.Module, graph: OnnxGraph, values: str) -> str:
    """Add the nodes of an activation; return the name of the output."""
    if isinstance(layer, nn.SiLU):
        return graph.add("Mul", values, graph.add("Sigmoid", values))
    if isinstance(layer, nn.GELU):
        error = graph.add("Erf", graph.add("Mul", values, math.sqrt(0.5)))
        return graph.add("Mul", graph.add("Mul", values, 0.5), graph.add("Add", error, 1.0))
    operator = _ACTIVATIONS.get(type(layer))
    if operator is None:
        raise NoFormError(f"the layer {layer} has no ONNX form")
    attributes = {"alpha": layer.negative_slope} if isinstance(layer, nn.LeakyReLU) else {}
    return graph.add(operator, values, **attributes)


def norm_coefficients(layer: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Batch normalization in evaluation mode as ``scale x + shift``: scale and shift, ``[f]``."""
    scale = layer.weight.double() / (layer.running_var.double() + layer.eps).sqrt()
    shift = layer.bias.double() - layer.running_mean.double() * scale
    return float32_array(scale), float32_array(shift)


def member_layers(network: TabMNet) -> list[MemberLayer]:
    """The layers of an ensemble, linear ones and activations, without dropout.

    Where members share a matrix W, each gets a matrix of its own: ``s_m ∘ W (r_m ∘ x)`` is a matrix
    product with ``diag(s_m) W diag(r_m)``.
    """
    layers: list[MemberLayer] = []
    for layer in network.layers:
        if isinstance(layer, FastDropout):
            continue
        parameters = dict(layer.named_parameters())
        if not parameters:
            layers.append(layer)
            continue
        weight = parameters["weight"].detach().double()
        if isinstance(layer, AdaptedLinear):
            weight = layer.input_scales.mT * weight.mT * layer.scale_out
        layers.append((float32_array(weight), float32_array(parameters["bias"])))
    return layers


def add_input_scores(network: TabMNet, graph: OnnxGraph, inputs: str, mask: str) -> str:
    """The scores ``[lists · items, 1]``, means over members, of inputs ``[lists, items, w]``."""
    if network.attention is not None:
        weight, bias = input_layer(network.attention)
        real = graph.add("Unsqueeze", mask, np.array([-1]))
        hidden = _add_linear(graph, graph.add("Where", real, inputs, 0.0), weight, bias)
        attended = add_similar_items(network.attention, graph, hidden, mask)
        inputs = graph.add("Concat", inputs, attended, axis=-1)
    return add_members(network, graph, _flatten_items(graph, inputs))


def add_members(network: TabMNet, graph: OnnxGraph, items: str) -> str:
    """The mean over members of the scores, ``[items, 1]``, of flat items, ``[items, features]``.

    The first layers of all members are one matrix product. With one hidden layer, so are the last
    layers of all members.
    """
    if network.encoding is not None:
        items = graph.add("Concat", items, _add_encoding(network.encoding, graph, items), axis=-1)
    layers = member_layers(network)
    first = layers[0]
    assert isinstance(first, tuple)
    if len(layers) == 1:
        return _add_linear(graph, items, first[0].mean(0), first[1].mean((0, 1)))
    return add_after_first(layers, graph, _add_linear(graph, items, *side_by_side(*first)))


def side_by_side(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The linear layers of all members as one: ``[in, members · out]`` and ``[members · out]``."""
    return weight.transpose(1, 0, 2).reshape(weight.shape[1], -1), bias.reshape(-1)


def add_after_first(layers: Sequence[MemberLayer], graph: OnnxGraph, hidden: str) -> str:
    """The mean of the members' scores, ``[items, 1]``.

    Args:
        layers: all layers, from :func:`member_layers`.
        graph: the graph that nodes are added to.
        hidden: the outputs of the members' first layers side by side, ``[items, members · out]``.
    """
    first, last = layers[0], layers[-1]
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
    members, _, size = first[0].shape
    if len(layers) > 3 and members > 1:
        # Several hidden layers: batched matrix products, with members as the batch
        hidden = graph.add("Transpose", graph.reshape(hidden, -1, members, size), perm=[1, 0, 2])
        for layer in layers[1:]:
            hidden = _add_member_layer(layer, graph, hidden)
        return graph.add("ReduceMean", hidden, np.array([0]), keepdims=0)
    for layer in layers[1:-1]:
        # A linear layer between the first and the last is that of a single member.
        single = (layer[0][0], layer[1][0]) if isinstance(layer, tuple) else layer
        hidden = _add_member_layer(single, graph, hidden)
    return _add_linear(graph, hidden, last[0].reshape(-1, 1) / members, last[1].mean((0, 1)))


def _add_member_layer(layer: MemberLayer, graph: OnnxGraph, hidden: str) -> str:
    """Add an activation or linear layers; return the name of the output."""
    if isinstance(layer, nn.Module):
        return add_activation(layer, graph, hidden)
    return _add_linear(graph, hidden, *layer)


def _add_linear(graph: OnnxGraph, values: str, weight: np.ndarray, bias: np.ndarray) -> str:
    """Add ``values @ weight + bias``; return the name of the output."""
    product = graph.add("MatMul", values, weight.astype(np.float32))
    return graph.add("Add", product, bias.astype(np.float32))


def _add_encoding(
    encoding: PiecewiseLinearEncoding | PeriodicEncoding, graph: OnnxGraph, items: str
) -> str:
    """The encoding ``[items, width]`` of the features, the first of the inputs of items."""
    features = graph.add("Gather", items, np.arange(encoding.n_features), axis=-1)
    if isinstance(encoding, PeriodicEncoding):
        return _add_periodic(encoding, graph, features)
    starts = float32_array(encoding.starts)
    ramps = graph.add("Sub", graph.add("Unsqueeze", features, np.array([-1])), starts)
    ramps = graph.add("Clip", graph.add("Mul", ramps, encoding.bins_per_unit), 0.0, 1.0)
    return graph.reshape(ramps, -1, encoding.width)


def _add_periodic(encoding: PeriodicEncoding, graph: OnnxGraph, features: str) -> str:
    """The functions ``[items, features · size]``; matrix products have features as their batch."""
    by_feature = graph.add("Transpose", features, perm=[1, 0])
    frequency, weight, bias = map(float32_array, encoding.coefficients)
    frequencies = 2 * np.float32(math.pi) * frequency
    angles = graph.add("Mul", graph.add("Unsqueeze", by_feature, np.array([-1])), frequencies)
    waves = graph.add("Concat", graph.add("Sin", angles), graph.add("Cos", angles), axis=-1)
    functions = graph.add("Relu", _add_linear(graph, waves, weight, bias))
    by_item = graph.add("Transpose", functions, perm=[1, 0, 2])
    return graph.reshape(by_item, -1, encoding.width)


def _add_list_ranks(graph: OnnxGraph, values: str, mask: str) -> str:
    """Add :func:`rankgrad.models._in_list.list_ranks`, ``[lists, items, features]``."""
    counts, ends, to_items = _add_tie_groups(graph, values, mask)
    # 2 a + b in the formula of list_ranks, with a = ends - counts and b = counts
    twice = to_items(graph.add("Sub", graph.add("Add", ends, ends), counts))
    fraction = graph.add("Div", graph.add("Mul", twice, 0.5), _add_lengths(graph, mask))
    scaled = graph.add("Mul", graph.add("Sub", fraction, 0.5), math.sqrt(12))
    return graph.add("Where", graph.add("Unsqueeze", mask, np.array([-1])), scaled, 0.0)


def _add_list_ties(graph: OnnxGraph, values: str, mask: str) -> str:
    """Add :func:`rankgrad.models._in_list.list_ties`, ``[lists, items, features]``."""
    counts, _, to_items = _add_tie_groups(graph, values, mask)
    tied = to_items(counts)
    others = graph.add("Sub", tied, 1.0)
    ties = graph.add("Div", graph.add("Add", others, others), tied)
    return graph.add("Where", graph.add("Unsqueeze", mask, np.array([-1])), ties, 0.0)


def _add_tie_groups(
    graph: OnnxGraph, values: str, mask: str
) -> tuple[str, str, Callable[[str], str]]:
    """The groups of tied items of each feature, in ascending order of its values.

    Items are sorted, groups are numbered in sorted order, and results are scattered back.

    Returns:
        The number of items of each group, and the number of items up to and including each group,
        both ``[lists, features, items]`` and indexed by the group; and a function from values of
        groups to those of their items, ``[lists, items, features]``.
    """
    real = graph.add("Unsqueeze", mask, np.array([-1]))
    columns = graph.add("Where", real, values, float("inf"))  # padding is sorted to the end
    columns = graph.add("Transpose", columns, perm=[0, 2, 1])
    length = graph.add("Shape", columns, start=2)
    ordered, order = graph.add_several("TopK", 2, columns, length, axis=-1, largest=0, sorted=1)
    head = graph.add("Slice", ordered, np.array([0]), np.array([-1]), np.array([2]))
    first = graph.add("Slice", ordered, np.array([0]), np.array([1]), np.array([2]))
    previous = graph.add("Concat", first, head, axis=2)  # in this form lists may be empty
    starts = graph.add("Cast", graph.add("Not", graph.add("Equal", previous, ordered)), to=INT32)
    group = graph.add("CumSum", starts, np.array(2, np.int32))
    zeros = graph.add("ConstantOfShape", graph.add("Shape", ordered))
    ones = graph.add("Add", zeros, 1.0)
    counts = graph.add("ScatterElements", zeros, group, ones, axis=2, reduction="add")

    def to_items(groups: str) -> str:
        of_items = graph.add("GatherElements", groups, group, axis=2)
        scattered = graph.add("ScatterElements", zeros, order, of_items, axis=2)
        return graph.add("Transpose", scattered, perm=[0, 2, 1])

    return counts, graph.add("CumSum", counts, np.array(2, np.int32)), to_items


def _add_list_scores(graph: OnnxGraph, values: str, mask: str) -> str:
    """Add :func:`rankgrad.models._in_list.list_scores`, ``[lists, items, features]``."""
    real = graph.add("Unsqueeze", mask, np.array([-1]))
    lengths, item_axis = _add_lengths(graph, mask), np.array([1])
    # In float64, as the rounding errors of a constant feature would be amplified
    doubles = graph.add("Cast", graph.add("Where", real, values, 0.0), to=DOUBLE)
    total = graph.add("ReduceSum", doubles, item_axis)
    mean = graph.add("Div", total, graph.add("Cast", lengths, to=DOUBLE))
    mean = graph.add("Cast", mean, to=FLOAT)
    centered = graph.add("Where", real, graph.add("Sub", values, mean), 0.0)
    squares = graph.add("ReduceSum", graph.add("Mul", centered, centered), item_axis)
    deviation = graph.add("Sqrt", graph.add("Div", squares, lengths))
    return graph.add("Div", centered, graph.add("Add", deviation, 0.1))  # 0.1 as in list_scores


def _add_lengths(graph: OnnxGraph, mask: str) -> str:
    """The number of real items of each list, at least 1: ``[lists, 1, 1]``."""
    count = graph.add("ReduceSum", graph.add("Cast", mask, to=FLOAT), np.array([1]))
    return graph.add("Unsqueeze", graph.add("Max", count, 1.0), np.array([-1]))


def input_layer(layer: SimilarItems) -> tuple[np.ndarray, np.ndarray]:
    """The weights ``[w, size]`` and the bias ``[size]`` of the first layer of the attention."""
    return float32_array(layer.input_weight).T, float32_array(layer.input_bias)


def add_similar_items(layer: SimilarItems, graph: OnnxGraph, hidden: str, mask: str) -> str:
    """Add :class:`~rankgrad.models._similar_items.SimilarItems`, ``[lists, items, layer.width]``.

    Args:
        layer: the layer.
        graph: the graph that nodes are added to.
        hidden: ``[lists, items, size]``, the outputs of :func:`input_layer`, finite on padding.
        mask: ``[lists, items]``.
    """
    size = layer.value.out_features
    hidden = add_layers(nn.Sequential(*list(layer.hidden)[1:]), graph, hidden)

    def add_heads(linear: nn.Module) -> str:  # [lists, heads, items, d]
        flat = _add_layer(linear, graph, hidden)
        split = graph.reshape(flat, 0, 0, layer.heads, size // layer.heads)
        return graph.add("Transpose", split, perm=[0, 2, 1, 3])

    query, value = add_heads(layer.query), add_heads(layer.value)
    norm = graph.add("ReduceL2", query, np.array([-1]))
    query = graph.add("Div", query, graph.add("Max", norm, MIN_NORM))
    # In float64, so that copies of an item get equal scores
    query, value = (graph.add("Cast", name, to=DOUBLE) for name in (query, value))
    is_real, is_item_itself = graph.add("Unsqueeze", mask, np.array([1, 2])), _add_eye(graph, mask)
    products = graph.add("MatMul", query, graph.add("Transpose", query, perm=[0, 1, 3, 2]))
    is_other = graph.add("And", is_real, graph.add("Not", is_item_itself))
    similarity = graph.add("Where", is_other, products, np.array(-1.0))
    sharpness = float32_array(layer.log_sharpness.exp()).astype(np.float64)
    has_weight = graph.add("Or", is_real, is_item_itself)
    logits = graph.add(
        "Where", has_weight, graph.add("Mul", similarity, sharpness), np.array(-np.inf)
    )
    mean = graph.add("MatMul", graph.add("Softmax", logits, axis=-1), value)
    # With a column of -1, which is no more than any maximum, lists may be empty.
    padded = graph.add("Pad", similarity, np.array([0, 0, 0, 0, 0, 0, 0, 1]), np.array(-1.0))
    outputs = [graph.add("Sub", mean, value), graph.add("ReduceMax", padded, np.array([-1]))]
    by_item = [graph.add("Transpose", output, perm=[0, 2, 1, 3]) for output in outputs]
    difference = graph.reshape(by_item[0], 0, 0, size)
    largest = graph.reshape(by_item[1], 0, 0, layer.heads)
    return graph.add("Cast", graph.add("Concat", difference, largest, axis=-1), to=FLOAT)


def _add_eye(graph: OnnxGraph, mask: str) -> str:
    """Whether two items of a list are the same one, ``[items, items]``."""
    length = graph.add("Squeeze", graph.add("Shape", mask, start=1))
    positions = graph.add("Range", np.array(0), length, np.array(1))
    return graph.add("Equal", positions, graph.add("Unsqueeze", positions, np.array([-1])))


def _add_positions(network: ContextAwareNet, graph: OnnxGraph, mask: str) -> str:
    """The positional encoding, ``[lists, items, width]``; positions count real items only."""
    counted = graph.add("CumSum", graph.add("Cast", mask, to=INT64), np.array(1, np.int32))
    positions = graph.add("Max", graph.add("Sub", counted, np.array(1)), np.array(0))
    if network.positional == "learned":
        table = float32_array(network.position.weight)
        return graph.add("Gather", table, graph.add("Min", positions, np.array(len(table) - 1)))
    width = int(network.norm.normalized_shape[0])
    # As in models.context_aware._sinusoids
    i = torch.arange((width + 1) // 2)
    frequency = float32_array(torch.exp(-math.log(10000.0) * 2 * i / width))
    numbers = graph.add("Cast", graph.add("Unsqueeze", positions, np.array([-1])), to=FLOAT)
    angles = graph.add("Mul", numbers, frequency)
    both = graph.add("Concat", graph.add("Sin", angles), graph.add("Cos", angles), axis=-1)
    return graph.add("Slice", both, np.array([0]), np.array([width]), np.array([-1]))


def _add_attention_mask(graph: OnnxGraph, mask: str) -> str:
    """The mask that is added to attention logits, ``[lists, 1, 1, items]``.

    It is -inf on padding. In a list without items it is 0, as a softmax over -inf alone is NaN.
    """
    is_item = graph.add("Cast", mask, to=FLOAT)
    has_items = graph.add("Cast", graph.add("ReduceMax", is_item, np.array([1])), to=BOOL)
    attended = graph.add("Or", mask, graph.add("Not", has_items))
    added = graph.add("Where", attended, 0.0, float("-inf"))
    return graph.add("Unsqueeze", added, np.array([1, 2]))


def _add_block(block: Any, graph: OnnxGraph, items: str, attention_mask: str) -> str:
    """Add an encoder block of a ``ContextAwareNet``; return the name of the output.

    Items are ``[lists, items, width]``, and so is the output.
    """
    normalized = _add_layer(block.attention_norm, graph, items)
    size = block.mix.in_features // block.heads  # of a head

    def add_heads(linear: nn.Module, perm: list[int]) -> str:
        flat = _add_layer(linear, graph, normalized)
        return graph.add("Transpose", graph.reshape(flat, 0, 0, block.heads, size), perm=perm)

    query = add_heads(block.query, [0, 2, 1, 3])
    key = add_heads(block.key, [0, 2, 3, 1])  # transposed
    value = add_heads(block.value, [0, 2, 1, 3])
    scaled = graph.add("Mul", query, 1 / math.sqrt(size))
    scores = graph.add("Add", graph.add("MatMul", scaled, key), attention_mask)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = _add_layer(block.mix, graph, graph.reshape(mixed, 0, 0, block.mix.in_features))
    items = graph.add("Add", items, mixed)
    return graph.add("Add", items, add_layers(block.feed_forward, graph, items))


def _flatten_items(graph: OnnxGraph, values: str) -> str:
    """Reshape lists to flat items, ``[lists · items, features]``."""
    shape = graph.add("Shape", values, start=2)
    return graph.add("Reshape", values, graph.add("Concat", np.array([-1]), shape, axis=0))
