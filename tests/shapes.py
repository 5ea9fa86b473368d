"""Checks the shape annotations of the package while the tests run.

Only shapes: what is wrong with other arguments is for the package itself to say. Functions without
a shape stay as they are: jaxtyping would bind the arguments of each call, and contract tests would
take a quarter longer.
"""

import functools
import types
import typing

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray, _decorator

_decorate = _decorator.jaxtyped
_unshaped: set[types.CodeType] = set()  # of functions that have been decorated
_checked: list[str] = []


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
    _checked.append(function.__qualname__)
    return functools.wraps(function)(beartype(plain))


def _has_shape(hint: typing.Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return isinstance(hint, types.UnionType) and any(map(_has_shape, typing.get_args(hint)))


def _decorate_shaped(fn: typing.Any = _decorator._sentinel, **options: typing.Any) -> typing.Any:
    """``jaxtyping.jaxtyped``, but for functions in which :func:`check` finds nothing to check."""
    if not isinstance(fn, types.FunctionType):
        return _decorate(fn, **options)
    if fn.__code__ in _unshaped:
        return fn
    before = len(_checked)
    decorated = _decorate(fn, **options)
    if len(_checked) == before:
        _unshaped.add(fn.__code__)
        return fn
    return decorated


jaxtyping.jaxtyped = _decorator.jaxtyped = _decorate_shaped
