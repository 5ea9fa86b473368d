"""Packages that come with an extra of rankgrad: a missing one is an error with the install line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """A package is not installed; the message has the line that installs it."""


@contextmanager
def requires(extra: str) -> Iterator[None]:
    """Around imports: a missing package becomes an error that says how to install it.

    Args:
        extra: of rankgrad, such as ``"train"``.

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
        if package in ("", "rankgrad"):
            raise
        raise MissingExtraError(
            f'{package} is not installed: pip install "rankgrad[{extra}]"', name=package
        ) from None
