"""The libraries' own objectives and ours on real data."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from rankgrad.data import load_splits
from rankgrad.integrations import lightgbm as for_lightgbm
from rankgrad.integrations import xgboost as for_xgboost
from rankgrad.metrics import evaluate

ARCHIVE = Path(__file__).resolve().parents[3] / "shared" / "data" / "MQ2008.tar.xz"
ROUNDS = 25


def with_lightgbm(train, test, built_in):
    lightgbm = pytest.importorskip("lightgbm")
    ours = for_lightgbm.objective("lambdarank@30(norm=true)")
    options = {"num_leaves": 15, "min_data_in_leaf": 50, "verbosity": -1, "num_threads": 1}
    options["objective"] = "lambdarank" if built_in else ours
    lists = lightgbm.Dataset(train.features, train.labels, group=train.lengths)
    return lightgbm.train(options, lists, ROUNDS).predict(test.features)


def with_xgboost(train, test, built_in):
    xgboost = pytest.importorskip("xgboost")
    ours = for_xgboost.objective("lambdarank@32(norm=true)", hessian_scale=2)
    options = {"max_depth": 4, "tree_method": "hist", "nthread": 1}
    if built_in:
        options["objective"] = "rank:ndcg"
    lists = xgboost.DMatrix(train.features, train.labels, nthread=1)
    lists.set_group(train.lengths)
    booster = xgboost.train(options, lists, ROUNDS, obj=None if built_in else ours)
    return booster.predict(xgboost.DMatrix(test.features, nthread=1))


@pytest.mark.slow
@pytest.mark.skipif(not ARCHIVE.exists(), reason="MQ2008 is not in ../shared/data")
def test_normalized_lambdarank_is_as_good_as_the_built_in_objective(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    found = {with_lightgbm: [], with_xgboost: []}
    for fold in range(1, 6):
        data = load_splits(tmp_path / "MQ2008", fold)
        test = data["test"]
        for predict, values in found.items():
            for built_in in (True, False):
                scores = predict(data["train"], test, built_in)
                value = evaluate(scores, test.labels, offsets=test.offsets, metrics="ndcg@10")
                values.append(value.mean["ndcg@10"])
    for values in found.values():
        theirs, ours = np.reshape(values, (5, 2)).mean(0)
        assert ours == pytest.approx(theirs, abs=0.003)
        assert theirs > 0.48
