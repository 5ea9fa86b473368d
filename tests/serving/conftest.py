import asyncio
import dataclasses

import numpy as np
import pytest
from learnable import lists as learnable
from serving_requests import send

from rankgrad.data import Dataset
from rankgrad.serving import ServedRanker
from rankgrad.training import Settings, fit

NAMES = ("bm25", "pagerank", "age", "length")


@pytest.fixture(scope="session")
def lists():
    made = learnable(20, features=4)
    features = np.asarray(made.features)
    return Dataset(features, made.labels, made.offsets, made.qids, feature_names=NAMES)


@pytest.fixture(scope="session")
def fitted(lists):
    """Rankers whose scores depend on the list, on the item, and trees.

    The trees are trained with missing values, the others without any.
    """
    features = np.array(lists.features)
    features[np.random.default_rng(0).random(features.shape) < 0.2] = np.nan
    missing = dataclasses.replace(lists, features=features)
    specs = {
        "in_list": "tabm(hidden=[8], members=2, share=nothing, in_list=[rank, score, ties])",
        "plain": "mlp(hidden=[4])",
        "trees": "lightgbm(num_leaves=5)",
    }
    plain = {"transforms": ("standardize",), "epochs": 2, "device": "cpu"}
    tree = {"transforms": (), "epochs": 3, "device": "cpu"}
    return {
        name: fit(Settings(model=spec, **tree), missing).model
        if name == "trees"
        else fit(Settings(model=spec, **plain), lists, lists).model
        for name, spec in specs.items()
    }


@pytest.fixture(scope="session")
def served(fitted):
    return {name: ServedRanker.of(ranker, name) for name, ranker in fitted.items()}


@pytest.fixture
def call(app):
    """Sends requests to the application of a test."""
    return lambda *requests: asyncio.run(send(app, *requests))


@pytest.fixture
def post(call):
    return lambda path="/rank", **named: call((("POST", path), named))[0]
