"""When to stop waiting for a better epoch."""

from __future__ import annotations

import numpy as np
import pytest

from rankgrad.training.settings import AUTO_PATIENCE
from rankgrad.training.stopping import is_over


def epochs(patience, values, steps=20):
    """How many epochs of a curve are trained."""
    return next(n for n in range(1, len(values) + 1) if is_over(patience, values[:n], steps))


def curve(level, noise=0.0, seed=0, length=200):
    return [*level, *(level[-1] + noise * np.random.default_rng(seed).standard_normal(length))]


def test_noise_around_a_level_is_not_waited_for():
    level, draws = [0.3, 0.4, 0.45, 0.47, 0.48], range(20)
    values = [curve(level, noise=0.004, seed=seed) for seed in draws]
    assert np.median([epochs("auto", each) for each in values]) <= 20
    assert np.median([epochs(AUTO_PATIENCE, each) for each in values]) >= 35


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rise_is_waited_for_though_it_is_noisy(seed):
    rise = 0.6 - 0.1 * np.exp(-np.arange(80) / 25)
    values = rise + 0.003 * np.random.default_rng(seed).standard_normal(80)
    assert epochs("auto", curve(list(values))) > 50


@pytest.mark.parametrize(
    ("level", "steps", "expected"),
    [
        (1, 20, 1 + 3),
        (1, 15, 1 + 4),  # 60 steps
        (1, 1, 1 + 20),
        (10, 20, 10 + 2 + 2 * 12 // 3 + 3),  # the average rises for two epochs longer
        (100, 20, 100 + 2 + 20),
    ],
)
@pytest.mark.parametrize("scale", [0.01, -30])  # of metrics of any scale, lower ones better, too
def test_auto_waits_in_proportion(level, steps, expected, scale):
    values = [scale * (1.2 if scale > 0 else 0.8) ** n for n in range(level)]
    assert epochs("auto", curve(values), steps) == expected


def test_a_number_counts_epochs_without_a_better_value():
    values = [0.1, 0.3, 0.3, 0.2, 0.31, 0.1, 0.1, 0.1]
    assert epochs(2, values) == 4
    assert epochs(3, values) == 8
    assert not is_over(None, values, steps=1)
    assert not is_over(1, [], steps=1)
