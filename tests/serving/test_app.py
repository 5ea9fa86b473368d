"""The service in this process: what it answers, and what it says is wrong."""

import asyncio
import dataclasses
import json
import re
import sys

import numpy as np
import pyarrow as pa
import pytest
from serving_requests import ARROW, send, stream

import rankgrad
from rankgrad.data import _preparation_kernel
from rankgrad.serving import Limits, ServedRanker, _bodies, _folded_layers, create_app
from rankgrad.serving._bodies import to_json_body
from rankgrad.training import Settings, fit


@pytest.fixture
def app(served):
    return create_app(served, Limits(body=100_000, lists=3, items=30), "1.2.3")


def items_of(lists, at):
    return np.asarray(lists.features[lists.offsets[at] : lists.offsets[at + 1]])


def body(lists, at, named=False):
    rows = items_of(lists, at).tolist()
    items = [dict(zip(lists.feature_names, row, strict=True)) for row in rows] if named else rows
    return {"lists": [{"id": str(at), "items": items}]}


@pytest.mark.parametrize("name", ["in_list", "plain", "trees"])
@pytest.mark.parametrize("named", [False, True])
def test_scores_are_those_of_the_ranker(name, named, lists, fitted, served, post):
    response = post(f"/models/{name}/rank", json=body(lists, 2, named))
    assert response.status_code == 200, response.text
    answer = response.json()
    (found,) = answer["lists"]
    ours = fitted[name].predict(items_of(lists, 2))
    np.testing.assert_allclose(found["scores"], ours, atol=1e-5)
    assert found["id"] == "2" and answer["version"] == served[name].version
    assert np.array(found["scores"])[found["order"]].tolist() == sorted(found["scores"])[::-1]


def test_arrow_in_and_out(lists, fitted, post):
    first, second = items_of(lists, 0), items_of(lists, 1)
    rows = np.concatenate([first, second])
    columns = dict(zip(lists.feature_names, rows.T, strict=True))
    names = ["a"] * len(first) + ["b"] * len(second)
    packed = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)
    by_name = pa.table({"list": names, **columns})
    arrays = [packed.cast(kind(pa.float32())) for kind in (pa.list_, pa.large_list)]
    by_position = [pa.table([names, one], ["list", "features"]) for one in (packed, *arrays)]
    headers = {"content-type": ARROW, "accept": ARROW}
    for table in (by_name, *by_position):
        response = post(content=stream(table), headers=headers)
        assert response.status_code == 200, response.text
        found = pa.ipc.open_stream(response.content).read_all()
        ours = fitted["in_list"].predict(rows, np.array([0, len(first), len(rows)]))
        np.testing.assert_allclose(found["score"], ours, atol=1e-5)
        assert sorted(found["rank"].to_pylist()[: len(first)]) == list(range(1, len(first) + 1))
    bad = post(content=stream(by_name)[:100], headers=headers)
    assert bad.status_code == 400 and "not an Arrow stream" in bad.text


def test_nothing_is_compiled_for_a_request(lists, fitted):
    """What is compiled is so before the service is ready; Numba refuses arrays of another type."""
    app = create_app({"a": ServedRanker.of(fitted["in_list"], "a")})
    rows = np.asarray(lists.features)[:90]
    columns = dict(zip(lists.feature_names, rows.T, strict=True))
    packed = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)
    tables = pa.table(columns), pa.table([packed], ["features"])
    sent = [{"json": {"lists": [{"items": rows[:n].tolist()}]}} for n in (1, 90)]
    sent += [{"content": stream(one), "headers": {"content-type": ARROW}} for one in tables]
    compiled = _preparation_kernel.prepare, _folded_layers._first_layer
    for function in compiled:
        assert function.signatures
        function.disable_compile()
    try:
        found = [asyncio.run(send(app, (("POST", "/rank"), one)))[0] for one in sent]
        found += asyncio.run(send(app, *[(("POST", "/rank"), one) for one in sent]))
    finally:
        for function in compiled:
            function.disable_compile(False)
    assert [one.status_code for one in found] == [200] * 8


@pytest.mark.parametrize(
    "names",
    [
        pa.array([b"\xff", b"a"]),
        pa.array([2**62, 1], pa.timestamp("s")),
        pa.array([2**31 - 1, 1], pa.int32()).cast(pa.date32()),
        pa.array([1.5, float("nan")]),
        pa.array([[1], [2]]),
    ],
    ids=lambda names: str(names.type),
)
def test_names_of_lists_in_arrow_are_texts_or_integers(lists, post, names):
    columns = dict(zip(lists.feature_names, items_of(lists, 0)[:2].T, strict=True))
    answer = post(
        content=stream(pa.table({"list": names, **columns})), headers={"content-type": ARROW}
    )
    assert answer.status_code == 422 and "must be of texts or integers" in answer.text


def test_a_feature_may_be_called_list(lists, fitted, served):
    ranker = dataclasses.replace(served["plain"], feature_names=("list", *lists.feature_names[1:]))
    rows = items_of(lists, 0)[:3]
    ours = fitted["plain"].predict(rows)
    columns = dict(zip(ranker.feature_names, rows.T, strict=True))
    packed = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)
    names = ["q", "q", "r"]
    tables = [pa.table(columns), pa.table([names, packed], ["list", "features"])]
    wrong = pa.table({**columns, "list": names})
    sent = [
        (("POST", "/rank"), {"content": stream(table), "headers": {"content-type": ARROW}})
        for table in (*tables, wrong)
    ]
    by_name, by_position, texts = asyncio.run(send(create_app({"plain": ranker}), *sent))
    for answer, lengths in ((by_name, [3]), (by_position, [2, 1])):
        scores = [one["scores"] for one in answer.json()["lists"]]
        assert list(map(len, scores)) == lengths
        np.testing.assert_allclose(np.concatenate(scores), ours, atol=1e-5)
    error = texts.json()["error"]
    assert (texts.status_code, error["field"]) == (422, "column 'list'")
    assert "must be of numbers" in error["message"]


def test_what_fails_is_a_500_of_its_own_request(lists, served, monkeypatch, caplog):
    def respond(ranker, lists, scores):
        if lists.ids == ["1"]:
            raise OverflowError("beyond")
        return to_json_body(ranker, lists, scores)

    monkeypatch.setattr(_bodies, "to_json_body", respond)
    sent = [(("POST", "/rank"), {"json": body(lists, at)}) for at in range(3)]
    app = create_app(served)
    assert app.version == app.state.service.version == rankgrad.__version__
    good, failed, other = asyncio.run(send(app, *sent))
    assert [good.status_code, failed.status_code, other.status_code] == [200, 500, 200]
    assert failed.json() == {
        "error": {"field": None, "message": "the service failed: its log says why"}
    }
    assert "OverflowError: beyond" in caplog.text
    assert "500" in app.openapi()["paths"]["/rank"]["post"]["responses"]
    (metrics,) = asyncio.run(send(app, (("GET", "/metrics"), {})))
    assert 'rankgrad_requests_total{model="in_list",status="500"} 1.0' in metrics.text


def test_requests_at_once_are_scored_together(lists, fitted, call):
    sent = [(("POST", "/rank"), {"json": body(lists, at)}) for at in range(len(lists))]
    answers = call(*sent)
    for at, response in enumerate(answers):
        ours = fitted["in_list"].predict(items_of(lists, at))
        np.testing.assert_allclose(response.json()["lists"][0]["scores"], ours, atol=1e-5)
    metrics = call((("GET", "/metrics"), {}))[0].text
    count = f'rankgrad_requests_total{{model="in_list",status="200"}} {len(lists)}.0'
    assert count in metrics
    (batches,) = re.findall(r'batch_requests_count\{model="in_list"\} (\S+)', metrics)
    assert float(batches) < len(lists)


def test_what_the_service_says_of_itself(call, served):
    paths = ["/health", "/version", "/models", "/models/trees", "/models/none", "/openapi.json"]
    health, version, models, trees, none, schema = call(*((("GET", path), {}) for path in paths))
    assert health.json() == {"status": "ok"}
    assert version.json()["rankgrad"] == "1.2.3" and set(version.json()["models"]) == set(served)
    assert [model["name"] for model in models.json()["models"]] == ["in_list", "plain", "trees"]
    assert trees.json()["feature_names"] == ["bm25", "pagerank", "age", "length"]
    assert trees.json()["runtime"] == "onnxruntime" and trees.json()["missing_values"]
    assert none.status_code == 404 and "in_list, plain, trees" in none.text
    assert "/rank" in schema.json()["paths"]


ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("sent", "status", "field"),
    [
        ([], 422, "body"),
        ({}, 422, "lists"),
        ({"lists": 3}, 422, "lists"),
        ({"lists": [], "model": "trees"}, 422, "model"),
        ({"lists": [{}]}, 422, "lists[0].items"),
        ({"lists": [{"items": [], "itmes": 1}]}, 422, "lists[0].itmes"),
        ({"lists": [{"items": [], "id": [1]}]}, 422, "lists[0].id"),
        ({"lists": [{"items": [ROW, ROW[:3]]}]}, 422, "lists[0].items[1]"),
        ({"lists": [{"items": [ROW]}, {"items": [[1, 2, "3", 4]]}]}, 422, "lists[1].items[0][2]"),
        ({"lists": [{"items": [[1, 2, True, 4]]}]}, 422, "lists[0].items[0][2]"),
        ({"lists": [{"items": [[1, 2, 1e39, 4]]}]}, 422, "lists[0].items[0][2]"),
        ({"lists": [{"items": [[1, 2, 10**400, 4]]}]}, 422, "lists[0].items[0][2]"),
        ({"lists": [{"items": [{"bm25": 1, "x": 1}]}]}, 422, "lists[0].items[0].x"),
        ({"lists": [{"items": [7]}]}, 422, "lists[0].items[0]"),
        ({"lists": [{"items": [ROW] * 31}]}, 413, "lists[0].items"),
        ({"lists": [{"items": []}] * 4}, 413, "lists"),
    ],
)  # fmt: skip
def test_errors_name_the_field(sent, status, field, post):
    response = post(content=json.dumps(sent), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)


@pytest.mark.parametrize(
    ("accept", "arrow"),
    [
        (ARROW.upper(), True),
        (f"application/json, {ARROW}", True),
        (f"application/json; q=0.5, {ARROW};q=0.6", True),
        (f"application/json, {ARROW};q=0.6", False),
        (f"{ARROW};q=0", False),
        (f"{ARROW}; q=0.000, */*", False),
        (f"x-{ARROW}", False),
        (f"{ARROW};q=much", True),
        ("*/*", False),
        (f"*/*;q=1, {ARROW};q=0.1", False),
        (f"application/*, */*;q=0, {ARROW};q=0.1", False),
        (f"*/*, application/json;q=0.1, {ARROW};q=0.2", True),
        (f"{ARROW}, */*", True),
    ],
)
def test_the_preferred_form_is_answered(accept, arrow, lists, post):
    response = post(json=body(lists, 0), headers={"accept": accept})
    assert response.headers["content-type"] == (ARROW if arrow else "application/json")


@pytest.mark.parametrize(
    ("model", "transforms"),
    [
        ("xgboost(max_leaves=5)", ("quantile",)),
        ("xgboost(max_leaves=5)", ("pipeline(steps=[log1p, standardize])",)),
        ("mlp(hidden=[4])", ("quantile(quantiles=5)", "quantile")),
        ("mlp(hidden=[4])", ("log1p", "quantile(quantiles=5)")),
        ("tabm(hidden=[4], in_list=[rank, ties])", ("log1p",)),
        ("tabm(hidden=[4], in_list=[rank, ties])", ("quantile(quantiles=5)",)),
    ],
)
def test_what_other_last_digits_would_put_on_the_other_side(model, transforms, lists):
    """Where values are splits, quantiles or nearly tied, the last digits of a value decide."""
    features = np.round(np.array(lists.features), 1)
    features[::2] = np.nextafter(features[::2], np.float32(np.inf))
    rounded = dataclasses.replace(lists, features=features)
    trained = fit(Settings(model=model, transforms=transforms, epochs=5, device="cpu"), rounded)
    ranker = trained.model
    served = ServedRanker.of(ranker, "a")
    assert served.runtime == "onnxruntime"
    scores = served.score(features, lists.offsets)
    np.testing.assert_allclose(scores, ranker.predict(features, lists.offsets), atol=1e-5)


def test_without_pyarrow_the_answer_is_json(lists, post, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    response = post(json=body(lists, 0), headers={"accept": ARROW})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize(
    ("item", "field"),
    [("[1, 2, NUMBER, 4]", "lists[0].items[1][2]"), ('{"age": -NUMBER}', "lists[0].items[1].age")],
)
def test_a_number_that_no_parser_takes_is_named(item, field, post):
    sent = '{"lists": [{"items": [{"age": 1}, ITEM]}]}'.replace("ITEM", item)
    response = post("/models/trees/rank", content=sent.replace("NUMBER", "7" * 5000))
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (422, field), error
    assert "too large" in error["message"]


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ('{"lists": NaN}', "lists"),
        ('{"lists": [{"items": [{"age": 1}, {"age": -Infinity}]}]}', "lists[0].items[1].age"),
        ('{"lists": [{"items": [[1, 2, 3, NaN], 7]}]}', "lists[0].items[0][3]"),
        ('{"lists": [NaN, }', None),
        ("Infinity", "body"),
    ],
)
def test_numbers_that_are_not_json_are_named(sent, field, post):
    answer = post("/models/trees/rank", content=sent)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize("arrow", [False, True])
def test_scores_that_are_not_finite_are_errors(arrow, call, lists):
    """Of the request that has such features, and not of others that are scored with it."""
    rows = [*items_of(lists, 0)[:2].tolist(), [3e38, -3e38, 3e38, -3e38]]
    columns = dict(zip(lists.feature_names, np.transpose(rows), strict=True))
    table = pa.table({"list": [0, 0, 1], **columns})
    sent = {"json": {"lists": [{"items": rows[:2]}, {"items": rows[2:]}]}}
    if arrow:
        sent = {"content": stream(table), "headers": {"content-type": ARROW}}
    good, wrong = call(
        (("POST", "/models/plain/rank"), {"json": body(lists, 0)}),
        (("POST", "/models/plain/rank"), sent),
    )
    assert (good.status_code, wrong.status_code) == (200, 422), wrong.text
    error = wrong.json()["error"]
    assert error["field"] == ("row 2" if arrow else "lists[1].items[0]")
    assert "not a finite number" in error["message"]


def test_other_errors(post, lists):
    assert post(content=b"{").status_code == 400
    assert post(content=b'{"lists": NaN}').status_code == 400
    assert post(content=b"[" * 50_000).status_code == 400
    unread = post(
        content=b'{"lists": [{"items": [], "id": NUMBER}]}'.replace(b"NUMBER", b"7" * 5000)
    )
    assert unread.status_code == 400 and "out of range" in unread.text
    assert post(content=b" " * 100_001).status_code == 413
    assert post(content=b"", headers={"content-type": "text/csv"}).status_code == 415
    compressed = {"content-encoding": "gzip"}
    assert post(json=body(lists, 0), headers=compressed).status_code == 415
    assert post("/models/none/rank", json=body(lists, 0)).status_code == 404
    for path, status in (("/nowhere", 404), ("/health", 405)):
        found = post(path, json={})
        assert found.status_code == status
        assert found.json()["error"]["field"] is None
    empty = post(json={"lists": [{"items": []}]})
    assert empty.json()["lists"] == [{"scores": [], "order": []}]


@pytest.mark.parametrize("name", ["in_list", "plain"])
def test_missing_values_where_the_ranker_takes_none(name, lists, post, call):
    described = call((("GET", f"/models/{name}"), {}))[0].json()
    assert not described["missing_values"]
    for item, field in (({}, ".bm25"), ([1.0, None, 0.5, 2.0], "[1]")):
        answer = post(f"/models/{name}/rank", json={"lists": [{"items": [item]}]})
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == f"lists[0].items[0]{field}"


def test_missing_values_where_the_ranker_takes_them(post, fitted):
    items = [[1.0, None, 0.5, 2.0], {"bm25": 1.0, "age": 0.5, "length": 2.0}]
    sent = {"lists": [{"items": [item]} for item in items]}
    response = post("/models/trees/rank", json=sent)
    first, second = (found["scores"] for found in response.json()["lists"])
    assert first == second
