"""Evaluation of runs: what trec_eval has no say in."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from rankgrad.data.trec import RankedList
from rankgrad.significance import Significance
from rankgrad.text._evaluation import Conventions, evaluate_run, p_values


def ranked(*documents):
    return RankedList(list(documents), np.arange(len(documents), 0, -1.0))


QRELS = {"1": {"a": 1, "b": 2}, "2": {"a": 0, "c": -1}, "3": {"a": 3}}


def test_queries_without_candidates_or_relevant_documents():
    run = {"1": ranked("a", "x"), "2": ranked("a", "c")}
    found = evaluate_run(run, QRELS, ["ap", "ap(empty=skip)"], Conventions(complete=True))
    assert found.queries == ("1", "2", "3")
    assert found.values.per_list["ap"].tolist() == [0.5, 0.0, 0.0]
    skipped = found.values.per_list["ap(empty=skip)"].tolist()
    assert skipped[0] == 0.5 and math.isnan(skipped[1]) and skipped[2] == 0.0
    assert found.values["ap(empty=skip)"] == 0.25
    assert evaluate_run({"1": ranked()}, QRELS, ["ap"]).values["ap"] == 0.0


def test_level_is_for_metrics_that_do_not_say_their_threshold():
    run = {"1": ranked("a", "b")}
    names = ["rr", "rr(threshold=1)", "AP(rel=2)", "nDCG"]
    found = evaluate_run(run, QRELS, names, Conventions(level=2))
    assert list(found.values.mean) == [
        "rr(threshold=2)",
        "rr",
        "ap(threshold=2)",
        "ndcg(gain=linear)",
    ]
    assert list(found.values.mean.values())[:3] == [0.5, 1.0, 0.5]


def test_paired_tests_against_the_first_run():
    random = np.random.default_rng(0)
    qrels = {str(query): {f"d{n}": int(n < 3) for n in range(9)} for query in range(20)}
    runs = [
        {
            query: RankedList.sort(list(judged), random.normal(size=9))
            for query, judged in qrels.items()
        }
        for _ in range(3)
    ]
    found = [evaluate_run(run, qrels, ["ap"]) for run in runs]
    values = [each.values.per_list["ap"].numpy() for each in found]
    p = p_values(found, ["a", "b", "c"], Significance("t", "none"))["ap"]
    assert p == pytest.approx([ttest_rel(v, values[0]).pvalue for v in values[1:]])
    holm = p_values(found, ["a", "b", "c"], Significance("t", "holm"))["ap"]
    assert min(holm) == pytest.approx(min(1.0, 2 * min(p)))
    less = evaluate_run({"1": runs[1]["1"]}, qrels, ["ap"])
    with pytest.raises(ValueError, match=r"a and b were not evaluated on the same queries.*-c"):
        p_values([found[0], less], ["a", "b"], Significance())
    assert math.isnan(p_values([less, less], ["a", "b"], Significance())["ap"][0])


@pytest.mark.parametrize("test", ["t", "randomization"])
def test_one_sided_tests_know_metrics_of_which_less_is_better(test):
    qrels = {str(query): {"a": 1} for query in range(8)}
    other = ("b", "c", "d")
    worse = {query: ranked(*other[: 1 + int(query) % 3], "a") for query in qrels}
    better = {query: ranked("a", *other) for query in qrels}
    found = [evaluate_run(run, qrels, ["ap", "arp"]) for run in (worse, better)]
    assert found[0].values["arp"] > found[1].values["arp"]
    p = p_values(found, ["worse", "better"], Significance(test, "none", sides=1))
    assert p["ap"][0] < 0.01 and p["arp"][0] < 0.01
    p = p_values(found[::-1], ["better", "worse"], Significance(test, "none", sides=1))
    assert p["ap"][0] > 0.99 and p["arp"][0] > 0.99


def test_a_run_of_other_queries():
    with pytest.raises(ValueError, match="no query of the run is judged: the run has 'q1', the"):
        evaluate_run({"q1": ranked("a")}, QRELS)
    with pytest.raises(ValueError, match="query '01' of the run is '1' in the judgments: leading"):
        evaluate_run({"01": ranked("a")}, QRELS)
    both = {"1": ranked("a"), "01": ranked("a")}  # another query
    assert evaluate_run(both, QRELS, ["ap"]).queries == ("1",)
