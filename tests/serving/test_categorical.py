"""Categories in requests: by their names, as codes, and what is wrong with them."""

import numpy as np
import pyarrow as pa
import pytest
from learnable import lists as learnable
from serving_requests import ARROW, stream

from rankgrad.data import Dataset
from rankgrad.serving import ServedRanker, create_app
from rankgrad.serving._categorical import CategoricalFeature
from rankgrad.training import Settings, fit

NAMES = ("bm25", "color", "size")
CATEGORIES = (None, ("blue", "green", "red"), ("3", "7"))  # the last is of numbers
NAN = float("nan")


@pytest.fixture(scope="module")
def fitted():
    made = learnable(20, features=3)
    features = np.array(made.features)
    features[:, 1] = np.arange(len(features)) % 3
    features[:, 2] = np.arange(len(features)) % 2
    lists = Dataset(
        features, made.labels, made.offsets, made.qids, feature_names=NAMES, categories=CATEGORIES
    )
    models = {
        "network": "mlp(hidden=[4])",
        "trees": "lightgbm(min_data_in_leaf=1)",
        "xgboost": "xgboost(min_child_weight=0, max_cat_to_onehot=1)",
    }
    return {
        name: fit(Settings(model=model, transforms=(), epochs=3, device="cpu"), lists).model
        for name, model in models.items()
    }


@pytest.fixture
def app(fitted):
    return create_app({name: ServedRanker.of(ranker, name) for name, ranker in fitted.items()})


COLORS = ["red", "blue", None, "pink"]  # the last is unknown, and so a missing value
SENT = {
    "names": [
        [0.5, color, size] for color, size in zip(COLORS, ["7", "3", None, "9"], strict=True)
    ],
    "numbers": [[0.5, 2, 7], [0.5, 0.0, 3.0], [0.5, None, None], [0.5, None, 9]],
}


@pytest.mark.parametrize("form", [*SENT, "objects", "arrow", "dictionary", "arrow numbers"])
@pytest.mark.parametrize("model", ["network", "trees", "xgboost"])
def test_categories_are_those_of_the_training_data(model, form, fitted, post):
    ours = fitted[model].predict(
        np.array([[0.5, 2, 1], [0.5, 0, 0], [0.5, NAN, NAN], [0.5, NAN, NAN]], np.float32)
    )
    if form in SENT or form == "objects":
        rows = SENT[form if form in SENT else "names"]
        items = [dict(zip(NAMES, row, strict=True)) for row in rows] if form == "objects" else rows
        answer = post(f"/models/{model}/rank", json={"lists": [{"items": items}]})
    else:
        rows = SENT["numbers" if form == "arrow numbers" else "names"]
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        if form == "dictionary":
            columns[1] = columns[1].dictionary_encode()
        elif form == "arrow":  # as Polars sends texts
            columns[1] = columns[1].cast(pa.string_view())
        content = stream(pa.table(columns, NAMES))
        answer = post(f"/models/{model}/rank", content=content, headers={"content-type": ARROW})
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(answer.json()["lists"][0]["scores"], ours, atol=1e-5)


@pytest.mark.parametrize("value", [3, -1, 0.5, True, ["red"], 10**400])
def test_an_unknown_category_is_named(value, post):
    items = [{"bm25": 1, "color": "red"}, {"bm25": 1, "color": value}]
    answer = post(json={"lists": [{"items": items}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (422, "lists[0].items[1].color")
    assert "name of a category, or its code from 0 to 2" in error["message"]


@pytest.mark.parametrize("packed", [False, True])
def test_an_unknown_category_is_named_in_arrow(packed, post):
    table = pa.table([[1.0, 1.0], [1, 7], [3, 3]], NAMES)
    if packed:
        table = pa.table({"features": [[1.0, 1.0, 3.0], [1.0, 7.0, 3.0]]})
    error = post(content=stream(table), headers={"content-type": ARROW}).json()["error"]
    assert error["field"] == "column 'color'[1]" and error["message"].endswith("found 7")


def test_the_version_changes_with_the_trees(fitted, monkeypatch):
    trees = fitted["trees"].network
    first, again = (ServedRanker.of(fitted["trees"], name) for name in ("first", "again"))
    monkeypatch.setattr(trees, "saved", trees.saved + b"\n")
    changed = ServedRanker.of(fitted["trees"], "changed")
    assert first.runtime == "rankgrad" and first.version == again.version != changed.version


def test_the_service_says_which_there_are(call):
    model = call((("GET", "/models/trees"), {}))[0].json()
    assert model["categories"] == {"color": ["blue", "green", "red"], "size": ["3", "7"]}
    assert not model["missing_values"]  # of numbers


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("model", ["network", "trees"])
def test_categories_may_be_missing_and_numbers_may_not(model, arrow, post):
    """Of rankers that were trained on complete data."""
    for item, status in (({"bm25": 1.0}, 200), ({"color": "red", "size": 3}, 422)):
        table = pa.table({name: [value] for name, value in item.items()})
        sent = {"content": stream(table), "headers": {"content-type": ARROW}}
        sent = sent if arrow else {"json": {"lists": [{"items": [item]}]}}
        answer = post(f"/models/{model}/rank", **sent)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"] == "is missing" and "bm25" in answer.text


def test_numbers_are_names_where_a_text_file_had_fractions():
    size = CategoricalFeature(("0.1", "1.0", "7.0"))
    assert [size.code(value) for value in (7, "7", "7.0", 1.0, 0.1)] == [2, 2, 2, 1, 0]
    assert size.codes_of(np.array([0.1, 7], np.float32)).tolist() == [0, 2]


def test_a_missing_text_is_not_the_category_none():
    codes = CategoricalFeature(("None", "red")).codes_of_texts([None, "None", "red", "blue"])
    np.testing.assert_array_equal(codes, np.array([np.nan, 0, 1, np.nan], np.float32))
