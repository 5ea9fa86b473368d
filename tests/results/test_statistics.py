"""Intervals of many entries at once against those of one."""

import numpy as np
import pytest

from rankgrad.results.statistics import intervals
from rankgrad.significance import bootstrap_interval, bootstrap_intervals


def test_intervals_are_those_of_each_entry_alone():
    values = dict(enumerate(np.random.default_rng(0).random((3, 50))))
    for name, ends in intervals(values).items():
        assert ends == pytest.approx(bootstrap_interval(values[name]), abs=1e-12)


def test_intervals_leave_out_what_is_not_there():
    values = dict(enumerate(np.random.default_rng(0).random((2, 400))))
    values[1][::2] = np.nan
    found = intervals(values)
    assert found[1] == pytest.approx(bootstrap_interval(values[1][1::2]), abs=1e-12)
    assert found[0] == pytest.approx(bootstrap_interval(values[0]), abs=1e-12)
    assert np.isnan(intervals({"none": np.full(5, np.nan)})["none"]).all()
    assert np.isnan(bootstrap_intervals(np.zeros((0, 1)))).all()
