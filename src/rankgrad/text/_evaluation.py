"""evaluate_run: the metrics of a TREC run by relevance judgments, as trec_eval computes them.

- Relevant documents that were not retrieved count: in the number of relevant ones and in the ideal
  ranking. Unjudged documents and those with a grade below 1 are not relevant.
- Equal scores are ranked by document id, descending, after rounding scores to float32.
- The mean is over the queries that are in the run and are judged; ``complete`` takes all that are
  judged, a query that is not in the run having retrieved nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

import rankgrad.metrics
from rankgrad._validation import check_choice, check_whole
from rankgrad.data.trec import Qrels, RankedList, best_first, check_zeros
from rankgrad.metrics import Evaluation, Metric
from rankgrad.metrics._base import BinaryMetric
from rankgrad.significance import Significance, check_same_queries, differences

Ties = Literal["trec_eval", "average"]
DEFAULT = ("nDCG@10", "AP", "RR", "P@10", "R@100")


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """What is counted, and how equal scores are ranked.

    Args:
        level: the lowest grade that is relevant, for metrics of binary relevance whose spec does
            not say a ``threshold``; trec_eval's ``-l``.
        complete: average over all judged queries; trec_eval's ``-c``.
        ties: ``"trec_eval"``, by document id, descending; or ``"average"``, the mean over all
            orders of documents with equal scores.
        double: compare scores as they are, and not as float32.
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
        queries: the ids of the lists of ``values``, in their order.
        values: per query, and the means.
        missing: queries that are judged and not in the run.
        unjudged: queries of the run that are not judged, and so left out.
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
        ValueError: no query of the run is judged, unless those count that the run does not have; or
            ids of queries differ by leading zeros alone.

    >>> from rankgrad.data.trec import RankedList
    >>> from rankgrad.text._evaluation import evaluate_run
    >>> run = {"1": RankedList.sort(["a", "b"], [2.0, 1.0])}
    >>> evaluation = evaluate_run(run, {"1": {"b": 1, "c": 2}}, ["AP", "nDCG"])
    >>> {name: round(value, 4) for name, value in evaluation.values.mean.items()}
    {'ap': 0.25, 'ndcg(gain=linear)': 0.2398}
    """
    rules = conventions or Conventions()
    check_zeros(run, qrels, ("the run", "the judgments"))
    judged = [query for query in qrels if query in run]
    if not judged and not (rules.complete and not run):
        raise ValueError(
            f"no query of the run is judged: the run has {_few(run)}, the judgments {_few(qrels)}"
        )
    queries = list(qrels) if rules.complete else judged
    lists = [_judged_list(run.get(query), qrels[query], rules) for query in queries]
    offsets = np.cumsum([0, *(len(each.labels) for each in lists)])
    values = rankgrad.metrics.evaluate(
        torch.from_numpy(np.concatenate([each.scores for each in lists])),
        torch.from_numpy(np.concatenate([each.labels for each in lists])),
        offsets=torch.from_numpy(offsets),
        retrieved=torch.from_numpy(np.concatenate([each.retrieved for each in lists])),
        metrics=[_with_level(metric, rules.level) for metric in metrics],
    )
    missing, unjudged = len(qrels) - len(judged), len(run) - len(judged)
    return RunEvaluation(tuple(queries), values, missing, unjudged)


def p_values(
    evaluations: Sequence[RunEvaluation], names: Sequence[str], significance: Significance
) -> dict[str, list[float]]:
    """By metric, the p-values of runs against the first one, corrected for their number.

    Args:
        evaluations: of two runs or more, with the same metrics.
        names: of the runs, for errors.
        significance: the test.

    Returns:
        NaN where a metric has fewer than two queries.

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
    for metric in first.values.per_list:
        values = {str(i): run.values.per_list[metric] for i, run in enumerate(evaluations)}
        tested = differences(values, "0", metric, significance, better=True)
        corrected[metric] = [difference.corrected for difference in tested]
    return corrected


@dataclass(frozen=True)
class _JudgedList:
    """What was retrieved for a query, best first, then the relevant documents that were not."""

    scores: NDArray[np.float64]
    labels: NDArray[np.float64]
    retrieved: NDArray[np.bool_]


def _judged_list(
    ranked: RankedList | None, grades: Mapping[str, int], rules: Conventions
) -> _JudgedList:
    documents, scores = _order(ranked, rules)
    relevant = {document: grade for document, grade in grades.items() if grade > 0}
    labels = [relevant.get(document, 0) for document in documents]
    retrieved = set(documents)
    missed = [grade for document, grade in relevant.items() if document not in retrieved]
    return _JudgedList(
        np.concatenate([scores, np.zeros(len(missed))]),
        np.array(labels + missed, np.float64),
        np.arange(len(labels) + len(missed)) < len(labels),
    )


def _order(ranked: RankedList | None, rules: Conventions) -> tuple[list[str], NDArray[np.float64]]:
    """Documents in trec_eval's order, with scores whose ties are those to be averaged."""
    if ranked is None:
        return [], np.empty(0)
    scores = np.asarray(ranked.scores, np.float64)
    if not rules.double:
        with np.errstate(over="ignore"):  # beyond float32 scores are infinite, and equal
            scores = scores.astype(np.float32).astype(np.float64)
    order = best_first(ranked.documents, scores)
    documents = [ranked.documents[i] for i in order.tolist()]
    if rules.ties == "average":
        return documents, np.nan_to_num(scores[order])
    return documents, np.arange(len(documents), 0, -1, dtype=np.float64)


def _with_level(metric: str | Metric, level: int) -> Metric:
    """The metric with a threshold of ``level``, unless its spec has one of its own."""
    registry = rankgrad.metrics.metrics
    parsed = registry.get(metric)
    has_threshold = isinstance(metric, str) and "threshold" in registry.parse(metric).options
    if level == 1 or has_threshold or not isinstance(parsed, BinaryMetric):
        return parsed
    return replace(parsed, threshold=level)


def _few(queries: Iterable[str]) -> str:
    names = list(queries)
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
