from __future__ import annotations

import numpy as np
import pytest

from rankgrad.experiments.significance import bootstrap_interval


def test_agrees_with_scipy():
    from scipy.stats import bootstrap

    values = np.random.default_rng(0).beta(0.5, 0.5, 300)
    theirs = bootstrap((values,), np.mean, method="percentile", n_resamples=5000, rng=0)
    ours = bootstrap_interval(values, samples=5000)
    expected = theirs.confidence_interval
    assert ours == pytest.approx((expected.low, expected.high), abs=0.004)


def test_skipped_lists_do_not_count():
    values = np.array([0.2, np.nan, 0.4, 0.9])
    assert bootstrap_interval(values) == bootstrap_interval(values[[0, 2, 3]])
    assert np.isnan(bootstrap_interval([np.nan])).all()


def test_the_seed_decides():
    values = np.random.default_rng(0).random(50)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)
