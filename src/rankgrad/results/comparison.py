"""Comparison: the means, intervals and tests of entries on the same lists.

:func:`compare` makes a :class:`Comparison` of groups of runs, for ``rankgrad compare``, the report
and the papers' tables. ``_comparison_tables`` prints it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import significance
from rankgrad._shapes import Array
from rankgrad.metrics import Metric, evaluate
from rankgrad.metrics import metrics as known_metrics
from rankgrad.results._groups import Fold, Place, RunGroup, entry_named
from rankgrad.results.runs import Run
from rankgrad.results.statistics import MetricValues
from rankgrad.significance import Difference, Interval, Significance, check_same_queries
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["Comparison", "Key", "check_same_data", "compare"]

Key = tuple[str, int | None, int | None]  # entry, fold, seed
_Runs = Mapping[str, Mapping[Place, Run]]  # evaluated runs by entry, then by fold and seed


@dataclass(frozen=True)
class Comparison:
    """Entries on the same test lists, and how sure their differences are.

    An entry is a group of runs that differ in fold and seed only, such as those of a loss with a
    model. Its mean is over runs (folds × seeds) of each run's mean over its lists. An entry is
    complete if all its runs have results, and it has one for each of the ``folds`` with each of its
    seeds, on the same queries as the other entries. Only complete entries have means and are
    compared. Tests, intervals and differences are over the lists of all folds, with the value of
    each list averaged over seeds.

    Two things are called a reference. The reference of a metric (:meth:`reference`) is the entry
    that the others are tested against. An entry for which ``is_reference`` holds is only shown,
    such as the best achievable ranking: it is never :meth:`best`, and others are tested against it
    only if it is the baseline.

    Args:
        entries: what is compared, in the order of tables.
        complete: the names of the complete entries.
        runs: the evaluated runs by entry, then by fold and seed.
        folds: the test data of the complete entries; empty if there are none.
        metrics: the columns of tables.
        primary: the metric of the headline; None if there are no metrics.
        how: the significance test.
        baseline: the entry that others are tested against; None for the best of each metric.
        notes: further lines on what the numbers mean.
        plan: the plan of the runs, for ``comparison.json``.
        folder: of the comparison.
        chosen: the hyperparameters that a search chose, by entry and fold.
        reevaluated: by entry, fold and seed, why a run was evaluated again.
    """

    entries: tuple[RunGroup, ...]
    complete: frozenset[str]
    runs: _Runs
    folds: tuple[Fold, ...]
    metrics: tuple[str, ...]
    primary: str | None
    how: Significance = field(default_factory=Significance)
    baseline: str | None = None
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    chosen: Mapping[tuple[str, int | None], Mapping[str, Any]] = field(default_factory=dict)
    reevaluated: Mapping[Key, str] = field(default_factory=dict)

    # ---------------------------------------------------------------- entries and runs

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries."""
        return tuple(entry.name for entry in self.entries)

    def entry(self, name: str) -> RunGroup:
        """The entry of this name, or of the only name that differs from it in case alone.

        Args:
            name: of the entry.

        Returns:
            The entry.

        Raises:
            ValueError: no entry has this name, or several differ from it in case alone.
        """
        return entry_named(self.entries, name)

    def is_complete(self, name: str) -> bool:
        """Whether an entry is complete, so that it is compared.

        Args:
            name: of the entry.

        Returns:
            True or False.
        """
        return self.entry(name).name in self.complete

    @cached_property
    def evaluated(self) -> dict[Key, EvaluatedLists]:
        """The evaluation of every run, by entry, fold and seed."""
        return {
            (name, fold.number, seed): _evaluation(run)
            for name, runs in self.runs.items()
            for (fold, seed), run in runs.items()
        }

    @cached_property
    def missing(self) -> dict[Key, str]:
        """The runs without a result, and why they have none."""
        missing: dict[Key, str] = {}
        for entry in self.entries:
            for (fold, seed), reason in entry.missing.items():
                missing[entry.name, fold, seed] = reason
            for run in entry.runs:
                if run.evaluated is None:
                    missing[entry.name, run.fold, run.seed] = "; ".join(run.problems)
        return missing

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all runs, finished or missing, ascending; 0 if no run states a seed."""
        keys = [*self.evaluated, *self.missing]
        return tuple(sorted({seed for _, _, seed in keys if seed is not None})) or (0,)

    @property
    def part(self) -> str:
        """The part of the data that the runs were evaluated on, such as ``test``."""
        return next((run.part for run in self._run_by_fold.values()), "test")

    def lower_is_better(self, metric: str) -> bool:
        """Whether lower values of a metric are better; False for a metric that is unknown.

        Args:
            metric: its spec.

        Returns:
            True or False.
        """
        registered = _registered(metric)
        return registered is not None and registered.lower_is_better

    # ---------------------------------------------------------------- values and means

    def has(self, name: str, metric: str) -> bool:
        """Whether an entry has a mean for a metric.

        Args:
            name: of the entry.
            metric: one of the columns of tables.

        Returns:
            True or False.
        """
        return not np.isnan(self.mean(name, metric))

    @cached_property
    def _values(self) -> dict[tuple[str, str], MetricValues]:
        """Values by entry and metric, for complete entries and metrics that all their runs have."""
        values = {}
        complete = [name for name in self.names if name in self.complete]
        for name, metric in itertools.product(complete, self.metrics):
            if all(metric in _evaluation(run).metrics for run in self.runs[name].values()):
                values[name, metric] = self._metric_values(name, metric)
        return values

    def _metric_values(self, name: str, metric: str) -> MetricValues:
        """The values of a complete entry; seeds ascend, and None, for no seed, is last."""
        runs = self.runs[name]
        seeds = list(dict.fromkeys(seed for _, seed in runs))
        seeds.sort(key=lambda seed: (seed is None, seed or 0))
        by_fold = [[_evaluation(runs[fold, seed]) for seed in seeds] for fold in self.folds]
        return MetricValues(
            tuple(np.stack([run.of_metric(metric) for run in fold]) for fold in by_fold),
            np.array([[run.mean[metric] for run in fold] for fold in by_fold]),
        )

    def metric_values(self, name: str, metric: str) -> MetricValues:
        """The values of an entry by fold and seed.

        Args:
            name: of the entry.
            metric: one of the columns of tables.

        Returns:
            The values of each list, and the mean of each run.

        Raises:
            ValueError: a run of the entry is missing, or one was not evaluated with the metric.
        """
        name = self.entry(name).name
        for key, reason in self.missing.items():
            if key[0] == name:
                raise ValueError(f"{_run_name(*key)} is missing: {reason}")
        if (name, metric) not in self._values:
            raise ValueError(f"{name} was not evaluated with {metric} on all folds")
        return self._values[name, metric]

    def values(self, name: str, metric: str) -> Array:
        """The value of each list ``[lists of all folds]``, averaged over seeds.

        Args:
            name: of the entry.
            metric: one of the columns of tables.

        Returns:
            In the order of :attr:`queries`; NaN for lists that the metric leaves out.
        """
        return self.metric_values(name, metric).per_list

    def mean(self, name: str, metric: str) -> float:
        """The mean over all runs; NaN if the entry is not complete, or a run lacks the metric.

        Args:
            name: of the entry.
            metric: one of the columns of tables.

        Returns:
            The mean over folds and seeds.
        """
        values = self._values.get((self.entry(name).name, metric))
        return float("nan") if values is None else values.mean

    def interval(self, name: str, metric: str) -> Interval:
        """The 95% bootstrap interval of the mean over lists; NaN where :meth:`mean` is.

        Args:
            name: of the entry.
            metric: one of the columns of tables.

        Returns:
            The low and the high end.
        """
        undefined = Interval(float("nan"), float("nan"))
        return self._intervals.get((self.entry(name).name, metric, ""), undefined)

    @cached_property
    def _intervals(self) -> dict[tuple[str, str, str], Interval]:
        """The intervals of means and of differences from the reference.

        The key is ``(entry, metric, "")`` for a mean, and ``(entry, metric, reference)`` for a
        difference.
        """
        per_list = {}
        for (name, metric), values in self._values.items():
            per_list[name, metric, ""] = values.per_list
            reference = self.reference(metric)
            if reference is not None and (reference, metric) in self._values:
                difference = values.per_list - self._values[reference, metric].per_list
                per_list[name, metric, reference] = difference
        return significance.intervals(per_list)  # all at once, so that they share bootstrap draws

    @cached_property
    def queries(self) -> tuple[tuple[Fold, str], ...]:
        """Fold and id of each list, in the order of :meth:`values`."""
        return tuple(
            (fold, str(qid))
            for fold, run in self._run_by_fold.items()
            for qid in _evaluation(run).qids
        )

    @cached_property
    def _run_by_fold(self) -> dict[Fold, Run]:
        """One run for each fold, of a complete entry if there is one; it tells the fold's lists.

        If no entry is complete, the folds are all those that any run was evaluated on.
        """
        runs: dict[Fold, Run] = {}
        for name in sorted(self.runs, key=lambda name: name not in self.complete):
            for (fold, _), run in self.runs[name].items():
                runs.setdefault(fold, run)
        return {fold: runs[fold] for fold in self.folds or runs}

    # ---------------------------------------------------------------- the best entry, and tests

    def best(self, metric: str) -> str | None:
        """The entry with the best mean, of those that are not only shown; None if there is none.

        Args:
            metric: one of the columns of tables.

        Returns:
            The name of the entry, or None.
        """
        names = [entry.name for entry in self.entries if not entry.is_reference]
        means = {name: self.mean(name, metric) for name in names if self.has(name, metric)}
        best = min if self.lower_is_better(metric) else max
        return best(means, key=lambda name: means[name]) if means else None

    def reference(self, metric: str) -> str | None:
        """The entry that the others are tested against: the baseline or, without it, the best.

        Args:
            metric: one of the columns of tables.

        Returns:
            The name of the entry; None without a baseline if there is no best entry.
        """
        return self.best(metric) if self.baseline is None else self.entry(self.baseline).name

    def differences(self, metric: str) -> tuple[Difference, ...]:
        """The differences of the other entries from :meth:`reference`, with their tests.

        Entries that are not complete, or only shown, have none.

        Args:
            metric: one of the columns of tables.

        Returns:
            The differences; empty if the reference has no mean.
        """
        return self._differences[metric]

    @cached_property
    def _differences(self) -> dict[str, tuple[Difference, ...]]:
        """Differences by metric; empty for a metric whose reference has no mean."""
        differences: dict[str, tuple[Difference, ...]] = {}
        for metric in self.metrics:
            reference = self.reference(metric)
            tested = [e.name for e in self.entries if e.name == reference or not e.is_reference]
            tested = [name for name in tested if self.has(name, metric)]
            values = {name: self._values[name, metric].per_list for name in tested}
            if reference is None or reference not in values:
                differences[metric] = ()
                continue
            differences[metric] = significance.differences(
                values,
                reference,
                metric,
                self.how,
                lower_is_better=self.lower_is_better(metric),
                # A one-sided test is of being better than the baseline, or worse than the best.
                better=self.baseline is not None,
                ends={name: self._intervals[name, metric, reference] for name in values},
            )
        return differences

    def difference(self, name: str, metric: str) -> Difference | None:
        """One of :meth:`differences`; None for the reference, and for entries not tested.

        Args:
            name: of the entry, as :attr:`names` has it.
            metric: one of the columns of tables.

        Returns:
            The difference, with its test.
        """
        return next((d for d in self.differences(metric) if d.entry == name), None)

    def tested(self, how: Significance | None = None, baseline: str | None = None) -> Comparison:
        """The same comparison with another test, or against another baseline.

        Args:
            how: the significance test; None for the same.
            baseline: the entry to test against; None for the same.

        Returns:
            A new comparison of the same runs.
        """
        name = self.baseline if baseline is None else self.entry(baseline).name
        return replace(self, how=how or self.how, baseline=name)

    # ---------------------------------------------------------------- what the numbers mean

    @cached_property
    def conventions(self) -> tuple[str, ...]:
        """Lines on what the numbers mean: means, empty lists, ties, gain, and the plan's notes."""
        folds = len(self.folds or {key[1] for key in (*self.evaluated, *self.missing)}) or 1
        # Of each complete entry that states seeds; some may have more than others.
        n_seeds = [len({seed for _, seed in self.runs[name]} - {None}) for name in self.complete]
        n_seeds = [count for count in n_seeds if count] or [len(self.seeds)]
        fewest, most = min(n_seeds), max(n_seeds)
        seeds = f"{'' if fewest == most else f'{fewest} to '}{most} seed{'s' * (most > 1)}"
        over = f"{folds} fold{'s' * (folds > 1)} × {seeds}"
        lines = [f"means over {over} of each run's mean over the {self.part} lists"]
        if self._run_by_fold:
            sizes = ", ".join(str(len(_evaluation(run).qids)) for run in self._run_by_fold.values())
            lines += [f"{self.part} lists: {sizes}", *self._about_metrics()]
        return (*lines, *self.notes)

    def _about_metrics(self) -> list[str]:
        """Lines on empty lists, ties and gain; where metrics differ, with their names."""
        first = next(iter(self._run_by_fold.values()))
        # Relevant documents may be missing in the lists of a ranker of texts, so lists without
        # relevant items cannot be counted here; its evaluation has the conventions.
        if first.metadata.get("ranker") == "text":
            return list(_evaluation(first).conventions)
        registered = [_registered(spec) for spec in self.metrics]
        metrics = [metric for metric in registered if metric is not None]
        empty_by_fold = [
            _count_empty(run.with_items(), metrics) for run in self._run_by_fold.values()
        ]
        lines = []
        for rule, names in _names_by_option(metrics, "empty").items():
            # The counts of a fold differ if metrics differ in which items are relevant.
            counts_by_fold = [{empty[name] for name in names} for empty in empty_by_fold]
            up_to = "up to " if any(len(counts) > 1 for counts in counts_by_fold) else ""
            numbers = ", ".join(str(max(counts)) for counts in counts_by_fold)
            effect = "are left out" if rule == "skip" else f"count {rule}"
            of_some = "" if len(names) == len(metrics) else f" for {', '.join(names)}"
            lines.append(f"lists without relevant items ({up_to}{numbers}) {effect}{of_some}")
        if metrics:
            lines.append(f"tied scores: {_in_words(_names_by_option(metrics, 'ties'))}")
        formulas = {"exponential": "2^y - 1", "linear": "y"}
        gains = {formulas[gain]: n for gain, n in _names_by_option(metrics, "gain").items()}
        return [*lines, f"gain: {_in_words(gains)}"] if gains else lines

    @cached_property
    def without_documents(self) -> dict[Fold, list[str]]:
        """The queries of each fold that have no documents."""
        queries_by_fold = {}
        for fold, run in self._run_by_fold.items():
            evaluated = _evaluation(run)
            queries = evaluated.qids[np.diff(evaluated.offsets) == 0]
            if len(queries):
                queries_by_fold[fold] = [str(qid) for qid in queries]
        return queries_by_fold

    def problems(self) -> tuple[str, ...]:
        """Lines on missing runs with their reasons, and on anything else that is wrong.

        Returns:
            The lines; empty if nothing is wrong.
        """
        by_reason: dict[tuple[str, str], list[Key]] = {}
        for key, reason in self.missing.items():
            by_reason.setdefault((key[0], reason), []).append(key)
        lines = [
            f"missing run: {name}, {_folds_and_seeds(keys)}: {reason}"
            for (name, reason), keys in by_reason.items()
        ]
        explained = {*self.complete, *(name for name, _, _ in self.missing)}
        for entry in self.entries:
            if entry.name not in explained:
                lines += [f"{entry.name}: {problem}" for problem in entry.problems]
        lines += [
            f"evaluated again: {_run_name(*key)}, since {reason}"
            for key, reason in self.reevaluated.items()
        ]
        for fold, queries in self.without_documents.items():
            where = "" if fold.number is None else f" of fold {fold.number}"
            lines.append(
                f"{len(queries)} {self.part} queries{where} have no documents, such as "
                f"{queries[0]!r}: they count as lists without relevant items"
            )
        return tuple(lines)


def compare(
    entries: Sequence[RunGroup],
    *,
    metrics: Iterable[str] | None = None,
    primary: str | None = None,
    baseline: str | None = None,
    default_baseline: str | None = None,
    how: Significance | None = None,
    **fields: Any,
) -> Comparison:
    """Compare entries on the largest set of folds that an entry has.

    Only entries with runs on all these folds are compared; ``problems`` says why others are not.

    Args:
        entries: what is compared; in the result their ``problems`` are longer.
        metrics: that every run must have: runs without them count as missing. By default, all
            metrics that some run of a complete entry has.
        primary: the metric of the headline; by default the one that chose the epochs, if it is the
            same in all runs, else the first.
        baseline: the entry to test the others against; it must be complete.
        default_baseline: the baseline if ``baseline`` is None and this one is complete.
        how: the significance test.
        fields: further fields of :class:`Comparison`.

    Returns:
        The comparison, with the baseline chosen.

    Raises:
        ValueError: the baseline cannot be compared, or ``primary`` was not evaluated.
    """
    required = None if metrics is None else tuple(dict.fromkeys(metrics))
    entries = [_mark_lacking_runs(entry, required or ()) for entry in entries]
    runs = _by_place(entries)
    folds = _common_folds(runs)
    checked, complete = [], set()
    for entry in entries:
        reason = _why_not_compared(entry, runs, folds)
        problems = (*_problems_of_runs(entry, runs), *entry.problems, *([reason] if reason else ()))
        checked.append(replace(entry, problems=problems))
        if reason is None:
            complete.add(entry.name)
    columns = _all_metrics(runs, complete) if required is None else required
    if primary is not None and primary not in columns:
        names = ", ".join(columns) or "none"
        raise ValueError(f"{primary!r} was not evaluated; there are: {names}")
    checked = [
        _note_lacking_metrics(e, runs, columns) if e.name in complete else e for e in checked
    ]
    comparison = Comparison(
        entries=tuple(checked),
        complete=frozenset(complete),
        runs=runs,
        folds=tuple(folds if complete else ()),
        metrics=columns,
        primary=primary or _default_primary(checked, columns),
        how=how or Significance(),
        **fields,
    )
    if baseline is None:
        is_complete = default_baseline in complete
        return replace(comparison, baseline=default_baseline if is_complete else None)
    reference = comparison.entry(baseline)
    if reference.name not in complete:
        raise ValueError(f"{baseline} cannot be the baseline: {reference.problems[-1]}")
    return replace(comparison, baseline=reference.name)


def check_same_data(entries: Iterable[RunGroup]) -> None:
    """Raise if runs of the same fold were tested on different data.

    Args:
        entries: with their runs.

    Raises:
        ValueError: data or queries differ; the error names the runs.
    """
    first_by_fold: dict[int | None, tuple[str, EvaluatedLists]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.evaluated is None:
                continue
            name = _run_name(entry.name, run.fold, run.seed)
            first_name, first = first_by_fold.setdefault(run.fold, (name, run.evaluated))
            if run.evaluated.checksum != first.checksum:
                check_same_queries(first.qids, run.evaluated.qids, names=(first_name, name))
                raise ValueError(
                    f"{first_name} and {name} were evaluated on other data, though of the same "
                    "queries: compare in another folder"
                )


def _run_name(entry: str, fold: int | None, seed: int | None) -> str:
    """A run in words, such as ``softmax, fold 1, seed 0``."""
    return f"{entry}{'' if fold is None else f', fold {fold}'}, seed {seed}"


def _evaluation(run: Run) -> EvaluatedLists:
    """The evaluation of a run that has one."""
    assert run.evaluated is not None
    return run.evaluated


def _registered(metric: str) -> Metric | None:
    """The metric of a spec; None for one that a user registered elsewhere."""
    try:
        return known_metrics.get(metric)
    except ValueError:
        return None


def _count_empty(evaluated: EvaluatedLists, metrics: Sequence[Metric]) -> Mapping[str, int]:
    """How many lists have no relevant item, by metric."""
    return evaluate(
        evaluated.scores, evaluated.labels, offsets=evaluated.offsets, metrics=metrics
    ).without_relevant


def _mark_lacking_runs(entry: RunGroup, metrics: Sequence[str]) -> RunGroup:
    """The entry, with runs that lack one of the metrics marked as not evaluated."""
    runs = []
    for run in entry.runs:
        lacking = [m for m in metrics if run.evaluated and m not in run.evaluated.metrics]
        if lacking:
            problem = f"it was not evaluated with {', '.join(lacking)}"
            run = replace(run, evaluated=None, problems=(problem,), other_labels=run.labels)
        runs.append(run)
    return replace(entry, runs=tuple(runs))


def _by_place(entries: Sequence[RunGroup]) -> dict[str, dict[Place, Run]]:
    """The evaluated runs by entry, then by place: fold and seed.

    If an entry has several runs in a place, the first counts. If a run does not state its fold, but
    other runs on the same data all state the same number, it gets that number.
    """
    numbers_by_data: dict[str, set[int]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.evaluated is not None and run.fold is not None:
                numbers_by_data.setdefault(run.evaluated.checksum, set()).add(run.fold)
    by_place: dict[str, dict[Place, Run]] = {}
    for entry in entries:
        places = by_place.setdefault(entry.name, {})
        for run in entry.runs:
            if run.evaluated is not None:
                numbers = numbers_by_data.get(run.evaluated.checksum, set())
                number = next(iter(numbers)) if run.fold is None and len(numbers) == 1 else run.fold
                places.setdefault((Fold(run.evaluated.checksum, number), run.seed), run)
    return by_place


def _common_folds(runs: _Runs) -> list[Fold]:
    """The folds that entries are compared on: the largest set that an entry has.

    Of sets of the same size, it is the one that most entries have.
    """
    counts = Counter(frozenset(fold for fold, _ in places) for places in runs.values() if places)
    if not counts:
        return []
    largest = max(counts, key=lambda folds: (len(folds), counts[folds]))
    folds = [fold for places in runs.values() for fold, _ in places]
    order = {fold: index for index, fold in enumerate(folds)}
    return sorted(largest, key=lambda fold: (fold.number or 0, order[fold]))


def _why_not_compared(entry: RunGroup, runs: _Runs, folds: Sequence[Fold]) -> str | None:
    """Why an entry cannot be compared; None if it can, and so is complete."""
    own_places = runs[entry.name]
    own_folds = {fold for fold, _ in own_places}
    if not own_folds:
        return "none of its runs has a result, so it is not compared"
    if not own_folds & set(folds):
        return "it was evaluated on other data than the rest, so it is not compared"
    missing = ", ".join(fold.name for fold in folds if fold not in own_folds)
    if missing:
        return (
            f"no result on {missing}: a mean over the others would be of other queries, "
            "so it is not compared"
        )
    expected = itertools.product(dict.fromkeys(seed for _, seed in own_places), folds)
    missing = ", ".join(
        f"{fold.name} with seed {seed}" for seed, fold in expected if (fold, seed) not in own_places
    )
    if not missing and entry.n_missing:
        missing = f"{entry.n_missing} of its runs"
    if missing:
        return f"no result on {missing}: its mean would be of fewer runs, so it is not compared"
    for (fold, _), run in own_places.items():
        first = next(r for places in runs.values() for (f, _), r in places.items() if f == fold)
        if not np.array_equal(_evaluation(run).qids, _evaluation(first).qids):
            return f"{run.path}: its queries are not those of the others, so it is not compared"
    return None


def _problems_of_runs(entry: RunGroup, runs: _Runs) -> list[str]:
    """Lines on the problems of an entry's runs, and on runs that are not counted.

    Of several runs on the same data with the same seed, only the first is counted.
    """
    lines = [f"{run.path}: {problem}" for run in entry.runs for problem in run.problems]
    evaluated = [run for run in entry.runs if run.evaluated is not None]
    n_runs = Counter((_evaluation(run).checksum, run.seed) for run in evaluated)
    n_places = Counter((fold.checksum, seed) for fold, seed in runs[entry.name])
    names = {(fold.checksum, seed): fold.name for fold, seed in runs[entry.name]}
    for (checksum, seed), number in n_runs.items():
        if number > n_places[checksum, seed]:
            name = names[checksum, seed]
            lines.append(f"{number} runs on {name} with seed {seed}: only the first is counted")
    return lines


def _all_metrics(runs: _Runs, complete: set[str]) -> tuple[str, ...]:
    """All metrics that some run of a complete entry has."""
    compared = [run for name, places in runs.items() if name in complete for run in places.values()]
    return tuple(dict.fromkeys(metric for run in compared for metric in _evaluation(run).metrics))


def _note_lacking_metrics(entry: RunGroup, runs: _Runs, metrics: Sequence[str]) -> RunGroup:
    """The entry, with a further problem for each metric that some of its runs lack."""
    lacking = [
        f"{metric} was not evaluated in all of its runs"
        for metric in metrics
        if any(metric not in _evaluation(run).metrics for run in runs[entry.name].values())
    ]
    return replace(entry, problems=(*entry.problems, *lacking))


def _default_primary(entries: Sequence[RunGroup], metrics: Sequence[str]) -> str | None:
    """The metric of the headline: the one that chose the epochs, or the first."""
    per_run = (run.settings.get("metric") for entry in entries for run in entry.runs)
    validation_metrics = {str(metric) for metric in per_run if metric is not None}
    if len(validation_metrics) == 1 and validation_metrics <= set(metrics):
        return validation_metrics.pop()
    return metrics[0] if metrics else None


def _names_by_option(metrics: Sequence[Metric], option: str) -> dict[Any, list[str]]:
    """The names of metrics by the value of an option; metrics without the option are left out."""
    names: dict[Any, list[str]] = {}
    for metric in metrics:
        if hasattr(metric, option):
            names.setdefault(getattr(metric, option), []).append(str(metric))
    return names


def _in_words(names_by_value: Mapping[str, Sequence[str]]) -> str:
    """The values of an option; if there are several, each with the metrics that have it."""
    if len(names_by_value) < 2:
        return ", ".join(names_by_value)
    return "; ".join(f"{value} for {', '.join(names)}" for value, names in names_by_value.items())


def _folds_and_seeds(keys: Sequence[Key]) -> str:
    """The folds and seeds of some runs in a few words, such as ``fold 1 seeds 0, 1``."""
    seeds_by_fold: dict[int | None, list[str]] = {}
    for _, fold, seed in keys:
        seeds_by_fold.setdefault(fold, []).append(str(seed))
    parts = []
    for fold, seeds in seeds_by_fold.items():
        words = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        parts.append(words if fold is None else f"fold {fold} {words}")
    return "; ".join(parts)
