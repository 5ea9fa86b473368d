"""Rules of the default: what is left open follows the data, what is given stays."""

import numpy as np
import pytest
import torch

from rankgrad.data import Dataset
from rankgrad.estimator import Ranker
from rankgrad.models import models
from rankgrad.training import Settings, defaults


def lists(count, length):
    items = count * length
    features = np.random.default_rng(0).normal(size=(items, 2)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    qids = np.arange(count).astype(str)
    return Dataset(features, labels, np.arange(0, items + 1, length), qids)


def test_small_is_the_default_of_settings():
    assert str(models.get("small")) == Settings().model


def test_few_items_leave_the_settings():
    settings, notes = defaults.for_data(Settings(), lists(499, 100), explicit=())
    assert settings == Settings() and not notes


@pytest.mark.parametrize(("count", "length", "epochs"), [(500, 100, 20), (10_001, 5, 10)])
def test_many_items_have_a_larger_model(count, length, epochs):
    settings = Settings(seed=3, device="cpu")
    found, (note,) = defaults.for_data(settings, lists(count, length), explicit={"seed", "device"})
    assert found.model == str(models.get("medium"))
    assert (found.schedule, found.epochs, found.patience) == ("cosine", epochs, None)
    assert (found.seed, found.loss) == (3, Settings().loss)
    assert note.startswith(f"{count * length:,} training items and no GPU: model medium")


@pytest.mark.parametrize(
    ("memory", "list_size", "model"),
    [(10**12, None, "large"), (10**9, None, "medium"), (10**9, 40, "large")],
)
def test_a_gpu_with_memory_enough_has_the_large_one(monkeypatch, memory, list_size, model):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(defaults, "process_memory", lambda device: memory)
    settings = Settings(list_size=list_size)
    found, (note,) = defaults.for_data(settings, lists(500, 100), explicit={"list_size"})
    assert found.model == str(models.get(model)) and f"model {model}" in note


def test_what_is_given_stays():
    many = lists(500, 100)
    model = Settings(model="small")
    assert defaults.for_data(model, many, explicit={"model"}) == (model, [])
    settings = Settings(epochs=3, device="cpu")
    settings, _ = defaults.for_data(settings, many, explicit={"epochs", "device"})
    assert (settings.epochs, settings.schedule) == (3, "constant")
    assert settings.patience == Settings().patience
    assert settings.model == str(models.get("medium"))


@pytest.mark.parametrize(("explicit", "expected"), [({}, "medium"), ({"model": "small"}, "small")])
def test_the_estimator_follows_the_rules(monkeypatch, capsys, explicit, expected):
    monkeypatch.setattr(defaults, "MANY_ITEMS", 20)
    data = lists(4, 5)
    ranker = Ranker(epochs=1, device="cpu", verbose=True, **explicit)
    ranker.fit(data.features, data.labels, group=data.lengths)
    assert ranker.model_.settings.model == str(models.get(expected))
    assert ("20 training items" in capsys.readouterr().out) == (expected == "medium")
