"""Intervals against their slow forms."""

from __future__ import annotations

import numpy as np
import pytest

from rankgrad.report.statistics import intervals
from rankgrad.significance import bootstrap_interval


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
