"""Validation in training, when it stops training, and evaluations saved in run folders."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learnable import lists
from rewritten import rewrite

import rankgrad
from rankgrad import kernels, metrics
from rankgrad.data import Dataset
from rankgrad.data.batches import Batches
from rankgrad.training import FittedRanker, Settings, _evaluations
from rankgrad.training._evaluations import EvaluatedLists, is_over, validate
from rankgrad.training._settings import AUTO_PATIENCE

LISTS = Dataset(np.eye(5), [1, 0, 2, 0, 0], [0, 3, 5], ["a", "b"])
SCORES = [0.3, 0.2, 0.1, 0.5, 0.4]


@pytest.fixture
def saved(tmp_path):
    found = EvaluatedLists.of(
        SCORES, LISTS, ["ndcg@2", "rr(empty=skip)"], {"loss": "mse", "seed": 1}
    )
    found.save(tmp_path)
    return found, tmp_path


def test_comes_back_as_it_was(saved):
    found, run = saved
    again = EvaluatedLists.load(run)
    assert again.mean == found.mean
    assert again.labels_of_run == {"loss": "mse", "seed": 1}
    np.testing.assert_array_equal(again.values, found.values)
    np.testing.assert_array_equal(again.scores, np.float32(SCORES))
    assert np.isnan(again.of_metric("rr(empty=skip)")[1])
    assert _evaluations.names(run) == ["test"]


def test_says_what_is_missing(saved):
    found, run = saved
    with pytest.raises(FileNotFoundError, match="no evaluation 'vali'"):
        EvaluatedLists.load(run, "vali")
    with pytest.raises(KeyError, match=r"'ap' was not evaluated; there are: ndcg@2"):
        found.of_metric("ap")


def test_another_version_is_named(saved):
    _, run = saved
    path = run / "evaluations" / "test" / "evaluation.json"
    rewrite(path, version=2)
    with pytest.raises(ValueError, match="another version of rankgrad"):
        EvaluatedLists.load(run)


def test_damage_is_named(saved):
    _, run = saved
    path = run / "evaluations" / "test" / "values.npy"
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(ValueError, match=r"values\.npy is damaged"):
        EvaluatedLists.load(run)


ALONE = SimpleNamespace(global_rank=0, world_size=1)
SPECS = ("ndcg@5", "ap", "err", "arp", "ndcg(empty=skip)")


@pytest.mark.parametrize("model", ["mlp(hidden=[4])", "context_aware(fc=[4], ff=4, blocks=1)"])
@pytest.mark.parametrize("documents", [1, 30, 1 << 20])
def test_means_are_those_of_the_scores_however_many_items_at_a_time(model, documents, monkeypatch):
    monkeypatch.setattr(_evaluations, "_DOCUMENTS", documents)
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


def epochs(patience, values, steps=20):
    """How many epochs of a curve are trained."""
    return next(n for n in range(1, len(values) + 1) if is_over(patience, values[:n], steps))


def curve(level, noise=0.0, seed=0, length=200):
    return [*level, *(level[-1] + noise * np.random.default_rng(seed).standard_normal(length))]


def test_noise_around_a_level_is_not_waited_for():
    level, draws = [0.3, 0.4, 0.45, 0.47, 0.48], range(20)
    values = [curve(level, noise=0.004, seed=seed) for seed in draws]
    assert np.median([epochs("auto", each) for each in values]) <= 20
    assert np.median([epochs(AUTO_PATIENCE, each) for each in values]) >= 35


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rise_is_waited_for_though_it_is_noisy(seed):
    rise = 0.6 - 0.1 * np.exp(-np.arange(80) / 25)
    values = rise + 0.003 * np.random.default_rng(seed).standard_normal(80)
    assert epochs("auto", curve(list(values))) > 50


@pytest.mark.parametrize(
    ("level", "steps", "expected"),
    [
        (1, 20, 1 + 3),
        (1, 15, 1 + 4),  # 60 steps
        (1, 1, 1 + 20),
        (10, 20, 10 + 2 + 2 * 12 // 3 + 3),  # the average rises for two epochs longer
        (100, 20, 100 + 2 + 20),
    ],
)
@pytest.mark.parametrize("scale", [0.01, -30])  # of metrics of any scale, lower ones better, too
def test_auto_waits_in_proportion(level, steps, expected, scale):
    values = [scale * (1.2 if scale > 0 else 0.8) ** n for n in range(level)]
    assert epochs("auto", curve(values), steps) == expected


def test_a_number_counts_epochs_without_a_better_value():
    values = [0.1, 0.3, 0.3, 0.2, 0.31, 0.1, 0.1, 0.1]
    assert epochs(2, values) == 4
    assert epochs(3, values) == 8
    assert not is_over(None, values, steps=1)
    assert not is_over(1, [], steps=1)
