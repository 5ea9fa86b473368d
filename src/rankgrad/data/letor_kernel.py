"""The LETOR parser's inner loop: bytes in, arrays out, compiled and free of the interpreter's lock.

It stands apart from :mod:`rankgrad.data.letor` so that Numba is imported only when a file is read.
"""

# mypy: disable-error-code="import-untyped, untyped-decorator"

from __future__ import annotations

from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]
Unsigned = np.uint64

# Without Numba's check for a division by zero, as powers of ten are not zero.
_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")

# What the loop counted in a block: the slots of its ``counts``.
ROWS, RUNS, HARD, UNSORTED, DUPLICATES, NOT_FINITE = 0, 1, 2, 3, 4, 5
ZEROS, ZERO_AT, ABOVE, ABOVE_AT = 6, 7, 8, 9
COUNTS = 10

# How a block ended.
DONE, BAD_PAIR, BAD_ID, QID_EMPTY, QID_MISSING, QID_UNEXPECTED = 0, 1, 2, 3, 4, 5

# What is known of a number.
UNSURE, FINITE, INFINITE = 0, 1, 2

MAX_ID = 2**31 - 2  # what fits an int32 column index, as in scipy's sparse matrices

# Positions are unsigned throughout: a signed index would be checked for counting from the end.
# Numba makes a float of a signed and an unsigned number, so the small numbers are unsigned too.
_0, _1, _2, _3, _4, _10, _48 = (Unsigned(n) for n in (0, 1, 2, 3, 4, 10, 48))
_MAX_ID = Unsigned(MAX_ID)

_EXACT = Unsigned(15)  # numbers of so many digits, and powers of ten up to 1e22, are exact float64
_POWERS = np.array([float(f"1e{e}") for e in range(128)])
_SLACK = 2.0**-49  # bounds the error of three float64 roundings and of digits past the 19th


@_compiled
def _decimal(text: Array, i: Unsigned, exponent: int) -> tuple[float, int]:
    """The float32 of the unsigned decimal at ``i``, and what is known of it.

    The first 19 digits times a power of ten are within ``_SLACK`` of the true value. Rounding is
    monotone: where both ends of that interval round to one float32, it is the float32 of the
    correctly rounded float64; otherwise the number is unsure.
    """
    digits = _0
    kept = 0
    scale = exponent
    point = False
    while True:
        d = text[i] - _48
        if d < _10:
            if kept < 19:
                digits = digits * _10 + d
                kept += digits != _0
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
        return 0.0, UNSURE
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
def _number(text: Array, i: Unsigned) -> tuple[float, Unsigned, int]:
    """The float32 of the token at ``i``, where it ends, and what is known of it."""
    end = _token_end(text, i)
    negative = text[i] == 45
    if negative or text[i] == 43:
        i += _1
    if (text[i] | 32) == 110 and (text[i + _1] | 32) == 97 and (text[i + _2] | 32) == 110:
        return np.nan, end, INFINITE if i + _3 == end else UNSURE
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
        return 0.0, end, UNSURE
    value, known = _decimal(text, start, exponent)
    return -value if negative else value, end, known


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
    """Whether ``qid:`` stands at ``i``."""
    letters = text[i] == 113 and text[i + _1] == 105 and text[i + _2] == 100
    return bool(letters and text[i + _3] == 58)


@_compiled
def _feature_id(text: Array, i: Unsigned) -> tuple[Unsigned, Unsigned]:
    """The whole number at ``i`` and where it ends; a long one wraps."""
    feature = _0
    d = text[i] - _48
    while d < _10:
        feature = feature * _10 + d
        i += _1
        d = text[i] - _48
    return feature, i


@_compiled
def _short_way(
    text: Array, i: Unsigned, features: Array, cells: Unsigned, least: Unsigned, width: Unsigned
) -> tuple[Unsigned, Unsigned]:
    """Store pairs as long as ids ascend from ``least`` to below ``width`` and decimals are short.

    Nearly all pairs of nearly all files are read here. It returns where the first other thing
    stands and what is then the ``least`` id, which is never above ``width``.
    """
    while True:
        stop = i
        if text[i] == 32:
            i += _1
        begin = i
        feature, i = _feature_id(text, i)
        if text[i] != 58 or i - begin - _1 > _10:
            return stop, least
        i += _1
        negative = text[i] == 45
        if negative:
            i += _1
        digits = _0
        begin = i
        d = text[i] - _48
        while d < _10:
            digits = digits * _10 + d
            i += _1
            d = text[i] - _48
        n_digits = i - begin
        scale = _0
        if text[i] == 46:
            i += _1
            begin = i
            d = text[i] - _48
            while d < _10:
                digits = digits * _10 + d
                i += _1
                d = text[i] - _48
            scale = i - begin
            n_digits += scale
        ended = text[i] == 32 or text[i] == 10
        if not ended or n_digits - _1 >= _EXACT or feature - least >= width - least:
            return stop, least
        value = np.float64(np.int64(digits)) / _POWERS[scale]
        features[cells + feature] = -value if negative else value
        least = feature + _1


@_compiled
def parse(
    text: Array,
    size: int,
    n_columns: int,
    with_qids: bool,
    features: Array,
    labels: Array,
    starts: Array,
    runs: Array,
    hard: Array,
    stamps: Array,
    counts: Array,
) -> tuple[int, int]:
    """Parse ``text[:size]``, whole lines; return how it ended and where.

    ``features`` (flat, zeros, ``n_columns`` to a row) has the value of feature id ``f`` in column
    ``f``; ids from ``n_columns`` on are counted in ``counts`` and not stored. ``starts`` has where
    each row's line starts. ``runs`` has ``(row, start, end)`` of each qid that differs from the row
    before. ``hard`` has ``(start, cell)`` of each number left to Python, in order; the cell of a
    label is ``-1 - row``. ``stamps`` (zeros) is scratch space of ``n_columns``.
    """
    end, width = Unsigned(size), Unsigned(n_columns)
    rows = n_runs = n_hard = unsorted = duplicates = not_finite = 0
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
        value, stop, known = _number(text, i)
        labels[rows] = value
        if known != FINITE:
            hard[n_hard, 0] = i
            hard[n_hard, 1] = -1 - rows
            n_hard += 1
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

        first, first_hard, first_not_finite = i, n_hard, not_finite
        careful = zero = False
        least = min(_1, width)
        while True:
            i, least = _short_way(text, i, features, cells, least, width)
            i = _next(text, i)
            if text[i] == 10:
                break
            feature, start = _feature_id(text, i)
            if text[start] != 58 or start - i - _1 > _10 or feature > _MAX_ID:
                status = BAD_ID if text[start] == 58 else BAD_PAIR
                break
            start += _1
            if not careful and (feature < least if feature else zero or least > _1):
                # Read the line again, all of it the long way, with an eye on ids that come twice.
                careful = True
                least = width
                unsorted += 1
                i, n_hard, not_finite = first, first_hard, first_not_finite
                continue
            if feature == _0 and not zero:
                zero, zero_at = True, line
                zeros += 1
            if feature >= above:
                above, above_at = feature + _1, line
            value, i, known = _number(text, start)
            if careful and feature < width:
                if stamps[feature] == rows + 1:
                    duplicates += 1
                    known = UNSURE  # to come after any before it that is left to Python
                stamps[feature] = rows + 1
            if known == UNSURE:
                hard[n_hard, 0] = start
                hard[n_hard, 1] = cells + feature
                n_hard += 1
            elif feature < width:
                features[cells + feature] = value
            not_finite += known == INFINITE
            if not careful:
                least = min(feature + _1, width)
        if not careful and least > max(above, _1):
            above, above_at = least, line
        if status != DONE:
            break
        i += _1
        rows += 1
        cells += width
    counts[ROWS], counts[RUNS], counts[HARD] = rows, n_runs, n_hard
    counts[UNSORTED], counts[DUPLICATES], counts[NOT_FINITE] = unsorted, duplicates, not_finite
    counts[ZEROS], counts[ZERO_AT] = zeros, zero_at
    counts[ABOVE], counts[ABOVE_AT] = above, above_at
    return status, int(i)
