"""The compiled inner loop of the LETOR parser: bytes in, arrays out, without Python's GIL.

:mod:`rankgrad.data.letor` calls :func:`parse` for each block of lines, and imports this module only
when a file is read, because importing Numba takes time.

Nearly all pairs ``id:value`` of real files have ascending ids and short decimals. The fast path for
these, :func:`_parse_usual_pairs`, reads eight bytes at a time and almost without branches (SWAR,
"SIMD within a register"). All other pairs are read byte by byte in :func:`parse`. A number that
float64 arithmetic might round wrongly, or that is malformed, is *deferred*: Python parses it later.
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

# NumPy's error model omits the check for division by zero: all divisors here are powers of ten.
_compiled = partial(compile_cached, nogil=True, error_model="numpy")
_inlined = partial(compile_cached, nogil=True, error_model="numpy", inline="always")

# The status of :func:`parse`: why it stopped. ``letor._problem_text`` has the messages.
DONE, BAD_PAIR, BAD_ID, QID_EMPTY, QID_MISSING, QID_UNEXPECTED = 0, 1, 2, 3, 4, 5

# The kind of a number. A deferred one is left to Python, which rounds it correctly or rejects it.
DEFERRED, FINITE, INFINITE, MISSING = 0, 1, 2, 3

MAX_ID = 2**31 - 2  # the number of columns fits an int32, as in SciPy's sparse matrices

_LINE_FEED, _SPACE, _HASH, _PLUS, _MINUS, _POINT, _COLON, _QUESTION = b"\n #+-.:?"
_A, _D, _E, _I, _L, _N, _Q, _U = b"adeilnqu"
_CASE_BIT = 32  # set in lower-case letters

# Positions are unsigned, because Numba checks whether signed indices are negative. Constants added
# to them are unsigned too, because Numba converts the sum of int64 and uint64 to float64.
_0, _1, _2, _3, _4, _8, _10, _CHAR_0 = (Unsigned(n) for n in (0, 1, 2, 3, 4, 8, 10, 48))
_16, _32, _63, _64 = (Unsigned(n) for n in (16, 32, 63, 64))
_MAX_ID = Unsigned(MAX_ID)

# Integers of up to 15 digits, and powers of ten up to 1e22, are exact in float64. So the quotient
# of two of them is correctly rounded.
_EXACT_DIGITS = Unsigned(15)
_POWERS = np.array([float(f"1e{e}") for e in range(76)])  # _parse_decimal uses all of them
_INTEGER_POWERS = np.array([10**e for e in range(9)], np.uint64)
# Bounds the relative error of _parse_decimal: three roundings, and no digits past the 19th.
_SLACK = 2.0**-49


# A word is eight bytes of text as one integer, whose lowest byte is the first of the text. The
# constants below repeat one value in each byte (or pair, or four bytes).
_HIGH, _LOW = Unsigned(0x8080808080808080), Unsigned(0x7F7F7F7F7F7F7F7F)  # top bit, the rest
_ONES, _POINTS = Unsigned(0x0101010101010101), Unsigned(0x2E2E2E2E2E2E2E2E)
_ZEROS, _SIXES = Unsigned(0x3030303030303030), Unsigned(0x0606060606060606)
_ABOVE_SPACE = Unsigned(0x5F5F5F5F5F5F5F5F)  # added to a byte above 32, sets its highest bit
_HIGH_NIBBLES = Unsigned(0xF0F0F0F0F0F0F0F0)
_PAIRS, _FOURS = Unsigned(0x00FF00FF00FF00FF), Unsigned(0x0000FFFF0000FFFF)
# If a and b are neighboring bytes of a word, its product with _BY_10 has 10 a + b in the place of
# b. _BY_100 does the same for pairs of bytes, and _BY_10000 for fours.
_BY_10, _BY_100 = Unsigned(10 * 2**8 + 1), Unsigned(100 * 2**16 + 1)
_BY_10000 = Unsigned(10000 * 2**32 + 1)

# Most files name every feature in every row, so the next id is usually the last one plus 1. One
# comparison of words recognizes it: " 1:", " 2:" and so on as words, the masks of their bytes, and
# their lengths.
_N_IDS = 1000
_ID_TEXTS = [f" {feature}:".encode() for feature in range(_N_IDS)]
_ID_WORDS = np.array([int.from_bytes(text, "little") for text in _ID_TEXTS], np.uint64)
_ID_LENGTHS = np.array([len(text) for text in _ID_TEXTS], np.uint64)
_ID_MASKS = np.array([2 ** (8 * len(text)) - 1 for text in _ID_TEXTS], np.uint64)
_ID_LIMIT = Unsigned(_N_IDS)


def _make_trailing_zeros(context: Any, bits: Any) -> Any:
    """Numba intrinsic: the number of zero bits below the lowest set bit; 64 if no bit is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return numba.uint64(numba.uint64), generate


_trailing_zeros: Any = intrinsic(_make_trailing_zeros)


def _make_load_word(context: Any, text: Any, i: Any) -> Any:
    """Numba intrinsic: the word at position ``i`` of the text, in one unaligned load."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        bits = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        return bits if sys.byteorder == "little" else builder.bswap(bits)

    return numba.uint64(text, numba.uint64), generate


_load_word: Any = intrinsic(_make_load_word)


class Output(NamedTuple):
    """The arrays that :func:`parse` fills, from the start; it returns how far.

    Attributes:
        features: ``[lines * n_columns]`` float32, zeros at first. The value of feature id ``f`` of
            row ``r`` is written to the cell ``r * n_columns + f``. Ids from ``n_columns`` on are
            counted, but not stored.
        labels: ``[lines]`` float32.
        starts: ``[lines]`` int64: where each row's line starts in the text.
        runs: ``[lines, 3]`` int64: ``(row, start, end)`` for each row whose qid differs from that
            of the row before, with the position of the qid in the text.
        deferred: ``[size // 2 + 1, 2]`` int64: ``(start, cell)`` of each deferred number, in the
            order of the text; the cell of a label is ``-1 - row``.
        stamps: ``[n_columns]`` int64, zeros at first: scratch space. It holds 1 + the last row that
            had each feature.
    """

    features: Array
    labels: Array
    starts: Array
    runs: Array
    deferred: Array
    stamps: Array


@_compiled
def _first_space(word: Unsigned) -> Unsigned:
    """The index of the word's first byte of at most 32 (white space); 8 if there is none."""
    return _trailing_zeros(~((word & _LOW) + _ABOVE_SPACE | word) & _HIGH) >> _3


@_compiled
def _first_point(word: Unsigned) -> Unsigned:
    """The index of the word's first ``.``; 8 if there is none."""
    difference = word ^ _POINTS  # a byte is 0 where the text has a point
    return _trailing_zeros(difference - _ONES & ~difference & _HIGH) >> _3


@_compiled
def _whole_number(digits: Unsigned) -> Unsigned:
    """The number whose eight digits, from 0 to 9, are the bytes of a word."""
    pairs = digits * _BY_10 >> _8 & _PAIRS
    fours = pairs * _BY_100 >> _16 & _FOURS
    return fours * _BY_10000 >> _32


@_inlined
def _parse_short_decimal(text: Array, i: Unsigned) -> tuple[float, Unsigned, bool]:
    """Parse the unsigned decimal at ``i``; return its value, its end, and whether it was parsed.

    It is parsed if it has up to eight digits and no point, or up to seven digits before the point
    and up to eight after it. So it has at most ``_EXACT_DIGITS``. There is no loop and hardly a
    branch that depends on the text: a branch misprediction takes longer than reading the number.
    """
    word = _load_word(text, i)
    length, more = _first_space(word), _first_space(_load_word(text, i + _8))
    length += more if length == _8 else _0
    whole = min(_first_point(word), length)  # the number of digits before the point
    places = length - whole - _1 if whole < length else _0
    end = i + length
    ended = text[end] == _SPACE or text[end] == _LINE_FEED
    is_long = whole == _8 and length > _8  # no point in the first eight bytes
    if not ended or whole == _0 or is_long or places > _8:
        return 0.0, i, False
    # The digits before and after the point as bytes from 0 to 9, with zeros in front of them.
    before = (word ^ _ZEROS) << (_64 - _8 * whole)
    after = (_load_word(text, i + whole + _1) ^ _ZEROS) << (_64 - _8 * places & _63)
    after = after if places else _0  # without places, the shift by 64 became one by 0
    if (before | before + _SIXES | after | after + _SIXES) & _HIGH_NIBBLES:  # a byte is above 9
        return 0.0, i, False
    digits = _whole_number(before) * _INTEGER_POWERS[places] + _whole_number(after)
    return np.float64(np.int64(digits)) / _POWERS[places], end, True


@_compiled
def _append_digits(text: Array, i: Unsigned, number: Unsigned) -> tuple[Unsigned, Unsigned]:
    """Append the digits at ``i`` to a number; return it and where they end. Overflow wraps."""
    d = text[i] - _CHAR_0
    while d < _10:
        number = number * _10 + d
        i += _1
        d = text[i] - _CHAR_0
    return number, i


@_compiled
def _parse_long_decimal(text: Array, i: Unsigned) -> tuple[float, Unsigned, bool]:
    """As :func:`_parse_short_decimal`, for up to 15 digits with the point anywhere."""
    begin = i
    digits, i = _append_digits(text, i, _0)
    n_digits, scale = i - begin, _0
    if text[i] == _POINT:
        begin = i + _1
        digits, i = _append_digits(text, begin, digits)
        scale = i - begin
        n_digits += scale
    ended = text[i] == _SPACE or text[i] == _LINE_FEED
    if not ended or n_digits - _1 >= _EXACT_DIGITS:  # none, as 0 - 1 wraps, or too many
        return 0.0, i, False
    return np.float64(np.int64(digits)) / _POWERS[scale], i, True


@_compiled
def _parse_decimal(text: Array, i: Unsigned, exponent: int) -> tuple[float, int]:
    """Parse the unsigned decimal at ``i`` times ``10**exponent`` as float32; return value and kind.

    The first 19 digits times a power of ten are within ``_SLACK`` of the true value. Rounding is
    monotone: if both ends of that interval round to the same float32, the correctly rounded float64
    rounds to it too. Otherwise the number is deferred.
    """
    digits = _0
    significant = 0  # digits from the first nonzero one on
    scale = exponent
    point = False  # whether the point was read
    while True:
        d = text[i] - _CHAR_0
        if d < _10:
            if significant < 19:
                digits = digits * _10 + d
                significant += digits != _0
                scale -= point
            else:
                scale += not point
        elif text[i] == _POINT:
            point = True
        else:
            break
        i += _1
    if digits == _0 or scale < -75:  # less than 1e19 * 1e-75, which is 0 in float32
        return 0.0, FINITE
    if scale > 45:  # more than 1e45, which is infinite in float32
        return np.inf, INFINITE
    value = np.float64(digits)
    value = value * _POWERS[scale] if scale >= 0 else value / _POWERS[-scale]
    low = np.float32(value * (1.0 - _SLACK))
    if low != np.float32(value * (1.0 + _SLACK)):
        return 0.0, DEFERRED
    return np.float64(low), FINITE if low < np.inf else INFINITE


@_compiled
def _is_blank(c: int) -> bool:
    """Whether a byte is white space, as for ``bytes.split``, except for the line feed."""
    return c == 32 or c == 9 or 11 <= c <= 13


@_compiled
def _token_end(text: Array, i: Unsigned) -> Unsigned:
    """The end of the token at ``i``."""
    while not (_is_blank(text[i]) or text[i] == _LINE_FEED or text[i] == _HASH):
        i += _1
    return i


@_compiled
def _is_letter(byte: int, letter: int) -> bool:
    """Whether a byte is this letter, in lower or upper case."""
    return bool((byte | _CASE_BIT) == letter)


@_compiled
def _is_missing(text: Array, i: Unsigned, end: Unsigned) -> bool:
    """Whether ``text[i:end]`` is empty, ``?``, or na, nan or null in upper or lower case."""
    length = end - i
    if length < _2:
        return bool(length == _0 or text[i] == _QUESTION)
    if not _is_letter(text[i], _N) or length > _4:
        return False
    if length == _4:
        ends_in_ll = _is_letter(text[i + _2], _L) and _is_letter(text[i + _3], _L)
        return _is_letter(text[i + _1], _U) and ends_in_ll
    return _is_letter(text[i + _1], _A) and (length == _2 or _is_letter(text[i + _2], _N))


@_compiled
def _parse_number(text: Array, i: Unsigned) -> tuple[float, Unsigned, int]:
    """Parse the token at ``i`` as float32; return its value, its end, and the kind of number."""
    end = _token_end(text, i)
    if _is_missing(text, i, end):
        return np.nan, end, MISSING
    negative = text[i] == _MINUS
    if negative or text[i] == _PLUS:
        i += _1
        if end - i == _3 and _is_missing(text, i, end):  # a NaN with a sign
            return np.nan, end, MISSING
    start = i  # of the digits
    points = _0
    while text[i] - _CHAR_0 < _10 or text[i] == _POINT:
        points += text[i] == _POINT
        i += _1
    is_valid = points < _2 and i - start > points
    exponent = 0
    if _is_letter(text[i], _E):
        i += _1
        minus = text[i] == _MINUS
        if minus or text[i] == _PLUS:
            i += _1
        is_valid = is_valid and text[i] - _CHAR_0 < _10
        while text[i] - _CHAR_0 < _10:
            # The bound keeps it from overflowing.
            exponent = min(exponent * 10 + int(text[i] - _CHAR_0), 1 << 40)
            i += _1
        exponent = -exponent if minus else exponent
    if i != end or not is_valid:
        return 0.0, end, DEFERRED
    value, kind = _parse_decimal(text, start, exponent)
    return -value if negative else value, end, kind


@_compiled
def _skip_to_token(text: Array, i: Unsigned) -> Unsigned:
    """Skip blanks and a comment; return where the next token starts, or the line feed."""
    while _is_blank(text[i]):
        i += _1
    if text[i] == _HASH:
        while text[i] != _LINE_FEED:
            i += _1
    return i


@_compiled
def _equal(
    text: Array, start: Unsigned, end: Unsigned, other: Unsigned, other_end: Unsigned
) -> bool:
    """Whether ``text[start:end]`` and ``text[other:other_end]`` are equal."""
    if end - start != other_end - other:
        return False
    while start < end and text[start] == text[other]:
        start += _1
        other += _1
    return bool(start == end)


@_compiled
def _is_qid(text: Array, i: Unsigned) -> bool:
    """Whether the text at ``i`` is ``qid:``."""
    letters = text[i] == _Q and text[i + _1] == _I and text[i + _2] == _D
    return bool(letters and text[i + _3] == _COLON)


@_compiled
def _parse_usual_pairs(
    text: Array, i: Unsigned, features: Array, base: Unsigned, min_id: Unsigned, width: Unsigned
) -> tuple[Unsigned, Unsigned]:
    """The fast path: store the values of pairs, from ``i`` on, until one is not usual.

    A usual pair has an id of at least ``min_id`` and below ``width``, where ``min_id`` is one above
    the id before, and a decimal of at most 15 digits.

    Args:
        text: as in :func:`parse`.
        i: the end of the token before the pair; without qids, also the start of the row's first.
        features: as in :class:`Output`.
        base: the cell of the row's feature id 0.
        min_id: the lowest id that is in order.
        width: the number of columns; at least ``min_id``.

    Returns:
        Where the first pair that is not usual, or the end of the line, starts; and ``min_id``
        there, which is never above ``width``.
    """
    while True:
        stop = i
        feature = min_id
        if min_id < _ID_LIMIT and _load_word(text, i) & _ID_MASKS[min_id] == _ID_WORDS[min_id]:
            i += _ID_LENGTHS[min_id]
        else:
            if text[i] == _SPACE:
                i += _1
            begin = i
            feature, i = _append_digits(text, i, _0)
            if text[i] != _COLON or i - begin - _1 > _10:  # not from 1 to 11 digits
                return stop, min_id
            i += _1
        if feature - min_id >= width - min_id:  # also below min_id: the difference wraps
            return stop, min_id
        digit = text[i] - _CHAR_0
        if digit < _10 and text[i + _1] == _SPACE:  # a single digit: over a third of all values
            features[base + feature] = np.float64(np.int64(digit))
            min_id = feature + _1
            i += _1
            continue
        negative = text[i] == _MINUS
        i += Unsigned(negative)
        value, i, is_parsed = _parse_short_decimal(text, i)
        if not is_parsed:
            value, i, is_parsed = _parse_long_decimal(text, i)
            if not is_parsed:
                return stop, min_id
        features[base + feature] = -value if negative else value
        min_id = feature + _1


@_compiled
def count_lines(text: Array, size: int) -> int:
    """The number of lines of ``text[:size]``."""
    total = start = 0
    while start + 128 <= size:
        # The count of 128 bytes fits in a byte, so that the compiler vectorizes the loop.
        count = np.uint8(0)
        for i in range(start, start + 128):
            count = np.uint8(count + np.uint8(text[i] == _LINE_FEED))
        total += int(count)
        start += 128
    for i in range(start, size):
        total += int(text[i] == _LINE_FEED)
    return total


@_compiled
def parse(
    text: Array, size: int, n_columns: int, with_qids: bool, output: Output
) -> tuple[int, int, tuple[int, int, int], tuple[Any, ...]]:
    """Parse ``text[:size]``, which is whole lines.

    Args:
        text: uint8; after ``size`` it has 32 bytes more, of any value, which may be read.
        size: the number of bytes of the lines.
        n_columns: one above the highest feature id that is stored.
        with_qids: whether rows have qids.
        output: the arrays to fill.

    Returns:
        The status; the position where parsing stopped; how many rows, runs and deferred numbers
        there are; and the fields of ``rankgrad.data.letor._Counts``.
    """
    features, labels, starts, runs, deferred, stamps = output
    end, width = Unsigned(size), Unsigned(n_columns)
    rows = n_runs = n_deferred = unsorted = duplicates = infinite = missing = 0
    unlabeled, unlabeled_at = 0, _0
    zero_rows, zero_at = 0, _0
    id_bound, id_bound_at = _0, _0  # one above the highest id, and the first line with it
    i = qid = qid_end = base = _0
    status = DONE
    while i < end:
        line = i  # where it starts
        i = _skip_to_token(text, i)
        if text[i] == _LINE_FEED:
            i += _1
            continue
        starts[rows] = line
        # The label, which may be left out.
        if _is_qid(text, i):
            labels[rows] = 0.0
            if unlabeled == 0:
                unlabeled_at = line
            unlabeled += 1
        else:
            value, stop, kind = _parse_number(text, i)
            labels[rows] = value
            if kind != FINITE:
                deferred[n_deferred, 0] = i
                deferred[n_deferred, 1] = -1 - rows
                n_deferred += 1
            i = _skip_to_token(text, stop)

        # The qid, which is compared with that of the row before.
        if _is_qid(text, i):
            start = i + _4
            stop = _token_end(text, start)
            if not with_qids or start == stop:
                status = QID_EMPTY if with_qids else QID_UNEXPECTED
                break
            if n_runs == 0 or not _equal(text, start, stop, qid, qid_end):
                qid, qid_end = start, stop
                runs[n_runs, 0] = rows
                runs[n_runs, 1] = start
                runs[n_runs, 2] = stop
                n_runs += 1
            i = stop
        elif with_qids:
            status = QID_MISSING
            break

        # The pairs. A row whose ids are not in order is read a second time, from this state.
        pairs_start, old_deferred, old_infinite, old_missing = i, n_deferred, infinite, missing
        find_duplicates = has_zero = False
        min_id = min(_1, width)
        while True:
            i, min_id = _parse_usual_pairs(text, i, features, base, min_id, width)
            i = _skip_to_token(text, i)
            if text[i] == _LINE_FEED:
                break
            feature, start = _append_digits(text, i, _0)
            if text[start] != _COLON or start - i - _1 > _10 or feature > _MAX_ID:
                status = BAD_ID if text[start] == _COLON else BAD_PAIR
                break
            start += _1  # of the value
            # An id in order is at least min_id, which starts at 1; the id 0 must come first.
            is_unsorted = feature < min_id if feature else has_zero or min_id > _1
            if is_unsorted and not find_duplicates:
                # Read the row again, pair by pair, and find duplicates.
                find_duplicates = True
                min_id = width  # so that no pair is usual
                unsorted += 1
                i, n_deferred = pairs_start, old_deferred
                infinite, missing = old_infinite, old_missing
                continue
            if feature == _0 and not has_zero:
                has_zero, zero_at = True, line
                zero_rows += 1
            if feature >= id_bound:
                id_bound, id_bound_at = feature + _1, line
            value, i, kind = _parse_number(text, start)
            if find_duplicates and feature < width:
                if stamps[feature] == rows + 1:
                    duplicates += 1
                    kind = DEFERRED  # Python stores it, after a deferred value that it replaces
                stamps[feature] = rows + 1
            if kind == DEFERRED:
                deferred[n_deferred, 0] = start
                deferred[n_deferred, 1] = base + feature
                n_deferred += 1
            elif feature < width:
                features[base + feature] = value
            infinite += kind == INFINITE
            missing += kind == MISSING
            if not find_duplicates:
                min_id = min(feature + _1, width)
        # The ids of usual pairs were not compared with id_bound; the last one is the highest.
        if not find_duplicates and min_id > max(id_bound, _1):
            id_bound, id_bound_at = min_id, line
        if status != DONE:
            break
        i += _1
        rows += 1
        base += width
    counts = unsorted, duplicates, infinite, zero_rows, zero_at, id_bound, id_bound_at, missing
    return status, int(i), (rows, n_runs, n_deferred), (*counts, unlabeled, unlabeled_at)
