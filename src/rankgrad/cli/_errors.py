"""How commands fail: one line on standard error and exit code 2, without a traceback.

:class:`Commands`, the class of the command group, catches the errors that a user can cause. Other
errors are bugs and keep their traceback.
"""

from __future__ import annotations

import errno
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import typer

from rankgrad._deprecation import RenamedWarning
from rankgrad._quoting import message_of, shorten
from rankgrad.cli._docstrings import Group

_MAX_CHARACTERS = 2000  # of a message
_EXIT_INTERRUPTED = 130  # what shells return for a command that Ctrl-C ended
#: Parts of PyTorch's messages when memory runs out, for which not all versions have an error type.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "can't start new thread")
#: Errors of bad input and of the operating system.
EXPECTED = (ValueError, OSError, ImportError, MemoryError)


class Commands(Group):
    """A group of commands that prints expected errors and warnings as single lines."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the context names."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            # Python hides deprecations by default.
            warnings.simplefilter("default", RenamedWarning)
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                raise interrupted() from None
            except EXPECTED as error:
                if _is_interrupt(error):
                    raise interrupted() from None
                # Click handles a closed pipe, such as that of ``head``.
                if ctx.params.get("traceback") or isinstance(error, BrokenPipeError):
                    raise
                raise stop(one_line(error)) from None
            except RuntimeError as error:
                out_of_memory = any(text in str(error) for text in _OUT_OF_MEMORY)
                if ctx.params.get("traceback") or not out_of_memory:
                    raise
                raise stop(f"{one_line(error)}; a smaller --batch-size needs less") from None


def stop(text: str, code: int = 2) -> typer.Exit:
    """Print an error in one line, and return the exit for the caller to raise."""
    typer.echo(f"rankgrad: {shorten(text, _MAX_CHARACTERS)}", err=True)
    return typer.Exit(code)


def interrupted(text: str = "interrupted; what was finished before is kept") -> typer.Exit:
    """Say that Ctrl-C ended the command, and return the exit for the caller to raise."""
    return stop(text, _EXIT_INTERRUPTED)


def interrupted_run(output: Path) -> typer.Exit:
    """:func:`interrupted` for a command that resumes from its output folder: says how to resume."""
    from rankgrad.training.run import command

    same_command = shlex.join(command())
    return interrupted(f"interrupted; what is done is in {output}. To go on: {same_command}")


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: an import that it interrupts may raise ImportError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def one_line(error: BaseException) -> str:
    """The message of an error, in one line.

    >>> from rankgrad.cli._errors import one_line
    >>> one_line(OSError(28, "No space left on device", "runs/a"))
    'runs/a: No space left on device; free some and try again'
    """
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    if isinstance(error, OSError) and error.errno is not None:
        path = f"{error.filename}: " if error.filename is not None else ""
        is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"{path}{error.strerror}{'; free some and try again' if is_disk_full else ''}"
    return message_of(error, _MAX_CHARACTERS)


def _show_warning(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    """In place of ``warnings.showwarning``: one line, without the place in the source."""
    print(f"rankgrad: warning: {shorten(str(message), _MAX_CHARACTERS)}", file=sys.stderr)
