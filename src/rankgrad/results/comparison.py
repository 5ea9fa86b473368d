"""Comparison: the means, intervals and tests of entries on the same lists."""

from __future__ import annotations

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
from rankgrad.results._groups import Fold, Place, RunGroup
from rankgrad.results.runs import Run
from rankgrad.results.statistics import MetricValues
from rankgrad.significance import Difference, Interval, Significance, check_same_queries
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["Comparison", "Key", "check_same_data", "compare"]

Key = tuple[str, int | None, int | None]  # entry, fold, seed


@dataclass(frozen=True)
class Comparison:
    """Entries on the same test lists, and how sure their differences are.

    Means are over runs (folds × seeds) of each run's mean over its lists. Only an entry with all
    its runs is complete: it is compared, the others have no mean. Tests, intervals and differences
    take the value of each list averaged over seeds, all folds' lists together.

    Args:
        entries: what is compared, in the order of tables.
        complete: the names of those that have all runs.
        runs: of each entry by fold and seed.
        folds: that complete entries were tested on.
        metrics: the columns of tables.
        primary: the metric of the headline; None where there is none.
        how: the test.
        baseline: the entry that others are tested against; None for the best of each metric.
        notes: further lines on what the numbers mean.
        plan: what was planned, for ``comparison.json``.
        folder: of the comparison.
        chosen: the values that a search chose, by entry and fold.
        reevaluated: why runs were evaluated again.
    """

    entries: tuple[RunGroup, ...]
    complete: frozenset[str]
    runs: Mapping[str, Mapping[Place, Run]]
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

    # ---------------------------------------------------------------- what is there

    @property
    def names(self) -> tuple[str, ...]:
        """The entries."""
        return tuple(entry.name for entry in self.entries)

    def entry(self, name: str) -> RunGroup:
        """The entry of this name, in whatever case it is given."""
        alike = [entry for entry in self.entries if entry.name.casefold() == name.casefold()]
        alike = [entry for entry in alike if entry.name == name] or alike
        if len(alike) == 1:
            return alike[0]
        raise ValueError(f"there is no ranker {name!r}. There are: {', '.join(self.names)}")

    def is_complete(self, name: str) -> bool:
        """Whether all runs of an entry are there, on the folds of the others."""
        return self.entry(name).name in self.complete

    @cached_property
    def evaluated(self) -> dict[Key, EvaluatedLists]:
        """The evaluation of every run, by entry, fold and seed."""
        return {
            (name, fold.number, seed): _evaluated(run)
            for name, runs in self.runs.items()
            for (fold, seed), run in runs.items()
        }

    @cached_property
    def missing(self) -> dict[Key, str]:
        """Why runs have no result."""
        missing: dict[Key, str] = {}
        for entry in self.entries:
            missing |= {(entry.name, *place): why for place, why in entry.missing.items()}
            for run in entry.runs:
                if run.evaluated is None:
                    missing[entry.name, run.fold, run.seed] = "; ".join(run.problems)
        return missing

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of runs, made or missing."""
        keys = [*self.evaluated, *self.missing]
        return tuple(sorted({seed for _, _, seed in keys if seed is not None})) or (0,)

    def lower_is_better(self, metric: str) -> bool:
        """Whether lower values of a metric are better; of an unknown metric, they are not."""
        known = _known(metric)
        return known is not None and known.lower_is_better

    # ---------------------------------------------------------------- values and means

    def has(self, name: str, metric: str) -> bool:
        """Whether an entry has a mean of a metric."""
        return not np.isnan(self.mean(name, metric))

    @cached_property
    def _values(self) -> dict[tuple[str, str], MetricValues]:
        """The values of complete entries, of the metrics that all runs of an entry have."""
        values = {}
        for name in self.names:
            if name in self.complete:
                for metric in self.metrics:
                    if all(metric in _evaluated(run).metrics for run in self.runs[name].values()):
                        values[name, metric] = self._of(name, metric)
        return values

    def _of(self, name: str, metric: str) -> MetricValues:
        runs = self.runs[name]
        seeds = list(dict.fromkeys(seed for _, seed in runs))
        seeds.sort(key=lambda seed: (seed is None, seed or 0))
        by_fold = [[_evaluated(runs[fold, seed]) for seed in seeds] for fold in self.folds]
        return MetricValues(
            tuple(np.stack([one.of_metric(metric) for one in fold]) for fold in by_fold),
            np.array([[one.mean[metric] for one in fold] for fold in by_fold]),
        )

    def metric_values(self, name: str, metric: str) -> MetricValues:
        """The values of a metric by fold and seed; an error that says what is missing."""
        name = self.entry(name).name
        for key, reason in self.missing.items():
            if key[0] == name:
                raise ValueError(f"{_run_name(*key)} is missing: {reason}")
        if (name, metric) not in self._values:
            raise ValueError(f"{name} was not evaluated with {metric} on all folds")
        return self._values[name, metric]

    def values(self, name: str, metric: str) -> Array:
        """The value of each list, averaged over seeds, all folds together."""
        return self.metric_values(name, metric).per_list

    def mean(self, name: str, metric: str) -> float:
        """The mean over all runs; NaN if one is missing."""
        values = self._values.get((self.entry(name).name, metric))
        return float("nan") if values is None else values.mean

    def interval(self, name: str, metric: str) -> Interval:
        """The 95% bootstrap interval of the mean over lists; NaN if a run is missing."""
        none = Interval(float("nan"), float("nan"))
        return self._intervals.get((self.entry(name).name, metric, ""), none)

    @cached_property
    def _intervals(self) -> dict[tuple[str, str, str], Interval]:
        """By entry, metric and reference of the difference, which is "" for the values."""
        columns = {}
        for (name, metric), values in self._values.items():
            columns[name, metric, ""] = values.per_list
            reference = self.reference(metric)
            if reference is not None and (reference, metric) in self._values:
                others = self._values[reference, metric].per_list
                columns[name, metric, reference] = values.per_list - others
        return significance.intervals(columns)

    @cached_property
    def queries(self) -> tuple[tuple[Fold, str], ...]:
        """Fold and id of each list, in the order of :meth:`values`."""
        return tuple(
            (fold, str(qid)) for fold, run in self._first.items() for qid in _evaluated(run).qids
        )

    @cached_property
    def _first(self) -> dict[Fold, Run]:
        """A run on each fold that is compared, or was evaluated if none is."""
        first: dict[Fold, Run] = {}
        for name in sorted(self.runs, key=lambda name: name not in self.complete):
            for (fold, _), run in self.runs[name].items():
                first.setdefault(fold, run)
        return {fold: first[fold] for fold in self.folds or first}

    # ---------------------------------------------------------------- what is best, and tests

    def best(self, metric: str) -> str | None:
        """The complete entry with the best mean; None if there is none. References do not count."""
        free = [entry.name for entry in self.entries if not entry.is_reference]
        means = {name: self.mean(name, metric) for name in free if self.has(name, metric)}
        pick = min if self.lower_is_better(metric) else max
        return pick(means, key=lambda name: means[name]) if means else None

    def reference(self, metric: str) -> str | None:
        """The entry that the others are tested against: the baseline, or the best one."""
        return self.best(metric) if self.baseline is None else self.entry(self.baseline).name

    def differences(self, metric: str) -> tuple[Difference, ...]:
        """Every other complete entry against the baseline, or against the best one."""
        return self._differences[metric]

    @cached_property
    def _differences(self) -> dict[str, tuple[Difference, ...]]:
        differences: dict[str, tuple[Difference, ...]] = {}
        for metric in self.metrics:
            reference = self.reference(metric)
            tested = [e.name for e in self.entries if e.name == reference or not e.is_reference]
            values = {n: self._values[n, metric].per_list for n in tested if self.has(n, metric)}
            if reference is None or reference not in values:
                differences[metric] = ()
                continue
            differences[metric] = significance.differences(
                values,
                reference,
                metric,
                self.how,
                lower_is_better=self.lower_is_better(metric),
                better=self.baseline is not None,
                ends={n: self._intervals[n, metric, reference] for n in values},
            )
        return differences

    def difference(self, name: str, metric: str) -> Difference | None:
        """The difference of an entry; None of the reference, and of what is not tested."""
        return next((d for d in self.differences(metric) if d.entry == name), None)

    def tested(self, how: Significance | None = None, baseline: str | None = None) -> Comparison:
        """The same with another test, or against another baseline."""
        return replace(self, how=how or self.how, baseline=baseline or self.baseline)

    # ---------------------------------------------------------------- what the numbers mean

    @cached_property
    def conventions(self) -> tuple[str, ...]:
        """What the numbers mean: means, empty lists, ties, gain, and what the plan notes."""
        folds = len(self.folds or {key[1] for key in (*self.evaluated, *self.missing)}) or 1
        over = [
            f"{n} {what}{'s' * (n > 1)}" for n, what in ((folds, "fold"), (len(self.seeds), "seed"))
        ]
        lines = [f"means over {' × '.join(over)} of each run's mean over the test lists"]
        if self._first:
            sizes = ", ".join(str(len(_evaluated(run).qids)) for run in self._first.values())
            lines += [f"test lists: {sizes}", *self._about_metrics()]
        return (*lines, *self.notes)

    def _about_metrics(self) -> list[str]:
        """The conventions of the metrics; where they differ, whose each is."""
        first = next(iter(self._first.values()))
        if first.metadata.get("ranker") == "text":  # relevant documents may not be in its lists
            return list(_evaluated(first).conventions)
        chosen = [known for metric in self.metrics if (known := _known(metric)) is not None]
        empty = [_without_relevant(run.with_items(), chosen) for run in self._first.values()]
        lines = []
        for rule, names in _alike(chosen, "empty").items():
            counts = [{without_relevant[name] for name in names} for without_relevant in empty]
            most = "up to " if any(len(count) > 1 for count in counts) else ""
            numbers = ", ".join(str(max(count)) for count in counts)
            how = "are left out" if rule == "skip" else f"count {rule}"
            whose = "" if len(names) == len(chosen) else f" for {', '.join(names)}"
            lines.append(f"lists without relevant items ({most}{numbers}) {how}{whose}")
        if chosen:
            lines.append(f"tied scores: {_whose(_alike(chosen, 'ties'))}")
        words = {"exponential": "2^y - 1", "linear": "y"}
        gains = {words[gain]: names for gain, names in _alike(chosen, "gain").items()}
        return [*lines, f"gain: {_whose(gains)}"] if gains else lines

    @cached_property
    def without_documents(self) -> dict[Fold, list[str]]:
        """The queries of each fold that have no documents."""
        empty = {}
        for fold, run in self._first.items():
            evaluated = _evaluated(run)
            empty[fold] = [str(qid) for qid in evaluated.qids[np.diff(evaluated.offsets) == 0]]
        return {fold: queries for fold, queries in empty.items() if queries}

    def problems(self) -> tuple[str, ...]:
        """Missing runs with their reasons, and what else is not as it should be."""
        alike: dict[tuple[str, str], list[Key]] = {}
        for key, reason in self.missing.items():
            alike.setdefault((key[0], reason), []).append(key)
        lines = [
            f"missing run: {name}, {_places(keys)}: {reason}"
            for (name, reason), keys in alike.items()
        ]
        for entry in self.entries:
            if entry.name not in self.complete and not any(
                k[0] == entry.name for k in self.missing
            ):
                lines += [f"{entry.name}: {problem}" for problem in entry.problems]
        lines += [
            f"evaluated again: {_run_name(*key)}, since {reason}"
            for key, reason in self.reevaluated.items()
        ]
        for fold, queries in self.without_documents.items():
            where = "" if fold.number is None else f" of fold {fold.number}"
            lines.append(
                f"{len(queries)} test queries{where} have no documents, such as {queries[0]!r}: "
                "they count as lists without relevant items"
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
    """Compare entries on the lists that they share; each must have all of them.

    Args:
        entries: to be compared; problems are added to them.
        metrics: that every run must have; by default all that runs have.
        primary: the metric of the headline; by default the one that chose the epochs.
        baseline: the entry to test the others against; an error if it cannot be compared.
        default_baseline: the baseline where none is given, if it can be compared.
        how: the test.
        fields: further fields of :class:`Comparison`.

    Returns:
        The comparison, with the baseline chosen.

    Raises:
        ValueError: the baseline cannot be compared, or ``primary`` was not evaluated.
    """
    required = None if metrics is None else tuple(dict.fromkeys(metrics))
    entries = [_require(entry, required or ()) for entry in entries]
    runs = _by_place(entries)
    folds = _common_folds(runs)
    done, complete = [], set()
    for entry in entries:
        reason = _incomparable(entry, runs, folds)
        problems = (*_own_problems(entry, runs), *entry.problems, *([reason] if reason else ()))
        done.append(replace(entry, problems=problems))
        if reason is None:
            complete.add(entry.name)
    names = _metrics(runs, complete) if required is None else required
    done = [_note_metrics(e, runs, names) if e.name in complete else e for e in done]
    comparison = Comparison(
        entries=tuple(done),
        complete=frozenset(complete),
        runs=runs,
        folds=tuple(folds if complete else ()),  # if each lacks something, nothing is compared
        metrics=names,
        primary=_primary(done, names, primary),
        how=how or Significance(),
        **fields,
    )
    if baseline is None:
        known = default_baseline in complete
        return replace(comparison, baseline=default_baseline if known else None)
    reference = comparison.entry(baseline)
    if reference.name not in complete:
        raise ValueError(f"{baseline} cannot be the baseline: {reference.problems[-1]}")
    return replace(comparison, baseline=reference.name)


def check_same_data(entries: Iterable[RunGroup]) -> None:
    """An error if runs of the same fold were tested on different data.

    Args:
        entries: with their runs.

    Raises:
        ValueError: data or queries differ, with the runs.
    """
    first: dict[int | None, tuple[str, Run]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.evaluated is None:
                continue
            name = _run_name(entry.name, run.fold, run.seed)
            other, reference = first.setdefault(run.fold, (name, run))
            one = _evaluated(reference)
            if run.evaluated.checksum != one.checksum:
                check_same_queries(one.qids, run.evaluated.qids, names=(other, name))
                raise ValueError(
                    f"{other} and {name} were evaluated on other data, though of the same queries: "
                    "compare in another folder"
                )


def _run_name(entry: str, fold: int | None, seed: int | None) -> str:
    """A run in words."""
    return f"{entry}{'' if fold is None else f', fold {fold}'}, seed {seed}"


def _evaluated(run: Run) -> EvaluatedLists:
    assert run.evaluated is not None
    return run.evaluated


def _known(metric: str) -> Metric | None:
    try:
        return known_metrics.get(metric)
    except ValueError:  # of the user's own
        return None


def _without_relevant(evaluated: EvaluatedLists, chosen: Sequence[Metric]) -> Mapping[str, int]:
    """How many lists have no relevant item, by metric."""
    return evaluate(
        evaluated.scores, evaluated.labels, offsets=evaluated.offsets, metrics=chosen
    ).without_relevant


def _require(entry: RunGroup, metrics: Sequence[str]) -> RunGroup:
    """A run without some of the metrics counts as missing."""
    runs = []
    for run in entry.runs:
        lacking = [m for m in metrics if run.evaluated and m not in run.evaluated.metrics]
        if lacking:
            problem = f"it was not evaluated with {', '.join(lacking)}"
            labels = _evaluated(run).labels_of_run
            run = replace(run, evaluated=None, problems=(problem,), other_labels=labels)
        runs.append(run)
    return replace(entry, runs=tuple(runs))


def _by_place(entries: Sequence[RunGroup]) -> dict[str, dict[Place, Run]]:
    """The evaluated runs by fold and seed; of two in the same place the first is taken.

    A run that does not say its fold is of the one fold that others name for the same data.
    """
    numbers: dict[str, set[int]] = {}
    for entry in entries:
        for run in entry.runs:
            if run.evaluated is not None and run.fold is not None:
                numbers.setdefault(run.evaluated.checksum, set()).add(run.fold)
    by_place: dict[str, dict[Place, Run]] = {}
    for entry in entries:
        places = by_place.setdefault(entry.name, {})
        for run in entry.runs:
            if run.evaluated is not None:
                named = numbers.get(run.evaluated.checksum, set())
                number = next(iter(named)) if run.fold is None and len(named) == 1 else run.fold
                places.setdefault((Fold(run.evaluated.checksum, number), run.seed), run)
    return by_place


def _common_folds(runs: Mapping[str, Mapping[Place, Run]]) -> list[Fold]:
    """The folds that entries are compared on: the most that any has, then the set most have."""
    sets = Counter(frozenset(fold for fold, _ in places) for places in runs.values() if places)
    if not sets:
        return []
    best = max(sets, key=lambda folds: (len(folds), sets[folds]))
    order = {fold: at for at, fold in enumerate(f for places in runs.values() for f, _ in places)}
    return sorted(best, key=lambda fold: (fold.number or 0, order[fold]))


def _incomparable(
    entry: RunGroup, runs: Mapping[str, Mapping[Place, Run]], folds: Sequence[Fold]
) -> str | None:
    """Why an entry cannot be compared; None if it can."""
    own_places = runs[entry.name]
    there = {fold for fold, _ in own_places}
    if not there:
        return "none of its runs has a result, so it is not compared"
    if not there & set(folds):
        return "it was evaluated on other data than the rest, so it is not compared"
    lacking = [fold.name for fold in folds if fold not in there]
    if lacking:
        return (
            f"no result on {', '.join(lacking)}: a mean over the others would be of other queries, "
            "so it is not compared"
        )
    seeds = dict.fromkeys(seed for _, seed in own_places)
    gone = [f"{f.name} with seed {s}" for s in seeds for f in folds if (f, s) not in own_places]
    missing = ", ".join(gone) or (f"{entry.n_missing} of its runs" if entry.n_missing else "")
    if missing:
        return f"no result on {missing}: its mean would be of fewer runs, so it is not compared"
    for (fold, _), run in own_places.items():
        first = next(r for places in runs.values() for (f, _), r in places.items() if f == fold)
        if not np.array_equal(_evaluated(run).qids, _evaluated(first).qids):
            return f"{run.path}: its queries are not those of the others, so it is not compared"
    return None


def _own_problems(entry: RunGroup, runs: Mapping[str, Mapping[Place, Run]]) -> list[str]:
    """What its runs lack, and runs that are there twice."""
    lines = [f"{run.path}: {problem}" for run in entry.runs for problem in run.problems]
    places = {(f.checksum, seed): f for f, seed in runs[entry.name]}
    evaluated = (run for run in entry.runs if run.evaluated is not None)
    for place, number in Counter((_evaluated(r).checksum, r.seed) for r in evaluated).items():
        alike = sum((f.checksum, seed) == place for f, seed in runs[entry.name])
        if number > alike:
            where = f"{places[place].name} with seed {place[1]}"
            lines.append(f"{number} runs on {where}: only the first is counted")
    return lines


def _metrics(runs: Mapping[str, Mapping[Place, Run]], complete: set[str]) -> tuple[str, ...]:
    """All metrics that complete entries have."""
    used = [run for name, places in runs.items() if name in complete for run in places.values()]
    return tuple(dict.fromkeys(metric for run in used for metric in _evaluated(run).metrics))


def _note_metrics(
    entry: RunGroup, runs: Mapping[str, Mapping[Place, Run]], metrics: Sequence[str]
) -> RunGroup:
    """Say which metrics some runs of an entry lack."""
    lacking = [
        f"{metric} was not evaluated in all of its runs"
        for metric in metrics
        if any(metric not in _evaluated(run).metrics for run in runs[entry.name].values())
    ]
    return replace(entry, problems=(*entry.problems, *lacking))


def _primary(entries: Sequence[RunGroup], metrics: Sequence[str], asked: str | None) -> str | None:
    """The metric of the headline: the one asked for, or that chose the epochs, or the first."""
    if asked is not None:
        if asked not in metrics:
            listed = ", ".join(metrics) or "none"
            raise ValueError(f"{asked!r} was not evaluated; there are: {listed}")
        return asked
    every = (run.settings.get("metric") for entry in entries for run in entry.runs)
    chose = {str(metric) for metric in every if metric is not None}
    if len(chose) == 1 and chose <= set(metrics):
        return chose.pop()
    return metrics[0] if metrics else None


def _alike(chosen: Sequence[Metric], option: str) -> dict[Any, list[str]]:
    """The metrics that have each value of an option; those without the option are left out."""
    alike: dict[Any, list[str]] = {}
    for metric in chosen:
        if hasattr(metric, option):
            alike.setdefault(getattr(metric, option), []).append(str(metric))
    return alike


def _whose(values: Mapping[str, Sequence[str]]) -> str:
    """Values, with the metrics that have each where there are several."""
    if len(values) < 2:
        return ", ".join(values)
    return "; ".join(f"{value} for {', '.join(names)}" for value, names in values.items())


def _places(keys: Sequence[Key]) -> str:
    """Folds and seeds of some runs in few words."""
    folds = {key[1]: [str(k[2]) for k in keys if k[1] == key[1]] for key in keys}
    parts = []
    for fold, seeds in folds.items():
        words = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        parts.append(words if fold is None else f"fold {fold} {words}")
    return "; ".join(parts)
