"""The comparison: means with intervals, and tests against the best or a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.metrics import metrics as known_metrics
from rankgrad.report import statistics
from rankgrad.report.candidates import Candidate, common_parts, fold_names, leave_out
from rankgrad.report.runs import Run
from rankgrad.significance import Significance, correct

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Candidates on the same queries. Arrays are ``[candidates, metrics]``, NaN where none is.

    ``values`` is ``[metrics, queries, candidates]``: each query's, the mean over the seeds.
    ``against`` is the candidate that others are tested against, for each metric.
    """

    candidates: tuple[Candidate, ...]
    complete: tuple[bool, ...]
    parts: tuple[str, ...]
    part_names: tuple[str, ...]
    metrics: tuple[str, ...]
    lower: tuple[bool, ...]
    primary: int
    qids: tuple[str, ...]
    part_of: NDArray[np.int64]
    values: Values
    mean: Values
    low: Values
    high: Values
    p: Values
    against: tuple[int | None, ...]
    baseline: int | None
    how: Significance
    conventions: tuple[str, ...]
    empty: tuple[str, ...]  # queries without documents

    def has(self, candidate: int, metric: int) -> bool:
        """Whether a candidate has a value of a metric."""
        return not bool(np.isnan(self.mean[candidate, metric]))


def compare(
    candidates: Sequence[Candidate],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    usual: str | None = None,
    how: Significance | None = None,
) -> Comparison:
    """Compare candidates on the queries that they share; each must have all of them.

    Args:
        candidates: to be compared; what they lack is added to their gaps.
        metric: that of the headline.
        baseline: the candidate to test the others against; an error if it cannot be compared.
        usual: the baseline where none is given, if it can be compared.
        how: the test.
    """
    parts = common_parts(candidates)
    complete = leave_out(candidates, parts)
    if not any(complete):
        parts = []  # each lacks something: there is nothing but gaps to show
    how = how or Significance()
    if baseline is None and any(
        ok and c.name == usual for c, ok in zip(candidates, complete, strict=True)
    ):
        baseline = usual
    names = _metrics(candidates, complete)
    lower = tuple(_is_lower_better(name) for name in names)
    primary = _primary(candidates, names, metric)
    values = _values(candidates, complete, parts, names)
    first = [_first(candidates, complete, part) for part in parts]
    part_of = np.repeat(np.arange(len(parts)), [len(_evaluated(run).qids) for run in first])
    mean, low, high = _means(values, part_of), *_intervals(values)
    at = _baseline(candidates, complete, baseline)
    free = [ok and not c.is_reference for ok, c in zip(complete, candidates, strict=True)]
    against = tuple(
        at if at is not None else _best(mean[:, m], lower[m], free) for m in range(len(names))
    )
    folds = fold_names(run for c in candidates for run in c.runs)
    return Comparison(
        candidates=tuple(candidates),
        complete=tuple(complete),
        parts=tuple(parts),
        part_names=tuple(folds[part] for part in parts),
        metrics=names,
        lower=lower,
        primary=primary,
        qids=tuple(str(qid) for run in first for qid in _evaluated(run).qids),
        part_of=part_of,
        values=values,
        mean=mean,
        low=low,
        high=high,
        p=_tests(values, against, free, lower, how, better=at is not None),
        against=against,
        baseline=at,
        how=how,
        conventions=_evaluated(first[0]).conventions if first else (),
        empty=tuple(qid for run in first for qid in _without_documents(run)),
    )


def _evaluated(run: Run) -> Any:
    assert run.evaluated is not None
    return run.evaluated


def _without_documents(run: Run) -> list[str]:
    found = _evaluated(run)
    return [str(qid) for qid in found.qids[np.diff(found.offsets) == 0]]


def _first(candidates: Sequence[Candidate], complete: Sequence[bool], part: str) -> Run:
    return next(
        run
        for candidate, ok in zip(candidates, complete, strict=True)
        for (own, _), run in candidate.evaluated.items()
        if ok and own == part
    )


def _metrics(candidates: Sequence[Candidate], complete: Sequence[bool]) -> tuple[str, ...]:
    """All metrics of those compared; one that some run of a candidate lacks is a gap of its."""
    used = [c for c, ok in zip(candidates, complete, strict=True) if ok]
    names = dict.fromkeys(m for c in used for run in c.evaluated.values() for m in _of(run))
    for candidate in used:
        for name in names:
            if any(name not in _of(run) for run in candidate.evaluated.values()):
                candidate.gaps.append(f"{name} was not evaluated in all of its runs")
    return tuple(names)


def _of(run: Run) -> tuple[str, ...]:
    found: tuple[str, ...] = _evaluated(run).metrics
    return found


def _is_lower_better(name: str) -> bool:
    try:
        return known_metrics.get(name).lower_is_better
    except ValueError:  # a metric of the user's own
        return False


def _primary(candidates: Sequence[Candidate], names: Sequence[str], asked: str | None) -> int:
    """The metric of the headline: the one asked for, or that chose the epochs, or the first."""
    if asked is not None:
        if asked not in names:
            raise ValueError(
                f"{asked!r} was not evaluated; there are: {', '.join(names) or 'none'}"
            )
        return list(names).index(asked)
    every = (run.settings.get("metric") for c in candidates for run in c.runs)
    chose = {str(name) for name in every if name is not None}
    chosen = [list(names).index(name) for name in chose if name in names]
    return chosen[0] if len(chose) == len(chosen) == 1 else 0


def _values(
    candidates: Sequence[Candidate],
    complete: Sequence[bool],
    parts: Sequence[str],
    names: Sequence[str],
) -> Values:
    columns = []
    queries = sum(len(_evaluated(_first(candidates, complete, part)).qids) for part in parts)
    for candidate, ok in zip(candidates, complete, strict=True):
        if ok:
            rows = [_over_seeds(candidate, part, names) for part in parts]
            columns.append(np.concatenate(rows, axis=0))
        else:
            columns.append(np.full((queries, len(names)), np.nan))
    return np.stack(columns, axis=-1).transpose(1, 0, 2)


def _over_seeds(candidate: Candidate, part: str, names: Sequence[str]) -> Values:
    """The mean over seeds of each query's values on one part, ``[B, M]``."""
    there = {seed: run for (own, seed), run in candidate.evaluated.items() if own == part}
    runs = [there[seed] for seed in candidate.seeds if seed in there]
    columns = []
    for name in names:
        if all(name in _of(run) for run in runs):
            columns.append(np.mean([_evaluated(run).of_metric(name) for run in runs], axis=0))
        else:
            columns.append(np.full(len(_evaluated(runs[0]).qids), np.nan))
    return np.stack(columns, axis=-1)


def _means(values: Values, part_of: NDArray[np.int64]) -> Values:
    """The mean over folds of the means over their queries, ``[candidates, metrics]``."""
    count, _, candidates = values.shape
    total, folds = np.zeros((count, candidates)), int(part_of.max(initial=-1)) + 1
    for part in range(folds):
        inside = values[:, part_of == part]
        known = ~np.isnan(inside)
        with np.errstate(invalid="ignore"):
            total += np.where(known, inside, 0.0).sum(1) / known.sum(1)
    return total.T / folds if folds else np.full((candidates, count), np.nan)


def _intervals(values: Values) -> tuple[Values, Values]:
    """Bootstrap intervals over the queries of all folds together, ``[candidates, metrics]``."""
    count, queries, candidates = values.shape
    flat = values.transpose(1, 2, 0).reshape(queries, candidates * count)
    low, high = statistics.intervals(flat).T.reshape(2, candidates, count)
    return low, high


def _baseline(
    candidates: Sequence[Candidate], complete: Sequence[bool], asked: str | None
) -> int | None:
    if asked is None:
        return None
    names = [candidate.name for candidate in candidates]
    alike = [name for name in names if name.casefold() == asked.casefold()]
    if asked not in names and len(alike) != 1:
        raise ValueError(f"there is no candidate {asked!r}. There are: {', '.join(names)}")
    at = names.index(asked if asked in names else alike[0])
    if not complete[at]:
        raise ValueError(f"{asked} cannot be the baseline: {candidates[at].gaps[-1]}")
    return at


def _best(mean: Values, lower: bool, free: Sequence[bool]) -> int | None:
    """The best candidate of those that compete."""
    signed = np.where(np.asarray(free, bool) & ~np.isnan(mean), -mean if lower else mean, -np.inf)
    return int(signed.argmax()) if np.isfinite(signed).any() else None


def _tests(
    values: Values,
    against: Sequence[int | None],
    free: Sequence[bool],
    lower: Sequence[bool],
    how: Significance,
    *,
    better: bool,
) -> Values:
    """Corrected p-values of paired tests, metric by metric, ``[candidates, metrics]``."""
    p = np.full((values.shape[2], values.shape[0]), np.nan)
    for m, other in enumerate(against):
        if other is None:
            continue
        apart = (values[m] - values[m][:, [other]]) * (-1 if lower[m] else 1)
        enough = (~np.isnan(apart)).sum(0) >= 2  # lists, which is what a t-test needs
        tested = [c for c in range(len(p)) if c != other and free[c] and enough[c]]
        if tested:
            p[tested, m] = correct(how.p_values(apart[:, tested], better), how.correction)
    return p
