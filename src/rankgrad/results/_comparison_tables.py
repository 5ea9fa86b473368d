"""Tables of a comparison, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankgrad.results.comparison import Comparison
from rankgrad.results.tables import BETTER, WORSE, Cell, Table
from rankgrad.significance import Difference

FORMAT, VERSION = "rankgrad comparison", 1


def table(found: Comparison, *, intervals: bool = False, digits: int = 4) -> Table:
    """Means by entry and metric, the best in bold, daggers as the SmoothI paper's Table 1.

    † is significantly worse than the best, or than the baseline; ‡ significantly better than the
    baseline. The last column has the seconds of training a run.
    """
    seconds = [entry.seconds for entry in found.entries]
    timed = any(one is not None for one in seconds)
    rows = []
    for entry, duration in zip(found.entries, seconds, strict=True):
        cells = [_cell(found, entry.name, metric, intervals, digits) for metric in found.metrics]
        if timed:
            known = None if duration is None else Cell(f"{duration:,.1f}", duration)
            cells.append(known or Cell("-", missing=True))
        rows.append((Cell(entry.name), *cells))
    lines = [*legend(found)]
    if intervals:
        lines.append("in brackets: 95% bootstrap intervals over lists, seeds averaged")
    if timed:
        lines.append("seconds: training a run, without the search for its values")
    return Table(
        columns=("ranker", *found.metrics, *(["seconds"] if timed else [])),
        rows=tuple(rows),
        notes=(*lines, *found.conventions, *found.problems()),
        marked=found.metrics,
    )


def mark(found: Comparison, name: str, metric: str) -> str:
    """The dagger of an entry's mean: whether it differs significantly from the reference."""
    difference = found.difference(name, metric)
    return "" if difference is None or not difference.significant else _sign(difference)


def _sign(difference: Difference) -> str:
    return BETTER if difference.better else WORSE


def _cell(found: Comparison, name: str, metric: str, intervals: bool, digits: int) -> Cell:
    if not found.is_complete(name):
        entry = found.entry(name)
        there, total = entry.n_runs - entry.n_missing, entry.n_runs
        return Cell(f"missing ({there}/{total})", missing=True)
    mean = found.mean(name, metric)
    if np.isnan(mean):
        return Cell("undefined", missing=True)
    text = f"{mean:.{digits}f}"
    if intervals:
        low, high = found.interval(name, metric)
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return Cell(text, mean, bold=name == found.best(metric), mark=mark(found, name, metric))


def legend(found: Comparison) -> list[str]:
    """What bold and daggers mean."""
    if found.baseline is None:
        return [f"best in bold; {WORSE} significantly worse than the best one ({found.how})"]
    if found.how.sides == 1:
        words = f"{BETTER} significantly better than {found.baseline}"
    else:
        words = f"{WORSE} significantly worse, {BETTER} better than {found.baseline}"
    return [f"best in bold; {words} ({found.how})"]


def differences_table(found: Comparison, metric: str) -> Table:
    """How far each entry is from the best one, or the baseline, and how sure that is."""
    sign = 1 if found.lower_is_better(metric) else -1
    tested = sorted(found.differences(metric), key=lambda d: sign * d.difference)
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
        notes=(f"over {_paired(found, reference, metric)}; {found.how}",) if tested else (),
    )


def _paired(found: Comparison, reference: str, metric: str) -> str:
    """How many lists were compared: a metric may leave some out."""
    values = found.values(reference, metric)
    there = int(np.count_nonzero(~np.isnan(values)))
    of = "" if there == len(values) else f" of {len(values)}"
    return f"{there}{of} test lists"


def tuned_table(found: Comparison) -> Table:
    """The values that a search chose, fold by fold."""
    order = {name: at for at, name in enumerate(found.names)}
    chosen = sorted(found.chosen.items(), key=lambda item: order[item[0][0]])
    rows = (
        (Cell(name), Cell("-" if fold is None else str(fold)), Cell(in_line(values)))
        for (name, fold), values in chosen
    )
    return Table(("ranker", "fold", "chosen on validation data"), tuple(rows))


def to_json(found: Comparison) -> dict[str, Any]:
    """All of a comparison as ``comparison.json`` has it, less the values of each list."""
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
        for metric in found.metrics
        for d in found.differences(metric)
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "plan": dict(found.plan),
        "rows": [_row(found, name) for name in found.names],
        "significance": str(found.how),
        "test": {**vars(found.how), "baseline": found.baseline},
        "differences": differences,
        "conventions": list(found.conventions),
        "problems": list(found.problems()),
    }


def _row(found: Comparison, name: str) -> dict[str, Any]:
    complete = found.is_complete(name)
    keys = [key for key in (*found.evaluated, *found.missing) if key[0] == name]
    keys.sort(key=lambda key: (key[1] or 0, key[2] or 0))
    known = {m: found.metric_values(name, m) for m in found.metrics if found.has(name, m)}
    return {
        "candidate": name,
        "complete": complete,
        "mean": {m: number(found.mean(name, m)) for m in found.metrics},
        "standard_error": {
            m: number(known[m].standard_error) if m in known else None for m in found.metrics
        },
        "interval95": {
            m: [number(end) for end in found.interval(name, m)] if complete else None
            for m in found.metrics
        },
        "seconds": found.entry(name).seconds,
        "runs": [
            {
                "fold": key[1],
                "seed": key[2],
                "mean": {m: number(found.evaluated[key].mean.get(m)) for m in found.metrics}
                if key in found.evaluated
                else None,
                "reason": found.missing.get(key),
            }
            for key in keys
        ],
        "tuned": [
            {"fold": fold, "values": dict(tuned_values)}
            for (entry, fold), tuned_values in found.chosen.items()
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
