"""Evaluations kept in run folders."""

import numpy as np
import pytest
from rewritten import rewrite

from rankgrad.data import Dataset
from rankgrad.training import evaluations
from rankgrad.training.evaluations import Evaluated

LISTS = Dataset(np.eye(5), [1, 0, 2, 0, 0], [0, 3, 5], ["a", "b"])
SCORES = [0.3, 0.2, 0.1, 0.5, 0.4]


@pytest.fixture
def saved(tmp_path):
    found = Evaluated.of(SCORES, LISTS, ["ndcg@2", "rr(empty=skip)"], {"loss": "mse", "seed": 1})
    found.save(tmp_path)
    return found, tmp_path


def test_comes_back_as_it_was(saved):
    found, run = saved
    again = Evaluated.load(run)
    assert again.mean == found.mean
    assert again.labels_of_run == {"loss": "mse", "seed": 1}
    np.testing.assert_array_equal(again.values, found.values)
    np.testing.assert_array_equal(again.scores, np.float32(SCORES))
    assert np.isnan(again.of_metric("rr(empty=skip)")[1])
    assert evaluations.names(run) == ["test"]


def test_says_what_is_missing(saved):
    found, run = saved
    with pytest.raises(FileNotFoundError, match="no evaluation 'vali'"):
        Evaluated.load(run, "vali")
    with pytest.raises(KeyError, match=r"'ap' was not evaluated; there are: ndcg@2"):
        found.of_metric("ap")


def test_another_version_is_named(saved):
    _, run = saved
    path = run / "evaluations" / "test" / "evaluation.json"
    rewrite(path, version=2)
    with pytest.raises(ValueError, match="another version of rankgrad"):
        Evaluated.load(run)


def test_damage_is_named(saved):
    _, run = saved
    path = run / "evaluations" / "test" / "values.npy"
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(ValueError, match=r"values\.npy is damaged"):
        Evaluated.load(run)
