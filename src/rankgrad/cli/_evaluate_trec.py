"""``rankgrad evaluate RUN... QRELS``: TREC runs against judgments.

:mod:`rankgrad.cli.evaluate` calls :func:`evaluate_runs` if its last argument has judgments. For
other data it uses :func:`interval_rows`, :func:`means_dict` and :func:`lists_dict` of this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rankgrad
from rankgrad.cli._printing import (
    Number,
    interval_cell,
    show_json,
    show_notes,
    show_table,
    value_cell,
)

if TYPE_CHECKING:
    from rankgrad.text._evaluation import Conventions, RunEvaluation

#: The columns of :func:`interval_rows`.
INTERVAL_COLUMNS: Sequence[str] = ("metric", "mean", "95% interval")


def is_qrels(path: Path) -> bool:
    """Whether a path has TREC judgments: a file of qrels, or the folder of Cranfield or CISI."""
    from rankgrad.data.trec import looks_like_qrels
    from rankgrad.text import _classic

    return looks_like_qrels(path) or _classic.is_known(path)


def evaluate_runs(
    runs: Sequence[Path],
    judgments: Path,
    metrics: Sequence[str] | None,
    options: Mapping[str, Any],
    test: str | None,
) -> Results:
    """Evaluate each run, and test every run after the first against the first.

    Args:
        runs: files of TREC runs.
        judgments: a file of qrels, or the folder of Cranfield or CISI.
        metrics: specs; None for the default ones.
        options: arguments of :class:`Conventions` by name; a value of None means its default.
        test: the name of the paired test; None for the t-test.
    """
    from rankgrad.data.trec import read_qrels, read_run
    from rankgrad.text import _classic
    from rankgrad.text._evaluation import DEFAULT, Conventions, evaluate_run, p_values

    conventions = Conventions(**{key: value for key, value in options.items() if value is not None})
    kind = cast("rankgrad.significance.Test", test or "t")
    significance = rankgrad.significance.Significance(kind, "holm")
    if test is not None and len(runs) == 1:
        raise ValueError("--test compares runs with the first one: give two runs or more")
    for run in runs:
        if run.is_dir():
            raise ValueError(
                f"{judgments} has TREC judgments, so {run} must be a TREC run: `rankgrad predict "
                "-o NAME.run` writes one, or `rankgrad text rerank` for a ranker of texts"
            )
    is_classic = _classic.is_known(judgments)
    qrels = _classic.load(judgments).qrels if is_classic else read_qrels(judgments)
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    evaluations = [
        evaluate_run(read_run(run), qrels, metrics or DEFAULT, conventions) for run in runs
    ]
    p_by_metric = p_values(evaluations, names, significance) if len(runs) > 1 else {}
    return Results(judgments, names, evaluations, p_by_metric, conventions, significance)


@dataclass(frozen=True)
class Results:
    """Evaluated runs, to be printed.

    Args:
        judgments: the path of the judgments.
        names: the names of the runs.
        evaluations: the evaluation of each run.
        p_values: by metric, a p-value for each run after the first, of its test against the first
            run; empty if there is only one run.
        conventions: the conventions of the evaluation.
        significance: the test that gave the p-values.
    """

    judgments: Path
    names: list[str]
    evaluations: list[RunEvaluation]
    p_values: dict[str, list[float]]
    conventions: Conventions
    significance: rankgrad.significance.Significance

    def show(self) -> None:
        """Print a table, with the conventions under it."""
        first = self.evaluations[0]
        if len(self.names) == 1:
            columns, rows = INTERVAL_COLUMNS, interval_rows(first.values)
        else:
            columns, rows = self._comparison_table()
        footer = [f"{len(first.queries)} queries", *self.conventions.lines()]
        footer += [*first.values.empty_rules(), *self._gains()]
        if self.p_values:
            footer.append(f"p: against {self.names[0]}, {self.significance}")
        title = f"{', '.join(self.names)} on {self.judgments}"
        show_table(columns, rows, title=title, footer=footer)
        show_notes(self._notes())

    def show_json(self, per_query: bool) -> None:
        """Print as JSON, with or without the values of each query."""
        show_json(
            {
                "qrels": self.judgments,
                "runs": [self._run_dict(index, per_query) for index in range(len(self.names))],
                "conventions": asdict(self.conventions),
                "p_values": self.p_values,
                "significance": str(self.significance) if self.p_values else None,
            }
        )
        show_notes(self._notes())

    def _comparison_table(self) -> tuple[Sequence[str], list[Sequence[object]]]:
        """Columns and rows for two or more runs: means, and p-values against the first run."""
        columns = ["metric", self.names[0]]
        for name in self.names[1:]:
            columns += [name, "p"]
        rows: list[Sequence[object]] = []
        for metric, p_values in self.p_values.items():
            first, *others = (evaluation.values.mean[metric] for evaluation in self.evaluations)
            cells = [value_cell(first)]
            for mean, p in zip(others, p_values, strict=True):
                cells += [value_cell(mean), Number("-" if math.isnan(p) else f"{p:.4f}")]
            rows.append((metric, *cells))
        return columns, rows

    def _gains(self) -> list[str]:
        """The line that says which gains the metrics have; no line if they have none."""
        gains = {m.gain for m in self.evaluations[0].values.metrics if hasattr(m, "gain")}
        formulas = {"exponential": "2^grade - 1", "linear": "grade"}
        return [f"gain: {', '.join(formulas[gain] for gain in sorted(gains))}"] if gains else []

    def _run_dict(self, index: int, per_query: bool) -> dict[str, Any]:
        """The JSON object of one run."""
        evaluation = self.evaluations[index]
        return {
            "run": self.names[index],
            "queries": len(evaluation.queries),
            **means_dict(evaluation.values),
            "judged_not_in_run": evaluation.missing,
            "in_run_not_judged": evaluation.unjudged,
            **(lists_dict(evaluation.values, evaluation.queries) if per_query else {}),
        }

    def _notes(self) -> list[str]:
        """Lines on queries that the run or the judgments lack."""
        notes = []
        for name, evaluation in zip(self.names, self.evaluations, strict=True):
            unjudged, missing = evaluation.unjudged, evaluation.missing
            if unjudged:
                notes.append(f"queries of {name} without judgments, left out: {unjudged}")
            if missing and self.conventions.complete:
                notes.append(f"judged queries not in {name}, nothing retrieved: {missing}")
            elif missing:
                text = f"judged queries not in {name}, left out: {missing}"
                notes.append(f"{text}; --complete (-c) counts them")
        return notes


def interval_rows(evaluation: rankgrad.metrics.Evaluation) -> list[Sequence[object]]:
    """Rows of a table: each metric, its mean and the 95% bootstrap interval of the mean."""
    return [
        (name, value_cell(evaluation.mean[name]), interval_cell(*ends))
        for name, ends in rankgrad.significance.intervals(evaluation.per_list).items()
    ]


def means_dict(evaluation: rankgrad.metrics.Evaluation) -> dict[str, Any]:
    """JSON fields: means, their 95 % intervals, and how many lists have no relevant item."""
    return {
        "mean": dict(evaluation.mean),
        "interval95": rankgrad.significance.intervals(evaluation.per_list),
        "without_relevant": dict(evaluation.without_relevant),
    }


def lists_dict(evaluation: rankgrad.metrics.Evaluation, qids: Sequence[str]) -> dict[str, Any]:
    """JSON field: ids of queries ``[B]`` and, by metric, the values of their lists ``[B]``."""
    values = {name: array.tolist() for name, array in evaluation.per_list.items()}
    return {"per_list": {"qid": qids, **values}}
