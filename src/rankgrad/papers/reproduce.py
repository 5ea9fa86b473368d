"""Reproduce: run a paper's table again by its own protocol, and set it beside the printed numbers.

``rankgrad reproduce`` calls :func:`run_tables`. A table on one data set is a comparison: each row
of the table is an entry, a grid search among the row's losses and hyperparameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import _files, significance
from rankgrad._shapes import Array
from rankgrad.experiments import compare
from rankgrad.experiments._grid_search import GridSearchEntry
from rankgrad.experiments.compare import Comparison, Plan
from rankgrad.experiments.plans import Entry
from rankgrad.metrics import metrics as known_metrics
from rankgrad.papers import _splits
from rankgrad.papers.protocol import Cell as PaperCell
from rankgrad.papers.protocol import Data, Metric, Protocol, Row
from rankgrad.results._comparison_tables import in_line, number
from rankgrad.results.statistics import MetricValues
from rankgrad.results.tables import BETTER, WORSE, Cell, Table
from rankgrad.training import Settings
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["OnChange", "ReproductionResult", "RunOptions", "run", "run_tables"]

_RESULT = "reproduction.json"
# Two levels, so that the parent of the data is not a folder with the name of a set in the catalog.
_PREPARED = Path("prepared", "data")
# Digits after the point are as many as in the paper, within these bounds. A scaled table multiplies
# its metrics, such as by 100.
_MIN_DIGITS, _MIN_SCALED_DIGITS, _MAX_DIGITS = 3, 2, 4

#: Called with the title of a table and the progress of its runs.
OnChange = Callable[[str, compare.Progress], None]


@dataclass(frozen=True)
class RunOptions:
    """How much of a protocol is run.

    Args:
        quick: whether to run the reduced version that the protocol states.
        extra: whether to run rows that we added to the paper's.
        seeds: the number of seeds; None for that of the protocol.
        search: whether to search the grid of each row, or to take its first point.
        settings: of training that do not change what is computed, such as the device.
    """

    quick: bool = False
    extra: bool = False
    seeds: int | None = None
    search: bool = True
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ReproductionResult:
    """The results of a table on one data set, or why it was not run.

    Args:
        protocol: the table.
        data: the data set.
        options: how much was run.
        comparison: of the runs; None if nothing was run.
        reason: why nothing was run.
    """

    protocol: Protocol
    data: Data
    options: RunOptions
    comparison: Comparison | None
    reason: str = ""

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the table for the data set, whether they were run or not."""
        return self.protocol.rows_on(self.data.name, extra=self.options.extra)

    @cached_property
    def values(self) -> dict[tuple[str, str], MetricValues]:
        """The values of complete rows by row and metric, multiplied by the paper's scale.

        A metric that is undefined on all lists of a fold is left out.
        """
        values: dict[tuple[str, str], MetricValues] = {}
        if self.comparison is None:
            return values
        for name in self.comparison.complete:
            runs = self.comparison.runs[name]
            seeds = sorted({seed for _, seed in runs if seed is not None})
            for metric in self.protocol.metrics:
                folds = [
                    np.stack([_values(runs[fold, seed].with_items(), metric) for seed in seeds])
                    for fold in self.comparison.folds
                ]
                metric_values = MetricValues.of(tuple(self.protocol.scale * f for f in folds))
                if not np.isnan(metric_values.mean):
                    values[name, metric.name] = metric_values
        return values

    @property
    def drawn(self) -> bool:
        """Whether folds are random drawings of the test part."""
        return self.data.split is not None and self.data.split.repeats > 1

    def marks(self, metric: str) -> dict[str, str]:
        """The paper's marks for our numbers, by its test; rows without a mark are left out.

        The paper's rows are tested among themselves, as in the paper. Rows that we added are tested
        against the same reference, and corrected for their own number.
        """
        test = self.protocol.significance
        rows = [row for row in self.rows if (row.name, metric) in self.values]
        names = [row.name for row in rows if not row.extra]
        if test is None or not names:
            return {}
        sign = -1.0 if self._lower_is_better(metric) else 1.0
        means = {name: sign * self.values[name, metric].mean for name in names}
        reference = test.against
        if reference == "best":
            reference = max(means, key=lambda name: means[name])
        if reference not in means:
            return {}
        of_paper = self._test(metric, [name for name in names if name != reference], reference)
        of_extra = self._test(metric, [row.name for row in rows if row.extra], reference)
        marks = {True: test.better or BETTER, False: test.worse or WORSE}
        marked = {d.entry: marks[d.better] for d in (*of_paper, *of_extra)}
        if test.against == "best" and test.better:
            # This paper marks the best row and all that are not significantly worse.
            worse = {d.entry for d in of_paper if not d.better}
            marked |= {name: "" if name in worse else test.better for name in names}
        return {name: mark for name, mark in marked.items() if mark}

    def _test(self, metric: str, names: list[str], reference: str) -> list[significance.Difference]:
        """The significant differences between rows and the reference."""
        test = self.protocol.significance
        assert test is not None
        differences = significance.differences(
            {name: self.values[name, metric].per_list for name in (*names, reference)},
            reference,
            metric,
            test.how,
            lower_is_better=self._lower_is_better(metric),
        )
        return [difference for difference in differences if difference.significant]

    def _lower_is_better(self, metric: str) -> bool:
        [spec] = [column.spec for column in self.protocol.metrics if column.name == metric]
        return known_metrics.get(spec).lower_is_better

    def table(self) -> Table:
        """Ours beside the published: for each row the paper's line, ours and the difference."""
        metrics = [metric.name for metric in self.protocol.metrics]
        marks = {metric: self.marks(metric) for metric in metrics}
        return Table(
            columns=("row", "", *metrics),
            rows=tuple(line for row in self.rows for line in self._lines(row, marks)),
            notes=tuple(self.notes()),
            title=self.title,
            marked=tuple(metrics),
        )

    @property
    def title(self) -> str:
        """The paper, its table and the data."""
        quick = " (quick: reduced, not for comparison)" if self.options.quick else ""
        return f"{self.protocol.paper}, {self.protocol.table}, {self.data.label}{quick}"

    def _lines(self, row: Row, marks: Mapping[str, Mapping[str, str]]) -> list[tuple[Cell, ...]]:
        """The lines of a row: the paper's, ours, our errors, and the difference of the two.

        ``marks`` are by metric, then by row.
        """
        name, digits = row.name, self.digits
        printed = [self.protocol.cell(self.data.name, name, metric) for metric in marks]
        ours = [self.values.get((name, metric)) for metric in marks]
        lines: dict[str, list[Cell]] = {}
        if not row.extra:
            lines["paper"] = [_paper_cell(cell) for cell in printed]
        if not any(ours):
            reason = row.not_run or self._why_missing(name)
            others = [Cell("-", missing=True)] * (len(marks) - 1)
            lines["ours"] = [Cell(reason, missing=True), *others]
        else:
            lines["ours"] = [
                _our_cell(values, digits, marks[metric].get(name, ""))
                for metric, values in zip(marks, ours, strict=True)
            ]
            error_names = {"seeds": "error_over_seeds"}
            if self.drawn:
                error_names["drawings"] = "deviation_over_folds"
            for kind, error in error_names.items():
                errors = [_error_cell(getattr(values, error, None), digits) for values in ours]
                if not all(cell.missing for cell in errors):
                    lines[kind] = errors
        if any(ours) and not row.extra:
            lines["difference"] = [
                _difference_cell(values, cell, digits)
                for values, cell in zip(ours, printed, strict=True)
            ]
        return [(Cell(name), Cell(kind), *cells) for kind, cells in lines.items()]

    def _why_missing(self, name: str) -> str:
        """Why a row has no numbers, or none of a metric."""
        if self.comparison is None:
            return "not run"
        reasons = [reason for key, reason in self.comparison.missing.items() if key[0] == name]
        if reasons:
            return f"missing: {reasons[0]}"
        return "undefined" if name in self.comparison.complete else "not run"

    @property
    def digits(self) -> int:
        """How many digits after the point the numbers of the table have."""
        rows = self.protocol.published[self.data.name].values()
        printed = max(PaperCell.of(text).decimals for cells in rows for text in cells)
        least = _MIN_SCALED_DIGITS if self.protocol.scale > 1 else _MIN_DIGITS
        return min(max(printed, least), _MAX_DIGITS)

    def notes(self) -> list[str]:
        """The lines under the table: what was run, conventions, choices and findings."""
        protocol, lines = self.protocol, []
        if self.reason:
            lines.append(f"not run: {self.reason}")
        if self.comparison is not None:
            lines += self._about_runs()
        lines += self._about_metrics()
        if protocol.significance is not None:
            lines.append(_about_test(protocol))
            lines += self._about_extra()
        for choice in protocol.choices:
            if not choice.data or self.data.name in choice.data:
                less = " (less of it here)" if choice.reduced and self.options.quick else ""
                lines.append(f"chosen for {choice.about}{less}: {choice.chosen} ({choice.why})")
        lines += [f"to know: {finding}" for finding in protocol.findings]
        lines.append(f"paper: {protocol.reference}, {protocol.table}; {protocol.url}")
        return lines

    def _about_extra(self) -> list[str]:
        """How the rows that we added are tested."""
        test, extra = self.protocol.significance, [row for row in self.rows if row.extra]
        if test is None or not extra:
            return []
        tested = {name for name, _ in self.values}
        n_extra = sum(row.name in tested for row in extra)
        corrected = ""
        if test.correction != "none" and n_extra:
            corrected = (
                f", corrected for their own number, {n_extra}, as the paper's rows are for theirs, "
                f"{len(tested) - n_extra - 1}"
            )
        return [
            "rows without a line of the paper are ours; they are tested against the same row as "
            f"the paper's{corrected}, {test.better or BETTER} if better"
        ]

    def _about_runs(self) -> list[str]:
        """What was run, what a number is the mean of, and what the grid searches chose."""
        assert self.comparison is not None
        lines: list[str] = []
        folds, seeds = len(self.comparison.plan["folds"]), len(self.comparison.plan["seeds"])
        nouns = ((folds, "drawing" if self.drawn else "fold"), (seeds, "seed"))
        over = " × ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in nouns)
        quick = self.protocol.quick
        if self.options.quick:
            limit = "" if quick.lists is None else f", at most {quick.lists} queries in each part"
            lines.append(
                f"quick: {over}, {quick.epochs} epochs{limit}, the first point of "
                "each row without a search. The paper's numbers come from more"
            )
        elif not self.options.search:
            lines.append("the first point of each row without a search, unlike the paper's")
        lines.append(
            f"ours: mean over {over}, ± the standard error over queries"
            + ("; seeds: the standard error over seeds" if seeds > 1 else "")
            + ("; drawings: the deviation of one drawing" if self.drawn and folds > 1 else "")
        )
        chosen = {row.name: self._chosen(row) for row in self.rows}
        lines += [f"{name}: {points}" for name, points in chosen.items() if points]
        return [*lines, *self.comparison.problems()]

    def _chosen(self, row: Row) -> str:
        """The points of a row's grid that validation data chose, by fold; "" without a grid."""
        assert self.comparison is not None
        parts = []
        for (name, fold), values in self.comparison.chosen.items():
            if name != row.name:
                continue
            rate = values.get("learning_rate")
            point = f"{values.get('loss')}" + (f" at {rate:g}" if rate else "")
            if row.trees is not None:
                point = in_line(values)
            parts.append(point if fold is None else f"fold {fold} {point}")
        return f"chosen on validation data: {'; '.join(parts)}" if parts else ""

    def _about_metrics(self) -> list[str]:
        """The specs of the columns, and their conventions."""
        metrics = self.protocol.metrics
        specs = ", ".join(f"{metric.name} = {_in_words(metric)}" for metric in metrics)
        scale = self.protocol.scale
        times = "" if scale == 1 else f", times {scale:g}"
        rules = dict.fromkeys(known_metrics.get(metric.spec).empty for metric in metrics)
        effects = {"skip": "are left out", 0: "count 0", 1: "count 1"}
        empty = " or ".join(effects[rule] for rule in rules)
        limit = self.data.list_limit
        cut = "whole" if limit is None else f"cut to {limit} documents"
        return [
            f"metrics: {specs}{times}",
            f"queries without a relevant document {empty}; tied scores earn their mean; "
            f"test lists are {cut}",
        ]

    def to_json(self) -> dict[str, Any]:
        """The contents of ``reproduction.json``."""
        rows = []
        for row in self.rows:
            for metric in self.protocol.metrics:
                ours = self.values.get((row.name, metric.name))
                cell = self.protocol.cell(self.data.name, row.name, metric.name)
                paper = None if cell is None else cell.value
                deviation = None if ours is None or not self.drawn else ours.deviation_over_folds
                rows.append(
                    {
                        "row": row.name,
                        "metric": metric.name,
                        "spec": metric.spec,
                        "paper": paper,
                        "paper_marks": None if cell is None else cell.marks,
                        "ours": None if ours is None else number(ours.mean),
                        "se_queries": None if ours is None else number(ours.error_over_lists),
                        "se_seeds": None if ours is None else number(ours.error_over_seeds),
                        "sd_drawing": number(deviation),
                        "marks": self.marks(metric.name).get(row.name, ""),
                        "difference": None if ours is None or paper is None else ours.mean - paper,
                        "reason": None if ours else row.not_run or self._why_missing(row.name),
                    }
                )
        return {
            "table": self.protocol.name,
            "data": self.data.name,
            "quick": self.options.quick,
            "not_run": self.reason or None,
            "rows": rows,
            "notes": self.notes(),
        }


def run(
    protocol: Protocol,
    data: Data,
    source: Path,
    folder: str | os.PathLike[str],
    options: RunOptions | None = None,
    *,
    workers: int | None = None,
    on_change: OnChange | None = None,
) -> ReproductionResult:
    """Run a table of a paper on one of its data sets, or resume an earlier call.

    Args:
        protocol: the table.
        data: one of its data sets.
        source: the folder of that data set.
        folder: for the runs and prepared data.
        options: how much to run.
        workers: as of :func:`rankgrad.experiments.compare.run`.
        on_change: called with the title and the progress.

    Returns:
        Our values beside the printed ones, which are also written to the folder.
    """
    options = options or RunOptions()
    path = Path(folder)
    plan = _plan_of(protocol, data, source, path, options)
    if plan is None:
        return ReproductionResult(protocol, data, options, None, "none of its rows is run here")
    title = ReproductionResult(protocol, data, options, None).title
    comparison = compare.run(
        plan,
        path / "comparison",
        workers=workers,
        on_change=None if on_change is None else lambda progress: on_change(title, progress),
        **_test_of(protocol, plan),
    )
    result = ReproductionResult(protocol, data, options, comparison)
    _files.write(path / _RESULT, json.dumps(result.to_json(), indent=1) + "\n")
    _files.write(path / "table.md", result.table().to_markdown() + "\n")
    _files.write(path / "table.csv", result.table().to_csv() + "\n")
    return result


def run_tables(
    tables: list[Protocol],
    data: Path | None,
    folder: Path,
    options: RunOptions,
    *,
    only: str | None = None,
    workers: int | None = None,
    on_change: OnChange | None = None,
) -> list[ReproductionResult]:
    """Run tables on all of their data sets that can be found.

    Args:
        tables: of one or more papers.
        data: a data set, or a folder of data sets; None if there is none.
        folder: for the runs and tables.
        options: how much to run.
        only: the name of one data set; None for all.
        workers: as of :func:`rankgrad.experiments.compare.run`.
        on_change: called with the title and the progress.

    Returns:
        A result for each table and data set; for those that were not run, it has the reason.

    Raises:
        ValueError: no table has the data set ``only``.
        FileNotFoundError: nothing can be run; the message says where to get the data.
    """
    pairs = [(table, used) for table in tables for used in table.data if only in (None, used.name)]
    if not pairs:
        names = dict.fromkeys(used.name for table in tables for used in table.data)
        raise ValueError(f"no table has the data set {only!r}. There are: {', '.join(names)}")
    if data is not None:
        _splits.check_exists(data)
    sources = {} if data is None else _splits.find(data, {used.name for _, used in pairs})
    reasons = []
    for table, used in pairs:
        missing = None if used.name in sources else _splits.missing(used.name, data)
        reasons.append(table.not_run or used.not_run or missing)
    if all(reasons):
        raise FileNotFoundError(f"nothing to run: {'; '.join(dict.fromkeys(map(str, reasons)))}")
    variant = "" if options.search else "-unsearched"
    if options.quick:
        variant = "-quick"
    results = []
    for (table, used), reason in zip(pairs, reasons, strict=True):
        if reason:
            results.append(ReproductionResult(table, used, options, None, reason))
            continue
        path = folder / f"{table.name}{variant}" / used.name.replace(" ", "-")
        source = sources[used.name]
        results.append(
            run(table, used, source, path, options, workers=workers, on_change=on_change)
        )
    return results


def _test_of(protocol: Protocol, plan: Plan) -> dict[str, Any]:
    """The paper's test as options of :func:`compare.run`, so that reports of the runs use it."""
    test = protocol.significance
    if test is None:
        return {}
    is_entry = any(entry.name == test.against for entry in plan.entries)
    return {"how": test.how, "baseline": test.against if is_entry else None}


def _plan_of(
    protocol: Protocol, data: Data, source: Path, folder: Path, options: RunOptions
) -> Plan | None:
    """A table as the plan of a comparison; None if it has no row to run."""
    quick = protocol.quick if options.quick else None
    rows = [row for row in protocol.rows_on(data.name, extra=options.extra) if not row.not_run]
    entries = [_entry(protocol, data, row, options) for row in rows]
    if not entries:
        return None
    prepared, folds = _splits.prepare(
        source,
        data,
        folder / _PREPARED,
        folds=None if quick is None else quick.folds,
        lists=None if quick is None else quick.lists,
    )
    seeds = options.seeds or (data.seeds if quick is None else quick.seeds)
    shared = dict(protocol.settings) | dict(data.settings) | dict(options.settings or {})
    if quick is not None:
        shared["epochs"] = quick.epochs
    return Plan(
        prepared,
        tuple(entries),
        folds=folds,
        seeds=tuple(range(seeds)),
        metrics=tuple(metric.spec for metric in protocol.metrics),
        settings=Settings(**shared),
    )


def _entry(protocol: Protocol, data: Data, row: Row, options: RunOptions) -> Entry:
    """A row as an entry of the comparison: boosted trees, or a grid search."""
    quick = protocol.quick if options.quick else None
    search = quick is None and options.search
    if row.trees is not None:
        entry = compare.TreeEntry(row.name, row.trees, dict(row.settings))
        return entry if search else entry.first_point()
    points = []
    for point in protocol.grid_points(data.name, row.name, search=search):
        loss = point.pop("loss")
        settings = point | dict(options.settings or {})
        if quick is not None:
            settings["epochs"] = min(quick.epochs, int(settings.get("epochs", quick.epochs)))
        points.append(settings | {"loss": loss})
    return GridSearchEntry(row.name, tuple(points))


def _values(evaluated: EvaluatedLists, metric: Metric) -> Array:
    """The metric of each list ``[lists]``, with the column's ``shift`` and ``length``.

    NaN for lists that the metric skips and for lists of another length.
    """
    values = evaluated.of_metric(metric.spec)
    if metric.shift:
        labels = evaluated.labels + metric.shift
        shifted = known_metrics.get(metric.spec)(
            evaluated.scores, labels, offsets=evaluated.offsets
        )
        values = np.where(np.isnan(values), np.nan, shifted.double().numpy())
    if metric.length is not None:
        values = np.where(np.diff(evaluated.offsets) == metric.length, values, np.nan)
    return values


def _in_words(metric: Metric) -> str:
    """What a column is computed from."""
    shift = f" of labels + {metric.shift}" if metric.shift else ""
    length = "" if metric.length is None else f" of lists of {metric.length} documents"
    return f"{metric.spec}{shift}{length}"


def _paper_cell(cell: PaperCell | None) -> Cell:
    """A printed number as a cell of our table; an empty one for None."""
    if cell is None:
        return Cell("", missing=True)
    text = cell.text.removesuffix(cell.marks)
    return Cell(text, cell.value, mark=cell.marks, missing=cell.value is None)


def _our_cell(ours: MetricValues | None, digits: int, mark: str) -> Cell:
    """Our mean with its standard error over queries, which a single query does not have."""
    if ours is None:
        return Cell("undefined", missing=True)
    text = f"{ours.mean:.{digits}f} {_error_cell(ours.error_over_lists, digits).text}"
    return Cell(text.rstrip(), ours.mean, mark=mark)


def _error_cell(value: float | None, digits: int) -> Cell:
    """A standard error as a cell; an empty one for None."""
    if value is None or np.isnan(value):
        return Cell("", missing=True)
    return Cell(f"±{value:.{digits}f}", value)


def _difference_cell(ours: MetricValues | None, printed: PaperCell | None, digits: int) -> Cell:
    """Our mean less the printed number, if there are both."""
    if ours is None or printed is None or printed.value is None:
        return Cell("", missing=True)
    difference = ours.mean - printed.value
    return Cell(f"{difference:+.{digits}f}", difference)


def _about_test(protocol: Protocol) -> str:
    """The line on the paper's marks and its test."""
    test = protocol.significance
    assert test is not None
    kind = "paired t-test" if test.test == "t" else "paired randomization test"
    correction = "" if test.correction == "none" else f" with {test.correction} correction"
    name = f"{test.sided}-sided {kind} over queries{correction} at {100 * test.level:g}%"
    than = "the best" if test.against == "best" else test.against
    if test.against == "best" and test.better:
        return f"{test.better}: the best, and all not significantly worse ({name})"
    marks = [f"{test.worse or WORSE} significantly worse than {than}"]
    if test.better:
        marks.append(f"{test.better} significantly better")
    return f"{', '.join(marks)} ({name}); seeds averaged in ours"
