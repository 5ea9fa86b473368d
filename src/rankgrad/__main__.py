"""The command line: ``rankgrad`` and ``python -m rankgrad``.

Nothing is imported before :func:`main` runs, so that Ctrl-C ends the command without a traceback
from its first moments on.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not where the shell has it ignored
        signal.signal(signal.SIGINT, _leave)
    try:
        from rankgrad.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rankgrad"):
            raise
        print(
            f'rankgrad: {error.name} is not installed: pip install "rankgrad[train]"',
            file=sys.stderr,
        )
        sys.exit(2)
    signal.signal(signal.SIGINT, usual)
    app()


def _leave(*_: object) -> None:
    """Nothing has been done yet: end at once, whatever is being imported."""
    sys.stderr.write("rankgrad: interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
