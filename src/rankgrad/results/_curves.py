"""Learning curves: for each entry of a comparison, the mean of its runs and a band around it.

The report draws them; the dictionaries here are the JSON that ``report/page.js`` reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.losses import RelaxedMetric, losses
from rankgrad.results._groups import RunGroup
from rankgrad.results.runs import Run
from rankgrad.results.statistics import mean_of_defined

Values = NDArray[np.float64]

_POINTS = 150  # the most points of a line
_NOT_METRICS = ("epoch", "loss", "learning_rate", "seconds")  # in a line of a history


def curves(entries: Sequence[RunGroup]) -> dict[str, Any]:
    """The validation metrics and the training loss of all entries, epoch by epoch.

    The line is the mean over runs. A run that has stopped early counts with its last value; if it
    were left out, the mean would be over other folds than before. The band spans the seeds, each
    averaged over its folds; with one seed it spans the folds.

    Returns:
        ``metrics``, the names of all metrics, and ``series``, one for each entry with a history:
        the index of the ``entry``, its ``lines`` (see :func:`band`) by metric and for ``loss``,
        what the band is ``over`` (``seeds`` or ``folds``), the epoch at which the first run
        ``ends``, and whether epochs are ``trees``.
    """
    series: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        runs = [run for run in entry.runs if run.history]
        if not runs:
            continue
        names = dict.fromkeys(name for run in runs for line in run.history for name in line)
        logged = [name for name in names if name not in _NOT_METRICS] + ["loss"]
        series.append(
            {
                "entry": index,
                "over": "seeds" if len({run.seed for run in runs}) > 1 else "folds",
                "ends": min(len(run.history) for run in runs),
                "lines": {name: band(runs, name) for name in logged if name in names},
                "trees": entry.is_tree,
            }
        )
    metrics = dict.fromkeys(name for one in series for name in one["lines"] if name != "loss")
    return {"metrics": list(metrics), "series": series}


def band(runs: Sequence[Run], name: str, flip: bool = False) -> dict[str, list[float | None]]:
    """The mean of a value over runs at each epoch, and the band around it.

    Args:
        runs: runs with a history.
        name: the name of the value in the history.
        flip: whether to take one minus the value.

    Returns:
        Lists of the same length, at most ``_POINTS``: ``epoch`` (from 1), ``mean``, ``low`` and
        ``high``.
    """
    length = max(len(run.history) for run in runs)
    by_seed: dict[Any, list[Values]] = defaultdict(list)
    for run in runs:
        row = np.full(length, np.nan)
        values = [line.get(name, np.nan) for line in run.history]
        row[: len(values)], row[len(values) :] = values, values[-1]
        by_seed[run.seed].append(1 - row if flip else row)
    rows = np.concatenate([np.stack(group) for group in by_seed.values()])
    seed_means = np.stack([mean_of_defined(np.stack(group)) for group in by_seed.values()])
    spanned = rows if len(seed_means) == 1 else seed_means
    low, high = np.fmin.reduce(spanned, 0), np.fmax.reduce(spanned, 0)
    drawn = np.unique(np.linspace(0, length - 1, min(length, _POINTS)).round().astype(int))
    return {
        "epoch": [int(epoch) + 1 for epoch in drawn],
        "mean": numbers(mean_of_defined(rows)[drawn]),
        "low": numbers(low[drawn]),
        "high": numbers(high[drawn]),
    }


def relaxed(entries: Sequence[RunGroup], metric: str | None) -> list[dict[str, Any]]:
    """The curves of losses that relax a metric, beside those of the exact metric.

    The relaxed value is that of training: 1 - loss, or the loss itself for a metric of which lower
    is better. The exact one is that of validation: the loss's own metric if it was logged, else
    the most similar one.

    Args:
        entries: the entries of the report.
        metric: the metric of the headline, which is taken if no logged metric is similar.

    Returns:
        For each such loss the index of its ``entry``, the ``metric`` that it relaxes, the
        ``exact_metric`` beside it, and the bands ``relaxed`` and ``exact`` (see :func:`band`).
    """
    relaxed_curves: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        # Boosted trees log no loss.
        runs = [run for run in entry.runs if run.history and "loss" in run.history[0]]
        loss = _relaxed_loss(entry.loss)
        if not runs or loss is None:
            continue
        exact = _most_similar(str(loss.metric), runs, metric)
        if exact is not None:
            curve = {"entry": index, "metric": str(loss.metric), "exact_metric": exact}
            curve["relaxed"] = band(runs, "loss", flip=not loss.metric.lower_is_better)
            curve["exact"] = band(runs, exact)
            relaxed_curves.append(curve)
    return relaxed_curves


def _relaxed_loss(spec: str) -> RelaxedMetric | None:
    """The loss, if it is a relaxed metric."""
    try:
        loss = losses.get(spec) if spec else None
    except ValueError:  # a loss of another version, or one that the user registered
        return None
    return loss if isinstance(loss, RelaxedMetric) else None


def _most_similar(metric: str, runs: Sequence[Run], default: str | None) -> str | None:
    """The logged metric to compare with a relaxed one.

    The same metric if it was logged; else that of the same family with the largest cutoff; else
    ``default`` if it was logged; else the first one; None if no metric was logged.
    """
    logged = [name for name in runs[0].history[0] if name not in _NOT_METRICS]
    if metric in logged:
        return metric
    same_family = [name for name in logged if _family(name) == _family(metric)]
    if same_family:
        return sorted(same_family, key=_cutoff)[-1]
    return default if default in logged else next(iter(logged), None)


def _family(name: str) -> str:
    """A metric's name without cutoff and options."""
    return name.partition("@")[0].partition("(")[0]


def _cutoff(name: str) -> float:
    """A metric's cutoff; infinity if it has none."""
    digits = name.partition("@")[2].partition("(")[0]
    return float(digits) if digits.isdigit() else float("inf")


def numbers(values: Values) -> list[float | None]:
    """Numbers for JSON, rounded to six significant digits; NaN becomes null."""
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in values.tolist()]
