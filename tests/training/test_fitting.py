"""What is held out, and trainings in threads, which draw random numbers of their own."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from learnable import lists
from torch import nn

from rankgrad.data import Dataset
from rankgrad.estimator import Ranker
from rankgrad.models import models
from rankgrad.training import Settings, fit
from rankgrad.training._fitting import RandomState, hold_out


def test_holdout_leaves_items_on_both_sides():
    data = Dataset(np.eye(4), [1, 0, 2, 0], [0, 4, 4], ["a", "b"])  # the second list is empty
    for seed in range(4):  # either list is held out
        with pytest.raises(ValueError, match="holdout leaves no items"):
            hold_out(data, 0.5, seed)


def test_a_metric_that_refuses_the_labels_is_named_before_training():
    data = Dataset(np.eye(4), [1000, 0, 700, 1], [0, 2, 4], ["a", "b"])
    epochs = []
    settings = {"model": "mlp(hidden=[2])", "epochs": 1, "device": "cpu"}
    logged = Settings(metric="ndcg@10(gain=linear)", metrics=["ap", "ndcg@5"], **settings)
    for others in ({"vali": data}, {"vali": None, "others": {"more": data}}):
        with pytest.raises(
            ValueError, match=r"^ndcg@5: a label .* scale, or ndcg@5\(gain=linear\)$"
        ):
            fit(logged, data, on_epoch=epochs.append, **others)
    assert not epochs
    done = fit(Settings(metric="ndcg@10(gain=linear)", **settings), data, data)
    assert "ndcg@5(gain=linear)" in done.history[0]
    with pytest.raises(ValueError, match=r"^ndcg@5: .* default metrics: .* -m of .* metrics="):
        fit(Settings(metric="ap", **settings), data, data)
    with pytest.raises(ValueError, match=r"^ndcg@10: .* scale, or ndcg@10\(gain=linear\)$"):
        fit(Settings(metric="ndcg@10", **settings), data, data)


@pytest.mark.parametrize("model", ["mlp(hidden=[2])", "lightgbm"])
@pytest.mark.parametrize(
    ("loss", "end"),
    [
        ("lambdaloss@10", r", or lambdaloss@10\(gain=linear\)"),
        ("neural_ndcg@5(temperature=2.5)", r", or neural_ndcg@5\(temperature=2\.5, gain=linear\)"),
        ("approx_err", ""),
    ],
)
def test_a_loss_that_refuses_the_labels_is_named_before_training(loss, end, model):
    data = Dataset(np.eye(4), [121, 0, 1, 1], [0, 2, 4], ["a", "b"])
    settings = Settings(loss=loss, model=model, metric="ap", metrics=["ap"], epochs=1)
    with pytest.raises(ValueError, match=rf"^{re.escape(loss)}: a label of 121 .* scale{end}$"):
        fit(settings, data, data, on_epoch=pytest.fail)


def test_losses_take_labels_that_their_gain_takes():
    data = Dataset(np.eye(40), np.arange(40) % 2 * 121, [0, 20, 40], ["a", "b"])
    gains = f"label_gain={list(range(122))}"
    for options in (
        {"loss": "lambdaloss@10(gain=linear)", "model": "mlp(hidden=[2])"},
        {"loss": "lambdaloss@10", "model": f"lightgbm(min_data_in_leaf=1, {gains})"},
    ):
        done = fit(Settings(metric="ap", metrics=["ap"], epochs=1, **options), data, data)
        assert len(done.history) == 1


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, features, mask):
        return self.layers(features).squeeze(-1)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("tabm(hidden=[8], members=2, dropout=0.3)", "listmle"),
        ("mlp(hidden=[8], dropout=0.3)", "gumbel_neural_ndcg"),
        ("context_aware(fc=[8], ff=8, blocks=1, heads=2, dropout=0.3)", "softmax"),
        ("a module", "softmax"),
    ],
)
def test_fits_in_four_threads_with_one_seed_are_one(model, loss):
    train = lists(12, 0)
    if model == "a module":
        model = Own()
    qid = np.repeat(np.arange(len(train)), train.lengths)

    def predict(_=None):
        ranker = Ranker(loss, model, epochs=4, batch_size=4, device="cpu", random_state=3)
        return ranker.fit(train.features, train.labels, qid).predict(train.features, qid)

    alone, over = predict(), threading.Event()
    drawing = threading.Thread(target=draw_all_the_while, args=(over,))
    if isinstance(model, str):  # a module of one's own draws from what all threads share
        drawing.start()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(predict, range(4)))
    over.set()
    if drawing.is_alive():
        drawing.join()
    for found in together:
        np.testing.assert_array_equal(found, alone)


def draw_all_the_while(over):
    while not over.is_set():
        torch.rand(10)


def test_pytorchs_own_numbers_are_not_touched():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fit(Settings(model="mlp(hidden=[8], dropout=0.5)", epochs=1, device="cpu"), lists(4, 0))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", [n for n in models.names() if n not in ("lightgbm", "xgboost")])
def test_networks_are_built_as_from_pytorchs_own_generator(name):
    state = RandomState(torch.device("cpu"))
    state.seed(5)
    before = torch.default_generator.get_state()
    with state.building():
        ours = models.get(name).build(7)
    assert torch.equal(torch.default_generator.get_state(), before)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        theirs = models.get(name).build(7)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


def test_dropout_draws_as_pytorchs_does():
    from rankgrad.models._dropout import Dropout

    values, layer = torch.randn(5, 7, requires_grad=True), Dropout(0.3)
    layer.generator = torch.Generator().manual_seed(2)
    ours = layer(values)
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        theirs = nn.functional.dropout(values, 0.3)
    assert torch.equal(ours, theirs)
    (slope,) = torch.autograd.grad(ours.sum(), values)
    assert torch.equal(slope, (ours != 0) / (1 - torch.tensor(0.3)))
    assert torch.equal(layer.eval()(values), values)
    layer.train().p = 1.0
    assert not layer(values).any()
