"""The compiled preparation gives what transforms and networks compute."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from learnable import lists as learnable

from rankgrad.export._onnx_format import session, to_onnx
from rankgrad.models import models
from rankgrad.models.tabm import TabMNet
from rankgrad.serving._folded_layers import FoldedLayers
from rankgrad.serving._served_ranker import ServedRanker
from rankgrad.training import FittedRanker, Settings
from rankgrad.training._preparation import Preparation

TRANSFORMS = [
    Settings().transforms,
    ("quantile(output=uniform, quantiles=5)",),
    ("drop_constant", "standardize"),
    (),
]


def uneven_lists():
    """Lists of one item, of many ties, and of more items than are compared in pairs."""
    made = learnable(100, features=6, max_length=30)
    features = np.array(made.features)
    features[:, 0] = 7
    features[:, 1] = features[:, 1].round()
    features[::5, 2] = features[3::7, 1] = np.nan
    features[:, 5] = features[:, 5].clip(max=-0.5)
    offsets = np.concatenate([made.offsets[:11], made.offsets[10:11] + 1, made.offsets[-1:]])
    return features, offsets


@pytest.mark.parametrize("impute", ["impute(fill=median)", "impute"])
@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_inputs_are_those_of_the_network(transforms, impute):
    features, offsets = uneven_lists()
    assert np.diff(offsets).max() > 1024 and 1 in np.diff(offsets)
    model = "tabm(hidden=[4], members=2, in_list=[rank, score, ties])"
    steps = (*transforms, impute)
    ranker = FittedRanker.new(Settings(model=model, transforms=steps), features, offsets)
    found = Preparation.of(ranker)(features, offsets)
    for start, stop in pairwise(offsets):
        values = ranker.transform(torch.from_numpy(features[start:stop]))
        inputs = ranker.network.inputs(values, None)
        np.testing.assert_allclose(found[start:stop], inputs, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(
    "model",
    [
        "tabm(hidden=[8], members=2, share=nothing, in_list=[rank, score])",
        "tabm(hidden=[8, 4], members=1, in_list=[rank, score, ties])",
        "tabm(hidden=[8, 4], members=3, activation=silu, in_list=[score, ties])",
        "tabm(hidden=[8, 4], members=2, in_list=[rank, score], periodic=3, encoding_rate=4)",
        "tabm(hidden=[8, 4], members=2, in_list=[rank, score], heads=2, periodic=3)",
    ],
)
@pytest.mark.parametrize("units", [32, 64])
def test_scores_in_the_list_are_folded_into_the_weights(model, units, monkeypatch):
    """As in default models; features of few distinct values, of many, of one, and of missing."""
    monkeypatch.setattr("rankgrad.serving._folded_layers._UNITS", units)  # as on other processors
    features, offsets = uneven_lists()
    features[:, 3] = np.where(features[:, 3] > 0, -0.0, 0.0)
    features[:, 4] = features[:, 4].clip(-0.5, 0.5)
    steps = (*Settings().transforms, "impute(fill=median)")
    ranker = FittedRanker.new(Settings(model=model, transforms=steps), features, offsets)
    ranker.network.eval()
    if (encoding := ranker.network.encoding) is not None:
        # An L1 penalty leaves functions without weight: all of some features, some of others.
        functions = ranker.network.layers[0].scale_in.detach()[..., -encoding.width :]
        functions.unflatten(-1, (encoding.n_features, -1))[..., ::2, :] = 0.0
        functions[..., 5] = 0.0
    prepare, layers = Preparation.of(ranker), FoldedLayers(ranker.network)
    assert FoldedLayers.fits(ranker.network)
    for start, stop in pairwise(offsets):
        found = layers(prepare.entries(features[start:stop]), stop - start)
        np.testing.assert_allclose(found, ranker.predict(features[start:stop]), atol=2e-6)


def test_folded_layers_are_called_by_several_threads():
    class Taken(list):
        """A list whose last element another thread takes after a check that there is one."""

        def __bool__(self):
            return True

    features, offsets = uneven_lists()
    model = "tabm(hidden=[8], members=2, in_list=[score])"
    ranker = FittedRanker.new(Settings(model=model), features, offsets)
    ranker.network.eval()
    prepare, layers = Preparation.of(ranker), FoldedLayers(ranker.network)
    layers._free_buffers = Taken()
    starts = list(range(0, 400, 2))
    lists = [features[start : start + 30 + start % 40] for start in starts]
    expected = [layers(prepare.entries(items), len(items)) for items in lists]
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda items: layers(prepare.entries(items), len(items)), lists)
        assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("heads", [0, 2])
def test_equal_items_of_an_encoded_feature_get_equal_scores(heads):
    """Wherever they are in a list, which is longer than the encoding's blocks of items."""
    features, offsets = uneven_lists()
    model = f"tabm(hidden=[8, 4], members=2, in_list=[rank, score], heads={heads}, periodic=3)"
    ranker = FittedRanker.new(Settings(model=model), features, offsets)
    ranker.network.eval()
    prepare, layers = Preparation.of(ranker), FoldedLayers(ranker.network)
    for n in (3, 16, 33, 61):
        items = np.tile(features[:n], (3, 1))
        scores = layers(prepare.entries(items), 3 * n).reshape(3, n)
        assert (scores == scores[0]).all()


def test_large_weights_are_not_folded():
    wide = "tabm(hidden=[512, 256], members=16, in_list=[rank, score, ties])"
    assert not FoldedLayers.fits(models.get(wide).build(n_features=136))
    assert FoldedLayers.fits(models.get(wide.replace("16", "1")).build(n_features=136))
    others = "in_list=[rank]", "hidden=[], in_list=[score]"
    for other in (*others, "in_list=[score], bins=2", "in_list=[score], periodic=17"):
        assert not FoldedLayers.fits(models.get(f"tabm({other})").build(n_features=4))
    assert FoldedLayers.fits(models.get("tabm(in_list=[score], periodic=16)").build(n_features=4))


@pytest.mark.parametrize(
    "transforms",
    [
        ("log1p",),
        ("standardize", "quantile(output=uniform)"),
    ],
)
def test_other_transforms_are_left_to_onnx(transforms):
    features, offsets = uneven_lists()
    ranker = FittedRanker.new(Settings(transforms=transforms), features, offsets)
    assert Preparation.of(ranker) is None
    scores = ServedRanker.of(ranker, "a").score(features, offsets)
    np.testing.assert_allclose(scores, ranker.predict(features, offsets), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "transforms"),
    [
        (Settings().model, Settings().transforms),
        (Settings().model, ("standardize",)),
        ("medium", Settings().transforms),
        ("mlp(hidden=[8])", Settings().transforms),
    ],
)
def test_copies_of_items_with_missing_values_are_tied(model, transforms):
    """In predict, in the service and in ONNX, which agree; also where a copy is far away."""
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 10)).astype(np.float32)
    features[random.random(features.shape) < 0.1] = np.nan
    ranker = FittedRanker.new(Settings(model=model, transforms=transforms), features)
    served, run = ServedRanker.of(ranker, "a"), session(to_onnx(ranker)).run
    for length in (3, 30, 101, 400) * 5:
        items = features[random.choice(len(features), length, replace=False)]
        items = np.concatenate([items, items[:3]])
        found = ranker.predict(items)
        np.testing.assert_array_equal(found[:3], found[-3:])
        offsets = np.array([0, len(items)])
        scores = served.score(items, offsets)
        np.testing.assert_allclose(scores, found, atol=1e-5)
        np.testing.assert_array_equal(scores[:3], scores[-3:])
        onnx = run(["scores"], {"features": items[None]})[0][0]
        np.testing.assert_allclose(onnx, found, atol=1e-5)
        np.testing.assert_allclose(onnx[:3], onnx[-3:], atol=1e-6)
        by_pytorch = scores_by_pytorch(ranker, items, offsets)
        np.testing.assert_allclose(by_pytorch, found, atol=1e-5)


def test_features_that_are_constant_in_long_lists():
    """And far from their mean, as flags of rare queries: rounding leaves nothing of them."""
    random = np.random.default_rng(0)
    features = random.normal(size=(20_000, 40)).astype(np.float32)
    features[:, 1:] = 0
    features[range(39), range(1, 40)] = 1
    model = "tabm(hidden=[16], members=4, in_list=[rank, score])"
    ranker = FittedRanker.new(Settings(model=model, transforms=("standardize",)), features)
    run = session(to_onnx(ranker)).run
    for length in (100, 999):
        items = features[:length].copy()
        items[:, 1:] = 1
        found = ranker.predict(items)
        onnx = run(["scores"], {"features": items[None]})[0][0]
        np.testing.assert_allclose(onnx, found, atol=1e-5, rtol=2e-6)
        by_pytorch = scores_by_pytorch(ranker, items, np.array([0, length]))
        np.testing.assert_allclose(by_pytorch, found, atol=1e-5, rtol=2e-6)


def test_quantiles_over_all_of_float32():
    """Differences of these values are infinite; none of them is missing."""
    features = np.linspace(-3.4e38, 3.4e38, 80).astype(np.float32).reshape(40, 2)
    features[:, 1] = -1e38
    features[::4, 1] = -3e38
    settings = Settings(model="mlp(hidden=[4])", transforms=("quantile(output=uniform)",))
    ranker = FittedRanker.new(settings, features[::39])
    features[1, 1] = 3e38  # above all of training
    expected = ranker.transform(torch.from_numpy(features))
    assert expected.isfinite().all() and (expected[:, 0].diff() > 0).all()
    np.testing.assert_array_equal(Preparation.of(ranker)(features, np.array([0, 40])), expected)
    ours = ranker.transform.steps[0](torch.from_numpy(features).double()).float()
    np.testing.assert_allclose(expected, ours, atol=1e-6)
    onnx = session(to_onnx(ranker)).run(["scores"], {"features": features[None]})[0][0]
    np.testing.assert_allclose(onnx, ranker.predict(features), atol=1e-6)


def test_only_what_has_no_onnx_form_is_left_to_its_library(monkeypatch):
    features, offsets = uneven_lists()
    ranker = FittedRanker.new(Settings(), features, offsets)

    def broken(ranker):
        raise ValueError("a bug")

    monkeypatch.setattr("rankgrad.serving._served_ranker.to_onnx", broken)
    with pytest.raises(ValueError, match="a bug"):
        ServedRanker.of(ranker, "a")


def scores_by_pytorch(ranker, features, offsets):
    ranker.network.eval()
    with torch.inference_mode():
        lists = [torch.from_numpy(features[start:stop]) for start, stop in pairwise(offsets)]
        return np.concatenate([ranker.network(ranker.transform.transform(each)) for each in lists])


@pytest.mark.parametrize(
    "model", ["mlp(hidden=[4])", "tabm(hidden=[4], in_list=[score, rank], bins=3)"]
)
def test_predictions_are_those_of_transforms_and_network(model, monkeypatch):
    features, offsets = uneven_lists()
    settings = Settings(model=model, transforms=(*TRANSFORMS[0], "impute(fill=median)"))
    ranker = FittedRanker.new(settings, features, offsets)
    expected = scores_by_pytorch(ranker, features, offsets)
    monkeypatch.setattr(FittedRanker, "_score_list", None)
    monkeypatch.setattr(FittedRanker, "_score_items", None)
    monkeypatch.setattr(FittedRanker, "_score_lists", None)
    for documents in (1 << 15, 40):  # all lists at once, and few or a long one at a time
        monkeypatch.setattr("rankgrad.training._fitted._PREPARED", documents)
        found = ranker.predict(features, offsets)
        np.testing.assert_allclose(found, expected, atol=3e-6)
    one = ranker.predict(features[offsets[3] : offsets[4]])
    np.testing.assert_allclose(one, expected[offsets[3] : offsets[4]], atol=3e-6)
    assert ranker.predict(features[:0]).shape == (0,)
    # What was prepared of other tensors is prepared anew.
    other = FittedRanker.new(settings, features[::-1] * 2, offsets)
    ranker.load_tensors(other.tensors())
    assert np.array_equal(ranker.predict(features, offsets), other.predict(features, offsets))
    if not ranker.per_item:
        with pytest.raises(ValueError, match="offsets"):
            ranker.predict(features, offsets[::-1])
    features[7, 3] = np.finfo(np.float32).max  # two of which have a sum that is infinite
    features[8, 3] = np.finfo(np.float32).max
    assert np.isfinite(ranker.predict(features, offsets)).all()
    for row in (len(features) - 3, 7):
        features[row, 3] = np.inf
        said = rf"index 3 .* is infinite: features\[{row}, 3\] = inf"
        with pytest.raises(ValueError, match=said):
            ranker.predict(features, offsets)


def test_rankers_on_other_devices(monkeypatch):
    """Their tensors have no arrays, and predict leaves them where they are."""
    features, offsets = uneven_lists()
    ranker = FittedRanker.new(Settings(), features, offsets)
    copied, to_array = [], torch.Tensor.numpy

    def copy(tensor):
        copied.append(tensor.clone())
        return copied[-1]

    def numpy(tensor):
        assert any(tensor is one for one in copied), "an array of a tensor that is not on the CPU"
        return to_array(tensor)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "cpu", copy)
        patched.setattr(torch.Tensor, "numpy", numpy)
        assert Preparation.of(ranker) is not None
    monkeypatch.setattr(Preparation, "of", None)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        ranker.to("meta").predict(features)


@pytest.mark.parametrize(
    "options", ["in_list=[rank, score]", "in_list=[score], periodic=2, scale_rate=6.0", "bins=2"]
)
def test_networks_with_attention_score_list_by_list(options):
    """By compiled layers where there are scores in the list, else by those of onnxruntime."""
    features, offsets = uneven_lists()
    offsets = np.array([0, 0, 1, *range(31, 120, 11)])  # without items, of one item, and longer
    features = features[: offsets[-1]]
    features[offsets[3:] - 1] = features[offsets[2:-1]]  # the last item is a copy of the first
    model = f"tabm(hidden=[8], members=2, heads=2, {options})"
    settings = Settings(model=model, transforms=("standardize", "impute(fill=median)"))
    ranker = FittedRanker.new(settings, features, offsets)
    torch.nn.init.normal_(ranker.network.layers[0].scale_in, std=0.3)  # some start at 0
    scores = ranker.predict(features, offsets)
    served = ServedRanker.of(ranker, "a")
    assert served.runtime == "onnxruntime" and not served.per_item
    assert FoldedLayers.fits(ranker.network) == ("score" in options)
    served_scores = served.score(features, offsets)
    assert (served_scores[offsets[3:] - 1] == served_scores[offsets[2:-1]]).all()
    run = session(to_onnx(ranker)).run
    for start, stop in pairwise(offsets):
        whole = run(["scores"], {"features": features[None, start:stop]})[0][0]
        np.testing.assert_allclose(whole, scores[start:stop], atol=1e-5)
    np.testing.assert_allclose(served.score(features, offsets), scores, atol=1e-5)
    for start, stop in pairwise(offsets):
        items, expected = features[start:stop], scores[start:stop]
        np.testing.assert_allclose(ranker.predict(items), expected, atol=1e-5)
        by_service = served.score(items, np.array([0, len(items)]))
        np.testing.assert_allclose(by_service, expected, atol=1e-5)


def test_a_network_of_ones_own_is_left_to_pytorch():
    class Doubled(TabMNet):
        def inputs(self, features, mask):
            return 2 * super().inputs(features, mask)

    features, offsets = uneven_lists()
    network = Doubled(models.get("tabm(hidden=[4], members=2)"), 8)
    ranker = FittedRanker.new(
        Settings(transforms=("impute(fill=median)",)), features, network=network
    )
    expected = scores_by_pytorch(ranker, features, offsets)
    np.testing.assert_allclose(ranker.predict(features, offsets), expected, atol=3e-6)
