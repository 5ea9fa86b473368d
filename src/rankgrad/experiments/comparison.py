"""Comparison: results as they are shown, in tables, in the words below them, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rankgrad.experiments.results import Key, Results, run_name
from rankgrad.experiments.tables import BETTER, WORSE, Cell, Table
from rankgrad.experiments.trees import TreeCandidate
from rankgrad.metrics import Metric, evaluate
from rankgrad.metrics import metrics as known_metrics
from rankgrad.significance import Significance
from rankgrad.training.evaluations import Evaluated

FORMAT, VERSION = "rankgrad comparison", 1


@dataclass(frozen=True)
class Comparison(Results):
    """:class:`Results` with their tables, and what the numbers in them mean."""

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
            marked=self.plan.metrics,
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
        if self._first:
            sizes = ", ".join(str(len(found.qids)) for found in self._first.values())
            lines.append(f"test lists: {sizes}")
            lines += self._about_metrics()
        lines.append("a cutoff beyond a list's end is its end, but precision@k divides by k")
        size = plan.settings.list_size
        cut = "" if size is None else f"; training lists are cut to {size} items"
        lines.append(f"test lists are ranked in full, never cut{cut}")
        if plan.tune is not None:
            lines.append(
                f"values tuned on validation data by {plan.settings.metric}, {plan.tune} trials "
                "for each candidate and fold"
            )
        else:
            lines += self._about_trees()
        return tuple(lines)

    def _about_trees(self) -> list[str]:
        """How the values of trees were chosen, where a comparison is not tuned."""
        names: dict[int, list[str]] = {}
        for candidate in self.plan.candidates:
            if isinstance(candidate, TreeCandidate) and candidate.combinations > 1:
                names.setdefault(candidate.combinations, []).append(candidate.name)
        networks = sum(map(len, names.values())) < len(self.plan.candidates)
        others = (
            "; the losses as they are given, without a search (--tune gives all the same number "
            "of trials)"
        )
        return [
            f"{', '.join(some)}: the best of {count} combinations of values by "
            f"{self.plan.settings.metric} on validation data, fold by fold"
            + (others if networks else "")
            for count, some in names.items()
        ]

    @cached_property
    def _first(self) -> dict[int | None, Evaluated]:
        """An evaluation of each fold that has one."""
        found = {key[1]: one for key, one in self.evaluated.items()}
        return {fold: found[fold] for fold in self.plan.folds if fold in found}

    @cached_property
    def _without_relevant(self) -> list[Mapping[str, int]]:
        """How many test lists have no relevant items, by fold and metric."""
        return [
            evaluate(
                one.scores, one.labels, offsets=one.offsets, metrics=self.plan.metrics
            ).without_relevant
            for one in self._first.values()
        ]

    def _about_metrics(self) -> list[str]:
        """The conventions of the metrics; where they differ, whose each is."""
        chosen = [known_metrics.get(spec) for spec in self.plan.metrics]
        lines = []
        for rule, names in _alike(chosen, "empty").items():
            counts = [{found[name] for name in names} for found in self._without_relevant]
            most = "up to " if any(len(count) > 1 for count in counts) else ""
            numbers = ", ".join(str(max(count)) for count in counts)
            how = "are left out" if rule == "skip" else f"count {rule}"
            whose = "" if len(names) == len(chosen) else f" for {', '.join(names)}"
            lines.append(f"lists without relevant items ({most}{numbers}) {how}{whose}")
        lines.append(f"tied scores: {_whose(_alike(chosen, 'ties'))}")
        words = {"exponential": "2^y - 1", "linear": "y"}
        gains = {words[gain]: names for gain, names in _alike(chosen, "gain").items()}
        return [*lines, f"gain: {_whose(gains)}"] if gains else lines

    def problems(self) -> tuple[str, ...]:
        """Gaps with their reasons, and what else is not as it should be."""
        alike: dict[tuple[str, str], list[Key]] = {}
        for key, reason in self.gaps.items():
            alike.setdefault((key[0], reason), []).append(key)
        lines = [f"gap: {name}, {_runs(keys)}: {reason}" for (name, reason), keys in alike.items()]
        lines += [
            f"evaluated again: {run_name(*key)}, since {reason}"
            for key, reason in self.remade.items()
        ]
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
            notes=(f"over {self._paired(reference, metric)}; {how}",) if found else (),
        )

    def _paired(self, reference: str, metric: str) -> str:
        """How many lists were compared: a metric may leave some out."""
        values = self.values(reference, metric)
        there = int(np.count_nonzero(~np.isnan(values)))
        of = "" if there == len(values) else f" of {len(values)}"
        return f"{there}{of} test lists"

    def tuned_table(self) -> Table:
        """The values that tuning chose, fold by fold."""
        rows = [
            (Cell(name), Cell("-" if fold is None else str(fold)), Cell(written(values)))
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
            "format": FORMAT,
            "version": VERSION,
            "plan": self.plan.facts(),
            "rows": rows,
            "significance": str(how),
            "test": {**vars(how), "baseline": baseline},
            "differences": differences,
            "conventions": list(self.conventions()),
            "problems": list(self.problems()),
        }


def written(values: Mapping[str, Any]) -> str:
    """Values by name, in a line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _alike(chosen: Sequence[Metric], option: str) -> dict[Any, list[str]]:
    """The metrics that have each value of an option; those without the option are left out."""
    found: dict[Any, list[str]] = {}
    for metric in chosen:
        if hasattr(metric, option):
            found.setdefault(getattr(metric, option), []).append(str(metric))
    return found


def _whose(values: Mapping[str, Sequence[str]]) -> str:
    """Values, with the metrics that have each where there are several."""
    if len(values) < 2:
        return ", ".join(values)
    return "; ".join(f"{value} for {', '.join(names)}" for value, names in values.items())


def _p_value(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


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
