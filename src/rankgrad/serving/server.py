"""serve: the application in an HTTP server, until a signal stops it."""

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

#: Seconds after which an idle connection is closed: longer than clients and load balancers keep
#: one, 60 as a rule, so that none sends a request on a connection that is being closed.
_IDLE = 75

#: Seconds after ``grace`` in which the last responses are written.
_WRITING = 5

#: Seconds for which a thread that parses or scores holds the interpreter lock while the event loop
#: waits. With Python's default, 5 ms, each part of a body would wait so long.
_SWITCH = 0.0002


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
        rankers: by name; the first also answers at ``/rank``.
        host: the address to listen at; ``0.0.0.0`` for all.
        port: 0 for any that is free, which the first line of the log names.
        limits: of a request, and of those in progress.
        grace: seconds for requests in progress when the service stops; later ones get a 503.
        version: of rankgrad.

    Raises:
        OSError: the address or the port cannot be had.
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
        async def shutdown(self, sockets: Any = None) -> None:
            service.stop(grace)
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
        address = listening.getsockname()
        print(f"serving {', '.join(rankers)} at http://{address[0]}:{address[1]}", flush=True)
        Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(f"cannot listen at {host}:{port}: {reason}; choose another") from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ignore the signals that uvicorn raises again after it has stopped."""
    with ExitStack() as restored:
        for number in (signal.SIGINT, signal.SIGTERM):
            restored.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
        yield
