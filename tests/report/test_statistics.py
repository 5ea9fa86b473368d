"""Intervals and tests against their slow forms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from rankgrad.experiments.significance import bootstrap_interval
from rankgrad.report.statistics import holm, intervals, randomisation


def test_intervals_are_the_bootstraps():
    values = np.random.default_rng(0).random((50, 3))
    for column, edges in zip(values.T, intervals(values), strict=True):
        assert edges == pytest.approx(bootstrap_interval(column), abs=1e-12)


def test_intervals_leave_out_what_is_not_there():
    values = np.random.default_rng(0).random((400, 2))
    values[::2, 1] = np.nan
    values[1::2, 1] = values[1::2, 0]
    _, narrow = intervals(values)
    assert narrow == pytest.approx(bootstrap_interval(values[1::2, 0]), abs=0.01)
    assert np.isnan(intervals(np.full((5, 1), np.nan))).all()
    assert np.isnan(intervals(np.zeros((0, 1)))).all()


def test_randomisation_comes_near_all_sign_changes():
    differences = np.random.default_rng(1).normal(0.3, 1, (12, 2))
    differences[3, 1] = np.nan
    for column, p in zip(differences.T, randomisation(differences), strict=True):
        known = column[~np.isnan(column)]
        signs = np.array(list(product([-1, 1], repeat=len(known))))
        exact = (np.abs(signs @ known) >= abs(known.sum()) - 1e-12).mean()
        assert p == pytest.approx(exact, abs=0.02)


def test_randomisation_does_not_find_what_is_not_there():
    noise = np.random.default_rng(2).normal(size=(200, 400))
    assert 0.02 < (randomisation(noise, samples=1000) < 0.05).mean() < 0.09


def test_holm_is_between_none_and_bonferroni():
    p = np.array([0.001, 0.02, 0.03, 0.5])
    assert holm(p) == pytest.approx([0.004, 0.06, 0.06, 0.5])
    assert np.isnan(holm(np.array([np.nan]))).all()
