"""The compiled preparation gives what transforms and networks compute."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from learnable import lists as learnable

from rankgrad.serving.layers import FoldedLayers
from rankgrad.serving.preparation import Preparation
from rankgrad.serving.ranker import ServedRanker
from rankgrad.training import FittedRanker, Settings

TRANSFORMS = [
    Settings().transforms,
    ("quantile(output=uniform, quantiles=5)",),
    ("drop_constant", "standardize"),
    (),
]


def uneven_lists():
    """Lists of one item, of many ties, and of more items than are compared in pairs."""
    made = learnable(40, features=6, max_length=30)
    features = np.array(made.features)
    features[:, 0] = 7
    features[:, 1] = features[:, 1].round()
    features[::5, 2] = features[3::7, 1] = np.nan
    offsets = np.concatenate([made.offsets[:11], made.offsets[10:11] + 1, made.offsets[-1:]])
    return features, offsets


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_inputs_are_those_of_the_network(transforms):
    features, offsets = uneven_lists()
    assert np.diff(offsets).max() > 256 and 1 in np.diff(offsets)
    model = "tabm(hidden=[4], members=2, in_list=[rank, score, ties])"
    steps = (*transforms, "impute(fill=median)")
    ranker = FittedRanker.new(Settings(model=model, transforms=steps), features, offsets)
    found = Preparation.of(ranker)(features, offsets).T
    for start, stop in pairwise(offsets):
        values = ranker.transform(torch.from_numpy(features[start:stop]))
        inputs = ranker.network.inputs(values, None)
        np.testing.assert_allclose(found[start:stop], inputs, atol=2e-6, rtol=2e-6)


def test_scores_in_the_list_are_folded_into_the_weights():
    """As in the default model; features of few distinct values, of many, of one, and of missing."""
    features, offsets = uneven_lists()
    features[:, 3] = np.where(features[:, 3] > 0, -0.0, 0.0)
    features[:, 4] = features[:, 4].clip(-0.5, 0.5)
    model = "tabm(hidden=[8], members=2, share=nothing, in_list=[rank, score])"
    steps = (*Settings().transforms, "impute(fill=median)")
    ranker = FittedRanker.new(Settings(model=model, transforms=steps), features, offsets)
    ranker.network.eval()
    prepare, layers = Preparation.of(ranker), FoldedLayers(ranker.network)
    assert prepare.folds and FoldedLayers.fits(ranker.network)
    for start, stop in pairwise(offsets):
        found = layers(*prepare.folded(features[start:stop]))
        np.testing.assert_allclose(found, ranker.predict(features[start:stop]), atol=2e-6)


@pytest.mark.parametrize(
    "transforms",
    [
        ("log1p",),
        ("standardize", "quantile(output=uniform)"),
        Settings().transforms,  # missing values are imputed by regression
    ],
)
def test_other_transforms_are_left_to_onnx(transforms):
    features, offsets = uneven_lists()
    ranker = FittedRanker.new(Settings(transforms=transforms), features, offsets)
    assert Preparation.of(ranker) is None
    scores = ServedRanker.of(ranker, "a").score(features, offsets)
    np.testing.assert_allclose(scores, ranker.predict(features, offsets), atol=1e-5)


def test_only_what_has_no_onnx_form_is_left_to_its_library(monkeypatch):
    features, offsets = uneven_lists()
    ranker = FittedRanker.new(Settings(), features, offsets)

    def broken(ranker):
        raise ValueError("a bug")

    monkeypatch.setattr("rankgrad.serving.ranker.to_onnx", broken)
    with pytest.raises(ValueError, match="a bug"):
        ServedRanker.of(ranker, "a")
