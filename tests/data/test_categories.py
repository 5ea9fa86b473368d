"""Categorical features: read, encoded, matched with those of training data, stored and learned."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from scipy import sparse

from rankgrad.data import Dataset, _categories, columnar, load, load_pair, load_splits, store
from rankgrad.data._dataset import FeaturesError
from rankgrad.estimator import Ranker
from rankgrad.explanations._attribution import pair_attributions
from rankgrad.export import export
from rankgrad.training import FittedRanker, Settings, fit

NAN = float("nan")
MODELS = {
    "mlp(hidden=[8])": {"learning_rate": 0.03},
    "tabm(hidden=[8], members=2, in_list=[rank])": {"learning_rate": 0.03},
    "lightgbm(min_data_in_leaf=5)": {"transforms": ()},
    "xgboost": {"transforms": ()},
}


def write(path: Path, rows: int, seed: int, further: str = "") -> Path:
    """A CSV file whose label is known by its color alone."""
    random, lines = np.random.default_rng(seed), []
    for row in range(rows):
        color = random.choice(["red", "green", "blue", "NA"])
        place = f"{random.normal():.4f},{color},{random.choice([3, 7, 20])},page-{row}"
        lines.append(f"q{row // 8},{int(color == 'red')},{place}")
    path.write_text("qid,label,x,color,shop,url\n" + "\n".join(lines) + "\n" + further)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    place = tmp_path_factory.mktemp("categories")
    train = write(place / "a.csv", 240, 0)
    vali = write(place / "b.csv", 80, 1, "new,0,1,violet,5,page-1\n")
    return load_pair(train, vali, categorical=["shop"])


def test_texts_and_named_numbers_are_categories(pair: tuple[Dataset, Dataset]) -> None:
    train, vali = pair
    assert train.feature_names == ("x", "color", "shop")
    assert train.categories == (None, ("blue", "green", "red"), ("20", "3", "7"))
    assert any("left out" in note and note.endswith(": url") for note in train.notes)
    red = train.labels == 1
    assert set(train.features[red, 1]) == {2.0}
    assert np.isnan(train.features[~red, 1]).any()  # NA is no category
    assert vali.categories == train.categories
    np.testing.assert_array_equal(vali.features[-1], [1, NAN, NAN])
    assert "2 values are categories that are not in the training data" in vali.notes


def test_written_and_read_again(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    train, vali = pair
    store.write_splits({"train": train, "vali": vali}, tmp_path / "stores")
    again = load_splits(tmp_path / "stores")
    assert again["train"].checksum() == train.checksum()
    assert again["vali"].categories == train.categories
    assert again["vali"].select([0]).categories == train.categories
    parquet = columnar.write(vali, tmp_path / "vali.parquet")
    read = load(parquet, feature_names=train.feature_names, categories=train.categories)
    np.testing.assert_array_equal(read.features, vali.features)
    shuffled = replace(train, categories=(None, ("red", "blue", "green"), ("20", "3", "7")))
    assert shuffled.checksum() != train.checksum()
    with pytest.raises(FeaturesError, match="color is categorical here and numeric in"):
        load(parquet, feature_names=train.feature_names)


def test_missing_values_of_a_store(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    train, _ = pair
    folder = store.write(train, tmp_path / "store")
    read = load(folder, missing=["Red", "7"])
    assert read.categories == (None, ("blue", "green"), ("20", "3"))
    assert np.isnan(read.features[train.features[:, 1] == 2, 1]).all()
    assert np.isnan(read.features[train.features[:, 2] == 2, 2]).all()
    assert read.notes == train.notes
    with pytest.raises(ValueError, match=r"a list of values, such as \['Red'\]"):
        load(folder, missing="Red")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([7, 3], ("3", "7")),
        ([7.0, 3.0, NAN], ("3", "7")),
        ([-0.0, 0.5, 1e-7], ("0", "0.5", "1e-07")),
        (np.array([0.1, 7], np.float32), ("0.1", "7")),
        ([Decimal("7.00"), Decimal("7.50")], ("7", "7.5")),
        ([True, False], ("false", "true")),
        (["7.0", "007", "1.10", "red"], ("007", "1.10", "7", "red")),
        ([None, None], ()),
    ],
)
def test_the_same_values_are_the_same_categories_in_every_file(values, names, tmp_path) -> None:
    frame = pd.DataFrame({"qid": "q", "label": 1, "x": 1.0, "c": values})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_feather(tmp_path / "a.arrow")
    for name in ("a.csv", "a.parquet", "a.arrow"):
        found = load(tmp_path / name, categorical=["c"]).categories
        if names != ("7", "7.5") or name != "a.csv":  # a text file has 7.50 and not 7.5
            assert found == (None, names), name


def test_codes_of_numbers_by_the_names_of_an_earlier_version() -> None:
    new = Dataset([[0.0], [1.0]], [0, 1], [0, 2], ["q"], categories=[("3", "7")])
    matched = _categories.match(new, (("0.5", "7.0", "3.0"),))
    assert matched.features[:, 0].tolist() == [2.0, 1.0]


def test_letor_features_are_named_by_id(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1 qid:1 1:0.5 2:30\n0 qid:1 1:0.1 2:NA\n0 qid:1 2:4\n")
    data = load(path, categorical=["2"])
    assert load(path, categorical=[2]).checksum() == data.checksum()
    assert data.categories == (None, ("4", "30"))
    np.testing.assert_array_equal(data.features[:, 1], [1, NAN, 0])
    path.write_text("1 qid:1 1:0.5 2:4\n0 qid:1 2:5\n")
    other = load(path, categories=data.categories)
    np.testing.assert_array_equal(other.features[:, 1], [0, NAN])
    with pytest.raises(FeaturesError, match="no feature '3'"):
        _categories.encode(data, ["3"])


@pytest.mark.parametrize("model", MODELS)
def test_learned_saved_and_exported(
    pair: tuple[Dataset, Dataset], model: str, tmp_path: Path
) -> None:
    train, vali = pair
    metric = "ndcg(empty=skip)"
    settings = Settings(model=model, metric=metric, epochs=15, device="cpu", **MODELS[model])
    done = fit(settings, train, vali)
    assert done.best_value is not None and done.best_value > 0.99
    scores = done.model.predict(vali.features, vali.offsets)
    done.model.save(tmp_path / "ranker")
    again = FittedRanker.load(tmp_path / "ranker")
    assert again.categories == train.categories
    assert np.array_equal(again.predict(vali.features, vali.offsets), scores)
    with pytest.raises(ValueError, match="categories of the validation data"):
        fit(settings, train, replace(vali, categories=None))
    if "tabm" in model:
        features = np.array(vali.features[:8])
        found = pair_attributions(done.model, features, [(0, 1)])
        own = done.model.predict(features)
        assert found.values.sum() == pytest.approx(own[0] - own[1], abs=1e-3)
    if "(hidden" in model:
        export(done.model, tmp_path / "a.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
        lists = [vali.features[a:b] for a, b in zip(vali.offsets, vali.offsets[1:], strict=False)]
        found = [session.run(["scores"], {"features": one[None]})[0][0] for one in lists]
        np.testing.assert_allclose(np.concatenate(found), scores, atol=1e-5)


def test_transforms_before_trees_are_refused(pair: tuple[Dataset, Dataset]) -> None:
    with pytest.raises(ValueError, match="lightgbm takes categorical features as they are"):
        fit(Settings(model="lightgbm", device="cpu"), *pair)


def test_pandas_categories(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    color = pd.Series(random.choice(["red", "green", "blue"], 240), dtype="category")
    X = pd.DataFrame({"x": random.normal(size=240), "color": color})
    y, qid = (color == "red").astype(int), np.repeat(np.arange(30), 8)
    vali = X.iloc[:80].assign(color=X.color[:80].astype(str))
    ranker = Ranker(model="mlp(hidden=[8])", metric="ndcg(empty=skip)", device="cpu")
    ranker.set_params(epochs=15, learning_rate=0.03)
    ranker.fit(X, y, qid=qid, eval_set=[(vali, y[:80])], eval_qid=[qid[:80]])
    assert ranker.score(X, y, qid=qid) > 0.99
    ranker.save(tmp_path / "ranker")
    other = pd.DataFrame({"x": [0.0, 0.0, 0.0], "color": ["red", "violet", None]})
    scores = Ranker.load(tmp_path / "ranker").predict(other)
    assert scores[0] > scores[1] == scores[2]
    array = np.stack([X.x, color.cat.codes, np.where(X.x > 1, -9, 0)], 1)
    ranker = Ranker(model="mlp(hidden=[8])", device="cpu", epochs=15, learning_rate=0.03)
    ranker.set_params(categorical=[1], missing=["-9"]).fit(array, y, qid=qid)
    assert ranker.model_.categories == (None, ("0", "1", "2"), None)
    assert ranker.model_.transform.numbers.sources.tolist()[-1] == 1  # the indicator of column 2
    assert (np.diff(ranker.predict(array[:9, :])[np.argsort(y[:9], kind="stable")]) >= 0).any()
    unknown, absent = array[:2].copy(), array[:2].copy()
    unknown[:, 1], absent[:, 1] = 7, np.nan
    assert np.array_equal(ranker.predict(unknown), ranker.predict(absent))
    scores = ranker.predict(array[:8])
    for same in (sparse.csr_matrix(array), array.tolist(), array.astype(object)):
        assert np.array_equal(ranker.predict(same[:8]), scores)
        _, categories = _categories.encode_frame(same, categorical=["1"])
        assert categories == ranker.model_.categories


def test_missing_values_of_pandas_are_no_category() -> None:
    frame = pd.DataFrame({"color": pd.array(["nan", None, "red"], dtype="string")})
    encoded, categories = _categories.encode_frame(frame, categorical=["color"])
    assert categories == (("nan", "red"),)
    np.testing.assert_array_equal(encoded.color, [0, NAN, 1])


def test_categories_where_training_had_numbers_are_no_codes() -> None:
    y, qid = [0, 1] * 20, [1] * 20 + [2] * 20
    X = pd.DataFrame({"color": np.random.default_rng(0).normal(size=40)})
    ranker = Ranker(model="mlp(hidden=[])", device="cpu", epochs=1).fit(X, y, qid=qid)
    texts = pd.DataFrame({"color": pd.Series(["red", "blue"], dtype="category")})
    with pytest.raises(ValueError, match="could not convert string to float"):
        ranker.predict(texts)
    numbers = pd.DataFrame({"color": pd.Series([0.5, -0.5], dtype="category")})
    assert np.array_equal(ranker.predict(numbers), ranker.predict(numbers.astype(float)))
