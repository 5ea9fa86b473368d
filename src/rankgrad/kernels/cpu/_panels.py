"""Products of a matrix and a vector, eight rows at a time: the inner loop of Sinkhorn scaling.

LLVM does not vectorize such a product over rows by itself, so this module writes the loop as LLVM
instructions on vectors of eight numbers, one AVX-512 register or two of AVX2.

A panel is eight rows of a matrix, stored column by column in the flat array ``entries``. Row p of
``panels [count + 1, 2]`` has the start of panel p in the entries, and its first column; the last
row has the end of the entries. A panel's first column and the number of its columns are multiples
of ``UNROLLED``. Vectors are rows of a block of memory, with zeros from their end up to a whole
number of panels. So entries past the end of the matrix may be any numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankgrad.kernels.cpu._compiled import compiled_borrowing
from rankgrad.kernels.cpu._flat_arrays import Array

PANEL = 8  # rows of a panel
UNROLLED = 4  # divides the first column of a panel and the number of its columns

#: Rows of a block: ``out``, where a product y is written, ``scale`` and ``added``. Written is
#: ``1 / y`` if ``scale`` is :data:`NO_ROW`, otherwise ``-(y + added) scale²``.
Product = tuple[int, int, int]
NO_ROW = -1

_REGISTER = ir.VectorType(ir.DoubleType(), PANEL)


def _constant(number: int) -> Any:
    """A vector register with this number at each place."""
    return ir.Constant(_REGISTER, [float(number)] * PANEL)


_ZEROS, _ONES = (_constant(number) for number in (0, 1))
_COUNTING = ir.Constant(_REGISTER, [float(place) for place in range(PANEL)])  # 0, ..., 7


@compiled_borrowing
def lay_panels(bands: Array, start: int, panels: Array) -> None:
    """Write the ``panels [count + 1, 2]`` of a matrix with n rows.

    Args:
        bands: ``[2, n]`` the first column of each row and the end of its columns, both ascending.
        start: that of the first panel in the entries.
        panels: ``[count + 1, 2]``, written.
    """
    panels[0, 0] = start
    for p in range(len(panels) - 1):
        low = bands[0, PANEL * p] // UNROLLED * UNROLLED
        high = bands[1, min(PANEL * p + PANEL, bands.shape[1]) - 1]
        columns = (high - low + UNROLLED - 1) // UNROLLED * UNROLLED
        panels[p, 1], panels[p + 1, 0] = low, panels[p, 0] + PANEL * columns


def _fill_panels(context: Any, entries: Any, panels: Any, points: Any, n: Any) -> Any:
    """Write the logits of a matrix K of n rows, and those of its transpose, to their entries.

    The logit of row r and column j is ``(n - 1 - 2r) (x_j - x_r) - (b_j - b_r)``. The panels of K
    and Kᵀ are ``[2, count + 1, 2]``; ``points [2, n or more]`` are x and b.
    """

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_entries, of_panels, of_points = _arrays(target, builder, signature, arguments)
        last = builder.sub(arguments[3], cgutils.intp_t(1))
        x, b = (_row(builder, of_points, cgutils.intp_t(i)) for i in range(2))

        def factor(row: Any) -> Any:
            return builder.fsub(_numbers(builder, last), builder.fadd(row, row))

        for matrix in range(2):
            panels_of_matrix = _each_panel(builder, of_entries, of_panels, cgutils.intp_t(matrix))
            with panels_of_matrix as (entry, low, columns, at):
                eight_x, eight_b = (
                    builder.load(_eight(builder, row, at), align=8) for row in (x, b)
                )
                eight_factors = factor(builder.fadd(_numbers(builder, at), _COUNTING))
                with cgutils.for_range(builder, columns) as loop:
                    c = builder.add(low, loop.index)
                    one_x, one_b = (
                        _broadcast(builder, builder.load(builder.gep(row, [c]))) for row in (x, b)
                    )
                    # The panel has eight rows of K, which the column c crosses, or eight columns.
                    if matrix == 0:
                        x_j, x_r, b_j, b_r, factors = one_x, eight_x, one_b, eight_b, eight_factors
                    else:
                        x_j, x_r, b_j, b_r = eight_x, one_x, eight_b, one_b
                        factors = factor(_numbers(builder, c))
                    scaled = builder.fmul(factors, builder.fsub(x_j, x_r))
                    logits = builder.fsub(scaled, builder.fsub(b_j, b_r))
                    builder.store(logits, builder.gep(entry, [loop.index]), align=8)
        return target.get_dummy_value()

    return types.void(entries, panels, points, n), build


def _multiply(with_moments: bool) -> Any:
    """The function that multiplies the panels of a matrix of n rows by a vector.

    It takes the entries, the panels of several matrices ``[matrices, count + 1, 2]``, the number of
    the matrix, n, the block, the row of the vector, a :data:`Product`, and the row of moments. It
    writes the product y to ``out``, in the form of :data:`Product`.

    With moments, the row after ``out`` becomes ``Σ_c (c - r) K_rc v_c`` for each row r, without the
    rounding errors of entries on the diagonal. Unless ``scale`` is :data:`NO_ROW`, it times
    ``scale``, plus ``out`` times the row after ``scale``, is added to the moments.
    """

    def multiply(
        context: Any,
        entries: Any,
        panels: Any,
        matrix: Any,
        n: Any,
        block: Any,
        vector: Any,
        product: Any,
        moments: Any,
    ) -> Any:
        def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            of_entries, of_panels, of_block = _arrays(target, builder, signature, arguments)
            _, _, matrix, n, _, vector, product, moments = arguments
            zero, step = cgutils.intp_t(0), cgutils.intp_t(UNROLLED)
            width = builder.extract_value(of_block.shape, 1)
            out, scale, added, vector, moments = (
                _row(builder, of_block, number)
                for number in (*cgutils.unpack_tuple(builder, product, 3), vector, moments)
            )
            scaled = builder.icmp_signed(">=", builder.extract_value(product, 1), zero)
            ends, contract = _numbers(builder, n), ["contract"]

            def load(row: Any) -> Any:
                return builder.load(_eight(builder, row, at), align=8)

            def store(numbers: Any, row: Any) -> None:
                builder.store(numbers, _eight(builder, row, at), align=8)

            def after(row: Any) -> Any:
                return builder.gep(row, [width])

            def fused(one: Any, other: Any, addend: Any) -> Any:
                product = builder.fmul(one, other, flags=contract)
                return builder.fadd(addend, product, flags=contract)

            # Independent sums, so that additions need not wait for each other: one for each of
            # UNROLLED columns.
            sums, weighted_sums = (
                [cgutils.alloca_once(builder, _REGISTER) for _ in range(UNROLLED)] for _ in range(2)
            )
            offsets = cgutils.alloca_once(builder, _REGISTER)  # c - r
            panels_of_matrix = _each_panel(builder, of_entries, of_panels, matrix)
            with panels_of_matrix as (entry, low, columns, at):
                index = builder.fadd(_numbers(builder, at), _COUNTING)
                builder.store(builder.fsub(_numbers(builder, low), index), offsets)
                for accumulator in (*sums, *weighted_sums):
                    builder.store(_ZEROS, accumulator)
                factors = builder.gep(vector, [low])
                with cgutils.for_range_slice(builder, zero, columns, step) as (c, _):
                    first_offsets = builder.load(offsets)
                    for i in range(UNROLLED):
                        column = [builder.add(c, cgutils.intp_t(i))]
                        eight = builder.load(builder.gep(entry, column), align=8)
                        factor = _broadcast(builder, builder.load(builder.gep(factors, column)))
                        term = builder.fmul(eight, factor, flags=contract)
                        total = builder.fadd(builder.load(sums[i]), term, flags=contract)
                        builder.store(total, sums[i])
                        if with_moments:
                            weight = builder.fadd(first_offsets, _constant(i), flags=["nsz"])
                            total = fused(weight, term, builder.load(weighted_sums[i]))
                            builder.store(total, weighted_sums[i])
                    builder.store(builder.fadd(first_offsets, _constant(UNROLLED)), offsets)
                y, second = (_total(builder, each) for each in (sums, weighted_sums))
                if with_moments:
                    store(second, after(out))
                with builder.if_else(scaled) as (then, otherwise):
                    with then:
                        scales = load(scale)
                        negated = builder.fneg(builder.fadd(y, load(added)))
                        result = builder.fmul(builder.fmul(negated, scales), scales)
                        if with_moments:
                            moment = fused(scales, second, load(moments))
                            store(fused(result, load(after(scale)), moment), moments)
                        store(result, out)
                    with otherwise:
                        inside = builder.fcmp_ordered("<", index, ends)
                        store(builder.select(inside, builder.fdiv(_ONES, y), _ZEROS), out)
            return target.get_dummy_value()

        return types.void(entries, panels, matrix, n, block, vector, product, moments), build

    return intrinsic(multiply)


def _arrays(target: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Those of the arguments that are arrays."""
    return [
        target.make_array(kind)(target, builder, argument)
        for kind, argument in zip(signature.args, arguments, strict=True)
        if isinstance(kind, types.Array)
    ]


@contextmanager
def _each_panel(builder: Any, entries: Any, panels: Any, matrix: Any) -> Iterator[Any]:
    """A loop over a matrix's panels: address of the entries, first column, columns, first row."""
    integer, bounds = cgutils.intp_t, builder.extract_value(panels.shape, 1)
    offset = builder.mul(matrix, bounds)
    with cgutils.for_range(builder, builder.sub(bounds, integer(1))) as loop:
        number = builder.mul(builder.add(offset, loop.index), integer(2))
        start, low, end = (
            builder.load(builder.gep(panels.data, [builder.add(number, integer(i))]))
            for i in range(3)
        )
        entry = _eight(builder, entries.data, start)
        columns = builder.udiv(builder.sub(end, start), integer(PANEL))
        yield entry, low, columns, builder.mul(loop.index, integer(PANEL))


def _row(builder: Any, array: Any, number: Any) -> Any:
    """The address of a row of an array ``[rows, width]``."""
    width = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.mul(number, width)])


def _eight(builder: Any, row: Any, at: Any) -> Any:
    """The address of eight numbers of a row."""
    return builder.bitcast(builder.gep(row, [at]), _REGISTER.as_pointer())


def _numbers(builder: Any, integer: Any) -> Any:
    """A vector register with this integer at each place."""
    return _broadcast(builder, builder.sitofp(integer, ir.DoubleType()))


def _broadcast(builder: Any, number: Any) -> Any:
    """A vector register with this number at each place."""
    undefined, index = ir.Constant(_REGISTER, ir.Undefined), ir.IntType(32)
    first_set = builder.insert_element(undefined, number, index(0))
    return builder.shuffle_vector(first_set, undefined, ir.VectorType(index, PANEL)([0] * PANEL))


def _total(builder: Any, sums: list[Any]) -> Any:
    """The sum of the vector registers that are stored at ``sums``, added in pairs."""
    terms = [builder.load(each) for each in sums]
    while len(terms) > 1:
        terms = [builder.fadd(*terms[i : i + 2]) for i in range(0, len(terms), 2)]
    return terms[0]


fill_panels: Any = intrinsic(_fill_panels)
multiply_panels, multiply_with_moments = _multiply(False), _multiply(True)
