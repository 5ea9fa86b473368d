"""Elementary functions and sums in plain arithmetic, which compilers vectorize.

Most vectorized inner loops of kernels call these instead of ``math.exp`` and ``math.log``, which
may be calls to a library and so keep a loop from being vectorized.
"""

from __future__ import annotations

import numpy as np

from rankgrad.kernels.cpu._compiled import compiled, compiled_reduction

LOG2_E = 1.4426950408889634
# The two add up to ln 2. The high part has so few bits that its product with an exponent is exact.
LN_2_HIGH = 0.6931471803691238
LN_2_LOW = 1.9082149292705877e-10
ROUNDING = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to an integer, held in the low bits
MANTISSA = (1 << 52) - 1  # the bits of a float64 that hold its mantissa
ONE = 1023 << 52  # the bits of 1.0
TWO_52 = 1075 << 52  # the bits of 2^52, whose lowest bit has the value 1


@compiled
def exp(x: float) -> float:
    """``e^x`` for x up to 700, with relative error 2e-16; results below 1e-304 become 1e-304.

    With ``x = m ln 2 + r`` and an integer m, ``e^r`` is a Taylor polynomial, to whose exponent m
    is added: the lowest bits of ``shifted`` hold m.
    """
    x = max(x, -700.0)
    shifted = x * LOG2_E + ROUNDING
    m = shifted - ROUNDING
    r = (x - m * LN_2_HIGH) - m * LN_2_LOW
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << np.int64(52))
    return np.int64(bits).view(np.float64)


@compiled
def exp_near_zero(x: float) -> float:
    """``e^x`` for |x| up to 1/128, with relative error 1e-17."""
    p = x * (1.0 / 5040.0) + 1.0 / 720.0
    p = p * x + 1.0 / 120.0
    p = p * x + 1.0 / 24.0
    p = p * x + 1.0 / 6.0
    p = p * x + 0.5
    p = p * x + 1.0
    return p * x + 1.0


@compiled
def log_one_plus(x: float, reciprocal: float) -> float:
    """``log(1 + x)`` for x in [0, 1], with relative error 4e-15; ``reciprocal`` is ``1 / (2 + x)``.

    It equals ``2 atanh(z)`` with ``z = x / (2 + x)``: z times a polynomial fitted in z².
    """
    z = x * reciprocal
    w = z * z
    p = 0.18609615872052523
    p = p * w + 0.11810974528090931
    p = p * w + 0.1555873227845227
    p = p * w + 0.1817047268966779
    p = p * w + 0.22222649163791477
    p = p * w + 0.28571419715788704
    p = p * w + 0.40000000089220406
    p = p * w + 0.6666666666634814
    p = p * w + 2.0
    return p * z


@compiled
def log(x: float) -> float:
    """``log(x)`` for x of 1e-307 or more, with error 4e-15, by ``x = 2^m y`` with y in [1, 2)."""
    bits = np.float64(x).view(np.int64)
    y = np.int64((bits & np.int64(MANTISSA)) | np.int64(ONE)).view(np.float64)
    # The exponent field, m + 1023, as the lowest bits of 2^52 + m + 1023; then minus 2^52 + 1023.
    m = np.int64((bits >> np.int64(52)) | np.int64(TWO_52)).view(np.float64) - 4503599627371519.0
    return m * 0.6931471805599453 + log_one_plus(y - 1.0, 1.0 / (y + 1.0))


@compiled_reduction
def total(values: np.ndarray) -> float:
    """``Σ_j v_j`` of values ``[n]``."""
    result = 0.0
    for j in range(values.size):
        result += values[j]
    return result


@compiled_reduction
def dot(first: np.ndarray, second: np.ndarray) -> float:
    """``Σ_j a_j b_j`` of two arrays ``[n]``."""
    result = 0.0
    for j in range(first.size):
        result += first[j] * second[j]
    return result


@compiled
def add_scaled(row: np.ndarray, factor: float, out: np.ndarray) -> None:
    """``out += factor * row``, both ``[n]``."""
    for j in range(row.size):
        out[j] += factor * row[j]
