from dataclasses import replace

import numpy as np
import pytest
import torch
from learnable import lists as learnable

from rankgrad.data import Dataset
from rankgrad.training import Settings, fit


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks here are tiny
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lists():
    """Lists with a constant feature, one with many ties, and one with a long tail."""
    made = learnable(25, features=8)
    features = np.array(made.features)
    features[:, 3] = 3
    features[:, 1] = features[:, 1].clip(min=0).round()
    features[:, 2] = np.exp(features[:, 2])
    return Dataset(features, made.labels, made.offsets, made.qids)


@pytest.fixture(scope="session")
def missing(lists):
    """The lists without three tenths of their values."""
    features = np.array(lists.features)
    absent = np.random.default_rng(0).random(features.shape) < 0.3
    absent[:, 3] = False  # of the constant feature, so that it stays one
    features[absent] = np.nan
    return replace(lists, features=features)


@pytest.fixture(scope="session")
def ranker(lists):
    """Trains a ranker for an epoch or a few trees; each once."""
    made = {}

    def train(model, transforms=(), **settings):
        key = model, tuple(transforms), str(settings)
        if key not in made:
            chosen = Settings(
                model=model, transforms=transforms, epochs=3, device="cpu", **settings
            )
            made[key] = fit(chosen, lists, lists).model
        return made[key]

    return train
