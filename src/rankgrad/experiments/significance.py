"""How sure a mean over lists is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_CELLS = 1 << 24  # resampled counts held at a time


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def bootstrap_interval(
    values: Any, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The percentile bootstrap interval of the mean of a metric over lists.

    The lists are drawn anew with replacement ``samples`` times; the interval spans the middle
    ``level`` of the means. It says how much the mean would move with other queries, not with
    another training seed.

    Args:
        values: one per list; NaN marks lists that the metric leaves out.
        level: the share of means inside.
        samples: how many times to draw.
        seed: of the draws.

    >>> from rankgrad.experiments.significance import bootstrap_interval
    >>> low, high = bootstrap_interval([0.0, 1.0] * 200)
    >>> 0.44 < low < 0.5 < high < 0.56
    True
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return Interval(float("nan"), float("nan"))
    random = np.random.default_rng(seed)
    shares = np.full(len(known), 1 / len(known))
    height = max(1, _CELLS // len(known))
    means = [
        random.multinomial(len(known), shares, min(height, samples - start)) @ known / len(known)
        for start in range(0, samples, height)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
