"""RankingMetric against torchmetrics' retrieval metrics, under their conventions."""

import numpy as np
import pytest
import torch

torchmetrics = pytest.importorskip("torchmetrics")

from torchmetrics import retrieval  # noqa: E402

from rankgrad.integrations.torchmetrics import RankingMetric  # noqa: E402

PAIRS = {
    "ndcg(gain=linear)": retrieval.RetrievalNormalizedDCG,
    "ndcg@5(gain=linear)": retrieval.RetrievalNormalizedDCG,
    "ap": retrieval.RetrievalMAP,
    "rr": retrieval.RetrievalMRR,
    "rr@3": retrieval.RetrievalMRR,
    "precision@5": retrieval.RetrievalPrecision,
    "recall@5": retrieval.RetrievalRecall,
    "hits@3": retrieval.RetrievalHitRate,
}


def items(graded, tied, seed=0, queries=40):
    """Items of ragged queries in any order; a few queries have no relevant item."""
    random = np.random.default_rng(seed)
    indexes = np.repeat(np.arange(queries) * 3 - 7, random.integers(1, 25, queries))
    target = (
        random.choice(5 if graded else 2, len(indexes), p=[0.6, 0.2, 0.1, 0.05, 0.05][:5])
        if graded
        else random.choice(2, len(indexes), p=[0.8, 0.2])
    )
    target[indexes < -1] = 0
    # Above 0: torchmetrics takes other items as not retrieved in all metrics but nDCG and hit rate.
    preds = random.permutation(len(indexes)) / len(indexes) + 0.1
    if tied:
        preds = (preds * 10 - 5).round()
    order = random.permutation(len(indexes))
    given = preds[order].astype(np.float32), target[order], indexes[order]
    return [torch.from_numpy(array) for array in given]


def theirs(spec, **options):
    cut = spec.partition("(")[0].partition("@")[2]
    return PAIRS[spec](top_k=int(cut) if cut else None, **options)


@pytest.mark.parametrize("action", ["neg", "pos", "skip"])
@pytest.mark.parametrize("spec", PAIRS)
def test_values_are_those_of_torchmetrics(spec, action):
    graded = spec.startswith("ndcg")
    preds, target, indexes = items(graded, tied=graded)
    # Its own grouping cannot have negative indexes.
    own, other = RankingMetric(spec, action), theirs(spec, empty_target_action=action)
    for part in torch.arange(len(preds)).chunk(3):
        own.update(preds[part], target[part], indexes[part])
        other.update(preds[part], target[part], indexes[part] + 7)
    torch.testing.assert_close(own.compute(), other.compute())


@pytest.mark.parametrize("aggregation", ["median", "min", "max"])
def test_aggregations_and_ignored_items(aggregation):
    preds, target, indexes = items(graded=False, tied=False, seed=1)
    target[::7] = -100
    own = RankingMetric("ap", ignore_index=-100, aggregation=aggregation)
    other = theirs("ap", ignore_index=-100, aggregation=aggregation)
    own.update(preds, target, indexes)
    other.update(preds, target, indexes + 7)
    torch.testing.assert_close(own.compute(), other.compute())
