from types import SimpleNamespace

import pytest
import torch
from learnable import lists

import rankgrad
from rankgrad import kernels, metrics
from rankgrad.data.batches import Batches
from rankgrad.training import FittedRanker, Settings, validation
from rankgrad.training.validation import validate

ALONE = SimpleNamespace(global_rank=0, world_size=1)
SPECS = ("ndcg@5", "ap", "err", "arp", "ndcg(empty=skip)")


@pytest.mark.parametrize("model", ["mlp(hidden=[4])", "context_aware(fc=[4], ff=4, blocks=1)"])
@pytest.mark.parametrize("documents", [1, 30, 1 << 20])
def test_means_are_those_of_the_scores_however_many_items_at_a_time(model, documents, monkeypatch):
    monkeypatch.setattr(validation, "_DOCUMENTS", documents)
    data = lists(20, 1, weights=True)
    torch.manual_seed(0)
    ranker = FittedRanker.new(Settings(model=model), data.features)
    batches = Batches(data, flat=ranker.per_item, transform=ranker.transform)
    found = validate(ranker.network, batches, [metrics.get(spec) for spec in SPECS], ALONE)
    assert ranker.network.training
    exact = rankgrad.evaluate(
        ranker.predict(data.features, data.offsets),
        data.labels,
        offsets=data.offsets,
        weights=data.weights,
        metrics=list(SPECS),
    )
    for spec in found:
        assert found[spec] == pytest.approx(exact[spec], abs=1e-6)


@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_means_are_those_of_evaluate_compiled_or_not(mode):
    specs = (*SPECS, "opa", "ndcg@5(ties=stable)")  # opa is compiled nowhere
    chosen = [metrics.get(spec) for spec in specs]
    data = lists(30, 2)
    torch.manual_seed(0)
    ranker = FittedRanker.new(Settings(model="mlp(hidden=[4])"), data.features)
    batches = Batches(data, flat=ranker.per_item, transform=ranker.transform)
    scores = ranker.predict(data.features, data.offsets)
    with kernels.using(mode):
        found = validate(ranker.network, batches, chosen, ALONE)
        exact = rankgrad.evaluate(scores, data.labels, offsets=data.offsets, metrics=chosen)
    assert found == pytest.approx(dict(exact.mean), rel=1e-12)
