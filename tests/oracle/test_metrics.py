"""Metrics against trec_eval, ir_measures, scikit-learn and SciPy, under their conventions."""

import io
import itertools
import tarfile
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
import torch
from ir_measures import ERR
from scipy.stats import kendalltau
from sklearn.metrics import dcg_score, ndcg_score

from rankgrad import metrics

TREC_EVAL = Path(__file__).parents[3] / "shared" / "data" / "trec_eval.tar.xz"


def draw(seed, lists=30, tied=False):
    """Ragged lists with graded labels; a few have no relevant item."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 25, lists)
    offsets = np.concatenate([[0], lengths.cumsum()])
    labels = generator.choice(5, offsets[-1], p=[0.6, 0.2, 0.1, 0.05, 0.05])
    labels[offsets[2] : offsets[3]] = 0
    scores = generator.normal(size=offsets[-1])
    return (scores.round(1) if tied else scores), labels, offsets


def as_trec(scores, labels, offsets):
    qrels, run = {}, {}
    for q, (a, b) in enumerate(itertools.pairwise(offsets)):
        names = [f"d{i}" for i in range(a, b)]
        qrels[str(q)] = dict(zip(names, labels[a:b].tolist(), strict=True))
        run[str(q)] = dict(zip(names, scores[a:b].tolist(), strict=True))
    return qrels, run


@pytest.mark.parametrize(
    ("spec", "measure"),
    [
        ("ndcg(gain=linear)", "ndcg"),
        ("ndcg@5(gain=linear)", "ndcg_cut_5"),
        ("ndcg@10(gain=linear)", "ndcg_cut_10"),
        ("precision@5", "P_5"),
        ("precision@30", "P_30"),
        ("recall@5", "recall_5"),
        ("ap", "map"),
        ("ap@5", "map_cut_5"),
        ("rr", "recip_rank"),
        ("hits@5", "success_5"),
        ("hits@1", "success_1"),
    ],
)
def test_trec_eval(spec, measure):
    scores, labels, offsets = draw(0)
    qrels, run = as_trec(scores, labels, offsets)
    results = pytrec_eval.RelevanceEvaluator(qrels, pytrec_eval.supported_measures).evaluate(run)
    expected = [results[str(q)][measure] for q in range(len(offsets) - 1)]
    ours = metrics.get(spec)(torch.tensor(scores), labels, offsets=offsets)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("spec", "measure"),
    [("err@10", ERR @ 10), ("err@20", ERR @ 20)],
)
def test_ir_measures(spec, measure):
    scores, labels, offsets = draw(1)
    qrels, run = as_trec(scores, labels, offsets)
    found = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
    expected = [found.get(str(q), 0.0) for q in range(len(offsets) - 1)]
    ours = metrics.get(spec)(torch.tensor(scores), labels, offsets=offsets)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)  # gdeval prints five digits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [None, 1, 5, 50])
def test_scikit_learn_averages_ties_as_we_do(tied, k):
    scores, labels, offsets = draw(2, tied=tied)
    for a, b in itertools.pairwise(offsets):
        if b - a < 2 or labels[a:b].max() == 0:
            continue
        gains = 2.0 ** labels[a:b] - 1
        for spec, score in (("dcg", dcg_score), ("ndcg", ndcg_score)):
            expected = score([gains], [scores[a:b]], k=k)
            ours = metrics.get(spec, k=k)(torch.tensor(scores[a:b]), labels[a:b])
            assert ours.item() == pytest.approx(expected)
            linear = score([labels[a:b]], [scores[a:b]], k=k)
            ours = metrics.get(spec, k=k, gain="linear")(torch.tensor(scores[a:b]), labels[a:b])
            assert ours.item() == pytest.approx(linear)


def test_scipy_kendall_tau():
    scores, labels, offsets = draw(3, tied=True)
    for a, b in itertools.pairwise(offsets):
        if b - a < 2 or len(set(labels[a:b])) < 2 or len(set(scores[a:b])) < 2:
            continue
        ours = metrics.get("kendall_tau")(torch.tensor(scores[a:b]), labels[a:b])
        assert ours.item() == pytest.approx(kendalltau(scores[a:b], labels[a:b]).statistic)


def test_ordered_pairs_by_area_under_the_curve():
    """With binary labels, ordered pair accuracy is the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    scores, labels, _ = draw(4, lists=5, tied=True)
    binary = (labels > 0).astype(int)
    ours = metrics.get("opa")(torch.tensor(scores), binary)
    assert ours.item() == pytest.approx(roc_auc_score(binary, scores))


@pytest.mark.skipif(not TREC_EVAL.exists(), reason="needs trec_eval.tar.xz beside the project")
def test_trec_evals_own_expected_output():
    """Its test run, with its tie rule: by score, then by document name, descending."""
    files = {}
    with tarfile.open(TREC_EVAL) as archive:
        for member in archive.getmembers():
            if member.isfile():
                files[Path(member.name).name] = archive.extractfile(member).read().decode()
    rows = [line.split() for line in io.StringIO(files["results.test"])]
    judged = {
        (q, d): int(label) for q, _, d, label in map(str.split, io.StringIO(files["qrels.test"]))
    }
    expected = {}
    for line in io.StringIO(files["out.test.aq"]):
        measure, query, value = line.split()
        expected[measure, query] = value
    measures = {
        "ap": "map",
        "rr": "recip_rank",
        "precision@5": "P_5",
        "precision@100": "P_100",
        "recall@100": "recall_100",
        "ndcg(gain=linear)": "ndcg",
        "ndcg@10(gain=linear)": "ndcg_cut_10",
        "hits@5": "success_5",
    }
    for query in sorted({row[0] for row in rows}):
        ranked = sorted(
            ((float(score), d) for q, _, d, _, score, _ in rows if q == query), reverse=True
        )
        documents = [d for _, d in ranked]
        labels = [max(0, judged.get((query, d), 0)) for d in documents]
        # Relevant documents that were not retrieved count as well: below all others.
        missed = [y for (q, d), y in judged.items() if q == query and y > 0 and d not in documents]
        labels += missed
        scores = torch.arange(len(labels), 0, -1, dtype=torch.float64)
        cut = {"ap": len(documents), "rr": len(documents), "ndcg(gain=linear)": None}
        for spec, measure in measures.items():
            found = float(expected[measure, query])
            k = cut.get(spec, "as is")
            if measure == "ndcg":
                # trec_eval's ideal has all relevant documents, its ranking only those retrieved.
                dcg = metrics.get("dcg(gain=linear)", k=len(documents))(scores, labels)
                best = metrics.get("dcg(gain=linear)")(torch.tensor(labels).double(), labels)
                value = (dcg / best).item()
            else:
                metric = metrics.get(spec) if k == "as is" else metrics.get(spec, k=k)
                value = metric(scores, labels).item()
            assert value == pytest.approx(found, abs=6e-5), (query, measure)
