from dataclasses import replace

import numpy as np
import pytest
import torch
from explanations.test_importance import make
from torch import nn

from rankgrad.explanations import pair_attributions
from rankgrad.training import Settings, fit

MODELS = {
    "default": {},
    "perceptron": {"model": "mlp(hidden=[16, 8])", "transforms": ("log1p", "standardize")},
    "attention": {"model": "context_aware(fc=[16], blocks=1, ff=16)"},
    "similar": {"model": "tabm(hidden=[8], members=2, activation=silu, heads=2, bins=3)"},
    "normed": {"model": "mlp(hidden=[8], batch_norm=true)", "transforms": ("clip(limit=2)",)},
}


def train(data, **options):
    settings = Settings(**{"epochs": 3, "metrics": (), "device": "cpu"} | options)
    return fit(settings, data).model


@pytest.mark.parametrize("name", MODELS)
def test_attributions_add_up_to_the_difference(name):
    data = make(40)
    ranker = train(data, **MODELS[name])
    inside = slice(data.offsets[3], data.offsets[4])
    features = np.array(data.features[inside])
    pairs = [(0, 1), (1, 0), (2, 5), (6, 3)]
    found = pair_attributions(ranker, features, pairs)
    scores = ranker.predict(features)
    exact = np.array([scores[a] - scores[b] for a, b in pairs])
    np.testing.assert_allclose(found.differences, exact, atol=1e-5)
    np.testing.assert_allclose(found.baselines, 0.0, atol=1e-12)
    error = np.abs(found.values.sum(1) - exact)
    assert (error <= 3e-4 * np.abs(found.values).sum(1) + 1e-5).all()
    np.testing.assert_allclose(found.residuals, error, atol=1e-5)
    assert np.abs(found.values[:, [0, 2]]).max() > 0
    assert (found.values[:, 3] == 0).all()  # dropped, as it is constant; or the same in both
    np.testing.assert_allclose(found.values[0], -found.values[1], atol=2e-3)  # the other way round


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_of_trees_they_add_up_too(kind):
    pytest.importorskip(kind)
    data = make(40)
    # The constant first: what a column behind the dropped one gets must arrive at its raw feature.
    data = replace(data, features=np.array(data.features)[:, [3, 0, 1, 2]])
    ranker = train(data, model=kind, transforms=("drop_constant", "standardize"))
    features = np.array(data.features[: data.offsets[1]])
    pairs = [(0, 1), (1, 0), (2, 5)]
    found = pair_attributions(ranker, features, pairs)
    scores = ranker.predict(features)
    exact = [scores[a] - scores[b] for a, b in pairs]
    assert np.abs(exact).max() > 0.01
    np.testing.assert_allclose(found.differences, exact, atol=1e-6)
    np.testing.assert_allclose(found.values.sum(1), exact, atol=1e-5)
    np.testing.assert_allclose(found.residuals, 0, atol=1e-5)
    np.testing.assert_array_equal(found.values[0], -found.values[1])
    assert (found.values[:, 0] == 0).all()
    assert np.abs(found.values[:, 1]).max() > np.abs(found.values[:, 2]).max()  # noise
    for items in (features, features[:1], features[:0]):
        assert pair_attributions(ranker, items, []).values.shape == (0, features.shape[1])


def test_of_a_linear_model_they_are_its_terms():
    data = make(40)
    ranker = train(data, model="mlp(hidden=[])", transforms=())
    features = np.array(data.features[: data.offsets[1]])
    found = pair_attributions(ranker, features, [(4, 2)])
    weights = next(ranker.network.parameters()).detach().numpy()[0]
    np.testing.assert_allclose(found.values[0], weights * (features[4] - features[2]), atol=1e-6)


@pytest.mark.parametrize("name", ["default", "attention", "similar"])
def test_a_feature_in_which_two_items_agree_adds_nothing(name):
    data = make(40)
    ranker = train(data, **MODELS[name])
    features = np.array(data.features[: data.offsets[1]])
    features[1, 0] = features[0, 0]
    found = pair_attributions(ranker, features, [(0, 1)])
    assert found.values[0, 0] == 0
    assert found.values[0, 1] != 0


def test_positions_are_distinguished_from_features():
    data = make(40)
    ranker = train(data, model="context_aware(fc=[8], blocks=1, ff=8, positional=learned)")
    features = np.array(data.features[: data.offsets[1]])
    features[1] = features[0]
    found = pair_attributions(ranker, features, [(0, 1)])
    assert found.baselines[0] == pytest.approx(found.differences[0])
    assert found.baselines[0] != 0
    assert np.abs(found.values).max() < 1e-9


def test_the_order_of_categories_does_not_matter():
    data = make(40)
    features = np.array(data.features)
    features[:, 3] = np.arange(len(features)) % 5
    names = (None, None, None, tuple("abcde"))
    ranker = train(replace(data, features=features, categories=names), model="mlp(hidden=[8])")
    items = features[: data.offsets[1]]
    found = pair_attributions(ranker, items, [(0, 2), (1, 3)])
    # The same network with its categories in another order
    order = [3, 0, 4, 1, 2]  # the new code of each category
    (table,) = ranker.network.tables
    with torch.no_grad():
        table.weight[1 + torch.tensor(order)] = table.weight[1:].clone()
    renamed = items.copy()
    renamed[:, 3] = np.array(order)[items[:, 3].astype(int)]
    again = pair_attributions(ranker, renamed, [(0, 2), (1, 3)])
    np.testing.assert_allclose(again.differences, found.differences, atol=1e-9)
    np.testing.assert_allclose(again.values, found.values, atol=1e-9)


def test_a_network_of_ones_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, features, mask):
            apart = features - features.mean(-2, keepdim=True)  # of the whole list
            return torch.tanh(self.layer(apart)).squeeze(-1)

    data = make(40)
    settings = Settings(epochs=2, metrics=(), device="cpu")
    ranker = fit(settings, data, network=Own()).model
    features = np.array(data.features[: data.offsets[1]])
    found = pair_attributions(ranker, features, [(0, 3)])
    scores = ranker.predict(features)
    assert found.differences[0] == pytest.approx(scores[0] - scores[3], abs=1e-5)
    assert found.values.sum() == pytest.approx(found.differences[0], abs=1e-3)
    assert next(ranker.network.parameters()).dtype == torch.float32  # it is left as it was


def test_wrong_pairs():
    data = make(4)
    ranker = train(data, epochs=1)
    features = np.array(data.features[: data.offsets[1]])
    for pair in ((0, 0), (0, 99), (-1, 2)):
        with pytest.raises(ValueError, match="a pair must be two of the"):
            pair_attributions(ranker, features, [pair])
