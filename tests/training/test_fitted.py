import numpy as np
import pytest
import torch
from learnable import lists
from rewritten import rewrite

from rankgrad.training import FittedRanker, Settings, _fitted, fit

MLP, CONTEXT = "mlp(hidden=[8], dropout=0.5)", "context_aware(fc=[8], ff=8, blocks=1)"
TABM = "tabm(hidden=[8], members=2, in_list=[rank, score])"
SIMILAR = "tabm(hidden=[8], members=2, in_list=[rank], heads=2)"


@pytest.fixture(params=[MLP, CONTEXT, TABM, SIMILAR])
def ranker(request, train):
    torch.manual_seed(0)  # weights that other tests do not change
    return FittedRanker.new(Settings(model=request.param), train.features, train.offsets)


def test_saved_and_loaded_it_predicts_the_same(ranker, vali, tmp_path):
    before = ranker.predict(vali.features, vali.offsets)
    ranker.save(tmp_path / "model")
    again = FittedRanker.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(vali.features, vali.offsets), before)
    assert again.settings == ranker.settings
    assert {f.name for f in (tmp_path / "model").iterdir()} == {"model.safetensors", "model.json"}


def test_blocks_and_lists_apart_give_the_same(ranker, vali, monkeypatch):
    whole = ranker.predict(vali.features, vali.offsets)
    monkeypatch.setattr(_fitted, "_VALUES", 20)
    monkeypatch.setattr(_fitted, "_DOCUMENTS", 20)
    monkeypatch.setattr(_fitted, "_PREPARED", 20)
    np.testing.assert_allclose(ranker.predict(vali.features, vali.offsets), whole, atol=1e-6)
    for at in range(3):
        rows = slice(vali.offsets[at], vali.offsets[at + 1])
        np.testing.assert_allclose(ranker.predict(vali.features[rows]), whole[rows], atol=1e-5)


def test_lists_without_items_have_no_scores(ranker, vali):
    for offsets in ([0], [0, 0], [0, 0, 0]):
        assert ranker.predict(vali.features[:0], np.array(offsets)).shape == (0,)


def test_dropout_is_off_and_the_mode_is_kept(ranker, vali):
    ranker.network.train()
    first = ranker.predict(vali.features, vali.offsets)
    np.testing.assert_array_equal(ranker.predict(vali.features, vali.offsets), first)
    assert ranker.network.training


def test_a_model_is_replaced_but_nothing_else_is(ranker, tmp_path):
    ranker.save(tmp_path / "model")
    ranker.save(tmp_path / "model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a model"):
        ranker.save(tmp_path / "other")


def test_wrong_features_are_named(ranker):
    with pytest.raises(ValueError, match=r"trained on 5 features, found the shape \[2, 4\]"):
        ranker.predict(np.zeros((2, 4), np.float32))
    infinite = lists().features.copy()
    infinite[4, 3] = np.inf
    for offsets in (None, np.array([0, 2, len(infinite)])):
        with pytest.raises(ValueError, match=r"infinite: features\[4, 3\] = inf"):
            ranker.predict(infinite, offsets)


def test_offsets_of_other_items_are_an_error(ranker, vali):
    for offsets in ([0, 3], [1, vali.n_items], [0, 5, vali.n_items + 1]):
        with pytest.raises(ValueError, match="offsets must run from 0 to the number of items"):
            ranker.predict(vali.features, np.array(offsets))


def test_trees_and_their_transforms_stay_on_the_cpu(train, vali):
    pytest.importorskip("lightgbm")
    settings = Settings(model="lightgbm(min_data_in_leaf=1)", epochs=2, transforms=["standardize"])
    ranker = fit(settings, train, vali).model
    before = ranker.predict(vali.features)
    np.testing.assert_array_equal(ranker.to("meta").predict(vali.features), before)


def test_a_feature_beyond_float32_is_named(ranker, vali, monkeypatch):
    monkeypatch.setattr(_fitted, "_VALUES", 20)  # in parts, whose rows count on
    features = vali.features.astype(np.float64)
    features[7, 3] = 1e300
    with pytest.raises(ValueError, match=r"index 3 .* of row 7 is 1e\+300, too large for float32"):
        ranker.predict(features, vali.offsets)


def test_damage_is_named(ranker, tmp_path):
    with pytest.raises(FileNotFoundError, match="no model"):
        FittedRanker.load(tmp_path)
    ranker.save(tmp_path / "m")
    weights = (tmp_path / "m" / "model.safetensors").read_bytes()
    (tmp_path / "m" / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        FittedRanker.load(tmp_path / "m")
    rewrite(tmp_path / "m" / "model.json", version=99)
    with pytest.raises(
        ValueError, match=r"another version .* \(format version 99, this one reads 1\)"
    ):
        FittedRanker.load(tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text("{")
    with pytest.raises(ValueError, match=r"model\.json is damaged"):
        FittedRanker.load(tmp_path / "m")


def test_a_network_of_ones_own_is_asked_for_on_loading(train, tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(5, 1)

        def forward(self, features, mask):
            return self.linear(features).squeeze(-1)

    ranker = FittedRanker.new(Settings(), train.features, network=Own())
    ranker.save(tmp_path / "m")
    with pytest.raises(ValueError, match="network of your own"):
        FittedRanker.load(tmp_path / "m")
    again = FittedRanker.load(tmp_path / "m", network=Own())
    np.testing.assert_array_equal(again.predict(train.features), ranker.predict(train.features))
