"""Boosted trees as entries."""

import json
import shutil
import sys

import numpy as np
import pytest

from rankgrad.boosting import boosters
from rankgrad.data import load_splits
from rankgrad.experiments.compare import TreeEntry, run
from rankgrad.training import Settings
from rankgrad.training._evaluations import EvaluatedLists

FIXED = {
    "lightgbm": {"learning_rate": 0.1, "min_data_in_leaf": 5},
    "xgboost": {"learning_rate": 0.1, "min_child_weight": 0.1},
}


def tree(kind, **options):
    return TreeEntry(kind, kind, FIXED[kind], **{"rounds": 8, "patience": 4} | options)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_a_tree_is_tuned_trained_and_evaluated_like_any_entry(plan, tmp_path, kind):
    small = plan(folds=(1,), entries=[tree(kind)])
    found = run(small, tmp_path / "out", workers=0)
    assert not found.missing
    log = json.loads((tmp_path / "out" / "tuning" / kind / "fold1.json").read_text())
    tried = [trial["parameters"] for trial in log["trials"]]
    assert len(tried) == 6  # what is left of the grid: numbers of leaves, and shares that are drawn
    shares = {"lightgbm": "bagging_fraction", "xgboost": "subsample"}
    assert {parameters[shares[kind]] for parameters in tried} == {0.7, 1.0}
    best = max(log["trials"], key=lambda trial: trial["value"])
    assert found.chosen[kind, 1] == best["parameters"]
    place = tmp_path / "out" / "runs" / kind / "fold1-seed0"
    metadata = json.loads((place / "run.json").read_text())
    assert metadata["kind"] == kind
    assert metadata["settings"]["values"] == best["parameters"]
    assert metadata["data"]["train"]["lists"] == 24
    assert metadata["seconds"] > 0 and found.entry(kind).seconds == metadata["seconds"]
    curve = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    values = [line["ndcg@5"] for line in curve]
    assert values[metadata["best_epoch"] - 1] == max(values) == pytest.approx(best["value"])
    first = EvaluatedLists.load(place)
    assert first.labels_of_run["model"] == kind
    assert found.mean(kind, "ndcg@5") > 0.6  # random order has 0.5

    shutil.rmtree(place / "evaluations")  # and from the model that is kept
    run(small, tmp_path / "out", workers=0)
    assert np.array_equal(EvaluatedLists.load(place).scores, first.scores)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_tuned_comparisons_give_trees_the_same_budget(plan, tmp_path, kind):
    small = plan(folds=(1,), entries=[tree(kind, rounds=3)], tune=4)
    found = run(small, tmp_path / "out", workers=0)
    log = json.loads((tmp_path / "out" / "tuning" / kind / "fold1.json").read_text())
    assert len(log["trials"]) == 4
    assert not set(FIXED[kind]) & set(found.chosen[kind, 1])


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_boosting_is_deterministic_and_stops_by_the_validation_metric(folds, kind):
    data = load_splits(folds, 1)
    leaves = {"num_leaves" if kind == "lightgbm" else "max_leaves": 7}
    one, other = (
        tree(kind, rounds=40, patience=3).boost(data, "ndcg@5", 0, leaves) for _ in range(2)
    )
    assert one.curve == other.curve
    assert one.best_round == 1 + int(np.argmax(one.curve))
    assert len(one.curve) in (40, one.best_round + 3)
    found = EvaluatedLists.of(one.predict(data["vali"].features), data["vali"], ["ndcg@5"])
    assert found.mean["ndcg@5"] == pytest.approx(max(one.curve))


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_a_missing_library_is_a_missing_run_that_says_how_to_get_it(
    plan, tmp_path, monkeypatch, kind
):
    monkeypatch.setitem(sys.modules, kind, None)
    found = run(plan(folds=(1,), entries=[tree(kind)]), tmp_path / "out", workers=0)
    assert f'{kind} is not installed: pip install "rankgrad[trees]"' in found.missing[kind, 1, 0]


ALIASES = {
    "lightgbm": {"eta": 0.1, "min_child_samples": 5, "reg_lambda": 2.0, "subsample_freq": 3},
    "xgboost": {"eta": 0.1, "reg_lambda": 2.0, "num_leaves": 7},
}
OWN = {
    "lightgbm": {"learning_rate": 0.1, "min_data_in_leaf": 5, "lambda_l2": 2.0, "bagging_freq": 3},
    "xgboost": {"learning_rate": 0.1, "lambda": 2.0, "max_leaves": 7},
}


@pytest.mark.parametrize("tune", [None, 1])
@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_options_under_an_alias_are_not_tuned(plan, tmp_path, monkeypatch, kind, tune):
    boosted, boost = [], boosters.boost

    def watched(train, vali, config):
        boosted[-1].append(dict(config.options))
        return boost(train, vali, config)

    monkeypatch.setattr(boosters, "boost", watched)
    for options in (ALIASES, OWN):
        boosted.append([])
        entry = TreeEntry(kind, kind, options[kind], rounds=2)
        found = run(
            plan(folds=(1,), entries=[entry], tune=tune), tmp_path / f"{len(boosted)}", workers=0
        )
        assert not found.missing
        chosen = set(found.chosen[kind, 1])
        assert chosen and not chosen & {*ALIASES[kind], *OWN[kind]}
    assert boosted[0] == boosted[1]
    for options in boosted[0]:  # each under one name alone
        assert options.items() >= {entry._resolve_alias(k): v for k, v in OWN[kind].items()}.items()
        assert len({entry._resolve_alias(name) for name in options}) == len(options)
    with pytest.raises(ValueError, match="names of one option, leave one out: eta, learning_rate"):
        TreeEntry(kind, kind, {"eta": 0.1, "learning_rate": 0.1})


def test_a_bagging_fraction_among_the_options_turns_bagging_on(folds):
    pytest.importorskip("lightgbm")
    data = load_splits(folds, 1)
    entry = TreeEntry("a", options={"subsample": 0.5, "min_data_in_leaf": 5}, rounds=3)
    saved = [
        entry.boost(data, "ndcg@5", seed, {}).predict(data["test"].features) for seed in (0, 1)
    ]
    assert not np.array_equal(*saved)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_options_that_the_library_would_ignore_are_refused(kind):
    pytest.importorskip(kind)
    with pytest.raises(
        ValueError, match=f"{kind} does not use these options: 'a_leaf', 'num_leafs'"
    ):
        TreeEntry("a", kind, {"num_leafs": 3, "eta": 0.1, "a_leaf": 1})
    with pytest.raises(ValueError, match="loss and the option objective are both objectives"):
        TreeEntry("a", kind, {"objective": "regression"}, loss="mse")


def test_a_value_that_xgboost_refuses():
    pytest.importorskip("xgboost")
    with pytest.raises(ValueError, match="xgboost refuses it: Invalid Parameter format for max_d"):
        TreeEntry("a", "xgboost", {"max_depth": "x"})


@pytest.mark.parametrize(
    ("kind", "other"), [("lightgbm", "rank_xendcg"), ("xgboost", "rank:pairwise")]
)
def test_an_objective_among_the_options_is_boosted(folds, kind, other):
    pytest.importorskip(kind)
    data = load_splits(folds, 1)
    entry = TreeEntry("a", kind, FIXED[kind] | {"objective": other}, rounds=3)
    assert other in entry.boost(data, "ndcg@5", 0, {}).saved.decode()
    assert entry.labels(Settings())["loss"] == other


def test_there_are_two_kinds():
    with pytest.raises(ValueError, match="kind must be one of 'lightgbm', 'xgboost'"):
        TreeEntry("CatBoost", "catboost")


def test_numbers_of_an_entry_are_checked_and_may_be_numpys():
    entry = TreeEntry("a", options={"num_leaves": np.int64(3)}, rounds=np.int64(2))
    assert json.loads(json.dumps(entry.metadata(Settings())))["options"] == {"num_leaves": 3}
    for wrong in ({"rounds": 0}, {"rounds": 1.5}, {"patience": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a whole number"):
            TreeEntry("a", **wrong)


def test_a_comparison_with_a_tuple_among_the_options_is_resumed(plan, tmp_path):
    options = FIXED["lightgbm"] | {"num_leaves": 7, "monotone_constraints": (0, 0, 0, 0, 0)}
    small = plan(folds=(1,), entries=[TreeEntry("trees", options=options, rounds=2)])
    for _ in range(2):
        assert not run(small, tmp_path / "out", workers=0).missing
