import numpy as np
import pytest

from rankgrad.data import Dataset
from rankgrad.explanations import _importance, explain, permutation_importance
from rankgrad.metrics import metrics
from rankgrad.significance import bootstrap_interval
from rankgrad.training import Settings, fit


def make(queries=40, seed=0):
    """Feature 0 orders the items, 1 is noise, 2 one value for each list, 3 constant.

    The sign of feature 0 is that of feature 2, so that a model has to use both.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(8, 15, queries)
    offsets = np.concatenate([[0], lengths.cumsum()])
    sign = np.repeat(random.choice([-1.0, 1.0], queries), lengths)
    wanted = random.normal(size=offsets[-1])
    labels = (wanted > 0.5).astype(int) + (wanted > 1.2)
    columns = [sign * wanted, random.normal(size=offsets[-1]), sign, np.ones(offsets[-1])]
    return Dataset(np.stack(columns, 1), labels, offsets, [f"q{at}" for at in range(queries)])


@pytest.fixture(scope="module")
def ranker():
    settings = Settings(
        model="mlp(hidden=[16])", epochs=60, learning_rate=0.02, metrics=(), device="cpu"
    )
    return fit(settings, make(200)).model


def test_drops_are_those_of_a_loop(ranker):
    data = make(6, seed=1)
    found = permutation_importance(ranker, data, "ndcg@5", repeats=3, seed=4)
    again = permutation_importance(ranker, data, "ndcg@5", repeats=3, seed=4)
    assert np.array_equal(found.drops, again.drops)
    metric = metrics.get("ndcg@5")

    def values(features):
        scores = ranker.predict(features, data.offsets)
        return metric(scores, data.labels, offsets=data.offsets).numpy()

    before, after = values(np.array(data.features)), np.zeros(6)
    for repeat in range(3):
        keys = np.random.default_rng([4, repeat]).random(data.n_items)
        features = np.array(data.features)
        for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
            features[start:stop, 0] = features[start:stop, 0][np.argsort(keys[start:stop])]
        after += values(features) / 3
    np.testing.assert_allclose(found.drops[0], 100 * (before - after), atol=1e-4)
    assert found.mean == pytest.approx(before.mean())


def test_a_feature_of_queries_that_some_lists_lack_is_one_of_queries():
    data = make(4, seed=2)
    column = np.array(data.features[:, 2])
    column[: data.offsets[1]] = np.nan
    lists = np.repeat(np.arange(len(data)), data.lengths)
    assert _importance._scope(column, lists) == "whole lists"


def test_what_matters_falls_and_what_does_not_stays(ranker):
    data = make(60, seed=2)
    found = permutation_importance(ranker, data, repeats=3)
    assert found.scopes == ("within lists", "within lists", "whole lists", "not used")
    assert found.values[0] > 20
    assert found.values[2] > 10  # within lists it would be 0: it orders nothing by itself
    assert found.values[3] == 0
    assert abs(found.values[1]) < 3
    assert found.order[:2].tolist() == [0, 2]
    low, high = found.interval(0)
    assert (low, high) == bootstrap_interval(found.drops[0])
    assert 0 < low < found.values[0] < high
    low, high = found.interval(1)
    assert low < 2
    assert high - low < 8


def test_lists_that_the_metric_leaves_out_are_not_counted(ranker):
    data = make(6, seed=1)
    labels = np.array(data.labels)
    labels[: data.offsets[2]] = 0
    without = Dataset(data.features, labels, data.offsets, data.qids)
    found = explain(ranker, without, "ndcg@5(empty=skip)", repeats=1, lists=0)
    assert found.importance.n_lists == found.to_dict()["lists"] == 4
    assert found.to_dict()["lists_left_out"] == 2


def test_across_lists_a_feature_whose_range_differs_by_query_seems_to_matter():
    # The first feature has the same order as the second in every list, and a range of its own for
    # each query; the model takes the sum of both, each within the list.
    data = make(60, seed=3)
    scale = np.repeat(np.random.default_rng(0).uniform(-50, 50, 60), data.lengths)
    noise = 0.01 * np.random.default_rng(1).normal(size=data.n_items)
    features = np.stack([scale + noise, np.asarray(data.features[:, 0])], 1).astype(np.float32)
    data = Dataset(features, data.labels, data.offsets, data.qids)
    settings = Settings(model="mlp(hidden=[])", epochs=1, transforms=(), metrics=(), device="cpu")
    linear = fit(settings, data).model
    for parameter in linear.network.parameters():
        parameter.data.fill_(1.0)
    within = permutation_importance(linear, data, repeats=2)
    across = permutation_importance(linear, data, repeats=2, permute="across")
    assert abs(within.values[0]) < 1  # it tells the items of a list apart by next to nothing
    assert across.values[0] > 5
    assert across.scopes == ("across lists",) * 2


def test_lists_that_the_metric_leaves_out(ranker):
    data = make(8, seed=1)
    labels = np.array(data.labels)
    labels[data.offsets[2] : data.offsets[3]] = 0
    data = Dataset(data.features, labels, data.offsets, data.qids)
    found = permutation_importance(ranker, data, "ndcg@5(empty=skip)", repeats=1)
    empty = np.maximum.reduceat(labels, data.offsets[:-1]) == 0
    assert empty[2]
    assert np.array_equal(np.isnan(found.drops), np.tile(empty, (4, 1)))
    assert np.isfinite(found.values).all()
    lower = permutation_importance(ranker, data, "arp", repeats=1)
    assert lower.values[0] > 0  # lower is better: a rise of it is a fall of quality


def test_wrong_options(ranker):
    with pytest.raises(ValueError, match="permute must be one of"):
        permutation_importance(ranker, make(2), permute="in")
    with pytest.raises(ValueError, match="repeats"):
        permutation_importance(ranker, make(2), repeats=0)
