import csv
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from explanations.test_importance import make
from rewritten import rewrite

from rankgrad.explanations import Explanation, explain, explain_pair
from rankgrad.explanations._explanation import pairs
from rankgrad.training import Settings, fit


@pytest.fixture(scope="module")
def data():
    return make(30)


@pytest.fixture(scope="module")
def ranker(data):
    return fit(Settings(epochs=2, metrics=(), device="cpu"), data).model


@pytest.fixture(scope="module")
def found(ranker, data):
    return explain(ranker, data, repeats=1, sample=12, lists=6, top=4)


def test_lists_are_explained_as_they_are_ranked(found, ranker, data):
    assert found.importance.drops.shape == (4, 12)
    assert found.qids == tuple(data.qids[found.lists])
    scores = ranker.predict(data.features, data.offsets)
    for q, at in enumerate(found.lists):
        inside = slice(data.offsets[at], data.offsets[at + 1])
        order = np.argsort(-scores[inside])[:4]
        assert found.items[q].tolist() == order.tolist()
        np.testing.assert_array_equal(found.values[q], data.features[inside][order])
        for p, (upper, lower) in enumerate(pairs(4)):
            own = scores[inside][order[upper]] - scores[inside][order[lower]]
            assert found.differences[q, p] == pytest.approx(own, abs=1e-5)
    np.testing.assert_allclose(found.attributions.sum(-1), found.differences, atol=1e-3)


def test_round_trip(found, tmp_path):
    (tmp_path / "run").mkdir()
    found.save(tmp_path / "run")
    found.save(tmp_path / "run")
    again = Explanation.load(tmp_path / "run")
    for name in ("lists", "items", "values", "attributions", "differences", "baselines"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    np.testing.assert_array_equal(again.importance.drops, found.importance.drops)
    assert again.importance_rows() == found.importance_rows()
    assert (again.qids, again.checksum) == (found.qids, found.checksum)
    place = tmp_path / "run" / "explanations" / "test"
    content = (place / "items.npy").read_bytes()
    (place / "items.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"items\.npy is damaged"):
        Explanation.load(tmp_path / "run")
    (place / "items.npy").write_bytes(content)
    rewrite(place / "explanation.json", version=9)
    with pytest.raises(ValueError, match="explain the run again"):
        Explanation.load(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="has no explanation 'vali'"):
        Explanation.load(tmp_path / "run", "vali")


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_files(found, tmp_path):
    found.export(tmp_path / "out")
    rows = read(tmp_path / "out" / "importance.csv")
    assert [row["feature"] for row in rows] == [row[0] for row in found.importance_rows()]
    assert float(rows[0]["low95"]) <= float(rows[0]["drop_points"]) <= float(rows[0]["high95"])
    items = read(tmp_path / "out" / "pairs.csv")
    assert len(items) == 6 * 6 * 4
    first = items[:4]
    total = sum(float(row["attribution"]) for row in first)
    assert total == pytest.approx(float(first[0]["score_difference"]), abs=1e-3)
    metadata = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert metadata["importance"][0]["feature"] == rows[0]["feature"]
    svg = ElementTree.parse(tmp_path / "out" / "importance.svg").getroot()
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert all(feature in texts for feature in found.features)


def test_files_where_the_metric_is_undefined(ranker, data, tmp_path):
    unlabeled = replace(data, labels=np.zeros(data.n_items))
    explain(ranker, unlabeled, "ndcg(empty=skip)", repeats=1, lists=0).export(tmp_path / "out")
    text = (tmp_path / "out" / "explanation.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["mean"] is None
    assert json.loads(text)["importance"][0]["drop"] is None
    picture = (tmp_path / "out" / "importance.svg").read_text()
    assert "nan" not in picture and "0.00" not in picture and ">undefined<" in picture


def test_wrong_lists(ranker, data):
    for lists in ([-1], [30]):
        with pytest.raises(ValueError, match=r"lists must be from 0 to 29, found"):
            explain(ranker, data, repeats=1, lists=lists)
    assert len(explain(ranker, data, repeats=1, sample=2, lists=np.int64(3)).lists) == 3
    for option in ({"sample": 0}, {"top": -1}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be a whole number"):
            explain(ranker, data, **option)


def test_a_query_id_may_be_a_number(ranker, data):
    numbered = replace(data, qids=np.arange(len(data)))
    assert explain_pair(ranker, numbered, 3).qid == "3"


def test_a_pair_by_query(ranker, data):
    pair = explain_pair(ranker, data, "q3", (2, 0))
    assert pair.items == (2, 0)
    assert sum(row[3] for row in pair.rows()) == pytest.approx(pair.difference, abs=1e-3)
    assert pair.difference == pytest.approx(pair.scores[0] - pair.scores[1], abs=1e-5)
    by_size = [abs(row[3]) for row in pair.rows()]
    assert by_size == sorted(by_size, reverse=True)
    mistakes = [explain_pair(ranker, data, qid) for qid in data.qids[:10]]
    assert any(pair.labels[0] < pair.labels[1] for pair in mistakes)
    assert all(pair.scores[0] > pair.scores[1] for pair in mistakes)
    assert {pair.order for pair in mistakes} == {"above"}
    assert explain_pair(ranker, data, "q3", pair.items[::-1]).order != pair.order
    with pytest.raises(ValueError, match=r"no query '?x'? in the data; the first are q0"):
        explain_pair(ranker, data, "x")
    with pytest.raises(ValueError, match="found 1 and 100, counting from 1"):
        explain_pair(ranker, data, "q3", (0, 99))


def test_tied_items_are_not_above_each_other(ranker, data):
    features = np.array(data.features)
    inside = slice(data.offsets[3], data.offsets[4])
    features[inside] = features[inside][0]  # all of the list are one item
    tied = explain_pair(ranker, replace(data, features=features), "q3")
    assert (tied.order, tied.to_dict()["order"], tied.items) == ("tied with", "tied with", (0, 1))
    assert tied.difference == 0
    assert not tied.attributions.any()
    features[inside.stop - 1] = data.features[inside.stop - 1] + 1
    pair = explain_pair(ranker, replace(data, features=features), "q3")  # the one that is not tied
    assert pair.order == "above"
    assert inside.stop - inside.start - 1 in pair.items
