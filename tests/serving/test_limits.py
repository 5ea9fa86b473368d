"""What a request may cost, and how many are taken."""

import asyncio
import dataclasses
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from serving_requests import ARROW, send, stream

from rankgrad.serving import Limits, create_app
from rankgrad.serving import _app as app_module
from rankgrad.serving._json_requests import parse_json

NAMES = ("bm25", "pagerank", "age", "length")
LIMITS = Limits(body=200_000, lists=50, items=1000, total_items=2000, waiting=2)
ONE = {"json": {"lists": [{"items": [[1.0, 2.0, 3.0, 4.0]]}]}}


@pytest.fixture
def app(served):
    return create_app(served, LIMITS)


def columns(rows):
    return dict.fromkeys(NAMES, np.zeros(rows, np.float32))


@pytest.mark.parametrize(
    ("table", "compression", "said"),
    [
        (pa.table(columns(5000)), "zstd", "has 5,000 rows, and at most 2,000"),
        (pa.table(columns(50_000)).slice(0, 1), None, None),
        (pa.table({**columns(1), "list": ["x" * 300_000]}), "lz4", "bytes once it is decompressed"),
        (
            pa.table({"list": pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])}),
            None,
            "has 2,147,483,647 rows",
        ),
        (
            pa.table({"list": pa.DictionaryArray.from_arrays(np.zeros(99_999, np.int8), ["a"])}),
            "zstd",
            "has 99,999 rows",
        ),
        (pa.concat_tables([pa.table(columns(1))] * 65), None, "has 65 record batches"),
    ],
    ids=["rows", "slice", "expanded", "nulls", "dictionary", "batches"],
)
def test_arrow_is_measured_before_it_is_decoded(table, compression, said, post, monkeypatch):
    if said is not None:
        monkeypatch.setattr(pa.ipc, "open_stream", None)  # it is not called
    answer = post(content=stream(table, compression), headers={"content-type": ARROW})
    assert (answer.status_code, said or "") in ((413, said), (200, "")), answer.text
    assert said is None or said in answer.text


def test_compressed_streams_are_taken(post):
    answer = post(content=stream(pa.table(columns(9)), "zstd"), headers={"content-type": ARROW})
    assert answer.status_code == 200 and len(answer.json()["lists"][0]["scores"]) == 9


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ('{"lists": [{"items": [' + ", ".join(["{}"] * 2001) + "]}]}", 413, "lists"),
        ('{"lists": [' + ", ".join(["[]"] * 51) + "]}", 413, "lists"),
        ('{"lists": [{"items": [[[' + ", ".join(["[]"] * 99) + "]]]}]}", 400, "body"),
        # As one NumPy array of texts it would take all memory.
        (f'{{"lists": [{{"items": [["{"x" * 90_000}"]' + ", [1]" * 1000 + "]}]}", 413, None),
        (f'{{"lists": [{{"items": [["{"x" * 90_000}"]' + ", [1]" * 900 + "]}]}", 422, None),
    ],
    ids=["items", "lists", "nested", "text, too many", "text"],
)
def test_json_is_counted_before_it_is_parsed(body, status, field, post):
    answer = post(content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert field is None or answer.json()["error"]["field"] == field


def test_brackets_and_quotes_in_names_are_no_arrays(served, call):
    name = '[{"' * 100
    sent = {"json": {"lists": [{"id": name, **ONE["json"]["lists"][0]}]}}
    assert call((("POST", "/rank"), sent))[0].json()["lists"][0]["id"] == name


def test_others_are_answered_while_a_body_is_parsed(app, monkeypatch):
    answered = threading.Event()

    def parse_late(*arguments):
        assert answered.wait(20), "the health was not answered before"
        return parse_json(*arguments)

    async def both():
        ranked = asyncio.create_task(send(app, (("POST", "/rank"), ONE)))
        await asyncio.sleep(0)
        (health,) = await send(app, (("GET", "/health"), {}))
        assert health.status_code == 200
        answered.set()
        (response,) = await ranked
        assert response.status_code == 200, response.text

    monkeypatch.setattr(app_module, "parse_json", parse_late)
    asyncio.run(both())


def test_too_many_requests_are_refused(served):
    first = served["in_list"]
    started, release = threading.Event(), threading.Event()

    def score_late(*lists):
        started.set()
        assert release.wait(20)
        return first.score(*lists)

    app = create_app({"in_list": dataclasses.replace(first, score=score_late)}, LIMITS)

    async def overload():
        taken = [asyncio.create_task(send(app, (("POST", "/rank"), ONE))) for _ in range(2)]
        await asyncio.to_thread(started.wait, 20)
        refused, metrics = await send(app, (("POST", "/rank"), ONE), (("GET", "/metrics"), {}))
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert "2 requests are in progress" in refused.json()["error"]["message"]
        assert "rankgrad_waiting_requests 2.0" in metrics.text
        release.set()
        assert [(await one)[0].status_code for one in taken] == [200, 200]
        again, metrics = await send(app, (("POST", "/rank"), ONE), (("GET", "/metrics"), {}))
        assert again.status_code == 200
        assert 'rankgrad_requests_total{model="in_list",status="503"} 1.0' in metrics.text

    asyncio.run(overload())


def test_bytes_in_progress_are_bounded(served):
    limits = Limits(body=20_000, total_items=1000, waiting_bytes=20_000)
    app = create_app(served, limits)
    many = {"json": {"lists": [{"items": [[1, 1, 1, 1]] * 1000}]}}

    async def two():
        first, second = await send(app, (("POST", "/rank"), many), (("POST", "/rank"), many))
        assert sorted([first.status_code, second.status_code]) == [200, 503]
        assert app.state.service.admission.bytes == 0

    asyncio.run(two())
    with pytest.raises(ValueError, match="fewer than the 8,388,608 of one body"):
        Limits(waiting_bytes=1)


def test_a_large_request_is_scored_in_parts(served, lists, fitted, monkeypatch):
    monkeypatch.setattr("rankgrad.serving._batching._MAX_ITEMS", 7)
    app = create_app(served)
    parts = [lists.features[start:stop] for start, stop in pairwise(lists.offsets)]
    sent = [{"items": []}, *({"items": part.tolist()} for part in parts), {"items": []}]
    (answer,) = asyncio.run(send(app, (("POST", "/rank"), {"json": {"lists": sent}})))
    scores = np.concatenate([one["scores"] for one in answer.json()["lists"]])
    ours = fitted["in_list"].predict(lists.features, lists.offsets)
    np.testing.assert_allclose(scores, ours, atol=1e-5)
