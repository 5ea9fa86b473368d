"""Numbers in text files: ASCII decimals and nothing else that Python's ``float`` takes."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE | re.ASCII)


def parse(text: str) -> float:
    """The float64 that a decimal stands for; ``nan`` and ``inf`` are taken too.

    Digits of other scripts and underscores, which ``float`` takes, are errors.

    Raises:
        ValueError: the text is not a number.

    >>> from rankgrad.data import decimals
    >>> decimals.parse("-1.5e3")
    -1500.0
    >>> decimals.parse("1_000")
    Traceback (most recent call last):
    ValueError: not a number
    """
    if not (_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        raise ValueError("not a number")
    return float(text)
