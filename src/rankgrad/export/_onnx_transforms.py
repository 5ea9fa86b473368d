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

# The normal quantile by Wichura's PPND7 (algorithm AS 241, 1988): a quotient of two polynomials
# near the center, and another one in the tails. Coefficients are those of the numerator, then those
# of the denominator, from the highest power down.
_CENTER = (
    [5.9109374720e1, 1.5929113202e2, 5.0434271938e1, 3.3871327179],
    [6.7187563600e1, 7.8757757664e1, 1.7895169469e1, 1.0],
)
_TAIL = (
    [1.7023821103e-1, 1.3067284816, 2.7568153900, 1.4234372777],
    [1.2021132975e-1, 7.3700164250e-1, 1.0],
)
_CENTER_HALF_WIDTH = 0.425  # |fraction - 1/2| up to which the center's quotient is used
_CENTER_SHIFT = 0.180625  # 0.425²: the center's quotient is in 0.180625 - (fraction - 1/2)²
_TAIL_SHIFT = 1.6  # the tails' quotient is in sqrt(-log(min(fraction, 1 - fraction))) - 1.6
_NORMAL_LIMIT = 5.1993  # to which the transform clips the normal quantile
_SMALLEST = 1e-9  # the lowest fraction; its quantile is beyond the limit
_MARGIN = 1e-6  # relative, above the errors of log1p and the normal quantile, which are up to 4e-7


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


def is_inexact(transform: transforms.Transform) -> bool:
    """Whether a transform's last digits in ONNX differ from PyTorch's: log1p, a normal quantile."""
    if isinstance(transform, transforms.Quantile):
        return transform.output == "normal"
    return isinstance(transform, transforms.Log1p)


@add_transform.register
def _(transform: transforms.Pipeline, graph: OnnxGraph, values: str) -> str:
    is_exact = True  # whether the values so far are those of PyTorch to the last digit
    for step in steps_of(transform):
        if isinstance(step, transforms.Quantile) and not is_exact:
            values = _add_rounding(step, graph, values)
        values = add_transform(step, graph, values)
        is_exact = is_exact and not is_inexact(step)
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
    # log1p(a) = log(u) a / (u - 1) with u = 1 + a (Kahan), or a itself where u rounds to 1
    a = graph.add("Abs", values)
    u = graph.add("Add", a, 1.0)
    difference = graph.add("Sub", u, 1.0)
    is_tiny = graph.add("Equal", difference, 0.0)
    quotient = graph.add("Div", a, graph.add("Where", is_tiny, 1.0, difference))
    log = graph.add("Mul", graph.add("Log", u), quotient)
    return graph.add("Mul", graph.add("Sign", values), graph.add("Where", is_tiny, a, log))


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
    knots, columns = Knots(transform.table.cpu().numpy()), _add_columns(transform, graph, values)
    fractions = _add_fractions(knots, graph, columns)
    if transform.output == "normal":
        fractions = _add_normal_quantile(graph, fractions)
    rows = graph.add("Transpose", fractions, perm=[1, 0])
    shaped = graph.reshape_as(rows, values)
    return graph.add("Where", graph.add("IsNaN", values), values, shaped)


def _add_rounding(transform: transforms.Quantile, graph: OnnxGraph, values: str) -> str:
    """Replace values next to a knot by the knot, ``[lists, items, features]``.

    The fraction of a knot that many training items have jumps, so a value that is this knot must
    not miss it by the rounding errors of an inexact transform before.
    """
    knots, columns = Knots(transform.table.cpu().numpy()), _add_columns(transform, graph, values)
    margin = graph.add("Mul", graph.add("Abs", columns), _MARGIN)
    count = _add_count(knots, graph, graph.add("Sub", columns, margin))
    knot = graph.add("GatherElements", _with_end(knots), count, axis=1)
    distance = graph.add("Abs", graph.add("Sub", knot, columns))
    rounded = graph.add("Where", graph.add("LessOrEqual", distance, margin), knot, columns)
    return graph.reshape_as(graph.add("Transpose", rounded, perm=[1, 0]), values)


def _add_columns(transform: transforms.Quantile, graph: OnnxGraph, values: str) -> str:
    """Reshape ``[lists, items, features]`` to ``[features, lists · items]``."""
    return graph.add("Transpose", graph.reshape(values, -1, transform.n_features), perm=[1, 0])


def _with_end(knots: Knots) -> np.ndarray:
    """The knots by the number of knots below a value, with infinity after the last."""
    return np.concatenate([knots.table, np.full((len(knots.table), 1), np.inf, np.float32)], 1)


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
    is_knot = graph.add("Equal", at(_with_end(knots)), columns)
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
    array: np.ndarray = tensor.detach().cpu().numpy().astype(np.float32)
    return array
