"""Ranker: scikit-learn's own checks, lists in any order, and saving."""

from __future__ import annotations

import inspect
import signal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from rewritten import rewrite
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    LeaveOneGroupOut,
    cross_val_predict,
    cross_validate,
)
from sklearn.utils.estimator_checks import check_estimator
from torch import nn
from typer.testing import CliRunner

from rankgrad import estimator, evaluate
from rankgrad.cli import app
from rankgrad.estimator import _LEFT_OPEN, Ranker
from rankgrad.training import FittedRanker, Settings, trainer
from rankgrad.training._settings import BATCH_SETTINGS

SMALL = {"model": "mlp(hidden=[8])", "epochs": 3, "device": "cpu"}
# Weight 0 is not the same as leaving an item out: it is still one of its list, which other items
# are ranked against, and the network's steps depend on how many items there are.
EXPECTED = {
    f"check_sample_weight_equivalence_on_{kind}_data": "an item of weight 0 still is in its list"
    for kind in ("dense", "sparse")
}


@pytest.fixture
def lists():
    random = np.random.default_rng(0)
    X = random.normal(size=(240, 4)).astype(np.float32)
    y = (X[:, 0] + 0.3 * random.normal(size=240) > 0.4) * 1.0 + (X[:, 0] > 1.2)
    return X, y, np.sort(random.integers(0, 24, 240))


def sizes(qid):
    return np.unique(qid, return_counts=True)[1]


def test_scikit_learn_agrees():
    results = check_estimator(
        Ranker("softmax", **SMALL | {"epochs": 1}),
        expected_failed_checks=EXPECTED,
        on_skip=None,
        on_fail="raise",
    )
    assert len(results) > 40


def test_learns(lists):
    X, y, qid = lists
    ranker = Ranker(**SMALL | {"epochs": 40, "learning_rate": 0.02})
    assert ranker.fit(X, y, qid=qid).score(X, y, qid=qid) > 0.85
    assert ranker.score(X, y, group=sizes(qid)) == ranker.score(X, y, qid=qid)


@pytest.mark.parametrize("model", [SMALL["model"], "tabm(hidden=[8], in_list=[rank])", "lightgbm"])
def test_nan_is_a_missing_value(lists, model, tmp_path):
    """A label that only a missing value tells of is learned, and held_out ones are scored."""
    X, y, qid = lists
    X[:, 1] = np.where(y > 0, np.nan, 1.0)
    X[:, 0] = 0.0
    tree = {"transforms": (), "epochs": 20} if model == "lightgbm" else {"learning_rate": 0.05}
    ranker = Ranker(model=model, device="cpu", **{"epochs": 15} | tree).fit(X, y > 0, qid=qid)
    assert ranker.score(X, y > 0, qid=qid) > 0.99
    X[:] = np.nan
    scores = ranker.predict(X, qid=qid)
    assert np.isfinite(scores).all()
    ranker.save(tmp_path / "ranker")
    assert np.array_equal(Ranker.load(tmp_path / "ranker").predict(X, qid=qid), scores)
    X[3, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        ranker.predict(X, qid=qid)


def test_parameters_are_scikit_learns():
    ranker = Ranker("mse", epochs=7)
    assert clone(ranker).get_params() == ranker.get_params()
    assert ranker.set_params(loss="ranknet", clip=1.0).clip == 1.0
    with pytest.raises(ValueError, match=r"unknown loss 'mze'.*Did you mean 'mse'"):
        Ranker("mze").fit([[1.0], [2.0]], [0, 1])


def test_whole_list_models_see_their_list(lists):
    X, y, qid = lists
    order = np.random.default_rng(1).permutation(240)
    model = "context_aware(fc=[8], blocks=1, ff=8)"
    ranker = Ranker("softmax", **SMALL | {"model": model}).fit(X[order], y[order], qid[order])
    scores = ranker.predict(X[order], qid[order])
    alone = ranker.predict(X[qid == 5], group=[sum(qid == 5)])
    np.testing.assert_allclose(scores[np.argsort(order)][qid == 5], alone, rtol=1e-4, atol=1e-5)


def test_predicting_several_lists_as_one_is_refused(lists, tmp_path, monkeypatch):
    X, y, qid = lists
    model = "tabm(hidden=[8], members=2, in_list=[rank])"
    ranker = Ranker("softmax", **SMALL | {"model": model}).fit(X, y, qid)
    ranker.save(tmp_path / "ranker")
    longest = int(sizes(qid).max())
    for fitted in (ranker, Ranker.load(tmp_path / "ranker")):
        monkeypatch.setattr(estimator._Warned, "one_list", False)
        with pytest.warns(UserWarning, match=rf"{longest} rows are scored as .* one query.* qid="):
            one = fitted.predict(X[:longest])
        assert one.tobytes() == fitted.predict(X[:longest]).tobytes()  # which does not warn again
        assert one.tobytes() == fitted.predict(X[:longest], group=[longest]).tobytes()
        assert fitted.predict(X, group=[240]).shape == fitted.predict(X, qid).shape
        with pytest.raises(ValueError, match=rf"240 rows are more than .* {longest}: pass qid="):
            fitted.predict(X)


def test_the_default_learns(lists):
    X, y, qid = lists
    ranker = Ranker(epochs=15, learning_rate=0.02, device="cpu").fit(X, y, qid)
    assert ranker.score(X, y, qid) > 0.85
    order = np.random.default_rng(1).permutation(240)
    mixed = ranker.predict(X[order], qid[order])
    np.testing.assert_allclose(mixed, ranker.predict(X, qid)[order], rtol=1e-4, atol=1e-5)


def test_interleaved_lists_train_as_sorted_ones(lists):
    X, y, _ = lists
    qid = np.repeat(np.arange(24), 10)
    order = np.arange(240).reshape(24, 10).T.ravel()  # first items of all lists, then second ones
    plain = Ranker("softmax", **SMALL).fit(X, y, qid=qid)
    mixed = Ranker("softmax", **SMALL).fit(X[order], y[order], qid=qid[order])
    assert mixed.predict(X[order]).tobytes() == plain.predict(X)[order].tobytes()


def test_frames_and_sparse_matrices(lists):
    X, y, qid = lists
    X[X < 0] = 0
    plain = Ranker("softmax", **SMALL).fit(X, y, qid)
    frame = pd.DataFrame(X, columns=["bm25", "clicks", "age", "length"])
    named = Ranker("softmax", **SMALL).fit(frame, pd.Series(y), pd.Series(qid))
    sparse = Ranker("softmax", **SMALL).fit(scipy.sparse.csr_matrix(X), y, qid)
    assert named.feature_names_in_.tolist() == list(frame)
    assert plain.n_features_in_ == 4
    assert named.predict(frame).tobytes() == plain.predict(X).tobytes()
    assert sparse.predict(scipy.sparse.coo_array(X)).tobytes() == plain.predict(X).tobytes()


def test_validation_chooses_the_epoch(lists):
    X, y, qid = lists
    both = {"eval_set": [(X, y)], "eval_group": [sizes(qid)]}
    ranker = Ranker("softmax", metrics=["ap"], **SMALL).fit(X, y, qid, **both)
    same = Ranker("softmax", metrics=["ap"], **SMALL).fit(X, y, qid, eval_set=(X, y), eval_qid=qid)
    assert ranker.evals_result_ == same.evals_result_
    values = ranker.evals_result_["valid_0"]["ndcg@10"]
    assert set(ranker.evals_result_["valid_0"]) == {"ndcg@10", "ap"}
    assert len(ranker.evals_result_["training"]["loss"]) == 3
    assert ranker.best_score_ == max(values) == values[ranker.best_iteration_ - 1]
    assert ranker.score(X, y, qid) == pytest.approx(max(values))


def test_several_pairs_are_logged_and_the_last_chooses(lists):
    X, y, qid = lists
    half = qid < np.median(qid)
    pairs = [(X[half], y[half]), (X[~half], y[~half])]
    its = {"eval_set": pairs, "eval_qid": [qid[half], qid[~half]]}
    both = Ranker("softmax", **SMALL).fit(X, y, qid, **its)
    for at, pair in enumerate(pairs):
        alone = Ranker("softmax", **SMALL)
        alone.fit(X, y, qid, eval_set=pair, eval_qid=its["eval_qid"][at])
        assert both.evals_result_[f"valid_{at}"] == alone.evals_result_["valid_0"]
    tuples = {name: tuple(values) for name, values in its.items()}
    same = Ranker("softmax", **SMALL).fit(X, y, qid, **tuples)
    assert same.evals_result_ == both.evals_result_
    assert list(both.evals_result_) == ["training", "valid_0", "valid_1"]
    assert both.best_score_ == max(both.evals_result_["valid_1"]["ndcg@10"])


def test_a_metric_that_is_undefined_is_nan(lists, monkeypatch, tmp_path):
    X, y, qid = lists
    its = {"eval_set": [(X, 0 * y), (X, y)], "eval_qid": [qid, qid]}
    validate, calls = trainer.validate, []

    def undefined_in_the_second_epoch(*arguments):
        calls.append(arguments)
        found = validate(*arguments)
        return {**found, "rr": float("nan")} if len(calls) == 3 else found

    monkeypatch.setattr(trainer, "validate", undefined_in_the_second_epoch)
    ranker = Ranker("softmax", metrics=["ap(empty=skip)", "rr"], **SMALL).fit(X, y, qid, **its)
    without_relevant, usual = (ranker.evals_result_[f"valid_{at}"] for at in range(2))
    assert np.isnan(without_relevant["ap(empty=skip)"]).tolist() == [True, True, True]
    assert np.isnan(usual["rr"]).tolist() == [False, True, False]
    assert np.isfinite(usual["ap(empty=skip)"]).all()
    ranker.save(tmp_path / "ranker")
    assert "NaN" not in (tmp_path / "ranker" / "ranker.json").read_text()  # which is not JSON
    np.testing.assert_equal(Ranker.load(tmp_path / "ranker").evals_result_, ranker.evals_result_)


def test_a_pair_may_itself_be_of_tuples(lists):
    X, y, qid = lists
    two = (tuple(map(tuple, X[:2].tolist())), tuple(y[:2].tolist()))  # two rows, two labels
    ranker = Ranker("softmax", **SMALL).fit(X, y, qid, eval_set=two, eval_group=[2])
    same = Ranker("softmax", **SMALL).fit(X, y, qid, eval_set=(two,), eval_group=([2],))
    arrays = Ranker("softmax", **SMALL).fit(X, y, qid, eval_set=(X[:2], y[:2]), eval_group=[2])
    assert ranker.evals_result_ == same.evals_result_ == arrays.evals_result_
    assert list(ranker.evals_result_) == ["training", "valid_0"]


def test_lower_is_better(lists):
    X, y, qid = lists
    ranker = Ranker("softmax", metric="arp", **SMALL).fit(X, y, qid)
    assert ranker.score(X, y, qid) < 0


def test_weights_count(lists):
    X, y, qid = lists
    plain = Ranker("softmax", **SMALL).fit(X, y, qid)
    ones = Ranker("softmax", **SMALL).fit(X, y, qid, sample_weight=np.ones(240))
    other = Ranker("softmax", **SMALL).fit(X, y, qid, sample_weight=1 + qid % 3)
    np.testing.assert_allclose(ones.predict(X), plain.predict(X), rtol=1e-4, atol=1e-5)
    assert not np.allclose(other.predict(X), plain.predict(X))


def test_grid_search(lists):
    X, y, qid = lists
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = Ranker("softmax", **SMALL).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"loss": ["softmax", "approx_ndcg"]}, cv=GroupKFold(3))
        search.fit(X, y, qid=qid, groups=qid)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict(X).shape == (240,)


def test_every_setting_is_a_parameter_with_the_same_default():
    parameters = {k: p.default for k, p in inspect.signature(Ranker).parameters.items()}
    others = {"random_state": 0, "verbose": False}
    others |= {"early_stopping": False, "validation_fraction": 0.1}
    # seed is random_state, holdout is the two above, and TensorBoard needs a run folder.
    left_out = {"seed", "holdout", "tensorboard"}
    chosen_by_fit = dict.fromkeys(_LEFT_OPEN)
    assert parameters == others | Settings().model_dump(exclude=left_out) | chosen_by_fit
    for name in parameters:
        assert f"\n{' ' * 4}{name}: " in inspect.getdoc(Ranker), name


@pytest.mark.parametrize("name", _LEFT_OPEN)
def test_what_is_given_stays_also_where_it_is_the_default(monkeypatch, lists, name):
    monkeypatch.setattr("rankgrad.training._settings.MANY_ITEMS", 20)
    X, y, qid = lists[0][:40], np.arange(40) % 3, np.arange(40) // 20
    given = {name: getattr(Settings(), name)}
    settings = Ranker(device="cpu", **given).fit(X, y, qid).model_.settings
    assert getattr(settings, name) == given[name]
    assert (settings.loss == "ordered_logit") == (name not in ("loss", "model"))
    keeps_batches = name in (*BATCH_SETTINGS, "model", "schedule")
    assert (settings.batch_size == 4) != keeps_batches


def test_one_list_is_scored_as_among_others(lists):
    X, y, qid = lists
    ranker = Ranker(epochs=1, device="cpu").fit(X, y, qid)
    among = ranker.predict(X, qid)[qid == 5]
    one, own = X[qid == 5], qid[qid == 5]
    assert np.array_equal(ranker.predict(one, own), ranker.predict(one.tolist(), own.tolist()))
    assert np.array_equal(ranker.predict(one, own), ranker.predict(one, group=[len(one)]))
    np.testing.assert_allclose(ranker.predict(one, own), among, rtol=1e-5, atol=1e-6)
    for wrong, says in ((np.inf, "infin"), (one.T, "4 features"), (one[:0], "0 sample")):
        bad = np.full_like(one, wrong) if np.ndim(wrong) == 0 else wrong
        with pytest.raises(ValueError, match=says):
            ranker.predict(bad, np.zeros(len(bad), int))


def test_many_rows_without_qid_are_refused():
    X = np.zeros((2001, 2))
    with pytest.raises(ValueError, match=r"2001 rows.* pass qid= .* group=\[2001\]"):
        Ranker(**SMALL).fit(X, X[:, 0])


def test_lists_are_held_out_for_early_stopping(lists):
    X, y, qid = lists
    own = {"early_stopping": True, "validation_fraction": 0.25}
    ranker, same = (Ranker(**SMALL, **own).fit(X, y, qid) for _ in range(2))
    other = Ranker(**SMALL, **own, random_state=1).fit(X, y, qid)
    assert ranker.n_lists_ == len(np.unique(qid))
    assert ranker.evals_result_ == same.evals_result_ != other.evals_result_
    assert ranker.best_score_ == max(ranker.evals_result_["valid_0"]["ndcg@10"])
    assert list(Ranker(**SMALL).fit(X, y, qid).evals_result_) == ["training"]
    patient = Ranker(**SMALL | {"epochs": 90, "learning_rate": 1e-9, "patience": 2}, **own)
    assert patient.fit(X, y, qid).n_iter_ < 90
    with pytest.raises(ValueError, match=r"one list to train on.*early_stopping=False"):
        Ranker(**SMALL, **own).fit(X, y)
    for fraction in (0.0, 1.0, "0.5"):
        with pytest.raises(ValueError, match=r"validation_fraction must lie between 0 and 1"):
            Ranker(**SMALL, **own | {"validation_fraction": fraction}).fit(X, y, qid)


@pytest.mark.parametrize("model", ["mlp(hidden=[])", "lightgbm"])
def test_ctrl_c_is_not_swallowed(lists, model):
    X, y, qid = lists
    ranker = Ranker(model=model, device="cpu", epochs=3)
    with pytest.raises(KeyboardInterrupt):
        ranker.fit(X, y, qid, on_epoch=lambda line: signal.raise_signal(signal.SIGINT))
    assert not hasattr(ranker, "model_")


def test_large_values_and_parameters_set_after_fit_leave_predict_alone(lists):
    X, y, qid = lists
    X = np.where(X > 1, -999, X).astype(np.float32)
    ranker = Ranker(**SMALL, missing=[-999]).fit(X, y, qid)
    scores = ranker.predict(X)
    np.testing.assert_array_equal(ranker.set_params(missing=()).predict(X), scores)
    assert np.isfinite(ranker.predict(np.full_like(X, 3e38))).all()  # whose sum is infinite


def test_random_state_is_a_number_or_a_generator(lists):
    X, y, qid = lists
    scores = [
        Ranker(**SMALL, random_state=np.random.default_rng(seed)).fit(X, y, qid).predict(X, qid)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])
    with pytest.raises(ValueError, match="random_state must not be negative, found -1"):
        Ranker(**SMALL, random_state=-1).fit(X, y, qid)


def test_labels_that_are_texts_are_read_as_numbers(lists):
    X, y, qid = lists
    scores = [
        Ranker(**SMALL).fit(X, labels, qid).predict(X, qid)
        for labels in (y, y.astype(str), y.astype(str).astype(object))
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    with pytest.raises(ValueError, match="could not convert string to float"):
        Ranker(**SMALL).fit(X, np.where(y > 0, "good", "bad"), qid)


def ndcg(y, scores, qid):
    order = np.argsort(qid, kind="stable")
    ends = np.cumsum([0, *sizes(qid)])
    return evaluate(scores[order], y[order], offsets=ends, metrics="ndcg@10")["ndcg@10"]


def test_qid_is_routed_by_scikit_learn(lists, monkeypatch):
    """scikit-learn hands metadata to fit, score and metrics, but in no version to predict."""
    X, y, qid = lists
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = Ranker("softmax", **SMALL).set_fit_request(qid=True).set_score_request(qid=True)
        scores = cross_val_predict(
            ranker, X, y, cv=GroupKFold(3), params={"qid": qid, "groups": qid}
        )
        scorer = make_scorer(ndcg).set_score_request(qid=True)
        found = [
            cross_validate(
                ranker, X, y, cv=GroupKFold(3), scoring=how, params={"qid": qid, "groups": qid}
            )["test_score"]
            for how in (None, scorer)
        ]
        # Models that look at whole lists predict one list at a time.
        monkeypatch.setattr(estimator._Warned, "one_list", True)
        whole = clone(ranker).set_params(model="tabm(hidden=[8], members=2, in_list=[rank])")
        whole.set_fit_request(qid=True)
        fives = np.repeat(np.arange(48), 5)
        alone = cross_val_predict(
            whole.set_params(epochs=1),
            X[:60],
            y[:60],
            cv=LeaveOneGroupOut(),
            params={"qid": fives[:60], "groups": fives[:60]},
        )
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    for train, test in GroupKFold(3).split(X, y, qid):
        alike = Ranker("softmax", **SMALL).fit(X[train], y[train], qid[train]).predict(X[test])
        assert scores[test].tobytes() == alike.tobytes()
    first = clone(whole).fit(X[5:60], y[5:60], qid=fives[5:60])
    assert alone[:5].tobytes() == first.predict(X[:5], group=[5]).tobytes()


def test_scoring_several_lists_as_one_is_refused(lists, tmp_path):
    X, y, qid = lists
    ranker = Ranker("softmax", **SMALL).fit(X, y, qid)
    ranker.save(tmp_path / "ranker")
    for fitted in (ranker, Ranker.load(tmp_path / "ranker")):
        assert fitted.n_lists_ == 24
        with pytest.raises(ValueError, match=r"24 lists.*pass qid=.*set_score_request\(qid=True\)"):
            fitted.score(X, y)
    assert 0 < ranker.score(X, y, group=[240]) <= 1
    search = GridSearchCV(ranker, {"epochs": [1]}, cv=GroupKFold(2), error_score="raise")
    with pytest.raises(ValueError, match="set_score_request"):
        search.fit(X, y, qid=qid, groups=qid)


def test_numpy_numbers_are_saved(lists, tmp_path):
    X, y, qid = lists
    ranker = Ranker(
        "softmax",
        "mlp(hidden=[8])",
        metrics=np.array(["ap"]),
        epochs=np.arange(1, 3)[1],
        learning_rate=np.float32(0.25),
        verbose=np.False_,
        random_state=np.int64(7),
        device="cpu",
    ).fit(X, y, qid)
    ranker.save(tmp_path / "ranker")
    loaded = Ranker.load(tmp_path / "ranker")
    assert (loaded.epochs, loaded.learning_rate, loaded.random_state) == (2, 0.25, 7)
    assert loaded.metrics == ["ap"]
    assert loaded.predict(X).tobytes() == ranker.predict(X).tobytes()
    assert clone(loaded).fit(X, y, qid).predict(X).tobytes() == ranker.predict(X).tobytes()


def test_rankers_saved_before_lists_were_counted_load(lists, tmp_path):
    X, y, qid = lists
    ranker = Ranker("softmax", **SMALL).fit(X, y, qid)
    ranker.save(tmp_path / "ranker")
    rewrite(tmp_path / "ranker" / "ranker.json", drop=["n_lists"])
    assert Ranker.load(tmp_path / "ranker").score(X, y, qid) == ranker.score(X, y, qid)


def test_the_command_line_finds_columns_by_the_names_of_the_frame(lists, tmp_path):
    """The columns of a file may be in another order than those of the frame."""
    X, y, qid = lists
    frame = pd.DataFrame(X, columns=list("abcd"))
    ranker = Ranker("softmax", **SMALL).fit(frame, y, qid)
    ranker.save(tmp_path / "ranker")
    frame[list("dbca")].assign(qid=qid, label=y).to_csv(tmp_path / "data.csv", index=False)
    paths = [str(tmp_path / name) for name in ("ranker", "data.csv")]
    found = np.array(CliRunner().invoke(app, ["predict", *paths]).stdout.split(), np.float32)
    np.testing.assert_allclose(found, ranker.predict(frame, qid), atol=1e-6)
    # Earlier versions wrote the names into ranker.json alone.
    rewrite(tmp_path / "ranker" / "best" / "model.json", feature_names=None)
    assert Ranker.load(tmp_path / "ranker").model_.feature_names == tuple("abcd")


def test_saved_and_loaded(lists, tmp_path):
    X, y, qid = lists
    frame = pd.DataFrame(X, columns=list("abcd"))
    ranker = Ranker("softmax", **SMALL).fit(frame, y, qid, eval_set=(frame, y), eval_qid=qid)
    ranker.save(tmp_path / "ranker")
    ranker.save(tmp_path / "ranker")  # over a ranker of ours
    loaded = Ranker.load(tmp_path / "ranker")
    assert loaded.predict(frame).tobytes() == ranker.predict(frame).tobytes()
    for name in ("evals_result_", "best_iteration_", "best_score_", "n_features_in_", "n_iter_"):
        assert getattr(loaded, name) == getattr(ranker, name)
    assert loaded.feature_names_in_.tolist() == list("abcd")
    assert loaded.get_params()["loss"] == "softmax"
    assert FittedRanker.load(tmp_path / "ranker" / "best").n_features == 4
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="not a saved Ranker"):
        ranker.save(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match="no saved Ranker"):
        Ranker.load(tmp_path / "mine")


@pytest.mark.parametrize("kind", [tuple, list])
def test_parameters_are_loaded_as_they_were_set(lists, tmp_path, kind):
    X, y, qid = lists
    given = {"metrics": kind(["ap", "rr"]), "transforms": kind(["standardize"])}
    for ranker in (Ranker("softmax", **SMALL), Ranker("softmax", **SMALL, **given)):
        ranker.fit(X, y, qid).save(tmp_path / "ranker")
        loaded = Ranker.load(tmp_path / "ranker")
        assert loaded.get_params() == ranker.get_params()
        assert clone(loaded).get_params() == clone(ranker).get_params()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, features, mask=None):
        return self.layer(features).squeeze(-1)


def test_own_network(lists, tmp_path):
    X, y, qid = lists
    network = Linear()
    before = network.layer.weight.detach().clone()
    ranker = Ranker("softmax", network, epochs=3, transforms=[], device="cpu").fit(X, y, qid)
    assert (network.layer.weight == before).all()
    ranker.save(tmp_path / "own")
    loaded = Ranker.load(tmp_path / "own", Linear())
    np.testing.assert_array_equal(loaded.predict(X, qid), ranker.predict(X, qid))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"qid": [1, 2]}, r"qid must have one value per row, 240; found \[2\]"),
        ({"group": [100, 100]}, "group adds up to 200 rows, X has 240"),
        ({"group": [1.5]}, "whole numbers"),
        ({"qid": np.zeros(240), "group": [240]}, "not both"),
        ({"qid": np.full(240, np.nan)}, "row 0 is NaN"),
        ({"qid": np.array([0] * 239 + ["NaT"], "datetime64[s]")}, "row 239 is NaN or NaT"),
        ({"eval_qid": [1]}, "go with an eval_set"),
        ({"qid": [1] * 239 + [None]}, "qid of row 239 is None"),
        ({"qid": np.array(["a", pd.NA] * 120, object)}, "qid of row 1 is <NA>"),
        ({"qid": np.array(["a", np.nan] * 120, object)}, "qid of row 1 is nan"),
        ({"qid": np.array([1, "a"] * 120, object)}, "qid must be all numbers or all texts"),
        ({"eval_set": [1, 2]}, "a list of such pairs"),
        ({"eval_set": []}, "a list of such pairs"),
        ({"eval_set": ()}, "a list of such pairs"),
        ({"eval_set": [(1, 2)] * 2, "eval_qid": [1]}, "eval_qid must be a list of 2"),
        ({"eval_set": (np.zeros((2, 3)), [0, 1])}, "3 features"),
        ({"group": [120, 120], "eval_set": (1, 2)}, "pair 0 of eval_set has neither eval_qid"),
        (
            {"group": [120, 120], "eval_set": [(1, 2)], "eval_qid": [None]},
            "pair 0 of eval_set has neither eval_qid",
        ),
    ],
)
def test_what_is_wrong_is_said(lists, arguments, message):
    X, y, _ = lists
    with pytest.raises(ValueError, match=message):
        Ranker("softmax", **SMALL).fit(X, y, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [0, 1]}, "y must have one label per row, 240; found 2"),
        ({"y": []}, "y must have one label per row, 240; found 0"),
        ({"y": None}, "y contains NaN"),
        ({"y": [0.0] * 239 + [np.nan]}, "y contains NaN"),
        ({"sample_weight": [1, 2]}, "sample_weight"),
        ({"sample_weight": np.full(240, -1.0)}, "sample_weight"),
        ({"qid": [None] * 240}, "qid of row 0 is None"),
    ],
)
def test_what_is_wrong_with_a_score_is_said(lists, arguments, message):
    X, y, qid = lists
    ranker = Ranker("softmax", **SMALL).fit(X, y, qid)
    with pytest.raises(ValueError, match=message):
        ranker.score(X, **{"y": y, "qid": qid} | arguments)


def test_negative_labels_are_refused(lists):
    X, y, _ = lists
    with pytest.raises(ValueError, match=r"labels must be at least 0.*y\[0\]"):
        Ranker("softmax", **SMALL).fit(X, y - 5)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix])
def test_a_feature_beyond_float32_is_named(lists, kind):
    X, y, qid = lists
    fitted = Ranker("softmax", **SMALL).fit(X, y, qid)
    wide = X.astype(np.float64)
    wide[17, 2] = 1e300
    message = r"feature at index 2 \(counting from 0\) of row 17 is 1e\+300, too large for float32"
    with pytest.raises(ValueError, match=message):
        Ranker("softmax", **SMALL).fit(kind(wide), y, qid[::-1])  # rows as given, not as sorted
    with pytest.raises(ValueError, match=message):
        fitted.predict(kind(wide), qid)
    with pytest.raises(ValueError, match=message):
        fitted.fit(X, y, qid, eval_set=(kind(wide), y), eval_qid=qid)
    frame = pd.DataFrame(wide, columns=["bm25", "clicks", "age", "length"])
    with pytest.raises(ValueError, match="feature 'age' at index 2"):
        Ranker("softmax", **SMALL).fit(frame, y, qid)
