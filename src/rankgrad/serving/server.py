"""Run the application in uvicorn until a signal stops it: ``rankgrad serve`` calls it."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import rankgrad
from rankgrad.extras import requires
from rankgrad.serving._app import create_app
from rankgrad.serving._bodies import Limits
from rankgrad.serving._served_ranker import ServedRanker

#: Seconds after which an idle connection is closed. Clients and load balancers close theirs after
#: 60 as a rule; if the server were first, a request could meet a connection that is being closed.
_IDLE_SECONDS = 75

#: Seconds after ``grace`` in which the last responses are written.
_WRITING_SECONDS = 5

#: Seconds after which a thread that parses or scores releases the interpreter lock to the event
#: loop. With Python's default, each chunk of an incoming body would wait up to 5 ms.
_SWITCH_SECONDS = 0.0002


def serve(
    rankers: Mapping[str, ServedRanker],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    grace: int = 30,
    version: str = rankgrad.__version__,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then finish those in progress, and return.

    Args:
        rankers: the rankers by name; the first also answers at ``/rank``.
        host: the address to listen at; ``0.0.0.0`` for all IPv4 addresses of the machine.
        port: the port; 0 for any that is free, which the printed line names.
        limits: the limits of one request, and of all requests in progress.
        grace: seconds in which requests in progress are answered when the service stops; after
            them, the rest get a 503.
        version: what ``/version`` and ``/openapi.json`` give as the version of rankgrad; by default
            that of the installed package.

    Raises:
        ValueError: the port is not from 0 to 65535.
        OSError: the address or the port is not available.
        ImportError: the extra ``serve`` is not installed; the message has the install line.

    >>> import socket
    >>> import numpy as np
    >>> from rankgrad.serving import ServedRanker, serve
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])"), features)
    >>> rankers = {"default": ServedRanker.of(ranker, "default")}
    >>> serve(rankers)  # until SIGTERM or Ctrl-C  # doctest: +SKIP
    serving default at http://127.0.0.1:8000
    >>> with socket.create_server(("127.0.0.1", 0)) as other:
    ...     serve(rankers, port=other.getsockname()[1])
    Traceback (most recent call last):
    OSError: [Errno ...] cannot listen at ...: Address already in use; choose another host or port
    """
    with requires("serve"):
        import uvicorn
    app = create_app(rankers, limits, version)
    service = app.state.service

    class Server(uvicorn.Server):
        """uvicorn's server; before it shuts down, requests in progress get their deadline."""

        async def shutdown(self, sockets: Any = None) -> None:
            service.stop(grace)
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace + _WRITING_SECONDS,
        timeout_keep_alive=_IDLE_SECONDS,
        server_header=False,
    )
    server = Server(config)
    with _listen(host, port) as listener, _process_settings(server.handle_exit):
        address = listener.getsockname()
        print(f"serving {', '.join(rankers)} at http://{address[0]}:{address[1]}", flush=True)
        server.run([listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, found {port}")
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        # Drop create_server's "(while attempting to bind on address ...)".
        reason = (error.strerror or str(error)).partition(" (")[0]
        message = f"cannot listen at {host}:{port}: {reason}; choose another host or port"
        raise type(error)(error.errno, message) from None


@contextmanager
def _process_settings(handle_exit: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A context in which signals stop the server and threads switch often; both are restored.

    uvicorn sets ``handle_exit``, its handler of signals, only while it runs. Here it also gets the
    signals that arrive before, which stop the server once it has started, and those that uvicorn
    raises again after it has stopped, which do nothing.
    """
    with ExitStack() as restored:
        restored.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        for number in (signal.SIGINT, signal.SIGTERM):
            restored.callback(signal.signal, number, signal.signal(number, handle_exit))
        yield
