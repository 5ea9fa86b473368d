"""Tables of a comparison, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankgrad.results.comparison import Comparison
from rankgrad.results.tables import BETTER, WORSE, Cell, Table
from rankgrad.significance import Difference

FORMAT, VERSION = "rankgrad comparison", 1


def table(comparison: Comparison, *, intervals: bool = False, digits: int = 4) -> Table:
    """Means by entry and metric, the best in bold, daggers as the SmoothI paper's Table 1.

    † is significantly worse than the best, or than the baseline; ‡ significantly better than the
    baseline. The last column has the seconds of training a run.
    """
    seconds = [entry.seconds for entry in comparison.entries]
    timed = any(one is not None for one in seconds)
    rows = []
    for entry, duration in zip(comparison.entries, seconds, strict=True):
        cells = [
            _cell(comparison, entry.name, metric, intervals, digits)
            for metric in comparison.metrics
        ]
        if timed:
            known = None if duration is None else Cell(f"{duration:,.1f}", duration)
            cells.append(known or Cell("-", missing=True))
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
    """The dagger of an entry's mean: whether it differs significantly from the reference."""
    difference = comparison.difference(name, metric)
    return "" if difference is None or not difference.significant else _sign(difference)


def _sign(difference: Difference) -> str:
    return BETTER if difference.better else WORSE


def _cell(comparison: Comparison, name: str, metric: str, intervals: bool, digits: int) -> Cell:
    if not comparison.is_complete(name):
        entry = comparison.entry(name)
        there, total = entry.n_runs - entry.n_missing, entry.n_runs
        return Cell(f"missing ({there}/{total})", missing=True)
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
    """What bold and daggers mean."""
    if comparison.baseline is None:
        return [f"best in bold; {WORSE} significantly worse than the best one ({comparison.how})"]
    if comparison.how.sides == 1:
        words = f"{BETTER} significantly better than {comparison.baseline}"
    else:
        words = f"{WORSE} significantly worse, {BETTER} better than {comparison.baseline}"
    return [f"best in bold; {words} ({comparison.how})"]


def differences_table(comparison: Comparison, metric: str) -> Table:
    """How far each entry is from the best one, or the baseline, and how sure that is."""
    sign = 1 if comparison.lower_is_better(metric) else -1
    tested = sorted(comparison.differences(metric), key=lambda d: sign * d.difference)
    rows = tuple(
        (
            Cell(d.entry),
            Cell(f"{d.difference:+.4f}", d.difference),
            Cell(f"{d.interval.low:+.4f} to {d.interval.high:+.4f}"),
            Cell(p_value(d.p_value), d.p_value),
            Cell(p_value(d.corrected), d.corrected),
            Cell(f"{_sign(d)} {'better' if d.better else 'worse'}" if d.significant else "no"),
        )
        for d in tested
    )
    reference = tested[0].reference if tested else "none"
    return Table(
        title=f"{metric}, difference from {reference}",
        columns=("ranker", "difference", "95% interval", "p", "corrected p", "significant"),
        rows=rows,
        notes=(f"over {_paired(comparison, reference, metric)}; {comparison.how}",)
        if tested
        else (),
    )


def _paired(comparison: Comparison, reference: str, metric: str) -> str:
    """How many lists were compared: a metric may leave some out."""
    values = comparison.values(reference, metric)
    there = int(np.count_nonzero(~np.isnan(values)))
    of = "" if there == len(values) else f" of {len(values)}"
    return f"{there}{of} test lists"


def tuned_table(comparison: Comparison) -> Table:
    """The values that a search chose, fold by fold."""
    order = {name: at for at, name in enumerate(comparison.names)}
    chosen = sorted(comparison.chosen.items(), key=lambda item: order[item[0][0]])
    rows = (
        (Cell(name), Cell("-" if fold is None else str(fold)), Cell(in_line(values)))
        for (name, fold), values in chosen
    )
    return Table(("ranker", "fold", "chosen on validation data"), tuple(rows))


def to_json(comparison: Comparison) -> dict[str, Any]:
    """All of a comparison as ``comparison.json`` has it, less the values of each list."""
    differences = [
        {
            "entry": d.entry,
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
    complete = comparison.is_complete(name)
    keys = [key for key in (*comparison.evaluated, *comparison.missing) if key[0] == name]
    keys.sort(key=lambda key: (key[1] or 0, key[2] or 0))
    known = {
        m: comparison.metric_values(name, m) for m in comparison.metrics if comparison.has(name, m)
    }
    return {
        "entry": name,
        "complete": complete,
        "mean": {m: number(comparison.mean(name, m)) for m in comparison.metrics},
        "standard_error": {
            m: number(known[m].standard_error) if m in known else None for m in comparison.metrics
        },
        "interval95": {
            m: [number(end) for end in comparison.interval(name, m)] if complete else None
            for m in comparison.metrics
        },
        "seconds": comparison.entry(name).seconds,
        "runs": [
            {
                "fold": key[1],
                "seed": key[2],
                "mean": {
                    m: number(comparison.evaluated[key].mean.get(m)) for m in comparison.metrics
                }
                if key in comparison.evaluated
                else None,
                "reason": comparison.missing.get(key),
            }
            for key in keys
        ],
        "tuned": [
            {"fold": fold, "values": dict(tuned_values)}
            for (entry, fold), tuned_values in comparison.chosen.items()
            if entry == name
        ],
    }


def in_line(values: Mapping[str, Any]) -> str:
    """Values by name, in a line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def p_value(p: float) -> str:
    """A p-value as tables show it."""
    if np.isnan(p):
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def number(value: float | None) -> float | None:
    """A number as JSON has it; NaN is null."""
    return None if value is None or np.isnan(value) else float(value)
