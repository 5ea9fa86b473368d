"""Statistics of one metric: its values list by list, their means, and how entries differ in it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rankgrad.significance import Interval, Significance, bootstrap_intervals, correct

Array = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


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
        return standard_error(self.means.mean(1) if len(self.means) > 1 else self.means[0])

    @property
    def error_over_lists(self) -> float:
        """The standard error over lists, seeds averaged."""
        return standard_error(self.per_list[~np.isnan(self.per_list)])

    @property
    def error_over_seeds(self) -> float:
        """The standard error over seeds, folds averaged."""
        return standard_error(self.means.mean(0))


def standard_error(values: Array) -> float:
    """The standard error of a mean; NaN of fewer than two values.

    >>> from rankgrad.results.statistics import standard_error
    >>> standard_error(np.array([1.0, 3.0]))
    1.0
    """
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


@dataclass(frozen=True)
class Difference:
    """How an entry differs from another, the reference, in a metric.

    ``difference`` is the mean over lists of entry - reference, ``interval`` its 95% bootstrap
    interval, ``corrected`` the p-value after correction for the number of entries. The p-values are
    NaN where fewer than two lists count.
    """

    entry: str
    reference: str
    metric: str
    difference: float
    interval: Interval
    p_value: float
    corrected: float
    significant: bool
    better: bool


def intervals(values: Mapping[Key, Array]) -> dict[Key, Interval]:
    """95% bootstrap intervals of means over lists; values that leave out the same share the draws.

    Args:
        values: one per list under each key; NaN marks lists that are left out.
    """
    alike: dict[bytes, list[Key]] = {}
    for key, own in values.items():
        alike.setdefault(np.isnan(own).tobytes(), []).append(key)
    found: dict[Key, Interval] = {}
    for keys in alike.values():
        columns = np.stack([values[key] for key in keys], axis=1)
        ends = bootstrap_intervals(columns[~np.isnan(columns[:, 0])])
        found |= {key: Interval(*own) for key, own in zip(keys, ends.tolist(), strict=True)}
    return found


def differences(
    values: Mapping[str, Array],
    reference: str,
    metric: str,
    how: Significance,
    *,
    lower_is_better: bool = False,
    better: bool = False,
    ends: Mapping[str, Interval] | None = None,
) -> tuple[Difference, ...]:
    """Test every other entry against the reference, on the same lists.

    Args:
        values: of each entry, one per list; NaN marks lists that the metric leaves out.
        reference: one of them.
        metric: its name.
        how: the test.
        lower_is_better: of the metric.
        better: what a one-sided test asks: whether entries are better than the reference, or worse.
        ends: the intervals of the differences, where they are known.
    """
    others = {name: own - values[reference] for name, own in values.items() if name != reference}
    if not others:
        return ()
    apart = np.stack(list(others.values()), axis=1)
    sign = -1.0 if lower_is_better else 1.0
    lists = int((~np.isnan(apart).any(1)).sum())
    p = np.full(len(others), np.nan)
    corrected = p
    if lists > 1:
        p = how.p_values(sign * apart, better)
        corrected = correct(p, how.correction)
    ends = intervals(others) if ends is None else ends
    means = {name: float(np.nanmean(own)) if lists else np.nan for name, own in others.items()}
    return tuple(
        Difference(
            entry=name,
            reference=reference,
            metric=metric,
            difference=means[name],
            interval=ends[name],
            p_value=before,
            corrected=after,
            significant=after < how.level,
            better=sign * means[name] > 0,
        )
        for name, before, after in zip(others, p.tolist(), corrected.tolist(), strict=True)
    )
