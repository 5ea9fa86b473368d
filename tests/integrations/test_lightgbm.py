"""Losses and metrics in LightGBM."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from integrations.boosted import assert_same_trees, every_loss, lightgbm_trees, ranking_data
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from rankgrad import losses
from rankgrad.integrations.catboost import objective as catboost_objective
from rankgrad.integrations.lightgbm import metric, objective
from rankgrad.metrics import evaluate

lightgbm = pytest.importorskip("lightgbm")

QUIET = {"verbosity": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True}
X, Y, SIZES = ranking_data()


def train(chosen, rounds=1, weight=None, data=(X, Y, SIZES), **options):
    features, labels, sizes = data
    dataset = lightgbm.Dataset(features, labels, group=sizes, weight=weight)
    options = {**QUIET, "objective": chosen, "metric": "none", **options}
    return lightgbm.train(options, dataset, rounds)


def test_normalized_lambdarank_grows_the_trees_of_the_built_in_objective():
    data = ranking_data(lists=80, max_length=70)  # longer than the truncation at 30
    wanted = lightgbm_trees(train("lambdarank", 4, data=data))
    found = lightgbm_trees(train(objective("lambdarank@30(norm=true)"), 4, data=data))
    assert_same_trees(found, wanted)
    plain = train("lambdarank", 3, data=data, lambdarank_norm=False, sigmoid=2.0)
    labels = {"lambdarank_truncation_level": 5, "label_gain": [0, 1, 5, 6, 20], "sigmoid": 0.5}
    wanted = lightgbm_trees(train("lambdarank", 3, data=data, **labels))
    ours = objective("lambdarank@5(norm=true, sigma=0.5)", label_gain=[0, 1, 5, 6, 20])
    assert_same_trees(lightgbm_trees(train(ours, 3, data=data)), wanted)
    assert lightgbm_trees(plain) != wanted


LONG = ranking_data(lists=30, min_length=100, max_length=200)


@pytest.mark.parametrize("spec", every_loss())
def test_every_loss_grows_trees_at_the_default_minimum_hessian(spec):
    chosen = losses.get(spec, seed=1) if spec.startswith(("gumbel", "listmle")) else spec
    for data in ((X, Y, SIZES), LONG)[: 1 if spec.startswith("gumbel") else 2]:
        booster = train(objective(chosen), data=data)
        assert booster.num_trees() == 1
        assert len(lightgbm_trees(booster)[0][1]) > 1


@pytest.mark.parametrize("spec", ["approx_ndcg@10", "lapsum_ndcg@10", "fastsort_ndcg@10"])
def test_a_cutoff_through_ranks_starts_on_long_lists(spec):
    random = np.random.default_rng(0)
    features = random.normal(size=(4800, 3))
    booster = train(
        objective(spec), data=(features, (features[:, 0] > 1).astype(int), np.full(40, 120))
    )
    assert len(lightgbm_trees(booster)[0][1]) > 1


def test_the_estimator_and_the_native_api_grow_the_same_trees():
    weight = np.linspace(0.5, 2.0, len(Y))
    wanted = lightgbm_trees(train(objective("lambdaloss@5"), 3, weight=weight))
    ranker = lightgbm.LGBMRanker(
        objective=objective("lambdaloss@5"), n_estimators=3, n_jobs=1, verbosity=-1,
        deterministic=True, force_row_wise=True,
    )  # fmt: skip
    other = ranking_data(seed=1)
    with warnings.catch_warnings():  # LightGBM 4.7 has another name for eval_set
        warnings.simplefilter("ignore")
        ranker.fit(
            X, Y, group=SIZES, sample_weight=weight, eval_set=[other[:2]], eval_group=[other[2]],
            eval_metric=metric("ndcg@3"),
        )  # fmt: skip
    scores, offsets = ranker.predict(other[0]), np.concatenate([[0], np.cumsum(other[2])])
    exact = evaluate(scores, other[1], offsets=offsets, metrics="ndcg@3").mean["ndcg@3"]
    assert ranker.evals_result_["valid_0"]["ndcg@3_exact"][-1] == pytest.approx(exact)
    assert_same_trees(lightgbm_trees(ranker.booster_), wanted)
    assert lightgbm_trees(train(objective("lambdaloss@5"), 3)) != wanted


def test_weights_of_items_and_lists_and_groups_that_are_empty():
    random = np.random.default_rng(1)
    scores, items = random.normal(size=len(Y)), random.uniform(size=len(Y))
    per_list = random.uniform(size=len(SIZES) + 1)
    sizes = [*SIZES[:3], 0, *SIZES[3:]]  # a list without items, which has a weight as others do
    chosen = objective("softmax", list_weights=per_list)
    gradient, hessian = chosen(Y, scores, items, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    loss = losses.get("softmax")
    first, second = loss.gradient_and_hessian(
        torch.tensor(scores), Y, offsets=offsets, weights=torch.tensor(items)
    )
    rows = np.repeat(per_list, sizes)
    np.testing.assert_allclose(gradient, first.numpy() * rows, rtol=1e-6)
    np.testing.assert_allclose(hessian, second.numpy() * rows, rtol=1e-6)
    assert gradient.dtype == hessian.dtype == np.float32


def test_early_stopping_goes_by_our_metric_and_its_conventions():
    valid_X, valid_y, valid_sizes = ranking_data(seed=1)
    valid_y[: valid_sizes[0]] = 0  # a list without a relevant item: 0 here, 1 in LightGBM
    dataset = lightgbm.Dataset(X, Y, group=SIZES)
    valid = dataset.create_valid(valid_X, valid_y, group=valid_sizes)
    history = {}
    booster = lightgbm.train(
        {**QUIET, "objective": objective("lambdaloss"), "metric": "none", "learning_rate": 0.5},
        dataset, 60, valid_sets=[valid], feval=[metric("ndcg@3"), metric("rr(empty=1)")],
        callbacks=[
            lightgbm.early_stopping(5, first_metric_only=True, verbose=False),
            lightgbm.record_evaluation(history),
        ],
    )  # fmt: skip
    curve = history["valid_0"]["ndcg@3_exact"]
    assert booster.best_iteration == 1 + int(np.argmax(curve)) < 60
    offsets = np.concatenate([[0], np.cumsum(valid_sizes)])
    scores = booster.predict(valid_X)
    for spec in ("ndcg@3", "rr(empty=1)"):
        exact = evaluate(scores, valid_y, offsets=offsets, metrics=spec).mean[spec]
        assert history["valid_0"][f"{spec}_exact"][booster.best_iteration - 1] == pytest.approx(
            exact
        )
    name, _, higher = metric("arp")(valid_y, scores, None, valid_sizes)
    assert (name, higher) == ("arp_exact", False)


def test_metrics_take_label_gains():
    scores, labels = np.array([0.1, 0.2, 0.3]), np.array([2, 0, 1])
    gained = metric("ndcg", label_gain=[0, 1, 3])(labels, scores, None, [3])[1]
    assert gained == pytest.approx(metric("ndcg")(labels, scores, None, [3])[1])
    other = metric("ndcg", label_gain=[0, 1, 30])(labels, scores, None, [3])[1]
    assert other < gained


def test_what_is_wrong_is_said():
    scores = np.zeros(len(Y))
    with pytest.raises(ValueError, match=r"which rows belong together: give lightgbm\.Dataset"):
        objective("mse")(Y, scores, None, None)
    with pytest.raises(ValueError, match=r"the groups have 3 rows together, the data"):
        metric("ndcg")(Y, scores, None, [3])
    for spec in ("mse", "lambdarank(metric=ap)", "lambdaloss(metric=rr)", "approx_ap"):
        with pytest.raises(ValueError, match="has no gains of labels"):
            objective(spec, label_gain=[0, 0.5, 1, 2])
    with pytest.raises(ValueError, match="label_gain must not fall"):
        objective("lambdarank", label_gain=[0, 3, 1])
    with pytest.raises(ValueError, match=r"gains for labels 0 to 1; the label of row \d+ is"):
        objective("lambdarank", label_gain=[0, 1])(Y, scores, None, SIZES)
    with pytest.raises(ValueError, match="list_weights has 2 numbers for 60 lists"):
        objective("mse", list_weights=[1, 2])(Y, scores, None, SIZES)
    with pytest.raises(ValueError, match="Did you mean 'lambdaloss'"):
        objective("lambdalos@10")
    for wrong, found in ((None, "NoneType"), (5, "int"), (metric("ndcg"), "Evaluation")):
        with pytest.raises(ValueError, match=f"expected a loss or its spec, found {found}"):
            objective(wrong)
    with pytest.raises(ValueError, match="label_gain must be numbers, found 'abc'"):
        objective("lambdarank", label_gain="abc")
    for group, message in (("abc", "group must be numbers"), ([2.5], "whole numbers"), ([-1], "0")):
        with pytest.raises(ValueError, match=message):
            objective("mse")(Y, scores, None, group)
    with pytest.raises(ValueError, match="cannot read the spec ''"):
        objective("")
    with pytest.raises(ValueError, match="expected a metric or its spec, found NoneType"):
        metric(None)
    with pytest.raises(ValueError, match="min_list_hessian must be a number above 0"):
        objective("approx_ndcg", min_list_hessian=-1)
    with pytest.raises(ValueError, match=r"ndcg\(empty=skip\) is undefined on every list"):
        metric("ndcg(empty=skip)")(0 * Y, scores, None, SIZES)
    with pytest.raises(TypeError, match=r"\(scores, lightgbm.Dataset\)"):
        objective("mse")(Y, None)
    with pytest.raises(TypeError, match="passes no groups"):
        catboost_objective("lambdaloss")


def test_our_metric_has_another_name_than_lightgbms():
    """LGBMRanker evaluates its own NDCG beside ours, with other conventions."""
    other = ranking_data(seed=1)
    other[1][: other[2][0]] = 0  # a list without a relevant item: 0 here, 1 in LightGBM
    ranker = lightgbm.LGBMRanker(
        objective=objective("lambdaloss@5"), n_estimators=2, n_jobs=1, verbosity=-1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranker.fit(
            X, Y, group=SIZES, eval_set=[other[:2]], eval_group=[other[2]], eval_at=[3],
            eval_metric=["ndcg", metric("ndcg@3")],
        )  # fmt: skip
    curves = ranker.evals_result_["valid_0"]
    assert list(curves) == ["ndcg@3", "ndcg@3_exact"]
    assert [len(curve) for curve in curves.values()] == [2, 2]
    assert min(curves["ndcg@3"]) > max(curves["ndcg@3_exact"])


@pytest.mark.filterwarnings("ignore")
def test_estimators_are_cloned_and_searched_in_two_processes():
    chosen = objective("gumbel_neural_ndcg@5(seed=1)")
    ranker = lightgbm.LGBMRanker(objective=chosen, n_estimators=2, n_jobs=1, verbosity=-1)
    assert lightgbm_trees(clone(ranker).fit(X, Y, group=SIZES).booster_)
    sizes = np.full(20, 6)  # folds of whole lists, told to the objective
    model = lightgbm.LGBMRegressor(
        objective=objective("lambdaloss@5", group=[sizes[:10], sizes]), n_estimators=2, n_jobs=1,
        verbosity=-1, min_child_samples=2,
    )  # fmt: skip
    rows = np.repeat(np.arange(20), sizes)
    search = GridSearchCV(model, {"num_leaves": [2, 4]}, cv=GroupKFold(2), n_jobs=2)
    search.fit(X[:120], Y[:120], groups=rows)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_objectives_and_metrics_can_be_sent_to_processes():
    for one in (objective("lambdaloss@5"), metric("ndcg@5")):
        copy = pickle.loads(pickle.dumps(one))
        scores = np.arange(len(Y), dtype=float)
        first, second = (each(Y, scores, None, SIZES) for each in (one, copy))
        assert np.array_equal(np.asarray(first[1]), np.asarray(second[1]))
