"""Requests that are made up: from the schema, near-valid JSON, and Arrow streams of any types.

``python benchmarks/serving.py fuzz`` sends thousands; ``tests/serving/test_fuzz.py`` some. Each
answer must have a status of the schema, but not a 500, and say what is wrong.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
STATUSES = {200, 400, 404, 405, 408, 413, 415, 422}

_ANY = st.floats() | st.floats(width=32) | st.just(0.0)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_NARROW = st.floats(width=32)
_FLOATS, _TEXTS = st.lists(_ANY, max_size=6), st.text(max_size=4)
_ROWS = {4: st.lists(_ANY, min_size=4, max_size=4), 3: st.lists(_ANY, min_size=3, max_size=3)}
_COLORS = st.sampled_from(["red", "blue", "", "pink"])


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


#: Types of columns, and what their values are.
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *[(pa.float32(), _NARROW), (pa.float64(), _ANY), (pa.float16(), st.floats(width=16))],
    *[(getattr(pa, f"int{bits}")(), _integers(bits, True)) for bits in (8, 16, 32, 64)],
    *[(getattr(pa, f"uint{bits}")(), _integers(bits, False)) for bits in (8, 16, 32, 64)],
    *[(pa.string(), _COLORS), (pa.large_string(), _TEXTS), (pa.string_view(), _TEXTS)],
    *[(pa.binary(), st.binary(max_size=4)), (pa.bool_(), st.booleans()), (pa.null(), st.none())],
    *[(pa.timestamp("s"), _integers(64, True)), (pa.date32(), _integers(32, True))],
    (pa.decimal128(9, 2), st.decimals(-999, 999, places=2)),
    (pa.dictionary(pa.int8(), pa.string()), _COLORS),
    (pa.dictionary(pa.int32(), pa.float32()), _NARROW),
    *[(pa.list_(pa.float32(), width), rows) for width, rows in _ROWS.items()],
    *[(kind(pa.float64()), _FLOATS | _ROWS[4]) for kind in (pa.list_, pa.large_list)],
    (pa.list_view(pa.float64()), _FLOATS),
    (pa.list_(pa.string()), st.lists(_TEXTS, max_size=4)),
    (pa.struct([("a", pa.float32())]), st.fixed_dictionaries({"a": st.floats(width=32)})),
]  # fmt: skip


@st.composite
def arrow_streams(draw: Any, names: tuple[str, ...]) -> bytes:
    """Arrow streams: of the ranker's columns or near them, in batches, compressed, damaged."""
    columns = draw(
        st.sampled_from([names, (*names, "list"), ("features",), ("features", "list"), names[1:]])
        | st.lists(st.sampled_from([*names, "list", "features", "x"]), max_size=6).map(tuple)
    )
    usual = draw(st.booleans())
    kinds = [draw(st.sampled_from(_usual(name) if usual else KINDS)) for name in columns]
    schema = pa.schema([(name, kind) for name, (kind, _) in zip(columns, kinds, strict=True)])
    compression = draw(st.sampled_from([None, None, "lz4", "zstd"]))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    content = io.BytesIO()
    with pa.ipc.new_stream(content, schema, options=options) as writer:
        for _ in range(draw(st.integers(0, 3))):
            rows = draw(st.integers(0, 5))
            arrays = [
                pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), kind)
                for kind, values in kinds
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return damaged(draw, content.getvalue()) if draw(st.booleans()) else content.getvalue()


def _usual(name: str) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """The types that a column of this name may have."""
    small = st.floats(-9, 9, width=32)
    if name == "list":
        return [(pa.string(), st.just("a")), (pa.int64(), st.just(1))]
    if name == "features":
        rows = st.lists(small, min_size=4, max_size=4)
        return [(kind, rows) for kind in (pa.list_(pa.float32(), 4), pa.large_list(pa.float32()))]
    return [(pa.float32(), small), (pa.int8(), st.integers(0, 1)), (pa.string(), _COLORS)]


def damaged(draw: Any, content: bytes) -> bytes:
    """Bytes changed, left out, or cut, at places that are drawn."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        part = draw(st.sampled_from([1, 1, 1, 4, 8]))
        new = draw(
            st.binary(min_size=part, max_size=part)
            | st.sampled_from([b"", b"\xff" * part, bytes(part)])
        )
        changed[at : at + part] = new
    return bytes(changed[: draw(st.none() | st.integers(0, len(changed)))])  # fmt: skip


def json_bodies(names: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    """Lists of items, nearly as they should be; as JSON, some of it damaged."""
    number = st.floats(-9, 9)
    odd = st.one_of(
        *[st.integers(-2, 3), st.none(), _COLORS, st.booleans(), _FINITE],
        *[st.just(10**400), st.just([]), st.just({}), st.just([[]] * 9)],
    )
    value = st.one_of(number, number, number, st.none(), odd)
    width = st.sampled_from([len(names)] * 8 + [len(names) - 1, len(names) + 1])
    row = st.one_of(
        st.lists(number, min_size=len(names), max_size=len(names)),
        width.flatmap(lambda size: st.lists(value, min_size=size, max_size=size)),
    )
    named = st.dictionaries(st.sampled_from(names), value) | row.map(
        lambda values: dict(zip([*names, "x"], values, strict=False))
    )
    mixed = st.lists(row | named | odd, max_size=3)
    items = st.one_of(st.lists(row, max_size=5), st.lists(named, max_size=5), mixed)
    identifier = st.text(max_size=5) | st.integers()
    good = st.fixed_dictionaries({"items": items}, optional={"id": identifier})
    bad = st.fixed_dictionaries({"items": items | odd}, optional={"id": odd, "x": odd}) | odd
    lists = st.one_of(*[st.lists(good, max_size=3)] * 3, st.lists(good | bad, max_size=3))
    body = st.one_of(*[st.fixed_dictionaries({"lists": lists})] * 8, odd)
    return st.composite(_written)(body)


def _written(draw: Any, body: st.SearchStrategy[Any]) -> bytes:
    content = json.dumps(draw(body)).encode()
    return damaged(draw, content) if draw(st.integers(0, 9)) == 9 else content


def fuzz_bodies(app: Any, model: str, names: tuple[str, ...], examples: int) -> Counter[str]:
    """Send bodies of both kinds to a model; how many had which answer."""
    found: Counter[str] = Counter()
    loop = asyncio.new_event_loop()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    def send(content: bytes, kind: str, accept: str) -> None:
        headers = {"content-type": kind, "accept": accept}
        request = client.post(f"/models/{model}/rank", content=content, headers=headers)
        response = loop.run_until_complete(request)
        assert response.status_code in STATUSES, response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]
        found[f"{kind.rpartition('.')[2].rpartition('/')[2]} {response.status_code}"] += 1

    accepts = st.sampled_from([JSON, ARROW])
    for kind, bodies in ((JSON, json_bodies(names)), (ARROW, arrow_streams(names))):
        _given(examples, bodies, accepts)(lambda body, accept, kind=kind: send(body, kind, accept))
    loop.run_until_complete(client.aclose())
    loop.close()
    return found


def fuzz_schema(app: Any, examples: int) -> Counter[str]:
    """Requests of the schema, as it says and otherwise; how many each operation had."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    found: Counter[str] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        modes = GenerationMode if operation.method.upper() == "POST" else [GenerationMode.POSITIVE]
        for mode in modes:

            def check(case: Any, label: str = operation.label) -> None:
                case.call_and_validate(checks=checks)
                found[label] += 1

            # What has no parameters is one request.
            count = examples if operation.method.upper() == "POST" else min(examples, 20)
            _given(count, operation.as_strategy(generation_mode=mode))(check)
    return found


def _given(examples: int, *strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Call a function with so many examples."""

    def run(check: Callable[..., None]) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.tuples(*strategies))
        def each(drawn: tuple[Any, ...]) -> None:
            check(*drawn)

        each()

    return run
