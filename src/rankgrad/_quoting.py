"""Quotes and shortens a user's text for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MAX_LENGTH = 80  # characters of a quoted value
_LISTED = 20  # names that a message spells out


def shorten(text: str, max_length: int = _MAX_LENGTH) -> str:
    """Text of at most about ``max_length`` characters: its start, its end, and how long it is.

    >>> from rankgrad._quoting import shorten
    >>> shorten("x" * 1000, max_length=12)
    'xxxxxxxx ... xxxx (1,000 characters)'
    """
    if len(text) <= max_length:
        return text
    end = max_length // 3
    return f"{text[: max_length - end]} ... {text[-end:]} ({len(text):,} characters)"


def quote(value: object, max_length: int = _MAX_LENGTH) -> str:
    """``repr`` of a value, shortened.

    >>> from rankgrad._quoting import quote
    >>> print(quote("it's"), quote(0.5), quote("x" * 1000, max_length=12))
    "it's" 0.5 'xxxxxxxx ... xxxx' (1,000 characters)
    """
    if isinstance(value, str):
        if len(value) <= max_length:
            return repr(value)
        end = max_length // 3
        start = repr(value[: max_length - end])[:-1]
        return f"{start} ... {repr(value[-end:])[1:]} ({len(value):,} characters)"
    try:
        return shorten(repr(value), max_length)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return f"a {type(value).__name__}"


def listing(names: Iterable[str], most: int = _LISTED) -> str:
    """Names with commas between them; of many, the first ones and how many more there are.

    >>> from rankgrad._quoting import listing
    >>> listing(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = [shorten(name) for name in names]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def value_error(name: str, tensor: Any, bad: Any, rule: str) -> ValueError:
    """The error that names the first bad value of a tensor, and the rule that it breaks.

    >>> import torch
    >>> from rankgrad._quoting import value_error
    >>> scores = torch.tensor([[0.5, float("nan")]])
    >>> value_error("scores", scores, scores.isnan(), "scores must be numbers")
    ValueError('scores[0, 1] = nan: scores must be numbers')
    """
    at = tuple(bad.nonzero()[0].tolist())
    where = ", ".join(map(str, at))
    return ValueError(f"{name}[{where}] = {tensor[at].item():g}: {rule}")
