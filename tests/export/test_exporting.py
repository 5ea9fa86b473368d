"""Exported rankers compute the scores of the ranker they come from, or are not written."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from rankgrad.export import engines, export, exporting
from rankgrad.export.names import feature_names
from rankgrad.export.readers import read_linear, read_solr, read_xgboost_json
from rankgrad.training import Settings, fit

DEFAULT = Settings()
NETWORKS = {
    "default": (DEFAULT.model, DEFAULT.transforms),
    "mlp": (
        "mlp(hidden=[6, 4], batch_norm=true, input_norm=true)",
        ["drop_constant", "log1p", "quantile"],
    ),
    "after": ("mlp(hidden=[6], batch_norm=after, activation=gelu, output=tanh)", ["clip(limit=2)"]),
    "silu": ("mlp(hidden=[6], activation=silu, dropout=0.1)", ["quantile(quantiles=7)"]),
    "adapters": ("tabm(hidden=[6, 5], members=3, activation=leaky_relu)", ["standardize"]),
    "in_list": ("tabm(hidden=[], members=2, in_list=[score, rank])", ["clip"]),
    "attention": ("context_aware(fc=[8], heads=2, ff=8)", ["standardize"]),
    "fixed": ("context_aware(fc=[7], ff=8, positional=fixed, output=sigmoid)", ["standardize"]),
    "learned": ("context_aware(fc=[8], ff=8, positional=learned, positions=3)", ["standardize"]),
    "lightgbm": ("lightgbm(num_leaves=5)", []),
    "xgboost": ("xgboost(max_leaves=5)", ["drop_constant"]),
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
def test_missing_values_are_scored_alike(name, format, lists, tmp_path):
    if (name, format) == ("lightgbm", "pt2"):
        pytest.skip("trees have no program")
    features = np.array(lists.features)
    features[np.random.default_rng(0).random(features.shape) < 0.3] = np.nan
    missing = replace(lists, features=features)
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
    ours = trained.predict(features, lists.offsets)
    np.testing.assert_allclose(scores[mask], ours, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("name", ["default", "learned"])
def test_a_program_computes_our_scores(name, ranker, lists, tmp_path):
    trained = ranker(*NETWORKS[name])
    export(trained, tmp_path / "a.pt2", data=lists)
    module = torch.export.load(tmp_path / "a.pt2").module()
    features, mask = map(torch.from_numpy, padded(lists))
    scores = module(features, mask)
    ours = trained.predict(lists.features, lists.offsets)
    np.testing.assert_allclose(scores[mask].detach(), ours, rtol=1e-5, atol=1e-5)


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
    columns = {feature: at for at, feature in enumerate(feature_names(trained))}
    read = READERS[format](json.loads((tmp_path / "a.json").read_text()), columns)
    scores, ours = read(lists.features), trained.predict(lists.features)
    if format == "linear":  # which has no constant term
        scores, ours = scores - scores.mean(), ours - ours.mean()
    np.testing.assert_allclose(scores, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["lightgbm(num_leaves=5)", "xgboost(max_leaves=5)"])
def test_missing_values_go_the_way_of_the_library(model, ranker, lists, tmp_path):
    trained = ranker(model)
    features = np.array(lists.features)
    features[np.random.default_rng(0).random(features.shape) < 0.3] = np.nan
    theirs = trained.network(torch.from_numpy(features)).numpy()
    export(trained, tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    found = session.run(["scores"], {"features": features[None]})[0][0]
    np.testing.assert_allclose(found, theirs, atol=1e-5)
    export(trained, tmp_path / "a.json", "xgboost-json")
    columns = {feature: at for at, feature in enumerate(feature_names(trained))}
    read = read_xgboost_json(json.loads((tmp_path / "a.json").read_text()), columns)
    np.testing.assert_allclose(read(features), theirs, atol=1e-5)


def test_scores_that_lucene_takes(ranker, lists, tmp_path):
    trained = ranker("lightgbm(num_leaves=5)")
    export(trained, tmp_path / "a.json", "xgboost-json", non_negative=True)
    columns = {feature: at for at, feature in enumerate(feature_names(trained))}
    scores = read_xgboost_json(json.loads((tmp_path / "a.json").read_text()), columns)(
        lists.features
    )
    assert scores.min() >= 0
    np.testing.assert_allclose(np.ptp(scores - trained.predict(lists.features)), 0, atol=1e-5)


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
    right = exporting.to_onnx(trained)
    with torch.no_grad():
        trained.network.layers[0].bias += 1e-3
        monkeypatch.setattr(exporting, "to_onnx", lambda ranker: right)
        (tmp_path / "a.onnx").write_bytes(b"before")
        with pytest.raises(ValueError, match="so nothing was written"):
            export(trained, tmp_path / "a.onnx", overwrite=True)
        trained.network.layers[0].bias -= 1e-3
    assert (tmp_path / "a.onnx").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]


def test_categories_have_no_threshold():
    import lightgbm

    from rankgrad.export.trees import Trees
    from rankgrad.models.trees import LightGBM
    from rankgrad.training.fitted import TreeScorer

    colors = np.arange(2000) % 5
    data = lightgbm.Dataset(colors[:, None].astype(float), colors % 2, categorical_feature=[0])
    booster = lightgbm.train({"verbosity": -1}, data, 1)
    scorer = TreeScorer(LightGBM(), booster.model_to_string().encode())
    with pytest.raises(ValueError, match="split by categories"):
        Trees.of(scorer)


@pytest.mark.parametrize("limit", [0.0, 1e-35, -1e-35, 1e-7, -3e-6, 0.5, -0.5, 31.0, 1e6])
def test_thresholds_of_solr(limit):
    """Solr adds 1e-6; zeros, which most features are, must not cross over."""
    limit = np.float32(limit)
    compared = engines._solr_threshold(limit) + np.float32(1e-6)
    assert compared < limit
    for value in (np.float32(0), limit, limit + np.float32(1), limit - np.float32(1)):
        assert (value <= compared) == (value < limit)
