"""Boosted trees in the place of a network."""

import json
import pickle
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from rankgrad import Ranker
from rankgrad.boosting.boosters import KINDS, BoostingConfig, boost
from rankgrad.data import Dataset, synthetic
from rankgrad.metrics import evaluate
from rankgrad.models import models
from rankgrad.training import FittedRanker, RunFolder, Settings, _tree_fitting, fit
from rankgrad.training._fitting import check_run
from rankgrad.training._loggers import TensorBoard
from rankgrad.training.run import Job

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


@pytest.mark.parametrize("model", ["lightgbm(min_data_in_leaf=5)", "xgboost(min_child_weight=0.1)"])
def test_other_data_are_evaluated_each_round_and_change_no_tree(tmp_path, model):
    pytest.importorskip(models.get(model).name)
    settings, run = Settings(model=model, **FAST), tmp_path / "run"
    test = synthetic.make(10, features=16, split="test")
    others = {"again": VALI, "test": test}
    fit(Settings(**settings.model_dump() | {"epochs": 2}), TRAIN, VALI, others=others, folder=run)
    done = fit(settings, TRAIN, VALI, others=others, folder=run, resume=True)
    assert [line["again ndcg@5"] for line in done.history] == [
        line["ndcg@5"] for line in done.history
    ]
    scores = done.model.predict(test.features, test.offsets)
    means = evaluate(scores, test.labels, offsets=test.offsets, metrics=["ndcg@5", "rr"]).mean
    best = done.history[done.best_epoch - 1]
    assert means == pytest.approx({name: best[f"test {name}"] for name in means})
    assert done.model.network.saved == fit(settings, TRAIN, VALI).model.network.saved
    last = fit(settings, TRAIN, others={"test": test}).history[-1]  # without validation lists
    assert sorted(last) == ["epoch", "seconds", "test ndcg@5", "test rr"]


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


RESUMED = [
    ("lightgbm(min_data_in_leaf=5)", "lambdaloss@5"),
    ("lightgbm(min_data_in_leaf=5)", "gumbel_neural_ndcg@5"),
    ("lightgbm", "neural_ndcg(temperature=exponential(start=5, end=0.5))"),
    ("xgboost(min_child_weight=0.1)", "lambdaloss@5"),
    ("xgboost(min_child_weight=0.1)", "gumbel_neural_ndcg@5"),
    ("lightgbm(boosting=dart, drop_rate=0.5, min_data_in_leaf=5)", None),
    ("xgboost(booster=dart, rate_drop=0.5)", None),
    ("lightgbm(bagging_fraction=0.5)", None),
]


@pytest.mark.parametrize(("model", "loss"), RESUMED)
def test_ctrl_c_saves_and_the_rest_is_the_same(tmp_path, model, loss):
    pytest.importorskip(models.get(model).name)
    settings = Settings(model=model, loss=loss or "softmax", **FAST)

    def interrupt(line):
        if line["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)

    first = fit(settings, TRAIN, VALI, folder=tmp_path / "run", on_epoch=interrupt)
    assert (first.stopped, len(first.history)) == ("interrupted", 2)
    _assert_best(first, FittedRanker.load(tmp_path / "run" / "best"))
    rest = fit(settings, TRAIN, VALI, folder=tmp_path / "run", resume=True)
    assert rest.stopped == "epochs"
    assert [line["epoch"] for line in rest.history] == [1, 2, 3, 4, 5]
    assert RunFolder.open(tmp_path / "run").history == rest.history
    _assert_best(rest, FittedRanker.load(tmp_path / "run" / "best"))
    if loss is None:  # with draws of the library, which keep no random state, trees differ
        return
    whole = fit(settings, TRAIN, VALI)
    for a, b in zip(whole.history, rest.history, strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    assert whole.model.network.saved == rest.model.network.saved
    again = fit(settings, TRAIN, VALI, folder=tmp_path / "run", resume=True)  # nothing is left
    assert (again.stopped, again.history) == ("epochs", rest.history)
    assert again.model.network.saved == rest.model.network.saved


def test_generators_of_a_loss_on_a_gpu_are_those_that_are_resumed(monkeypatch):
    """Which ones are asked for; without a GPU, there are none to draw from."""
    job = Job(Settings(model="xgboost(device=cuda)"), TRAIN, VALI, {}, None, False, None, (), True)
    trainer = _tree_fitting._TreeTrainer(job, None, print, None, _tree_fitting._Checkpoint())
    devices = []
    monkeypatch.setattr(_tree_fitting, "generators_of", lambda _, device: devices.append(device))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    trainer._generators()
    assert devices == [torch.device("cuda", 1)]


def _assert_best(done, ranker):
    """The saved trees have the value of the best round, also where later ones change weights."""
    scores = ranker.predict(VALI.features, VALI.offsets)
    found = evaluate(scores, VALI.labels, offsets=VALI.offsets, metrics="ndcg@5").mean["ndcg@5"]
    values = [line["ndcg@5"] for line in done.history]
    assert found == pytest.approx(max(values)) == pytest.approx(done.best_value)


@pytest.mark.parametrize(("model", "loss"), [at for at in RESUMED if "dart" in at[0]])
def test_dart_without_validation_copies_no_trees(model, loss):
    """The last round is the best one, so no earlier weights are needed."""
    pytest.importorskip(models.get(model).name)
    config = BoostingConfig(models.get(model).name, options=models.get(model).options(), rounds=3)
    copies = []
    boost(TRAIN, None, config, lambda done: copies.append(done.state().best))
    assert copies == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["mse", None])
@pytest.mark.parametrize("value", [1.0, np.nan])
def test_constant_features_are_an_error(kind, loss, value):
    pytest.importorskip(kind)
    constant = replace(TRAIN, features=np.full_like(TRAIN.features, value))
    with pytest.raises(ValueError, match="all 16 features are constant in the training data"):
        boost(constant, VALI, BoostingConfig(kind, loss, rounds=2))


def test_too_few_items_for_a_split_are_an_error():
    pytest.importorskip("lightgbm")
    few = TRAIN.select(np.arange(1))
    with pytest.raises(ValueError, match=r"min_data_in_leaf of the \d+ training items"):
        boost(few, None, BoostingConfig("lightgbm", "mse", options={"min_data_in_leaf": 99}))


def test_trees_are_saved_now_and_then_and_a_kill_costs_the_rest(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr("rankgrad.training._tree_fitting._SAVE_EVERY", 0.0)
    settings = Settings(model="lightgbm", device="cpu", **FAST)

    def die(line):
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(settings, TRAIN, VALI, folder=run, on_epoch=die)
    assert (run / "last" / "trees.txt").read_text().count("Tree=") == 2
    seen = []
    done = fit(settings, TRAIN, VALI, folder=run, resume=True, on_epoch=seen.append)
    assert [line["epoch"] for line in seen] == [3, 4, 5]
    assert done.model.network.saved == fit(settings, TRAIN, VALI).model.network.saved
    longer = Settings(**{**settings.model_dump(), "epochs": 7})
    assert len(fit(longer, TRAIN, VALI, folder=run, resume=True).history) == 7
    earlier = shutil.copytree(run, tmp_path / "earlier")  # versions that kept the best trees alone
    shutil.rmtree(earlier / "last")
    done = fit(longer, TRAIN, VALI, folder=earlier, resume=True)
    assert (done.stopped, len(done.history)) == ("epochs", 7)
    more = Settings(**{**settings.model_dump(), "epochs": 8})
    with pytest.raises(ValueError, match="is finished, and more trees need a new run"):
        fit(more, TRAIN, VALI, folder=earlier, resume=True)
    state = run / "last" / "state.json"
    state.write_text(state.read_text().replace("trees", "twigs", 1))
    with pytest.raises(ValueError, match=r"state\.json"):
        fit(longer, TRAIN, VALI, folder=run, resume=True)


def test_an_interrupt_before_the_first_tree_is_saved_starts_anew(tmp_path):
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


@pytest.mark.parametrize("write", ["save_best", "_save"])
def test_a_kill_as_the_trees_are_saved(tmp_path, monkeypatch, write):
    pytest.importorskip("lightgbm")
    settings, run = Settings(model="lightgbm", **FAST), tmp_path / "run"

    def interrupt(line):
        if line["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)

    def die(*arguments):
        raise SystemExit

    owner = RunFolder if write == "save_best" else _tree_fitting._TreeTrainer
    with monkeypatch.context() as patched:
        patched.setattr(owner, write, die)
        with pytest.raises(SystemExit):
            fit(settings, TRAIN, VALI, folder=run, on_epoch=interrupt)
    resumed = fit(settings, TRAIN, VALI, folder=run, resume=True)
    assert (resumed.stopped, len(resumed.history)) == ("epochs", 5)
    whole = fit(settings, TRAIN, VALI).model.network.saved
    assert (run / "best" / "trees.txt").read_bytes() == whole


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_with_fewer_rounds_grows_no_tree(kind):
    pytest.importorskip(kind)
    config = BoostingConfig(kind, "softmax", rounds=3)
    done = boost(TRAIN, VALI, config)
    resumed = boost(TRAIN, VALI, replace(config, rounds=2), start=done.state)
    assert resumed.curve == done.curve


def test_a_ranker_of_trees_is_an_estimator_like_any_other(tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    qid = np.repeat(TRAIN.qids, TRAIN.lengths)
    ranker = Ranker(loss="neural_ndcg@5", model="lightgbm", epochs=5)
    ranker.fit(TRAIN.features, TRAIN.labels, qid=qid)
    scores = ranker.predict(TRAIN.features)
    ranker.save(tmp_path / "saved")
    alone = lightgbm.Booster(model_file=str(tmp_path / "saved" / "best" / "trees.txt"))
    assert np.allclose(alone.predict(TRAIN.features), scores)  # trees take features as they are
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
    with pytest.raises(ValueError, match=message):
        check_run(settings, tmp_path / "run", resume=False)  # before data are read


def grown(kind, labels, metric="ndcg", **options):
    """The scores of trees that the library's own objective grows on these labels."""
    config = BoostingConfig(kind, metric=metric, rounds=3, options=options)
    return boost(replace(TRAIN, labels=labels), None, config).predict(TRAIN.features)


@pytest.mark.parametrize("scale", [20, 12.5, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_large_labels_have_the_linear_gain_of_the_metric(kind, scale):
    pytest.importorskip(kind)
    grades, linear = np.float32(TRAIN.labels), "ndcg@5(gain=linear)"
    by_hand = {
        "lightgbm": (grades, {"label_gain": [scale * grade for grade in range(5)]}),
        "xgboost": (scale * grades, {"ndcg_exp_gain": False}),
    }
    labels, options = by_hand[kind]
    scores = grown(kind, scale * grades, linear)
    assert np.array_equal(scores, grown(kind, labels, **options))
    assert len(np.unique(scores)) > 1
    large = replace(TRAIN, labels=scale * grades)
    boosted = boost(large, large, BoostingConfig(kind, metric=linear, rounds=3))
    found = evaluate(scores, large.labels, offsets=large.offsets, metrics=[linear])
    assert boosted.curve[-1] == pytest.approx(found.mean[linear], abs=1e-6)
    with pytest.raises(ValueError, match="validate by a metric with gain=linear"):
        boost(large, large, BoostingConfig(kind, metric="ap", rounds=3))
    few = np.float32([0, 1, 15, 29, 30])[TRAIN.labels.astype(int)]  # 2^y - 1 takes these
    assert np.array_equal(grown(kind, few, linear), grown(kind, few))


def test_trees_are_no_network():
    with pytest.raises(TypeError, match="trees are grown by"):
        models.get("lightgbm").build(5)
    with pytest.raises(ValueError, match="num_leaves must be a whole number of at least 2"):
        models.get("lightgbm(num_leaves=1)")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("lightgbm(max_depth=3, reg_alpha=1)", "lightgbm(max_depth=3, lambda_l1=1)"),
        ("lightgbm(min_child_samples=5, subsample=0.5)",
         "lightgbm(min_data_in_leaf=5, bagging_fraction=0.5)"),
        ("xgboost(eta=0.3, alpha=0.1, lambda=2)",
         "xgboost(learning_rate=0.3, reg_alpha=0.1, reg_lambda=2)"),
        ("xgboost(num_leaves=7, lambda_l1=1)", "xgboost(max_leaves=7, reg_alpha=1)"),
    ],
)  # fmt: skip
def test_options_have_the_names_of_either_library(spec, wanted):
    assert str(models.get(spec)) == wanted


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lightgbm(lambda_l1=1, reg_alpha=2)", "lambda_l1 is there twice: reg_alpha is another"),
        ("xgboost(n_estimators=5)", "n_estimators is the setting epochs here"),
        ("lightgbm(early_stopping_rounds=5)", "early_stopping_rounds is the setting patience here"),
        ("lightgbm(max_depth=deep)", "max_depth must be a whole number of at least -1"),
        ("xgboost(subsample=3)", "subsample must be above 0 and at most 1, found 3"),
        ("lightgbm(bagging_fraction=a)", "bagging_fraction must be a number, found 'a'"),
        ("xgboost(reg_lambda=-1)", "reg_lambda must be at least 0, found -1"),
    ],
)
def test_wrong_options_of_trees_are_named(spec, message):
    with pytest.raises(ValueError, match=message):
        models.get(spec)


@pytest.mark.parametrize("model", ["lightgbm", "xgboost"])
def test_depth_and_penalties_reach_the_library(model):
    settings = Settings(model=f"{model}(max_depth=1, lambda_l1=1e-4)", **FAST)
    saved = fit(settings, TRAIN, VALI).model.network.saved.decode()
    if model == "lightgbm":
        assert "[max_depth: 1]" in saved
        assert "[lambda_l1: 0.0001]" in saved
    else:
        assert all(tree["tree_param"]["num_nodes"] <= "3" for tree in _xgboost_trees(saved))


def _xgboost_trees(saved):
    return json.loads(saved)["learner"]["gradient_booster"]["model"]["trees"]


@pytest.mark.parametrize("model", ["lightgbm", "xgboost"])
def test_a_metric_that_no_validation_list_has_is_an_error(model, tmp_path):
    nothing = Dataset(VALI.features, np.zeros_like(VALI.labels), VALI.offsets, VALI.qids)
    settings = Settings(model=model, **{**FAST, "metric": "ndcg@5(empty=skip)"})
    with pytest.raises(ValueError, match=r"empty=skip\) is undefined on every list of the valid"):
        fit(settings, TRAIN, nothing, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_option_that_xgboost_refuses():
    pytest.importorskip("xgboost")
    with pytest.raises(ValueError, match=r"xgboost refuses it: .*unlimited depth") as refused:
        fit(Settings(model="xgboost(tree_method=exact)", **FAST), TRAIN, VALI)
    assert "Stack trace" not in str(refused.value)
