"""Products of a matrix and a vector, eight rows at a time: the inner loop of Sinkhorn scaling.

LLVM does not vectorize such a product over rows by itself, so this module writes the loop as LLVM
instructions on vectors of eight numbers, one AVX-512 register or two of AVX2.

A panel is eight rows of a matrix, stored column by column in the flat array ``entries``. Row p of
``panels [count + 1, 2]`` has the start of panel p in the entries, and its first column; the last
row has the end of the entries. The number of a panel's columns is a multiple of ``UNROLLED``. Rows
past the end of the matrix and columns past the end of a row are 0. Vectors have zeros after their
end, as far as panels read.
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
    """The ``panels [count + 1, 2]`` of a matrix with n rows.

    Args:
        bands: ``[2, n]`` the first column of each row and the end of its columns, both ascending.
    """
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
    """Multiply panels by one vector or two, and write two rows to ``out [2, n]``.

    With the first product y, the first row of ``out`` becomes

    - ``1 / y`` if ``scale`` is empty; 0 where y is 0, which is past the matrix's end;
    - ``-(y + added) scale²`` otherwise.

    With two vectors, the second row becomes the second product, as it is. With one vector, it
    becomes the first row times the index of each number, ``0, ..., n - 1``. Both rows are
    written up to the end of the last panel.

    Args:
        context: Numba's typing context. Numba calls this function with the types of the other
            arguments; it returns the signature, and ``build``, which writes the instructions.
        entries: the entries of all panels, flat.
        panels: ``[count + 1, 2]``, see the module's docstring.
        vectors: ``[n]``, or two rows ``[2, n]``.
        out: ``[2, n]``.
        scale: ``[n]``, or empty.
        added: ``[n]``; not read if ``scale`` is empty.
    """
    n_vectors, register = vectors.ndim, ir.VectorType(ir.DoubleType(), PANEL)
    zeros, ones = (ir.Constant(register, [number] * PANEL) for number in (0.0, 1.0))
    counting = ir.Constant(register, [float(place) for place in range(PANEL)])  # 0, ..., 7

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer, zero, one = cgutils.intp_t, cgutils.intp_t(0), cgutils.intp_t(1)
        array_types = signature.args
        arrays = [
            target.make_array(array_type)(target, builder, argument)
            for array_type, argument in zip(array_types, arguments, strict=True)
        ]
        # Positions of the arguments.
        of_entries, of_panels, of_vectors, of_out, of_scale, of_added = range(6)

        def pointer(which: int, *index: Any) -> Any:
            """The address of an array's number; a flat array takes the last index only."""
            kind = array_types[which]
            return cgutils.get_item_pointer(
                target, builder, kind, arrays[which], list(index[-kind.ndim :])
            )

        def register_pointer(which: int, *index: Any) -> Any:
            """The address of eight numbers of an array."""
            return builder.bitcast(pointer(which, *index), register.as_pointer())

        def product(eight_entries: Any, factor: Any) -> Any:
            eight_factors = _broadcast(builder, factor, register)
            return builder.fmul(eight_entries, eight_factors, flags=["contract"])

        n_panels = builder.sub(builder.extract_value(arrays[of_panels].shape, 0), one)
        scaled = builder.icmp_signed(">", builder.extract_value(arrays[of_scale].shape, 0), zero)
        # Independent sums, so that additions need not wait for each other: of column c + i, for
        # i < UNROLLED, and vector v at n_vectors i + v.
        sums = [cgutils.alloca_once(builder, register) for _ in range(UNROLLED * n_vectors)]
        with cgutils.for_range(builder, n_panels) as loop:
            start, low = (
                builder.load(pointer(of_panels, loop.index, place)) for place in (zero, one)
            )
            end = builder.load(pointer(of_panels, builder.add(loop.index, one), zero))
            columns = builder.sdiv(builder.sub(end, start), integer(PANEL))
            first = register_pointer(of_entries, start)
            factors = [pointer(of_vectors, integer(row), low) for row in range(n_vectors)]
            for accumulator in sums:
                builder.store(zeros, accumulator)
            with cgutils.for_range_slice(builder, zero, columns, integer(UNROLLED)) as (c, _):
                for i, accumulator in enumerate(sums):
                    column = builder.add(c, integer(i // n_vectors))
                    entry = builder.load(builder.gep(first, [column]), align=8)
                    factor = builder.load(builder.gep(factors[i % n_vectors], [column]))
                    term = product(entry, factor)
                    added_up = builder.fadd(builder.load(accumulator), term, flags=["contract"])
                    builder.store(added_up, accumulator)
            y, *second = [_total(builder, sums[row::n_vectors]) for row in range(n_vectors)]
            at = builder.mul(loop.index, integer(PANEL))
            with builder.if_else(scaled) as (then, otherwise):
                with then:
                    scales = builder.load(register_pointer(of_scale, at), align=8)
                    addends = builder.load(register_pointer(of_added, at), align=8)
                    negated = builder.fneg(builder.fadd(y, addends))
                    scaled_y = builder.fmul(builder.fmul(negated, scales), scales)
                    after_then = builder.block
                with otherwise:
                    inverse = builder.fdiv(ones, y)
                    inverse = builder.select(builder.fcmp_ordered("==", y, zeros), zeros, inverse)
                    after_otherwise = builder.block
            result = builder.phi(register)
            result.add_incoming(scaled_y, after_then)
            result.add_incoming(inverse, after_otherwise)
            builder.store(result, register_pointer(of_out, zero, at), align=8)
            if not second:
                base = _broadcast(builder, builder.sitofp(at, ir.DoubleType()), register)
                second = [builder.fmul(result, builder.fadd(base, counting))]
            builder.store(second[0], register_pointer(of_out, one, at), align=8)
        return target.get_dummy_value()

    return types.void(entries, panels, vectors, out, scale, added), build


def _broadcast(builder: Any, number: Any, register: Any) -> Any:
    """A vector register of the type ``register`` with this number at each place."""
    undefined, index = ir.Constant(register, ir.Undefined), ir.IntType(32)
    first_set = builder.insert_element(undefined, number, index(0))
    return builder.shuffle_vector(first_set, undefined, ir.VectorType(index, PANEL)([0] * PANEL))


def _total(builder: Any, sums: Any) -> Any:
    """The sum of the vector registers that are stored at ``sums``."""
    total, *rest = [builder.load(accumulator) for accumulator in sums]
    for term in rest:
        total = builder.fadd(total, term)
    return total


multiply_panels: Any = intrinsic(_multiply_panels)
