"""Quotes and shortens values for error messages, so that a long input does not fill the screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MAX_LENGTH = 80  # characters of a quoted value
_MAX_NAMES = 20  # names that an error message lists


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


def message_of(error: BaseException, max_length: int = 200) -> str:
    r"""The message of an error in one line, shortened; the name of its class if it has none.

    >>> from rankgrad._quoting import message_of
    >>> message_of(ValueError("a\n   b")), message_of(KeyError())
    ('a b', 'KeyError')
    """
    return shorten(" ".join(str(error).split()), max_length) or type(error).__name__


def listing(names: Iterable[str], most: int = _MAX_NAMES) -> str:
    """Names with commas between them; of many, the first ones and how many more there are.

    >>> from rankgrad._quoting import listing
    >>> listing(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    texts = [shorten(name) for name in names]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def value_error(name: str, tensor: Any, bad: Any, rule: str) -> ValueError:
    """The error that names the first invalid value of a tensor, and the rule that it breaks.

    Args:
        name: the name of the argument.
        tensor: its values, of any shape.
        bad: True where a value is invalid, at least once; of the same shape.
        rule: what values must be, as a sentence.

    >>> import torch
    >>> from rankgrad._quoting import value_error
    >>> scores = torch.tensor([[0.5, float("nan")]])
    >>> value_error("scores", scores, scores.isnan(), "scores must be numbers")
    ValueError('scores[0, 1] = nan: scores must be numbers')
    """
    index = tuple(bad.nonzero()[0].tolist())
    subscript = ", ".join(map(str, index))
    return ValueError(f"{name}[{subscript}] = {tensor[index].item():g}: {rule}")
