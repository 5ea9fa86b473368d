"""Reproduce: a paper's table run again under its own protocol, beside its printed numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
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
from rankgrad.metrics import evaluate
from rankgrad.metrics import metrics as known_metrics
from rankgrad.papers import _splits
from rankgrad.papers.protocol import Cell as PaperCell
from rankgrad.papers.protocol import Data, Metric, Protocol, Row
from rankgrad.results._comparison_tables import in_line
from rankgrad.results.statistics import MetricValues
from rankgrad.results.tables import BETTER, WORSE, Cell, Table
from rankgrad.training import Settings
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["OnChange", "ReproductionResult", "RunOptions", "run", "run_tables"]

_RESULT = "reproduction.json"
# Two names: the data set's own name before them would match the catalog's.
_PREPARED = Path("prepared", "data")
_DIGITS = (3, 4)  # of a table: as the paper has, but at least and at most this many

OnChange = Callable[[str, compare.Progress], None]


@dataclass(frozen=True)
class RunOptions:
    """How much of a protocol is run.

    Args:
        quick: the reduced version that the protocol states.
        extra: rows of ours beside the paper's.
        seeds: this many, instead of what the protocol says.
        search: among the grid points of a row; without, its first one is taken.
        settings: of training that do not change what is computed, such as the device.
    """

    quick: bool = False
    extra: bool = False
    seeds: int | None = None
    search: bool = True
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Estimate:
    """A mean, with its standard errors over queries and over seeds."""

    mean: float
    over_queries: float
    over_seeds: float | None
    of_drawing: float | None  # the deviation between drawings of the test part


@dataclass(frozen=True)
class ReproductionResult:
    """What was found for one data set of a table, or why it was not run."""

    protocol: Protocol
    data: Data
    options: RunOptions
    comparison: Comparison | None
    reason: str = ""

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the data set, run or not."""
        return self.protocol.rows_on(self.data.name, extra=self.options.extra)

    @cached_property
    def values(self) -> dict[tuple[str, str], MetricValues]:
        """The values of complete rows in the units of the paper, by row and metric."""
        found: dict[tuple[str, str], MetricValues] = {}
        if self.comparison is None:
            return found
        for name in self.comparison.complete:
            runs = self.comparison.runs[name]
            seeds = sorted({seed for _, seed in runs if seed is not None})
            for metric in self.protocol.metrics:
                folds = [
                    np.stack([_values(runs[fold, seed].with_items(), metric) for seed in seeds])
                    for fold in self.comparison.folds
                ]
                scaled = tuple(self.protocol.scale * fold for fold in folds)
                found[name, metric.name] = MetricValues.of(scaled)
        return found

    def estimate(self, row: str, metric: str) -> _Estimate | None:
        """Our value in the units of the paper, or None."""
        values = self.values.get((row, metric))
        if values is None:
            return None
        folds, seeds = values.means.shape
        drawings = values.means.mean(1) if self.drawn and folds > 1 else None
        return _Estimate(
            mean=values.mean,
            over_queries=values.error_over_lists,
            over_seeds=values.error_over_seeds if seeds > 1 else None,
            of_drawing=None if drawings is None else float(drawings.std(ddof=1)),
        )

    @property
    def drawn(self) -> bool:
        """Whether folds are drawings of the test part."""
        return self.data.split is not None and self.data.split.repeats > 1

    def marks(self, metric: str) -> dict[str, str]:
        """The paper's marks for our numbers, by its test; a row without one is left out.

        The paper's rows are tested among themselves, as in the paper. Rows of ours are tested
        against the same reference, and corrected for their own number.
        """
        test = self.protocol.significance
        rows = [row for row in self.rows if (row.name, metric) in self.values]
        names = [row.name for row in rows if not row.extra]
        if test is None or not names:
            return {}
        sign = -1.0 if self._lower(metric) else 1.0
        means = {name: sign * self.values[name, metric].mean for name in names}
        reference = test.against
        if reference == "best":
            reference = max(means, key=lambda name: means[name])
        if reference not in means:
            return {}
        below = self._marked(metric, [name for name in names if name != reference], reference)
        added = self._marked(metric, [row.name for row in rows if row.extra], reference)
        marks = {name: mark for name, mark in {**below, **added}.items() if mark}
        if test.against == "best" and test.better:  # the best and all not significantly worse
            return {name: test.better for name in names if not below.get(name)} | {
                name: mark for name, mark in marks.items() if name in added
            }
        return marks

    def _marked(self, metric: str, names: list[str], reference: str) -> dict[str, str]:
        """A mark for each row that differs significantly from the reference, else nothing."""
        test = self.protocol.significance
        assert test is not None
        found = significance.differences(
            {name: self.values[name, metric].per_list for name in (*names, reference)},
            reference,
            metric,
            test.how,
            lower_is_better=self._lower(metric),
        )
        marks = {True: test.better or BETTER, False: test.worse or WORSE}
        return {d.entry: marks[d.better] if d.significant else "" for d in found}

    def _lower(self, metric: str) -> bool:
        [found] = [one for one in self.protocol.metrics if one.name == metric]
        return known_metrics.get(found.spec).lower_is_better

    def table(self) -> Table:
        """Ours beside the published: for each row the paper's line, ours and the difference."""
        names = [metric.name for metric in self.protocol.metrics]
        marks = {name: self.marks(name) for name in names}
        lines: list[tuple[Cell, ...]] = []
        for row in self.rows:
            lines += self._lines(row, names, marks)
        return Table(
            columns=("row", "", *names),
            rows=tuple(lines),
            notes=tuple(self.notes()),
            title=self.title,
            marked=tuple(names),
        )

    @property
    def title(self) -> str:
        """Which table, on which data."""
        quick = " (quick: reduced, not for comparison)" if self.options.quick else ""
        return f"{self.protocol.paper}, {self.protocol.table}, {self.data.label}{quick}"

    def _lines(
        self, row: Row, names: list[str], marks: Mapping[str, Mapping[str, str]]
    ) -> list[tuple[Cell, ...]]:
        digits = self.digits
        ours = {name: self.estimate(row.name, name) for name in names}
        paper = {name: self.protocol.cell(self.data.name, row.name, name) for name in names}
        lines: list[tuple[Cell, ...]] = []
        if not row.extra:
            printed = [_printed(cell) for cell in paper.values()]
            lines.append((Cell(row.name), Cell("paper"), *printed))
        if all(one is None for one in ours.values()):
            reason = row.not_run or self._why_missing(row.name)
            others = [Cell("-", missing=True)] * (len(names) - 1)
            return [*lines, (Cell(row.name), Cell("ours"), Cell(reason, missing=True), *others)]
        cells, seeds, drawing, differences = [], [], [], []
        for name in names:
            one, cell = ours[name], paper[name]
            assert one is not None
            text = f"{one.mean:.{digits}f} ±{one.over_queries:.{digits}f}"
            cells.append(Cell(text, one.mean, mark=marks[name].get(row.name, "")))
            seeds.append(_error(one.over_seeds, digits))
            drawing.append(_error(one.of_drawing, digits))
            if cell is None or cell.value is None:
                differences.append(Cell("", missing=True))
            else:
                apart = one.mean - cell.value
                differences.append(Cell(f"{apart:+.{digits}f}", apart))
        lines.append((Cell(row.name), Cell("ours"), *cells))
        if any(cell.value is not None for cell in seeds):
            lines.append((Cell(row.name), Cell("seeds"), *seeds))
        if any(cell.value is not None for cell in drawing):
            lines.append((Cell(row.name), Cell("drawings"), *drawing))
        if not row.extra:
            lines.append((Cell(row.name), Cell("difference"), *differences))
        return lines

    def _why_missing(self, name: str) -> str:
        """Why a row has no numbers."""
        missing = {} if self.comparison is None else self.comparison.missing
        reasons = [reason for key, reason in missing.items() if key[0] == name]
        return f"missing: {reasons[0]}" if reasons else "not run"

    @property
    def digits(self) -> int:
        """Of the numbers in the table."""
        rows = self.protocol.published[self.data.name]
        cells = [
            self.protocol.cell(self.data.name, row, metric)
            for row in rows
            for metric in self.protocol.printed
        ]
        most = max(cell.decimals for cell in cells if cell is not None)
        return min(max(most, 2 if self.protocol.scale > 1 else _DIGITS[0]), _DIGITS[1])

    def notes(self) -> list[str]:
        """Under the table: what was run, the conventions, the choices, the findings."""
        protocol, lines = self.protocol, []
        if self.reason:
            lines.append(f"not run: {self.reason}")
        if self.comparison is not None:
            lines += self._about_runs()
        lines += self._about_metrics()
        if protocol.significance is not None:
            lines.append(_about_test(protocol))
            lines += self._about_extra()
        for one in protocol.choices:
            if not one.data or self.data.name in one.data:
                less = " (less of it here)" if one.reduced and self.options.quick else ""
                lines.append(f"chosen for {one.about}{less}: {one.chosen} ({one.why})")
        lines += [f"to know: {finding}" for finding in protocol.findings]
        lines.append(f"paper: {protocol.reference}, {protocol.table}; {protocol.url}")
        return lines

    def _about_extra(self) -> list[str]:
        """How the rows of ours are tested."""
        test, ours = self.protocol.significance, [row for row in self.rows if row.extra]
        if test is None or not ours:
            return []
        tested = {name for name, _ in self.values}
        added = sum(row.name in tested for row in ours)
        corrected = ""
        if test.correction != "none" and added:
            corrected = (
                f", corrected for their own number, {added}, as the paper's rows are for theirs, "
                f"{len(tested) - added - 1}"
            )
        return [
            "rows without a line of the paper are ours; they are tested against the same row as "
            f"the paper's{corrected}, {test.better or BETTER} if better"
        ]

    def _about_runs(self) -> list[str]:
        assert self.comparison is not None
        lines: list[str] = []
        folds, seeds = len(self.comparison.plan["folds"]), len(self.comparison.plan["seeds"])
        what = "drawing" if self.drawn else "fold"
        counts = [f"{n} {word}{'s' * (n > 1)}" for n, word in ((folds, what), (seeds, "seed"))]
        quick = self.protocol.quick
        if self.options.quick:
            limit = "" if quick.lists is None else f", at most {quick.lists} queries in each part"
            lines.append(
                f"quick: {' × '.join(counts)}, {quick.epochs} epochs{limit}, the first point of "
                "each row without a search. The paper's numbers come from more"
            )
        elif not self.options.search:
            lines.append("the first point of each row without a search, unlike the paper's")
        lines.append(
            f"ours: mean over {' × '.join(counts)}, ± the standard error over queries"
            + ("; seeds: the standard error over seeds" if seeds > 1 else "")
            + ("; drawings: the deviation of one drawing" if self.drawn and folds > 1 else "")
        )
        for row in self.rows:
            chosen = self._chosen(row)
            if chosen:
                lines.append(f"{row.name}: {chosen}")
        lines += self.comparison.problems()
        return lines

    def _chosen(self, row: Row) -> str:
        """What validation data chose, fold by fold."""
        assert self.comparison is not None
        tuned = [
            (f, values) for (name, f), values in self.comparison.chosen.items() if name == row.name
        ]
        if not tuned:
            return ""
        parts = []
        for fold, option in tuned:
            where = "" if fold is None else f"fold {fold} "
            if row.trees is not None:
                parts.append(f"{where}{in_line(option)}")
                continue
            rate = option.get("learning_rate")
            parts.append(f"{where}{option.get('loss')}" + (f" at {rate:g}" if rate else ""))
        return f"chosen on validation data: {'; '.join(parts)}"

    def _about_metrics(self) -> list[str]:
        specs = ", ".join(
            f"{metric.name} = {_in_words(metric)}" for metric in self.protocol.metrics
        )
        scale = self.protocol.scale
        times = "" if scale == 1 else f", times {scale:g}"
        kinds = {known_metrics.get(metric.spec).empty for metric in self.protocol.metrics}
        words = {"skip": "are left out", 0: "count 0", 1: "count 1"}
        empty = " or ".join(words[kind] for kind in kinds)
        limit = self.data.list_limit
        cut = "whole" if limit is None else f"cut to {limit} documents"
        return [
            f"metrics: {specs}{times}",
            f"queries without a relevant document {empty}; tied scores earn their mean; "
            f"test lists are {cut}",
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        rows = []
        for row in self.rows:
            for metric in self.protocol.metrics:
                ours = self.estimate(row.name, metric.name)
                cell = self.protocol.cell(self.data.name, row.name, metric.name)
                paper = None if cell is None else cell.value
                keys = ("ours", "se_queries", "se_seeds", "sd_drawing")
                numbers = (None,) * len(keys) if ours is None else astuple(ours)
                rows.append(
                    {
                        "row": row.name,
                        "metric": metric.name,
                        "spec": metric.spec,
                        "paper": paper,
                        "paper_marks": None if cell is None else cell.marks,
                        **dict(zip(keys, numbers, strict=True)),
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
    """Run a table of a paper on one of its data sets, or go on where an earlier call stopped.

    Args:
        protocol: the table.
        data: one of its data sets.
        source: the folder of that data set.
        folder: of the runs and prepared data.
        options: how much to run.
        workers: processes, as :func:`rankgrad.experiments.compare.run` takes them.
        on_change: called with the title and the progress.

    Returns:
        The values beside the printed ones, also written to the folder.
    """
    options = options or RunOptions()
    place = Path(folder)
    plan = _plan_of(protocol, data, source, place, options)
    if plan is None:
        return ReproductionResult(protocol, data, options, None, "none of its rows is run here")
    shown = ReproductionResult(protocol, data, options, None)
    comparison = compare.run(
        plan,
        place / "comparison",
        workers=workers,
        on_change=None if on_change is None else lambda now: on_change(shown.title, now),
        **_test_of(protocol, plan),
    )
    done = ReproductionResult(protocol, data, options, comparison)
    _files.write(place / _RESULT, json.dumps(done.to_json(), indent=1) + "\n")
    _files.write(place / "table.md", done.table().to_markdown() + "\n")
    _files.write(place / "table.csv", done.table().to_csv() + "\n")
    return done


def _test_of(protocol: Protocol, plan: Plan) -> dict[str, Any]:
    """The paper's test as comparisons take it, so that a report of the runs tests alike."""
    test = protocol.significance
    if test is None:
        return {}
    there = any(entry.name == test.against for entry in plan.entries)
    return {"how": test.how, "baseline": test.against if there else None}


def _plan_of(
    protocol: Protocol, data: Data, source: Path, folder: Path, options: RunOptions
) -> Plan | None:
    """The comparison that a table is; None if there is no row to run."""
    quick = protocol.quick if options.quick else None
    rows = [row for row in protocol.rows_on(data.name, extra=options.extra) if not row.not_run]
    entries = [_entry(protocol, data, row, options) for row in rows]
    if not entries:
        return None
    place, folds = _splits.prepare(
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
        place,
        tuple(entries),
        folds=folds,
        seeds=tuple(range(seeds)),
        metrics=tuple(metric.spec for metric in protocol.metrics),
        settings=Settings(**shared),
    )


def _entry(protocol: Protocol, data: Data, row: Row, options: RunOptions) -> Entry:
    if row.trees is not None:
        return compare.TreeEntry(row.name, row.trees, dict(row.settings))
    quick = protocol.quick if options.quick else None
    points = []
    search = quick is None and options.search
    for point in protocol.grid_points(data.name, row.name, search=search):
        settings = dict(point.settings) | dict(options.settings or {})
        if quick is not None:
            settings["epochs"] = min(quick.epochs, int(settings.get("epochs", quick.epochs)))
        points.append(settings | {"loss": point.loss})
    return GridSearchEntry(row.name, tuple(points))


def _values(evaluated: EvaluatedLists, metric: Metric) -> Array:
    """The metric of each list; of shifted labels and some lists where the protocol says so."""
    values = plain = evaluated.of_metric(metric.spec)
    if metric.shift:
        shifted = evaluate(
            evaluated.scores,
            evaluated.labels + metric.shift,
            offsets=evaluated.offsets,
            metrics=[metric.spec],
        )
        values = np.where(np.isnan(plain), np.nan, shifted.per_list[metric.spec].double().numpy())
    if metric.length is not None:
        values = np.where(np.diff(evaluated.offsets) == metric.length, values, np.nan)
    return values


def _in_words(metric: Metric) -> str:
    shift = f" of labels + {metric.shift}" if metric.shift else ""
    length = "" if metric.length is None else f" of lists of {metric.length} documents"
    return f"{metric.spec}{shift}{length}"


def _printed(cell: PaperCell | None) -> Cell:
    """A cell of the paper's table."""
    if cell is None:
        return Cell("", missing=True)
    text = cell.text.removesuffix(cell.marks)
    return Cell(text, cell.value, mark=cell.marks, missing=cell.value is None)


def _error(value: float | None, digits: int) -> Cell:
    if value is None or np.isnan(value):
        return Cell("", missing=True)
    return Cell(f"±{value:.{digits}f}", value)


def _about_test(protocol: Protocol) -> str:
    test = protocol.significance
    assert test is not None
    kind = "paired t-test" if test.test == "t" else "paired randomization test"
    correction = "" if test.correction == "none" else f" with {test.correction} correction"
    how = f"{test.sided}-sided {kind} over queries{correction} at {test.level:.0%}"
    than = "the best" if test.against == "best" else test.against
    if test.against == "best" and test.better:
        return f"{test.better}: the best, and all not significantly worse ({how})"
    marks = [f"{test.worse} significantly worse than {than}"]
    if test.better:
        marks.append(f"{test.better} significantly better")
    return f"{', '.join(marks)} ({how}); seeds averaged in ours"


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
    """Run tables on those of their data sets that are there; what is missing is a reason.

    An error if nothing can be run, which says where to get the data.

    Args:
        tables: of one or more papers.
        data: a data set, or a folder of data sets.
        folder: of the runs and tables.
        options: how much to run.
        only: one data set.
        workers: processes, as :func:`rankgrad.experiments.compare.run` takes them.
        on_change: called with the title and the progress.

    Returns:
        A result for each table and data set.

    Raises:
        FileNotFoundError: nothing can be run.
    """
    wanted = [(table, one) for table in tables for one in table.data if only in (None, one.name)]
    if not wanted:
        names = dict.fromkeys(one.name for table in tables for one in table.data)
        raise ValueError(f"no table has the data set {only!r}. There are: {', '.join(names)}")
    if data is not None:
        _splits.check_exists(data)
    names = dict.fromkeys(one.name for _, one in wanted)
    there = {} if data is None else _splits.find(data, names)
    reasons = {
        (table.name, one.name): table.not_run
        or one.not_run
        or (None if one.name in there else _splits.missing(one.name, data))
        for table, one in wanted
    }
    if all(reasons.values()):
        lines = dict.fromkeys(str(reason) for reason in reasons.values())
        raise FileNotFoundError(f"nothing to run: {'; '.join(lines)}")
    found = []
    for table, one in wanted:
        reason = reasons[table.name, one.name]
        if reason:
            found.append(ReproductionResult(table, one, options, None, reason))
            continue
        kind = "-quick" if options.quick else "" if options.search else "-unsearched"
        place = folder / f"{table.name}{kind}" / one.name.replace(" ", "-")
        found.append(
            run(table, one, there[one.name], place, options, workers=workers, on_change=on_change)
        )
    return found
