"""Products of a matrix and a vector, eight rows at a time: the inner loop of Sinkhorn scaling.

LLVM does not vectorize such a product over rows by itself, so this module writes the loop as LLVM
instructions on vectors of eight numbers, one AVX-512 register or two of AVX2.

A panel is eight rows of a matrix, stored column by column. ``panels [count + 1, 2]`` are the start
of each panel in the entries and its first column; the number of its columns is a multiple of
``UNROLLED``. Rows past the end of the matrix and columns past the end of a row are 0. Vectors have
zeros after their end, as far as panels read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankgrad.kernels.cpu._compiled import compiled
from rankgrad.kernels.cpu._flat_arrays import Array

PANEL = 8  # rows of a panel
UNROLLED = 4  # the number of a panel's columns is a multiple of it


@compiled
def panels_of(bands: Array) -> Array:
    """The panels of a matrix, from the first column and the end of the columns of each row."""
    n = bands.shape[1]
    count = (n + PANEL - 1) // PANEL
    panels = np.zeros((count + 1, 2), np.int64)
    for p in range(count):
        low, high = bands[0, PANEL * p], bands[1, min(PANEL * p + PANEL, n) - 1]
        columns = (high - low + UNROLLED - 1) // UNROLLED * UNROLLED
        panels[p, 1], panels[p + 1, 0] = low, panels[p, 0] + PANEL * columns
    return panels


def _multiply_panels(
    context: Any, entries: Any, panels: Any, vectors: Any, out: Any, scale: Any, added: Any
) -> Any:
    """Multiply panels by a vector ``[n]``, or by both rows of ``[2, n]``; write to ``out [2, n]``.

    Of the first product y the first row becomes ``1 / y``, or with a scale that is not empty
    ``-(y + added) scale²``. The inverse of 0, past the matrix's end, is 0. The second row becomes
    the second product or, of one vector, the first row times its place.
    """
    count, lane = vectors.ndim, ir.VectorType(ir.DoubleType(), PANEL)
    zeros, ones = (ir.Constant(lane, [number] * PANEL) for number in (0.0, 1.0))
    places = ir.Constant(lane, [float(place) for place in range(PANEL)])

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, zero, one = cgutils.intp_t, cgutils.intp_t(0), cgutils.intp_t(1)
        kinds = signature.args
        arrays = [
            target.make_array(kind)(target, builder, argument)
            for kind, argument in zip(kinds, arguments, strict=True)
        ]

        def pointer(which: int, *places: Any) -> Any:
            return cgutils.get_item_pointer(
                target, builder, kinds[which], arrays[which], list(places[-kinds[which].ndim :])
            )

        def lanes(which: int, *places: Any) -> Any:
            return builder.bitcast(pointer(which, *places), lane.as_pointer())

        def product(one_lane: Any, factor: Any) -> Any:
            return builder.fmul(one_lane, _broadcast(builder, factor, lane), flags=["contract"])

        rows = builder.sub(builder.extract_value(arrays[1].shape, 0), one)
        scaled = builder.icmp_signed(">", builder.extract_value(arrays[4].shape, 0), zero)
        sums = [cgutils.alloca_once(builder, lane) for _ in range(UNROLLED * count)]
        with cgutils.for_range(builder, rows) as loop:
            start, low = (builder.load(pointer(1, loop.index, place)) for place in (zero, one))
            end = builder.load(pointer(1, builder.add(loop.index, one), zero))
            columns = builder.sdiv(builder.sub(end, start), number(PANEL))
            first = lanes(0, start)
            factors = [pointer(2, number(row), low) for row in range(count)]
            for accumulator in sums:
                builder.store(zeros, accumulator)
            with cgutils.for_range_slice(builder, zero, columns, number(UNROLLED)) as (c, _):
                for i, accumulator in enumerate(sums):
                    column = builder.add(c, number(i // count))
                    entry = builder.load(builder.gep(first, [column]), align=8)
                    factor = builder.load(builder.gep(factors[i % count], [column]))
                    term = product(entry, factor)
                    added_up = builder.fadd(builder.load(accumulator), term, flags=["contract"])
                    builder.store(added_up, accumulator)
            y, *second = [_total(builder, sums[row::count]) for row in range(count)]
            at = builder.mul(loop.index, number(PANEL))
            with builder.if_else(scaled) as (then, otherwise):
                with then:
                    size = builder.load(lanes(4, at), align=8)
                    moved = builder.fneg(builder.fadd(y, builder.load(lanes(5, at), align=8)))
                    scaled_y = builder.fmul(builder.fmul(moved, size), size)
                    after_then = builder.block
                with otherwise:
                    inverse = builder.fdiv(ones, y)
                    inverse = builder.select(builder.fcmp_ordered("==", y, zeros), zeros, inverse)
                    after_otherwise = builder.block
            result = builder.phi(lane)
            result.add_incoming(scaled_y, after_then)
            result.add_incoming(inverse, after_otherwise)
            builder.store(result, lanes(3, zero, at), align=8)
            if not second:
                place = _broadcast(builder, builder.sitofp(at, ir.DoubleType()), lane)
                second = [builder.fmul(result, builder.fadd(place, places))]
            builder.store(second[0], lanes(3, one, at), align=8)
        return target.get_dummy_value()

    return types.void(entries, panels, vectors, out, scale, added), build


def _broadcast(builder: Any, number: Any, lane: Any) -> Any:
    """A vector register with this number at each place."""
    undefined, place = ir.Constant(lane, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(undefined, number, place(0))
    return builder.shuffle_vector(one, undefined, ir.VectorType(place, PANEL)([0] * PANEL))


def _total(builder: Any, sums: Any) -> Any:
    """The sum of the vector registers that are stored at ``sums``."""
    total, *rest = [builder.load(accumulator) for accumulator in sums]
    for term in rest:
        total = builder.fadd(total, term)
    return total


multiply_panels: Any = intrinsic(_multiply_panels)
