"""Results: the evaluation of every run of a plan, their means, and how candidates differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankgrad import significance
from rankgrad.metrics import metrics as known_metrics
from rankgrad.significance import Interval, Significance
from rankgrad.training.evaluations import Evaluated

Key = tuple[str, int | None, int]  # candidate, fold, seed


@dataclass(frozen=True)
class Difference:
    """How a candidate differs from another, the reference, in a metric.

    ``difference`` is the mean over lists of candidate - reference, ``interval`` its 95% bootstrap
    interval, ``corrected`` the p-value after correction for the number of candidates.
    """

    candidate: str
    reference: str
    metric: str
    difference: float
    interval: Interval
    p_value: float
    corrected: float
    significant: bool
    better: bool


class Compared(Protocol):
    """What results need of a :class:`rankgrad.experiments.plans.Plan`."""

    @property
    def candidates(self) -> Sequence[Any]:
        """Each with a name."""
        ...

    @property
    def folds(self) -> tuple[int | None, ...]:
        """The folds, in order."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics, in order."""

    @property
    def tune(self) -> int | None:
        """The trials of a search; None where nothing is tuned."""

    @property
    def settings(self) -> Any:
        """The settings that all runs share."""

    def candidate(self, name: str) -> Any:
        """The candidate of this name."""
        ...

    def facts(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        ...


@dataclass(frozen=True)
class Results:
    """What a comparison found: the evaluation of every run, or the reason why there is none.

    Means are over runs (folds × seeds) of each run's mean over its lists, and are NaN where a run
    is missing: what is missing is never averaged away. Tests, intervals and differences take the
    value of each list averaged over seeds, all folds' lists together.
    """

    plan: Compared
    folder: Path
    evaluated: Mapping[Key, Evaluated]
    gaps: Mapping[Key, str]
    chosen: Mapping[tuple[str, int | None], Mapping[str, Any]]  # tuned values, by candidate, fold
    remade: Mapping[Key, str] = field(default_factory=dict)  # why runs were evaluated again

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates in the order of the plan."""
        return tuple(candidate.name for candidate in self.plan.candidates)

    def is_complete(self, candidate: str) -> bool:
        """Whether all runs of a candidate are there."""
        self.plan.candidate(candidate)
        return not any(name == candidate for name, _, _ in self.gaps)

    def runs(self, candidate: str, metric: str) -> NDArray[np.float64]:
        """The mean of each run, ``[folds, seeds]``; NaN where there is a gap."""
        self.plan.candidate(candidate)
        found = [
            [self._mean(candidate, fold, seed, metric) for seed in self.plan.seeds]
            for fold in self.plan.folds
        ]
        return np.array(found)

    def _mean(self, candidate: str, fold: int | None, seed: int, metric: str) -> float:
        evaluated = self.evaluated.get((candidate, fold, seed))
        return float("nan") if evaluated is None else evaluated.mean[metric]

    def mean(self, candidate: str, metric: str) -> float:
        """The mean over all runs; NaN if one is missing."""
        return float(self.runs(candidate, metric).mean())

    def standard_error(self, candidate: str, metric: str) -> float:
        """Of the mean: over folds, seeds averaged, or over seeds where there is one fold."""
        runs = self.runs(candidate, metric)
        means = runs.mean(1) if len(self.plan.folds) > 1 else runs[0]
        if len(means) < 2:
            return float("nan")
        return float(means.std(ddof=1) / np.sqrt(len(means)))

    def values(self, candidate: str, metric: str) -> NDArray[np.float64]:
        """The value of each list, averaged over seeds, all folds together."""
        self._check_complete(candidate)
        folds = [
            np.mean([self.evaluated[candidate, f, s].of_metric(metric) for s in self.plan.seeds], 0)
            for f in self.plan.folds
        ]
        return np.concatenate(folds)

    def queries(self, candidate: str) -> list[str]:
        """The query ids in the order of :meth:`values`, ``fold/qid`` where there are folds."""
        self._check_complete(candidate)
        found = []
        for fold in self.plan.folds:
            prefix = "" if fold is None else f"{fold}/"
            qids = self.evaluated[candidate, fold, self.plan.seeds[0]].qids
            found += [f"{prefix}{qid}" for qid in qids]
        return found

    def _check_complete(self, candidate: str) -> None:
        self.plan.candidate(candidate)
        for (name, fold, seed), reason in self.gaps.items():
            if name == candidate:
                raise ValueError(f"{run_name(name, fold, seed)} is missing: {reason}")

    def interval(self, candidate: str, metric: str) -> Interval:
        """The 95% bootstrap interval of the mean over lists."""
        return significance.bootstrap_interval(self.values(candidate, metric))

    def best(self, metric: str) -> str | None:
        """The candidate with the best mean among those without gaps; None if all have some."""
        lower = known_metrics.get(metric).lower_is_better
        means = {n: self.mean(n, metric) for n in self.names if self.is_complete(n)}
        means = {name: mean for name, mean in means.items() if not np.isnan(mean)}
        if not means:
            return None
        return (min if lower else max)(means, key=lambda name: means[name])

    def differences(
        self,
        metric: str,
        *,
        baseline: str | None = None,
        how: Significance | None = None,
    ) -> tuple[Difference, ...]:
        """Every other candidate without gaps against the baseline, or against the best one."""
        how = how or Significance()
        reference = self.best(metric) if baseline is None else baseline
        if reference is None or not self.is_complete(reference):
            return ()
        others = [n for n in self.names if n != reference and self.is_complete(n)]
        sign = -1.0 if known_metrics.get(metric).lower_is_better else 1.0
        theirs = self.values(reference, metric)
        found, apart = [], []
        for name in others:
            names = (name, reference)
            significance.check_same_queries(
                self.queries(name), self.queries(reference), names=names
            )
            mine = self.values(name, metric)
            apart.append(sign * (mine - theirs))
            interval = significance.difference_interval(mine, theirs)
            found.append((name, float(np.nanmean(mine - theirs)), interval))
        if not found:
            return ()
        p_values = how.p_values(np.stack(apart, axis=1), better=baseline is not None).tolist()
        corrected = significance.correct(p_values, how.correction)
        return tuple(
            Difference(
                candidate=name,
                reference=reference,
                metric=metric,
                difference=difference,
                interval=interval,
                p_value=p,
                corrected=float(after),
                significant=bool(after < how.level),
                better=sign * difference > 0,
            )
            for (name, difference, interval), p, after in zip(
                found, p_values, corrected, strict=True
            )
        )


def run_name(candidate: str, fold: int | None, seed: int) -> str:
    """A run in words."""
    return f"{candidate}{'' if fold is None else f', fold {fold}'}, seed {seed}"
