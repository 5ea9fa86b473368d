"""Compare: candidates trained on the same data, folds and seeds, and what is significant."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankgrad import files
from rankgrad.experiments import jobs, significance
from rankgrad.experiments.plans import (
    Candidate,
    Contender,
    Plan,
    Task,
    check_splits,
    folds_of,
)
from rankgrad.experiments.significance import Correction, Interval
from rankgrad.experiments.tables import BETTER, WORSE, Cell, Table
from rankgrad.experiments.trees import TreeCandidate
from rankgrad.experiments.workers import LOCK, WORKERS, Job, Pool, alone, number
from rankgrad.lists import check_choice
from rankgrad.metrics import metrics as known_metrics
from rankgrad.training.evaluations import Evaluated

__all__ = [
    "Candidate",
    "Comparison",
    "Contender",
    "Difference",
    "Plan",
    "Progress",
    "Row",
    "Significance",
    "TreeCandidate",
    "folds_of",
    "load",
    "run",
]

PLAN, COMPARISON = "plan.json", "comparison.json"
_FORMAT, _VERSION = "rankgrad comparison", 1

Key = tuple[str, int | None, int]  # candidate, fold, seed
Test = Literal["t", "randomisation"]


@dataclass(frozen=True)
class Significance:
    """How differences are tested.

    Args:
        test: the paired ``"t"`` test or the paired ``"randomisation"`` test, on per-list values.
        correction: for the number of candidates compared with the same one, metric by metric.
        sides: 2, or 1: whether a candidate is worse than the best, or better than the baseline.
        level: of significance.
        samples: of the randomisation test and of bootstrap intervals.
    """

    test: Test = "t"
    correction: Correction = "bonferroni"
    sides: Literal[1, 2] = 2
    level: float = 0.05
    samples: int = 10_000

    def __post_init__(self) -> None:
        check_choice("test", self.test, ("t", "randomisation"))
        check_choice("correction", self.correction, significance.CORRECTIONS)
        check_choice("sides", self.sides, (1, 2))
        if not 0 < self.level < 1:
            raise ValueError(f"level must be between 0 and 1, found {self.level}")

    def __str__(self) -> str:
        test = "paired t-test" if self.test == "t" else "paired randomisation test"
        sides = "one-sided" if self.sides == 1 else "two-sided"
        corrected = {"holm": "Holm", "bonferroni": "Bonferroni"}.get(self.correction)
        words = "no correction" if corrected is None else f"{corrected} correction"
        return f"{test}, {sides}, {words}, at {self.level:.0%}"

    def p_value(self, one: Any, other: Any, better: bool) -> float:
        """Of the values of two rankers, higher being better; one-sided: that one is better."""
        alternative: significance.Alternative = "greater" if better else "less"
        if self.sides == 2:
            alternative = "two-sided"
        if self.test == "t":
            return significance.paired_t_test(one, other, alternative=alternative)
        return significance.randomisation_test(
            one, other, alternative=alternative, samples=self.samples
        )


@dataclass(frozen=True)
class Difference:
    """How a candidate differs from another, the reference, in a metric.

    ``difference`` is the mean over lists of candidate - reference, ``interval`` its 95% bootstrap
    interval, ``corrected`` the p-value after correction for the number of candidates.
    """

    candidate: str
    reference: str
    metric: str
    difference: float
    interval: Interval
    p_value: float
    corrected: float
    significant: bool
    better: bool


@dataclass(frozen=True)
class Row:
    """How far a candidate is."""

    candidate: str
    done: int
    failed: int
    total: int
    running: tuple[str, ...]
    means: Mapping[str, float]  # over the runs that are done


@dataclass(frozen=True)
class Progress:
    """How far a comparison is: a row per candidate, and what happened now, in words."""

    rows: tuple[Row, ...]
    event: str | None = None


OnChange = Callable[[Progress], None]


@dataclass(frozen=True)
class Comparison:
    """What a comparison found: the evaluation of every run, or the reason why there is none.

    Means are over runs (folds × seeds) of each run's mean over its lists, and are NaN where a run
    is missing: what is missing is never averaged away. Tests, intervals and differences take the
    value of each list averaged over seeds, all folds' lists together.
    """

    plan: Plan
    folder: Path
    evaluated: Mapping[Key, Evaluated]
    gaps: Mapping[Key, str]
    chosen: Mapping[tuple[str, int | None], Mapping[str, Any]]  # tuned values, by candidate, fold

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates in the order of the plan."""
        return tuple(candidate.name for candidate in self.plan.candidates)

    def is_complete(self, candidate: str) -> bool:
        """Whether all runs of a candidate are there."""
        self.plan.candidate(candidate)
        return not any(name == candidate for name, _, _ in self.gaps)

    def runs(self, candidate: str, metric: str) -> NDArray[np.float64]:
        """The mean of each run, ``[folds, seeds]``; NaN where there is a gap."""
        self.plan.candidate(candidate)
        found = [
            [self._mean(candidate, fold, seed, metric) for seed in self.plan.seeds]
            for fold in self.plan.folds
        ]
        return np.array(found)

    def _mean(self, candidate: str, fold: int | None, seed: int, metric: str) -> float:
        evaluated = self.evaluated.get((candidate, fold, seed))
        return float("nan") if evaluated is None else evaluated.mean[metric]

    def mean(self, candidate: str, metric: str) -> float:
        """The mean over all runs; NaN if one is missing."""
        return float(self.runs(candidate, metric).mean())

    def standard_error(self, candidate: str, metric: str) -> float:
        """Of the mean: over folds, seeds averaged, or over seeds where there is one fold."""
        runs = self.runs(candidate, metric)
        means = runs.mean(1) if len(self.plan.folds) > 1 else runs[0]
        if len(means) < 2:
            return float("nan")
        return float(means.std(ddof=1) / np.sqrt(len(means)))

    def values(self, candidate: str, metric: str) -> NDArray[np.float64]:
        """The value of each list, averaged over seeds, all folds together."""
        self._check_complete(candidate)
        folds = [
            np.mean([self.evaluated[candidate, f, s].of_metric(metric) for s in self.plan.seeds], 0)
            for f in self.plan.folds
        ]
        return np.concatenate(folds)

    def queries(self, candidate: str) -> list[str]:
        """The query ids in the order of :meth:`values`, ``fold/qid`` where there are folds."""
        self._check_complete(candidate)
        found = []
        for fold in self.plan.folds:
            prefix = "" if fold is None else f"{fold}/"
            qids = self.evaluated[candidate, fold, self.plan.seeds[0]].qids
            found += [f"{prefix}{qid}" for qid in qids]
        return found

    def _check_complete(self, candidate: str) -> None:
        self.plan.candidate(candidate)
        for (name, fold, seed), reason in self.gaps.items():
            if name == candidate:
                raise ValueError(f"{_run_name(name, fold, seed)} is missing: {reason}")

    def interval(self, candidate: str, metric: str) -> Interval:
        """The 95% bootstrap interval of the mean over lists."""
        return significance.bootstrap_interval(self.values(candidate, metric))

    def best(self, metric: str) -> str | None:
        """The candidate with the best mean among those without gaps; None if all have some."""
        lower = known_metrics.get(metric).lower_is_better
        means = {n: self.mean(n, metric) for n in self.names if self.is_complete(n)}
        means = {name: mean for name, mean in means.items() if not np.isnan(mean)}
        if not means:
            return None
        return (min if lower else max)(means, key=lambda name: means[name])

    def differences(
        self,
        metric: str,
        *,
        baseline: str | None = None,
        how: Significance | None = None,
    ) -> tuple[Difference, ...]:
        """Every other candidate without gaps against the baseline, or against the best one."""
        how = how or Significance()
        reference = self.best(metric) if baseline is None else baseline
        if reference is None or not self.is_complete(reference):
            return ()
        others = [n for n in self.names if n != reference and self.is_complete(n)]
        sign = -1.0 if known_metrics.get(metric).lower_is_better else 1.0
        theirs = self.values(reference, metric)
        p_values, found = [], []
        for name in others:
            names = (name, reference)
            significance.check_same_queries(
                self.queries(name), self.queries(reference), names=names
            )
            mine = self.values(name, metric)
            p_values.append(how.p_value(sign * mine, sign * theirs, better=baseline is not None))
            interval = significance.difference_interval(mine, theirs)
            found.append((name, float(np.nanmean(mine - theirs)), interval))
        corrected = significance.correct(p_values, how.correction)
        return tuple(
            Difference(
                candidate=name,
                reference=reference,
                metric=metric,
                difference=difference,
                interval=interval,
                p_value=p,
                corrected=float(after),
                significant=bool(after < how.level),
                better=sign * difference > 0,
            )
            for (name, difference, interval), p, after in zip(
                found, p_values, corrected, strict=True
            )
        )

    def table(
        self,
        *,
        baseline: str | None = None,
        how: Significance | None = None,
        intervals: bool = False,
        digits: int = 4,
    ) -> Table:
        """Means by candidate and metric, the best in bold, daggers as the SmoothI paper's Table 1.

        † is significantly worse than the best, or than the baseline; ‡ significantly better than
        the baseline.
        """
        how = how or Significance()
        if baseline is not None:
            self.plan.candidate(baseline)
        marks: dict[tuple[str, str], str] = {}
        for metric in self.plan.metrics:
            for d in self.differences(metric, baseline=baseline, how=how):
                if d.significant:
                    marks[d.candidate, metric] = BETTER if d.better else WORSE
        rows = []
        for name in self.names:
            cells = [self._cell(name, metric, intervals, digits) for metric in self.plan.metrics]
            marked = [
                Cell(c.text, c.value, c.bold, marks.get((name, metric), ""), c.gap)
                for c, metric in zip(cells, self.plan.metrics, strict=True)
            ]
            rows.append((Cell(name), *marked))
        return Table(
            columns=("candidate", *self.plan.metrics),
            rows=tuple(rows),
            notes=(*self._legend(baseline, how, intervals), *self.conventions(), *self.problems()),
        )

    def _cell(self, name: str, metric: str, intervals: bool, digits: int) -> Cell:
        if not self.is_complete(name):
            total = len(self.plan.folds) * len(self.plan.seeds)
            there = total - sum(key[0] == name for key in self.gaps)
            return Cell(f"gap ({there}/{total})", gap=True)
        mean = self.mean(name, metric)
        if np.isnan(mean):
            return Cell("undefined", gap=True)
        text = f"{mean:.{digits}f}"
        if intervals:
            low, high = self.interval(name, metric)
            text += f" [{low:.{digits}f}, {high:.{digits}f}]"
        return Cell(text, mean, bold=name == self.best(metric))

    def _legend(self, baseline: str | None, how: Significance, intervals: bool) -> list[str]:
        than = "the best one" if baseline is None else baseline
        lines = [f"best in bold; {WORSE} significantly worse than {than} ({how})"]
        if baseline is not None:
            words = f"{WORSE} significantly worse, {BETTER} better than {baseline} ({how})"
            if how.sides == 1:
                words = f"{BETTER} significantly better than {baseline} ({how})"
            lines = [f"best in bold; {words}"]
        if intervals:
            lines.append("in brackets: 95% bootstrap intervals over lists, seeds averaged")
        return lines

    def conventions(self) -> tuple[str, ...]:
        """What the numbers mean: means, empty lists, ties, gain, cutoffs, truncation."""
        plan, lines = self.plan, []
        folds, seeds = len(plan.folds), len(plan.seeds)
        over = [f"{n} {what}{'s' * (n > 1)}" for n, what in ((folds, "fold"), (seeds, "seed"))]
        lines.append(f"means over {' × '.join(over)} of each run's mean over the test lists")
        some = next(iter(self.evaluated.values()), None)
        if some is not None:
            firsts = {key[1]: e for key, e in self.evaluated.items()}
            sizes = ", ".join(str(len(firsts[fold].qids)) for fold in plan.folds if fold in firsts)
            lines.append(f"test lists: {sizes}")
            lines += [line for line in some.conventions if not line.startswith("mean over ")]
        lines.append("a cutoff beyond a list's end is its end, but precision@k divides by k")
        size = plan.settings.list_size
        cut = "" if size is None else f"; training lists are cut to {size} items"
        lines.append(f"test lists are ranked in full, never cut{cut}")
        if plan.tune is not None:
            lines.append(
                f"values tuned on validation data by {plan.settings.metric}, {plan.tune} trials "
                "for each candidate and fold"
            )
        return tuple(lines)

    def problems(self) -> tuple[str, ...]:
        """Gaps with their reasons, and what else is not as it should be."""
        alike: dict[tuple[str, str], list[Key]] = {}
        for key, reason in self.gaps.items():
            alike.setdefault((key[0], reason), []).append(key)
        lines = [f"gap: {name}, {_runs(keys)}: {reason}" for (name, reason), keys in alike.items()]
        seen = set()
        for (_, fold, _), evaluated in self.evaluated.items():
            empty = evaluated.qids[np.diff(evaluated.offsets) == 0]
            if fold not in seen and len(empty):
                where = "" if fold is None else f" of fold {fold}"
                lines.append(
                    f"{len(empty)} test queries{where} have no documents, such as "
                    f"{str(empty[0])!r}: they count as lists without relevant items"
                )
            seen.add(fold)
        return tuple(lines)

    def differences_table(
        self, metric: str, *, baseline: str | None = None, how: Significance | None = None
    ) -> Table:
        """How far each candidate is from the best one, or the baseline, and how sure that is."""
        how = how or Significance()
        found = self.differences(metric, baseline=baseline, how=how)
        rows = tuple(
            (
                Cell(d.candidate),
                Cell(f"{d.difference:+.4f}", d.difference),
                Cell(f"{d.interval.low:+.4f} to {d.interval.high:+.4f}"),
                Cell(_p_value(d.p_value), d.p_value),
                Cell(_p_value(d.corrected), d.corrected),
                Cell("yes" if d.significant else "no"),
            )
            for d in found
        )
        reference = found[0].reference if found else "none"
        return Table(
            title=f"{metric}, difference from {reference}",
            columns=("candidate", "difference", "95% interval", "p", "corrected p", "significant"),
            rows=rows,
            notes=(f"over {len(self.values(reference, metric))} test lists; {how}",)
            if found
            else (),
        )

    def tuned_table(self) -> Table:
        """The values that tuning chose, fold by fold."""
        rows = [
            (Cell(name), Cell("-" if fold is None else str(fold)), Cell(_written(values)))
            for (name, fold), values in self.chosen.items()
        ]
        order = {name: at for at, name in enumerate(self.names)}
        rows.sort(key=lambda row: order[row[0].text])
        return Table(("candidate", "fold", "chosen on validation data"), tuple(rows))

    def facts(
        self, *, baseline: str | None = None, how: Significance | None = None
    ) -> dict[str, Any]:
        """All of it as JSON has it, less the per-list values, which the run folders have."""
        how = how or Significance()
        rows = []
        for name in self.names:
            complete = self.is_complete(name)
            rows.append(
                {
                    "candidate": name,
                    "complete": complete,
                    "mean": {m: _number(self.mean(name, m)) for m in self.plan.metrics},
                    "standard_error": {
                        m: _number(self.standard_error(name, m)) for m in self.plan.metrics
                    },
                    "interval95": {
                        m: list(map(_number, self.interval(name, m))) if complete else None
                        for m in self.plan.metrics
                    },
                    "runs": [
                        {
                            "fold": fold,
                            "seed": seed,
                            "mean": None if found is None else {
                                m: _number(found.mean[m]) for m in self.plan.metrics
                            },
                            "gap": self.gaps.get((name, fold, seed)),
                        }
                        for fold in self.plan.folds
                        for seed in self.plan.seeds
                        for found in [self.evaluated.get((name, fold, seed))]
                    ],
                    "tuned": [
                        {"fold": fold, "values": dict(self.chosen[name, fold])}
                        for fold in self.plan.folds
                        if (name, fold) in self.chosen
                    ],
                }
            )  # fmt: skip
        differences = [
            {**vars(d), "interval": list(d.interval)}
            for metric in self.plan.metrics
            for d in self.differences(metric, baseline=baseline, how=how)
        ]
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "plan": self.plan.facts(),
            "rows": rows,
            "significance": str(how),
            "differences": differences,
            "conventions": list(self.conventions()),
            "problems": list(self.problems()),
        }


def run(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_change: OnChange | None = None,
) -> Comparison:
    """Make every run of a plan that is not there yet, and put all of them together.

    Every run has its own folder, ``folder/runs/CANDIDATE/fold1-seed0``. Called again with the same
    plan after a crash, finished runs are left as they are and half-runs are continued. Candidates,
    folds, seeds and metrics may be added; a candidate whose settings differ is an error.

    Args:
        plan: what to compare.
        folder: where; made if it is not there.
        workers: processes to run in; None for one per core, or per GPU if runs are on GPUs; 0 for
            this process.
        on_change: called whenever something happened.
    """
    place = Path(folder)
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be at least 0, found {workers}")
    count = number(plan.settings) if workers is None else workers
    check_splits(plan.data, plan.folds)
    _check_folder(place)
    place.mkdir(parents=True, exist_ok=True)
    with alone(place):
        _check_plan(plan, place)
        failures = _Runner(plan, place, on_change).run(count)
        found = _gather(plan, place, failures)
        files.write(place / COMPARISON, json.dumps(found.facts(), indent=1) + "\n")
    return found


def load(plan: Plan, folder: str | os.PathLike[str]) -> Comparison:
    """What is there of a comparison, without running anything."""
    return _gather(plan, Path(folder), {})


class _Runner:
    """The runs of a plan: which are to be made, which wait for tuning, and how far each is."""

    def __init__(self, plan: Plan, folder: Path, on_change: OnChange | None) -> None:
        self.plan, self.folder, self.on_change = plan, folder, on_change
        self.failures: dict[Key, str] = {}
        self.means: dict[Key, Mapping[str, float]] = {}
        self.running: dict[tuple[Key, bool], str] = {}
        self.pending: list[Job] = []
        self.waiting: dict[tuple[str, int | None], list[Task]] = {}  # for tuning
        for task in plan.tasks(folder):
            if _finished(task):
                self.means[task.key] = Evaluated.load(task.path).mean
            else:
                self._plan(task)

    def _plan(self, task: Task) -> None:
        if jobs.is_tuned(task):
            self.pending.append(Job(task))
            return
        group = (task.candidate.name, task.fold)
        if group not in self.waiting:
            self.pending.append(Job(task, tuning=True))
        self.waiting.setdefault(group, []).append(task)

    def run(self, workers: int) -> dict[Key, str]:
        """Make the runs; the reasons of those that failed."""
        self._changed()
        if workers == 0:
            data = jobs.Data()
            while (job := self._next(None)) is not None:
                outcome = jobs.perform(job.task, job.tuning, data, partial(self._told, job))
                self._ended(job, outcome)
        elif self.pending:
            runs = len(self.pending) + sum(len(group) - 1 for group in self.waiting.values())
            pool = Pool(min(workers, runs), self.plan.settings, self.folder)
            pool.run(self._next, self._told, self._ended)
        return self.failures

    def _next(self, fold: int | None) -> Job | None:
        """The next job, of the same fold if there is one: its data are read already."""
        if not self.pending:
            return None
        same = (at for at, job in enumerate(self.pending) if job.task.fold == fold)
        return self.pending.pop(next(same, 0))

    def _told(self, job: Job, text: str) -> None:
        where = f"seed {job.task.seed}" if not job.tuning else "tuning"
        fold = "" if job.task.fold is None else f"fold {job.task.fold} "
        self.running[job.task.key, job.tuning] = f"{fold}{where}: {text}"
        self._changed()

    def _ended(self, job: Job, outcome: jobs.Outcome) -> None:
        task = job.task
        self.running.pop((task.key, job.tuning), None)
        if outcome.state == "interrupted":
            raise KeyboardInterrupt
        if job.tuning:
            event = self._tuned(task, outcome)
        elif outcome.state == "failed":
            self.failures[task.key] = outcome.reason
            event = f"{task}: failed: {outcome.reason}"
        else:
            self.means[task.key] = mean = Evaluated.load(task.path).mean
            first = self.plan.metrics[0]
            event = f"{task}: {first} {mean[first]:.4f}"
        self._changed(event)

    def _tuned(self, task: Task, outcome: jobs.Outcome) -> str:
        waited = self.waiting.pop((task.candidate.name, task.fold))
        fold = "" if task.fold is None else f" fold {task.fold}"
        name = f"{task.candidate.name}{fold}"
        if outcome.state == "failed":
            self.failures |= {each.key: f"tuning: {outcome.reason}" for each in waited}
            return f"{name}: tuning failed: {outcome.reason}"
        self.pending[:0] = [Job(each) for each in waited]
        return f"{name}: tuned: {_written(jobs.chosen(task))}"

    def _changed(self, event: str | None = None) -> None:
        if self.on_change is not None:
            rows = tuple(self._row(candidate.name) for candidate in self.plan.candidates)
            self.on_change(Progress(rows, event))

    def _row(self, name: str) -> Row:
        done = [mean for key, mean in self.means.items() if key[0] == name]
        shown = self.plan.metrics if done else ()
        running = (text for (key, _), text in self.running.items() if key[0] == name)
        return Row(
            candidate=name,
            done=len(done),
            failed=sum(key[0] == name for key in self.failures),
            total=len(self.plan.folds) * len(self.plan.seeds),
            running=tuple(running),
            means={metric: float(np.mean([mean[metric] for mean in done])) for metric in shown},
        )


def _p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _finished(task: Task) -> bool:
    try:
        return jobs.finished(task)
    except (ValueError, OSError):
        return False


def _gather(plan: Plan, folder: Path, failures: Mapping[Key, str]) -> Comparison:
    """Read the evaluations of all runs; what cannot be read is a gap."""
    evaluated: dict[Key, Evaluated] = {}
    gaps: dict[Key, str] = {}
    chosen: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for task in plan.tasks(folder):
        if task.key in failures:
            gaps[task.key] = failures[task.key]
            continue
        try:
            found = Evaluated.load(task.path)
        except FileNotFoundError:
            gaps[task.key] = "it has not been run to its end"
        except (ValueError, OSError) as error:
            gaps[task.key] = jobs.reason_of(error)
        else:
            missing = [metric for metric in plan.metrics if metric not in found.metrics]
            if missing:
                gaps[task.key] = f"it was not evaluated with {', '.join(missing)}"
            else:
                evaluated[task.key] = found
                if task.candidate.is_tuned(plan):
                    chosen[task.candidate.name, task.fold] = jobs.chosen(task)
    _check_data(evaluated)
    return Comparison(plan, folder, evaluated, gaps, chosen)


def _check_data(evaluated: Mapping[Key, Evaluated]) -> None:
    """Runs of the same fold must be of the same test data."""
    first: dict[int | None, Key] = {}
    for key, found in evaluated.items():
        other = first.setdefault(key[1], key)
        reference = evaluated[other]
        if found.checksum == reference.checksum:
            continue
        names = (_run_name(*other), _run_name(*key))
        significance.check_same_queries(reference.qids, found.qids, names=names)
        raise ValueError(
            f"{names[0]} and {names[1]} were evaluated on other data, though of the same queries: "
            "compare in another folder"
        )


def _check_folder(folder: Path) -> None:
    """A folder of something else is left alone."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another place")
    if folder.exists() and not (folder / PLAN).exists():
        others = {inside.name for inside in folder.iterdir()} - {LOCK, WORKERS}
        if others:
            raise FileExistsError(
                f"{folder} is there and holds no comparison: choose another folder"
            )


def _check_plan(plan: Plan, folder: Path) -> None:
    """An error that says what differs, if the folder is of another plan; else write it down."""
    now, path = plan.facts(), folder / PLAN
    if path.exists():
        then = files.read_json(path)
        if not isinstance(then, dict) or then.get("version") != _VERSION:
            raise ValueError(
                f"{path} was written by another version of rankgrad: compare in another folder"
            )
        differences = [
            f"{name}: {difference}"
            for name, facts in now["candidates"].items()
            if name in then["candidates"]
            for difference in _differences(facts, then["candidates"][name])
        ]
        if now["tune"] != then["tune"]:
            differences.append(f"tune: {now['tune']!r}, not {then['tune']!r}")
        if differences:
            more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
            raise ValueError(
                f"{folder} holds a comparison with other settings; "
                f"{'; '.join(differences[:4])}{more}. Go on with the same, or in another folder"
            )
        now["candidates"] = {**then["candidates"], **now["candidates"]}
    now = {"format": _FORMAT, "version": _VERSION, **now}
    files.write(path, json.dumps(now, indent=1) + "\n")


def _differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {now.get(name)!r}, not {then.get(name)!r}"
        for name in {**then, **now}
        if now.get(name) != then.get(name)
    ]


def _run_name(candidate: str, fold: int | None, seed: int) -> str:
    return f"{candidate}{'' if fold is None else f', fold {fold}'}, seed {seed}"


def _runs(keys: Sequence[Key]) -> str:
    """Some runs of a candidate in few words."""
    folds = {key[1]: [str(k[2]) for k in keys if k[1] == key[1]] for key in keys}
    parts = []
    for fold, seeds in folds.items():
        words = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        parts.append(words if fold is None else f"fold {fold} {words}")
    return "; ".join(parts)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
