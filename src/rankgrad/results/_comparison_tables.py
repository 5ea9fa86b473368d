"""A comparison as tables, for terminals and reports, and as ``comparison.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankgrad.results.comparison import Comparison
from rankgrad.results.tables import BETTER, WORSE, Cell, Table
from rankgrad.significance import Difference

FORMAT, VERSION = "rankgrad comparison", 1


def table(comparison: Comparison, *, intervals: bool = False, digits: int = 4) -> Table:
    """Means by entry and metric, the best in bold, with daggers as in Table 1 of SmoothI's paper.

    † is significantly worse than the baseline or, without one, than the best; ‡ is significantly
    better (without a baseline, see :func:`beats_the_best`). The last column, if any entry was
    timed, has the seconds of training a run. ``intervals`` adds confidence intervals to the means;
    ``digits`` are those after the point.
    """
    timed = any(entry.seconds is not None for entry in comparison.entries)
    rows = []
    for entry in comparison.entries:
        cells = [
            _cell(comparison, entry.name, metric, intervals, digits)
            for metric in comparison.metrics
        ]
        if timed and entry.seconds is not None:
            cells.append(Cell(f"{entry.seconds:,.1f}", entry.seconds))
        elif timed:
            cells.append(Cell("-", missing=True))
        rows.append((Cell(entry.name), *cells))
    lines = [*legend(comparison)]
    if intervals:
        lines.append("in brackets: 95% bootstrap intervals over lists, seeds averaged")
    if timed:
        lines.append("seconds: training a run, without the search for its values")
    return Table(
        columns=("ranker", *comparison.metrics, *(["seconds"] if timed else [])),
        rows=tuple(rows),
        notes=(*lines, *comparison.conventions, *comparison.problems()),
        marked=comparison.metrics,
    )


def mark(comparison: Comparison, name: str, metric: str) -> str:
    """The dagger of an entry's mean that differs significantly from the reference, else ""."""
    difference = comparison.difference(name, metric)
    return "" if difference is None or not difference.significant else _dagger(difference)


def _dagger(difference: Difference) -> str:
    return BETTER if difference.better else WORSE


def _cell(comparison: Comparison, name: str, metric: str, intervals: bool, digits: int) -> Cell:
    """The mean of an entry; for one that is not complete, how many of its runs have results."""
    if not comparison.is_complete(name):
        entry = comparison.entry(name)
        return Cell(f"missing ({entry.n_runs - entry.n_missing}/{entry.n_runs})", missing=True)
    mean = comparison.mean(name, metric)
    if np.isnan(mean):
        return Cell("undefined", missing=True)
    text = f"{mean:.{digits}f}"
    if intervals:
        low, high = comparison.interval(name, metric)
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return Cell(
        text, mean, bold=name == comparison.best(metric), mark=mark(comparison, name, metric)
    )


def legend(comparison: Comparison) -> list[str]:
    """The line that says what bold and daggers mean."""
    if comparison.baseline is None:
        words = f"{WORSE} significantly worse than the best one"
        if beats_the_best(comparison):
            words += f", {BETTER} better over the lists of all folds together"
    elif comparison.how.sides == 1:
        words = f"{BETTER} significantly better than {comparison.baseline}"
    else:
        words = f"{WORSE} significantly worse, {BETTER} better than {comparison.baseline}"
    return [f"best in bold; {words} ({comparison.how})"]


def beats_the_best(comparison: Comparison) -> bool:
    """Whether an entry is significantly better than the best one, of a comparison without baseline.

    The best mean is over folds, while tests are over lists. If folds are of unequal sizes, they can
    disagree.
    """
    tested = (d for metric in comparison.metrics for d in comparison.differences(metric))
    return comparison.baseline is None and any(d.significant and d.better for d in tested)


def differences_table(comparison: Comparison, metric: str) -> Table:
    """The difference of each entry from the best one, or the baseline, with its test."""
    sign = 1 if comparison.lower_is_better(metric) else -1
    tested = sorted(comparison.differences(metric), key=lambda d: sign * d.difference)
    rows = tuple(
        (
            Cell(d.entry),
            Cell(f"{d.difference:+.4f}", d.difference),
            Cell(f"{d.interval.low:+.4f} to {d.interval.high:+.4f}"),
            Cell(p_value(d.p_value), d.p_value),
            Cell(p_value(d.corrected), d.corrected),
            Cell(f"{_dagger(d)} {'better' if d.better else 'worse'}" if d.significant else "no"),
        )
        for d in tested
    )
    reference = tested[0].reference if tested else "none"
    return Table(
        title=f"{metric}, difference from {reference}",
        columns=("ranker", "difference", "95% interval", "p", "corrected p", "significant"),
        rows=rows,
        notes=(f"over {_count_lists(comparison, reference, metric)}; {comparison.how}",)
        if tested
        else (),
    )


def _count_lists(comparison: Comparison, reference: str, metric: str) -> str:
    """How many lists were compared, in words: a metric may leave some out."""
    values = comparison.values(reference, metric)
    defined = int(np.count_nonzero(~np.isnan(values)))
    total = "" if defined == len(values) else f" of {len(values)}"
    return f"{defined}{total} {comparison.part} lists"


def tuned_table(comparison: Comparison) -> Table:
    """The hyperparameters that a search chose, by entry and fold."""
    rows = (
        (Cell(name), Cell("-" if fold is None else str(fold)), Cell(in_line(values)))
        for entry_name in comparison.names
        for (name, fold), values in comparison.chosen.items()
        if name == entry_name
    )
    return Table(("ranker", "fold", "chosen on validation data"), tuple(rows))


def to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as ``comparison.json`` has it: everything except the values of each list."""
    differences = [
        {
            "candidate": d.entry,
            "reference": d.reference,
            "metric": d.metric,
            "difference": number(d.difference),
            "interval": [number(end) for end in d.interval],
            "p_value": number(d.p_value),
            "corrected": number(d.corrected),
            "significant": d.significant,
            "better": d.better,
        }
        for metric in comparison.metrics
        for d in comparison.differences(metric)
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "plan": dict(comparison.plan),
        "rows": [_row(comparison, name) for name in comparison.names],
        "significance": str(comparison.how),
        "test": {**vars(comparison.how), "baseline": comparison.baseline},
        "differences": differences,
        "conventions": list(comparison.conventions),
        "problems": list(comparison.problems()),
    }


def _row(comparison: Comparison, name: str) -> dict[str, Any]:
    """An entry in ``comparison.json``, with all its runs."""
    metrics, complete = comparison.metrics, comparison.is_complete(name)
    standard_errors = {
        metric: comparison.metric_values(name, metric).standard_error
        for metric in metrics
        if comparison.has(name, metric)
    }
    keys = [key for key in (*comparison.evaluated, *comparison.missing) if key[0] == name]
    runs = []
    for key in sorted(keys, key=lambda key: (key[1] or 0, key[2] or 0)):
        evaluated = comparison.evaluated.get(key)
        means = None if evaluated is None else {m: number(evaluated.mean.get(m)) for m in metrics}
        reason = comparison.missing.get(key)
        runs.append({"fold": key[1], "seed": key[2], "mean": means, "reason": reason})
    return {
        "candidate": name,
        "complete": complete,
        "mean": {metric: number(comparison.mean(name, metric)) for metric in metrics},
        "standard_error": {metric: number(standard_errors.get(metric)) for metric in metrics},
        "interval95": {
            metric: [number(end) for end in comparison.interval(name, metric)] if complete else None
            for metric in metrics
        },
        "seconds": comparison.entry(name).seconds,
        "runs": runs,
        "tuned": [
            {"fold": fold, "values": dict(tuned_values)}
            for (entry, fold), tuned_values in comparison.chosen.items()
            if entry == name
        ],
    }


def in_line(values: Mapping[str, Any]) -> str:
    """Named values in a line, such as ``alpha 2.0, delta 0.1``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def p_value(p: float) -> str:
    """A p-value as tables show it."""
    if np.isnan(p):
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def number(value: float | None) -> float | None:
    """A number for JSON, where NaN is null."""
    return None if value is None or np.isnan(value) else float(value)
