"""Checks the shape annotations of the package while the tests run.

Only shapes: what is wrong with other arguments is for the package itself to say.
"""

import functools
import types
import typing

from beartype import beartype
from jaxtyping import AbstractArray


def check(function: typing.Any) -> typing.Any:
    """Type-check a function's tensor arguments and result, and no others."""
    if isinstance(function, type):
        return function
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        return function
    shaped = {name: hint for name, hint in hints.items() if _has_shape(hint)}
    if not shaped:
        return function
    plain = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    plain.__annotations__ = shaped
    return functools.wraps(function)(beartype(plain))


def _has_shape(hint: typing.Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return isinstance(hint, types.UnionType) and any(map(_has_shape, typing.get_args(hint)))
