"""Which features of the training data are absent, and where that is no surprise."""

from dataclasses import replace

import numpy as np
import pytest
from rewritten import rewrite

from rankgrad.data import Dataset
from rankgrad.training import FittedRanker, Settings, _absent_features, fit
from rankgrad.training._absent_features import describe_absent, feature_presence
from rankgrad.training._fitted import describe

RNG = np.random.default_rng(0)
DENSE = RNG.random((60, 8), dtype=np.float32) + 0.1
CONSTANT = np.pad(DENSE, ((0, 0), (12, 0)))  # most features are 0 in training


def lists_of(features, size=6, **options):
    offsets = np.arange(0, len(features) + 1, size)
    labels = np.arange(len(features)) % 3
    qids = np.arange(len(offsets) - 1).astype(str)
    return Dataset(features, labels, offsets, qids, **{"zero_based": False, **options})


def without(features, columns):
    features = features.copy()
    features[:, columns] = 0
    return features


def trained(features, **options):
    """A ranker that is not trained, of lists with these features."""
    data = lists_of(features, **options)
    settings = Settings(transforms=("impute", "clip"))
    return FittedRanker.new(settings, data.features, data.offsets, **describe(data))


def test_half_of_the_features_of_the_training_data():
    ranker = trained(CONSTANT)
    assert describe_absent(ranker, lists_of(CONSTANT)) is None
    assert describe_absent(ranker, lists_of(without(CONSTANT, range(15)))) is None  # 3 of 8
    assert describe_absent(ranker, lists_of(without(CONSTANT, range(16)))) == (
        "4 of the 8 features that the ranker learned from are in no item (13, 14, 15, 16); they "
        "count as 0: check that these are the right data and that feature ids are those of the "
        "training data"
    )
    assert describe_absent(ranker, lists_of(CONSTANT * 0)).count("17 and 3 more") == 1
    missing = without(CONSTANT, range(16))
    missing[-1] = np.nan  # named in the file
    assert describe_absent(ranker, lists_of(missing)) is None


def test_no_file_and_unknown_features_are_no_surprise():
    ranker, zeros = trained(CONSTANT), lists_of(CONSTANT * 0)
    assert describe_absent(ranker, zeros) is not None
    assert describe_absent(ranker, replace(zeros, zero_based=None)) is None
    assert describe_absent(ranker, zeros.select([])) is None
    assert describe_absent(trained(CONSTANT * 0), zeros) is None
    ranker.feature_presence = None  # as of rankers of earlier versions
    assert describe_absent(ranker, zeros) is None


def test_few_lists_may_lack_sparse_features():
    sparse = np.zeros_like(DENSE)
    sparse[::12] = 1  # in every other list
    ranker, zeros = trained(sparse), lists_of(sparse * 0)
    four = zeros.select(range(4))
    assert describe_absent(ranker, four) is None  # a chance of 1 in 16
    with_empty = replace(four, offsets=[0, 0, *four.offsets], qids=list("abcdef"))
    assert describe_absent(ranker, with_empty) is None
    assert describe_absent(ranker, zeros.select(range(5))) is not None
    assert describe_absent(trained(DENSE), zeros.select([0])) is not None


@pytest.mark.parametrize("height", [1, 5, 7, 1000])
def test_the_share_of_lists_that_have_a_feature(monkeypatch, height):
    monkeypatch.setattr(_absent_features, "block_height", lambda columns: height)
    features = np.zeros((60, 4), np.float32)
    features[[2, 4, 29], 0] = -1
    features[35:40, 1] = 2
    features[3, 2] = np.nan
    features[:, 3] = 5  # the same everywhere
    data = replace(lists_of(features), offsets=[0, 0, 4, 5, 5, 30, 60, 60], qids=list("abcdefg"))
    assert feature_presence(data) == [0.75, 0.25, 0, 0]
    assert feature_presence(data.select([])) == [0, 0, 0, 0]


def test_categorical_features_do_not_count():
    codes = np.pad(DENSE, ((0, 0), (1, 0)))
    codes[::2, 0] = 1
    categories = (("a", "b"), *[None] * 8)
    ranker = trained(codes, categories=categories)
    assert "8 of the 8" in describe_absent(ranker, lists_of(codes * 0, categories=categories))


@pytest.mark.parametrize("kind", ["lightgbm(min_data_in_leaf=5)", "xgboost(min_child_weight=0.1)"])
def test_trees_know_how_rare_features_were(kind, tmp_path):
    pytest.importorskip(kind.partition("(")[0])
    sparse = CONSTANT.copy()
    sparse[:48] = 0  # in 2 of 10 lists
    train = replace(lists_of(sparse), labels=np.arange(60) // 48)
    settings = Settings(loss="mse", model=kind, transforms=(), epochs=2)
    fit(settings, train).model.save(tmp_path / "model")
    ranker = FittedRanker.load(tmp_path / "model")
    assert describe_absent(ranker, train) is None
    assert describe_absent(ranker, train.select(range(8))) is None
    assert "(13, 14" in describe_absent(ranker, lists_of(np.zeros((90, 20), np.float32)))


def test_presence_of_a_wrong_length_is_refused(tmp_path):
    trained(DENSE).save(tmp_path)
    rewrite(tmp_path / "model.json", feature_presence=[0.5])
    with pytest.raises(ValueError, match=r"model.json is damaged \('feature_presence' has a wrong"):
        FittedRanker.load(tmp_path)
