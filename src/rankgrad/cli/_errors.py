"""Expected errors become one line on standard error and exit code 2, without a traceback."""

from __future__ import annotations

import errno
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from rankgrad._quoting import shorten

_LONGEST = 2000  # characters of a message
_INTERRUPTED = 130  # the exit code of a shell for a command that Ctrl-C ended
#: PyTorch's message when memory runs out; not all its versions have a type for this error.
_NO_MEMORY = ("out of memory", "can't allocate memory", "can't start new thread")
#: Errors of bad input and of the operating system.
EXPECTED = (ValueError, OSError, ImportError, MemoryError)


class Commands(TyperGroup):
    """The group of commands, which turns expected errors and warnings into single lines."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.filterwarnings("default", ".* is now ", DeprecationWarning)
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                raise interrupted() from None
            except EXPECTED as error:
                if _is_interrupt(error):
                    raise interrupted() from None
                if ctx.params.get("traceback") or _is_closed_pipe(error):
                    raise
                raise stop(in_words(error)) from None
            except RuntimeError as error:
                if ctx.params.get("traceback") or not any(t in str(error) for t in _NO_MEMORY):
                    raise
                raise stop(f"{in_words(error)}; a smaller --batch-size needs less") from None


def stop(text: str, code: int = 2) -> typer.Exit:
    """Print an error in one line; the exit to raise."""
    typer.echo(f"rankgrad: {shorten(text, _LONGEST)}", err=True)
    return typer.Exit(code)


def interrupted(text: str = "interrupted; what was finished before is kept") -> typer.Exit:
    """Say that Ctrl-C ended the command; the exit to raise."""
    return stop(text, _INTERRUPTED)


def interrupted_run(output: Path) -> typer.Exit:
    """Say how a command that Ctrl-C ended goes on with what is in its folder; the exit to raise."""
    from rankgrad.training.run import command

    again = shlex.join(command())
    return interrupted(f"interrupted; what is done is in {output}. To go on: {again}")


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error comes of Ctrl-C, as an import that it ends may be an ImportError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_words(error: BaseException) -> str:
    """The message of an error, in one line.

    >>> from rankgrad.cli._errors import in_words
    >>> in_words(OSError(28, "No space left on device", "runs/a"))
    'runs/a: No space left on device; free some and try again'
    """
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename is not None else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"{where}{error.strerror}{'; free some and try again' if full else ''}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether the reader of our output, such as ``head``, has gone: no error."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"rankgrad: warning: {shorten(str(message), _LONGEST)}", file=file or sys.stderr)
