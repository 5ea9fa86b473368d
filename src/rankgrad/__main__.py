"""The entry point of the ``rankgrad`` command and of ``python -m rankgrad``.

Importing :mod:`rankgrad.cli` takes a moment. :func:`main` sets a handler for Ctrl-C before it does,
so that an interrupt during the imports ends the command without a traceback, too.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    original_handler = signal.getsignal(signal.SIGINT)
    if original_handler is signal.default_int_handler:  # a shell may have SIGINT ignored instead
        signal.signal(signal.SIGINT, _exit_at_once)
    try:
        from rankgrad.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rankgrad"):
            raise
        message = f'rankgrad: {error.name} is not installed: pip install "rankgrad[train]"'
        print(message, file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGINT, original_handler)
    app()


def _exit_at_once(*_: object) -> None:
    """The handler of Ctrl-C during imports, when there is nothing to clean up yet."""
    sys.stderr.write("rankgrad: interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
