"""Runs against judgments: trec_eval's own expected output, and its code on random runs."""

import numpy as np
import pytest
import pytrec_eval

from rankgrad.data.trec import RankedList, read_qrels, read_run
from rankgrad.text._evaluation import Conventions, evaluate_run

CUTOFFS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)
MEASURES = {
    **{name: name for name in ("map", "recip_rank", "set_P", "set_recall")},
    "ndcg": "nDCG",
    **{
        f"{name}_{k}": f"{name}_{k}"
        for name in ("P", "recall", "ndcg_cut", "map_cut")
        for k in CUTOFFS
    },
    **{f"success_{k}": f"success_{k}" for k in (1, 5, 10)},
}


def printed(path):
    """What trec_eval printed, by measure and query."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {(measure, query): value for measure, query, value in rows}


@pytest.mark.parametrize(
    ("output", "judgments", "level"),
    [("out.test.aq", "qrels.test", 1), ("out.test.aql", "qrels.rel_level", 2)],
)
def test_its_own_expected_output(real, output, judgments, level):
    folder = real("trec_eval")
    measures = {**MEASURES, "rbp": "rbp.p=0.9"}  # its gains are graded, also below the level
    run, qrels = read_run(folder / "results.test"), read_qrels(folder / judgments)
    found = evaluate_run(run, qrels, measures.values(), Conventions(level=level))
    wanted = printed(folder / output)
    assert found.queries == ("301", "302", "303")
    for measure, metric in zip(measures, found.values.metrics, strict=True):
        values = found.values.per_list[str(metric)].tolist()
        for query, value in zip(found.queries, values, strict=True):
            assert f"{value:.4f}" == wanted[measure, query], (measure, query)
        assert f"{found.values.mean[str(metric)]:.4f}" == wanted[measure, "all"], measure
    if level == 1:
        average = found.values.per_list["ap"].tolist()
        assert f"{average[0]:.4f}" == "0.0324"  # without those not retrieved it is 0.2165


def random_run(seed):
    """Graded and negative judgments, unjudged documents, equal scores, relevant ones missed."""
    random = np.random.default_rng(seed)
    run, qrels = {}, {}
    for query in range(12):
        names = np.array([f"d{n}" for n in random.permutation(60)])
        grades = random.choice([-1, 0, 1, 2, 3], 30, p=[0.1, 0.5, 0.2, 0.1, 0.1])
        grades = np.minimum(grades, 0) if query == 3 else grades  # nothing is relevant
        qrels[str(query)] = dict(zip(names[:30].tolist(), grades.tolist(), strict=True))
        picked = random.permutation(60)[: random.integers(1, 50)]
        scores = random.normal(size=len(picked)).round(1 if query % 2 else 8)
        # Differences that float32 does not have, which trec_eval takes for ties.
        run[str(query)] = dict(zip(names[picked].tolist(), 1 + scores * 1e-6, strict=True))
    del run["5"]
    run["99"] = {"d1": 1.0}
    return run, qrels


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_its_code_on_random_runs(seed, level):
    run, qrels = random_run(seed)
    ranked = {
        query: RankedList.sort(list(given), list(given.values())) for query, given in run.items()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(MEASURES), relevance_level=level)
    wanted = evaluator.evaluate({query: dict(given) for query, given in run.items()})
    found = evaluate_run(ranked, qrels, MEASURES.values(), Conventions(level=level))
    assert set(found.queries) == set(wanted) and (found.missing, found.unjudged) == (1, 1)
    for measure, metric in zip(MEASURES, found.values.metrics, strict=True):
        values = found.values.per_list[str(metric)].tolist()
        theirs = [wanted[query][measure] for query in found.queries]
        np.testing.assert_allclose(values, theirs, atol=1e-9, err_msg=measure)
    complete = evaluate_run(ranked, qrels, ["map"], Conventions(complete=True, level=level))
    total = sum(values["map"] for values in wanted.values())
    (mean,) = complete.values.mean.values()
    assert len(complete.queries) == 12 and mean == pytest.approx(total / 12)


def test_scores_as_they_are():
    """--double tells scores apart that float32 does not; averaging takes the mean of both."""
    scores = [1.0 + 1e-9, 1.0]
    qrels = {"1": {"a": 1}}
    cases = [({}, 0.5), ({"double": True}, 1.0), ({"ties": "average"}, 0.75)]
    cases.append(({"ties": "average", "double": True}, 1.0))
    for options, expected in cases:
        for scale in (1.0, 1e99):  # which is infinite as float32
            large = {"1": RankedList(["a", "b"], scale * np.array(scores))}
            found = evaluate_run(large, qrels, ["rr"], Conventions(**options))
            assert found.values["rr"] == expected, (options, scale)
