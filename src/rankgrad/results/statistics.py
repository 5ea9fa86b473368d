"""Statistics of one metric: its values list by list, their means and standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankgrad._shapes import Array

__all__ = ["MetricValues"]


@dataclass(frozen=True)
class MetricValues:
    """The values of a metric for one entry.

    Args:
        folds: the values ``[seeds, lists]`` of each fold; NaN where the metric leaves a list out.
        means: the mean of each run ``[folds, seeds]``.
    """

    folds: tuple[Array, ...]
    means: Array

    @classmethod
    def of(cls, folds: tuple[Array, ...]) -> MetricValues:
        """Of values alone; the mean of a run is that of its values."""
        return cls(folds, np.array([np.nanmean(values, 1) for values in folds]))

    @cached_property
    def per_list(self) -> Array:
        """The value of each list, averaged over seeds, all folds together."""
        return np.concatenate([values.mean(0) for values in self.folds])

    @property
    def mean(self) -> float:
        """The mean over folds and seeds of each run's mean over lists."""
        return float(self.means.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean: over folds, seeds averaged, or over seeds where there is one fold."""
        return _standard_error(self.means.mean(1) if len(self.means) > 1 else self.means[0])

    @property
    def error_over_lists(self) -> float:
        """The standard error over lists, seeds averaged."""
        return _standard_error(self.per_list[~np.isnan(self.per_list)])

    @property
    def error_over_seeds(self) -> float:
        """The standard error over seeds, folds averaged."""
        return _standard_error(self.means.mean(0))


def _standard_error(values: Array) -> float:
    """The standard error of a mean; NaN of fewer than two values.

    >>> from rankgrad.results.statistics import _standard_error
    >>> _standard_error(np.array([1.0, 3.0]))
    1.0
    """
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))
