"""Exported rankers compute the scores of the ranker they come from, or are not written."""

import errno
import json
import re
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from rankgrad.data import Dataset
from rankgrad.data._dataset import names_of_features
from rankgrad.data.transforms import transforms
from rankgrad.export import _engines, _exporting, engine_notes, export, to_onnx
from rankgrad.export._onnx_format import session
from rankgrad.export._parsed_trees import Leaf, Split, Trees
from rankgrad.export._readers import read_linear, read_solr, read_xgboost_json
from rankgrad.export._samples import sample_of, sample_without_data
from rankgrad.models import models
from rankgrad.training import FittedRanker, Settings, fit

DEFAULT = Settings()
NETWORKS = {
    "default": (DEFAULT.model, DEFAULT.transforms),
    "mlp": (
        "mlp(hidden=[6, 4], batch_norm=true, input_norm=true)",
        ["drop_constant", "log1p", "quantile"],
    ),
    "after": ("mlp(hidden=[6], batch_norm=after, activation=gelu, output=tanh)", ["clip(limit=2)"]),
    "silu": ("mlp(hidden=[6], activation=silu, dropout=0.1)", ["quantile(quantiles=7)"]),
    "adapters": ("tabm(hidden=[6, 5], members=3, activation=leaky_relu, bins=4)", ["standardize"]),
    "in_list": ("tabm(hidden=[], members=2, in_list=[score, ties, rank], bins=3)", ["clip"]),
    "periodic": (
        "tabm(hidden=[6, 5], members=2, in_list=[score], periodic=3, scale_rate=4.0, "
        "encoding_rate=3.0)",
        ["standardize"],
    ),
    "similar": ("tabm(hidden=[6], members=2, in_list=[score], heads=2)", ["standardize"]),
    "similar_scaled": (
        "tabm(hidden=[6], members=1, in_list=[score], heads=2, periodic=3, scale_rate=6.0)",
        ["standardize"],
    ),
    "attention": ("context_aware(fc=[8], heads=2, ff=8)", ["standardize"]),
    "fixed": ("context_aware(fc=[7], ff=8, positional=fixed, output=sigmoid)", ["standardize"]),
    "learned": ("context_aware(fc=[8], ff=8, positional=learned, positions=3)", ["standardize"]),
    "lightgbm": ("lightgbm(num_leaves=5)", []),
    "xgboost": ("xgboost(max_leaves=5)", ["drop_constant"]),
    "dart": ("xgboost(max_leaves=5, booster=dart, rate_drop=0.5)", []),
}


def padded(lists, seed=0):
    """The lists with padding anywhere, which holds nonsense; and without any."""
    random, width = np.random.default_rng(seed), int(lists.lengths.max()) + 2
    mask = np.zeros((len(lists), width), bool)
    for row, length in zip(mask, lists.lengths, strict=True):
        row[random.choice(width, length, replace=False)] = True
    features = random.normal(size=(*mask.shape, lists.n_features)).astype(np.float32) * 1e6
    features[mask] = lists.features
    return features, mask


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_our_scores(name, ranker, lists, tmp_path):
    trained = ranker(*NETWORKS[name])
    export(trained, tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    features, mask = padded(lists)
    scores = session.run(["scores"], {"features": features, "mask": mask})[0]
    ours = trained.predict(lists.features, lists.offsets)
    np.testing.assert_allclose(scores[mask], ours, rtol=1e-5, atol=1e-5)
    assert (scores[~mask] == 0).all()
    one = np.asarray(lists.features[lists.offsets[3] : lists.offsets[4]])[None]
    alone = session.run(["scores"], {"features": one})[0][0]  # all items are real without a mask
    np.testing.assert_allclose(
        alone, ours[lists.offsets[3] : lists.offsets[4]], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["default", "after", "in_list", "lightgbm"])
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_missing_values_are_scored_alike(name, format, missing, tmp_path):
    if (name, format) == ("lightgbm", "pt2"):
        pytest.skip("trees have no program")
    model, transforms = NETWORKS[name]
    settings = Settings(model=model, transforms=tuple(transforms), epochs=2, device="cpu")
    trained = fit(settings, missing).model
    export(trained, tmp_path / f"a.{format}")
    given, mask = padded(missing)
    if format == "onnx":
        session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
        scores = session.run(["scores"], {"features": given, "mask": mask})[0]
    else:
        module = torch.export.load(tmp_path / "a.pt2").module()
        scores = module(torch.from_numpy(given), torch.from_numpy(mask)).detach().numpy()
    ours = trained.predict(missing.features, missing.offsets)
    np.testing.assert_allclose(scores[mask], ours, rtol=1e-5, atol=1e-5)


EMPTY = [(0, 0), (0, 3), (1, 0), (2, 0)]


@pytest.mark.parametrize("name", NETWORKS)
def test_lists_without_items(name, ranker):
    trained = ranker(*NETWORKS[name])
    run = session(to_onnx(trained)).run
    for shape in EMPTY:
        features, mask = np.zeros((*shape, 8), np.float32), np.zeros(shape, bool)
        assert run(["scores"], {"features": features, "mask": mask})[0].shape == shape
        assert run(["scores"], {"features": features})[0].shape == shape


def test_the_file_says_what_it_takes(ranker, tmp_path):
    export(ranker(*NETWORKS["default"]), tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(said["feature_names"]) == [str(at) for at in range(1, 9)]
    assert said["per_item"] == "false"
    search = [node.op_type for node in model.graph.node].count("Less")
    assert search == 8  # steps for up to 255 distinct quantiles
    sizes = [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["lists", "items", ""]


@pytest.mark.parametrize("name", ["default", "learned", "similar_scaled"])
def test_a_program_computes_our_scores(name, ranker, lists, tmp_path):
    trained = ranker(*NETWORKS[name])
    export(trained, tmp_path / "a.pt2", data=lists)
    module = torch.export.load(tmp_path / "a.pt2").module()
    features, mask = map(torch.from_numpy, padded(lists))
    ours = trained.predict(lists.features, lists.offsets)
    with torch.no_grad():
        for count in (1, 2, len(lists)):
            scores = module(features[:count], mask[:count])[mask[:count]].numpy()
            np.testing.assert_allclose(scores, ours[: len(scores)], rtol=1e-5, atol=1e-5)
        for shape in EMPTY:
            found = module(torch.zeros(*shape, 8), torch.zeros(shape, dtype=torch.bool))
            assert found.shape == shape


FOLDED = {
    "deep": ("mlp(hidden=[6, 4], batch_norm=true, input_norm=true)", ["drop_constant"]),
    "after": ("mlp(hidden=[6], batch_norm=after, activation=tanh, output=sigmoid)", []),
    "leaky": ("mlp(hidden=[5], activation=leaky_relu)", ["drop_constant", "standardize"]),
    "linear": ("mlp(hidden=[])", ["standardize"]),
    "lightgbm": ("lightgbm(num_leaves=5)", ["drop_constant"]),
    "xgboost": ("xgboost(max_leaves=5)", []),
}
READERS = {"solr": read_solr, "xgboost-json": read_xgboost_json, "linear": read_linear}


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((name, "solr") for name in FOLDED),
        *(("linear", "linear"), ("lightgbm", "xgboost-json"), ("xgboost", "xgboost-json")),
    ],
)
def test_engines_compute_our_scores(name, format, ranker, lists, tmp_path):
    trained = ranker(*FOLDED[name])
    export(trained, tmp_path / "a.json", format, data=lists, name="mine")
    columns = {feature: at for at, feature in enumerate(names_of_features(trained))}
    read = READERS[format](json.loads((tmp_path / "a.json").read_text()), columns)
    scores, ours = read(lists.features), trained.predict(lists.features)
    if format == "linear":  # which has no constant term
        scores, ours = scores - scores.mean(), ours - ours.mean()
    np.testing.assert_allclose(scores, ours, rtol=1e-5, atol=1e-5)


def read(trained, path, format):
    """What scores items by a file of an engine's."""
    columns = {feature: at for at, feature in enumerate(names_of_features(trained))}
    return READERS[format](json.loads(path.read_text()), columns)


TREES = ["lightgbm(num_leaves=5)", "xgboost(max_leaves=5)"]


@pytest.mark.parametrize("model", TREES)
def test_missing_values_go_the_way_they_went_in_training(model, lists, missing, tmp_path):
    settings = Settings(model=model, transforms=("drop_constant",), epochs=3, device="cpu")
    trained = fit(settings, missing).model
    theirs = trained.predict(missing.features)
    complete = trained.predict(np.nan_to_num(missing.features))
    assert np.abs(theirs - complete).max() > 0.01
    for format in ("solr", "xgboost-json"):
        export(trained, tmp_path / format, format, data=missing)
        found = read(trained, tmp_path / format, format)(missing.features)
        np.testing.assert_allclose(found, theirs, atol=1e-5)
        (note,) = engine_notes(trained, format)
        assert re.search(r"trained with missing values in \d features \(1, ", note)
    assert '"isNullSameAsZero": false' in (tmp_path / "solr").read_text()


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("model", TREES)
def test_engines_that_send_0_or_nan_agree(model, filled, ranker, lists, missing, tmp_path):
    """Trees that have not learned from missing values take them for 0, in all versions."""
    if filled:
        zero = Settings(model=model, transforms=(_engines.ZERO_FILL,), epochs=3, device="cpu")
        trained = fit(zero, missing).model
    else:
        trained = ranker(model)
    ours = trained.predict(np.nan_to_num(missing.features))
    for format in ("solr", "xgboost-json"):
        export(trained, tmp_path / format, format, data=missing if filled else lists)
        assert engine_notes(trained, format) == []
        scores = read(trained, tmp_path / format, format)
        np.testing.assert_allclose(scores(missing.features), ours, atol=1e-5)
        np.testing.assert_allclose(scores(np.nan_to_num(missing.features)), ours, atol=1e-5)
    assert "isNullSameAsZero" not in (tmp_path / "solr").read_text()


def test_what_differs_is_said(ranker, missing, tmp_path):
    """Of data with missing values, for a ranker that was trained without any."""
    for model, format in (("mlp(hidden=[4])", "solr"), ("xgboost(max_leaves=5)", "solr")):
        with pytest.raises(ValueError, match="these items have missing values"):
            export(ranker(model), tmp_path / "a", format, data=missing)
    assert not list(tmp_path.iterdir())


def test_trees_of_earlier_versions_say_where_values_were_missing(missing):
    settings = Settings(model="xgboost(max_leaves=5)", transforms=(), epochs=9, device="cpu")
    network = fit(settings, missing).model.network
    noted = Trees.of(network).missing
    saved = json.loads(network.saved)
    saved["learner"]["attributes"] = {}
    network.saved = json.dumps(saved).encode()
    assert noted == {0, 1, 2, 4, 5, 6, 7} and set() < Trees.of(network).missing <= noted


def test_scores_that_lucene_takes(ranker, lists, tmp_path):
    trained = ranker("lightgbm(num_leaves=5)")
    export(trained, tmp_path / "a.json", "xgboost-json", non_negative=True)
    scores = read(trained, tmp_path / "a.json", "xgboost-json")(lists.features)
    assert scores.dtype == np.float32 and scores.min() >= 0
    np.testing.assert_allclose(np.ptp(scores - trained.predict(lists.features)), 0, atol=1e-5)


def test_no_float32_sum_of_leaves_is_below_0():
    """The item that takes the least leaf of each tree, added in the order of the engines."""
    random = np.random.default_rng(0)
    for _ in range(50):
        roots = [
            Split(0, np.float32(0), True, *map(Leaf, random.normal(size=2) * 10.0**scale))
            for scale in random.integers(-6, 3, 40)
        ]
        trees = Trees(tuple(roots), base=float(random.normal()))
        found, total = trees.non_negative(), np.float32(0)
        for root in found.roots:
            total = total + min(np.float32(root.left.value), np.float32(root.right.value))
        assert total >= 0
        assert total < 1e-3 or found == trees.shifted(0)


@pytest.mark.parametrize(
    ("model", "transforms", "format", "said"),
    [
        (DEFAULT.model, [], "solr", "rankgrad distill"),
        ("mlp(hidden=[4])", ["quantile"], "solr", "quantile.* cannot be folded .*rankgrad distill"),
        ("mlp(hidden=[4], activation=elu)", [], "solr", "no activation ELU.*rankgrad distill"),
        ("mlp(hidden=[4])", [], "linear", r"train mlp\(hidden=\[\]\)"),
        ("mlp(hidden=[4])", [], "xgboost-json", "rankgrad distill .*--model lightgbm"),
        ("lightgbm(num_leaves=5)", ["standardize"], "xgboost-json", "without --transform"),
        ("lightgbm(num_leaves=5)", [], "torch", "--format onnx"),
    ],
)
def test_what_a_format_cannot_say_is_refused(model, transforms, format, said, ranker, tmp_path):
    with pytest.raises(ValueError, match=said):
        export(ranker(model, transforms), tmp_path / "a", format)
    assert not list(tmp_path.iterdir())


def test_a_file_with_other_scores_is_not_left_there(ranker, tmp_path, monkeypatch):
    trained = ranker("mlp(hidden=[])", ["standardize"])
    right = _exporting.to_onnx(trained)
    with torch.no_grad():
        trained.network.layers[0].bias += 1e-3
        monkeypatch.setattr(_exporting, "to_onnx", lambda ranker: right)
        (tmp_path / "a.onnx").write_bytes(b"before")
        with pytest.raises(ValueError, match="so nothing was written"):
            export(trained, tmp_path / "a.onnx", overwrite=True)
        trained.network.layers[0].bias -= 1e-3
    assert (tmp_path / "a.onnx").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


@pytest.mark.parametrize("before", [None, b"before"])
@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("rankgrad._files.os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        ("rankgrad._files.os.replace", OSError(errno.EACCES, "Permission denied")),
        ("rankgrad.export._exporting.onnx_scores", KeyboardInterrupt()),
        ("rankgrad._files.os.fsync", KeyboardInterrupt()),
    ],
)
def test_what_fails_leaves_what_was_there(at, error, before, ranker, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    if before is not None:
        (tmp_path / "a.onnx").write_bytes(before)
    monkeypatch.setattr(at, fail)
    with pytest.raises(type(error)) as raised:
        export(ranker("mlp(hidden=[4])"), tmp_path / "a.onnx", overwrite=True)
    if isinstance(error, OSError):
        assert str(tmp_path / "a.onnx") in str(raised.value)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before] * (before is not None)


REMEDY = "rankgrad distill|train them again|--format onnx"
TAKES = {  # formats besides ONNX
    **dict.fromkeys(["mlp", "comparison", "lambdaloss", "pirank", "smoothi"], ("solr",)),
    **dict.fromkeys(["lightgbm", "xgboost"], ("solr", "xgboost-json")),
}


@pytest.mark.parametrize("name", models.names())
def test_every_model_is_exported_or_refused(name, lists, tmp_path):
    """As ONNX all of them; engines take some, and for the others there is a way that is named."""
    if name in ("lightgbm", "xgboost"):
        trained = fit(Settings(model=name, transforms=(), epochs=1, device="cpu"), lists).model
    else:
        settings = Settings(model=name, transforms=("drop_constant", "standardize"))
        trained = FittedRanker.new(settings, lists.features)
    formats = {"onnx", *TAKES.get(name, ())}
    for format in ("onnx", "solr", "xgboost-json", "linear"):
        if format in formats:
            assert export(trained, tmp_path / format, format, data=lists) < 1e-4
        else:
            with pytest.raises(ValueError, match=REMEDY):
                export(trained, tmp_path / format, format)
    assert {path.name for path in tmp_path.iterdir()} == formats


@pytest.mark.parametrize("name", transforms.names())
def test_every_transform_is_exported(name, missing, tmp_path):
    spec = "pipeline(steps=[log1p, quantile])" if name == "pipeline" else name
    settings = Settings(model="mlp(hidden=[4])", transforms=(spec,), epochs=1, device="cpu")
    assert export(fit(settings, missing).model, tmp_path / "a.onnx", data=missing) < 1e-5


@pytest.mark.parametrize(
    "model", ["mlp(hidden=[4])", "tabm(hidden=[4], members=2, in_list=[rank])"]
)
def test_categories_and_missing_values(model, missing, tmp_path):
    """Codes of texts, some of them missing, among numbers, some of them missing."""
    random = np.random.default_rng(1)
    codes = random.integers(-1, 3, len(missing.features)).astype(np.float32)
    features = np.array(missing.features)
    features[:, 4] = np.where(codes < 0, np.nan, codes)
    features[:, 5] += 1000  # where a sample has its values, too
    names = (*(None,) * 4, ("red", "green", "blue"), *(None,) * 3)
    mixed = replace(missing, features=features, categories=names)
    trained = fit(Settings(model=model, epochs=2, device="cpu"), mixed).model
    assert export(trained, tmp_path / "a.onnx") < 1e-5
    sample, real = sample_without_data(trained)
    numbers = np.delete(sample[real], 4, axis=1)
    assert 0.05 < np.isnan(numbers).mean() < 0.15
    assert 990 < np.nanmedian(sample[real][:, 5]) < 1010
    last = np.flatnonzero(real.sum(1) > 2)
    np.testing.assert_array_equal(sample[last, 0], sample[last, real.sum(1)[last] - 1])
    run = session((tmp_path / "a.onnx").read_bytes()).run
    given, mask = padded(mixed)
    scores = run(["scores"], {"features": given, "mask": mask})[0]
    ours = trained.predict(features, mixed.offsets)
    np.testing.assert_allclose(scores[mask], ours, rtol=1e-5, atol=1e-5)
    assert run(["scores"], {"features": np.zeros((2, 0, 8), np.float32)})[0].shape == (2, 0)
    with pytest.raises(ValueError, match="columns of 0 and 1"):
        export(trained, tmp_path / "a.json", "solr")


def test_categories_have_no_threshold():
    import lightgbm

    from rankgrad.export._parsed_trees import Trees
    from rankgrad.models.trees import LightGBM
    from rankgrad.training._fitted import TreeScorer

    colors = np.arange(2000) % 5
    data = lightgbm.Dataset(colors[:, None].astype(float), colors % 2, categorical_feature=[0])
    booster = lightgbm.train({"verbosity": -1}, data, 1)
    scorer = TreeScorer(LightGBM(), booster.model_to_string().encode())
    with pytest.raises(ValueError, match="split by categories"):
        Trees.of(scorer)


def test_data_to_compare_on(lists, ranker, tmp_path):
    few = replace(lists, features=np.array(lists.features)[:, :2])
    trained = ranker("mlp(hidden=[])", ())
    for format in ("onnx", "torch", "solr", "linear"):
        with pytest.raises(ValueError, match="trained on 8 features, found the shape"):
            export(trained, tmp_path / "a", format, data=few)
    long = Dataset(np.zeros((1200, 2)), np.zeros(1200), [0, 0, 1200], ["empty", "long"])
    assert sample_of(long)[1].sum() == 1200  # scores are compared on items, not on an empty list


SLACK = np.float32(1e-6)
NEAR_SLACK = [float((SLACK.view(np.int32) + ulps).view(np.float32)) for ulps in (-2, -1, 0, 1, 2)]


@pytest.mark.parametrize(
    "limit", [0.0, 1e-35, -1e-35, 1e-7, *NEAR_SLACK, -3e-6, 0.5, -0.5, 31.0, 1e6, 3e38, -3e38]
)
def test_thresholds_of_solr(limit):
    """Solr adds 1e-6; zeros, which most features are, must not cross over."""
    limit = np.float32(limit)
    threshold = _engines._solr_threshold(limit)
    compared = threshold + SLACK
    assert compared < limit <= np.nextafter(threshold, np.float32(np.inf)) + SLACK
    for value in (np.float32(0), limit, limit + np.float32(1), limit - np.float32(1)):
        assert (value <= compared) == (value < limit)
