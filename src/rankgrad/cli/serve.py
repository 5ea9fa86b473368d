"""``rankgrad serve``: answers HTTP requests with the scores of trained rankers."""

from __future__ import annotations

from typing import Annotated

import typer

from rankgrad import __version__
from rankgrad.cli.predict import load_ranker


def serve(
    runs: Annotated[list[str], typer.Argument(metavar="[NAME=]RUN...")],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    max_body: Annotated[int, typer.Option(min=1)] = 8 << 20,
    max_lists: Annotated[int, typer.Option(min=1)] = 1000,
    max_items: Annotated[int, typer.Option(min=1)] = 10_000,
    max_total_items: Annotated[int, typer.Option(min=1)] = 100_000,
    max_waiting: Annotated[int, typer.Option(min=1)] = 128,
    max_waiting_bytes: Annotated[int, typer.Option(min=1)] = 64 << 20,
    grace: Annotated[int, typer.Option(min=0)] = 30,
) -> None:
    """Answer requests over HTTP with the scores and the order of lists of items.

    Features are raw, by name or in the order of training; GET /models says which. Requests that
    arrive together are scored together. SIGTERM and Ctrl-C stop the service once it has answered
    the requests in progress.

    Inputs:
        runs: Run folders of `rankgrad train`, or saved models; the first also answers at /rank. A
            ranker has the name of its folder, unless one is given.

    Options:
        host: The address to listen at; 0.0.0.0 for all IPv4 addresses.
        port: 0 for any that is free.
        threads: Threads that score one batch.
        max_body: Bytes of a request, decompressed.
        max_lists: Lists of a request.
        max_items: Items of a list.
        max_total_items: Items of a request, in all its lists.
        max_waiting: Requests in progress; those beyond are refused (503).
        max_waiting_bytes: Bytes of the bodies of requests in progress.
        grace: Seconds to answer requests in progress when stopped; the rest is refused (503).

    \b
    Examples:
      rankgrad serve runs/first --port 8000
      rankgrad serve main=runs/first small=runs/student --host 0.0.0.0
      curl localhost:8000/rank --json '{"lists": [{"items": [{"bm25": 3.1}, {"bm25": 7.4}]}]}'
      curl localhost:8000/models/small/rank --json '{"lists": [{"items": [[3.1], [7.4]]}]}'
      curl localhost:8000/models      # also /health, /ready, /version, /metrics, /openapi.json
    """  # noqa: D301
    from rankgrad.serving import Limits, ServedRanker
    from rankgrad.serving import serve as run_server
    from rankgrad.serving._served_ranker import named_runs

    rankers = {
        name: ServedRanker.of(load_ranker(run), name, threads)
        for name, run in named_runs(runs).items()
    }
    limits = Limits(max_body, max_lists, max_items, max_total_items, max_waiting, max_waiting_bytes)
    run_server(rankers, host=host, port=port, limits=limits, grace=grace, version=__version__)
