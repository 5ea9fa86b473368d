"""Learning curves: an entry's runs as a line and a band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.losses import RelaxedMetric, losses
from rankgrad.results._groups import RunGroup
from rankgrad.results.runs import Run

Values = NDArray[np.float64]

POINTS = 150  # of a line, at most
_NOT_METRICS = ("epoch", "loss", "learning_rate", "seconds")


def curves(entries: Sequence[RunGroup]) -> dict[str, Any]:
    """The validation metrics and the training loss of all entries, epoch by epoch.

    The line is the mean over runs; one that has stopped counts with its last value, as a mean over
    the others would be of other folds. The band spans the seeds, each averaged over its folds; with
    one seed it spans the folds.
    """
    series: list[dict[str, Any]] = []
    for at, entry in enumerate(entries):
        runs = [run for run in entry.runs if run.history]
        if runs:
            names = dict.fromkeys(n for run in runs for line in run.history for n in line)
            logged = [n for n in names if n not in _NOT_METRICS] + ["loss"]
            lines = {name: band(runs, name) for name in logged if name in names}
            ends = min(len(run.history) for run in runs)
            over = "seeds" if len({run.seed for run in runs}) > 1 else "folds"
            row = {"entry": at, "over": over, "ends": ends, "lines": lines}
            series.append({**row, "trees": entry.is_tree})
    every = dict.fromkeys(name for row in series for name in row["lines"] if name != "loss")
    return {"metrics": list(every), "series": series}


def band(runs: Sequence[Run], name: str, flip: bool = False) -> dict[str, list[float | None]]:
    """The mean of a value over runs at each epoch, and the band around it.

    Args:
        runs: with a history.
        name: of the value in the history.
        flip: take one minus the value.
    """
    length = max(len(run.history) for run in runs)
    groups: dict[Any, list[Values]] = defaultdict(list)
    for run in runs:
        row = np.full(length, np.nan)
        values = [line.get(name, np.nan) for line in run.history]
        row[: len(values)], row[len(values) :] = values, values[-1]
        groups[run.seed].append(1 - row if flip else row)
    rows = np.concatenate([np.stack(group) for group in groups.values()])
    spread = np.stack([_mean(np.stack(group)) for group in groups.values()])
    spread = rows if len(spread) == 1 else spread
    at = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    low, high = np.fmin.reduce(spread, 0), np.fmax.reduce(spread, 0)
    return {
        "epoch": [int(epoch) + 1 for epoch in at],
        "mean": numbers(_mean(rows)[at]),
        "low": numbers(low[at]),
        "high": numbers(high[at]),
    }


def relaxed(entries: Sequence[RunGroup], metric: str | None) -> list[dict[str, Any]]:
    """For losses that are a metric through a relaxation, its value beside the exact metric.

    The relaxed one is that of training, 1 - loss, or the loss where lower is better; the exact one
    is of validation: the loss's own metric where it was logged, or the nearest to it.
    """
    relaxed_curves = []
    for at, entry in enumerate(entries):
        runs = [run for run in entry.runs if run.history]
        loss = _relaxed_loss(entry.loss)
        if runs and loss is not None:
            exact = _nearest(str(loss.metric), runs, metric)
            if exact is not None:
                relaxed_curves.append(
                    {
                        "entry": at,
                        "metric": str(loss.metric),
                        "exact_metric": exact,
                        "relaxed": band(runs, "loss", flip=not loss.metric.lower_is_better),
                        "exact": band(runs, exact),
                    }
                )
    return relaxed_curves


def _relaxed_loss(spec: str) -> RelaxedMetric | None:
    try:
        loss = losses.get(spec) if spec else None
    except ValueError:  # of another version, or of the user's own
        return None
    return loss if isinstance(loss, RelaxedMetric) else None


def _nearest(metric: str, runs: Sequence[Run], other: str | None) -> str | None:
    """The validation metric to compare with a relaxed one."""
    logged = [name for name in runs[0].history[0] if name not in _NOT_METRICS]
    if metric in logged:
        return metric
    family = metric.partition("@")[0].partition("(")[0]
    alike = [name for name in logged if name.partition("@")[0].partition("(")[0] == family]
    deepest = sorted(alike, key=_cutoff)
    if deepest:
        return deepest[-1]
    return other if other in logged else next(iter(logged), None)


def _cutoff(name: str) -> float:
    digits = name.partition("@")[2].partition("(")[0]
    return float(digits) if digits.isdigit() else float("inf")


def _mean(rows: Values) -> Values:
    """The mean of each column, NaN left out."""
    known = ~np.isnan(rows)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, rows, 0.0).sum(0) / known.sum(0))


def numbers(values: Values) -> list[float | None]:
    """Numbers for JSON, in six digits; NaN becomes null."""
    return [None if np.isnan(v) else float(f"{v:.6g}") for v in values.tolist()]
