"""Serving: one list inside the service beside LightGBM, load, memory, and requests of a schema.

    python benchmarks/serving.py latency --data MSLR-sample
    python benchmarks/serving.py load --seconds 10 --rates 50 100 200 400 800
    python benchmarks/serving.py memory --requests 100000
    python benchmarks/serving.py fuzz --examples 500

``latency``: lists of 100 items, each another, are scored by the default model as the service does
it, by the models that are the default on more data, untrained, and by LightGBM's own predict, on
one core; blocks of lists take turns, and medians and the least times are compared: of made lists,
of made lists a tenth of whose values are missing, and of ``--data``. ``load``:
open-loop requests at rising rates to the service and to a bare server of the same stack that only
echoes the body; latencies count from when a request was due, refusals (503) apart; ``cpu_ms`` is
the CPU time of the server for a request, refused ones included. ``memory``:
the resident memory of the service at first, after one request and after each tenth of the
requests, as the system says and as the service does, which also says how many it answered.
``fuzz``: requests that schemathesis makes up from the schema, and JSON and Arrow bodies near what
they should be, so many of each kind for each ranker; no answer may be a 500, and each must be as
the schema says.
``--json FILE`` also writes the figures, beside those of other parts that are there.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import numpy as np
import psutil
import torch

from rankgrad.data import Dataset, load
from rankgrad.serving import ServedRanker, create_app
from rankgrad.training import FittedRanker, Settings, fit

ITEMS, FEATURES = 100, 136
MISSING = 0.1  # the share of missing values

ECHO = """
import socket, sys
import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()

@app.post("/rank")
async def echo(request: Request):
    return Response(await request.body(), media_type="application/json")

listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
print("serving at http://127.0.0.1:%d" % listening.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="warning", access_log=False)
uvicorn.Server(config).run([listening])
"""


def lists_of(data: str | None) -> Dataset:
    """The training lists of a folder, or made ones, in which as many features tie as in logs."""
    if data is not None:
        return load(data, split="train")
    random = np.random.default_rng(0)
    features = random.normal(size=(6000, FEATURES)).astype(np.float32)
    features[:, ::2] = features[:, ::2].clip(min=0.5)
    labels = np.digitize(features[:, :8].sum(1) + random.normal(size=6000), [1, 3, 5, 6])
    return Dataset(features, labels, np.arange(0, 6001, ITEMS), [str(at) for at in range(60)])


def default_ranker(lists: Dataset) -> FittedRanker:
    return fit(Settings(epochs=1, device="cpu"), lists).model


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    """Lists of one kind after another; each has rankers and trees of its own."""
    torch.set_num_threads(1)
    made = lists_of(None)
    holes = np.random.default_rng(1).random(made.features.shape) < MISSING
    features = np.where(holes, np.nan, made.features).astype(np.float32)
    kinds = {"made": made, "missing": dataclasses.replace(made, features=features)}
    if arguments.data is not None:
        kinds[Path(arguments.data).name] = lists_of(arguments.data)
    found = {name: latency_of(name, lists, arguments) for name, lists in kinds.items()}
    return {**found, "load_average": os.getloadavg()[0]}


def latency_of(kind: str, lists: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
    import lightgbm

    starts = lists.offsets[:-1][lists.lengths >= ITEMS]
    parts = [np.array(lists.features[at : at + ITEMS], np.float32) for at in starts]
    offsets = np.array([0, ITEMS])
    rankers = {"rankgrad": default_ranker(lists)}
    for model in ("medium", "medium(heads=2)", "large"):
        settings = Settings(model=model, device="cpu")
        rankers[f"rankgrad, {model}"] = FittedRanker.new(settings, lists.features, lists.offsets)
    scorers: dict[str, Any] = {}
    for name, ranker in rankers.items():
        served = ServedRanker.of(ranker, "default")
        scorers[name] = lambda items, served=served: served.score(items, offsets)
    options = {"objective": "lambdarank", "verbosity": -1, "num_threads": 1, "metric": "none"}
    for trees in arguments.trees:
        data = lightgbm.Dataset(np.asarray(lists.features), lists.labels, group=lists.lengths)
        booster = lightgbm.train(options, data, trees)
        scorers[f"lightgbm, {trees} trees"] = lambda items, booster=booster: booster.predict(
            items, num_threads=1
        )
    seconds: dict[str, list[float]] = {name: [] for name in scorers}
    for _ in range(arguments.repeats):
        for name, score in scorers.items():
            for items in parts if name != "rankgrad, large" else parts[:3]:
                began = time.perf_counter()
                score(items)
                seconds[name].append(time.perf_counter() - began)
    middle = {name: statistics.median(values) * 1e6 for name, values in seconds.items()}
    least = {name: min(values) * 1e6 for name, values in seconds.items()}
    beside = f"lightgbm, {arguments.trees[0]} trees"
    for name in scorers:
        ratio, low = middle[name] / middle[beside], least[name] / least[beside]
        print(
            f"{kind:12} {name:20} {middle[name]:6.0f} µs, least {least[name]:6.0f}; "
            f"to {beside}: {ratio:.2f} ({low:.2f})",
            flush=True,
        )
    model = rankers["rankgrad"].settings.model
    return {"median_us": middle, "least_us": least, "model": model}


@contextmanager
def process(command: list[str]):
    """A server in a process of its own: its address and its process."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield started.stdout.readline().split()[-1], psutil.Process(started.pid)
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


@contextmanager
def service(run: Path):
    command = [sys.executable, "-m", "rankgrad", "serve", str(run), "--port", "0"]
    with process(command) as found:
        yield found


def body(items: np.ndarray) -> bytes:
    return json.dumps({"lists": [{"items": np.round(items.astype(float), 4).tolist()}]}).encode()


class Client:
    """Connections to a server, opened as they are needed.

    It sends bytes that are made before and reads little of the answer: on the same two cores, a
    client such as httpx would take longer than the service.
    """

    def __init__(self, address: str, contents: list[bytes]) -> None:
        self._host, _, port = address.removeprefix("http://").partition(":")
        self._port = int(port)
        head = "POST /rank HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        self._sent = [
            f"{head}content-length: {len(one)}\r\n\r\n".encode() + one for one in contents
        ]
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(self, at: int = 0) -> int:
        """Send one of the contents; the status of the answer, 0 if there is none."""
        try:
            pair = self._idle.pop() if self._idle else await self._open()
            reader, writer = pair
            writer.write(self._sent[at % len(self._sent)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        except (OSError, asyncio.IncompleteReadError) as error:
            print(repr(error), file=sys.stderr)
            return 0
        self._idle.append(pair)
        return int(head[9:12])

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


async def drive(
    address: str, server: psutil.Process, content: bytes, rate: float, seconds: float
) -> dict[str, float]:
    """Requests at a fixed rate, whether or not those before are answered."""
    busy = sum(server.cpu_times()[:2])
    client = Client(address, [content])
    found: list[tuple[int, float]] = []

    async def one(due: float) -> None:
        status = await client.request()
        found.append((status, time.perf_counter() - due))

    began, sent = time.perf_counter(), []
    for at in range(int(rate * seconds)):
        due = began + at / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        sent.append(asyncio.create_task(one(due)))
    offered = len(sent) / (time.perf_counter() - began)
    await asyncio.gather(*sent)
    wall = time.perf_counter() - began
    await client.close()
    taken = [late for status, late in found if status == 200]
    low, high = (np.quantile(taken or [np.nan], [0.5, 0.99]) * 1e3).tolist()
    refused = sum(status == 503 for status, _ in found)
    return {
        "rate": rate,
        "offered": offered,
        "answered": len(taken) / wall,
        "refused": refused,
        "errors": len(found) - len(taken) - refused,
        "p50_ms": low,
        "p99_ms": high,
        "cpu_ms": (sum(server.cpu_times()[:2]) - busy) / len(found) * 1e3,
    }


def load_test(arguments: argparse.Namespace) -> dict[str, Any]:
    lists = lists_of(arguments.data)
    content = body(np.array(lists.features[:ITEMS]))
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        default_ranker(lists).save(Path(place) / "default")
        echo = [sys.executable, "-c", ECHO]
        for name, server in (
            ("service", service(Path(place) / "default")),
            ("echo", process(echo)),
        ):
            with server as (address, process_of):
                asyncio.run(drive(address, process_of, content, 20, 1))
                results[name] = []
                for rate in arguments.rates:
                    row = asyncio.run(drive(address, process_of, content, rate, arguments.seconds))
                    results[name].append(row)
                    shown = {key: round(value, 2) for key, value in row.items()}
                    print(name, shown, flush=True)
    busy = list(os.getloadavg())
    return {"bytes_of_a_request": len(content), "load_average": busy, **results}


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    lists = lists_of(arguments.data)
    contents = [
        body(np.array(lists.features[at : at + n])) for at, n in ((0, 3), (9, 10), (99, 30))
    ]
    with tempfile.TemporaryDirectory() as place:
        default_ranker(lists).save(Path(place) / "default")
        with service(Path(place) / "default") as (address, server):
            found = asyncio.run(_memory(address, server, contents, arguments.requests))
    growth = found["rss_mib"][-1] - found["rss_mib"][2]
    print(found, f"growth from the first tenth on: {growth:.1f} MiB")
    return {**found, "growth_mib": growth}


async def _memory(
    address: str, server: psutil.Process, contents: list[bytes], requests: int
) -> dict[str, Any]:
    client = Client(address, contents)

    async def some(count: int) -> int:
        """Requests one after the other; how many failed."""
        return sum([await client.request(at) != 200 for at in range(count)])

    def resident() -> float:
        """Of the process that answers and of those it started."""
        own = [server, *server.children(recursive=True)]
        return round(sum(one.memory_info().rss for one in own) / 2**20, 2)

    sizes, errors = [resident()], await some(1)
    sizes.append(resident())
    for _ in range(10):
        errors += sum(await asyncio.gather(*(some(requests // 80) for _ in range(8))))
        sizes.append(resident())
        print(sizes[-1], "MiB", flush=True)
    async with httpx.AsyncClient() as other:
        metrics = (await other.get(f"{address}/metrics")).text
    counted = re.findall(r'requests_total{model="default",status="200"} (\S+)', metrics)
    said = re.findall(r"process_resident_memory_bytes (\d\S*)", metrics)
    return {
        "requests": requests // 80 * 80 + 1,
        "counted_by_the_service": int(float(counted[0])),
        "errors": errors,
        "rss_mib": sizes,
        "rss_mib_by_the_service": round(float(said[0]) / 2**20, 2),
    }


def fuzz(arguments: argparse.Namespace) -> dict[str, Any]:
    import serving_fuzz

    made = lists_of(None)
    names = ("bm25", "age", "clicks", "color")
    features = np.array(made.features[:, :4])
    features[:, 3] = np.arange(len(features)) % 2
    categories = (None, None, None, ("blue", "red"))
    parts = (made.labels, made.offsets, made.qids)
    plain = Dataset(features, *parts, feature_names=names)
    colored = Dataset(features, *parts, feature_names=names, categories=categories)
    trees = Settings(model="lightgbm", transforms=(), epochs=5, device="cpu")
    rankers = {
        "default": default_ranker(plain),
        "trees": fit(trees, plain).model,
        "categories": default_ranker(colored),
        "category_trees": fit(trees, colored).model,
    }
    app = create_app({name: ServedRanker.of(one, name) for name, one in rankers.items()})
    answers: dict[str, Any] = {}
    for name in rankers:
        answers[name] = dict(serving_fuzz.fuzz_bodies(app, name, names, arguments.examples))
        print(name, answers[name], flush=True)
    answers["schema"] = dict(serving_fuzz.fuzz_schema(app, arguments.examples))
    print("schema", answers["schema"])
    count = sum(sum(found.values()) for found in answers.values())
    return {"requests": count, "failures": 0, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["latency", "load", "memory", "fuzz"])
    parser.add_argument("--data", help="a folder with train data; made data without")
    parser.add_argument("--trees", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 400, 600, 800])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--json", type=Path, help="write the figures")
    arguments = parser.parse_args()
    parts = {"latency": latency, "load": load_test, "memory": memory, "fuzz": fuzz}
    found = parts[arguments.part](arguments)
    if arguments.json is not None:
        before = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        arguments.json.write_text(json.dumps({**before, arguments.part: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
