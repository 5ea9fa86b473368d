"""Former names and spellings: they still work, and warn which names replace them."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class RenamedWarning(DeprecationWarning):
    """A former name was used: the message has the current one."""


def warn_renamed(former: str, name: str, stacklevel: int = 3) -> None:
    """Warn the caller's caller that ``former`` is now called ``name``."""
    warnings.warn(f"{former} is now {name}", RenamedWarning, stacklevel=stacklevel)


def renamed_value(value: str, former: Mapping[str, str]) -> str:
    """The current spelling of an option's value; warn if it is a former one.

    Args:
        value: the value, in its current or a former spelling.
        former: the current spelling of each former one.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     renamed_value("randomisation", {"randomisation": "randomization"})
    'randomization'
    >>> print(caught[0].message)
    'randomisation' is now 'randomization'
    """
    if value not in former:
        return value
    warn_renamed(repr(value), repr(former[value]))
    return former[value]


def renamed_arguments(**former: str) -> Callable[[F], F]:
    """A decorator: keyword arguments under their former names are passed under the current ones.

    Args:
        **former: ``former_name="current_name"`` for each renamed argument.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for former_name in former.keys() & kwargs.keys():
                name = former[former_name]
                warn_renamed(f"{function.__name__}({former_name}=...)", f"{name}=")
                if name in kwargs:
                    raise TypeError(
                        f"{function.__name__} got {name}= and its former name {former_name}="
                    )
                kwargs[name] = kwargs.pop(former_name)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def renamed_attributes(module: str, former: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module, which finds renamed attributes under their former names.

    Args:
        module: the ``__name__`` of the module.
        former: the current name of each former one.
    """

    def get_renamed(name: str) -> Any:
        if name not in former:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", former[name])
        return getattr(sys.modules[module], former[name])

    return get_renamed
