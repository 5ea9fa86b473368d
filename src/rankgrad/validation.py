"""Parameter validation: errors name the parameter, what was found and what is expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from rankgrad.quoting import quote

_MOST = 2**31 - 1  # sizes, counts and ranks: they are multiplied with others in 64 bits


def check_cutoff(k: int | None) -> int | None:
    """A rank cutoff: None for the whole list, or a whole number of at least 1."""
    return None if k is None else check_whole("k", k)


def check_whole(option: str, value: Any, least: int = 1, most: int = _MOST) -> int:
    """A whole number, NumPy's included."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        found = quote(value)
        raise ValueError(f"{option} must be a whole number of at least {least}, found {found}")
    if operator.index(value) > most:
        raise ValueError(f"{option} must be at most {most:,}, found {quote(value)}")
    return operator.index(value)


def check_flag(option: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{option} must be true or false, found {quote(value)}")


def check_between(option: str, value: Any, low: float, high: float) -> None:
    """A number strictly between two others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise ValueError(f"{option} must lie between {low:g} and {high:g}, found {quote(value)}")


def check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    """An option that takes one of a few values."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{option} must be one of {listed}; found {quote(value)}")


def check_positive(option: str, value: Any) -> None:
    """A number above zero, such as a temperature; NumPy's included."""
    number = not isinstance(value, bool | str) and hasattr(value, "__float__")
    if not number or not 0 < float(value) < math.inf:
        raise ValueError(f"{option} must be a number above 0, found {quote(value)}")


def check_rate(option: str, value: Any) -> None:
    """A number in [0, 1), such as a dropout rate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(
            f"{option} must be a number of at least 0 and below 1, found {quote(value)}"
        )
