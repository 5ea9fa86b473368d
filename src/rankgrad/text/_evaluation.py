"""evaluate_run: metrics of a TREC run against relevance judgments, as trec_eval computes them.

``rankgrad evaluate RUN QRELS`` and ``Candidates.evaluate`` use it. The conventions of trec_eval:

- Relevant documents that were not retrieved count in the number of relevant documents and in the
  ideal ranking. Unjudged documents and those with a grade below 1 are not relevant.
- Scores are rounded to float32. Documents of equal score are ranked by id, descending.
- The mean is over the judged queries of the run. With ``complete`` it is over all judged queries,
  and a query that is not in the run has retrieved nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

import rankgrad.metrics
from rankgrad._validation import check_choice, check_whole
from rankgrad.data.trec import Qrels, RankedList, best_first, check_zeros
from rankgrad.metrics import Evaluation, Metric
from rankgrad.metrics._base import BinaryMetric
from rankgrad.significance import Significance, check_same_queries, differences

Ties = Literal["trec_eval", "average"]
DEFAULT = ("nDCG@10", "AP", "RR", "P@10", "R@100")  # metrics, by their names in ir_measures


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Which documents and queries count, and how documents of equal score are ranked.

    Args:
        level: the lowest relevant grade, for metrics of binary relevance whose spec has no
            ``threshold``; trec_eval's ``-l``.
        complete: average over all judged queries; trec_eval's ``-c``.
        ties: ``"trec_eval"``, by document id, descending; or ``"average"``, the mean over all
            orders of documents with equal scores.
        double: compare scores as float64, not as float32.
    """

    level: int = 1
    complete: bool = False
    ties: Ties = "trec_eval"
    double: bool = False

    def __post_init__(self) -> None:
        check_whole("level", self.level)
        check_choice("ties", self.ties, get_args(Ties))

    def lines(self) -> list[str]:
        """A sentence for each convention."""
        queries = "all judged queries" if self.complete else "the judged queries of the run"
        width = "float64" if self.double else "float32"
        ties = "by document id, descending" if self.ties == "trec_eval" else "averaged"
        return [
            f"mean over {queries}; relevant documents that were not retrieved count",
            f"binary relevance from grade {self.level} on; unjudged documents are not relevant",
            f"equal scores (as {width}): {ties}",
        ]


@dataclass(frozen=True)
class RunEvaluation:
    """The values of metrics on a run.

    Args:
        queries: the ids of the evaluated queries, ``[B]``.
        values: by metric, the value of each query ``[B]``, in the order of ``queries``, and means.
        missing: the number of judged queries that are not in the run.
        unjudged: the number of queries of the run that are not judged, and so are left out.
    """

    queries: tuple[str, ...]
    values: Evaluation
    missing: int
    unjudged: int


def evaluate_run(
    run: Mapping[str, RankedList],
    qrels: Qrels,
    metrics: Iterable[str | Metric] = DEFAULT,
    conventions: Conventions | None = None,
) -> RunEvaluation:
    """Evaluate a run against judgments.

    Args:
        run: ranked lists by query, such as :func:`rankgrad.data.trec.read_run` gives.
        qrels: grades by query and document.
        metrics: specs or metrics; other tools' names are known, see
            :mod:`rankgrad.metrics._other_names`.
        conventions: by default those of trec_eval.

    Raises:
        ValueError: no query of the run is judged (unless the run is empty and ``complete`` is set),
            or ids of the run and the judgments differ by leading zeros alone.

    >>> from rankgrad.data.trec import RankedList
    >>> from rankgrad.text._evaluation import evaluate_run
    >>> run = {"1": RankedList.sort(["a", "b"], [2.0, 1.0])}
    >>> evaluation = evaluate_run(run, {"1": {"b": 1, "c": 2}}, ["AP", "nDCG"])
    >>> {name: round(value, 4) for name, value in evaluation.values.mean.items()}
    {'ap': 0.25, 'ndcg(gain=linear)': 0.2398}
    """
    conventions = conventions or Conventions()
    check_zeros(run, qrels, ("the run", "the judgments"))
    judged = [query for query in qrels if query in run]  # the judged queries of the run
    may_be_empty = conventions.complete and not run
    if not judged and not may_be_empty:
        raise ValueError(
            f"no query of the run is judged: the run has {_first_ids(run)}, the judgments "
            f"{_first_ids(qrels)}"
        )
    queries = list(qrels) if conventions.complete else judged
    lists = [_judged_list(run.get(query), qrels[query], conventions) for query in queries]
    scores, labels, retrieved = map(np.concatenate, zip(*lists, strict=True))
    values = rankgrad.metrics.evaluate(
        scores,
        labels,
        lengths=[len(list_labels) for _, list_labels, _ in lists],
        retrieved=retrieved,
        metrics=[_with_level(metric, conventions.level) for metric in metrics],
    )
    missing, unjudged = len(qrels) - len(judged), len(run) - len(judged)
    return RunEvaluation(tuple(queries), values, missing, unjudged)


def p_values(
    evaluations: Sequence[RunEvaluation], names: Sequence[str], significance: Significance
) -> dict[str, list[float]]:
    """The p-values of the differences between the first run and each other run.

    Args:
        evaluations: the evaluations of two or more runs by the same metrics.
        names: the names of the runs, for errors.
        significance: the test, and the correction for the number of tests. A one-sided test is of
            whether the other run is better.

    Returns:
        By metric, the corrected p-value of each run but the first; NaN if fewer than two queries
        have a value.

    Raises:
        ValueError: the runs were not evaluated on the same queries.
    """
    first, *others = evaluations
    for name, other in zip(names[1:], others, strict=True):
        try:
            check_same_queries(first.queries, other.queries, names=(names[0], name))
        except ValueError as error:
            raise ValueError(f"{error}. --complete (-c) takes all judged queries") from None
    corrected = {}
    for metric in first.values.metrics:
        name, lower = str(metric), metric.lower_is_better
        # Runs are named by their index: "0", the first run, is what the others are tested against.
        values = {str(i): run.values.per_list[name] for i, run in enumerate(evaluations)}
        tests = differences(values, "0", name, significance, lower_is_better=lower, better=True)
        corrected[name] = [difference.corrected for difference in tests]
    return corrected


def _judged_list(
    ranked: RankedList | None, grades: Mapping[str, int], conventions: Conventions
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """The documents that were retrieved for a query, best first, then those that were missed.

    Missed documents are relevant documents that were not retrieved.

    Args:
        ranked: the ranking; None if the query is not in the run.
        grades: the judgments of the query, by document.
        conventions: how equal scores are ranked.

    Returns:
        Scores ``[n]``, 0 for missed documents; labels ``[n]``, the grades; and which documents were
        retrieved, ``[n]``.
    """
    documents, scores = _ranked_documents(ranked, conventions)
    relevant = {document: grade for document, grade in grades.items() if grade > 0}
    labels = [relevant.get(document, 0) for document in documents]
    retrieved = set(documents)
    missed = [grade for document, grade in relevant.items() if document not in retrieved]
    return (
        np.concatenate([scores, np.zeros(len(missed))]),
        np.array(labels + missed, np.float64),
        np.arange(len(labels) + len(missed)) < len(labels),
    )


def _ranked_documents(
    ranked: RankedList | None, conventions: Conventions
) -> tuple[list[str], NDArray[np.float64]]:
    """The ids of documents in trec_eval's order, and their scores ``[n]``.

    If ties are averaged, these are the scores of the run. Otherwise they are n, n - 1, ..., 1: all
    differ, and give trec_eval's order.
    """
    if ranked is None:
        return [], np.empty(0)
    scores = np.asarray(ranked.scores, np.float64)
    if not conventions.double:
        with np.errstate(over="ignore"):  # scores beyond float32 become infinite, and tie
            scores = scores.astype(np.float32).astype(np.float64)
    order = best_first(ranked.documents, scores)
    documents = [ranked.documents[i] for i in order.tolist()]
    if conventions.ties == "average":
        return documents, np.nan_to_num(scores[order])  # infinite scores become finite
    return documents, np.arange(len(documents), 0, -1, dtype=np.float64)


def _with_level(metric: str | Metric, level: int) -> Metric:
    """The metric with the threshold ``level``, if it is binary and its spec has no threshold."""
    registry = rankgrad.metrics.metrics
    parsed = registry.get(metric)
    has_threshold = isinstance(metric, str) and "threshold" in registry.parse(metric).options
    # At level 1, which is the default threshold, metrics keep the threshold that they have.
    if level == 1 or has_threshold or not isinstance(parsed, BinaryMetric):
        return parsed
    return replace(parsed, threshold=level)


def _first_ids(queries: Iterable[str]) -> str:
    """The first three ids of queries, for errors."""
    ids = list(queries)
    return ", ".join(map(repr, ids[:3])) + (", ..." if len(ids) > 3 else "")
