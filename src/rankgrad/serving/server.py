"""serve: the application in a server, until a signal stops it."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rankgrad.serving._app import create_app
from rankgrad.serving._bodies import Limits
from rankgrad.serving._ranker import ServedRanker

#: Seconds after which an idle connection is closed: longer than clients and load balancers keep
#: one, 60 as a rule, so that none sends a request on a connection that is being closed.
_IDLE = 75

#: Seconds in which the last responses are written, after the time to stop is over.
_WRITING = 5

#: Seconds for which a thread that parses or scores holds the interpreter while the event loop waits
#: for it. With Python's 5 ms, each part of a body that arrives would wait so long.
_SWITCH = 0.0002


def serve(
    rankers: Mapping[str, ServedRanker],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    grace: int = 30,
    version: str = "unknown",
) -> None:
    """Answer requests until SIGTERM or Ctrl-C, then answer those that were taken, and return.

    Args:
        rankers: by name; the first also answers at ``/rank``.
        host: the address to listen at; ``0.0.0.0`` for all.
        port: 0 for any that is free, which the first line of the log names.
        limits: of a request, and of those in progress.
        grace: seconds to answer what was taken when told to stop; the rest is refused.
        version: of rankgrad.

    Raises:
        OSError: the address or the port cannot be had.
        ImportError: the extra ``serve`` is not installed; the message has the install line.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("uvicorn is not installed: pip install 'rankgrad[serve]'") from error
    app = create_app(rankers, limits, version)
    service = app.state.service

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: Any = None) -> None:
            service.stop(grace)  # what was taken is answered, and nobody sends more
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace + _WRITING,
        timeout_keep_alive=_IDLE,
        server_header=False,
    )
    sys.setswitchinterval(_SWITCH)
    with _listen(host, port) as listening, _ended_by_signals():
        at = listening.getsockname()
        print(f"serving {', '.join(rankers)} at http://{at[0]}:{at[1]}", flush=True)
        Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        said = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(f"cannot listen at {host}:{port}: {said}; choose another") from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While open, signals that stop the server do not end the process once more afterwards."""
    stopping = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(one, signal.SIG_IGN) for one in stopping]
    try:
        yield
    finally:
        for one, handler in zip(stopping, before, strict=True):
            signal.signal(one, handler)
