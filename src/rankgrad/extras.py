"""Optional packages: imports on first use, and errors that say how to install what is missing.

``pip install rankgrad`` installs what losses and metrics need. Everything else is an extra, such as
``rankgrad[train]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["MissingExtraError", "lazy_modules", "lazy_names", "load", "requires"]


class MissingExtraError(ImportError):
    """A package is not installed; the message has the line that installs it."""


@contextmanager
def requires(extra: str) -> Iterator[None]:
    """A context manager for imports: the error of a missing package says how to install it.

    Args:
        extra: the extra of rankgrad that installs the package, such as ``"train"``.

    Returns:
        A context manager. If several are nested, the error names the outermost extra.

    Raises:
        MissingExtraError: a package of the extra is not installed.

    >>> from rankgrad.extras import requires
    >>> with requires("train"):
    ...     import no_package
    Traceback (most recent call last):
    rankgrad.extras.MissingExtraError: no_package is not installed: pip install "rankgrad[train]"
    """
    try:
        yield
    except (ModuleNotFoundError, MissingExtraError) as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rankgrad"):  # no extra installs it
            raise
        raise MissingExtraError(
            f'{package} is not installed: pip install "rankgrad[{extra}]"', name=package
        ) from None


def load(module: str, extra: str) -> Any:
    """Import a module of a package that an extra installs; see :func:`requires`.

    Args:
        module: its full name.
        extra: the extra of rankgrad that installs the package.

    Returns:
        The module.

    Raises:
        MissingExtraError: the package is not installed.
    """
    with requires(extra):
        return import_module(module)


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], extra: str
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports its public names when they are first used.

    Args:
        package: the name of the package.
        names: the public names by the module of the package that defines them.
        extra: the extra of rankgrad that installs what the modules import.

    Returns:
        A function, to be assigned to ``__getattr__`` in the package.
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def getattribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(f"{package}.{modules[name]}", extra), name)
        setattr(sys.modules[package], name, value)
        return value

    return getattribute


def lazy_modules(package: str, names: Sequence[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports its modules when they are first used.

    Args:
        package: the name of the package.
        names: the names of its public modules.

    Returns:
        A function, to be assigned to ``__getattr__`` in the package.

    >>> from rankgrad import papers
    >>> papers.protocol.__name__
    'rankgrad.papers.protocol'
    """

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return getattribute
