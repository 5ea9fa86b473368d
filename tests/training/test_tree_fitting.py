"""Boosted trees in the place of a network."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from rankgrad import Ranker
from rankgrad.data import synthetic
from rankgrad.models import models
from rankgrad.training import FittedRanker, Settings, fit
from rankgrad.training.loggers import TensorBoard

TRAIN, VALI = (synthetic.make(20, features=16, split=split) for split in ("train", "vali"))
FAST = {"epochs": 5, "metric": "ndcg@5", "metrics": ("rr",)}


@pytest.mark.parametrize("model", ["lightgbm(min_data_in_leaf=5)", "xgboost(min_child_weight=0.1)"])
def test_transforms_weights_and_progress(tmp_path, model):
    pytest.importorskip(models.get(model).name)
    epochs_seen = []
    weights = np.linspace(0.5, 2, TRAIN.n_items, dtype=np.float32)
    weighted = replace(TRAIN, weights=weights)
    settings = Settings(model=model, loss="lambdaloss@5", **FAST)  # the transforms of networks
    done = fit(settings, weighted, VALI, folder=tmp_path / "run", on_epoch=epochs_seen.append)
    assert epochs_seen == done.history
    assert sorted(epochs_seen[0]) == ["epoch", "ndcg@5", "rr", "seconds"]
    scores = done.model.predict(VALI.features, VALI.offsets)
    loaded = FittedRanker.load(tmp_path / "run" / "best")
    assert np.array_equal(loaded.predict(VALI.features, VALI.offsets), scores)
    assert len(np.unique(scores)) > 2
    plain = fit(settings, TRAIN, VALI).model.predict(VALI.features)
    assert not np.array_equal(plain, scores)


def test_a_training_that_fails_leaves_nothing(tmp_path):
    pytest.importorskip("lightgbm")

    def broken(line):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fit(
            Settings(model="lightgbm", **FAST),
            TRAIN,
            VALI,
            folder=tmp_path / "run",
            on_epoch=broken,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", [False, True])
def test_loggers_are_started_and_finished(tmp_path, setting):
    pytest.importorskip("lightgbm")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    settings = Settings(model="lightgbm", tensorboard=setting, **FAST)
    done = fit(settings, TRAIN, VALI, folder=run, on_epoch=() if setting else [TensorBoard()])
    log = EventAccumulator(str(run)).Reload()
    logged = [(event.step, event.value) for event in log.Scalars("val/ndcg@5")]
    assert logged == [(line["epoch"], pytest.approx(line["ndcg@5"])) for line in done.history]


def test_an_interrupted_training_is_resumed(tmp_path):
    pytest.importorskip("lightgbm")
    settings = Settings(model="lightgbm", **FAST)

    def interrupt(line):
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(settings, TRAIN, VALI, folder=run, on_epoch=interrupt)
    resumed = fit(settings, TRAIN, VALI, folder=run, resume=True)
    fit(settings, TRAIN, VALI, folder=tmp_path / "whole")
    assert [line["epoch"] for line in resumed.history] == [1, 2, 3, 4, 5]
    name = "best/trees.txt"
    assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_ranker_of_trees_is_an_estimator_like_any_other(tmp_path):
    pytest.importorskip("lightgbm")
    qid = np.repeat(TRAIN.qids, TRAIN.lengths)
    ranker = Ranker(loss="neural_ndcg@5", model="lightgbm", epochs=5)
    ranker.fit(TRAIN.features, TRAIN.labels, qid=qid)
    scores = ranker.predict(TRAIN.features)
    ranker.save(tmp_path / "saved")
    for other in (Ranker.load(tmp_path / "saved"), pickle.loads(pickle.dumps(ranker))):
        assert np.array_equal(other.predict(TRAIN.features), scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.5}, r"learning_rate=0.5 is .* write lightgbm\(learning_rate=0.5\)"),
        ({"optimizer": "sgd"}, "optimizer=sgd is a setting of networks: leave it out"),
        ({"clip": 1, "list_size": 9}, "list_size=9 is .*; clip=1.0 is a setting of networks"),
    ],
)
def test_settings_of_networks_are_not_ignored(tmp_path, options, message):
    settings = Settings(model="lightgbm(num_leaves=5)", **options)
    with pytest.raises(ValueError, match=message):
        fit(settings, TRAIN, VALI, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trees_are_no_network():
    with pytest.raises(TypeError, match="trees are grown by"):
        models.get("lightgbm").build(5)
    with pytest.raises(ValueError, match="num_leaves must be a whole number of at least 2"):
        models.get("lightgbm(num_leaves=1)")
