"""What the page says, read from its text and its data."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pages import data_of, text_of

from rankgrad import report
from rankgrad.report import _per_query
from rankgrad.results import comparison
from rankgrad.results._comparison_tables import to_json
from rankgrad.results._groups import group
from rankgrad.results.runs import find
from rankgrad.significance import Significance
from rankgrad.training._evaluations import EvaluatedLists

METRICS = ("ndcg@5", "ndcg@10", "ap", "rr")


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()


def unpack(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope="module")
def compared(tmp_path_factory, run_folder, lists):
    """Two losses on two folds with two seeds, and trees without curves."""
    place = tmp_path_factory.mktemp("compared")
    folds = [lists(60, seed=f, qid=f"{f}-{{}}") for f in (1, 2)]
    for fold, data in enumerate(folds, start=1):
        for loss, quality in (("approx_ndcg", 3.0), ("mse", 0.6)):
            for seed in (0, 1):
                path = place / "runs" / loss / f"fold{fold}-seed{seed}"
                options = {"quality": quality, "candidate": loss, "fold": fold, "seed": seed}
                run_folder(path, data, loss=loss, **options)
        path = place / "runs" / "lightgbm" / f"fold{fold}-seed0"
        run_folder(path, data, loss="", candidate="lightgbm", fold=fold, trained=False, quality=2.9)
    page, found = report.build([place])
    return place, page, found


def test_run_folders_are_found_at_any_depth_once(compared, tmp_path):
    place, _, _ = compared
    assert len(report.find([place])) == 10
    assert len(report.find([place, place / "runs" / "mse"])) == 10
    assert len(report.find([place / "runs" / "mse" / "fold1-seed0"])) == 1
    with pytest.raises(ValueError, match="holds no run folder"):
        report.find([place, tmp_path])


def test_means_are_those_of_the_runs(compared):
    place, page, found = compared
    means = [
        np.mean(
            [EvaluatedLists.load(run).mean["ndcg@10"] for run in (place / "runs" / loss).iterdir()]
        )
        for loss in ("approx_ndcg", "lightgbm", "mse")
    ]
    assert found.names == ("approx_ndcg", "lightgbm", "mse")
    ours = [found.mean(name, "ndcg@10") for name in found.names]
    np.testing.assert_allclose(ours, means, rtol=1e-9)
    text = text_of(page)
    for mean in means:
        assert f"{mean:.4f}" in text
    for name in found.names:
        for metric in METRICS:
            low, high = found.interval(name, metric)
            assert low < found.mean(name, metric) < high


def test_the_headline_says_what_won_and_whether_it_is_significant(compared):
    place, page, found = compared
    text = text_of(page)
    name, other = sorted(found.names[:2], key=lambda name: -found.mean(name, "ndcg@10"))
    assert f"{name} has the highest ndcg@10: {found.mean(name, 'ndcg@10'):.4f}" in text
    assert f"significantly better than 1 of the other 2; its lead over {other} is not" in text
    p = {d.entry: d.corrected for d in found.differences("ndcg@10")}
    assert p["mse"] < 0.05 < p[other]
    assert "on 120 test queries of 2 folds" in text
    against_mse, _ = report.build([place], baseline="mse", metric="rr")
    assert "highest rr" in text_of(against_mse)
    words = "2 of the other 2 differ significantly from the baseline mse: 2 better, 0 worse"
    assert words in text_of(against_mse)


def test_conventions_are_said(compared):
    text = text_of(compared[1])
    for part in (
        ") count 0;",
        "lists without relevant items (",
        "tied scores: average",
        "gain: 2^y - 1",
    ):
        assert part in text
    assert "paired t-test, two-sided, Bonferroni correction, at 5%, over 120 queries" in text


@pytest.mark.parametrize("baseline", [None, "mse"])
@pytest.mark.parametrize(
    "how",
    [Significance(), Significance("randomization", "holm"), Significance(sides=1)],
    ids=str,
)
def test_the_test_is_that_of_the_comparison(compared, how, baseline):
    place, _, _ = compared
    runs = [place / "runs" / name for name in ("approx_ndcg", "mse")]
    groups = group([report.read(path) for path in find(runs)])
    theirs = comparison.compare(
        groups, metrics=METRICS, how=how, baseline=baseline, plan={"data": "d"}
    )
    file = runs[1] / "comparison.json"
    file.write_text(json.dumps(to_json(theirs)))
    try:
        page, found = report.build(runs)
        other, given = report.build(runs, test="randomization", correction="none")
    finally:
        file.unlink()
    assert found.how == how and f"{how}, over 120 queries" in text_of(page)
    for metric in METRICS:
        assert len(found.differences(metric)) == 1
        for d in theirs.differences(metric):
            assert found.difference(d.entry, metric) == d
    assert "corrected over" in text_of(page) and "corrected over" not in text_of(other)
    assert (given.how.test, given.how.correction, given.how.sides) == (
        *("randomization", "none"),
        how.sides,
    )


def test_comparisons_that_disagree_leave_the_usual_test(compared):
    place, _, _ = compared
    files = [place / "runs" / name / "comparison.json" for name in ("mse", "approx_ndcg")]
    for file, test in zip(files, ("t", "randomization"), strict=True):
        file.write_text(json.dumps({"plan": {"data": "d"}, "test": {"test": test}, "rows": []}))
    try:
        assert report.build([place])[1].how == Significance()
    finally:
        for file in files:
            file.unlink()


def test_a_baseline_is_found_in_any_case_of_letters(compared):
    found = report.build([compared[0]], baseline="LightGBM")[1]
    assert found.baseline == "lightgbm"
    with pytest.raises(ValueError, match="there is no ranker 'light'"):
        report.build([compared[0]], baseline="light")


def test_curves_are_means_with_the_seeds_as_bands(compared):
    place, page, _ = compared
    series = data_of(page)["curves"]["series"]
    assert [own["entry"] for own in series] == [0, 2]  # trees have none
    histories = {
        (fold, seed): [
            json.loads(line)["ndcg@5"]
            for line in read(place / "runs/mse" / f"fold{fold}-seed{seed}/metrics.jsonl")
        ]
        for fold in (1, 2)
        for seed in (0, 1)
    }
    line = series[1]["lines"]["ndcg@5"]
    over_folds = [np.mean([histories[f, s] for f in (1, 2)], axis=0) for s in (0, 1)]
    np.testing.assert_allclose(line["mean"], np.mean(over_folds, axis=0), rtol=1e-5)
    np.testing.assert_allclose(line["low"], np.min(over_folds, axis=0), rtol=1e-5)
    np.testing.assert_allclose(line["high"], np.max(over_folds, axis=0), rtol=1e-5)


def test_a_run_that_has_stopped_keeps_its_last_value(tmp_path, run_folder, lists):
    data = lists(4)
    for seed, epochs in ((0, 3), (1, 5)):
        run_folder(tmp_path / str(seed), data, loss="mse", candidate="a", seed=seed, epochs=epochs)
    series = data_of(report.build([tmp_path])[0])["curves"]["series"]
    short, long = (
        [json.loads(line)["rr"] for line in read(tmp_path / seed / "metrics.jsonl")]
        for seed in ("0", "1")
    )
    expected = (np.array([*short, short[-1], short[-1]]) + long) / 2
    assert series[0]["ends"] == 3 and series[0]["over"] == "seeds"
    np.testing.assert_allclose(series[0]["lines"]["rr"]["mean"], expected, rtol=1e-5)


def test_relaxed_metrics_stand_beside_the_exact_ones(compared):
    _, page, _ = compared
    data = data_of(page)
    (own,) = data["relaxed"]  # mse relaxes no metric
    assert data["entries"][own["entry"]] == "approx_ndcg"
    assert own["metric"] == "ndcg" and own["exact_metric"] == "ndcg@10"  # the deepest logged
    loss = data["curves"]["series"][0]["lines"]["loss"]["mean"]
    np.testing.assert_allclose(own["relaxed"]["mean"], 1 - np.array(loss), atol=1e-5)


def test_trees_log_no_loss_that_stands_beside_the_exact_metric(tmp_path, tree_folder, lists):
    path = tree_folder(tmp_path / "trees", lists(5))
    facts = json.loads((path / "run.json").read_text())
    facts["settings"]["loss"] = "approx_ndcg"
    (path / "run.json").write_text(json.dumps(facts))
    data = data_of(report.build([tmp_path])[0])
    assert data["curves"]["series"] and not data["relaxed"]


def test_every_query_has_its_value(compared):
    place, page, found = compared
    changes = data_of(page)["changes"]
    assert changes["qids"] == [qid for _, qid in found.queries] and changes["rows"] == 120
    for packed in changes["metrics"]:
        for entry, text in packed["values"].items():
            codes = unpack(text, "<i2").astype(float)
            values = (codes + 32767) * packed["step"] + packed["low"]
            expected = found.values(found.names[int(entry)], found.metrics[packed["metric"]])
            np.testing.assert_allclose(values, expected, atol=packed["step"])
    one = EvaluatedLists.load(place / "runs/lightgbm/fold1-seed0")
    np.testing.assert_allclose(found.values("lightgbm", "ap")[:60], one.of_metric("ap"))


def test_the_inspector_has_lists_in_the_order_of_their_scores(compared):
    place, page, found = compared
    data = data_of(page)["lists"]
    shape = (3, len(data["rows"]), data["top"])
    items, scores = unpack(data["items"], "<u4"), unpack(data["scores"], "<f4")
    items, scores = items.reshape(shape), scores.reshape(shape)
    labels = np.array(data["labels"])[unpack(data["codes"], "<u2")].reshape(shape)
    one = EvaluatedLists.load(place / "runs/mse/fold2-seed0")
    for q, row in enumerate(data["rows"]):
        assert data["queries"][q]["qid"] == found.queries[row][1]
        if row >= 60:
            inside = slice(one.offsets[row - 60], one.offsets[row - 59])
            order = np.argsort(-one.scores[inside], kind="stable")[: data["top"]]
            n = len(order)
            np.testing.assert_array_equal(items[2, q, :n], order + 1)
            np.testing.assert_array_equal(labels[2, q, :n], one.labels[inside][order])
            np.testing.assert_array_equal(scores[2, q, :n], one.scores[inside][order])
            assert data["queries"][q]["items"] == inside.stop - inside.start


def test_labels_that_are_not_grades_are_bounded():
    labels = np.arange(70_000, dtype=np.float32).reshape(2, -1)
    grades, codes = _per_query._distinct(labels)
    assert codes.shape == labels.shape and len(grades) == 1 << 16 and np.isfinite(grades).all()
    assert np.abs(np.array(grades)[codes] - labels).max() <= 1


def test_many_queries_are_bounded(compared, monkeypatch):
    monkeypatch.setattr(_per_query, "_CELLS", 300)
    monkeypatch.setattr(_per_query, "_ITEMS", 600)
    data = data_of(report.build([compared[0]])[0])
    assert data["changes"]["rows"] == 100 and len(data["changes"]["metrics"]) == 1
    assert data["changes"]["metrics"][0]["metric"] == data["primary"]
    assert data["changes"]["queries"] == 120
    assert len(data["lists"]["rows"]) == 10


def test_fifty_runs_of_ten_thousand_queries_fit(tmp_path, run_folder, lists):
    count, random = 10_000, np.random.default_rng(0)
    empty = lists(1)
    for at in range(50):
        path = run_folder(tmp_path / f"{at}", empty, candidate=f"a {at}", epochs=60, evaluate=False)
        EvaluatedLists(
            metrics=METRICS,
            mean=dict.fromkeys(METRICS, 0.5),
            values=random.random((count, 4)),
            qids=np.array([f"query-{i}" for i in range(count)]),
            offsets=np.arange(0, 3 * count + 1, 3),
            labels=np.ones(3 * count, np.float32),
            scores=random.random(3 * count, np.float32),
            conventions=(),
            checksum="c" * 32,
            labels_of_run={"candidate": f"a loss with a name of some length {at}"},
        ).save(path)
    page, found = report.build([tmp_path])
    data = data_of(page)
    assert len(found.complete) == 50 and len(found.queries) == count
    assert data["changes"]["rows"] == count and len(data["lists"]["rows"]) == 200
    assert len(page.encode()) < 15e6


def test_what_runs_say_is_text_and_nothing_else(tmp_path, run_folder, lists):
    bad = "</script><img src=x onerror=alert(1)>&amp;\"'"
    data = lists(5, qid="<b>{}</b></script>&\u2028")
    run_folder(tmp_path / "a", data, loss=bad, candidate=bad)
    run_folder(tmp_path / "b", data, loss="mse", candidate="mse")
    page, _ = report.build([tmp_path], title=bad)
    assert "<img" not in page and page.count("</script>") == 3
    assert data_of(page)["entries"] == [bad, "mse"]
    assert data_of(page)["changes"]["qids"] == [str(q) for q in data.qids]
    assert bad in text_of(page)


def test_the_page_asks_for_nothing(compared):
    page = compared[1]
    own = page.replace(plotly_of(page), "")
    assert "default-src 'none'" in own
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)""", own)
    assert "url(" not in own and "@import" not in own and "fetch(" not in own


def plotly_of(page: str) -> str:
    """Plotly's script, which names addresses that it does not ask for in what we draw."""
    start = page.index("<script>")
    return page[start : page.index("</script>", start)]


def test_settings_and_provenance(compared):
    text = text_of(compared[1])
    for part in ("rankgrad train DATA --loss 'mse' --seed 1", "ab" * 8, "0.1.0", "learning_rate"):
        assert part in text


def test_same_runs_same_page(compared):
    assert report.build([compared[0]])[0] == compared[1]


def test_runs_trained_by_themselves_are_distinguished(tmp_path, run_folder, lists):
    data = lists(8)
    for seed in (0, 1):
        run_folder(tmp_path / f"slow{seed}", data, seed=seed, settings={"learning_rate": 0.001})
        run_folder(tmp_path / f"fast{seed}", data, seed=seed, settings={"learning_rate": 0.01})
    run_folder(tmp_path / "mse", data, loss="mse")
    _, found = report.build([tmp_path])
    names = {entry.name: len(entry.runs) for entry in found.entries}
    assert names == {
        "approx_ndcg · learning_rate=0.01": 2,
        "approx_ndcg · learning_rate=0.001": 2,
        "mse": 1,
    }
    assert not any(entry.problems for entry in found.entries)


def test_a_run_beside_one_of_a_comparison_is_not_taken_for_it(tmp_path, run_folder, lists):
    run_folder(tmp_path / "a", lists(8), loss="mse", candidate="mse", quality=0.5)
    run_folder(tmp_path / "b", lists(8), loss="softmax", seed=1, quality=3.0)
    run_folder(tmp_path / "c", lists(8), loss="mse", seed=2)
    _, found = report.build([tmp_path])
    assert {entry.name: len(entry.runs) for entry in found.entries} == {"mse": 2, "softmax": 1}


def test_runs_of_a_comparison_keep_their_entry_when_evaluated_by_hand(tmp_path, run_folder, lists):
    for fold in (1, 2):
        path, data = tmp_path / "tuned" / f"fold{fold}-seed0", lists(8, seed=fold)
        settings = {"learning_rate": 0.01 * fold}
        run_folder(path, data, loss="mse", candidate="tuned", fold=fold, settings=settings)
        by_hand = EvaluatedLists.of(np.zeros(data.n_items), data, METRICS, {"loss": "mse"})
        by_hand.save(path, "vali")
    _, found = report.build([tmp_path], part="vali")
    (entry,) = found.entries
    assert (entry.name, [run.fold for run in entry.runs]) == ("tuned", [1, 2])


@pytest.fixture
def with_trees(tmp_path, run_folder, tree_folder, lists):
    data = lists(8)
    for loss in ("mse", "ranknet"):
        run_folder(tmp_path / "runs" / loss / "seed0", data, loss=loss, candidate=loss)
    tree_folder(tmp_path / "runs" / "trees" / "seed0", data, candidate="LightGBM")
    return tmp_path


def test_settings_are_compared_among_networks(with_trees):
    page, _ = report.build([with_trees])
    text = text_of(page)
    head = "Settings that differ between networks. ranker loss mse mse ranknet ranknet"
    assert head.replace(" ", "") in text.replace(" ", "")
    assert "num_leaves 7, learning_rate 0.03" in text and "{" not in text
    assert re.search(r"options</td><td>none</td>", page)


def test_trees_are_distinguished_from_networks(with_trees):
    data = data_of(report.build([with_trees])[0])
    trees = {data["entries"][s["entry"]]: s["trees"] for s in data["curves"]["series"]}
    assert trees == {"mse": False, "ranknet": False, "LightGBM": True}


def test_entries_keep_their_names_on_another_part(with_trees):
    _, found = report.build([with_trees], part="vali")
    assert set(found.names) == {"mse", "ranknet", "LightGBM"}


def test_the_heading_names_the_data(with_trees):
    place = with_trees / "comparison"
    (with_trees / "runs").rename(place)
    told = {"plan": {"data": "/some/where/MQ2008"}, "test": {"test": "t"}, "rows": []}
    (place / "comparison.json").write_text(json.dumps(told))
    page, _ = report.build([place])
    assert "<h1>Ranking report: MQ2008</h1>" in page
    assert "on 8 test queries of MQ2008" in text_of(page) and "quick" not in text_of(page)
    again = {"data": "MSLR-WEB30K", "quick": True}
    (with_trees / "reproduction.json").write_text(json.dumps(again))
    for where in (place, with_trees):
        page, _ = report.build([where])
        assert "<h1>Ranking report: MSLR-WEB30K (quick)</h1>" in page
        assert "A quick reproduction: reduced" in text_of(page)
    page, _ = report.build([place], title="Mine")
    assert "<h1>Mine (quick)</h1>" in page
