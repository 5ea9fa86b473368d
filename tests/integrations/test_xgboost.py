"""Losses and metrics in XGBoost."""

import copy
import pickle

import numpy as np
import pytest
import torch
from integrations.boosted import assert_same_trees, every_loss, ranking_data, xgboost_trees

from rankgrad import losses
from rankgrad.boosting import xgboost as integration
from rankgrad.boosting.boosters import BoostingConfig, boost
from rankgrad.data import Dataset
from rankgrad.integrations.xgboost import metric, objective, tree_objective
from rankgrad.metrics import evaluate

xgboost = pytest.importorskip("xgboost")

X, Y, SIZES = ranking_data()


def matrix(data=(X, Y, SIZES), **passed):
    features, labels, sizes = data
    made = xgboost.DMatrix(features, labels, nthread=1)
    made.set_group(sizes)
    for name, value in passed.items():
        getattr(made, f"set_{name}")(value)
    return made


def train(chosen, rounds=1, data=None, **options):
    passed = {"nthread": 1, "tree_method": "hist", **options}
    if isinstance(chosen, str):
        passed, chosen = {**passed, "objective": chosen}, None
    return xgboost.train(passed, matrix() if data is None else data, rounds, obj=chosen)


MANY = matrix(ranking_data(lists=150))


def test_normalized_lambdarank_grows_the_trees_of_rank_ndcg():
    data = matrix(ranking_data(lists=80, max_length=70))  # longer than the 32 that have pairs
    wanted = xgboost_trees(train("rank:ndcg", 4, data, ndcg_exp_gain=True))
    chosen = objective("lambdarank@32(norm=true)", hessian_scale=2)
    assert_same_trees(xgboost_trees(train(chosen, 4, data)), wanted)
    wanted = xgboost_trees(
        train("rank:ndcg", 3, data, ndcg_exp_gain=False, lambdarank_num_pair_per_sample=6)
    )
    chosen = objective("lambdarank@6(norm=true, gain=linear)", hessian_scale=2)
    assert_same_trees(xgboost_trees(train(chosen, 3, data)), wanted)


LONG = matrix(ranking_data(lists=30, min_length=100, max_length=200))


@pytest.mark.parametrize("spec", every_loss())
def test_every_loss_grows_trees_at_the_default_minimum_hessian(spec):
    chosen = losses.get(spec, seed=1) if spec.startswith(("gumbel", "listmle")) else spec
    assert len(xgboost_trees(train(objective(chosen), data=MANY))[0][1]) > 1
    if not spec.startswith("gumbel"):  # whose bases are here
        leaves = xgboost_trees(train(objective(chosen), data=LONG))[0][1]
        assert len(leaves) > 1
        assert max(map(abs, leaves)) > 0.1


@pytest.mark.parametrize(
    "spec", ["bce", "rmse", "ordinal", "lambdaloss", "lambdaloss@10", "listnet"]
)
def test_few_long_lists_are_split_at_the_default_minimum_hessian(spec):
    for lists in (1, 3):
        features, labels, sizes = ranking_data(lists=lists, min_length=500, max_length=500)
        for y in (labels, np.clip(np.round(features[:, 0]), 0, 4)):  # half of which are 0
            found = train(objective(spec), data=matrix((features, y, sizes)))
            assert len(xgboost_trees(found)[0][1]) > 1
        tied = objective(spec, group=sizes)(labels, np.zeros(len(labels)))[1]
        assert tied.sum() == pytest.approx(lists * 500 / 20, rel=1e-5)
    many = ranking_data(lists=120, min_length=20, max_length=20)
    first = objective(spec, group=many[2])(many[1], np.zeros(2400))  # as they are
    second = objective(spec, group=many[2], min_list_hessian=0)(many[1], np.zeros(2400))
    np.testing.assert_array_equal(first, second)


def test_relaxed_losses_on_long_lists_are_scaled_as_is_said():
    _, y, sizes = ranking_data(lists=100, min_length=100, max_length=200)
    scores, offsets = np.sin(np.arange(len(y))), np.r_[0, sizes.cumsum()]
    loss = losses.get("approx_ndcg@5")
    plain = objective(loss, group=sizes, min_list_hessian=0)
    wanted = loss.gradient_and_hessian(torch.tensor(scores), y, offsets=offsets)
    for one, other in zip(plain(y, scores), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    for amount in (1, 4):
        scaled = objective(loss, group=sizes, min_list_hessian=amount)
        tied = scaled(y, np.zeros_like(scores))[1]
        assert np.add.reduceat(tied, offsets[:-1]).mean() == pytest.approx(amount)
        factors = [a / b for a, b in zip(scaled(y, scores), plain(y, scores), strict=True)]
        np.testing.assert_allclose(factors, factors[0][0], rtol=1e-5)  # one for all rows
    enough = objective("neural_ndcg", group=sizes)(y, scores)  # has more than that by itself
    alone = objective("neural_ndcg", group=sizes, min_list_hessian=0)(y, scores)
    np.testing.assert_array_equal(enough, alone)


def test_a_mean_over_lists_would_grow_nothing():
    """Why gradients are those of the sum over lists."""
    averaged = objective("lambdaloss@5", hessian_scale=1 / len(SIZES))
    assert len(xgboost_trees(train(averaged))[0][1]) == 1


def test_objective_classes_grow_the_same_trees():
    pytest.importorskip("xgboost.objective")
    wanted = xgboost_trees(train(objective("lambdaloss@5"), 2))
    assert_same_trees(xgboost_trees(train(tree_objective("lambdaloss@5"), 2)), wanted)
    sent = pickle.loads(pickle.dumps(tree_objective("lambdaloss", label_gain=[0, 1, 2, 3, 9])))
    assert_same_trees(
        xgboost_trees(train(copy.deepcopy(sent), 2)),
        xgboost_trees(train(objective("lambdaloss", label_gain=[0, 1, 2, 3, 9]), 2)),
    )


def test_scikit_learn_estimators_get_the_groups():
    with pytest.raises(ValueError, match="not supported by XGBRanker"):
        xgboost.XGBRanker(objective=objective("lambdaloss@5"))  # so, as the error says below:
    options = {"n_estimators": 2, "n_jobs": 1, "tree_method": "hist"}
    with pytest.raises(ValueError, match=r"XGBRanker takes no objective.*group=sizes"):
        xgboost.XGBRegressor(objective=objective("lambdaloss@5"), **options).fit(X, Y)
    chosen = objective("lambdaloss@5", group=SIZES)
    model = xgboost.XGBRegressor(objective=chosen, **options).fit(X, Y)
    wanted = xgboost_trees(train(objective("lambdaloss@5"), 2))
    assert_same_trees(xgboost_trees(model.get_booster()), wanted)


def test_group_sizes_by_query_of_pandas():
    pandas = pytest.importorskip("pandas")
    qid = np.repeat([f"q{i}" for i in range(len(SIZES))], SIZES)
    sizes = pandas.Series(qid).groupby(qid, sort=False).size()  # its index has the queries
    scores = np.linspace(0, 1, len(Y))
    found, _ = objective("ranknet", group=sizes)(Y, scores)
    np.testing.assert_array_equal(found, objective("ranknet", group=SIZES)(Y, scores)[0])
    of_several = metric("ndcg", group=[sizes, sizes[:1]])(Y, scores)
    assert of_several == metric("ndcg", group=SIZES)(Y, scores)


def test_weights_of_lists_come_from_the_matrix_and_those_of_items_from_the_caller():
    random = np.random.default_rng(1)
    items, per_list = random.uniform(size=len(Y)), random.uniform(size=len(SIZES))
    scores = random.normal(size=len(Y)).astype(np.float32)
    chosen = objective("softmax", item_weights=items)
    gradient, hessian = chosen(scores, matrix(weight=per_list))
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    first, second = losses.get("softmax").gradient_and_hessian(
        torch.tensor(scores).double(), Y, offsets=offsets, weights=torch.tensor(items)
    )
    rows = np.repeat(per_list, SIZES)
    np.testing.assert_allclose(gradient, first.numpy() * rows, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(hessian, second.numpy() * rows, rtol=1e-4, atol=1e-6)
    regressor = objective("softmax", group=SIZES)
    np.testing.assert_array_equal(
        regressor(Y, scores, sample_weight=items)[0],
        objective("softmax", group=SIZES, item_weights=items)(Y, scores)[0],
    )
    with pytest.raises(ValueError, match="weights of rows twice"):
        objective("softmax", group=SIZES, item_weights=items)(Y, scores, sample_weight=items)


def test_metrics_take_weights_of_items_and_lists_together():
    random = np.random.default_rng(1)
    items, per_list = random.uniform(size=len(Y)), random.uniform(size=len(SIZES))
    scores, offsets = random.normal(size=len(Y)), np.concatenate([[0], np.cumsum(SIZES)])
    values = evaluate(scores, Y, offsets=offsets, weights=items, metrics="ndcg@3").per_list
    wanted = np.average(values["ndcg@3"], weights=per_list)
    _, found = metric("ndcg@3", item_weights=items)(scores, matrix(weight=per_list))
    assert found == pytest.approx(wanted, rel=1e-6)
    given = metric("ndcg@3", item_weights=items, list_weights=per_list, group=SIZES)
    assert given(Y, scores) == pytest.approx(wanted, rel=1e-6)


def test_weights_and_groups_that_would_be_ignored_are_errors():
    items, per_list, scores = np.ones(len(Y)), np.ones(len(SIZES)), np.zeros(len(Y))
    with pytest.raises(ValueError, match="weights of rows twice: item_weights and those of the da"):
        metric("ndcg@10", item_weights=items)(scores, matrix(weight=items))
    with pytest.raises(ValueError, match="weights of lists twice: list_weights and those of the d"):
        metric("ndcg@10", list_weights=per_list)(scores, matrix(weight=per_list))
    bare = xgboost.DMatrix(X, Y, weight=items)
    with pytest.raises(ValueError, match="weights of rows twice: item_weights and those of the da"):
        objective("ranknet", group=SIZES, item_weights=items)(scores, bare)
    with pytest.raises(ValueError, match="say different lists: leave out group"):
        objective("ranknet", group=SIZES[::-1])(scores, matrix())
    assert objective("ranknet", group=SIZES)(scores, matrix())[0].any()  # the same lists
    for call in (objective("ranknet", item_weights=per_list), metric("rr", item_weights=per_list)):
        with pytest.raises(ValueError, match=f"item_weights has 60 numbers for {len(Y)} rows"):
            call(scores, matrix())
    with pytest.raises(ValueError, match="item_weights has 60 numbers"):
        objective("ranknet", group=SIZES, item_weights=per_list)(Y, scores)


def test_early_stopping_goes_by_our_metric():
    data = ranking_data(seed=1)
    chosen, history = metric("ndcg@3"), {}
    booster = xgboost.train(
        {"nthread": 1, "learning_rate": 0.5, "disable_default_eval_metric": 1},
        matrix(), 60, obj=objective("lambdaloss"), evals=[(matrix(data), "vali")],
        custom_metric=chosen, maximize=chosen.higher_is_better, early_stopping_rounds=5,
        evals_result=history, verbose_eval=False,
    )  # fmt: skip
    curve = history["vali"]["ndcg@3_exact"]
    assert booster.best_iteration == int(np.argmax(curve)) < 59
    scores = booster.predict(matrix(data), iteration_range=(0, booster.best_iteration + 1))
    offsets = np.concatenate([[0], np.cumsum(data[2])])
    exact = evaluate(scores, data[1], offsets=offsets, metrics="ndcg@3").mean["ndcg@3"]
    assert max(curve) == pytest.approx(exact)


def test_a_metric_with_several_options_has_a_name_that_xgboost_can_split():
    spec, history = "ndcg@10(gain=linear, empty=skip)", {}
    xgboost.train(
        {"nthread": 1, "disable_default_eval_metric": 1}, matrix(), 2, obj=objective("ranknet"),
        evals=[(matrix(), "train")], custom_metric=metric(spec), evals_result=history,
        verbose_eval=False,
    )  # fmt: skip
    assert list(history["train"]) == ["ndcg@10(empty=skip,gain=linear)_exact"]
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    lists = Dataset(X, Y, offsets, np.arange(len(SIZES)).astype(str))
    boosted = boost(lists, lists, BoostingConfig("xgboost", "ranknet", spec, rounds=2))
    assert len(boosted.curve) == 2
    model = xgboost.XGBRegressor(n_estimators=1, n_jobs=1, eval_metric=metric(spec))
    with pytest.raises(ValueError, match=r"give metric\(\.\.\., group=sizes"):
        model.fit(X, Y, eval_set=[(X, Y)], verbose=False)


@pytest.mark.parametrize("spec", ["rr", "arp"])  # whose directions XGBoost does not guess
def test_scikit_learn_estimators_stop_by_our_metric(spec):
    other = ranking_data(seed=1)
    chosen = metric(spec, group=[SIZES, other[2]])
    model = xgboost.XGBRegressor(
        objective=objective("lambdaloss", group=SIZES), eval_metric=chosen, n_estimators=60,
        learning_rate=0.5, callbacks=[chosen.early_stopping(5)], n_jobs=1,
    )  # fmt: skip
    model.fit(X, Y, eval_set=[(X, Y), other[:2]], verbose=False)
    curve = model.evals_result()["validation_1"][f"{spec}_exact"]
    best = np.argmin(curve) if spec == "arp" else np.argmax(curve)
    assert model.best_iteration == best < 59
    scores, offsets = model.predict(other[0]), np.concatenate([[0], np.cumsum(other[2])])
    exact = evaluate(scores, other[1], offsets=offsets, metrics=spec).mean[spec]
    assert curve[best] == pytest.approx(exact)
    with pytest.raises(ValueError, match="group has the sizes of 2 data sets, 0 of them with 3 ro"):
        chosen(np.zeros(3), np.zeros(3))


def test_a_matrix_without_groups_is_an_error_that_says_what_to_do():
    bare = xgboost.DMatrix(X, Y)
    with pytest.raises(ValueError, match=r"which rows belong together.*qid=qid"):
        objective("mse")(np.zeros(len(Y)), bare)
    with pytest.raises(ValueError, match=r"which rows belong together.*qid=qid"):
        metric("ndcg")(np.zeros(len(Y)), bare)
    with pytest.raises(ValueError, match=r"which rows belong together.*metric\(.*group=sizes"):
        metric("ndcg")(Y, np.zeros(len(Y)))
    with pytest.raises(ValueError, match="device must be one of"):
        objective("mse", device="tpu")


class OnGpu(torch.Tensor):
    """Stands in for a CUDA tensor: it says so, and describes its memory as one does."""

    is_cuda = True

    @property
    def __cuda_array_interface__(self):
        return {
            "typestr": "<f4", "shape": tuple(self.shape), "strides": None,
            "data": (self.data_ptr(), False), "version": 2,
        }  # fmt: skip

    def numpy(self):
        raise TypeError("memory of a GPU is not the host's")


def test_gradients_on_a_gpu_are_handed_over_where_they_lie(monkeypatch):
    reader = pytest.importorskip("xgboost.objective")._grad_arrinf
    waited = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(waited))
    scores = torch.linspace(-1, 1, len(Y))
    plain = objective("lambdaloss@5")(scores.numpy(), matrix())
    on_gpu = [torch.tensor(one).as_subclass(OnGpu) for one in plain]
    handed = integration._hand_over(*on_gpu)
    assert waited  # XGBoost does not know PyTorch's stream
    for one, passed in zip(handed, on_gpu, strict=True):
        assert one.data_ptr() == passed.data_ptr()
        assert f'"data": [{passed.data_ptr()}, false]'.encode() in reader(one, len(Y))


class Stream:
    def __init__(self, waited):
        self.waited = waited

    def synchronize(self):
        self.waited.append(True)
