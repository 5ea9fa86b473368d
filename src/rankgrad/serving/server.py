"""serve: run the application in uvicorn, until a signal stops it."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
#: loop. With Python's default of 5 ms, each part of a body would wait as long.
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
        host: the address to listen at; ``0.0.0.0`` for all.
        port: the port; 0 for any that is free, which the first line of the log names.
        limits: the limits of one request, and of all requests in progress.
        grace: seconds in which requests in progress are answered when the service stops; after
            them, the rest get a 503.
        version: the version of rankgrad that ``/version`` gives.

    Raises:
        OSError: the address or the port is not available.
        ImportError: the extra ``serve`` is not installed; the message has the install line.

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
    OSError: cannot listen at 127.0.0.1:...: Address already in use; choose another
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
    sys.setswitchinterval(_SWITCH_SECONDS)
    with _listen(host, port) as listener, _ignore_repeated_signals():
        address = listener.getsockname()
        print(f"serving {', '.join(rankers)} at http://{address[0]}:{address[1]}", flush=True)
        Server(config).run([listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(f"cannot listen at {host}:{port}: {reason}; choose another") from None


@contextmanager
def _ignore_repeated_signals() -> Iterator[None]:
    """A context that ignores the signals that uvicorn raises again after it has stopped."""
    with ExitStack() as restored:
        for number in (signal.SIGINT, signal.SIGTERM):
            restored.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
        yield
