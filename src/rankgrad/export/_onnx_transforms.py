"""Transforms of features as ONNX nodes.

Functions take and return names of tensors in an :class:`~rankgrad.export._onnx_graph.OnnxGraph`.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch

from rankgrad.data import transforms
from rankgrad.data._quantile_kernel import Knots
from rankgrad.data.transforms import SplitColumns
from rankgrad.export._onnx_graph import DOUBLE, FLOAT, NoFormError, OnnxGraph

# The normal quantile by Wichura's PPND16 (algorithm AS 241, 1988): a quotient of two polynomials
# near the center, and another one in the tails. Coefficients are those of the numerator, then those
# of the denominator, from the highest power down.
# fmt: off
_CENTER = (
    [2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
     13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665],
    [5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
     5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0],
)
_TAIL = (
    [0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
     3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835],
    [1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
     0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0],
)
# fmt: on
_CENTER_HALF_WIDTH = 0.425  # |fraction - 1/2| up to which the center's quotient is used
_CENTER_SHIFT = 0.180625  # 0.425²: the center's quotient is in 0.180625 - (fraction - 1/2)²
_TAIL_SHIFT = 1.6  # the tails' quotient is in sqrt(-log(min(fraction, 1 - fraction))) - 1.6
_NORMAL_LIMIT = 5.1993  # to which the transform clips the normal quantile
_SMALLEST = 1e-9  # the lowest fraction; its quantile is beyond the limit


@singledispatch
def add_transform(transform: transforms.Transform, graph: OnnxGraph, values: str) -> str:
    """Add the nodes of a fitted transform.

    Args:
        transform: a fitted transform.
        graph: the graph that nodes are added to.
        values: the name of the input, ``[lists, items, features]``.

    Returns:
        The name of the output, ``[lists, items, outputs]``.

    Raises:
        NoFormError: there is no ONNX form of this transform.
    """
    raise NoFormError(
        f"the transform {transform} has no ONNX form: register one with "
        "rankgrad.export._onnx_transforms.add_transform.register, or train without it"
    )


def steps_of(pipeline: transforms.Pipeline | SplitColumns) -> list[transforms.Transform]:
    """The transforms of a pipeline; ``SplitColumns`` is a single step."""
    if isinstance(pipeline, SplitColumns):
        return [pipeline]
    return [step for step in pipeline.steps if isinstance(step, transforms.Transform)]


@add_transform.register
def _(transform: transforms.Pipeline, graph: OnnxGraph, values: str) -> str:
    for step in steps_of(transform):
        values = add_transform(step, graph, values)
    return values


@add_transform.register
def _(transform: SplitColumns, graph: OnnxGraph, values: str) -> str:
    sizes = np.array(transform.sizes)  # the number of categories of each feature; 0 for numbers
    numbers = graph.add("Gather", values, np.flatnonzero(sizes == 0), axis=-1)
    codes = graph.add("Gather", values, np.flatnonzero(sizes), axis=-1)
    # Row 0 of an embedding table is for missing categories.
    rows = graph.add("Where", graph.add("IsNaN", codes), 0.0, graph.add("Add", codes, 1.0))
    return graph.add("Concat", add_transform(transform.numbers, graph, numbers), rows, axis=-1)


@add_transform.register
def _(transform: transforms.Standardize, graph: OnnxGraph, values: str) -> str:
    centered = graph.add("Sub", values, float32_array(transform.mean))
    return graph.add("Div", centered, float32_array(transform.deviation))


@add_transform.register
def _(transform: transforms.Log1p, graph: OnnxGraph, values: str) -> str:
    # In float64, then rounded, as in the transform:
    # log1p(a) = log(u) a / (u - 1) with u = 1 + a (Kahan), or a itself where u rounds to 1
    doubles, zero, one = graph.add("Cast", values, to=DOUBLE), np.array(0.0), np.array(1.0)
    a = graph.add("Abs", doubles)
    u = graph.add("Add", a, one)
    difference = graph.add("Sub", u, one)
    is_tiny = graph.add("Equal", difference, zero)
    quotient = graph.add("Div", a, graph.add("Where", is_tiny, one, difference))
    log = graph.add("Where", is_tiny, a, graph.add("Mul", graph.add("Log", u), quotient))
    return graph.add("Cast", graph.add("Mul", graph.add("Sign", doubles), log), to=FLOAT)


@add_transform.register
def _(transform: transforms.Clip, graph: OnnxGraph, values: str) -> str:
    # By comparisons, because the operator Clip need not preserve NaN
    low, high = float32_array(transform.low), float32_array(transform.high)
    raised = graph.add("Where", graph.add("Less", values, low), low, values)
    return graph.add("Where", graph.add("Greater", raised, high), high, raised)


@add_transform.register
def _(transform: transforms.Impute, graph: OnnxGraph, values: str) -> str:
    missing = graph.add("IsNaN", values)
    constants = float32_array(transform.values)
    filled = graph.add("Where", missing, constants, values)
    if transform.weights.numel():
        # In float64, then rounded, as in the transform
        means = constants.astype(np.float64)
        weights = float32_array(transform.weights).astype(np.float64)
        centered = graph.add("Sub", graph.add("Cast", filled, to=DOUBLE), means)
        predicted = graph.add("Add", graph.add("MatMul", centered, weights), means)
        filled = graph.add("Where", missing, graph.add("Cast", predicted, to=FLOAT), values)
    if not len(transform.indicated):
        return filled
    indicators = graph.add("Gather", missing, transform.indicated.cpu().numpy(), axis=-1)
    return graph.add("Concat", filled, graph.add("Cast", indicators, to=FLOAT), axis=-1)


@add_transform.register
def _(transform: transforms.DropConstant, graph: OnnxGraph, values: str) -> str:
    if transform.n_outputs == transform.n_features:
        return values
    return graph.add("Gather", values, transform.kept.cpu().numpy(), axis=-1)


@add_transform.register
def _(transform: transforms.Quantile, graph: OnnxGraph, values: str) -> str:
    knots = Knots(transform.table.cpu().numpy())
    items = graph.reshape(values, -1, transform.n_features)
    columns = graph.add("Transpose", items, perm=[1, 0])  # [features, lists · items]
    fractions = _add_fractions(knots, graph, columns)
    if transform.output == "normal":
        fractions = _add_normal_quantile(graph, fractions)
    shaped = graph.reshape_as(graph.add("Transpose", fractions, perm=[1, 0]), values)
    return graph.add("Where", graph.add("IsNaN", values), values, shaped)


def _add_count(knots: Knots, graph: OnnxGraph, columns: str) -> str:
    """The number of knots below each value, ``[features, items]``: a binary search, bit by bit."""
    table = graph.constant(knots.table)
    half = 1 << knots.width - 1
    is_above_half = graph.add("Less", knots.table[:, half - 1 : half], columns)
    count = graph.add("Where", is_above_half, np.array(half, np.int32), np.array(0, np.int32))
    for power in reversed(range(knots.width - 1)):
        step = 1 << power
        probe = graph.add("Add", count, np.array(step - 1, np.int32))
        knot = graph.add("GatherElements", table, probe, axis=1)
        larger = graph.add("Add", count, np.array(step, np.int32))
        count = graph.add("Where", graph.add("Less", knot, columns), larger, count)
    return count


def _add_fractions(knots: Knots, graph: OnnxGraph, columns: str) -> str:
    """The fractions of the training data below values, both ``[features, items]``.

    They are interpolated as :class:`~rankgrad.data._quantile_kernel.Knots` says.
    """
    count = _add_count(knots, graph, columns)

    def at(values: np.ndarray) -> str:
        """Each feature's entry at ``count``, from a table ``[features, counts]``."""
        return graph.add("GatherElements", values, count, axis=1)

    scaled = graph.add("Mul", columns, knots.scale) if (knots.scale < 1).any() else columns
    distance = graph.add("Sub", scaled, at(knots.below))
    position = graph.add("Add", at(knots.index), graph.add("Div", distance, at(knots.spacing)))
    fraction = graph.add("Div", position, float(knots.last))
    with_end = np.pad(knots.table, [(0, 0), (0, 1)], constant_values=np.inf)
    is_knot = graph.add("Equal", at(with_end), columns)
    return graph.add("Where", is_knot, at(knots.middle), fraction)


def _add_normal_quantile(graph: OnnxGraph, fractions: str) -> str:
    """The normal quantile by Wichura's quotients, in float64, clipped as in the transform."""
    fraction = graph.add("Cast", fractions, to=DOUBLE)
    fraction = graph.add("Clip", fraction, np.array(_SMALLEST), np.array(1 - _SMALLEST))
    middle = graph.add("Sub", fraction, np.array(0.5))
    inner = graph.add("Sub", np.array(_CENTER_SHIFT), graph.add("Mul", middle, middle))
    center = graph.add("Mul", middle, _add_ratio(graph, inner, *_CENTER))
    tail = graph.add("Min", fraction, graph.add("Sub", np.array(1.0), fraction))
    root = graph.add("Sqrt", graph.add("Neg", graph.add("Log", tail)))
    outer = _add_ratio(graph, graph.add("Sub", root, np.array(_TAIL_SHIFT)), *_TAIL)
    outer = graph.add("Mul", graph.add("Sign", middle), outer)
    near = graph.add("LessOrEqual", graph.add("Abs", middle), np.array(_CENTER_HALF_WIDTH))
    normal = graph.add("Cast", graph.add("Where", near, center, outer), to=FLOAT)
    limit = np.array(_NORMAL_LIMIT, np.float32)
    return graph.add("Clip", normal, np.negative(limit), limit)


def _add_ratio(graph: OnnxGraph, value: str, top: list[float], bottom: list[float]) -> str:
    """The quotient of two polynomials, by Horner's method."""

    def polynomial(coefficients: list[float]) -> str:
        total: str = graph.constant(np.array(coefficients[0]))
        for coefficient in coefficients[1:]:
            total = graph.add("Add", graph.add("Mul", total, value), np.array(coefficient))
        return total

    return graph.add("Div", polynomial(top), polynomial(bottom))


def float32_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as a float32 array."""
    return np.array(tensor.detach().cpu().numpy(), np.float32)
