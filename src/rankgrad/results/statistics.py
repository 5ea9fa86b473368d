"""Statistics of one metric for one entry: values by list, their means and standard errors.

An entry of a comparison, such as a loss with a model, has one run for each fold and seed.
:class:`rankgrad.results.comparison.Comparison` and :mod:`rankgrad.papers.reproduce` make the
statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankgrad._shapes import Array

__all__ = ["MetricValues", "mean_of_defined"]


@dataclass(frozen=True)
class MetricValues:
    """The values of a metric for one entry.

    Args:
        folds: for each fold the values ``[seeds, lists]``; NaN where the metric leaves a list out.
        means: the mean over lists of each run, ``[folds, seeds]``.
    """

    folds: tuple[Array, ...]
    means: Array

    @classmethod
    def of(cls, folds: tuple[Array, ...]) -> MetricValues:
        """From values alone: the mean of a run is over its lists whose value is not NaN.

        Args:
            folds: for each fold the values ``[seeds, lists]``; NaN where the metric leaves a list
                out.

        Returns:
            The values with the means of the runs.
        """
        return cls(folds, np.array([mean_of_defined(values.T) for values in folds]))

    @cached_property
    def per_list(self) -> Array:
        """The value of each list ``[lists of all folds]``, averaged over seeds; NaN if left out."""
        return np.concatenate([values.mean(0) for values in self.folds])

    @property
    def mean(self) -> float:
        """The mean over folds and seeds of each run's mean over lists."""
        return float(self.means.mean())

    @property
    def standard_error(self) -> float:
        """The standard error over folds, seeds averaged; over seeds if there is only one fold."""
        return _standard_error(self.means.mean(1) if len(self.means) > 1 else self.means[0])

    @property
    def error_over_lists(self) -> float:
        """The standard error over lists, seeds averaged."""
        return _standard_error(self.per_list[~np.isnan(self.per_list)])

    @property
    def error_over_seeds(self) -> float:
        """The standard error over seeds, folds averaged."""
        return _standard_error(self.means.mean(0))

    @property
    def deviation_over_folds(self) -> float:
        """The standard deviation between folds, seeds averaged."""
        return _deviation(self.means.mean(1))


def _deviation(values: Array) -> float:
    """The standard deviation of a sample ``[n]``; NaN if there are fewer than two values."""
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def mean_of_defined(rows: Array) -> Array:
    """The mean of each column without NaN.

    Args:
        rows: ``[rows, columns]``.

    Returns:
        ``[columns]``; NaN for a column without any number.
    """
    defined = ~np.isnan(rows)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, rows, 0.0).sum(0) / defined.sum(0))


def _standard_error(values: Array) -> float:
    """The standard error of the mean of values ``[n]``; NaN if there are fewer than two.

    >>> from rankgrad.results.statistics import _standard_error
    >>> _standard_error(np.array([1.0, 3.0]))
    1.0
    """
    return float(_deviation(values) / np.sqrt(max(len(values), 1)))
