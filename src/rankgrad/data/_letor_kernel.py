"""The LETOR parser's inner loop: bytes in, arrays out, compiled and free of the interpreter's lock.

A module apart from :mod:`rankgrad.data.letor`, so that Numba is imported only when a file is read.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator, no-any-return"

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from rankgrad._compilation import compile_cached
from rankgrad._shapes import Array

Unsigned = np.uint64

# Without Numba's check for a division by zero, as powers of ten are not zero.
_compiled = partial(compile_cached, nogil=True, error_model="numpy")
_inlined = partial(compile_cached, nogil=True, error_model="numpy", inline="always")

# How a block ended.
DONE, BAD_PAIR, BAD_ID, QID_EMPTY, QID_MISSING, QID_UNEXPECTED = 0, 1, 2, 3, 4, 5

# What a number is. A deferred one is left to Python, which rounds it correctly or refuses it.
DEFERRED, FINITE, INFINITE, MISSING = 0, 1, 2, 3

MAX_ID = 2**31 - 2  # what fits an int32 column index, as in scipy's sparse matrices

# Positions are unsigned throughout: a signed index would be checked for counting from the end.
# Numba makes a float of a signed and an unsigned number, so the small numbers are unsigned too.
_0, _1, _2, _3, _4, _8, _10, _48 = (Unsigned(n) for n in (0, 1, 2, 3, 4, 8, 10, 48))
_16, _32, _64, _TOP = (Unsigned(n) for n in (16, 32, 64, 63))
_MAX_ID = Unsigned(MAX_ID)

_EXACT = Unsigned(15)  # numbers of 15 digits, and powers of ten up to 1e22, are exact float64
_POWERS = np.array([float(f"1e{e}") for e in range(128)])
_TENS = np.array([10**e for e in range(9)], np.uint64)
_SLACK = 2.0**-49  # bounds the error of three float64 roundings and of digits past the 19th


# Eight bytes are read as one number, the first of them lowest, and worked on side by side.
_HIGH, _LOW = Unsigned(0x8080808080808080), Unsigned(0x7F7F7F7F7F7F7F7F)  # bits of each byte
_ONES, _POINTS = Unsigned(0x0101010101010101), Unsigned(0x2E2E2E2E2E2E2E2E)
_ZEROS, _SIXES = Unsigned(0x3030303030303030), Unsigned(0x0606060606060606)
_TO_HIGH = Unsigned(0x5F5F5F5F5F5F5F5F)  # added to a byte from 33 on, sets its highest bit
_UPPER = Unsigned(0xF0F0F0F0F0F0F0F0)
_PAIRS, _FOURS = Unsigned(0x00FF00FF00FF00FF), Unsigned(0x0000FFFF0000FFFF)
_BY_10, _BY_100 = Unsigned(10 * 2**8 + 1), Unsigned(100 * 2**16 + 1)
_BY_10000 = Unsigned(10000 * 2**32 + 1)

# " 1:", " 2:" and so on, as eight bytes, with which of them count and how many those are. Most
# files name every feature in every row, so which id comes next is known.
_N_NEXT = 1000
_NEXT_TEXTS = [f" {feature}:".encode() for feature in range(_N_NEXT)]
_NEXT = np.array([int.from_bytes(text, "little") for text in _NEXT_TEXTS], np.uint64)
_NEXT_LENGTHS = np.array([len(text) for text in _NEXT_TEXTS], np.uint64)
_NEXT_MASKS = np.array([2 ** (8 * len(text)) - 1 for text in _NEXT_TEXTS], np.uint64)
_NEXT_KNOWN = Unsigned(_N_NEXT)


def _count_zeros(context: Any, bits: Any) -> Any:
    """How many of the lowest bits are 0; 64 where all are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


_trailing_zeros: Any = intrinsic(_count_zeros)


def _load_eight(context: Any, text: Any, i: Any) -> Any:
    """The eight bytes at ``i`` in one load, wherever that is; the first of them lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        bits = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return bits if sys.byteorder == "little" else builder.bswap(bits)

    return numba.uint64(text, numba.uint64), generate


_eight: Any = intrinsic(_load_eight)


class Output(NamedTuple):
    """The arrays that :func:`parse` writes.

    Attributes:
        features: zeros, flat, ``n_columns`` to a row; the value of feature id ``f`` goes to column
            ``f``. Ids from ``n_columns`` on are counted and not stored.
        labels: one per row.
        starts: where each row's line starts.
        runs: ``(row, start, end)`` of each qid that differs from the row before.
        deferred: ``(start, cell)`` of each deferred number, in order; the cell of a label is
            ``-1 - row``.
        stamps: zeros, scratch space of ``n_columns``.
    """

    features: Array
    labels: Array
    starts: Array
    runs: Array
    deferred: Array
    stamps: Array


@_compiled
def _first_end(eight: Unsigned) -> Unsigned:
    """Where the first of eight bytes is that is a space, a line end or the like; 8 if none is."""
    return _trailing_zeros(~((eight & _LOW) + _TO_HIGH | eight) & _HIGH) >> _3


@_compiled
def _first_point(eight: Unsigned) -> Unsigned:
    """Where the first point of eight bytes is; 8 if there is none."""
    others = eight ^ _POINTS
    return _trailing_zeros(others - _ONES & ~others & _HIGH) >> _3


@_compiled
def _whole_number(digits: Unsigned) -> Unsigned:
    """The number with these eight digits, bytes from 0 to 9."""
    pairs = digits * _BY_10 >> _8 & _PAIRS
    fours = pairs * _BY_100 >> _16 & _FOURS
    return fours * _BY_10000 >> _32


@_inlined
def _short_decimal(text: Array, i: Unsigned) -> tuple[float, Unsigned, bool]:
    """The unsigned decimal at ``i``, where it ends, and whether it is one that is read here.

    That is one of up to eight digits before the point and eight after it, and of 15 in all. There
    is no loop and hardly a branch that depends on the text: a wrong guess of how long a number is
    would take longer than to read it.
    """
    eight = _eight(text, i)
    length, more = _first_end(eight), _first_end(_eight(text, i + _8))
    length += more if length == _8 else _0
    whole = min(_first_point(eight), length)
    places = length - whole - _1 if whole < length else _0
    end = i + length
    ended = text[end] == 32 or text[end] == 10
    no_point = whole == _8 and length > _8  # in the first eight bytes
    if not ended or whole == _0 or no_point or places > _8 or whole + places > _EXACT:
        return 0.0, i, False
    before = (eight ^ _ZEROS) << (_64 - _8 * whole)
    after = (_eight(text, i + whole + _1) ^ _ZEROS) << (_64 - _8 * places & _TOP)
    after = after if places else _0
    if (before | before + _SIXES | after | after + _SIXES) & _UPPER:
        return 0.0, i, False
    digits = _whole_number(before) * _TENS[places] + _whole_number(after)
    return np.float64(np.int64(digits)) / _POWERS[places], end, True


@_compiled
def _append_digits(text: Array, i: Unsigned, number: Unsigned) -> tuple[Unsigned, Unsigned]:
    """The number with the digits at ``i`` after its own, and where they end; a long one wraps."""
    d = text[i] - _48
    while d < _10:
        number = number * _10 + d
        i += _1
        d = text[i] - _48
    return number, i


@_compiled
def _long_decimal(text: Array, i: Unsigned) -> tuple[float, Unsigned, bool]:
    """As :func:`_short_decimal`, of 15 digits wherever its point is."""
    begin = i
    digits, i = _append_digits(text, i, _0)
    n_digits, scale = i - begin, _0
    if text[i] == 46:
        begin = i + _1
        digits, i = _append_digits(text, begin, digits)
        scale = i - begin
        n_digits += scale
    ended = text[i] == 32 or text[i] == 10
    if not ended or n_digits - _1 >= _EXACT:
        return 0.0, i, False
    return np.float64(np.int64(digits)) / _POWERS[scale], i, True


@_compiled
def count_lines(text: Array, size: int) -> int:
    """How many lines ``text[:size]`` has."""
    total = start = 0
    while start + 128 <= size:
        # Counts of a byte each, of which the compiler makes many in one instruction.
        count = np.uint8(0)
        for i in range(start, start + 128):
            count = np.uint8(count + np.uint8(text[i] == 10))
        total += int(count)
        start += 128
    for i in range(start, size):
        total += int(text[i] == 10)
    return total


@_compiled
def _decimal(text: Array, i: Unsigned, exponent: int) -> tuple[float, int]:
    """The float32 of the unsigned decimal at ``i``, and what it is.

    The first 19 digits times a power of ten are within ``_SLACK`` of the true value. Rounding is
    monotone: where both ends of that interval round to one float32, it is the float32 of the
    correctly rounded float64; otherwise the number is deferred.
    """
    digits = _0
    significant = 0
    scale = exponent
    point = False
    while True:
        d = text[i] - _48
        if d < _10:
            if significant < 19:
                digits = digits * _10 + d
                significant += digits != _0
                scale -= point
            else:
                scale += not point
        elif text[i] == 46:
            point = True
        else:
            break
        i += _1
    if digits == _0 or scale < -75:
        return 0.0, FINITE
    if scale > 45:
        return np.inf, INFINITE
    value = np.float64(digits)
    value = value * _POWERS[scale] if scale >= 0 else value / _POWERS[-scale]
    low = np.float32(value * (1.0 - _SLACK))
    if low != np.float32(value * (1.0 + _SLACK)):
        return 0.0, DEFERRED
    return np.float64(low), FINITE if low < np.inf else INFINITE


@_compiled
def _blank(c: int) -> bool:
    """White space as ``bytes.split`` knows it, less the line end."""
    return c == 32 or c == 9 or 11 <= c <= 13


@_compiled
def _token_end(text: Array, i: Unsigned) -> Unsigned:
    """Where the token at ``i`` ends."""
    while not (_blank(text[i]) or text[i] == 10 or text[i] == 35):
        i += _1
    return i


@_compiled
def _missing(text: Array, i: Unsigned, end: Unsigned) -> bool:
    """Whether ``text[i:end]`` is empty, ``?``, ``NA``, ``NaN`` or ``NULL``, in capitals or not."""
    length = end - i
    if length < _2:
        return bool(length == _0 or text[i] == 63)
    if (text[i] | 32) != 110 or length > _4:
        return False
    if length == _4:
        return bool(
            (text[i + _1] | 32) == 117 and (text[i + _2] | 32) == 108 and (text[i + _3] | 32) == 108
        )
    return bool((text[i + _1] | 32) == 97 and (length == _2 or (text[i + _2] | 32) == 110))


@_compiled
def _number(text: Array, i: Unsigned) -> tuple[float, Unsigned, int]:
    """The float32 of the token at ``i``, where it ends, and what it is."""
    end = _token_end(text, i)
    if _missing(text, i, end):
        return np.nan, end, MISSING
    negative = text[i] == 45
    if negative or text[i] == 43:
        i += _1
        if end - i == _3 and _missing(text, i, end):  # a NaN with a sign
            return np.nan, end, MISSING
    start = i
    points = _0
    while text[i] - _48 < _10 or text[i] == 46:
        points += text[i] == 46
        i += _1
    sure = points < _2 and i - start > points
    exponent = 0
    if (text[i] | 32) == 101:
        i += _1
        minus = text[i] == 45
        if minus or text[i] == 43:
            i += _1
        sure = sure and text[i] - _48 < _10
        while text[i] - _48 < _10:
            exponent = min(exponent * 10 + int(text[i] - _48), 1 << 40)
            i += _1
        exponent = -exponent if minus else exponent
    if i != end or not sure:
        return 0.0, end, DEFERRED
    value, kind = _decimal(text, start, exponent)
    return -value if negative else value, end, kind


@_compiled
def _next(text: Array, i: Unsigned) -> Unsigned:
    """Where the next token of the line starts, or the line ends."""
    while _blank(text[i]):
        i += _1
    if text[i] == 35:
        while text[i] != 10:
            i += _1
    return i


@_compiled
def _same(
    text: Array, start: Unsigned, end: Unsigned, other: Unsigned, other_end: Unsigned
) -> bool:
    """Whether two stretches of the text are the same."""
    if end - start != other_end - other:
        return False
    while start < end and text[start] == text[other]:
        start += _1
        other += _1
    return bool(start == end)


@_compiled
def _qid_follows(text: Array, i: Unsigned) -> bool:
    """Whether the text at ``i`` is ``qid:``."""
    letters = text[i] == 113 and text[i + _1] == 105 and text[i + _2] == 100
    return bool(letters and text[i + _3] == 58)


@_compiled
def _parse_usual_pairs(
    text: Array, i: Unsigned, features: Array, cells: Unsigned, least: Unsigned, width: Unsigned
) -> tuple[Unsigned, Unsigned]:
    """Store pairs as long as ids ascend from ``least`` to below ``width`` and decimals are short.

    Nearly all pairs of nearly all files are read here. It returns where the first other pair
    starts, and the ``least`` id then, which is never above ``width``.
    """
    while True:
        stop = i
        feature = least
        if least < _NEXT_KNOWN and _eight(text, i) & _NEXT_MASKS[least] == _NEXT[least]:
            i += _NEXT_LENGTHS[least]
        else:
            if text[i] == 32:
                i += _1
            begin = i
            feature, i = _append_digits(text, i, _0)
            if text[i] != 58 or i - begin - _1 > _10:
                return stop, least
            i += _1
        if feature - least >= width - least:
            return stop, least
        digit = text[i] - _48
        if digit < _10 and text[i + _1] == 32:  # a third of all values and more
            features[cells + feature] = np.float64(np.int64(digit))
            least = feature + _1
            i += _1
            continue
        negative = text[i] == 45
        i += Unsigned(negative)
        value, i, read = _short_decimal(text, i)
        if not read:
            value, i, read = _long_decimal(text, i)
            if not read:
                return stop, least
        features[cells + feature] = -value if negative else value
        least = feature + _1


@_compiled
def parse(
    text: Array, size: int, n_columns: int, with_qids: bool, output: Output
) -> tuple[int, int, tuple[int, int, int], tuple[Any, ...]]:
    """Parse ``text[:size]``, whole lines.

    Behind ``text[:size]`` there must be 32 bytes more, of any value.

    It returns how it ended and where, how many rows, runs and deferred numbers there are, and what
    was counted, in the order of ``rankgrad.data.letor._Counts``.
    """
    features, labels, starts, runs, deferred, stamps = output
    end, width = Unsigned(size), Unsigned(n_columns)
    rows = n_runs = n_deferred = unsorted = duplicates = not_finite = missing = 0
    unlabeled, unlabeled_at = 0, _0
    zeros, zero_at = 0, _0  # lines with a feature id 0
    above, above_at = _0, _0  # one above the highest id
    i = qid = qid_end = cells = _0
    status = DONE
    while i < end:
        line = i
        i = _next(text, i)
        if text[i] == 10:
            i += _1
            continue
        starts[rows] = line
        if _qid_follows(text, i):
            labels[rows] = 0.0
            if unlabeled == 0:
                unlabeled_at = line
            unlabeled += 1
        else:
            value, stop, kind = _number(text, i)
            labels[rows] = value
            if kind != FINITE:
                deferred[n_deferred, 0] = i
                deferred[n_deferred, 1] = -1 - rows
                n_deferred += 1
            i = _next(text, stop)

        if _qid_follows(text, i):
            start = i + _4
            stop = _token_end(text, start)
            if not with_qids or start == stop:
                status = QID_EMPTY if with_qids else QID_UNEXPECTED
                break
            if n_runs == 0 or not _same(text, start, stop, qid, qid_end):
                qid, qid_end = start, stop
                runs[n_runs, 0] = rows
                runs[n_runs, 1] = start
                runs[n_runs, 2] = stop
                n_runs += 1
            i = stop
        elif with_qids:
            status = QID_MISSING
            break

        first, first_deferred, first_not_finite, first_missing = i, n_deferred, not_finite, missing
        find_duplicates = zero = False
        least = min(_1, width)
        while True:
            i, least = _parse_usual_pairs(text, i, features, cells, least, width)
            i = _next(text, i)
            if text[i] == 10:
                break
            feature, start = _append_digits(text, i, _0)
            if text[start] != 58 or start - i - _1 > _10 or feature > _MAX_ID:
                status = BAD_ID if text[start] == 58 else BAD_PAIR
                break
            start += _1
            if not find_duplicates and (feature < least if feature else zero or least > _1):
                # Read the line again, pair by pair, and look for duplicate ids.
                find_duplicates = True
                least = width
                unsorted += 1
                i, n_deferred, not_finite = first, first_deferred, first_not_finite
                missing = first_missing
                continue
            if feature == _0 and not zero:
                zero, zero_at = True, line
                zeros += 1
            if feature >= above:
                above, above_at = feature + _1, line
            value, i, kind = _number(text, start)
            if find_duplicates and feature < width:
                if stamps[feature] == rows + 1:
                    duplicates += 1
                    kind = DEFERRED  # to be stored after any before it that is deferred
                stamps[feature] = rows + 1
            if kind == DEFERRED:
                deferred[n_deferred, 0] = start
                deferred[n_deferred, 1] = cells + feature
                n_deferred += 1
            elif feature < width:
                features[cells + feature] = value
            not_finite += kind == INFINITE
            missing += kind == MISSING
            if not find_duplicates:
                least = min(feature + _1, width)
        if not find_duplicates and least > max(above, _1):
            above, above_at = least, line
        if status != DONE:
            break
        i += _1
        rows += 1
        cells += width
    counts = unsorted, duplicates, not_finite, zeros, zero_at, above, above_at, missing
    return status, int(i), (rows, n_runs, n_deferred), (*counts, unlabeled, unlabeled_at)
