"""Which features of the training data are absent, and where that is no surprise."""

from dataclasses import replace

import numpy as np
import pytest

from rankgrad.data import Dataset
from rankgrad.training import FittedRanker, Settings, fit
from rankgrad.training._absent_features import describe_absent

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


@pytest.mark.parametrize(
    "transforms",
    [
        Settings().transforms,
        ("quantile",),
        ("log1p", "standardize"),
        ("drop_constant", "clip"),
    ],
)
def test_half_of_the_features_that_varied(transforms):
    ranker = FittedRanker.new(Settings(transforms=transforms), CONSTANT, zero_based=False)
    assert describe_absent(ranker, lists_of(CONSTANT)) is None
    assert describe_absent(ranker, lists_of(without(CONSTANT, range(15)))) is None  # 3 of 8
    absent = describe_absent(ranker, lists_of(without(CONSTANT, range(16))))
    assert absent.startswith("no item has 4 of the 8 features that the ranker learned from")
    assert "(feature ids 13, 14, 15, 16)" in absent
    assert describe_absent(ranker, lists_of(CONSTANT * 0)).count("17 and 3 more") == 1
    missing = without(CONSTANT, range(16))
    missing[-1] = np.nan  # named in the file
    assert describe_absent(ranker, lists_of(missing)) is None


def test_no_file_and_unknown_features_are_no_surprise():
    ranker = FittedRanker.new(Settings(), CONSTANT)
    zeros = lists_of(CONSTANT * 0)
    assert describe_absent(ranker, zeros) is not None
    assert describe_absent(ranker, replace(zeros, zero_based=None)) is None
    assert describe_absent(ranker, zeros.select([])) is None
    # Nothing says what was constant in training.
    unknown = FittedRanker.new(Settings(transforms=("clip",)), CONSTANT)
    assert describe_absent(unknown, zeros) is None


def test_few_lists_may_lack_sparse_features():
    sparse = DENSE * (RNG.random(DENSE.shape) < 0.3)
    ranker = FittedRanker.new(Settings(), sparse)
    zeros = lists_of(sparse * 0)
    assert describe_absent(ranker, zeros.select([0, 1])) is None
    assert describe_absent(ranker, zeros) is not None  # ten lists
    dense = FittedRanker.new(Settings(), DENSE)
    assert describe_absent(dense, zeros.select([0])) is not None


def test_categorical_features_do_not_count():
    codes = np.pad(DENSE, ((0, 0), (1, 0)))
    codes[::2, 0] = 1
    categories = (("a", "b"), *[None] * 8)
    ranker = FittedRanker.new(Settings(), codes, categories=categories)
    assert "8 of the 8" in describe_absent(ranker, lists_of(codes * 0, categories=categories))


@pytest.mark.parametrize("kind", ["lightgbm(min_data_in_leaf=5)", "xgboost(min_child_weight=0.1)"])
def test_trees_know_the_features_they_split_by(kind):
    pytest.importorskip(kind.partition("(")[0])
    train = lists_of(CONSTANT)
    train = replace(train, labels=np.digitize(DENSE[:, 0], [0.4, 0.8]))
    settings = Settings(loss="mse", model=kind, transforms=(), epochs=3)
    ranker = fit(settings, train).model
    assert describe_absent(ranker, train) is None
    assert "feature ids 13" in describe_absent(ranker, lists_of(CONSTANT * 0))
